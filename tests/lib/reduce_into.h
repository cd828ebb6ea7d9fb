/* One reduction into one array. */
#ifndef TESTS_LIB_REDUCE_INTO_H
#define TESTS_LIB_REDUCE_INTO_H

#include "common/reduce/reduce.h"

/* reduce_run with one output, which is in the cache. */
static inline void reduce_into(const struct reduce_kernels *kernels, enum dtype dtype,
                               enum reduce_op op, const void **in, unsigned inputs, void *out,
                               size_t count, uint32_t divisor)
{
    struct reduction reduction = {
        .dtype = dtype,
        .op = op,
        .divisor = divisor,
        .inputs = inputs,
        .outputs = 1,
        .count = count,
        .in = in,
        .out = &out,
    };
    reduce_run(kernels, &reduction);
}

#endif
