/* Collectives in which every rank has a part of its own, as shoalperf runs them: where the parts
 * lie, what is in them, and what must be there afterwards.
 *
 * A case has `count` elements for each rank on average, so ranks * count in the large buffer, which
 * is what nccl-tests calls the size. Every part has data of its own, made from its sender and its
 * receiver, so that one that goes to the wrong part shows. Between and behind uneven parts are
 * gaps, and nothing may be written there.
 */
#ifndef WORKER_PROGRAMS_SHOALPERF_PERF_PARTS_H
#define WORKER_PROGRAMS_SHOALPERF_PERF_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/reduce/dtype.h"
#include "worker/programs/shoalperf/perf_values.h"
#include "worker/shoal.h"

/* A send is one to the next rank with a receive from the rank before: one part each. */
struct perf_parts_case {
    struct perf_case what; /* one that travels in blocks */
    uint64_t count;
    bool uneven;   /* the `_v` form, with parts of different sizes, some empty */
    bool in_place; /* the one buffer is this rank's part of the other; not for all_to_all, sends */
};

/* One side of this rank, what it sends or what it receives. */
struct perf_side {
    uint8_t *memory;            /* the caller's */
    uint64_t bytes;             /* of memory that is filled and checked */
    uint32_t parts;             /* 0: this rank has no such side, 1, or one for each rank */
    void **buffers;             /* [parts] */
    size_t *counts;             /* [parts], elements */
    struct perf_values *values; /* [parts] */
};

struct perf_parts {
    struct perf_parts_case is;
    struct perf_side send, recv;
};

/* Bytes that one side needs at most, for `bytes` of data in all. */
uint64_t perf_parts_bytes(uint64_t bytes, uint32_t ranks);
/* Elements of the part that goes from one rank to another. The parts of a side are ranks * count
 * all together. For a collective other than all_to_all only the rank that is not the collective's
 * (the sender of an all_gather or gather, else the receiver) is looked at. */
uint64_t perf_parts_count(const struct perf_parts_case *is, uint32_t from, uint32_t to);

/* Lay out and make the data. send and recv have perf_parts_bytes each and stay the caller's.
 * perf_parts_clear when done, also after ERR_MEMORY. */
int perf_parts_make(struct perf_parts *parts, const struct perf_parts_case *is, void *send,
                    void *recv, struct error *error);
void perf_parts_clear(struct perf_parts *parts);

/* Fill what is sent; what is to be received and gaps are filled with what is no result. */
void perf_parts_prepare(const struct perf_parts *parts);
/* Start the collective: a SHOAL_ code. The buffers are at these addresses, whatever is there: the
 * memory that they were made in, or a copy of it elsewhere. */
int perf_parts_start(const struct perf_parts *parts, void *send, void *recv, shoal_group *group,
                     shoal_request **request);
/* Elements (in gaps: bytes) that are not what they must be once the collective is complete. */
uint64_t perf_parts_check(const struct perf_parts *parts);
/* Whether a second run on the same buffers gives the same. */
bool perf_parts_repeats(const struct perf_parts_case *is);

#endif
