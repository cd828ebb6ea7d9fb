/* Going on after a loss: the conversation with the daemon by which a job becomes the next
 * generation, on the same socket, arena and doorbells.
 *
 * Calls job.h.
 */
#ifndef WORKER_JOB_REJOIN_H
#define WORKER_JOB_REJOIN_H

#include "worker/job/job.h"

/* Whether the job is one that can go on. ERR_STATE says why not; lock held. */
int job_check_rejoin(const struct shoal_job *job, struct error *error);
/* Become a rank of the next generation. The caller drives, without the lock, and has found
 * job_check_rejoin to be 0; no request is incomplete. After an error nothing is left but to close
 * the job. ERR_TIMEOUT, ERR_REFUSED, ERR_DISCONNECTED, ERR_PROTOCOL, ERR_STATE. */
int job_rejoin(struct shoal_job *job, int timeout_ms, int stragglers_ms, struct error *error);

#endif
