/* All that goes into the submission ring: requests, chunks, times of copies; and how a request
 * ends. */
#include "worker/progress/progress_private.h"

#include <inttypes.h>
#include <string.h>
#include <utlist.h>

#include "common/format/wire.h"

/* --- requests: from the queue into the ring, and to their end */

void progress_leave_queue(struct request **queue, struct request *request)
{
    DL_DELETE2(*queue, request, queue_prev, queue_next);
}

/* Return the counter of the kind of request that this is. */
static uint32_t *submit_count(struct progress *progress, const struct request *request)
{
    if (request->any)
        return &progress->any;
    return progress_is_transfer(request) ? &progress->transfers[request->receives]
                                         : &progress->submitted;
}

/* This request, a block or a whole, is over; with the last one the collective is complete. */
void progress_complete(struct progress *progress, struct request *request,
                       const struct error *error, uint64_t now_ns)
{
    struct progress_group *group = request->group;
    struct request *whole = request->whole ? request->whole : request;
    if (request->state == REQUEST_SUBMITTED) {
        progress->table[progress_place(progress, request->number)] = NULL;
        --*submit_count(progress, request);
        if (!progress_is_transfer(request))
            group->chunks -= request->layout.chunks;
    }
    if (progress_is_transfer(request))
        DL_DELETE(group->transfers, request);
    else
        DL_DELETE(group->requests, request);
    group->request_count--;
    request->state = REQUEST_OVER;
    if (error && whole->result == 0) {
        whole->result = error->code;
        whole->error_text = strdup(error->text);
    }
    if (--whole->incomplete == 0)
        progress_end_whole(progress, whole, now_ns);
}

/* --- handing over ------------------------------------------------------------------------- */

void progress_push(struct progress *progress, const struct arena_submission *submission)
{
    bool pushed = arena_push_submission(progress->arena, submission);
    /* Fails only when the daemon spoils the ring's indices; then it is gone for us. */
    if (!pushed && !progress->failed) {
        progress->failed = true;
        error_set(&progress->failure, ERR_PROTOCOL,
                  "the daemon left the submission ring in disorder");
    }
    progress->doorbell = true;
}

void progress_number(struct progress *progress, uint64_t sequence, uint64_t number)
{
    if (!progress->failed && !progress->stopped)
        progress_push(progress, &(struct arena_submission){
                                    .type = ARENA_NUMBER, .sequence = sequence, .count = number});
}

/* By priority, then by age; most come in that order already. */
void progress_queue_for_staging(struct progress *progress, struct request *request)
{
    struct request *after = progress->to_stage ? progress->to_stage->queue_prev : NULL;
    while (after && (after->ask.priority > request->ask.priority ||
                     (after->ask.priority == request->ask.priority && after->age > request->age)))
        after = after == progress->to_stage ? NULL : after->queue_prev;
    if (after)
        DL_APPEND_ELEM2(progress->to_stage, after, request, queue_prev, queue_next);
    else
        DL_PREPEND2(progress->to_stage, request, queue_prev, queue_next);
}

static void submit_request(struct progress *progress, struct request *request)
{
    const struct request_ask *ask = &request->ask;
    /* The table has more entries than can be taken, so that the search ends. */
    while (progress->table[progress->table_next])
        progress->table_next = progress_place(progress, progress->table_next + 1);
    request->number = progress->next_number++ * progress->ring_entries + progress->table_next;
    progress->table[progress->table_next] = request;
    progress->table_next = progress_place(progress, progress->table_next + 1);
    ++*submit_count(progress, request);
    if (!progress_is_transfer(request))
        request->group->chunks += request->layout.chunks;
    request->state = REQUEST_SUBMITTED;
    if (request->any) {
        progress_push(progress, &(struct arena_submission){.type = ARENA_SUBMIT,
                                                           .kind = (uint8_t)ask->kind,
                                                           .group = request->group->number,
                                                           .request = request->number,
                                                           .sequence = request->sequence,
                                                           .in_offset = request->numbers_offset,
                                                           .flags = ARENA_FLAG_ANY});
        return;
    }
    bool in_arena = !request->staged;
    progress_push(progress, &(struct arena_submission){
                                .type = ARENA_SUBMIT,
                                .kind = (uint8_t)ask->kind,
                                .dtype = (uint8_t)ask->dtype,
                                .op = ask->up_to ? WIRE_TAKE_UP_TO : (uint8_t)ask->op,
                                .group = request->group->number,
                                .request = request->number,
                                .sequence = request->sequence,
                                .count = ask->count,
                                .in_offset = in_arena ? request->in_offset : 0,
                                .out_offset = in_arena || ask->shared ? request->out_offset : 0,
                                .root = ask->shared ? ask->segment : ask->root,
                                .block = ask->identity ? ask->identity : ask->block,
                                .flags = (in_arena ? 0 : ARENA_FLAG_STAGED) |
                                         (ask->shared ? ARENA_FLAG_SHARED : 0) |
                                         (ask->identity ? ARENA_FLAG_IDENTITY : 0),
                                .priority = ask->priority,
                            });
    if (request_has_chunk(request))
        progress_queue_for_staging(progress, request);
}

