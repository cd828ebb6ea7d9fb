/* How a rank joins its job: asking, waiting for the others, or telling them that it cannot.
 *
 * Calls job.h.
 */
#ifndef WORKER_JOB_JOINING_H
#define WORKER_JOB_JOINING_H

#include "worker/job/job.h"

/* Ask the daemon, and wait for its answer. One rank of the node says on stderr what the job waits
 * for, when that takes long. *joined is the caller's if it is 0. */
int joining_ask(struct shoal_job *job, const struct job_settings *settings, struct message *joined,
                struct error *error);
/* The others would wait for this rank: tell why it does not come. It may not arrive. */
void joining_refuse(struct shoal_job *job, const struct job_settings *settings,
                    const struct error *why);

#endif
