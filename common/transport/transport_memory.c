#include "common/transport/transport_memory_wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- pairs --- */

static void memory_disconnect(struct transport *transport, uint32_t peer)
{
    struct memory_node *node = (struct memory_node *)transport;
    struct memory_fabric *fabric = node->fabric;
    if (peer >= fabric->options.nodes)
        return;
    if (node->sides[peer].epoch != 0 && !fabric->options.shared_receives)
        memory_control_send(fabric, ITEM_DOWN, node->number, peer,
                            "the peer closed the connection");
    memory_side_end(node, peer);
    memory_events_withdraw(node, peer);
}

static int side_begin(struct memory_node *node, uint32_t peer, const uint8_t *address,
                      uint32_t bytes, const uint8_t *token, struct error *error)
{
    if (peer >= node->fabric->options.nodes || peer == node->number)
        return error_set(error, ERR_INVALID, "memory fabric: node %u has no peer %u", node->number,
                         peer);
    if (bytes != sizeof(peer) || memcmp(address, &peer, sizeof(peer)) != 0)
        return error_set(error, ERR_PROTOCOL, "memory fabric: not the address of peer %u", peer);
    struct memory_side *side = &node->sides[peer];
    if (side->state != SIDE_IDLE || side->down_queued)
        return error_set(error, ERR_STATE,
                         "memory fabric: peer %u is connected or expected already", peer);
    memcpy(side->token, token, sizeof(side->token));
    if (node->fabric->options.shared_receives) {
        side->state = SIDE_UP;
        side->epoch = ++node->fabric->epoch;
        memory_event_push(node, TRANSPORT_PEER_UP, peer, 0);
    }
    return 0;
}

static int memory_expect(struct transport *transport, uint32_t peer, const uint8_t *address,
                         uint32_t bytes, const uint8_t *token, struct error *error)
{
    struct memory_node *node = (struct memory_node *)transport;
    int code = side_begin(node, peer, address, bytes, token, error);
    if (code == 0 && node->sides[peer].state == SIDE_IDLE)
        node->sides[peer].state = SIDE_EXPECTING;
    return code;
}

static int memory_connect(struct transport *transport, uint32_t peer, const uint8_t *address,
                          uint32_t bytes, const uint8_t *token, struct error *error)
{
    struct memory_node *node = (struct memory_node *)transport;
    struct memory_fabric *fabric = node->fabric;
    int code = side_begin(node, peer, address, bytes, token, error);
    if (code || node->sides[peer].state == SIDE_UP)
        return code;
    struct memory_side *own = &node->sides[peer], *other = memory_side(fabric, peer, node->number);
    own->state = SIDE_CONNECTING;
    own->epoch = ++fabric->epoch;
    bool welcome = other->state == SIDE_EXPECTING && other->epoch == 0 &&
                   memcmp(other->token, token, TRANSPORT_TOKEN_BYTES) == 0;
    if (!welcome) {
        /* The peer does not expect this node, or not yet, or with another token: the peer refuses
         * it, as connected endpoints do. */
        struct memory_item *item = memory_item_create(fabric, ITEM_DOWN, peer, node->number);
        item->epoch = own->epoch;
        item->due_ns = memory_arrival_choose(fabric, other, false);
        snprintf(item->text, sizeof(item->text), "no connection (refused)");
        memory_item_insert(fabric, item);
        return 0;
    }
    other->epoch = own->epoch;
    memory_control_send(fabric, ITEM_UP, node->number, peer, "");
    memory_control_send(fabric, ITEM_UP, peer, node->number, "");
    return 0;
}

/* --- operations --- */

static void registration_check(const struct memory_node *node, const struct iovec *part,
                               const struct memory_region *region)
{
    if (!node->fabric->options.registration_needed || part->iov_len == 0)
        return;
    const uint8_t *data = part->iov_base;
    if (!region || data < region->address || data + part->iov_len > region->address + region->bytes)
        memory_fault("node %u uses %zu bytes of memory outside of the registration that it gave",
                     node->number, part->iov_len);
}

static int memory_send(struct transport *transport, uint32_t peer, const struct iovec *parts,
                       void *const *registrations, unsigned part_count, void *context)
{
    struct memory_node *node = (struct memory_node *)transport;
    struct memory_fabric *fabric = node->fabric;
    if (peer >= fabric->options.nodes)
        return ERR_INVALID;
    struct memory_side *side = &node->sides[peer];
    if (side->state != SIDE_UP)
        return ERR_LOST;
    if (fabric->options.sends_per_peer > 0 && side->sends >= fabric->options.sends_per_peer)
        return ERR_AGAIN;
    struct memory_item *item = memory_item_create(fabric, ITEM_SEND, node->number, peer);
    item->context = context;
    item->part_count = part_count;
    for (unsigned i = 0; i < part_count; i++) {
        registration_check(node, &parts[i], registrations ? registrations[i] : NULL);
        item->parts[i] = parts[i];
        item->bytes += (uint32_t)parts[i].iov_len;
    }
    item->checksum = memory_checksum(parts, part_count);
    item->arrival_ns = memory_arrival_choose(fabric, side, true);
    item->due_ns = memory_random(fabric, fabric->now_ns, item->arrival_ns);
    if (!fabric->options.reorder && item->due_ns < side->sent_ns)
        item->due_ns = side->sent_ns;
    side->sent_ns = item->due_ns;
    side->sends++;
    memory_item_insert(fabric, item);
    return 0;
}

