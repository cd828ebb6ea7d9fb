/* The coordinator from outside: every entry hands what has happened to the file whose it is, then
 * settles what this daemon has to say to itself. */
#include "server/coordinator/coordinator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/coordinator_internal.h"

int coordinator_create(struct coordinator **created, const struct config *config, struct log *log,
                       const struct membership *membership, const struct coordinator_io *io)
{
    struct coordinator *c = calloc(1, sizeof(*c));
    if (!c)
        return ERR_MEMORY;
    c->config = config;
    c->log = log;
    c->membership = membership;
    c->falling = -1;
    c->io = *io;
    c->others_end = calloc(config->server_count, sizeof(*c->others_end));
    c->came_back = calloc(config->server_count, sizeof(*c->came_back));
    c->nodes_unable = calloc(config->server_count, sizeof(*c->nodes_unable));
    if (!c->others_end || !c->came_back || !c->nodes_unable) {
        free(c->nodes_unable);
        free(c->others_end);
        free(c->came_back);
        free(c);
        return ERR_MEMORY;
    }
    ended_init(&c->ended);
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
    unables_forget(c);
    ended_clear(&c->ended);
    for (uint32_t node = 0; node < c->config->server_count; node++)
        newcomers_forget_node(c, node);
    successions_drain(c);
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
    for (int i = 0; i < COORDINATOR_QUOTAS; i++)
        quota_clear(&c->quotas[i]);
    free(c->nodes_unable);
    free(c->others_end);
    free(c->came_back);
    free(c);
}

typedef int (*message_handler)(struct coordinator *c, uint32_t node, const struct message *message,
                               struct error *error);

static const message_handler coordinator_messages[MESSAGE_TYPES] = {
    [MESSAGE_JOB_JOIN] = succession_on_join,   [MESSAGE_JOB_WITHDRAW] = home_job_withdraw,
    [MESSAGE_JOB_WAITING] = member_on_waiting, [MESSAGE_RANK_WAITING] = member_on_rank_waiting,
    [MESSAGE_JOB_UNABLE] = home_job_unable,    [MESSAGE_JOB_OPENED] = job_on_opened,
    [MESSAGE_JOB_REFUSED] = member_on_refused, [MESSAGE_JOB_OPEN] = job_on_open,
    [MESSAGE_JOB_READY] = job_on_ready,        [MESSAGE_JOB_FAILED] = job_on_failed,
    [MESSAGE_JOB_CLOSE] = job_on_close,        [MESSAGE_RANK_LEFT] = job_on_rank_departed,
    [MESSAGE_GROUP_JOIN] = group_on_join,      [MESSAGE_GROUP_REFUSED] = group_on_refused,
    [MESSAGE_GROUP_OPEN] = group_on_open,      [MESSAGE_GROUP_OPENED] = group_on_opened,
    [MESSAGE_GROUP_READY] = group_on_ready,    [MESSAGE_GROUP_LEAVE] = group_on_leave,
    [MESSAGE_GROUP_CLOSE] = group_on_close,    [MESSAGE_GROUP_FAILED] = group_on_failed,
    [MESSAGE_LATE_QUERY] = late_on_query,      [MESSAGE_LATE_REPLY] = late_on_reply,
    [MESSAGE_JOB_REJOIN] = job_on_rejoin,      [MESSAGE_RANK_GONE] = job_on_rank_gone,
    [MESSAGE_NODE_DRAINING] = drain_on_peer,   [MESSAGE_JOB_RETURN] = succession_on_return,
    [MESSAGE_JOB_RETURNED] = return_on_noted,  [MESSAGE_NODE_RETIRING] = drain_on_peer,
};

static int coordinator_handle(struct coordinator *c, uint32_t node, const struct message *message,
                              struct error *error)
{
    message_handler handler = coordinator_messages[message->type];
    if (!handler)
        return error_set(error, ERR_PROTOCOL, "a message %s, which does not belong here",
                         message_type_name(message->type));
    return handler(c, node, message, error);
}

/* After each entry: run the queue of messages to this node itself, see whether the drain is over.
 */
