/* Collectives and their requests. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <utlist.h>

#include "common/base/clock.h"
#include "worker/api/collective.h"
#include "worker/api/group.h"
#include "worker/api/place.h"
#include "worker/drive/drive.h"
#include "worker/drive/drive_device.h"
#include "worker/drive/drive_meet.h"
#include "worker/drive/drive_tell.h"
#include "worker/job/error_text.h"
#include "worker/job/job.h"
#include "worker/job/shared.h"
#include "worker/shoal.h"

/* Whether nobody's waiting moves the request on: it has chunks to hand over or to copy out. */
static bool needs_background(const struct shoal_job *job, const struct shoal_request *request,
                             enum start_mode mode)
{
    if (mode == START_WAITING)
        return job->completions_used;
    return mode == START_BACKGROUND || request->core.ask.on_device || job->completions_used ||
           request->core.block_count > 0 || request->core.copy_to || request->core.any ||
           request->core.state == REQUEST_QUEUED || request_has_chunk(&request->core) ||
           (request->core.staged && request_bytes(&request->core) > PROGRESS_SMALL_BYTES);
}

void collective_started(struct shoal_job *job, struct shoal_request *request, enum start_mode mode)
{
    request->job = job;
    request->references = 2; /* the caller's, and progress's until it is complete */
    DL_APPEND(job->requests, request);
    if (needs_background(job, request, mode))
        drive_adopt(job, request);
    /* A caller that waits at once will drive; for the others the background thread is told. */
    drive_notify(job);
}

/* Submit the checked asks as a new request, which takes the list of blocks, unless that fails.
 * Where nothing of the rank's own part is left in the ask, the caller copies it. Requests that wait
 * for the ranks of the node go to the daemon before, unless this one waits behind them. Lock held
 * before and after, not throughout. */
static int start(struct shoal_group *group, struct request_ask *ask, struct request_ask *blocks,
                 uint32_t block_count, enum start_mode mode, struct shoal_request **request,
                 struct error *error)
{
    struct shoal_job *job = group->job;
    bool meets = mode != START_BACKGROUND &&
                 drive_meet_may(group, ask, blocks, block_count, mode == START_WAITING);
    if (!ask->on_device && !(meets && drive_meet_takes_own(group, ask, blocks, block_count)))
        ask->own_bytes = 0;
    int code = meets ? 0 : drive_clear_meeting(group, error);
    if (code < 0)
        return code;
    struct shoal_request *made = malloc(sizeof(*made)); /* glibc's calloc takes longer */
    if (!made)
        return error_set(error, ERR_MEMORY, "out of memory for a request");
    *made = (struct shoal_request){.job = NULL};
    if (job->closing)
        code = error_set(error, ERR_STATE, "the job is being closed");
    else if (meets) {
        code =
            drive_meet_begin(group, ask, blocks, block_count, made, mode == START_WAITING, error);
        if (code < 0)
            free(made);
        else
            *request = made;
        return code;
    }
    drive_meet_decline(group);
    if (code < 0)
        ;
    else if (ask->on_device)
        code = drive_device_submit(job, &group->core, ask, blocks, block_count, group->rank, made,
                                   error);
    else
        code = progress_submit(&job->progress, &group->core, ask, blocks, block_count, group->rank,
                               &made->core, error);
    if (code < 0) {
        free(made);
        return code;
    }
    free(blocks);
    collective_started(job, made, mode);
    *request = made;
    return 0;
}

/* In a job that goes on by itself: copies of what the results overwrite. Lock held, and let go of
 * meanwhile. */
static int keep_sent(const struct shoal_group *group, struct request_ask *ask,
                     struct request_ask *blocks, uint32_t block_count, struct error *error)
{
    struct shoal_job *job = group->job;
    if (!job->progress.keeps || ask->on_device)
        return 0;
    int code = request_keep_sent(&job->kept_memory, ask, blocks, block_count, group->rank, error);
    if (code < 0)
        return code;
    pthread_mutex_unlock(&job->lock);
    request_copy_sent(ask, blocks, block_count);
    pthread_mutex_lock(&job->lock);
    return 0;
}

