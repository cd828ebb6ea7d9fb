#include "server/jobs/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/format/layout.h"
#include "common/text/text.h"

#define RANKS_NAMED 12u /* JOB_RANKS_TEXT_BYTES are enough for them */

static int job_check_message(const struct message *message, uint32_t roster, struct error *error)
{
    uint32_t world_size = message->ranks.count;
    if (message->job[0] == '\0' || world_size == 0 || world_size > MESSAGE_RANKS_MAX ||
        message->members.count != world_size)
        return error_set(error, ERR_PROTOCOL, "job_open: %u ranks, %u members of job '%s'",
                         world_size, message->members.count, message->job);
    for (uint32_t rank = 0; rank < world_size; rank++) {
        if (message->ranks.values[rank] >= roster)
            return error_set(error, ERR_PROTOCOL, "job_open: rank %u on node number %u of %u", rank,
                             message->ranks.values[rank], roster);
    }
    if (message->generation == 0 || (message->generation > 1) != (message->lineage != 0))
        return error_set(error, ERR_PROTOCOL, "job_open: generation %u %s lineage",
                         message->generation, message->lineage ? "with a" : "without");
    if ((message->generation > 1) != (message->elders.count > 0))
        return error_set(error, ERR_PROTOCOL, "job_open: generation %u, %u elders",
                         message->generation, message->elders.count);
    for (uint32_t i = 0; i < message->elders.count; i++) {
        if (message->elders.values[i] >= roster)
            return error_set(error, ERR_PROTOCOL, "job_open: elder %u is node number %u of %u", i,
                             message->elders.values[i], roster);
    }
    uint32_t servers = message->servers.count;
    if (servers == 0 || servers != message->weights.count || servers > LAYOUT_MAX_SERVERS)
        return error_set(error, ERR_PROTOCOL, "job_open: %u servers, %u weights", servers,
                         message->weights.count);
    for (uint32_t i = 0; i < servers; i++) {
        uint32_t node = message->servers.values[i], weight = message->weights.values[i];
        if (node >= roster || (i > 0 && node <= message->servers.values[i - 1]))
            return error_set(error, ERR_PROTOCOL, "job_open: server %u is node number %u of %u", i,
                             node, roster);
        if (weight == 0 || weight > LAYOUT_MAX_WEIGHT)
            return error_set(error, ERR_PROTOCOL, "job_open: server %u has weight %u", i, weight);
    }
    return 0;
}

static uint32_t *job_list_copy(const struct message_list *list)
{
    struct message_list copy = {0};
    return message_list_set(&copy, list->values, list->count) == 0 ? copy.values : NULL;
}

static int job_make_lists(struct job *job, const struct message *message)
{
    uint32_t world_size = message->ranks.count;
    job->rank_nodes = job_list_copy(&message->ranks);
    job->members = job_list_copy(&message->members);
    job->servers = job_list_copy(&message->servers);
    job->weights = job_list_copy(&message->weights);
    job->roles = calloc(job->roster, sizeof(*job->roles));
    job->elders = calloc(job->roster, sizeof(*job->elders));
    job->opened = calloc(job->roster, sizeof(*job->opened));
    job->locals = calloc(world_size, sizeof(struct worker *));
    job->departed = calloc(world_size, sizeof(*job->departed));
    uint32_t *all = calloc(world_size, sizeof(*all));
    if (all) {
        for (uint32_t rank = 0; rank < world_size; rank++)
            all[rank] = rank;
        struct group *world = group_create(0, 0, all, world_size, job->roster);
        if (world)
            HASH_ADD(hh, job->groups, id, sizeof(world->id), world);
        if (world && !HASH_IS_ADDED(world))
            group_free(world);
        free(all);
    }
    if (!job->rank_nodes || !job->members || !job->servers || !job->weights || !job->roles ||
        !job->elders || !job->opened || !job->locals || !job->departed || !job->groups)
        return ERR_MEMORY;
    return 0;
}