static void coordinator_settle(struct coordinator *c)
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
    if (c->draining && !c->failure && !c->jobs && !c->workers)
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
    c->others_end[node] = COORDINATOR_STAYS;
    unable_forget_node(c, node);
    if (c->retiring)
        coordinator_send(c, node, &(struct message){.type = MESSAGE_NODE_RETIRING});
    if (c->draining)
        coordinator_send(c, node, &(struct message){.type = MESSAGE_NODE_DRAINING});
    home_peer_connected(c);
    struct worker *worker, *next;
    HASH_ITER(hh, c->workers, worker, next)
    {
        if (worker->state == WORKER_JOINING && worker->returned)
            return_tell(c, worker, node);
        else if (worker->state == WORKER_JOINING && worker->former != 0 && worker->home == node)
            succession_ask_home(c, worker); /* it could not be reached before */
        if (worker->state != WORKER_JOINING || worker->former != 0)
            continue;
        if (worker->world_size == 0)
            newcomer_tell(c, worker, node);
        else if (!worker->asked)
            member_ask_home(c, worker);
    }
    coordinator_settle(c);
}

void coordinator_peer_up(struct coordinator *c, uint64_t now_ns, uint32_t node)
{
    c->now_ns = now_ns;
    const struct membership_peer *peer = &c->membership->peers[node];
    struct gathering *gathering, *next_gathering;
    HASH_ITER(hh, c->gatherings, gathering, next_gathering)
    {
        home_try_open(c, gathering);
    }
    successions_peer_up(c);
    struct job *job, *next_job;
    HASH_ITER(hh, c->jobs, job, next_job)
    {
        if (peer->recovered != c->came_back[node])
            job_peer_came_back(job, node, peer->recovered_ns);
        job_try_acknowledge(c, job);
    }
    c->came_back[node] = peer->recovered;
    coordinator_settle(c);
}

void coordinator_peer_down(struct coordinator *c, uint64_t now_ns, uint32_t node,
                           const char *reason)
{
    c->now_ns = now_ns;
    c->falling = node;
    c->retire_ns = now_ns;
    late_forget_node(c, node);
    newcomers_forget_node(c, node);
    home_peer_down(c, node);
    struct worker *worker, *next_worker;
    HASH_ITER(hh, c->workers, worker, next_worker)
    {
        if (worker->state != WORKER_JOINING || worker->home != node)
            continue;
        if (worker->returned && worker->asked)
            return_ask(c, worker);
        else if (worker->former == 0)
            member_home_lost(c, worker);
    }
    struct job *job, *next_job;
    HASH_ITER(hh, c->jobs, job, next_job)
    {
        job_peer_down(c, job, node, reason);
    }
    successions_peer_down(c, node);
    coordinator_settle(c);
    c->falling = -1;
}

void coordinator_peer_away(struct coordinator *c, uint64_t now_ns, uint32_t node,
                           const char *reason)
{
    c->now_ns = now_ns;
    struct job *job, *next_job;
    HASH_ITER(hh, c->jobs, job, next_job)
    {
        if (job->recovery == MESSAGE_RECOVERY_OFF)
            job_peer_down(c, job, node, reason);
    }
    coordinator_settle(c);
}

int coordinator_worker_message(struct coordinator *c, uint64_t now_ns, uint32_t id,
                               const struct coordinator_credentials *credentials,
                               const struct message *message, struct error *error)
{
    c->now_ns = now_ns;
    struct worker *worker = coordinator_worker(c, id);
    int result;
    if (message->type == MESSAGE_JOIN)
        result = member_join(c, id, credentials, message, error);
    else if (message->type == MESSAGE_UNABLE)
        result = unable_worker_message(c, credentials, message, error);
    else if (message->type == MESSAGE_RETURN)
        result = member_return(c, id, credentials, message, error);
    else if (!worker)
        result = error_set(error, ERR_PROTOCOL, "%s before join", message_type_name(message->type));
    else if (message->type == MESSAGE_WORKER_GROUP_OPEN)
        result = group_worker_open(c, worker, message, error);
    else if (message->type == MESSAGE_WORKER_GROUP_CLOSE)
        result = group_worker_close(c, worker, message, error);
    else if (message->type == MESSAGE_SHARED_OPEN || message->type == MESSAGE_MEETING_OPEN)
        result = segment_worker_open(c, worker, message, error);
    else if (message->type == MESSAGE_SHARED_CLOSE)
        result = segment_worker_close(c, worker, message, error);
    else if (message->type == MESSAGE_HELD)
        result = late_worker_held(c, worker, message, error);
    else if (message->type == MESSAGE_LEAVE)
        result = member_leave(c, worker, error);
    else if (message->type == MESSAGE_RELEASE)
        result = member_release(c, worker, error);
    else if (message->type == MESSAGE_REJOIN)
        result = member_rejoin(c, worker, message, error);
    else if (message->type == MESSAGE_ENDING)
        result = member_ending(worker, message, error);
    else
        result = error_set(error, ERR_PROTOCOL, "a message %s, which does not belong here",
                           message_type_name(message->type));
    coordinator_settle(c);
    return result;
}

