/* Memory that all ranks of a group on this node share. Each chunk of a result is written there
 * once, and every rank reads it there; or it is a place, in which the ranks meet without this
 * daemon (common/format/place.h).
 *
 * Layer: calls nothing else of the exchange.
 */
#ifndef SERVER_EXCHANGE_GROUND_SEGMENTS_H
#define SERVER_EXCHANGE_GROUND_SEGMENTS_H

#include "server/exchange/model/model.h"

/* Take the segment into the group, and count it towards the pool's limit. ERR_STATE: one with its
 * number is open; ERR_MEMORY: over the limit; the caller keeps it. */
int segments_open(struct exchange_group *group, struct exchange_segment *segment,
                  struct error *error);
/* No further collective may name it. It goes when nothing writes to it. Unknown ones are ignored.
 */
void segments_close(struct exchange_group *group, uint32_t number);
/* The group is freed, and none of its collectives remains. */
void segments_release(struct exchange_group *group);

/* Add what has met at the group's place since the last time to the figures of its job. */
void segments_count(struct exchange_group *group);
/* How many collectives the group's ranks did at its place, as they say there: the number that they
 * know a collective by is this much more than its sequence. Believe it for texts alone. */
uint64_t segments_met(const struct exchange_group *group);

/* Whether a submission with ARENA_FLAG_SHARED, whose data is `bytes` long, names a segment that has
 * room for it: 0, or ERR_PROTOCOL. */
int segments_check(const struct exchange_group *group, const struct arena_submission *submission,
                   uint64_t bytes, struct error *error);
/* The open segment with the number, which is there. It stays until segment_let_go. */
struct exchange_segment *segment_hold(struct exchange_group *group, uint32_t number);
/* NULL is ignored. */
void segment_let_go(struct exchange_group *group, struct exchange_segment *segment);

#endif
