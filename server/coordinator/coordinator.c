#include "server/coordinator/coordinator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/coordinator_internal.h"

int coordinator_create(struct coordinator **created, const struct config *config,
                       struct log *log, const struct membership *membership,
                       const struct coordinator_io *io)
{
    struct coordinator *c = calloc(1, sizeof(*c));
    if (!c)
        return ERR_MEMORY;
    c->config = config;
    c->log = log;
    c->membership = membership;
    c->io = *io;
    *created = c;
    return 0;
}

void coordinator_destroy(struct coordinator *c)
{
    if (!c)
        return;
    struct worker *worker, *next_worker;
    HASH_ITER(hh, c->workers, worker, next_worker)
    {
        worker_forget(c, worker);
    }
    struct job *job, *next_job;
    HASH_ITER(hh, c->jobs, job, next_job)
    {
        HASH_DEL(c->jobs, job);
        job_free(job);
    }
    struct gathering *gathering, *next_gathering;
    HASH_ITER(hh, c->gatherings, gathering, next_gathering)
    {
        HASH_DEL(c->gatherings, gathering);
        gathering_free(gathering);
    }
    struct late_ask *ask, *next_ask;
    DL_FOREACH_SAFE(c->late_asks, ask, next_ask)
    {
        free(ask);
    }
    struct queued_message *queued, *next_queued;
    DL_FOREACH_SAFE(c->queue, queued, next_queued)
    {
        message_clear(&queued->message);
        free(queued);
    }
    free(c);
}

const char *coordinator_node_name(const struct coordinator *c, uint32_t node)
{
    return c->config->servers[node].name;
}

void coordinator_drain_text(const struct coordinator *c, char text[ERROR_TEXT_BYTES])
{
    snprintf(text, ERROR_TEXT_BYTES, "node %s is shutting down",
             coordinator_node_name(c, c->config->self));
}

bool coordinator_reaches(const struct coordinator *c, uint32_t node)
{
    return node == c->config->self || c->membership->peers[node].state != MEMBERSHIP_DOWN;
}

bool coordinator_is_up(const struct coordinator *c, uint32_t node)
{
    return node == c->config->self || c->membership->peers[node].state == MEMBERSHIP_UP;
}

void coordinator_unreachable_text(const struct coordinator *c, uint32_t node, char *text,
                                  size_t bytes)
{
    const struct config_server *server = &c->config->servers[node];
    const struct membership_peer *peer = &c->membership->peers[node];
    if (peer->state == MEMBERSHIP_DOWN)
        snprintf(text, bytes, "server %s (%s:%u) is not connected%s%s", server->name,
                 server->address, server->port, peer->reason[0] ? ": " : "", peer->reason);
    else
        snprintf(text, bytes, "server %s (%s:%u) is connected, but not yet over the fabric%s%s%s",
                 server->name, server->address, server->port,
                 peer->reason[0] ? " (last error: " : "", peer->reason, peer->reason[0] ? ")" : "");
}

void coordinator_send(struct coordinator *c, uint32_t node, const struct message *message)
{
    if (node != c->config->self) {
        if (coordinator_reaches(c, node))
            c->io.send_peer(c->io.context, node, message);
        return;
    }
    struct queued_message *queued = calloc(1, sizeof(*queued));
    if (!queued || message_copy(&queued->message, message) < 0) {
        free(queued);
        log_error(c->log, "no memory: a message %s is lost", message_type_name(message->type));
        return;
    }
    DL_APPEND(c->queue, queued);
}

void coordinator_send_job(struct coordinator *c, const struct job *job,
                          const struct message *message, bool self)
{
    for (uint32_t node = 0; node < job->roster; node++) {
        if (job->roles[node] != 0 && (self || node != job->self))
            coordinator_send(c, node, message);
    }
}

struct job *coordinator_job(const struct coordinator *c, uint64_t id)
{
    struct job *job;
    HASH_FIND(hh, c->jobs, &id, sizeof(id), job);
    return job;
}

uint64_t coordinator_deadline(const struct coordinator *c, uint32_t asked_ms, uint32_t most_ms)
{
    return c->now_ns + (asked_ms > 0 && asked_ms < most_ms ? asked_ms : most_ms) * COORDINATOR_MS;
}

uint32_t coordinator_left_ms(const struct coordinator *c, uint64_t deadline_ns)
{
    if (deadline_ns <= c->now_ns + COORDINATOR_MS)
        return 1;
    return (uint32_t)((deadline_ns - c->now_ns) / COORDINATOR_MS);
}

struct message coordinator_job_message(enum message_type type, const struct job *job)
{
    return (struct message){.type = type, .job_id = job->id};
}

void coordinator_message_error(struct message *message, int code, const char *text)
{
    message->code = code;
    snprintf(message->text, sizeof(message->text), "%s", text);
}

typedef int (*message_handler)(struct coordinator *c, uint32_t node, const struct message *message,
                               struct error *error);

