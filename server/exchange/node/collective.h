/* A collective on a node with ranks of its group: what they submit and hand over, until all its
 * chunks are delivered. Its chunks' way is server/exchange/node/chunk.h.
 *
 * Layer: may call issue.h, agreement.h, chunk.h in server/exchange/node/; server/exchange/ground/,
 * server/exchange/model/.
 */
#ifndef SERVER_EXCHANGE_NODE_COLLECTIVE_H
#define SERVER_EXCHANGE_NODE_COLLECTIVE_H

#include "server/commands/trace.h"
#include "server/exchange/model/model.h"

/* A rank submits a collective or a block of one, or hands a chunk of one over. 0, ERR_PROTOCOL,
 * ERR_INVALID or ERR_MEMORY. */
int collective_submit(struct exchange_group *group, uint32_t local, struct exchange_worker *worker,
                      const struct arena_submission *submission, struct error *error);
int collective_hand_over(struct exchange_group *group, uint32_t local,
                         struct exchange_worker *worker, const struct arena_submission *submission,
                         struct error *error);

/* A collective of which nothing is submitted, in no order yet; or NULL. */
struct collective *collective_create(struct exchange_group *group, uint64_t sequence,
                                     const struct wire_ask *ask, uint32_t priority,
                                     struct error *error);
/* Take a local rank's part of it. True when all that are here have submitted theirs. */
bool collective_add_part(struct collective *collective, uint32_t local, const struct wire_ask *ask,
                         const struct arena_submission *submission);

/* Move only the first `count` elements, at most as many as there were. Nothing but chunk 0 may have
 * been issued. */
void collective_cut_short(struct collective *collective, uint64_t count);
/* Tell its ranks and free it, if all is delivered and nobody else is to say so. */
void collective_settle(struct collective *collective);

/* The group has failed. Free the chunks that no task and no send touches (after slots_drop_idle);
 * or so many collectives at the most, which are counted down in *most: whether none is left. */
void collectives_drop_idle(struct exchange_group *group);
bool collectives_drop(struct exchange_group *group, uint32_t *most);

/* Fail the group when a rank has departed that a collective under way waits for. */
void collectives_check_departed(struct exchange_group *group);
/* Whether a local rank has not submitted it, or has stopped to hand over what others wait for. */
bool collective_waits(const struct collective *collective);
/* The local ranks that have not submitted the sequence, or have stopped to hand it over, into
 * ranks[local_count] as ranks of the job; how many. */
uint32_t collectives_missing_ranks(const struct exchange_group *group, uint64_t sequence,
                                   uint32_t *ranks);
/* How many collectives a rank that leaves has given all that it has to give to. One of which it has
 * not submitted all blocks, or not handed over all chunks, does not count. */
uint64_t collectives_finished_by(const struct exchange_group *group, uint32_t local);

/* The trace ends: a record of the stages that each collective and chunk is in. */
void collectives_record_open(const struct exchange_group *group, struct trace *trace);
void collectives_check_invariants(const struct exchange_group *group);

#endif
