#include "worker/progress/progress_thread.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <utlist.h>

#include "common/base/clock.h"
#include "common/memory/copy.h"
#include "worker/job/error_text.h"
#include "worker/progress/progress_device.h"

/* How long the driver may be kept from its work by a full socket, in the one message it sends. */
#define ANSWER_MS 1000u
/* A silent daemon is asked for a sign after this part of the time that it is allowed to be silent.
 */
#define PING_SHARE 3u
/* The most that a poll does at once: it is not to keep its caller while there is a lot to do. */
#define POLL_STEPS_MAX PROGRESS_SHARED_SLOTS_MAX
#define LAST_STEPS_MAX 10000u /* a chunk each, before a group or the job fails */
#define POLLERS 3
#define LANDING_MS 1000u /* for which a device's copies are waited for then */

static void eventfd_ring(int fd)
{
    uint64_t one = 1;
    /* Fails only when it is rung already. */
    ssize_t written = write(fd, &one, sizeof(one));
    (void)written;
}

static void eventfd_clear(int fd)
{
    uint64_t value;
    ssize_t got = read(fd, &value, sizeof(value));
    (void)got;
}

/* A byte each time that it was rung; what is left rings again. */
static void doorbell_clear(int fd)
{
    char rings[64];
    ssize_t got = read(fd, rings, sizeof(rings));
    (void)got;
}

static void ring_daemon(struct shoal_job *job)
{
    if (progress_doorbell_due(&job->progress))
        eventfd_ring(job->submission_doorbell);
}

void progress_thread_notify(struct shoal_job *job)
{
    ring_daemon(job);
    if (job->driver_sleeping && progress_has_work(&job->progress))
        eventfd_ring(job->wake_fd);
    if (job->driver == JOB_DRIVER_NONE && job->background_requests > 0)
        pthread_cond_signal(&job->background);
}

void progress_thread_wake(struct shoal_job *job)
{
    if (job->driver_sleeping)
        eventfd_ring(job->wake_fd);
}

void progress_thread_adopt(struct shoal_job *job, struct shoal_request *request)
{
    if (request->background || request->core.state == REQUEST_COMPLETE)
        return;
    request->background = true;
    job->background_requests++;
}

/* --- completions --------------------------------------------------------------------------- */

static void call_back(struct shoal_job *job, struct shoal_request *called)
{
    pthread_mutex_unlock(&job->lock);
    for (struct shoal_request *request = called; request; request = request->called_next) {
        struct error error;
        int code = collective_result(request, &error);
        request->callback(request->callback_argument, code < 0 ? error_text_keep(&error) : code);
    }
    pthread_mutex_lock(&job->lock);
    while (called) {
        struct shoal_request *next = called->called_next;
        job_release_request(job, called);
        called = next;
    }
}

void progress_thread_tell(struct shoal_job *job)
{
    struct shoal_request *called = NULL, **end = &called;
    struct request *core;
    bool any = false;
    uint64_t offset;
    while (staging_next_free(&job->progress.staging, &offset))
        arena_heap_free(&job->heap, offset);
    while ((core = progress_next_completed(&job->progress))) {
        struct shoal_request *request = (struct shoal_request *)core;
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
        eventfd_ring(job->completions_fd);
    if (job->waiters > 0)
        pthread_cond_broadcast(&job->changed);
    if (called)
        call_back(job, called);
}

void progress_thread_fail(struct shoal_job *job, const struct error *error)
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
    progress_thread_tell(job);
}

/* --- the socket ---------------------------------------------------------------------------- */

static struct group_opening *find_opening(struct shoal_job *job, uint32_t request)
{
    struct group_opening *opening;
    DL_SEARCH_SCALAR(job->openings, opening, request, request);
    return opening;
}

