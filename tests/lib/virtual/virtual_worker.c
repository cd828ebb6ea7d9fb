/* A virtual worker's arena, which its daemon reads, and its work: the library's real progress. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "server/exchange/model/order.h"
#include "server/exchange/model/roster.h"
#include "server/exchange/node/stability.h"
#include "tests/lib/virtual/virtual_private.h"

#define SHARED_SLOTS 4
#define IDLE_NS NS_PER_MS

static void worker_pump(struct virtual_cluster *cluster, void *what, uint64_t number);

void virtual_worker_pump_soon(struct virtual_worker *worker, uint64_t most_ns)
{
    if (worker->pump_due)
        return;
    worker->pump_due = true;
    virtual_schedule(worker->cluster, NULL, virtual_random(worker->cluster, most_ns + 1),
                     worker_pump, worker, 0);
}

/* --- beginning and failing -------------------------------------------------------------------- */

void virtual_worker_add_group(struct virtual_worker *worker, const struct message *message)
{
    uint32_t index = worker->opened;
    struct progress_group *group = &worker->groups[index];
    struct error error;
    free(worker->weights[index]);
    worker->weights[index] = calloc(message->weights.count, sizeof(uint32_t));
    memcpy(worker->weights[index], message->weights.values,
           message->weights.count * sizeof(uint32_t));
    group->number = (uint32_t)message->group;
    group->rule = (struct layout_rule){.servers = message->weights.count,
                                       .weights = worker->weights[index],
                                       .chunk_bytes = message->chunk_bytes,
                                       .least_shard_bytes = message->least_shard_bytes};
    if (index > 0 || worker->own[0] == 0) { /* the first one goes on with the job */
        EXPECT(arena_heap_allocate(&worker->heap, message->chunk_bytes, &worker->own[index]) == 0);
        EXPECT(progress_group_add(&worker->progress, group, worker->own[index], &error) == 0);
    }
    worker->opened++;
}

void virtual_worker_begin(struct virtual_worker *worker, const struct message *message)
{
    uint64_t slots;
    if (worker->progressing) {
        progress_restart(&worker->progress);
        arena_worker_prepare_sleep(&worker->arena);
        return;
    }
    EXPECT(arena_heap_init(&worker->heap, worker->arena.data_offset,
                           worker->arena.total_bytes - worker->arena.data_offset) == 0);
    EXPECT(arena_heap_allocate(&worker->heap, SHARED_SLOTS * (uint64_t)message->chunk_bytes,
                               &slots) == 0);
    EXPECT(progress_init(&worker->progress, &worker->arena, slots, message->chunk_bytes,
                         SHARED_SLOTS) == 0);
    worker->progressing = true;
    arena_worker_prepare_sleep(&worker->arena);
}

void virtual_worker_failed(struct virtual_worker *worker, int code, const char *text)
{
    if (worker->code == 0) {
        worker->code = code;
        snprintf(worker->text, sizeof(worker->text), "%s", text);
    }
}

void virtual_worker_fail(struct virtual_worker *worker, int32_t number, int code, const char *text)
{
    struct error error = {.code = code};
    snprintf(error.text, sizeof(error.text), "%s", text);
    if (worker->progressing) {
        for (uint32_t i = 0; i <= worker->run->job.groups; i++) {
            struct progress_group *group = &worker->groups[i];
            if (number >= 0 && worker->weights[i] && group->number == (uint32_t)number)
                progress_fail_group(&worker->progress, group, &error, worker->cluster->now_ns);
        }
        if (number < 0)
            progress_fail(&worker->progress, &error, worker->cluster->now_ns);
    }
    virtual_worker_failed(worker, code, text);
}

static bool worker_take_completed(struct virtual_worker *worker);

void virtual_worker_clear(struct virtual_worker *worker)
{
    worker_take_completed(worker);
    EXPECT(!worker->flights);
    for (uint32_t i = 1; i < VIRTUAL_GROUPS_MAX; i++) {
        if (worker->own[i] == 0)
            continue;
        progress_group_remove(&worker->progress, &worker->groups[i]);
        arena_heap_free(&worker->heap, worker->own[i]); /* the daemon lets go of all */
        free(worker->weights[i]);
        worker->weights[i] = NULL;
        worker->own[i] = 0;
        worker->groups[i] = (struct progress_group){0};
    }
}

void virtual_worker_format(struct virtual_worker *worker)
{
    struct error error;
    EXPECT(arena_format(&worker->arena, worker->memory, VIRTUAL_ARENA_BYTES,
                        PROGRESS_RING_ENTRIES_LEAST, &error) == 0);
}

static void daemon_read(struct virtual_cluster *cluster, void *what, uint64_t number);

