#include "tests/lib/virtual_private.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "common/clock.h"
#include "common/reduce.h"

#define TICK_NS (50 * NS_PER_MS)

/* --- chance and time -------------------------------------------------------------------------- */

/* splitmix64 */
uint64_t virtual_random(struct virtual_cluster *cluster, uint64_t below)
{
    uint64_t z = (cluster->random += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return below ? z % below : 0;
}

static bool sooner(const struct virtual_happening *a, const struct virtual_happening *b)
{
    return a->time_ns < b->time_ns || (a->time_ns == b->time_ns && a->order < b->order);
}

static void heap_push(struct virtual_cluster *cluster, struct virtual_happening it)
{
    if (cluster->heap_count == cluster->heap_capacity) {
        cluster->heap_capacity = cluster->heap_capacity ? 2 * cluster->heap_capacity : 256;
        cluster->heap = realloc(cluster->heap, cluster->heap_capacity * sizeof(*cluster->heap));
        ck_assert_ptr_nonnull(cluster->heap);
    }
    uint32_t at = cluster->heap_count++;
    while (at > 0 && sooner(&it, &cluster->heap[(at - 1) / 2])) {
        cluster->heap[at] = cluster->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    cluster->heap[at] = it;
}

static struct virtual_happening heap_pop(struct virtual_cluster *cluster)
{
    struct virtual_happening top = cluster->heap[0];
    struct virtual_happening last = cluster->heap[--cluster->heap_count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= cluster->heap_count)
            break;
        if (child + 1 < cluster->heap_count &&
            sooner(&cluster->heap[child + 1], &cluster->heap[child]))
            child++;
        if (!sooner(&cluster->heap[child], &last))
            break;
        cluster->heap[at] = cluster->heap[child];
        at = child;
    }
    cluster->heap[at] = last;
    return top;
}

static void schedule_at(struct virtual_cluster *cluster, uint64_t time_ns,
                        void (*happen)(struct virtual_cluster *, void *, uint64_t), void *what,
                        uint64_t number)
{
    heap_push(cluster, (struct virtual_happening){.time_ns = time_ns,
                                                  .order = cluster->order++,
                                                  .happen = happen,
                                                  .what = what,
                                                  .number = number});
}

void virtual_schedule(struct virtual_cluster *cluster, uint64_t delay_ns,
                      void (*happen)(struct virtual_cluster *, void *, uint64_t), void *what,
                      uint64_t number)
{
    schedule_at(cluster, cluster->now_ns + delay_ns, happen, what, number);
}

void virtual_schedule_in(struct virtual_cluster *cluster, struct virtual_channel *channel,
                         void (*happen)(struct virtual_cluster *, void *, uint64_t), void *what,
                         uint64_t number)
{
    uint64_t time_ns = cluster->now_ns + virtual_random(cluster, cluster->options.most_delay_ns);
    if (time_ns < channel->last_ns)
        time_ns = channel->last_ns;
    channel->last_ns = time_ns;
    schedule_at(cluster, time_ns, happen, what, number);
}

/* --- the coordinator's world ------------------------------------------------------------------ */

struct carried_line {
    struct virtual_node *from, *to;
    uint64_t epoch;
    size_t length;
    char *line;
};

static void coordinator_due(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)number;
    struct virtual_node *node = what;
    node->tick_due = false;
    uint64_t next = coordinator_tick(node->coordinator, cluster->now_ns);
    if (next == UINT64_MAX)
        return;
    node->tick_due = true;
    virtual_schedule(cluster, next > cluster->now_ns ? next - cluster->now_ns : 0, coordinator_due,
                     node, 0);
}

/* Every call may have changed what is due. */
static void coordinator_called(struct virtual_node *node)
{
    virtual_schedule(node->cluster, 0, coordinator_due, node, 0);
}

static void deliver_line(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)number;
    struct carried_line *carried = what;
    struct virtual_node *from = carried->from, *to = carried->to;
    if (from->to[to->number].epoch == carried->epoch) {
        struct message message;
        struct error error;
        int result = message_decode(&message, MESSAGE_BETWEEN_DAEMONS, carried->line,
                                    carried->length, &error);
        ck_assert_msg(result == 0, "between daemons: %s: %s", carried->line, error.text);
        result = coordinator_peer_message(to->coordinator, cluster->now_ns, from->number, &message,
                                          &error);
        ck_assert_msg(result == 0, "%s -> %s: %s", from->config.node, to->config.node, error.text);
        message_clear(&message);
        coordinator_called(to);
    }
    free(carried->line);
    free(carried);
}

