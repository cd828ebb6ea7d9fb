/* The end of a daemon. The drain: no new jobs, time for what runs to finish, then the end of all
 * jobs. Before it, where a launcher ends all daemons of a run together, one whose ranks have ended
 * retires: it goes on serving the others until none has ranks. */
#include "server/coordinator/coordinator_internal.h"

/* Whether all ranks of this node have departed from the job, or are about to: nothing new can begin
 * that all take part in, and the others may still be waiting for what this node has sent. The job
 * ends when those have it. */
static bool drain_spares(const struct job *job)
{
    if (job->state != JOB_READY || !(job->roles[job->self] & JOB_NODE_RANKS))
        return false;
    for (uint32_t rank = 0; rank < job->world_size; rank++)
        if (job->locals[rank] && job->locals[rank]->state != WORKER_LEAVING)
            return false;
    return true;
}

/* Fails the open jobs, but, with spare_ending, not those that end by themselves: whether there are
 * such. */
static bool drain_refuse_jobs(struct coordinator *c, bool spare_ending)
{
    bool spared = false;
    struct job *job, *next_job;
    HASH_ITER(hh, c->jobs, job, next_job)
    {
        if (spare_ending && drain_spares(job))
            spared = true;
        else
            job_fail_draining(c, job);
    }
    return spared;
}

void drain_finish(struct coordinator *c)
{
    drain_refuse_jobs(c, false);
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

void drain_begin(struct coordinator *c)
{
    struct error refusal;
    coordinator_drain_error(c, &refusal);
    c->draining = true;
    /* First, so that nobody goes on with this node when a job has failed. */
    for (uint32_t node = 0; node < c->config->server_count; node++) {
        if (node != c->config->self)
            coordinator_send(c, node, &(struct message){.type = MESSAGE_NODE_DRAINING});
    }
    struct worker *worker, *next_worker;
    HASH_ITER(hh, c->workers, worker, next_worker)
    {
        if (worker->state == WORKER_JOINING)
            member_refuse(c, worker, refusal.code, refusal.text);
        else if (worker->state == WORKER_RELEASING || worker->state == WORKER_APART)
            worker_end(c, worker);
    }
    successions_drain(c);
    home_drain(c);
    struct job *job, *next_job;
    HASH_ITER(hh, c->jobs, job, next_job)
    {
        if (job->state == JOB_OPENING)
            job_fail_draining(c, job);
    }
}

int drain_on_peer(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error)
{
    bool drains = message->type == MESSAGE_NODE_DRAINING;
    if (node == c->config->self)
        return error_set(error, ERR_PROTOCOL, "%s of this node itself",
                         message_type_name(message->type));
    c->others_end[node] = drains ? COORDINATOR_DRAINS : COORDINATOR_RETIRES;
    if (!drains)
        return 0;
    newcomers_forget_node(c, node);
    successions_peer_down(c, node);
    return 0;
}

void drain_engine_idle(struct coordinator *c, const struct engine_event *event)
{
    (void)event;
    if (c->draining && !c->stopped && !drain_refuse_jobs(c, true))
        drain_finish(c);
}

void retire_begin(struct coordinator *c)
{
    c->retiring = true;
    c->retire_ns = c->now_ns;
    for (uint32_t node = 0; node < c->config->server_count; node++) {
        if (node != c->config->self)
            coordinator_send(c, node, &(struct message){.type = MESSAGE_NODE_RETIRING});
    }
}

uint64_t retire_deadline(const struct coordinator *c)
{
    return c->retire_ns + c->config->restart_ms * COORDINATOR_MS;
}
