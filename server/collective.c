/* A collective on a node with ranks of its group: gathering what the ranks hand over, the sum on
 * the node, the way to the owner, and the result back into the arenas. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "server/exchange_private.h"

/* --- finding and freeing ---------------------------------------------------------------------- */

struct collective *collective_find(const struct exchange_group *group, uint64_t sequence)
{
    for (struct collective *it = group->newest; it; it = it->previous) {
        if (it->sequence == sequence)
            return it;
        if (it->sequence < sequence)
            break;
    }
    return NULL;
}

static void chunk_free(struct chunk *chunk)
{
    struct collective *collective = chunk->collective;
    struct exchange_group *group = collective->group;
    struct exchange *exchange = group->job->exchange;
    buffer_release(chunk->sum);
    receive_release(exchange, chunk->result);
    collective->chunks[chunk->index] = NULL;
    slab_put(&group->chunk_slab, chunk);
    group->job->slots--;
    exchange->slots--;
}

static void collective_free(struct collective *collective)
{
    struct exchange_group *group = collective->group;
    for (uint32_t i = 0; i < collective->layout.chunks; i++) {
        if (collective->chunks[i])
            chunk_free(collective->chunks[i]);
    }
    if (collective->previous)
        collective->previous->next = collective->next;
    else
        group->oldest = collective->next;
    if (collective->next)
        collective->next->previous = collective->previous;
    else
        group->newest = collective->previous;
    group->collectives--;
    free(collective->next_piece);
    free(collective->chunks);
    free(collective);
}

void collectives_drop(struct exchange_group *group)
{
    while (group->oldest)
        collective_free(group->oldest);
}

/* --- handing over ----------------------------------------------------------------------------- */

static struct collective *collective_create(struct exchange_group *group, uint64_t sequence,
                                            const struct wire_ask *ask, uint32_t priority,
                                            struct error *error)
{
    struct layout layout;
    uint32_t element_bytes = ask_element_bytes(ask);
    if (layout_init(&layout, &group->rule, sequence, ask->count, element_bytes) != 0) {
        error_set(error, ERR_INVALID, "%" PRIu64 " elements are too many", ask->count);
        return NULL;
    }
    struct collective *made = calloc(1, sizeof(*made) + group->local_count * sizeof(struct part));
    uint32_t *next_piece = calloc(layout.shards, sizeof(*next_piece));
    struct chunk **chunks = calloc(layout.chunks, sizeof(*chunks));
    if (!made || !next_piece || !chunks) {
        free(made);
        free(next_piece);
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
    made->next_piece = next_piece;
    made->chunks = chunks;
    made->previous = group->newest;
    if (group->newest)
        group->newest->next = made;
    else
        group->oldest = made;
    group->newest = made;
    group->collectives++;
    return made;
}

/* How far every local rank has handed its chunks over. */
static void collective_update_ready(struct collective *collective)
{
    const struct exchange_group *group = collective->group;
    if (collective->submitted < group->local_count || collective->disagree)
        return;
    uint32_t ready = collective->layout.chunks;
    for (uint32_t i = 0; i < group->local_count; i++) {
        if (collective->parts[i].handed < ready)
            ready = collective->parts[i].handed;
    }
    if (ready > collective->ready) {
        collective->ready = ready;
        group_mark_dirty(collective->group);
    }
}

/* All local ranks have submitted. */
static void collective_complete_asks(struct collective *collective, uint32_t last_local)
{
    struct exchange_group *group = collective->group;
    if (group->local_count > 1)
        group->job->last_to_arrive[group->locals[last_local].job_rank]++;
    if (collective->disagree)
        group_mark_dirty(group);
    else
        collective_update_ready(collective);
}

static int submission_check_offsets(const struct exchange_worker *worker,
                                    const struct arena_submission *submission,
                                    const struct wire_ask *ask, struct error *error)
{
    uint64_t bytes = ask->count * ask_element_bytes(ask); /* count was checked: no overflow */
    if (submission->flags & ~ARENA_FLAG_STAGED)
        return error_set(error, ERR_PROTOCOL, "unknown flags 0x%" PRIx32, submission->flags);
    if ((submission->flags & ARENA_FLAG_STAGED) || bytes == 0)
        return 0;
    if (!arena_range_valid(&worker->arena, submission->in_offset, bytes) ||
        !arena_range_valid(&worker->arena, submission->out_offset, bytes))
        return error_set(error, ERR_PROTOCOL,
                         "data at offsets %" PRIu64 " and %" PRIu64 " of %" PRIu64
                         " bytes is not inside the arena",
                         submission->in_offset, submission->out_offset, bytes);
    return 0;
}

int collective_submit(struct exchange_group *group, uint32_t local, struct exchange_worker *worker,
                      const struct arena_submission *submission, struct error *error)
{
    struct wire_ask ask = {.kind = submission->kind,
                           .dtype = submission->dtype,
                           .op = submission->op,
                           .root = submission->root,
                           .count = submission->count};
    struct local_rank *rank = &group->locals[local];
    if (submission->sequence != rank->next_sequence)
        return error_set(error, ERR_PROTOCOL,
                         "collective %" PRIu64 " of group %" PRIu32 ", where %" PRIu64
                         " was expected",
                         submission->sequence, group->id, rank->next_sequence);
    int result = wire_ask_check(&ask, group->size, error);
    if (result == 0)
        result = submission_check_offsets(worker, submission, &ask, error);
    if (result != 0)
        return result;
    struct collective *collective = collective_find(group, submission->sequence);
    if (!collective) {
        collective =
            collective_create(group, submission->sequence, &ask, submission->priority, error);
        if (!collective)
            return error ? error->code : ERR_MEMORY;
    }
    rank->next_sequence++;
    bool staged = submission->flags & ARENA_FLAG_STAGED;
    collective->parts[local] = (struct part){
        .ask = ask,
        .request = submission->request,
        .in_offset = submission->in_offset,
        .out_offset = submission->out_offset,
        .handed = staged ? 0 : UINT32_MAX,
        .submitted = true,
        .staged = staged,
    };
    group->job->bytes_submitted += ask.count * ask_element_bytes(&ask);
    if (!wire_ask_equal(&ask, &collective->ask))
        collective->disagree = true;
    if (submission->sequence >= group->least_left)
        group_mark_dirty(group);
    if (++collective->submitted == group->local_count)
        collective_complete_asks(collective, local);
    return 0;
}

static struct chunk *chunk_get(struct collective *collective, uint32_t index)
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
    chunk->task.in = chunk->pointers;
    chunk->task.out = (void **)(chunk->pointers + group->local_count);
    chunk->task.owner = chunk;
    chunk->offsets = (uint64_t *)(chunk->pointers + 2 * (size_t)group->local_count);
    collective->chunks[index] = chunk;
    group->job->slots++;
    group->job->exchange->slots++;
    return chunk;
}

