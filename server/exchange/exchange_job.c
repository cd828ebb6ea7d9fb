/* Jobs and groups of the exchange: opening, failing, closing, and when their memory may go. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/memory.h"
#include "common/format/window.h"
#include "common/reduce/reduce.h"
#include "server/exchange/exchange_private.h"
#include "server/jobs/group.h"

/* --- finding ---------------------------------------------------------------------------------- */

struct exchange_job *exchange_job_find(const struct exchange *exchange, uint64_t id)
{
    for (struct exchange_job *job = exchange->jobs; job; job = job->next) {
        if (job->id == id && !job->closing)
            return job;
    }
    return NULL;
}

struct exchange_group *exchange_group_find(const struct exchange_job *job, uint32_t id)
{
    for (struct exchange_group *group = job->groups; group; group = group->next) {
        if (group->id == id && !group->closing)
            return group;
    }
    return NULL;
}

uint32_t group_local_index(const struct exchange_group *group, uint32_t job_rank)
{
    for (uint32_t i = 0; i < group->local_count; i++) {
        if (group->locals[i].job_rank == job_rank)
            return i;
    }
    return NO_INDEX;
}

static uint32_t index_of(const uint32_t *numbers, uint32_t count, uint32_t number)
{
    for (uint32_t i = 0; i < count; i++) {
        if (numbers[i] == number)
            return i;
    }
    return NO_INDEX;
}

uint32_t group_node_index(const struct exchange_group *group, uint32_t node)
{
    /* Ascending; asked for every message. */
    uint32_t first = 0, end = group->node_count;
    while (first < end) {
        uint32_t middle = first + (end - first) / 2;
        if (group->nodes[middle] < node)
            first = middle + 1;
        else
            end = middle;
    }
    return first < group->node_count && group->nodes[first] == node ? first : NO_INDEX;
}

uint32_t group_owner_index(const struct exchange_group *group, uint32_t node)
{
    return index_of(group->owner_nodes, group->owner_count, node);
}

uint32_t group_place(const struct exchange_group *group, uint32_t job_rank)
{
    /* In the group of all ranks it is the rank itself: all of a job leave one after another, and
     * each is to be found at once. */
    if (job_rank < group->size && group->ranks[job_rank] == job_rank)
        return job_rank;
    return index_of(group->ranks, group->size, job_rank);
}

uint32_t group_rank_node(const struct exchange_group *group, uint32_t group_rank)
{
    return group->job->rank_nodes[group->ranks[group_rank]];
}

void group_mark_dirty(struct exchange_group *group)
{
    struct exchange *exchange = group->job->exchange;
    if (group->is_dirty)
        return;
    group->is_dirty = true;
    group->next_dirty = exchange->dirty;
    exchange->dirty = group;
}

static void group_unmark_dirty(struct exchange_group *group)
{
    if (!group->is_dirty)
        return;
    struct exchange_group **link = &group->job->exchange->dirty;
    while (*link != group)
        link = &(*link)->next_dirty;
    *link = group->next_dirty;
    group->is_dirty = false;
}

/* --- groups ----------------------------------------------------------------------------------- */

/* All are ranks of the job, and each is there once. */
static int group_check_ranks(const struct exchange_job *job, const uint32_t *ranks,
                             uint32_t rank_count, struct error *error)
{
    uint32_t wrong;
    if (group_find_wrong_rank(ranks, rank_count, job->world_size, &wrong) != 0)
        return error_set(error, ERR_MEMORY, "no memory for a group of %" PRIu32, rank_count);
    return wrong == rank_count
               ? 0
               : error_set(error, ERR_INVALID, "rank %" PRIu32 " is not of the job, or twice",
                           ranks[wrong]);
}

static int group_fill_nodes(struct exchange_group *group, const uint32_t *ranks,
                            struct error *error)
{
    struct exchange_job *job = group->job;
    struct exchange *exchange = job->exchange;
    memcpy(group->ranks, ranks, group->size * sizeof(*ranks));
    bool *has_rank = calloc(exchange->options.node_count, sizeof(*has_rank));
    if (!has_rank)
        return error_set(error, ERR_MEMORY, "no memory for a group of %" PRIu32, group->size);
    for (uint32_t i = 0; i < group->size; i++)
        has_rank[job->rank_nodes[ranks[i]]] = true;
    for (uint32_t node = 0; node < exchange->options.node_count; node++) {
        if (has_rank[node])
            group->nodes[group->node_count++] = node;
    }
    free(has_rank);
    for (uint32_t i = 0; i < group->size; i++) {
        if (job->rank_nodes[ranks[i]] == exchange->options.self)
            group->locals[group->local_count++] =
                (struct local_rank){.group_rank = i, .job_rank = ranks[i]};
    }
    if (group->local_count > REDUCE_MAX_INPUTS || group->node_count > REDUCE_MAX_INPUTS)
        return error_set(error, ERR_MEMORY, "more than %d ranks on a node or nodes in a group",
                         REDUCE_MAX_INPUTS);
    group->self_node = group_node_index(group, exchange->options.self);
    group->single = group->node_count == 1;
    return 0;
}