/* --- the arena -------------------------------------------------------------------------------- */

void virtual_worker_attach(struct virtual_node *node, uint64_t job, uint32_t rank, uint32_t handle)
{
    struct virtual_worker *worker = virtual_job_worker(node->cluster, handle);
    struct exchange_worker *attached = calloc(1, sizeof(*attached));
    struct error error;
    attached->rank = rank;
    attached->user = worker;
    EXPECT(arena_attach_memory(&attached->arena, worker->memory, VIRTUAL_ARENA_BYTES, &error) == 0);
    worker->attached = attached;
    if (exchange_attach(node->exchange, job, attached, &error) != 0) {
        virtual_worker_released(attached); /* the job has failed meanwhile */
        return;
    }
    if (arena_daemon_prepare_sleep(&attached->arena)) /* it has not waited for us */
        virtual_schedule(node->cluster, node, 0, daemon_read, worker, 0);
}

void virtual_worker_released(struct exchange_worker *attached)
{
    struct virtual_worker *worker = attached->user;
    worker->attached = NULL;
    virtual_session_released(worker);
    free(attached);
}

static void daemon_read(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)number;
    struct virtual_worker *worker = what;
    struct exchange_worker *attached = worker->attached;
    if (!attached || attached->detached)
        return;
    arena_daemon_cancel_sleep(&attached->arena);
    uint64_t most = 1 + virtual_random(cluster, 8);
    for (uint64_t i = 0; i < most; i++) {
        struct arena_submission submission;
        struct error error;
        int got = arena_pop_submission(&attached->arena, &submission);
        EXPECT(got >= 0);
        if (got == 0)
            break;
        int result =
            exchange_submit(worker->node->exchange, attached, &submission, cluster->now_ns, &error);
        EXPECT_MSG(result == 0, "rank %u: %s", worker->rank, error.text);
    }
    if (arena_daemon_prepare_sleep(&attached->arena))
        virtual_schedule(cluster, worker->node, virtual_random(cluster, 2000), daemon_read, worker,
                         0);
}

void virtual_worker_rung(struct virtual_cluster *cluster, struct exchange_worker *attached)
{
    (void)cluster;
    struct virtual_worker *worker = attached->user;
    if (arena_worker_needs_doorbell(&attached->arena))
        virtual_worker_pump_soon(worker, 5000);
}

/* --- what is stable --------------------------------------------------------------------------- */

void virtual_worker_told_stable(struct exchange_worker *attached,
                                const struct arena_completion *completion)
{
    struct virtual_worker *worker = attached->user;
    const struct virtual_cluster *cluster = worker->cluster;
    for (uint32_t i = 0; i < cluster->options.nodes; i++) {
        const struct virtual_node *node = &cluster->nodes[i];
        const struct exchange_job *job =
            node->alive ? exchange_job_find(node->exchange, attached->job->id) : NULL;
        const struct exchange_group *group =
            job ? exchange_group_find(job, completion->group) : NULL;
        if (group && !group->failed && group->members.local_count > 0)
            EXPECT_MSG(stability_count(group) >= completion->sequence,
                       "rank %u is told that %" PRIu64 " collectives of group %u are stable, and "
                       "node %u holds %" PRIu64,
                       worker->rank, completion->sequence, completion->group, i,
                       stability_count(group));
    }
    for (uint32_t i = 0; i < worker->opened; i++) {
        if (worker->groups[i].number != completion->group || !worker->weights[i])
            continue;
        EXPECT(completion->sequence > worker->stable[i]);
        worker->stable[i] = completion->sequence;
    }
}

static bool worker_recovers(const struct virtual_worker *worker)
{
    return worker->cluster->options.recovery && worker->run->job.recovery != MESSAGE_RECOVERY_OFF;
}

/* A send that is done has come: no daemon has it under way for its receiver. */
static void worker_check_sent(const struct virtual_worker *worker, const struct flight *flight)
{
    const struct request *request = &flight->request;
    const struct virtual_cluster *cluster = worker->cluster;
    if (!worker_recovers(worker) || !worker->attached || flight->it->ask.kind != COLLECTIVE_SEND ||
        request->receives)
        return;
    for (uint32_t i = 0; i < cluster->options.nodes; i++) {
        const struct virtual_node *node = &cluster->nodes[i];
        const struct exchange_job *job =
            node->alive ? exchange_job_find(node->exchange, worker->attached->job->id) : NULL;
        const struct exchange_group *group =
            job ? exchange_group_find(job, request->group->number) : NULL;
        if (group && !group->failed)
            EXPECT_MSG(!collective_find(group, request->sequence, request->ask.block),
                       "rank %u: a send is done, and node %u has it under way", worker->rank, i);
    }
}

