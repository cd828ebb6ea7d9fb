/* The table of the real engine, in a file of its own so that tests can do without the engine. */
#include <stdlib.h>

#include "server/control/control_internal.h"

struct control_engine control_engine_of(struct engine *engine)
{
    return (struct control_engine){
        .engine = engine,
        .event_descriptor = engine_event_descriptor,
        .next_event = engine_next_event,
        .transport_info = engine_transport_info,
        .fabric_address = engine_fabric_address,
        .peer_connect = engine_peer_connect,
        .peer_disconnect = engine_peer_disconnect,
        .job_open = engine_job_open,
        .job_close = engine_job_close,
        .job_fail = engine_job_fail,
        .group_open = engine_group_open,
        .group_close = engine_group_close,
        .group_fail = engine_group_fail,
        .rank_left = engine_rank_left,
        .segment_open = engine_segment_open,
        .segment_close = engine_segment_close,
        .worker_attach = engine_worker_attach,
        .worker_detach = engine_worker_detach,
        .late_query = engine_late_query,
        .drain = engine_drain,
        .turns = engine_turns,
        .trace_start = engine_trace_start,
        .trace_stop = engine_trace_stop,
        .status = engine_status,
        .status_clear = engine_status_clear,
        .event_free = engine_event_free,
    };
}
