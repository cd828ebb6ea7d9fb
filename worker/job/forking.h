/* The process keeps a list of its open jobs, for its forks and its end.
 *
 * A forked child has none of a job's descriptors: they are closed in it before fork returns there.
 * Otherwise the daemon would see a rank's end only when its last child ends. The child has a
 * private copy of the arena where memory of shoal_alloc is alive, and else no mapping of it, so it
 * cannot write into its parent's gradients. A child that was made by a bare system call keeps what
 * it inherits.
 *
 * When the process exits soon after a call of the exiting thread failed, with a job open, the
 * daemon is told that call's error: the other ranks then read why this one is gone.
 *
 * fork and exit know no arguments, so the list is the process's. Calls job.h.
 */
#ifndef WORKER_JOB_FORKING_H
#define WORKER_JOB_FORKING_H

#include "worker/job/job.h"

/* Before the job has a descriptor. ERR_MEMORY: the system keeps no list for this process. */
int forking_add(struct shoal_job *job, struct error *error);
/* Before its descriptors are closed; does nothing for a job that was not added. */
void forking_remove(struct shoal_job *job);
/* Memory that is shared with the daemon. */
void forking_keep_memory(const void *base, uint64_t bytes);

#endif