static uint64_t world_random(void *context)
{
    struct virtual_node *node = context;
    return virtual_random(node->cluster, UINT64_MAX);
}

static void world_send_peer(void *context, uint32_t number, const struct message *message)
{
    struct virtual_node *node = context;
    struct virtual_cluster *cluster = node->cluster;
    if (!node->connected[number])
        return;
    struct carried_line *carried = calloc(1, sizeof(*carried));
    carried->from = node;
    carried->to = &cluster->nodes[number];
    carried->epoch = node->to[number].epoch;
    carried->line = message_encode(message, &carried->length);
    ck_assert_ptr_nonnull(carried->line);
    carried->line[--carried->length] = '\0'; /* without the newline */
    virtual_schedule_in(cluster, &node->to[number], deliver_line, carried, 0);
}

static void world_send_worker(void *context, uint32_t handle, const struct message *message)
{
    struct virtual_node *node = context;
    virtual_worker_message(node->cluster, handle, message);
}

static void world_end_worker(void *context, uint32_t handle)
{
    struct virtual_node *node = context;
    virtual_worker_end(node->cluster, handle);
}

/* --- commands to the exchange, in order, later ------------------------------------------------ */

enum command_type {
    COMMAND_JOB_OPEN,
    COMMAND_JOB_CLOSE,
    COMMAND_JOB_FAIL,
    COMMAND_GROUP_OPEN,
    COMMAND_GROUP_CLOSE,
    COMMAND_RANK_LEFT,
    COMMAND_ATTACH,
    COMMAND_DETACH,
    COMMAND_LATE_QUERY,
};

struct command {
    struct virtual_node *node;
    enum command_type type;
    uint64_t job, sequence;
    uint32_t group, rank, handle;
    struct engine_job roster;
    uint32_t *numbers;
    uint32_t count;
};

static void node_event(struct virtual_node *node, struct engine_event *event);

static void command_answer(struct virtual_node *node, enum engine_event_type type,
                           const struct command *command, int code, const char *text)
{
    struct engine_event *event = engine_event_create(type);
    event->job = command->job;
    event->group = command->group;
    event->code = code;
    snprintf(event->text, sizeof(event->text), "%s", code ? text : "");
    node_event(node, event);
}

static void carry_out(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)cluster, (void)number;
    struct command *command = what;
    struct virtual_node *node = command->node;
    struct exchange *exchange = node->exchange;
    struct error error = {0};
    switch (command->type) {
    case COMMAND_JOB_OPEN:
        command_answer(node, ENGINE_JOB_OPENED, command,
                       exchange_job_open(exchange, &command->roster, &error), error.text);
        break;
    case COMMAND_JOB_CLOSE:
        exchange_job_close(exchange, command->job);
        break;
    case COMMAND_JOB_FAIL:
        exchange_job_fail(exchange, command->job);
        break;
    case COMMAND_GROUP_OPEN: {
        int code = exchange_group_open(exchange, command->job, command->group, command->numbers,
                                       command->count, &error);
        command_answer(node, ENGINE_GROUP_OPENED, command, code, error.text);
        break;
    }
    case COMMAND_GROUP_CLOSE:
        exchange_group_close(exchange, command->job, command->group);
        break;
    case COMMAND_RANK_LEFT:
        exchange_rank_left(exchange, command->job, command->group, command->rank,
                           command->sequence);
        break;
    case COMMAND_ATTACH:
        virtual_worker_attach(node, command->job, command->rank, command->handle);
        break;
    case COMMAND_DETACH: {
        struct exchange_worker *worker =
            exchange_find_worker(exchange, command->job, command->rank);
        if (worker)
            exchange_detach(exchange, worker);
        break;
    }
    case COMMAND_LATE_QUERY:
        exchange_late_query(exchange, command->job, command->group, command->sequence);
        break;
    }
    free(command->numbers);
    free(command);
}

