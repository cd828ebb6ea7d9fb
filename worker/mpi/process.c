#include "worker/mpi/process.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/mpi/abi.h"
#include "worker/mpi/absent.h"

/* The version of MPItrampoline's interface that jaxlib since 0.4.31 asks for. */
const int mpiabi_version_major = 2, mpiabi_version_minor = 9, mpiabi_version_patch = 0;
const int mpiwrapper_version_major = SHOAL_VERSION_MAJOR,
          mpiwrapper_version_minor = SHOAL_VERSION_MINOR,
          mpiwrapper_version_patch = SHOAL_VERSION_PATCH;

const int MPIABI_SUCCESS = MPI_ERROR_NONE, MPIABI_UNDEFINED = -32766;
const int MPIABI_THREAD_SINGLE = 0, MPIABI_THREAD_FUNNELED = 1, MPIABI_THREAD_SERIALIZED = 2,
          MPIABI_THREAD_MULTIPLE = 3;

/* libshoal says so of a rank that has left the job, and of one that has ended without that. */
#define HAS_LEFT " has left job "
#define IS_GONE " is gone"

/* The process's job. The lock is held for reading while the job is used, for writing while it is
 * opened or closed. A thread that closes goes before those that come to use the job. */
static struct {
    pthread_rwlock_t lock;
    shoal_job *job;
    bool begun;                 /* MPI_Init_thread has opened a job, which is the only one */
    bool failed;                /* it has ended with an error that is not another's leave */
    char text[MPI_ERROR_BYTES]; /* why there is no job */
} process = {.lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP,
             .text = "MPI_Init_thread has not been called"};

static const char *const process_texts[] = {
    [MPI_ERROR_NONE] = "no error",
    [MPI_ERROR_COMM] = "this is no communicator, or not the one that is wanted here",
    [MPI_ERROR_COUNT] = "a count is negative: one call takes 2147483647 elements; split the array",
    [MPI_ERROR_TYPE] = "this type is not one of XLA's: integers, floats, complex numbers",
    [MPI_ERROR_OP] = "this type has no such reduction: sum, product, minimum, maximum",
    [MPI_ERROR_TYPES] = "what is sent and what is received differ in type or count",
    [MPI_ERROR_COUNTS] = "MPI_Reduce_scatter takes counts that are all the same",
    [MPI_ERROR_MEMORY] = "this process has no memory left",
    [MPI_ERROR_REQUEST] = "this is no request",
};

void mpiwrapper_export_fortran_constants_(void)
{
}

void process_say(const char *text)
{
    fprintf(stderr, "libshoal-mpitrampoline: %s\n", text);
}

void process_error_text(int error, char text[MPI_ERROR_BYTES])
{
    int absent = error - MPI_ERROR_ABSENT;
    if (error == MPI_ERROR_JOB) {
        pthread_rwlock_rdlock(&process.lock);
        snprintf(text, MPI_ERROR_BYTES, "%s", process.text);
        pthread_rwlock_unlock(&process.lock);
    } else if (error >= 0 && error < (int)(sizeof(process_texts) / sizeof(*process_texts)))
        snprintf(text, MPI_ERROR_BYTES, "%s", process_texts[error]);
    else if (absent >= 0 && absent < absent_count)
        snprintf(text, MPI_ERROR_BYTES,
                 "%s is not here: this library is no MPI, it has what XLA calls for collectives on "
                 "CPUs",
                 absent_names[absent]);
    else
        snprintf(text, MPI_ERROR_BYTES, "%d is no error of this library", error);
}

/* Close the job, if there is one, and keep why there is none; returns whether there was one.
 * failed: the other ranks are told, and this process ends with MPI_Finalize. */
static bool process_close(const char *text, bool failed)
{
    pthread_rwlock_wrlock(&process.lock);
    shoal_job *job = process.job;
    if (job) {
        process.job = NULL;
        snprintf(process.text, sizeof(process.text), "%s", text);
        process.failed = failed;
        if (failed)
            shoal_set_ending(job, text);
        shoal_close(job);
    }
    pthread_rwlock_unlock(&process.lock);
    return job;
}

/* Close it with an error, by a thread that has left it. Returns MPI_ERROR_JOB. */
static int process_fail(const char *text, bool failed)
{
    if (process_close(text, failed))
        process_say(text);
    return MPI_ERROR_JOB;
}

shoal_job *process_enter(void)
{
    pthread_rwlock_rdlock(&process.lock);
    shoal_job *job = process.job;
    if (!job)
        pthread_rwlock_unlock(&process.lock);
    return job;
}

int process_leave_failed(const char *text)
{
    pthread_rwlock_unlock(&process.lock);
    return process_fail(text, true);
}

int process_leave(int result)
{
    pthread_rwlock_unlock(&process.lock);
    if (result == SHOAL_OK)
        return MPI_ERROR_NONE;
    char text[MPI_ERROR_BYTES];
    snprintf(text, sizeof(text), "%s", shoal_error_text());
    /* A process that has left goes on to its own end, and waits there for this one. */
    bool has_left = result == SHOAL_ELOST && strstr(text, HAS_LEFT) && !strstr(text, IS_GONE);
    return process_fail(text, !has_left);
}

int MPIABI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    (void)argc, (void)argv, (void)required;
    *provided = MPIABI_THREAD_MULTIPLE;
    pthread_rwlock_wrlock(&process.lock);
    if (!process.begun && shoal_open(NULL, &process.job) != SHOAL_OK) {
        snprintf(process.text, sizeof(process.text), "%s", shoal_error_text());
        process_say(process.text);
    }
    process.begun = process.begun || process.job;
    int error = process.job ? MPI_ERROR_NONE : MPI_ERROR_JOB;
    pthread_rwlock_unlock(&process.lock);
    return error;
}

int MPIABI_Finalize(void)
{
    process_close("MPI_Finalize has been called", false);
    /* JAX would now wait for the others at their end, for minutes for those that are gone. */
    if (process.failed) {
        fflush(NULL);
        _exit(EXIT_FAILURE);
    }
    return MPI_ERROR_NONE;
}

int MPIABI_Is_thread_main(int *flag)
{
    *flag = 1;
    return MPI_ERROR_NONE;
}

int MPIABI_Error_string(int error, char *text, int *length)
{
    process_error_text(error, text);
    *length = (int)strlen(text);
    return MPI_ERROR_NONE;
}

int MPIABI_Get_library_version(char *text, int *length)
{
    *length = sprintf(text, "libshoal-mpitrampoline %s, for XLA's collectives on CPUs; no MPI",
                      shoal_version());
    return MPI_ERROR_NONE;
}
