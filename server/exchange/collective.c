/* A collective on a node with ranks of its group: what they submit and hand over, until all its
 * chunks, whose way is in server/exchange/chunk.c, are delivered. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/memory.h"
#include "common/format/window.h"
#include "server/exchange/exchange_private.h"

/* What workers can make the daemon keep for the collectives of a group under way, besides their
 * chunks: LAYOUT_MAX_CHUNKS of all together. */
#define COLLECTIVES_MAX 65536u /* of a group; and requests of a rank in all its groups */

/* --- finding and freeing ---------------------------------------------------------------------- */

bool collective_comes_before(const struct collective *collective, uint64_t sequence, uint32_t block)
{
    return collective->sequence < sequence ||
           (collective->sequence == sequence && collective->ask.block < block);
}

static struct collective **collective_bucket(struct exchange_group *group, uint64_t sequence,
                                             uint32_t block)
{
    return &group->collective_table[group_bucket(sequence, block, 0, COLLECTIVE_BUCKETS)];
}

struct collective *collective_find(struct exchange_group *group, uint64_t sequence, uint32_t block)
{
    struct collective *it = *collective_bucket(group, sequence, block);
    while (it && (it->sequence != sequence || it->ask.block != block))
        it = it->next_in_bucket;
    return it;
}

/* In its place in the list, which is behind what the rank that makes it has submitted. */
static void collective_link(struct collective *made, const struct local_rank *rank)
{
    struct exchange_group *group = made->group;
    struct collective *before = rank->submitted;
    struct collective *after = before ? before->next : group->oldest;
    while (after && collective_comes_before(after, made->sequence, made->ask.block)) {
        before = after;
        after = after->next;
    }
    made->previous = before;
    made->next = after;
    if (after)
        after->previous = made;
    else
        group->newest = made;
    if (before)
        before->next = made;
    else
        group->oldest = made;
}

/* Who takes part, and where it goes. */
static void collective_find_way(struct collective *made)
{
    const struct exchange_group *group = made->group;
    struct route route = ask_route(group, &made->ask);
    made->route = route;
    for (uint32_t i = 0; i < group->local_count; i++)
        made->needed += route_takes_part(&route, group->locals[i].group_rank);
    made->single = group->single;
    if (made->ask.block == 0)
        return;
    made->owner = ask_block_owner(group, &made->ask);
    if (route.from < group->size && route.to < group->size)
        made->single = group_rank_node(group, route.from) == group_rank_node(group, route.to);
}

/* A block between two ranks waits for one of them, and must not keep back those of others. */
static void collective_set_windows(struct collective *made)
{
    uint32_t window_bytes = made->group->job->exchange->options.window_bytes;
    made->shard_window = made->network_window = made->lead_window = UINT32_MAX;
    if (made->single || (made->route.from != ROUTE_ALL && made->route.to != ROUTE_ALL))
        return;
    /* Parts to be summed lie at their owner until the other nodes' are there, and no results
     * follow. */
    if (made->ask.block > 0 && made->route.from == ROUTE_ALL)
        window_bytes *= 2;
    made->shard_window = window_of_shard(made->layout.pieces);
    made->network_window = window_of_network(window_bytes, made->layout.largest_bytes);
    if (made->layout.shards > 1)
        made->lead_window = window_of_lead(made->shard_window, made->network_window);
}

bool is_transfer(const struct wire_ask *ask)
{
    return ask->kind == COLLECTIVE_SEND;
}

static void collective_unlink(struct collective *collective)
{
    struct exchange_group *group = collective->group;
    struct collective **first = is_transfer(&collective->ask) ? &group->transfers : &group->oldest;
    if (collective->previous)
        collective->previous->next = collective->next;
    else
        *first = collective->next;
    if (collective->next)
        collective->next->previous = collective->previous;
    else if (!is_transfer(&collective->ask))
        group->newest = collective->previous;
}