void coordinator_worker_gone(struct coordinator *c, uint64_t now_ns, uint32_t id, const char *how)
{
    c->now_ns = now_ns;
    struct worker *worker = coordinator_worker(c, id);
    if (!worker || worker->gone)
        return;
    member_gone(c, worker, how);
    coordinator_settle(c);
}

void coordinator_worker_released(struct coordinator *c, uint64_t now_ns, uint32_t id)
{
    c->now_ns = now_ns;
    struct worker *worker = coordinator_worker(c, id);
    if (worker)
        member_released(c, worker);
}

/* NULL: about a peer, of which membership is told first, an arena, or a trace. */
static void (*const coordinator_events[])(struct coordinator *c,
                                          const struct engine_event *event) = {
    [ENGINE_PEER_UP] = NULL,
    [ENGINE_PEER_DOWN] = NULL,
    [ENGINE_JOB_OPENED] = job_engine_opened,
    [ENGINE_GROUP_OPENED] = group_engine_opened,
    [ENGINE_GROUP_FAILED] = group_engine_failed,
    [ENGINE_WORKER_FAILED] = member_engine_failed,
    [ENGINE_WORKER_DETACHED] = member_engine_detached,
    [ENGINE_WORKER_RELEASED] = NULL,
    [ENGINE_LATE] = late_engine_report,
    [ENGINE_SEGMENT_OPENED] = segment_engine_opened,
    [ENGINE_IDLE] = drain_engine_idle,
    [ENGINE_TRACED] = NULL,
};

bool coordinator_engine_event(struct coordinator *c, uint64_t now_ns,
                              const struct engine_event *event)
{
    if (!coordinator_events[event->type])
        return false;
    c->now_ns = now_ns;
    coordinator_events[event->type](c, event);
    coordinator_settle(c);
    return true;
}

/* --- the drain */

void coordinator_drain(struct coordinator *c, uint64_t now_ns, uint32_t limit_ms)
{
    c->now_ns = now_ns;
    uint64_t deadline_ns = now_ns + limit_ms * COORDINATOR_MS;
    if (c->draining) {
        if (deadline_ns < c->drain_deadline_ns)
            c->drain_deadline_ns = deadline_ns;
        return;
    }
    c->drain_deadline_ns = deadline_ns;
    drain_begin(c);
    coordinator_settle(c);
    if (c->jobs)
        coordinator_command(c, &(struct engine_command){.kind = COMMAND_DRAIN});
    else
        drain_finish(c);
}

void coordinator_fail(struct coordinator *c, const char *failure)
{
    c->failure = failure;
    c->draining = true;
    c->drain_deadline_ns = UINT64_MAX;
}

void coordinator_set_run(struct coordinator *c)
{
    c->of_run = true;
}

void coordinator_node_unable(struct coordinator *c, uint64_t now_ns, uint32_t node,
                             const char *reason)
{
    c->now_ns = now_ns;
    unable_note_node(c, node, reason);
    home_refuse_unable(c);
    member_refuse_unable(c);
    coordinator_settle(c);
}

void coordinator_retire(struct coordinator *c, uint64_t now_ns)
{
    c->now_ns = now_ns;
    if (c->retiring || c->draining)
        return;
    retire_begin(c);
    coordinator_settle(c);
}

