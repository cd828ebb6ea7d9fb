#include "server/jobs/gathering.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/jobs/job.h"

struct gathering *gathering_create(const char *name, uint32_t uid, uint32_t world_size)
{
    struct gathering *gathering = calloc(1, sizeof(*gathering));
    if (!gathering)
        return NULL;
    gathering->members = calloc(world_size, sizeof(*gathering->members));
    if (!gathering->members) {
        free(gathering);
        return NULL;
    }
    snprintf(gathering->name, sizeof(gathering->name), "%s", name);
    gathering->uid = uid;
    gathering->world_size = world_size;
    gathering->generation = 1;
    gathering->say_ns = gathering->without_ns = UINT64_MAX;
    gathering->said_node = -1;
    return gathering;
}

void gathering_free(struct gathering *gathering)
{
    free(gathering->elders);
    free(gathering->unable);
    free(gathering->members);
    free(gathering);
}

bool gathering_complete(const struct gathering *gathering)
{
    return gathering->count == gathering->world_size;
}

bool gathering_is_of_another(const struct gathering *gathering, uint32_t mark)
{
    return mark != 0 && gathering->mark != 0 && mark != gathering->mark;
}

static const char *gathering_recovery_name(uint32_t recovery)
{
    static const char *const names[] = {"recovery as configured", "recovery", "no recovery"};
    return names[recovery];
}

int gathering_add(struct gathering *gathering, const struct gathering_member *member, uint32_t uid,
                  uint32_t world_size, const struct config *config, struct error *error)
{
    const char *node = config->servers[member->node].name;
    if (uid != gathering->uid)
        return error_set(error, ERR_REFUSED,
                         "job '%s' belongs to user %u; process %u on node %s runs as user %u",
                         gathering->name, gathering->uid, member->pid, node, uid);
    if (gathering_is_of_another(gathering, member->mark))
        return error_set(
            error, ERR_REFUSED,
            "job '%s' gathers the ranks of another run than that of process %u on node "
            "%s: give each run a name of its own (SHOAL_JOB, shoalrun --job)",
            gathering->name, member->pid, node);
    if (world_size != gathering->world_size)
        return error_set(error, ERR_REFUSED,
                         "job '%s' has a world size of %u by its first rank; process %u on node %s "
                         "asks for %u",
                         gathering->name, gathering->world_size, member->pid, node, world_size);
    if (gathering->count == 0)
        gathering->recovery = member->recovery;
    if (member->recovery != gathering->recovery)
        return error_set(error, ERR_REFUSED,
                         "job '%s' has %s by its first rank; process %u on node %s asks for %s",
                         gathering->name, gathering_recovery_name(gathering->recovery), member->pid,
                         node, gathering_recovery_name(member->recovery));
    for (uint32_t i = 0; i < gathering->count; i++) {
        const struct gathering_member *other = &gathering->members[i];
        if (member->rank >= 0 && member->rank == other->rank)
            return error_set(error, ERR_REFUSED,
                             "rank %d of job '%s' is given twice: to process %u on node %s and to "
                             "process %u on node %s",
                             member->rank, gathering->name, other->pid,
                             config->servers[other->node].name, member->pid, node);
        if (member->node == other->node && member->member == other->member)
            return error_set(error, ERR_REFUSED, "process %u on node %s has joined job '%s' twice",
                             member->pid, node, gathering->name);
    }
    if (gathering->mark == 0)
        gathering->mark = member->mark;
    gathering->members[gathering->count++] = *member;
    gathering->timeout_text[0] = '\0';
    return 0;
}

void gathering_remove_at(struct gathering *gathering, uint32_t index)
{
    gathering->count--;
    gathering->say_ns = gathering->without_ns = UINT64_MAX;
    gathering->said_node = -1;
    memmove(&gathering->members[index], &gathering->members[index + 1],
            (gathering->count - index) * sizeof(gathering->members[0]));
}

bool gathering_remove(struct gathering *gathering, uint32_t node, uint32_t member)
{
    for (uint32_t i = 0; i < gathering->count; i++) {
        if (gathering->members[i].node == node && gathering->members[i].member == member) {
            gathering_remove_at(gathering, i);
            return true;
        }
    }
    return false;
}

static int gathering_compare_members(const void *left, const void *right)
{
    const struct gathering_member *a = left, *b = right;
    if (a->node != b->node)
        return a->node < b->node ? -1 : 1;
    uint32_t a_local = (uint32_t)a->local_rank, b_local = (uint32_t)b->local_rank;
    if (a_local != b_local) /* -1 is the largest */
        return a_local < b_local ? -1 : 1;
    return a->member < b->member ? -1 : a->member > b->member;
}

void gathering_assign(const struct gathering *gathering, uint32_t *rank_nodes, uint32_t *members)
{
    /* The order of arrival is not needed any more once all are here. */
    qsort(gathering->members, gathering->count, sizeof(gathering->members[0]),
          gathering_compare_members);
    for (uint32_t rank = 0; rank < gathering->world_size; rank++)
        rank_nodes[rank] = UINT32_MAX;
    for (uint32_t i = 0; i < gathering->count; i++) {
        const struct gathering_member *member = &gathering->members[i];
        if (member->rank < 0)
            continue;
        rank_nodes[member->rank] = member->node;
        members[member->rank] = member->member;
    }
    uint32_t rank = 0;
    for (uint32_t i = 0; i < gathering->count; i++) {
        const struct gathering_member *member = &gathering->members[i];
        if (member->rank >= 0)
            continue;
        while (rank_nodes[rank] != UINT32_MAX)
            rank++;
        rank_nodes[rank] = member->node;
        members[rank] = member->member;
    }
}

void gathering_missing_text(const struct gathering *gathering, char *text, size_t bytes)
{
    uint32_t *missing = calloc(gathering->world_size, sizeof(*missing));
    bool all_known = missing != NULL;
    for (uint32_t i = 0; i < gathering->count && all_known; i++) {
        if (gathering->members[i].rank < 0)
            all_known = false;
        else
            missing[gathering->members[i].rank] = 1;
    }
    if (!all_known) {
        snprintf(text, bytes, "%u of %u ranks of job '%s' have not joined",
                 gathering->world_size - gathering->count, gathering->world_size, gathering->name);
    } else {
        uint32_t count = 0;
        for (uint32_t rank = 0; rank < gathering->world_size; rank++) {
            if (!missing[rank])
                missing[count++] = rank; /* count never passes rank */
        }
        char ranks[JOB_RANKS_TEXT_BYTES];
        job_ranks_text(missing, count, ranks);
        snprintf(text, bytes, "%s of job '%s' %s not joined", ranks, gathering->name,
                 count == 1 ? "has" : "have");
    }
    free(missing);
}
