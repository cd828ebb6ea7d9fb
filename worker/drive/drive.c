#include "worker/drive/drive.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "worker/drive/drive_device.h"
#include "worker/drive/drive_meet.h"
#include "worker/drive/drive_resume.h"
#include "worker/drive/drive_sleep.h"
#include "worker/drive/drive_socket.h"
#include "worker/drive/drive_step.h"
#include "worker/drive/drive_tell.h"

/* The most that a poll does at once: it is not to keep its caller while there is a lot to do. */
#define POLL_STEPS_MAX 64u
/* How often the socket is read while nobody waits for the daemon. */
#define LISTEN_MS 5u
/* How often groups are looked after while their thread waits for another one. */
#define OTHERS_MS 1u

void drive_release(struct shoal_job *job)
{
    if (job->device)
        device_let_go(job->device->device);
    job->driver = JOB_DRIVER_NONE;
    if (job->waiters > 0 || job->closing)
        pthread_cond_broadcast(&job->changed);
    bool deaf = job->progress.keeps && !job->listening;
    if (job->background_requests > 0 || job->resuming || deaf)
        drive_call_background(job);
}

/* Whether no waiter and not the background thread is to have the role of the driver. */
static bool drive_gives_way(const struct shoal_job *job)
{
    return job->closing || job->resuming || job->claims > 0;
}

bool drive_claim(struct shoal_job *job)
{
    job->claims++;
    job->waiters++;
    if (job->driver != JOB_DRIVER_NONE)
        drive_ring(job->wake_fd);
    while (job->driver != JOB_DRIVER_NONE && !job->closing)
        pthread_cond_wait(&job->changed, &job->lock);
    job->waiters--;
    job->claims--;
    if (job->closing) {
        pthread_cond_broadcast(&job->changed); /* shoal_close waits for the last waiter */
        return false;
    }
    job->driver = JOB_DRIVER_WAITER;
    return true;
}

/* False: the deadline has passed. */
static bool drive_until(struct shoal_job *job, bool (*done)(const void *argument),
                        const void *argument, uint64_t deadline_ns)
{
    bool in_time = true;
    job->driver = JOB_DRIVER_WAITER;
    while (!done(argument) && !drive_gives_way(job)) {
        bool moved = drive_step(job);
        if (done(argument) || drive_gives_way(job))
            break;
        /* Others' requests may keep the driver busy for longer than its own caller wants to wait.
         */
        if (clock_now_ns() >= deadline_ns) {
            in_time = false;
            break;
        }
        if (!moved)
            drive_sleep(job, deadline_ns);
    }
    return in_time;
}

enum drive_end drive_wait(struct shoal_job *job, bool (*done)(const void *argument),
                          const void *argument, uint64_t deadline_ns)
{
    bool in_time = true;
    job->waiters++;
    while (!done(argument) && !job->closing && in_time) {
        if (job->driver == JOB_DRIVER_NONE && !drive_gives_way(job)) {
            in_time = drive_until(job, done, argument, deadline_ns);
            job->waiters--;
            drive_release(job);
            job->waiters++;
            continue;
        }
        struct timespec until = {.tv_sec = (time_t)(deadline_ns / NS_PER_S),
                                 .tv_nsec = (long)(deadline_ns % NS_PER_S)};
        if (pthread_cond_timedwait(&job->changed, &job->lock, &until) == ETIMEDOUT &&
            !done(argument))
            in_time = false;
    }
    job->waiters--;
    if (job->closing)
        pthread_cond_broadcast(&job->changed); /* shoal_close waits for the last waiter */
    /* A broadcast that offered the role may have gone to this thread, which does not take it. */
    if (job->driver == JOB_DRIVER_NONE)
        drive_release(job);
    if (done(argument))
        return DRIVE_DONE;
    return job->closing ? DRIVE_CLOSING : DRIVE_TIMEOUT;
}

void drive_poll(struct shoal_job *job)
{
    if (job->driver != JOB_DRIVER_NONE || drive_gives_way(job))
        return;
    job->driver = JOB_DRIVER_WAITER;
    for (unsigned steps = 0; steps < POLL_STEPS_MAX && drive_step(job); steps++)
        ;
    if (!job->daemon_gone)
        drive_socket_read(job);
    drive_socket_watch(job);
    drive_release(job);
}

void drive_listen(struct shoal_job *job)
{
    uint64_t now_ns = clock_tick_ns();
    if (now_ns < job->listened_ns + LISTEN_MS * NS_PER_MS)
        return;
    job->listened_ns = now_ns;
    drive_poll(job);
}

void drive_wait_meeting(struct shoal_request *request, uint64_t deadline_ns)
{
    struct shoal_job *job = request->job;
    struct shoal_group *group = (struct shoal_group *)request->core.group;
    struct place_memory *memory = drive_meet_begin_wait(group);
    job->waiters++;
    while (request->core.state == REQUEST_MEETING && !job->closing) {
        if (drive_meet_settle(group) || clock_now_ns() >= deadline_ns)
            break;
        drive_listen(job);
        drive_socket_say_held(job);
        if (request->core.state == REQUEST_MEETING)
            drive_meet_pause(group, deadline_ns);
    }
    drive_meet_end_wait(job, memory);
    job->waiters--;
    if (job->closing)
        pthread_cond_broadcast(&job->changed); /* shoal_close waits for the last waiter */
}

