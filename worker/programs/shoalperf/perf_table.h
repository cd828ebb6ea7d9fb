/* The output of shoalperf: nccl-tests' columns, or a line of JSON for each measurement. */
#ifndef WORKER_PROGRAMS_SHOALPERF_PERF_TABLE_H
#define WORKER_PROGRAMS_SHOALPERF_PERF_TABLE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/reduce/dtype.h"

struct perf_row {
    enum collective_kind collective;
    enum dtype dtype;
    enum reduce_op op;
    int root;       /* -1: none */
    uint64_t count; /* elements of the buffer; of one part, on average, where each rank has one */
    uint32_t ranks, nodes;
    double time_us;
    uint64_t wrong; /* elements on all ranks */
    bool checked;
};

/* Return the bytes of the large buffer, with all parts. */
uint64_t perf_row_bytes(const struct perf_row *row);
/* Bytes moved in a second by the algorithm's own measure, in 1e9 bytes/s: of the large buffer, with
 * all parts. */
double perf_algbw_GBps(const struct perf_row *row);
/* Return the bus bandwidth of nccl-tests' doc/PERFORMANCE.md, in 1e9 bytes/s: what the slowest link
 * carries, comparable between numbers of ranks. all_reduce: algbw 2 (n - 1) / n; reduce, broadcast,
 * sendrecv: algbw; all_gather, reduce_scatter, gather, scatter, all_to_all: algbw (n - 1) / n. */
double perf_busbw_GBps(const struct perf_row *row);

void perf_table_head(FILE *out, const char *collective, uint32_t ranks, uint32_t nodes,
                     const char *buffers);
void perf_table_row(FILE *out, const struct perf_row *row);
void perf_table_foot(FILE *out, uint64_t wrong, double busbw_sum, uint64_t rows);
void perf_json_row(FILE *out, const struct perf_row *row);

#endif
