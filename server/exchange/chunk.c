/* A chunk on its node: from its ranks' data over the node's sum to the owner, and its result back
 * into the arenas. */
#include <assert.h>
#include <inttypes.h>

#include "common/memory/copy.h"
#include "server/exchange/exchange_private.h"

/* --- taking and freeing ----------------------------------------------------------------------- */

uint64_t chunk_arena_bytes(const struct chunk *chunk)
{
    uint64_t bytes = chunk->place.count * chunk->collective->element_bytes;
    return (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

/* Its place in the arena is the rank's again. */
void chunk_give_back(struct exchange *exchange, struct exchange_worker *worker, uint64_t request,
                     uint32_t chunk, uint64_t offset)
{
    struct arena_completion completion = {
        .type = ARENA_CHUNK_DONE, .chunk = chunk, .request = request, .offset = offset};
    worker->given_back++;
    if (!worker->detached)
        exchange->options.io.complete(exchange->options.io.context, worker, &completion);
}

/* To all ranks that have handed it over, with its result or, when the group has failed, without. */
static void chunk_give_back_all(const struct chunk *chunk)
{
    const struct collective *collective = chunk->collective;
    struct exchange_group *group = collective->group;
    for (uint32_t i = 0; i < group->local_count; i++) {
        const struct part *part = &collective->parts[i];
        if (!part->staged || chunk->index >= part->handed)
            continue;
        struct exchange_worker *worker = group_local_worker(group, i);
        assert(worker->handed_chunks > 0);
        worker->handed_bytes -= chunk_arena_bytes(chunk);
        worker->handed_chunks--;
        chunk_give_back(group->job->exchange, worker, part->request, chunk->index,
                        chunk->offsets[i]);
    }
}

void chunk_free(struct chunk *chunk)
{
    struct collective *collective = chunk->collective;
    struct exchange_group *group = collective->group;
    struct exchange *exchange = group->job->exchange;
    chunk_give_back_all(chunk);
    buffer_release(chunk->sum);
    receive_release(exchange, chunk->result);
    collective->chunks[chunk->index] = NULL;
    slab_put(&group->chunk_slab, chunk);
    group->job->slots--;
    exchange->slots--;
}

struct chunk *chunk_get(struct collective *collective, uint32_t index)
{
    if (collective->chunks[index])
        return collective->chunks[index];
    struct exchange_group *group = collective->group;
    struct chunk *chunk = slab_get(&group->chunk_slab);
    if (!chunk)
        return NULL;
    chunk->collective = collective;
    chunk->index = index;
    chunk->place = layout_chunk(&collective->layout, index);
    chunk->owner = collective->ask.block ? collective->owner : chunk->place.server;
    chunk->task.reduction.in = chunk->pointers;
    chunk->task.reduction.out = (void **)(chunk->pointers + group->local_count);
    chunk->task.owner = chunk;
    chunk->offsets = (uint64_t *)(chunk->pointers + 2 * (size_t)group->local_count);
    collective->chunks[index] = chunk;
    group->job->slots++;
    group->job->exchange->slots++;
    return chunk;
}

void chunk_drop_idle(struct chunk *chunk)
{
    struct exchange_group *group = chunk->collective->group;
    bool idle =
        chunk->state == CHUNK_GATHERING ||
        (chunk->state == CHUNK_CONTRIBUTED && chunk->unsent == 0 && !slot_has_chunk(group, chunk));
    if (idle)
        chunk_free(chunk);
}

/* --- a chunk's way ---------------------------------------------------------------------------- */

struct exchange_worker *group_local_worker(const struct exchange_group *group, uint32_t local)
{
    return group->job->by_rank[group->locals[local].job_rank];
}

static uint8_t *chunk_address(const struct chunk *chunk, uint32_t local, bool output)
{
    const struct collective *collective = chunk->collective;
    const struct part *part = &collective->parts[local];
    struct exchange_worker *worker = group_local_worker(collective->group, local);
    if (part->staged)
        return worker->arena.base + chunk->offsets[local];
    uint64_t offset = output ? part->out_offset : part->in_offset;
    return worker->arena.base + offset + chunk->place.first * collective->element_bytes;
}

uint32_t collective_source(const struct collective *collective)
{
    const struct exchange_group *group = collective->group;
    uint32_t from = collective->route.from;
    return from < group->size ? group_local_index(group, group->ranks[from]) : NO_INDEX;
}

/* Whose data this node's contribution is made of. */
static unsigned chunk_inputs(const struct chunk *chunk, const void **in)
{
    const struct collective *collective = chunk->collective;
    const struct exchange_group *group = collective->group;
    unsigned inputs = 0;
    for (uint32_t i = 0; i < group->local_count; i++) {
        if (route_sends(&collective->route, group->locals[i].group_rank))
            in[inputs++] = chunk_address(chunk, i, false);
    }
    return inputs;
}

/* Whether the rank's output lies where its input did, or is read as soon as it is there. */
static bool output_is_warm(const struct collective *collective, uint32_t local)
{
    const struct part *part = &collective->parts[local];
    uint32_t rank = collective->group->locals[local].group_rank;
    return part->staged ||
           (route_sends(&collective->route, rank) && part->in_offset == part->out_offset);
}

void chunk_outputs(const struct chunk *chunk, struct reduction *reduction)
{
    const struct collective *collective = chunk->collective;
    const struct exchange_group *group = collective->group;
    bool cold = !is_transfer(&collective->ask) &&
                collective->ask.count * collective->element_bytes >= COPY_PAST_CACHE_BYTES;
    unsigned outputs = 0;
    if (collective->shared)
        reduction->out[outputs++] =
            collective->shared + chunk->place.first * collective->element_bytes;
    for (uint32_t i = 0; !collective->shared && i < group->local_count; i++) {
        if (!route_receives(&collective->route, group->locals[i].group_rank))
            continue;
        reduction->out[outputs++] = chunk_address(chunk, i, true);
        cold = cold && !output_is_warm(collective, i);
    }
    reduction->outputs = outputs;
    reduction->past_cache = cold ? outputs : 0;
}

static void chunk_task_delivered(struct reduce_task *task)
{
    chunk_trace_task(task->owner);
    chunk_delivered(task->owner);
}

bool chunk_describe_copy(const struct chunk *chunk, const void *source, struct reduction *reduction)
{
    chunk_outputs(chunk, reduction);
    reduction->in[0] = source;
    reduction->inputs = 1;
    reduction_set(reduction, &chunk->collective->ask, REDUCE_SUM, 1, chunk->place.count);
    return reduction->outputs > 0;
}

/* One input copied to all ranks that want it, or nothing to do. */
static void chunk_deliver(struct chunk *chunk, const void *source)
{
    struct reduce_task *task = &chunk->task;
    chunk->state = CHUNK_DELIVERING;
    if (!source || chunk->place.count == 0 ||
        !chunk_describe_copy(chunk, source, &task->reduction)) {
        chunk_delivered(chunk);
        return;
    }
    task->finish = chunk_task_delivered;
    task_submit(chunk->collective->group, task);
}

static void chunk_contribute(struct chunk *chunk, const void *data)
{
    struct collective *collective = chunk->collective;
    struct exchange_group *group = collective->group;
    struct exchange *exchange = group->job->exchange;
    chunk->state = CHUNK_CONTRIBUTED;
    if (chunk->owner == group->self_owner) {
        slot_contribute_local(group, chunk, data);
        return;
    }
    uint32_t bytes = data ? (uint32_t)(chunk->place.count * collective->element_bytes) : 0;
    struct exchange_send *send =
        send_create(group, group->owner_nodes[chunk->owner], WIRE_CONTRIBUTION,
                    collective->sequence, chunk->index, &collective->ask, data, bytes);
    if (chunk->sum) {
        send->buffer = chunk->sum;
        buffer_hold(chunk->sum);
    } else if (data) {
        uint32_t source = collective_source(collective);
        chunk_send_from_arena(chunk, send, source == NO_INDEX ? 0 : source);
    }
    send_submit(exchange, send);
}

void chunk_send_from_arena(struct chunk *chunk, struct exchange_send *send, uint32_t local)
{
    send->worker = group_local_worker(chunk->collective->group, local);
    send->chunk = chunk;
    chunk->unsent++;
}

static void chunk_task_summed(struct reduce_task *task)
{
    struct chunk *chunk = task->owner;
    chunk_trace_task(chunk);
    chunk_contribute(chunk, chunk->sum->data + WIRE_HEADER_BYTES);
}

static enum reduce_op ask_first_op(const struct wire_ask *ask)
{
    return ask->op == REDUCE_AVG ? REDUCE_SUM : (enum reduce_op)ask->op;
}

/* All ranks are here: sum straight into the arenas. */
void chunk_issue_single(struct chunk *chunk)
{
    struct collective *collective = chunk->collective;
    struct exchange_group *group = collective->group;
    const struct wire_ask *ask = &collective->ask;
    struct reduce_task *task = &chunk->task;
    struct reduction *reduction = &task->reduction;
    if (chunk->place.count == 0) {
        chunk_delivered(chunk);
        return;
    }
    reduction->inputs = chunk_inputs(chunk, reduction->in);
    if (collective->route.from != ROUTE_ALL) {
        chunk_deliver(chunk, reduction->in[0]);
        return;
    }
    chunk->state = CHUNK_DELIVERING;
    chunk_outputs(chunk, reduction);
    reduction_set(reduction, ask, ask->op, group->size, chunk->place.count);
    task->finish = chunk_task_delivered;
    task_submit(group, task);
}

/* Returns false when there is no buffer for the sum; the chunk is tried again. */
bool chunk_issue_shared(struct chunk *chunk)
{
    struct collective *collective = chunk->collective;
    struct exchange_group *group = collective->group;
    struct reduce_task *task = &chunk->task;
    struct reduction *reduction = &task->reduction;
    bool contributes = group->self_node != NO_INDEX && chunk->place.count > 0 &&
                       ask_contributes(group, &collective->ask, group->self_node);
    if (!contributes) {
        chunk_contribute(chunk, NULL);
        return true;
    }
    reduction->inputs = chunk_inputs(chunk, reduction->in);
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
    reduction_set(reduction, &collective->ask, ask_first_op(&collective->ask), 1,
                  chunk->place.count);
    task->finish = chunk_task_summed;
    task_submit(group, task);
    return true;
}

void chunk_delivered(struct chunk *chunk)
{
    struct collective *collective = chunk->collective;
    struct outlet *outlet = &collective->outlets[chunk->index % collective->layout.shards];
    outlet_delivered(outlet);
    group_mark_dirty(collective->group);
    chunk_free(chunk);
    if (++collective->delivered == collective->layout.chunks)
        collective_complete(collective);
}

/* --- results ---------------------------------------------------------------------------------- */

/* Give the ranks what the owner answered: the result, or one rank's data that is here already. */
static void chunk_take_result(struct chunk *chunk)
{
    const struct collective *collective = chunk->collective;
    const void *source = NULL;
    if (chunk->result)
        source = chunk->result->data + WIRE_HEADER_BYTES;
    else if (collective_source(collective) != NO_INDEX)
        source = chunk_address(chunk, collective_source(collective), false);
    chunk_deliver(chunk, source);
}

int chunk_result(struct exchange_group *group, uint32_t from, const struct wire_header *header,
                 struct buffer *result, struct error *error)
{
    struct collective *collective = collective_find(group, header->sequence, header->ask.block);
    struct chunk *chunk = collective && header->chunk < collective->layout.chunks
                              ? collective->chunks[header->chunk]
                              : NULL;
    if (!chunk || chunk->state != CHUNK_CONTRIBUTED || chunk->answered ||
        group->owner_nodes[chunk->owner] != from)
        return error_set(error, ERR_PROTOCOL,
                         "a result for chunk %" PRIu32 " of collective %" PRIu64
                         " of group %" PRIu32 ", which does not wait for one from it",
                         header->chunk, header->sequence, group->id);
    bool returns = ask_returns(group, &collective->ask, group->self_node);
    uint64_t bytes = returns ? chunk->place.count * collective->element_bytes : 0;
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
    chunk_trace(chunk, TRACE_AT_OWNER);
    if (chunk->unsent == 0)
        chunk_take_result(chunk);
    return 0;
}

void chunk_sent(struct chunk *chunk)
{
    assert(chunk->unsent > 0);
    if (--chunk->unsent > 0)
        return;
    if (chunk->state == CHUNK_DELIVERING)
        chunk_delivered(chunk);
    else if (chunk->answered)
        chunk_take_result(chunk);
}

void chunk_returned(struct chunk *chunk)
{
    chunk->state = CHUNK_DELIVERING;
    chunk_trace(chunk, TRACE_AT_OWNER);
    if (chunk->unsent == 0)
        chunk_delivered(chunk);
}