int drive_clear_meeting(struct shoal_group *group, struct error *error)
{
    struct shoal_job *job = group->job;
    if (drive_meet_settle_now(group))
        return 0;
    uint64_t deadline_ns = job_deadline_ns(job, -1);
    bool in_time = true;
    /* Whoever listens to the daemon may call back: not this thread. */
    drive_meet_watch(group);
    job->waiters++;
    group->core.request_count++; /* it is not closed */
    while (in_time && !drive_meet_settle_now(group) && !job->closing) {
        /* The others may wait for this rank in another group: perhaps no thread else looks. */
        uint64_t look_ns = clock_now_ns() + OTHERS_MS * NS_PER_MS;
        bool others = drive_meet_settle_others(group);
        drive_meet_pause(group, others && look_ns < deadline_ns ? look_ns : deadline_ns);
        drive_socket_say_held(job);
        in_time = clock_now_ns() < deadline_ns;
    }
    group->core.request_count--;
    job->waiters--;
    if (job->closing)
        pthread_cond_broadcast(&job->changed);
    if (in_time)
        return 0;
    uint32_t rank;
    char who[32] = "one that reduces";
    if (drive_meet_waits_for(group, &rank))
        snprintf(who, sizeof(who), "rank %" PRIu32 " of it", rank);
    return error_set(error, ERR_TIMEOUT,
                     "the time has passed: all ranks have come to the collective before on group "
                     "%" PRIu32 ", and %s does not go on",
                     group->core.number, who);
}

/* Until there is something to do, or the meeting places are to be looked after. */
static void background_rest(struct shoal_job *job, uint64_t keep_ns)
{
    struct timespec until = {.tv_sec = (time_t)(keep_ns / NS_PER_S),
                             .tv_nsec = (long)(keep_ns % NS_PER_S)};
    if (job->progress.keeps && job->driver == JOB_DRIVER_NONE && !job->daemon_gone &&
        !job->progress.failed) {
        if (drive_listen_until(job, keep_ns ? keep_ns : UINT64_MAX))
            drive_poll(job);
    } else if (drive_meet_stand_by(job, keep_ns)) {
        drive_listen(job);
    } else if (keep_ns == 0) {
        pthread_cond_wait(&job->background, &job->lock);
    } else {
        pthread_cond_timedwait(&job->background, &job->lock, &until);
    }
}

static void *drive_background(void *argument)
{
    struct shoal_job *job = argument;
    pthread_mutex_lock(&job->lock);
    while (!job->stop) {
        uint64_t keep_ns = drive_meet_keep(job);
        if (drive_socket_say_held(job))
            continue; /* much may have changed meanwhile */
        if (job->stop)
            break;
        if (job->driver != JOB_DRIVER_NONE || job->claims > 0 ||
            (job->background_requests == 0 && !job->resuming)) {
            background_rest(job, keep_ns);
            continue;
        }
        job->driver = JOB_DRIVER_BACKGROUND;
        if (job->resuming)
            drive_resume(job);
        while (!job->stop && !drive_gives_way(job) && job->background_requests > 0) {
            keep_ns = drive_meet_keep(job);
            if (drive_socket_say_held(job))
                continue;
            if (!drive_step(job) && !job->stop && !drive_gives_way(job) &&
                job->background_requests > 0)
                drive_sleep(job, keep_ns ? keep_ns : UINT64_MAX);
        }
        drive_release(job);
    }
    pthread_mutex_unlock(&job->lock);
    return NULL;
}

int drive_start(struct shoal_job *job, struct error *error)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int code = pthread_create(&job->thread, NULL, drive_background, job);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (code != 0)
        return error_set_errno(error, code, "cannot start the progress thread");
    pthread_setname_np(job->thread, "shoal-progress");
    job->thread_started = true;
    return 0;
}

void drive_stop(struct shoal_job *job, const struct error *error)
{
    pthread_mutex_lock(&job->lock);
    job->closing = true;
    job->stop = true;
    drive_ring(job->wake_fd);
    pthread_cond_broadcast(&job->changed);
    drive_call_background(job);
    while (job->waiters > 0 || job->driver != JOB_DRIVER_NONE)
        pthread_cond_wait(&job->changed, &job->lock);
    job->driver = JOB_DRIVER_WAITER;
    job->abrupt = drive_meet_leave(job);
    /* A call may be held up by a stream that is full and goes on when requests are over. */
    drive_fail(job, error);
    drive_device_settle(job);
    while (job->calls > 0)
        pthread_cond_wait(&job->changed, &job->lock);
    pthread_mutex_unlock(&job->lock);
    if (job->thread_started)
        pthread_join(job->thread, NULL);
    job->thread_started = false;
}