int collective_hand_over(struct exchange_group *group, uint32_t local,
                         struct exchange_worker *worker, const struct arena_submission *submission,
                         struct error *error)
{
    struct collective *collective = collective_find(group, submission->sequence);
    struct part *part = collective ? &collective->parts[local] : NULL;
    if (!part || !part->submitted || !part->staged || part->request != submission->request)
        return error_set(error, ERR_PROTOCOL,
                         "a chunk of collective %" PRIu64 " of group %" PRIu32
                         ", which was not submitted as staged",
                         submission->sequence, group->id);
    if (collective->disagree)
        return 0; /* the group is about to fail; the cut of this rank is not ours */
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
    chunk->offsets[local] = submission->in_offset;
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
    struct exchange_group *group = exchange_group_find(job, submission->group);
    uint32_t local = group ? group_local_index(group, worker->rank) : NO_INDEX;
    if (local == NO_INDEX)
        return error_set(error, ERR_PROTOCOL, "group %" PRIu32 " is not one of rank %" PRIu32,
                         submission->group, worker->rank);
    if (group->failed)
        return 0;
    switch (submission->type) {
    case ARENA_SUBMIT:
        return collective_submit(group, local, worker, submission, error);
    case ARENA_CHUNK:
        return collective_hand_over(group, local, worker, submission, error);
    default:
        return error_set(error, ERR_PROTOCOL, "submission type %u does not exist",
                         submission->type);
    }
}

/* --- a chunk's way ---------------------------------------------------------------------------- */

static struct exchange_worker *local_worker(const struct exchange_group *group, uint32_t local)
{
    return group->job->by_rank[group->locals[local].job_rank];
}

static uint8_t *chunk_address(const struct chunk *chunk, uint32_t local, bool output)
{
    const struct collective *collective = chunk->collective;
    const struct part *part = &collective->parts[local];
    struct exchange_worker *worker = local_worker(collective->group, local);
    if (part->staged)
        return worker->arena.base + chunk->offsets[local];
    uint64_t offset = output ? part->out_offset : part->in_offset;
    return worker->arena.base + offset + chunk->place.first * collective->element_bytes;
}