static struct command *command_create(struct virtual_node *node, enum command_type type,
                                      uint64_t job)
{
    struct command *command = calloc(1, sizeof(*command));
    ck_assert_ptr_nonnull(command);
    command->node = node;
    command->type = type;
    command->job = job;
    return command;
}

static void command_give(struct command *command)
{
    struct virtual_node *node = command->node;
    virtual_schedule_in(node->cluster, &node->commands, carry_out, command, 0);
}

static void world_job_open(void *context, const struct job *job)
{
    struct command *command = command_create(context, COMMAND_JOB_OPEN, job->id);
    uint32_t ranks = job->world_size, servers = job->server_count;
    command->numbers = calloc(ranks + 2 * (size_t)servers, sizeof(uint32_t));
    memcpy(command->numbers, job->rank_nodes, ranks * sizeof(uint32_t));
    memcpy(command->numbers + ranks, job->servers, servers * sizeof(uint32_t));
    memcpy(command->numbers + ranks + servers, job->weights, servers * sizeof(uint32_t));
    command->roster = (struct engine_job){.job = job->id,
                                          .world_size = ranks,
                                          .rank_nodes = command->numbers,
                                          .server_count = servers,
                                          .server_nodes = command->numbers + ranks,
                                          .server_weights = command->numbers + ranks + servers};
    snprintf(command->roster.name, sizeof(command->roster.name), "%s", job->name);
    command_give(command);
}

static void world_job_close(void *context, uint64_t job)
{
    command_give(command_create(context, COMMAND_JOB_CLOSE, job));
}

static void world_job_fail(void *context, uint64_t job)
{
    command_give(command_create(context, COMMAND_JOB_FAIL, job));
}

static void world_group_open(void *context, uint64_t job, const struct group *group)
{
    struct command *command = command_create(context, COMMAND_GROUP_OPEN, job);
    command->group = group->id;
    command->count = group->count;
    command->numbers = calloc(group->count, sizeof(uint32_t));
    memcpy(command->numbers, group->ranks, group->count * sizeof(uint32_t));
    command_give(command);
}

static void world_group_close(void *context, uint64_t job, uint32_t group)
{
    struct command *command = command_create(context, COMMAND_GROUP_CLOSE, job);
    command->group = group;
    command_give(command);
}

static void world_rank_left(void *context, uint64_t job, uint32_t group, uint32_t rank,
                            uint64_t sequences)
{
    struct command *command = command_create(context, COMMAND_RANK_LEFT, job);
    command->group = group;
    command->rank = rank;
    command->sequence = sequences;
    command_give(command);
}

static void world_worker_attach(void *context, uint64_t job, uint32_t rank, uint32_t handle)
{
    struct command *command = command_create(context, COMMAND_ATTACH, job);
    command->rank = rank;
    command->handle = handle;
    command_give(command);
}

static void world_worker_detach(void *context, uint64_t job, uint32_t rank)
{
    struct command *command = command_create(context, COMMAND_DETACH, job);
    command->rank = rank;
    command_give(command);
}

static void world_late_query(void *context, uint64_t job, uint32_t group, uint64_t sequence)
{
    struct command *command = command_create(context, COMMAND_LATE_QUERY, job);
    command->group = group;
    command->sequence = sequence;
    command_give(command);
}

static void world_drain(void *context)
{
    (void)context; /* no test of the cluster drains; the real processes' tests do */
}

static struct coordinator_io node_world(struct virtual_node *node)
{
    return (struct coordinator_io){
        .context = node,
        .random = world_random,
        .send_peer = world_send_peer,
        .send_worker = world_send_worker,
        .end_worker = world_end_worker,
        .job_open = world_job_open,
        .job_close = world_job_close,
        .job_fail = world_job_fail,
        .group_open = world_group_open,
        .group_close = world_group_close,
        .rank_left = world_rank_left,
        .worker_attach = world_worker_attach,
        .worker_detach = world_worker_detach,
        .late_query = world_late_query,
        .drain = world_drain,
    };
}

/* --- events of the exchange, in order, later -------------------------------------------------- */

struct carried_event {
    struct virtual_node *node;
    struct engine_event *event;
};

