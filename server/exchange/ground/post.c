#include "server/exchange/ground/post.h"

#include <assert.h>
#include <string.h>

#include "server/exchange/ground/recorder.h"
#include "server/exchange/ground/session.h"
#include "server/exchange/model/roster.h"

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

bool receive_is_short(const struct exchange *exchange, uint32_t node)
{
    const struct exchange_peer *account = &exchange->peers[node];
    return account->posted + account->held < account->allowed && receive_possible(exchange, node);
}

void receive_replenish(struct exchange *exchange, uint32_t node)
{
    struct exchange_peer *account = receive_account(exchange, node);
    account->lacking = false;
    if (account->posted + account->held >= account->allowed || !receive_possible(exchange, node))
        return;
    while (account->posted + account->held < account->allowed) {
        struct buffer *buffer = buffer_get(exchange->options.pool);
        account->lacking = !buffer;
        if (!buffer || !receive_post(exchange, node, buffer)) {
            buffer_release(buffer);
            /* Tried again with the tick, or the next release. */
            peer_stir(exchange, (uint32_t)(account - exchange->peers));
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

/* --- sends ------------------------------------------------------------------------------------ */

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
        .generation = group->job->generation,
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

static void send_post(struct exchange *exchange, struct exchange_send *send)
{
    exchange->peers[send->node].link.sent = true;
    peer_stir(exchange, send->node);
    exchange->options.io.send(exchange->options.io.context, send);
}

void send_submit(struct exchange *exchange, struct exchange_send *send)
{
    if (send == &exchange->unsent) { /* its group has failed */
        receive_release(exchange, send->buffer);
        if (send->done)
            send->done(send);
        return;
    }
    struct exchange_session *session = &exchange->peers[send->node].session;
    send->group->pending++;
    if (send->group->job->trace)
        recorder_send_posted(send);
    if (!session->on) {
        send_post(exchange, send);
        return;
    }
    send->next = NULL;
    *session->waiting_end = send;
    session->waiting_end = &send->next;
    sends_flush(exchange, send->node);
}

static struct exchange_send *sends_take_waiting(struct exchange_session *session)
{
    struct exchange_send *send = session->waiting;
    session->waiting = send->next;
    if (!session->waiting)
        session->waiting_end = &session->waiting;
    send->next = NULL;
    return send;
}

void sends_flush(struct exchange *exchange, uint32_t node)
{
    struct exchange_session *session = &exchange->peers[node].session;
    while (session->waiting && session_keep(exchange, session->waiting)) {
        struct exchange_send *send = sends_take_waiting(session);
        if (!session->suspended) {
            send_post(exchange, send);
            continue;
        }
        send->next = exchange->deferred; /* what is kept takes its place */
        exchange->deferred = send;
    }
}

static int send_again(struct exchange *exchange, uint32_t node,
                      const struct session_message *message, struct error *error)
{
    struct exchange_send *send = slab_get(&exchange->sends);
    if (!send)
        return error_set(error, ERR_MEMORY, "no memory to send again what it may lack");
    send->node = node;
    send->group = message->group;
    send->number_alone = !message->group;
    send->payload_bytes = message->payload_bytes;
    memcpy(send->header, message->header, WIRE_HEADER_BYTES);
    wire_write_session(send->header, exchange->peers[node].send_token, message->number,
                       session_tell(exchange, node));
    if (message->buffer) {
        buffer_hold(message->buffer);
        send->buffer = message->buffer;
        send->payload = message->buffer->data + WIRE_HEADER_BYTES;
    }
    if (send->group) {
        send->group->pending++;
        if (send->group->job->trace)
            recorder_send_posted(send);
    }
    send_post(exchange, send);
    return 0;
}

int sends_go_on(struct exchange *exchange, uint32_t node, struct error *error)
{
    int result = 0;
    if (session_goes_on(exchange, node)) {
        const struct session_message *message = exchange->peers[node].session.first;
        for (; message && result == 0; message = message->next)
            result = send_again(exchange, node, message, error);
    }
    if (result == 0)
        sends_flush(exchange, node);
    return result;
}

void sends_end_session(struct exchange *exchange, uint32_t node)
{
    struct exchange_session *session = &exchange->peers[node].session;
    session_end(exchange, node);
    while (session->waiting)
        send_post(exchange, sends_take_waiting(session));
}

void sends_drop_waiting(const struct exchange_group *group)
{
    struct exchange *exchange = group->job->exchange;
    for (uint32_t node = 0; node < exchange->options.node_count; node++) {
        struct exchange_session *session = &exchange->peers[node].session;
        struct exchange_send **link = &session->waiting;
        while (*link) {
            struct exchange_send *send = *link;
            if (send->group != group) {
                link = &send->next;
                continue;
            }
            *link = send->next;
            send->next = exchange->deferred;
            exchange->deferred = send;
        }
        session->waiting_end = link;
    }
}

void send_free(struct exchange *exchange, struct exchange_send *send)
{
    receive_release(exchange, send->buffer);
    slab_put(&exchange->sends, send);
}

void send_over(struct exchange *exchange, struct exchange_send *send)
{
    struct exchange_group *group = send->group;
    if (!group) { /* sent again, and of a group that had ended */
        send_free(exchange, send);
        return;
    }
    if (group->job->trace)
        recorder_send_over(send);
    receive_release(exchange, send->buffer);
    assert(group->pending > 0);
    group->pending--;
    if (send->done)
        send->done(send);
    slab_put(&exchange->sends, send);
}

/* --- tasks ------------------------------------------------------------------------------------ */

void task_submit(struct exchange_group *group, struct reduce_task *task)
{
    struct exchange *exchange = group->job->exchange;
    task->group = group;
    task->share = group->job->share;
    task->timed = group->job->trace != NULL;
    task->begin_ns = 0;
    wait_begin(&group->job->waits.tasks, exchange->now_ns);
    group->pending++;
    const struct reduction *reduction = &task->reduction;
    exchange->bytes_reduced += reduction->count * dtype_bytes(reduction->dtype) * reduction->inputs;
    exchange->options.io.reduce(exchange->options.io.context, task);
}

void task_over(struct reduce_task *task)
{
    struct exchange_group *group = task->group;
    assert(group->pending > 0);
    group->pending--;
    wait_end(&group->job->waits.tasks, group->job->exchange->now_ns);
    if (!group->failed)
        task->finish(task);
}
