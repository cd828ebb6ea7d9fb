/* Virtual daemons: how they begin, end by themselves or are killed, and stand still. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "tests/lib/virtual/virtual_private.h"

void virtual_daemon_configure(struct virtual_node *node)
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
    node->config.recovery = node->cluster->options.recovery;
}

/* --- the beginning ---------------------------------------------------------------------------- */

static void daemon_create_exchange(struct virtual_node *node)
{
    const struct virtual_options *options = &node->cluster->options;
    struct buffer_pool_io pool_io = virtual_engine_pool_io(node);
    struct error error;
    EXPECT(buffer_pool_create(&node->pool, WIRE_HEADER_BYTES + options->chunk_bytes,
                              options->memory_bytes, &pool_io, &error) == 0);
    for (uint32_t i = 0; i < options->nodes; i++)
        node->names[i] = node->config.servers[i].name;
    struct exchange_options exchange = {
        .self = node->number,
        .node_count = options->nodes,
        .node_names = node->names,
        .chunk_bytes = options->chunk_bytes,
        .least_shard_bytes = node->config.least_shard_bytes,
        .window_chunks = options->window_chunks,
        .late_ns = 100 * NS_PER_MS,
        .silence_ns = virtual_engine_silence_ns(node),
        .shared_receives = options->shared_receives,
        .recovery = options->recovery,
        .keep_steps = options->keep_steps,
        .keep_bytes = 1 << 20,
        .pool = node->pool,
        .io = virtual_engine_io(node),
    };
    EXPECT(exchange_create(&node->exchange, &exchange, &error) == 0);
}

void virtual_daemon_begin(struct virtual_node *node)
{
    struct virtual_cluster *cluster = node->cluster;
    uint32_t nodes = cluster->options.nodes;
    node->alive = true;
    node->off = false;
    node->incarnation = ++cluster->incarnations;
    node->update_ns = UINT64_MAX;
    for (uint32_t i = 0; i < nodes; i++) {
        node->links[i] = (struct virtual_link){.node = node, .peer = i};
        node->peers[i] = (struct virtual_peer){.connection = node->peers[i].connection + 1};
    }
    EXPECT(membership_init(&node->membership, nodes, node->number, node->config.heartbeat_ms,
                           node->config.peer_ms, cluster->now_ns) == 0);
    struct coordinator_io world = virtual_world(node);
    EXPECT(coordinator_create(&node->coordinator, &node->config, NULL, &node->membership, &world) ==
           0);
    EXPECT(memory_fabric_open(cluster->fabric, node->number, &node->transport) == 0);
    daemon_create_exchange(node);
    virtual_schedule(cluster, node, 0, virtual_engine_tick, node, 0);
    virtual_schedule(cluster, node, node->number, virtual_trace_tick, node, 0);
    virtual_called(node);
}

/* --- the end ---------------------------------------------------------------------------------- */

/* Stop the exchange as engine_stop in server/engine/engine.c does. */
static void daemon_end_exchange(struct virtual_node *node)
{
    bool any = true;
    exchange_close_jobs(node->exchange);
    for (uint32_t i = 0; i < node->cluster->options.nodes; i++) {
        transport_disconnect(node->transport, i);
        exchange_peer_down(node->exchange, i);
    }
    while (any) {
        any = virtual_time_drain(node);
        any |= virtual_engine_poll(node);
        exchange_run(node->exchange);
    }
    if (node->cluster->options.shared_receives)
        exchange_abandon_receives(node->exchange);
    exchange_destroy(node->exchange);
    EXPECT(buffer_pool_used_bytes(node->pool) == 0);
    EXPECT(buffer_pool_reserved_bytes(node->pool) == 0);
    buffer_pool_destroy(node->pool);
    transport_close(node->transport);
}

void virtual_daemon_end(struct virtual_node *node)
{
    node->alive = node->paused = false;
    daemon_end_exchange(node);
    coordinator_destroy(node->coordinator);
    membership_clear(&node->membership);
    for (uint32_t i = 0; i < node->cluster->options.nodes; i++)
        conversation_clear(&node->links[i].conversation);
    node->exchange = NULL;
    node->pool = NULL;
    node->transport = NULL;
    node->coordinator = NULL;
}

/* --- faults ----------------------------------------------------------------------------------- */

/* Its fabric stands still for any of these reasons. */
static void daemon_set_fabric(const struct virtual_node *node)
{
    memory_fabric_freeze(node->cluster->fabric, node->number,
                         node->still || node->paused || node->off);
}

void virtual_cluster_stand_still(struct virtual_cluster *cluster, uint32_t number, bool still)
{
    struct virtual_node *node = &cluster->nodes[number];
    node->still = still;
    daemon_set_fabric(node);
}

void virtual_cluster_refuse_memory(struct virtual_cluster *cluster, uint32_t node, bool refused)
{
    cluster->nodes[node].refuses_memory = refused;
}

void virtual_cluster_pause(struct virtual_cluster *cluster, uint32_t number, bool paused)
{
    struct virtual_node *node = &cluster->nodes[number];
    if (!node->alive || node->paused == paused)
        return;
    node->paused = paused;
    daemon_set_fabric(node);
    if (!paused)
        virtual_time_go_on(node);
}

static void daemon_kill(struct virtual_node *node, bool silently)
{
    node->paused = false;
    virtual_link_drop_all(node, silently);
    virtual_session_lose_all(node);
    virtual_daemon_end(node);
    daemon_set_fabric(node);
}

void virtual_cluster_kill_daemon(struct virtual_cluster *cluster, uint32_t number)
{
    struct virtual_node *node = &cluster->nodes[number];
    if (node->alive)
        daemon_kill(node, false);
}

void virtual_cluster_switch_off(struct virtual_cluster *cluster, uint32_t number)
{
    struct virtual_node *node = &cluster->nodes[number];
    if (!node->alive)
        return;
    node->off = true;
    daemon_set_fabric(node); /* what the transport's end would tell the others waits */
    virtual_jobs_kill_on(node);
    daemon_kill(node, true);
}

void virtual_cluster_return(struct virtual_cluster *cluster, uint32_t number)
{
    struct virtual_node *node = &cluster->nodes[number];
    if (node->alive)
        return;
    virtual_daemon_begin(node);
    daemon_set_fabric(node);
}

bool virtual_cluster_alive(const struct virtual_cluster *cluster, uint32_t node)
{
    return cluster->nodes[node].alive;
}
