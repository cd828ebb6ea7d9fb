#include "worker/progress/progress_private.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/memory/copy.h"

int progress_init(struct progress *progress, struct arena *arena, uint64_t first_offset,
                  uint32_t slot_bytes, uint32_t slots)
{
    assert(slots <= PROGRESS_SHARED_SLOTS_MAX);
    struct staging staging;
    int code = staging_init(&staging, first_offset, slot_bytes, slots);
    if (code < 0)
        return code;
    memset(progress, 0, sizeof(*progress));
    progress->arena = arena;
    progress->memory = (struct request_memory){
        .base = arena->base, .data_offset = arena->data_offset, .total_bytes = arena->total_bytes};
    progress->staging = staging;
    progress->chunks_max = LAYOUT_MAX_CHUNKS;
    progress->staged_max_bytes = UINT64_MAX;
    return 0;
}

void progress_share(struct progress *progress, uint32_t local_ranks, uint32_t nodes)
{
    uint32_t ranks = local_ranks ? local_ranks : 1;
    progress->chunks_max = LAYOUT_MAX_CHUNKS / ranks;
    if (nodes == 1)
        progress->staged_max_bytes = PROGRESS_NODE_STAGED_BYTES / ranks;
}

void progress_clear(struct progress *progress)
{
    staging_clear(&progress->staging);
}

int progress_group_add(struct progress *progress, struct progress_group *group, uint64_t own_offset,
                       struct error *error)
{
    /* A slot that the daemon still has counts: its chunk may be in the ring. */
    if (progress->staging.own_count + progress->staging.orphan_count >= PROGRESS_GROUPS_MAX)
        return error_set(error, ERR_MEMORY, "this rank has %u groups open, which is the limit",
                         PROGRESS_GROUPS_MAX);
    int code =
        staging_add_own(&progress->staging, &group->own, own_offset, group->rule.chunk_bytes);
    if (code < 0)
        return error_set(error, code, "out of memory for a group");
    if (progress->failed) {
        group->failed = true;
        group->failure = progress->failure;
    }
    DL_APPEND(progress->groups, group);
    return 0;
}

bool progress_group_remove(struct progress *progress, struct progress_group *group)
{
    assert(!group->requests && !group->transfers);
    staging_remove_own(&progress->staging, &group->own);
    DL_DELETE(progress->groups, group);
    return group->own.state == STAGING_FREE;
}

/* What it is counted among. */
static uint32_t *count_of(struct progress *progress, const struct request *request)
{
    if (request->any)
        return &progress->any;
    return progress_is_transfer(request) ? &progress->transfers[request->receives]
                                         : &progress->submitted;
}

void progress_leave_queue(struct request **queue, struct request *request)
{
    DL_DELETE2(*queue, request, queue_prev, queue_next);
}

static void complete_whole(struct progress *progress, struct request *whole, uint64_t now_ns)
{
    whole->state = REQUEST_COMPLETE;
    whole->completed_ns = now_ns;
    DL_APPEND2(progress->completed, whole, queue_prev, queue_next);
}