/* Takes the message over. */
static void answer_opening(struct shoal_job *job, struct message *message)
{
    struct group_opening *opening = find_opening(job, message->request);
    bool shared = message->type == MESSAGE_SHARED_OPENED;
    int descriptor = shared ? client_take_descriptor(&job->client) : -1;
    if (opening && !opening->answered &&
        (message->type == MESSAGE_ERROR || message->type == opening->wanted)) {
        opening->answered = true;
        opening->descriptor = descriptor;
        opening->error = (struct error){0};
        if (message->type == MESSAGE_ERROR)
            error_set(&opening->error, message->code < 0 ? message->code : ERR_PROTOCOL, "%s",
                      message->text);
        opening->answer = *message;
        pthread_cond_broadcast(&job->changed);
        return;
    }
    if (descriptor >= 0)
        close(descriptor);
    if (shared || message->type == MESSAGE_WORKER_GROUP_OPENED) {
        /* The caller's time had passed: nobody here will use it. */
        struct message unwanted = {.type =
                                       shared ? MESSAGE_SHARED_CLOSE : MESSAGE_WORKER_GROUP_CLOSE,
                                   .group = message->group,
                                   .segment = message->segment};
        pthread_mutex_unlock(&job->lock);
        job_send(job, &unwanted, clock_now_ns() + ANSWER_MS * NS_PER_MS, NULL);
        pthread_mutex_lock(&job->lock);
    }
    message_clear(message);
}

static bool step(struct shoal_job *job);

/* The socket may be read before the ring: what the daemon had done by then is done all the same,
 * also when it has still to be copied to a device. The caller drives. */
static void take_what_is_done(struct shoal_job *job)
{
    uint64_t deadline_ns = clock_now_ns() + LANDING_MS * NS_PER_MS;
    for (unsigned steps = 0; steps < LAST_STEPS_MAX; steps++) {
        if (!step(job) && (clock_now_ns() >= deadline_ns || !progress_device_land(job)))
            return;
    }
}

static void fail_as_told(struct shoal_job *job, const struct message *message)
{
    struct error error;
    error_set(&error, message->code < 0 ? message->code : ERR_LOST, "%s", message->text);
    take_what_is_done(job);
    if (message->group < 0) {
        progress_thread_fail(job, &error);
        return;
    }
    struct shoal_group *group; /* callbacks have been called since: it is looked up now */
    DL_SEARCH_SCALAR(job->groups, group, core.number, (uint32_t)message->group);
    if (group) /* else it was closed meanwhile */
        progress_fail_group(&job->progress, &group->core, &error, clock_now_ns());
    progress_thread_tell(job);
}

static void hear(struct shoal_job *job)
{
    job->heard_ns = clock_now_ns();
    job->pinged_ns = 0;
}

static void read_socket(struct shoal_job *job)
{
    struct message message;
    struct error error;
    int code;
    while ((code = client_receive(&job->client, &message, &error)) > 0) {
        hear(job);
        switch (message.type) {
        case MESSAGE_WORKER_GROUP_OPENED:
        case MESSAGE_SHARED_OPENED:
        case MESSAGE_ERROR:
            answer_opening(job, &message);
            continue;
        case MESSAGE_FAILED:
            fail_as_told(job, &message);
            break;
        case MESSAGE_LEFT: /* shoal_close asks for it when nobody drives any more */
        case MESSAGE_PONG:
            break;
        default:
            code = error_set(&error, ERR_PROTOCOL, "the daemon sent \"%s\" to a running job",
                             message_type_name(message.type));
        }
        message_clear(&message);
        if (code < 0)
            break;
    }
    if (code < 0) {
        take_what_is_done(job);
        job->daemon_gone = true;
        progress_thread_fail(job, &error);
    }
}

/* Lock held, and let go meanwhile. A full socket is as good as no answer; another thread that is
 * sending is not: its time counts from when the ping has gone. */
static void send_ping(struct shoal_job *job, uint64_t now_ns)
{
    struct message ping = {.type = MESSAGE_WORKER_PING};
    pthread_mutex_unlock(&job->lock);
    bool sent = job_send_now(job, &ping);
    pthread_mutex_lock(&job->lock);
    if (sent && job->pinged_ns != 0) {
        job->pinged_ns = now_ns;
        job->ping_owed = false;
    }
}

/* A daemon that is stopped keeps its socket open. While somebody waits for it and it gives no sign
 * of life, it is asked for one; when none comes, it counts as gone. Returns when to look again. */
