/* Groups: asked for by workers, gathered at the job's home, opened and closed on all its daemons.
 */
#include <assert.h>
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
    if (group_request(worker, ranks->values, ranks->count, message->nth))
        return error_set(error, ERR_INVALID, "the group has been asked for already");
    return 0;
}

int group_worker_open(struct coordinator *c, struct worker *worker, const struct message *message,
                      struct error *error)
{
    if (worker->state != WORKER_JOINED)
        return error_set(error, ERR_PROTOCOL, "group_open before it has joined");
    struct error refusal = {0};
    if (group_request_check(c, worker, message, &refusal) < 0) {
        worker_send_error(c, worker, message->request, refusal.code, refusal.text);
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
    join.ranks = message->ranks; /* lent */
    join.nth = message->nth;
    join.timeout_ms = coordinator_left_ms(c, request->deadline_ns);
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

/* The job of a message, when it is open here; the message is dropped otherwise. */
static struct job *group_job(struct coordinator *c, const struct message *message)
{
    struct job *job = coordinator_job(c, message->job_id);
    if (job && job->state == JOB_READY)
        return job;
    c->dropped_messages++;
    return NULL;
}

int group_on_refused(struct coordinator *c, uint32_t node, const struct message *message,
                     struct error *error)
{
    struct job *job = group_job(c, message);
    if (!job)
        return 0;
    uint32_t rank = (uint32_t)message->rank;
    if (job->home != node || rank >= job->world_size)
        return error_set(error, ERR_PROTOCOL, "group_refused of rank %u of job '%s'", rank,
                         job->name);
    struct worker *worker = job->locals[rank];
    struct worker_group_request *request =
        worker ? group_request(worker, message->ranks.values, message->ranks.count, message->nth)
               : NULL;
    if (!request)
        return 0;
    worker_send_error(c, worker, request->request, message->code < 0 ? message->code : ERR_REFUSED,
                      message->text);
    worker_request_free(worker, request);
    return 0;
}

int group_on_ready(struct coordinator *c, uint32_t node, const struct message *message,
                   struct error *error)
{
    struct job *job = group_job(c, message);
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
            /* It has stopped waiting: it will not use the group, and so cannot close it. */
            if (worker && worker->state == WORKER_JOINED)
                group_send_leave(c, job, group->id, worker->rank);
            continue;
        }
        struct message opened = {.type = MESSAGE_WORKER_GROUP_OPENED, .request = request->request};
        worker_set_rule(&opened, c, job, group);
        c->io.send_worker(c->io.context, worker->id, &opened);
        message_clear(&opened);
        worker_request_free(worker, request);
    }
    return 0;
}

/* --- every daemon's side */

/* A rank_left that overtook the group's group_open was of no use to the engine. Nobody had used the
 * group then: it was not open here. */
static void group_tell_left(struct coordinator *c, const struct job *job, const struct group *group)
{
    for (uint32_t i = 0; i < group->count; i++) {
        if (job->left[group->ranks[i]])
            c->io.rank_left(c->io.context, job->id, group->id, group->ranks[i], 0);
    }
}

int group_on_open(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error)
{
    struct job *job = group_job(c, message);
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
    if (!group) {
        coordinator_message_error(&opened, ERR_MEMORY, "no memory for a group");
        coordinator_send(c, job->home, &opened);
        return 0;
    }
    HASH_ADD(hh, job->groups, id, sizeof(group->id), group);
    if (job->home == job->self)
        group->deadline_ns =
            coordinator_deadline(c, COORDINATOR_GROUP_OPEN_MS, c->config->group_ms);
    if (job_needs_engine(job)) {
        c->io.group_open(c->io.context, job->id, group);
        group_tell_left(c, job, group);
    } else {
        coordinator_send(c, job->home, &opened);
    }
    return 0;
}

