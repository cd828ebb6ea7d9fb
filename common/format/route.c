#include "common/format/route.h"

/* Sends, replays, and what asks for these. */
#define ROUTE_SEND_KINDS 3u

bool route_in_blocks(enum collective_kind kind)
{
    return kind >= COLLECTIVE_ALL_GATHER && kind < COLLECTIVE_KIND_COUNT;
}

bool route_block_valid(enum collective_kind kind, uint32_t root, uint32_t block, uint32_t ranks)
{
    if (!route_in_blocks(kind) || block == 0 || ranks > ROUTE_MAX_RANKS)
        return false;
    uint32_t part = block - 1;
    switch (kind) {
    case COLLECTIVE_GATHER:
    case COLLECTIVE_SCATTER:
        return part < ranks && part != root;
    case COLLECTIVE_ALL_TO_ALL:
        return part < ranks * ranks && part / ranks != part % ranks;
    case COLLECTIVE_SEND:
        return part < ROUTE_SEND_KINDS * (uint64_t)ranks * ranks &&
               part / ranks % ranks != part % ranks;
    default:
        return part < ranks;
    }
}

struct route route_find(enum collective_kind kind, uint32_t root, uint32_t block, uint32_t ranks)
{
    uint32_t part = block - 1;
    switch (kind) {
    case COLLECTIVE_ALL_REDUCE:
        return (struct route){.owner = ROUTE_NONE, .from = ROUTE_ALL, .to = ROUTE_ALL};
    case COLLECTIVE_REDUCE:
        return (struct route){.owner = ROUTE_NONE, .from = ROUTE_ALL, .to = root};
    case COLLECTIVE_BROADCAST:
        return (struct route){.owner = ROUTE_NONE, .from = root, .to = ROUTE_ALL};
    default:
        break;
    }
    if (block == 0)
        return (struct route){.owner = ROUTE_NONE, .from = ROUTE_NONE, .to = ROUTE_NONE};
    switch (kind) {
    case COLLECTIVE_ALL_GATHER:
        return (struct route){.owner = part, .from = part, .to = ROUTE_ALL};
    case COLLECTIVE_REDUCE_SCATTER:
        return (struct route){.owner = part, .from = ROUTE_ALL, .to = part};
    case COLLECTIVE_GATHER:
        return (struct route){.owner = part, .from = part, .to = root};
    case COLLECTIVE_SCATTER:
        return (struct route){.owner = root, .from = root, .to = part};
    default:
        return (struct route){
            .owner = part / ranks % ranks, .from = part / ranks % ranks, .to = part % ranks};
    }
}

enum route_replay route_replay(enum collective_kind kind, uint32_t block, uint32_t ranks)
{
    if (kind != COLLECTIVE_SEND || block == 0)
        return ROUTE_SEND;
    return (enum route_replay)((block - 1) / ((uint64_t)ranks * ranks));
}

uint32_t route_replay_block(enum route_replay replay, uint32_t from, uint32_t to, uint32_t ranks)
{
    uint64_t block = 1 + ((uint64_t)replay * ranks + from) * ranks + to;
    return ROUTE_SEND_KINDS * (uint64_t)ranks * ranks < UINT32_MAX ? (uint32_t)block : 0;
}

bool route_sends(const struct route *route, uint32_t rank)
{
    return route->from == ROUTE_ALL || route->from == rank;
}

bool route_receives(const struct route *route, uint32_t rank)
{
    return route->to == rank || (route->to == ROUTE_ALL && route->from != rank);
}

bool route_takes_part(const struct route *route, uint32_t rank)
{
    bool nobody = route->from == ROUTE_NONE && route->to == ROUTE_NONE;
    return nobody || route_sends(route, rank) || route_receives(route, rank);
}

uint32_t route_block_count(enum collective_kind kind, uint32_t root, uint32_t rank, uint32_t ranks)
{
    switch (kind) {
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_REDUCE_SCATTER:
        return ranks;
    case COLLECTIVE_GATHER:
    case COLLECTIVE_SCATTER:
        return rank == root ? ranks - 1 : 1;
    case COLLECTIVE_ALL_TO_ALL:
        return 2 * (ranks - 1);
    default:
        return 0;
    }
}

/* Pairs in the order of their blocks: the rank is the source of its row, the target of its column.
 */
static uint32_t next_pair(uint32_t rank, uint32_t ranks, uint32_t pair)
{
    uint32_t to = pair % ranks;
    for (uint32_t from = pair / ranks; from < ranks; from++, to = 0) {
        if (from != rank && to <= rank)
            return 1 + from * ranks + rank;
        if (from == rank && to == rank)
            to++;
        if (from == rank && to < ranks)
            return 1 + from * ranks + to;
    }
    return 0;
}

uint32_t route_next_block(enum collective_kind kind, uint32_t root, uint32_t rank, uint32_t ranks,
                          uint32_t block)
{
    uint32_t part = block ? block - 1 : 0;
    switch (kind) {
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_REDUCE_SCATTER:
        return part < ranks ? part + 1 : 0;
    case COLLECTIVE_GATHER:
    case COLLECTIVE_SCATTER:
        if (rank != root)
            return part <= rank ? rank + 1 : 0;
        if (part == root)
            part++;
        return part < ranks ? part + 1 : 0;
    case COLLECTIVE_ALL_TO_ALL:
        return next_pair(rank, ranks, part);
    default:
        return 0;
    }
}
