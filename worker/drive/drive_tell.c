#include "worker/drive/drive_tell.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utlist.h>

#include "common/base/clock.h"
#include "worker/job/error_text.h"

void drive_ring(int fd)
{
    uint64_t one = 1;
    /* Fails only when it is rung already. */
    ssize_t written = write(fd, &one, sizeof(one));
    (void)written;
}

void drive_ring_gate(_Atomic uint32_t *gate, int most)
{
    syscall(SYS_futex, gate, FUTEX_WAKE, most, NULL, NULL, 0);
}

void drive_ring_daemon(struct shoal_job *job)
{
    if (progress_doorbell_due(&job->progress))
        drive_ring(job->submission_doorbell);
}

void drive_call_background(struct shoal_job *job)
{
    pthread_cond_signal(&job->background);
    if (job->listening)
        drive_ring(job->listen_fd);
    if (job->gate) {
        /* The other ranks that sleep there find that nothing has changed for them. */
        atomic_fetch_add(job->gate, 1);
        drive_ring_gate(job->gate, INT_MAX);
    }
}

void drive_notify(struct shoal_job *job)
{
    drive_ring_daemon(job);
    if (job->driver_sleeping && progress_has_work(&job->progress))
        drive_ring(job->wake_fd);
    if (job->driver == JOB_DRIVER_NONE && job->background_requests > 0)
        drive_call_background(job);
}

void drive_wake(struct shoal_job *job)
{
    if (job->driver_sleeping)
        drive_ring(job->wake_fd);
}

void drive_adopt(struct shoal_job *job, struct shoal_request *request)
{
    if (request->background || request->core.state == REQUEST_COMPLETE)
        return;
    request->background = true;
    job->background_requests++;
}

/* --- completions --------------------------------------------------------------------------- */

static void tell_call_back(struct shoal_job *job, struct shoal_request *called)
{
    if (job->device)
        device_let_go(job->device->device);
    pthread_mutex_unlock(&job->lock);
    for (struct shoal_request *request = called; request; request = request->called_next) {
        struct error error;
        int code = job_request_result(request, &error);
        request->callback(request->callback_argument, code < 0 ? error_text_keep(&error) : code);
    }
    pthread_mutex_lock(&job->lock);
    while (called) {
        struct shoal_request *next = called->called_next;
        job_release_request(job, called);
        called = next;
    }
}

void drive_tell(struct shoal_job *job)
{
    struct shoal_request *called = NULL, **end = &called;
    struct request *core;
    bool any = false;
    uint64_t offset;
    while (staging_next_free(&job->progress.staging, &offset))
        arena_heap_free(&job->heap, offset);
    while ((core = progress_next_completed(&job->progress))) {
        struct shoal_request *request = (struct shoal_request *)core;
        if (core->ask.internal)
            continue;
        any = true;
        request->told = true;
        if (core->ask.on_device)
            device_queue_leave(job->device, core, &request->ticket);
        if (request->background)
            job->background_requests--;
        if (request->callback) {
            request->called_next = NULL;
            *end = request;
            end = &request->called_next;
        } else {
            job_release_request(job, request);
        }
    }
    if (!any)
        return;
    if (job->completions_used)
        drive_ring(job->completions_fd);
    if (job->waiters > 0)
        pthread_cond_broadcast(&job->changed);
    if (called)
        tell_call_back(job, called);
}

void drive_tell_quietly(struct shoal_job *job)
{
    struct request *core;
    bool calls = false;
    DL_FOREACH2(job->progress.completed, core, queue_next)
    {
        calls |= !core->ask.internal && ((struct shoal_request *)core)->callback;
    }
    if (calls)
        drive_call_background(job);
    else
        drive_tell(job);
}

void drive_fail(struct shoal_job *job, const struct error *error)
{
    progress_fail(&job->progress, error, clock_now_ns());
    struct group_opening *opening;
    DL_FOREACH(job->openings, opening)
    {
        if (!opening->answered) {
            opening->answered = true;
            opening->error = job->progress.failure;
        }
    }
    pthread_cond_broadcast(&job->changed);
    drive_tell(job);
}
