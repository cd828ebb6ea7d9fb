/* Virtual jobs: their workers, how they are started, what goes wrong with a rank, how it ended. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "tests/lib/virtual/virtual_private.h"

void virtual_job_count(struct virtual_worker *worker)
{
    const struct virtual_job_run *run = worker->run;
    worker->mine = 0;
    for (uint32_t i = 0; i < run->job.collectives; i++)
        worker->mine += script_takes_part(run, &run->script[i], worker->rank);
}

static struct virtual_worker *worker_create(struct virtual_cluster *cluster,
                                            struct virtual_job_run *run, uint32_t rank)
{
    struct virtual_worker *worker = calloc(1, sizeof(*worker));
    worker->cluster = cluster;
    worker->run = run;
    worker->node = &cluster->nodes[run->rank_nodes[rank]];
    worker->rank = rank;
    worker->handle = cluster->next_handle++;
    worker->leave_after = UINT32_MAX;
    worker->to.node = worker->node;
    worker->memory = aligned_alloc(4096, VIRTUAL_ARENA_BYTES);
    memset(worker->memory, 0, VIRTUAL_ARENA_BYTES);
    virtual_worker_format(worker);
    virtual_job_count(worker);
    return worker;
}

void virtual_job_write(struct virtual_job_run *run)
{
    const struct virtual_job *job = &run->job;
    run->rank_nodes = calloc(job->ranks, sizeof(uint32_t));
    memcpy(run->rank_nodes, job->rank_nodes, job->ranks * sizeof(uint32_t));
    script_write(run);
    run->workers = calloc(job->ranks, sizeof(*run->workers));
}

uint32_t virtual_cluster_start(struct virtual_cluster *cluster, const struct virtual_job *job)
{
    EXPECT(cluster->job_count < VIRTUAL_JOBS_MAX);
    EXPECT(job->groups < VIRTUAL_GROUPS_MAX);
    uint32_t number = cluster->job_count;
    struct virtual_job_run *run = &cluster->jobs[number];
    run->job = *job;
    run->generation = 1;
    virtual_job_write(run);
    for (uint32_t i = 0; i < job->ranks; i++)
        run->workers[i] = worker_create(cluster, run, i);
    cluster->job_count++;
    for (uint32_t i = 0; i < job->ranks; i++)
        virtual_schedule(cluster, NULL, virtual_random(cluster, NS_PER_MS), virtual_session_join,
                         run->workers[i], 0);
    return number;
}

uint32_t virtual_cluster_newcomer(struct virtual_cluster *cluster, uint32_t job, uint32_t node)
{
    struct virtual_job alone = cluster->jobs[job].job;
    alone.ranks = 1;
    alone.rank_nodes = &node;
    alone.groups = alone.collectives = 0;
    uint32_t number = virtual_cluster_start(cluster, &alone);
    cluster->jobs[number].later = true;
    cluster->jobs[number].workers[0]->newcomer = true;
    return number;
}

struct virtual_worker *virtual_job_present(const struct virtual_job_run *run, uint32_t rank)
{
    struct virtual_worker *worker = run->workers[rank];
    return worker && worker->run == run ? worker : NULL;
}

struct virtual_worker *virtual_job_worker(const struct virtual_cluster *cluster, uint32_t handle)
{
    for (uint32_t j = 0; j < cluster->job_count; j++) {
        for (uint32_t r = 0; r < cluster->jobs[j].job.ranks; r++) {
            struct virtual_worker *worker = virtual_job_present(&cluster->jobs[j], r);
            if (worker && worker->handle == handle)
                return worker;
        }
    }
    ck_abort_msg("no worker %u", handle);
    return NULL;
}

bool virtual_cluster_ended(const struct virtual_cluster *cluster)
{
    for (uint32_t j = 0; j < cluster->job_count; j++) {
        for (uint32_t r = 0; r < cluster->jobs[j].job.ranks; r++) {
            const struct virtual_worker *worker = virtual_job_present(&cluster->jobs[j], r);
            if (worker && worker->state != ENDED)
                return false;
        }
    }
    return true;
}

void virtual_jobs_check_ended(const struct virtual_cluster *cluster)
{
    for (uint32_t j = 0; j < cluster->job_count; j++) {
        for (uint32_t r = 0; r < cluster->jobs[j].job.ranks; r++) {
            const struct virtual_worker *worker = virtual_job_present(&cluster->jobs[j], r);
            if (!worker || worker->code != 0)
                continue;
            uint32_t due = worker->mine < worker->leave_after ? worker->mine : worker->leave_after;
            EXPECT_MSG(worker->finished >= due, "%s rank %u ended with %u of %u collectives",
                       cluster->jobs[j].job.name, r, worker->finished, due);
        }
    }
}

void virtual_jobs_describe(const struct virtual_cluster *cluster)
{
    static const char *const states[] = {"joining",   "opening", "running",
                                         "releasing", "leaving", "ended"};
    for (uint32_t j = 0; j < cluster->job_count; j++) {
        const struct virtual_job_run *run = &cluster->jobs[j];
        for (uint32_t r = 0; r < run->job.ranks; r++) {
            const struct virtual_worker *worker = virtual_job_present(run, r);
            if (!worker)
                continue;
            printf("%s.%u rank %u on node %u: %s, %u started, %u finished of %u, code %d %s\n",
                   run->job.name, run->generation, r, worker->node->number, states[worker->state],
                   worker->started, worker->finished, worker->mine, worker->code, worker->text);
            for (const struct flight *it = worker->flights; it; it = it->next) {
                char text[160];
                request_describe(&it->request, run->script[it->script].group, text, sizeof(text));
                printf("    %s\n", text);
            }
        }
    }
}

static void worker_free(struct virtual_worker *worker)
{
    if (worker->progressing) {
        struct error error = {.code = ERR_STATE, .text = "the test is over"};
        progress_fail(&worker->progress, &error, worker->cluster->now_ns);
        while (progress_next_completed(&worker->progress))
            ;
        while (worker->flights)
            flight_free(worker, worker->flights);
        virtual_worker_clear(worker);
        progress_group_remove(&worker->progress, &worker->groups[0]);
        progress_clear(&worker->progress);
        arena_heap_clear(&worker->heap);
    }
    free(worker->weights[0]);
    EXPECT(!worker->attached);
    free(worker->memory);
    free(worker);
}

void virtual_jobs_free(struct virtual_cluster *cluster)
{
    for (uint32_t j = 0; j < cluster->job_count; j++) {
        struct virtual_job_run *run = &cluster->jobs[j];
        for (uint32_t r = 0; r < run->job.ranks; r++) {
            if (virtual_job_present(run, r))
                worker_free(run->workers[r]);
        }
    }
    for (uint32_t j = 0; j < cluster->job_count; j++) {
        struct virtual_job_run *run = &cluster->jobs[j];
        for (uint32_t g = 0; g <= run->job.groups; g++)
            free(run->group_ranks[g]);
        free(run->group_ranks);
        free(run->group_sizes);
        free(run->script);
        free(run->workers);
        free(run->rank_nodes);
    }
}

/* --- faults and outcomes ---------------------------------------------------------------------- */

