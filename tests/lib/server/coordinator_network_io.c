/* The table through which a coordinator acts: each call is checked, and the stand-in engine
 * answers. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/server/coordinator_network_internal.h"

struct channel *network_channel(struct network *network, uint32_t from, uint32_t to)
{
    return &network->channels[from * network->count + to];
}

void network_channel_put(struct channel *channel, enum item_kind kind, char *line, size_t length)
{
    ck_assert_uint_lt(channel->count, ITEMS_MAX);
    channel->items[(channel->head + channel->count++) % ITEMS_MAX] =
        (struct item){kind, line, length};
}

static void node_event(struct node *node, struct event event)
{
    ck_assert_uint_lt(node->count, EVENTS_MAX);
    node->events[(node->head + node->count++) % EVENTS_MAX] = event;
}

/* --- the I/O table */

static uint64_t network_io_random(void *context)
{
    struct network *network = ((struct node *)context)->network;
    return (uint64_t)network_random(network, UINT32_MAX) << 32 |
           network_random(network, UINT32_MAX);
}

static void network_io_send_peer(void *context, uint32_t to, const struct message *message)
{
    struct node *node = context;
    struct channel *line = network_channel(node->network, node->number, to);
    size_t length;
    if (!line->open)
        return;
    char *text = message_encode(message, &length);
    network_channel_put(line, ITEM_MESSAGE, text, length - 1);
}

static bool network_io_may_say(void *context, uint32_t to, uint32_t uid)
{
    const struct node *node = context;
    (void)to;
    return uid == 0 || uid != node->network->unheard;
}

static struct network_worker *find_worker(struct network *network, uint32_t id)
{
    for (uint32_t i = 0; i < network->worker_count; i++) {
        if (network->workers[i].id == id)
            return &network->workers[i];
    }
    return NULL;
}

static void check_joined(struct network *network, const struct network_worker *worker)
{
    if (worker->wished_rank >= 0 && worker->joined.generation == 1)
        ck_assert_int_eq(worker->joined.rank, worker->wished_rank);
    for (uint32_t i = 0; i < network->worker_count; i++) {
        const struct network_worker *other = &network->workers[i];
        if (other == worker || other->joined.job_id != worker->joined.job_id)
            continue;
        ck_assert_int_ne(other->joined.rank, worker->joined.rank);
        ck_assert_uint_eq(other->joined.world_size, worker->joined.world_size);
        if (other->node == worker->node)
            ck_assert_int_ne(other->joined.local_rank, worker->joined.local_rank);
        else
            ck_assert_uint_ne(other->joined.node_index, worker->joined.node_index);
    }
}

static void network_io_send_worker(void *context, uint32_t id, const struct message *message)
{
    struct node *node = context;
    struct network_worker *worker = find_worker(node->network, id);
    ck_assert_ptr_nonnull(worker);
    ck_assert(!worker->closed);
    size_t length;
    struct message copy;
    struct error error;
    char *line = message_encode(message, &length);
    ck_assert_int_eq(message_decode(&copy, MESSAGE_TO_WORKER, line, length - 1, &error), 0);
    free(line);
    uint64_t bound_ns = worker->joined_at_ns + worker->timeout_ns + 4000 * NETWORK_MS;
    switch (copy.type) {
    case MESSAGE_JOINED:
        ck_assert_int_eq(worker->state, CLIENT_JOINING);
        ck_assert_uint_le(node->network->now_ns, bound_ns);
        worker->state = CLIENT_JOINED;
        worker->failed = false;
        worker->weight_count = copy.weights.count;
        worker->joined = copy;
        check_joined(node->network, worker);
        break;
    case MESSAGE_WAITING:
        ck_assert(worker->state == CLIENT_JOINING || worker->state == CLIENT_JOINED);
        worker->waiting_count++;
        snprintf(worker->waiting, sizeof(worker->waiting), "%s", copy.text);
        break;
    case MESSAGE_ERROR:
        worker->failure = copy;
        if (copy.request == 0) {
            ck_assert_int_eq(worker->state, CLIENT_JOINING);
            ck_assert_uint_le(node->network->now_ns, bound_ns);
            /* A library that is turned down asks again when its program does. */
            worker->state = worker->whole && copy.code == ERR_AGAIN ? CLIENT_APART : CLIENT_OVER;
        } else {
            worker->group_refused = true;
        }
        break;
    case MESSAGE_FAILED:
        worker->failure = copy;
        worker->failed = true;
        worker->failed_count++;
        break;
    case MESSAGE_LEFT:
        worker->left = true;
        worker->state = CLIENT_OVER;
        break;
    case MESSAGE_WORKER_GROUP_OPENED:
        worker->group_opened = true;
        worker->group = copy.group;
        break;
    case MESSAGE_RELEASED:
        ck_assert_int_eq(worker->state, CLIENT_RELEASING);
        worker->state = CLIENT_APART;
        break;
    case MESSAGE_SHARED_OPENED:
        worker->shared_count++;
        worker->segment = copy.segment;
        break;
    default:
        ck_abort_msg("unexpected %s", message_type_name(copy.type));
    }
    message_clear(&copy);
}

