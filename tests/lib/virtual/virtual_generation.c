/* Jobs that go on: a worker that has lost others becomes a rank of the next generation, which has a
 * script of its own. This file also checks what all daemons and ranks of a generation must have
 * alike. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/virtual/virtual_private.h"

struct virtual_job_run *virtual_generation_find(struct virtual_cluster *cluster, uint64_t job_id)
{
    for (uint32_t j = 0; j < cluster->job_count; j++) {
        if (cluster->jobs[j].job_id == job_id)
            return &cluster->jobs[j];
    }
    return NULL;
}

/* The first generation of those that have the roster's lineage. */
static const struct virtual_job_run *generation_origin(struct virtual_cluster *cluster,
                                                       const struct engine_job *roster)
{
    const struct virtual_job_run *origin = virtual_generation_find(cluster, roster->lineage);
    for (uint32_t j = 0; j < cluster->job_count && !origin; j++) {
        const struct virtual_job_run *run = &cluster->jobs[j];
        if (!run->later && strcmp(run->job.name, roster->name) == 0)
            origin = run; /* none of its ranks has joined */
    }
    EXPECT(origin && strcmp(origin->job.name, roster->name) == 0);
    return origin;
}

void virtual_generation_opens(struct virtual_cluster *cluster, const struct engine_job *roster)
{
    if (roster->generation <= 1)
        return;
    const struct virtual_job_run *before = virtual_generation_find(cluster, roster->job);
    if (before) { /* another daemon has heard of the same */
        EXPECT(before->generation == roster->generation);
        EXPECT(before->job.ranks == roster->world_size);
        EXPECT(memcmp(before->rank_nodes, roster->rank_nodes,
                      roster->world_size * sizeof(uint32_t)) == 0);
        return;
    }
    const struct virtual_job_run *origin = generation_origin(cluster, roster);
    EXPECT(cluster->job_count < VIRTUAL_JOBS_MAX);
    struct virtual_job_run *run = &cluster->jobs[cluster->job_count];
    run->job = origin->job;
    run->job.ranks = roster->world_size;
    run->job.rank_nodes = roster->rank_nodes;
    run->job.seed += roster->generation;
    if (run->job.ranks == 1)
        run->job.groups = 0;
    run->job_id = roster->job;
    run->generation = roster->generation;
    run->later = true;
    virtual_job_write(run);
    cluster->job_count++;
}

/* Compare two ranks that were ranks of the same generation before: they must have their old order,
 * and whatever one of them was told to be stable, the other must have. */
static void generation_compare(const struct virtual_worker *a, const struct virtual_worker *b)
{
    if (a == b || !a->before || a->before != b->before)
        return;
    EXPECT_MSG((a->rank < b->rank) == (a->rank_before < b->rank_before),
               "ranks %u and %u have become %u and %u", a->rank_before, b->rank_before, a->rank,
               b->rank);
    EXPECT_MSG(a->kept >= b->told && b->kept >= a->told,
               "of the last generation rank %u has %" PRIu64 " and was told of %" PRIu64
               ", rank %u has %" PRIu64 " and was told of %" PRIu64,
               a->rank, a->kept, a->told, b->rank, b->kept, b->told);
}

void virtual_generation_leave(struct virtual_worker *worker)
{
    worker->before = worker->run;
    worker->rank_before = worker->rank;
    worker->told = worker->stable[0];
    worker->kept = progress_kept(&worker->progress, &worker->groups[0]);
}

void virtual_generation_enter(struct virtual_worker *worker, const struct message *joined)
{
    struct virtual_job_run *run = virtual_generation_find(worker->cluster, joined->job_id);
    EXPECT(run && run->generation == joined->generation && run->job.ranks == joined->world_size);
    EXPECT(joined->rank >= 0 && (uint32_t)joined->rank < run->job.ranks);
    EXPECT(!run->workers[joined->rank]);
    EXPECT(run->rank_nodes[joined->rank] == worker->node->number);
    run->workers[joined->rank] = worker;
    worker->run = run;
    worker->rank = (uint32_t)joined->rank;
    worker->code = 0;
    worker->text[0] = '\0';
    worker->started = worker->finished = 0;
    worker->digest = 0;
    worker->opened = 0;
    worker->leave_after = UINT32_MAX;
    memset(worker->stable, 0, sizeof(worker->stable));
    memset(worker->next_script, 0, sizeof(worker->next_script));
    memset(worker->in_flight, 0, sizeof(worker->in_flight));
    virtual_job_count(worker);
    for (uint32_t rank = 0; rank < run->job.ranks; rank++) {
        if (run->workers[rank])
            generation_compare(worker, run->workers[rank]);
    }
}