static void collective_free(struct collective *collective)
{
    struct exchange_group *group = collective->group;
    for (uint32_t i = 0; i < collective->layout.chunks; i++) {
        if (collective->chunks[i])
            chunk_free(collective->chunks[i]);
    }
    for (uint32_t i = 0; i < collective->layout.shards; i++)
        outlet_leave(&collective->outlets[i]);
    for (uint32_t i = 0; i < group->local_count; i++) {
        if (collective->parts[i].submitted) {
            segment_let_go(group, collective->parts[i].segment);
            group_local_worker(group, i)->requests--;
            group_local_worker(group, i)->transfers -= is_transfer(&collective->ask);
        }
        if (group->locals[i].submitted == collective)
            group->locals[i].submitted = collective->previous;
    }
    struct collective **link =
        collective_bucket(group, collective->sequence, collective->ask.block);
    while (*link != collective)
        link = &(*link)->next_in_bucket;
    *link = collective->next_in_bucket;
    collective_unlink(collective);
    group->collectives -= !is_transfer(&collective->ask);
    group->chunks -= collective->layout.chunks;
    free(collective->outlets);
    free(collective->chunks);
    free(collective);
}

void collectives_drop(struct exchange_group *group)
{
    while (group->oldest)
        collective_free(group->oldest);
    while (group->transfers)
        collective_free(group->transfers);
}

static void list_drop_idle(struct collective *first)
{
    for (struct collective *it = first; it; it = it->next) {
        for (uint32_t i = 0; i < it->layout.chunks; i++) {
            if (it->chunks[i])
                chunk_drop_idle(it->chunks[i]);
        }
    }
}

void collectives_drop_idle(struct exchange_group *group)
{
    list_drop_idle(group->oldest);
    list_drop_idle(group->transfers);
}

/* --- handing over ----------------------------------------------------------------------------- */

struct collective *collective_create(struct exchange_group *group, uint64_t sequence,
                                     const struct wire_ask *ask, uint32_t priority,
                                     struct error *error)
{
    struct layout layout;
    uint32_t element_bytes = ask_element_bytes(ask);
    if (ask_layout(group, ask, sequence, &layout) != 0) {
        error_set(error, ERR_INVALID,
                  "%" PRIu64 " elements are too many: a collective has at most %u chunks of up to "
                  "%" PRIu32 " bytes",
                  ask->count, LAYOUT_MAX_CHUNKS, group->rule.chunk_bytes);
        return NULL;
    }
    if (!is_transfer(ask) && group->collectives >= COLLECTIVES_MAX) {
        error_set(error, ERR_MEMORY, "more than %u collectives of group %" PRIu32 " under way",
                  COLLECTIVES_MAX, group->id);
        return NULL;
    }
    if (layout.chunks > LAYOUT_MAX_CHUNKS - group->chunks) {
        error_set(error, ERR_MEMORY, "more than %u chunks of group %" PRIu32 " under way",
                  LAYOUT_MAX_CHUNKS, group->id);
        return NULL;
    }
    struct collective *made = calloc(1, sizeof(*made) + group->local_count * sizeof(struct part));
    struct outlet *outlets = calloc(layout.shards, sizeof(*outlets));
    struct chunk **chunks = calloc(layout.chunks, sizeof(*chunks));
    if (!made || !outlets || !chunks) {
        free(made);
        free(outlets);
        free(chunks);
        error_set(error, ERR_MEMORY, "no memory for a collective of %" PRIu32 " chunks",
                  layout.chunks);
        return NULL;
    }
    made->group = group;
    made->sequence = sequence;
    made->first_ns = group->job->exchange->now_ns;
    made->ask = *ask;
    made->layout = layout;
    made->element_bytes = element_bytes;
    made->priority = priority;
    made->outlets = outlets;
    made->slowest_shards = layout.shards;
    for (uint32_t i = 0; i < layout.shards; i++)
        outlets[i].collective = made;
    made->chunks = chunks;
    collective_find_way(made);
    collective_set_windows(made);
    struct collective **bucket = collective_bucket(group, sequence, ask->block);
    made->next_in_bucket = *bucket;
    *bucket = made;
    group->collectives += !is_transfer(ask);
    group->chunks += layout.chunks;
    return made;
}

/* How far every local rank has handed its chunks over. */
static void collective_update_ready(struct collective *collective)
{
    const struct exchange_group *group = collective->group;
    if (collective->submitted < collective->needed || collective->disagree)
        return;
    uint32_t ready = collective->layout.chunks;
    for (uint32_t i = 0; i < group->local_count; i++) {
        if (collective->parts[i].submitted && collective->parts[i].handed < ready)
            ready = collective->parts[i].handed;
    }
    if (ready > collective->ready)
        collective_advance_ready(collective, ready);
}

