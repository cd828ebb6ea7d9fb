/* What a launcher of other programs, which knows nothing of shoal, has told this process. One table
 * of launchers serves both sides: the library, whose process is a rank, and shoalrun, which they
 * start once on each node. */
#ifndef WORKER_LAUNCH_LAUNCHED_H
#define WORKER_LAUNCH_LAUNCHED_H

#include <stdint.h>

#include "common/base/error.h"
#include "common/format/message.h"

struct launched {
    const char *launcher; /* "srun", "mpirun", ...; NULL: none */
    /* Names of variables that are set, or NULL. */
    const char *world_size, *rank, *local_rank, *local_size;
    const char *hosts, *own_host;
    const char *ranks;            /* how many there shall be on this node */
    char job[MESSAGE_NAME_BYTES]; /* a name that no other run has, or "" */
};

/* Read what the first launcher of the table that is there has set, for the others may have started
 * it: Open MPI's mpirun (OMPI_COMM_WORLD_SIZE), one that speaks PMI (PMI_SIZE: MPICH, Intel MPI),
 * srun (SLURM_STEP_NUM_TASKS). A task of srun's with PMI (--mpi=pmi2), which has the same numbers
 * twice, is srun's. All is empty where there is none. The script of sbatch is no task of srun's. */
void launched_read(struct launched *launched);
/* Read also those that start one process on a node, and say nothing of ranks: SageMaker (SM_HOSTS),
 * and indexed jobs of Kubernetes (JOB_COMPLETION_INDEX). */
void launched_read_node(struct launched *launched);

/* Return how many processes this one's launcher has started on this node, or 0: it does not say. */
uint32_t launched_local_size(const struct launched *launched);

/* Hash a text behind others, of which the first has LAUNCHED_HASH before it (FNV-1a). */
#define LAUNCHED_HASH 0xcbf29ce484222325
uint64_t launched_hash(uint64_t hash, const char *text);
/* Return the number by which daemons tell runs apart, from a text that no other run has; 0 for "".
 */
uint32_t launched_mark(const char *text);

#define LAUNCHED_LINE_BYTES 512
/* Write the line that starts this process's program by shoalrun, on the nodes and with the ranks
 * that its launcher has given it. Returns 0 when it has no launcher: line is "". */
int launched_line(char line[LAUNCHED_LINE_BYTES]);

#endif
