/* The parts of a collective that travels in blocks (common/format/route.h): what each block is for
 * one rank, and which of its own data it only has to copy.
 *
 * Pure. A side of the collective is one buffer, or one for each rank of the group: `parts` of equal
 * size side by side (base, count), or anywhere (buffers, counts).
 */
#ifndef WORKER_REQUEST_PARTS_H
#define WORKER_REQUEST_PARTS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"
#include "worker/request/request.h"

/* Either base and count (the same for all ranks) or buffers and counts ([size] each). All NULL or
 * 0: this rank has no such side. */
struct parts_side {
    const void *base;
    size_t count;
    const void *const *buffers;
    const size_t *counts;
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

/* What cannot be asked: 0 or ERR_INVALID, with a text that begins with the collective's name. */
int parts_check(const struct parts_ask *ask, struct error *error);

/* Of a checked ask: the collective itself, how many blocks this rank takes part in, those blocks in
 * the order of their numbers (`blocks` has room for them), and the copy (bytes 0: none). */
struct request_ask parts_whole(const struct parts_ask *ask);
uint32_t parts_block_count(const struct parts_ask *ask);
void parts_blocks(const struct parts_ask *ask, struct request_ask *blocks);
struct parts_copy parts_own_copy(const struct parts_ask *ask);

#endif
