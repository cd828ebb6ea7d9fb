/* Where a chunk's data lies in the memory of this node's ranks, and how its result gets there; what
 * a rank is told when it has it.
 *
 * Layer: may call archive.h; server/exchange/model/ask.h, roster.h.
 */
#ifndef SERVER_EXCHANGE_GROUND_DELIVERY_H
#define SERVER_EXCHANGE_GROUND_DELIVERY_H

#include "server/exchange/model/model.h"

/* The part of a collective's data that one chunk is, on this node. */
struct piece {
    struct collective *collective;
    struct layout_chunk extent; /* its elements */
    uint64_t *offsets; /* [local_count]: where in their arenas ranks that are staged have put it */
};

/* Return how many bytes the piece takes in the arena of a rank that has handed it over. */
uint64_t piece_arena_bytes(const struct piece *piece);
/* The data of the local ranks that send some, into in[]; how many they are. */
unsigned piece_inputs(const struct piece *piece, const void **in);
/* Where the result is kept, and the memory of the local ranks that want it, or the one address that
 * they share, into the reduction's outputs, which have room for one more than there are ranks. They
 * are written past the cache if the piece is of a large result, not of a send, and none of that
 * memory is warm. */
void piece_outputs(const struct piece *piece, struct reduction *reduction);
/* A copy from `source` to those outputs. False: nobody here wants it. */
bool piece_copy(const struct piece *piece, const void *source, struct reduction *reduction);

/* The local index of the one rank whose data the collective is, or NO_INDEX: it is elsewhere, or it
 * is everybody's. */
uint32_t collective_source(const struct collective *collective);
/* That rank's data, or NULL. */
const void *piece_source(const struct piece *piece);

/* The piece is done, with its result or, in a group that has failed, without: its memory in the
 * arena of every rank that has handed it over is that rank's again. */
void piece_give_back(const struct piece *piece, uint32_t chunk);
/* The chunk that the worker has put at the offset of its arena is its own again. */
void worker_give_back(struct exchange_worker *worker, uint64_t request, uint32_t chunk,
                      uint64_t offset);
/* The request is done; chunk is the completion's field of that name. */
void worker_request_done(struct exchange_worker *worker, uint64_t request, uint32_t chunk);
/* Tell the worker that its send or receive is done. refused: the two do not fit; count and dtype
 * are then what the other rank asked for. */
void worker_transfer_done(struct exchange_worker *worker, uint64_t request, bool refused,
                          uint64_t count, uint8_t dtype);
/* All ranks of the group hold the results of its collectives with a smaller number. False: there is
 * no room in the worker's ring to say so now. */
bool worker_tell_stable(struct exchange_worker *worker, uint32_t group, uint64_t sequence);

#endif