static const message_handler handlers[MESSAGE_TYPES] = {
    [MESSAGE_JOB_JOIN] = home_job_join,         [MESSAGE_JOB_WITHDRAW] = home_job_withdraw,
    [MESSAGE_JOB_OPENED] = home_job_opened,     [MESSAGE_JOB_REFUSED] = worker_refused,
    [MESSAGE_JOB_OPEN] = job_on_open,           [MESSAGE_JOB_READY] = job_on_ready,
    [MESSAGE_JOB_FAILED] = job_on_failed,       [MESSAGE_JOB_CLOSE] = job_on_close,
    [MESSAGE_RANK_LEFT] = job_on_rank_left,     [MESSAGE_GROUP_JOIN] = group_on_join,
    [MESSAGE_GROUP_REFUSED] = group_on_refused, [MESSAGE_GROUP_OPEN] = group_on_open,
    [MESSAGE_GROUP_OPENED] = group_on_opened,   [MESSAGE_GROUP_READY] = group_on_ready,
    [MESSAGE_GROUP_LEAVE] = group_on_leave,     [MESSAGE_GROUP_CLOSE] = group_on_close,
    [MESSAGE_GROUP_FAILED] = group_on_failed,   [MESSAGE_LATE_QUERY] = late_on_query,
    [MESSAGE_LATE_REPLY] = late_on_reply,
};

static int coordinator_handle(struct coordinator *c, uint32_t node, const struct message *message,
                              struct error *error)
{
    message_handler handler = handlers[message->type];
    if (!handler)
        return error_set(error, ERR_PROTOCOL, "a message %s, which does not belong here",
                         message_type_name(message->type));
    return handler(c, node, message, error);
}

void coordinator_settle(struct coordinator *c)
{
    while (c->queue) {
        struct queued_message *queued = c->queue;
        DL_DELETE(c->queue, queued);
        struct error error = {0};
        if (coordinator_handle(c, c->config->self, &queued->message, &error) < 0)
            log_error(c->log, "message %s to this node itself: %s",
                      message_type_name(queued->message.type), error.text);
        message_clear(&queued->message);
        free(queued);
    }
    if (c->draining && !c->jobs && !c->workers)
        c->stopped = true;
}

int coordinator_peer_message(struct coordinator *c, uint64_t now_ns, uint32_t node,
                             const struct message *message, struct error *error)
{
    c->now_ns = now_ns;
    int result = coordinator_handle(c, node, message, error);
    coordinator_settle(c);
    return result;
}

void coordinator_peer_connected(struct coordinator *c, uint64_t now_ns, uint32_t node)
{
    c->now_ns = now_ns;
    struct worker *worker, *next;
    HASH_ITER(hh, c->workers, worker, next)
    {
        if (worker->state == WORKER_JOINING && worker->home == node && !worker->asked)
            worker_ask_home(c, worker);
    }
    coordinator_settle(c);
}

void coordinator_peer_up(struct coordinator *c, uint64_t now_ns, uint32_t node)
{
    (void)node;
    c->now_ns = now_ns;
    struct gathering *gathering, *next_gathering;
    HASH_ITER(hh, c->gatherings, gathering, next_gathering)
    {
        home_try_open(c, gathering);
    }
    struct job *job, *next_job;
    HASH_ITER(hh, c->jobs, job, next_job)
    {
        job_try_acknowledge(c, job);
    }
    coordinator_settle(c);
}

void coordinator_peer_down(struct coordinator *c, uint64_t now_ns, uint32_t node,
                           const char *reason)
{
    c->now_ns = now_ns;
    late_forget_node(c, node);
    home_peer_down(c, node);
    struct worker *worker, *next_worker;
    HASH_ITER(hh, c->workers, worker, next_worker)
    {
        if (worker->state == WORKER_JOINING && worker->home == node)
            worker->asked = false;
    }
    struct job *job, *next_job;
    HASH_ITER(hh, c->jobs, job, next_job)
    {
        job_peer_down(c, job, node, reason);
    }
    coordinator_settle(c);
}

/* --- the drain */

/* All ranks of this node have left it, or are about to: nothing new can begin that all take part
 * in, and the others may still be waiting for what this node has sent. It ends when those have it.
 */
static bool job_is_ending(const struct job *job)
{
    if (job->state != JOB_READY || !(job->roles[job->self] & JOB_NODE_RANKS))
        return false;
    for (uint32_t rank = 0; rank < job->world_size; rank++)
        if (job->locals[rank] && job->locals[rank]->state != WORKER_LEAVING)
            return false;
    return true;
}

/* Fails what is open; whether jobs are left that end by themselves, if those are spared. */
static bool jobs_refuse(struct coordinator *c, bool spare_ending)
{
    char text[ERROR_TEXT_BYTES];
    coordinator_drain_text(c, text);
    bool spared = false;
    struct job *job, *next_job;
    HASH_ITER(hh, c->jobs, job, next_job)
    {
        if (spare_ending && job_is_ending(job))
            spared = true;
        else
            job_fail(c, job, ERR_REFUSED, "%s", text);
    }
    return spared;
}

static void coordinator_finish(struct coordinator *c)
{
    jobs_refuse(c, false);
    /* Failed jobs wait for their workers to close; now they do not. */
    struct worker *worker, *next_worker;
    HASH_ITER(hh, c->workers, worker, next_worker)
    {
        worker_end(c, worker);
    }
    struct job *job, *next_job;
    HASH_ITER(hh, c->jobs, job, next_job)
    {
        job_worker_removed(c, job);
    }
    c->stopped = true;
}

