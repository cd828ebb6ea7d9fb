/* This process's part in the job, and why it has none. MPI's functions are given no handle, so that
 * there is one for the process. The first error of a collective, send or receive is the last: the
 * job is closed, its buffers are the caller's again, the other ranks are told why, and every later
 * call fails with the same text; MPI_Finalize ends the process with exit code 1, unless all that
 * happened is that another rank has left the job. */
#ifndef WORKER_MPI_PROCESS_H
#define WORKER_MPI_PROCESS_H

#include "worker/shoal.h"

/* The trampoline has it as MPI_MAX_ERROR_STRING. */
#define MPI_ERROR_BYTES 1024

/* Errors that MPIABI_Error_string knows. */
enum mpi_error {
    MPI_ERROR_NONE,
    MPI_ERROR_JOB, /* not opened, failed or closed: the text is the job's */
    MPI_ERROR_COMM,
    MPI_ERROR_COUNT,
    MPI_ERROR_TYPE,
    MPI_ERROR_OP,
    MPI_ERROR_TYPES,
    MPI_ERROR_COUNTS,
    MPI_ERROR_MEMORY,
    MPI_ERROR_REQUEST,
    MPI_ERROR_ABSENT = 1000 /* and the number of the function (absent.h) */
};

/* Use the job, which nobody closes until process_leave. NULL: there is none, and process_leave must
 * not be called; MPI_ERROR_JOB says why. */
shoal_job *process_enter(void);
/* End the use. result: of a call of libshoal, by this thread the last; an error closes the job.
 * Returns MPI_ERROR_NONE or MPI_ERROR_JOB. */
int process_leave(int result);
/* Leave it with an error of this library's own. Returns MPI_ERROR_JOB. */
int process_leave_failed(const char *text);

/* Say what an error is. */
void process_error_text(int error, char text[MPI_ERROR_BYTES]);
/* Print a line on stderr. */
void process_say(const char *text);

#endif
