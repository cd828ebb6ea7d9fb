/* Reliable datagram endpoints (FI_EP_RDM): one endpoint and its receives for all peers.
 *
 * There are no connections: a peer is an entry in the address vector and is up at once. Nothing
 * tells that it died: sends then hang, or seem to succeed. There are no connection tokens either:
 * whoever can reach the endpoint can send to it, and the receiver of a message checks who it is
 * from. */
#include "common/transport/transport_fabric.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/transport/transport_port.h"

#define STRANGERS_MAX                                                                              \
    32 /* connections from hosts that no peer is on, under an endpoint over TCP                    \
        */
#define ADDRESSES_MAX 65536 /* entries of the address vector that are traced back to peers */

struct peer {
    bool up;
    fi_addr_t address;
    struct sockaddr_storage host; /* over TCP; it may connect from any port of it */
    uint32_t sends;               /* posted and waiting */
    struct fabric_list posted;
    struct fabric_list waiting;
    struct fabric_op up_event;
};

struct datagram {
    struct fabric fabric; /* first */
    struct fid_ep *endpoint;
    struct fid_av *vector;
    struct port *port; /* NULL: it is not open */
    uint8_t address[TRANSPORT_ADDRESS_BYTES];
    size_t address_bytes;
    struct fabric_list receives_posted;
    struct fabric_list receives_waiting;
    uint32_t receives;
    uint32_t *peer_of; /* by fi_addr_t: the peer's number or TRANSPORT_NO_PEER */
    uint32_t peer_of_count;
    struct peer peers[];
};

/* --- operations --- */

static uint32_t source_peer(const struct datagram *d, fi_addr_t source)
{
    return source < d->peer_of_count ? d->peer_of[source] : TRANSPORT_NO_PEER;
}

static int source_set(struct datagram *d, fi_addr_t source, uint32_t peer)
{
    if (source >= ADDRESSES_MAX)
        return 0; /* its messages come as from TRANSPORT_NO_PEER */
    if (source >= d->peer_of_count) {
        uint32_t count = (uint32_t)source + 64;
        uint32_t *grown = realloc(d->peer_of, count * sizeof(*grown));
        if (!grown)
            return ERR_MEMORY;
        for (uint32_t i = d->peer_of_count; i < count; i++)
            grown[i] = TRANSPORT_NO_PEER;
        d->peer_of = grown;
        d->peer_of_count = count;
    }
    d->peer_of[source] = peer;
    return 0;
}

static int status_of(int fi_error)
{
    if (fi_error == 0)
        return 0;
    return fi_error == FI_ETRUNC ? ERR_PROTOCOL : ERR_LOST;
}

static void datagram_complete(struct fabric *fabric, struct fabric_op *op, int fi_error,
                              uint32_t bytes, fi_addr_t source)
{
    struct datagram *d = (struct datagram *)fabric;
    if (op->state == FABRIC_ORPHAN) {
        fabric_op_put(fabric, op);
        return;
    }
    /* ofi_rxm over tcp (1.17) can report an operation twice when its connection breaks: as done,
     * and as failed. The first word counts. */
    if (op->state != FABRIC_POSTED) {
        log_debug(fabric->log, "fabric: an operation was reported twice (%s)",
                  fi_strerror(fi_error));
        return;
    }
    if (op->kind == FABRIC_RECEIVE) {
        fabric_list_remove(&d->receives_posted, op);
        d->receives--;
        op->bytes = bytes;
        op->peer = source_peer(d, source);
    } else {
        fabric_list_remove(&d->peers[op->peer].posted, op);
        d->peers[op->peer].sends--;
    }
    fabric_event_push(fabric, op, status_of(fi_error));
}

/* Hand a waiting list to libfabric, in order, until it is full. */
static void datagram_waiting_post(struct datagram *d, struct fabric_list *waiting,
                                  struct fabric_list *posted, fi_addr_t address)
{
    while (waiting->first) {
        struct fabric_op *op = waiting->first;
        ssize_t code = fabric_op_post(d->endpoint, op, address);
        if (code == -FI_EAGAIN)
            return;
        fabric_list_remove(waiting, op);
        d->fabric.waiting -= op->kind == FABRIC_SEND;
        op->state = FABRIC_POSTED;
        fabric_list_append(posted, op);
        if (code)
            datagram_complete(&d->fabric, op, (int)-code, 0, FI_ADDR_NOTAVAIL);
    }
}

static int datagram_send(struct transport *transport, uint32_t number, const struct iovec *parts,
                         void *const *registrations, unsigned part_count, void *context)
{
    struct datagram *d = (struct datagram *)transport;
    if (number >= d->fabric.peers)
        return ERR_INVALID;
    struct peer *peer = &d->peers[number];
    if (!peer->up)
        return ERR_LOST;
    if (peer->sends >= d->fabric.sends_per_peer)
        return ERR_AGAIN;
    struct fabric_op *op = fabric_op_get(&d->fabric);
    if (!op)
        return ERR_MEMORY;
    fabric_op_set(op, FABRIC_SEND, number, parts, registrations, part_count, context);
    op->state = FABRIC_WAITING;
    peer->sends++;
    d->fabric.waiting++;
    fabric_list_append(&peer->waiting, op);
    if (peer->waiting.first == op)
        datagram_waiting_post(d, &peer->waiting, &peer->posted, peer->address);
    return 0;
}

