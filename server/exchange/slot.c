/* A chunk at its owner: one contribution a node, their sum in node order, and the result on its way
 * back. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/memory.h"
#include "server/exchange/disagreement.h"
#include "server/exchange/exchange_private.h"

/* --- the table of open slots ------------------------------------------------------------------ */

static struct slot **slot_bucket(struct exchange_group *group, uint64_t sequence, uint32_t block,
                                 uint32_t chunk)
{
    return &group->slot_table[group_bucket(sequence, block, chunk, SLOT_BUCKETS)];
}

static struct slot *slot_find(struct exchange_group *group, uint64_t sequence, uint32_t block,
                              uint32_t chunk)
{
    struct slot *slot = *slot_bucket(group, sequence, block, chunk);
    while (slot && (slot->sequence != sequence || slot->block != block || slot->chunk != chunk))
        slot = slot->next;
    return slot;
}

static uint32_t ask_nodes(const struct exchange_group *group, const struct wire_ask *ask)
{
    uint32_t nodes = 0;
    for (uint32_t i = 0; i < group->node_count; i++)
        nodes += ask_takes_part(group, ask, i);
    return nodes;
}

/* The slot for the chunk of what is asked for. */
static struct slot *slot_create(struct exchange_group *group, uint64_t sequence,
                                const struct wire_ask *ask, uint32_t chunk)
{
    struct exchange *exchange = group->job->exchange;
    struct slot *slot = slab_get(&group->slot_slab);
    if (!slot)
        return NULL;
    slot->group = group;
    slot->sequence = sequence;
    slot->block = ask->block;
    slot->chunk = chunk;
    slot->needed = ask_nodes(group, ask);
    slot->first_ns = exchange->now_ns;
    slot->task.reduction.in = slot->pointers;
    slot->task.reduction.out = (void **)(slot->pointers + group->node_count);
    slot->task.owner = slot;
    slot->contributions =
        (struct contribution *)(slot->pointers + group->node_count + group->local_count + 1);
    slot_trace_begin(slot);
    struct slot **bucket = slot_bucket(group, sequence, ask->block, chunk);
    slot->next = *bucket;
    if (slot->next)
        slot->next->previous = slot;
    *bucket = slot;
    group->job->slots++;
    group->transfer_slots += is_transfer(ask);
    slot->transfer = is_transfer(ask);
    exchange->slots++;
    return slot;
}

static void slot_free(struct slot *slot)
{
    struct exchange_group *group = slot->group;
    struct exchange *exchange = group->job->exchange;
    for (uint32_t i = 0; i < group->node_count; i++)
        receive_release(exchange, slot->contributions[i].buffer);
    if (slot->previous)
        slot->previous->next = slot->next;
    else
        *slot_bucket(group, slot->sequence, slot->block, slot->chunk) = slot->next;
    if (slot->next)
        slot->next->previous = slot->previous;
    group->transfer_slots -= slot->transfer;
    slab_put(&group->slot_slab, slot);
    group->job->slots--;
    exchange->slots--;
}

/* What the first node asked for that has been heard, which one has. */
static const struct wire_ask *slot_first_ask(const struct slot *slot)
{
    uint32_t first = 0;
    while (!slot->contributions[first].heard)
        first++;
    return &slot->contributions[first].ask;
}

void slots_drop(struct exchange_group *group)
{
    for (uint32_t i = 0; i < SLOT_BUCKETS; i++) {
        while (group->slot_table[i])
            slot_free(group->slot_table[i]);
    }
}

/* Gathering ones: their contributions wait for nothing but other contributions. */
void slots_drop_idle(struct exchange_group *group)
{
    for (uint32_t i = 0; i < SLOT_BUCKETS; i++) {
        struct slot *next;
        for (struct slot *it = group->slot_table[i]; it; it = next) {
            next = it->next;
            if (it->state == SLOT_GATHERING)
                slot_free(it);
        }
    }
}

void slots_check_sources(struct exchange_group *group)
{
    for (uint32_t i = 0; i < SLOT_BUCKETS && group->transfer_slots > 0; i++) {
        for (const struct slot *it = group->slot_table[i]; it && !group->failed; it = it->next) {
            if (it->transfer && it->heard < it->needed)
                transfer_check_source(group, it->sequence, slot_first_ask(it));
        }
    }
}

