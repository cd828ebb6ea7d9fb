/* Messages between daemons: what the engine needs of a fabric, and nothing else.
 *
 * A transport carries whole messages between this node and numbered peers. Receives are posted by
 * the user, per peer; a message never arrives without a posted receive being consumed, and the
 * users' windows (server/exchange/exchange.h) make sure that one is there. Messages of one peer
 * arrive in the order sent on connected endpoints; users do not rely on it.
 *
 * Implementations: transport_connected.c (libfabric FI_EP_MSG: tcp, verbs), transport_datagram.c
 * (libfabric FI_EP_RDM: efa; tcp;ofi_rxm; shm), transport_memory.c (in one process, for tests).
 * One thread uses a transport (FI_THREAD_DOMAIN); none of the calls blocks.
 *
 * Calls common/config (provider.h) and common/base.
 */
#ifndef COMMON_TRANSPORT_TRANSPORT_H
#define COMMON_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "common/base/error.h"
#include "common/log/log.h"

#define TRANSPORT_ADDRESS_BYTES 256 /* an endpoint's name as libfabric gives it, at most */
#define TRANSPORT_TOKEN_BYTES 16
#define TRANSPORT_NAME_BYTES 64

enum transport_event_type {
    TRANSPORT_PEER_UP = 1, /* messages can be sent to the peer */
    TRANSPORT_PEER_DOWN,   /* the peer is gone; all its operations have completed with an error */
    TRANSPORT_RECEIVED,    /* context: of the receive; bytes: message length */
    TRANSPORT_SENT,        /* context: of the send; status 0 or negative. Its memory is the user's
                            * again; the peer need not have it yet */
    TRANSPORT_RETURNED,    /* context: of a receive that will not be filled (peer down, close) */
};

struct transport_event {
    enum transport_event_type type;
    int status;    /* 0 or enum error_code */
    uint32_t peer; /* for RECEIVED on datagram endpoints: who sent it, or TRANSPORT_NO_PEER when the
                    * provider cannot tell; the token in the message then decides */
    uint32_t bytes;
    void *context;
    char text[128]; /* PEER_DOWN: the reason */
};

#define TRANSPORT_NO_PEER UINT32_MAX

/* Options of transport_open. provider is one of the allow-list: connected "tcp", "verbs"; datagram
 * "efa", "tcp;ofi_rxm", "verbs;ofi_rxm", "shm" (one machine), "tcp:rdm" (libfabric's tcp provider
 * with FI_EP_RDM, from 1.18 on); or "auto" for the first of efa, verbs, tcp that is there. A
 * provider that is asked for and is not there is ERR_UNSUPPORTED, with the list of those that
 * are. */
struct transport_options {
    const char *provider;
    const char *interface_address; /* numeric address to bind, e.g. "127.0.0.1"; NULL: the one
                                    * that libfabric prefers. efa and shm have none. */
    uint16_t interface_port;       /* to which peers connect; 0: one that is free */
    uint32_t message_bytes;        /* the largest message that will be sent or received */
    uint32_t peers;                /* how many peers at most; they are numbered 0..peers-1 */
    uint32_t sends_per_peer;       /* most operations in flight, for queue sizes */
    uint32_t receives_per_peer;
    struct log *log; /* outlives the transport */
};

/* Facts about an open transport; the log and the status show them. */
struct transport_info {
    char provider[TRANSPORT_NAME_BYTES]; /* "tcp", "tcp;ofi_rxm", "memory" */
    char endpoint[16];                   /* "connected", "datagram", "memory" */
    char version[32];                    /* "libfabric 1.17" */
    char local[TRANSPORT_NAME_BYTES];    /* the bound address, readable */
    uint32_t link_mbits;    /* what this node's link can carry each way; 0: not known */
    bool per_peer_receives; /* false: receives are shared by all peers (datagram) */
    bool ordered;           /* messages of a peer arrive in the order sent */
};

struct transport;

/* The first call of a main() that will open a transport, before threads and before signal handlers
 * of its own: gives back the signals that libraries under libfabric took over when they were
 * loaded (SIGINT, SIGTERM, SIGSEGV, SIGABRT, ... to their default), and sets in the environment
 * what libfabric and its providers read from there and nowhere else (what is set already stays). */
void transport_prepare_environment(void);

/* Open by options->provider. On success *transport is the caller's (transport_close). */
int transport_open(struct transport **transport, const struct transport_options *options,
                   struct error *error);
/* The end of receiving: afterwards no memory that was posted is written to, and only
 * transport_unregister_memory and transport_close may be called. A fabric takes what arrives until
 * its endpoint is closed, also while it closes it; so memory is given back between the two. */
void transport_stop(struct transport *transport);
/* Every posted operation is abandoned: their events do not come; buffers are the caller's again. */
void transport_close(struct transport *transport);

const struct transport_info *transport_info(const struct transport *transport);

/* This node's address, opaque, for the other daemons' transport_connect. *bytes is set. */
int transport_address(const struct transport *transport, uint8_t address[TRANSPORT_ADDRESS_BYTES],
                      uint32_t *bytes, struct error *error);

/* Such an address, readable: "10.0.0.1:4711". */
void transport_address_text(const struct transport *transport, const uint8_t *address,
                            uint32_t address_bytes, char *text, size_t room);

