/* Staging slots on their way to the daemon: taken for a chunk, filled, given. */
#include "worker/progress/progress_private.h"

#include <string.h>
#include <utlist.h>

uint8_t *progress_slot_memory(const struct progress *progress, const struct staging_slot *slot)
{
    return progress->arena->base + slot->offset;
}

static struct staging_slot *stage_take_slot(struct progress *progress, struct request *request)
{
    struct progress_group *group = request->group;
    uint64_t most = request->ask.on_device ? UINT64_MAX : progress->staged_max_bytes;
    struct staging_slot *slot =
        staging_take(&progress->staging, &group->own, request->layout.largest_bytes, most,
                     group->requests == request);
    if (!slot)
        return NULL;
    slot->request = request;
    slot->number = request->number;
    slot->chunk = request->chunks_given++;
    slot->begin_ns = 0;
    slot->end_ns = 0;
    if (!request_has_chunk(request)) {
        progress_leave_queue(&progress->to_stage, request);
    } else if (request->whole) {
        /* The blocks of a collective go side by side: each has another owner. */
        progress_leave_queue(&progress->to_stage, request);
        progress_queue_for_staging(progress, request);
    }
    return slot;
}

void progress_give_slot(struct progress *progress, struct staging_slot *slot)
{
    struct request *request = slot->request;
    slot->state = STAGING_GIVEN;
    progress_push(progress, &(struct arena_submission){
                                .type = ARENA_CHUNK,
                                .group = request->group->number,
                                .request = request->number,
                                .sequence = request->sequence,
                                .begin_ns = slot->begin_ns,
                                .in_offset = slot->offset,
                                .end_ns = slot->end_ns,
                                .chunk = slot->chunk,
                                .block = request->ask.block,
                            });
}

/* The next slot to fill: for the first request by priority or, if it may have none now, for the
 * oldest of any group, which has one of its own. */
struct staging_slot *progress_next_slot(struct progress *progress)
{
    struct request *first = progress->to_stage;
    if (!first)
        return NULL;
    struct staging_slot *slot = stage_take_slot(progress, first);
    if (slot)
        return slot;
    struct progress_group *group;
    DL_FOREACH(progress->groups, group)
    {
        struct request *oldest = group->requests;
        if (oldest && oldest->state == REQUEST_SUBMITTED && request_has_chunk(oldest) &&
            (slot = stage_take_slot(progress, oldest)))
            return slot;
    }
    return NULL;
}

/* Describe the copy that fills the slot; false when there is nothing to copy. */
bool progress_copy_in(const struct progress *progress, struct staging_slot *slot,
                      struct progress_copy *copy)
{
    const struct request *request = slot->request;
    struct layout_chunk chunk = layout_chunk(&request->layout, slot->chunk);
    if (!request->copy_in || chunk.count == 0)
        return false;
    slot->begin_ns = progress_trace_ns(progress);
    *copy = (struct progress_copy){
        .to = progress_slot_memory(progress, slot),
        .from = (const uint8_t *)request->ask.send + request_chunk_offset(request, &chunk),
        .bytes = request_chunk_bytes(request, &chunk),
        .slot = slot,
        .on_device = request->ask.on_device,
    };
    return true;
}

/* A small request is handed over whole by the thread that calls, if there are slots. */
static void stage_request(struct progress *progress, struct request *request)
{
    while (request_has_chunk(request)) {
        struct staging_slot *slot = stage_take_slot(progress, request);
        if (!slot)
            return;
        struct progress_copy copy;
        if (progress_copy_in(progress, slot, &copy)) {
            memcpy(copy.to, copy.from, copy.bytes);
            slot->end_ns = slot->begin_ns > 0 ? progress->clock_ns() : 0;
        }
        progress_give_slot(progress, slot);
    }
}

void progress_stage_if_small(struct progress *progress, struct request *request)
{
    uint64_t bytes = request_bytes(request);
    for (uint32_t i = 0; i < request->block_count; i++)
        bytes += request_bytes(&request->blocks[i]);
    if (bytes > PROGRESS_SMALL_BYTES)
        return;
    if (request->state == REQUEST_SUBMITTED)
        stage_request(progress, request);
    for (uint32_t i = 0; i < request->block_count; i++) {
        if (request->blocks[i].state == REQUEST_SUBMITTED)
            stage_request(progress, &request->blocks[i]);
    }
}