static uint32_t collective_root_local(const struct collective *collective)
{
    const struct exchange_group *group = collective->group;
    return group_local_index(group, group->ranks[collective->ask.root]);
}

/* Whose data this node's contribution is made of. */
static unsigned chunk_inputs(const struct chunk *chunk, const void **in)
{
    const struct collective *collective = chunk->collective;
    const struct exchange_group *group = collective->group;
    unsigned inputs = 0;
    if (collective->ask.kind == COLLECTIVE_BROADCAST) {
        uint32_t root = collective_root_local(collective);
        if (root != NO_INDEX)
            in[inputs++] = chunk_address(chunk, root, false);
        return inputs;
    }
    for (uint32_t i = 0; i < group->local_count; i++)
        in[inputs++] = chunk_address(chunk, i, false);
    return inputs;
}

unsigned chunk_outputs(const struct chunk *chunk, void **out)
{
    const struct collective *collective = chunk->collective;
    const struct exchange_group *group = collective->group;
    unsigned outputs = 0;
    for (uint32_t i = 0; i < group->local_count; i++) {
        bool is_root = group->locals[i].group_rank == collective->ask.root;
        bool wants = collective->ask.kind == COLLECTIVE_ALL_REDUCE ||
                     (collective->ask.kind == COLLECTIVE_REDUCE && is_root) ||
                     (collective->ask.kind == COLLECTIVE_BROADCAST && !is_root);
        if (wants)
            out[outputs++] = chunk_address(chunk, i, true);
    }
    return outputs;
}

static void chunk_task_delivered(struct reduce_task *task)
{
    chunk_delivered(task->owner);
}

/* One input copied to all ranks that want it, or nothing to do. */
static void chunk_deliver(struct chunk *chunk, const void *source)
{
    struct reduce_task *task = &chunk->task;
    const struct wire_ask *ask = &chunk->collective->ask;
    chunk->state = CHUNK_DELIVERING;
    task->outputs = source ? chunk_outputs(chunk, task->out) : 0;
    if (task->outputs == 0 || chunk->place.count == 0) {
        chunk_delivered(chunk);
        return;
    }
    task->in[0] = source;
    task->inputs = 1;
    task->dtype = ask->dtype;
    task->op = REDUCE_SUM;
    task->divisor = 1;
    task->count = chunk->place.count;
    task->finish = chunk_task_delivered;
    task_submit(chunk->collective->group, task);
}

static void chunk_contribute(struct chunk *chunk, const void *data)
{
    struct collective *collective = chunk->collective;
    struct exchange_group *group = collective->group;
    struct exchange *exchange = group->job->exchange;
    chunk->state = CHUNK_CONTRIBUTED;
    if (chunk->place.server == group->self_server) {
        slot_contribute_local(group, chunk, data);
        return;
    }
    uint32_t bytes = data ? (uint32_t)(chunk->place.count * collective->element_bytes) : 0;
    struct exchange_send *send =
        send_create(group, group->server_nodes[chunk->place.server], WIRE_CONTRIBUTION,
                    collective->sequence, chunk->index, &collective->ask, data, bytes);
    if (chunk->sum) {
        send->buffer = chunk->sum;
        buffer_hold(chunk->sum);
    } else if (data) {
        uint32_t local =
            collective->ask.kind == COLLECTIVE_BROADCAST ? collective_root_local(collective) : 0;
        chunk_send_from_arena(chunk, send, local);
    }
    send_submit(exchange, send);
}

void chunk_send_from_arena(struct chunk *chunk, struct exchange_send *send, uint32_t local)
{
    send->worker = local_worker(chunk->collective->group, local);
    send->chunk = chunk;
    chunk->unsent++;
}

static void chunk_task_summed(struct reduce_task *task)
{
    struct chunk *chunk = task->owner;
    chunk_contribute(chunk, chunk->sum->data + WIRE_HEADER_BYTES);
}

static enum reduce_op ask_first_op(const struct wire_ask *ask)
{
    return ask->op == REDUCE_AVG ? REDUCE_SUM : (enum reduce_op)ask->op;
}