/* Both sides of a pair call one of these once the control connection has authenticated the peer.
 * The side with the smaller node number connects; the other one expects. `token` is the one that
 * the expecting side made and sent over the control connection: a connection request that does not
 * carry an expected token is rejected and logged, and nothing of it is parsed; not before the poll
 * after the one that found it, so that the caller may have learnt meanwhile whom to expect.
 * TRANSPORT_PEER_UP follows, or TRANSPORT_PEER_DOWN. On datagram endpoints both calls insert the
 * address. */
int transport_connect(struct transport *transport, uint32_t peer, const uint8_t *address,
                      uint32_t address_bytes, const uint8_t token[TRANSPORT_TOKEN_BYTES],
                      struct error *error);
int transport_expect(struct transport *transport, uint32_t peer, const uint8_t *address,
                     uint32_t address_bytes, const uint8_t token[TRANSPORT_TOKEN_BYTES],
                     struct error *error);
/* Somebody will be expected soon: for so long, connection requests are let in that nobody expects
 * yet. Without it, or a peer that is expected, whoever connects over TCP gets no answer at all, and
 * an answer a second later when its kernel tries again. Elsewhere it does nothing. */
void transport_admit(struct transport *transport, uint32_t ms);
/* End the pair; posted operations come back as SENT with an error and RETURNED; no PEER_DOWN.
 * After it, and after PEER_DOWN was polled, the same number can be connected or expected again.
 * Connected endpoints tell of a peer that died or closed by PEER_DOWN; of one that is stopped or
 * cut off, and of any death on datagram endpoints, the provider says nothing: whoever watches the
 * control connection calls this then. Datagram endpoints return the sends only: receives are
 * shared, and a send that the provider cannot cancel may still read its memory (and deliver what it
 * finds there to the peer that was given up) until the transport is closed. */
void transport_disconnect(struct transport *transport, uint32_t peer);

/* Send `parts` (1..2) pieces as one message; they stay untouched until SENT. registrations[i] is
 * what transport_register gave for the piece's memory, or NULL where the provider needs none.
 * 0, ERR_AGAIN (queue full: retry after the next transport_poll that returned an event),
 * or ERR_LOST when the peer is not up. */
int transport_send(struct transport *transport, uint32_t peer, const struct iovec *parts,
                   void *const *registrations, unsigned part_count, void *context);
/* Post one receive of `bytes` at `data`. peer is ignored where receives are shared. May be called
 * from before PEER_UP on (after connect/expect). ERR_AGAIN: receives_per_peer are posted (peers
 * times that where they are shared); ERR_LOST: the peer is neither connected nor expected. A longer
 * message than its receive ends the pair on connected endpoints; on datagram endpoints the receive
 * comes back as RETURNED. A message without a receive waits in the provider, and on connected
 * endpoints keeps the descriptor readable meanwhile. */
int transport_post_receive(struct transport *transport, uint32_t peer, void *data, uint32_t bytes,
                           void *registration, void *context);

/* Make memory known to the NIC. *registration may come back NULL: not needed. */
int transport_register(struct transport *transport, void *address, size_t bytes,
                       void **registration, struct error *error);
void transport_unregister(struct transport *transport, void *registration);

/* Up to `room` events; 0 when there is none. Makes progress; never blocks. */
int transport_poll(struct transport *transport, struct transport_event *events, int room);

/* Descriptor that becomes readable when transport_poll may have events, or -1 when the provider has
 * no wait objects (efa): then poll on a timer. Before sleeping on it, transport_can_sleep must say
 * true. It may wake with nothing to read. */
int transport_descriptor(const struct transport *transport);
bool transport_can_sleep(struct transport *transport);

/* Whether libfabric has this provider here, for FI_EP_MSG (connected) or FI_EP_RDM. */
bool transport_fabric_available(const char *provider, bool connected,
                                const char *interface_address);

/* --- implementations: the table, and their openers; only transport.c and tests use these --- */

struct transport_ops {
    void (*stop)(struct transport *); /* NULL: nothing is written to once all peers are gone */
    void (*close)(struct transport *);
    int (*address)(const struct transport *, uint8_t *, uint32_t *, struct error *);
    /* NULL: addresses cannot be read */
    void (*address_text)(const struct transport *, const uint8_t *, uint32_t, char *, size_t);
    int (*connect)(struct transport *, uint32_t, const uint8_t *, uint32_t, const uint8_t *,
                   struct error *);
    int (*expect)(struct transport *, uint32_t, const uint8_t *, uint32_t, const uint8_t *,
                  struct error *);
    void (*admit)(struct transport *, uint32_t); /* NULL: nothing */
    void (*disconnect)(struct transport *, uint32_t);
    int (*send)(struct transport *, uint32_t, const struct iovec *, void *const *, unsigned,
                void *);
    int (*post_receive)(struct transport *, uint32_t, void *, uint32_t, void *, void *);
    int (*register_memory)(struct transport *, void *, size_t, void **, struct error *);
    void (*unregister_memory)(struct transport *, void *);
    int (*poll)(struct transport *, struct transport_event *, int);
    int (*descriptor)(const struct transport *);
    bool (*can_sleep)(struct transport *);
};

struct transport {
    const struct transport_ops *ops;
    struct transport_info info;
};

int transport_connected_open(struct transport **transport, const struct transport_options *options,
                             struct error *error);
int transport_datagram_open(struct transport **transport, const struct transport_options *options,
                            struct error *error);

#endif
