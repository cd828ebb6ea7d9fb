#include "server/exchange/model/ask.h"

#include "server/exchange/model/roster.h"

struct wire_ask ask_of_submission(const struct arena_submission *submission)
{
    bool shared =
        submission->flags & ARENA_FLAG_SHARED; /* then the field is the segment's number */
    bool identity = submission->flags & ARENA_FLAG_IDENTITY; /* likewise */
    return (struct wire_ask){.kind = submission->kind,
                             .dtype = submission->dtype,
                             .op = submission->op,
                             .root = shared ? 0 : submission->root,
                             .block = identity ? 0 : submission->block,
                             .identity = identity ? submission->identity : 0,
                             .count = submission->count};
}

bool ask_is_transfer(const struct wire_ask *ask)
{
    return ask->kind == COLLECTIVE_SEND;
}

struct route ask_route(const struct exchange_group *group, const struct wire_ask *ask)
{
    return route_find((enum collective_kind)ask->kind, ask->root, ask->block, group->members.size);
}

static bool ask_rank_is_on(const struct exchange_group *group, uint32_t rank, uint32_t node_index)
{
    return rank < group->members.size &&
           group_rank_node(group, rank) == group->members.nodes[node_index];
}

bool ask_takes_part(const struct exchange_group *group, const struct wire_ask *ask,
                    uint32_t node_index)
{
    struct route route = ask_route(group, ask);
    if (route.from < group->members.size && route.to < group->members.size)
        return ask_rank_is_on(group, route.from, node_index) ||
               ask_rank_is_on(group, route.to, node_index);
    return true;
}

bool ask_contributes(const struct exchange_group *group, const struct wire_ask *ask,
                     uint32_t node_index)
{
    struct route route = ask_route(group, ask);
    return route.from == ROUTE_ALL || ask_rank_is_on(group, route.from, node_index);
}

bool ask_returns(const struct exchange_group *group, const struct wire_ask *ask,
                 uint32_t node_index)
{
    struct route route = ask_route(group, ask);
    return (route.to == ROUTE_ALL || ask_rank_is_on(group, route.to, node_index)) &&
           !ask_rank_is_on(group, route.from, node_index);
}

uint32_t ask_node_count(const struct exchange_group *group, const struct wire_ask *ask)
{
    uint32_t nodes = 0;
    for (uint32_t i = 0; i < group->members.node_count; i++)
        nodes += ask_takes_part(group, ask, i);
    return nodes;
}

int ask_layout(const struct exchange_group *group, const struct wire_ask *ask, uint64_t sequence,
               struct layout *layout)
{
    const struct layout_rule *rule = ask->block ? &group->owners.block_rule : &group->owners.rule;
    return layout_init(layout, ask_is_transfer(ask) ? &group->owners.send_rule : rule, sequence,
                       ask->identity, wire_ask_elements(ask), ask_element_bytes(ask));
}

uint32_t ask_block_owner(const struct exchange_group *group, const struct wire_ask *ask)
{
    return group_owner_index(group, group_rank_node(group, ask_route(group, ask).owner));
}

uint32_t ask_element_bytes(const struct wire_ask *ask)
{
    return ask->kind == COLLECTIVE_BARRIER ? 1 : (uint32_t)dtype_bytes(ask->dtype);
}

uint64_t ask_bytes(const struct wire_ask *ask)
{
    return wire_ask_elements(ask) * ask_element_bytes(ask);
}
