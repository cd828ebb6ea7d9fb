/* A group from its opening to its end: its members and owners, the memory that its windows are
 * promised, and what each layer keeps for it.
 *
 * Layer: may call server/exchange/node/, owner/, ground/ and model/.
 */
#ifndef SERVER_EXCHANGE_EXCHANGE_GROUP_H
#define SERVER_EXCHANGE_EXCHANGE_GROUP_H

#include "server/exchange/model/model.h"

/* A group of these ranks of the job, not in its list yet. Its buffers are promised by the pool and
 * its receives are posted. ERR_INVALID: ranks[] makes no sense. ERR_MEMORY. */
int exchange_group_create(struct exchange_group **opened, struct exchange_job *job, uint32_t id,
                          const uint32_t *ranks, uint32_t rank_count, struct error *error);

/* Whether something is in progress: a collective, a send, a chunk of another node's; or a result is
 * not known to be with all ranks. */
bool exchange_group_busy(const struct exchange_group *group);
/* Whether it waits for other nodes: the same, or a rank here looks for a sender. */
bool exchange_group_waits(const struct exchange_group *group);

/* Free what is in progress in a group that has failed, as far as no task or send touches it. *most:
 * how many collectives may be freed in this turn, counted down; where that is not enough the group
 * is dirty, and is to be settled again. */
void exchange_group_settle(struct exchange_group *group, uint32_t *most);
/* Free the group, which is closing, and of which nothing is pending; false: as above. */
bool exchange_group_free(struct exchange_group *group, uint32_t *most);

#endif
