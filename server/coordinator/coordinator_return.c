/* Workers of this node that had a rank from a daemon before this one, which was killed: all daemons
 * are told, for this one does not know who remembers the job, nor who decides. */
#include <stdio.h>
#include <string.h>

#include "server/coordinator/coordinator_internal.h"

void return_tell(struct coordinator *c, const struct worker *worker, uint32_t node)
{
    struct message message = {
        .type = MESSAGE_JOB_RETURN,
        .uid = worker->uid,
        .lineage = worker->former,
        .generation = worker->former_generation,
        .world_size = worker->world_size,
        .rank = (int32_t)worker->rank,
        .local_rank = worker->wished_local_rank,
        .pid = worker->pid,
        .member = worker->id,
        .former = worker->former_member,
        .timeout_ms = coordinator_remaining_ms(c, worker->deadline_ns),
        .stragglers_ms = worker->stragglers_ms,
        .least_ranks = worker->least_ranks,
        .wait_ms = worker->wait_ms,
        .whole = worker->whole,
    };
    snprintf(message.job, sizeof(message.job), "%s", worker->name);
    coordinator_send(c, node, &message);
}

void return_tell_all(struct coordinator *c, struct worker *worker)
{
    worker->tell_again_ns = c->now_ns + COORDINATOR_TELL_NS;
    for (uint32_t node = 0; node < c->config->server_count; node++) {
        if (coordinator_reaches(c, node))
            return_tell(c, worker, node);
    }
}

void return_ask(struct coordinator *c, struct worker *worker)
{
    uint64_t wait_ms = (uint64_t)c->config->restart_ms + c->config->peer_ms;
    worker->asked = false;
    worker->noted_by_ns = c->now_ns + wait_ms * COORDINATOR_MS;
    return_tell_all(c, worker);
}

void return_withdraw(struct coordinator *c, const struct worker *worker)
{
    struct message gone = {
        .type = MESSAGE_RANK_GONE,
        .uid = worker->uid,
        .lineage = worker->former,
        .generation = worker->former_generation,
        .member = worker->id,
    };
    coordinator_message_error(&gone, ERR_LOST,
                              "its daemon was started again, and it has gone since");
    for (uint32_t node = 0; node < c->config->server_count; node++) {
        if (coordinator_reaches(c, node))
            coordinator_send(c, node, &gone);
    }
}

int return_on_noted(struct coordinator *c, uint32_t node, const struct message *message,
                    struct error *error)
{
    (void)error;
    struct worker *worker = coordinator_worker(c, message->member);
    if (!worker || worker->state != WORKER_JOINING || !worker->returned ||
        strcmp(worker->name, message->job) != 0) {
        c->dropped_messages++;
        return 0;
    }
    worker->home = node;
    worker->asked = true;
    return 0;
}
