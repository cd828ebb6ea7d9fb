/* The driver's part in the conversation with the daemon: answers to groups and shared memory that
 * were asked for, failures, and whether the daemon lives. The job's lock is held around all calls,
 * and let go of while something is sent. Calls drive_step.h, drive_tell.h and what those may call.
 */
#ifndef WORKER_DRIVE_DRIVE_SOCKET_H
#define WORKER_DRIVE_DRIVE_SOCKET_H

#include "worker/job/job.h"

/* Take every line that has come. */
void drive_socket_read(struct shoal_job *job);
/* The daemon has given a sign of life. */
void drive_socket_heard(struct shoal_job *job);
/* Say on stderr for whom this rank waits. */
void drive_socket_say_waits(const struct shoal_job *job, const char *text);
/* Tell the daemon of job->hold, if that is due. True: the lock was let go of meanwhile. */
bool drive_socket_say_held(struct shoal_job *job);
/* A daemon that is stopped keeps its socket open. While somebody waits for it and it gives no sign
 * of life, it is asked for one; when none comes, it counts as gone. Returns when to look again. */
uint64_t drive_socket_watch(struct shoal_job *job);

#endif
