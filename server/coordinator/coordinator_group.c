/* Groups on a daemon of their job: what its workers ask of them, and what the home of the job and
 * the engine say of them. The home's own part is in coordinator_group_home.c. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/coordinator_internal.h"

/* --- the workers' side */

static struct worker_group_request *
group_request(const struct worker *worker, const uint32_t *ranks, uint32_t count, uint32_t nth)
{
    struct worker_group_request *request;
    DL_FOREACH(worker->requests, request)
    {
        if (request->nth == nth && group_ranks_equal(request->ranks, request->count, ranks, count))
            return request;
    }
    return NULL;
}

/* Their lists are kept here and at the home, and all of them may be refused at once. */
static int group_request_check_waiting(const struct coordinator *c, const struct worker *worker,
                                       uint32_t count, struct error *error)
{
    uint32_t most = c->config->groups_per_job < MESSAGE_GROUPS_WAITED_FOR_MAX
                        ? c->config->groups_per_job
                        : MESSAGE_GROUPS_WAITED_FOR_MAX;
    uint32_t waiting = 0;
    uint64_t ranks = count;
    const struct worker_group_request *request;
    DL_FOREACH(worker->requests, request)
    {
        waiting++;
        ranks += request->count;
    }
    if (waiting >= most || (waiting > 0 && ranks > MESSAGE_RANKS_WAITED_FOR_MAX))
        return error_set(error, ERR_MEMORY,
                         "rank %u of job '%s' waits for %u groups, which have %" PRIu64
                         " ranks with this one: at most %u groups (limits.groups_per_job, or %u), "
                         "or several of %u ranks in all, may be waited for",
                         worker->rank, worker->job->name, waiting, ranks, most,
                         MESSAGE_GROUPS_WAITED_FOR_MAX, MESSAGE_RANKS_WAITED_FOR_MAX);
    return 0;
}

static int group_request_check(const struct coordinator *c, const struct worker *worker,
                               const struct message *message, struct error *error)
{
    const struct job *job = worker->job;
    const struct message_list *ranks = &message->ranks;
    if (job->state == JOB_FAILED)
        return error_set(error, job->code, "%s", job->text);
    bool member = false;
    for (uint32_t i = 0; i < ranks->count; i++)
        member = member || ranks->values[i] == worker->rank;
    if (!group_ranks_valid(ranks->values, ranks->count, job->world_size) || !member)
        return error_set(error, ERR_INVALID,
                         "a group's list must be distinct ranks below %u, rank %u among them",
                         job->world_size, worker->rank);
    if (HASH_COUNT(job->groups) > c->config->groups_per_job)
        return error_set(error, ERR_MEMORY,
                         "job '%s' has %u groups, its limit (limits.groups_per_job)", job->name,
                         c->config->groups_per_job);
    if (group_request_check_waiting(c, worker, ranks->count, error) < 0 ||
        coordinator_may_say(c, job->home, worker->uid, error) < 0)
        return error->code;
    if (group_request(worker, ranks->values, ranks->count, message->nth))
        return error_set(error, ERR_INVALID, "the group has been asked for already");
    return 0;
}

/* The other ranks of the list would wait for this one. One that has asked for the group already
 * does not keep them waiting, and a list that makes no sense names nobody who waits. */
static void group_say_unable(struct coordinator *c, const struct worker *worker,
                             const struct message *message, const struct error *why)
{
    struct error away;
    if (why->code != ERR_MEMORY ||
        coordinator_may_say(c, worker->job->home, worker->uid, &away) != 0)
        return; /* a home that is away hears it of nobody */
    struct message join = coordinator_job_message(MESSAGE_GROUP_JOIN, worker->job);
    join.rank = (int32_t)worker->rank;
    join.ranks = message->ranks; /* lent */
    join.nth = message->nth;
    coordinator_message_error(&join, why->code, why->text);
    coordinator_send(c, worker->job->home, &join);
}

