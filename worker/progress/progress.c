#include "worker/progress/progress_private.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/memory/copy.h"

uint32_t progress_ring_entries(uint64_t arena_bytes)
{
    uint32_t entries = PROGRESS_RING_ENTRIES_LEAST;
    while (entries < PROGRESS_RING_ENTRIES_MOST &&
           PROGRESS_GROUPS_OF(entries) < arena_bytes / PROGRESS_GROUP_BYTES)
        entries *= 2;
    return entries;
}

int progress_init(struct progress *progress, struct arena *arena, uint64_t first_offset,
                  uint32_t slot_bytes, uint32_t slots)
{
    assert(slots <= PROGRESS_SHARED_SLOTS_MAX);
    struct staging staging;
    int code = staging_init(&staging, first_offset, slot_bytes, slots);
    if (code < 0)
        return code;
    memset(progress, 0, sizeof(*progress));
    progress->ring_entries = arena->submission_mask + 1;
    progress->table = calloc(progress->ring_entries, sizeof(*progress->table));
    if (!progress->table) {
        staging_clear(&staging);
        return ERR_MEMORY;
    }
    progress->arena = arena;
    progress->memory = (struct request_memory){
        .base = arena->base, .data_offset = arena->data_offset, .total_bytes = arena->total_bytes};
    progress->staging = staging;
    progress->chunks_max = LAYOUT_MAX_CHUNKS;
    progress->staged_max_bytes = UINT64_MAX;
    progress->part_least_bytes = PROGRESS_COPY_BYTES;
    return 0;
}

int progress_add_pool(struct progress *progress, uint64_t offset, uint64_t bytes)
{
    return staging_add_pool(&progress->staging, offset, bytes, PROGRESS_SHARED_SLOTS_MAX);
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
    free(progress->table);
    progress->table = NULL;
}

int progress_group_add(struct progress *progress, struct progress_group *group, uint64_t own_offset,
                       struct error *error)
{
    /* A slot that the daemon still has counts: its chunk may be in the ring. */
    uint32_t most = PROGRESS_GROUPS_OF(progress->ring_entries);
    if (progress->staging.own_count + progress->staging.orphan_count >= most)
        return error_set(error, ERR_MEMORY,
                         "this rank has %" PRIu32 " groups open, for which an arena of %" PRIu64
                         " bytes has room (options.arena_bytes or SHOAL_ARENA_BYTES makes it "
                         "larger)",
                         most, progress->memory.total_bytes);
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
    assert(!group->requests && !group->transfers && !group->meeting);
    staging_remove_own(&progress->staging, &group->own);
    DL_DELETE(progress->groups, group);
    return group->own.state == STAGING_FREE;
}

struct request *progress_next_completed(struct progress *progress)
{
    struct request *request = progress->completed;
    if (request)
        progress_leave_queue(&progress->completed, request);
    return request;
}

void progress_enqueue(struct progress *progress, struct progress_group *group,
                      struct request *request, uint64_t age)
{
    request->group = group;
    request->age = age;
    request->met = group->met;
    DL_APPEND(group->requests, request);
    group->request_count++;
    DL_APPEND2(progress->to_submit, request, queue_prev, queue_next);
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
    for (uint32_t i = 0; i < block_count; i++)
        made[i].whole = request;
    request->incomplete = block_count + 1;
    bool nothing_ahead = !progress->to_stage && !progress->to_submit;
    uint64_t age = progress->next_age++;
    request->group = group;
    request->age = age;
    if (progress->keeps && !ask->internal) {
        progress_keep(group, request);
        if (progress->held)
            return 0; /* progress_go_on */
    }
    group->next_sequence++;
    progress_enqueue(progress, group, request, age);
    for (uint32_t i = 0; i < block_count; i++) {
        progress_enqueue(progress, group, &made[i], age);
    }
    progress_submit_waiting(progress);
    if (nothing_ahead && !ask->on_device)
        progress_stage_if_small(progress, request);
    return 0;
}

static bool has_submitted(const struct progress *progress)
{
    return progress->submitted + progress->transfers[0] + progress->transfers[1] + progress->any >
           0;
}

bool progress_has_work(const struct progress *progress)
{
    if (progress->stopped)
        return progress->to_copy || progress->to_deliver || progress->completed;
    return progress->to_submit || progress->to_copy || progress->matched || progress->to_stage ||
           progress->to_deliver || progress->completed ||
           (progress->failed && has_submitted(progress));
}

/* --- the ranks of the node alone ----------------------------------------------------------- */

