/* Telling the daemon, a sleeping driver, the background thread, and everybody who waits. The job's
 * lock is held around all calls. The lowest file of worker/drive: calls worker/job, worker/device,
 * worker/progress and worker/request only. */
#ifndef WORKER_DRIVE_DRIVE_TELL_H
#define WORKER_DRIVE_DRIVE_TELL_H

#include "worker/job/job.h"

/* Write an eventfd. */
void drive_ring(int fd);
/* Wake so many of those that sleep at the gate of a place (worker/meeting), at the most. */
void drive_ring_gate(_Atomic uint32_t *gate, int most);
/* Ring the daemon's doorbell, if something was pushed and the daemon sleeps. */
void drive_ring_daemon(struct shoal_job *job);

/* Wake the background thread. */
void drive_call_background(struct shoal_job *job);
/* After something was pushed or queued: ring the daemon, wake a sleeping driver that has something
 * to do, wake the background thread if it is its turn. */
void drive_notify(struct shoal_job *job);
/* Let a driver that sleeps look again at when it has something to do. */
void drive_wake(struct shoal_job *job);

/* The background thread is to notice this request's completion when it happens. */
void drive_adopt(struct shoal_job *job, struct shoal_request *request);

/* Tell everybody, as the driver, of the requests that are complete now. The lock is let go of while
 * callbacks are called. */
void drive_tell(struct shoal_job *job);
/* Tell everybody as drive_tell does, in a call that is to call nobody back: where a callback is
 * due, the background thread tells (drive_meet_keep). */
void drive_tell_quietly(struct shoal_job *job);
/* Fail everything, as the driver, and tell everybody. */
void drive_fail(struct shoal_job *job, const struct error *error);

#endif
