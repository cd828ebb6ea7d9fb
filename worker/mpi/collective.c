/* MPI_Allreduce, MPI_Allgather, MPI_Reduce_scatter. */
#include <string.h>

#include "worker/mpi/communicator.h"
#include "worker/mpi/process.h"
#include "worker/mpi/product.h"
#include "worker/mpi/types.h"

/* No buffer has this address. */
static const char in_place;
void *const MPIABI_IN_PLACE = (void *)&in_place;

/* The arguments of a reduction, as libshoal has them. */
struct reduction {
    struct mpi_type type;
    enum shoal_op op;
    size_t pieces; /* elements of type.dtype */
};

static int reduction_of(int count, MPIABI_Datatype type, MPIABI_Op op, struct reduction *reduction)
{
    if (count < 0)
        return MPI_ERROR_COUNT;
    int error = type_find(type, &reduction->type);
    if (error == MPI_ERROR_NONE)
        error = op_find(op, reduction->type, &reduction->op);
    reduction->pieces = (size_t)count * reduction->type.pieces;
    return error;
}

static bool reduction_is_complex_product(const struct reduction *reduction)
{
    return reduction->type.pieces > 1 && reduction->op == SHOAL_PROD;
}

int MPIABI_Allreduce(const void *send, void *recv, int count, MPIABI_Datatype type, MPIABI_Op op,
                     MPIABI_Comm comm)
{
    struct reduction reduction = {0};
    shoal_group *group;
    int error = reduction_of(count, type, op, &reduction);
    if (error == MPI_ERROR_NONE)
        error = communicator_enter(comm, &group);
    if (error)
        return error;
    if (send == MPIABI_IN_PLACE)
        send = recv;
    if (reduction_is_complex_product(&reduction))
        return product_all_reduce(group, send, recv, (size_t)count, reduction.type.dtype);
    return process_leave(shoal_all_reduce(group, send, recv, reduction.pieces, reduction.type.dtype,
                                          reduction.op, NULL));
}

int MPIABI_Allgather(const void *send, int send_count, MPIABI_Datatype send_type, void *recv,
                     int recv_count, MPIABI_Datatype recv_type, MPIABI_Comm comm)
{
    struct mpi_type type;
    shoal_group *group;
    if (recv_count < 0)
        return MPI_ERROR_COUNT;
    if (send != MPIABI_IN_PLACE && (send_count != recv_count || send_type != recv_type))
        return MPI_ERROR_TYPES;
    int error = type_find(recv_type, &type);
    if (error == MPI_ERROR_NONE)
        error = communicator_enter(comm, &group);
    if (error)
        return error;
    size_t pieces = (size_t)recv_count * type.pieces;
    if (send == MPIABI_IN_PLACE)
        send = (char *)recv + (size_t)shoal_group_rank(group) * type_bytes(type, recv_count);
    return process_leave(shoal_all_gather(group, send, recv, pieces, type.dtype, NULL));
}

int MPIABI_Reduce_scatter(const void *send, void *recv, const int counts[], MPIABI_Datatype type,
                          MPIABI_Op op, MPIABI_Comm comm)
{
    struct reduction reduction = {0};
    shoal_group *group;
    /* XLA gives no counts where the split of the communicator has failed: enter it first. */
    int error = communicator_enter(comm, &group);
    if (error)
        return error;
    error = reduction_of(counts[0], type, op, &reduction);
    if (error) {
        process_leave(SHOAL_OK);
        return error;
    }
    int size = shoal_group_size(group);
    for (int i = 1; i < size; i++)
        if (counts[i] != counts[0]) {
            process_leave(SHOAL_OK);
            return MPI_ERROR_COUNTS;
        }
    /* In place the parts are in recv, and this rank's result goes to its begin. */
    size_t bytes = type_bytes(reduction.type, (size_t)counts[0]);
    char *result = recv;
    if (send == MPIABI_IN_PLACE) {
        send = recv;
        result += (size_t)shoal_group_rank(group) * bytes;
    }
    if (reduction_is_complex_product(&reduction))
        error =
            product_reduce_scatter(group, send, result, (size_t)counts[0], reduction.type.dtype);
    else
        error = process_leave(shoal_reduce_scatter(group, send, result, reduction.pieces,
                                                   reduction.type.dtype, reduction.op, NULL));
    if (error == MPI_ERROR_NONE && result != recv)
        memmove(recv, result, bytes);
    return error;
}
