/* The table of the real engine, in a file of its own so that tests can do without the engine. */
#include <stdlib.h>

#include "server/control/ground/control_internal.h"

struct control_engine control_engine_of(struct engine *engine)
{
    return (struct control_engine){
        .engine = engine,
        .event_descriptor = engine_event_descriptor,
        .next_event = engine_next_event,
        .transport_info = engine_transport_info,
        .fabric_address = engine_fabric_address,
        .command = engine_command,
        .turns = engine_turns,
        .status = engine_status,
        .status_clear = engine_status_clear,
        .event_free = engine_event_free,
    };
}
