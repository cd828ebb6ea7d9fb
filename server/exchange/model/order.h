/* The collectives that a group has under way on this node: finding one, and their order, which is
 * the same on all nodes: by sequence number, then by block. Sends take part in no order; those that
 * a rank of this node has submitted are found by their receiver and tag.
 *
 * Layer: may call server/exchange/model/ask.h.
 */
#ifndef SERVER_EXCHANGE_MODEL_ORDER_H
#define SERVER_EXCHANGE_MODEL_ORDER_H

#include "server/exchange/model/model.h"

#define COLLECTIVE_BUCKETS 1024 /* a power of two */
#define SENT_BUCKETS 32         /* likewise */

struct order {
    struct collective *oldest; /* collectives and blocks */
    struct collective *newest;
    uint64_t count;               /* of those */
    struct collective *transfers; /* sends */
    /* [local_count][SENT_BUCKETS]: sends, by the rank that has submitted them; NULL: none so far */
    struct collective **sent;
    uint32_t chunks;                              /* of all, made or not */
    struct collective *table[COLLECTIVE_BUCKETS]; /* all */
};

/* Return the bucket for these three numbers, out of `buckets`, a power of two. Every bit of the
 * three matters: the numbers of sends differ in their tag, high up in the sequence number, as well
 * as in their counter. */
static inline uint32_t group_bucket(uint64_t sequence, uint32_t block, uint32_t chunk,
                                    uint32_t buckets)
{
    const uint64_t odd = 0x9e3779b97f4a7c15ull; /* 2^64 divided by the golden ratio */
    uint64_t hash = sequence * odd;
    hash = ((hash >> 32) ^ hash ^ block) * odd;
    hash = ((hash >> 32) ^ hash ^ chunk) * odd;
    return (uint32_t)(hash >> 32) & (buckets - 1);
}

/* The sequence number of a send, and its tag. */
static inline uint32_t send_tag(uint64_t sequence)
{
    return (uint32_t)(sequence >> WIRE_SEND_TAG_SHIFT) & WIRE_SEND_TAG_MAX;
}

static inline uint64_t send_sequence(uint32_t tag, uint32_t number)
{
    return WIRE_SEND_SEQUENCE | (uint64_t)tag << WIRE_SEND_TAG_SHIFT | number;
}

/* Whether the send has this tag and this number, or a later one: numbers go round. */
static inline bool send_serves(uint64_t sequence, uint32_t tag, uint32_t number)
{
    return send_tag(sequence) == tag && (int32_t)((uint32_t)sequence - number) >= 0;
}

/* NULL when it is not under way. */
struct collective *collective_find(const struct exchange_group *group, uint64_t sequence,
                                   uint32_t block);
bool collective_comes_before(const struct collective *collective, uint64_t sequence,
                             uint32_t block);

/* Add a collective or block that begins: behind what the rank that makes it has submitted. */
void order_add(struct collective *made, const struct local_rank *rank);
/* Add a send. */
void order_add_transfer(struct collective *made);
/* Its sender, which is this local rank, has submitted it. 0 or ERR_MEMORY. */
int order_add_sent(struct collective *transfer, uint32_t local, struct error *error);
/* Whether this local rank has sent the group's rank `to` something with the tag and this number, or
 * a later one, that is still under way. *steps grows by how many were looked at. */
bool order_find_sent(const struct exchange_group *group, uint32_t local, uint32_t to, uint32_t tag,
                     uint32_t number, uint32_t *steps);
void order_remove(struct collective *collective);
/* The group closes; all are removed. */
void order_close(struct exchange_group *group);

#endif
