/* The interface of a library at MPITRAMPOLINE_LIB, where the MPItrampoline in jaxlib takes a
 * function MPIABI_Send for MPI_Send, a constant MPIABI_FLOAT for MPI_FLOAT. These are those that
 * are here; the arguments are MPI's. Handles are numbers as wide as a pointer. Every function
 * returns MPIABI_SUCCESS or an error for MPIABI_Error_string. */
#ifndef WORKER_MPI_ABI_H
#define WORKER_MPI_ABI_H

#include <stdint.h>

typedef uintptr_t MPIABI_Comm;
typedef uintptr_t MPIABI_Datatype;
typedef uintptr_t MPIABI_Op;
typedef uintptr_t MPIABI_Request;
typedef void MPIABI_Status; /* is never written: XLA gives MPI_STATUS_IGNORE */

/* The version of the interface; a trampoline takes the same major and the same minor or a later
 * one. */
extern const int mpiabi_version_major, mpiabi_version_minor, mpiabi_version_patch;
extern const int mpiwrapper_version_major, mpiwrapper_version_minor, mpiwrapper_version_patch;
/* Is called before the constants are read; does nothing. */
void mpiwrapper_export_fortran_constants_(void);

/* Constants with a meaning here. */
extern const int MPIABI_SUCCESS, MPIABI_UNDEFINED;
extern const int MPIABI_THREAD_SINGLE, MPIABI_THREAD_FUNNELED, MPIABI_THREAD_SERIALIZED,
    MPIABI_THREAD_MULTIPLE;
extern const MPIABI_Comm MPIABI_COMM_NULL, MPIABI_COMM_WORLD;
extern const MPIABI_Request MPIABI_REQUEST_NULL;
extern void *const MPIABI_IN_PLACE;
extern MPIABI_Status *const MPIABI_STATUS_IGNORE;

/* process.c: the job is opened by the first, once in a process, and closed by the second, which
 * ends the process where the job has failed (process.h). */
int MPIABI_Init_thread(int *argc, char ***argv, int required, int *provided);
int MPIABI_Finalize(void);
/* 1 on every thread: libshoal may be called by any. */
int MPIABI_Is_thread_main(int *flag);
int MPIABI_Error_string(int error, char *text, int *length);
int MPIABI_Get_library_version(char *text, int *length);

/* communicator.c */
int MPIABI_Comm_rank(MPIABI_Comm comm, int *rank);
int MPIABI_Comm_size(MPIABI_Comm comm, int *size);
/* Every process of the job calls it, of comm MPI_COMM_WORLD alone. The keys of a color are the
 * ranks in the new communicator, each once. *made can be given to every function, after an error
 * too. */
int MPIABI_Comm_split(MPIABI_Comm comm, int color, int key, MPIABI_Comm *made);
int MPIABI_Comm_free(MPIABI_Comm *comm);

/* collective.c */
int MPIABI_Allreduce(const void *send, void *recv, int count, MPIABI_Datatype type, MPIABI_Op op,
                     MPIABI_Comm comm);
int MPIABI_Allgather(const void *send, int send_count, MPIABI_Datatype send_type, void *recv,
                     int recv_count, MPIABI_Datatype recv_type, MPIABI_Comm comm);
/* counts are all the same. */
int MPIABI_Reduce_scatter(const void *send, void *recv, const int counts[], MPIABI_Datatype type,
                          MPIABI_Op op, MPIABI_Comm comm);

/* transfer.c */
int MPIABI_Isend(const void *data, int count, MPIABI_Datatype type, int peer, int tag,
                 MPIABI_Comm comm, MPIABI_Request *request);
int MPIABI_Irecv(void *data, int count, MPIABI_Datatype type, int peer, int tag, MPIABI_Comm comm,
                 MPIABI_Request *request);
int MPIABI_Wait(MPIABI_Request *request, MPIABI_Status *status);
int MPIABI_Sendrecv(const void *send, int send_count, MPIABI_Datatype send_type, int to,
                    int send_tag, void *recv, int recv_count, MPIABI_Datatype recv_type, int from,
                    int recv_tag, MPIABI_Comm comm, MPIABI_Status *status);

#endif
