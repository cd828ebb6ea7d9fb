/* Messages on their way to the fabric: as they are, or sealed; in the order in which they were
 * given, for each peer. A message for which the transport has no room waits. */
#include "common/base/error.h"
#include "server/engine/engine_private.h"

static int engine_post(struct engine *engine, struct exchange_send *send, const struct iovec *parts,
                       void *const *registrations, unsigned count)
{
    send->connection = engine->peers[send->node].connection;
    int result = transport_send(engine->transport, send->node, parts, registrations, count, send);
    if (result == 0) {
        engine->sends_posted++;
        engine->peers[send->node].messages_out++;
        for (unsigned i = 0; i < count; i++)
            engine->peers[send->node].bytes_out += parts[i].iov_len;
    }
    return result;
}

static int engine_try_send(struct engine *engine, struct exchange_send *send)
{
    struct iovec parts[2] = {
        {.iov_base = send->header, .iov_len = WIRE_HEADER_BYTES},
        {.iov_base = (void *)(uintptr_t)send->payload, .iov_len = send->payload_bytes},
    };
    void *registrations[2] = {NULL, NULL};
    if (send->buffer)
        registrations[1] = send->buffer->registration;
    else if (send->worker)
        registrations[1] = send->worker->registration;
    return engine_post(engine, send, parts, registrations, send->payload_bytes > 0 ? 2 : 1);
}

static int engine_try_sealed(struct engine *engine, struct exchange_send *send)
{
    uint32_t bytes = 0;
    const struct buffer *sealed = engine_protect_bytes(send, &bytes);
    struct iovec part = {.iov_base = sealed->data, .iov_len = bytes};
    return engine_post(engine, send, &part, &sealed->registration, 1);
}

/* Take a message to a peer that is not there. The message ends with its jobs, which the control
 * thread sees to. */
static void engine_lose(struct engine *engine, struct exchange_send *send)
{
    send->next = engine->lost;
    engine->lost = send;
}

/* Where recovery is on the peer would miss its number, and the session keeps it: the connection is
 * ended, and it goes over the next one. */
static void engine_refuse(struct engine *engine, struct exchange_send *send, int code)
{
    if (code != ERR_LOST && engine->config->recovery) {
        engine->unsendable += engine->peers[send->node].unsendable == 0;
        engine->peers[send->node].unsendable = code;
    } else if (code != ERR_LOST) {
        exchange_send_failed(engine->exchange, send, code);
    }
    engine_lose(engine, send);
}

/* From the backlog to those that are being sealed. */
static bool engine_seal_backlog(struct engine *engine, struct engine_peer *peer)
{
    bool any = false;
    while (peer->backlog && peer->unsendable == 0) {
        struct exchange_send *send = peer->backlog, *next = send->next;
        int result = engine_protect_seal(engine, send);
        if (result == ERR_AGAIN)
            return any;
        any = true;
        peer->backlog = next;
        if (!next)
            peer->backlog_end = &peer->backlog;
        if (result != 0)
            engine_refuse(engine, send, result);
    }
    return any;
}

/* From those that are sealed to the fabric, in order. One that the fabric does not take stays: its
 * sequence is taken, and the peer takes no later one before it. While the connection is being made
 * it waits as long as that may take. */
static bool engine_post_sealed(struct engine *engine, uint32_t node)
{
    struct exchange_send *send;
    bool any = false;
    while ((send = engine_protect_sealed(engine, node)) != NULL) {
        int result = engine_try_sealed(engine, send);
        if (result != 0) {
            if (result != ERR_AGAIN && result != ERR_LOST)
                engine_protect_unposted(engine, node, result);
            return any;
        }
        any = true;
        engine_protect_posted(engine, send);
    }
    return any;
}

/* Seal and post as long as anything moves: a message that is refused makes room for another, and
 * nobody else would look. */
static void engine_flush_sealed(struct engine *engine, uint32_t node)
{
    bool any = true;
    while (any) {
        any = engine_seal_backlog(engine, &engine->peers[node]);
        any |= engine_post_sealed(engine, node);
    }
}

static void engine_append_backlog(struct engine *engine, struct engine_peer *peer,
                                  struct exchange_send *send)
{
    bits_set(engine->moving, send->node);
    *peer->backlog_end = send;
    peer->backlog_end = &send->next;
}

/* Where messages are sealed none goes out in the clear: without keys it is lost. */
static void engine_send_sealed(struct engine *engine, struct exchange_send *send)
{
    struct engine_peer *peer = &engine->peers[send->node];
    if (!peer->link) {
        peer->unsent++;
        engine_lose(engine, send);
        return;
    }
    engine_append_backlog(engine, peer, send);
    engine_flush_sealed(engine, send->node);
}

void engine_send(struct engine *engine, struct exchange_send *send)
{
    struct engine_peer *peer = &engine->peers[send->node];
    send->next = NULL;
    if (peer->unsendable != 0) {
        engine_lose(engine, send);
        return;
    }
    if (engine->seal_bytes > 0) {
        engine_send_sealed(engine, send);
        return;
    }
    int result = peer->backlog ? ERR_AGAIN : engine_try_send(engine, send);
    if (result == ERR_AGAIN)
        engine_append_backlog(engine, peer, send);
    else if (result != 0)
        engine_refuse(engine, send, result);
}

void engine_flush_backlog(struct engine *engine, uint32_t node)
{
    struct engine_peer *peer = &engine->peers[node];
    if (engine->seal_bytes > 0) {
        if (peer->link)
            engine_flush_sealed(engine, node);
        return;
    }
    while (peer->backlog && peer->unsendable == 0) {
        struct exchange_send *send = peer->backlog;
        struct exchange_send *next = send->next;
        int result = engine_try_send(engine, send);
        if (result == ERR_AGAIN)
            return;
        peer->backlog = next;
        if (!next)
            peer->backlog_end = &peer->backlog;
        if (result != 0)
            engine_refuse(engine, send, result);
    }
}

bool engine_return_lost(struct engine *engine)
{
    bool any = engine->lost != NULL;
    while (engine->lost) {
        struct exchange_send *send = engine->lost;
        engine->lost = send->next;
        exchange_sent(engine->exchange, send);
    }
    return any;
}

void engine_drop_backlog(struct engine *engine, uint32_t node)
{
    struct engine_peer *peer = &engine->peers[node];
    engine_protect_end(engine, node);
    while (peer->backlog) {
        struct exchange_send *send = peer->backlog;
        peer->backlog = send->next;
        engine_lose(engine, send);
    }
    peer->backlog_end = &peer->backlog;
}