/* All ranks are here: sum straight into the arenas. */
static void chunk_issue_single(struct chunk *chunk)
{
    struct collective *collective = chunk->collective;
    struct exchange_group *group = collective->group;
    const struct wire_ask *ask = &collective->ask;
    struct reduce_task *task = &chunk->task;
    if (ask->kind == COLLECTIVE_BARRIER || chunk->place.count == 0) {
        chunk_delivered(chunk);
        return;
    }
    task->inputs = chunk_inputs(chunk, task->in);
    if (ask->kind == COLLECTIVE_BROADCAST) {
        chunk_deliver(chunk, task->in[0]);
        return;
    }
    chunk->state = CHUNK_DELIVERING;
    task->outputs = chunk_outputs(chunk, task->out);
    task->dtype = ask->dtype;
    task->op = ask->op;
    task->divisor = group->size;
    task->count = chunk->place.count;
    task->finish = chunk_task_delivered;
    task_submit(group, task);
}

/* Returns false when there is no buffer for the sum; the chunk is tried again. */
static bool chunk_issue_shared(struct chunk *chunk)
{
    struct collective *collective = chunk->collective;
    struct exchange_group *group = collective->group;
    struct reduce_task *task = &chunk->task;
    bool contributes = group->self_node != NO_INDEX && chunk->place.count > 0 &&
                       ask_contributes(group, &collective->ask, group->self_node);
    if (!contributes) {
        chunk_contribute(chunk, NULL);
        return true;
    }
    task->inputs = chunk_inputs(chunk, task->in);
    if (task->inputs == 1) {
        chunk_contribute(chunk, task->in[0]);
        return true;
    }
    chunk->sum = buffer_get(group->job->exchange->options.pool);
    if (!chunk->sum)
        return false;
    chunk->sum->peer = NO_INDEX;
    chunk->state = CHUNK_SUMMING;
    task->out[0] = chunk->sum->data + WIRE_HEADER_BYTES;
    task->outputs = 1;
    task->dtype = collective->ask.dtype;
    task->op = ask_first_op(&collective->ask);
    task->divisor = 1;
    task->count = chunk->place.count;
    task->finish = chunk_task_summed;
    task_submit(group, task);
    return true;
}

static void collective_complete(struct collective *collective)
{
    struct exchange_group *group = collective->group;
    struct exchange *exchange = group->job->exchange;
    for (uint32_t i = 0; i < group->local_count; i++) {
        struct exchange_worker *worker = local_worker(group, i);
        struct arena_completion completion = {.type = ARENA_REQUEST_DONE,
                                              .request = collective->parts[i].request};
        if (!worker->detached)
            exchange->options.io.complete(exchange->options.io.context, worker, &completion);
    }
    group->job->collectives++;
    exchange->collectives++;
    collective_free(collective);
}

void chunk_delivered(struct chunk *chunk)
{
    struct collective *collective = chunk->collective;
    struct exchange_group *group = collective->group;
    struct exchange *exchange = group->job->exchange;
    for (uint32_t i = 0; i < group->local_count; i++) {
        struct exchange_worker *worker = local_worker(group, i);
        if (!collective->parts[i].staged || worker->detached)
            continue;
        struct arena_completion completion = {.type = ARENA_CHUNK_DONE,
                                              .chunk = chunk->index,
                                              .request = collective->parts[i].request,
                                              .offset = chunk->offsets[i]};
        exchange->options.io.complete(exchange->options.io.context, worker, &completion);
    }
    assert(group->in_flight[chunk->place.server] > 0);
    group->in_flight[chunk->place.server]--;
    group_mark_dirty(group);
    chunk_free(chunk);
    if (++collective->delivered == collective->layout.chunks)
        collective_complete(collective);
}

/* --- results ---------------------------------------------------------------------------------- */

/* Give the ranks what the owner answered: the result, or a broadcast's data that is here already.
 */
static void chunk_take_result(struct chunk *chunk)
{
    const struct collective *collective = chunk->collective;
    const void *source = NULL;
    if (chunk->result)
        source = chunk->result->data + WIRE_HEADER_BYTES;
    else if (collective->ask.kind == COLLECTIVE_BROADCAST &&
             collective_root_local(collective) != NO_INDEX)
        source = chunk_address(chunk, collective_root_local(collective), false);
    chunk_deliver(chunk, source);
}

int collective_result(struct exchange_group *group, uint32_t from, const struct wire_header *header,
                      struct buffer *result, struct error *error)
{
    struct collective *collective = collective_find(group, header->sequence);
    struct chunk *chunk = collective && header->chunk < collective->layout.chunks
                              ? collective->chunks[header->chunk]
                              : NULL;
    if (!chunk || chunk->state != CHUNK_CONTRIBUTED || chunk->answered ||
        group->server_nodes[chunk->place.server] != from)
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
    if (chunk->unsent == 0)
        chunk_delivered(chunk);
}

