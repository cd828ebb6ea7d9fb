#include "server/exchange/node/collective.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "server/exchange/ground/archive.h"
#include "server/exchange/ground/delivery.h"
#include "server/exchange/ground/recorder.h"
#include "server/exchange/ground/segments.h"
#include "server/exchange/ground/submission.h"
#include "server/exchange/ground/waiting.h"
#include "server/exchange/model/ask.h"
#include "server/exchange/model/order.h"
#include "server/exchange/model/roster.h"
#include "server/exchange/model/share.h"
#include "server/exchange/node/agreement.h"
#include "server/exchange/node/chunk.h"
#include "server/exchange/node/issue.h"
#include "server/exchange/node/replay.h"
#include "server/exchange/node/stability.h"

/* --- in a trace ------------------------------------------------------------------------------- */

static struct trace_record collective_record(const struct collective *collective,
                                             enum trace_stage stage, uint32_t rank)
{
    return (struct trace_record){
        .begin_ns = collective->first_ns,
        .sequence = collective->sequence,
        .bytes = wire_ask_elements(&collective->ask) * collective->element_bytes,
        .group = collective->group->id,
        .block = collective->ask.block,
        .peer = rank,
        .stage = (uint8_t)stage,
        .kind = collective->ask.kind,
    };
}

/* Its ranks have arrived, this job rank last, or it is complete. */
static void collective_trace(const struct collective *collective, enum trace_stage stage,
                             uint32_t rank)
{
    if (!collective->group->job->trace)
        return;
    struct trace_record record = collective_record(collective, stage, rank);
    recorder_end(collective->group->job, &record);
}

static void collective_record_open(const struct collective *first, struct trace *trace)
{
    for (const struct collective *it = first; it; it = it->next) {
        recorder_cut(trace, collective_record(it, TRACE_COLLECTIVE, TRACE_NO_PEER));
        if (it->submitted < it->needed)
            recorder_cut(trace, collective_record(it, TRACE_ARRIVE, TRACE_NO_PEER));
        for (uint32_t i = 0, live = it->live; live > 0; i++) {
            if (!it->chunks[i])
                continue;
            chunk_record_open(it->chunks[i], trace);
            live--;
        }
    }
}

void collectives_record_open(const struct exchange_group *group, struct trace *trace)
{
    collective_record_open(group->order->oldest, trace);
    collective_record_open(group->order->transfers, trace);
}

/* --- the end ---------------------------------------------------------------------------------- */

/* Without its chunks, which are counted as they come and go. */
static uint64_t collective_bytes(const struct exchange_group *group, const struct layout *layout)
{
    return sizeof(struct collective) + group->members.local_count * sizeof(struct part) +
           layout->shards * sizeof(struct outlet) + layout->chunks * sizeof(struct chunk *);
}

static void collective_free(struct collective *collective)
{
    struct exchange_group *group = collective->group;
    for (uint32_t i = 0; collective->live > 0; i++) {
        if (collective->chunks[i])
            chunk_free(collective->chunks[i]);
    }
    outlets_end(collective);
    archive_end(collective, false);
    archive_give_back(group->job->exchange, collective->replayed);
    waiting_collective_over(collective);
    for (uint32_t i = 0; i < group->members.local_count; i++) {
        if (collective->parts[i].submitted) {
            segment_let_go(group, collective->parts[i].segment);
            group_local_worker(group, i)->requests--;
            group_local_worker(group, i)->transfers -= ask_is_transfer(&collective->ask);
        }
        if (group->members.locals[i].submitted == collective)
            group->members.locals[i].submitted = collective->previous;
    }
    order_remove(collective);
    share_let_go(group, collective_bytes(group, &collective->layout));
    free(collective->outlets);
    free(collective->chunks);
    free(collective);
}

