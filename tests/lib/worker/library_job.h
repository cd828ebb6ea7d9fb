/* A job of the library against the daemons of a cluster, every rank a thread of the test. */
#ifndef TESTS_LIB_WORKER_LIBRARY_JOB_H
#define TESTS_LIB_WORKER_LIBRARY_JOB_H

#include <check.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tests/lib/cluster.h"
#include "worker/shoal.h"

#define LIBRARY_RANKS_MAX 16
#define LIBRARY_ARENA_BYTES (32u << 20)

#define GOOD(call) ck_assert_msg((call) == SHOAL_OK, "%s: %s", #call, shoal_error_text())
#define BAD(call, code, words)                                                                     \
    do {                                                                                           \
        ck_assert_int_eq((call), (code));                                                          \
        ck_assert_msg(strstr(shoal_error_text(), (words)) != NULL, "%s", shoal_error_text());      \
    } while (0)

struct library_job;

struct library_rank {
    struct library_job *of;
    pthread_t thread;
    shoal_job *job;
    int rank;
};

struct library_job {
    struct cluster *cluster;
    char name[64];
    int size, ranks_per_node; /* rank r is on node r / ranks_per_node */
    void (*body)(struct library_rank *self);
    void *argument; /* the test's */
    pthread_barrier_t barrier;
    struct library_rank ranks[LIBRARY_RANKS_MAX];
};

/* Return options that open the job on a node; the rank is left to be assigned. */
struct shoal_options library_options(const struct cluster *cluster, uint32_t node, const char *job,
                                     int world_size);

/* Every rank opens the job, runs body and closes it; finish waits for that and frees. */
struct library_job *library_job_start(struct cluster *cluster, const char *name, int ranks_per_node,
                                      void (*body)(struct library_rank *self), void *argument);
void library_job_finish(struct library_job *job);
void library_job_run(struct cluster *cluster, const char *name, int ranks_per_node,
                     void (*body)(struct library_rank *self), void *argument);
/* On a cluster of its own, which must end well afterwards. */
void library_cluster_run(uint32_t nodes, const char *extra, int ranks_per_node,
                         void (*body)(struct library_rank *self), void *argument);

/* A cluster and the job on it, for tests that are run on several. */
struct library_shape {
    uint32_t nodes;
    int ranks_per_node;
    const char *extra; /* of the configuration, or NULL */
};
void library_shape_run(const struct library_shape *shape, void (*body)(struct library_rank *self),
                       void *argument);

/* 0, 1, 2, ... */
extern const int library_in_order[LIBRARY_RANKS_MAX];

/* All ranks of the job are here; by threads, not by the library. True on one of them. */
int library_meet(struct library_rank *self);

/* The data of a rank in a collective numbered `seed`; all ranks can make everybody's. */
void library_fill(enum shoal_dtype dtype, void *data, size_t count, int rank, uint64_t seed);
/* Write to result (count elements) what a reduction over these ranks (in the group's order) must
 * give, bit for bit: in group order on a node, then in node order over the nodes that have ranks,
 * rounded each time, and divided before the last rounding. */
void library_expect(const struct library_job *job, const int *ranks, int ranks_count,
                    enum shoal_dtype dtype, enum shoal_op op, size_t count, uint64_t seed,
                    void *result);

#endif
