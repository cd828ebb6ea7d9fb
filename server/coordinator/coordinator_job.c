/* Jobs that are open on this daemon: opening, readiness, failure, leaving, the end. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/auth/auth.h"
#include "server/coordinator/coordinator_internal.h"

void job_close_in_engine(struct coordinator *c, struct job *job)
{
    if (!job_needs_engine(job) || job->engine_closed)
        return;
    job->engine_closed = true;
    coordinator_command(c, &(struct engine_command){.kind = COMMAND_JOB_CLOSE, .job = job->id});
}

static void job_end(struct coordinator *c, struct job *job)
{
    coordinator_log(c, LOG_LEVEL_INFO, job->uid, "job '%s' (%016" PRIx64 ") is closed", job->name,
                    job->id);
    job_close_in_engine(c, job);
    late_forget_job(c, job->id);
    for (struct group *group = job->groups; group; group = group->hh.next)
        segments_forget(c, job, group);
    quota_give_back(coordinator_quota(c, QUOTA_JOBS), job->uid, 1);
    ended_note(&c->ended, job, c->now_ns);
    HASH_DEL(c->jobs, job);
    job_free(job);
}

void job_worker_removed(struct coordinator *c, struct job *job)
{
    if (job->state == JOB_FAILED && job->local_count == 0)
        job_end(c, job);
}

/* Let a worker go on from a next generation that has lost a rank before it was ready. Workers here
 * have been told nothing of it, and go on as if they had asked just now. */
static void job_rejoin_worker(struct coordinator *c, struct job *job, struct worker *worker)
{
    job->locals[worker->rank] = NULL;
    job->local_count--;
    worker->job = NULL;
    worker->state = WORKER_JOINING;
    worker->former = job->lineage;
    succession_ask_home(c, worker);
}

/* A worker that waits for the job to open. */
static void job_fail_opening(struct coordinator *c, struct job *job, struct worker *worker)
{
    uint32_t id = worker->id;
    if (job->generation > 1 && job->code == ERR_LOST && !c->draining) {
        job_rejoin_worker(c, job, worker);
        return;
    }
    worker_refuse(c, worker, job->code, job->text);
    succession_worker_gone(c, job->lineage, id);
}

static void job_fail_workers(struct coordinator *c, struct job *job)
{
    for (uint32_t rank = 0; rank < job->world_size; rank++) {
        struct worker *worker = job->locals[rank];
        if (!worker)
            continue;
        switch (worker->state) {
        case WORKER_JOINING:
        case WORKER_OPENING:
            job_fail_opening(c, job, worker);
            break;
        case WORKER_JOINED:
            /* First: a library that goes on asks for its groups again. */
            worker_send_failed(c, worker, -1, job->code, job->text);
            while (worker->requests) {
                worker_send_error(c, worker, worker->requests->request, job->code, job->text);
                worker_request_free(worker, worker->requests);
            }
            break;
        case WORKER_LEAVING: /* it does not care any more, and is not to be waited for */
            succession_worker_gone(c, job->lineage, worker->id);
            worker_end_departed(c, worker);
            break;
        case WORKER_RELEASING:
        case WORKER_APART: /* of no job */
            break;
        }
    }
}

/* tell: the other daemons do not know yet. */
static void job_fail_text(struct coordinator *c, struct job *job, bool tell, int code,
                          const char *text)
{
    if (job->state == JOB_FAILED)
        return;
    bool ready = job->state == JOB_READY;
    job->state = JOB_FAILED;
    job->failed_ns = c->now_ns;
    job->code = code < 0 ? code : ERR_LOST;
    snprintf(job->text, sizeof(job->text), "%s", text);
    coordinator_log(c, LOG_LEVEL_WARNING, job->uid, "job '%s' (%016" PRIx64 ") has failed: %s",
                    job->name, job->id, job->text);
    if (job_needs_engine(job))
        coordinator_command(c, &(struct engine_command){.kind = COMMAND_JOB_FAIL, .job = job->id});
    /* The home repeats it: whoever got the news before job_open gets it again behind it. */
    if (tell || job->home == job->self) {
        struct message message = coordinator_job_message(MESSAGE_JOB_FAILED, job);
        coordinator_message_error(&message, job->code, job->text);
        coordinator_send_job(c, job, &message, false);
    }
    if (ready || job->generation > 1)
        succession_begin(c, job);
    job_fail_workers(c, job);
    job_worker_removed(c, job);
}

