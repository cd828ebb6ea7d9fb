/* A communicator: a group of the job. */
#ifndef WORKER_MPI_COMMUNICATOR_H
#define WORKER_MPI_COMMUNICATOR_H

#include "worker/mpi/abi.h"
#include "worker/shoal.h"

/* Use a communicator until process_leave. Returns 0 and its group; or the error, and process_leave
 * must not be called. */
int communicator_enter(MPIABI_Comm comm, shoal_group **group);

#endif
