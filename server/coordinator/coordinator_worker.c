/* The workers of this node: joining, leaving, and being told. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/auth/auth.h"
#include "server/coordinator/coordinator_internal.h"

struct worker *coordinator_worker(const struct coordinator *c, uint32_t id)
{
    struct worker *worker;
    HASH_FIND(hh, c->workers, &id, sizeof(id), worker);
    return worker;
}

void worker_request_free(struct worker *worker, struct worker_group_request *request)
{
    DL_DELETE(worker->requests, request);
    free(request->ranks);
    free(request);
}

void worker_forget(struct coordinator *c, struct worker *worker)
{
    while (worker->requests)
        worker_request_free(worker, worker->requests);
    if (worker->job) {
        segments_leave(c, worker, NULL);
        worker->job->locals[worker->rank] = NULL;
        worker->job->local_count--;
    }
    HASH_DEL(c->workers, worker);
    free(worker);
}

void worker_end(struct coordinator *c, struct worker *worker)
{
    if (!worker->gone)
        c->io.end_worker(c->io.context, worker->id);
    worker_forget(c, worker);
}

static void worker_send(struct coordinator *c, struct worker *worker, const struct message *message)
{
    if (!worker->gone)
        c->io.send_worker(c->io.context, worker->id, message);
}

void worker_end_left(struct coordinator *c, struct worker *worker)
{
    struct message left = {.type = MESSAGE_LEFT};
    worker_send(c, worker, &left);
    worker_end(c, worker);
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

void worker_refuse(struct coordinator *c, struct worker *worker, int code, const char *text)
{
    log_info(c->log, "process %u has not joined job '%s': %s", worker->pid, worker->name, text);
    if (worker->state == WORKER_JOINING && worker->asked) {
        struct message withdraw = {.type = MESSAGE_JOB_WITHDRAW, .member = worker->id};
        snprintf(withdraw.job, sizeof(withdraw.job), "%s", worker->name);
        coordinator_send(c, worker->home, &withdraw);
    }
    worker_send_error(c, worker, 0, code, text);
    worker_end(c, worker);
}

void worker_ask_home(struct coordinator *c, struct worker *worker)
{
    if (!coordinator_reaches(c, worker->home))
        return;
    struct message message = {
        .type = MESSAGE_JOB_JOIN,
        .uid = worker->uid,
        .pid = worker->pid,
        .world_size = worker->world_size,
        .rank = worker->wished_rank,
        .local_rank = worker->wished_local_rank,
        .member = worker->id,
        .timeout_ms = coordinator_left_ms(c, worker->deadline_ns),
    };
    snprintf(message.job, sizeof(message.job), "%s", worker->name);
    worker->asked = true;
    coordinator_send(c, worker->home, &message);
}

static bool name_valid(const char *name)
{
    if (name[0] == '\0')
        return false;
    for (const unsigned char *s = (const unsigned char *)name; *s; s++) {
        if (*s < ' ' || *s == 0x7f)
            return false;
    }
    return true;
}

/* Why a join cannot even be tried; 0 when it can. */
static int join_check(const struct coordinator *c, const struct message *message,
                      struct error *error)
{
    const char *node = coordinator_node_name(c, c->config->self);
    if (c->draining)
        return error_set(error, ERR_REFUSED, "node %s is shutting down", node);
    if (!name_valid(message->job))
        return error_set(error, ERR_INVALID, "a job's name must be 1 to 63 printable bytes");
    if (message->rank >= (int64_t)message->world_size)
        return error_set(error, ERR_INVALID, "rank %d of job '%s' with a world size of %u",
                         message->rank, message->job, message->world_size);
    if (HASH_COUNT(c->workers) > c->config->workers)
        return error_set(error, ERR_MEMORY, "node %s has %u workers, its limit (limits.workers)",
                         node, c->config->workers);
    return 0;
}

