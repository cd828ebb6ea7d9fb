/* MPI_Isend, MPI_Irecv, MPI_Wait, MPI_Sendrecv. A request of MPI's is one of libshoal's. */
#include "worker/mpi/communicator.h"
#include "worker/mpi/process.h"
#include "worker/mpi/types.h"

const MPIABI_Request MPIABI_REQUEST_NULL = 0;
MPIABI_Status *const MPIABI_STATUS_IGNORE = 0;

/* Find the type of a send or receive, and its elements of that type. */
static int transfer_of(int count, MPIABI_Datatype handle, struct mpi_type *type, size_t *pieces)
{
    if (count < 0)
        return MPI_ERROR_COUNT;
    int error = type_find(handle, type);
    *pieces = error ? 0 : (size_t)count * type->pieces;
    return error;
}

int MPIABI_Isend(const void *data, int count, MPIABI_Datatype type, int peer, int tag,
                 MPIABI_Comm comm, MPIABI_Request *request)
{
    struct mpi_type of;
    size_t pieces;
    shoal_group *group;
    shoal_request *begun = NULL;
    int error = transfer_of(count, type, &of, &pieces);
    if (error == MPI_ERROR_NONE)
        error = communicator_enter(comm, &group);
    if (error == MPI_ERROR_NONE)
        error = process_leave(shoal_send(group, data, pieces, of.dtype, peer, tag, &begun));
    *request = (MPIABI_Request)begun;
    return error;
}

int MPIABI_Irecv(void *data, int count, MPIABI_Datatype type, int peer, int tag, MPIABI_Comm comm,
                 MPIABI_Request *request)
{
    struct mpi_type of;
    size_t pieces;
    shoal_group *group;
    shoal_request *begun = NULL;
    int error = transfer_of(count, type, &of, &pieces);
    if (error == MPI_ERROR_NONE)
        error = communicator_enter(comm, &group);
    if (error == MPI_ERROR_NONE)
        error = process_leave(shoal_recv(group, data, pieces, of.dtype, peer, tag, &begun));
    *request = (MPIABI_Request)begun;
    return error;
}

int MPIABI_Wait(MPIABI_Request *request, MPIABI_Status *status)
{
    (void)status;
    if (!*request)
        return MPI_ERROR_REQUEST;
    shoal_request *begun = (shoal_request *)*request;
    *request = MPIABI_REQUEST_NULL;
    return process_enter() ? process_leave(shoal_wait(begun, -1)) : MPI_ERROR_JOB;
}

/* The arguments are MPI's. NOLINTNEXTLINE(readability-function-size) */
int MPIABI_Sendrecv(const void *send, int send_count, MPIABI_Datatype send_type, int to,
                    int send_tag, void *recv, int recv_count, MPIABI_Datatype recv_type, int from,
                    int recv_tag, MPIABI_Comm comm, MPIABI_Status *status)
{
    MPIABI_Request receive = MPIABI_REQUEST_NULL, sent = MPIABI_REQUEST_NULL;
    struct mpi_type type;
    size_t pieces;
    int error = transfer_of(send_count, send_type, &type, &pieces);
    if (error == MPI_ERROR_NONE)
        error = MPIABI_Irecv(recv, recv_count, recv_type, from, recv_tag, comm, &receive);
    if (error == MPI_ERROR_NONE)
        error = MPIABI_Isend(send, send_count, send_type, to, send_tag, comm, &sent);
    if (error == MPI_ERROR_NONE)
        error = MPIABI_Wait(&receive, status);
    if (error == MPI_ERROR_NONE)
        error = MPIABI_Wait(&sent, status);
    return error;
}
