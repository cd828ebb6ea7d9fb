/* Finding jobs, groups, ranks and nodes by their numbers; failing a group.
 *
 * Layer: may call server/exchange/model/share.h.
 */
#ifndef SERVER_EXCHANGE_MODEL_ROSTER_H
#define SERVER_EXCHANGE_MODEL_ROSTER_H

#include "server/exchange/model/model.h"

/* NULL when there is none, or it is closing. */
struct exchange_job *exchange_job_find(const struct exchange *exchange, uint64_t id);
struct exchange_group *exchange_group_find(const struct exchange_job *job, uint32_t id);

/* Indices within the group, or NO_INDEX. */
uint32_t group_local_index(const struct exchange_group *group, uint32_t job_rank);
uint32_t group_node_index(const struct exchange_group *group, uint32_t node);
uint32_t group_owner_index(const struct exchange_group *group, uint32_t node);
/* The job rank's rank in the group, or NO_INDEX. */
uint32_t group_rank_index(const struct exchange_group *group, uint32_t job_rank);

/* The node of a rank of the group. */
uint32_t group_rank_node(const struct exchange_group *group, uint32_t group_rank);
/* The worker with this local index; it has been attached. */
struct exchange_worker *group_local_worker(const struct exchange_group *group, uint32_t local);

/* The group takes nothing any more: the event ENGINE_GROUP_FAILED says why. exchange_run frees what
 * is in progress; nothing is freed inside this call. No effect when it has failed already. */
void exchange_group_fail(struct exchange_group *group, int code, const char *text);

#endif