bool slot_has_chunk(struct exchange_group *group, const struct chunk *chunk)
{
    const struct collective *collective = chunk->collective;
    const struct slot *slot =
        slot_find(group, collective->sequence, collective->ask.block, chunk->index);
    return slot && slot->local == chunk;
}

/* --- the result's way back -------------------------------------------------------------------- */

static uint32_t slot_bytes(const struct slot *slot)
{
    return (uint32_t)(slot->place.count * ask_element_bytes(&slot->ask));
}

/* Where the result lies, for sending: the summed buffer, or one rank's data. */
struct slot_source {
    const void *data;
    struct buffer *buffer;
    uint32_t local; /* whose arena it is in, when not in a buffer */
};

static struct slot_source slot_result_source(const struct slot *slot)
{
    const struct exchange_group *group = slot->group;
    if (slot->result)
        return (struct slot_source){.data = slot->result->data + WIRE_HEADER_BYTES,
                                    .buffer = slot->result};
    struct route route = ask_route(group, &slot->ask);
    if (route.from >= group->size)
        return (struct slot_source){0};
    uint32_t node = group_node_index(group, group_rank_node(group, route.from));
    const struct contribution *from = &slot->contributions[node];
    return (struct slot_source){.data = from->data,
                                .buffer = from->buffer,
                                .local = group_local_index(group, group->ranks[route.from])};
}

static struct exchange_send *slot_result_send(struct slot *slot, uint32_t i,
                                              const struct slot_source *source)
{
    struct exchange_group *group = slot->group;
    bool returns = slot->place.count > 0 && ask_returns(group, &slot->ask, i);
    struct exchange_send *send =
        send_create(group, group->nodes[i], WIRE_RESULT, slot->sequence, slot->chunk, &slot->ask,
                    returns ? source->data : NULL, returns ? slot_bytes(slot) : 0);
    if (returns && source->buffer) {
        buffer_hold(source->buffer);
        send->buffer = source->buffer;
    } else if (returns) {
        chunk_send_from_arena(slot->local, send, source->local);
    }
    return send;
}

/* The result lies in a receive of one of the nodes (a sum, or a broadcast's data). That node's
 * answer gives it a place in its window back, and its next contribution wants a receive: so it is
 * answered last, when no other send holds the buffer. Were it answered at once, its contributions
 * could take the receives that are promised to others of its messages for as long as another node
 * takes no results; with several groups, or receives shared by all, nodes could wait for each other
 * in a circle, each with its receives full of what it has to send to the next. */
static void slot_send_results(struct slot *slot)
{
    struct exchange_group *group = slot->group;
    struct slot_source source = slot_result_source(slot);
    struct exchange_send *last = NULL;
    for (uint32_t i = 0; i < group->node_count && source.buffer && !last; i++) {
        if (i != group->self_node && slot->contributions[i].buffer == source.buffer)
            last = slot_result_send(slot, i, &source);
    }
    if (last && group->failed) { /* there was no memory for it, and it is none of ours */
        send_submit(group->job->exchange, last);
        return;
    }
    if (last)
        last->waits = 1; /* until all are sent: one for which there is no memory ends at once */
    /* Another node first than for the chunk before: servers do not all begin with the same. */
    for (uint32_t turn = 0; turn < group->node_count; turn++) {
        uint32_t i = (slot->chunk + turn) % group->node_count;
        if (i == group->self_node || !slot->contributions[i].heard ||
            slot->contributions[i].answered || (last && last->node == group->nodes[i]))
            continue;
        struct exchange_send *send = slot_result_send(slot, i, &source);
        if (last && send->buffer) {
            send->then = last;
            last->waits++;
        }
        if (!is_transfer(&slot->ask))
            group->slots_of[i]--;
        send_submit(group->job->exchange, send);
    }
    if (last)
        slot_last_result(last);
}

void slot_last_result(struct exchange_send *last)
{
    struct exchange_group *group = last->group;
    if (--last->waits > 0)
        return;
    if (group->failed) {
        send_free(group->job->exchange, last);
        return;
    }
    group->slots_of[group_node_index(group, last->node)]--;
    send_submit(group->job->exchange, last);
}

/* The result is there, and in the arenas of this node's ranks. */
static void slot_return(struct slot *slot)
{
    struct chunk *local = slot->local;
    slot_send_results(slot);
    slot_free(slot);
    if (local)
        chunk_returned(local);
}

static void slot_task_done(struct reduce_task *task)
{
    slot_trace_task(task->owner);
    slot_return(task->owner);
}

