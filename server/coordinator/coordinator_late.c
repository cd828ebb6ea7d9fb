/* Ranks that have not reached a collective which others wait in: found, logged once, and kept for
 * the status until they have reached it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/coordinator_internal.h"

#define LATE_HELD UINT64_MAX                  /* the sequence of a held collective's entry */
#define LATE_HELD_NS (1000 * COORDINATOR_MS)  /* so long it is held when a rank says so */
#define LATE_HELD_END_NS (3 * LATE_HELD_NS)   /* it says so again within */
#define LATE_TELL_NS (60000 * COORDINATOR_MS) /* a rank says for whom it waits at most so often */

static void late_ask_free(struct coordinator *c, struct late_ask *ask)
{
    DL_DELETE(c->late_asks, ask);
    quota_give_back(coordinator_quota(c, QUOTA_LATE_ASKS), ask->uid, 1);
    free(ask);
}

static struct job_late *late_find(const struct job *job, uint32_t group)
{
    struct job_late *late;
    DL_FOREACH(job->lates, late)
    {
        if (late->group == group)
            return late;
    }
    return NULL;
}

/* Return what the late ranks have not done: "has not reached", ... */
static const char *late_verb(const struct job_late *late, uint32_t count)
{
    if (late->held)
        return count == 1 ? "does not go on in" : "do not go on in";
    return count == 1 ? "has not reached" : "have not reached";
}

static void late_drop(struct job *job, struct job_late *late)
{
    DL_DELETE(job->lates, late);
    free(late->ranks);
    free(late);
}

/* When its ranks have been waited for as long as they may be. */
static uint64_t late_end_ns(const struct coordinator *c, const struct job_late *late)
{
    return c->config->collective_ms > 0 ? late->since_ns + c->config->collective_ms * COORDINATOR_MS
                                        : UINT64_MAX;
}

/* At the end it is asked once more: what is known may be old. */
static uint64_t late_next_ns(const struct coordinator *c, const struct job_late *late)
{
    uint64_t next_ns = c->now_ns + config_late_ms(c->config) * COORDINATOR_MS;
    uint64_t end_ns = late_end_ns(c, late);
    return end_ns > c->now_ns && end_ns < next_ns ? end_ns : next_ns;
}

/* The entry of this collective; an older one of the group makes room. NULL: out of memory. */
static struct job_late *late_entry(struct coordinator *c, struct job *job, uint32_t group,
                                   uint64_t sequence)
{
    struct job_late *late = late_find(job, group);
    if (late && late->sequence != sequence) {
        late_drop(job, late);
        late = NULL;
    }
    if (late)
        return late;
    late = calloc(1, sizeof(*late));
    uint32_t *ranks = calloc(job->world_size, sizeof(*ranks));
    if (!late || !ranks) {
        free(late);
        free(ranks);
        return NULL;
    }
    uint64_t late_ns = config_late_ms(c->config) * COORDINATOR_MS;
    late->group = group;
    late->sequence = sequence;
    late->since_ns = c->now_ns > late_ns ? c->now_ns - late_ns : 0;
    late->asked_ns = c->now_ns;
    late->again_ns = late_next_ns(c, late);
    late->ranks = ranks;
    DL_APPEND(job->lates, late);
    return late;
}

static bool late_has(const uint32_t *ranks, uint32_t count, uint32_t rank)
{
    for (uint32_t i = 0; i < count; i++) {
        if (ranks[i] == rank)
            return true;
    }
    return false;
}

/* Return a rank of this node that waits; of another one where this node has none of the job. -1:
 * nobody here is to say it. */
static int64_t late_waiting_rank(const struct job *job, const struct job_late *late)
{
    const struct group *group = job_group(job, late->group);
    int64_t first = -1;
    for (uint32_t i = 0; group && i < group->count; i++) {
        uint32_t rank = group->ranks[i];
        if (late_has(late->ranks, late->rank_count, rank) || job->departed[rank])
            continue;
        if (job->locals[rank])
            return rank;
        first = first < 0 ? rank : first;
    }
    return job_local_size(job) == 0 ? first : -1;
}