static void submit_next(struct progress *progress, struct request **queue, struct request *request)
{
    progress_leave_queue(queue, request);
    submit_request(progress, request);
}

static bool submit_has_credit(const struct progress *progress, const struct request *request)
{
    const struct progress_group *group = request->group;
    return progress->submitted < PROGRESS_SUBMITTED_MAX &&
           (group->chunks == 0 || group->chunks + request->layout.chunks <= progress->chunks_max);
}

bool progress_submit_waiting(struct progress *progress)
{
    bool moved = false;
    if (progress->stopped)
        return false;
    while (progress->to_submit && submit_has_credit(progress, progress->to_submit)) {
        submit_next(progress, &progress->to_submit, progress->to_submit);
        moved = true;
    }
    if (progress->held)
        return moved; /* the rest is the program's */
    while (progress->to_any && progress->any < PROGRESS_ANY_MAX) {
        submit_next(progress, &progress->to_any, progress->to_any);
        moved = true;
    }
    for (unsigned way = 0; way < 2; way++) {
        struct request **queue = &progress->to_transfer[way];
        while (*queue && progress->transfers[way] < PROGRESS_TRANSFERS_MAX) {
            submit_next(progress, queue, *queue);
            moved = true;
        }
    }
    if (!progress->to_submit)
        return moved;
    /* No more credit; a group's oldest goes all the same, or groups could block each other. */
    struct progress_group *group;
    DL_FOREACH(progress->groups, group)
    {
        if (group->requests && group->requests->state == REQUEST_QUEUED) {
            submit_next(progress, &progress->to_submit, group->requests);
            moved = true;
        }
    }
    return moved;
}

int progress_init_request(const struct progress *progress, const struct progress_group *group,
                          const struct request_ask *ask, uint64_t sequence, uint32_t rank,
                          struct request *request, struct error *error)
{
    int code = request_init(request, ask, rank, &group->rule, sequence, &progress->memory);
    if (code < 0)
        error_set(error, code,
                  "%s: %" PRIu64 " elements are too many: one collective has at most %u "
                  "chunks of up to %" PRIu32 " bytes (data.chunk_bytes); split it",
                  collective_name(ask->kind), ask->count, LAYOUT_MAX_CHUNKS,
                  group->rule.chunk_bytes);
    return code;
}

bool progress_doorbell_due(struct progress *progress)
{
    if (!progress->doorbell)
        return false;
    progress->doorbell = false;
    return arena_daemon_needs_doorbell(progress->arena);
}

/* --- times of copies, for the daemon's trace */

uint64_t progress_trace_ns(const struct progress *progress)
{
    return progress->clock_ns && arena_tracing(progress->arena) ? progress->clock_ns() : 0;
}

/* Trace that one chunk of the slot has been copied out. */
static void trace_chunk(struct progress *progress, const struct staging_slot *slot, uint32_t chunk)
{
    struct arena *arena = progress->arena;
    const struct request *request = slot->request;
    /* However many of these lie there, the rest has room. */
    if (arena_submission_room(arena) <=
        PROGRESS_OUT_MAX + 2 * PROGRESS_GROUPS_OF(progress->ring_entries)) {
        progress->omitted++;
        return;
    }
    struct arena_submission copied = {.type = ARENA_COPIED,
                                      .group = request->group->number,
                                      .request = request->number,
                                      .sequence = request->sequence,
                                      .begin_ns = slot->begin_ns,
                                      .end_ns = slot->end_ns,
                                      .chunk = chunk,
                                      .block = request->ask.block,
                                      .omitted = progress->omitted};
    if (arena_push_submission(arena, &copied))
        progress->omitted = 0;
}

void progress_trace_copied(struct progress *progress, const struct staging_slot *slot)
{
    for (uint32_t i = 0; i < slot->chunks; i++)
        trace_chunk(progress, slot, slot->chunk + i);
}

/* --- slots on their way to the daemon */

uint8_t *progress_slot_memory(const struct progress *progress, const struct staging_slot *slot)
{
    return progress->arena->base + slot->offset;
}

