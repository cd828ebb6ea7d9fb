/* How many chunks of a group may be on their way, and the chunk buffers that a daemon must have for
 * it. The configuration's check and the daemon's promises count with the same functions. Pure.
 *
 * Each node with ranks of a group may have `window` chunks under way to each owner, that is to the
 * servers and the nodes of the group (doc/design/memory.md). A group on one node has no
 * owner, and needs no buffers.
 *
 * Calls nothing but the constants of common/format/wire.h.
 */
#ifndef COMMON_FORMAT_WINDOW_H
#define COMMON_FORMAT_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

/* Most bytes that a daemon's receives for one group may take, where data.chunk_bytes is left to the
 * daemon. */
#define WINDOW_RECEIVE_BYTES (64u << 20)

/* Return the window between nodes of a group with ranks on `nodes` nodes, in chunks. Beyond 8 nodes
 * it shrinks in proportion, so that a node's buffers hardly grow, but to 4 at least (or to
 * `configured`, where that is less): 4 keep the links of a large job full also when a node is late.
 * The window to an owner that has no ranks of the group is that of a group of all the group's nodes
 * and owners. All daemons compute the same, because `configured` is the same on all. */
uint32_t window_chunks(uint32_t configured, uint32_t nodes);

/* How many chunks of one shard of `pieces` chunks a node has under way at once, where the ranks are
 * on several nodes: a quarter, so that small shards do not all leave together, but 4 at the least,
 * which keep all stages busy. */
uint32_t window_of_shard(uint32_t pieces);
/* Return how many chunks of one shard of an all_gather a node has under way at once, instead of
 * window_of_shard's number. The parts of `others` other nodes share this node's link, so each
 * node's part is given its share of window_bytes, but 2 chunks at the least: more chunks would
 * delay those that are asked for next. A node lends as much of its own part, so that none gets far
 * ahead of the slowest, for whom all wait. */
uint32_t window_of_gathered(uint32_t shard_window, uint32_t window_bytes, uint32_t chunk_bytes,
                            uint32_t others);
/* How many chunks of `chunk_bytes` the network between a node and an owner is given: window_bytes
 * of them, but 4 at the least. chunk_bytes 0: no bound. */
uint32_t window_of_network(uint32_t window_bytes, uint32_t chunk_bytes);
/* How many chunks a shard may be given beyond those that the slowest shard has had delivered: 8, or
 * what one shard may have under way (window_of_shard, window_of_network), and no more than the
 * window. Links share their rate over connections, not over shards: without this bound a small
 * shard would be done long before a large one that crosses the same link, and nodes that send to
 * each owner in turn would all come to the same one. */
uint32_t window_of_lead(uint32_t shard_window, uint32_t network_window, uint32_t window);

/* How many receives another node's messages of one group, and a sign of life, want. contributes:
 * that node has ranks, and this node is an owner. returns: that node is an owner, and this node has
 * ranks. */
uint32_t window_receives(uint32_t window, bool contributes, bool returns);

/* How many buffers the sums of several ranks of this node take. */
uint64_t window_sums(uint32_t window, uint32_t owners);

/* The most buffers that any one group takes on a node of a roster of `nodes`, `servers` of which
 * own shards, this one too or not. */
uint64_t window_buffers_most(uint32_t configured, uint32_t nodes, uint32_t servers, bool serves);
/* The most receives that any one group takes on any node of such a roster. */
uint64_t window_receives_most(uint32_t configured, uint32_t nodes, uint32_t servers);

/* data.chunk_bytes where it is not given, the same on every node of a roster: 256 KiB up to 8
 * nodes. Beyond them so much, in units of 64 bytes, that the receives of any one group take
 * WINDOW_RECEIVE_BYTES at most on a node; 4 KiB at the least. */
uint32_t window_chunk_bytes(uint32_t configured, uint32_t nodes, uint32_t servers);

#endif