/* --- the sum ---------------------------------------------------------------------------------- */

/* The sum goes where one of the contributions came: no buffer more. Nodes take turns, since the one
 * whose it was is answered last. */
static struct buffer *slot_result_buffer(const struct slot *slot)
{
    const struct exchange_group *group = slot->group;
    bool wanted = false;
    struct buffer *buffer = NULL;
    assert(group->node_count > 0);
    uint32_t first = (uint32_t)((slot->sequence + slot->chunk) % group->node_count);
    for (uint32_t n = 0; n < group->node_count; n++) {
        uint32_t i = (first + n) % group->node_count;
        if (i == group->self_node)
            continue;
        wanted |= ask_returns(group, &slot->ask, i);
        if (!buffer)
            buffer = slot->contributions[i].buffer;
    }
    return wanted ? buffer : NULL;
}

static void slot_sum(struct slot *slot)
{
    struct exchange_group *group = slot->group;
    struct reduce_task *task = &slot->task;
    struct reduction *reduction = &task->reduction;
    slot->state = SLOT_SUMMING;
    for (uint32_t i = 0; i < group->node_count; i++)
        reduction->in[i] = slot->contributions[i].data;
    reduction->inputs = group->node_count;
    reduction->outputs = reduction->past_cache = 0;
    if (slot->local)
        chunk_outputs(slot->local, reduction);
    slot->result = slot_result_buffer(slot);
    if (slot->result) /* last: what is sent next stays in the cache */
        reduction->out[reduction->outputs++] = slot->result->data + WIRE_HEADER_BYTES;
    reduction_set(reduction, &slot->ask, slot->ask.op, group->size, slot->place.count);
    task->finish = slot_task_done;
    task_submit(group, task);
}

/* One rank's data goes to the ranks of this node that want it. */
static void slot_copy(struct slot *slot)
{
    struct reduce_task *task = &slot->task;
    slot->state = SLOT_SUMMING;
    if (!slot->local ||
        !chunk_describe_copy(slot->local, slot_result_source(slot).data, &task->reduction)) {
        slot_return(slot);
        return;
    }
    task->finish = slot_task_done;
    task_submit(slot->group, task);
}

/* --- disagreement ----------------------------------------------------------------------------- */

static void slot_collect_asks(const struct slot *slot, struct disagreement *all)
{
    const struct exchange_group *group = slot->group;
    for (uint32_t i = 0; i < group->node_count; i++) {
        const struct contribution *it = &slot->contributions[i];
        if (it->disagrees) {
            for (uint32_t at = 0; at < it->disagree_bytes; at += WIRE_RANK_ASK_BYTES) {
                uint32_t rank;
                struct wire_ask ask;
                const uint8_t *bytes = (const uint8_t *)it->data + at;
                if (wire_decode_rank_ask(bytes, WIRE_RANK_ASK_BYTES, &rank, &ask) == 0 &&
                    rank < group->size)
                    disagreement_add(all, group->ranks[rank], &ask);
            }
            continue;
        }
        struct route route = ask_route(group, &it->ask);
        for (uint32_t rank = 0; rank < group->size && it->heard; rank++) {
            if (group_rank_node(group, rank) == group->nodes[i] && route_takes_part(&route, rank))
                disagreement_add(all, group->ranks[rank], &it->ask);
        }
    }
}

static void slot_send_error(struct slot *slot, uint32_t node_index, const char *text, size_t bytes)
{
    struct exchange_group *group = slot->group;
    struct exchange *exchange = group->job->exchange;
    struct buffer *buffer = buffer_get(exchange->options.pool);
    if (!buffer)
        return; /* that node learns it over the control connection */
    buffer->peer = NO_INDEX;
    uint32_t room = buffer->capacity - WIRE_HEADER_BYTES;
    uint32_t length = bytes < room ? (uint32_t)bytes : room;
    for (uint32_t i = 0; i < length; i++)
        buffer->data[WIRE_HEADER_BYTES + i] = (uint8_t)text[i];
    struct exchange_send *send =
        send_create(group, group->nodes[node_index], WIRE_ERROR, slot->sequence, slot->chunk,
                    &slot->ask, buffer->data + WIRE_HEADER_BYTES, length);
    send->buffer = buffer;
    send_submit(exchange, send);
}

/* Which nodes do not go together in a chunk, where a confused peer may be the only one to differ.
 */