/* A rank of a transfer hears what the other one asked for. */
static void collective_tell(const struct collective *collective, uint32_t local)
{
    struct exchange_group *group = collective->group;
    struct exchange_worker *worker = group_local_worker(group, local);
    uint64_t request = collective->parts[local].request;
    if (!ask_is_transfer(&collective->ask) || replay_is(group, &collective->ask)) {
        worker_request_done(worker, request, collective->refused ? ARENA_REFUSED : 0);
        return;
    }
    bool sends = group->members.locals[local].group_rank == collective->route.from;
    worker_transfer_done(worker, request, collective->refused,
                         sends ? collective->wanted_count : collective->ask.count,
                         sends ? collective->wanted_dtype : collective->ask.dtype);
}

/* All its chunks are delivered: tell the ranks. */
static void collective_complete(struct collective *collective)
{
    struct exchange_group *group = collective->group;
    collective_trace(collective, TRACE_COLLECTIVE, TRACE_NO_PEER);
    for (uint32_t i = 0; i < group->members.local_count; i++) {
        if (collective->parts[i].submitted)
            collective_tell(collective, i);
    }
    archive_end(collective, true);
    stability_tell_sender(collective); /* now that its ring says so, whatever becomes of us */
    group->job->collectives++;
    group->job->exchange->collectives++;
    collective_free(collective);
    stability_moved(group);
}

void collective_settle(struct collective *collective)
{
    if (collective->delivered == collective->layout.chunks && !stability_sender_waits(collective))
        collective_complete(collective);
}

static void collective_chunk_delivered(struct chunk *chunk)
{
    struct collective *collective = chunk->piece.collective;
    issue_delivered(collective, chunk->index);
    chunk_free(chunk);
    collective->delivered++;
    collective_settle(collective);
}

bool collectives_drop(struct exchange_group *group, uint32_t *most)
{
    const struct order *order = group->order;
    /* From the newest on: then no rank's place among them has to be looked for. The analyzer takes
     * the first of a list of several for its only one. */
    for (; *most > 0 && order->newest; --*most)
        collective_free(order->newest); /* NOLINT(clang-analyzer-unix.Malloc) */
    for (; *most > 0 && order->transfers; --*most)
        collective_free(order->transfers); /* NOLINT(clang-analyzer-unix.Malloc) */
    return !order->newest && !order->transfers;
}

static void collective_drop_idle(struct collective *first)
{
    for (struct collective *it = first; it; it = it->next) {
        for (uint32_t i = 0, live = it->live; live > 0; i++) {
            if (!it->chunks[i])
                continue;
            chunk_drop_idle(it->chunks[i]);
            live--;
        }
    }
}

void collectives_drop_idle(struct exchange_group *group)
{
    collective_drop_idle(group->order->oldest);
    collective_drop_idle(group->order->transfers);
}

/* --- the beginning ---------------------------------------------------------------------------- */

/* Set the collective's route, how many local ranks take part, whether all are on this node
 * (single), and the owner of a block. */
static void collective_find_way(struct collective *made)
{
    const struct exchange_group *group = made->group;
    struct route route = ask_route(group, &made->ask);
    made->route = route;
    for (uint32_t i = 0; i < group->members.local_count; i++)
        made->needed += route_takes_part(&route, group->members.locals[i].group_rank);
    made->single = group->members.single;
    if (made->ask.block == 0)
        return;
    made->owner = ask_block_owner(group, &made->ask);
    if (replay_is(group, &made->ask))
        made->needed = 1; /* the one that gets it */
    if (route.from < group->members.size && route.to < group->members.size)
        made->single = group_rank_node(group, route.from) == group_rank_node(group, route.to);
}

/* Whether there is room for one of this layout: 0, ERR_MEMORY. */
static int collective_check_room(const struct exchange_group *group, const struct wire_ask *ask,
                                 const struct layout *layout, struct error *error)
{
    const struct order *order = group->order;
    if (!ask_is_transfer(ask) && order->count >= SUBMISSION_COLLECTIVES_MAX)
        return error_set(error, ERR_MEMORY,
                         "more than %u collectives of group %" PRIu32 " under way",
                         SUBMISSION_COLLECTIVES_MAX, group->id);
    if (layout->chunks > LAYOUT_MAX_CHUNKS - order->chunks)
        return error_set(error, ERR_MEMORY, "more than %u chunks of group %" PRIu32 " under way",
                         LAYOUT_MAX_CHUNKS, group->id);
    return share_check(group, collective_bytes(group, layout), error);
}