static void group_fill_owners(struct exchange_group *group)
{
    struct exchange_job *job = group->job;
    const struct exchange_options *options = &job->exchange->options;
    uint32_t count = group->single ? 1 : job->server_count;
    for (uint32_t i = 0; i < count; i++) {
        group->owner_nodes[i] = group->single ? group->nodes[0] : job->server_nodes[i];
        group->weights[i] = group->single ? 1 : job->server_weights[i];
    }
    group->rule =
        (struct layout_rule){.servers = count,
                             .weights = group->weights,
                             .chunk_bytes = options->chunk_bytes,
                             .least_shard_bytes = options->least_shard_bytes,
                             .equal_weights = layout_weights_equal(group->weights, count)};
    group->block_rule = layout_rule_single(&group->rule, true);
    group->send_rule = layout_rule_single(&group->rule, false);
    group->owner_count = count;
    for (uint32_t i = 0; i < group->node_count; i++) {
        if (group_owner_index(group, group->nodes[i]) == NO_INDEX)
            group->owner_nodes[group->owner_count++] = group->nodes[i];
    }
    group->self_owner = group_owner_index(group, options->self);
    group->window = window_chunks(options->window_chunks, group->node_count);
}

/* How many messages of this group the node may have under way to this one. */
static uint32_t group_receives_from(const struct exchange_group *group, uint32_t node)
{
    if (group->single || node == group->job->exchange->options.self)
        return 0;
    return window_receives(
        group->window, group->self_owner != NO_INDEX && group_node_index(group, node) != NO_INDEX,
        group->self_node != NO_INDEX && group_owner_index(group, node) != NO_INDEX);
}

/* Promise all the buffers that the group's windows need, or none, and post the receives. */
static int group_reserve(struct exchange_group *group, struct error *error)
{
    struct exchange *exchange = group->job->exchange;
    uint32_t nodes = exchange->options.node_count;
    uint64_t wanted = 0;
    if (!group->single && group->local_count > 1)
        wanted += window_sums(group->window, group->owner_count);
    for (uint32_t node = 0; node < nodes; node++)
        wanted += group_receives_from(group, node);
    int result = buffer_pool_reserve(exchange->options.pool, wanted, error);
    if (result != 0)
        return result;
    group->reserved = wanted;
    group->promised = true;
    for (uint32_t node = 0; node < nodes; node++)
        receive_account(exchange, node)->allowed += group_receives_from(group, node);
    for (uint32_t node = 0; node < nodes; node++)
        receive_replenish(exchange, node);
    return 0;
}

/* Late messages find the receives that they were promised: those stay posted. */
static void group_unreserve(struct exchange_group *group)
{
    struct exchange *exchange = group->job->exchange;
    if (!group->promised)
        return;
    group->promised = false;
    for (uint32_t node = 0; node < exchange->options.node_count; node++)
        receive_account(exchange, node)->allowed -= group_receives_from(group, node);
    buffer_pool_unreserve(exchange->options.pool, group->reserved);
}

static void group_free_arrays(struct exchange_group *group)
{
    slab_clear(&group->chunk_slab);
    slab_clear(&group->slot_slab);
    free(group->ranks);
    free(group->nodes);
    free(group->locals);
    free(group->owner_nodes);
    free(group->weights);
    free(group->in_flight);
    free(group->queues);
    free(group->slots_of);
    free(group->disagreed);
    free(group->left);
    free(group);
}

