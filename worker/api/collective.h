/* Functions about collectives and requests that the public calls share. Calls
 * worker/{job,drive,progress} and worker/api/group.h only. */
#ifndef WORKER_API_COLLECTIVE_H
#define WORKER_API_COLLECTIVE_H

#include "worker/job/job.h"

/* Modes of a start: they say who notices that the collective is complete. */
enum start_mode {
    START_ASYNC,      /* the caller waits or tests in time */
    START_BACKGROUND, /* the background thread, when it happens */
    START_WAITING,    /* the caller waits at once */
};

/* Start a collective with the ask's priority; on success one reference is the caller's. */
int collective_start(struct shoal_group *group, const struct request_ask *ask, enum start_mode mode,
                     struct shoal_request **request, struct error *error);
/* Lock held: the request is on its way; one reference is the caller's, one the library's. */
void collective_started(struct shoal_job *job, struct shoal_request *request, enum start_mode mode);
/* Wait for the request with the job's timeout, and free it. A SHOAL_ code. */
int collective_wait(struct shoal_request *request, struct error *error);
/* Do the work of a public call: set the priorities of the ask and of its checked blocks (none:
 * NULL, 0), and start the collective. The list of blocks, from malloc, is the library's after it.
 * Return a SHOAL_ code; the text is the thread's. */
int collective_call(struct shoal_group *group, struct request_ask *ask, struct request_ask *blocks,
                    uint32_t block_count, struct shoal_request **request);

#endif