/* Have one rank say for whom it waits, when that takes long, and not too often. */
static void late_tell_waiting(struct coordinator *c, struct job *job, const struct job_late *late)
{
    bool often = job->late_told_ns > 0 && c->now_ns < job->late_told_ns + LATE_TELL_NS;
    if (late->rank_count == 0 || often || c->now_ns < late->since_ns + COORDINATOR_WAITING_NS)
        return;
    int64_t teller = late_waiting_rank(job, late);
    if (teller < 0)
        return;
    char ranks[JOB_RANKS_TEXT_BYTES], where[COORDINATOR_WHERE_BYTES], text[ERROR_TEXT_BYTES];
    job_ranks_text(late->ranks, late->rank_count, ranks);
    coordinator_where_text(c, job, late->ranks, late->rank_count, where);
    snprintf(text, sizeof(text), "%s%s %s collective %" PRIu64 " of group %u of job '%s'", ranks,
             where, late_verb(late, late->rank_count), late->number, late->group, job->name);
    job->late_told_ns = c->now_ns;
    coordinator_tell_rank(c, job, (uint32_t)teller, text);
}

/* Replace the late ranks of a node by these. New ones are logged. */
static void late_set_node(struct coordinator *c, struct job *job, struct job_late *late,
                          uint32_t node, const uint32_t *ranks, uint32_t count)
{
    uint32_t *fresh = calloc(job->world_size, sizeof(*fresh));
    uint32_t fresh_count = 0, kept = 0;
    if (!fresh)
        return;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t rank = ranks[i];
        if (rank < job->world_size && job->rank_nodes[rank] == node &&
            !late_has(late->ranks, late->rank_count, rank) && !late_has(fresh, fresh_count, rank))
            fresh[fresh_count++] = rank;
    }
    for (uint32_t i = 0; i < late->rank_count; i++) {
        uint32_t rank = late->ranks[i];
        if (job->rank_nodes[rank] != node || late_has(ranks, count, rank))
            late->ranks[kept++] = rank;
    }
    memcpy(late->ranks + kept, fresh, fresh_count * sizeof(*fresh));
    late->rank_count = kept + fresh_count;
    if (fresh_count > 0) {
        char text[JOB_RANKS_TEXT_BYTES];
        job_ranks_text(fresh, fresh_count, text);
        coordinator_log(
            c, LOG_LEVEL_WARNING, job->uid,
            "%s on node %s %s collective %" PRIu64 " of group %u of job '%s' for %.0f s", text,
            coordinator_node_name(c, node), late_verb(late, fresh_count), late->number, late->group,
            job->name, (double)(c->now_ns - late->since_ns) / 1e9);
    }
    free(fresh);
    late_tell_waiting(c, job, late);
}

static void late_query_engine(struct coordinator *c, const struct job *job, uint32_t group,
                              uint64_t sequence)
{
    coordinator_command(
        c, &(struct engine_command){
               .kind = COMMAND_LATE_QUERY, .job = job->id, .group = group, .sequence = sequence});
}

static void late_query_node(struct coordinator *c, struct job *job, struct job_late *late,
                            uint32_t node)
{
    late->waiting++;
    if (node == job->self) {
        if (job_needs_engine(job))
            late_query_engine(c, job, late->group, late->sequence);
        return;
    }
    struct message query = coordinator_job_message(MESSAGE_LATE_QUERY, job);
    query.group = (int32_t)late->group;
    query.sequence = late->sequence;
    coordinator_send(c, node, &query);
}

static void late_answered(struct job *job, struct job_late *late)
{
    if (late->waiting > 0)
        late->waiting--;
    if (late->waiting == 0 && late->rank_count == 0)
        late_drop(job, late);
}

