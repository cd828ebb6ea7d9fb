/* A launcher of other programs, which knows nothing of shoal, has told this process who it is. One
 * table of launchers serves all: the library, whose process is a rank, shoalrun, which they start
 * once on each node, and the Python package, whose copy is made from it. */
#ifndef WORKER_LAUNCH_LAUNCHED_H
#define WORKER_LAUNCH_LAUNCHED_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/format/message.h"

/* A launcher, by the names of its variables. It is there when `marked_by` is set, or the size where
 * that is NULL.
 */
struct launcher {
    const char *name;
    const char *marked_by;
    const char *world_size, *other_world_size; /* the first of the two that is set */
    const char *rank, *local_rank, *local_size;
    const char *hosts, *own_host;
    const char *ranks; /* how many there shall be on this node */
    const char *job;
    const char *line, *line_rest; /* what starts shoalrun once on each node, around their number */
    bool of_ranks;                /* what it starts may be a rank, not only shoalrun */
};
#define LAUNCHERS 5
extern const struct launcher launched_table[LAUNCHERS];

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
