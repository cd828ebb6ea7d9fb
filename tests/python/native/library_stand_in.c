/* A stand-in for libshoal, for tests of the native backend in one process: requests that are
 * complete when the test says so, and waits whose time is up when it says so. The library's group
 * is a struct stand_in here, with the last request. Nothing is freed: a test asks what has become
 * of it. */
#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "worker/shoal.h"

struct stand_in {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct shoal_request *last;
    int refuses_after; /* so many more calls, every one; -1: never */
    bool held, starting;
};

struct shoal_request {
    struct stand_in *stand_in;
    bool complete, waiting, time_up, freed;
    int result, asked;
    void (*callback)(void *argument, int result);
    void *argument;
};

/* --- what the test calls */

SHOAL_API struct stand_in *stand_in_make(void);
SHOAL_API struct shoal_request *stand_in_last(struct stand_in *stand_in);
/* After so many more collectives it refuses each. */
SHOAL_API void stand_in_refuse_after(struct stand_in *stand_in, int count);
/* Whoever starts one stays in the call until it is held no more. */
SHOAL_API void stand_in_hold(struct stand_in *stand_in, bool held);
/* Until a thread is held; false after a minute. */
SHOAL_API bool stand_in_until_starting(struct stand_in *stand_in);
/* Until a thread waits for the request; false after a minute. */
SHOAL_API bool stand_in_until_waiting(struct shoal_request *request);
/* Whoever waits finds that the time is up. */
SHOAL_API void stand_in_time_up(struct shoal_request *request);
SHOAL_API void stand_in_complete(struct shoal_request *request, int result);
/* How often the library was asked to tell of it. */
SHOAL_API int stand_in_asked(struct shoal_request *request);
SHOAL_API bool stand_in_freed(struct shoal_request *request);

struct stand_in *stand_in_make(void)
{
    struct stand_in *stand_in = calloc(1, sizeof(*stand_in));
    if (!stand_in)
        abort();
    stand_in->refuses_after = -1;
    pthread_mutex_init(&stand_in->lock, NULL);
    pthread_cond_init(&stand_in->changed, NULL);
    return stand_in;
}

struct shoal_request *stand_in_last(struct stand_in *stand_in)
{
    return stand_in->last;
}

void stand_in_refuse_after(struct stand_in *stand_in, int count)
{
    stand_in->refuses_after = count;
}

static struct timespec time_in(int milliseconds)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    long nanoseconds = end.tv_nsec + milliseconds % 1000 * 1000000L;
    end.tv_sec += milliseconds / 1000 + nanoseconds / 1000000000L;
    end.tv_nsec = nanoseconds % 1000000000L;
    return end;
}

void stand_in_hold(struct stand_in *stand_in, bool held)
{
    pthread_mutex_lock(&stand_in->lock);
    stand_in->held = held;
    pthread_cond_broadcast(&stand_in->changed);
    pthread_mutex_unlock(&stand_in->lock);
}

/* For a minute. */
static bool wait_for(struct stand_in *stand_in, const bool *flag, bool value)
{
    struct timespec end = time_in(60000);
    int code = 0;
    while (*flag != value && code == 0)
        code = pthread_cond_timedwait(&stand_in->changed, &stand_in->lock, &end);
    return code == 0;
}

static bool wait_for_locked(struct stand_in *stand_in, const bool *flag)
{
    pthread_mutex_lock(&stand_in->lock);
    bool came = wait_for(stand_in, flag, true);
    pthread_mutex_unlock(&stand_in->lock);
    return came;
}

bool stand_in_until_starting(struct stand_in *stand_in)
{
    return wait_for_locked(stand_in, &stand_in->starting);
}

bool stand_in_until_waiting(struct shoal_request *request)
{
    return wait_for_locked(request->stand_in, &request->waiting);
}

void stand_in_time_up(struct shoal_request *request)
{
    pthread_mutex_lock(&request->stand_in->lock);
    request->time_up = true;
    pthread_cond_broadcast(&request->stand_in->changed);
    pthread_mutex_unlock(&request->stand_in->lock);
}

void stand_in_complete(struct shoal_request *request, int result)
{
    pthread_mutex_lock(&request->stand_in->lock);
    request->complete = true;
    request->result = result;
    pthread_cond_broadcast(&request->stand_in->changed);
    pthread_mutex_unlock(&request->stand_in->lock);
    if (request->callback)
        request->callback(request->argument, result);
}

int stand_in_asked(struct shoal_request *request)
{
    pthread_mutex_lock(&request->stand_in->lock);
    int asked = request->asked;
    pthread_mutex_unlock(&request->stand_in->lock);
    return asked;
}

bool stand_in_freed(struct shoal_request *request)
{
    pthread_mutex_lock(&request->stand_in->lock);
    bool freed = request->freed;
    pthread_mutex_unlock(&request->stand_in->lock);
    return freed;
}

/* --- what the native backend calls */

int shoal_all_reduce(shoal_group *group, const void *send, void *recv, size_t count,
                     enum shoal_dtype dtype, enum shoal_op op, shoal_request **request)
{
    (void)send, (void)recv, (void)count, (void)dtype, (void)op;
    struct stand_in *stand_in = (struct stand_in *)group;
    pthread_mutex_lock(&stand_in->lock);
    stand_in->starting = true;
    pthread_cond_broadcast(&stand_in->changed);
    wait_for(stand_in, &stand_in->held, false);
    pthread_mutex_unlock(&stand_in->lock);
    if (stand_in->refuses_after == 0)
        return SHOAL_EMEMORY;
    if (stand_in->refuses_after > 0)
        stand_in->refuses_after--;
    struct shoal_request *made = calloc(1, sizeof(*made));
    if (!made)
        return SHOAL_EMEMORY;
    made->stand_in = stand_in;
    stand_in->last = made;
    *request = made;
    return SHOAL_OK;
}

