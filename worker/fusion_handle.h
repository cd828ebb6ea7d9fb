/* What the job needs to know of its fusion handles. */
#ifndef WORKER_FUSION_HANDLE_H
#define WORKER_FUSION_HANDLE_H

struct shoal_job;

/* Free all fusions of a job that is being closed: nothing is under way any more. */
void fusion_free_all(struct shoal_job *job);

#endif