int collective_start(struct shoal_group *group, const struct request_ask *ask, enum start_mode mode,
                     struct shoal_request **request, struct error *error)
{
    struct shoal_job *job = group->job;
    int code = job_check(job, error);
    if (code == 0)
        code = request_check(ask, group->rank, group->size, error);
    if (code < 0)
        return code;
    pthread_mutex_lock(&job->lock);
    struct request_ask kept = *ask;
    code = keep_sent(group, &kept, NULL, 0, error);
    if (code == 0)
        code = start(group, &kept, NULL, 0, mode, request, error);
    if (code < 0)
        request_forget_kept(&kept, NULL, 0);
    pthread_mutex_unlock(&job->lock);
    return code;
}

/* The request is not to wait for somebody to wait for it; lock held. If all ranks have come by now,
 * the background thread sees to it. */
static void meet_no_more(struct shoal_request *request)
{
    if (request->core.state == REQUEST_MEETING)
        drive_meet_settle_now((struct shoal_group *)request->core.group);
}

/* Drop the caller's reference; lock held. Its data must still move on, with nobody to wait for it.
 */
static void forget_request(struct shoal_job *job, struct shoal_request *request)
{
    meet_no_more(request);
    /* Requests that are still at the place have all ranks, or wait behind one that has. */
    if (request->core.state != REQUEST_MEETING ||
        !drive_meet_watch((struct shoal_group *)request->core.group))
        drive_adopt(job, request);
    drive_notify(job);
    if (request->core.state == REQUEST_MEETING)
        drive_call_background(job);
    job_release_request(job, request);
}

/* Wait for the request and free it; with forget, free it even when the time has passed. Lock held
 * before and after. */
static int wait_for_request(struct shoal_request *request, int timeout_ms, bool forget,
                            struct error *error)
{
    struct shoal_job *job = request->job;
    bool complete = request->core.state == REQUEST_COMPLETE; /* small ones often are */
    uint64_t deadline_ns = complete ? 0 : job_deadline_ns(job, timeout_ms);
    if (request->core.state == REQUEST_MEETING)
        drive_wait_meeting(request, deadline_ns);
    drive_listen(job);
    enum drive_end end = drive_wait(job, job_request_complete, request, deadline_ns);
    int code;
    if (end == DRIVE_CLOSING) {
        code = error_set(error, ERR_STATE, "the job was closed while a collective was waited for");
    } else if (end == DRIVE_TIMEOUT) {
        char what[512], who[64] = "";
        uint32_t rank;
        request_describe(&request->core, request->core.group->number, what, sizeof(what));
        if (request->core.state == REQUEST_MEETING &&
            drive_meet_waits_for((struct shoal_group *)request->core.group, &rank))
            snprintf(who, sizeof(who), ": rank %" PRIu32 " of the group does not go on", rank);
        /* PyTorch's backends quote the part behind "have passed: ". */
        code = error_set(error, ERR_TIMEOUT, "%d ms have passed: %s%s",
                         timeout_ms < 0 ? job->timeout_ms : timeout_ms, what, who);
    } else {
        code = job_request_result(request, error);
    }
    if (end == DRIVE_TIMEOUT && forget)
        forget_request(job, request);
    else if (end == DRIVE_DONE)
        job_release_request(job, request);
    return code;
}

int collective_wait(struct shoal_request *request, struct error *error)
{
    struct shoal_job *job = request->job;
    pthread_mutex_lock(&job->lock);
    int code = wait_for_request(request, -1, true, error);
    pthread_mutex_unlock(&job->lock);
    return code;
}

/* Where results lie in shared memory; lock held. */
static int shared_check(const struct shoal_group *group, struct request_ask *ask,
                        struct request_ask *blocks, uint32_t block_count, struct error *error)
{
    int code =
        shared_refuse(group->job, collective_name(ask->kind), ask->own_to, ask->own_bytes, error);
    if (code == 0)
        code = shared_locate(group, ask, error);
    for (uint32_t i = 0; i < block_count && code == 0; i++)
        code = shared_locate(group, &blocks[i], error);
    if (code == 0 && ask->shared && ask->on_device)
        code = error_set(error, ERR_INVALID,
                         "all_reduce: the result is in shared memory, and the data on a device");
    return code;
}

