#include "tests/lib/virtual/virtual_private.h"

#include <assert.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/reduce/reduce.h"

#define TICK_NS (50 * NS_PER_MS)
#define KEPT_BYTES (32 << 20)

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
        EXPECT(cluster->heap);
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

/* --- the exchange's table --------------------------------------------------------------------- */

static void give_back_send(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    exchange_sent(cluster->nodes[number].exchange, what);
}

static void virtual_io_send(void *context, struct exchange_send *send)
{
    struct virtual_node *node = context;
    struct iovec parts[2] = {
        {.iov_base = send->header, .iov_len = WIRE_HEADER_BYTES},
        {.iov_base = (void *)(uintptr_t)send->payload, .iov_len = send->payload_bytes},
    };
    void *registrations[2] = {NULL, NULL};
    node->traffic.sent += send->payload_bytes;
    int result = transport_send(node->transport, send->node, parts, registrations,
                                send->payload_bytes ? 2 : 1, send);
    EXPECT(result != ERR_AGAIN);
    if (result != 0)
        virtual_schedule(node->cluster, 0, give_back_send, send, node->number);
}

static void finish_task(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    struct reduce_task *task = what;
    reduce_run(reduce_select(REDUCE_ISA_SCALAR), &task->reduction);
    exchange_reduced(cluster->nodes[number].exchange, task);
}

static void virtual_io_reduce(void *context, struct reduce_task *task)
{
    struct virtual_node *node = context;
    struct virtual_cluster *cluster = node->cluster;
    virtual_schedule(cluster, virtual_random(cluster, cluster->options.most_delay_ns), finish_task,
                     task, node->number);
}

static void virtual_io_complete(void *context, struct exchange_worker *worker,
                                const struct arena_completion *completion)
{
    struct virtual_node *node = context;
    EXPECT(arena_push_completion(&worker->arena, completion));
    virtual_worker_rung(node->cluster, worker);
}

static int virtual_io_post_receive(void *context, uint32_t number, struct buffer *buffer)
{
    struct virtual_node *node = context;
    return transport_post_receive(node->transport, number, buffer->data, buffer->capacity, NULL,
                                  buffer);
}

static void virtual_io_event(void *context, struct engine_event *event)
{
    if (event->type == ENGINE_TRACED)
        virtual_trace_over(context, event);
    else
        virtual_event(context, event);
}

static uint64_t virtual_io_now_ns(void *context)
{
    const struct virtual_node *node = context;
    return node->cluster->now_ns;
}

static void virtual_io_release_worker(void *context, struct exchange_worker *worker)
{
    (void)context;
    virtual_worker_released(worker);
}

/* Memory for the pool's buffers, a slab at a time. */
static int virtual_register_slab(void *context, void *address, size_t bytes, void **registration,
                                 struct error *error)
{
    const struct virtual_node *node = context;
    (void)address, (void)bytes;
    *registration = NULL;
    return node->refuses_memory ? error_set(error, ERR_MEMORY, "memory is refused") : 0;
}

static void virtual_unregister_slab(void *context, void *registration)
{
    (void)context, (void)registration;
}

