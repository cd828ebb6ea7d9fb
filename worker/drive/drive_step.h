/* One step of the driver: a copy, or what has come back. The job's lock is held around both calls,
 * and let go of while a copy is made. Calls drive_device.h, drive_tell.h and what those may call.
 */
#ifndef WORKER_DRIVE_DRIVE_STEP_H
#define WORKER_DRIVE_DRIVE_STEP_H

#include "worker/job/job.h"

/* True when something was done. */
bool drive_step(struct shoal_job *job);
/* Before a group or the job fails: do what there is to do, for a bounded time. The socket may be
 * read before the ring: what the daemon had done by then is done all the same, also when it has
 * still to be copied to a device. */
void drive_finish(struct shoal_job *job);

#endif