/* Start the collective with what this thread has set on the group; lock held, so that shared memory
 * that is found here is not given back before the collective uses it. */
static int start_as_set(struct shoal_group *group, struct request_ask *ask,
                        struct request_ask *blocks, uint32_t block_count, enum start_mode mode,
                        struct shoal_request **request, struct error *error)
{
    struct group_settings settings = group_settings_read(group);
    ask->priority = settings.priority;
    ask->identity = collective_in_shards(ask->kind) ? settings.identity : 0;
    ask->on_device = settings.on_device;
    ask->stream = settings.stream;
    for (uint32_t i = 0; i < block_count; i++) {
        blocks[i].priority = ask->priority;
        blocks[i].on_device = ask->on_device;
    }
    int code = keep_sent(group, ask, blocks, block_count, error);
    if (code == 0 && group->job->shared)
        code = shared_check(group, ask, blocks, block_count, error);
    /* place_look keeps the lock where a result is shared, since such a collective has no place to
     * meet. */
    if (code == 0)
        place_look(group, ask, blocks, block_count);
    if (code == 0)
        code = start(group, ask, blocks, block_count, mode, request, error);
    if (code < 0)
        request_forget_kept(ask, blocks, block_count);
    return code;
}

/* Lock held before and after, not throughout. It takes the list of blocks, unless that fails. */
static int call_locked(struct shoal_group *group, struct request_ask *ask,
                       struct request_ask *blocks, uint32_t block_count, enum start_mode mode,
                       struct shoal_request **request, struct error *error)
{
    /* To make way lets the lock go: before shared memory is looked for. */
    int code = group->job->shared ? drive_clear_meeting(group, error) : 0;
    drive_meet_settle_quietly(group);
    if (code == 0)
        code = start_as_set(group, ask, blocks, block_count, mode, request, error);
    return code;
}

int collective_call(struct shoal_group *group, struct request_ask *ask, struct request_ask *blocks,
                    uint32_t block_count, struct shoal_request **request)
{
    struct error error;
    struct shoal_job *job = group->job;
    struct shoal_request *made = NULL;
    int code = job_enter(job, &error);
    if (code == 0) {
        pthread_mutex_lock(&job->lock);
        code = call_locked(group, ask, blocks, block_count, request ? START_ASYNC : START_WAITING,
                           &made, &error);
        bool started = code == 0;
        assert(!started || (made && made->job));
        if (started && !request)
            code = wait_for_request(made, -1, true, &error);
        pthread_mutex_unlock(&job->lock);
        job_leave(job);
    }
    if (!made)
        free(blocks);
    if (code < 0)
        return error_text_keep(&error);
    if (request)
        *request = made;
    return SHOAL_OK;
}

/* A collective that travels whole. */
static int call_whole(struct shoal_group *group, struct request_ask *ask,
                      struct shoal_request **request)
{
    struct error error;
    if (group_check(group, &error) < 0 || request_check(ask, group->rank, group->size, &error) < 0)
        return error_text_keep(&error);
    return collective_call(group, ask, NULL, 0, request);
}

int shoal_all_reduce(shoal_group *group, const void *send, void *recv, size_t count,
                     enum shoal_dtype dtype, enum shoal_op op, shoal_request **request)
{
    struct request_ask ask = {.kind = COLLECTIVE_ALL_REDUCE,
                              .dtype = (enum dtype)dtype,
                              .op = (enum reduce_op)op,
                              .count = count,
                              .send = send,
                              .recv = recv};
    return call_whole(group, &ask, request);
}

int shoal_reduce(shoal_group *group, const void *send, void *recv, size_t count,
                 enum shoal_dtype dtype, enum shoal_op op, int root, shoal_request **request)
{
    struct request_ask ask = {.kind = COLLECTIVE_REDUCE,
                              .dtype = (enum dtype)dtype,
                              .op = (enum reduce_op)op,
                              .root = (uint32_t)root,
                              .count = count,
                              .send = send,
                              .recv = recv};
    return call_whole(group, &ask, request);
}

