/* Requests of the exchange, carried out on the transport, the reducer and the arenas. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "server/engine/engine_private.h"

#define EVENTS_AT_ONCE 64

/* --- the table -------------------------------------------------------------------- */

static void io_send(void *context, struct exchange_send *send)
{
    engine_send(context, send);
}

static void io_reduce(void *context, struct reduce_task *task)
{
    struct engine *engine = context;
    reducer_submit(engine->reducer, task);
}

static void io_event(void *context, struct engine_event *event)
{
    struct engine *engine = context;
    engine_queue_put_event(&engine->events, event);
}

static void io_complete(void *context, struct exchange_worker *worker,
                        const struct arena_completion *completion)
{
    struct engine *engine = context;
    struct engine_worker *it = (struct engine_worker *)worker;
    if (it->stopped)
        return;
    if (!arena_push_completion(&worker->arena, completion)) {
        it->stopped = true;
        struct engine_event *event = engine_event_create(ENGINE_WORKER_FAILED);
        snprintf(event->text, sizeof(event->text), "it lets its completion ring overflow");
        engine_report_worker(engine, it, event);
        return;
    }
    if (!it->to_ring) {
        it->to_ring = true;
        it->next_ring = engine->to_ring;
        engine->to_ring = it;
    }
}

void engine_report_worker(struct engine *engine, struct engine_worker *worker,
                          struct engine_event *event)
{
    event->job = worker->job;
    event->rank = worker->exchange.rank;
    engine_queue_put_event(&engine->events, event);
}

void engine_ring_workers(struct engine *engine)
{
    while (engine->to_ring) {
        struct engine_worker *worker = engine->to_ring;
        engine->to_ring = worker->next_ring;
        worker->to_ring = false;
        if (!arena_worker_needs_doorbell(&worker->exchange.arena))
            continue;
        /* Neither an eventfd nor a pipe: whatever the worker does to its end, this cannot block. */
        ssize_t rung = send(worker->completion_doorbell, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)rung; /* a full socket means that it is ringing already */
    }
}

static int io_post_receive(void *context, uint32_t node, struct buffer *buffer)
{
    struct engine *engine = context;
    buffer->connection = engine->peers[node].connection;
    int result = transport_post_receive(engine->transport, node, buffer->data, buffer->capacity,
                                        buffer->registration, buffer);
    if (result == 0)
        engine->receives_posted++;
    return result;
}

static void io_release_worker(void *context, struct exchange_worker *worker)
{
    struct engine *engine = context;
    struct engine_worker *it = (struct engine_worker *)worker;
    struct engine_worker **link = &engine->workers;
    while (*link != it)
        link = &(*link)->next;
    *link = it->next;
    for (link = &engine->to_ring; *link; link = &(*link)->next_ring) {
        if (*link == it) {
            *link = it->next_ring;
            break;
        }
    }
    engine_share_remove(engine, it);
    if (worker->registration)
        transport_unregister(engine->transport, worker->registration);
    /* The worker has the doorbell open too, so that closing it here does not end the watch. */
    epoll_ctl(engine->poll_descriptor, EPOLL_CTL_DEL, it->submission_doorbell, NULL);
    close(it->submission_doorbell);
    close(it->completion_doorbell);
    struct engine_event *event = engine_event_create(ENGINE_WORKER_RELEASED);
    event->worker = it->number;
    event->job = it->job;
    event->rank = worker->rank;
    engine_release(engine, worker->arena.base, worker->arena.total_bytes, event);
    free(it);
}

static void io_release_segment(void *context, struct exchange_segment *segment)
{
    engine_release(context, segment->base, segment->bytes, NULL);
    free(segment);
}

static void io_peer_silent(void *context, uint32_t node, const char *what)
{
    engine_peer_silent(context, node, what);
}

static uint64_t io_now_ns(void *context)
{
    (void)context;
    return clock_now_ns();
}

struct exchange_io engine_exchange_io(struct engine *engine)
{
    return (struct exchange_io){
        .context = engine,
        .send = io_send,
        .reduce = io_reduce,
        .complete = io_complete,
        .post_receive = io_post_receive,
        .event = io_event,
        .release_worker = io_release_worker,
        .release_segment = io_release_segment,
        .peer_silent = io_peer_silent,
        .now_ns = io_now_ns,
    };
}

static int io_register_slab(void *context, void *address, size_t bytes, void **registration,
                            struct error *error)
{
    struct engine *engine = context;
    return transport_register(engine->transport, address, bytes, registration, error);
}

static void io_unregister_slab(void *context, void *registration)
{
    struct engine *engine = context;
    transport_unregister(engine->transport, registration);
}

