#include "tests/lib/virtual/virtual_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"

#define ARENA_BYTES (4u << 20)
#define SHARED_SLOTS 4
#define IDLE_NS NS_PER_MS

static void worker_pump(struct virtual_cluster *cluster, void *what, uint64_t number);

/* --- talking to the daemon -------------------------------------------------------------------- */

struct carried_message {
    struct virtual_worker *worker;
    struct message message;
};

static void worker_end(struct virtual_worker *worker, const char *how);

static void deliver_to_daemon(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)number;
    struct carried_message *carried = what;
    struct virtual_worker *worker = carried->worker;
    struct coordinator *coordinator = worker->node->coordinator;
    struct coordinator_credentials credentials = {.uid = 1000, .pid = 4000 + worker->handle};
    struct error error;
    if (worker->state != ENDED || carried->message.type == MESSAGE_LEAVE) {
        int result = coordinator_worker_message(coordinator, cluster->now_ns, worker->handle,
                                                &credentials, &carried->message, &error);
        EXPECT_MSG(result == 0, "to the daemon: %s", error.text);
        coordinator_tick(coordinator, cluster->now_ns);
    }
    message_clear(&carried->message);
    free(carried);
}

/* Takes the lists in the message. */
static void virtual_worker_send(struct virtual_worker *worker, const struct message *message)
{
    struct carried_message *carried = calloc(1, sizeof(*carried));
    carried->worker = worker;
    carried->message = *message;
    virtual_schedule_in(worker->cluster, &worker->to, deliver_to_daemon, carried, 0);
}

static void virtual_worker_join(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)cluster, (void)number;
    struct virtual_worker *worker = what;
    struct message message = {.type = MESSAGE_JOIN,
                              .world_size = worker->run->job.ranks,
                              .rank = (int32_t)worker->rank,
                              .local_rank = -1,
                              .timeout_ms = 60000};
    snprintf(message.job, sizeof(message.job), "%s", worker->run->job.name);
    virtual_worker_send(worker, &message);
}

static void worker_pump_soon(struct virtual_worker *worker, uint64_t most_ns)
{
    if (worker->pump_due)
        return;
    worker->pump_due = true;
    virtual_schedule(worker->cluster, virtual_random(worker->cluster, most_ns + 1), worker_pump,
                     worker, 0);
}

/* The next group that this rank is in, or RUNNING. */
static void worker_open_next(struct virtual_worker *worker)
{
    const struct virtual_job_run *run = worker->run;
    while (worker->opened <= run->job.groups && script_place(run, worker->opened, worker->rank) < 0)
        worker->opened++;
    if (worker->opened > run->job.groups) {
        worker->state = RUNNING;
        worker_pump_soon(worker, 0);
        return;
    }
    struct message message = {.type = MESSAGE_WORKER_GROUP_OPEN,
                              .request = worker->opened,
                              .nth = 0,
                              .timeout_ms = 60000};
    /* Equal lists are told apart by how often they were opened. */
    for (uint32_t g = 1; g < worker->opened; g++) {
        if (run->group_sizes[g] == run->group_sizes[worker->opened] &&
            memcmp(run->group_ranks[g], run->group_ranks[worker->opened],
                   run->group_sizes[g] * sizeof(uint32_t)) == 0)
            message.nth++;
    }
    EXPECT(message_list_set(&message.ranks, run->group_ranks[worker->opened],
                            run->group_sizes[worker->opened]) == 0);
    worker->state = OPENING;
    virtual_worker_send(worker, &message);
}

static void worker_add_group(struct virtual_worker *worker, const struct message *message)
{
    uint32_t index = worker->opened;
    struct progress_group *group = &worker->groups[index];
    uint64_t own;
    struct error error;
    worker->weights[index] = calloc(message->weights.count, sizeof(uint32_t));
    memcpy(worker->weights[index], message->weights.values,
           message->weights.count * sizeof(uint32_t));
    group->number = (uint32_t)message->group;
    group->rule = (struct layout_rule){.servers = message->weights.count,
                                       .weights = worker->weights[index],
                                       .chunk_bytes = message->chunk_bytes,
                                       .least_shard_bytes = message->least_shard_bytes};
    EXPECT(arena_heap_allocate(&worker->heap, message->chunk_bytes, &own) == 0);
    EXPECT(progress_group_add(&worker->progress, group, own, &error) == 0);
    worker->opened++;
    worker_open_next(worker);
}

