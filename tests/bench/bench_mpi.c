/* The peer Open MPI: collectives of f32, measured as shoalperf does. Built with mpicc.
 *
 *   mpirun -n RANKS bench_mpi [--rewrite] COLLECTIVE WARMUP ITERATIONS BYTES...
 *
 * COLLECTIVE is all_reduce (in place), broadcast, all_gather, reduce_scatter or barrier. If a
 * collective has parts, BYTES is the size of all of them, a multiple of 4 times RANKS; a barrier
 * has 0. --rewrite: what is sent is written before each, within its time, a byte of every line of a
 * cache. Rank 0 prints {"bytes", "ranks", "time_us"} for each size: the mean over ranks of the mean
 * time. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct run {
    const char *collective;
    int rank, ranks, warmup, iterations, rewrite;
    float *send, *recv;
    int count; /* of all parts */
};

static int is(const struct run *run, const char *collective)
{
    return strcmp(run->collective, collective) == 0;
}

static void sent_rewrite(const struct run *run)
{
    volatile char *memory = (volatile char *)run->send;
    int count = is(run, "all_gather") ? run->count / run->ranks : run->count;
    if (is(run, "broadcast") && run->rank > 0)
        count = 0;
    for (size_t i = 0; i < (size_t)count * sizeof(float); i += 64) {
        char same = memory[i];
        memory[i] = same;
    }
}

static void once(const struct run *run)
{
    if (run->rewrite)
        sent_rewrite(run);
    if (is(run, "all_reduce"))
        MPI_Allreduce(MPI_IN_PLACE, run->send, run->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (is(run, "broadcast"))
        MPI_Bcast(run->send, run->count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    else if (is(run, "all_gather"))
        MPI_Allgather(run->send, run->count / run->ranks, MPI_FLOAT, run->recv,
                      run->count / run->ranks, MPI_FLOAT, MPI_COMM_WORLD);
    else if (is(run, "reduce_scatter"))
        MPI_Reduce_scatter_block(run->send, run->recv, run->count / run->ranks, MPI_FLOAT, MPI_SUM,
                                 MPI_COMM_WORLD);
    else
        MPI_Barrier(MPI_COMM_WORLD);
}

/* Every rank has sent its number and 1. */
static int checked(const struct run *run)
{
    int sums = is(run, "all_reduce") || is(run, "reduce_scatter");
    int part = run->count / run->ranks;
    int count = is(run, "barrier") ? 0 : is(run, "reduce_scatter") ? part : run->count;
    const float *data = is(run, "all_gather") || is(run, "reduce_scatter") ? run->recv : run->send;
    for (int i = 0; i < count; i++) {
        float wanted = is(run, "all_gather") ? (float)(i / part + 1) : 1;
        if (sums)
            wanted = (float)run->ranks * (float)(run->ranks + 1) / 2;
        if (data[i] != wanted) {
            fprintf(stderr, "bench_mpi: element %d is %g, not %g\n", i, (double)data[i],
                    (double)wanted);
            return 1;
        }
    }
    return 0;
}

static int size_measure(struct run *run, long bytes)
{
    run->count = (int)(bytes / (long)sizeof(float));
    run->send = malloc((size_t)bytes + sizeof(float));
    run->recv = calloc((size_t)bytes + sizeof(float), 1);
    if (!run->send || !run->recv)
        return 1;
    for (int i = 0; i < run->count; i++)
        run->send[i] = (float)(run->rank + 1);
    double start = 0;
    int wrong = 0;
    for (int i = -1 - run->warmup; i < run->iterations; i++) {
        if (i == 0) {
            MPI_Barrier(MPI_COMM_WORLD);
            start = MPI_Wtime();
        }
        once(run);
        if (i == -1 - run->warmup)
            wrong = checked(run);
    }
    double time_us = (MPI_Wtime() - start) * 1e6 / run->iterations, sum_us = 0;
    MPI_Reduce(&time_us, &sum_us, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (run->rank == 0) {
        printf("{\"bytes\":%ld,\"ranks\":%d,\"time_us\":%.3f}\n", bytes, run->ranks,
               sum_us / run->ranks);
        fflush(stdout);
    }
    free(run->send);
    free(run->recv);
    return wrong;
}

int main(int argc, char **argv)
{
    int wrong = 0;
    MPI_Init(&argc, &argv);
    struct run run = {.rewrite = argc > 1 && strcmp(argv[1], "--rewrite") == 0};
    argv += run.rewrite;
    argc -= run.rewrite;
    run.collective = argc > 1 ? argv[1] : "";
    MPI_Comm_rank(MPI_COMM_WORLD, &run.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &run.ranks);
    if (argc < 5 || atoi(argv[3]) < 1 ||
        !(is(&run, "all_reduce") || is(&run, "broadcast") || is(&run, "all_gather") ||
          is(&run, "reduce_scatter") || is(&run, "barrier"))) {
        if (run.rank == 0)
            fprintf(stderr, "usage: bench_mpi [--rewrite] COLLECTIVE WARMUP ITERATIONS BYTES...\n");
        MPI_Finalize();
        return 2;
    }
    run.warmup = atoi(argv[2]);
    run.iterations = atoi(argv[3]);
    for (int i = 4; i < argc && !wrong; i++)
        wrong = size_measure(&run, atol(argv[i]));
    if (wrong)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return 0;
}
