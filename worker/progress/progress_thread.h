/* Who drives progress.
 *
 * One thread at a time has the role of the driver: it reads completions and the socket, copies,
 * and sleeps in poll on the completion doorbell, the socket and the wake descriptor. A thread that
 * waits takes the role when it is free, so that a wait costs one wake-up and no switch between
 * threads; the background thread takes it while there are requests that nobody may be waiting for
 * and that need something done (large ones, callbacks, the completions descriptor). With neither,
 * nobody drives: small requests are with the daemon by then, and their results wait in the arena.
 */
#ifndef WORKER_PROGRESS_PROGRESS_THREAD_H
#define WORKER_PROGRESS_PROGRESS_THREAD_H

#include "worker/job/job.h"

/* Start the background thread; all signals are blocked in it. ERR_SYSTEM. */
int progress_thread_start(struct shoal_job *job, struct error *error);

/* Take the job out of all hands: waiters return, everything fails with this error, calls come to
 * their end, the background thread ends, the role of the driver is the caller's for good. `lock` is
 * not held. */
void progress_thread_stop(struct shoal_job *job, const struct error *error);

/* After something was pushed or queued, lock held: ring the daemon, wake a sleeping driver that has
 * something to do, wake the background thread if it is its turn. */
void progress_thread_notify(struct shoal_job *job);

/* Why a wait is over. Not an error code: what has been waited for may have failed with any. */
enum progress_wait {
    PROGRESS_WAIT_DONE,
    PROGRESS_WAIT_TIMEOUT, /* the deadline has passed */
    PROGRESS_WAIT_CLOSING, /* the job is being closed, and all requests are shoal_close's */
};

/* Wait, driving if nobody else does, until done(argument) is true, which counts before the others.
 * Lock held before and after, not throughout. */
enum progress_wait progress_thread_wait(struct shoal_job *job, bool (*done)(const void *argument),
                                        const void *argument, uint64_t deadline_ns);

/* What there is to do now, up to a limit, as the driver if there is none; lock held. For
 * shoal_test. */
void progress_thread_poll(struct shoal_job *job);

/* Let a driver that sleeps look again at when it has something to do. */
void progress_thread_wake(struct shoal_job *job);

/* The background thread is to notice this request's completion when it happens; lock held. */
void progress_thread_adopt(struct shoal_job *job, struct shoal_request *request);

/* As the driver, lock held: tell everybody of the requests that are complete now. */
void progress_thread_tell(struct shoal_job *job);

/* As the driver, lock held: fail everything, tell everybody. */
void progress_thread_fail(struct shoal_job *job, const struct error *error);

#endif
