/* The pieces of shared memory that a job has: the daemon writes results to them, and the ranks of a
 * group on this node read them. worker/api/shoal_shared.c asks for them and gives them back. The
 * job's lock is held around all calls. Calls common/ only.
 */
#ifndef WORKER_JOB_SHARED_H
#define WORKER_JOB_SHARED_H

#include "worker/job/job.h"

/* Set in the ask of an all_reduce whether its result goes to shared memory, and where there.
 * ERR_INVALID when that is not of the group, or the result is another collective's. */
int shared_locate(const struct shoal_group *group, struct request_ask *ask, struct error *error);
/* ERR_INVALID when the memory, to be written to by what `name` says, is shared. */
int shared_refuse(const struct shoal_job *job, const char *name, const void *memory, uint64_t bytes,
                  struct error *error);

/* Whether a collective that writes to the piece is under way. */
bool shared_in_use(const struct shared_memory *shared);
/* Unmap the piece and free it. The daemon is not told. */
void shared_unmap(struct shoal_job *job, struct shared_memory *shared);
/* Unmap and free all pieces of the group, or of the job if group is NULL. The daemon is not told.
 */
void shared_free_all(struct shoal_job *job, const struct shoal_group *group);

#endif
