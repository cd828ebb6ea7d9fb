/* A rank of another user, without a library: what it puts into its ring is the test's. And a job
 * beside it, which nobody is to disturb. */
#ifndef TESTS_LIB_WORKER_HOSTILE_RANK_H
#define TESTS_LIB_WORKER_HOSTILE_RANK_H

#include "common/format/arena.h"
#include "tests/lib/cluster.h"

#define HOSTILE_RING_ENTRIES 32768u

struct hostile_rank {
    int fd;
    struct arena arena;
    int doorbell;
};

/* A job of so many ranks, which have joined: of a user who is neither root nor the daemon's, if the
 * test is root's. */
struct hostile_rank *hostile_job_start(const struct cluster *cluster, const char *job, int size);
void hostile_job_end(struct hostile_rank *ranks, int size);
/* Join as one rank of a larger job: the rank asks, and nobody waits for the answer. */
void hostile_join(struct hostile_rank *rank, const struct cluster *cluster, const char *job,
                  int number, int world_size);
/* Return what the daemon says until it says one of the two words, or ends the connection. */
const char *hostile_hears(struct hostile_rank *rank, const char *word, const char *other);
/* The daemon is to look at the ring. */
void hostile_ring(struct hostile_rank *rank);
/* Whether or not it has been ended before. */
void hostile_leave(struct hostile_rank *rank);

/* A cluster of one daemon, and a job of two ranks that does nothing but small collectives. */
struct undisturbed;
struct undisturbed *undisturbed_start(void);
struct cluster *undisturbed_cluster(struct undisturbed *job);
/* Wait until the job has done `count` more collectives. */
void undisturbed_goes_on(struct undisturbed *job, uint32_t count);
/* End the job. It must have gone on, each of its collectives must have taken less than most_ms, and
 * the daemon must never have found itself stuck. */
void undisturbed_finish(struct undisturbed *job, int64_t most_ms);

#endif
