/* Going on after a loss: the conversation with the daemon by which a job becomes the next
 * generation, on the same socket and arena.
 *
 * Calls job.h.
 */
#ifndef WORKER_JOB_REJOIN_H
#define WORKER_JOB_REJOIN_H

#include "worker/job/job.h"

/* Whether the job is one that can go on. ERR_STATE says why not; lock held. */
int job_check_rejoin(const struct shoal_job *job, struct error *error);
struct rejoin_ask {
    int timeout_ms, stragglers_ms;
    int least_ranks, wait_ms; /* 0: with those that are left and wait by then */
    /* True only if no rank is lost, and all ask so: ranks, groups and requests stay what they are,
     * held by progress_take_back. False: no request is incomplete, and job_check_rejoin was 0. */
    bool whole;
};

/* Have the daemon let go of the arena: when this returns nobody but this process writes to it, and
 * what the daemon had done by then lies in its ring. The caller drives, without the lock. Errors
 * are those of job_rejoin; after one nothing is left but to close the job. */
int job_release(struct shoal_job *job, int timeout_ms, struct error *error);
/* Then, become a rank of the next generation. The caller drives, without the lock. ERR_AGAIN, of a
 * whole one: a rank is lost, or goes on otherwise; it may be asked for again. After another error
 * nothing is left but to close the job. ERR_TIMEOUT, ERR_REFUSED, ERR_DISCONNECTED, ERR_PROTOCOL,
 * ERR_STATE.
 */
int job_rejoin(struct shoal_job *job, const struct rejoin_ask *ask, struct error *error);

#endif