int group_worker_open(struct coordinator *c, struct worker *worker, const struct message *message,
                      struct error *error)
{
    if (worker->state != WORKER_JOINED)
        return error_set(error, ERR_PROTOCOL, "group_open before it has joined");
    struct error refusal = {0};
    if (group_request_check(c, worker, message, &refusal) < 0) {
        worker_send_error(c, worker, message->request, refusal.code, refusal.text);
        group_say_unable(c, worker, message, &refusal);
        return 0;
    }
    struct worker_group_request *request = calloc(1, sizeof(*request));
    struct message_list ranks = {0};
    if (!request || message_list_set(&ranks, message->ranks.values, message->ranks.count) < 0) {
        free(request);
        return error_set(error, ERR_MEMORY, "no memory for a group");
    }
    request->request = message->request;
    request->nth = message->nth;
    request->ranks = ranks.values;
    request->count = ranks.count;
    request->deadline_ns = coordinator_deadline(c, message->timeout_ms, c->config->group_ms);
    DL_APPEND(worker->requests, request);
    struct message join = coordinator_job_message(MESSAGE_GROUP_JOIN, worker->job);
    join.rank = (int32_t)worker->rank;
    join.request = request->request;
    join.ranks = message->ranks; /* lent */
    join.nth = message->nth;
    join.timeout_ms = coordinator_remaining_ms(c, request->deadline_ns);
    coordinator_send(c, worker->job->home, &join);
    return 0;
}

/* The home closes the group everywhere once all its ranks have left it. */
static void group_send_leave(struct coordinator *c, const struct job *job, uint32_t group,
                             uint32_t rank)
{
    struct message leave = coordinator_job_message(MESSAGE_GROUP_LEAVE, job);
    leave.group = (int32_t)group;
    leave.rank = (int32_t)rank;
    coordinator_send(c, job->home, &leave);
}

int group_worker_close(struct coordinator *c, struct worker *worker, const struct message *message,
                       struct error *error)
{
    if (worker->state != WORKER_JOINED)
        return error_set(error, ERR_PROTOCOL, "group_close before it has joined");
    const struct job *job = worker->job;
    if (job->state == JOB_FAILED)
        return 0;
    struct group *group = job_group(job, (uint32_t)message->group);
    if (!group || group->id == 0 || !group->ready || group_position(group, worker->rank) < 0)
        return error_set(error, ERR_PROTOCOL, "group_close of group %d, which rank %u has not",
                         message->group, worker->rank);
    segments_leave(c, worker, group);
    group_send_leave(c, job, group->id, worker->rank);
    return 0;
}

static void group_refuse_request(struct coordinator *c, struct worker *worker,
                                 struct worker_group_request *request,
                                 const struct message *message)
{
    worker_send_error(c, worker, request->request, message->code < 0 ? message->code : ERR_REFUSED,
                      message->text);
    worker_request_free(worker, request);
}

/* By its number; several may have it, if that is what the worker calls them. */
static void group_refuse_rank(struct coordinator *c, const struct job *job,
                              const struct message *message)
{
    struct worker *worker = job->locals[message->rank];
    struct worker_group_request *request;
    if (!worker)
        return;
    DL_SEARCH_SCALAR(worker->requests, request, request, message->request);
    if (request)
        group_refuse_request(c, worker, request, message);
}

int group_on_refused(struct coordinator *c, uint32_t node, const struct message *message,
                     struct error *error)
{
    struct job *job = coordinator_ready_job(c, message);
    if (!job)
        return 0;
    const struct message_list *ranks = &message->ranks;
    uint32_t rank = (uint32_t)message->rank;
    if (job->home != node || rank >= job->world_size ||
        (ranks->count > 0 && !group_ranks_valid(ranks->values, ranks->count, job->world_size)))
        return error_set(error, ERR_PROTOCOL, "group_refused of rank %u of job '%s'", rank,
                         job->name);
    if (ranks->count == 0)
        group_refuse_rank(c, job, message);
    for (uint32_t i = 0; i < ranks->count; i++) {
        struct worker *worker = job->locals[ranks->values[i]];
        struct worker_group_request *request =
            worker ? group_request(worker, ranks->values, ranks->count, message->nth) : NULL;
        if (request)
            group_refuse_request(c, worker, request, message);
    }
    return 0;
}