void coordinator_group_opened(struct coordinator *c, uint64_t now_ns, uint64_t id, uint32_t group,
                              int code, const char *text)
{
    c->now_ns = now_ns;
    struct job *job = coordinator_job(c, id);
    if (job && job->state == JOB_READY && group != 0 && job_group(job, group)) {
        struct message opened = coordinator_job_message(MESSAGE_GROUP_OPENED, job);
        opened.group = (int32_t)group;
        if (code < 0) {
            char reason[ERROR_TEXT_BYTES];
            snprintf(reason, sizeof(reason), "node %s cannot open the group: %.900s",
                     coordinator_node_name(c, job->self), text);
            coordinator_message_error(&opened, code, reason);
        }
        coordinator_send(c, job->home, &opened);
    }
    coordinator_settle(c);
}

int group_on_close(struct coordinator *c, uint32_t node, const struct message *message,
                   struct error *error)
{
    struct job *job = group_job(c, message);
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
        c->io.group_close(c->io.context, job->id, group->id);
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

void coordinator_group_failed(struct coordinator *c, uint64_t now_ns, uint64_t id, uint32_t number,
                              int code, const char *text)
{
    c->now_ns = now_ns;
    struct job *job = coordinator_job(c, id);
    struct group *group = group_that_fails(job, number);
    if (group) {
        log_warning(c->log, "group %u of job '%s' has failed: %s", number, job->name, text);
        struct message failed = coordinator_job_message(MESSAGE_GROUP_FAILED, job);
        failed.group = (int32_t)number;
        coordinator_message_error(&failed, code, text);
        group_fail(c, job, group, code, text);
        coordinator_send_job(c, job, &failed, false);
    }
    coordinator_settle(c);
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
        c->io.group_fail(c->io.context, job->id, group->id);
    return 0;
}

/* --- the home's side */

static struct group_gathering *group_gathering(const struct job *job, const struct message *message)
{
    struct group_gathering *gathering;
    DL_FOREACH(job->gatherings, gathering)
    {
        if (gathering->nth == message->nth &&
            group_ranks_equal(gathering->ranks, gathering->count, message->ranks.values,
                              message->ranks.count))
            return gathering;
    }
    return NULL;
}

static void group_refuse(struct coordinator *c, const struct job *job, uint32_t rank,
                         const uint32_t *ranks, uint32_t count, uint32_t nth, int code,
                         const char *text)
{
    struct message refused = coordinator_job_message(MESSAGE_GROUP_REFUSED, job);
    refused.rank = (int32_t)rank;
    refused.nth = nth;
    coordinator_message_error(&refused, code, text);
    if (message_list_set(&refused.ranks, ranks, count) == 0)
        coordinator_send(c, job->rank_nodes[rank], &refused);
    message_clear(&refused);
}

static void group_left_text(const struct job *job, uint32_t rank, char text[ERROR_TEXT_BYTES])
{
    snprintf(text, ERROR_TEXT_BYTES, "rank %u of the group has left job '%s'", rank, job->name);
}

static void group_end_gathering(struct job *job, struct group_gathering *gathering)
{
    DL_DELETE(job->gatherings, gathering);
    group_gathering_free(gathering);
}

static int group_join_check(const struct coordinator *c, const struct job *job,
                            const struct message *message, struct error *error)
{
    uint32_t open = HASH_COUNT(job->groups);
    const struct group_gathering *gathering;
    DL_FOREACH(job->gatherings, gathering)
    {
        open++;
    }
    if (!group_gathering(job, message) && open > c->config->groups_per_job)
        return error_set(error, ERR_MEMORY,
                         "job '%s' has %u groups, its limit (limits.groups_per_job)", job->name,
                         c->config->groups_per_job);
    for (uint32_t i = 0; i < message->ranks.count; i++) {
        if (job->left[message->ranks.values[i]])
            return error_set(error, ERR_LOST, "rank %u of the group has left job '%s'",
                             message->ranks.values[i], job->name);
    }
    return 0;
}

int group_on_join(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error)
{
    struct job *job = group_job(c, message);
    if (!job)
        return 0;
    uint32_t rank = (uint32_t)message->rank;
    const struct message_list *ranks = &message->ranks;
    if (job->home != job->self || rank >= job->world_size || job->rank_nodes[rank] != node ||
        !group_ranks_valid(ranks->values, ranks->count, job->world_size))
        return error_set(error, ERR_PROTOCOL, "group_join of rank %u of job '%s'", rank, job->name);
    struct error refusal = {0};
    struct group_gathering *gathering = group_gathering(job, message);
    if (group_join_check(c, job, message, &refusal) == 0 && !gathering) {
        gathering = group_gathering_create(message->nth, ranks->values, ranks->count);
        if (gathering)
            DL_APPEND(job->gatherings, gathering);
        else
            error_set(&refusal, ERR_MEMORY, "no memory for a group");
    }
    assert(gathering || refusal.code != 0);
    if (refusal.code == 0 &&
        group_gathering_add(gathering, rank,
                            coordinator_deadline(c, message->timeout_ms, c->config->group_ms)) < 0)
        error_set(&refusal, ERR_INVALID, "rank %u has asked for the group already, or is not in it",
                  rank);
    if (gathering && gathering->joined_count == 0)
        group_end_gathering(job, gathering);
    if (refusal.code != 0) {
        group_refuse(c, job, rank, ranks->values, ranks->count, message->nth, refusal.code,
                     refusal.text);
        return 0;
    }
    if (gathering->joined_count < gathering->count)
        return 0;
    struct message open = coordinator_job_message(MESSAGE_GROUP_OPEN, job);
    open.group = (int32_t)job->next_group++;
    open.ranks = message->ranks; /* lent */
    open.nth = message->nth;
    coordinator_send_job(c, job, &open, true);
    group_end_gathering(job, gathering);
    return 0;
}

/* Opening did not work out: everybody hears why, and forgets it. */
static void group_open_failed(struct coordinator *c, struct job *job, struct group *group, int code,
                              const char *text)
{
    for (uint32_t i = 0; i < group->count; i++)
        group_refuse(c, job, group->ranks[i], group->ranks, group->count, group->nth, code, text);
    struct message close = coordinator_job_message(MESSAGE_GROUP_CLOSE, job);
    close.group = (int32_t)group->id;
    group->deadline_ns = UINT64_MAX;
    coordinator_send_job(c, job, &close, true);
}

int group_on_opened(struct coordinator *c, uint32_t node, const struct message *message,
                    struct error *error)
{
    struct job *job = group_job(c, message);
    if (!job)
        return 0;
    struct group *group = job_group(job, (uint32_t)message->group);
    if (!group || group->deadline_ns == UINT64_MAX) {
        c->dropped_messages++;
        return 0;
    }
    if (job->home != job->self || job->roles[node] == 0 || group->opened[node])
        return error_set(error, ERR_PROTOCOL, "group_opened of group %d of job '%s'",
                         message->group, job->name);
    if (message->code < 0) {
        group_open_failed(c, job, group, message->code, message->text);
        return 0;
    }
    group->opened[node] = true;
    for (uint32_t other = 0; other < job->roster; other++) {
        if (job->roles[other] != 0 && !group->opened[other])
            return 0;
    }
    for (uint32_t i = 0; i < group->count; i++) {
        if (!job->left[group->ranks[i]])
            continue;
        char text[ERROR_TEXT_BYTES];
        group_left_text(job, group->ranks[i], text);
        group_open_failed(c, job, group, ERR_LOST, text);
        return 0;
    }
    group->deadline_ns = UINT64_MAX;
    struct message ready = coordinator_job_message(MESSAGE_GROUP_READY, job);
    ready.group = message->group;
    coordinator_send_job(c, job, &ready, true);
    return 0;
}

static void group_close_rank_at_home(struct coordinator *c, struct job *job, struct group *group,
                                     uint32_t rank)
{
    if (group->id == 0 || !group_close_rank(group, rank))
        return;
    struct message close = coordinator_job_message(MESSAGE_GROUP_CLOSE, job);
    close.group = (int32_t)group->id;
    coordinator_send_job(c, job, &close, true);
}

int group_on_leave(struct coordinator *c, uint32_t node, const struct message *message,
                   struct error *error)
{
    struct job *job = group_job(c, message);
    if (!job)
        return 0;
    uint32_t rank = (uint32_t)message->rank;
    if (job->home != job->self || rank >= job->world_size || job->rank_nodes[rank] != node)
        return error_set(error, ERR_PROTOCOL, "group_leave of rank %u of job '%s'", rank,
                         job->name);
    struct group *group = job_group(job, (uint32_t)message->group);
    if (group)
        group_close_rank_at_home(c, job, group, rank);
    else
        c->dropped_messages++;
    return 0;
}

void group_rank_gone(struct coordinator *c, struct job *job, uint32_t rank)
{
    struct group *group, *next_group;
    HASH_ITER(hh, job->groups, group, next_group)
    {
        group_close_rank_at_home(c, job, group, rank);
    }
    struct group_gathering *gathering, *next_gathering;
    DL_FOREACH_SAFE(job->gatherings, gathering, next_gathering)
    {
        bool member = false;
        for (uint32_t i = 0; i < gathering->count; i++)
            member = member || gathering->ranks[i] == rank;
        if (!member)
            continue;
        char text[ERROR_TEXT_BYTES];
        group_left_text(job, rank, text);
        for (uint32_t i = 0; i < gathering->count; i++) {
            if (gathering->joined[i])
                group_refuse(c, job, gathering->ranks[i], gathering->ranks, gathering->count,
                             gathering->nth, ERR_LOST, text);
        }
        group_end_gathering(job, gathering);
    }
}

static void group_gathering_tick(struct coordinator *c, struct job *job,
                                 struct group_gathering *gathering)
{
    for (uint32_t i = 0; i < gathering->count; i++) {
        if (!gathering->joined[i] || c->now_ns < gathering->deadline_ns[i])
            continue;
        char text[ERROR_TEXT_BYTES], ranks[JOB_RANKS_TEXT_BYTES] = "no rank";
        uint32_t *missing = calloc(gathering->count, sizeof(*missing));
        uint32_t count = missing ? group_gathering_missing(gathering, missing) : 0;
        if (count > 0)
            job_ranks_text(missing, count, ranks);
        free(missing);
        snprintf(text, sizeof(text), "%s of job '%s' %s not asked for the group", ranks, job->name,
                 count == 1 ? "has" : "have");
        group_refuse(c, job, gathering->ranks[i], gathering->ranks, gathering->count,
                     gathering->nth, ERR_TIMEOUT, text);
        gathering->joined[i] = false;
        gathering->joined_count--;
    }
    if (gathering->joined_count == 0)
        group_end_gathering(job, gathering);
}

void group_tick(struct coordinator *c, struct job *job)
{
    struct group_gathering *gathering, *next_gathering;
    DL_FOREACH_SAFE(job->gatherings, gathering, next_gathering)
    {
        group_gathering_tick(c, job, gathering);
    }
    struct group *group, *next_group;
    HASH_ITER(hh, job->groups, group, next_group)
    {
        if (c->now_ns < group->deadline_ns)
            continue;
        char text[ERROR_TEXT_BYTES] = "no daemon";
        for (uint32_t node = 0; node < job->roster; node++) {
            if (job->roles[node] != 0 && !group->opened[node])
                snprintf(text, sizeof(text), "node %s has not opened the group in time",
                         coordinator_node_name(c, node));
        }
        group_open_failed(c, job, group, ERR_TIMEOUT, text);
    }
}

uint64_t group_deadline(const struct job *job)
{
    uint64_t deadline_ns = UINT64_MAX;
    const struct group_gathering *gathering;
    DL_FOREACH(job->gatherings, gathering)
    {
        for (uint32_t i = 0; i < gathering->count; i++) {
            if (gathering->joined[i] && gathering->deadline_ns[i] < deadline_ns)
                deadline_ns = gathering->deadline_ns[i];
        }
    }
    for (const struct group *group = job->groups; group; group = group->hh.next) {
        if (group->deadline_ns < deadline_ns)
            deadline_ns = group->deadline_ns;
    }
    return deadline_ns;
}
