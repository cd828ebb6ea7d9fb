/* What the daemon is told of copies while it takes a trace. */
#include "worker/progress/progress_private.h"

uint64_t progress_trace_ns(const struct progress *progress)
{
    return progress->clock_ns && arena_tracing(progress->arena) ? progress->clock_ns() : 0;
}

void progress_trace_copied(struct progress *progress, const struct staging_slot *slot)
{
    struct arena *arena = progress->arena;
    const struct request *request = slot->request;
    /* However many of these lie there, the rest has room. */
    if (arena_submission_room(arena) <= PROGRESS_OUT_MAX) {
        progress->omitted++;
        return;
    }
    struct arena_submission copied = {.type = ARENA_COPIED,
                                      .group = request->group->number,
                                      .request = request->number,
                                      .sequence = request->sequence,
                                      .begin_ns = slot->begin_ns,
                                      .end_ns = slot->end_ns,
                                      .chunk = slot->chunk,
                                      .block = request->ask.block,
                                      .omitted = progress->omitted};
    if (arena_push_submission(arena, &copied))
        progress->omitted = 0;
}
