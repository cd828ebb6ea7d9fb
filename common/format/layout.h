/* How a buffer is cut: shards over the servers, chunks inside the shards.
 *
 * Pure arithmetic, the same on every worker and daemon. A buffer of `count` elements is cut into
 * `shards` contiguous parts, in proportion to the servers' weights; every shard is cut into the
 * same number of chunks (so that all shards progress together), none larger than chunk_bytes. With
 * several servers the largest shard, of S bytes, has at least min(ceil(S / 64 KiB), 64 * servers)
 * of them, where 64 * servers counts as 128 at the least and as 256 at the most. Where that makes 8
 * or more, it has ceil(S / (k * 62144)) instead, k * 62144 being the multiple nearest to their
 * size, which fills what TCP hands to the network at once; but not where k is 0 or the multiple
 * above chunk_bytes. A part that goes to one server beside others that go elsewhere is cut as with
 * two servers.
 *
 * Chunks are numbered round-robin over the shards: chunk c is piece c / shards of shard c % shards.
 * Shards and chunks begin at multiples of 64 bytes, so some may be empty in a tiny buffer.
 *
 * A buffer smaller than shards * least_shard_bytes goes to fewer servers, the first being
 * (sequence % servers), so that small buffers take turns. Chunk 0 therefore always belongs to
 * server (sequence % servers), whatever the ranks asked for: disagreements meet there.
 */
#ifndef COMMON_FORMAT_LAYOUT_H
#define COMMON_FORMAT_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LAYOUT_MAX_SERVERS 1024
#define LAYOUT_MAX_WEIGHT 1000000u
/* Of one buffer; a daemon keeps no more than this for all buffers of a group under way. */
#define LAYOUT_MAX_CHUNKS (1u << 22)

/* Equal for all collectives of one group; made once when the group is opened. */
struct layout_rule {
    uint32_t servers;           /* 1..LAYOUT_MAX_SERVERS; those with weight > 0 only */
    const uint32_t *weights;    /* [servers], each 1..LAYOUT_MAX_WEIGHT; owned by the caller */
    uint32_t chunk_bytes;       /* most bytes of a chunk, a multiple of 64 */
    uint32_t least_shard_bytes; /* fewest bytes worth a server of their own */
    bool equal_weights;         /* layout_weights_equal; false: looked at for every layout */
    bool fine;                  /* one server, but cut as for two: layout_rule_single */
};

/* The cut of one buffer. */
struct layout {
    const struct layout_rule *rule;
    uint64_t count;         /* elements */
    uint64_t weight_sum;    /* of the servers used (each counts 1 when all weights are equal) */
    uint32_t element_bytes; /* 1, 2, 4 or 8 */
    uint32_t first_server;  /* sequence % servers */
    uint32_t shards;        /* servers used, 1..rule->servers */
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

/* The rule for a buffer that goes to one server: one shard. beside_others: other such buffers go to
 * other servers meanwhile, if there are several. Refers to constant memory only. */
struct layout_rule layout_rule_single(const struct layout_rule *rule, bool beside_others);

bool layout_weights_equal(const uint32_t *weights, uint32_t servers);

/* Whether the rule is usable (limits above). */
bool layout_rule_valid(const struct layout_rule *rule);

/* Returns 0, or ERR_INVALID when the buffer would have more than LAYOUT_MAX_CHUNKS or 2^62
 * bytes. */
int layout_init(struct layout *layout, const struct layout_rule *rule, uint64_t sequence,
                uint64_t count, uint32_t element_bytes);

/* chunk must be below layout->chunks. */
struct layout_chunk layout_chunk(const struct layout *layout, uint32_t chunk);

#endif
