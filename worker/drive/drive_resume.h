/* A job that goes on by itself after a loss (doc/design/generations.md): the background thread, as
 * the driver, becomes a rank of the next generation, opens the same groups again, and begins anew
 * what is not complete. The job's lock is held around the call, and let go of meanwhile. Calls
 * drive_sleep.h and what that may call. */
#ifndef WORKER_DRIVE_DRIVE_RESUME_H
#define WORKER_DRIVE_DRIVE_RESUME_H

#include "worker/job/job.h"

/* The job is resuming; afterwards it is not: it has gone on, or failed. */
void drive_resume(struct shoal_job *job);

#endif
