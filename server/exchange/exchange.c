/* Peers, messages and receives. The rest of the exchange: see server/exchange/exchange_private.h.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/transport/transport.h"
#include "server/exchange/exchange_private.h"

int exchange_create(struct exchange **exchange, const struct exchange_options *options,
                    struct error *error)
{
    struct exchange *made = calloc(1, sizeof(*made));
    struct exchange_peer *peers = calloc(options->node_count, sizeof(*peers));
    if (!made || !peers) {
        free(made);
        free(peers);
        return error_set(error, ERR_MEMORY, "no memory for %" PRIu32 " peers", options->node_count);
    }
    made->options = *options;
    made->peers = peers;
    slab_init(&made->sends, sizeof(struct exchange_send));
    *exchange = made;
    return 0;
}

void exchange_destroy(struct exchange *exchange)
{
    if (!exchange)
        return;
    exchange_close_jobs(exchange);
    assert(!exchange->jobs);
    for (uint32_t i = 0; i < exchange->options.node_count; i++) {
        struct exchange_peer *peer = &exchange->peers[i];
        assert(peer->posted == 0 && peer->held == 0);
    }
    assert(exchange->sends.in_use == 0);
    slab_clear(&exchange->sends);
    free(exchange->peers);
    free(exchange);
}

/* --- what an ask means for a node ------------------------------------------------------------ */

struct route ask_route(const struct exchange_group *group, const struct wire_ask *ask)
{
    return route_find((enum collective_kind)ask->kind, ask->root, ask->block, group->size);
}

static bool rank_is_on(const struct exchange_group *group, uint32_t rank, uint32_t node_index)
{
    return rank < group->size && group_rank_node(group, rank) == group->nodes[node_index];
}

bool ask_takes_part(const struct exchange_group *group, const struct wire_ask *ask,
                    uint32_t node_index)
{
    struct route route = ask_route(group, ask);
    if (route.from < group->size && route.to < group->size)
        return rank_is_on(group, route.from, node_index) || rank_is_on(group, route.to, node_index);
    return true;
}

bool ask_contributes(const struct exchange_group *group, const struct wire_ask *ask,
                     uint32_t node_index)
{
    struct route route = ask_route(group, ask);
    return route.from == ROUTE_ALL || rank_is_on(group, route.from, node_index);
}

bool ask_returns(const struct exchange_group *group, const struct wire_ask *ask,
                 uint32_t node_index)
{
    struct route route = ask_route(group, ask);
    return (route.to == ROUTE_ALL || rank_is_on(group, route.to, node_index)) &&
           !rank_is_on(group, route.from, node_index);
}

int ask_layout(const struct exchange_group *group, const struct wire_ask *ask, uint64_t sequence,
               struct layout *layout)
{
    const struct layout_rule *rule = ask->block ? &group->block_rule : &group->rule;
    return layout_init(layout, is_transfer(ask) ? &group->send_rule : rule, sequence,
                       wire_ask_elements(ask), ask_element_bytes(ask));
}

uint32_t ask_block_owner(const struct exchange_group *group, const struct wire_ask *ask)
{
    return group_owner_index(group, group_rank_node(group, ask_route(group, ask).owner));
}

uint32_t ask_element_bytes(const struct wire_ask *ask)
{
    return ask->kind == COLLECTIVE_BARRIER ? 1 : (uint32_t)dtype_bytes(ask->dtype);
}

/* --- receives --------------------------------------------------------------------------------- */

struct exchange_peer *receive_account(struct exchange *exchange, uint32_t node)
{
    return &exchange->peers[exchange->options.shared_receives ? 0 : node];
}

/* Datagram endpoints share receives, so they are posted as soon as anybody may send. */
static bool receive_possible(const struct exchange *exchange, uint32_t node)
{
    if (!exchange->options.shared_receives)
        return exchange->peers[node].up;
    for (uint32_t i = 0; i < exchange->options.node_count; i++) {
        if (exchange->peers[i].up)
            return true;
    }
    return false;
}

static bool receive_post(struct exchange *exchange, uint32_t node, struct buffer *buffer)
{
    struct exchange_peer *account = receive_account(exchange, node);
    buffer->peer = node;
    if (exchange->options.io.post_receive(exchange->options.io.context, node, buffer) != 0)
        return false;
    account->posted++;
    return true;
}

void receive_replenish(struct exchange *exchange, uint32_t node)
{
    struct exchange_peer *account = receive_account(exchange, node);
    if (account->posted + account->held >= account->allowed || !receive_possible(exchange, node))
        return;
    while (account->posted + account->held < account->allowed) {
        struct buffer *buffer = buffer_get(exchange->options.pool);
        if (!buffer)
            return; /* tried again when the next message is released */
        if (!receive_post(exchange, node, buffer)) {
            buffer_release(buffer);
            return;
        }
    }
}