static void tell_detached(struct coordinator *coordinator, uint64_t now_ns,
                          const struct engine_event *event)
{
    struct message_position *positions = calloc(event->position_count + 1, sizeof(*positions));
    ck_assert_ptr_nonnull(positions);
    for (uint32_t i = 0; i < event->position_count; i++)
        positions[i] = (struct message_position){.group = event->positions[i].group,
                                                 .sequences = event->positions[i].sequences};
    coordinator_worker_detached(coordinator, now_ns, event->job, event->rank, positions,
                                event->position_count);
    free(positions);
}

static void tell_coordinator(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)number;
    struct carried_event *carried = what;
    struct engine_event *event = carried->event;
    struct coordinator *coordinator = carried->node->coordinator;
    uint64_t now_ns = cluster->now_ns;
    switch (event->type) {
    case ENGINE_JOB_OPENED:
        coordinator_job_opened(coordinator, now_ns, event->job, event->code, event->text);
        break;
    case ENGINE_GROUP_OPENED:
        coordinator_group_opened(coordinator, now_ns, event->job, event->group, event->code,
                                 event->text);
        break;
    case ENGINE_GROUP_FAILED:
        coordinator_group_failed(coordinator, now_ns, event->job, event->group, event->code,
                                 event->text);
        break;
    case ENGINE_WORKER_FAILED:
        coordinator_worker_failed(coordinator, now_ns, event->job, event->rank, event->text);
        break;
    case ENGINE_WORKER_DETACHED:
        tell_detached(coordinator, now_ns, event);
        break;
    case ENGINE_LATE:
        carried->node->late_reports++;
        coordinator_late(coordinator, now_ns, event->job, event->group, event->sequence,
                         event->ranks, event->rank_count, event->nodes, event->node_count);
        break;
    default:
        ck_abort_msg("event %d from an exchange", event->type);
    }
    coordinator_called(carried->node);
    engine_event_free(event);
    free(carried);
}

static void node_event(struct virtual_node *node, struct engine_event *event)
{
    struct carried_event *carried = calloc(1, sizeof(*carried));
    ck_assert_ptr_nonnull(carried);
    carried->node = node;
    carried->event = event;
    virtual_schedule_in(node->cluster, &node->events, tell_coordinator, carried, 0);
}

/* --- the exchange's table --------------------------------------------------------------------- */

static void give_back_send(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    exchange_sent(cluster->nodes[number].exchange, what);
}

static void io_send(void *context, struct exchange_send *send)
{
    struct virtual_node *node = context;
    struct iovec parts[2] = {
        {.iov_base = send->header, .iov_len = WIRE_HEADER_BYTES},
        {.iov_base = (void *)(uintptr_t)send->payload, .iov_len = send->payload_bytes},
    };
    void *registrations[2] = {NULL, NULL};
    int result = transport_send(node->transport, send->node, parts, registrations,
                                send->payload_bytes ? 2 : 1, send);
    ck_assert_int_ne(result, ERR_AGAIN);
    if (result != 0)
        virtual_schedule(node->cluster, 0, give_back_send, send, node->number);
}

static void finish_task(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    struct reduce_task *task = what;
    reduce_run(reduce_select(REDUCE_ISA_SCALAR), task->dtype, task->op, task->in, task->inputs,
               task->out, task->outputs, task->count, task->divisor);
    exchange_reduced(cluster->nodes[number].exchange, task);
}

static void io_reduce(void *context, struct reduce_task *task)
{
    struct virtual_node *node = context;
    struct virtual_cluster *cluster = node->cluster;
    virtual_schedule(cluster, virtual_random(cluster, cluster->options.most_delay_ns), finish_task,
                     task, node->number);
}

static void io_complete(void *context, struct exchange_worker *worker,
                        const struct arena_completion *completion)
{
    struct virtual_node *node = context;
    ck_assert(arena_push_completion(&worker->arena, completion));
    virtual_worker_rung(node->cluster, worker);
}

static int io_post_receive(void *context, uint32_t number, struct buffer *buffer)
{
    struct virtual_node *node = context;
    return transport_post_receive(node->transport, number, buffer->data, buffer->capacity, NULL,
                                  buffer);
}

static void io_event(void *context, struct engine_event *event)
{
    node_event(context, event);
}

