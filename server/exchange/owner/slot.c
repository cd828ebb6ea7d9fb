#include "server/exchange/owner/slot.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "server/exchange/ground/post.h"
#include "server/exchange/ground/submission.h"
#include "server/exchange/model/ask.h"
#include "server/exchange/model/disagreement.h"
#include "server/exchange/model/roster.h"
#include "server/exchange/owner/slots.h"
#include "server/exchange/owner/slots_wait.h"

/* --- the result's way back -------------------------------------------------------------------- */

static uint32_t slot_bytes(const struct slot *slot)
{
    return (uint32_t)(slot->extent.count * ask_element_bytes(&slot->ask));
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
    if (route.from >= group->members.size)
        return (struct slot_source){0};
    uint32_t node = group_node_index(group, group_rank_node(group, route.from));
    const struct contribution *from = &slot->contributions[node];
    return (struct slot_source){.data = from->data,
                                .buffer = from->buffer,
                                .local =
                                    group_local_index(group, group->members.ranks[route.from])};
}

static struct exchange_send *slot_result_send(struct slot *slot, uint32_t i,
                                              const struct slot_source *source)
{
    struct exchange_group *group = slot->group;
    bool returns = slot->extent.count > 0 && ask_returns(group, &slot->ask, i);
    struct exchange_send *send =
        send_create(group, group->members.nodes[i], WIRE_RESULT, slot->sequence, slot->chunk,
                    &slot->ask, returns ? source->data : NULL, returns ? slot_bytes(slot) : 0);
    if (returns && source->buffer) {
        buffer_hold(source->buffer);
        send->buffer = source->buffer;
    } else if (returns) {
        slot->lender->lend(slot->lender, send, source->local);
    }
    return send;
}

/* One reason less to keep the last answer back: it goes when there is none. In a group that has
 * failed it goes nowhere. */
static void slot_release_last(struct exchange_send *last)
{
    struct exchange_group *group = last->group;
    if (--last->holds > 0)
        return;
    if (group->failed) {
        send_free(group->job->exchange, last);
        return;
    }
    group->slots->of_node[group_node_index(group, last->node)]--;
    send_submit(group->job->exchange, last);
}

static void slot_answer_sent(struct exchange_send *send)
{
    slot_release_last(send->owner);
}

/* The result lies in a receive of one of the nodes (a sum, or a broadcast's data). The answer to
 * that node opens its window again, and its next contribution wants a receive. For this reason that
 * node is answered last, when no other send holds the buffer. Were it answered at once, its
 * contributions could take the receives that are promised to others of its messages for as long as
 * another node takes no results. With several groups, or receives shared by all, nodes could wait
 * for each other in a circle, each with its receives full of what it has to send to the next. */
static struct exchange_send *slot_last_answer(struct slot *slot, const struct slot_source *source)
{
    struct exchange_group *group = slot->group;
    for (uint32_t i = 0; i < group->members.node_count && source->buffer; i++) {
        if (i != group->members.self_node && slot->contributions[i].buffer == source->buffer)
            return slot_result_send(slot, i, source);
    }
    return NULL;
}

static void slot_send_results(struct slot *slot)
{
    struct exchange_group *group = slot->group;
    const struct members *members = &group->members;
    struct slot_source source = slot_result_source(slot);
    struct exchange_send *last = slot_last_answer(slot, &source);
    if (last && group->failed) { /* there was no memory for it, and it is none of ours */
        send_submit(group->job->exchange, last);
        return;
    }
    if (last)
        last->holds = 1; /* until all are sent: one for which there is no memory ends at once */
    /* Another node first than for the chunk before: servers do not all begin with the same. */
    for (uint32_t turn = 0; turn < members->node_count; turn++) {
        uint32_t i = (slot->chunk + turn) % members->node_count;
        if (i == members->self_node || !slot->contributions[i].heard ||
            slot->contributions[i].answered || (last && last->node == members->nodes[i]))
            continue;
        struct exchange_send *send = slot_result_send(slot, i, &source);
        if (last && send->buffer) {
            send->done = slot_answer_sent;
            send->owner = last;
            last->holds++;
        }
        if (!slot->transfer)
            group->slots->of_node[i]--;
        send_submit(group->job->exchange, send);
    }
    if (last)
        slot_release_last(last);
}