static size_t slot_name_nodes(const struct slot *slot, char *text, size_t bytes)
{
    const struct exchange_group *group = slot->group;
    const char *const *names = group->job->exchange->options.node_names;
    uint32_t first = 0;
    while (first + 1 < group->node_count && !slot->contributions[first].heard)
        first++;
    uint32_t other = first + 1 < group->node_count ? first + 1 : first;
    while (other + 1 < group->node_count &&
           (!slot->contributions[other].heard ||
            wire_ask_equal(&slot->contributions[other].ask, &slot->ask)))
        other++;
    int wanted = snprintf(text, bytes, "node %s differs from node %s in chunk %" PRIu32 "; ",
                          names[group->nodes[other]], names[group->nodes[first]], slot->chunk);
    return wanted > 0 && (size_t)wanted < bytes ? (size_t)wanted : 0;
}

static void slot_report_disagreement(struct slot *slot)
{
    struct exchange_group *group = slot->group;
    struct disagreement all;
    disagreement_init(&all, group->id, group->size, slot->sequence);
    slot_collect_asks(slot, &all);
    char text[ERROR_TEXT_BYTES];
    size_t bytes = slot->chunk == 0 ? 0 : slot_name_nodes(slot, text, sizeof(text));
    bytes += disagreement_text(&all, text + bytes, sizeof(text) - bytes);
    for (uint32_t i = 0; i < group->node_count; i++) {
        if (i != group->self_node)
            slot_send_error(slot, i, text, bytes);
    }
    exchange_group_fail(group, ERR_MISMATCH, text);
}

/* --- gathering -------------------------------------------------------------------------------- */

/* A slot whose nodes have all been heard. */
static void slot_complete(struct slot *slot)
{
    const struct exchange_group *group = slot->group;
    slot->ask = *slot_first_ask(slot);
    bool agree = true;
    for (uint32_t i = 0; i < group->node_count; i++) {
        const struct contribution *it = &slot->contributions[i];
        agree &= it->heard == ask_takes_part(group, &slot->ask, i);
        agree &= !it->heard || (!it->disagrees && wire_ask_equal(&it->ask, &slot->ask));
    }
    if (!agree) {
        /* Asks may meet in any chunk first: nodes begin with different owners, and a peer may have
         * given another one another ask. */
        slot_report_disagreement(slot);
        return;
    }
    struct layout layout;
    int result = ask_layout(group, &slot->ask, slot->sequence, &layout);
    assert(result == 0); /* checked for every contribution */
    (void)result;
    slot->place = layout_chunk(&layout, slot->chunk);
    if (slot->place.count == 0)
        slot_return(slot);
    else if (ask_route(group, &slot->ask).from != ROUTE_ALL)
        slot_copy(slot);
    else
        slot_sum(slot);
}

/* Whether what the slot returns is one local rank's data, and there. Chunk 0 is where nodes that
 * disagree meet, so nothing of it is given away before all have been heard. */
static bool slot_can_answer(const struct slot *slot)
{
    return slot->local && slot->chunk > 0 && collective_source(slot->local->collective) != NO_INDEX;
}

/* Give a node, if it has asked, what the others may not have asked for yet. */
static void slot_answer(struct slot *slot, uint32_t node_index)
{
    struct exchange_group *group = slot->group;
    struct contribution *asked = &slot->contributions[node_index];
    const struct wire_ask *ask = &slot->local->collective->ask;
    if (node_index == group->self_node || !asked->heard || !wire_ask_equal(&asked->ask, ask))
        return;
    slot->ask = *ask;
    slot->place = slot->local->place;
    struct slot_source source = slot_result_source(slot);
    asked->answered = true;
    group->slots_of[node_index]--;
    send_submit(group->job->exchange, slot_result_send(slot, node_index, &source));
}

/* So that no node waits for a slower one. */
static void slot_answer_heard(struct slot *slot, uint32_t node_index)
{
    if (slot->heard == 1 || !slot_can_answer(slot))
        return;
    if (node_index != slot->group->self_node) {
        slot_answer(slot, node_index);
        return;
    }
    for (uint32_t i = 0; i < slot->group->node_count && !slot->group->failed; i++)
        slot_answer(slot, i);
}

static void slot_hear(struct slot *slot, uint32_t node_index, const struct contribution *heard)
{
    assert(!slot->contributions[node_index].heard);
    slot->contributions[node_index] = *heard;
    slot->contributions[node_index].heard = true;
    if (++slot->heard < slot->needed) {
        slot_answer_heard(slot, node_index);
        return;
    }
    slot_trace_gather(slot, node_index);
    slot_complete(slot);
}