/* This request, a block or a whole, is over; with the last one the collective is complete. */
static void complete(struct progress *progress, struct request *request, const struct error *error,
                     uint64_t now_ns)
{
    struct progress_group *group = request->group;
    struct request *whole = request->whole ? request->whole : request;
    if (request->state == REQUEST_SUBMITTED) {
        progress->table[request->number % PROGRESS_RING_ENTRIES] = NULL;
        --*count_of(progress, request);
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
        complete_whole(progress, whole, now_ns);
}

struct request *progress_next_completed(struct progress *progress)
{
    struct request *request = progress->completed;
    if (request)
        progress_leave_queue(&progress->completed, request);
    return request;
}

/* --- handing over ------------------------------------------------------------------------- */

static void push(struct progress *progress, const struct arena_submission *submission)
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

static void submit(struct progress *progress, struct request *request)
{
    const struct request_ask *ask = &request->ask;
    /* The table has more places than can be taken, so that the search ends. */
    while (progress->table[progress->place])
        progress->place = (progress->place + 1) % PROGRESS_RING_ENTRIES;
    request->number = progress->next_number++ * PROGRESS_RING_ENTRIES + progress->place;
    progress->table[progress->place] = request;
    progress->place = (progress->place + 1) % PROGRESS_RING_ENTRIES;
    ++*count_of(progress, request);
    if (!progress_is_transfer(request))
        request->group->chunks += request->layout.chunks;
    request->state = REQUEST_SUBMITTED;
    if (request->any) {
        push(progress, &(struct arena_submission){.type = ARENA_SUBMIT,
                                                  .kind = (uint8_t)ask->kind,
                                                  .group = request->group->number,
                                                  .request = request->number,
                                                  .sequence = request->sequence,
                                                  .in_offset = request->numbers_offset,
                                                  .flags = ARENA_FLAG_ANY});
        return;
    }
    bool in_arena = !request->staged;
    push(progress,
         &(struct arena_submission){
             .type = ARENA_SUBMIT,
             .kind = (uint8_t)ask->kind,
             .dtype = (uint8_t)ask->dtype,
             .op = (uint8_t)ask->op,
             .group = request->group->number,
             .request = request->number,
             .sequence = request->sequence,
             .count = ask->count,
             .in_offset = in_arena ? request->in_offset : 0,
             .out_offset = in_arena || ask->shared ? request->out_offset : 0,
             .root = ask->shared ? ask->segment : ask->root,
             .block = ask->block,
             .flags = (in_arena ? 0 : ARENA_FLAG_STAGED) | (ask->shared ? ARENA_FLAG_SHARED : 0),
             .priority = ask->priority,
         });
    if (request_has_chunk(request))
        progress_queue_for_staging(progress, request);
}

static void submit_next(struct progress *progress, struct request **queue, struct request *request)
{
    progress_leave_queue(queue, request);
    submit(progress, request);
}

static bool has_credit(const struct progress *progress, const struct request *request)
{
    const struct progress_group *group = request->group;
    return progress->submitted < PROGRESS_SUBMITTED_MAX &&
           (group->chunks == 0 || group->chunks + request->layout.chunks <= progress->chunks_max);
}

bool progress_submit_waiting(struct progress *progress)
{
    bool moved = false;
    while (progress->to_submit && has_credit(progress, progress->to_submit)) {
        submit_next(progress, &progress->to_submit, progress->to_submit);
        moved = true;
    }
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
    /* No credit left; a group's oldest goes all the same, or groups could block each other. */
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

static uint8_t *slot_memory(const struct progress *progress, const struct staging_slot *slot)
{
    return progress->arena->base + slot->offset;
}

static struct staging_slot *take_slot(struct progress *progress, struct request *request)
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

static void give_slot(struct progress *progress, struct staging_slot *slot)
{
    struct request *request = slot->request;
    slot->state = STAGING_GIVEN;
    push(progress, &(struct arena_submission){
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
static struct staging_slot *next_slot(struct progress *progress)
{
    struct request *first = progress->to_stage;
    if (!first)
        return NULL;
    struct staging_slot *slot = take_slot(progress, first);
    if (slot)
        return slot;
    struct progress_group *group;
    DL_FOREACH(progress->groups, group)
    {
        struct request *oldest = group->requests;
        if (oldest && oldest->state == REQUEST_SUBMITTED && request_has_chunk(oldest) &&
            (slot = take_slot(progress, oldest)))
            return slot;
    }
    return NULL;
}

/* Describe the copy that fills the slot; false when there is nothing to copy. */
static bool copy_in(const struct progress *progress, struct staging_slot *slot,
                    struct progress_copy *copy)
{
    const struct request *request = slot->request;
    struct layout_chunk chunk = layout_chunk(&request->layout, slot->chunk);
    if (!request->copy_in || chunk.count == 0)
        return false;
    slot->begin_ns = progress_trace_ns(progress);
    *copy = (struct progress_copy){
        .to = slot_memory(progress, slot),
        .from = (const uint8_t *)request->ask.send + request_chunk_offset(request, &chunk),
        .bytes = request_chunk_bytes(request, &chunk),
        .slot = slot,
        .on_device = request->ask.on_device,
    };
    return true;
}

/* A small request is handed over whole by the thread that calls, if there are slots. */
static void stage_now(struct progress *progress, struct request *request)
{
    while (request_has_chunk(request)) {
        struct staging_slot *slot = take_slot(progress, request);
        if (!slot)
            return;
        struct progress_copy copy;
        if (copy_in(progress, slot, &copy)) {
            memcpy(copy.to, copy.from, copy.bytes);
            slot->end_ns = slot->begin_ns > 0 ? progress->clock_ns() : 0;
        }
        give_slot(progress, slot);
    }
}

static void enqueue(struct progress *progress, struct progress_group *group,
                    struct request *request, uint64_t age)
{
    request->group = group;
    request->age = age;
    DL_APPEND(group->requests, request);
    group->request_count++;
    DL_APPEND2(progress->to_submit, request, queue_prev, queue_next);
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

static void stage_if_small(struct progress *progress, struct request *request)
{
    uint64_t bytes = request_bytes(request);
    for (uint32_t i = 0; i < request->block_count; i++)
        bytes += request_bytes(&request->blocks[i]);
    if (bytes > PROGRESS_SMALL_BYTES)
        return;
    if (request->state == REQUEST_SUBMITTED)
        stage_now(progress, request);
    for (uint32_t i = 0; i < request->block_count; i++) {
        if (request->blocks[i].state == REQUEST_SUBMITTED)
            stage_now(progress, &request->blocks[i]);
    }
}

int progress_submit(struct progress *progress, struct progress_group *group,
                    const struct request_ask *ask, const struct request_ask *blocks,
                    uint32_t block_count, uint32_t rank, struct request *request,
                    struct error *error)
{
    const struct error *failure = progress->failed ? &progress->failure : &group->failure;
    if (progress->failed || group->failed)
        return error_set(error, failure->code, "%s", failure->text);
    struct request *made = NULL;
    if (block_count > 0 && !(made = calloc(block_count, sizeof(*made))))
        return error_set(error, ERR_MEMORY, "out of memory for %" PRIu32 " parts", block_count);
    int code =
        progress_init_request(progress, group, ask, group->next_sequence, rank, request, error);
    for (uint32_t i = 0; i < block_count && code == 0; i++)
        code = progress_init_request(progress, group, &blocks[i], group->next_sequence, rank,
                                     &made[i], error);
    if (code < 0) {
        free(made);
        return code;
    }
    request->blocks = made;
    request->block_count = block_count;
    request->incomplete = block_count + 1;
    group->next_sequence++;
    bool nothing_ahead = !progress->to_stage && !progress->to_submit;
    uint64_t age = progress->next_age++;
    enqueue(progress, group, request, age);
    for (uint32_t i = 0; i < block_count; i++) {
        made[i].whole = request;
        enqueue(progress, group, &made[i], age);
    }
    progress_submit_waiting(progress);
    if (nothing_ahead && !ask->on_device)
        stage_if_small(progress, request);
    return 0;
}

static bool has_submitted(const struct progress *progress)
{
    return progress->submitted + progress->transfers[0] + progress->transfers[1] + progress->any >
           0;
}

bool progress_has_work(const struct progress *progress)
{
    return progress->to_submit || progress->to_copy || progress->matched || progress->to_stage ||
           progress->to_deliver || progress->completed ||
           (progress->failed && has_submitted(progress));
}

/* --- coming back --------------------------------------------------------------------------- */

void progress_finish_if_done(struct progress *progress, struct request *request, uint64_t now_ns)
{
    if (!request_finished(request))
        return;
    if (!progress_is_transfer(request) ||
        (!request->waiting && !progress_transfer_copies(progress, request)))
        complete(progress, request, NULL, now_ns);
}

static void chunk_done(struct progress *progress, struct staging_slot *slot, uint64_t now_ns)
{
    struct request *request = slot->request;
    staging_give_back(&progress->staging, slot);
    request->chunks_done++;
    progress_finish_if_done(progress, request, now_ns);
}

static bool receive_chunk(struct progress *progress, const struct arena_completion *completion,
                          uint64_t now_ns)
{
    struct staging_slot *slot = staging_find(&progress->staging, completion->offset);
    if (!slot)
        return staging_orphan_back(&progress->staging, completion->offset, completion->request,
                                   completion->chunk);
    if (slot->state != STAGING_GIVEN || slot->number != completion->request ||
        slot->chunk != completion->chunk)
        return false;
    struct request *request = slot->request;
    if (!request) { /* of a request that has failed; now the slot is ours again */
        staging_give_back(&progress->staging, slot);
        return true;
    }
    request->chunks_back++;
    struct layout_chunk chunk = layout_chunk(&request->layout, slot->chunk);
    if (request->copy_out && chunk.count > 0) {
        slot->state = STAGING_BACK;
        DL_APPEND(progress->to_deliver, slot);
    } else {
        chunk_done(progress, slot, now_ns);
    }
    return true;
}

/* A receive from any rank has found one, or nobody is left. */
static void receive_match(struct progress *progress, struct request *request, uint32_t source,
                          uint64_t now_ns)
{
    if (source == UINT32_MAX) {
        struct error error;
        error_set(&error, ERR_LOST,
                  "recv from any rank: all other ranks of the group have left the job");
        complete(progress, request, &error, now_ns);
        return;
    }
    progress->table[request->number % PROGRESS_RING_ENTRIES] = NULL;
    progress->any--;
    request->state = REQUEST_MATCHED;
    request->any_source = source;
    DL_APPEND2(progress->matched, request, queue_prev, queue_next);
}

static bool receive_done(struct progress *progress, const struct arena_completion *completion,
                         uint64_t now_ns)
{
    struct request *request = progress->table[completion->request % PROGRESS_RING_ENTRIES];
    if (!request || request->number != completion->request)
        /* Late news of a failed request is no fault; a number never given is. */
        return completion->request / PROGRESS_RING_ENTRIES < progress->next_number;
    if (request->any) {
        receive_match(progress, request, completion->chunk, now_ns);
        return true;
    }
    if (request->done_seen || (request->staged && request->chunks_back != request->layout.chunks))
        return false;
    request->done_seen = true;
    progress_finish_if_done(progress, request, now_ns);
    return true;
}

static bool receive(struct progress *progress, uint64_t now_ns)
{
    struct arena_completion completion;
    bool moved = false;
    while (!progress->failed && arena_pop_completion(progress->arena, &completion)) {
        moved = true;
        bool known = false;
        if (completion.type == ARENA_CHUNK_DONE)
            known = receive_chunk(progress, &completion, now_ns);
        else if (completion.type == ARENA_REQUEST_DONE)
            known = receive_done(progress, &completion, now_ns);
        if (!known) {
            struct error error;
            error_set(&error, ERR_PROTOCOL,
                      "the daemon reported what makes no sense: type %u, request %" PRIu64
                      ", chunk %" PRIu32 " at %" PRIu64,
                      completion.type, completion.request, completion.chunk, completion.offset);
            progress_fail(progress, &error, now_ns);
        }
    }
    return moved;
}

enum progress_result progress_work(struct progress *progress, uint64_t now_ns,
                                   struct progress_copy *copy)
{
    if (progress->failed) {
        /* push() may have found out, where nothing could be failed. */
        bool left = has_submitted(progress) || progress->to_submit || progress->to_transfer[0] ||
                    progress->to_transfer[1] || progress->to_any || progress->matched;
        progress_fail(progress, &progress->failure, now_ns);
        return left ? PROGRESS_MOVED : PROGRESS_IDLE;
    }
    bool moved = receive(progress, now_ns);
    moved |= progress_submit_waiting(progress);
    struct staging_slot *slot = progress->to_deliver;
    if (slot) {
        slot->begin_ns = progress_trace_ns(progress);
        const struct request *request = slot->request;
        struct layout_chunk chunk = layout_chunk(&request->layout, slot->chunk);
        DL_DELETE(progress->to_deliver, slot);
        *copy = (struct progress_copy){
            .to = (uint8_t *)request->ask.recv + request_chunk_offset(request, &chunk),
            .from = slot_memory(progress, slot),
            .bytes = request_chunk_bytes(request, &chunk),
            .slot = slot,
            .on_device = request->ask.on_device,
            .past_cache = request_bytes(request) >= COPY_PAST_CACHE_BYTES,
        };
        return PROGRESS_COPY;
    }
    if (progress->to_copy) {
        progress_copy_piece(progress, copy);
        return PROGRESS_COPY;
    }
    while ((slot = next_slot(progress))) {
        if (copy_in(progress, slot, copy))
            return PROGRESS_COPY;
        give_slot(progress, slot);
        moved = true;
    }
    return moved ? PROGRESS_MOVED : PROGRESS_IDLE;
}

/* The end of a device's copy. False: the request has failed meanwhile, and this was all. */
static bool end_copying(struct progress *progress, const struct progress_copy *copy,
                        uint64_t now_ns)
{
    struct staging_slot *slot = copy->slot;
    struct request *request = slot ? slot->request : copy->request;
    struct request *whole = request->whole ? request->whole : request;
    if (slot)
        slot->copying = false;
    else if (progress_is_transfer(request))
        request->copies--;
    else
        request->own = OWN_NONE;
    request->group->request_count--;
    whole->incomplete--;
    if (request->state != REQUEST_OVER)
        return true;
    if (slot)
        staging_give_back(&progress->staging, slot);
    if (whole->incomplete == 0)
        complete_whole(progress, whole, now_ns);
    return false;
}

/* A copy of it, which had no slot, has ended on a device. */
static void go_on(struct progress *progress, struct request *request, uint64_t now_ns)
{
    if (request->state != REQUEST_LOADING)
        progress_finish_if_done(progress, request, now_ns);
    else if (!progress_transfer_copies(progress, request))
        progress_transfer_loaded(progress, request);
}

void progress_copied(struct progress *progress, const struct progress_copy *copy, uint64_t now_ns)
{
    struct staging_slot *slot = copy->slot;
    if (copy->on_device) {
        if (!end_copying(progress, copy, now_ns))
            return;
        if (!slot) {
            go_on(progress, copy->request, now_ns);
            return;
        }
    }
    if (!slot) {
        copy->request->copied_bytes += copy->bytes;
        progress_finish_if_done(progress, copy->request, now_ns);
        return;
    }
    slot->end_ns = slot->begin_ns > 0 ? now_ns : 0;
    if (slot->state == STAGING_TAKEN) {
        give_slot(progress, slot);
        return;
    }
    if (slot->begin_ns > 0)
        progress_trace_copied(progress, slot);
    chunk_done(progress, slot, now_ns);
}

bool progress_doorbell_due(struct progress *progress)
{
    if (!progress->doorbell)
        return false;
    progress->doorbell = false;
    return arena_daemon_needs_doorbell(progress->arena);
}

/* --- failure ------------------------------------------------------------------------------- */

static void forget_results(struct progress *progress, const struct request *request)
{
    struct staging_slot *slot, *after;
    DL_FOREACH_SAFE(progress->to_deliver, slot, after)
    {
        if (slot->request == request)
            DL_DELETE(progress->to_deliver, slot);
    }
}

static void fail_request(struct progress *progress, struct request *request,
                         const struct error *error, uint64_t now_ns)
{
    forget_results(progress, request);
    staging_abandon(&progress->staging, request);
    if (request->copying)
        progress_leave_queue(&progress->to_copy, request);
    else if (request->state == REQUEST_MATCHED)
        progress_leave_queue(&progress->matched, request);
    else if (request->state == REQUEST_QUEUED && request->any)
        progress_leave_queue(&progress->to_any, request);
    else if (request->state == REQUEST_QUEUED && progress_is_transfer(request))
        progress_leave_queue(&progress->to_transfer[request->receives], request);
    else if (request->state == REQUEST_QUEUED)
        progress_leave_queue(&progress->to_submit, request);
    else if (request_has_chunk(request))
        progress_leave_queue(&progress->to_stage, request);
    complete(progress, request, error, now_ns);
}

void progress_fail_group(struct progress *progress, struct progress_group *group,
                         const struct error *error, uint64_t now_ns)
{
    if (!group->failed) {
        group->failed = true;
        group->failure = *error;
    }
    while (group->requests)
        fail_request(progress, group->requests, &group->failure, now_ns);
    while (group->transfers)
        fail_request(progress, group->transfers, &group->failure, now_ns);
}

void progress_fail(struct progress *progress, const struct error *error, uint64_t now_ns)
{
    if (!progress->failed) {
        progress->failed = true;
        progress->failure = *error;
    }
    struct progress_group *group;
    DL_FOREACH(progress->groups, group)
    {
        progress_fail_group(progress, group, &progress->failure, now_ns);
    }
}
