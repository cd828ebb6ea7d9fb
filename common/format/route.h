/* The ranks between which a collective's data goes: who gives and who gets.
 *
 * All-reduce, reduce and broadcast travel whole, cut into shards over the servers
 * (common/format/layout.h). The others travel in *blocks*, one for each rank's part, or for each
 * pair of ranks. A block is cut into chunks like a buffer with one shard, owned by the node of one
 * rank, so that no byte passes a node that does not want it:
 *
 *   collective      block        from     to            owner: the node of
 *   all_gather      1 + r        r        all others    r
 *   reduce_scatter  1 + r        all      r             r
 *   gather          1 + r        r        root          r     (r is not root)
 *   scatter         1 + r        root     r             root  (r is not root)
 *   all_to_all      1 + s*n + d  s        d             s     (s is not d), n ranks
 *   send            1 + s*n + d  s        d             s     likewise
 *
 * A send has two more blocks for each pair, which its daemon answers and not s, and which only d
 * submits: behind those of sends, 1 + n*n + s*n + d is a *replay*, a result that the daemon of s
 * keeps, and 1 + 2*n*n + s*n + d asks which it keeps (doc/design/replay.md).
 *
 * Block 0 is the collective itself: without data, like a barrier, it lets the ranks find out
 * whether they ask for the same, and who is late. A send is one block alone. Each node receives
 * (n-1)/n of an all-gather, and sends that much of a reduce-scatter; see the bounds in
 * doc/protocol/data.md. Pure.
 *
 * Calls nothing.
 */
#ifndef COMMON_FORMAT_ROUTE_H
#define COMMON_FORMAT_ROUTE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/reduce/dtype.h"

#define ROUTE_ALL UINT32_MAX
#define ROUTE_NONE (UINT32_MAX - 1)
/* Ranks of a group that an all_to_all can number the pairs of. */
#define ROUTE_MAX_RANKS 65535u

/* The way of one block, in ranks of the group. */
struct route {
    uint32_t owner; /* whose node gathers the block; ROUTE_NONE: the shards' servers do */
    uint32_t from; /* whose data it is; ROUTE_ALL: the reduction of everybody's; ROUTE_NONE: none */
    uint32_t to;   /* ROUTE_ALL: everybody but from; ROUTE_NONE: nobody */
};

/* Whether the kind travels in blocks. */
bool route_in_blocks(enum collective_kind kind);
/* Whether `block`, not 0, is one of the kind's, in a group of `ranks`. */
bool route_block_valid(enum collective_kind kind, uint32_t root, uint32_t block, uint32_t ranks);
/* root and block must be valid. */
struct route route_find(enum collective_kind kind, uint32_t root, uint32_t block, uint32_t ranks);

/* Meanings that the block of a send can have. */
enum route_replay { ROUTE_SEND, ROUTE_REPLAY, ROUTE_REPLAY_ASKS };
enum route_replay route_replay(enum collective_kind kind, uint32_t block, uint32_t ranks);
/* The block with which rank `to` asks the daemon of rank `from`; 0: a group of `ranks` has too many
 * for that. */
uint32_t route_replay_block(enum route_replay replay, uint32_t from, uint32_t to, uint32_t ranks);

bool route_sends(const struct route *route, uint32_t rank);
bool route_receives(const struct route *route, uint32_t rank);
/* Whether the rank submits the block at all. */
bool route_takes_part(const struct route *route, uint32_t rank);

/* How many blocks the rank takes part in; 0 for kinds without blocks. */
uint32_t route_block_count(enum collective_kind kind, uint32_t root, uint32_t rank, uint32_t ranks);
/* The first block at or after `block` (which may be 0) that the rank takes part in, or 0. */
uint32_t route_next_block(enum collective_kind kind, uint32_t root, uint32_t rank, uint32_t ranks,
                          uint32_t block);

#endif