int shoal_wait(shoal_request *request, int timeout_ms)
{
    assert(request); /* the backend never waits in it */
    struct stand_in *stand_in = request->stand_in;
    struct timespec end = time_in(timeout_ms);
    int code = 0;
    pthread_mutex_lock(&stand_in->lock);
    request->waiting = true;
    pthread_cond_broadcast(&stand_in->changed);
    while (!request->complete && !request->time_up && code == 0)
        code = pthread_cond_timedwait(&stand_in->changed, &stand_in->lock, &end);
    request->waiting = request->time_up = false;
    int result = request->complete ? request->result : SHOAL_ETIMEOUT;
    pthread_mutex_unlock(&stand_in->lock);
    return result;
}

int shoal_request_on_complete(shoal_request *request, void (*callback)(void *argument, int result),
                              void *argument)
{
    pthread_mutex_lock(&request->stand_in->lock);
    request->asked++;
    request->callback = callback;
    request->argument = argument;
    bool complete = request->complete;
    pthread_mutex_unlock(&request->stand_in->lock);
    if (complete)
        callback(argument, request->result);
    return SHOAL_OK;
}

void shoal_request_free(shoal_request *request)
{
    pthread_mutex_lock(&request->stand_in->lock);
    request->freed = true;
    pthread_mutex_unlock(&request->stand_in->lock);
}

const char *shoal_error_text(void)
{
    return "said by the stand-in";
}

const char *shoal_result_name(int code)
{
    return code == SHOAL_ELOST ? "rank lost" : "another code";
}

/* --- what it looks for, and no test calls */

void *shoal_alloc(shoal_job *job, size_t bytes)
{
    (void)job, (void)bytes;
    return NULL;
}

void shoal_free(shoal_job *job, void *memory)
{
    (void)job, (void)memory;
}

int shoal_reduce(shoal_group *group, const void *send, void *recv, size_t count,
                 enum shoal_dtype dtype, enum shoal_op op, int root, shoal_request **request)
{
    (void)group, (void)send, (void)recv, (void)count, (void)dtype, (void)op, (void)root,
        (void)request;
    return SHOAL_EUNSUPPORTED;
}

int shoal_broadcast(shoal_group *group, void *data, size_t count, enum shoal_dtype dtype, int root,
                    shoal_request **request)
{
    (void)group, (void)data, (void)count, (void)dtype, (void)root, (void)request;
    return SHOAL_EUNSUPPORTED;
}

int shoal_barrier(shoal_group *group, shoal_request **request)
{
    (void)group, (void)request;
    return SHOAL_EUNSUPPORTED;
}

int shoal_all_gather_v(shoal_group *group, const void *send, void *const recv[],
                       const size_t counts[], enum shoal_dtype dtype, shoal_request **request)
{
    (void)group, (void)send, (void)recv, (void)counts, (void)dtype, (void)request;
    return SHOAL_EUNSUPPORTED;
}

int shoal_reduce_scatter_v(shoal_group *group, const void *const send[], void *recv,
                           const size_t counts[], enum shoal_dtype dtype, enum shoal_op op,
                           shoal_request **request)
{
    (void)group, (void)send, (void)recv, (void)counts, (void)dtype, (void)op, (void)request;
    return SHOAL_EUNSUPPORTED;
}

int shoal_all_to_all_v(shoal_group *group, const void *const send[], const size_t send_counts[],
                       void *const recv[], const size_t recv_counts[], enum shoal_dtype dtype,
                       shoal_request **request)
{
    (void)group, (void)send, (void)send_counts, (void)recv, (void)recv_counts;
    (void)dtype, (void)request;
    return SHOAL_EUNSUPPORTED;
}

int shoal_gather_v(shoal_group *group, const void *send, size_t count, void *const recv[],
                   const size_t counts[], enum shoal_dtype dtype, int root, shoal_request **request)
{
    (void)group, (void)send, (void)count, (void)recv, (void)counts, (void)dtype, (void)root;
    (void)request;
    return SHOAL_EUNSUPPORTED;
}

int shoal_scatter_v(shoal_group *group, const void *const send[], const size_t counts[], void *recv,
                    size_t count, enum shoal_dtype dtype, int root, shoal_request **request)
{
    (void)group, (void)send, (void)counts, (void)recv, (void)count, (void)dtype, (void)root;
    (void)request;
    return SHOAL_EUNSUPPORTED;
}

int shoal_send(shoal_group *group, const void *data, size_t count, enum shoal_dtype dtype, int peer,
               int tag, shoal_request **request)
{
    (void)group, (void)data, (void)count, (void)dtype, (void)peer, (void)tag, (void)request;
    return SHOAL_EUNSUPPORTED;
}

int shoal_recv(shoal_group *group, void *data, size_t count, enum shoal_dtype dtype, int peer,
               int tag, shoal_request **request)
{
    (void)group, (void)data, (void)count, (void)dtype, (void)peer, (void)tag, (void)request;
    return SHOAL_EUNSUPPORTED;
}

int shoal_recv_any(shoal_group *group, void *data, size_t count, enum shoal_dtype dtype, int tag,
                   int *source, shoal_request **request)
{
    (void)group, (void)data, (void)count, (void)dtype, (void)tag, (void)source, (void)request;
    return SHOAL_EUNSUPPORTED;
}