void receive_release(struct exchange *exchange, struct buffer *buffer)
{
    if (!buffer)
        return;
    if (buffer->references > 1 || buffer->peer == NO_INDEX) {
        buffer_release(buffer);
        return;
    }
    uint32_t node = buffer->peer;
    struct exchange_peer *account = receive_account(exchange, node);
    assert(account->held > 0);
    account->held--;
    bool wanted = account->posted + account->held < account->allowed;
    if (!wanted || !receive_possible(exchange, node) || !receive_post(exchange, node, buffer))
        buffer_release(buffer);
    if (account->posted + account->held < account->allowed)
        receive_replenish(exchange, node); /* those for which there was no memory */
}

void exchange_receive_returned(struct exchange *exchange, uint32_t node, struct buffer *buffer)
{
    struct exchange_peer *account = receive_account(exchange, node);
    assert(account->posted > 0);
    account->posted--;
    buffer_release(buffer);
    receive_replenish(exchange, node); /* one that was spoilt, or of a connection before this one */
}

void exchange_abandon_receives(struct exchange *exchange)
{
    for (uint32_t i = 0; i < exchange->options.node_count; i++) {
        buffer_pool_forget(exchange->options.pool, exchange->peers[i].posted);
        exchange->peers[i].posted = 0;
    }
}

void exchange_peer_up(struct exchange *exchange, uint32_t node, uint64_t receive_token,
                      uint64_t send_token)
{
    struct exchange_peer *peer = &exchange->peers[node];
    peer->up = true;
    peer->receive_token = receive_token;
    peer->send_token = send_token;
    receive_replenish(exchange, node);
}

void exchange_peer_down(struct exchange *exchange, uint32_t node)
{
    exchange->peers[node].up = false;
}

/* --- sends and tasks -------------------------------------------------------------------------- */

struct exchange_send *send_create(struct exchange_group *group, uint32_t node, uint8_t type,
                                  uint64_t sequence, uint32_t chunk, const struct wire_ask *ask,
                                  const void *payload, uint32_t payload_bytes)
{
    struct exchange *exchange = group->job->exchange;
    struct exchange_send *send = slab_get(&exchange->sends);
    if (!send) {
        exchange_group_fail(group, ERR_MEMORY, "no memory for a message to another node");
        exchange->unsent = (struct exchange_send){0};
        send = &exchange->unsent;
    }
    struct wire_header header = {
        .type = type,
        .status = type == WIRE_ERROR ? ERR_MISMATCH : 0,
        .token = exchange->peers[node].send_token,
        .job = group->job->id,
        .sequence = sequence,
        .group = group->id,
        .chunk = chunk,
        .payload_bytes = payload_bytes,
        .ask = *ask,
    };
    send->node = node;
    send->payload = payload;
    send->payload_bytes = payload_bytes;
    send->group = group;
    wire_encode_header(send->header, &header);
    return send;
}

void send_submit(struct exchange *exchange, struct exchange_send *send)
{
    if (send == &exchange->unsent) { /* its group has failed */
        struct exchange_send *then = send->then;
        receive_release(exchange, send->buffer);
        if (then)
            slot_last_result(then);
        return;
    }
    send->group->pending++;
    if (send->group->job->trace)
        send_trace_posted(send);
    exchange->options.io.send(exchange->options.io.context, send);
}

void send_free(struct exchange *exchange, struct exchange_send *send)
{
    receive_release(exchange, send->buffer);
    slab_put(&exchange->sends, send);
}

void exchange_send_failed(struct exchange *exchange, struct exchange_send *send, int code)
{
    char text[ERROR_TEXT_BYTES];
    snprintf(text, sizeof(text), "a message to node %s could not be sent: %s",
             exchange->options.node_names[send->node], error_name(code));
    exchange_group_fail(send->group, code, text);
}

void exchange_sent(struct exchange *exchange, struct exchange_send *send)
{
    struct exchange_group *group = send->group;
    struct chunk *chunk = send->chunk;
    struct exchange_send *then = send->then;
    if (group->job->trace)
        send_trace_sent(send);
    send_free(exchange, send);
    if (then)
        slot_last_result(then);
    assert(group->pending > 0);
    group->pending--;
    if (group->failed) {
        if (group->pending == 0)
            exchange_job_settle(group->job);
    } else if (chunk) {
        chunk_sent(chunk);
    }
}

void task_submit(struct exchange_group *group, struct reduce_task *task)
{
    struct exchange *exchange = group->job->exchange;
    task->group = group;
    task->timed = group->job->trace != NULL;
    task->begin_ns = 0;
    group->pending++;
    const struct reduction *reduction = &task->reduction;
    exchange->bytes_reduced += reduction->count * dtype_bytes(reduction->dtype) * reduction->inputs;
    exchange->options.io.reduce(exchange->options.io.context, task);
}

