/* MPI's types and operations that XLA uses, as libshoal's. */
#ifndef WORKER_MPI_TYPES_H
#define WORKER_MPI_TYPES_H

#include <stdbool.h>

#include "worker/mpi/abi.h"
#include "worker/shoal.h"

struct mpi_type {
    enum shoal_dtype dtype;
    unsigned pieces; /* elements of dtype in one of the type: 2 of a complex number */
};

/* Return 0 and the type, or MPI_ERROR_TYPE. */
int type_find(MPIABI_Datatype handle, struct mpi_type *type);
/* Return 0 and the operation, or MPI_ERROR_OP when there is none, or none for that type. */
int op_find(MPIABI_Op handle, struct mpi_type type, enum shoal_op *op);
/* The bytes of `count` elements. */
size_t type_bytes(struct mpi_type type, size_t count);

#endif