static int worker_join(struct coordinator *c, uint32_t id,
                       const struct coordinator_credentials *credentials,
                       const struct message *message, struct error *error)
{
    if (coordinator_worker(c, id))
        return error_set(error, ERR_PROTOCOL, "a second join");
    struct worker *worker = calloc(1, sizeof(*worker));
    if (!worker)
        return error_set(error, ERR_MEMORY, "no memory for a worker");
    worker->id = id;
    worker->uid = credentials->uid;
    worker->pid = credentials->pid;
    snprintf(worker->name, sizeof(worker->name), "%s", message->job);
    worker->world_size = message->world_size;
    worker->wished_rank = message->rank;
    worker->wished_local_rank = message->local_rank;
    worker->home = auth_home_of_job(worker->name, c->config->server_count);
    worker->deadline_ns = coordinator_deadline(c, message->timeout_ms, c->config->join_ms);
    HASH_ADD(hh, c->workers, id, sizeof(worker->id), worker);
    struct error refusal = {0};
    if (join_check(c, message, &refusal) < 0)
        worker_refuse(c, worker, refusal.code, refusal.text);
    else
        worker_ask_home(c, worker);
    return 0;
}

static int worker_leave(struct coordinator *c, struct worker *worker, struct error *error)
{
    struct job *job = worker->job;
    if (worker->state != WORKER_JOINED)
        return error_set(error, ERR_PROTOCOL, "leave before it has joined");
    if (job->state == JOB_FAILED) {
        c->io.worker_detach(c->io.context, job->id, worker->rank);
        worker_end_left(c, worker);
        job_worker_removed(c, job);
        return 0;
    }
    while (worker->requests)
        worker_request_free(worker, worker->requests);
    worker->state = WORKER_LEAVING;
    c->io.worker_detach(c->io.context, job->id, worker->rank);
    return 0;
}

int coordinator_worker_message(struct coordinator *c, uint64_t now_ns, uint32_t id,
                               const struct coordinator_credentials *credentials,
                               const struct message *message, struct error *error)
{
    c->now_ns = now_ns;
    struct worker *worker = coordinator_worker(c, id);
    int result;
    if (message->type == MESSAGE_JOIN)
        result = worker_join(c, id, credentials, message, error);
    else if (!worker)
        result = error_set(error, ERR_PROTOCOL, "%s before join", message_type_name(message->type));
    else if (message->type == MESSAGE_WORKER_GROUP_OPEN)
        result = group_worker_open(c, worker, message, error);
    else if (message->type == MESSAGE_WORKER_GROUP_CLOSE)
        result = group_worker_close(c, worker, message, error);
    else if (message->type == MESSAGE_SHARED_OPEN)
        result = segment_worker_open(c, worker, message, error);
    else if (message->type == MESSAGE_SHARED_CLOSE)
        result = segment_worker_close(c, worker, message, error);
    else if (message->type == MESSAGE_LEAVE)
        result = worker_leave(c, worker, error);
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
    struct job *job = worker->job;
    worker->gone = true;
    if (worker->state == WORKER_JOINING) {
        worker_refuse(c, worker, ERR_LOST, "its process is gone");
    } else if (job->state == JOB_FAILED) {
        c->io.worker_detach(c->io.context, job->id, worker->rank);
        worker_forget(c, worker);
        job_worker_removed(c, job);
    } else if (worker->state != WORKER_LEAVING) {
        uint32_t rank = worker->rank, pid = worker->pid;
        worker_forget(c, worker);
        job_fail(c, job, ERR_LOST, "rank %u on node %s is gone: its process %u %s", rank,
                 coordinator_node_name(c, c->config->self), pid, how);
    }
    coordinator_settle(c);
}

int worker_refused(struct coordinator *c, uint32_t node, const struct message *message,
                   struct error *error)
{
    (void)error;
    struct worker *worker = coordinator_worker(c, message->member);
    if (!worker || worker->state != WORKER_JOINING || worker->home != node ||
        strcmp(worker->name, message->job) != 0) {
        c->dropped_messages++;
        return 0;
    }
    worker->asked = false; /* home has forgotten it */
    worker_refuse(c, worker, message->code < 0 ? message->code : ERR_REFUSED, message->text);
    return 0;
}