int progress_meet(struct progress *progress, struct progress_group *group,
                  const struct request_ask *ask, struct request_ask *blocks, uint32_t block_count,
                  uint32_t rank, struct request *request, struct error *error)
{
    assert(!group->requests && !progress->failed && !group->failed);
    /* A collective that meets need not be cut; a larger one is cut all the same, so that one with
     * too many chunks for the daemon is refused now. */
    if (ask->count * dtype_bytes(ask->dtype) <= group->rule.chunk_bytes) {
        request_init_uncut(request, ask, rank);
    } else {
        int code =
            progress_init_request(progress, group, ask, group->next_sequence, rank, request, error);
        if (code < 0)
            return code;
    }
    request->asked = blocks;
    request->asked_count = block_count;
    request->group = group;
    request->state = REQUEST_MEETING;
    DL_APPEND(group->meeting, request);
    group->request_count++;
    return 0;
}

static struct request *leave_meeting(struct progress_group *group)
{
    struct request *request = group->meeting;
    DL_DELETE(group->meeting, request);
    group->request_count--;
    return request;
}

static void fail_met(struct progress *progress, struct request *request, const struct error *error,
                     uint64_t now_ns)
{
    request->result = error->code;
    request->error_text = strdup(error->text);
    progress_complete_whole(progress, request, now_ns);
}

void progress_met(struct progress *progress, struct progress_group *group, uint64_t now_ns)
{
    group->met++;
    progress_complete_whole(progress, leave_meeting(group), now_ns);
}

void progress_submit_unmet(struct progress *progress, struct progress_group *group, uint32_t rank,
                           uint64_t now_ns)
{
    struct request *request = leave_meeting(group);
    struct request_ask ask = request->ask, *blocks = request->asked;
    uint32_t block_count = request->asked_count;
    struct error error;
    request->asked = NULL;
    int code = progress_submit(progress, group, &ask, blocks, block_count, rank, request, &error);
    free(blocks);
    if (code < 0)
        fail_met(progress, request, &error, now_ns);
}

/* --- coming back --------------------------------------------------------------------------- */

void progress_finish_if_done(struct progress *progress, struct request *request, uint64_t now_ns)
{
    if (!request_finished(request))
        return;
    if (!progress_is_transfer(request) ||
        (!request->waiting && !progress_transfer_copies(progress, request)))
        progress_complete(progress, request, NULL, now_ns);
}

static void slot_done(struct progress *progress, struct staging_slot *slot, uint64_t now_ns)
{
    struct request *request = slot->request;
    uint32_t chunks = slot->chunks;
    staging_give_back(&progress->staging, slot);
    request->chunks_done += chunks;
    progress_finish_if_done(progress, request, now_ns);
}

static bool receive_chunk(struct progress *progress, const struct arena_completion *completion,
                          uint64_t now_ns)
{
    struct staging_slot *slot = staging_find(&progress->staging, completion->offset);
    if (!slot)
        return staging_orphan_back(&progress->staging, completion->offset, completion->request,
                                   completion->chunk);
    struct request *request = slot->request;
    if (slot->state != STAGING_GIVEN || slot->number != completion->request ||
        !staging_chunk_back(slot, completion->chunk) ||
        (request && completion->offset != progress_chunk_place(slot, completion->chunk)))
        return false;
    if (request)
        request->chunks_back++;
    if (slot->chunks_back < slot->chunks)
        return true; /* the slot waits for the others, which the daemon has too */
    if (!request) {  /* of a request that has failed; now the slot is ours again */
        staging_give_back(&progress->staging, slot);
        return true;
    }
    if (request->copy_out && progress_slot_bytes(slot) > 0) {
        slot->state = STAGING_BACK;
        DL_APPEND(progress->to_deliver, slot);
    } else {
        slot_done(progress, slot, now_ns);
    }
    return true;
}

/* A receive from any rank has found one, or nobody is there who could send. */
static void receive_match(struct progress *progress, struct request *request, uint32_t source,
                          uint64_t now_ns)
{
    if (source == UINT32_MAX) {
        struct error error;
        error_set(&error, ERR_LOST,
                  "recv from any rank: all other ranks of the group have left the job");
        progress_complete(progress, request, &error, now_ns);
        return;
    }
    progress->table[progress_place(progress, request->number)] = NULL;
    progress->any--;
    request->state = REQUEST_MATCHED;
    request->any_source = source;
    DL_APPEND2(progress->matched, request, queue_prev, queue_next);
}

static bool receive_done(struct progress *progress, const struct arena_completion *completion,
                         uint64_t now_ns)
{
    struct request *request = progress->table[progress_place(progress, completion->request)];
    if (!request || request->number != completion->request)
        /* Late news of a failed request is no fault; a number never given is. */
        return completion->request / progress->ring_entries < progress->next_number;
    if (request->any) {
        receive_match(progress, request, completion->chunk, now_ns);
        return true;
    }
    if (request->done_seen || (request->staged && request->chunks_back != request->layout.chunks))
        return false;
    if (progress_is_transfer(request) && !request->ask.replay)
        return progress_transfer_done(progress, request, completion, now_ns);
    request->done_seen = true;
    if (request->ask.replay && completion->chunk != 0) {
        struct error error;
        error_set(&error, ERR_STATE, "the result is not kept any more");
        progress_complete(progress, request, &error, now_ns);
        return true;
    }
    progress_finish_if_done(progress, request, now_ns);
    return true;
}

