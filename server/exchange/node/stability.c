#include "server/exchange/node/stability.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "server/exchange/ground/delivery.h"
#include "server/exchange/ground/post.h"
#include "server/exchange/model/ask.h"
#include "server/exchange/model/order.h"
#include "server/exchange/model/roster.h"
#include "server/exchange/model/share.h"
#include "server/exchange/node/replay.h"

static bool stability_is_root(const struct exchange_group *group)
{
    return group->stability->root == group->job->exchange->options.self;
}

/* --- opening ---------------------------------------------------------------------------------- */

bool stability_open(struct exchange_group *group)
{
    const struct members *members = &group->members;
    const struct owners *owners = &group->owners;
    if (!group->job->recovery)
        return true;
    /* Groups take turns among the servers. */
    uint32_t root = owners->nodes[group->id % owners->rule.servers];
    uint32_t count = root == group->job->exchange->options.self ? members->node_count : 1;
    struct stability *made = calloc(1, sizeof(*made) + count * sizeof(struct stability_node));
    uint64_t *told = calloc(members->local_count + 1, sizeof(*told));
    if (!made || !told) {
        free(made);
        free(told);
        return false;
    }
    made->root = root;
    made->told = told;
    made->node_count = count;
    for (uint32_t i = 0; i < count; i++)
        made->nodes[i].group = group;
    group->stability = made;
    return true;
}

void stability_close(struct exchange_group *group)
{
    if (group->stability)
        free(group->stability->told);
    free(group->stability);
    group->stability = NULL;
}

/* --- counting --------------------------------------------------------------------------------- */

uint64_t stability_count(const struct exchange_group *group)
{
    const struct members *members = &group->members;
    const struct collective *oldest = group->order->oldest;
    uint64_t count = oldest ? oldest->sequence : UINT64_MAX;
    for (uint32_t i = 0; i < members->local_count; i++) {
        const struct local_rank *rank = &members->locals[i];
        uint64_t begun = rank->next_sequence - (rank->next_block > 0);
        if (begun < count)
            count = begun;
    }
    return members->local_count > 0 ? count : 0;
}

void stability_moved(struct exchange_group *group)
{
    if (!group->stability)
        return;
    group->stability->moved = true;
    group_mark_dirty(group);
}

static uint64_t stability_least(const struct stability *stability)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < stability->node_count; i++) {
        if (stability->nodes[i].held < least)
            least = stability->nodes[i].held;
    }
    return least;
}

/* --- messages --------------------------------------------------------------------------------- */

/* Let exchange_run say what has become new meanwhile. */
static void stability_sent(struct exchange_send *send)
{
    struct stability_node *node = send->owner;
    node->under_way = false;
    if (!node->group->failed)
        stability_moved(node->group);
}

static void stability_send(struct stability_node *node, uint32_t number, uint8_t type,
                           uint64_t sequence)
{
    struct exchange_group *group = node->group;
    const struct wire_ask nothing = {0};
    if (node->under_way || node->told >= sequence || group->failed)
        return;
    struct exchange_send *send = send_create(group, number, type, sequence, 0, &nothing, NULL, 0);
    send->done = stability_sent;
    send->owner = node;
    node->under_way = true;
    node->told = sequence;
    send_submit(group->job->exchange, send);
}

static void stability_tell_nodes(struct exchange_group *group)
{
    struct stability *stability = group->stability;
    if (!stability_is_root(group)) {
        stability_send(&stability->nodes[0], stability->root, WIRE_HELD, stability->held);
        return;
    }
    stability->stable = stability_least(stability);
    for (uint32_t i = 0; i < stability->node_count; i++) {
        if (i != group->members.self_node)
            stability_send(&stability->nodes[i], group->members.nodes[i], WIRE_STABLE,
                           stability->stable);
    }
}

static void stability_tell_ranks(struct exchange_group *group)
{
    struct stability *stability = group->stability;
    stability->untold = false;
    for (uint32_t i = 0; i < group->members.local_count; i++) {
        if (stability->told[i] >= stability->stable)
            continue;
        if (worker_tell_stable(group_local_worker(group, i), group->id, stability->stable))
            stability->told[i] = stability->stable;
        else
            stability->untold = true;
    }
}

void stability_run(struct exchange_group *group)
{
    struct stability *stability = group->stability;
    if (!stability || !stability->moved)
        return;
    stability->moved = false;
    stability->held = stability_count(group);
    if (stability->held > stability->most)
        stability->most = stability->held;
    if (stability_is_root(group) && group->members.self_node != NO_INDEX)
        stability->nodes[group->members.self_node].held = stability->held;
    stability_tell_nodes(group);
    stability_tell_ranks(group);
}

void stability_tick(struct exchange_group *group)
{
    if (group->stability && group->stability->untold)
        stability_moved(group);
}

