#include "server/exchange/exchange_job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/exchange/exchange_group.h"
#include "server/exchange/exchange_trace.h"
#include "server/exchange/ground/archive.h"
#include "server/exchange/ground/waiting.h"
#include "server/exchange/model/roster.h"
#include "server/exchange/model/share.h"
#include "server/exchange/node/collective.h"
#include "server/exchange/node/transfer.h"

/* Collectives that are freed in one turn. */
#define SETTLE_COLLECTIVES 512u

/* --- opening ---------------------------------------------------------------------------------- */

static void exchange_job_free_arrays(struct exchange_job *job)
{
    if (job->archive)
        archive_leave(job->exchange, job->archive, job->over);
    if (job->share)
        share_leave(job->exchange, job->share);
    free(job->rank_nodes);
    free(job->server_nodes);
    free(job->server_weights);
    free(job->by_rank);
    free(job->last_to_arrive);
    free(job->waits.nodes);
    free(job);
}

static uint32_t *exchange_job_copy_numbers(const uint32_t *numbers, uint32_t count)
{
    uint32_t *copy = calloc(count ? count : 1, sizeof(*copy));
    if (copy && count)
        memcpy(copy, numbers, count * sizeof(*copy));
    return copy;
}

static int exchange_job_check(const struct exchange *exchange, const struct engine_job *job,
                              struct error *error)
{
    if (exchange_job_find(exchange, job->job))
        return error_set(error, ERR_STATE, "job %016" PRIx64 " is open already", job->job);
    for (uint32_t i = 0; i < job->world_size; i++) {
        if (job->rank_nodes[i] >= exchange->options.node_count)
            return error_set(error, ERR_INVALID, "rank %" PRIu32 " on unknown node %" PRIu32, i,
                             job->rank_nodes[i]);
    }
    for (uint32_t i = 0; i < job->server_count; i++) {
        if (job->server_nodes[i] >= exchange->options.node_count || job->server_weights[i] == 0 ||
            job->server_weights[i] > LAYOUT_MAX_WEIGHT)
            return error_set(error, ERR_INVALID, "server %" PRIu32 " of the job makes no sense", i);
    }
    if (job->world_size == 0 || job->server_count == 0 || job->server_count > LAYOUT_MAX_SERVERS)
        return error_set(error, ERR_INVALID, "a job of %" PRIu32 " ranks and %" PRIu32 " servers",
                         job->world_size, job->server_count);
    return 0;
}

static struct exchange_job *exchange_job_allocate(struct exchange *exchange,
                                                  const struct engine_job *from)
{
    struct exchange_job *job = calloc(1, sizeof(*job));
    if (!job)
        return NULL;
    *job = (struct exchange_job){
        .exchange = exchange,
        .share = share_join(exchange, from->user),
        .id = from->job,
        .generation = from->generation > 0 ? from->generation : 1,
        .recovery = exchange->options.recovery && !from->no_recovery,
        .world_size = from->world_size,
        .rank_nodes = exchange_job_copy_numbers(from->rank_nodes, from->world_size),
        .server_count = from->server_count,
        .server_nodes = exchange_job_copy_numbers(from->server_nodes, from->server_count),
        .server_weights = exchange_job_copy_numbers(from->server_weights, from->server_count),
        .by_rank = calloc(from->world_size, sizeof(*job->by_rank)),
        .last_to_arrive = calloc(from->world_size, sizeof(*job->last_to_arrive)),
    };
    uint32_t nodes = exchange->options.node_count;
    waits_init(&job->waits, calloc(nodes, sizeof(struct waits_node)), nodes, exchange->now_ns,
               exchange->still_ns);
    overlap_init(&job->overlap, exchange->now_ns);
    snprintf(job->name, sizeof(job->name), "%s", from->name);
    bool here = false;
    for (uint32_t i = 0; job->rank_nodes && i < job->world_size; i++)
        here |= job->rank_nodes[i] == exchange->options.self;
    job->numbered = job->generation == 1;
    if (here && job->recovery)
        job->archive = archive_join(exchange, from->user, from->lineage ? from->lineage : job->id);
    if (!job->share || !job->rank_nodes || !job->server_nodes || !job->server_weights ||
        !job->by_rank || !job->last_to_arrive || !job->waits.nodes) {
        exchange_job_free_arrays(job);
        return NULL;
    }
    return job;
}