void virtual_cluster_kill_worker(struct virtual_cluster *cluster, uint32_t job, uint32_t rank)
{
    struct virtual_worker *worker = cluster->jobs[job].workers[rank];
    virtual_worker_failed(worker, ERR_STATE, "killed");
    virtual_session_end(worker);
}

void virtual_jobs_kill_on(struct virtual_node *node)
{
    const struct virtual_cluster *cluster = node->cluster;
    for (uint32_t j = 0; j < cluster->job_count; j++) {
        for (uint32_t r = 0; r < cluster->jobs[j].job.ranks; r++) {
            struct virtual_worker *worker = virtual_job_present(&cluster->jobs[j], r);
            if (!worker || worker->node != node || worker->state == ENDED)
                continue;
            virtual_worker_failed(worker, ERR_STATE, "killed");
            worker->state = ENDED;
        }
    }
}

void virtual_cluster_mislead(struct virtual_cluster *cluster, uint32_t job, uint32_t rank)
{
    cluster->jobs[job].workers[rank]->mislead = true;
}

void virtual_cluster_mislead_send(struct virtual_cluster *cluster, uint32_t job, uint32_t rank)
{
    cluster->jobs[job].workers[rank]->mislead_send = true;
}

void virtual_cluster_leave_early(struct virtual_cluster *cluster, uint32_t job, uint32_t rank,
                                 uint32_t collectives)
{
    cluster->jobs[job].workers[rank]->leave_after = collectives;
}

void virtual_cluster_hold(struct virtual_cluster *cluster, uint32_t job, uint32_t rank, bool held)
{
    struct virtual_worker *worker = cluster->jobs[job].workers[rank];
    worker->held = held;
    if (!held)
        virtual_worker_pump_soon(worker, 0);
}

struct virtual_outcome virtual_cluster_outcome(const struct virtual_cluster *cluster, uint32_t job,
                                               uint32_t rank)
{
    const struct virtual_worker *worker = cluster->jobs[job].workers[rank];
    struct virtual_outcome outcome = {.joined = worker->progressing,
                                      .ended = worker->state == ENDED,
                                      .code = worker->code,
                                      .finished = worker->finished,
                                      .refused = worker->refused,
                                      .digest = worker->digest,
                                      .generation = worker->run->generation,
                                      .ranks = worker->run->job.ranks,
                                      .rank = worker->rank,
                                      .number = (uint32_t)(worker->run - cluster->jobs)};
    snprintf(outcome.text, sizeof(outcome.text), "%s", worker->text);
    return outcome;
}