static int datagram_post_receive(struct transport *transport, uint32_t number, void *data,
                                 uint32_t bytes, void *registration, void *context)
{
    (void)number;
    struct datagram *d = (struct datagram *)transport;
    if (d->receives >= (uint64_t)d->fabric.peers * d->fabric.receives_per_peer)
        return ERR_AGAIN;
    struct fabric_op *op = fabric_op_get(&d->fabric);
    if (!op)
        return ERR_MEMORY;
    struct iovec part = {data, bytes};
    fabric_op_set(op, FABRIC_RECEIVE, TRANSPORT_NO_PEER, &part, &registration, 1, context);
    op->state = FABRIC_WAITING;
    d->receives++;
    fabric_list_append(&d->receives_waiting, op);
    if (d->receives_waiting.first == op)
        datagram_waiting_post(d, &d->receives_waiting, &d->receives_posted, FI_ADDR_UNSPEC);
    return 0;
}

/* --- peers --- */

static int datagram_connect(struct transport *transport, uint32_t number, const uint8_t *address,
                            uint32_t address_bytes, const uint8_t *token, struct error *error)
{
    (void)token;
    struct datagram *d = (struct datagram *)transport;
    if (number >= d->fabric.peers)
        return error_set(error, ERR_INVALID, "fabric peer %u: there are %u", number,
                         d->fabric.peers);
    struct peer *peer = &d->peers[number];
    if (peer->up)
        return error_set(error, ERR_STATE, "fabric peer %u is connected already", number);
    uint8_t here[TRANSPORT_ADDRESS_BYTES];
    if (!fabric_address_take(d->fabric.info, d->address, d->address_bytes, address, address_bytes,
                             here))
        return error_set(error, ERR_PROTOCOL,
                         "fabric peer %u: its address has another form than this node's", number);
    fi_addr_t inserted = FI_ADDR_NOTAVAIL;
    int count = fi_av_insert(d->vector, here, 1, &inserted, 0, NULL);
    if (count != 1)
        return fabric_error(error, count < 0 ? count : -FI_EADDRNOTAVAIL, "fi_av_insert");
    if (source_set(d, inserted, number) != 0) {
        fi_av_remove(d->vector, &inserted, 1, 0);
        return error_set(error, ERR_MEMORY, "out of memory");
    }
    peer->address = inserted;
    if (address_bytes <= sizeof(peer->host))
        memcpy(&peer->host, here, address_bytes);
    peer->up = true;
    fabric_event_push(&d->fabric, &peer->up_event, 0);
    return 0;
}

/* Report a send that libfabric still has as failed: the event goes on in a fresh operation, the old
 * one stays where libfabric can find it. */
static void send_orphan(struct datagram *d, struct peer *peer, struct fabric_op *op)
{
    struct fabric_op *report = fabric_op_get(&d->fabric);
    fabric_list_remove(&peer->posted, op);
    peer->sends--;
    if (!report) {
        log_error(d->fabric.log, "fabric: out of memory: a failed send is not reported");
        op->state = FABRIC_ORPHAN;
        return;
    }
    report->kind = FABRIC_SEND;
    report->peer = op->peer;
    report->context = op->context;
    op->state = FABRIC_ORPHAN;
    fabric_event_push(&d->fabric, report, ERR_LOST);
}

static void datagram_disconnect(struct transport *transport, uint32_t number)
{
    struct datagram *d = (struct datagram *)transport;
    if (number >= d->fabric.peers || !d->peers[number].up)
        return;
    struct peer *peer = &d->peers[number];
    peer->up = false;
    peer->host.ss_family = AF_UNSPEC;
    fabric_event_withdraw(&d->fabric, &peer->up_event);
    while (peer->waiting.first) {
        struct fabric_op *op = peer->waiting.first;
        fabric_list_remove(&peer->waiting, op);
        d->fabric.waiting--;
        peer->sends--;
        fabric_event_push(&d->fabric, op, ERR_LOST);
    }
    for (struct fabric_op *op = peer->posted.first; op; op = op->next)
        (void)fi_cancel(&d->endpoint->fid, &op->fi); /* few providers can */
    while (fabric_progress(&d->fabric) > 0)
        continue;
    while (peer->posted.first)
        send_orphan(d, peer, peer->posted.first);
    if (source_peer(d, peer->address) == number)
        d->peer_of[peer->address] = TRANSPORT_NO_PEER;
    int code = fi_av_remove(d->vector, &peer->address, 1, 0);
    if (code)
        log_debug(d->fabric.log, "fabric: fi_av_remove: %s", fi_strerror(-code));
}

/* --- events --- */

