#include "server/exchange/model/roster.h"

#include <stdio.h>

#include "server/commands/engine_event.h"
#include "server/exchange/model/share.h"

struct exchange_job *exchange_job_find(const struct exchange *exchange, uint64_t id)
{
    for (struct exchange_job *job = exchange->jobs; job; job = job->next) {
        if (job->id == id && !job->closing)
            return job;
    }
    return NULL;
}

struct exchange_group *exchange_group_find(const struct exchange_job *job, uint32_t id)
{
    for (struct exchange_group *group = job->groups; group; group = group->next) {
        if (group->id == id && !group->closing)
            return group;
    }
    return NULL;
}

uint32_t group_local_index(const struct exchange_group *group, uint32_t job_rank)
{
    for (uint32_t i = 0; i < group->members.local_count; i++) {
        if (group->members.locals[i].job_rank == job_rank)
            return i;
    }
    return NO_INDEX;
}

static uint32_t roster_index_of(const uint32_t *numbers, uint32_t count, uint32_t number)
{
    for (uint32_t i = 0; i < count; i++) {
        if (numbers[i] == number)
            return i;
    }
    return NO_INDEX;
}

uint32_t group_node_index(const struct exchange_group *group, uint32_t node)
{
    /* Ascending; asked for every message. */
    uint32_t first = 0, end = group->members.node_count;
    while (first < end) {
        uint32_t middle = first + (end - first) / 2;
        if (group->members.nodes[middle] < node)
            first = middle + 1;
        else
            end = middle;
    }
    return first < group->members.node_count && group->members.nodes[first] == node ? first
                                                                                    : NO_INDEX;
}

uint32_t group_owner_index(const struct exchange_group *group, uint32_t node)
{
    return group->owners.index_of[node]; /* asked for every peer when the group opens */
}

uint32_t group_rank_index(const struct exchange_group *group, uint32_t job_rank)
{
    /* In the group of all ranks it is the rank itself. Found at once, since all ranks of a job look
     * themselves up when they leave one after another. */
    if (job_rank < group->members.size && group->members.ranks[job_rank] == job_rank)
        return job_rank;
    return roster_index_of(group->members.ranks, group->members.size, job_rank);
}

uint32_t group_rank_node(const struct exchange_group *group, uint32_t group_rank)
{
    return group->job->rank_nodes[group->members.ranks[group_rank]];
}

struct exchange_worker *group_local_worker(const struct exchange_group *group, uint32_t local)
{
    return group->job->by_rank[group->members.locals[local].job_rank];
}

void exchange_group_fail(struct exchange_group *group, int code, const char *text)
{
    if (group->failed)
        return;
    group->failed = true;
    group_mark_dirty(group); /* exchange_run frees its memory; callers still use it */
    struct engine_event *event = engine_event_create(ENGINE_GROUP_FAILED);
    event->job = group->job->id;
    event->group = group->id;
    event->code = code;
    snprintf(event->text, sizeof(event->text), "%s", text);
    struct exchange *exchange = group->job->exchange;
    exchange->options.io.event(exchange->options.io.context, event);
}