/* All local ranks have submitted. */
static void collective_complete_asks(struct collective *collective, uint32_t last_local)
{
    struct exchange_group *group = collective->group;
    if (group->local_count > 1 && collective->ask.block == 0)
        group->job->last_to_arrive[group->locals[last_local].job_rank]++;
    if (collective->needed > 1)
        collective_trace(collective, TRACE_ARRIVE, group->locals[last_local].job_rank);
    if (!collective->disagree) {
        if (collective_find_place(collective))
            collective_update_ready(collective);
        return;
    }
    group->disagrees = true;
    group_mark_dirty(group);
}

struct wire_ask submission_ask(const struct arena_submission *submission)
{
    bool shared = submission->flags & ARENA_FLAG_SHARED; /* then it is a segment in its place */
    return (struct wire_ask){.kind = submission->kind,
                             .dtype = submission->dtype,
                             .op = submission->op,
                             .root = shared ? 0 : submission->root,
                             .block = submission->block,
                             .count = submission->count};
}

static int submission_check_offsets(const struct exchange_group *group,
                                    const struct exchange_worker *worker,
                                    const struct arena_submission *submission,
                                    const struct wire_ask *ask, struct error *error)
{
    uint64_t bytes =
        wire_ask_elements(ask) * ask_element_bytes(ask); /* count was checked: no overflow */
    bool shared = submission->flags & ARENA_FLAG_SHARED;
    if (submission->flags & ~(ARENA_FLAG_STAGED | ARENA_FLAG_SHARED))
        return error_set(error, ERR_PROTOCOL, "unknown flags 0x%" PRIx32, submission->flags);
    if (shared && segment_check_submission(group, submission, bytes, error) != 0)
        return ERR_PROTOCOL;
    if ((submission->flags & ARENA_FLAG_STAGED) || bytes == 0)
        return 0;
    if (!arena_range_valid(&worker->arena, submission->in_offset, bytes) ||
        (!shared && !arena_range_valid(&worker->arena, submission->out_offset, bytes)))
        return error_set(error, ERR_PROTOCOL,
                         "data at offsets %" PRIu64 " and %" PRIu64 " of %" PRIu64
                         " bytes is not inside the arena",
                         submission->in_offset, submission->out_offset, bytes);
    return 0;
}

/* A collective has the next number; its blocks have its own, and come in their order before the
 * next. */
static int submission_check_sequence(const struct exchange_group *group,
                                     const struct local_rank *rank, uint64_t sequence,
                                     const struct wire_ask *ask, struct error *error)
{
    uint64_t expected = rank->next_sequence - (rank->next_block > 0);
    if (ask->block != rank->next_block)
        return error_set(error, ERR_PROTOCOL,
                         "block %" PRIu32 " of collective %" PRIu64 " of group %" PRIu32
                         ", where block %" PRIu32 " of collective %" PRIu64 " was expected",
                         ask->block, sequence, group->id, rank->next_block, expected);
    if (sequence != expected)
        return error_set(error, ERR_PROTOCOL,
                         "collective %" PRIu64 " of group %" PRIu32 ", where %" PRIu64
                         " was expected",
                         sequence, group->id, expected);
    if (ask->block > 0 && (ask->kind != rank->last.kind || ask->root != rank->last.root))
        return error_set(error, ERR_PROTOCOL,
                         "block %" PRIu32 " of collective %" PRIu64 " of group %" PRIu32
                         " is of another collective",
                         ask->block, sequence, group->id);
    return 0;
}

static void rank_advance(const struct exchange_group *group, struct local_rank *rank,
                         const struct wire_ask *ask)
{
    if (ask->block == 0) {
        rank->next_sequence++;
        rank->last = *ask;
    }
    rank->next_block = route_next_block((enum collective_kind)ask->kind, ask->root,
                                        rank->group_rank, group->size, ask->block + 1);
}

/* A block of a collective on which the local ranks disagree: others have other blocks of the same
 * number. The group is about to fail of it. */
static bool is_beyond_agreement(const struct exchange_group *group,
                                const struct arena_submission *submission)
{
    return submission->block > 0 && submission->sequence >= group->least_disagreed;
}

int submission_check_worker(const struct exchange_group *group,
                            const struct exchange_worker *worker,
                            const struct arena_submission *submission, const struct wire_ask *ask,
                            struct error *error)
{
    int result = submission_check_offsets(group, worker, submission, ask, error);
    if (result == 0 && worker->requests >= COLLECTIVES_MAX)
        result = error_set(error, ERR_PROTOCOL, "more than %u requests under way", COLLECTIVES_MAX);
    return result;
}