int group_on_ready(struct coordinator *c, uint32_t node, const struct message *message,
                   struct error *error)
{
    struct job *job = coordinator_ready_job(c, message);
    if (!job)
        return 0;
    struct group *group = job_group(job, (uint32_t)message->group);
    if (job->home != node || !group || group->ready)
        return error_set(error, ERR_PROTOCOL, "group_ready of group %d of job '%s'", message->group,
                         job->name);
    group->ready = true;
    for (uint32_t i = 0; i < group->count; i++) {
        struct worker *worker = job->locals[group->ranks[i]];
        struct worker_group_request *request =
            worker ? group_request(worker, group->ranks, group->count, group->nth) : NULL;
        if (!request) {
            /* A worker that has stopped waiting will not use the group, and so cannot close it. */
            if (worker && worker->state == WORKER_JOINED)
                group_send_leave(c, job, group->id, worker->rank);
            continue;
        }
        struct message opened = {.type = MESSAGE_WORKER_GROUP_OPENED, .request = request->request};
        worker_set_rule(&opened, c, job, group);
        worker_send(c, worker, &opened);
        message_clear(&opened);
        worker_request_free(worker, request);
    }
    return 0;
}

/* --- every daemon's side */

/* A rank_left that overtook the group's group_open was of no use to the engine. Nobody had used the
 * group then: it was not open here. */
static void group_tell_departed(struct coordinator *c, const struct job *job,
                                const struct group *group)
{
    for (uint32_t i = 0; i < group->count; i++) {
        if (job->departed[group->ranks[i]])
            coordinator_command(c, &(struct engine_command){.kind = COMMAND_RANK_DEPARTED,
                                                            .job = job->id,
                                                            .group = group->id,
                                                            .departed = {.rank = group->ranks[i]}});
    }
}

int group_on_open(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error)
{
    struct job *job = coordinator_ready_job(c, message);
    if (!job)
        return 0;
    const struct message_list *ranks = &message->ranks;
    if (job->home != node || job_group(job, (uint32_t)message->group) ||
        !group_ranks_valid(ranks->values, ranks->count, job->world_size))
        return error_set(error, ERR_PROTOCOL, "group_open of group %d of job '%s'", message->group,
                         job->name);
    struct message opened = coordinator_job_message(MESSAGE_GROUP_OPENED, job);
    opened.group = message->group;
    struct group *group = group_create((uint32_t)message->group, message->nth, ranks->values,
                                       ranks->count, job->roster);
    if (group)
        HASH_ADD(hh, job->groups, id, sizeof(group->id), group);
    if (!group || !HASH_IS_ADDED(group)) {
        if (group)
            group_free(group);
        coordinator_message_error(&opened, ERR_MEMORY, "no memory for a group");
        coordinator_send(c, job->home, &opened);
        return 0;
    }
    if (job->home == job->self)
        group->deadline_ns =
            coordinator_deadline(c, COORDINATOR_GROUP_OPEN_MS, c->config->group_ms);
    if (job_needs_engine(job)) {
        coordinator_command(c, &(struct engine_command){.kind = COMMAND_GROUP_OPEN,
                                                        .job = job->id,
                                                        .group = group->id,
                                                        .members = {group->ranks, group->count}});
        group_tell_departed(c, job, group);
    } else {
        coordinator_send(c, job->home, &opened);
    }
    return 0;
}