/* Whether it has heard of all that it has done. */
static bool worker_is_stable(const struct virtual_worker *worker)
{
    if (!worker_recovers(worker))
        return true;
    for (uint32_t i = 0; i < worker->opened; i++) {
        if (worker->weights[i] && worker->stable[i] < worker->groups[i].next_sequence)
            return false;
    }
    return true;
}

/* --- the work --------------------------------------------------------------------------------- */

static void virtual_worker_start(struct virtual_worker *worker, uint32_t index)
{
    struct error error;
    int result = flight_start(worker, index, &error);
    if (result != 0) {
        virtual_worker_failed(worker, result, error.text);
        return;
    }
    worker->started++;
    worker->in_flight[worker->run->script[index].group]++;
}

/* Start one collective of a random group; whether there was one to start. */
static bool worker_start_some(struct virtual_worker *worker)
{
    const struct virtual_job *job = &worker->run->job;
    if (worker->state != RUNNING || worker->held || worker->code != 0 ||
        worker->started >= worker->leave_after)
        return false;
    uint32_t first = (uint32_t)virtual_random(worker->cluster, job->groups + 1);
    for (uint32_t i = 0; i <= job->groups; i++) {
        uint32_t group = (first + i) % (job->groups + 1);
        if (script_place(worker->run, group, worker->rank) < 0 ||
            worker->in_flight[group] >= job->in_flight)
            continue;
        uint32_t *next = &worker->next_script[group];
        while (*next < job->collectives &&
               (worker->run->script[*next].group != group ||
                !script_takes_part(worker->run, &worker->run->script[*next], worker->rank)))
            (*next)++;
        if (*next >= job->collectives)
            continue;
        virtual_worker_start(worker, (*next)++);
        return true;
    }
    return false;
}

static bool worker_take_completed(struct virtual_worker *worker)
{
    bool any = false;
    struct request *request;
    while ((request = progress_next_completed(&worker->progress)) != NULL) {
        struct flight *flight = (struct flight *)request;
        any = true;
        const struct script *it = &worker->run->script[flight->script];
        worker->in_flight[it->group]--;
        if (request->result == 0) {
            flight_check(worker, flight);
            worker_check_sent(worker, flight);
            worker->finished++;
        } else if (request->result == ERR_MISMATCH && strstr(request->error_text, "not fit")) {
            worker->refused++; /* it alone */
            worker->finished++;
        } else {
            virtual_worker_failed(worker, request->result,
                                  request->error_text ? request->error_text : "");
        }
        flight_free(worker, flight);
    }
    return any;
}

/* Whether it has done anything. */
static bool worker_progress(struct virtual_worker *worker)
{
    struct progress_copy copy;
    enum progress_result result;
    bool any = false;
    uint64_t now_ns = worker->cluster->now_ns;
    while ((result = progress_work(&worker->progress, now_ns, &copy)) != PROGRESS_IDLE) {
        any = true;
        if (result == PROGRESS_COPY) {
            memcpy(copy.to, copy.from, copy.bytes);
            progress_copied(&worker->progress, &copy, now_ns);
        }
    }
    if (progress_doorbell_due(&worker->progress))
        virtual_schedule(worker->cluster, worker->node, virtual_random(worker->cluster, 5000),
                         daemon_read, worker, 0);
    return any;
}

/* Pump a worker that has work, but could do none of it: the daemon gives back what it lacks, and
 * rings. */
static void worker_pump_late(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)cluster, (void)number;
    struct virtual_worker *worker = what;
    worker->late_due = false;
    virtual_worker_pump_soon(worker, 0);
}

static void worker_pump(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)number;
    struct virtual_worker *worker = what;
    worker->pump_due = false;
    if (!worker->progressing || worker->state == ENDED)
        return;
    arena_worker_cancel_sleep(&worker->arena);
    bool more = worker_start_some(worker);
    bool any = worker_progress(worker);
    any |= worker_take_completed(worker);
    more |= any;
    bool has_work = progress_has_work(&worker->progress);
    if (arena_worker_prepare_sleep(&worker->arena) || (has_work && any)) {
        virtual_worker_pump_soon(worker, 3000);
    } else if (has_work && !worker->late_due) {
        worker->late_due = true;
        virtual_schedule(cluster, NULL, IDLE_NS, worker_pump_late, worker, 0);
    }
    if (worker->state != RUNNING)
        return;
    bool ends = worker->finished >= worker->mine && (worker->code != 0 || worker_is_stable(worker));
    if (ends || worker->finished >= worker->leave_after)
        virtual_session_leave(worker);
    else if (more)
        virtual_worker_pump_soon(worker, 2 * cluster->options.most_delay_ns);
}