void virtual_cluster_refuse_memory(struct virtual_cluster *cluster, uint32_t node, bool refused)
{
    cluster->nodes[node].refuses_memory = refused;
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
        virtual_called(node);
        break;
    case TRANSPORT_PEER_DOWN:
        virtual_link_lost(node, event->peer, event->text);
        break;
    case TRANSPORT_RECEIVED: {
        node->traffic.received += event->bytes - WIRE_HEADER_BYTES;
        int result = exchange_receive(node->exchange, event->peer, event->context, event->bytes,
                                      cluster->now_ns, &from, &error);
        /* A datagram of a connection that is over is dropped. */
        EXPECT_MSG(result == 0 || from == TRANSPORT_NO_PEER, "%s from node %u: %s",
                   node->config.node, from, error.text);
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
    EXPECT_MSG(result == 0, "%s", problems.count ? problems.lines[0] : "?");
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
    EXPECT(membership_init(&node->membership, options->nodes, number, node->config.heartbeat_ms,
                           node->config.peer_ms, 0) == 0);
    struct coordinator_io world = virtual_world(node);
    EXPECT(coordinator_create(&node->coordinator, &node->config, NULL, &node->membership, &world) ==
           0);
    EXPECT(memory_fabric_open(cluster->fabric, number, &node->transport) == 0);
    struct buffer_pool_io pool_io = {node, virtual_register_slab, virtual_unregister_slab};
    EXPECT(buffer_pool_create(&node->pool, WIRE_HEADER_BYTES + options->chunk_bytes,
                              options->memory_bytes, &pool_io, &error) == 0);
    for (uint32_t i = 0; i < options->nodes; i++)
        node->names[i] = node->config.servers[i].name;
    for (uint32_t i = 0; i < options->nodes; i++) {
        node->to[i].from = node;
        node->to[i].to = i;
    }
    struct exchange_options exchange = {
        .self = number,
        .node_count = options->nodes,
        .node_names = node->names,
        .chunk_bytes = options->chunk_bytes,
        .least_shard_bytes = node->config.least_shard_bytes,
        .window_chunks = options->window_chunks,
        .late_ns = 100 * NS_PER_MS,
        .silence_ns = node->config.peer_ms * NS_PER_MS,
        .shared_receives = options->shared_receives,
        .pool = node->pool,
        .io = {.context = node,
               .send = virtual_io_send,
               .reduce = virtual_io_reduce,
               .complete = virtual_io_complete,
               .post_receive = virtual_io_post_receive,
               .event = virtual_io_event,
               .release_worker = virtual_io_release_worker,
               .peer_silent = virtual_link_silent,
               .now_ns = virtual_io_now_ns},
    };
    EXPECT(exchange_create(&node->exchange, &exchange, &error) == 0);
    virtual_schedule(cluster, TICK_NS, node_tick, node, 0);
    virtual_schedule(cluster, number, virtual_trace_tick, node, 0);
}

struct virtual_cluster *virtual_cluster_create(const struct virtual_options *options)
{
    /* What is freed at the top of the heap is not given back each time: that took four fifths of
     * the processor's time. */
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
    mallopt(M_MMAP_THRESHOLD, KEPT_BYTES);
    mallopt(M_TOP_PAD, KEPT_BYTES / 16);
    struct virtual_cluster *cluster = calloc(1, sizeof(*cluster));
    EXPECT(cluster);
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
                                           .messages_wait = own->sends,
                                           .nodes = own->nodes};
    cluster->fabric = memory_fabric_create(&fabric);
    EXPECT(cluster->fabric);
    for (uint32_t i = 0; i < own->nodes; i++)
        node_create(cluster, i);
    for (uint32_t a = 0; a < own->nodes; a++) {
        for (uint32_t b = a + 1; b < own->nodes; b++)
            virtual_cluster_join_again(cluster, a, b);
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
        if (cluster->now_ns >= deadline_ns) {
            virtual_jobs_describe(cluster);
            ck_abort_msg("workers still there at %.3f s, seed %llu", (double)cluster->now_ns / 1e9,
                         (unsigned long long)cluster->options.seed);
        }
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
    EXPECT(totals.jobs == 0);
    EXPECT(totals.workers == 0);
    EXPECT(totals.slots == 0);
    EXPECT(coordinator_worker_count(node->coordinator) == 0);
    if (node->cluster->options.shared_receives)
        exchange_abandon_receives(node->exchange);
    exchange_destroy(node->exchange);
    EXPECT(buffer_pool_used_bytes(node->pool) == 0);
    EXPECT(buffer_pool_reserved_bytes(node->pool) == 0);
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

struct virtual_traffic virtual_cluster_traffic(const struct virtual_cluster *cluster, uint32_t node)
{
    return cluster->nodes[node].traffic;
}

uint64_t virtual_cluster_part_bytes(const struct virtual_cluster *cluster, uint32_t job)
{
    const struct virtual_job_run *run = &cluster->jobs[job];
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < run->job.collectives; i++)
        bytes += run->script[i].ask.count * dtype_bytes(run->script[i].ask.dtype);
    return bytes;
}

uint32_t virtual_cluster_late_reports(const struct virtual_cluster *cluster, uint32_t node)
{
    return cluster->nodes[node].late_reports;
}

uint64_t virtual_cluster_used_bytes(const struct virtual_cluster *cluster, uint32_t node)
{
    return buffer_pool_used_bytes(cluster->nodes[node].pool);
}