/* Return the oldest of the requests that wait for slots; NULL: none does. */
static struct request *stage_oldest(const struct progress *progress)
{
    struct request *oldest = progress->to_stage, *request;
    /* All have one priority, the usual case: the first is the oldest. */
    if (!oldest || oldest->queue_prev->ask.priority == oldest->ask.priority)
        return oldest;
    DL_FOREACH2(progress->to_stage, request, queue_next)
    {
        if (request->age < oldest->age)
            oldest = request;
    }
    return oldest;
}

static enum staging_turn stage_turn(const struct progress *progress, const struct request *request)
{
    if (request->group->requests == request)
        return STAGING_OLDEST;
    const struct request *oldest = stage_oldest(progress);
    bool ahead =
        oldest && oldest->age < request->age && oldest->ask.priority > request->ask.priority;
    return ahead ? STAGING_AHEAD : STAGING_IN_TURN;
}

/* The group's own slot is for a request that holds nothing which comes back to it by itself. */
static struct staging_slot *stage_take_on_device(struct progress *progress, struct request *request)
{
    struct staging *staging = &progress->staging;
    struct progress_group *group = request->group;
    enum staging_turn turn = stage_turn(progress, request);
    if (request->copy_in && progress->device_full)
        return NULL;
    if (!staging->pool_slots)
        return staging_take(staging, &group->own, request->layout.largest_bytes, UINT64_MAX, turn);
    struct staging_slot *slot = progress_take_part(progress, request, turn);
    if (!slot && turn == STAGING_OLDEST && !staging_pool_holds(staging, request))
        slot = staging_take_own(&group->own);
    return slot;
}

static struct staging_slot *stage_take_slot(struct progress *progress, struct request *request)
{
    struct staging_slot *slot =
        request->ask.on_device
            ? stage_take_on_device(progress, request)
            : staging_take(&progress->staging, &request->group->own, request->layout.largest_bytes,
                           progress->staged_max_bytes, stage_turn(progress, request));
    if (!slot)
        return NULL;
    slot->request = request;
    slot->number = request->number;
    slot->chunk = request->chunks_given;
    request->chunks_given += slot->chunks;
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
    for (uint32_t i = 0; i < slot->chunks; i++)
        progress_push(progress, &(struct arena_submission){
                                    .type = ARENA_CHUNK,
                                    .group = request->group->number,
                                    .request = request->number,
                                    .sequence = request->sequence,
                                    .begin_ns = slot->begin_ns,
                                    .in_offset = progress_chunk_place(slot, slot->chunk + i),
                                    .end_ns = slot->end_ns,
                                    .chunk = slot->chunk + i,
                                    .block = request->ask.block,
                                });
}

/* The first on the host: what waits for a device, or for the pool, holds up nothing of it. */
static struct request *stage_first_on_host(const struct progress *progress)
{
    struct request *request = progress->to_stage;
    while (request && request->ask.on_device)
        request = request->queue_next;
    return request;
}

/* The next slot to fill: for the first request by priority or, if it may have none now, for the
 * oldest that waits for slots, and for the oldest of any group, which has one of its own. */
struct staging_slot *progress_next_slot(struct progress *progress)
{
    struct request *first = progress->to_stage;
    if (!first || progress->stopped)
        return NULL;
    struct staging_slot *slot = stage_take_slot(progress, first);
    if (slot)
        return slot;
    struct request *others[] = {stage_oldest(progress), stage_first_on_host(progress)};
    for (unsigned i = 0; i < 2; i++) {
        if (others[i] && others[i] != first && (slot = stage_take_slot(progress, others[i])))
            return slot;
    }
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

/* Whether the slot's chunk, if it had no copy, would overtake others. The daemon gets a request's
 * chunks in their order: a chunk without an element needs no copy, but goes behind those that a
 * device is still copying. */
static bool stage_would_overtake(const struct progress *progress, const struct staging_slot *slot)
{
    return slot->request->ask.on_device && staging_fills_others(&progress->staging, slot);
}

/* Describe the copy that fills the slot; false when there is nothing to copy. */
bool progress_copy_in(const struct progress *progress, struct staging_slot *slot,
                      struct progress_copy *copy)
{
    const struct request *request = slot->request;
    struct layout_chunk chunk = layout_chunk(&request->layout, slot->chunk);
    uint64_t bytes =
        slot->pooled ? progress_slot_bytes(slot) : request_chunk_bytes(request, &chunk);
    if (!request->copy_in || (bytes == 0 && !stage_would_overtake(progress, slot)))
        return false;
    slot->begin_ns = progress_trace_ns(progress);
    *copy = (struct progress_copy){
        .to = progress_slot_memory(progress, slot),
        .from = (const uint8_t *)request->ask.send + request_chunk_offset(request, &chunk),
        .bytes = bytes,
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