static void network_io_end_worker(void *context, uint32_t id)
{
    struct network_worker *worker = find_worker(((struct node *)context)->network, id);
    ck_assert(!worker->closed);
    worker->closed = true;
    if (worker->state == CLIENT_JOINING || worker->state == CLIENT_JOINED)
        ck_assert(worker->failed);
    worker->state = CLIENT_OVER;
}

static struct engine_job_copy *engine_job(struct node *node, uint64_t id)
{
    for (uint32_t i = 0; i < node->job_count; i++) {
        if (node->jobs[i].id == id)
            return &node->jobs[i];
    }
    return NULL;
}

static void network_check_roster(struct network *network, const struct engine_job_copy *copy)
{
    for (uint32_t i = 0; i < network->roster_count; i++) {
        const struct engine_job_copy *first = &network->rosters[i];
        if (first->id != copy->id)
            continue;
        ck_assert_uint_eq(first->world_size, copy->world_size);
        ck_assert_mem_eq(first->rank_nodes, copy->rank_nodes, sizeof(copy->rank_nodes));
        return;
    }
    if (network->roster_count < NETWORK_JOBS_MAX)
        network->rosters[network->roster_count++] = *copy;
}

static void node_job_open(struct node *node, const struct engine_job *job)
{
    struct engine_job_copy copy = {.id = job->job, .world_size = job->world_size};
    ck_assert_ptr_null(engine_job(node, job->job));
    ck_assert_uint_le(job->world_size, 64);
    memcpy(copy.rank_nodes, job->rank_nodes, job->world_size * sizeof(uint32_t));
    network_check_roster(node->network, &copy);
    ck_assert_uint_lt(node->job_count, NETWORK_JOBS_MAX);
    node->jobs[node->job_count++] = copy;
    node_event(node, (struct event){.kind = EVENT_JOB, .job = job->job});
}

static void node_job_close(struct node *node, uint64_t id)
{
    struct engine_job_copy *job = engine_job(node, id);
    struct network *network = node->network;
    if (!job)
        return;
    for (uint32_t i = 0; i < network->worker_count; i++) {
        const struct network_worker *worker = &network->workers[i];
        if (worker->node == node->number && !worker->closed && worker->joined.job_id == id)
            node_event(node, (struct event){.kind = EVENT_RELEASED, .rank = worker->id});
    }
    *job = node->jobs[--node->job_count];
}

static void node_job_fail(struct node *node, uint64_t id)
{
    struct engine_job_copy *job = engine_job(node, id);
    node->failed++;
    if (job)
        job->failed = true;
}

static void node_group_open(struct node *node, uint64_t id, uint32_t group)
{
    ck_assert_ptr_nonnull(engine_job(node, id));
    engine_job(node, id)->groups++;
    node_event(node, (struct event){.kind = EVENT_GROUP, .job = id, .group = group});
}

static void node_group_close(struct node *node, uint64_t id)
{
    struct engine_job_copy *job = engine_job(node, id);
    ck_assert_ptr_nonnull(job);
    ck_assert_uint_gt(job->groups, 0);
    job->groups--;
}

static void node_rank_departed(struct node *node, uint64_t id, uint32_t group, uint32_t rank,
                               uint64_t sequences)
{
    struct engine_job_copy *job = engine_job(node, id);
    ck_assert_ptr_nonnull(job);
    ck_assert_uint_lt(rank, job->world_size);
    /* The stand-in's ranks get somewhere in the world alone. */
    ck_assert_uint_eq(sequences, group == 0 ? rank + 7 : 0);
    if (group != 0)
        job->group_ranks_left++;
}

static void node_worker_attach(struct node *node, uint64_t id, uint32_t rank, uint32_t worker)
{
    struct engine_job_copy *job = engine_job(node, id);
    ck_assert_ptr_nonnull(job);
    ck_assert_uint_eq(job->rank_nodes[rank], node->number);
    /* Before the worker is told: it may submit at once. */
    ck_assert_int_eq(find_worker(node->network, worker)->state, CLIENT_JOINING);
    job->attached++;
}

static void node_worker_detach(struct node *node, uint64_t id, uint32_t rank)
{
    struct engine_job_copy *job = engine_job(node, id);
    if (!job)
        return;
    ck_assert_uint_gt(job->attached, 0);
    job->attached--;
    node_event(node, (struct event){.kind = EVENT_DETACHED, .job = id, .rank = rank});
}