void worker_set_rule(struct message *message, const struct coordinator *c, const struct job *job,
                     const struct group *group)
{
    static const uint32_t one = 1;
    int result = job_group_is_local(job, group)
                     ? message_list_set(&message->weights, &one, 1)
                     : message_list_set(&message->weights, job->weights, job->server_count);
    if (result < 0)
        log_error(c->log, "no memory for the weights of group %u of job '%s'", group->id,
                  job->name);
    message->group = (int32_t)group->id;
    message->chunk_bytes = c->config->chunk_bytes;
    message->least_shard_bytes = c->config->least_shard_bytes;
}

/* The numbers that the workers of this node gave, when together they make 0, 1, 2 ...; otherwise
 * the order of their ranks. */
static void workers_set_local_ranks(const struct job *job)
{
    uint32_t size = job_local_size(job), order = 0, fitting = 0;
    bool *taken = size > 0 ? calloc(size, sizeof(*taken)) : NULL;
    for (uint32_t rank = 0; rank < job->world_size; rank++) {
        struct worker *worker = job->locals[rank];
        if (!worker)
            continue;
        int32_t wished = worker->wished_local_rank;
        worker->local_rank = order++;
        if (!taken || wished < 0 || (uint32_t)wished >= size || taken[wished])
            continue;
        taken[wished] = true;
        fitting++;
    }
    free(taken);
    for (uint32_t rank = 0; fitting == size && rank < job->world_size; rank++) {
        if (job->locals[rank])
            job->locals[rank]->local_rank = (uint32_t)job->locals[rank]->wished_local_rank;
    }
}

/* All that takes a walk through the ranks is found out once, not for each worker. */
void workers_send_joined(struct coordinator *c, const struct job *job)
{
    struct message message = {
        .type = MESSAGE_JOINED,
        .job_id = job->id,
        .generation = job->generation,
        .world_size = job->world_size,
        .local_size = job_local_size(job),
        .node_index = job_node_index(job),
        .node_count = job_node_count(job),
        .pinned_bytes = c->config->pinned_bytes,
        .timeout_ms = c->config->peer_ms,
    };
    worker_set_rule(&message, c, job, job_group(job, 0));
    workers_set_local_ranks(job);
    for (uint32_t rank = 0; rank < job->world_size; rank++) {
        struct worker *worker = job->locals[rank];
        if (!worker)
            continue;
        message.rank = (int32_t)rank;
        message.local_rank = (int32_t)worker->local_rank;
        worker->state = WORKER_JOINED;
        worker_send(c, worker, &message);
    }
    message_clear(&message);
}

void worker_tick(struct coordinator *c, struct worker *worker)
{
    struct worker_group_request *request, *next;
    DL_FOREACH_SAFE(worker->requests, request, next)
    {
        if (c->now_ns < request->deadline_ns + COORDINATOR_GRACE_NS)
            continue;
        worker_send_error(c, worker, request->request, ERR_TIMEOUT,
                          "the group has not been opened in time");
        worker_request_free(worker, request);
    }
    if (worker->state != WORKER_JOINING)
        return;
    if (c->now_ns < worker->deadline_ns + (worker->asked ? COORDINATOR_GRACE_NS : 0))
        return;
    char text[ERROR_TEXT_BYTES], home[512];
    if (worker->asked)
        snprintf(home, sizeof(home), "server %s has not answered",
                 coordinator_node_name(c, worker->home));
    else
        coordinator_unreachable_text(c, worker->home, home, sizeof(home));
    snprintf(text, sizeof(text), "job '%s' cannot gather at its home: %s", worker->name, home);
    worker_refuse(c, worker, ERR_TIMEOUT, text);
}
