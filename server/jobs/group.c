#include "server/jobs/group.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/base/error.h"

static uint32_t *group_ranks_copy(const uint32_t *ranks, uint32_t count)
{
    uint32_t *copy = malloc(count * sizeof(*copy));
    if (copy)
        memcpy(copy, ranks, count * sizeof(*copy));
    return copy;
}

struct group *group_create(uint32_t id, uint32_t nth, const uint32_t *ranks, uint32_t count,
                           uint32_t roster)
{
    struct group *group = calloc(1, sizeof(*group));
    if (!group)
        return NULL;
    group->id = id;
    group->nth = nth;
    group->count = count;
    group->deadline_ns = UINT64_MAX;
    group->ranks = group_ranks_copy(ranks, count);
    group->closed = calloc(count, sizeof(*group->closed));
    group->opened = calloc(roster, sizeof(*group->opened));
    if (!group->ranks || !group->closed || !group->opened) {
        group_free(group);
        return NULL;
    }
    return group;
}

void group_free(struct group *group)
{
    while (group->segments) {
        struct segment *segment = group->segments;
        DL_DELETE(group->segments, segment);
        segment_free(segment);
    }
    free(group->ranks);
    free(group->closed);
    free(group->opened);
    free(group);
}

static int64_t group_ranks_position(const uint32_t *ranks, uint32_t count, uint32_t rank)
{
    for (uint32_t i = 0; i < count; i++) {
        if (ranks[i] == rank)
            return i;
    }
    return -1;
}

int64_t group_position(const struct group *group, uint32_t rank)
{
    return group_ranks_position(group->ranks, group->count, rank);
}

bool group_close_rank(struct group *group, uint32_t rank)
{
    int64_t position = group_position(group, rank);
    if (position < 0 || group->closed[position])
        return false;
    group->closed[position] = true;
    group->closed_count++;
    return group->closed_count == group->count;
}

int group_find_wrong_rank(const uint32_t *ranks, uint32_t count, uint32_t world_size,
                          uint32_t *wrong)
{
    bool *seen = calloc(world_size, sizeof(*seen));
    if (!seen)
        return ERR_MEMORY;
    uint32_t i = 0;
    for (; i < count && ranks[i] < world_size && !seen[ranks[i]]; i++)
        seen[ranks[i]] = true;
    free(seen);
    *wrong = i;
    return 0;
}

bool group_ranks_valid(const uint32_t *ranks, uint32_t count, uint32_t world_size)
{
    uint32_t wrong;
    return count > 0 && count <= world_size &&
           group_find_wrong_rank(ranks, count, world_size, &wrong) == 0 && wrong == count;
}

bool group_ranks_equal(const uint32_t *a, uint32_t a_count, const uint32_t *b, uint32_t b_count)
{
    return a_count == b_count && memcmp(a, b, a_count * sizeof(*a)) == 0;
}

struct group_gathering *group_gathering_create(uint32_t nth, const uint32_t *ranks, uint32_t count)
{
    struct group_gathering *gathering = calloc(1, sizeof(*gathering));
    if (!gathering)
        return NULL;
    gathering->nth = nth;
    gathering->count = count;
    gathering->ranks = group_ranks_copy(ranks, count);
    gathering->joined = calloc(count, sizeof(*gathering->joined));
    gathering->requests = calloc(count, sizeof(*gathering->requests));
    gathering->deadline_ns = calloc(count, sizeof(*gathering->deadline_ns));
    if (!gathering->ranks || !gathering->joined || !gathering->requests ||
        !gathering->deadline_ns) {
        group_gathering_free(gathering);
        return NULL;
    }
    return gathering;
}

void group_gathering_free(struct group_gathering *gathering)
{
    free(gathering->ranks);
    free(gathering->joined);
    free(gathering->requests);
    free(gathering->deadline_ns);
    free(gathering);
}

int group_gathering_add(struct group_gathering *gathering, uint32_t rank, uint32_t request,
                        uint64_t deadline_ns)
{
    int64_t position = group_ranks_position(gathering->ranks, gathering->count, rank);
    if (position < 0)
        return ERR_INVALID;
    if (gathering->joined[position])
        return ERR_STATE;
    gathering->joined[position] = true;
    gathering->requests[position] = request;
    gathering->deadline_ns[position] = deadline_ns;
    gathering->joined_count++;
    return 0;
}

uint32_t group_gathering_missing(const struct group_gathering *gathering, uint32_t *missing)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < gathering->count; i++) {
        if (!gathering->joined[i])
            missing[count++] = gathering->ranks[i];
    }
    return count;
}
