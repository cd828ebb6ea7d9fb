/* The workers of this node one by one: telling them that they have joined, refusing, ending and
 * forgetting them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/coordinator_internal.h"

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
    quota_give_back(coordinator_quota(c, QUOTA_WORKERS), worker->uid, 1);
    HASH_DEL(c->workers, worker);
    free(worker->ending);
    free(worker);
}

void worker_end(struct coordinator *c, struct worker *worker)
{
    if (!worker->gone)
        c->io.end_worker(c->io.context, worker->id);
    worker_forget(c, worker);
}

void worker_end_departed(struct coordinator *c, struct worker *worker)
{
    struct message left = {.type = MESSAGE_LEFT};
    worker_send(c, worker, &left);
    worker_end(c, worker);
}

void worker_refuse(struct coordinator *c, struct worker *worker, int code, const char *text)
{
    coordinator_log(c, LOG_LEVEL_INFO, worker->uid, "process %u has not joined job '%s': %s",
                    worker->pid, worker->name, text);
    if (worker->state == WORKER_JOINING && worker->world_size == 0 && worker->asked) {
        newcomer_withdraw(c, worker);
    } else if (worker->returned) {
        return_withdraw(c, worker);
    } else if (worker->state == WORKER_JOINING && worker->asked) {
        struct message withdraw = {
            .type = MESSAGE_JOB_WITHDRAW, .uid = worker->uid, .member = worker->id};
        snprintf(withdraw.job, sizeof(withdraw.job), "%s", worker->name);
        coordinator_send(c, worker->home, &withdraw);
    }
    worker_send_error(c, worker, 0, code, text);
    worker_end(c, worker);
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
        .lineage = job->lineage,
        .restart_ms = coordinator_recovers(c, job->recovery) ? c->config->restart_ms : 0,
        .recovery =
            coordinator_recovers(c, job->recovery) ? MESSAGE_RECOVERY_ON : MESSAGE_RECOVERY_OFF,
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
        worker->newcomer = false;
        worker_send(c, worker, &message);
    }
    message_clear(&message);
}
