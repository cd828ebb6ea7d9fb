#include "server/jobs/succession.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct succession *succession_create(const struct job *job, uint64_t forget_ns)
{
    struct succession *made = calloc(1, sizeof(*made));
    if (!made)
        return NULL;
    made->job = job->id;
    snprintf(made->name, sizeof(made->name), "%s", job->name);
    made->generation = job->generation;
    made->uid = job->uid;
    made->world_size = job->world_size;
    made->roster = job->roster;
    made->self = job->self;
    made->first_home = job->home;
    made->code = job->code;
    snprintf(made->text, sizeof(made->text), "%s", job->text);
    made->settle_ns = UINT64_MAX;
    made->forget_ns = forget_ns;
    made->rank_nodes = calloc(made->world_size, sizeof(*made->rank_nodes));
    made->states = calloc(made->world_size, sizeof(*made->states));
    made->members = calloc(made->roster, sizeof(*made->members));
    made->lost = calloc(made->roster, sizeof(*made->lost));
    made->asks = calloc(made->world_size, sizeof(*made->asks));
    if (!made->rank_nodes || !made->states || !made->members || !made->lost || !made->asks) {
        succession_free(made);
        return NULL;
    }
    for (uint32_t node = 0; node < made->roster; node++)
        made->members[node] = job->roles[node] != 0;
    for (uint32_t rank = 0; rank < made->world_size; rank++) {
        made->rank_nodes[rank] = job->rank_nodes[rank];
        if (job->departed[rank])
            made->states[rank] = SUCCESSION_GONE;
    }
    return made;
}

void succession_free(struct succession *succession)
{
    free(succession->rank_nodes);
    free(succession->states);
    free(succession->members);
    free(succession->lost);
    free(succession->asks);
    free(succession);
}

uint32_t succession_home(const struct succession *succession)
{
    for (uint32_t i = 0; i < succession->roster; i++) {
        uint32_t node = (succession->first_home + i) % succession->roster;
        if (succession->members[node] && !succession->lost[node])
            return node;
    }
    return succession->self;
}

int succession_ask(struct succession *succession, const struct gathering_member *member,
                   struct error *error)
{
    uint32_t rank = (uint32_t)member->rank;
    if (succession->states[rank] != SUCCESSION_AWAITED)
        return error_set(error, ERR_STATE, "rank %u of job '%s' %s", rank, succession->name,
                         succession->states[rank] == SUCCESSION_GONE ? "is gone"
                                                                     : "has asked already");
    uint32_t at = succession->ask_count++;
    while (at > 0 && succession->asks[at - 1].rank > member->rank) {
        succession->asks[at] = succession->asks[at - 1];
        at--;
    }
    succession->asks[at] = *member;
    succession->states[rank] = SUCCESSION_ASKED;
    return 0;
}

void succession_unask(struct succession *succession, uint32_t index)
{
    succession->states[succession->asks[index].rank] = SUCCESSION_AWAITED;
    succession->ask_count--;
    memmove(&succession->asks[index], &succession->asks[index + 1],
            (succession->ask_count - index) * sizeof(succession->asks[0]));
}

void succession_set_gone(struct succession *succession, uint32_t rank)
{
    for (uint32_t i = 0; i < succession->ask_count; i++) {
        if ((uint32_t)succession->asks[i].rank == rank) {
            succession_unask(succession, i);
            break;
        }
    }
    succession->states[rank] = SUCCESSION_GONE;
}

void succession_lose_node(struct succession *succession, uint32_t node)
{
    succession->lost[node] = true;
    for (uint32_t rank = 0; rank < succession->world_size; rank++) {
        if (succession->rank_nodes[rank] == node)
            succession_set_gone(succession, rank);
    }
}

bool succession_complete(const struct succession *succession)
{
    for (uint32_t rank = 0; rank < succession->world_size; rank++) {
        if (succession->states[rank] == SUCCESSION_AWAITED)
            return false;
    }
    return succession->ask_count > 0;
}

void succession_awaited_text(const struct succession *succession, char *text, size_t bytes)
{
    char ranks[JOB_RANKS_TEXT_BYTES];
    uint32_t count = 0;
    uint32_t *awaited = calloc(succession->world_size, sizeof(*awaited));
    for (uint32_t rank = 0; awaited && rank < succession->world_size; rank++) {
        if (succession->states[rank] == SUCCESSION_AWAITED)
            awaited[count++] = rank;
    }
    if (count > 0)
        job_ranks_text(awaited, count, ranks);
    else
        snprintf(ranks, sizeof(ranks), "no rank");
    snprintf(text, bytes, "%s %s not asked for the next generation of job '%s'", ranks,
             count > 1 ? "have" : "has", succession->name);
    free(awaited);
}

struct gathering *succession_gather(const struct succession *succession)
{
    struct gathering *gathering =
        gathering_create(succession->name, succession->uid, succession->ask_count);
    if (!gathering)
        return NULL;
    gathering->generation = succession->generation + 1;
    for (uint32_t i = 0; i < succession->ask_count; i++) {
        gathering->members[i] = succession->asks[i];
        gathering->members[i].rank = (int32_t)i;
    }
    gathering->count = succession->ask_count;
    return gathering;
}
