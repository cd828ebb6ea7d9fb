/* Connected endpoints (FI_EP_MSG): one endpoint for each peer, receives of its own, messages in
 * order, and news of a peer that died.
 *
 *   IDLE --connect--> CONNECTING ------------ FI_CONNECTED --> UP
 *   IDLE --expect---> EXPECTING --FI_CONNREQ--> ACCEPTING ---/
 *   any but IDLE --failure--> IDLE with PEER_DOWN queued; --disconnect--> IDLE without
 *
 * A failure found while a queue is being read is only noted (peer->failed); peers are taken down
 * when the completion queue is empty, so that what arrived before the end is delivered before it.
 *
 * The door of the port (transport_port.h) is open while a peer is EXPECTING, and for a while after
 * transport_admit.
 */
#include "common/transport/transport_fabric.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/bits.h"
#include "common/base/clock.h"
#include "common/transport/transport_inflow.h"
#include "common/transport/transport_port.h"
#include "common/transport/transport_request.h"

#define CONNECTION_DATA_BYTES 256 /* the most that a provider hands over with a request */
#define STRANGERS_MAX 32          /* connections that are no peer's, beside one for each peer */
#define DATA_POLLS 16 /* after so many in a row that brought data, connections are looked at */

enum peer_state { PEER_IDLE, PEER_EXPECTING, PEER_CONNECTING, PEER_ACCEPTING, PEER_UP };

struct peer {
    enum peer_state state;
    bool failed; /* to be taken down, for `reason` */
    uint8_t token[TRANSPORT_TOKEN_BYTES];
    struct fid_ep *endpoint;        /* NULL while IDLE and EXPECTING */
    struct sockaddr_storage remote; /* of a connection that was accepted, or without a family */
    struct fabric_list posted;
    struct fabric_list sends_waiting;
    struct fabric_list receives_waiting; /* before the endpoint is there, or its queue full */
    uint32_t sends;                      /* posted and waiting */
    uint32_t receives;
    struct fabric_op up;
    struct fabric_op down;
    char reason[sizeof(((struct transport_event *)0)->text)];
};

struct connected {
    struct fabric fabric;     /* first */
    struct requests requests; /* with the listener */
    struct port *port;        /* NULL while it opens */
    struct inflow *inflow;
    uint8_t address[TRANSPORT_ADDRESS_BYTES];
    size_t address_bytes;
    uint32_t failed;          /* peers with failed set */
    uint32_t polls_with_data; /* since connections were looked at */
    uint64_t *waiting;        /* a bit for each peer: something may wait to be posted */
    struct peer peers[];
};

