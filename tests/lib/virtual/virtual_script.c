/* The script of a virtual job: what its ranks do, and what must come out. */
#include <stdlib.h>
#include <string.h>

#include "common/format/wire.h"
#include "common/reduce/reduce.h"
#include "tests/lib/reduce_into.h"
#include "tests/lib/reduce_reference.h"
#include "tests/lib/virtual/virtual_private.h"

/* --- a job's script --------------------------------------------------------------------------- */

int64_t script_place(const struct virtual_job_run *run, uint32_t group, uint32_t rank)
{
    for (uint32_t i = 0; i < run->group_sizes[group]; i++) {
        if (run->group_ranks[group][i] == rank)
            return i;
    }
    return -1;
}

bool script_takes_part(const struct virtual_job_run *run, const struct script *it, uint32_t rank)
{
    int64_t place = script_place(run, it->group, rank);
    return place >= 0 &&
           (it->ask.kind != COLLECTIVE_SEND || place == it->ask.root || place == it->to);
}

static uint64_t mix(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static void script_groups(struct virtual_job_run *run, uint64_t *state)
{
    const struct virtual_job *job = &run->job;
    run->group_ranks = calloc(job->groups + 1, sizeof(*run->group_ranks));
    run->group_sizes = calloc(job->groups + 1, sizeof(*run->group_sizes));
    for (uint32_t g = 0; g <= job->groups; g++) {
        uint32_t *ranks = calloc(job->ranks, sizeof(*ranks));
        for (uint32_t i = 0; i < job->ranks; i++)
            ranks[i] = i;
        uint32_t size = job->ranks;
        if (g > 0 && job->ranks > 2) {
            for (uint32_t i = job->ranks - 1; i > 0; i--) {
                uint32_t j = (uint32_t)(mix(state) % (i + 1));
                uint32_t swap = ranks[i];
                ranks[i] = ranks[j];
                ranks[j] = swap;
            }
            size = 2 + (uint32_t)(mix(state) % (job->ranks - 1));
        }
        run->group_ranks[g] = ranks;
        run->group_sizes[g] = size;
    }
}

static void script_send(const struct virtual_job_run *run, struct script *it, uint64_t *state)
{
    uint32_t size = run->group_sizes[it->group];
    it->uneven = false;
    it->ask.count /= 2; /* the arena has to have room for all that are under way */
    it->to = (it->ask.root + 1 + (uint32_t)(mix(state) % (size - 1))) % size;
    it->tag = mix(state) % 2 ? 0 : WIRE_SEND_TAG_MAX;
    for (const struct script *other = run->script; other < it; other++)
        it->number += other->ask.kind == COLLECTIVE_SEND && other->group == it->group &&
                      other->ask.root == it->ask.root && other->to == it->to &&
                      other->tag == it->tag;
}

void script_write(struct virtual_job_run *run)
{
    const struct virtual_job *job = &run->job;
    uint64_t state = job->seed;
    script_groups(run, &state);
    run->script = calloc(job->collectives, sizeof(*run->script));
    for (uint32_t i = 0; i < job->collectives; i++) {
        struct script *it = &run->script[i];
        it->group = (uint32_t)(mix(&state) % (job->groups + 1));
        it->seed = mix(&state);
        it->ask.kind =
            mix(&state) % 3 > 0 ? mix(&state) % COLLECTIVE_KIND_COUNT : COLLECTIVE_ALL_REDUCE;
        while ((job->kinds && !(job->kinds >> it->ask.kind & 1)) ||
               (it->ask.kind == COLLECTIVE_SEND && run->group_sizes[it->group] == 1))
            it->ask.kind = mix(&state) % COLLECTIVE_KIND_COUNT;
        it->ask.dtype = mix(&state) % DTYPE_COUNT;
        do
            it->ask.op = mix(&state) % REDUCE_OP_COUNT;
        while (!reduce_op_allows(it->ask.op, it->ask.dtype));
        it->ask.root = (uint32_t)(mix(&state) % run->group_sizes[it->group]);
        uint64_t most = mix(&state) % 3 == 0 ? 40 : job->most_count;
        if (it->ask.kind == COLLECTIVE_ALL_TO_ALL)
            most /= 3;
        it->ask.count = it->ask.kind == COLLECTIVE_BARRIER ? 0 : mix(&state) % (most + 1);
        if (collective_in_shards(it->ask.kind) && it->seed % 3 == 0)
            it->ask.identity = 1 + (uint32_t)(it->seed % 8);
        it->uneven = route_in_blocks(it->ask.kind) && mix(&state) % 2 && !job->even;
        if (it->ask.kind == COLLECTIVE_SEND)
            script_send(run, it, &state);
    }
}

/* --- the reference ---------------------------------------------------------------------------- */

/* Return the number of the pair that the part is for; a part that is the same for all has number
 * 0. */
static uint64_t script_pair(const struct script *it, uint32_t from, uint32_t to)
{
    switch (it->ask.kind) {
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_GATHER:
        return 1000003ull * from;
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_SCATTER:
        return 7919ull * (to + 1);
    case COLLECTIVE_ALL_TO_ALL:
        return 1000003ull * from + 7919ull * (to + 1);
    default:
        return 0;
    }
}

uint64_t script_count(const struct script *it, uint32_t from, uint32_t to)
{
    if (!it->uneven)
        return it->ask.count;
    uint64_t state = it->seed + script_pair(it, from, to);
    return mix(&state) % 4 == 0 ? 0 : mix(&state) % (it->ask.count + 1);
}

void script_input(const struct script *it, uint32_t from, uint32_t to, void *data)
{
    bool for_one = route_in_blocks(it->ask.kind) && it->ask.kind != COLLECTIVE_ALL_GATHER &&
                   it->ask.kind != COLLECTIVE_GATHER && it->ask.kind != COLLECTIVE_SEND;
    uint64_t seed = it->seed + 1000003ull * from + (for_one ? 7919ull * (to + 1) : 0);
    reference_fill(it->ask.dtype, data, script_count(it, from, to), seed, 8);
}

static void sum_of(const struct script *it, uint32_t to, enum reduce_op op, void **parts,
                   unsigned count, void *result, uint32_t divisor)
{
    reduce_into(reduce_select(REDUCE_ISA_SCALAR), it->ask.dtype, op, (const void **)parts, count,
                result, script_count(it, 0, to), divisor);
}

void script_reference(const struct virtual_job_run *run, const struct script *it, uint32_t to,
                      void *result)
{
    uint32_t size = run->group_sizes[it->group];
    size_t bytes = script_count(it, 0, to) * dtype_bytes(it->ask.dtype) + 1;
    void *node_sums[VIRTUAL_NODES_MAX];
    unsigned nodes = 0;
    enum reduce_op first = it->ask.op == REDUCE_AVG ? REDUCE_SUM : it->ask.op;
    void **parts = calloc(size, sizeof(*parts));
    unsigned whole = 0;
    for (uint32_t node = 0; node < VIRTUAL_NODES_MAX; node++) {
        unsigned count = 0;
        for (uint32_t i = 0; i < size; i++) {
            if (run->rank_nodes[run->group_ranks[it->group][i]] != node)
                continue;
            parts[count] = malloc(bytes);
            script_input(it, i, to, parts[count++]);
        }
        if (count == 0)
            continue;
        node_sums[nodes] = malloc(bytes);
        if (count == size) {
            sum_of(it, to, it->ask.op, parts, count, result, size);
            whole = 1;
        } else {
            sum_of(it, to, first, parts, count, node_sums[nodes], 1);
        }
        nodes++;
        while (count > 0)
            free(parts[--count]);
    }
    if (!whole)
        sum_of(it, to, it->ask.op, node_sums, nodes, result, size);
    while (nodes > 0)
        free(node_sums[--nodes]);
    free(parts);
}
