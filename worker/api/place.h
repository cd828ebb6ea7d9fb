/* Asking the daemon for memory in which the ranks of a group on this node meet (worker/meeting).
 * Calls worker/{job,drive,meeting} and worker/api/group.h only.
 */
#ifndef WORKER_API_PLACE_H
#define WORKER_API_PLACE_H

#include "worker/job/job.h"

/* Before a collective: ask for the group's, if this is the first that may meet, and take what the
 * daemon has answered. It waits for nothing; meanwhile, and without a place, collectives go to the
 * daemon. Lock held, and let go of meanwhile. */
void place_look(struct shoal_group *group, const struct request_ask *ask,
                const struct request_ask *blocks, uint32_t block_count);

#endif