static uint64_t watch_daemon(struct shoal_job *job)
{
    uint64_t now_ns = clock_now_ns();
    if (job->daemon_gone || job->silence_ns == 0)
        return UINT64_MAX;
    /* The answer may have come while nobody waited, and lie in the socket since. */
    if (job->pinged_ns != 0 && now_ns >= job->pinged_ns + job->silence_ns)
        read_socket(job);
    if (job->daemon_gone)
        return UINT64_MAX;
    if (job->pinged_ns != 0 && now_ns >= job->pinged_ns + job->silence_ns) {
        struct error error;
        error_set(&error, ERR_DISCONNECTED,
                  "the daemon of this node (socket %s) has not answered for %" PRIu64 " ms",
                  job->client.path, (uint64_t)(job->silence_ns / NS_PER_MS));
        job->daemon_gone = true;
        progress_thread_fail(job, &error);
        return UINT64_MAX;
    }
    if (job->pinged_ns == 0 && now_ns >= job->heard_ns + job->silence_ns / PING_SHARE) {
        job->pinged_ns = now_ns;
        job->ping_owed = true;
    }
    if (job->pinged_ns != 0 && job->ping_owed)
        send_ping(job, now_ns);
    if (job->pinged_ns == 0)
        return job->heard_ns + job->silence_ns / PING_SHARE;
    uint64_t late_ns = job->pinged_ns + job->silence_ns;
    uint64_t again_ns = now_ns + job->silence_ns / PING_SHARE;
    return job->ping_owed && again_ns < late_ns ? again_ns : late_ns;
}

/* --- driving ------------------------------------------------------------------------------- */

/* True when something was done. */
static bool step(struct shoal_job *job)
{
    struct progress_copy copy;
    bool ended = job->device && progress_device_poll(job);
    enum progress_result result = progress_work(&job->progress, clock_now_ns(), &copy);
    if (result == PROGRESS_COPY && copy.on_device)
        result = progress_device_copy(job, &copy);
    ring_daemon(job);
    if (result == PROGRESS_COPY) {
        pthread_mutex_unlock(&job->lock);
        if (copy.past_cache) {
            copy_past_cache(copy.to, copy.from, copy.bytes);
            copy_fence();
        } else {
            memcpy(copy.to, copy.from, copy.bytes);
        }
        pthread_mutex_lock(&job->lock);
        progress_copied(&job->progress, &copy, clock_now_ns());
    }
    transfers_match(job);
    ring_daemon(job);
    progress_thread_tell(job);
    return ended || result != PROGRESS_IDLE;
}

/* What happened until the deadline, or at once when something has been found already: 0. */
static int wait_for_news(struct shoal_job *job, struct pollfd *pollers, uint64_t deadline_ns)
{
    bool connected = !job->daemon_gone;
    uint64_t watch_ns = watch_daemon(job);
    if (watch_ns < deadline_ns)
        deadline_ns = watch_ns;
    uint64_t look_ns = job->device ? device_queue_deadline_ns(job->device) : UINT64_MAX;
    if (look_ns < deadline_ns)
        deadline_ns = look_ns;
    if ((connected && job->daemon_gone) || arena_worker_prepare_sleep(&job->arena))
        return 0;
    pollers[0] = (struct pollfd){.fd = job->completion_doorbell, .events = POLLIN};
    pollers[1] = (struct pollfd){.fd = job->wake_fd, .events = POLLIN};
    pollers[2] = (struct pollfd){.fd = job->daemon_gone ? -1 : job->client.fd, .events = POLLIN};
    uint64_t now_ns = clock_now_ns();
    uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    struct timespec left = {.tv_sec = (time_t)(left_ns / NS_PER_S),
                            .tv_nsec = (long)(left_ns % NS_PER_S)};
    pthread_mutex_unlock(&job->lock);
    int ready = ppoll(pollers, POLLERS, deadline_ns == UINT64_MAX ? NULL : &left, NULL);
    pthread_mutex_lock(&job->lock);
    arena_worker_cancel_sleep(&job->arena);
    return ready;
}

static void sleep_until(struct shoal_job *job, uint64_t deadline_ns)
{
    struct pollfd pollers[POLLERS];
    if (!job->socket_read) {
        /* poll does not tell of lines that were received with an earlier one. */
        job->socket_read = true;
        read_socket(job);
        return;
    }
    /* From here on: watching the daemon lets the lock go, and what is submitted meanwhile must wake
     * this thread. */
    job->driver_sleeping = true;
    int ready = wait_for_news(job, pollers, deadline_ns);
    job->driver_sleeping = false;
    if (ready <= 0)
        return;
    if (pollers[0].revents) {
        hear(job);
        doorbell_clear(job->completion_doorbell);
    }
    if (pollers[1].revents)
        eventfd_clear(job->wake_fd);
    if (pollers[2].revents)
        read_socket(job);
}

