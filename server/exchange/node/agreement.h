/* Whether the ranks of this node agree on a collective: on what they asked for, and on where its
 * result goes. When they do not, the group fails with a text that names the ranks.
 *
 * The asks of different nodes are compared at the owner of chunk 0, since all nodes meet there:
 * server/exchange/owner/slot.h.
 *
 * Layer: may call server/exchange/owner/slot.h, server/exchange/ground/, server/exchange/model/.
 */
#ifndef SERVER_EXCHANGE_NODE_AGREEMENT_H
#define SERVER_EXCHANGE_NODE_AGREEMENT_H

#include "server/exchange/model/model.h"

/* The disagreements of a group's local ranks. */
struct agreement {
    /* The oldest collective that all local ranks have submitted and disagree on; or NULL. */
    struct collective *oldest;
    uint64_t least_disagreed; /* the first sequence on which any of them do, block 0 */
};

/* A local rank has asked for something else than others. */
void agreement_lost(struct collective *collective);
/* Whether it is a block, not 0, of a collective on which the local ranks disagree: others have
 * other blocks of the same number. The group is about to fail of it. */
bool agreement_is_beyond(const struct exchange_group *group, uint32_t block, uint64_t sequence);

/* All local ranks have submitted, and asked for the same. Finds where the result goes. False: they
 * do not agree on that, and the group has failed. */
bool agreement_on_memory(struct collective *collective);
/* All local ranks have submitted, and disagree: to be reported by agreement_report. */
void agreement_failed(struct collective *collective);
/* Report the oldest disagreement to the owner of chunk 0, if there is one: there is no receive for
 * more. */
void agreement_report(struct exchange_group *group);

#endif