bool collective_add_part(struct collective *collective, uint32_t local, const struct wire_ask *ask,
                         const struct arena_submission *submission)
{
    struct exchange_group *group = collective->group;
    bool staged = submission->flags & ARENA_FLAG_STAGED;
    bool shared = submission->flags & ARENA_FLAG_SHARED;
    collective->parts[local] = (struct part){
        .ask = *ask,
        .request = submission->request,
        .in_offset = submission->in_offset,
        .out_offset = submission->out_offset,
        .segment = shared ? segment_hold(group, submission->segment) : NULL,
        .handed = staged ? 0 : UINT32_MAX,
        .submitted = true,
        .staged = staged,
    };
    group_local_worker(group, local)->requests++;
    group_local_worker(group, local)->transfers += is_transfer(ask);
    group->job->bytes_submitted += wire_ask_elements(ask) * ask_element_bytes(ask);
    if (!wire_ask_equal(ask, &collective->ask))
        collective->disagree = true;
    return ++collective->submitted == collective->needed;
}

static int collective_submit(struct exchange_group *group, uint32_t local,
                             struct exchange_worker *worker,
                             const struct arena_submission *submission, struct error *error)
{
    struct wire_ask ask = submission_ask(submission);
    struct local_rank *rank = &group->locals[local];
    int result = wire_ask_check(&ask, group->size, error);
    if (result == 0)
        result = submission_check_sequence(group, rank, submission->sequence, &ask, error);
    if (result == 0)
        result = submission_check_worker(group, worker, submission, &ask, error);
    if (result != 0)
        return result;
    if (is_beyond_agreement(group, submission)) {
        rank_advance(group, rank, &ask);
        return 0;
    }
    struct collective *collective = collective_find(group, submission->sequence, ask.block);
    if (!collective) {
        collective =
            collective_create(group, submission->sequence, &ask, submission->priority, error);
        if (!collective)
            return error ? error->code : ERR_MEMORY;
        collective_link(collective, rank);
    }
    rank_advance(group, rank, &ask);
    rank->submitted = collective;
    bool all_here = collective_add_part(collective, local, &ask, submission);
    if (collective->disagree && ask.block == 0 && submission->sequence < group->least_disagreed)
        group->least_disagreed = submission->sequence;
    if (submission->sequence >= group->least_left)
        group_mark_dirty(group);
    if (all_here)
        collective_complete_asks(collective, local);
    return 0;
}

/* A place in the arena holds one chunk at a time, and each chunk comes back as an entry of the
 * completion ring: a rank cannot honestly have more under way than its arena has bytes and its ring
 * entries. The second holds for chunks without data too. */
static int hand_over_check_room(const struct exchange_worker *worker, const struct chunk *chunk,
                                struct error *error)
{
    const struct arena *arena = &worker->arena;
    if (chunk_arena_bytes(chunk) > arena->total_bytes - worker->handed_bytes)
        return error_set(error, ERR_PROTOCOL,
                         "more handed over and not given back than its arena of %" PRIu64
                         " bytes holds",
                         arena->total_bytes);
    if (worker->handed_chunks > arena->completion_mask)
        return error_set(error, ERR_PROTOCOL,
                         "more chunks handed over and not given back than its completion ring of "
                         "%" PRIu64 " entries holds",
                         (uint64_t)arena->completion_mask + 1);
    return 0;
}

