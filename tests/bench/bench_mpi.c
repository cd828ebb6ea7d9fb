/* The peer Open MPI: all-reduce of f32 in place, measured as shoalperf does. Built with mpicc.
 *
 *   mpirun -n RANKS bench_mpi WARMUP ITERATIONS BYTES...
 *
 * Rank 0 prints {"bytes", "ranks", "time_us"} for each size: the mean over ranks of the mean time.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int checked(const float *data, int count, float expected)
{
    for (int i = 0; i < count; i++) {
        if (data[i] != expected) {
            fprintf(stderr, "bench_mpi: element %d is %g, not %g\n", i, (double)data[i],
                    (double)expected);
            return 1;
        }
    }
    return 0;
}

static int size_measure(int rank, int ranks, int warmup, int iterations, long bytes)
{
    int count = (int)(bytes / (long)sizeof(float));
    float *data = malloc((size_t)count * sizeof(float));
    if (!data)
        return 1;
    for (int i = 0; i < count; i++)
        data[i] = (float)(rank + 1);
    double start = 0;
    int wrong = 0;
    for (int i = -1 - warmup; i < iterations; i++) {
        if (i == 0) {
            MPI_Barrier(MPI_COMM_WORLD);
            start = MPI_Wtime();
        }
        MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (i == -1 - warmup)
            wrong = checked(data, count, (float)ranks * (float)(ranks + 1) / 2);
    }
    double time_us = (MPI_Wtime() - start) * 1e6 / iterations, sum_us = 0;
    MPI_Reduce(&time_us, &sum_us, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("{\"bytes\":%ld,\"ranks\":%d,\"time_us\":%.3f}\n", bytes, ranks, sum_us / ranks);
        fflush(stdout);
    }
    free(data);
    return wrong;
}

int main(int argc, char **argv)
{
    int rank, ranks, wrong = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 4 || atoi(argv[2]) < 1) {
        if (rank == 0)
            fprintf(stderr, "usage: bench_mpi WARMUP ITERATIONS BYTES...\n");
        MPI_Finalize();
        return 2;
    }
    for (int i = 3; i < argc && !wrong; i++)
        wrong = size_measure(rank, ranks, atoi(argv[1]), atoi(argv[2]), atol(argv[i]));
    if (wrong)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return 0;
}