/* Give the role away: to a waiter if there is one, else to the background thread if it needs it. */
static void release_role(struct shoal_job *job)
{
    job->driver = JOB_DRIVER_NONE;
    if (job->waiters > 0 || job->closing)
        pthread_cond_broadcast(&job->changed);
    if (job->background_requests > 0)
        pthread_cond_signal(&job->background);
}

/* False: the deadline has passed. */
static bool drive(struct shoal_job *job, bool (*done)(const void *argument), const void *argument,
                  uint64_t deadline_ns)
{
    bool in_time = true;
    job->driver = JOB_DRIVER_WAITER;
    while (!done(argument) && !job->closing) {
        bool moved = step(job);
        if (done(argument) || job->closing)
            break;
        /* Others' requests may keep the driver busy for longer than its own caller wants to wait.
         */
        if (clock_now_ns() >= deadline_ns) {
            in_time = false;
            break;
        }
        if (!moved)
            sleep_until(job, deadline_ns);
    }
    return in_time;
}

enum progress_wait progress_thread_wait(struct shoal_job *job, bool (*done)(const void *argument),
                                        const void *argument, uint64_t deadline_ns)
{
    bool in_time = true;
    job->waiters++;
    while (!done(argument) && !job->closing && in_time) {
        if (job->driver == JOB_DRIVER_NONE) {
            in_time = drive(job, done, argument, deadline_ns);
            job->waiters--;
            release_role(job);
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
        release_role(job);
    if (done(argument))
        return PROGRESS_WAIT_DONE;
    return job->closing ? PROGRESS_WAIT_CLOSING : PROGRESS_WAIT_TIMEOUT;
}

void progress_thread_poll(struct shoal_job *job)
{
    if (job->driver != JOB_DRIVER_NONE || job->closing)
        return;
    job->driver = JOB_DRIVER_WAITER;
    for (unsigned steps = 0; steps < POLL_STEPS_MAX && step(job); steps++)
        ;
    if (!job->daemon_gone)
        read_socket(job);
    watch_daemon(job);
    release_role(job);
}

static void *background(void *argument)
{
    struct shoal_job *job = argument;
    pthread_mutex_lock(&job->lock);
    while (!job->stop) {
        if (job->driver != JOB_DRIVER_NONE || job->background_requests == 0) {
            pthread_cond_wait(&job->background, &job->lock);
            continue;
        }
        job->driver = JOB_DRIVER_BACKGROUND;
        while (!job->stop && job->background_requests > 0)
            if (!step(job) && !job->stop && job->background_requests > 0)
                sleep_until(job, UINT64_MAX);
        release_role(job);
    }
    pthread_mutex_unlock(&job->lock);
    return NULL;
}

int progress_thread_start(struct shoal_job *job, struct error *error)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int code = pthread_create(&job->thread, NULL, background, job);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (code != 0)
        return error_set_errno(error, code, "cannot start the progress thread");
    pthread_setname_np(job->thread, "shoal-progress");
    job->thread_started = true;
    return 0;
}

void progress_thread_stop(struct shoal_job *job, const struct error *error)
{
    pthread_mutex_lock(&job->lock);
    job->closing = true;
    job->stop = true;
    eventfd_ring(job->wake_fd);
    pthread_cond_broadcast(&job->changed);
    pthread_cond_signal(&job->background);
    while (job->waiters > 0 || job->driver != JOB_DRIVER_NONE)
        pthread_cond_wait(&job->changed, &job->lock);
    job->driver = JOB_DRIVER_WAITER;
    /* A call may be held up by a stream that is full and goes on when requests are over. */
    progress_thread_fail(job, error);
    progress_device_settle(job);
    while (job->calls > 0)
        pthread_cond_wait(&job->changed, &job->lock);
    pthread_mutex_unlock(&job->lock);
    if (job->thread_started)
        pthread_join(job->thread, NULL);
    job->thread_started = false;
}