void exchange_reduced(struct exchange *exchange, struct reduce_task *task)
{
    (void)exchange;
    struct exchange_group *group = task->group;
    assert(group->pending > 0);
    group->pending--;
    if (!group->failed)
        task->finish(task);
    else if (group->pending == 0)
        exchange_job_settle(group->job);
}

/* --- messages --------------------------------------------------------------------------------- */

static bool peer_knows(const struct exchange_peer *peer, uint64_t token)
{
    return peer->up && peer->receive_token == token;
}

static int message_sender(const struct exchange *exchange, uint32_t node, uint64_t token,
                          uint32_t *from)
{
    if (node != TRANSPORT_NO_PEER)
        return peer_knows(&exchange->peers[node], token) ? 0 : ERR_PROTOCOL;
    for (uint32_t i = 0; i < exchange->options.node_count; i++) {
        if (peer_knows(&exchange->peers[i], token)) {
            *from = i;
            return 0;
        }
    }
    return ERR_PROTOCOL;
}

static int message_contribution(struct exchange_group *group, uint32_t from,
                                const struct wire_header *header, struct buffer *buffer,
                                struct error *error)
{
    uint32_t node_index = group_node_index(group, from);
    if (node_index == NO_INDEX || group->self_owner == NO_INDEX || group->single)
        return error_set(error, ERR_PROTOCOL,
                         "a contribution to group %" PRIu32
                         ", in which it has no part or this node no shard",
                         group->id);
    return slot_contribute_remote(group, node_index, header, buffer, error);
}

static int message_error(struct exchange_group *group, uint32_t from,
                         const struct wire_header *header, const struct buffer *buffer,
                         struct error *error)
{
    if (group_owner_index(group, from) == NO_INDEX)
        return error_set(error, ERR_PROTOCOL,
                         "an error for group %" PRIu32 ", in which it owns no shard", group->id);
    char text[ERROR_TEXT_BYTES];
    uint32_t bytes = header->payload_bytes < sizeof(text) - 1 ? header->payload_bytes
                                                              : (uint32_t)sizeof(text) - 1;
    for (uint32_t i = 0; i < bytes; i++) {
        uint8_t byte = buffer->data[WIRE_HEADER_BYTES + i];
        text[i] = byte < ' ' ? ' ' : (char)byte; /* one line */
    }
    text[bytes] = '\0';
    exchange_group_fail(group, header->status, text);
    return 0;
}

static int message_dispatch(struct exchange *exchange, uint32_t from,
                            const struct wire_header *header, struct buffer *buffer,
                            struct error *error)
{
    struct exchange_job *job = exchange_job_find(exchange, header->job);
    struct exchange_group *group = job ? exchange_group_find(job, header->group) : NULL;
    if (!group || group->failed) {
        exchange->dropped_messages++;
        return 0;
    }
    switch (header->type) {
    case WIRE_CONTRIBUTION:
    case WIRE_DISAGREE:
        return message_contribution(group, from, header, buffer, error);
    case WIRE_RESULT:
        return chunk_result(group, from, header, buffer, error);
    case WIRE_PROBE:
    case WIRE_READY:
    case WIRE_GONE:
        return probe_message(group, from, header, error);
    default:
        return message_error(group, from, header, buffer, error);
    }
}

int exchange_receive(struct exchange *exchange, uint32_t node, struct buffer *buffer,
                     uint32_t bytes, uint64_t now_ns, uint32_t *from, struct error *error)
{
    uint32_t posted_for = buffer->peer;
    struct exchange_peer *account = receive_account(exchange, posted_for);
    assert(account->posted > 0);
    account->posted--;
    account->held++;
    exchange->now_ns = now_ns;
    *from = node;
    struct wire_header header = {0};
    int result = bytes > buffer->capacity
                     ? error_set(error, ERR_PROTOCOL, "a message of %" PRIu32 " bytes", bytes)
                     : wire_decode_header(buffer->data, bytes, &header, error);
    if (result == 0 && message_sender(exchange, node, header.token, from) != 0) {
        result = error_set(error, ERR_PROTOCOL, "a message has a token that was not given out");
        /* A datagram may be of a connection before this one, for which its sender is not to pay. */
        if (exchange->options.shared_receives)
            *from = TRANSPORT_NO_PEER;
    }
    if (result == 0)
        result = message_dispatch(exchange, *from, &header, buffer, error);
    /* Whoever keeps the buffer holds it. */
    receive_release(exchange, buffer);
    /* A transport takes fewer receives than several groups allow; now it has room for one. */
    receive_replenish(exchange, posted_for);
    return result;
}

/* --- running ---------------------------------------------------------------------------------- */

void exchange_run(struct exchange *exchange)
{
    while (exchange->dirty) {
        struct exchange_group *group = exchange->dirty;
        exchange->dirty = group->next_dirty;
        group->is_dirty = false;
        group_pump(group);
    }
}