/* The result is there, and with this node's ranks. */
static void slot_return(struct slot *slot)
{
    struct lender *lender = slot->lender;
    slot_send_results(slot);
    slot_free(slot);
    if (lender)
        lender->returned(lender);
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
    assert(group->members.node_count > 0);
    uint32_t first = (uint32_t)((slot->sequence + slot->chunk) % group->members.node_count);
    for (uint32_t n = 0; n < group->members.node_count; n++) {
        uint32_t i = (first + n) % group->members.node_count;
        if (i == group->members.self_node)
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
    for (uint32_t i = 0; i < group->members.node_count; i++)
        reduction->in[i] = slot->contributions[i].data;
    reduction->inputs = group->members.node_count;
    reduction->outputs = reduction->past_cache = 0;
    if (slot->lender)
        piece_outputs(slot->lender->piece, reduction);
    slot->result = slot_result_buffer(slot);
    if (slot->result) /* last: what is sent next stays in the cache */
        reduction->out[reduction->outputs++] = slot->result->data + WIRE_HEADER_BYTES;
    ask_set_reduction(reduction, &slot->ask, slot->ask.op, group->members.size, slot->extent.count);
    task->finish = slot_task_done;
    task_submit(group, task);
}

/* One rank's data goes to the ranks of this node that want it. */
static void slot_copy(struct slot *slot)
{
    struct reduce_task *task = &slot->task;
    slot->state = SLOT_SUMMING;
    if (!slot->lender ||
        !piece_copy(slot->lender->piece, slot_result_source(slot).data, &task->reduction)) {
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
    for (uint32_t i = 0; i < group->members.node_count; i++) {
        const struct contribution *it = &slot->contributions[i];
        if (it->disagrees) {
            for (uint32_t at = 0; at < it->disagree_bytes; at += WIRE_RANK_ASK_BYTES) {
                uint32_t rank;
                struct wire_ask ask;
                const uint8_t *bytes = (const uint8_t *)it->data + at;
                if (wire_decode_rank_ask(bytes, WIRE_RANK_ASK_BYTES, &rank, &ask) == 0 &&
                    rank < group->members.size)
                    disagreement_add(all, group->members.ranks[rank], &ask);
            }
            continue;
        }
        struct route route = ask_route(group, &it->ask);
        for (uint32_t rank = 0; rank < group->members.size && it->heard; rank++) {
            if (group_rank_node(group, rank) == group->members.nodes[i] &&
                route_takes_part(&route, rank))
                disagreement_add(all, group->members.ranks[rank], &it->ask);
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
        send_create(group, group->members.nodes[node_index], WIRE_ERROR, slot->sequence,
                    slot->chunk, &slot->ask, buffer->data + WIRE_HEADER_BYTES, length);
    send->buffer = buffer;
    send_submit(exchange, send);
}

/* Write the names of two nodes that disagree on the chunk, and return the length, 0 if there is no
 * room: a confused peer may be the only one to differ. */
static size_t slot_name_nodes(const struct slot *slot, char *text, size_t bytes)
{
    const struct exchange_group *group = slot->group;
    const char *const *names = group->job->exchange->options.node_names;
    uint32_t first = 0;
    while (first + 1 < group->members.node_count && !slot->contributions[first].heard)
        first++;
    uint32_t other = first + 1 < group->members.node_count ? first + 1 : first;
    while (other + 1 < group->members.node_count &&
           (!slot->contributions[other].heard ||
            wire_ask_equal(&slot->contributions[other].ask, &slot->ask)))
        other++;
    int wanted = snprintf(text, bytes, "node %s differs from node %s in chunk %" PRIu32 "; ",
                          names[group->members.nodes[other]], names[group->members.nodes[first]],
                          slot->chunk);
    return wanted > 0 && (size_t)wanted < bytes ? (size_t)wanted : 0;
}

static void slot_report_disagreement(struct slot *slot)
{
    struct exchange_group *group = slot->group;
    struct disagreement all;
    disagreement_init(&all, group->id, group->members.size, slot->sequence);
    slot_collect_asks(slot, &all);
    char text[ERROR_TEXT_BYTES];
    size_t bytes = slot->chunk == 0 ? 0 : slot_name_nodes(slot, text, sizeof(text));
    bytes += disagreement_text(&all, text + bytes, sizeof(text) - bytes);
    for (uint32_t i = 0; i < group->members.node_count; i++) {
        if (i != group->members.self_node)
            slot_send_error(slot, i, text, bytes);
    }
    exchange_group_fail(group, ERR_MISMATCH, text);
}

/* --- gathering -------------------------------------------------------------------------------- */

/* Chunk 0 of a send, where its two ranks meet: what does not fit is answered without data. */
static void slot_meet(struct slot *slot)
{
    struct lender *lender = slot->lender;
    uint32_t receiver = 0;
    while (!slot->contributions[receiver].heard || receiver == slot->group->members.self_node)
        receiver++;
    lender->met(lender, &slot->contributions[receiver].ask);
    slot->ask = lender->piece->collective->ask;
    slot->extent = lender->piece->extent;
    slot_return(slot); /* its receiver is elsewhere: nothing is copied here */
}

/* A slot whose nodes have all been heard. */
static void slot_complete(struct slot *slot)
{
    const struct exchange_group *group = slot->group;
    if (slot->transfer && slot->chunk == 0) {
        slot_meet(slot);
        return;
    }
    slot->ask = *slot_first_ask(slot);
    bool agree = true;
    for (uint32_t i = 0; i < group->members.node_count; i++) {
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
    slot->extent = layout_chunk(&layout, slot->chunk);
    if (slot->extent.count == 0)
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
    return slot->lender && slot->chunk > 0 &&
           collective_source(slot->lender->piece->collective) != NO_INDEX;
}

/* Give a node, if it has asked, what the others may not have asked for yet. */
static void slot_answer(struct slot *slot, uint32_t node_index)
{
    struct exchange_group *group = slot->group;
    struct contribution *asked = &slot->contributions[node_index];
    const struct piece *piece = slot->lender->piece;
    const struct wire_ask *ask = &piece->collective->ask;
    if (node_index == group->members.self_node || !asked->heard ||
        !wire_ask_equal(&asked->ask, ask))
        return;
    slot->ask = *ask;
    slot->extent = piece->extent;
    struct slot_source source = slot_result_source(slot);
    asked->answered = true;
    group->slots->of_node[node_index]--;
    send_submit(group->job->exchange, slot_result_send(slot, node_index, &source));
}

/* Answer the node that has just been heard, or if it is this one all others that have been heard,
 * so that no node waits for a slower one. */
static void slot_answer_heard(struct slot *slot, uint32_t node_index)
{
    if (slot->heard == 1 || !slot_can_answer(slot))
        return;
    if (node_index != slot->group->members.self_node) {
        slot_answer(slot, node_index);
        return;
    }
    for (uint32_t i = 0; i < slot->group->members.node_count && !slot->group->failed; i++)
        slot_answer(slot, i);
}

static void slot_hear(struct slot *slot, uint32_t node_index, const struct contribution *heard)
{
    assert(!slot->contributions[node_index].heard);
    slot->contributions[node_index] = *heard;
    slot->contributions[node_index].heard = true;
    slot->heard++;
    slot_wait_heard(slot, node_index);
    if (slot->heard < slot->needed) {
        slot_answer_heard(slot, node_index);
        return;
    }
    slot_trace_gathered(slot, node_index);
    slot_complete(slot);
}

/* --- what other nodes send -------------------------------------------------------------------- */

/* How many slots other nodes' asks can honestly make. */
static uint64_t slot_most_transfers(const struct exchange_group *group)
{
    return (uint64_t)group->members.size * SUBMISSION_TRANSFERS_MAX * group->owners.window;
}

/* One disagreement may be under way beside the window's contributions: the group fails of it. */
static int slot_check_window(const struct exchange_group *group, uint32_t node_index,
                             const struct wire_header *header, struct error *error)
{
    bool disagrees = header->type == WIRE_DISAGREE;
    bool numbered = header->sequence & WIRE_SEND_SEQUENCE;
    if (numbered != ask_is_transfer(&header->ask) || (numbered && disagrees))
        return error_set(error, ERR_PROTOCOL, "%s numbered %" PRIu64,
                         collective_name(header->ask.kind), header->sequence);
    if (disagrees && group->slots->disagreed[node_index])
        return error_set(error, ERR_PROTOCOL, "a second disagreement in group %" PRIu32, group->id);
    if (ask_is_transfer(&header->ask))
        return group->slots->transfers < slot_most_transfers(group)
                   ? 0
                   : error_set(error, ERR_PROTOCOL,
                               "more than %" PRIu64 " chunks of sends asked for in group %" PRIu32,
                               slot_most_transfers(group), group->id);
    uint32_t window = group->owners.windows[group->owners.self];
    if (disagrees || group->slots->of_node[node_index] < window)
        return 0;
    return error_set(error, ERR_PROTOCOL,
                     "more than %" PRIu32 " contributions under way in group %" PRIu32, window,
                     group->id);
}

int slot_check(const struct exchange_group *group, uint32_t node_index,
               const struct wire_header *header, struct error *error)
{
    int result = slot_check_window(group, node_index, header, error);
    return result == 0 ? submission_check_contribution(group, node_index, header, error) : result;
}

int slot_contribute_remote(struct exchange_group *group, uint32_t node_index,
                           const struct wire_header *header, struct buffer *buffer,
                           struct error *error)
{
    struct slot *slot = slots_get(group, header->sequence, &header->ask, header->chunk);
    if (!slot)
        return 0;
    if (slot->contributions[node_index].heard)
        return error_set(error, ERR_PROTOCOL,
                         "a second contribution to chunk %" PRIu32 " of collective %" PRIu64,
                         header->chunk, header->sequence);
    struct contribution heard = {.ask = header->ask,
                                 .disagrees = header->type == WIRE_DISAGREE,
                                 .disagree_bytes = header->payload_bytes};
    if (header->payload_bytes > 0) {
        buffer_hold(buffer);
        heard.buffer = buffer;
        heard.data = buffer->data + WIRE_HEADER_BYTES;
    }
    if (heard.disagrees)
        group->slots->disagreed[node_index] = true;
    else if (!slot->transfer)
        group->slots->of_node[node_index]++;
    slot_hear(slot, node_index, &heard);
    return 0;
}

/* --- what this node gives --------------------------------------------------------------------- */

void slot_contribute_local(uint32_t chunk, struct lender *lender, const void *data)
{
    const struct collective *collective = lender->piece->collective;
    struct exchange_group *group = collective->group;
    struct slot *slot = slots_get(group, collective->sequence, &collective->ask, chunk);
    if (!slot)
        return;
    slot->lender = lender;
    struct contribution heard = {.ask = collective->ask, .data = data};
    slot_hear(slot, group->members.self_node, &heard);
}

void slot_disagree_local(struct exchange_group *group, uint64_t sequence,
                         const struct wire_ask *ask, struct buffer *buffer, uint32_t bytes)
{
    struct slot *slot = slots_get(group, sequence, ask, 0);
    if (!slot) {
        buffer_release(buffer);
        return;
    }
    struct contribution heard = {.ask = *ask,
                                 .data = buffer->data + WIRE_HEADER_BYTES,
                                 .buffer = buffer,
                                 .disagrees = true,
                                 .disagree_bytes = bytes};
    slot_hear(slot, group->members.self_node, &heard);
}
