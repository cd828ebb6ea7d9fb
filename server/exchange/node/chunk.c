#include "server/exchange/node/chunk.h"

#include <assert.h>
#include <inttypes.h>

#include "server/exchange/ground/archive.h"
#include "server/exchange/ground/post.h"
#include "server/exchange/ground/recorder.h"
#include "server/exchange/ground/waiting.h"
#include "server/exchange/model/ask.h"
#include "server/exchange/model/order.h"
#include "server/exchange/model/roster.h"
#include "server/exchange/model/share.h"
#include "server/exchange/node/replay.h"
#include "server/exchange/owner/slot.h"

/* --- taking and freeing ----------------------------------------------------------------------- */

static void chunk_lend(struct lender *lender, struct exchange_send *send, uint32_t local);
static void chunk_met(struct lender *lender, const struct wire_ask *wanted);
static void chunk_returned(struct lender *lender);

void chunks_open(struct exchange_group *group)
{
    slab_init(&group->chunk_slab,
              sizeof(struct chunk) + sizeof(void *) +
                  group->members.local_count * (2 * sizeof(void *) + sizeof(uint64_t)));
}

void chunks_close(struct exchange_group *group)
{
    assert(group->chunk_slab.in_use == 0);
    slab_clear(&group->chunk_slab);
}

struct chunk *chunk_get(struct collective *collective, uint32_t index)
{
    if (collective->chunks[index])
        return collective->chunks[index];
    struct exchange_group *group = collective->group;
    struct chunk *chunk = slab_get(&group->chunk_slab);
    if (!chunk)
        return NULL;
    uint32_t locals = group->members.local_count;
    chunk->index = index;
    chunk->piece.collective = collective;
    chunk->piece.extent = layout_chunk(&collective->layout, index);
    chunk->piece.offsets = (uint64_t *)(chunk->pointers + 2 * (size_t)locals + 1);
    chunk->owner = collective->ask.block ? collective->owner : chunk->piece.extent.server;
    chunk->lender = (struct lender){.owner = chunk,
                                    .piece = &chunk->piece,
                                    .lend = chunk_lend,
                                    .met = chunk_met,
                                    .returned = chunk_returned};
    chunk->task.reduction.in = chunk->pointers;
    chunk->task.reduction.out = (void **)(chunk->pointers + locals);
    chunk->task.owner = chunk;
    collective->chunks[index] = chunk;
    collective->live++;
    share_keep(group, group->chunk_slab.object_bytes);
    group->job->slots++;
    group->job->exchange->slots++;
    return chunk;
}

/* The result is here, or nobody waits for it any more. */
static void chunk_wait_over(struct chunk *chunk)
{
    if (chunk->awaited)
        waiting_chunk_over(chunk->piece.collective, chunk->owner);
    chunk->awaited = false;
}

void chunk_free(struct chunk *chunk)
{
    struct collective *collective = chunk->piece.collective;
    struct exchange_group *group = collective->group;
    struct exchange *exchange = group->job->exchange;
    chunk_wait_over(chunk);
    piece_give_back(&chunk->piece, chunk->index);
    buffer_release(chunk->sum);
    receive_release(exchange, chunk->result);
    collective->chunks[chunk->index] = NULL;
    collective->live--;
    slab_put(&group->chunk_slab, chunk);
    share_let_go(group, group->chunk_slab.object_bytes);
    group->job->slots--;
    exchange->slots--;
}

bool chunk_waits_here(const struct chunk *chunk)
{
    struct exchange_group *group = chunk->piece.collective->group;
    return chunk->state == CHUNK_CONTRIBUTED &&
           slot_has_lender(group, chunk->index, &chunk->lender);
}

void chunk_drop_idle(struct chunk *chunk)
{
    bool idle = chunk->state == CHUNK_GATHERING || (chunk->state == CHUNK_CONTRIBUTED &&
                                                    chunk->unsent == 0 && !chunk_waits_here(chunk));
    if (idle)
        chunk_free(chunk);
}

/* --- in a trace ------------------------------------------------------------------------------- */