static void worker_start_progress(struct virtual_worker *worker, const struct message *message)
{
    uint64_t slots;
    EXPECT(arena_heap_init(&worker->heap, worker->arena.data_offset,
                           worker->arena.total_bytes - worker->arena.data_offset) == 0);
    EXPECT(arena_heap_allocate(&worker->heap, SHARED_SLOTS * (uint64_t)message->chunk_bytes,
                               &slots) == 0);
    EXPECT(progress_init(&worker->progress, &worker->arena, slots, message->chunk_bytes,
                         SHARED_SLOTS) == 0);
    worker->progressing = true;
    arena_worker_prepare_sleep(&worker->arena);
    worker_add_group(worker, message);
}

static void worker_failed(struct virtual_worker *worker, int code, const char *text)
{
    if (worker->code == 0) {
        worker->code = code;
        snprintf(worker->text, sizeof(worker->text), "%s", text);
    }
}

static void virtual_worker_leave(struct virtual_worker *worker)
{
    if (worker->state >= LEAVING)
        return;
    worker->state = LEAVING;
    virtual_worker_send(worker, &(struct message){.type = MESSAGE_LEAVE});
}

static void worker_on_failed(struct virtual_worker *worker, const struct message *message)
{
    struct error error = {.code = message->code};
    snprintf(error.text, sizeof(error.text), "%s", message->text);
    if (worker->progressing) {
        for (uint32_t i = 0; i <= worker->run->job.groups; i++) {
            struct progress_group *group = &worker->groups[i];
            if (message->group >= 0 && worker->weights[i] &&
                group->number == (uint32_t)message->group)
                progress_fail_group(&worker->progress, group, &error, worker->cluster->now_ns);
        }
        if (message->group < 0)
            progress_fail(&worker->progress, &error, worker->cluster->now_ns);
    }
    worker_failed(worker, message->code, message->text);
    worker_pump_soon(worker, 0);
    if (message->group < 0)
        worker_end(worker, "ended");
    else
        virtual_worker_leave(worker);
}

static void worker_receive(struct virtual_worker *worker, const struct message *message)
{
    if (worker->state == ENDED)
        return;
    switch (message->type) {
    case MESSAGE_JOINED:
        EXPECT(message->rank == (int)worker->rank);
        worker_start_progress(worker, message);
        break;
    case MESSAGE_WORKER_GROUP_OPENED:
        EXPECT(message->request == worker->opened);
        if (worker->state == OPENING)
            worker_add_group(worker, message);
        break;
    case MESSAGE_ERROR:
        worker_failed(worker, message->code, message->text);
        if (worker->state == OPENING)
            virtual_worker_leave(worker);
        break;
    case MESSAGE_FAILED:
        worker_on_failed(worker, message);
        break;
    case MESSAGE_LEFT:
        break;
    default:
        ck_abort_msg("a worker was sent %s", message_type_name(message->type));
    }
}

static void deliver_to_worker(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)cluster, (void)number;
    struct carried_message *carried = what;
    worker_receive(carried->worker, &carried->message);
    message_clear(&carried->message);
    free(carried);
}

static struct virtual_worker *find_handle(const struct virtual_cluster *cluster, uint32_t handle)
{
    for (uint32_t j = 0; j < cluster->job_count; j++) {
        for (uint32_t r = 0; r < cluster->jobs[j].job.ranks; r++) {
            if (cluster->jobs[j].workers[r]->handle == handle)
                return cluster->jobs[j].workers[r];
        }
    }
    ck_abort_msg("no worker %u", handle);
    return NULL;
}

void virtual_worker_message(struct virtual_cluster *cluster, uint32_t handle,
                            const struct message *message)
{
    struct carried_message *carried = calloc(1, sizeof(*carried));
    carried->worker = find_handle(cluster, handle);
    EXPECT(message_copy(&carried->message, message) == 0);
    virtual_schedule_in(cluster, &carried->worker->from, deliver_to_worker, carried, 0);
}

