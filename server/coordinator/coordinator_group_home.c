/* Groups at the home of their job: who has asked for one, opening it on all daemons of the job, and
 * closing it there when its ranks are done with it. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "server/coordinator/coordinator_internal.h"

#define GROUP_REFUSED_MAX 16u                     /* of a job; the oldest makes room */
#define GROUP_REFUSED_NS (60000 * COORDINATOR_MS) /* so long the refusal waits for late ranks */

static struct group_gathering *group_home_gathering(const struct job *job,
                                                    const struct message *message)
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

/* One line a rank, and all ranks may be refused at once: the request says what it is about, not the
 * list, which is as long as there are ranks. */
static void group_home_refuse(struct coordinator *c, const struct job *job, uint32_t rank,
                              uint32_t request, int code, const char *text)
{
    struct message refused = coordinator_job_message(MESSAGE_GROUP_REFUSED, job);
    refused.rank = (int32_t)rank;
    refused.request = request;
    coordinator_message_error(&refused, code, text);
    coordinator_send(c, job->rank_nodes[rank], &refused);
}

static void group_home_departed_text(const struct job *job, uint32_t rank,
                                     char text[ERROR_TEXT_BYTES])
{
    snprintf(text, ERROR_TEXT_BYTES, "rank %u of the group has left job '%s'", rank, job->name);
}

static void group_home_end_gathering(struct job *job, struct group_gathering *gathering)
{
    DL_DELETE(job->gatherings, gathering);
    group_gathering_free(gathering);
}

/* Refuse all that have asked; those that ask later are refused by group_home_has_refused. */
static void group_home_refuse_all(struct coordinator *c, const struct job *job,
                                  const struct group_gathering *gathering, int code,
                                  const char *text)
{
    for (uint32_t i = 0; i < gathering->count; i++) {
        if (gathering->joined[i])
            group_home_refuse(c, job, gathering->ranks[i], gathering->requests[i], code, text);
    }
}

static void group_home_forget_told(struct job *job, struct group_gathering *gathering)
{
    if (gathering->joined_count == gathering->count)
        group_home_end_gathering(job, gathering);
}

static struct group_gathering *group_home_gather(const struct coordinator *c, struct job *job,
                                                 const struct message *message)
{
    struct group_gathering *gathering =
        group_gathering_create(message->nth, message->ranks.values, message->ranks.count);
    if (!gathering)
        return NULL;
    gathering->told_ns = c->now_ns + COORDINATOR_WAITING_NS;
    DL_APPEND(job->gatherings, gathering);
    return gathering;
}

/* Drop the oldest refused gathering where the job has too many. */
static void group_home_make_room(struct job *job)
{
    struct group_gathering *gathering, *oldest = NULL;
    uint32_t refused = 0;
    DL_FOREACH(job->gatherings, gathering)
    {
        if (gathering->refusal.code == 0)
            continue;
        oldest = oldest ? oldest : gathering;
        refused++;
    }
    if (refused >= GROUP_REFUSED_MAX)
        group_home_end_gathering(job, oldest);
}

/* A rank cannot open the group, as its daemon says: the others hear why. */
static void group_home_unable(struct coordinator *c, struct job *job,
                              struct group_gathering *gathering, const struct message *message)
{
    uint32_t rank = (uint32_t)message->rank;
    char text[ERROR_TEXT_BYTES];
    if (!gathering || gathering->refusal.code == 0) {
        group_home_make_room(job);
        gathering = gathering ? gathering : group_home_gather(c, job, message);
        if (!gathering)
            return;
        snprintf(text, sizeof(text), "rank %u on node %s cannot open the group: %.800s", rank,
                 coordinator_node_name(c, job->rank_nodes[rank]), message->text);
        group_home_refuse_all(c, job, gathering, message->code, text);
        error_set(&gathering->refusal, message->code, "%s", text);
        gathering->end_ns = c->now_ns + GROUP_REFUSED_NS;
        gathering->told_ns = UINT64_MAX;
    }
    group_gathering_add(gathering, rank, 0, UINT64_MAX); /* it knows a reason */
    group_home_forget_told(job, gathering);
}

/* Whether the rank hears now that another one cannot open the group. A rank that knows it tries
 * again: this ends the gathering. */
static bool group_home_has_refused(struct coordinator *c, struct job *job,
                                   struct group_gathering **gathering,
                                   const struct message *message)
{
    uint32_t rank = (uint32_t)message->rank;
    if (!*gathering || (*gathering)->refusal.code == 0)
        return false;
    if (group_gathering_add(*gathering, rank, message->request, UINT64_MAX) < 0) {
        group_home_end_gathering(job, *gathering);
        *gathering = NULL;
        return false;
    }
    group_home_refuse(c, job, rank, message->request, (*gathering)->refusal.code,
                      (*gathering)->refusal.text);
    group_home_forget_told(job, *gathering);
    return true;
}