void coordinator_drain(struct coordinator *c, uint64_t now_ns, uint32_t limit_ms)
{
    c->now_ns = now_ns;
    uint64_t deadline_ns = now_ns + limit_ms * COORDINATOR_MS;
    if (c->draining) {
        if (deadline_ns < c->drain_deadline_ns)
            c->drain_deadline_ns = deadline_ns;
        return;
    }
    char text[ERROR_TEXT_BYTES];
    coordinator_drain_text(c, text);
    c->draining = true;
    c->drain_deadline_ns = deadline_ns;
    struct worker *worker, *next_worker;
    HASH_ITER(hh, c->workers, worker, next_worker)
    {
        if (worker->state == WORKER_JOINING)
            worker_refuse(c, worker, ERR_REFUSED, text);
    }
    home_drain(c);
    struct job *job, *next_job;
    HASH_ITER(hh, c->jobs, job, next_job)
    {
        if (job->state == JOB_OPENING)
            job_fail(c, job, ERR_REFUSED, "%s", text);
    }
    coordinator_settle(c);
    if (c->jobs)
        c->io.drain(c->io.context);
    else
        coordinator_finish(c);
}

void coordinator_idle(struct coordinator *c, uint64_t now_ns)
{
    c->now_ns = now_ns;
    if (c->draining && !c->stopped && !jobs_refuse(c, true))
        coordinator_finish(c);
    coordinator_settle(c);
}

bool coordinator_draining(const struct coordinator *c)
{
    return c->draining;
}

bool coordinator_stopped(const struct coordinator *c)
{
    return c->stopped;
}

/* --- time */

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t coordinator_next_deadline(const struct coordinator *c)
{
    uint64_t deadline_ns = c->draining && !c->stopped ? c->drain_deadline_ns : UINT64_MAX;
    for (const struct worker *worker = c->workers; worker; worker = worker->hh.next) {
        /* A worker whose home was told waits a little longer: the home's words come first. */
        if (worker->state == WORKER_JOINING)
            deadline_ns = earlier(deadline_ns,
                                  worker->deadline_ns + (worker->asked ? COORDINATOR_GRACE_NS : 0));
        const struct worker_group_request *request;
        DL_FOREACH(worker->requests, request)
        {
            deadline_ns = earlier(deadline_ns, request->deadline_ns + COORDINATOR_GRACE_NS);
        }
    }
    for (const struct job *job = c->jobs; job; job = job->hh.next) {
        if (job->state == JOB_OPENING)
            deadline_ns = earlier(deadline_ns, job->deadline_ns +
                                                   (job->acknowledged ? COORDINATOR_GRACE_NS : 0));
        if (job->state == JOB_READY)
            deadline_ns = earlier(deadline_ns, earlier(group_deadline(job), late_deadline(job)));
    }
    return earlier(deadline_ns, home_deadline(c));
}

uint64_t coordinator_tick(struct coordinator *c, uint64_t now_ns)
{
    c->now_ns = now_ns;
    struct gathering *gathering, *next_gathering;
    HASH_ITER(hh, c->gatherings, gathering, next_gathering)
    {
        home_tick(c, gathering);
    }
    struct worker *worker, *next_worker;
    HASH_ITER(hh, c->workers, worker, next_worker)
    {
        worker_tick(c, worker);
    }
    struct job *job, *next_job;
    HASH_ITER(hh, c->jobs, job, next_job)
    {
        job_tick(c, job);
    }
    coordinator_settle(c);
    if (c->draining && !c->stopped && now_ns >= c->drain_deadline_ns) {
        log_warning(c->log, "jobs are still running at the end of the time to drain");
        coordinator_finish(c);
        coordinator_settle(c);
    }
    return coordinator_next_deadline(c);
}

/* --- for the status */

const struct job *coordinator_jobs(const struct coordinator *c)
{
    return c->jobs;
}

const struct gathering *coordinator_gatherings(const struct coordinator *c)
{
    return c->gatherings;
}

uint32_t coordinator_worker_count(const struct coordinator *c)
{
    return HASH_COUNT(c->workers);
}

void coordinator_worker_views(const struct coordinator *c, struct coordinator_worker_view *views)
{
    for (const struct worker *worker = c->workers; worker; worker = worker->hh.next) {
        *views++ = (struct coordinator_worker_view){
            .worker = worker->id,
            .uid = worker->uid,
            .pid = worker->pid,
            .job_name = worker->name,
            .world_size = worker->world_size,
            .rank = worker->job ? (int32_t)worker->rank : worker->wished_rank,
            .opened = worker->job != NULL,
        };
    }
}

bool coordinator_job_worker(const struct job *job, uint32_t rank, uint32_t *pid)
{
    if (!job->locals[rank])
        return false;
    *pid = job->locals[rank]->pid;
    return true;
}

uint64_t coordinator_dropped_messages(const struct coordinator *c)
{
    return c->dropped_messages;
}
