/* Ground of every file of the coordinator: finding, deadlines, and messages to daemons, workers and
 * the engine. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/auth/auth.h"
#include "server/coordinator/coordinator_internal.h"

#define SWEEP_NS (1000 * COORDINATOR_MS)

struct quota *coordinator_quota(struct coordinator *c, enum coordinator_quota which)
{
    const struct config *config = c->config;
    const struct quota all[COORDINATOR_QUOTAS] = {
        [QUOTA_JOBS] = {.what = "jobs", .key = "limits.jobs", .limit = config->jobs},
        [QUOTA_WORKERS] = {.what = "workers", .key = "limits.workers", .limit = config->workers},
        [QUOTA_GATHERINGS] = {.what = "jobs that gather their ranks",
                              .key = "limits.jobs",
                              .limit = config->jobs},
        [QUOTA_SUCCESSIONS] = {.what = "failed jobs", .key = "limits.jobs", .limit = config->jobs},
        [QUOTA_LATE_ASKS] = {.what = "questions for late ranks",
                             .limit = COORDINATOR_LATE_ASKS_MAX},
    };
    struct quota *quota = &c->quotas[which];
    quota->what = all[which].what;
    quota->key = all[which].key;
    quota->limit = all[which].limit;
    quota->node = coordinator_node_name(c, config->self);
    quota->own_user = c->io.own_user;
    return quota;
}

const char *coordinator_node_name(const struct coordinator *c, uint32_t node)
{
    return c->config->servers[node].name;
}

struct log_throttle *coordinator_throttle(struct coordinator *c, enum log_level level, uint32_t uid)
{
    return log_throttle_of(level <= LOG_LEVEL_WARNING ? &c->warnings : &c->news, uid);
}

void coordinator_sweep_lines(struct coordinator *c)
{
    if (c->now_ns < c->swept_ns + SWEEP_NS)
        return;
    c->swept_ns = c->now_ns;
    log_throttles_sweep(c->log, &c->warnings, c->now_ns, "jobs of a user that fail");
    log_throttles_sweep(c->log, &c->news, c->now_ns, "jobs of a user");
}

int coordinator_drain_error(const struct coordinator *c, struct error *error)
{
    if (c->failure)
        return coordinator_unable_error(c, c->config->self, c->failure, error);
    return error_set(error, ERR_REFUSED, "node %s is shutting down",
                     coordinator_node_name(c, c->config->self));
}

int coordinator_unable_error(const struct coordinator *c, uint32_t node, const char *reason,
                             struct error *error)
{
    return error_set(error, ERR_REFUSED, "the daemon of node %s cannot start: %.800s",
                     coordinator_node_name(c, node), reason);
}

bool coordinator_reaches(const struct coordinator *c, uint32_t node)
{
    return node == c->config->self || c->membership->peers[node].state != MEMBERSHIP_DOWN ||
           membership_is_away(c->membership, node);
}

bool coordinator_stays(const struct coordinator *c, uint32_t node)
{
    return coordinator_reaches(c, node) &&
           !(node == c->config->self ? c->draining : c->others_end[node] == COORDINATOR_DRAINS);
}

bool coordinator_recovers(const struct coordinator *c, uint32_t recovery)
{
    return c->config->recovery && recovery != MESSAGE_RECOVERY_OFF;
}

bool coordinator_is_up(const struct coordinator *c, uint32_t node)
{
    return node == c->config->self ||
           (c->membership->peers[node].state == MEMBERSHIP_UP && node != c->falling);
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

int coordinator_may_say(const struct coordinator *c, uint32_t node, uint32_t uid,
                        struct error *error)
{
    if (node == c->config->self || !c->io.may_say || c->io.may_say(c->io.context, node, uid))
        return 0;
    return error_set(error, ERR_MEMORY,
                     "node %s has yet to hear as much of user %" PRIu32
                     " as may wait for it on node %s: try again when it is back",
                     coordinator_node_name(c, node), uid,
                     coordinator_node_name(c, c->config->self));
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

uint32_t coordinator_first_home(const struct coordinator *c, const char *job)
{
    uint32_t count = c->config->server_count, home = auth_home_of_job(job, count);
    while (!coordinator_reaches(c, home))
        home = (home + 1) % count; /* at last this daemon */
    return home;
}

struct gathering_member coordinator_applicant(const struct coordinator *c, uint32_t node,
                                              const struct message *message)
{
    return (struct gathering_member){
        .node = node,
        .member = message->member,
        .rank = message->rank,
        .local_rank = message->local_rank,
        .pid = message->pid,
        .whole = message->whole != 0,
        .least_ranks = message->least_ranks,
        .wait_ms = message->wait_ms,
        .newcomer = message->world_size == 0,
        .recovery = message->recovery,
        .mark = message->mark,
        .deadline_ns = coordinator_deadline(c, message->timeout_ms, c->config->join_ms),
        .told_ns = c->now_ns + COORDINATOR_WAITING_NS,
    };
}

uint32_t coordinator_remaining_ms(const struct coordinator *c, uint64_t deadline_ns)
{
    if (deadline_ns <= c->now_ns + COORDINATOR_MS)
        return 1;
    return (uint32_t)((deadline_ns - c->now_ns) / COORDINATOR_MS);
}

struct message coordinator_job_message(enum message_type type, const struct job *job)
{
    return (struct message){.type = type, .job_id = job->id, .uid = job->uid};
}

void coordinator_message_error(struct message *message, int code, const char *text)
{
    message->code = code;
    snprintf(message->text, sizeof(message->text), "%s", text);
}

void coordinator_where_text(const struct coordinator *c, const struct job *job,
                            const uint32_t *ranks, uint32_t count,
                            char text[COORDINATOR_WHERE_BYTES])
{
    snprintf(text, COORDINATOR_WHERE_BYTES, " (%son node %s)", count == 1 ? "" : "the first ",
             coordinator_node_name(c, job->rank_nodes[ranks[0]]));
}

void coordinator_tell_rank(struct coordinator *c, const struct job *job, uint32_t rank,
                           const char *text)
{
    struct message message = coordinator_job_message(MESSAGE_RANK_WAITING, job);
    message.rank = (int32_t)rank;
    snprintf(message.text, sizeof(message.text), "%s", text);
    coordinator_send(c, job->rank_nodes[rank], &message);
}

struct job *coordinator_ready_job(struct coordinator *c, const struct message *message)
{
    struct job *job = coordinator_job(c, message->job_id);
    if (job && job->state == JOB_READY)
        return job;
    c->dropped_messages++;
    return NULL;
}

void coordinator_command(struct coordinator *c, const struct engine_command *command)
{
    c->io.command(c->io.context, command);
}

struct worker *coordinator_worker(const struct coordinator *c, uint32_t id)
{
    struct worker *worker;
    HASH_FIND(hh, c->workers, &id, sizeof(id), worker);
    return worker;
}

void worker_send(struct coordinator *c, struct worker *worker, const struct message *message)
{
    if (!worker->gone)
        c->io.send_worker(c->io.context, worker->id, message);
}

void worker_send_error(struct coordinator *c, struct worker *worker, uint32_t request, int code,
                       const char *text)
{
    struct message message = {.type = MESSAGE_ERROR, .request = request};
    coordinator_message_error(&message, code, text);
    worker_send(c, worker, &message);
}

void worker_send_failed(struct coordinator *c, struct worker *worker, int64_t group, int code,
                        const char *text)
{
    struct message message = {.type = MESSAGE_FAILED, .group = (int32_t)group};
    coordinator_message_error(&message, code, text);
    worker_send(c, worker, &message);
}