int exchange_group_open(struct exchange *exchange, uint64_t job_id, uint32_t id,
                        const uint32_t *ranks, uint32_t rank_count, struct error *error)
{
    struct exchange_job *job = exchange_job_find(exchange, job_id);
    if (!job || job->failed)
        return error_set(error, ERR_STATE, "job %016" PRIx64 " is not open", job_id);
    if (exchange_group_find(job, id))
        return error_set(error, ERR_STATE, "group %" PRIu32 " is open already", id);
    struct exchange_group *group;
    int result = exchange_group_create(&group, job, id, ranks, rank_count, error);
    if (result != 0)
        return result;
    group->next = job->groups;
    job->groups = group;
    return 0;
}

int exchange_job_open(struct exchange *exchange, const struct engine_job *from, struct error *error)
{
    int result = exchange_job_check(exchange, from, error);
    if (result != 0)
        return result;
    struct exchange_job *job = exchange_job_allocate(exchange, from);
    uint32_t *everyone = calloc(from->world_size, sizeof(*everyone));
    if (!job || !everyone) {
        if (job)
            exchange_job_free_arrays(job);
        free(everyone);
        return error_set(error, ERR_MEMORY, "no memory for a job of %" PRIu32, from->world_size);
    }
    for (uint32_t i = 0; i < from->world_size; i++)
        everyone[i] = i;
    job->next = exchange->jobs;
    exchange->jobs = job;
    result = exchange_group_open(exchange, job->id, 0, everyone, from->world_size, error);
    free(everyone);
    if (result != 0) {
        exchange->jobs = job->next;
        exchange_job_free_arrays(job);
    }
    return result;
}

/* --- the end ---------------------------------------------------------------------------------- */

static void exchange_job_free(struct exchange_job *job)
{
    struct exchange *exchange = job->exchange;
    struct exchange_job **link = &exchange->jobs;
    while (*link != job)
        link = &(*link)->next;
    *link = job->next;
    while (job->workers) {
        struct exchange_worker *worker = job->workers;
        job->workers = worker->next;
        exchange->workers--;
        exchange->options.io.release_worker(exchange->options.io.context, worker);
    }
    exchange_job_free_arrays(job);
}

void exchange_job_settle(struct exchange_job *job)
{
    struct exchange_group **link = &job->groups;
    uint32_t most = SETTLE_COLLECTIVES;
    while (*link) {
        struct exchange_group *group = *link, *next = group->next;
        bool closes = group->closing && group->pending == 0;
        if (closes && exchange_group_free(group, &most)) {
            *link = next;
            continue;
        }
        if (group->failed && !closes)
            exchange_group_settle(group, &most);
        link = &group->next;
    }
    if (job->closing && !job->groups)
        exchange_job_free(job);
}

void exchange_job_fail(struct exchange *exchange, uint64_t id)
{
    struct exchange_job *job = exchange_job_find(exchange, id);
    if (!job || job->failed)
        return;
    exchange_trace_job_over(job, TRACE_END_JOB_FAILED);
    job->failed = true;
    for (struct exchange_group *group = job->groups; group; group = group->next)
        group->failed = true;
    exchange_job_settle(job);
}

/* Mark all of it as failed and closing. */
static void exchange_job_end(struct exchange_job *job)
{
    exchange_trace_job_over(job, TRACE_END_JOB_CLOSED);
    job->over = !job->failed;
    job->failed = true;
    job->closing = true;
    for (struct exchange_group *group = job->groups; group; group = group->next) {
        group->failed = true;
        group->closing = true;
    }
    exchange_job_settle(job);
}

void exchange_job_close(struct exchange *exchange, uint64_t id)
{
    struct exchange_job *job = exchange_job_find(exchange, id);
    if (job)
        exchange_job_end(job);
}

void exchange_close_jobs(struct exchange *exchange)
{
    struct exchange_job *next;
    for (struct exchange_job *job = exchange->jobs; job; job = next) {
        next = job->next;
        if (!job->closing)
            exchange_job_end(job);
    }
}

void exchange_group_stop(struct exchange *exchange, uint64_t job_id, uint32_t id)
{
    struct exchange_job *job = exchange_job_find(exchange, job_id);
    struct exchange_group *group = job ? exchange_group_find(job, id) : NULL;
    if (!group || group->failed)
        return;
    group->failed = true;
    exchange_job_settle(job);
}