static int group_home_join_check(const struct coordinator *c, const struct job *job,
                                 const struct message *message, struct error *error)
{
    uint32_t open = HASH_COUNT(job->groups);
    const struct group_gathering *gathering;
    DL_FOREACH(job->gatherings, gathering)
    {
        open += gathering->refusal.code == 0;
    }
    if (!group_home_gathering(job, message) && open > c->config->groups_per_job)
        return error_set(error, ERR_MEMORY,
                         "job '%s' has %u groups, its limit (limits.groups_per_job)", job->name,
                         c->config->groups_per_job);
    for (uint32_t i = 0; i < message->ranks.count; i++) {
        if (job->departed[message->ranks.values[i]])
            return error_set(error, ERR_LOST, "rank %u of the group has left job '%s'",
                             message->ranks.values[i], job->name);
    }
    return 0;
}

int group_on_join(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error)
{
    struct job *job = coordinator_ready_job(c, message);
    if (!job)
        return 0;
    uint32_t rank = (uint32_t)message->rank;
    const struct message_list *ranks = &message->ranks;
    if (job->home != job->self || rank >= job->world_size || job->rank_nodes[rank] != node ||
        !group_ranks_valid(ranks->values, ranks->count, job->world_size))
        return error_set(error, ERR_PROTOCOL, "group_join of rank %u of job '%s'", rank, job->name);
    struct error refusal = {0};
    struct group_gathering *gathering = group_home_gathering(job, message);
    if (message->code < 0) {
        group_home_unable(c, job, gathering, message);
        return 0;
    }
    if (group_home_has_refused(c, job, &gathering, message))
        return 0;
    if (group_home_join_check(c, job, message, &refusal) == 0 && !gathering) {
        gathering = group_home_gather(c, job, message);
        if (!gathering)
            error_set(&refusal, ERR_MEMORY, "no memory for a group");
    }
    assert(gathering || refusal.code != 0);
    if (refusal.code == 0 &&
        group_gathering_add(gathering, rank, message->request,
                            coordinator_deadline(c, message->timeout_ms, c->config->group_ms)) < 0)
        error_set(&refusal, ERR_INVALID, "rank %u has asked for the group already, or is not in it",
                  rank);
    if (gathering && gathering->joined_count == 0)
        group_home_end_gathering(job, gathering);
    if (refusal.code != 0) {
        group_home_refuse(c, job, rank, message->request, refusal.code, refusal.text);
        return 0;
    }
    if (gathering->joined_count < gathering->count)
        return 0;
    struct message open = coordinator_job_message(MESSAGE_GROUP_OPEN, job);
    open.group = (int32_t)job->next_group++;
    open.ranks = message->ranks; /* lent */
    open.nth = message->nth;
    coordinator_send_job(c, job, &open, true);
    group_home_end_gathering(job, gathering);
    return 0;
}

/* Opening did not work out: everybody hears why, all ranks of a node by one line, and forgets it.
 */
static void group_home_open_failed(struct coordinator *c, struct job *job, struct group *group,
                                   int code, const char *text)
{
    struct message refused = coordinator_job_message(MESSAGE_GROUP_REFUSED, job);
    refused.rank = (int32_t)group->ranks[0];
    refused.ranks = (struct message_list){group->ranks, group->count}; /* lent */
    refused.nth = group->nth;
    coordinator_message_error(&refused, code, text);
    coordinator_send_job(c, job, &refused, true);
    struct message close = coordinator_job_message(MESSAGE_GROUP_CLOSE, job);
    close.group = (int32_t)group->id;
    group->deadline_ns = UINT64_MAX;
    coordinator_send_job(c, job, &close, true);
}

int group_on_opened(struct coordinator *c, uint32_t node, const struct message *message,
                    struct error *error)
{
    struct job *job = coordinator_ready_job(c, message);
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
        group_home_open_failed(c, job, group, message->code, message->text);
        return 0;
    }
    group->opened[node] = true;
    for (uint32_t other = 0; other < job->roster; other++) {
        if (job->roles[other] != 0 && !group->opened[other])
            return 0;
    }
    for (uint32_t i = 0; i < group->count; i++) {
        if (!job->departed[group->ranks[i]])
            continue;
        char text[ERROR_TEXT_BYTES];
        group_home_departed_text(job, group->ranks[i], text);
        group_home_open_failed(c, job, group, ERR_LOST, text);
        return 0;
    }
    group->deadline_ns = UINT64_MAX;
    struct message ready = coordinator_job_message(MESSAGE_GROUP_READY, job);
    ready.group = message->group;
    coordinator_send_job(c, job, &ready, true);
    return 0;
}

