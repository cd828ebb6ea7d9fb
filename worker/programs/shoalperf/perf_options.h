/* Options of shoalperf: they say what it measures. */
#ifndef WORKER_PROGRAMS_SHOALPERF_PERF_OPTIONS_H
#define WORKER_PROGRAMS_SHOALPERF_PERF_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/reduce/dtype.h"

#define PERF_COUNTS_MAX 64

struct perf_options {
    enum collective_kind collective;
    uint64_t least_bytes, most_bytes;
    uint64_t factor;                  /* at least 2, or 0: steps */
    uint64_t step_bytes;              /* at least 1, or 0: factor */
    uint64_t counts[PERF_COUNTS_MAX]; /* exact element counts, instead of sizes */
    uint32_t count_count;
    bool all_dtypes, all_ops;
    enum dtype dtype;
    enum reduce_op op;
    uint32_t root;
    uint32_t warmup, iterations;
    bool arena, device, shared, in_place, uneven, rewrite, check, json;
    const char *plot_path; /* NULL: no picture; an argument's text */
    bool help, version;
};

/* ERR_INVALID with the option and what is allowed. */
int perf_options_parse(int argc, char **argv, struct perf_options *options, struct error *error);
const char *perf_usage(void);

/* Return shoalperf's name of a collective: its own word for a send is "sendrecv". */
const char *perf_collective_name(enum collective_kind kind);
/* How many parts a size is that of: one for each rank where every rank has a part of its own, save
 * in sendrecv. */
uint32_t perf_size_parts(enum collective_kind kind, uint32_t ranks);

/* The element counts to measure for a type, smallest first: a size that is no whole number of
 * elements is rounded down, to one element at least; what that makes equal is measured once. Where
 * every rank has a part of its own, a size is that of all parts, a count that of one.
 * *counts is the caller's to free. */
int perf_counts(const struct perf_options *options, enum dtype dtype, uint32_t ranks,
                uint64_t **counts, size_t *count, struct error *error);

/* How many rows there will be, of all types and operations; 0 when there is no memory to count
 * them. */
uint64_t perf_row_count(const struct perf_options *options, uint32_t ranks);

/* The types and operations to measure, in order; false at the end. Start with *position 0. Only
 * pairs that are defined; one pair for collectives without an operation or type. */
bool perf_next_pair(const struct perf_options *options, uint32_t *position, enum dtype *dtype,
                    enum reduce_op *op);

#endif
