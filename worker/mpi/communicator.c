#include "worker/mpi/communicator.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "worker/mpi/process.h"

/* A handle is 0, 1 or where a communicator lies. */
#define COMM_WORLD 1

const MPIABI_Comm MPIABI_COMM_NULL = 0, MPIABI_COMM_WORLD = COMM_WORLD;

struct communicator {
    shoal_group *group; /* the job's; NULL: the split has failed */
    int rank, size;
};

/* The arguments of a process to MPI_Comm_split. */
struct split {
    int32_t color, key;
};

int communicator_enter(MPIABI_Comm comm, shoal_group **group)
{
    if (!comm)
        return MPI_ERROR_COMM;
    shoal_job *job = process_enter();
    if (!job)
        return MPI_ERROR_JOB;
    *group = comm == COMM_WORLD ? shoal_world(job) : ((struct communicator *)comm)->group;
    return MPI_ERROR_NONE;
}

/* Ask a number of a communicator, which has it after the end of the job too. */
static int communicator_number(MPIABI_Comm comm, int (*of_world)(const shoal_group *), int own,
                               int *number)
{
    if (comm != COMM_WORLD) {
        *number = own;
        return MPI_ERROR_NONE;
    }
    *number = 0;
    shoal_group *group;
    int error = communicator_enter(comm, &group);
    if (error)
        return error;
    *number = of_world(group);
    return process_leave(*number < 0 ? *number : SHOAL_OK);
}

int MPIABI_Comm_rank(MPIABI_Comm comm, int *rank)
{
    int own = comm > COMM_WORLD ? ((struct communicator *)comm)->rank : 0;
    return comm ? communicator_number(comm, shoal_group_rank, own, rank) : MPI_ERROR_COMM;
}

int MPIABI_Comm_size(MPIABI_Comm comm, int *size)
{
    int own = comm > COMM_WORLD ? ((struct communicator *)comm)->size : 0;
    return comm ? communicator_number(comm, shoal_group_size, own, size) : MPI_ERROR_COMM;
}

/* Write the ranks of the job with this color, in the order of their keys. Returns how many they
 * are, or -1 when their keys are not 0, 1, ..., each once. */
static int split_members(const struct split *all, int world, int color, int *ranks)
{
    int count = 0;
    for (int i = 0; i < world; i++) {
        ranks[i] = -1;
        count += all[i].color == color;
    }
    for (int i = 0; i < world; i++) {
        int key = all[i].key;
        if (all[i].color != color)
            continue;
        if (key < 0 || key >= count || ranks[key] >= 0)
            return -1;
        ranks[key] = i;
    }
    return count;
}

/* Check the splits of all ranks against each other: the communicators of one program are of one
 * size, for XLA makes them of one mesh. Returns a color whose processes do not fit; or none. */
static int split_misfit(const struct split *all, int world, int *ranks)
{
    int size = 0;
    for (int i = 0; i < world; i++) {
        if (all[i].color == MPIABI_UNDEFINED)
            continue;
        int count = split_members(all, world, all[i].color, ranks);
        if (count < 0 || (size > 0 && count != size))
            return all[i].color;
        size = count;
    }
    return MPIABI_UNDEFINED;
}

/* Open the group of this color for *made. */
static int split_open(shoal_job *job, struct split own, struct split *all, int *ranks,
                      struct communicator *made)
{
    int result = shoal_all_gather(shoal_world(job), &own, all, sizeof(own) / 4, SHOAL_I32, NULL);
    if (result != SHOAL_OK)
        return process_leave(result);
    int misfit = split_misfit(all, shoal_world_size(job), ranks);
    if (misfit != MPIABI_UNDEFINED) {
        char text[MPI_ERROR_BYTES];
        snprintf(text, sizeof(text),
                 "the processes with device %d first in their list are not each there once, or not "
                 "as many as those of other lists: every process must have one CPU device "
                 "(jax_num_cpu_devices), and all run every program that communicates",
                 misfit);
        return process_leave_failed(text);
    }
    if (own.color == MPIABI_UNDEFINED)
        return process_leave(SHOAL_OK);
    int count = split_members(all, shoal_world_size(job), own.color, ranks);
    result = shoal_group_open(job, ranks, count, -1, &made->group);
    made->size = count;
    return process_leave(result);
}

int MPIABI_Comm_split(MPIABI_Comm comm, int color, int key, MPIABI_Comm *made)
{
    *made = MPIABI_COMM_NULL;
    struct communicator *new = calloc(1, sizeof(*new));
    if (!new)
        return MPI_ERROR_MEMORY;
    new->rank = key;
    int error = MPI_ERROR_COMM;
    shoal_job *job = NULL;
    if (comm == COMM_WORLD) {
        job = process_enter();
        error = MPI_ERROR_JOB;
    }
    if (job) {
        size_t world = (size_t)shoal_world_size(job);
        struct split *all = calloc(world, sizeof(*all));
        int *ranks = calloc(world, sizeof(*ranks));
        if (all && ranks)
            error = split_open(job, (struct split){color, key}, all, ranks, new);
        else
            error = process_leave_failed("no memory for a communicator");
        free(all);
        free(ranks);
    }
    if (color == MPIABI_UNDEFINED)
        free(new);
    else
        *made = (MPIABI_Comm) new;
    return error;
}

int MPIABI_Comm_free(MPIABI_Comm *comm)
{
    if (*comm <= COMM_WORLD)
        return MPI_ERROR_COMM;
    struct communicator *old = (struct communicator *)*comm;
    *comm = MPIABI_COMM_NULL;
    int error = MPI_ERROR_NONE;
    if (old->group && process_enter())
        error = process_leave(shoal_group_close(old->group));
    free(old);
    return error;
}