struct collective *collective_create(struct exchange_group *group, uint64_t sequence,
                                     const struct wire_ask *ask, uint32_t priority,
                                     struct error *error)
{
    struct layout layout;
    if (ask_layout(group, ask, sequence, &layout) != 0) {
        error_set(error, ERR_INVALID,
                  "%" PRIu64 " elements are too many: a collective has at most %u chunks of up to "
                  "%" PRIu32 " bytes",
                  ask->count, LAYOUT_MAX_CHUNKS, group->owners.rule.chunk_bytes);
        return NULL;
    }
    if (collective_check_room(group, ask, &layout, error) != 0)
        return NULL;
    struct collective *made =
        calloc(1, sizeof(*made) + group->members.local_count * sizeof(struct part));
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
    made->element_bytes = ask_element_bytes(ask);
    made->priority = priority;
    made->outlets = outlets;
    made->chunks = chunks;
    made->chunk_delivered = collective_chunk_delivered;
    collective_find_way(made);
    archive_begin(made);
    outlets_begin(made);
    share_keep(group, collective_bytes(group, &layout));
    return made;
}

void collective_cut_short(struct collective *collective, uint64_t count)
{
    struct exchange_group *group = collective->group;
    struct wire_ask ask = collective->ask;
    struct layout *layout = &collective->layout;
    uint64_t bytes = collective_bytes(group, layout);
    uint32_t chunks = layout->chunks;
    if (count == layout->count)
        return;
    ask.count = count;
    int result = ask_layout(group, &ask, collective->sequence, layout);
    assert(result == 0 && layout->chunks <= chunks);
    (void)result;
    share_let_go(group, bytes - collective_bytes(group, layout));
    group->order->chunks -= chunks - layout->chunks;
    if (collective->ready > layout->chunks)
        collective->ready = layout->chunks;
    if (collective->chunks[0])
        collective->chunks[0]->piece.extent = layout_chunk(layout, 0);
}

/* --- submitting ------------------------------------------------------------------------------- */

/* How far every local rank has handed its chunks over. */
static void collective_update_ready(struct collective *collective)
{
    const struct exchange_group *group = collective->group;
    if (collective->submitted < collective->needed || collective->disagree)
        return;
    uint32_t ready = collective->layout.chunks;
    for (uint32_t i = 0; i < group->members.local_count; i++) {
        if (collective->parts[i].submitted && collective->parts[i].handed < ready)
            ready = collective->parts[i].handed;
    }
    if (ready > collective->ready)
        issue_advance_ready(collective, ready);
}

/* All local ranks have submitted. */
static void collective_complete_asks(struct collective *collective, uint32_t last_local)
{
    struct exchange_group *group = collective->group;
    uint32_t last_rank = group->members.locals[last_local].job_rank;
    if (group->members.local_count > 1 && collective->ask.block == 0)
        group->job->last_to_arrive[last_rank]++;
    waiting_began(collective);
    if (collective->needed > 1)
        collective_trace(collective, TRACE_ARRIVE, last_rank);
    if (collective->disagree)
        agreement_failed(collective);
    else if (agreement_on_memory(collective))
        collective_update_ready(collective);
}

