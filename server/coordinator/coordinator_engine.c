/* What the engine tells the coordinator. */
#include <stdlib.h>

#include "server/coordinator/coordinator_internal.h"

static void engine_detached(struct coordinator *c, uint64_t now_ns,
                            const struct engine_event *event)
{
    struct message_position *positions = calloc(event->position_count + 1, sizeof(*positions));
    if (!positions) {
        /* The others could wait for collectives that the rank will not take part in. */
        coordinator_worker_failed(c, now_ns, event->job, event->rank, ERR_MEMORY,
                                  "no memory for how far it has got");
        return;
    }
    for (uint32_t i = 0; i < event->position_count; i++)
        positions[i] =
            (struct message_position){event->positions[i].group, event->positions[i].sequences};
    coordinator_worker_detached(c, now_ns, event->job, event->rank, positions,
                                event->position_count);
    free(positions);
}

bool coordinator_engine_event(struct coordinator *c, uint64_t now_ns,
                              const struct engine_event *event)
{
    switch (event->type) {
    case ENGINE_PEER_UP:
    case ENGINE_PEER_DOWN:
    case ENGINE_TRACED:
        return false;
    case ENGINE_JOB_OPENED:
        coordinator_job_opened(c, now_ns, event->job, event->code, event->text);
        break;
    case ENGINE_GROUP_OPENED:
        coordinator_group_opened(c, now_ns, event->job, event->group, event->code, event->text);
        break;
    case ENGINE_GROUP_FAILED:
        coordinator_group_failed(c, now_ns, event->job, event->group, event->code, event->text);
        break;
    case ENGINE_SEGMENT_OPENED:
        coordinator_segment_opened(c, now_ns, event->job, event->group, event->segment, event->code,
                                   event->text);
        break;
    case ENGINE_WORKER_FAILED:
        coordinator_worker_failed(c, now_ns, event->job, event->rank, event->code, event->text);
        break;
    case ENGINE_WORKER_DETACHED:
        engine_detached(c, now_ns, event);
        break;
    case ENGINE_LATE:
        coordinator_late(c, now_ns, event->job, event->group, event->sequence, event->ranks,
                         event->rank_count, event->nodes, event->node_count);
        break;
    case ENGINE_IDLE:
        coordinator_idle(c, now_ns);
        break;
    }
    return true;
}