bool stability_waits(const struct exchange_group *group)
{
    return group->stability && group->stability->most > group->stability->stable;
}

static int stability_check_message(const struct exchange_group *group, uint32_t from,
                                   const struct wire_header *header, struct error *error)
{
    const struct wire_ask *ask = &header->ask;
    bool to_root = header->type == WIRE_HELD;
    const struct stability *stability = group->stability;
    if (header->payload_bytes > 0 || header->chunk > 0 || header->sequence == 0 || ask->kind ||
        ask->dtype || ask->op || ask->root || ask->block || ask->count || ask->identity)
        return error_set(error, ERR_PROTOCOL, "a word on what is stable that says something else");
    if (!stability || group->members.single ||
        (to_root ? !stability_is_root(group) || group_node_index(group, from) == NO_INDEX
                 : stability->root != from || group->members.self_node == NO_INDEX))
        return error_set(error, ERR_PROTOCOL,
                         "a word on what is stable in group %" PRIu32
                         ", from or to a node that has no part in that",
                         group->id);
    return 0;
}

/* A node holds no result to which ranks of this one have not given, and forgets none. */
static int stability_take_held(struct exchange_group *group, uint32_t from, uint64_t sequence,
                               struct error *error)
{
    struct stability *stability = group->stability;
    struct stability_node *node = &stability->nodes[group_node_index(group, from)];
    bool beyond = false;
    for (uint32_t i = 0; i < group->members.local_count; i++)
        beyond |= sequence > group->members.locals[i].next_sequence;
    if (beyond || sequence <= node->held)
        return error_set(error, ERR_PROTOCOL,
                         "%" PRIu64 " collectives of group %" PRIu32
                         " are held, it says, after %" PRIu64 "%s",
                         sequence, group->id, node->held,
                         beyond ? ", and ranks here have not begun as many" : "");
    node->held = sequence;
    if (sequence > stability->most)
        stability->most = sequence;
    stability_moved(group);
    return 0;
}

static int stability_take_stable(struct exchange_group *group, uint64_t sequence,
                                 struct error *error)
{
    struct stability *stability = group->stability;
    if (sequence <= stability->stable || sequence > stability->nodes[0].told)
        return error_set(error, ERR_PROTOCOL,
                         "%" PRIu64 " collectives of group %" PRIu32
                         " are stable, it says, after %" PRIu64 ", of %" PRIu64 " held here",
                         sequence, group->id, stability->stable, stability->nodes[0].told);
    stability->stable = sequence;
    stability_moved(group);
    return 0;
}

int stability_message(struct exchange_group *group, uint32_t from, const struct wire_header *header,
                      struct error *error)
{
    int result = stability_check_message(group, from, header, error);
    if (result != 0)
        return result;
    return header->type == WIRE_HELD ? stability_take_held(group, from, header->sequence, error)
                                     : stability_take_stable(group, header->sequence, error);
}

/* --- transfers -------------------------------------------------------------------------------- */

static bool transfer_goes_far(const struct collective *transfer)
{
    return transfer->group->stability && ask_is_transfer(&transfer->ask) && !transfer->single &&
           !replay_is(transfer->group, &transfer->ask);
}

void stability_tell_sender(const struct collective *transfer)
{
    struct exchange_group *group = transfer->group;
    if (!transfer_goes_far(transfer) || transfer->owner == group->owners.self)
        return;
    struct exchange_send *send =
        send_create(group, group->owners.nodes[transfer->owner], WIRE_DELIVERED, transfer->sequence,
                    0, &transfer->ask, NULL, 0);
    send_submit(group->job->exchange, send);
}

bool stability_sender_waits(const struct collective *transfer)
{
    return transfer_goes_far(transfer) && transfer->owner == transfer->group->owners.self &&
           !transfer->confirmed;
}

/* --- for tests -------------------------------------------------------------------------------- */

void stability_check_invariants(const struct exchange_group *group)
{
    const struct stability *stability = group->stability;
    if (!stability || group->failed)
        return;
    assert(stability->held <= stability_count(group));
    assert(group->members.self_node == NO_INDEX || stability->stable <= stability->held);
    for (uint32_t i = 0; i < group->members.local_count; i++)
        assert(stability->told[i] <= stability->stable);
    for (uint32_t i = 0; i < stability->node_count; i++) {
        const struct stability_node *node = &stability->nodes[i];
        if (stability_is_root(group))
            assert(stability->stable <= node->held && node->told <= stability->stable);
        else
            assert(node->told <= stability->held && stability->stable <= node->told);
        assert(stability->moved || node->under_way || i == group->members.self_node ||
               node->told == (stability_is_root(group) ? stability->stable : stability->held));
    }
}