static void group_home_close_rank(struct coordinator *c, struct job *job, struct group *group,
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
    struct job *job = coordinator_ready_job(c, message);
    if (!job)
        return 0;
    uint32_t rank = (uint32_t)message->rank;
    if (job->home != job->self || rank >= job->world_size || job->rank_nodes[rank] != node)
        return error_set(error, ERR_PROTOCOL, "group_leave of rank %u of job '%s'", rank,
                         job->name);
    struct group *group = job_group(job, (uint32_t)message->group);
    if (group)
        group_home_close_rank(c, job, group, rank);
    else
        c->dropped_messages++;
    return 0;
}

void group_home_rank_departed(struct coordinator *c, struct job *job, uint32_t rank)
{
    struct group *group, *next_group;
    HASH_ITER(hh, job->groups, group, next_group)
    {
        group_home_close_rank(c, job, group, rank);
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
        group_home_departed_text(job, rank, text);
        if (gathering->refusal.code == 0)
            group_home_refuse_all(c, job, gathering, ERR_LOST, text);
        group_home_end_gathering(job, gathering);
    }
}

/* Say who has not asked: "ranks 2, 3 of job 'x' (the first on node b) have not asked ...". */
static void group_home_missing_text(const struct coordinator *c, const struct job *job,
                                    const struct group_gathering *gathering,
                                    char text[ERROR_TEXT_BYTES])
{
    char ranks[JOB_RANKS_TEXT_BYTES] = "no rank", where[COORDINATOR_WHERE_BYTES] = "";
    uint32_t *missing = calloc(gathering->count, sizeof(*missing));
    uint32_t count = missing ? group_gathering_missing(gathering, missing) : 0;
    if (count > 0) {
        job_ranks_text(missing, count, ranks);
        coordinator_where_text(c, job, missing, count, where);
    }
    free(missing);
    snprintf(text, ERROR_TEXT_BYTES, "%s of job '%s'%s %s not asked for the group", ranks,
             job->name, where, count == 1 ? "has" : "have");
}

/* One rank of each node says for whom it waits. */
static void group_home_tell_waiting(struct coordinator *c, const struct job *job,
                                    struct group_gathering *gathering)
{
    char text[ERROR_TEXT_BYTES];
    gathering->told_ns = UINT64_MAX;
    group_home_missing_text(c, job, gathering, text);
    for (uint32_t i = 0; i < gathering->count; i++) {
        bool first = gathering->joined[i];
        for (uint32_t j = 0; j < i && first; j++)
            first = !gathering->joined[j] ||
                    job->rank_nodes[gathering->ranks[j]] != job->rank_nodes[gathering->ranks[i]];
        if (first)
            coordinator_tell_rank(c, job, gathering->ranks[i], text);
    }
}

static void group_home_gathering_tick(struct coordinator *c, struct job *job,
                                      struct group_gathering *gathering)
{
    if (gathering->refusal.code != 0) {
        if (c->now_ns >= gathering->end_ns)
            group_home_end_gathering(job, gathering);
        return;
    }
    char text[ERROR_TEXT_BYTES] = "";
    if (c->now_ns >= gathering->told_ns)
        group_home_tell_waiting(c, job, gathering);
    for (uint32_t i = 0; i < gathering->count; i++) {
        if (!gathering->joined[i] || c->now_ns < gathering->deadline_ns[i])
            continue;
        if (text[0] == '\0') /* before a rank that gives up counts among the missing */
            group_home_missing_text(c, job, gathering, text);
        group_home_refuse(c, job, gathering->ranks[i], gathering->requests[i], ERR_TIMEOUT, text);
        gathering->joined[i] = false;
        gathering->joined_count--;
    }
    if (gathering->joined_count == 0)
        group_home_end_gathering(job, gathering);
}

void group_home_tick(struct coordinator *c, struct job *job)
{
    struct group_gathering *gathering, *next_gathering;
    DL_FOREACH_SAFE(job->gatherings, gathering, next_gathering)
    {
        group_home_gathering_tick(c, job, gathering);
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
        group_home_open_failed(c, job, group, ERR_TIMEOUT, text);
    }
}

uint64_t group_home_deadline(const struct job *job)
{
    uint64_t deadline_ns = UINT64_MAX;
    const struct group_gathering *gathering;
    DL_FOREACH(job->gatherings, gathering)
    {
        uint64_t own_ns = gathering->refusal.code != 0 ? gathering->end_ns : gathering->told_ns;
        deadline_ns = own_ns < deadline_ns ? own_ns : deadline_ns;
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