/* --- issuing ---------------------------------------------------------------------------------- */

/* The next chunk of the collective for the server, or NO_INDEX when none is ready. */
static uint32_t collective_next_chunk(const struct collective *collective, uint32_t server)
{
    const struct layout *layout = &collective->layout;
    uint32_t servers = layout->rule->servers;
    uint32_t shard = (server + servers - layout->first_server) % servers;
    if (shard >= layout->shards || collective->next_piece[shard] >= layout->pieces)
        return NO_INDEX;
    uint32_t chunk = collective->next_piece[shard] * layout->shards + shard;
    return chunk < collective->ready ? chunk : NO_INDEX;
}

/* Smaller priority first, then older; the window's last place is for the oldest alone. */
static struct collective *group_next_collective(const struct exchange_group *group, uint32_t server)
{
    bool last_place = group->in_flight[server] + 1 >= group->window;
    struct collective *best = NULL;
    for (struct collective *it = group->oldest; it; it = last_place ? NULL : it->next) {
        if (best && it->priority >= best->priority)
            continue;
        if (collective_next_chunk(it, server) != NO_INDEX)
            best = it;
    }
    return best;
}

static bool group_issue_one(struct exchange_group *group, uint32_t server)
{
    if (group->in_flight[server] >= group->window)
        return false;
    struct collective *collective = group_next_collective(group, server);
    if (!collective)
        return false;
    uint32_t index = collective_next_chunk(collective, server);
    struct chunk *chunk = chunk_get(collective, index);
    if (!chunk)
        return false;
    group->in_flight[server]++;
    collective->next_piece[index % collective->layout.shards]++;
    collective->issued++;
    if (group->single) {
        chunk_issue_single(chunk);
        return true;
    }
    if (chunk_issue_shared(chunk))
        return true;
    group->in_flight[server]--;
    collective->next_piece[index % collective->layout.shards]--;
    collective->issued--;
    return false;
}

/* The owner of chunk 0 hears of the oldest disagreement: there is no receive for more. */
static void group_report_disagreements(struct exchange_group *group)
{
    for (struct collective *it = group->oldest; it; it = it->next) {
        if (!it->disagree || it->submitted < group->local_count)
            continue;
        if (it->told)
            return;
        it->told = true;
        uint32_t server = it->layout.first_server;
        uint32_t node = group->server_nodes[server];
        if (group->single || server == group->self_server) {
            slot_disagree_local(it);
            return;
        }
        struct buffer *buffer = buffer_get(group->job->exchange->options.pool);
        if (!buffer) {
            it->told = false;
            return;
        }
        buffer->peer = NO_INDEX;
        uint8_t *payload = buffer->data + WIRE_HEADER_BYTES;
        uint32_t bytes = collective_encode_asks(it, payload, buffer->capacity - WIRE_HEADER_BYTES);
        struct exchange_send *send =
            send_create(group, node, WIRE_DISAGREE, it->sequence, 0, &it->ask, payload, bytes);
        send->buffer = buffer;
        send_submit(group->job->exchange, send);
        return;
    }
}

static void group_check_left(struct exchange_group *group)
{
    if (!group->newest || group->newest->sequence < group->least_left)
        return;
    char text[ERROR_TEXT_BYTES];
    snprintf(text, sizeof(text),
             "rank %" PRIu32 " has left job '%s' after %" PRIu64 " collectives of group %" PRIu32,
             group->left_rank, group->job->name, group->least_left, group->id);
    exchange_group_fail(group, ERR_LOST, text);
}

void group_pump(struct exchange_group *group)
{
    if (!group->failed)
        group_check_left(group);
    if (!group->failed)
        group_report_disagreements(group);
    for (uint32_t server = 0; server < group->rule.servers && !group->failed; server++) {
        while (!group->failed && group_issue_one(group, server))
            ;
    }
    if (group->failed)
        exchange_job_settle(group->job);
}

/* --- late ranks ------------------------------------------------------------------------------- */

void collective_missing_ranks(const struct exchange_group *group, uint64_t sequence,
                              struct engine_event *event)
{
    event->ranks = calloc(group->local_count ? group->local_count : 1, sizeof(*event->ranks));
    if (!event->ranks)
        abort();
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