struct buffer_pool_io engine_pool_io(struct engine *engine)
{
    return (struct buffer_pool_io){.context = engine,
                                   .register_slab = io_register_slab,
                                   .unregister_slab = io_unregister_slab};
}

/* --- what the transport says ------------------------------------------------------------------ */

/* Whether it came over a connection that has been dropped since, be it by a message before it or by
 * a command: its token is none that the next connection knows. */
static bool engine_receive_is_stale(const struct engine *engine, const struct buffer *buffer)
{
    return transport_info(engine->transport)->per_peer_receives &&
           buffer->connection != engine->peers[buffer->peer].connection;
}

static void engine_return_receive(struct engine *engine, struct buffer *buffer)
{
    engine->receives_posted--;
    exchange_receive_returned(engine->exchange, buffer->peer, buffer);
}

/* `more` bytes of the message are not for the exchange. */
static void engine_deliver(struct engine *engine, uint32_t node, struct buffer *buffer,
                           uint32_t bytes, uint32_t more, uint64_t now_ns)
{
    struct error error;
    uint32_t from = node;
    int result = exchange_receive(engine->exchange, node, buffer, bytes, now_ns, &from, &error);
    engine->receives_posted--;
    if (from < engine->node_count) {
        engine->peers[from].messages_in++;
        engine->peers[from].bytes_in += bytes + more;
    }
    if (result == 0)
        return;
    if (from >= engine->node_count || !engine->peers[from].connected) {
        log_throttled(engine->log, &engine->stray_lines, now_ns, LOG_LEVEL_WARNING,
                      "fabric: message of nobody who is connected dropped: %s", error.text);
        return;
    }
    engine_end_peer(engine, from, error.text, false);
}

/* Where a message comes over the peer's own connection, its messages are no longer to be trusted:
 * whoever altered this one may go on. A datagram may be anybody's who has heard the token, which
 * goes in the clear: it is dropped, and the peer's own are taken. */
static void engine_refuse_message(struct engine *engine, uint32_t node, int code,
                                  enum seal_refusal refusal, uint64_t now_ns)
{
    static const char *const texts[SEAL_REFUSALS] = {
        [SEAL_SHORT] = "a sealed message was cut short",
        [SEAL_ALTERED] = "a sealed message was altered on its way, or sealed with another key",
        [SEAL_REPEATED] = "a sealed message came a second time",
        [SEAL_DISORDERED] = "a sealed message came before one that was sent earlier",
    };
    if (code != ERR_PROTOCOL) {
        engine_end_peer(engine, node,
                        code == ERR_MEMORY ? "there is no memory to open a sealed message"
                                           : "OpenSSL cannot open a sealed message here",
                        false);
        return;
    }
    engine->peers[node].refused[refusal]++;
    if (engine_protect_is_stranger(engine, node, refusal))
        log_throttled(engine->log, &engine->refused_lines, now_ns, LOG_LEVEL_WARNING,
                      "fabric: message with the token of node %s dropped: %s",
                      engine->node_names[node], texts[refusal]);
    else
        engine_end_peer(engine, node, texts[refusal], false);
}

static void engine_deliver_opened(struct engine *engine, uint32_t node, uint64_t now_ns)
{
    enum seal_refusal refusal;
    struct buffer *buffer;
    uint32_t bytes = 0;
    int code = 0;
    while ((buffer = engine_protect_opened(engine, node, &bytes, &code, &refusal)) != NULL) {
        if (code == 0) {
            engine_deliver(engine, node, buffer, bytes - SEAL_TRAILER_BYTES, SEAL_TRAILER_BYTES,
                           now_ns);
            continue;
        }
        engine_return_receive(engine, buffer);
        engine_refuse_message(engine, node, code, refusal, now_ns);
    }
}

/* Where messages are sealed none is taken in the clear: without keys it is dropped. A datagram may
 * be of a connection before this one: its token tells. */
static void engine_on_sealed(struct engine *engine, uint32_t node, struct buffer *buffer,
                             uint32_t bytes, uint64_t now_ns)
{
    bool datagram = !transport_info(engine->transport)->per_peer_receives;
    if (datagram)
        node = engine_protect_sender(engine, buffer, bytes);
    if (node >= engine->node_count || !engine->peers[node].link) {
        log_throttled(engine->log, &engine->stray_lines, now_ns, LOG_LEVEL_WARNING,
                      "fabric: message of nobody who is connected dropped");
        if (node < engine->node_count)
            engine->peers[node].refused[SEAL_UNKEYED]++;
        engine_return_receive(engine, buffer);
        return;
    }
    enum seal_refusal refusal = SEAL_TAKEN;
    int code = engine_protect_open(engine, node, buffer, bytes, &refusal);
    if (code != 0) {
        engine_return_receive(engine, buffer);
        engine_refuse_message(engine, node, code, refusal, now_ns);
        return;
    }
    engine_deliver_opened(engine, node, now_ns);
}