static void collective_advance_rank(const struct exchange_group *group, struct local_rank *rank,
                                    const struct wire_ask *ask)
{
    if (ask->block == 0) {
        rank->next_sequence++;
        rank->last = *ask;
    }
    rank->next_block = route_next_block((enum collective_kind)ask->kind, ask->root,
                                        rank->group_rank, group->members.size, ask->block + 1);
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
        .handed_ns = collective->group->job->exchange->now_ns,
        .submitted = true,
        .staged = staged,
    };
    group_local_worker(group, local)->requests++;
    group_local_worker(group, local)->transfers += ask_is_transfer(ask);
    group->job->bytes_submitted += ask_bytes(ask);
    if (!ask_is_transfer(ask) && !wire_ask_equal(ask, &collective->ask))
        agreement_lost(collective); /* what transfers are, transfer.c compares */
    collective->given += !staged || collective->layout.chunks == 0;
    collective->submitted++;
    waiting_rank_moved(collective);
    return collective->submitted == collective->needed;
}

int collective_submit(struct exchange_group *group, uint32_t local, struct exchange_worker *worker,
                      const struct arena_submission *submission, struct error *error)
{
    struct wire_ask ask = ask_of_submission(submission);
    struct local_rank *rank = &group->members.locals[local];
    int result = wire_ask_check(&ask, group->members.size, error);
    if (result == 0)
        result = submission_check_order(group, rank, submission->sequence, &ask, error);
    if (result == 0)
        result = submission_check(group, worker, submission, &ask, error);
    if (result != 0)
        return result;
    if (agreement_is_beyond(group, ask.block, submission->sequence)) {
        collective_advance_rank(group, rank, &ask);
        return 0;
    }
    struct collective *collective = collective_find(group, submission->sequence, ask.block);
    if (!collective) {
        collective =
            collective_create(group, submission->sequence, &ask, submission->priority, error);
        if (!collective)
            return error ? error->code : ERR_MEMORY;
        order_add(collective, rank);
    }
    collective_advance_rank(group, rank, &ask);
    rank->submitted = collective;
    bool all_here = collective_add_part(collective, local, &ask, submission);
    if (submission->sequence >= group->members.least_departed)
        group_mark_dirty(group);
    if (all_here)
        collective_complete_asks(collective, local);
    return 0;
}

/* --- handing over ----------------------------------------------------------------------------- */

/* Whether the chunk is the next that the rank has to hand over, and lies inside its arena. */
static int collective_check_chunk(const struct collective *collective, const struct part *part,
                                  const struct exchange_worker *worker,
                                  const struct arena_submission *submission, struct error *error)
{
    if (submission->chunk != part->handed || submission->chunk >= collective->layout.chunks)
        return error_set(
            error, ERR_PROTOCOL,
            "chunk %" PRIu32 " of collective %" PRIu64 ", %" PRIu32 " of %" PRIu32 " expected",
            submission->chunk, submission->sequence, part->handed, collective->layout.chunks);
    struct layout_chunk extent = layout_chunk(&collective->layout, submission->chunk);
    uint64_t bytes = extent.count * collective->element_bytes;
    if (!arena_range_valid(&worker->arena, submission->in_offset, bytes))
        return error_set(error, ERR_PROTOCOL,
                         "a chunk at offset %" PRIu64 " of %" PRIu64
                         " bytes is not inside the arena",
                         submission->in_offset, bytes);
    return 0;
}

int collective_hand_over(struct exchange_group *group, uint32_t local,
                         struct exchange_worker *worker, const struct arena_submission *submission,
                         struct error *error)
{
    struct collective *collective = collective_find(group, submission->sequence, submission->block);
    struct part *part = collective ? &collective->parts[local] : NULL;
    bool submitted = part && part->submitted;
    bool staged = submitted && part->staged && part->request == submission->request;
    if (!staged &&
        (submitted || !agreement_is_beyond(group, submission->block, submission->sequence)))
        return error_set(error, ERR_PROTOCOL,
                         "a chunk of collective %" PRIu64 " of group %" PRIu32
                         ", which was not submitted as staged",
                         submission->sequence, group->id);
    if (!staged || collective->disagree) {
        /* The group is about to fail; the cut of this rank may not be this node's. */
        worker_give_back(worker, submission->request, submission->chunk, submission->in_offset);
        return 0;
    }
    if (collective_check_chunk(collective, part, worker, submission, error) != 0)
        return ERR_PROTOCOL;
    struct chunk *chunk = chunk_get(collective, submission->chunk);
    if (!chunk)
        return error_set(error, ERR_MEMORY, "no memory for a chunk");
    int result = submission_check_room(worker, &chunk->piece, error);
    if (result == 0)
        result = share_check(group, 0, error);
    if (result != 0)
        return result;
    worker->handed_bytes += piece_arena_bytes(&chunk->piece);
    worker->handed_chunks++;
    chunk->piece.offsets[local] = submission->in_offset;
    chunk_trace_handed(chunk, worker, submission);
    part->handed_ns = collective->group->job->exchange->now_ns;
    if (++part->handed == collective->layout.chunks) {
        collective->given++;
        waiting_rank_moved(collective);
    }
    collective_update_ready(collective);
    return 0;
}