static struct trace_record chunk_record(const struct chunk *chunk, enum trace_stage stage)
{
    const struct collective *collective = chunk->piece.collective;
    /* Without a time of its own it began before the trace, or with the collective: then all of its
     * data lies in the arenas. */
    uint64_t begin_ns = chunk->stage_ns ? chunk->stage_ns : collective->first_ns;
    uint32_t peer = TRACE_NO_PEER;
    if (stage == TRACE_AT_OWNER)
        peer = collective->group->owners.nodes[chunk->owner];
    else if (stage == TRACE_WAIT && chunk->stage_ns)
        peer = chunk->last_rank;
    return (struct trace_record){
        .begin_ns = begin_ns,
        .sequence = collective->sequence,
        .bytes = chunk->piece.extent.count * collective->element_bytes,
        .group = collective->group->id,
        .block = collective->ask.block,
        .chunk = chunk->index,
        .peer = peer,
        .stage = (uint8_t)stage,
        .kind = collective->ask.kind,
    };
}

/* Return the stage that the chunk is in. */
static enum trace_stage chunk_stage(const struct chunk *chunk)
{
    switch (chunk->state) {
    case CHUNK_GATHERING:
        return TRACE_WAIT;
    case CHUNK_SUMMING:
        return TRACE_LOCAL_SUM;
    case CHUNK_CONTRIBUTED:
        return TRACE_AT_OWNER;
    default:
        if (chunk->unsent > 0) /* its result is here, its data not yet out of the arena */
            return TRACE_AT_OWNER;
        return chunk->task.reduction.inputs > 1 ? TRACE_LOCAL_SUM : TRACE_DELIVER;
    }
}

static void chunk_trace_end(struct chunk *chunk, enum trace_stage stage)
{
    struct trace_record record = chunk_record(chunk, stage);
    chunk->stage_ns = recorder_end(chunk->piece.collective->group->job, &record);
}

void chunk_trace(struct chunk *chunk, enum trace_stage stage)
{
    if (chunk->piece.collective->group->job->trace)
        chunk_trace_end(chunk, stage);
}

/* Its task is done. */
static void chunk_trace_task(struct chunk *chunk)
{
    const struct exchange_job *job = chunk->piece.collective->group->job;
    if (!job->trace)
        return;
    struct trace_record record = chunk_record(chunk, chunk_stage(chunk));
    chunk->stage_ns = recorder_end_task(job, &record, &chunk->task);
}

void chunk_trace_handed(struct chunk *chunk, const struct exchange_worker *worker,
                        const struct arena_submission *submission)
{
    const struct exchange_job *job = worker->job;
    if (!job->trace)
        return;
    uint64_t now_ns = recorder_now_ns(job->exchange);
    chunk->last_rank = worker->rank;
    if (chunk->stage_ns == 0)
        chunk->stage_ns = now_ns;
    if (submission->begin_ns == 0) /* nothing was copied, or nobody looked at the clock */
        return;
    struct trace_record record = chunk_record(chunk, TRACE_COPY_IN);
    record.peer = worker->rank;
    recorder_end_copy(job, &record, submission, now_ns);
}

void chunk_record_open(const struct chunk *chunk, struct trace *trace)
{
    recorder_cut(trace, chunk_record(chunk, chunk_stage(chunk)));
}

/* --- to the ranks ----------------------------------------------------------------------------- */

/* Its result is with its ranks, and nothing reads their data any more. */
static void chunk_delivered(struct chunk *chunk)
{
    chunk->piece.collective->chunk_delivered(chunk);
}

static void chunk_task_delivered(struct reduce_task *task)
{
    chunk_trace_task(task->owner);
    chunk_delivered(task->owner);
}

/* One input copied to all ranks that want it, or nothing to do. */
static void chunk_deliver(struct chunk *chunk, const void *source)
{
    struct reduce_task *task = &chunk->task;
    chunk->state = CHUNK_DELIVERING;
    if (!source || chunk->piece.extent.count == 0 ||
        !piece_copy(&chunk->piece, source, &task->reduction)) {
        chunk_delivered(chunk);
        return;
    }
    task->finish = chunk_task_delivered;
    task_submit(chunk->piece.collective->group, task);
}

/* Give the ranks what the owner answered: the result, or one rank's data that is here already. */
static void chunk_take_result(struct chunk *chunk)
{
    const struct buffer *result = chunk->result;
    chunk_deliver(chunk, result ? result->data + WIRE_HEADER_BYTES : piece_source(&chunk->piece));
}

/* --- to the owner ----------------------------------------------------------------------------- */

