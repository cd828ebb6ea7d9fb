/* A job of the library whose CPU servers are killed or stopped while its ranks, threads of the
 * test, do something in steps. */
#ifndef TESTS_LIB_WORKER_RESUME_RUN_H
#define TESTS_LIB_WORKER_RESUME_RUN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "tests/lib/worker/library_job.h"

#define RESUME_RANKS_MAX 4

/* Ranks are on the first nodes; the others are CPU servers. */
struct resume_run {
    int size, ranks_per_node;
    uint32_t servers;
    bool apart;        /* the servers have all shards: there are as many as other nodes, or more */
    const char *extra; /* of the daemons' configuration; NULL: recovery, and patience with a
                          daemon's start */
    void (*body)(struct resume_run *run, shoal_job *job, int rank);
    /* Disturb the servers meanwhile, in the test's own thread. */
    void (*disturb)(struct resume_run *run);
    int steps_after; /* that are done when the disturbance is over */

    struct cluster *cluster;
    char name[64];
    pthread_barrier_t barrier; /* of the ranks */
    atomic_int steps;          /* of rank 0 */
    atomic_bool over;          /* the disturbance */
};

/* All ranks open the job, run the body and close the job; then the daemons that are left end. */
void resume_run(struct resume_run *run);

/* --- for bodies */

/* Rank 0 says when it is over, in a collective, so that all do as many steps. */
bool resume_goes_on(struct resume_run *run, shoal_job *job, int rank, int *left);

/* --- for disturbances */

uint32_t resume_server(const struct resume_run *run, uint32_t index); /* its node */
void resume_wait_steps(struct resume_run *run, int steps);
void resume_kill(struct resume_run *run, uint32_t index);
/* Each of them after some steps. */
void resume_kill_all(struct resume_run *run);

#endif
