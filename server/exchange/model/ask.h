/* Asks of ranks (struct wire_ask), and their meaning for the nodes of the group: who takes part,
 * whose contribution carries data, who gets the result, how the data is cut (doc/protocol/data.md).
 *
 * Layer: may call server/exchange/model/roster.h.
 */
#ifndef SERVER_EXCHANGE_MODEL_ASK_H
#define SERVER_EXCHANGE_MODEL_ASK_H

#include "server/exchange/model/model.h"

struct wire_ask ask_of_submission(const struct arena_submission *submission);

/* Whether it is a send or a receive, between two ranks alone. */
bool ask_is_transfer(const struct wire_ask *ask);
struct route ask_route(const struct exchange_group *group, const struct wire_ask *ask);

/* Tell whether the node with this index takes part, whether its contribution carries data, and
 * whether the owner's answer to it does. */
bool ask_takes_part(const struct exchange_group *group, const struct wire_ask *ask,
                    uint32_t node_index);
bool ask_contributes(const struct exchange_group *group, const struct wire_ask *ask,
                     uint32_t node_index);
bool ask_returns(const struct exchange_group *group, const struct wire_ask *ask,
                 uint32_t node_index);
/* How many nodes take part. */
uint32_t ask_node_count(const struct exchange_group *group, const struct wire_ask *ask);

/* How the data is cut. 0 or ERR_INVALID: too many chunks. */
int ask_layout(const struct exchange_group *group, const struct wire_ask *ask, uint64_t sequence,
               struct layout *layout);
/* The index of the owner of a block, which is not block 0. */
uint32_t ask_block_owner(const struct exchange_group *group, const struct wire_ask *ask);
/* Bytes of one element; 1 for a barrier. */
uint32_t ask_element_bytes(const struct wire_ask *ask);
/* Bytes of a rank's data. The ask has been checked, so this does not overflow. */
uint64_t ask_bytes(const struct wire_ask *ask);

/* Set in the reduction what is done to `count` elements of the ask's data. The caller sets from
 * where to where. */
static inline void ask_set_reduction(struct reduction *reduction, const struct wire_ask *ask,
                                     enum reduce_op op, uint32_t divisor, size_t count)
{
    reduction->dtype = ask->dtype;
    reduction->op = op;
    reduction->divisor = divisor;
    reduction->count = count;
}

#endif