/* A send from an arena is over. */
static void chunk_sent(struct exchange_send *send)
{
    struct chunk *chunk = send->owner;
    if (send->group->failed)
        return;
    assert(chunk->unsent > 0);
    if (--chunk->unsent > 0)
        return;
    if (chunk->state == CHUNK_DELIVERING)
        chunk_delivered(chunk);
    else if (chunk->answered)
        chunk_take_result(chunk);
}

static void chunk_lend(struct lender *lender, struct exchange_send *send, uint32_t local)
{
    struct chunk *chunk = lender->owner;
    send->worker = group_local_worker(chunk->piece.collective->group, local);
    send->done = chunk_sent;
    send->owner = chunk;
    chunk->unsent++;
}

/* A receiver elsewhere asks for what this node's rank sends. */
static void chunk_met(struct lender *lender, const struct wire_ask *wanted)
{
    struct chunk *chunk = lender->owner;
    struct collective *transfer = chunk->piece.collective;
    const struct wire_ask sent = transfer->ask;
    transfer->met(transfer, &sent, wanted);
}

/* The owner on this node has summed or copied the result into the ranks' memory. */
static void chunk_returned(struct lender *lender)
{
    struct chunk *chunk = lender->owner;
    chunk->state = CHUNK_DELIVERING;
    chunk_trace(chunk, TRACE_AT_OWNER);
    if (chunk->unsent == 0)
        chunk_delivered(chunk);
}

static void chunk_contribute(struct chunk *chunk, const void *data)
{
    struct collective *collective = chunk->piece.collective;
    struct exchange_group *group = collective->group;
    chunk->state = CHUNK_CONTRIBUTED;
    if (chunk->owner == group->owners.self) {
        slot_contribute_local(chunk->index, &chunk->lender, data);
        return;
    }
    uint32_t bytes = data ? (uint32_t)(chunk->piece.extent.count * collective->element_bytes) : 0;
    struct exchange_send *send =
        send_create(group, group->owners.nodes[chunk->owner], WIRE_CONTRIBUTION,
                    collective->sequence, chunk->index, &collective->ask, data, bytes);
    if (chunk->sum) {
        send->buffer = chunk->sum;
        buffer_hold(chunk->sum);
    } else if (data) {
        uint32_t source = collective_source(collective);
        chunk_lend(&chunk->lender, send, source == NO_INDEX ? 0 : source);
    }
    waiting_chunk_begin(collective, chunk->owner);
    chunk->awaited = true;
    send_submit(group->job->exchange, send);
}

/* --- issuing ---------------------------------------------------------------------------------- */

static void chunk_task_summed(struct reduce_task *task)
{
    struct chunk *chunk = task->owner;
    chunk_trace_task(chunk);
    chunk_contribute(chunk, chunk->sum->data + WIRE_HEADER_BYTES);
}

static enum reduce_op chunk_first_op(const struct wire_ask *ask)
{
    return ask->op == REDUCE_AVG ? REDUCE_SUM : (enum reduce_op)ask->op;
}

/* All ranks are here: sum straight into their memory. */
static void chunk_issue_single(struct chunk *chunk)
{
    struct collective *collective = chunk->piece.collective;
    struct exchange_group *group = collective->group;
    struct reduce_task *task = &chunk->task;
    struct reduction *reduction = &task->reduction;
    if (chunk->piece.extent.count == 0) {
        chunk_delivered(chunk);
        return;
    }
    if (collective->refused || collective->replayed) {
        const struct archived *from = collective->replayed;
        chunk_deliver(chunk,
                      from ? from->data + chunk->piece.extent.first * collective->element_bytes
                           : NULL);
        return;
    }
    reduction->inputs = piece_inputs(&chunk->piece, reduction->in);
    if (collective->route.from != ROUTE_ALL) {
        chunk_deliver(chunk, reduction->in[0]);
        return;
    }
    chunk->state = CHUNK_DELIVERING;
    piece_outputs(&chunk->piece, reduction);
    ask_set_reduction(reduction, &collective->ask, collective->ask.op, group->members.size,
                      chunk->piece.extent.count);
    task->finish = chunk_task_delivered;
    task_submit(group, task);
}

