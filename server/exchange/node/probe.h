/* Receives from any rank of other nodes: has a rank of this node sent something with this tag?
 *
 * The receiver's node asks with a PROBE (server/exchange/node/any_receive.h). This node remembers
 * it until a send with that number, or a later one, is there. A probe that is not answered stays
 * until the next one in its position replaces it, or either rank departs: so what a node remembers
 * has a bound, and nothing has to be called back. It counts as memory of the job's user.
 *
 * Layer: may call any_receive.h in this folder, server/exchange/ground/ and server/exchange/model/.
 */
#ifndef SERVER_EXCHANGE_NODE_PROBE_H
#define SERVER_EXCHANGE_NODE_PROBE_H

#include "server/exchange/model/model.h"

struct probe_pair;

/* A group's probes. */
struct probes {
    struct probe_pair *pairs; /* uthash by block, as for sends: those for which some wait */
};

/* PROBE, READY or GONE, from a node. */
int probe_message(struct exchange_group *group, uint32_t node, const struct wire_header *header,
                  struct error *error);
/* The transfer's sender, which is of this node, has submitted it. */
void probes_sent(struct exchange_group *group, const struct collective *transfer);
/* A rank of the group has departed; if it is of this node, those that wait for it are told. */
void probes_rank_departed(struct exchange_group *group, uint32_t group_rank);
/* The group has failed: forget all, but no more than *most, which is counted down. Whether none is
 * left. */
bool probes_drop(struct exchange_group *group, uint32_t *most);
void probes_check_invariants(const struct exchange_group *group);

#endif