/* Layers over tcp connect when they like, with nothing that would tell whose it is but the host. */
static bool datagram_owns(void *context, const struct sockaddr_storage *remote)
{
    const struct datagram *d = context;
    for (uint32_t i = 0; i < d->fabric.peers; i++) {
        if (port_host_equal(&d->peers[i].host, remote))
            return true;
    }
    return false;
}

static int datagram_poll(struct transport *transport, struct transport_event *events, int room)
{
    struct datagram *d = (struct datagram *)transport;
    if (port_is_busy(d->port))
        port_look(d->port, clock_now_ns(), datagram_owns, d);
    while (d->fabric.event_count < (uint32_t)room && fabric_progress(&d->fabric) > 0)
        continue;
    datagram_waiting_post(d, &d->receives_waiting, &d->receives_posted, FI_ADDR_UNSPEC);
    for (uint32_t i = 0; i < d->fabric.peers && d->fabric.waiting > 0; i++) {
        struct peer *peer = &d->peers[i];
        datagram_waiting_post(d, &peer->waiting, &peer->posted, peer->address);
    }
    return fabric_event_take(&d->fabric, events, room);
}

/* --- opening and closing --- */

static int datagram_address(const struct transport *transport, uint8_t *address, uint32_t *bytes,
                            struct error *error)
{
    (void)error;
    const struct datagram *d = (const struct datagram *)transport;
    memcpy(address, d->address, d->address_bytes);
    *bytes = (uint32_t)d->address_bytes;
    return 0;
}

static void datagram_stop(struct transport *transport)
{
    struct datagram *d = (struct datagram *)transport;
    port_close(d->port);
    d->port = NULL;
    if (d->endpoint)
        fi_close(&d->endpoint->fid);
    d->endpoint = NULL;
}

static void datagram_close(struct transport *transport)
{
    struct datagram *d = (struct datagram *)transport;
    datagram_stop(transport);
    if (d->vector)
        fi_close(&d->vector->fid);
    fabric_close(&d->fabric);
    free(d->peer_of);
    free(d);
}

static const struct transport_ops datagram_ops = {
    .stop = datagram_stop,
    .close = datagram_close,
    .address = datagram_address,
    .address_text = fabric_address_text,
    .connect = datagram_connect,
    .expect = datagram_connect,
    .disconnect = datagram_disconnect,
    .send = datagram_send,
    .post_receive = datagram_post_receive,
    .register_memory = fabric_register_memory,
    .unregister_memory = fabric_unregister_memory,
    .poll = datagram_poll,
    .descriptor = fabric_descriptor,
    .can_sleep = fabric_can_sleep,
};

static int datagram_endpoint_open(struct datagram *d, struct error *error)
{
    struct fi_av_attr attributes = {.type = FI_AV_TABLE, .count = d->fabric.peers};
    int code = fi_av_open(d->fabric.domain, &attributes, &d->vector, NULL);
    if (code)
        return fabric_error(error, code, "fi_av_open");
    code = fi_endpoint(d->fabric.domain, d->fabric.info, &d->endpoint, NULL);
    if (code)
        return fabric_error(error, code, "fi_endpoint");
    code = fi_ep_bind(d->endpoint, &d->vector->fid, 0);
    if (code == 0)
        code = fi_ep_bind(d->endpoint, &d->fabric.cq->fid, FI_TRANSMIT | FI_RECV);
    if (code == 0)
        code = fi_enable(d->endpoint);
    d->address_bytes = sizeof(d->address);
    if (code == 0)
        code = fi_getname(&d->endpoint->fid, d->address, &d->address_bytes);
    return code ? fabric_error(error, code, "setting up the fabric's endpoint") : 0;
}

static int datagram_port_open(struct datagram *d, struct error *error)
{
    struct sockaddr_storage address = {0};
    if (d->address_bytes <= sizeof(address))
        memcpy(&address, d->address, d->address_bytes);
    d->port = port_open(&address, STRANGERS_MAX, false, d->fabric.log);
    return d->port ? 0 : error_set(error, ERR_MEMORY, "out of memory");
}

int transport_datagram_open(struct transport **transport, const struct transport_options *options,
                            struct error *error)
{
    struct datagram *d = calloc(1, sizeof(*d) + options->peers * sizeof(d->peers[0]));
    if (!d)
        return error_set(error, ERR_MEMORY, "out of memory");
    int code = fabric_open(&d->fabric, options, false, error);
    if (code) {
        free(d);
        return code;
    }
    d->fabric.transport.ops = &datagram_ops;
    d->fabric.complete = datagram_complete;
    for (uint32_t i = 0; i < options->peers; i++)
        d->peers[i].up_event = (struct fabric_op){.kind = FABRIC_UP, .peer = i};
    struct fabric_signals signals;
    fabric_signals_save(&signals);
    code = datagram_endpoint_open(d, error);
    fabric_signals_restore(&signals);
    if (code == 0)
        code = datagram_port_open(d, error);
    if (code) {
        datagram_close(&d->fabric.transport);
        return code;
    }
    fabric_describe(&d->fabric, d->address, d->address_bytes);
    *transport = &d->fabric.transport;
    return 0;
}