/* Whether such news can be: of a group that is gone it may be late. */
static bool receive_stable(struct progress *progress, const struct arena_completion *completion,
                           uint64_t now_ns)
{
    struct progress_group *group;
    DL_SEARCH_SCALAR(progress->groups, group, number, completion->group);
    if (!group)
        return true;
    if (completion->sequence > group->next_sequence)
        return false;
    group->stable = completion->sequence;
    progress_tell_stable(progress, group, now_ns);
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
        else if (completion.type == ARENA_STABLE)
            known = receive_stable(progress, &completion, now_ns);
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
        /* progress_push() may have found out, where nothing could be failed. */
        bool more = has_submitted(progress) || progress->to_submit || progress->to_transfer[0] ||
                    progress->to_transfer[1] || progress->to_any || progress->matched;
        progress_fail(progress, &progress->failure, now_ns);
        return more ? PROGRESS_MOVED : PROGRESS_IDLE;
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
            .from = progress_slot_memory(progress, slot),
            .bytes =
                slot->pooled ? progress_slot_bytes(slot) : request_chunk_bytes(request, &chunk),
            .slot = slot,
            .on_device = request->ask.on_device,
            .large_result = request_bytes(request) >= COPY_PAST_CACHE_BYTES,
        };
        return PROGRESS_COPY;
    }
    if (progress_copy_piece(progress, copy))
        return PROGRESS_COPY;
    while ((slot = progress_next_slot(progress))) {
        if (progress_copy_in(progress, slot, copy))
            return PROGRESS_COPY;
        progress_give_slot(progress, slot);
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
        progress_end_whole(progress, whole, now_ns);
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
        progress_give_slot(progress, slot);
        return;
    }
    if (slot->begin_ns > 0)
        progress_trace_copied(progress, slot);
    slot_done(progress, slot, now_ns);
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
    progress_complete(progress, request, error, now_ns);
}

/* Set *failure to the error, with ERR_LOST for ERR_TIMEOUT: what somebody else waited for in vain
 * is lost to this rank, and a request that failed with ERR_TIMEOUT would be taken for one that its
 * caller may go on to wait for. */
static void failure_set(struct error *failure, const struct error *error)
{
    *failure = *error;
    if (failure->code == ERR_TIMEOUT)
        failure->code = ERR_LOST;
}

void progress_fail_group(struct progress *progress, struct progress_group *group,
                         const struct error *error, uint64_t now_ns)
{
    if (!group->failed) {
        group->failed = true;
        failure_set(&group->failure, error);
        group->first_failed = group->requests ? group->requests->sequence + group->requests->met
                                              : group->next_sequence + group->met;
        if (progress->keeps)
            group->first_failed = group->kept ? group->kept->index : group->next_index;
    }
    while (group->meeting)
        fail_met(progress, leave_meeting(group), &group->failure, now_ns);
    while (group->requests)
        fail_request(progress, group->requests, &group->failure, now_ns);
    while (group->transfers)
        fail_request(progress, group->transfers, &group->failure, now_ns);
    progress_fail_kept(progress, group, &group->failure, now_ns);
}

void progress_fail(struct progress *progress, const struct error *error, uint64_t now_ns)
{
    if (!progress->failed) {
        progress->failed = true;
        failure_set(&progress->failure, error);
    }
    struct progress_group *group;
    DL_FOREACH(progress->groups, group)
    {
        progress_fail_group(progress, group, &progress->failure, now_ns);
    }
}

/* --- the next generation -------------------------------------------------------------------- */

uint64_t progress_kept(const struct progress *progress, const struct progress_group *group)
{
    if (group->failed)
        return group->first_failed;
    return progress->keeps ? group->next_index : group->next_sequence + group->met;
}

void progress_restart(struct progress *progress)
{
    struct progress_group *group;
    assert(!has_submitted(progress) && !progress_has_work(progress));
    progress->failed = false;
    progress->stopped = false;
    progress->held = false;
    progress->omitted = 0;
    progress->staged_max_bytes = UINT64_MAX;
    staging_restart(&progress->staging);
    DL_FOREACH(progress->groups, group)
    {
        assert(!group->requests && !group->transfers && !group->meeting);
        group->failed = false;
        group->next_sequence = 0;
        group->met = 0;
        group->chunks = 0;
        group->next_index = 0;
        group->stable = 0;
    }
}
