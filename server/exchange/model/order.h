/* The collectives that a group has under way on this node: finding one, and their order, which is
 * the same on all nodes: by sequence number, then by block. Sends take part in no order.
 *
 * Layer: may call server/exchange/model/ask.h.
 */
#ifndef SERVER_EXCHANGE_MODEL_ORDER_H
#define SERVER_EXCHANGE_MODEL_ORDER_H

#include "server/exchange/model/model.h"

#define COLLECTIVE_BUCKETS 1024 /* a power of two */

struct order {
    struct collective *oldest; /* collectives and blocks */
    struct collective *newest;
    uint64_t count;                               /* of those */
    struct collective *transfers;                 /* sends */
    uint32_t chunks;                              /* of all, made or not */
    struct collective *table[COLLECTIVE_BUCKETS]; /* all */
};

/* Which of so many buckets, a power of two. Every bit of the three counts matters: the numbers of
 * sends differ in their tag, high up in the sequence number, as well as in their counter. */
static inline uint32_t group_bucket(uint64_t sequence, uint32_t block, uint32_t chunk,
                                    uint32_t buckets)
{
    const uint64_t odd = 0x9e3779b97f4a7c15ull; /* 2^64 divided by the golden ratio */
    uint64_t hash = sequence * odd;
    hash = ((hash >> 32) ^ hash ^ block) * odd;
    hash = ((hash >> 32) ^ hash ^ chunk) * odd;
    return (uint32_t)(hash >> 32) & (buckets - 1);
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
void order_remove(struct collective *collective);

#endif