static void io_release_worker(void *context, struct exchange_worker *worker)
{
    (void)context;
    virtual_worker_released(worker);
}

/* --- the fabric ------------------------------------------------------------------------------- */

static void fabric_event(struct virtual_node *node, const struct transport_event *event)
{
    struct virtual_cluster *cluster = node->cluster;
    struct error error;
    uint32_t from;
    switch (event->type) {
    case TRANSPORT_PEER_UP:
        membership_up(&node->membership, event->peer);
        coordinator_peer_up(node->coordinator, cluster->now_ns, event->peer);
        coordinator_called(node);
        break;
    case TRANSPORT_PEER_DOWN:
        exchange_peer_down(node->exchange, event->peer);
        break;
    case TRANSPORT_RECEIVED: {
        int result = exchange_receive(node->exchange, event->peer, event->context, event->bytes,
                                      cluster->now_ns, &from, &error);
        ck_assert_msg(result == 0, "%s from node %u: %s", node->config.node, from, error.text);
        break;
    }
    case TRANSPORT_SENT:
        exchange_sent(node->exchange, event->context);
        break;
    case TRANSPORT_RETURNED: {
        struct buffer *buffer = event->context;
        exchange_receive_returned(node->exchange, buffer->peer, buffer);
        break;
    }
    }
}

static void fabric_poll(struct virtual_cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->options.nodes; i++) {
        struct transport_event events[32];
        int count;
        while ((count = transport_poll(cluster->nodes[i].transport, events, 32)) > 0) {
            for (int j = 0; j < count; j++)
                fabric_event(&cluster->nodes[i], &events[j]);
        }
    }
}

/* --- links ------------------------------------------------------------------------------------ */

static uint64_t link_token(uint32_t from, uint32_t to)
{
    return 0x70000000ull + from * 1000 + to;
}

static void link_connect_side(struct virtual_node *node, struct virtual_node *peer)
{
    struct virtual_cluster *cluster = node->cluster;
    uint8_t address[TRANSPORT_ADDRESS_BYTES];
    uint8_t token[TRANSPORT_TOKEN_BYTES] = {0};
    uint32_t bytes;
    struct error error;
    ck_assert_int_eq(transport_address(peer->transport, address, &bytes, &error), 0);
    token[0] = (uint8_t)(node->number + peer->number);
    int result =
        node->number < peer->number
            ? transport_connect(node->transport, peer->number, address, bytes, token, &error)
            : transport_expect(node->transport, peer->number, address, bytes, token, &error);
    ck_assert_msg(result == 0, "%s", error.text);
    exchange_peer_up(node->exchange, peer->number, link_token(peer->number, node->number),
                     link_token(node->number, peer->number));
    membership_connected(&node->membership, peer->number, cluster->now_ns);
    coordinator_peer_connected(node->coordinator, cluster->now_ns, peer->number);
    coordinator_called(node);
}

static void link_connect(struct virtual_cluster *cluster, uint32_t a, uint32_t b)
{
    struct virtual_node *low = &cluster->nodes[a < b ? a : b];
    struct virtual_node *high = &cluster->nodes[a < b ? b : a];
    low->connected[high->number] = true;
    high->connected[low->number] = true;
    link_connect_side(high, low);
    link_connect_side(low, high);
}

static void link_lose_side(struct virtual_node *node, uint32_t peer)
{
    struct virtual_cluster *cluster = node->cluster;
    node->connected[peer] = false;
    node->to[peer].epoch++;
    transport_disconnect(node->transport, peer);
    exchange_peer_down(node->exchange, peer);
    membership_lost(&node->membership, peer, cluster->now_ns, "the link was cut");
    coordinator_peer_down(node->coordinator, cluster->now_ns, peer, "the link was cut");
    coordinator_called(node);
}

void virtual_cluster_cut(struct virtual_cluster *cluster, uint32_t a, uint32_t b)
{
    if (!cluster->nodes[a].connected[b])
        return;
    link_lose_side(&cluster->nodes[a], b);
    link_lose_side(&cluster->nodes[b], a);
}

void virtual_cluster_join_again(struct virtual_cluster *cluster, uint32_t a, uint32_t b)
{
    if (!cluster->nodes[a].connected[b])
        link_connect(cluster, a, b);
}

/* --- making it -------------------------------------------------------------------------------- */