static void deliver_end(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)cluster, (void)number;
    struct virtual_worker *worker = what;
    worker->state = ENDED;
}

void virtual_worker_end(struct virtual_cluster *cluster, uint32_t handle)
{
    struct virtual_worker *worker = find_handle(cluster, handle);
    virtual_schedule_in(cluster, &worker->from, deliver_end, worker, 0);
}

static void deliver_gone(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)number;
    struct virtual_worker *worker = what;
    coordinator_worker_gone(worker->node->coordinator, cluster->now_ns, worker->handle, "ended");
    coordinator_tick(worker->node->coordinator, cluster->now_ns);
}

/* The process is gone: its socket ends. */
static void worker_end(struct virtual_worker *worker, const char *how)
{
    (void)how;
    if (worker->state == ENDED)
        return;
    worker->state = ENDED;
    virtual_schedule_in(worker->cluster, &worker->to, deliver_gone, worker, 0);
}

static void daemon_read(struct virtual_cluster *cluster, void *what, uint64_t number);

/* --- the arena -------------------------------------------------------------------------------- */

void virtual_worker_attach(struct virtual_node *node, uint64_t job, uint32_t rank, uint32_t handle)
{
    struct virtual_worker *worker = find_handle(node->cluster, handle);
    struct exchange_worker *attached = calloc(1, sizeof(*attached));
    struct error error;
    attached->rank = rank;
    attached->user = worker;
    EXPECT(arena_attach_memory(&attached->arena, worker->memory, ARENA_BYTES, &error) == 0);
    if (exchange_attach(node->exchange, job, attached, &error) != 0) {
        free(attached); /* the job has failed meanwhile */
        return;
    }
    worker->attached = attached;
    if (arena_daemon_prepare_sleep(&attached->arena)) /* it has not waited for us */
        virtual_schedule(node->cluster, 0, daemon_read, worker, 0);
}

void virtual_worker_released(struct exchange_worker *worker)
{
    ((struct virtual_worker *)worker->user)->attached = NULL;
    free(worker);
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
        virtual_schedule(cluster, virtual_random(cluster, 2000), daemon_read, worker, 0);
}

void virtual_worker_rung(struct virtual_cluster *cluster, struct exchange_worker *attached)
{
    (void)cluster;
    struct virtual_worker *worker = attached->user;
    if (arena_worker_needs_doorbell(&attached->arena))
        worker_pump_soon(worker, 5000);
}

/* --- the work --------------------------------------------------------------------------------- */

static void virtual_worker_start(struct virtual_worker *worker, uint32_t index)
{
    struct error error;
    int result = flight_start(worker, index, &error);
    if (result != 0) {
        worker_failed(worker, result, error.text);
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
            worker->finished++;
        } else {
            worker_failed(worker, request->result, request->error_text ? request->error_text : "");
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
        virtual_schedule(worker->cluster, virtual_random(worker->cluster, 5000), daemon_read,
                         worker, 0);
    return any;
}

/* It has work that it cannot do: what it lacks, the daemon gives back, and rings. */
static void worker_pump_late(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)cluster, (void)number;
    struct virtual_worker *worker = what;
    worker->late_due = false;
    worker_pump_soon(worker, 0);
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
        worker_pump_soon(worker, 3000);
    } else if (has_work && !worker->late_due) {
        worker->late_due = true;
        virtual_schedule(cluster, IDLE_NS, worker_pump_late, worker, 0);
    }
    if (worker->state != RUNNING)
        return;
    if (worker->finished >= worker->mine || worker->finished >= worker->leave_after)
        virtual_worker_leave(worker);
    else if (more)
        worker_pump_soon(worker, 2 * cluster->options.most_delay_ns);
}

/* --- jobs ------------------------------------------------------------------------------------- */

