/* The choice of the chunk, and its collective, that a node gives to each owner next.
 *
 * A group keeps a queue for every owner: the collectives that have a chunk for it now, in the order
 * in which they go. In this way issuing a chunk costs the same however many blocks there are for
 * others, and queueing one costs next to nothing however many there are for the same owner, in
 * whatever order their priorities come. The part that one collective has for one owner is an
 * outlet.
 *
 * Layer: may call server/exchange/node/chunk.h, server/exchange/model/.
 */
#ifndef SERVER_EXCHANGE_NODE_ISSUE_H
#define SERVER_EXCHANGE_NODE_ISSUE_H

#include "common/base/heap.h"
#include "server/exchange/model/model.h"

/* The chunks that a group has issued, and those that it can issue. */
struct issuing {
    uint32_t *in_flight;   /* [owners.count]: chunks issued and not delivered */
    struct heap *queues;   /* [owners.count]: outlets that can issue to it */
    struct heap transfers; /* outlets of sends that have a chunk to issue */
    uint32_t queued;       /* outlets in all of these queues */
    uint32_t turn;         /* chunks issued in this one */
};

/* The part of a collective that goes to one owner: one of its shards, or a block. */
struct outlet {
    struct heap_entry entry; /* first: in the owner's queue */
    struct collective *collective;
    uint32_t next_piece; /* to issue */
    uint32_t in_flight;  /* pieces issued and not delivered */
    bool queued;
};

/* Make the queues of the group, whose owners are known. False: no memory. */
bool issuing_open(struct exchange_group *group);
void issuing_close(struct exchange_group *group);
/* The group has failed, and its collectives are freed. */
void issuing_drop(struct exchange_group *group);

/* The collective, whose outlets are allocated, is there: nothing of it is ready. */
void outlets_begin(struct collective *collective);
/* Take the outlets of a collective that ends out of their queues. */
void outlets_end(struct collective *collective);

/* Issue chunk 0 of a transfer alone, of which nothing is issued yet; issue_others lets the rest go.
 */
void issue_first_alone(struct collective *transfer);
void issue_others(struct collective *transfer);

/* All local ranks have handed chunks [0, ready) over. */
void issue_advance_ready(struct collective *collective, uint32_t ready);
/* Issue what the windows allow to all owners, and then what can go of transfers. Where there is
 * more than one turn's, the group is dirty again. */
void group_issue(struct exchange_group *group);
void group_issue_transfers(struct exchange_group *group);
/* The collective's chunk has been delivered: others may be issued. */
void issue_delivered(struct collective *collective, uint32_t chunk);

void issue_check_invariants(const struct exchange_group *group);

#endif
