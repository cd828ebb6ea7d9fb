/* The data that shoalperf reduces, and what must come out.
 *
 * Values are made up from rank, index and round by a hash, so that every rank can work out every
 * other's, and chosen so that the result is exact in the type whatever is rounded on the way:
 * floating point sums stay among the integers that the type holds, averages divide without a rest,
 * products are of powers of two. Integers use their whole range and wrap. Expected results are
 * computed here, in 64 bits, without the library's kernels. They repeat after a prime number of
 * elements, which no chunk or shard size is a multiple of, so that a misplaced chunk shows.
 */
#ifndef WORKER_PROGRAMS_SHOALPERF_PERF_VALUES_H
#define WORKER_PROGRAMS_SHOALPERF_PERF_VALUES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/reduce/dtype.h"

#define PERF_PERIOD 8191u

struct perf_values {
    enum dtype dtype;
    uint32_t element_bytes;
    uint8_t *input;    /* [PERF_PERIOD]: what this rank gives */
    uint8_t *expected; /* [PERF_PERIOD]: what this rank must have afterwards; or NULL */
};

struct perf_case {
    enum collective_kind collective;
    enum dtype dtype;
    enum reduce_op op;
    uint32_t rank, ranks, root;
    uint32_t round;  /* different data for different rounds */
    bool input_only; /* nothing is expected here */
};

/* For up to 128 ranks every result is exact. perf_values_clear when done. */
int perf_values_make(struct perf_values *values, const struct perf_case *what, struct error *error);
void perf_values_clear(struct perf_values *values);

/* Fill with the input. */
void perf_values_fill(const struct perf_values *values, void *data, uint64_t count);
/* Fill with what is no result. */
void perf_values_poison(const struct perf_values *values, void *data, uint64_t count);
/* Elements that are not what is expected, bit by bit; *first is the first one's index. */
uint64_t perf_values_check(const struct perf_values *values, const void *data, uint64_t count,
                           uint64_t *first);
/* Elements that are not as perf_values_poison has made them. */
uint64_t perf_values_check_poison(const struct perf_values *values, const void *data,
                                  uint64_t count);
/* Count the elements that are not as perf_values_fill has made them. */
uint64_t perf_values_check_input(const struct perf_values *values, const void *data,
                                 uint64_t count);

/* One element, for tests: the value that a rank gives, and its bytes. Integers are taken modulo
 * the type's range. */
int64_t perf_value(const struct perf_case *what, uint32_t rank, uint32_t index);
void perf_element_write(enum dtype dtype, double value, int64_t integer, void *element);

#endif