int shoal_broadcast(shoal_group *group, void *data, size_t count, enum shoal_dtype dtype, int root,
                    shoal_request **request)
{
    struct request_ask ask = {.kind = COLLECTIVE_BROADCAST,
                              .dtype = (enum dtype)dtype,
                              .root = (uint32_t)root,
                              .count = count,
                              .send = data,
                              .recv = data};
    return call_whole(group, &ask, request);
}

int shoal_barrier(shoal_group *group, shoal_request **request)
{
    struct request_ask ask = {.kind = COLLECTIVE_BARRIER};
    return call_whole(group, &ask, request);
}

int shoal_test(shoal_request *request)
{
    struct error error;
    if (!request) {
        error_set(&error, ERR_INVALID, "shoal_test: request is NULL");
        return error_text_keep(&error);
    }
    struct shoal_job *job = request->job;
    if (job_check(job, &error) < 0)
        return error_text_keep(&error);
    pthread_mutex_lock(&job->lock);
    if (request->core.state == REQUEST_MEETING)
        drive_meet_settle((struct shoal_group *)request->core.group);
    if (request->core.state != REQUEST_COMPLETE)
        drive_poll(job);
    int code = request->core.state == REQUEST_COMPLETE
                   ? job_request_result(request, &error)
                   : error_set(&error, ERR_AGAIN, "not complete yet");
    pthread_mutex_unlock(&job->lock);
    if (code == ERR_AGAIN)
        return SHOAL_EAGAIN; /* not a failure: the last error's text stays */
    return code < 0 ? error_text_keep(&error) : SHOAL_OK;
}

int shoal_wait(shoal_request *request, int timeout_ms)
{
    struct error error;
    if (!request || timeout_ms < -1) {
        error_set(&error, ERR_INVALID, "shoal_wait: %s",
                  request ? "timeout_ms is less than -1" : "request is NULL");
        return error_text_keep(&error);
    }
    struct shoal_job *job = request->job; /* the request may be freed */
    if (job_check(job, &error) < 0)
        return error_text_keep(&error);
    pthread_mutex_lock(&job->lock);
    int code = wait_for_request(request, timeout_ms, false, &error);
    pthread_mutex_unlock(&job->lock);
    return code < 0 ? error_text_keep(&error) : SHOAL_OK;
}

struct any_of {
    shoal_request *const *requests;
    size_t count;
};

/* The first that is complete; count: none is. */
static size_t any_complete(const struct any_of *any)
{
    size_t i = 0;
    while (i < any->count && !(any->requests[i] && job_request_complete(any->requests[i])))
        i++;
    return i;
}

static bool any_is_complete(const void *argument)
{
    return any_complete(argument) < ((const struct any_of *)argument)->count;
}

/* The requests' job. NULL: there is none, or more than one. */
static struct shoal_job *any_job(const struct any_of *any, struct error *error)
{
    struct shoal_job *job = NULL;
    for (size_t i = 0; i < any->count; i++) {
        if (!any->requests[i])
            continue;
        if (job && any->requests[i]->job != job) {
            error_set(error, ERR_INVALID, "shoal_wait_any: requests of two jobs");
            return NULL;
        }
        job = any->requests[i]->job;
    }
    if (!job)
        error_set(error, ERR_INVALID, "shoal_wait_any: there is no request");
    return job;
}

/* Leave requests that wait for the ranks of their node to the background thread, or to the daemon;
 * lock held, not throughout. */
static int any_leave_meeting(const struct any_of *any, struct error *error)
{
    for (size_t i = 0; i < any->count && !any_is_complete(any); i++) {
        const shoal_request *request = any->requests[i];
        if (!request || request->core.state != REQUEST_MEETING)
            continue;
        struct shoal_group *group = (struct shoal_group *)request->core.group;
        if (!drive_meet_settle(group) && !drive_meet_watch(group) &&
            drive_clear_meeting(group, error) < 0)
            return error->code;
    }
    return 0;
}

