/* Where the driver sleeps, and the background thread when there is none. The job's lock is held
 * around all calls, and let go of meanwhile. Calls drive_socket.h and what that may call. */
#ifndef WORKER_DRIVE_DRIVE_SLEEP_H
#define WORKER_DRIVE_DRIVE_SLEEP_H

#include "worker/job/job.h"

/* The driver: until something has come, or the deadline. */
void drive_sleep(struct shoal_job *job, uint64_t deadline_ns);
/* Wait, in a job that goes on by itself and has no driver, until the daemon says something (true),
 * the background thread has something to do, or the deadline. */
bool drive_listen_until(struct shoal_job *job, uint64_t deadline_ns);

#endif