void exchange_totals(const struct exchange *exchange, struct exchange_totals *totals)
{
    *totals = (struct exchange_totals){
        .bytes_reduced = exchange->bytes_reduced,
        .collectives = exchange->collectives,
        .dropped_messages = exchange->dropped_messages,
        .slots = exchange->slots,
        .workers = exchange->workers,
    };
    for (const struct exchange_job *job = exchange->jobs; job; job = job->next)
        totals->jobs++;
}

/* --- late ranks ------------------------------------------------------------------------------- */

static void group_report_late(struct exchange_group *group, uint64_t sequence)
{
    struct exchange *exchange = group->job->exchange;
    struct engine_event *event = engine_event_create(ENGINE_LATE);
    event->job = group->job->id;
    event->group = group->id;
    event->sequence = sequence;
    collective_missing_ranks(group, sequence, event);
    slot_missing_nodes(group, sequence, event);
    exchange->options.io.event(exchange->options.io.context, event);
}

static void group_tick(struct exchange_group *group, uint64_t now_ns)
{
    uint64_t late_ns = group->job->exchange->options.late_ns;
    uint64_t sequence = 0;
    uint64_t first_ns = 0;
    bool waits = slot_oldest_waiting(group, &sequence, &first_ns);
    const struct collective *oldest = group->oldest;
    if (oldest && oldest->submitted < oldest->needed && (!waits || oldest->sequence <= sequence)) {
        waits = true;
        sequence = oldest->sequence;
        first_ns = oldest->first_ns;
    }
    if (!waits || now_ns < first_ns + late_ns || group->late_reported == sequence + 1)
        return;
    group->late_reported = sequence + 1;
    group_report_late(group, sequence);
}

void exchange_tick(struct exchange *exchange, uint64_t now_ns)
{
    exchange->now_ns = now_ns;
    for (uint32_t node = 0; node < exchange->options.node_count; node++)
        receive_replenish(exchange, node);
    for (struct exchange_job *job = exchange->jobs; job; job = job->next) {
        for (struct exchange_group *group = job->groups; group; group = group->next) {
            if (group->failed)
                continue;
            group_tick(group, now_ns);
            /* Where memory was lacking nothing may be in flight whose end would try again. */
            if (group->starved)
                group_mark_dirty(group);
            group->starved = false;
        }
    }
}

void exchange_late_query(struct exchange *exchange, uint64_t job_id, uint32_t id, uint64_t sequence)
{
    struct exchange_job *job = exchange_job_find(exchange, job_id);
    struct exchange_group *group = job ? exchange_group_find(job, id) : NULL;
    if (!group)
        return;
    struct engine_event *event = engine_event_create(ENGINE_LATE);
    event->job = job_id;
    event->group = id;
    event->sequence = sequence;
    collective_missing_ranks(group, sequence, event);
    exchange->options.io.event(exchange->options.io.context, event);
}

bool exchange_idle(const struct exchange *exchange)
{
    for (const struct exchange_job *job = exchange->jobs; job; job = job->next) {
        for (const struct exchange_group *group = job->groups; group; group = group->next) {
            if (group->failed)
                continue;
            uint64_t sequence, first_ns;
            if (group->oldest || group->transfers || group->pending ||
                slot_oldest_waiting(group, &sequence, &first_ns))
                return false;
        }
    }
    return true;
}

void exchange_check(const struct exchange *exchange)
{
    for (uint32_t i = 0; i < exchange->options.node_count; i++) {
        const struct exchange_peer *account = &exchange->peers[i];
        if (account->up && !exchange->options.shared_receives)
            assert(account->posted + account->held >= account->allowed);
    }
    for (const struct exchange_job *job = exchange->jobs; job; job = job->next) {
        for (struct exchange_group *group = job->groups; group; group = group->next) {
            for (uint32_t i = 0; i < group->owner_count; i++)
                assert(group->in_flight[i] <= group->window);
            for (uint32_t i = 0; i < group->node_count; i++)
                assert(group->slots_of[i] <= group->window);
            group_check_queues(group);
            for (const struct collective *it = group->transfers; it; it = it->next) {
                assert(it->outlets[0].in_flight <= group->window); /* it has one shard */
                assert(it->issued <= it->ready &&
                       it->outlets[0].in_flight == it->issued - it->delivered);
                assert(collective_find(group, it->sequence, it->ask.block) == it);
            }
            for (const struct collective *it = group->oldest; it; it = it->next) {
                assert(it->issued <= it->ready && it->delivered <= it->issued);
                assert(collective_find(group, it->sequence, it->ask.block) == it);
                assert(!it->next || it->sequence < it->next->sequence ||
                       (it->sequence == it->next->sequence && it->ask.block < it->next->ask.block));
            }
        }
    }
}