bool coordinator_retired(const struct coordinator *c)
{
    if (!c->retiring || c->draining)
        return false;
    for (uint32_t node = 0; node < c->config->server_count; node++) {
        if (node != c->config->self && c->others_end[node] == COORDINATOR_STAYS &&
            (coordinator_reaches(c, node) || c->now_ns < retire_deadline(c)))
            return false;
    }
    return true;
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

static uint64_t coordinator_earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t coordinator_next_deadline(const struct coordinator *c)
{
    uint64_t deadline_ns = c->draining && !c->stopped ? c->drain_deadline_ns : UINT64_MAX;
    for (const struct worker *worker = c->workers; worker; worker = worker->hh.next) {
        /* A worker whose home was told waits a little longer: the home's words come first. */
        if (worker->state == WORKER_JOINING)
            deadline_ns = coordinator_earlier(
                deadline_ns, worker->deadline_ns + (worker->asked ? COORDINATOR_GRACE_NS : 0));
        if (worker->state == WORKER_JOINING && worker->returned && !worker->asked)
            deadline_ns = coordinator_earlier(
                deadline_ns, coordinator_earlier(worker->noted_by_ns, worker->tell_again_ns));
        if (member_gathers(worker) && !worker->asked)
            deadline_ns =
                coordinator_earlier(coordinator_earlier(deadline_ns, worker->told_ns),
                                    coordinator_earlier(worker->say_ns, worker->elsewhere_ns));
        const struct worker_group_request *request;
        DL_FOREACH(worker->requests, request)
        {
            deadline_ns =
                coordinator_earlier(deadline_ns, request->deadline_ns + COORDINATOR_GRACE_NS);
        }
    }
    for (const struct job *job = c->jobs; job; job = job->hh.next) {
        if (job->state == JOB_OPENING)
            deadline_ns = coordinator_earlier(
                deadline_ns, job->deadline_ns + (job->acknowledged ? COORDINATOR_GRACE_NS : 0));
        if (job->state == JOB_OPENING && job->acknowledged)
            deadline_ns = coordinator_earlier(deadline_ns, job->answer_ns);
        if (job->state == JOB_READY)
            deadline_ns = coordinator_earlier(
                deadline_ns, coordinator_earlier(group_home_deadline(job), late_deadline(c, job)));
    }
    if (c->retiring && !c->draining && retire_deadline(c) > c->now_ns)
        deadline_ns = coordinator_earlier(deadline_ns, retire_deadline(c));
    deadline_ns = coordinator_earlier(deadline_ns, successions_deadline(c));
    return coordinator_earlier(deadline_ns, home_deadline(c));
}

uint64_t coordinator_tick(struct coordinator *c, uint64_t now_ns)
{
    c->now_ns = now_ns;
    struct gathering *gathering, *next_gathering;
    HASH_ITER(hh, c->gatherings, gathering, next_gathering)
    {
        home_tick(c, gathering);
    }
    successions_tick(c);
    struct worker *worker, *next_worker;
    HASH_ITER(hh, c->workers, worker, next_worker)
    {
        member_tick(c, worker);
    }
    struct job *job, *next_job;
    HASH_ITER(hh, c->jobs, job, next_job)
    {
        job_tick(c, job);
    }
    coordinator_settle(c);
    coordinator_sweep_lines(c);
    if (c->draining && !c->stopped && now_ns >= c->drain_deadline_ns) {
        log_warning(c->log, "jobs are still running at the end of the time to drain");
        drain_finish(c);
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

const struct ended_jobs *coordinator_ended(const struct coordinator *c)
{
    return &c->ended;
}

const struct succession *coordinator_successions(const struct coordinator *c)
{
    return c->successions;
}

bool coordinator_gathering_waits(const struct coordinator *c, const struct gathering *gathering,
                                 char *text, size_t bytes)
{
    return home_waits_text(c, gathering, text, bytes);
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
            .rank = worker->job || worker->former ? (int32_t)worker->rank : worker->wished_rank,
            .former = worker->job ? 0 : worker->former,
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
