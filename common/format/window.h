/* How many chunks of a group may be on their way, and the chunk buffers that a daemon must have for
 * it. The configuration's check and the daemon's promises count with the same functions. Pure.
 *
 * Each node with ranks of a group may have `window` chunks under way to each owner, that is to the
 * servers and the nodes of the group (doc/design/memory.md). A group on one node has no
 * owner, and needs no buffers. */
#ifndef COMMON_FORMAT_WINDOW_H
#define COMMON_FORMAT_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

/* The window of a group with ranks on `nodes` nodes: beyond 16 it shrinks in proportion, to 2 at
 * least, so that an owner's buffers grow no further. The same on every daemon: `configured` is. */
uint32_t window_chunks(uint32_t configured, uint32_t nodes);

/* Below the window, where the ranks are on several nodes. At least 4 each, which keep all stages
 * busy.
 *
 * Of a shard of `pieces` chunks, how many a node has under way at once: a quarter, so that small
 * shards do not all leave together. */
uint32_t window_of_shard(uint32_t pieces);
/* How many chunks of `chunk_bytes` the network between a node and an owner is given. */
uint32_t window_of_network(uint32_t window_bytes, uint32_t chunk_bytes);
/* How many chunks beyond those delivered of the slowest shard another may be given, with these two
 * for each: 8, or what one may have under way. Links share their rate over connections, not over
 * shards, and a small shard would be done long before a large one that crosses the same link. */
uint32_t window_of_lead(uint32_t shard_window, uint32_t network_window);

/* Receives for another node's messages of one group over several nodes. contributes: it has ranks,
 * and this node is an owner. returns: it is an owner, and this node has ranks. */
uint32_t window_receives(uint32_t window, bool contributes, bool returns);

/* For the sums of several ranks on this node. */
uint64_t window_sums(uint32_t window, uint32_t owners);

/* The most buffers that any one group takes on a node of a roster of `nodes`, `servers` of which
 * own shards, this one too or not. */
uint64_t window_buffers_most(uint32_t configured, uint32_t nodes, uint32_t servers, bool serves);

#endif