static int memory_post_receive(struct transport *transport, uint32_t peer, void *data,
                               uint32_t bytes, void *registration, void *context)
{
    struct memory_node *node = (struct memory_node *)transport;
    bool shared = node->fabric->options.shared_receives;
    if (!shared && peer >= node->fabric->options.nodes)
        return ERR_INVALID;
    if (!shared && node->sides[peer].state == SIDE_IDLE)
        return ERR_LOST;
    registration_check(node, &(struct iovec){data, bytes}, registration);
    struct memory_receive *receive = memory_allocate(sizeof(*receive));
    *receive = (struct memory_receive){.data = data, .bytes = bytes, .context = context};
    memory_receive_append(memory_receives_for(node, peer), receive);
    return 0;
}

static int memory_register(struct transport *transport, void *address, size_t bytes,
                           void **registration, struct error *error)
{
    (void)error;
    struct memory_node *node = (struct memory_node *)transport;
    *registration = NULL;
    if (node->fabric->options.registration_needed) {
        struct memory_region *region = memory_allocate(sizeof(*region));
        *region = (struct memory_region){address, bytes};
        *registration = region;
    }
    return 0;
}

static void memory_unregister(struct transport *transport, void *registration)
{
    (void)transport;
    free(registration);
}

/* --- the rest of the table --- */

static int memory_poll(struct transport *transport, struct transport_event *events, int room)
{
    struct memory_node *node = (struct memory_node *)transport;
    int count = 0;
    while (count < room && node->events) {
        struct memory_queued_event *queued = memory_event_pop(node);
        events[count] = queued->event;
        if (queued->event.type == TRANSPORT_PEER_DOWN)
            node->sides[queued->event.peer].down_queued = false;
        free(queued);
        count++;
    }
    return count;
}

static int memory_address(const struct transport *transport, uint8_t *address, uint32_t *bytes,
                          struct error *error)
{
    (void)error;
    const struct memory_node *node = (const struct memory_node *)transport;
    memcpy(address, &node->number, sizeof(node->number));
    *bytes = sizeof(node->number);
    return 0;
}

static void memory_address_text(const struct transport *transport, const uint8_t *address,
                                uint32_t bytes, char *text, size_t room)
{
    (void)transport;
    uint32_t number = UINT32_MAX;
    if (bytes == sizeof(number))
        memcpy(&number, address, sizeof(number));
    snprintf(text, room, "memory:%u", number);
}

static int memory_descriptor(const struct transport *transport)
{
    (void)transport;
    return -1;
}

static bool memory_can_sleep(struct transport *transport)
{
    (void)transport;
    return true;
}

/* --- opening and closing --- */

static void receives_free(struct memory_receive_list *list)
{
    struct memory_receive *receive;
    while ((receive = memory_receive_pop(list)))
        free(receive);
}

static void memory_close(struct transport *transport)
{
    struct memory_node *node = (struct memory_node *)transport;
    struct memory_fabric *fabric = node->fabric;
    for (uint32_t peer = 0; peer < fabric->options.nodes; peer++) {
        memory_items_drop(fabric, node->number, peer, false, false);
        receives_free(&node->sides[peer].receives);
        memory_disconnect(transport, peer);
        node->sides[peer].sends = 0;
    }
    receives_free(&node->shared);
    while (node->events)
        free(memory_event_pop(node));
    node->open = false;
}

static const struct transport_ops memory_ops = {
    .close = memory_close,
    .address = memory_address,
    .address_text = memory_address_text,
    .connect = memory_connect,
    .expect = memory_expect,
    .disconnect = memory_disconnect,
    .send = memory_send,
    .post_receive = memory_post_receive,
    .register_memory = memory_register,
    .unregister_memory = memory_unregister,
    .poll = memory_poll,
    .descriptor = memory_descriptor,
    .can_sleep = memory_can_sleep,
};

int memory_fabric_open(struct memory_fabric *fabric, uint32_t node, struct transport **transport)
{
    if (node >= fabric->options.nodes || fabric->nodes[node].open)
        return ERR_INVALID;
    struct memory_node *opened = &fabric->nodes[node];
    struct transport_info *info = &opened->transport.info;
    opened->open = true;
    opened->transport.ops = &memory_ops;
    snprintf(info->provider, sizeof(info->provider), "memory");
    snprintf(info->endpoint, sizeof(info->endpoint), "memory");
    snprintf(info->version, sizeof(info->version), "%s", SHOAL_VERSION);
    snprintf(info->local, sizeof(info->local), "node %u", node);
    info->per_peer_receives = !fabric->options.shared_receives;
    info->ordered = !fabric->options.reorder;
    *transport = &opened->transport;
    return 0;
}

struct memory_fabric *memory_fabric_create(const struct memory_fabric_options *options)
{
    struct memory_fabric *fabric =
        memory_allocate(sizeof(*fabric) + options->nodes * sizeof(fabric->nodes[0]));
    fabric->options = *options;
    fabric->random = options->seed;
    for (uint32_t i = 0; i < options->nodes; i++) {
        struct memory_node *node = &fabric->nodes[i];
        node->fabric = fabric;
        node->number = i;
        node->events_last = &node->events;
        node->sides = memory_allocate(options->nodes * sizeof(node->sides[0]));
    }
    return fabric;
}

void memory_fabric_destroy(struct memory_fabric *fabric)
{
    memory_items_clear(fabric);
    for (uint32_t i = 0; i < fabric->options.nodes; i++)
        free(fabric->nodes[i].sides);
    free(fabric);
}