static void peer_fail(struct connected *c, struct peer *peer, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void peer_fail(struct connected *c, struct peer *peer, const char *format, ...)
{
    if (peer->failed || peer->state == PEER_IDLE)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(peer->reason, sizeof(peer->reason), format, arguments);
    va_end(arguments);
    peer->failed = true;
    c->failed++;
}

/* --- the port --- */

static void connected_door_set(struct connected *c)
{
    bool expected = false;
    for (uint32_t i = 0; i < c->fabric.peers; i++)
        expected |= c->peers[i].state == PEER_EXPECTING;
    if (c->port)
        port_expect(c->port, expected, clock_now_ns());
}

static void connected_admit(struct transport *transport, uint32_t ms)
{
    struct connected *c = (struct connected *)transport;
    port_admit(c->port, clock_now_ns() + ms * NS_PER_MS);
}

static bool connected_owns(void *context, const struct sockaddr_storage *remote)
{
    const struct connected *c = context;
    for (uint32_t i = 0; i < c->fabric.peers; i++) {
        if (port_address_equal(&c->peers[i].remote, remote))
            return true;
    }
    return false;
}

/* --- operations --- */

/* Where the peer's connection is from and to, which libfabric tells once it stands. */
static void peer_begin_inflow(struct connected *c, struct peer *peer)
{
    struct sockaddr_storage local = {0}, remote = {0};
    size_t local_bytes = sizeof(local), remote_bytes = sizeof(remote);
    if (fi_getname(&peer->endpoint->fid, &local, &local_bytes) == 0 &&
        fi_getpeer(peer->endpoint, &remote, &remote_bytes) == 0)
        inflow_begin(c->inflow, (uint32_t)(peer - c->peers), &local, &remote);
}

static void op_finish(struct connected *c, struct peer *peer, struct fabric_op *op, int status)
{
    struct fabric_list *list = &peer->posted;
    if (op->state == FABRIC_WAITING) {
        list = op->kind == FABRIC_SEND ? &peer->sends_waiting : &peer->receives_waiting;
        c->fabric.waiting -= op->kind == FABRIC_SEND;
    }
    fabric_list_remove(list, op);
    *(op->kind == FABRIC_SEND ? &peer->sends : &peer->receives) -= 1;
    fabric_event_push(&c->fabric, op, status);
}

static void peer_up(struct connected *c, struct peer *peer)
{
    if (peer->state != PEER_CONNECTING && peer->state != PEER_ACCEPTING)
        return;
    peer->state = PEER_UP;
    peer_begin_inflow(c, peer);
    fabric_event_push(&c->fabric, &peer->up, 0);
}

static void connected_complete(struct fabric *fabric, struct fabric_op *op, int fi_error,
                               uint32_t bytes, fi_addr_t source)
{
    (void)source;
    struct connected *c = (struct connected *)fabric;
    struct peer *peer = &c->peers[op->peer];
    if (op->state != FABRIC_POSTED)
        return; /* ended by disconnect; nothing of it is with libfabric any more */
    if (fi_error == FI_ETRUNC)
        peer_fail(c, peer, "it sent a message longer than the %zu bytes of the receive",
                  op->parts[0].iov_len);
    else if (fi_error)
        peer_fail(c, peer, "connection lost (%s)", fi_strerror(fi_error));
    if (op->kind == FABRIC_RECEIVE)
        op->bytes = bytes;
    if (!fi_error)
        peer_up(c, peer); /* the two queues are not in step: a message may overtake the news */
    op_finish(c, peer, op, fi_error ? ERR_LOST : 0);
}

/* Hand a waiting list to libfabric, in order, until it is full. */
static void connected_waiting_post(struct connected *c, struct peer *peer, struct fabric_list *list)
{
    while (list->first && !peer->failed) {
        struct fabric_op *op = list->first;
        ssize_t code = fabric_op_post(peer->endpoint, op, FI_ADDR_UNSPEC);
        if (code == -FI_EAGAIN)
            return;
        if (code) {
            peer_fail(c, peer, "%s failed (%s)", op->kind == FABRIC_SEND ? "a send" : "a receive",
                      fi_strerror((int)-code));
            return;
        }
        fabric_list_remove(list, op);
        c->fabric.waiting -= op->kind == FABRIC_SEND;
        op->state = FABRIC_POSTED;
        fabric_list_append(&peer->posted, op);
    }
}

static int op_submit(struct connected *c, struct peer *peer, struct fabric_list *list,
                     const struct fabric_op *wanted)
{
    struct fabric_op *op = fabric_op_get(&c->fabric);
    if (!op)
        return ERR_MEMORY;
    *op = *wanted;
    op->state = FABRIC_WAITING;
    *(op->kind == FABRIC_SEND ? &peer->sends : &peer->receives) += 1;
    c->fabric.waiting += op->kind == FABRIC_SEND;
    fabric_list_append(list, op);
    bits_set(c->waiting, op->peer);
    if (list->first == op && peer->endpoint)
        connected_waiting_post(c, peer, list);
    return 0;
}

static int connected_send(struct transport *transport, uint32_t number, const struct iovec *parts,
                          void *const *registrations, unsigned part_count, void *context)
{
    struct connected *c = (struct connected *)transport;
    if (number >= c->fabric.peers)
        return ERR_INVALID;
    struct peer *peer = &c->peers[number];
    if (peer->state != PEER_UP || peer->failed)
        return ERR_LOST;
    if (peer->sends >= c->fabric.sends_per_peer)
        return ERR_AGAIN;
    struct fabric_op op = {0};
    fabric_op_set(&op, FABRIC_SEND, number, parts, registrations, part_count, context);
    return op_submit(c, peer, &peer->sends_waiting, &op);
}

static int connected_post_receive(struct transport *transport, uint32_t number, void *data,
                                  uint32_t bytes, void *registration, void *context)
{
    struct connected *c = (struct connected *)transport;
    if (number >= c->fabric.peers)
        return ERR_INVALID;
    struct peer *peer = &c->peers[number];
    if (peer->state == PEER_IDLE || peer->failed)
        return ERR_LOST;
    if (peer->receives >= c->fabric.receives_per_peer)
        return ERR_AGAIN;
    struct fabric_op op = {0};
    struct iovec part = {data, bytes};
    fabric_op_set(&op, FABRIC_RECEIVE, number, &part, &registration, 1, context);
    return op_submit(c, peer, &peer->receives_waiting, &op);
}

/* --- the end of a pair --- */

static void endpoint_close(struct connected *c, struct peer *peer)
{
    struct fid_ep *endpoint = peer->endpoint;
    inflow_end(c->inflow, (uint32_t)(peer - c->peers));
    if (!endpoint)
        return;
    /* No fi_shutdown before it: closing says as much to the peer, and leaves nothing queued that
     * could refer to this endpoint later. */
    int code = fi_close(&endpoint->fid);
    if (code)
        log_warning(c->fabric.log, "fabric: closing an endpoint: %s", fi_strerror(-code));
    peer->endpoint = NULL;
    /* Take the completions that libfabric flushed on closing; after this it knows none of the
     * peer's operations. */
    while (fabric_progress(&c->fabric) > 0)
        continue;
}

static void operations_return(struct connected *c, struct peer *peer)
{
    struct fabric_list *lists[] = {&peer->posted, &peer->sends_waiting, &peer->receives_waiting};
    for (int i = 0; i < 3; i++) {
        while (lists[i]->first)
            op_finish(c, peer, lists[i]->first, ERR_LOST);
    }
}

static void connected_peer_end(struct connected *c, struct peer *peer)
{
    endpoint_close(c, peer);
    operations_return(c, peer);
    if (peer->failed)
        c->failed--;
    peer->failed = false;
    peer->state = PEER_IDLE;
    peer->remote.ss_family = AF_UNSPEC;
    memset(peer->token, 0, sizeof(peer->token));
    connected_door_set(c);
}

static void failed_take_down(struct connected *c)
{
    while (c->failed > 0) {
        for (uint32_t i = 0; i < c->fabric.peers; i++) {
            struct peer *peer = &c->peers[i];
            if (!peer->failed)
                continue;
            connected_peer_end(c, peer);
            fabric_event_push(&c->fabric, &peer->down, ERR_LOST);
        }
    }
}

static void connected_disconnect(struct transport *transport, uint32_t number)
{
    struct connected *c = (struct connected *)transport;
    if (number >= c->fabric.peers)
        return;
    connected_peer_end(c, &c->peers[number]);
    fabric_event_withdraw(&c->fabric, &c->peers[number].up);
    fabric_event_withdraw(&c->fabric, &c->peers[number].down);
}

/* --- the beginning of a pair --- */

/* An endpoint for the peer, enabled, with the receives that wait already posted: a message may
 * follow the connection at once. */
static int connected_endpoint_open(struct connected *c, struct peer *peer, struct fi_info *info,
                                   struct error *error)
{
    int code = fi_endpoint(c->fabric.domain, info, &peer->endpoint, NULL);
    if (code) {
        peer->endpoint = NULL;
        return fabric_error(error, code, "fi_endpoint");
    }
    code = fi_ep_bind(peer->endpoint, &c->fabric.eq->fid, 0);
    if (code == 0)
        code = fi_ep_bind(peer->endpoint, &c->fabric.cq->fid, FI_TRANSMIT | FI_RECV);
    if (code == 0)
        code = fi_enable(peer->endpoint);
    if (code)
        return fabric_error(error, code, "setting up an endpoint");
    connected_waiting_post(c, peer, &peer->receives_waiting);
    return 0;
}

static int peer_begin(struct connected *c, uint32_t number, enum peer_state state,
                      const uint8_t *token, struct error *error)
{
    if (number >= c->fabric.peers)
        return error_set(error, ERR_INVALID, "fabric peer %u: there are %u", number,
                         c->fabric.peers);
    struct peer *peer = &c->peers[number];
    if (peer->state != PEER_IDLE || peer->down.state == FABRIC_DONE)
        return error_set(error, ERR_STATE, "fabric peer %u is connected or expected already",
                         number);
    memcpy(peer->token, token, sizeof(peer->token));
    peer->state = state;
    return 0;
}

static int connected_expect(struct transport *transport, uint32_t number, const uint8_t *address,
                            uint32_t address_bytes, const uint8_t *token, struct error *error)
{
    (void)address, (void)address_bytes;
    struct connected *c = (struct connected *)transport;
    int code = peer_begin(c, number, PEER_EXPECTING, token, error);
    connected_door_set(c);
    return code;
}

/* A connection that this node makes goes out from a port of its own; the listener has the other. */
static void info_clear_port(struct fi_info *info)
{
    struct sockaddr *source = info->src_addr;
    if (source && info->src_addrlen >= sizeof(struct sockaddr_in) &&
        (source->sa_family == AF_INET || source->sa_family == AF_INET6))
        ((struct sockaddr_in *)(void *)source)->sin_port = 0; /* at one place in both families */
}

/* This node's info with the peer's address in it, which verbs looks at when it makes an endpoint.
 */
static struct fi_info *info_towards(struct connected *c, const uint8_t *address, size_t bytes)
{
    struct fi_info *info = fi_dupinfo(c->fabric.info);
    if (!info)
        return NULL;
    free(info->dest_addr);
    info->dest_addr = malloc(bytes);
    if (!info->dest_addr) {
        fi_freeinfo(info);
        return NULL;
    }
    memcpy(info->dest_addr, address, bytes);
    info->dest_addrlen = bytes;
    info_clear_port(info);
    return info;
}

static int connected_connect(struct transport *transport, uint32_t number, const uint8_t *address,
                             uint32_t address_bytes, const uint8_t *token, struct error *error)
{
    struct connected *c = (struct connected *)transport;
    uint8_t here[TRANSPORT_ADDRESS_BYTES];
    if (!fabric_address_take(c->fabric.info, c->address, c->address_bytes, address, address_bytes,
                             here))
        return error_set(error, ERR_PROTOCOL,
                         "fabric peer %u: its address has another form than this node's", number);
    int code = peer_begin(c, number, PEER_CONNECTING, token, error);
    if (code)
        return code;
    struct peer *peer = &c->peers[number];
    struct fi_info *info = info_towards(c, here, address_bytes);
    code = info ? connected_endpoint_open(c, peer, info, error)
                : error_set(error, ERR_MEMORY, "out of memory");
    if (info)
        fi_freeinfo(info);
    if (code == 0) {
        assert(peer->endpoint);
        code = fi_connect(peer->endpoint, here, token, TRANSPORT_TOKEN_BYTES);
        /* The network's answer, also when it comes at once, is an event. */
        if (code)
            peer_fail(c, peer, "no connection (%s)", fi_strerror(-code));
        return 0;
    }
    connected_peer_end(c, peer);
    return code;
}

/* The peer that expects this token, found in a time that does not depend on the token. */
static struct peer *token_match(struct connected *c, const struct request *request)
{
    struct peer *found = NULL;
    for (uint32_t i = 0; i < c->fabric.peers; i++) {
        volatile uint8_t difference = !request->token_is_whole;
        for (size_t j = 0; j < sizeof(request->token); j++)
            difference |= request->token[j] ^ c->peers[i].token[j];
        if (difference == 0 && c->peers[i].state == PEER_EXPECTING && !c->peers[i].failed)
            found = &c->peers[i];
    }
    return found;
}

static void request_answer(struct connected *c, const struct request *request)
{
    struct fi_info *info = request->info;
    struct peer *peer = token_match(c, request);
    if (!peer) {
        request_refuse(&c->requests, info);
        return;
    }
    memset(peer->token, 0, sizeof(peer->token)); /* good once */
    peer->state = PEER_ACCEPTING;
    if (info->dest_addr && info->dest_addrlen <= sizeof(peer->remote))
        memcpy(&peer->remote, info->dest_addr, info->dest_addrlen);
    connected_door_set(c);
    struct error error = {0};
    int code = connected_endpoint_open(c, peer, info, &error);
    if (code) {
        request_reject(&c->requests, info);
        peer_fail(c, peer, "%.100s", error.text);
        return;
    }
    assert(peer->endpoint);
    code = fi_accept(peer->endpoint, NULL, 0);
    if (code) {
        request_reject(&c->requests, info);
        peer_fail(c, peer, "fi_accept: %s", fi_strerror(-code));
    }
}

/* Answer the requests that came in the poll before this one. Whoever connects has been told the
 * token by this daemon's control thread, which has asked before that for the peer to be expected;
 * but the control thread is another thread, and the caller may not have looked between its asking
 * and the poll that found the request. */
static void requests_answer(struct connected *c)
{
    for (uint32_t i = 0; i < c->requests.count; i++)
        request_answer(c, &c->requests.list[i]);
    requests_clear(&c->requests);
}

/* --- events --- */

static struct peer *endpoint_find(struct connected *c, fid_t fid)
{
    for (uint32_t i = 0; fid && i < c->fabric.peers; i++) {
        if (c->peers[i].endpoint && &c->peers[i].endpoint->fid == fid)
            return &c->peers[i];
    }
    return NULL;
}

static void connection_error(struct connected *c)
{
    struct fi_eq_err_entry entry;
    memset(&entry, 0, sizeof(entry));
    if (fi_eq_readerr(c->fabric.eq, &entry, 0) < 0)
        return;
    struct peer *peer = endpoint_find(c, entry.fid);
    if (peer)
        peer_fail(c, peer, "%s (%s)", peer->state == PEER_UP ? "connection lost" : "no connection",
                  fi_strerror(entry.err));
    else
        log_debug(c->fabric.log, "fabric: connection attempt: %s", fi_strerror(entry.err));
}

/* Read one connection event; whether there was one. */
static bool connection_progress(struct connected *c)
{
    struct {
        struct fi_eq_cm_entry entry;
        uint8_t room[CONNECTION_DATA_BYTES];
    } message;
    uint32_t event = 0;
    /* libfabric 1.17's tcp looks at errno after a short read, and takes a stale EAGAIN for "come
     * back later" where a stranger closed its connection: it would stay readable for ever. */
    errno = 0;
    ssize_t bytes = fi_eq_read(c->fabric.eq, &event, &message, sizeof(message), 0);
    if (bytes == -FI_EAVAIL) {
        connection_error(c);
        return true;
    }
    if (bytes < (ssize_t)sizeof(message.entry))
        return false;
    struct fi_eq_cm_entry *entry = &message.entry;
    struct peer *peer = endpoint_find(c, entry->fid);
    switch (event) {
    case FI_CONNREQ:
        request_keep(&c->requests, entry->info, entry->data, (size_t)bytes - sizeof(*entry));
        break;
    case FI_CONNECTED:
        if (peer)
            peer_up(c, peer);
        break;
    case FI_SHUTDOWN:
        if (peer)
            peer_fail(c, peer, "the peer closed the connection");
        break;
    default:
        break;
    }
    return true;
}

/* Batches until one is not full, with no further look at the network to see that there is no more:
 * the caller polls again after events, and what remains keeps it from sleeping. */
static void completions_take(struct connected *c, uint32_t room)
{
    int count = FABRIC_BATCH;
    while (count == FABRIC_BATCH && c->fabric.event_count < room)
        count = fabric_progress(&c->fabric);
}

/* A look at the connections is as dear as one at the data: while data comes they wait. */
static void connections_progress(struct connected *c)
{
    if (c->fabric.event_count > 0 && ++c->polls_with_data < DATA_POLLS)
        return;
    c->polls_with_data = 0;
    inflow_look(c->inflow, clock_tick_ns());
    if (port_is_busy(c->port))
        port_look(c->port, clock_now_ns(), connected_owns, c);
    for (int i = 0; i < REQUESTS_MAX && connection_progress(c); i++)
        continue;
}

static void waiting_retry(struct connected *c)
{
    uint32_t peers = c->fabric.peers;
    for (uint32_t i = 0; (i = bits_from(c->waiting, peers, i)) < peers; i++) {
        struct peer *peer = &c->peers[i];
        if (peer->endpoint)
            connected_waiting_post(c, peer, &peer->receives_waiting);
        if (peer->endpoint && peer->state == PEER_UP)
            connected_waiting_post(c, peer, &peer->sends_waiting);
        if (!peer->receives_waiting.first && !peer->sends_waiting.first)
            bits_clear(c->waiting, i);
    }
}

static int connected_poll(struct transport *transport, struct transport_event *events, int room)
{
    struct connected *c = (struct connected *)transport;
    requests_answer(c);
    completions_take(c, (uint32_t)room);
    connections_progress(c);
    for (uint32_t i = 0; i < c->fabric.peers && c->fabric.unreadable; i++)
        peer_fail(c, &c->peers[i], "the fabric's completion queue cannot be read");
    if (c->failed > 0) {
        while (fabric_progress(&c->fabric) > 0)
            continue;
        failed_take_down(c);
    }
    waiting_retry(c);
    return fabric_event_take(&c->fabric, events, room);
}

static bool connected_can_sleep(struct transport *transport)
{
    struct connected *c = (struct connected *)transport;
    return c->failed == 0 && c->requests.count == 0 && fabric_can_sleep(transport);
}

/* --- opening and closing --- */

static int connected_address(const struct transport *transport, uint8_t *address, uint32_t *bytes,
                             struct error *error)
{
    (void)error;
    const struct connected *c = (const struct connected *)transport;
    memcpy(address, c->address, c->address_bytes);
    *bytes = (uint32_t)c->address_bytes;
    return 0;
}

static void connected_close(struct transport *transport)
{
    struct connected *c = (struct connected *)transport;
    for (uint32_t i = 0; i < c->fabric.peers; i++)
        endpoint_close(c, &c->peers[i]);
    if (c->requests.listener) {
        /* Requests that nobody answered hold a socket each. */
        do
            requests_drop(&c->requests);
        while (connection_progress(c));
        port_close(c->port);
        fi_close(&c->requests.listener->fid);
    }
    fabric_close(&c->fabric);
    inflow_close(c->inflow);
    free(c->waiting);
    free(c);
}

static const struct transport_ops connected_ops = {
    .close = connected_close,
    .address = connected_address,
    .address_text = fabric_address_text,
    .connect = connected_connect,
    .expect = connected_expect,
    .admit = connected_admit,
    .disconnect = connected_disconnect,
    .send = connected_send,
    .post_receive = connected_post_receive,
    .register_memory = fabric_register_memory,
    .unregister_memory = fabric_unregister_memory,
    .poll = connected_poll,
    .descriptor = fabric_descriptor,
    .can_sleep = connected_can_sleep,
};

static int listener_open(struct connected *c, struct error *error)
{
    int code = fi_passive_ep(c->fabric.fid, c->fabric.info, &c->requests.listener, NULL);
    if (code)
        return fabric_error(error, code, "opening the fabric's listener");
    code = fi_pep_bind(c->requests.listener, &c->fabric.eq->fid, 0);
    if (code == 0)
        code = fi_listen(c->requests.listener);
    c->address_bytes = sizeof(c->address);
    if (code == 0)
        code = fi_getname(&c->requests.listener->fid, c->address, &c->address_bytes);
    if (code == 0 && c->address_bytes < sizeof(sa_family_t))
        code = -FI_EADDRNOTAVAIL;
    return code ? fabric_error(error, code, "listening on the fabric") : 0;
}

/* Connections may have come already: they are looked for with the others. */
static int connected_port_open(struct connected *c, struct error *error)
{
    struct sockaddr_storage address = {0};
    if (c->address_bytes <= sizeof(address))
        memcpy(&address, c->address, c->address_bytes);
    c->port = port_open(&address, c->fabric.peers + STRANGERS_MAX, true, c->fabric.log);
    return c->port ? 0 : error_set(error, ERR_MEMORY, "out of memory");
}

int transport_connected_open(struct transport **transport, const struct transport_options *options,
                             struct error *error)
{
    struct connected *c = calloc(1, sizeof(*c) + options->peers * sizeof(c->peers[0]));
    uint64_t *waiting = calloc(BITS_WORDS(options->peers), sizeof(*waiting));
    struct inflow *inflow = inflow_open(options->peers);
    if (!c || !waiting || !inflow) {
        inflow_close(inflow);
        free(waiting);
        free(c);
        return error_set(error, ERR_MEMORY, "out of memory");
    }
    c->waiting = waiting;
    c->inflow = inflow;
    int code = fabric_open(&c->fabric, options, true, error);
    if (code) {
        inflow_close(inflow);
        free(waiting);
        free(c);
        return code;
    }
    c->fabric.transport.ops = &connected_ops;
    c->fabric.complete = connected_complete;
    c->requests.log = options->log;
    for (uint32_t i = 0; i < options->peers; i++) {
        c->peers[i].up = (struct fabric_op){.kind = FABRIC_UP, .peer = i};
        c->peers[i].down =
            (struct fabric_op){.kind = FABRIC_DOWN, .peer = i, .context = c->peers[i].reason};
    }
    code = listener_open(c, error);
    if (code == 0)
        code = connected_port_open(c, error);
    if (code) {
        connected_close(&c->fabric.transport);
        return code;
    }
    fabric_describe(&c->fabric, c->address, c->address_bytes);
    *transport = &c->fabric.transport;
    return 0;
}
