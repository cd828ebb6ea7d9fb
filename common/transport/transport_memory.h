/* A fabric inside one process, for tests: messages between transports of one struct memory_fabric
 * are delivered when the test says so, in an order that a seed decides.
 *
 * It checks the rules of common/transport/transport.h. Faults of its user are a message without a
 * posted receive (unless messages_wait), a message longer than its receive, memory that changed
 * before SENT, and memory that was not registered. A fault ends the test: abort() and a line on
 * stderr.
 */
#ifndef COMMON_TRANSPORT_TRANSPORT_MEMORY_H
#define COMMON_TRANSPORT_TRANSPORT_MEMORY_H

#include "common/transport/transport.h"

struct memory_fabric;

/* How a fabric behaves. Delays are in virtual nanoseconds, uniform in [least, most]. */
struct memory_fabric_options {
    uint64_t seed;
    uint64_t least_delay_ns;
    uint64_t most_delay_ns;
    bool reorder; /* messages between one pair may overtake each other (as on datagram fabrics) */
    bool shared_receives; /* as on datagram endpoints */
    bool messages_wait;   /* a message without a receive waits for one, and those behind it wait
                           * too, as on real fabrics; false: it is a fault */
    uint32_t nodes;
    uint32_t sends_per_peer;  /* ERR_AGAIN beyond it; 0: no limit */
    bool registration_needed; /* as on verbs and efa: pieces must lie in registered memory */
};

struct memory_fabric *memory_fabric_create(const struct memory_fabric_options *options);
void memory_fabric_destroy(struct memory_fabric *fabric); /* after its transports were closed */

/* The transport of node `node`; its peers are the fabric's other nodes, by number. */
int memory_fabric_open(struct memory_fabric *fabric, uint32_t node, struct transport **transport);

/* Advance virtual time (never back); what is due becomes visible to transport_poll of its receiver.
 */
void memory_fabric_advance(struct memory_fabric *fabric, uint64_t now_ns);
/* Virtual time of the next delivery, UINT64_MAX when nothing is under way. */
uint64_t memory_fabric_next_ns(const struct memory_fabric *fabric);

/* How many receives node `node` has posted for `peer` (or shared, for any peer). */
uint32_t memory_fabric_receives(const struct memory_fabric *fabric, uint32_t node, uint32_t peer);

/* Cut the pair a-b: messages under way are lost, both get PEER_DOWN at the next advance. */
void memory_fabric_cut(struct memory_fabric *fabric, uint32_t a, uint32_t b);
/* From now on nothing that `from` sends arrives at `to`, and nobody is told (a firewall that drops,
 * a route that is gone one way); what is sent leaves its sender's memory all the same. When it is
 * unblocked, what waits arrives, a nanosecond apart, unless its connection is over. */
void memory_fabric_block(struct memory_fabric *fabric, uint32_t from, uint32_t to, bool blocked);
/* Node `node` neither sends nor receives from now on, and nobody is told (SIGSTOP, cut cable).
 * Messages under way wait, and go on when the node is thawed. */
void memory_fabric_freeze(struct memory_fabric *fabric, uint32_t node, bool frozen);

#endif