static struct exchange_group *group_allocate(struct exchange_job *job, uint32_t id, uint32_t size)
{
    struct exchange_group *group = calloc(1, sizeof(*group));
    if (!group)
        return NULL;
    uint32_t nodes = job->exchange->options.node_count;
    uint32_t servers = job->server_count > 0 ? job->server_count : 1;
    *group = (struct exchange_group){
        .job = job,
        .id = id,
        .size = size,
        .ranks = calloc(size, sizeof(uint32_t)),
        .nodes = calloc(nodes, sizeof(uint32_t)),
        .locals = calloc(size, sizeof(struct local_rank)),
        .owner_nodes = calloc((size_t)servers + nodes, sizeof(uint32_t)),
        .weights = calloc(servers, sizeof(uint32_t)),
        .in_flight = calloc((size_t)servers + nodes, sizeof(uint32_t)),
        .queues = calloc((size_t)servers + nodes, sizeof(struct outlet *)),
        .slots_of = calloc(nodes, sizeof(uint32_t)),
        .disagreed = calloc(nodes, sizeof(bool)),
        .left = calloc(size, sizeof(bool)),
        .least_left = UINT64_MAX,
        .least_disagreed = UINT64_MAX,
    };
    if (!group->ranks || !group->nodes || !group->locals || !group->owner_nodes ||
        !group->weights || !group->in_flight || !group->queues || !group->slots_of ||
        !group->disagreed || !group->left) {
        group_free_arrays(group);
        return NULL;
    }
    return group;
}

static void group_init_slabs(struct exchange_group *group)
{
    size_t pointer = sizeof(void *);
    slab_init(&group->chunk_slab,
              sizeof(struct chunk) + group->local_count * (2 * pointer + sizeof(uint64_t)));
    slab_init(&group->slot_slab,
              sizeof(struct slot) + ((size_t)group->node_count + group->local_count + 1) * pointer +
                  group->node_count * sizeof(struct contribution));
}

int exchange_group_open(struct exchange *exchange, uint64_t job_id, uint32_t id,
                        const uint32_t *ranks, uint32_t rank_count, struct error *error)
{
    struct exchange_job *job = exchange_job_find(exchange, job_id);
    if (!job || job->failed)
        return error_set(error, ERR_STATE, "job %016" PRIx64 " is not open", job_id);
    if (exchange_group_find(job, id))
        return error_set(error, ERR_STATE, "group %" PRIu32 " is open already", id);
    int result = group_check_ranks(job, ranks, rank_count, error);
    if (result != 0)
        return result;
    struct exchange_group *group = group_allocate(job, id, rank_count);
    if (!group)
        return error_set(error, ERR_MEMORY, "no memory for a group of %" PRIu32, rank_count);
    result = group_fill_nodes(group, ranks, error);
    if (result == 0) {
        group_fill_owners(group);
        group_init_slabs(group);
        result = group_reserve(group, error);
    }
    if (result != 0) {
        group_free_arrays(group);
        return result;
    }
    group->next = job->groups;
    job->groups = group;
    return 0;
}

/* Free what is in progress; nothing of it is pending. */
static void group_drop(struct exchange_group *group)
{
    assert(group->pending == 0);
    collectives_drop(group);
    slots_drop(group);
    probes_drop(group);
    memset(group->in_flight, 0, group->owner_count * sizeof(*group->in_flight));
    memset(group->slots_of, 0, group->node_count * sizeof(*group->slots_of));
}

/* The rest waits for its tasks and sends: but memory that nothing touches is given back now,
 * buffers as well as the ranks' places in their arenas, for a send may take until its peer is given
 * up. */
static void group_drop_idle(struct exchange_group *group)
{
    group->dropped = true;
    slots_drop_idle(group);
    collectives_drop_idle(group);
}

static void exchange_group_free(struct exchange_group *group)
{
    group_unmark_dirty(group);
    group_drop(group);
    segments_release(group);
    group_unreserve(group);
    assert(group->chunk_slab.in_use == 0 && group->slot_slab.in_use == 0);
    group_free_arrays(group);
}

void exchange_group_fail(struct exchange_group *group, int code, const char *text)
{
    if (group->failed)
        return;
    group->failed = true;
    group_mark_dirty(group); /* its memory goes from exchange_run, not from under our callers */
    struct engine_event *event = engine_event_create(ENGINE_GROUP_FAILED);
    event->job = group->job->id;
    event->group = group->id;
    event->code = code;
    snprintf(event->text, sizeof(event->text), "%s", text);
    struct exchange *exchange = group->job->exchange;
    exchange->options.io.event(exchange->options.io.context, event);
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
    transfers_rank_left(group, rank);
    if (sequences >= group->least_left)
        return;
    group->least_left = sequences;
    group->left_rank = rank;
    group_mark_dirty(group); /* group_pump looks whether a collective needs that rank */
}

/* --- jobs ------------------------------------------------------------------------------------- */

static void job_free_arrays(struct exchange_job *job)
{
    free(job->rank_nodes);
    free(job->server_nodes);
    free(job->server_weights);
    free(job->by_rank);
    free(job->last_to_arrive);
    free(job);
}

static uint32_t *copy_numbers(const uint32_t *numbers, uint32_t count)
{
    uint32_t *copy = calloc(count ? count : 1, sizeof(*copy));
    if (copy && count)
        memcpy(copy, numbers, count * sizeof(*copy));
    return copy;
}