/* Answer the daemons that have asked. */
static bool late_reply(struct coordinator *c, const struct job *job, uint32_t group,
                       uint64_t sequence, const uint32_t *ranks, uint32_t count)
{
    bool any = false;
    struct late_ask *ask, *next;
    DL_FOREACH_SAFE(c->late_asks, ask, next)
    {
        if (ask->job != job->id || ask->group != group || ask->sequence != sequence)
            continue;
        struct message reply = coordinator_job_message(MESSAGE_LATE_REPLY, job);
        reply.group = (int32_t)group;
        reply.sequence = sequence;
        if (message_list_set(&reply.ranks, ranks, count) == 0)
            coordinator_send(c, ask->node, &reply);
        message_clear(&reply);
        late_ask_free(c, ask);
        any = true;
    }
    return any;
}

void late_engine_report(struct coordinator *c, const struct engine_event *event)
{
    struct job *job = coordinator_job(c, event->job);
    if (!job || job->state != JOB_READY || !job_group(job, event->group))
        return;
    late_reply(c, job, event->group, event->sequence, event->ranks, event->rank_count);
    struct job_late *late = late_find(job, event->group);
    bool known = late && late->sequence == event->sequence;
    if (!known && event->rank_count == 0 && event->node_count == 0)
        return;
    late = late_entry(c, job, event->group, event->sequence);
    if (!late)
        return;
    late->number = event->sequence + event->met;
    late_set_node(c, job, late, job->self, event->ranks, event->rank_count);
    for (uint32_t i = 0; i < event->node_count; i++) {
        uint32_t node = event->nodes[i];
        if (node < job->roster && node != job->self && job->roles[node] != 0)
            late_query_node(c, job, late, node);
    }
    if (event->node_count == 0)
        late_answered(job, late);
}

/* The engine knows nothing of a collective that passes through memory which the ranks share. */
int late_worker_held(struct coordinator *c, struct worker *worker, const struct message *message,
                     struct error *error)
{
    struct job *job = worker->job;
    uint32_t rank = (uint32_t)message->rank;
    const struct group *group = job ? job_group(job, (uint32_t)message->group) : NULL;
    if (worker->state != WORKER_JOINED || !group || job->state != JOB_READY)
        return 0; /* it crossed with the end */
    if (group_position(group, worker->rank) < 0 || group_position(group, rank) < 0 ||
        rank == worker->rank || job->rank_nodes[rank] != job->self)
        return error_set(error, ERR_PROTOCOL, "rank %u holds up group %d, says rank %u", rank,
                         message->group, worker->rank);
    struct job_late *late = late_entry(c, job, group->id, LATE_HELD);
    if (!late)
        return 0;
    if (!late->held || late->number != message->sequence) {
        late->held = true;
        late->number = message->sequence;
        late->since_ns = c->now_ns > LATE_HELD_NS ? c->now_ns - LATE_HELD_NS : 0;
        late->rank_count = 0;
    }
    late->asked_ns = c->now_ns;
    late->again_ns = c->now_ns + LATE_HELD_END_NS;
    if (c->now_ns >= late->since_ns + config_late_ms(c->config) * COORDINATOR_MS)
        late_set_node(c, job, late, job->self, &rank, 1);
    return 0;
}

int late_on_query(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error)
{
    (void)error;
    struct job *job = coordinator_job(c, message->job_id);
    if (!job || job->state != JOB_READY ||
        !quota_has_room(coordinator_quota(c, QUOTA_LATE_ASKS), job->uid, 1)) {
        c->dropped_messages++;
        return 0;
    }
    struct late_ask *ask = calloc(1, sizeof(*ask));
    if (!ask || quota_take(coordinator_quota(c, QUOTA_LATE_ASKS), job->uid, 1) != 0) {
        free(ask);
        return 0;
    }
    ask->job = message->job_id;
    ask->group = (uint32_t)message->group;
    ask->sequence = message->sequence;
    ask->node = node;
    ask->uid = job->uid;
    DL_APPEND(c->late_asks, ask);
    if (job_needs_engine(job) && job_group(job, ask->group))
        late_query_engine(c, job, ask->group, ask->sequence);
    else
        late_reply(c, job, ask->group, ask->sequence, NULL, 0);
    return 0;
}

