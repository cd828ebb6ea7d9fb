#include "worker/drive/drive_socket.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>
#include <utlist.h>

#include "common/base/clock.h"
#include "worker/drive/drive_step.h"
#include "worker/drive/drive_tell.h"

/* How long the driver may be kept from its work by a full socket, in the one message it sends. */
#define ANSWER_MS 1000u
/* A silent daemon is asked for a sign after this part of the time that it is allowed to be silent.
 */
#define PING_SHARE 3u

static struct group_opening *socket_find_opening(struct shoal_job *job, uint32_t request)
{
    struct group_opening *opening;
    DL_SEARCH_SCALAR(job->openings, opening, request, request);
    return opening;
}

/* Takes the message over. */
static void socket_answer_opening(struct shoal_job *job, struct message *message)
{
    struct group_opening *opening = socket_find_opening(job, message->request);
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

/* The job has failed, and goes on by itself if no rank is lost (drive_resume.h). False: it cannot.
 */
static bool socket_goes_on(struct shoal_job *job, const struct error *error)
{
    bool device = job->device || job->device_opening;
    bool ended = job->restart_ms > 0 && error->code == ERR_DISCONNECTED;
    bool lost = error->code == ERR_LOST || error->code == ERR_REFUSED || ended;
    if (!job->progress.keeps || !lost || device || job->shared || job->reconfiguring ||
        job->closing || !progress_stop(&job->progress))
        return false;
    struct group_opening *opening;
    DL_FOREACH(job->openings, opening)
    {
        if (!opening->answered) {
            opening->answered = true;
            error_set(&opening->error, ERR_AGAIN, "%s", error->text);
        }
    }
    job->losses++;
    job->resuming = true;
    job->resume_cause = *error;
    pthread_cond_broadcast(&job->changed);
    drive_call_background(job);
    return true;
}

static void socket_fail_as_told(struct shoal_job *job, const struct message *message)
{
    struct error error;
    error_set(&error, message->code < 0 ? message->code : ERR_LOST, "%s", message->text);
    drive_finish(job);
    if (message->group < 0) {
        if (!socket_goes_on(job, &error))
            drive_fail(job, &error);
        return;
    }
    struct shoal_group *group; /* callbacks have been called since: it is looked up now */
    DL_SEARCH_SCALAR(job->groups, group, core.number, (uint32_t)message->group);
    if (group) /* else it was closed meanwhile */
        progress_fail_group(&job->progress, &group->core, &error, clock_now_ns());
    drive_tell(job);
}

void drive_socket_say_waits(const struct shoal_job *job, const char *text)
{
    struct error waits; /* shows what a terminal would obey */
    error_set(&waits, ERR_AGAIN, "%s", text);
    fprintf(stderr, "shoal: rank %d waits: %s\n", job->rank, waits.text);
}

void drive_socket_heard(struct shoal_job *job)
{
    job->heard_ns = clock_now_ns();
    job->pinged_ns = 0;
}

void drive_socket_read(struct shoal_job *job)
{
    struct message message;
    struct error error;
    int code;
    while ((code = client_receive(&job->client, &message, &error)) > 0) {
        drive_socket_heard(job);
        switch (message.type) {
        case MESSAGE_WORKER_GROUP_OPENED:
        case MESSAGE_SHARED_OPENED:
        case MESSAGE_ERROR:
            socket_answer_opening(job, &message);
            continue;
        case MESSAGE_FAILED:
            socket_fail_as_told(job, &message);
            break;
        case MESSAGE_WAITING:
            drive_socket_say_waits(job, message.text);
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
        drive_finish(job);
        job->daemon_gone = true;
        if (!socket_goes_on(job, &error))
            drive_fail(job, &error);
    }
}

/* Lock held, and let go meanwhile. A full socket is as good as no answer; another thread that is
 * sending is not: its time counts from when the ping has gone. */
static void socket_send_ping(struct shoal_job *job, uint64_t now_ns)
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

bool drive_socket_say_held(struct shoal_job *job)
{
    struct message held = {.type = MESSAGE_HELD,
                           .group = (int32_t)job->hold.group,
                           .rank = (int32_t)job->hold.rank,
                           .sequence = job->hold.number};
    if (!job->hold.due || job->daemon_gone || job->apart)
        return false;
    job->hold.due = false; /* a full socket is as good as none: it is said again */
    job_begin_saying(job);
    pthread_mutex_unlock(&job->lock);
    job_send_now(job, &held);
    pthread_mutex_lock(&job->lock);
    job_end_saying(job);
    return true;
}

uint64_t drive_socket_watch(struct shoal_job *job)
{
    uint64_t now_ns = clock_now_ns();
    /* Between two generations the calls that go on have their own limits, and nothing is asked. */
    if (job->daemon_gone || job->apart || job->silence_ns == 0)
        return UINT64_MAX;
    /* The answer may have come while nobody waited, and lie in the socket since. */
    if (job->pinged_ns != 0 && now_ns >= job->pinged_ns + job->silence_ns)
        drive_socket_read(job);
    if (job->daemon_gone)
        return UINT64_MAX;
    if (job->pinged_ns != 0 && now_ns >= job->pinged_ns + job->silence_ns) {
        struct error error;
        error_set(&error, ERR_DISCONNECTED,
                  "the daemon of this node (socket %s) has not answered for %" PRIu64 " ms",
                  job->client.path, (uint64_t)(job->silence_ns / NS_PER_MS));
        job->daemon_gone = true;
        drive_fail(job, &error);
        return UINT64_MAX;
    }
    if (job->pinged_ns == 0 && now_ns >= job->heard_ns + job->silence_ns / PING_SHARE) {
        job->pinged_ns = now_ns;
        job->ping_owed = true;
    }
    if (job->pinged_ns != 0 && job->ping_owed)
        socket_send_ping(job, now_ns);
    if (job->pinged_ns == 0)
        return job->heard_ns + job->silence_ns / PING_SHARE;
    uint64_t late_ns = job->pinged_ns + job->silence_ns;
    uint64_t again_ns = now_ns + job->silence_ns / PING_SHARE;
    return job->ping_owed && again_ns < late_ns ? again_ns : late_ns;
}