/* Sum what is here and give it to the owner. */
static bool chunk_issue_to_owner(struct chunk *chunk)
{
    struct collective *collective = chunk->piece.collective;
    struct exchange_group *group = collective->group;
    struct reduce_task *task = &chunk->task;
    struct reduction *reduction = &task->reduction;
    bool contributes = group->members.self_node != NO_INDEX && chunk->piece.extent.count > 0 &&
                       ask_contributes(group, &collective->ask, group->members.self_node);
    if (!contributes) {
        chunk_contribute(chunk, NULL);
        return true;
    }
    reduction->inputs = piece_inputs(&chunk->piece, reduction->in);
    if (reduction->inputs == 1) {
        chunk_contribute(chunk, reduction->in[0]);
        return true;
    }
    chunk->sum = buffer_get(group->job->exchange->options.pool);
    if (!chunk->sum)
        return false;
    chunk->sum->peer = NO_INDEX;
    chunk->state = CHUNK_SUMMING;
    reduction->out[0] = chunk->sum->data + WIRE_HEADER_BYTES;
    reduction->outputs = 1;
    reduction->past_cache = 0;
    ask_set_reduction(reduction, &collective->ask, chunk_first_op(&collective->ask), 1,
                      chunk->piece.extent.count);
    task->finish = chunk_task_summed;
    task_submit(group, task);
    return true;
}

bool chunk_issue(struct chunk *chunk)
{
    chunk_trace(chunk, TRACE_WAIT);
    if (!chunk->piece.collective->single)
        return chunk_issue_to_owner(chunk);
    chunk_issue_single(chunk);
    return true;
}

/* --- the answer ------------------------------------------------------------------------------- */

static bool chunk_is_first_of_transfer(const struct chunk *chunk)
{
    const struct collective *collective = chunk->piece.collective;
    return chunk->index == 0 && ask_is_transfer(&collective->ask) &&
           !replay_is(collective->group, &collective->ask);
}

/* The sender's node says with chunk 0 what is sent. */
static int chunk_hear_sender(struct chunk *chunk, const struct wire_header *header,
                             struct error *error)
{
    struct collective *transfer = chunk->piece.collective;
    const struct wire_ask wanted = transfer->ask;
    struct error why;
    if (!ask_is_transfer(&header->ask) ||
        wire_ask_check(&header->ask, transfer->group->members.size, &why) != 0)
        return error_set(error, ERR_PROTOCOL, "a send of group %" PRIu32 " that is none",
                         transfer->group->id);
    if (header->payload_bytes > 0 && !wire_send_fits(&header->ask, &wanted))
        return error_set(error, ERR_PROTOCOL,
                         "a result of %" PRIu32 " bytes for a receive that it does not fit",
                         header->payload_bytes);
    transfer->met(transfer, &header->ask, &wanted);
    return 0;
}

int chunk_result(struct exchange_group *group, uint32_t from, const struct wire_header *header,
                 struct buffer *result, struct error *error)
{
    struct collective *collective = collective_find(group, header->sequence, header->ask.block);
    struct chunk *chunk = collective && header->chunk < collective->layout.chunks
                              ? collective->chunks[header->chunk]
                              : NULL;
    if (!chunk || chunk->state != CHUNK_CONTRIBUTED || chunk->answered ||
        group->owners.nodes[chunk->owner] != from)
        return error_set(error, ERR_PROTOCOL,
                         "a result for chunk %" PRIu32 " of collective %" PRIu64
                         " of group %" PRIu32 ", which does not wait for one from it",
                         header->chunk, header->sequence, group->id);
    if (chunk_is_first_of_transfer(chunk) && chunk_hear_sender(chunk, header, error) != 0)
        return ERR_PROTOCOL;
    bool returns = ask_returns(group, &collective->ask, group->members.self_node);
    uint64_t bytes = returns ? chunk->piece.extent.count * collective->element_bytes : 0;
    if (bytes > 0 && header->payload_bytes == 0 && replay_is(group, &collective->ask)) {
        collective->refused = true;
        bytes = 0;
    }
    if (header->payload_bytes != bytes || !wire_ask_equal(&header->ask, &collective->ask))
        return error_set(error, ERR_PROTOCOL,
                         "a result of %" PRIu32 " bytes for a chunk of %" PRIu64
                         ", or of another collective",
                         header->payload_bytes, bytes);
    if (bytes > 0) {
        buffer_hold(result);
        chunk->result = result;
    }
    chunk->answered = true;
    chunk_wait_over(chunk);
    chunk_trace(chunk, TRACE_AT_OWNER);
    if (chunk->unsent == 0)
        chunk_take_result(chunk);
    return 0;
}
