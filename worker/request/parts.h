/* The parts of a collective that travels in blocks (common/format/route.h): what each block is for
 * one rank, and which of its own data it only has to copy.
 *
 * Pure. A side of the collective, what is sent or what is received, is one buffer, or one part for
 * each rank of the group: parts of equal size side by side, or parts of any size anywhere.
 *
 * Calls request.h and common/{base,format,reduce}.
 */
#ifndef WORKER_REQUEST_PARTS_H
#define WORKER_REQUEST_PARTS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"
#include "worker/request/request.h"

/* One side of a collective for this rank. All NULL or 0: it has no such side. */
struct parts_side {
    const void *base;           /* parts side by side: the first; then */
    size_t count;               /* the elements of each part, the same for all ranks */
    const void *const *buffers; /* parts anywhere: [size]; then */
    const size_t *counts;       /* [size]: the elements of each */
};

struct parts_ask {
    enum collective_kind kind;
    enum dtype dtype;
    enum reduce_op op;
    uint32_t root;
    uint32_t rank; /* this one, in the group */
    uint32_t size; /* of the group */
    uint32_t priority;
    struct parts_side send; /* all_gather, gather: one buffer; else one for each rank */
    struct parts_side recv; /* reduce_scatter, scatter: one buffer; else one for each rank */
};

/* A copy from this rank to itself. */
struct parts_copy {
    void *to;
    const void *from;
    size_t bytes;
};

/* Refuse an ask that cannot be: 0 or ERR_INVALID, with a text that begins with the collective's
 * name. */
int parts_check(const struct parts_ask *ask, struct error *error);

/* The whole of a checked ask: the collective itself, without data. */
struct request_ask parts_whole(const struct parts_ask *ask);
/* How many blocks of a checked ask this rank takes part in. */
uint32_t parts_block_count(const struct parts_ask *ask);
/* Write the blocks that this rank takes part in, in the order of their numbers; `blocks` has room
 * for them. */
void parts_blocks(const struct parts_ask *ask, struct request_ask *blocks);
/* Return the copy that this rank makes from its own send buffer; bytes 0: nothing. */
struct parts_copy parts_own_copy(const struct parts_ask *ask);

#endif