static int job_check(const struct exchange *exchange, const struct engine_job *job,
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

static struct exchange_job *job_allocate(struct exchange *exchange, const struct engine_job *from)
{
    struct exchange_job *job = calloc(1, sizeof(*job));
    if (!job)
        return NULL;
    *job = (struct exchange_job){
        .exchange = exchange,
        .id = from->job,
        .world_size = from->world_size,
        .rank_nodes = copy_numbers(from->rank_nodes, from->world_size),
        .server_count = from->server_count,
        .server_nodes = copy_numbers(from->server_nodes, from->server_count),
        .server_weights = copy_numbers(from->server_weights, from->server_count),
        .by_rank = calloc(from->world_size, sizeof(*job->by_rank)),
        .last_to_arrive = calloc(from->world_size, sizeof(*job->last_to_arrive)),
    };
    snprintf(job->name, sizeof(job->name), "%s", from->name);
    if (!job->rank_nodes || !job->server_nodes || !job->server_weights || !job->by_rank ||
        !job->last_to_arrive) {
        job_free_arrays(job);
        return NULL;
    }
    return job;
}

int exchange_job_open(struct exchange *exchange, const struct engine_job *from, struct error *error)
{
    int result = job_check(exchange, from, error);
    if (result != 0)
        return result;
    struct exchange_job *job = job_allocate(exchange, from);
    uint32_t *everyone = calloc(from->world_size, sizeof(*everyone));
    if (!job || !everyone) {
        if (job)
            job_free_arrays(job);
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
        job_free_arrays(job);
    }
    return result;
}

static void job_free(struct exchange_job *job)
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
    job_free_arrays(job);
}

void exchange_job_settle(struct exchange_job *job)
{
    struct exchange_group **link = &job->groups;
    while (*link) {
        struct exchange_group *group = *link;
        bool quiet = group->pending == 0;
        if (group->closing && quiet) {
            *link = group->next;
            exchange_group_free(group);
            continue;
        }
        if (group->failed && quiet) {
            group_drop(group);
            group_unreserve(group);
        } else if (group->failed && !group->dropped) {
            group_drop_idle(group);
        }
        link = &group->next;
    }
    if (job->closing && !job->groups)
        job_free(job);
}

void exchange_job_fail(struct exchange *exchange, uint64_t id)
{
    struct exchange_job *job = exchange_job_find(exchange, id);
    if (!job || job->failed)
        return;
    job_trace_over(job, TRACE_END_JOB_FAILED);
    job->failed = true;
    for (struct exchange_group *group = job->groups; group; group = group->next)
        group->failed = true;
    exchange_job_settle(job);
}

static void job_close(struct exchange_job *job)
{
    job_trace_over(job, TRACE_END_JOB_CLOSED);
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
        job_close(job);
}

void exchange_close_jobs(struct exchange *exchange)
{
    struct exchange_job *next;
    for (struct exchange_job *job = exchange->jobs; job; job = next) {
        next = job->next;
        if (!job->closing)
            job_close(job);
    }
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

/* How many collectives a rank that leaves has given all that it has to give to. One of which it has
 * not submitted all blocks, or not handed over all chunks, is one that it leaves out. */
static uint64_t group_rank_sequences(const struct exchange_group *group, uint32_t local)
{
    const struct local_rank *rank = &group->locals[local];
    for (const struct collective *it = group->oldest; it; it = it->next)
        if (it->parts[local].submitted && it->parts[local].handed < it->layout.chunks)
            return it->sequence;
    return rank->next_sequence - (rank->next_block > 0);
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
    event->positions = memory_require(groups, sizeof(*event->positions), "a worker's positions");
    for (struct exchange_group *group = job->groups; group; group = group->next) {
        uint32_t local = group_local_index(group, worker->rank);
        if (local == NO_INDEX || group->closing)
            continue;
        event->positions[event->position_count++] = (struct engine_position){
            .group = group->id, .sequences = group_rank_sequences(group, local)};
    }
    exchange->options.io.event(exchange->options.io.context, event);
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
                                        .slots = job->slots,
                                        .slowest_rank = UINT32_MAX,
                                        .failed = job->failed};
        for (const struct exchange_group *group = job->groups; group; group = group->next)
            one.groups++;
        for (uint32_t rank = 0; rank < job->world_size; rank++) {
            if (job->last_to_arrive[rank] > one.slowest_times) {
                one.slowest_times = job->last_to_arrive[rank];
                one.slowest_rank = rank;
            }
        }
        if (count < room)
            jobs[count] = one;
        count++;
    }
    return count;
}