int collective_hand_over(struct exchange_group *group, uint32_t local,
                         struct exchange_worker *worker, const struct arena_submission *submission,
                         struct error *error)
{
    struct collective *collective = collective_find(group, submission->sequence, submission->block);
    struct part *part = collective ? &collective->parts[local] : NULL;
    if ((!part || !part->submitted) && is_beyond_agreement(group, submission)) {
        chunk_give_back(group->job->exchange, worker, submission->request, submission->chunk,
                        submission->in_offset);
        return 0;
    }
    if (!part || !part->submitted || !part->staged || part->request != submission->request)
        return error_set(error, ERR_PROTOCOL,
                         "a chunk of collective %" PRIu64 " of group %" PRIu32
                         ", which was not submitted as staged",
                         submission->sequence, group->id);
    if (collective->disagree) {
        /* The group is about to fail; the cut of this rank is not ours. */
        chunk_give_back(group->job->exchange, worker, submission->request, submission->chunk,
                        submission->in_offset);
        return 0;
    }
    if (submission->chunk != part->handed || submission->chunk >= collective->layout.chunks)
        return error_set(
            error, ERR_PROTOCOL,
            "chunk %" PRIu32 " of collective %" PRIu64 ", %" PRIu32 " of %" PRIu32 " expected",
            submission->chunk, submission->sequence, part->handed, collective->layout.chunks);
    struct layout_chunk place = layout_chunk(&collective->layout, submission->chunk);
    uint64_t bytes = place.count * collective->element_bytes;
    if (!arena_range_valid(&worker->arena, submission->in_offset, bytes))
        return error_set(error, ERR_PROTOCOL,
                         "a chunk at offset %" PRIu64 " of %" PRIu64
                         " bytes is not inside the arena",
                         submission->in_offset, bytes);
    struct chunk *chunk = chunk_get(collective, submission->chunk);
    if (!chunk)
        return error_set(error, ERR_MEMORY, "no memory for a chunk");
    if (hand_over_check_room(worker, chunk, error) != 0)
        return ERR_PROTOCOL;
    worker->handed_bytes += chunk_arena_bytes(chunk);
    worker->handed_chunks++;
    chunk->offsets[local] = submission->in_offset;
    chunk_trace_handed(chunk, worker, submission);
    part->handed++;
    collective_update_ready(collective);
    return 0;
}

int exchange_submit(struct exchange *exchange, struct exchange_worker *worker,
                    const struct arena_submission *submission, uint64_t now_ns, struct error *error)
{
    struct exchange_job *job = worker->job;
    exchange->now_ns = now_ns;
    if (worker->detached || job->failed)
        return 0;
    if (submission->type == ARENA_COPIED) /* its group may be closed by now */
        return worker_trace_copied(worker, submission, error);
    struct exchange_group *group = exchange_group_find(job, submission->group);
    uint32_t local = group ? group_local_index(group, worker->rank) : NO_INDEX;
    if (local == NO_INDEX)
        return error_set(error, ERR_PROTOCOL, "group %" PRIu32 " is not one of rank %" PRIu32,
                         submission->group, worker->rank);
    if (group->failed) {
        /* What was on its way while the group failed: the rank waits for its places. */
        if (submission->type == ARENA_CHUNK)
            chunk_give_back(exchange, worker, submission->request, submission->chunk,
                            submission->in_offset);
        return 0;
    }
    switch (submission->type) {
    case ARENA_SUBMIT:
        return submission->kind == COLLECTIVE_SEND
                   ? transfer_submit(group, local, worker, submission, error)
                   : collective_submit(group, local, worker, submission, error);
    case ARENA_CHUNK:
        return collective_hand_over(group, local, worker, submission, error);
    default:
        return error_set(error, ERR_PROTOCOL, "submission type %u does not exist",
                         submission->type);
    }
}

void collective_complete(struct collective *collective)
{
    struct exchange_group *group = collective->group;
    struct exchange *exchange = group->job->exchange;
    collective_trace(collective, TRACE_COLLECTIVE, TRACE_NO_PEER);
    for (uint32_t i = 0; i < group->local_count; i++) {
        struct exchange_worker *worker = group_local_worker(group, i);
        struct arena_completion completion = {.type = ARENA_REQUEST_DONE,
                                              .request = collective->parts[i].request};
        if (collective->parts[i].submitted && !worker->detached)
            exchange->options.io.complete(exchange->options.io.context, worker, &completion);
    }
    group->job->collectives++;
    exchange->collectives++;
    collective_free(collective);
}

/* --- late ranks ------------------------------------------------------------------------------- */

void collective_missing_ranks(const struct exchange_group *group, uint64_t sequence,
                              struct engine_event *event)
{
    event->ranks = memory_require(group->local_count, sizeof(*event->ranks), "the late ranks");
    for (uint32_t i = 0; i < group->local_count; i++) {
        if (group->locals[i].next_sequence <= sequence)
            event->ranks[event->rank_count++] = group->locals[i].job_rank;
    }
}

uint32_t collective_encode_asks(const struct collective *collective, uint8_t *bytes, uint32_t room)
{
    const struct exchange_group *group = collective->group;
    uint32_t used = 0;
    for (uint32_t i = 0; i < group->local_count && used + WIRE_RANK_ASK_BYTES <= room; i++) {
        wire_encode_rank_ask(bytes + used, group->locals[i].group_rank, &collective->parts[i].ask);
        used += WIRE_RANK_ASK_BYTES;
    }
    return used;
}