void exchange_group_close(struct exchange *exchange, uint64_t job_id, uint32_t id)
{
    struct exchange_job *job = exchange_job_find(exchange, job_id);
    struct exchange_group *group = job ? exchange_group_find(job, id) : NULL;
    if (!group)
        return;
    group->failed = true;
    group->closing = true;
    exchange_job_settle(job);
}

void exchange_rank_left(struct exchange *exchange, uint64_t job_id, uint32_t id, uint32_t rank,
                        uint64_t sequences)
{
    struct exchange_job *job = exchange_job_find(exchange, job_id);
    struct exchange_group *group = job ? exchange_group_find(job, id) : NULL;
    if (!group || group->failed)
        return;
    transfers_rank_departed(group, rank);
    if (sequences >= group->members.least_departed)
        return;
    group->members.least_departed = sequences;
    group->members.departed_rank = rank;
    group_mark_dirty(group); /* exchange_run looks whether a collective needs that rank */
}

/* --- workers ---------------------------------------------------------------------------------- */

int exchange_attach(struct exchange *exchange, uint64_t id, struct exchange_worker *worker,
                    struct error *error)
{
    struct exchange_job *job = exchange_job_find(exchange, id);
    if (!job)
        return error_set(error, ERR_STATE, "job %016" PRIx64 " is not open", id);
    if (worker->rank >= job->world_size ||
        job->rank_nodes[worker->rank] != exchange->options.self || job->by_rank[worker->rank])
        return error_set(error, ERR_STATE, "rank %" PRIu32 " is not of this node, or attached",
                         worker->rank);
    worker->job = job;
    worker->detached = false;
    worker->next = job->workers;
    job->workers = worker;
    job->by_rank[worker->rank] = worker;
    if (job->trace)
        arena_set_tracing(&worker->arena, true);
    exchange->workers++;
    return 0;
}

void exchange_detach(struct exchange *exchange, struct exchange_worker *worker)
{
    struct exchange_job *job = worker->job;
    if (worker->detached)
        return;
    worker->detached = true;
    struct engine_event *event = engine_event_create(ENGINE_WORKER_DETACHED);
    event->job = job->id;
    event->rank = worker->rank;
    uint32_t groups = 0;
    for (struct exchange_group *group = job->groups; group; group = group->next)
        groups++;
    event->positions = calloc(groups + 1, sizeof(*event->positions));
    if (!event->positions) {
        event->code = ERR_MEMORY;
        snprintf(event->text, sizeof(event->text), "no memory for how far it has got");
    }
    for (struct exchange_group *group = job->groups; group && event->positions;
         group = group->next) {
        uint32_t local = group_local_index(group, worker->rank);
        if (local == NO_INDEX || group->closing)
            continue;
        event->positions[event->position_count++] = (struct engine_position){
            .group = group->id, .sequences = collectives_finished_by(group, local)};
    }
    exchange->options.io.event(exchange->options.io.context, event);
}

uint32_t exchange_worker_user(const struct exchange_worker *worker)
{
    return worker->job->share->user;
}

struct exchange_worker *exchange_find_worker(struct exchange *exchange, uint64_t id, uint32_t rank)
{
    struct exchange_job *job = exchange_job_find(exchange, id);
    return job && rank < job->world_size ? job->by_rank[rank] : NULL;
}

uint32_t exchange_job_totals(const struct exchange *exchange, struct engine_job_status *jobs,
                             uint32_t room)
{
    uint32_t count = 0;
    for (const struct exchange_job *job = exchange->jobs; job; job = job->next) {
        struct engine_job_status one = {.job = job->id,
                                        .bytes_submitted = job->bytes_submitted,
                                        .collectives = job->collectives,
                                        .met_collectives = job->met_collectives,
                                        .met_bytes = job->met_bytes,
                                        .slots = job->slots,
                                        .kept_bytes = job->kept_bytes,
                                        .slowest_rank = UINT32_MAX,
                                        .failed = job->failed};
        if (job->archive)
            archive_tell(job->archive, &one);
        for (const struct exchange_group *group = job->groups; group; group = group->next)
            one.groups++;
        for (uint32_t rank = 0; rank < job->world_size; rank++) {
            if (job->last_to_arrive[rank] > one.slowest_times) {
                one.slowest_times = job->last_to_arrive[rank];
                one.slowest_rank = rank;
            }
        }
        waiting_tell(job, &one.waits);
        overlap_tell(&job->overlap, exchange->now_ns, &one.overlap);
        if (count < room)
            jobs[count] = one;
        count++;
    }
    return count;
}