/* Lock held before and after. */
static int wait_for_any(struct shoal_job *job, const struct any_of *any, size_t *index,
                        int timeout_ms, struct error *error)
{
    uint64_t deadline_ns = job_deadline_ns(job, timeout_ms);
    int code = any_leave_meeting(any, error);
    if (code < 0)
        return code;
    drive_listen(job);
    enum drive_end end = drive_wait(job, any_is_complete, any, deadline_ns);
    if (end == DRIVE_CLOSING)
        return error_set(error, ERR_STATE, "the job was closed while requests were waited for");
    if (end == DRIVE_TIMEOUT)
        return error_set(error, ERR_TIMEOUT, "%d ms have passed: none of the requests is complete",
                         timeout_ms < 0 ? job->timeout_ms : timeout_ms);
    *index = any_complete(any);
    struct shoal_request *request = any->requests[*index];
    code = job_request_result(request, error);
    job_release_request(job, request);
    return code;
}

int shoal_wait_any(shoal_request *const requests[], size_t count, size_t *index, int timeout_ms)
{
    struct error error;
    if ((count > 0 && !requests) || !index || timeout_ms < -1) {
        error_set(&error, ERR_INVALID, "shoal_wait_any: %s",
                  !index                     ? "index is NULL"
                  : (count > 0 && !requests) ? "requests is NULL"
                                             : "timeout_ms is less than -1");
        return error_text_keep(&error);
    }
    const struct any_of any = {requests, count};
    *index = count;
    struct shoal_job *job = any_job(&any, &error);
    if (!job || job_check(job, &error) < 0)
        return error_text_keep(&error);
    pthread_mutex_lock(&job->lock);
    int code = wait_for_any(job, &any, index, timeout_ms, &error);
    pthread_mutex_unlock(&job->lock);
    return code < 0 ? error_text_keep(&error) : SHOAL_OK;
}

void shoal_request_free(shoal_request *request)
{
    struct error error;
    if (!request || job_check(request->job, &error) < 0)
        return; /* a forked child has nothing of the job to free, and must not touch the arena */
    struct shoal_job *job = request->job;
    pthread_mutex_lock(&job->lock);
    forget_request(job, request);
    pthread_mutex_unlock(&job->lock);
}

int shoal_request_on_complete(shoal_request *request, void (*callback)(void *argument, int result),
                              void *argument)
{
    struct error error;
    if (!request || !callback) {
        error_set(&error, ERR_INVALID, "shoal_request_on_complete: %s is NULL",
                  request ? "callback" : "request");
        return error_text_keep(&error);
    }
    struct shoal_job *job = request->job;
    if (job_check(job, &error) < 0)
        return error_text_keep(&error);
    pthread_mutex_lock(&job->lock);
    if (request->callback) {
        error_set(&error, ERR_STATE, "the request has a callback already");
        pthread_mutex_unlock(&job->lock);
        return error_text_keep(&error);
    }
    struct shoal_group *group = (struct shoal_group *)request->core.group;
    if (request->core.state == REQUEST_MEETING && !drive_meet_watch(group) &&
        drive_clear_meeting(group, &error) < 0) {
        pthread_mutex_unlock(&job->lock);
        return error_text_keep(&error);
    }
    /* A request that is complete and not told yet is the driver's: the driver calls what is set
     * here. */
    bool complete = request->told;
    request->callback = callback;
    request->callback_argument = argument;
    int result = complete ? job_request_result(request, &error) : 0;
    if (!complete && request->core.state != REQUEST_MEETING) {
        drive_adopt(job, request);
        drive_notify(job);
    }
    pthread_mutex_unlock(&job->lock);
    if (complete)
        callback(argument, result < 0 ? error_text_keep(&error) : SHOAL_OK);
    return SHOAL_OK;
}

int shoal_completions_descriptor(shoal_job *job)
{
    struct shoal_request *request;
    struct error error;
    if (job_check(job, &error) < 0)
        return error_text_keep(&error);
    pthread_mutex_lock(&job->lock);
    job->completions_used = true;
    DL_FOREACH(job->requests, request)
    {
        drive_adopt(job, request);
    }
    drive_notify(job);
    int fd = job->completions_fd;
    pthread_mutex_unlock(&job->lock);
    return fd;
}

int shoal_completions_clear(shoal_job *job)
{
    struct error error;
    uint64_t value;
    if (job_check(job, &error) < 0) /* the count is the parent's too */
        return error_text_keep(&error);
    ssize_t got = read(job->completions_fd, &value, sizeof(value));
    (void)got; /* nothing to read is fine */
    return SHOAL_OK;
}
