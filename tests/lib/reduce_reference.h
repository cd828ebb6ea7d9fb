/* The reduction once more, slowly, from the definition in common/reduce/reduce.h: elements are
 * taken apart and rounded by arithmetic on doubles, not by bits, so that it shares nothing with the
 * kernels. */
#ifndef TESTS_LIB_REDUCE_REFERENCE_H
#define TESTS_LIB_REDUCE_REFERENCE_H

#include "common/reduce/dtype.h"

#include <stddef.h>
#include <stdint.h>

/* A binary floating-point format of up to 16 bits: f16 is {5, 10}, bf16 is {8, 7}. */
struct reference_format {
    int exponent_bits, mantissa_bits;
};
extern const struct reference_format reference_f16, reference_bf16;

/* The value of an element; NAN for any NaN. */
double reference_decode(struct reference_format format, uint16_t bits);
/* Nearest even, subnormals kept, infinity above the range, the canonical NaN for NaN. */
uint16_t reference_encode(struct reference_format format, double value);

/* result must not overlap the inputs. */
void reference_reduce(enum dtype dtype, enum reduce_op op, const void *const *in, unsigned inputs,
                      void *result, size_t count, uint32_t divisor);

/* Test data, the same for the same seed: ordinary numbers, with now and then (`special` of 256) any
 * bits at all or a value at an edge: NaN of every kind, infinity, zeros, subnormals, extremes. */
void reference_fill(enum dtype dtype, void *array, size_t count, uint64_t seed, unsigned special);

#endif
