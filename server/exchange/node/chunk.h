/* A chunk on a node with ranks of its group: from its ranks' data over the node's sum to the owner,
 * and its result back to the ranks.
 *
 *   GATHERING -> SUMMING -> CONTRIBUTED -> DELIVERING -> gone
 *
 * A chunk for which one rank alone has data skips SUMMING. In a collective whose ranks are all on
 * this node there is no owner: it goes from GATHERING to DELIVERING.
 *
 * Layer: may call replay.h, server/exchange/owner/, server/exchange/ground/,
 * server/exchange/model/.
 */
#ifndef SERVER_EXCHANGE_NODE_CHUNK_H
#define SERVER_EXCHANGE_NODE_CHUNK_H

#include "server/commands/trace.h"
#include "server/exchange/ground/delivery.h"
#include "server/exchange/model/model.h"
#include "server/exchange/owner/slots.h"

enum chunk_state { CHUNK_GATHERING, CHUNK_SUMMING, CHUNK_CONTRIBUTED, CHUNK_DELIVERING };

struct chunk {
    struct reduce_task task;
    struct piece piece;   /* of which collective, which elements, where they lie */
    struct lender lender; /* where this node is the owner too: the slot's */
    uint32_t index;       /* in its collective */
    uint32_t owner;       /* index among the group's owners */
    uint32_t last_rank;   /* in a trace: who handed it over last */
    uint64_t stage_ns;    /* in a trace: when its present stage began */
    enum chunk_state state;
    uint32_t unsent; /* sends straight from an arena. Until they are done that memory is not written
                      * to, nor given back to its worker */
    bool answered;   /* CONTRIBUTED: the owner's answer has come */
    bool awaited;    /* by the job's account of waits */
    struct buffer *sum;     /* this node's sum, or NULL */
    struct buffer *result;  /* the received result, or NULL */
    const void *pointers[]; /* task.reduction: in [local_count], out [local_count + 1]; then
                             * offsets */
};

/* Prepare the slab for the group's chunks; the group's members are known. */
void chunks_open(struct exchange_group *group);
void chunks_close(struct exchange_group *group);

/* The collective's chunk, made when it is not there yet; NULL: out of memory. */
struct chunk *chunk_get(struct collective *collective, uint32_t index);
void chunk_free(struct chunk *chunk);
/* Its group has failed: free it, unless a task or a send touches it. */
void chunk_drop_idle(struct chunk *chunk);

/* Begin the chunk's way; all local ranks have handed it over. When this returns, the chunk may be
 * delivered and its collective may be gone. False: there was no buffer for the sum, and the chunk
 * has not begun. */
bool chunk_issue(struct chunk *chunk);
/* The owner's answer for a chunk of this node. result: held buffer with the payload behind the
 * header, or NULL. ERR_PROTOCOL: it was not awaited. */
int chunk_result(struct exchange_group *group, uint32_t from, const struct wire_header *header,
                 struct buffer *result, struct error *error);
/* Whether the chunk waits for others to contribute, at this node. */
bool chunk_waits_here(const struct chunk *chunk);

/* In a trace: the chunk's present stage, which is this one, ends now. */
void chunk_trace(struct chunk *chunk, enum trace_stage stage);
/* In a trace: the worker has handed the chunk over. */
void chunk_trace_handed(struct chunk *chunk, const struct exchange_worker *worker,
                        const struct arena_submission *submission);
/* The trace ends: a record of the stage that the chunk is in. */
void chunk_record_open(const struct chunk *chunk, struct trace *trace);

#endif
