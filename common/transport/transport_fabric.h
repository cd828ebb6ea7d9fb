/* Parts that the two libfabric kinds share: choosing an fi_info, the domain and its completion
 * queue, the operations in flight, the events for the user, registration, and sleeping. */
#ifndef COMMON_TRANSPORT_TRANSPORT_FABRIC_H
#define COMMON_TRANSPORT_TRANSPORT_FABRIC_H

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <signal.h>

#include "common/transport/transport.h"

enum fabric_op_kind { FABRIC_SEND, FABRIC_RECEIVE, FABRIC_UP, FABRIC_DOWN };

enum fabric_op_state {
    FABRIC_FREE,
    FABRIC_WAITING, /* accepted from the user; libfabric could not take it yet */
    FABRIC_POSTED,  /* with libfabric */
    FABRIC_DONE,    /* in fabric.events */
    FABRIC_ORPHAN,  /* with libfabric still; the user was told that it failed */
};

/* One send or receive from the user's call until its event was polled, or a peer's up or down
 * event (those two live in the peer). */
struct fabric_op {
    struct fi_context2 fi; /* libfabric's scratch room (FI_CONTEXT2); its address is op_context */
    struct fabric_op *next;
    struct fabric_op *previous;
    enum fabric_op_kind kind;
    enum fabric_op_state state;
    uint32_t peer; /* TRANSPORT_NO_PEER for shared receives */
    int status;
    uint32_t bytes;
    void *context; /* the user's; for FABRIC_DOWN the reason, a string of the peer's */
    unsigned part_count;
    struct iovec parts[2];
    void *descriptors[2];
};

struct fabric_list {
    struct fabric_op *first;
    struct fabric_op *last;
};

void fabric_list_append(struct fabric_list *list, struct fabric_op *op);
void fabric_list_remove(struct fabric_list *list, struct fabric_op *op);

#define FABRIC_BATCH 16 /* completions that fabric_progress takes at the most */

struct fabric_slab;

struct fabric {
    struct transport transport; /* first */
    struct log *log;            /* the caller's */
    uint32_t peers;
    uint32_t sends_per_peer;
    uint32_t receives_per_peer;

    struct fi_info *info;
    struct fid_fabric *fid;
    struct fid_domain *domain;
    struct fid_cq *cq;
    struct fid_eq *eq; /* connected endpoints only */
    uint64_t next_key; /* for providers that want a key with a registration */

    int epoll_fd; /* over the queues' descriptors and timer_fd; -1: no wait objects */
    int timer_fd; /* runs while operations are waiting that no descriptor tells of */
    bool timer_on;
    uint32_t waiting; /* sends in state FABRIC_WAITING */
    bool unreadable;  /* the completion queue, when it was read last */
    uint64_t read_failures;

    struct fabric_slab *slabs;
    struct fabric_list free;
    struct fabric_list events;
    uint32_t event_count;

    /* The kind's function for one completion: op was POSTED or ORPHAN; fi_error is 0 or
     * positive. */
    void (*complete)(struct fabric *fabric, struct fabric_op *op, int fi_error, uint32_t bytes,
                     fi_addr_t source);
};

/* Fill *fabric up to the completion queue (and event queue). On an error nothing is kept. */
int fabric_open(struct fabric *fabric, const struct transport_options *options, bool connected,
                struct error *error);
/* After the endpoints were closed. Frees all but *fabric itself; safe on a part-opened one. */
void fabric_close(struct fabric *fabric);

/* Some providers (shm) catch signals when they are first used: calls that may do it stand between
 * these two, and the program's own handlers stay. */
struct fabric_signals {
    struct sigaction actions[NSIG];
};
void fabric_signals_save(struct fabric_signals *signals);
void fabric_signals_restore(const struct fabric_signals *signals);

/* "WHAT: libfabric's words", ERR_SYSTEM. fi_error is negative, as libfabric returns it. */
int fabric_error(struct error *error, int fi_error, const char *what);

/* Fill in what is known of the endpoint once it is bound: its address, and what its link can carry.
 */
void fabric_describe(struct fabric *fabric, const void *address, size_t bytes);

/* A name for people: "127.0.0.1:4711", "[::1]:4711", or the string itself for FI_ADDR_STR. */
void fabric_format_address(const struct fi_info *info, const void *address, size_t bytes,
                           char *text, size_t room);

/* Write what came over the wire as this node reaches it: a link-local address (fe80::...)
 * gets the interface of this node's own, for the peer's number of an interface says nothing here.
 * false: it has another form than this node's own. libfabric reads as much as such an address has,
 * whatever its length: a string to its NUL, a socket address by its family. */
bool fabric_address_take(const struct fi_info *info, const void *own, size_t own_bytes,
                         const void *address, size_t bytes, uint8_t here[TRANSPORT_ADDRESS_BYTES]);

/* A fresh send or receive, or NULL when out of memory. */
struct fabric_op *fabric_op_get(struct fabric *fabric);
void fabric_op_put(struct fabric *fabric, struct fabric_op *op);

/* Queue op as the user's next event; it must be in no other list. */
void fabric_event_push(struct fabric *fabric, struct fabric_op *op, int status);
/* Take an up or down event back, when it is still queued. */
void fabric_event_withdraw(struct fabric *fabric, struct fabric_op *op);
int fabric_event_take(struct fabric *fabric, struct transport_event *events, int room);

/* Read one batch of completions and hand each to fabric->complete. How many there were; 0 also when
 * the queue cannot be read, which fabric->unreadable tells. */
int fabric_progress(struct fabric *fabric);

/* The transport_ops that both kinds use as they are. */
int fabric_register_memory(struct transport *transport, void *address, size_t bytes,
                           void **registration, struct error *error);
void fabric_unregister_memory(struct transport *transport, void *registration);
void fabric_address_text(const struct transport *transport, const uint8_t *address, uint32_t bytes,
                         char *text, size_t room);
int fabric_descriptor(const struct transport *transport);
bool fabric_can_sleep(struct transport *transport);

/* Fill a send or receive from the user's call. */
void fabric_op_set(struct fabric_op *op, enum fabric_op_kind kind, uint32_t peer,
                   const struct iovec *parts, void *const *registrations, unsigned part_count,
                   void *context);
/* Hand op to libfabric: 0, -FI_EAGAIN, or another negative fi_errno. The state is the caller's. */
ssize_t fabric_op_post(struct fid_ep *endpoint, struct fabric_op *op, fi_addr_t address);

#endif