static void node_configure(struct virtual_node *node)
{
    const struct virtual_options *options = &node->cluster->options;
    char text[8192];
    size_t used =
        (size_t)snprintf(text, sizeof(text), "{\"node\":\"n%u\",\"servers\":[", node->number);
    for (uint32_t i = 0; i < options->nodes; i++)
        used +=
            (size_t)snprintf(text + used, sizeof(text) - used,
                             "%s{\"name\":\"n%u\",\"address\":\"127.0.0.1:%u\",\"weight\":%u}",
                             i ? "," : "", i, 7000 + i, options->weights ? options->weights[i] : 1);
    snprintf(text + used, sizeof(text) - used,
             "],\"data\":{\"chunk_bytes\":%u,\"least_shard_bytes\":1024,\"window_chunks\":%u},"
             "\"limits\":{\"memory_bytes\":%llu}}",
             options->chunk_bytes, options->window_chunks,
             (unsigned long long)options->memory_bytes);
    struct config_problems problems = {0};
    int result = config_parse(&node->config, text, "virtual", &problems);
    ck_assert_msg(result == 0, "%s", problems.count ? problems.lines[0] : "?");
    config_problems_clear(&problems);
}

static void node_tick(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)number;
    struct virtual_node *node = what;
    exchange_tick(node->exchange, cluster->now_ns);
    virtual_schedule(cluster, TICK_NS, node_tick, node, 0);
}

static void node_create(struct virtual_cluster *cluster, uint32_t number)
{
    const struct virtual_options *options = &cluster->options;
    struct virtual_node *node = &cluster->nodes[number];
    struct error error;
    node->cluster = cluster;
    node->number = number;
    node_configure(node);
    ck_assert_int_eq(membership_init(&node->membership, options->nodes, number,
                                     node->config.heartbeat_ms, node->config.peer_ms, 0),
                     0);
    struct coordinator_io world = node_world(node);
    ck_assert_int_eq(
        coordinator_create(&node->coordinator, &node->config, NULL, &node->membership, &world), 0);
    ck_assert_int_eq(memory_fabric_open(cluster->fabric, number, &node->transport), 0);
    ck_assert_int_eq(buffer_pool_create(&node->pool, WIRE_HEADER_BYTES + options->chunk_bytes,
                                        options->memory_bytes, NULL, &error),
                     0);
    struct exchange_options exchange = {
        .self = number,
        .node_count = options->nodes,
        .chunk_bytes = options->chunk_bytes,
        .least_shard_bytes = node->config.least_shard_bytes,
        .window_chunks = options->window_chunks,
        .late_ns = 100 * NS_PER_MS,
        .shared_receives = options->shared_receives,
        .pool = node->pool,
        .io = {.context = node,
               .send = io_send,
               .reduce = io_reduce,
               .complete = io_complete,
               .post_receive = io_post_receive,
               .event = io_event,
               .release_worker = io_release_worker},
    };
    ck_assert_int_eq(exchange_create(&node->exchange, &exchange, &error), 0);
    virtual_schedule(cluster, TICK_NS, node_tick, node, 0);
}

struct virtual_cluster *virtual_cluster_create(const struct virtual_options *options)
{
    struct virtual_cluster *cluster = calloc(1, sizeof(*cluster));
    ck_assert_ptr_nonnull(cluster);
    cluster->options = *options;
    cluster->random = options->seed;
    cluster->next_handle = 1;
    struct virtual_options *own = &cluster->options;
    own->chunk_bytes = own->chunk_bytes ? own->chunk_bytes : 4096;
    own->window_chunks = own->window_chunks ? own->window_chunks : 4;
    own->most_delay_ns = own->most_delay_ns ? own->most_delay_ns : 20000;
    own->memory_bytes = own->memory_bytes ? own->memory_bytes : 256ull << 20;
    struct memory_fabric_options fabric = {.seed = options->seed ^ 0x5555,
                                           .least_delay_ns = 1,
                                           .most_delay_ns = own->most_delay_ns,
                                           .reorder = own->reorder,
                                           .shared_receives = own->shared_receives,
                                           .nodes = own->nodes};
    cluster->fabric = memory_fabric_create(&fabric);
    ck_assert_ptr_nonnull(cluster->fabric);
    for (uint32_t i = 0; i < own->nodes; i++)
        node_create(cluster, i);
    for (uint32_t a = 0; a < own->nodes; a++) {
        for (uint32_t b = a + 1; b < own->nodes; b++)
            link_connect(cluster, a, b);
    }
    return cluster;
}

