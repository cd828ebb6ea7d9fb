#include "worker/job/rejoin.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"

/* How often it is tried whether a daemon listens again. */
#define RETRY_MS 20u

int job_check_rejoin(const struct shoal_job *job, struct error *error)
{
    const struct error *failure = &job->progress.failure;
    bool may_return = job->restart_ms > 0 && failure->code == ERR_DISCONNECTED;
    if (job->daemon_gone && !may_return && !(job->restart_ms > 0 && failure->code == ERR_LOST))
        return error_set(error, ERR_STATE, "the job cannot go on: %s", failure->text);
    if (job->progress.failed && failure->code != ERR_LOST && failure->code != ERR_REFUSED &&
        !may_return)
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

/* Whether the message is about the old generation: such messages are left unread. */
static bool rejoin_is_old(const struct message *message, enum message_type wanted)
{
    switch (message->type) {
    case MESSAGE_PONG:
    case MESSAGE_WAITING:
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

static int rejoin_poll(struct shoal_job *job, uint64_t deadline_ns, struct error *error)
{
    struct pollfd pollers[2] = {{.fd = job->client.fd, .events = POLLIN},
                                {.fd = job->wake_fd, .events = POLLIN}};
    uint64_t now_ns = clock_now_ns(), value;
    uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    struct timespec left = {.tv_sec = (time_t)(left_ns / NS_PER_S),
                            .tv_nsec = (long)(left_ns % NS_PER_S)};
    if (left_ns == 0)
        return error_set(error, ERR_TIMEOUT, "the daemon (socket %s) does not answer",
                         job->client.path);
    ppoll(pollers, 2, &left, NULL);
    if (pollers[1].revents) {
        ssize_t got = read(job->wake_fd, &value, sizeof(value));
        (void)got;
    }
    return 0;
}

/* Wait for the next message as client_wait does, but no longer than until the job is closed. */
static int rejoin_receive(struct shoal_job *job, struct message *answer, uint64_t deadline_ns,
                          struct error *error)
{
    for (;;) {
        int code = client_receive(&job->client, answer, error);
        if (code != 0)
            return code < 0 ? code : 0;
        pthread_mutex_lock(&job->lock);
        bool closing = job->closing;
        pthread_mutex_unlock(&job->lock);
        if (closing)
            return error_set(error, ERR_STATE, "the job is being closed");
        code = rejoin_poll(job, deadline_ns, error);
        if (code < 0)
            return code;
    }
}

static int rejoin_wait(struct shoal_job *job, enum message_type wanted, struct message *answer,
                       uint64_t deadline_ns, struct error *error)
{
    for (;;) {
        int code = rejoin_receive(job, answer, deadline_ns, error);
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

static int rejoin_format(struct shoal_job *job, struct error *error)
{
    return arena_format(&job->arena, job->arena.base, job->arena.total_bytes,
                        job->progress.ring_entries, error);
}

/* Nobody writes to the arena any more once the connection has ended: the threads of a process that
 * is killed are gone before its descriptors are closed. */
static int rejoin_await_end(struct shoal_job *job, uint64_t deadline_ns, struct error *error)
{
    struct message message;
    int code;
    while ((code = rejoin_receive(job, &message, deadline_ns, error)) == 0)
        message_clear(&message);
    return code == ERR_DISCONNECTED ? 0 : code;
}

/* The daemon ends, or has: it may be started again. */
static int rejoin_release_end(struct shoal_job *job, uint64_t deadline_ns, struct error *error)
{
    uint64_t until_ns = clock_now_ns() + job->restart_ms * NS_PER_MS;
    return rejoin_await_end(job, until_ns < deadline_ns ? until_ns : deadline_ns, error);
}

int job_release(struct shoal_job *job, int timeout_ms, struct error *error)
{
    uint64_t deadline_ns = job_deadline_ns(job, timeout_ms) + JOB_GRACE_MS * NS_PER_MS;
    struct message answer;
    struct message release = {.type = MESSAGE_RELEASE};
    pthread_mutex_lock(&job->send_lock);
    job->mute = true; /* from here on nobody speaks of the last generation */
    int code = job->daemon_gone ? ERR_DISCONNECTED
                                : client_send(&job->client, &release, NULL, 0, deadline_ns, error);
    pthread_mutex_unlock(&job->send_lock);
    if (code == 0)
        code = rejoin_wait(job, MESSAGE_RELEASED, &answer, deadline_ns, error);
    if (code == 0)
        message_clear(&answer);
    bool ended = code == ERR_DISCONNECTED && job->restart_ms > 0;
    if (ended)
        code = rejoin_release_end(job, deadline_ns, error);
    pthread_mutex_lock(&job->lock);
    job->apart = code == 0;
    job->daemon_gone = code < 0 || ended;
    pthread_mutex_unlock(&job->lock);
    return code;
}

/* With what the daemon needs of it, and the answer. */
static int rejoin_send(struct shoal_job *job, const struct message *message, uint64_t deadline_ns,
                       struct message *joined, struct error *error)
{
    const int fds[2] = {job->arena_fd, job->submission_doorbell};
    pthread_mutex_lock(&job->send_lock);
    int code = client_send(&job->client, message, fds, 2, deadline_ns, error);
    pthread_mutex_unlock(&job->send_lock);
    if (code == 0)
        job->asked_member = job->member;
    if (code == 0)
        code = rejoin_wait(job, MESSAGE_JOINED, joined, deadline_ns, error);
    if (code < 0)
        return code;
    pthread_mutex_lock(&job->lock);
    code = job_take_bell(job, error);
    pthread_mutex_unlock(&job->lock);
    if (code < 0)
        message_clear(joined);
    return code;
}

static int rejoin_ask(struct shoal_job *job, const struct rejoin_ask *ask, uint64_t deadline_ns,
                      struct message *joined, struct error *error)
{
    struct message rejoin = {.type = MESSAGE_REJOIN,
                             .timeout_ms = (uint32_t)ask->timeout_ms,
                             .stragglers_ms = (uint32_t)ask->stragglers_ms,
                             .least_ranks = (uint32_t)ask->least_ranks,
                             .wait_ms = (uint32_t)ask->wait_ms,
                             .whole = ask->whole};
    return rejoin_send(job, &rejoin, deadline_ns, joined, error);
}

/* Until the time has passed, or the job is closed: a daemon that is started says nothing before it
 * listens. */
static bool rejoin_pause(struct shoal_job *job, uint64_t now_ns, uint64_t until_ns)
{
    uint64_t end_ns =
        now_ns + RETRY_MS * NS_PER_MS < until_ns ? now_ns + RETRY_MS * NS_PER_MS : until_ns;
    struct timespec until = {.tv_sec = (time_t)(end_ns / NS_PER_S),
                             .tv_nsec = (long)(end_ns % NS_PER_S)};
    pthread_mutex_lock(&job->lock);
    while (!job->closing && clock_now_ns() < end_ns &&
           pthread_cond_timedwait(&job->changed, &job->lock, &until) == 0)
        ;
    bool goes_on = !job->closing;
    pthread_mutex_unlock(&job->lock);
    return goes_on;
}

/* Connect to the daemon that is started in place of the one that has ended, for restart_ms. */
static int rejoin_connect(struct shoal_job *job, uint64_t deadline_ns, struct error *error)
{
    uint64_t until_ns = clock_now_ns() + job->restart_ms * NS_PER_MS;
    until_ns = until_ns < deadline_ns ? until_ns : deadline_ns;
    int code = rejoin_await_end(job, until_ns, error);
    bool again = code == 0;
    while (again) {
        struct message hello;
        code = job_connect_anew(job, until_ns, error);
        if (code == 0)
            code = rejoin_receive(job, &hello, until_ns, error);
        if (code == 0)
            code = job_take_hello(job, &hello, error);
        uint64_t now_ns = clock_now_ns();
        again = code == ERR_DISCONNECTED && now_ns < until_ns;
        if (code == ERR_DISCONNECTED && !again)
            error_prefix(error, "the daemon of this node has not come back within %" PRIu32 " ms",
                         job->restart_ms);
        if (again && !rejoin_pause(job, now_ns, until_ns)) {
            code = error_set(error, ERR_STATE, "the job is being closed");
            again = false;
        }
    }
    if (code < 0) {
        pthread_mutex_lock(&job->send_lock);
        client_close(&job->client);
        pthread_mutex_unlock(&job->send_lock);
    }
    return code;
}

/* The daemon was killed: say to the next one which rank of which job this is. It asks those that
 * remember the job. */
static int rejoin_return(struct shoal_job *job, const struct rejoin_ask *ask, uint64_t deadline_ns,
                         struct message *joined, struct error *error)
{
    struct message again = {.type = MESSAGE_RETURN,
                            .lineage = job->lineage,
                            .generation = job->generation,
                            .world_size = (uint32_t)job->world_size,
                            .rank = job->rank,
                            .local_rank = job->local_rank,
                            .former = job->asked_member,
                            .stragglers_ms = (uint32_t)ask->stragglers_ms,
                            .least_ranks = (uint32_t)ask->least_ranks,
                            .wait_ms = (uint32_t)ask->wait_ms,
                            .whole = ask->whole};
    snprintf(again.job, sizeof(again.job), "%s", job->name);
    int code = rejoin_connect(job, deadline_ns, error);
    if (code == 0)
        code = rejoin_format(job, error);
    if (code < 0)
        return code;
    uint64_t now_ns = clock_now_ns(), grace_ns = JOB_GRACE_MS * NS_PER_MS;
    uint64_t end_ns =
        deadline_ns > now_ns + 2 * grace_ns ? deadline_ns - grace_ns : now_ns + grace_ns;
    again.timeout_ms = (uint32_t)((end_ns - now_ns) / NS_PER_MS);
    return rejoin_send(job, &again, deadline_ns, joined, error);
}

static int rejoin_check(const struct shoal_job *job, const struct rejoin_ask *ask,
                        const struct message *joined, struct error *error)
{
    bool same = joined->rank == job->rank && joined->world_size == (uint32_t)job->world_size;
    if (joined->rank >= (int32_t)joined->world_size || joined->group != 0 ||
        joined->chunk_bytes != job->groups->core.rule.chunk_bytes || (ask->whole && !same))
        return error_set(error, ERR_PROTOCOL,
                         "the daemon's answer makes no sense: rank %" PRId32 " of %" PRIu32
                         ", chunks of %" PRIu32 " bytes",
                         joined->rank, joined->world_size, joined->chunk_bytes);
    return 0;
}

static int rejoin_settle(struct shoal_job *job, const struct rejoin_ask *ask,
                         const struct message *joined, struct error *error)
{
    int code = rejoin_check(job, ask, joined, error);
    if (code == 0)
        code = ask->whole ? job_renew_rule(job->groups, joined, error)
                          : job_renew_world(job, joined, error);
    if (code < 0)
        return code;
    if (ask->whole)
        progress_open_again(&job->progress);
    else
        progress_restart(&job->progress);
    progress_share(&job->progress, joined->local_size, joined->node_count);
    job_set_place(job, joined);
    if (!ask->whole)
        job->numbered = job->generation;
    job->socket_read = false; /* lines may have come along */
    return 0;
}

/* Whether the daemon has turned this rank down, and it may ask again. */
static bool rejoin_is_no(const struct rejoin_ask *ask, int code)
{
    return ask->whole && code == ERR_AGAIN;
}

int job_rejoin(struct shoal_job *job, const struct rejoin_ask *ask, struct error *error)
{
    struct message joined = {0};
    uint64_t deadline_ns = job_deadline_ns(job, ask->timeout_ms) + JOB_GRACE_MS * NS_PER_MS;
    int code = job->daemon_gone ? ERR_DISCONNECTED : rejoin_format(job, error);
    if (code == 0)
        code = rejoin_ask(job, ask, deadline_ns, &joined, error);
    /* Once more if the next one is killed, too. */
    for (bool connected = true; code == ERR_DISCONNECTED && job->restart_ms > 0 && connected;) {
        code = rejoin_return(job, ask, deadline_ns, &joined, error);
        connected = job->client.fd >= 0;
    }
    pthread_mutex_lock(&job->lock);
    if (code == 0) {
        job->apart = false;
        code = rejoin_settle(job, ask, &joined, error);
        message_clear(&joined);
    }
    /* After any other error the daemon has ended the connection, or the job is not to use it any
     * more. */
    job->daemon_gone = code < 0 && !rejoin_is_no(ask, code);
    if (job->daemon_gone)
        job->restart_ms = 0;
    pthread_mutex_unlock(&job->lock);
    pthread_mutex_lock(&job->send_lock);
    job->mute = code < 0 && !job->daemon_gone;
    pthread_mutex_unlock(&job->send_lock);
    return code;
}
