/* Results that all ranks of a group hold. In a job with recovery a rank may need what it has given
 * to a collective until every rank has the result (doc/design/recovery.md): until the collective is
 * *stable*. For this reason each node counts up to where, without a gap, its ranks hold the
 * results. It says so to the group's *root*, one of the job's servers, in a HELD; the root answers
 * all nodes with the least of these in a STABLE, and each node tells its ranks (ARENA_STABLE). At
 * most one message of either type is under way to each node: while it is, numbers only grow. Their
 * receives are nobody else's for no longer than it takes to read them, and nothing but the telling
 * waits for them.
 *
 * A result is held when it is in its rank's arena, or in memory of the group's that the rank has
 * mapped: that outlives this daemon, and so do the entries of the ring that say so.
 *
 * A group of a job without recovery has none of this, and group->stability is NULL.
 *
 * Layer: beside probe.h, issue.h; may call server/exchange/ground/ and server/exchange/model/.
 */
#ifndef SERVER_EXCHANGE_NODE_STABILITY_H
#define SERVER_EXCHANGE_NODE_STABILITY_H

#include "server/exchange/model/model.h"

/* At the root one of the group's nodes, elsewhere the root. */
struct stability_node {
    struct exchange_group *group;
    uint64_t held;  /* that it has said; at the root */
    uint64_t told;  /* that it was told */
    bool under_way; /* a message to it */
};

struct stability {
    uint32_t root;   /* a node of the roster */
    bool moved;      /* stability_run has something to do */
    bool untold;     /* a rank here leaves no room in its ring: tried again with the next tick */
    uint64_t held;   /* before this number all ranks of this node hold all results */
    uint64_t stable; /* and all ranks of the group */
    uint64_t most;   /* that any node is known to hold */
    uint64_t *told;  /* [local_count]: what each was told */
    uint32_t node_count;
    struct stability_node nodes[]; /* [node_count]: at the root members.node_count, elsewhere 1 */
};

/* Make group->stability, if the job has recovery; the group's members and owners are known. False:
 * no memory. */
bool stability_open(struct exchange_group *group);
void stability_close(struct exchange_group *group);

/* Ranks of this node have got all of a collective, or of one of its blocks. */
void stability_moved(struct exchange_group *group);
/* Count, and say what is new: to be called from exchange_run. */
void stability_run(struct exchange_group *group);
/* Tell the ranks again whose rings had no room. */
void stability_tick(struct exchange_group *group);
/* Whether some node holds what others are not known to hold. */
bool stability_waits(const struct exchange_group *group);
/* HELD or STABLE from a node. ERR_PROTOCOL. */
int stability_message(struct exchange_group *group, uint32_t from, const struct wire_header *header,
                      struct error *error);

/* The transfer has come to its rank on this node; its sender is elsewhere, and is told so. */
void stability_tell_sender(const struct collective *transfer);
/* Whether such a transfer, of which this node has the sender, waits to be told so. */
bool stability_sender_waits(const struct collective *transfer);

/* Before which number all ranks of this node hold all results: counted. */
uint64_t stability_count(const struct exchange_group *group);
void stability_check_invariants(const struct exchange_group *group);

#endif
