/* Asking the daemon for memory in which the ranks of a group on this node meet (worker/meeting).
 * Calls worker/{job,drive,meeting} and worker/api/group.h only.
 */
#ifndef WORKER_API_PLACE_H
#define WORKER_API_PLACE_H

#include "worker/job/job.h"

/* Ask for the group's, when the first collective comes that may meet. Without it collectives go to
 * the daemon as others do. Lock held, and let go of meanwhile. */
void place_open(struct shoal_group *group, const struct request_ask *ask);

#endif