int job_create(struct job **created, const struct message *message, uint32_t home, uint32_t self,
               uint32_t roster, struct error *error)
{
    int result = job_check_message(message, roster, error);
    if (result < 0)
        return result;
    struct job *job = calloc(1, sizeof(*job));
    if (!job)
        return error_set(error, ERR_MEMORY, "no memory for job '%s'", message->job);
    job->id = message->job_id;
    snprintf(job->name, sizeof(job->name), "%s", message->job);
    job->generation = message->generation;
    job->lineage = message->lineage ? message->lineage : message->job_id;
    job->uid = message->uid;
    job->recovery = message->recovery;
    job->mark = message->mark;
    job->world_size = message->ranks.count;
    job->server_count = message->servers.count;
    job->roster = roster;
    job->self = self;
    job->home = home;
    job->next_group = 1;
    if (job_make_lists(job, message) < 0) {
        job_free(job);
        return error_set(error, ERR_MEMORY, "no memory for job '%s'", message->job);
    }
    for (uint32_t rank = 0; rank < job->world_size; rank++)
        job->roles[job->rank_nodes[rank]] |= JOB_NODE_RANKS;
    for (uint32_t i = 0; i < job->server_count; i++)
        job->roles[job->servers[i]] |= JOB_NODE_SERVER;
    job->roles[home] |= JOB_NODE_HOME;
    for (uint32_t node = 0; job->generation == 1 && node < roster; node++)
        job->elders[node] = job->roles[node] != 0;
    for (uint32_t i = 0; i < message->elders.count; i++)
        job->elders[message->elders.values[i]] = job->roles[message->elders.values[i]] != 0;
    *created = job;
    return 0;
}

void job_free(struct job *job)
{
    struct group *group, *next_group;
    HASH_ITER(hh, job->groups, group, next_group)
    {
        HASH_DEL(job->groups, group);
        group_free(group);
    }
    struct group_gathering *gathering, *next_gathering;
    DL_FOREACH_SAFE(job->gatherings, gathering, next_gathering)
    {
        group_gathering_free(gathering);
    }
    struct job_late *late, *next_late;
    DL_FOREACH_SAFE(job->lates, late, next_late)
    {
        free(late->ranks);
        free(late);
    }
    free(job->rank_nodes);
    free(job->members);
    free(job->servers);
    free(job->weights);
    free(job->roles);
    free(job->elders);
    free(job->opened);
    free(job->locals);
    free(job->departed);
    free(job);
}

bool job_needs_engine(const struct job *job)
{
    return (job->roles[job->self] & (JOB_NODE_RANKS | JOB_NODE_SERVER)) != 0;
}

uint32_t job_local_size(const struct job *job)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < job->world_size; rank++)
        count += job->rank_nodes[rank] == job->self;
    return count;
}

uint32_t job_node_count(const struct job *job)
{
    uint32_t count = 0;
    for (uint32_t node = 0; node < job->roster; node++)
        count += (job->roles[node] & JOB_NODE_RANKS) != 0;
    return count;
}

uint32_t job_node_index(const struct job *job)
{
    uint32_t index = 0;
    for (uint32_t node = 0; node < job->self; node++)
        index += (job->roles[node] & JOB_NODE_RANKS) != 0;
    return index;
}

bool job_node_has_ranks(const struct job *job, uint32_t node)
{
    for (uint32_t rank = 0; rank < job->world_size; rank++) {
        if (job->rank_nodes[rank] == node && !job->departed[rank])
            return true;
    }
    return false;
}

struct group *job_group(const struct job *job, uint32_t id)
{
    struct group *group;
    HASH_FIND(hh, job->groups, &id, sizeof(id), group);
    return group;
}

bool job_group_is_local(const struct job *job, const struct group *group)
{
    for (uint32_t i = 1; i < group->count; i++) {
        if (job->rank_nodes[group->ranks[i]] != job->rank_nodes[group->ranks[0]])
            return false;
    }
    return true;
}

void job_ranks_text(const uint32_t *ranks, uint32_t count, char text[JOB_RANKS_TEXT_BYTES])
{
    struct text out = {.at = text, .room = JOB_RANKS_TEXT_BYTES};
    text_add_ranks(&out, ranks, count, RANKS_NAMED);
}

void job_node_ranks_text(const struct job *job, uint32_t node, char text[JOB_RANKS_TEXT_BYTES])
{
    text[0] = '\0';
    uint32_t *ranks = calloc(job->world_size, sizeof(*ranks));
    if (!ranks)
        return;
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < job->world_size; rank++) {
        if (job->rank_nodes[rank] == node)
            ranks[count++] = rank;
    }
    if (count > 0)
        job_ranks_text(ranks, count, text);
    free(ranks);
}