/* The first peer from this one on with messages that wait here, to or from it; or node_count. */
static uint32_t engine_next_moving(struct engine *engine, uint32_t node)
{
    while ((node = bits_from(engine->moving, engine->node_count, node)) < engine->node_count) {
        const struct engine_peer *peer = &engine->peers[node];
        if (peer->backlog || peer->sealing.first || peer->opening.first)
            return node;
        bits_clear(engine->moving, node);
    }
    return node;
}

void engine_move_protected(struct engine *engine)
{
    engine_protect_round(engine);
    if (!engine->protect_done)
        return;
    engine->protect_done = false;
    uint64_t now_ns = clock_now_ns();
    for (uint32_t node = 0; (node = engine_next_moving(engine, node)) < engine->node_count;
         node++) {
        engine_deliver_opened(engine, node, now_ns);
        engine_flush_backlog(engine, node);
    }
}

void engine_check_protected(struct engine *engine, uint64_t now_ns)
{
    char text[ERROR_TEXT_BYTES];
    for (uint32_t node = 0; node < engine->node_count; node++) {
        if (!engine->peers[node].link)
            continue;
        engine_protect_retry(engine, node);
        engine_deliver_opened(engine, node, now_ns);
        engine_flush_backlog(engine, node);
        if (engine_protect_check(engine, node, now_ns, engine_silence_ns(engine), text,
                                 sizeof(text)))
            engine_peer_lost(engine, node, text, false);
    }
}

static void engine_on_received(struct engine *engine, const struct transport_event *event,
                               uint64_t now_ns)
{
    struct buffer *buffer = event->context;
    if (engine_receive_is_stale(engine, buffer))
        engine_return_receive(engine, buffer);
    else if (engine->seal_bytes > 0)
        engine_on_sealed(engine, event->peer, buffer, event->bytes, now_ns);
    else
        engine_deliver(engine, event->peer, buffer, event->bytes, 0, now_ns);
}

/* On connected endpoints the peer goes down with its first send that fails; elsewhere it stays, and
 * nobody else would come to know that it has not got this one. A sealed one leaves a gap, which the
 * peer would wait for, and could not tell from an attack. */
static void engine_on_sent(struct engine *engine, const struct transport_event *event)
{
    struct exchange_send *send = event->context;
    uint32_t node = send->node;
    bool datagram = !transport_info(engine->transport)->per_peer_receives;
    bool stays = datagram && send->connection == engine->peers[node].connection;
    engine->sends_posted--;
    engine_protect_free(engine, send, datagram && event->status != 0);
    if (event->status != 0 && stays)
        exchange_send_failed(engine->exchange, send, event->status);
    exchange_sent(engine->exchange, send);
    if (event->status != 0 && stays && engine->peers[node].link)
        engine_peer_lost(engine, node, "a sealed message could not be sent", false);
}

static void engine_on_event(struct engine *engine, const struct transport_event *event,
                            uint64_t now_ns)
{
    struct error error;
    switch (event->type) {
    case TRANSPORT_PEER_UP:
        engine->peers[event->peer].up = true;
        engine_peer_event(engine, ENGINE_PEER_UP, event->peer, 0, "");
        if (exchange_peer_ready(engine->exchange, event->peer, &error) != 0)
            engine_end_peer(engine, event->peer, error.text, false);
        break;
    case TRANSPORT_PEER_DOWN:
        engine_peer_lost(engine, event->peer, event->text, true);
        break;
    case TRANSPORT_RECEIVED:
        engine_on_received(engine, event, now_ns);
        break;
    case TRANSPORT_SENT:
        engine_on_sent(engine, event);
        break;
    case TRANSPORT_RETURNED:
        engine_return_receive(engine, event->context);
        break;
    }
}

bool engine_poll_transport(struct engine *engine, uint64_t now_ns)
{
    struct transport_event events[EVENTS_AT_ONCE];
    int count = transport_poll(engine->transport, events, EVENTS_AT_ONCE);
    for (int i = 0; i < count; i++)
        engine_on_event(engine, &events[i], now_ns);
    for (uint32_t i = 0; count > 0 && (i = engine_next_moving(engine, i)) < engine->node_count; i++)
        engine_flush_backlog(engine, i);
    return count > 0;
}
