/* A job of helpers that loops while something is done to its daemons, and must not notice that. A
 * failure in here aborts the test. */
#ifndef TESTS_LIB_LOOPING_JOB_H
#define TESTS_LIB_LOOPING_JOB_H

#include "tests/lib/cluster.h"
#include "tests/lib/stop_file.h"

#define LOOPING_JOB_RANKS_MAX 16

struct looping_job {
    struct stop_file stop;
    struct process *ranks[LOOPING_JOB_RANKS_MAX];
    uint32_t count;
};

/* The job "undisturbed" on all nodes of the cluster. All ranks run when this returns. */
void looping_job_start(struct looping_job *job, struct cluster *cluster, uint32_t ranks_per_node);
/* Every rank has checked its results until now, and ends well. */
void looping_job_end(struct looping_job *job);

#endif