/* --- running ---------------------------------------------------------------------------------- */

uint64_t virtual_cluster_run(struct virtual_cluster *cluster, uint64_t steps)
{
    uint64_t done = 0;
    for (; done < steps; done++) {
        uint64_t fabric_ns = memory_fabric_next_ns(cluster->fabric);
        uint64_t heap_ns = cluster->heap_count ? cluster->heap[0].time_ns : UINT64_MAX;
        uint64_t next_ns = fabric_ns < heap_ns ? fabric_ns : heap_ns;
        if (next_ns == UINT64_MAX)
            break;
        if (next_ns > cluster->now_ns)
            cluster->now_ns = next_ns;
        memory_fabric_advance(cluster->fabric, cluster->now_ns);
        fabric_poll(cluster);
        if (heap_ns <= cluster->now_ns) {
            struct virtual_happening it = heap_pop(cluster);
            it.happen(cluster, it.what, it.number);
        }
        for (uint32_t i = 0; i < cluster->options.nodes; i++) {
            exchange_run(cluster->nodes[i].exchange);
            exchange_check(cluster->nodes[i].exchange);
        }
        cluster->moments++;
    }
    return done;
}

void virtual_cluster_finish(struct virtual_cluster *cluster, uint64_t limit_ns)
{
    uint64_t deadline_ns = cluster->now_ns + limit_ns;
    while (!virtual_jobs_ended(cluster)) {
        ck_assert_msg(cluster->now_ns < deadline_ns, "workers still there at %.3f s, seed %llu",
                      (double)cluster->now_ns / 1e9, (unsigned long long)cluster->options.seed);
        virtual_cluster_run(cluster, 64);
    }
    /* What is still under way about their end. */
    uint64_t settled_ns = cluster->now_ns + 10 * NS_PER_S;
    while (cluster->now_ns < settled_ns)
        virtual_cluster_run(cluster, 16);
}

static void node_destroy(struct virtual_node *node)
{
    struct exchange_totals totals;
    exchange_totals(node->exchange, &totals);
    ck_assert_uint_eq(totals.jobs, 0);
    ck_assert_uint_eq(totals.workers, 0);
    ck_assert_uint_eq(totals.slots, 0);
    ck_assert_uint_eq(coordinator_worker_count(node->coordinator), 0);
    exchange_destroy(node->exchange);
    ck_assert_uint_eq(buffer_pool_used_bytes(node->pool), 0);
    ck_assert_uint_eq(buffer_pool_reserved_bytes(node->pool), 0);
    buffer_pool_destroy(node->pool);
    transport_close(node->transport);
    coordinator_destroy(node->coordinator);
    membership_clear(&node->membership);
    config_clear(&node->config);
}

void virtual_cluster_destroy(struct virtual_cluster *cluster)
{
    for (uint32_t a = 0; a < cluster->options.nodes; a++) {
        for (uint32_t b = a + 1; b < cluster->options.nodes; b++)
            virtual_cluster_cut(cluster, a, b);
    }
    uint64_t settled_ns = cluster->now_ns + NS_PER_S;
    while (cluster->now_ns < settled_ns)
        virtual_cluster_run(cluster, 16);
    for (uint32_t i = 0; i < cluster->options.nodes; i++)
        node_destroy(&cluster->nodes[i]);
    virtual_jobs_free(cluster);
    memory_fabric_destroy(cluster->fabric);
    free(cluster->heap);
    free(cluster);
}

uint64_t virtual_cluster_now_ns(const struct virtual_cluster *cluster)
{
    return cluster->now_ns;
}

uint32_t virtual_cluster_late_reports(const struct virtual_cluster *cluster, uint32_t node)
{
    return cluster->nodes[node].late_reports;
}

uint64_t virtual_cluster_used_bytes(const struct virtual_cluster *cluster, uint32_t node)
{
    return buffer_pool_used_bytes(cluster->nodes[node].pool);
}
