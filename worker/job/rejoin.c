#include "worker/job/rejoin.h"

#include <inttypes.h>
#include <unistd.h>

#include "common/base/clock.h"

int job_check_rejoin(const struct shoal_job *job, struct error *error)
{
    const struct error *failure = &job->progress.failure;
    if (job->daemon_gone)
        return error_set(error, ERR_STATE, "the job cannot go on: %s", failure->text);
    if (job->progress.failed && failure->code != ERR_LOST && failure->code != ERR_REFUSED)
        return error_set(error, ERR_STATE, "the job cannot go on, for no rank was lost: %s",
                         failure->text);
    for (const struct shoal_request *request = job->requests; request; request = request->next) {
        if (request->core.state != REQUEST_COMPLETE)
            return error_set(error, ERR_STATE, "a request of the job is under way: wait for it");
    }
    if (job->device)
        return error_set(error, ERR_UNSUPPORTED, "a job with a device cannot go on");
    if (job->groups->next || job->shared)
        return error_set(error, ERR_STATE,
                         "the job has %s of its old generation: close or free them first",
                         job->groups->next ? "groups" : "shared memory");
    return 0;
}

/* What the daemon still says about the old generation is left unread. */
static bool rejoin_is_old(const struct message *message, enum message_type wanted)
{
    switch (message->type) {
    case MESSAGE_PONG:
    case MESSAGE_FAILED:
    case MESSAGE_WORKER_GROUP_OPENED:
    case MESSAGE_SHARED_OPENED:
        return true;
    case MESSAGE_ERROR:
        return wanted == MESSAGE_RELEASED || message->request != 0;
    default:
        return false;
    }
}

static int rejoin_wait(struct shoal_job *job, enum message_type wanted, struct message *answer,
                       uint64_t deadline_ns, struct error *error)
{
    for (;;) {
        int code = client_wait(&job->client, answer, deadline_ns, error);
        if (code < 0)
            return code;
        if (answer->type == wanted)
            return 0;
        if (answer->type == MESSAGE_SHARED_OPENED) {
            int descriptor = client_take_descriptor(&job->client);
            if (descriptor >= 0)
                close(descriptor);
        }
        bool old = rejoin_is_old(answer, wanted);
        if (!old && answer->type == MESSAGE_ERROR)
            code = error_set(error, answer->code < 0 ? answer->code : ERR_PROTOCOL, "%s",
                             answer->text);
        else if (!old)
            code = error_set(error, ERR_PROTOCOL, "the daemon answered %s with \"%s\"",
                             wanted == MESSAGE_RELEASED ? "release" : "rejoin",
                             message_type_name(answer->type));
        message_clear(answer);
        if (code < 0)
            return code;
    }
}

/* From its answer on nobody but this process writes to the arena. */
static int rejoin_release(struct shoal_job *job, uint64_t deadline_ns, struct error *error)
{
    struct message answer;
    struct message release = {.type = MESSAGE_RELEASE};
    int code = job_send(job, &release, deadline_ns, error);
    if (code == 0)
        code = rejoin_wait(job, MESSAGE_RELEASED, &answer, deadline_ns, error);
    if (code < 0)
        return code;
    message_clear(&answer);
    return arena_format(&job->arena, job->arena.base, job->arena.total_bytes, PROGRESS_RING_ENTRIES,
                        error);
}

static int rejoin_ask(struct shoal_job *job, int timeout_ms, int stragglers_ms,
                      uint64_t deadline_ns, struct message *joined, struct error *error)
{
    const int fds[3] = {job->arena_fd, job->submission_doorbell, job->daemons_doorbell};
    struct message rejoin = {.type = MESSAGE_REJOIN,
                             .timeout_ms = (uint32_t)timeout_ms,
                             .stragglers_ms = (uint32_t)stragglers_ms};
    pthread_mutex_lock(&job->send_lock);
    int code = client_send(&job->client, &rejoin, fds, 3, deadline_ns, error);
    pthread_mutex_unlock(&job->send_lock);
    return code < 0 ? code : rejoin_wait(job, MESSAGE_JOINED, joined, deadline_ns, error);
}

static int rejoin_settle(struct shoal_job *job, const struct message *joined, struct error *error)
{
    struct shoal_group *world = job->groups;
    if (joined->rank >= (int32_t)joined->world_size || joined->group != 0 ||
        joined->chunk_bytes != world->core.rule.chunk_bytes)
        return error_set(error, ERR_PROTOCOL,
                         "the daemon's answer makes no sense: rank %" PRId32 " of %" PRIu32
                         ", chunks of %" PRIu32 " bytes",
                         joined->rank, joined->world_size, joined->chunk_bytes);
    int code = job_renew_world(job, joined, error);
    if (code < 0)
        return code;
    progress_restart(&job->progress);
    progress_share(&job->progress, joined->local_size, joined->node_count);
    job_set_place(job, joined);
    return 0;
}

int job_rejoin(struct shoal_job *job, int timeout_ms, int stragglers_ms, struct error *error)
{
    struct message joined;
    uint64_t deadline_ns = job_deadline_ns(job, timeout_ms) + JOB_GRACE_MS * NS_PER_MS;
    int code = rejoin_release(job, deadline_ns, error);
    if (code == 0)
        code = rejoin_ask(job, timeout_ms, stragglers_ms, deadline_ns, &joined, error);
    pthread_mutex_lock(&job->lock);
    if (code == 0) {
        code = rejoin_settle(job, &joined, error);
        message_clear(&joined);
    }
    job->daemon_gone = code < 0; /* it has ended the connection, or is not to use it any more */
    pthread_mutex_unlock(&job->lock);
    return code;
}