void group_engine_opened(struct coordinator *c, const struct engine_event *event)
{
    const struct job *job = coordinator_job(c, event->job);
    if (!job || job->state != JOB_READY || event->group == 0 || !job_group(job, event->group))
        return;
    struct message opened = coordinator_job_message(MESSAGE_GROUP_OPENED, job);
    opened.group = (int32_t)event->group;
    if (event->code < 0) {
        char reason[ERROR_TEXT_BYTES];
        snprintf(reason, sizeof(reason), "node %s cannot open the group: %.900s",
                 coordinator_node_name(c, job->self), event->text);
        coordinator_message_error(&opened, event->code, reason);
    }
    coordinator_send(c, job->home, &opened);
}

int group_on_close(struct coordinator *c, uint32_t node, const struct message *message,
                   struct error *error)
{
    struct job *job = coordinator_ready_job(c, message);
    if (!job)
        return 0;
    struct group *group = job_group(job, (uint32_t)message->group);
    if (!group) {
        c->dropped_messages++;
        return 0;
    }
    if (job->home != node || group->id == 0)
        return error_set(error, ERR_PROTOCOL, "group_close of group %d of job '%s'", message->group,
                         job->name);
    if (job_needs_engine(job))
        coordinator_command(c, &(struct engine_command){.kind = COMMAND_GROUP_CLOSE,
                                                        .job = job->id,
                                                        .group = group->id});
    segments_forget(c, job, group);
    HASH_DEL(job->groups, group);
    group_free(group);
    return 0;
}

static void group_tell_failed(struct coordinator *c, struct job *job, struct group *group, int code,
                              const char *text)
{
    for (uint32_t i = 0; i < group->count; i++) {
        struct worker *worker = job->locals[group->ranks[i]];
        if (worker && worker->state == WORKER_JOINED)
            worker_send_failed(c, worker, group->id, code, text);
    }
}

/* The job is open on another daemon, and may be ready there before it is here, where its workers
 * are told when they have joined. All ranks are in the one group that there is then. */
static struct group *group_that_fails(const struct job *job, uint32_t number)
{
    struct group *group = job && job->state != JOB_FAILED ? job_group(job, number) : NULL;
    return group && !group->failed ? group : NULL;
}

static void group_fail(struct coordinator *c, struct job *job, struct group *group, int code,
                       const char *text)
{
    group->failed = true;
    if (job->state == JOB_READY) {
        group_tell_failed(c, job, group, code, text);
        return;
    }
    job->code = code;
    snprintf(job->text, sizeof(job->text), "%s", text);
}

void group_job_ready(struct coordinator *c, struct job *job)
{
    struct group *world = job_group(job, 0);
    world->ready = true;
    if (world->failed)
        group_tell_failed(c, job, world, job->code, job->text);
}

void group_engine_failed(struct coordinator *c, const struct engine_event *event)
{
    struct job *job = coordinator_job(c, event->job);
    struct group *group = group_that_fails(job, event->group);
    if (!group)
        return;
    coordinator_log(c, LOG_LEVEL_WARNING, job->uid, "group %u of job '%s' has failed: %s",
                    group->id, job->name, event->text);
    struct message failed = coordinator_job_message(MESSAGE_GROUP_FAILED, job);
    failed.group = (int32_t)group->id;
    coordinator_message_error(&failed, event->code, event->text);
    group_fail(c, job, group, event->code, event->text);
    coordinator_send_job(c, job, &failed, false);
}

int group_on_failed(struct coordinator *c, uint32_t node, const struct message *message,
                    struct error *error)
{
    struct job *job = coordinator_job(c, message->job_id);
    if (!job || job->state == JOB_FAILED) {
        c->dropped_messages++;
        return 0;
    }
    if (job->roles[node] == 0)
        return error_set(error, ERR_PROTOCOL, "group_failed of job '%s', in which it has no part",
                         job->name);
    struct group *group = group_that_fails(job, (uint32_t)message->group);
    if (!group)
        return 0;
    group_fail(c, job, group, message->code < 0 ? message->code : ERR_LOST, message->text);
    if (job_needs_engine(job))
        coordinator_command(c, &(struct engine_command){
                                   .kind = COMMAND_GROUP_FAIL, .job = job->id, .group = group->id});
    return 0;
}
