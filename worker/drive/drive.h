/* The role of the driver of a job, and waiting.
 *
 * One thread at a time has the role of the driver: it reads completions and the socket, copies, and
 * sleeps in poll on the completion doorbell, the socket and the wake descriptor. A thread that
 * waits takes the role when it is free, so that a wait costs one wake-up and no switch between
 * threads; the background thread takes it while there are requests that nobody may be waiting for
 * and that need something done (large ones, callbacks, the completions descriptor). With neither,
 * nobody drives: small requests are with the daemon by then, and their results wait in the arena.
 * Collectives that the ranks of the node do alone (drive_meet.h) need no driver.
 *
 * Calls worker/{job,device,progress,request}, and in this room every file below it:
 *
 *   drive.h  ->  drive_resume.h  ->  drive_sleep.h  ->  drive_socket.h  ->  drive_step.h  ->
 * drive_device.h  ->  drive_tell.h
 */
#ifndef WORKER_DRIVE_DRIVE_H
#define WORKER_DRIVE_DRIVE_H

#include "worker/job/job.h"

/* Start the background thread; all signals are blocked in it. ERR_SYSTEM. */
int drive_start(struct shoal_job *job, struct error *error);

/* Take the job out of all hands: waiters return, everything fails with this error, calls come to
 * their end, the background thread ends, the role of the driver is the caller's for good. `lock` is
 * not held. */
void drive_stop(struct shoal_job *job, const struct error *error);

/* Why a wait is over. Not an error code: what has been waited for may have failed with any. */
enum drive_end {
    DRIVE_DONE,
    DRIVE_TIMEOUT, /* the deadline has passed */
    DRIVE_CLOSING, /* the job is being closed, and all requests are shoal_close's */
};

/* Wait, driving if nobody else does, until done(argument) is true, which counts before the others.
 * Lock held before and after, not throughout. */
enum drive_end drive_wait(struct shoal_job *job, bool (*done)(const void *argument),
                          const void *argument, uint64_t deadline_ns);

/* Wait until the request does not wait for the ranks of its node any more (worker/meeting), or as
 * drive_wait; lock held before and after, not throughout. */
void drive_wait_meeting(struct shoal_request *request, uint64_t deadline_ns);
/* Have no request of the group wait for the ranks of its node, and call nobody back; lock held
 * before and after.
 * ERR_TIMEOUT: all have come, but one does not go on, within the job's timeout. */
int drive_clear_meeting(struct shoal_group *group, struct error *error);
/* Read what the daemon says, if that was not done lately: one whose collectives all meet never
 * waits for it. Lock held before and after. */
void drive_listen(struct shoal_job *job);

/* Take the role of the driver from whoever has it, to give it away afterwards; lock held before and
 * after, not throughout. False: the job is being closed, and the role is not the caller's. */
bool drive_claim(struct shoal_job *job);

/* Give the role of the driver away: to a waiter if there is one, else to the background thread if
 * it needs it; lock held. */
void drive_release(struct shoal_job *job);

/* Do what there is to do now, up to a limit, as the driver if there is none; lock held. For
 * shoal_test. */
void drive_poll(struct shoal_job *job);

#endif