static int contribution_check_disagree(const struct exchange_group *group,
                                       const struct wire_header *header, struct error *error)
{
    if (header->chunk != 0 || header->payload_bytes == 0 || header->sequence > INT64_MAX ||
        header->payload_bytes % WIRE_RANK_ASK_BYTES != 0 || header->ask.block != 0 ||
        header->sequence % group->rule.servers != group->self_owner)
        return error_set(error, ERR_PROTOCOL,
                         "a disagreement about collective %" PRIu64 " of group %" PRIu32
                         " that makes no sense",
                         header->sequence, group->id);
    return 0;
}

/* One disagreement may be under way beside the window's contributions: the group fails of it. */
static int contribution_check_window(const struct exchange_group *group, uint32_t node_index,
                                     const struct wire_header *header, struct error *error)
{
    bool disagrees = header->type == WIRE_DISAGREE;
    bool numbered = header->sequence & WIRE_SEND_SEQUENCE;
    if (numbered != is_transfer(&header->ask) || (numbered && disagrees))
        return error_set(error, ERR_PROTOCOL, "%s numbered %" PRIu64,
                         collective_name(header->ask.kind), header->sequence);
    if (disagrees && group->disagreed[node_index])
        return error_set(error, ERR_PROTOCOL, "a second disagreement in group %" PRIu32, group->id);
    if (is_transfer(&header->ask))
        return group->transfer_slots < transfer_slots_most(group)
                   ? 0
                   : error_set(error, ERR_PROTOCOL,
                               "more than %" PRIu64 " chunks of sends asked for in group %" PRIu32,
                               transfer_slots_most(group), group->id);
    if (disagrees || group->slots_of[node_index] < group->window)
        return 0;
    return error_set(error, ERR_PROTOCOL,
                     "more than %" PRIu32 " contributions under way in group %" PRIu32,
                     group->window, group->id);
}

static int contribution_check(const struct exchange_group *group, uint32_t node_index,
                              const struct wire_header *header, struct error *error)
{
    bool disagrees = header->type == WIRE_DISAGREE;
    if (contribution_check_window(group, node_index, header, error) != 0)
        return ERR_PROTOCOL;
    if (disagrees)
        return contribution_check_disagree(group, header, error);
    if (wire_ask_check(&header->ask, group->size, error) != 0)
        return error_set(error, ERR_PROTOCOL, "a contribution to a collective that does not exist");
    struct layout layout;
    if (ask_layout(group, &header->ask, header->sequence, &layout) != 0 ||
        header->chunk >= layout.chunks)
        return error_set(error, ERR_PROTOCOL,
                         "a contribution to chunk %" PRIu32 ", which does not exist",
                         header->chunk);
    struct layout_chunk place = layout_chunk(&layout, header->chunk);
    uint64_t bytes = ask_contributes(group, &header->ask, node_index)
                         ? place.count * ask_element_bytes(&header->ask)
                         : 0;
    uint32_t owner = header->ask.block ? ask_block_owner(group, &header->ask) : place.server;
    if (owner != group->self_owner || header->payload_bytes != bytes ||
        !ask_takes_part(group, &header->ask, node_index))
        return error_set(error, ERR_PROTOCOL,
                         "a contribution of %" PRIu32 " bytes to chunk %" PRIu32 ", where %" PRIu64
                         " were expected or another node owns it",
                         header->payload_bytes, header->chunk, bytes);
    return 0;
}

int slot_contribute_remote(struct exchange_group *group, uint32_t node_index,
                           const struct wire_header *header, struct buffer *buffer,
                           struct error *error)
{
    int result = contribution_check(group, node_index, header, error);
    if (result != 0)
        return result;
    if (is_transfer(&header->ask))
        transfer_check_source(group, header->sequence, &header->ask);
    if (group->failed)
        return 0;
    struct slot *slot = slot_find(group, header->sequence, header->ask.block, header->chunk);
    if (slot && slot->contributions[node_index].heard)
        return error_set(error, ERR_PROTOCOL,
                         "a second contribution to chunk %" PRIu32 " of collective %" PRIu64,
                         header->chunk, header->sequence);
    if (!slot)
        slot = slot_create(group, header->sequence, &header->ask, header->chunk);
    if (!slot) {
        exchange_group_fail(group, ERR_MEMORY, "no memory for a slot");
        return 0;
    }
    struct contribution heard = {.ask = header->ask,
                                 .disagrees = header->type == WIRE_DISAGREE,
                                 .disagree_bytes = header->payload_bytes};
    if (header->payload_bytes > 0) {
        buffer_hold(buffer);
        heard.buffer = buffer;
        heard.data = buffer->data + WIRE_HEADER_BYTES;
    }
    if (heard.disagrees)
        group->disagreed[node_index] = true;
    else if (!slot->transfer)
        group->slots_of[node_index]++;
    slot_hear(slot, node_index, &heard);
    return 0;
}

