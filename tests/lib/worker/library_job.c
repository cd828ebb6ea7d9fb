#include "tests/lib/worker/library_job.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/reduce_reference.h"

#define SPECIAL_OF_256 12

struct shoal_options library_options(const struct cluster *cluster, uint32_t node, const char *job,
                                     int world_size)
{
    return (struct shoal_options){.struct_size = sizeof(struct shoal_options),
                                  .job = job,
                                  .socket_path = cluster->nodes[node].socket_path,
                                  .world_size = world_size,
                                  .timeout_ms = CLUSTER_PATIENCE_MS,
                                  .arena_bytes = LIBRARY_ARENA_BYTES};
}

static void *rank_main(void *argument)
{
    struct library_rank *self = argument;
    struct library_job *of = self->of;
    struct shoal_options options = library_options(
        of->cluster, (uint32_t)(self->rank / of->ranks_per_node), of->name, of->size);
    options.rank_plus_1 = self->rank + 1;
    GOOD(shoal_open(&options, &self->job));
    of->body(self);
    GOOD(shoal_close(self->job));
    return NULL;
}

struct library_job *library_job_start(struct cluster *cluster, const char *name, int ranks_per_node,
                                      void (*body)(struct library_rank *self), void *argument)
{
    struct library_job *job = calloc(1, sizeof(*job));
    ck_assert_ptr_nonnull(job);
    job->cluster = cluster;
    snprintf(job->name, sizeof(job->name), "%s", name);
    job->ranks_per_node = ranks_per_node;
    job->size = (int)cluster->count * ranks_per_node;
    job->body = body;
    job->argument = argument;
    ck_assert_int_le(job->size, LIBRARY_RANKS_MAX);
    ck_assert_int_eq(pthread_barrier_init(&job->barrier, NULL, (unsigned)job->size), 0);
    for (int i = 0; i < job->size; i++) {
        job->ranks[i] = (struct library_rank){.of = job, .rank = i};
        ck_assert_int_eq(pthread_create(&job->ranks[i].thread, NULL, rank_main, &job->ranks[i]), 0);
    }
    return job;
}

void library_job_finish(struct library_job *job)
{
    for (int i = 0; i < job->size; i++)
        pthread_join(job->ranks[i].thread, NULL);
    pthread_barrier_destroy(&job->barrier);
    free(job);
}

void library_job_run(struct cluster *cluster, const char *name, int ranks_per_node,
                     void (*body)(struct library_rank *self), void *argument)
{
    library_job_finish(library_job_start(cluster, name, ranks_per_node, body, argument));
}

void library_cluster_run(uint32_t nodes, const char *extra, int ranks_per_node,
                         void (*body)(struct library_rank *self), void *argument)
{
    struct cluster *cluster = cluster_start(nodes, extra);
    library_job_run(cluster, "library", ranks_per_node, body, argument);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}

void library_shape_run(const struct library_shape *shape, void (*body)(struct library_rank *self),
                       void *argument)
{
    library_cluster_run(shape->nodes, shape->extra, shape->ranks_per_node, body, argument);
}

const int library_in_order[LIBRARY_RANKS_MAX] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                 8, 9, 10, 11, 12, 13, 14, 15};

int library_meet(struct library_rank *self)
{
    return pthread_barrier_wait(&self->of->barrier) == PTHREAD_BARRIER_SERIAL_THREAD;
}

void library_fill(enum shoal_dtype dtype, void *data, size_t count, int rank, uint64_t seed)
{
    reference_fill((enum dtype)dtype, data, count, seed * LIBRARY_RANKS_MAX + (uint64_t)rank,
                   SPECIAL_OF_256);
}

void library_expect(const struct library_job *job, const int *ranks, int ranks_count,
                    enum shoal_dtype dtype, enum shoal_op op, size_t count, uint64_t seed,
                    void *result)
{
    enum reduce_op whole = (enum reduce_op)op, part = whole == REDUCE_AVG ? REDUCE_SUM : whole;
    size_t bytes = count * shoal_dtype_bytes(dtype);
    void *data[LIBRARY_RANKS_MAX], *sums[CLUSTER_NODES_MAX];
    const void *of_node[CLUSTER_NODES_MAX][LIBRARY_RANKS_MAX];
    unsigned on_node[CLUSTER_NODES_MAX] = {0}, nodes = 0;
    for (int i = 0; i < ranks_count; i++) {
        int node = ranks[i] / job->ranks_per_node;
        data[i] = malloc(bytes + 1);
        ck_assert_ptr_nonnull(data[i]);
        library_fill(dtype, data[i], count, ranks[i], seed);
        of_node[node][on_node[node]++] = data[i];
    }
    for (uint32_t node = 0; node < job->cluster->count; node++) {
        if (on_node[node] == (unsigned)ranks_count) /* one hop */
            reference_reduce((enum dtype)dtype, whole, of_node[node], on_node[node], result, count,
                             (uint32_t)ranks_count);
        else if (on_node[node] > 0) {
            sums[nodes] = malloc(bytes + 1);
            ck_assert_ptr_nonnull(sums[nodes]);
            reference_reduce((enum dtype)dtype, part, of_node[node], on_node[node], sums[nodes++],
                             count, 1);
        }
    }
    if (nodes > 0)
        reference_reduce((enum dtype)dtype, whole, (const void *const *)sums, nodes, result, count,
                         (uint32_t)ranks_count);
    for (unsigned i = 0; i < nodes; i++)
        free(sums[i]);
    for (int i = 0; i < ranks_count; i++)
        free(data[i]);
}