void job_fail(struct coordinator *c, struct job *job, int code, const char *format, ...)
{
    char text[ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    job_fail_text(c, job, true, code, text);
}

void job_fail_draining(struct coordinator *c, struct job *job)
{
    struct error refusal;
    coordinator_drain_error(c, &refusal);
    bool goes_on = job->generation > 1 && job->state == JOB_OPENING;
    job_fail(c, job, goes_on ? ERR_LOST : refusal.code, "%s", refusal.text);
}

/* Give the workers here their ranks. False, with the rank, when one is not here any more. */
static bool job_fits_worker(const struct job *job, const struct worker *worker)
{
    if (worker->state != WORKER_JOINING || worker->uid != job->uid ||
        strcmp(worker->name, job->name) != 0)
        return false;
    if (job->generation == 1)
        return worker->former == 0 && worker->world_size == job->world_size &&
               worker->home == job->home;
    if (worker->returned)
        return worker->former == job->lineage;
    return worker->world_size == 0 || (worker->former != 0 && worker->home == job->home);
}

static bool job_bind_workers(struct coordinator *c, struct job *job, uint32_t *missing)
{
    bool all = true;
    for (uint32_t rank = 0; rank < job->world_size; rank++) {
        if (job->rank_nodes[rank] != job->self)
            continue;
        struct worker *worker = coordinator_worker(c, job->members[rank]);
        if (!worker || !job_fits_worker(job, worker)) {
            all = false;
            *missing = rank;
            continue;
        }
        if (worker->world_size == 0)
            newcomer_withdraw(c, worker);
        worker->state = WORKER_OPENING;
        worker->job = job;
        worker->former = 0;
        worker->returned = false;
        worker->world_size = job->world_size;
        worker->rank = rank;
        job->locals[rank] = worker;
        job->local_count++;
    }
    return all;
}

static void job_open_in_engine(struct coordinator *c, const struct job *job)
{
    struct engine_job roster = {
        .generation = job->generation,
        .job = job->id,
        .lineage = job->lineage,
        .user = job->uid,
        .no_recovery = job->recovery == MESSAGE_RECOVERY_OFF,
        .world_size = job->world_size,
        .rank_nodes = job->rank_nodes,
        .server_count = job->server_count,
        .server_nodes = job->servers,
        .server_weights = job->weights,
    };
    snprintf(roster.name, sizeof(roster.name), "%s", job->name);
    coordinator_command(
        c, &(struct engine_command){.kind = COMMAND_JOB_OPEN, .job = job->id, .roster = &roster});
}

/* This node has no room for the job. The ranks of one that goes on shall not end with it, if none
 * of them is here: it goes on without this node's newcomers and shards. */
static void job_cannot_open(struct coordinator *c, struct job *job, int code, const char *reason)
{
    bool needless = job->generation > 1 && job->home != job->self;
    for (uint32_t rank = 0; rank < job->world_size && needless; rank++)
        needless = !job->locals[rank] || job->locals[rank]->newcomer;
    if (!needless) {
        job_fail(c, job, code, "%s", reason);
        return;
    }
    for (uint32_t rank = 0; rank < job->world_size; rank++) {
        if (job->locals[rank])
            worker_refuse(c, job->locals[rank], code, reason);
    }
    struct message message = coordinator_job_message(MESSAGE_JOB_OPENED, job);
    coordinator_message_error(&message, code, reason);
    coordinator_send(c, job->home, &message); /* which ends it */
}

int job_on_open(struct coordinator *c, uint32_t node, const struct message *message,
                struct error *error)
{
    const char *self = coordinator_node_name(c, c->config->self);
    /* The home of a job with recovery, or of one that goes on, may be another daemon: the daemons
     * of its ranks know whom they asked. */
    bool elsewhere = message->generation > 1 || coordinator_recovers(c, message->recovery);
    if (!elsewhere && auth_home_of_job(message->job, c->config->server_count) != node)
        return error_set(error, ERR_PROTOCOL, "job_open of job '%s', whose home is elsewhere",
                         message->job);
    if (coordinator_job(c, message->job_id))
        return error_set(error, ERR_PROTOCOL, "job_open of a job that is open");
    struct job *job;
    int result = job_create(&job, message, node, c->config->self, c->config->server_count, error);
    if (result < 0)
        return result;
    struct error refusal = {0};
    struct quota *quota = coordinator_quota(c, QUOTA_JOBS);
    bool full = quota_check(quota, job->uid, 1, &refusal) != 0;
    bool taken = quota_take(quota, job->uid, 1) == 0;
    if (taken)
        HASH_ADD(hh, c->jobs, id, sizeof(job->id), job);
    if (!taken || !HASH_IS_ADDED(job)) {
        quota_give_back(quota, job->uid, taken);
        job_free(job);
        return error_set(error, ERR_MEMORY, "no memory for job '%s'", message->job);
    }
    job->began_ns = c->now_ns;
    job->deadline_ns = coordinator_deadline(c, message->timeout_ms, c->config->join_ms);
    const struct succession *before = succession_find(c, job->lineage);
    if (before)
        job->recoveries = before->recoveries;
    job->answer_ns = UINT64_MAX;
    if (before && job->home == job->self)
        job->answer_ns =
            c->now_ns + 2ull * c->config->peer_ms * COORDINATOR_MS + COORDINATOR_ANSWER_NS;
    uint32_t missing = 0;
    succession_opens(c, job);
    bool bound = job_bind_workers(c, job, &missing);
    if (job->roles[job->self] == 0) {
        job_fail(c, job, ERR_PROTOCOL, "node %s has no part in job '%s'", self, job->name);
    } else if (c->draining) {
        job_fail_draining(c, job);
    } else if (full) {
        job_cannot_open(c, job, refusal.code, refusal.text);
    } else if (!bound) {
        job_fail(c, job, ERR_LOST, "rank %u on node %s is gone: it went while the job was opened",
                 missing, self);
    } else if (job_needs_engine(job)) {
        job_open_in_engine(c, job);
    } else {
        job->engine_opened = true;
        job_try_acknowledge(c, job);
    }
    return 0;
}

int job_on_opened(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error)
{
    struct job *job = coordinator_job(c, message->job_id);
    struct succession *before = job ? succession_find(c, job->lineage) : NULL;
    if (message->code == 0 || !job || job->state == JOB_FAILED)
        return home_job_opened(c, node, message, error);
    if (job->home != c->config->self || job->state != JOB_OPENING || job->roles[node] == 0 ||
        job->opened[node])
        return error_set(error, ERR_PROTOCOL, "job_opened of job '%s' was not to come", job->name);
    if (before)
        before->unable[node] = true;
    job_fail(c, job, before ? ERR_LOST : message->code, "%s", message->text);
    return 0;
}

/* A daemon of the job that is not up; -1 when all are. */
static int64_t job_missing_node(const struct coordinator *c, const struct job *job)
{
    for (uint32_t node = 0; node < job->roster; node++) {
        if (job->roles[node] != 0 && !coordinator_is_up(c, node))
            return node;
    }
    return -1;
}

void job_try_acknowledge(struct coordinator *c, struct job *job)
{
    if (job->state != JOB_OPENING || job->acknowledged || !job->engine_opened ||
        job_missing_node(c, job) >= 0)
        return;
    job->acknowledged = true;
    struct message message = coordinator_job_message(MESSAGE_JOB_OPENED, job);
    coordinator_send(c, job->home, &message);
}

void job_engine_opened(struct coordinator *c, const struct engine_event *event)
{
    struct job *job = coordinator_job(c, event->job);
    if (!job || job->state != JOB_OPENING || job->engine_opened)
        return;
    if (event->code < 0) {
        struct error refusal;
        error_set(&refusal, event->code, "node %s cannot open job '%s': %s",
                  coordinator_node_name(c, c->config->self), job->name, event->text);
        job_cannot_open(c, job, refusal.code, refusal.text);
    } else {
        job->engine_opened = true;
        job_try_acknowledge(c, job);
    }
}

/* Count that the job has gone on, as far as this daemon knows: a daemon that was started anew
 * meanwhile counts nothing. */
static void job_count_recovery(struct coordinator *c, struct job *job)
{
    const struct succession *before = succession_find(c, job->lineage);
    if (!before || before->generation >= job->generation)
        return;
    enum recovery_kind kind = succession_kind(before, job);
    uint64_t took_ns = c->now_ns - before->since_ns;
    recoveries_add(&job->recoveries, kind, took_ns);
    coordinator_log(c, LOG_LEVEL_INFO, job->uid,
                    "job '%s' goes on as generation %u, %u ms after: %s", job->name,
                    job->generation, (uint32_t)(took_ns / COORDINATOR_MS), before->text);
}

int job_on_ready(struct coordinator *c, uint32_t node, const struct message *message,
                 struct error *error)
{
    struct job *job = coordinator_job(c, message->job_id);
    if (!job || job->state == JOB_FAILED) {
        c->dropped_messages++;
        return 0;
    }
    if (job->home != node || !job->acknowledged || job->state != JOB_OPENING)
        return error_set(error, ERR_PROTOCOL, "job_ready of job '%s' was not to come", job->name);
    job->state = JOB_READY;
    job->was_ready = true;
    coordinator_log(c, LOG_LEVEL_INFO, job->uid,
                    "job '%s' (%016" PRIx64 ") is open: %u ranks, %u here", job->name, job->id,
                    job->world_size, job->local_count);
    job_count_recovery(c, job);
    for (uint32_t rank = 0; rank < job->world_size; rank++) {
        if (job->locals[rank])
            coordinator_command(c,
                                &(struct engine_command){.kind = COMMAND_WORKER_ATTACH,
                                                         .job = job->id,
                                                         .attach = {.rank = rank,
                                                                    .worker = job->locals[rank]->id,
                                                                    .submission_doorbell = -1,
                                                                    .completion_doorbell = -1}});
    }
    workers_send_joined(c, job);
    group_job_ready(c, job);
    return 0;
}

int job_on_failed(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error)
{
    struct job *job = coordinator_job(c, message->job_id);
    if (!job) {
        c->dropped_messages++;
        return 0;
    }
    if (job->roles[node] == 0)
        return error_set(error, ERR_PROTOCOL, "job_failed of job '%s', in which it has no part",
                         job->name);
    job_fail_text(c, job, false, message->code, message->text);
    return 0;
}

static bool job_has_worker(const struct job *job, uint32_t node, uint32_t worker)
{
    for (uint32_t rank = 0; rank < job->world_size; rank++) {
        if (job->rank_nodes[rank] == node && job->members[rank] == worker)
            return true;
    }
    return false;
}

/* A worker goes on from the job, or will not: the news that it has failed may come by another way,
 * later. False: it asked before it heard that this home has opened the next one for it. */
static bool job_fail_before_succession(struct coordinator *c, uint32_t node,
                                       const struct message *message)
{
    struct job *job, *next;
    HASH_ITER(hh, c->jobs, job, next)
    {
        if (job->lineage != message->lineage || job->state == JOB_FAILED ||
            (job->state == JOB_OPENING && job->generation == 1) ||
            !job_has_worker(job, node, message->member))
            continue;
        if (job->generation > message->generation && job->home == job->self)
            return false;
        job_fail_text(c, job, false, message->code, message->text);
    }
    return true;
}

int job_on_rejoin(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error)
{
    if (!job_fail_before_succession(c, node, message)) {
        c->dropped_messages++;
        return 0;
    }
    return succession_on_rejoin(c, node, message, error);
}

int job_on_rank_gone(struct coordinator *c, uint32_t node, const struct message *message,
                     struct error *error)
{
    (void)job_fail_before_succession(c, node, message);
    return succession_on_gone(c, node, message, error);
}

int job_on_close(struct coordinator *c, uint32_t node, const struct message *message,
                 struct error *error)
{
    struct job *job = coordinator_job(c, message->job_id);
    if (!job || job->state == JOB_FAILED) {
        c->dropped_messages++;
        return 0;
    }
    if (job->home != node || job->local_count > 0)
        return error_set(error, ERR_PROTOCOL, "job_close of job '%s' was not to come", job->name);
    job_end(c, job);
    return 0;
}

int job_on_rank_departed(struct coordinator *c, uint32_t node, const struct message *message,
                         struct error *error)
{
    struct job *job = coordinator_job(c, message->job_id);
    if (!job || job->state == JOB_FAILED) {
        c->dropped_messages++;
        return 0;
    }
    uint32_t rank = (uint32_t)message->rank;
    if (rank >= job->world_size || job->rank_nodes[rank] != node || job->departed[rank])
        return error_set(error, ERR_PROTOCOL, "rank_left of rank %u of job '%s' was not to come",
                         rank, job->name);
    job->departed[rank] = true;
    job->departed_count++;
    if (job_needs_engine(job)) {
        for (uint32_t i = 0; i < message->position_count; i++) {
            if (job_group(job, message->positions[i].group))
                coordinator_command(c, &(struct engine_command){
                                           .kind = COMMAND_RANK_DEPARTED,
                                           .job = job->id,
                                           .group = message->positions[i].group,
                                           .departed = {rank, message->positions[i].sequences}});
        }
    }
    if (job->home != job->self)
        return 0;
    group_home_rank_departed(c, job, rank);
    if (job->departed_count == job->world_size) {
        struct message close = coordinator_job_message(MESSAGE_JOB_CLOSE, job);
        coordinator_send_job(c, job, &close, true);
    }
    return 0;
}

void job_peer_came_back(struct job *job, uint32_t node, uint64_t away_ns)
{
    if (job->state == JOB_READY && job->roles[node] != 0)
        recoveries_add(&job->recoveries, RECOVERY_CONNECTION, away_ns);
}

void job_peer_down(struct coordinator *c, struct job *job, uint32_t node, const char *reason)
{
    bool needed = (job->roles[node] & (JOB_NODE_SERVER | JOB_NODE_HOME)) != 0;
    if (job->state == JOB_FAILED || (!needed && !job_node_has_ranks(job, node)))
        return;
    char ranks[JOB_RANKS_TEXT_BYTES];
    job_node_ranks_text(job, node, ranks);
    job_fail(c, job, ERR_LOST, "node %s%s%s%s is gone: %s", coordinator_node_name(c, node),
             ranks[0] ? " (" : "", ranks, ranks[0] ? ")" : "", reason);
}

/* Give up a server that is there, and does not say that it is ready: it may be unable to connect
 * with another daemon. The job goes on without it, if it has no ranks of the job. */
static void job_do_without_server(struct coordinator *c, struct job *job)
{
    struct succession *before = succession_find(c, job->lineage);
    for (uint32_t node = job->roster; before && node-- > 0;) {
        if (node == job->self || job->roles[node] == 0 || job->opened[node] ||
            job_node_has_ranks(job, node))
            continue;
        before->unable[node] = true;
        job_fail(c, job, ERR_LOST, "server %s has not answered: job '%s' goes on without it",
                 coordinator_node_name(c, node), job->name);
        return;
    }
    job->answer_ns = UINT64_MAX; /* it waits for nodes with ranks */
}

static void job_opening_tick(struct coordinator *c, struct job *job)
{
    if (job->acknowledged && c->now_ns >= job->answer_ns) {
        job_do_without_server(c, job);
        return;
    }
    if (c->now_ns < job->deadline_ns + (job->acknowledged ? COORDINATOR_GRACE_NS : 0))
        return;
    const char *self = coordinator_node_name(c, job->self);
    char cause[600] = "its engine has not answered";
    int64_t node = job_missing_node(c, job);
    if (node >= 0)
        coordinator_unreachable_text(c, (uint32_t)node, cause, sizeof(cause));
    if (job->acknowledged) {
        uint32_t silent = job->home;
        for (uint32_t other = 0; job->home == job->self && other < job->roster; other++) {
            if (job->roles[other] != 0 && !job->opened[other])
                silent = other;
        }
        snprintf(cause, sizeof(cause), "node %s has not answered",
                 coordinator_node_name(c, silent));
    }
    job_fail(c, job, ERR_TIMEOUT, "node %s could not open job '%s' in time: %s", self, job->name,
             cause);
}

void job_tick(struct coordinator *c, struct job *job)
{
    if (job->state == JOB_READY) {
        group_home_tick(c, job);
        late_tick(c, job);
        char text[ERROR_TEXT_BYTES];
        if (late_over_text(c, job, text, sizeof(text)))
            job_fail(c, job, ERR_LOST, "%s", text);
    } else if (job->state == JOB_OPENING) {
        job_opening_tick(c, job);
    }
}