void slot_contribute_local(struct exchange_group *group, struct chunk *chunk, const void *data)
{
    const struct collective *collective = chunk->collective;
    const struct wire_ask *ask = &collective->ask;
    struct slot *slot = slot_find(group, collective->sequence, ask->block, chunk->index);
    if (!slot)
        slot = slot_create(group, collective->sequence, ask, chunk->index);
    if (!slot) {
        exchange_group_fail(group, ERR_MEMORY, "no memory for a slot");
        return;
    }
    slot->local = chunk;
    struct contribution heard = {.ask = collective->ask, .data = data};
    slot_hear(slot, group->self_node, &heard);
}

/* All that take part and are here have asked; where others do too, it is clear already. */
static void slot_report_single(struct collective *collective)
{
    struct exchange_group *group = collective->group;
    struct disagreement all;
    disagreement_init(&all, group->id, group->size, collective->sequence);
    for (uint32_t i = 0; i < group->local_count; i++) {
        if (collective->parts[i].submitted)
            disagreement_add(&all, group->locals[i].job_rank, &collective->parts[i].ask);
    }
    char text[ERROR_TEXT_BYTES];
    disagreement_text(&all, text, sizeof(text));
    exchange_group_fail(group, ERR_MISMATCH, text);
}

void slot_disagree_local(struct collective *collective)
{
    struct exchange_group *group = collective->group;
    if (collective->single || collective->ask.block > 0) {
        slot_report_single(collective);
        return;
    }
    struct slot *slot = slot_find(group, collective->sequence, 0, 0);
    if (!slot)
        slot = slot_create(group, collective->sequence, &collective->ask, 0);
    struct buffer *buffer = buffer_get(group->job->exchange->options.pool);
    if (!slot || !buffer) {
        buffer_release(buffer);
        exchange_group_fail(group, ERR_MEMORY, "no memory to tell who asked for what");
        return;
    }
    buffer->peer = NO_INDEX;
    struct contribution heard = {.ask = collective->ask, .disagrees = true, .buffer = buffer};
    uint8_t *bytes = buffer->data + WIRE_HEADER_BYTES;
    heard.data = bytes;
    heard.disagree_bytes =
        collective_encode_asks(collective, bytes, buffer->capacity - WIRE_HEADER_BYTES);
    slot_hear(slot, group->self_node, &heard);
}

/* --- late nodes ------------------------------------------------------------------------------- */

bool slot_oldest_waiting(const struct exchange_group *group, uint64_t *sequence, uint64_t *first_ns)
{
    const struct slot *oldest = NULL;
    for (uint32_t i = 0; i < SLOT_BUCKETS; i++) {
        for (const struct slot *it = group->slot_table[i]; it; it = it->next) {
            bool waits = it->heard < it->needed && !it->transfer; /* a receive may be early */
            if (waits && (!oldest || it->sequence < oldest->sequence))
                oldest = it;
        }
    }
    if (!oldest)
        return false;
    *sequence = oldest->sequence;
    *first_ns = oldest->first_ns;
    return true;
}

void slot_missing_nodes(const struct exchange_group *group, uint64_t sequence,
                        struct engine_event *event)
{
    event->nodes = memory_require(group->node_count, sizeof(*event->nodes), "the late nodes");
    for (uint32_t node = 0; node < group->node_count; node++) {
        bool missing = false;
        for (uint32_t i = 0; i < SLOT_BUCKETS; i++) {
            for (const struct slot *it = group->slot_table[i]; it; it = it->next)
                missing |= it->sequence == sequence && !it->contributions[node].heard &&
                           ask_takes_part(group, slot_first_ask(it), node);
        }
        if (missing && node != group->self_node)
            event->nodes[event->node_count++] = group->nodes[node];
    }
}
