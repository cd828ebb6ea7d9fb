/* How a buffer is cut: shards over the servers, chunks inside the shards. Pure arithmetic, the same
 * on every worker and daemon.
 *
 * Shards: a buffer of `count` elements is cut into `shards` contiguous parts, in proportion to the
 * servers' weights. A buffer smaller than servers * least_shard_bytes goes to fewer servers:
 * shards = floor(bytes / least_shard_bytes), and 1 at the least. The first server is
 * sequence % servers, so that small buffers take turns.
 *
 * A buffer with an identity (of the tensor, not 0) is cut alike whatever its sequence number: its
 * first part belongs to server identity % servers, the next part to the next server, and so on.
 * Only the order in which its shards are counted follows the sequence number. If the server
 * sequence % servers has no part of it, shard 0 is that server's, without an element.
 *
 * Chunks: every shard is cut into the same number of chunks, `pieces`, so that all shards progress
 * together. S is the largest shard in bytes, a multiple of 64. If the rule has one server
 *
 *   pieces = ceil(S / chunk_bytes)
 *
 * If it has several servers
 *
 *   E      = 64 * servers, but 128 at the least and 256 at the most
 *   P      = max(ceil(S / chunk_bytes), min(ceil(S / 64 KiB), E))
 *   k      = S / P / 62080, rounded to the nearest whole number
 *   pieces = ceil(S / (k * 62080))   if P >= 8, k >= 1 and k * 62080 <= chunk_bytes
 *   pieces = P                       otherwise
 *
 * E keeps all links busy while the pipeline fills and empties; 62080 bytes with their headers fill
 * what TCP hands to the network at once.
 *
 * Example: 64 MiB over 4 servers of equal weight, chunk_bytes 1 MiB. S = 16 MiB, E = 256,
 * P = max(16, min(256, 256)) = 256, k = 65536 / 62080 = 1 (rounded), pieces =
 * ceil(16 MiB / 62080) = 271. The buffer has 4 * 271 = 1084 chunks of 61952 bytes at the most.
 *
 * Numbers: chunk c is piece c / shards of shard c % shards. Shards and chunks begin at multiples of
 * 64 bytes, so some may be empty in a tiny buffer. Chunk 0 always belongs to server
 * sequence % servers, whatever the ranks asked for, identity included: their disagreements meet
 * there.
 *
 * Calls nothing.
 */
#ifndef COMMON_FORMAT_LAYOUT_H
#define COMMON_FORMAT_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LAYOUT_MAX_SERVERS 1024
#define LAYOUT_MAX_WEIGHT 1000000u
/* The most chunks of one buffer, and of all buffers of a group that a daemon has under way. */
#define LAYOUT_MAX_CHUNKS (1u << 22)

/* Everything that a layout depends on besides the buffer: equal for all collectives of one group,
 * made once when the group is opened. */
struct layout_rule {
    uint32_t servers;           /* 1..LAYOUT_MAX_SERVERS; those with weight > 0 only */
    const uint32_t *weights;    /* [servers], each 1..LAYOUT_MAX_WEIGHT; owned by the caller */
    uint32_t chunk_bytes;       /* most bytes of a chunk, a multiple of 64 */
    uint32_t least_shard_bytes; /* fewest bytes worth a server of their own; 0 counts as 1 */
    bool equal_weights; /* what layout_weights_equal said; false: every layout asks it again */
    bool fine;          /* one server, but cut as for two: layout_rule_single */
};

/* The cut of one buffer. */
struct layout {
    const struct layout_rule *rule;
    uint64_t count;         /* elements */
    uint64_t weight_sum;    /* of the servers used (each counts 1 when all weights are equal) */
    uint32_t element_bytes; /* 1, 2, 4 or 8 */
    uint32_t first_server;  /* sequence % servers: that of shard 0 */
    uint32_t part_server;   /* that of the buffer's first part */
    uint32_t parts;         /* shards that may have elements */
    uint32_t shards;        /* 1..rule->servers: parts, or one more */
    uint32_t pieces;        /* chunks of each shard */
    uint32_t chunks;        /* shards * pieces; at least 1, even for an empty buffer */
    uint32_t largest_bytes; /* no chunk is larger; 0 in an empty buffer */
    bool equal_weights;     /* then layout_chunk takes constant time, else O(shards) */
};

/* Where one chunk lies. */
struct layout_chunk {
    uint32_t server; /* index into the rule's servers */
    uint64_t first;  /* first element */
    uint64_t count;  /* elements; may be 0 */
};

/* The rule for a buffer that goes to one server as one shard. beside_others: other such buffers go
 * to other servers at the same time; then, if the rule has several servers, the chunks are as for
 * two servers. The weights of the new rule are constant memory: nobody frees them. */
struct layout_rule layout_rule_single(const struct layout_rule *rule, bool beside_others);

/* Whether all weights are the same, so that shards differ by one unit of 64 bytes at the most. */
bool layout_weights_equal(const uint32_t *weights, uint32_t servers);

/* Whether the rule is within the limits said at its fields. */
bool layout_rule_valid(const struct layout_rule *rule);

/* Cut the buffer of collective number `sequence`, of a tensor with this identity, or 0. Returns 0,
 * or ERR_INVALID when it would have more than LAYOUT_MAX_CHUNKS chunks or 2^62 bytes. The layout
 * refers to the rule. */
int layout_init(struct layout *layout, const struct layout_rule *rule, uint64_t sequence,
                uint32_t identity, uint64_t count, uint32_t element_bytes);

/* The server, as index into the rule's, that the shard belongs to. */
uint32_t layout_server(const struct layout *layout, uint32_t shard);
/* The shard that belongs to the server; layout->shards: none does. */
uint32_t layout_shard(const struct layout *layout, uint32_t server);

/* Where chunk number `chunk`, which is below layout->chunks, lies. */
struct layout_chunk layout_chunk(const struct layout *layout, uint32_t chunk);

#endif
