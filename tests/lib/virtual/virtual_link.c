/* Links between virtual daemons: the control connection and the pair on the fabric, how they begin,
 * and how they end. */
#include "tests/lib/virtual/virtual_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"

static uint64_t link_token(const struct virtual_node *from, uint32_t to)
{
    return 0x70000000ull + from->number * 1000 + to + ((uint64_t)from->connection[to] << 32);
}

static void link_connect_side(struct virtual_node *node, struct virtual_node *peer)
{
    struct virtual_cluster *cluster = node->cluster;
    uint8_t address[TRANSPORT_ADDRESS_BYTES];
    uint8_t token[TRANSPORT_TOKEN_BYTES] = {0};
    uint32_t bytes;
    struct error error;
    EXPECT(transport_address(peer->transport, address, &bytes, &error) == 0);
    token[0] = (uint8_t)(node->number + peer->number);
    int result =
        node->number < peer->number
            ? transport_connect(node->transport, peer->number, address, bytes, token, &error)
            : transport_expect(node->transport, peer->number, address, bytes, token, &error);
    EXPECT_MSG(result == 0, "%s", error.text);
    exchange_peer_up(node->exchange, peer->number, link_token(peer, node->number),
                     link_token(node, peer->number));
    membership_connected(&node->membership, peer->number, cluster->now_ns);
    coordinator_peer_connected(node->coordinator, cluster->now_ns, peer->number);
    virtual_called(node);
}

bool virtual_cluster_linked(const struct virtual_cluster *cluster, uint32_t a, uint32_t b)
{
    return cluster->nodes[a].connected[b] || cluster->nodes[b].connected[a];
}

void virtual_cluster_join_again(struct virtual_cluster *cluster, uint32_t a, uint32_t b)
{
    struct virtual_node *low = &cluster->nodes[a < b ? a : b];
    struct virtual_node *high = &cluster->nodes[a < b ? b : a];
    if (virtual_cluster_linked(cluster, a, b))
        return;
    low->connected[high->number] = true;
    high->connected[low->number] = true;
    low->connection[high->number]++;
    high->connection[low->number]++;
    link_connect_side(high, low);
    link_connect_side(low, high);
}

/* The side's part of the end; what is under way to the other may still arrive. */
static void link_lose_side(struct virtual_node *node, uint32_t peer, const char *reason)
{
    struct virtual_cluster *cluster = node->cluster;
    node->connected[peer] = false;
    cluster->nodes[peer].to[node->number].epoch++;
    transport_disconnect(node->transport, peer);
    exchange_peer_down(node->exchange, peer);
    membership_lost(&node->membership, peer, cluster->now_ns, reason);
    coordinator_peer_down(node->coordinator, cluster->now_ns, peer, reason);
    virtual_called(node);
}

void virtual_cluster_cut(struct virtual_cluster *cluster, uint32_t a, uint32_t b)
{
    const char *reason = "the link was cut";
    if (cluster->nodes[a].connected[b])
        link_lose_side(&cluster->nodes[a], b, reason);
    if (cluster->nodes[b].connected[a])
        link_lose_side(&cluster->nodes[b], a, reason);
}

void virtual_cluster_cut_data(struct virtual_cluster *cluster, uint32_t from, uint32_t to, bool cut)
{
    memory_fabric_block(cluster->fabric, from, to, cut);
}

void virtual_cluster_delay_control(struct virtual_cluster *cluster, uint32_t from, uint32_t to,
                                   uint64_t ns)
{
    struct virtual_channel *channel = &cluster->nodes[from].to[to];
    if (channel->last_ns < cluster->now_ns + ns)
        channel->last_ns = cluster->now_ns + ns;
}

void virtual_cluster_stand_still(struct virtual_cluster *cluster, uint32_t node, bool still)
{
    memory_fabric_freeze(cluster->fabric, node, still);
}

/* --- the fabric lost it: what the engine and the control thread make of that ------------------ */

/* The other side has closed the control connection. */
static void deliver_close(struct virtual_cluster *cluster, void *what, uint64_t connection)
{
    struct virtual_channel *channel = what;
    struct virtual_node *from = channel->from, *to = &cluster->nodes[channel->to];
    if (to->connected[from->number] && to->connection[from->number] == connection)
        link_lose_side(to, from->number, "the other side has closed the connection");
}

/* As adapter_peer_event in server/control/control_adapter.c. */
void virtual_link_end(struct virtual_node *node, const struct engine_event *event)
{
    struct virtual_cluster *cluster = node->cluster;
    uint32_t peer = event->node;
    if (!node->connected[peer] || node->connection[peer] != event->sequence)
        return;
    coordinator_peer_down(node->coordinator, cluster->now_ns, peer, event->text);
    link_lose_side(node, peer, event->text);
    virtual_schedule_in(cluster, &node->to[peer], deliver_close, &node->to[peer],
                        node->connection[peer]);
}

/* As engine_peer_lost in server/engine/engine_peer.c. */
void virtual_link_lost(struct virtual_node *node, uint32_t peer, const char *how)
{
    transport_disconnect(node->transport, peer);
    exchange_peer_down(node->exchange, peer);
    struct engine_event *event = engine_event_create(ENGINE_PEER_DOWN);
    event->node = peer;
    event->sequence = node->connection[peer];
    snprintf(event->text, sizeof(event->text), "%s on the fabric link between %s and %s", how,
             node->names[node->number], node->names[peer]);
    virtual_event(node, event);
}

void virtual_link_silent(void *context, uint32_t peer)
{
    struct virtual_node *node = context;
    char how[64];
    node->cluster->silences++;
    snprintf(how, sizeof(how), "no sign of life for %" PRIu32 " ms", node->config.peer_ms);
    virtual_link_lost(node, peer, how);
}

uint32_t virtual_cluster_silences(const struct virtual_cluster *cluster)
{
    return cluster->silences;
}