/* A descriptor is a number from 1000 on, and so is the address of the memory that it is of. */
static int network_io_segment_make(void *context, uint32_t uid, uint64_t bytes, bool writable,
                                   uint8_t **base, int *descriptor, struct error *error)
{
    struct node *node = context;
    (void)uid;
    (void)writable;
    if (bytes == 1)
        return error_set(error, ERR_SYSTEM, "one byte is not made");
    node->descriptors++;
    node->segment_bytes += bytes;
    *descriptor = 1000 + (int)node->descriptors_made++;
    *base = (uint8_t *)(uintptr_t)*descriptor;
    return 0;
}

static void node_segment_open(struct node *node, const struct engine_command *command)
{
    const struct engine_segment *segment = &command->segment;
    ck_assert_ptr_nonnull(engine_job(node, command->job));
    ck_assert_uint_lt(segment->number, SEGMENTS_MAX);
    engine_job(node, command->job)->descriptors[segment->number] = (int)(uintptr_t)segment->base;
    node_event(node, (struct event){.kind = EVENT_SEGMENT,
                                    .job = command->job,
                                    .group = command->group,
                                    .segment = segment->number});
}

static void network_io_segment_send(void *context, uint32_t id, const struct message *message,
                                    int descriptor)
{
    struct node *node = context;
    const struct network_worker *worker = find_worker(node->network, id);
    ck_assert_int_eq(message->type, MESSAGE_SHARED_OPENED);
    ck_assert_uint_lt(message->segment, SEGMENTS_MAX);
    ck_assert_int_eq(descriptor,
                     engine_job(node, worker->joined.job_id)->descriptors[message->segment]);
    network_io_send_worker(context, id, message);
}

static void network_io_segment_drop(void *context, uint32_t uid, int descriptor)
{
    struct node *node = context;
    (void)uid;
    ck_assert_int_ge(descriptor, 1000);
    ck_assert_uint_gt(node->descriptors, 0);
    node->descriptors--;
}

static void network_io_segment_freed(void *context, uint32_t uid, uint64_t bytes)
{
    struct node *node = context;
    (void)uid;
    ck_assert_uint_ge(node->segment_bytes, bytes);
    node->segment_bytes -= bytes;
}

static void node_segment_close(struct node *node, uint64_t id)
{
    struct engine_job_copy *job = engine_job(node, id);
    if (job && job->segments > 0)
        job->segments--;
}

static void network_io_command(void *context, const struct engine_command *command)
{
    struct node *node = context;
    uint64_t job = command->job;
    switch (command->kind) {
    case COMMAND_JOB_OPEN:
        node_job_open(node, command->roster);
        break;
    case COMMAND_JOB_CLOSE:
        node_job_close(node, job);
        break;
    case COMMAND_JOB_FAIL:
        node_job_fail(node, job);
        break;
    case COMMAND_GROUP_OPEN:
        node_group_open(node, job, command->group);
        break;
    case COMMAND_GROUP_CLOSE:
        node_group_close(node, job);
        break;
    case COMMAND_GROUP_FAIL: /* the stand-in has no collectives to stop */
        node->groups_failed++;
        break;
    case COMMAND_RANK_DEPARTED:
        node_rank_departed(node, job, command->group, command->departed.rank,
                           command->departed.sequences);
        break;
    case COMMAND_SEGMENT_OPEN:
        node_segment_open(node, command);
        break;
    case COMMAND_SEGMENT_CLOSE:
        node_segment_close(node, job);
        break;
    case COMMAND_WORKER_ATTACH:
        node_worker_attach(node, job, command->attach.rank, command->attach.worker);
        break;
    case COMMAND_WORKER_DETACH:
        node_worker_detach(node, job, command->rank);
        break;
    case COMMAND_LATE_QUERY:
        node_event(node, (struct event){.kind = EVENT_LATE,
                                        .job = job,
                                        .group = command->group,
                                        .sequence = command->sequence});
        break;
    case COMMAND_DRAIN:
        node_event(node, (struct event){.kind = EVENT_IDLE});
        break;
    default:
        ck_abort_msg("command %d from a coordinator", command->kind);
    }
}

struct coordinator_io network_io(struct node *node)
{
    return (struct coordinator_io){
        .context = node,
        .random = network_io_random,
        .send_peer = network_io_send_peer,
        .may_say = network_io_may_say,
        .send_worker = network_io_send_worker,
        .end_worker = network_io_end_worker,
        .command = network_io_command,
        .segment_make = network_io_segment_make,
        .segment_send = network_io_segment_send,
        .segment_drop = network_io_segment_drop,
        .segment_freed = network_io_segment_freed,
    };
}