int late_on_reply(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error)
{
    (void)error;
    struct job *job = coordinator_job(c, message->job_id);
    struct job_late *late = job ? late_find(job, (uint32_t)message->group) : NULL;
    if (!late || late->sequence != message->sequence || job->state != JOB_READY) {
        c->dropped_messages++;
        return 0;
    }
    late_set_node(c, job, late, node, message->ranks.values, message->ranks.count);
    late_answered(job, late);
    return 0;
}

void late_forget_job(struct coordinator *c, uint64_t id)
{
    struct late_ask *ask, *next;
    DL_FOREACH_SAFE(c->late_asks, ask, next)
    {
        if (ask->job != id)
            continue;
        late_ask_free(c, ask);
    }
}

void late_forget_node(struct coordinator *c, uint32_t node)
{
    struct late_ask *ask, *next;
    DL_FOREACH_SAFE(c->late_asks, ask, next)
    {
        if (ask->node != node)
            continue;
        late_ask_free(c, ask);
    }
}

/* Ask again, so that what is over goes from the status. */
static void late_ask_again(struct coordinator *c, struct job *job, struct job_late *late)
{
    late->asked_ns = c->now_ns;
    late->again_ns = late_next_ns(c, late);
    late->waiting = 0;
    for (uint32_t i = 0; i < late->rank_count; i++) {
        uint32_t node = job->rank_nodes[late->ranks[i]];
        bool asked = false;
        for (uint32_t j = 0; j < i; j++)
            asked = asked || job->rank_nodes[late->ranks[j]] == node;
        if (!asked)
            late_query_node(c, job, late, node);
    }
}

void late_tick(struct coordinator *c, struct job *job)
{
    struct job_late *late, *next;
    DL_FOREACH_SAFE(job->lates, late, next)
    {
        if (c->now_ns < late->again_ns)
            continue;
        if (late->rank_count == 0 || late->held) /* nobody says so any more */
            late_drop(job, late);
        else
            late_ask_again(c, job, late);
    }
}

/* Return whether the ranks were late still when they were asked about after the end of their
 * time. */
static bool late_is_over(const struct coordinator *c, const struct job_late *late)
{
    return late->rank_count > 0 && late->waiting == 0 && late->asked_ns >= late_end_ns(c, late);
}

bool late_over_text(const struct coordinator *c, const struct job *job, char *text, size_t bytes)
{
    const struct job_late *late;
    DL_FOREACH(job->lates, late)
    {
        if (!late_is_over(c, late))
            continue;
        char ranks[JOB_RANKS_TEXT_BYTES];
        uint32_t node = job->rank_nodes[late->ranks[0]];
        job_ranks_text(late->ranks, late->rank_count, ranks);
        snprintf(text, bytes,
                 "%s (the first on node %s) %s collective %" PRIu64 " of group %" PRIu32
                 " for %" PRIu32 " ms (timeouts.collective_ms)",
                 ranks, coordinator_node_name(c, node), late_verb(late, late->rank_count),
                 late->number, late->group, c->config->collective_ms);
        return true;
    }
    return false;
}

uint64_t late_deadline(const struct coordinator *c, const struct job *job)
{
    uint64_t deadline_ns = UINT64_MAX;
    const struct job_late *late;
    DL_FOREACH(job->lates, late)
    {
        uint64_t due_ns = late_is_over(c, late) ? c->now_ns : late->again_ns;
        if (due_ns < deadline_ns)
            deadline_ns = due_ns;
    }
    return deadline_ns;
}
