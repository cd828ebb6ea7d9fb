/* What a launcher of other programs, which knows nothing of shoal, has told this process. */
#ifndef WORKER_LAUNCH_LAUNCHED_H
#define WORKER_LAUNCH_LAUNCHED_H

#include "common/format/message.h"

struct launched {
    /* Names of variables that are set, or NULL. */
    const char *world_size, *rank, *local_rank;
    char job[MESSAGE_NAME_BYTES]; /* a name that no other run has, or "" */
};

/* Of Open MPI's mpirun (OMPI_COMM_WORLD_SIZE), of a launcher that speaks PMI (PMI_SIZE: MPICH,
 * Intel MPI), or of srun (SLURM_STEP_NUM_TASKS); of the first that is there, for the others may
 * have started it. All is empty where there is none. The script of sbatch is no task of srun's. */
void launched_read(struct launched *launched);

#endif