/* --- who is late or gone ---------------------------------------------------------------------- */

void collectives_check_departed(struct exchange_group *group)
{
    if (!group->order->newest || group->order->newest->sequence < group->members.least_departed)
        return;
    char text[ERROR_TEXT_BYTES];
    snprintf(text, sizeof(text),
             "rank %" PRIu32 " has left job '%s' after %" PRIu64 " collectives of group %" PRIu32,
             group->members.departed_rank, group->job->name, group->members.least_departed,
             group->id);
    exchange_group_fail(group, ERR_LOST, text);
}

/* The rank has all its chunks back, has more to hand over, and has not done so for long: its
 * process is stopped, or so busy that others wait. */
static bool collective_part_stalls(const struct collective *collective, uint32_t local)
{
    const struct part *part = &collective->parts[local];
    const struct exchange *exchange = collective->group->job->exchange;
    return part->submitted && part->handed < collective->layout.chunks &&
           part->handed == collective->delivered &&
           exchange->now_ns >= part->handed_ns + exchange->options.late_ns;
}

static bool collectives_stall(const struct exchange_group *group, uint64_t sequence, uint32_t local)
{
    for (const struct collective *it = group->order->oldest; it && it->sequence <= sequence;
         it = it->next)
        if (it->sequence == sequence && collective_part_stalls(it, local))
            return true;
    return false;
}

bool collective_waits(const struct collective *collective)
{
    bool waits = collective->submitted < collective->needed;
    for (uint32_t i = 0; i < collective->group->members.local_count && !waits; i++)
        waits = collective_part_stalls(collective, i);
    return waits;
}

uint32_t collectives_missing_ranks(const struct exchange_group *group, uint64_t sequence,
                                   uint32_t *ranks)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < group->members.local_count; i++) {
        if (group->members.locals[i].next_sequence <= sequence ||
            collectives_stall(group, sequence, i))
            ranks[count++] = group->members.locals[i].job_rank;
    }
    return count;
}

uint64_t collectives_finished_by(const struct exchange_group *group, uint32_t local)
{
    const struct local_rank *rank = &group->members.locals[local];
    for (const struct collective *it = group->order->oldest; it; it = it->next)
        if (it->parts[local].submitted && it->parts[local].handed < it->layout.chunks)
            return it->sequence;
    return rank->next_sequence - (rank->next_block > 0);
}

void collectives_check_invariants(const struct exchange_group *group)
{
    for (const struct collective *it = group->order->transfers; it; it = it->next) {
        assert(!it->previous_sent || it->parts[it->sender].submitted);
        assert(it->outlets[0].in_flight <= group->owners.window); /* it has one shard */
        assert(it->issued <= it->ready && it->outlets[0].in_flight == it->issued - it->delivered);
        assert(collective_find(group, it->sequence, it->ask.block) == it);
    }
    for (const struct collective *it = group->order->oldest; it; it = it->next) {
        assert(it->issued <= it->ready && it->delivered <= it->issued);
        assert(collective_find(group, it->sequence, it->ask.block) == it);
        assert(!it->next || collective_comes_before(it, it->next->sequence, it->next->ask.block));
    }
}