static struct virtual_worker *worker_create(struct virtual_cluster *cluster,
                                            struct virtual_job_run *run, uint32_t rank)
{
    struct virtual_worker *worker = calloc(1, sizeof(*worker));
    struct error error;
    worker->cluster = cluster;
    worker->run = run;
    worker->node = &cluster->nodes[run->rank_nodes[rank]];
    worker->rank = rank;
    worker->handle = cluster->next_handle++;
    worker->leave_after = UINT32_MAX;
    worker->memory = aligned_alloc(4096, ARENA_BYTES);
    memset(worker->memory, 0, ARENA_BYTES);
    EXPECT(arena_format(&worker->arena, worker->memory, ARENA_BYTES, PROGRESS_RING_ENTRIES,
                        &error) == 0);
    for (uint32_t i = 0; i < run->job.collectives; i++)
        worker->mine += script_takes_part(run, &run->script[i], rank);
    return worker;
}

uint32_t virtual_cluster_start(struct virtual_cluster *cluster, const struct virtual_job *job)
{
    EXPECT(cluster->job_count < VIRTUAL_JOBS_MAX);
    EXPECT(job->groups < VIRTUAL_GROUPS_MAX);
    uint32_t number = cluster->job_count;
    struct virtual_job_run *run = &cluster->jobs[number];
    run->job = *job;
    run->rank_nodes = calloc(job->ranks, sizeof(uint32_t));
    memcpy(run->rank_nodes, job->rank_nodes, job->ranks * sizeof(uint32_t));
    script_write(run);
    run->workers = calloc(job->ranks, sizeof(*run->workers));
    for (uint32_t i = 0; i < job->ranks; i++)
        run->workers[i] = worker_create(cluster, run, i);
    cluster->job_count++;
    for (uint32_t i = 0; i < job->ranks; i++)
        virtual_schedule(cluster, virtual_random(cluster, NS_PER_MS), virtual_worker_join,
                         run->workers[i], 0);
    return number;
}

bool virtual_jobs_ended(const struct virtual_cluster *cluster)
{
    for (uint32_t j = 0; j < cluster->job_count; j++) {
        for (uint32_t r = 0; r < cluster->jobs[j].job.ranks; r++) {
            if (cluster->jobs[j].workers[r]->state != ENDED)
                return false;
        }
    }
    return true;
}

void virtual_jobs_describe(const struct virtual_cluster *cluster)
{
    static const char *const states[] = {"joining", "opening", "running", "leaving", "ended"};
    for (uint32_t j = 0; j < cluster->job_count; j++) {
        const struct virtual_job_run *run = &cluster->jobs[j];
        for (uint32_t r = 0; r < run->job.ranks; r++) {
            const struct virtual_worker *worker = run->workers[r];
            printf("%s rank %u on node %u: %s, %u started, %u finished of %u, code %d %s\n",
                   run->job.name, r, worker->node->number, states[worker->state], worker->started,
                   worker->finished, worker->mine, worker->code, worker->text);
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
        for (uint32_t i = 0; i <= worker->run->job.groups; i++) {
            if (worker->weights[i])
                progress_group_remove(&worker->progress, &worker->groups[i]);
        }
        progress_clear(&worker->progress);
        arena_heap_clear(&worker->heap);
    }
    for (uint32_t i = 0; i < VIRTUAL_GROUPS_MAX; i++)
        free(worker->weights[i]);
    EXPECT(!worker->attached);
    free(worker->memory);
    free(worker);
}

void virtual_jobs_free(struct virtual_cluster *cluster)
{
    for (uint32_t j = 0; j < cluster->job_count; j++) {
        struct virtual_job_run *run = &cluster->jobs[j];
        for (uint32_t r = 0; r < run->job.ranks; r++)
            worker_free(run->workers[r]);
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
    worker_failed(worker, ERR_STATE, "killed");
    worker_end(worker, "ended");
}

void virtual_cluster_mislead(struct virtual_cluster *cluster, uint32_t job, uint32_t rank)
{
    cluster->jobs[job].workers[rank]->mislead = true;
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
        worker_pump_soon(worker, 0);
}

struct virtual_outcome virtual_cluster_outcome(const struct virtual_cluster *cluster, uint32_t job,
                                               uint32_t rank)
{
    const struct virtual_worker *worker = cluster->jobs[job].workers[rank];
    struct virtual_outcome outcome = {.ended = worker->state == ENDED,
                                      .code = worker->code,
                                      .finished = worker->finished,
                                      .digest = worker->digest};
    snprintf(outcome.text, sizeof(outcome.text), "%s", worker->text);
    return outcome;
}
