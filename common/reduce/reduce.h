/* The reduction: W inputs, in the order given, into one or more equal outputs.
 *
 * result[i] = ((in[0][i] op in[1][i]) op in[2][i]) ...; f16 and bf16 are widened to f32, combined
 * in f32 and rounded once (nearest even); integers wrap. REDUCE_AVG divides by `divisor` after the
 * last input and before the rounding; integers divide the wrapped sum, towards zero. A result that
 * is a NaN is always the type's canonical quiet NaN (sign clear, only the top mantissa bit set),
 * and min/max give NaN when any input is one and order -0 before +0, so that every instruction set
 * gives the same bits. No fused multiply-add, no reassociation. Floats are truly divided, by the
 * divisor rounded to f32 (exact in f64). One input alone is copied, NaN bits and all, unless
 * REDUCE_AVG has a divisor above 1. The caller's floating-point environment must be the default:
 * rounding to nearest, subnormals kept.
 *
 * Calls common/memory (copy.h).
 */
#ifndef COMMON_REDUCE_REDUCE_H
#define COMMON_REDUCE_REDUCE_H

#include "common/reduce/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The most inputs of one pass: ranks of a node, or nodes of a group, beyond it are refused. */
#define REDUCE_MAX_INPUTS 1024

enum reduce_isa { REDUCE_ISA_SCALAR = 0, REDUCE_ISA_AVX2 = 1, REDUCE_ISA_AVX512 = 2 };

/* The chosen kernels; immutable after reduce_select, shared by all threads. */
struct reduce_kernels;

/* Best instruction set that processor and operating system both support (AVX2 needs F16C too). */
enum reduce_isa reduce_isa_best(void);
bool reduce_isa_supported(enum reduce_isa isa);
const char *reduce_isa_name(enum reduce_isa isa); /* "scalar", "avx2", "avx512" */
int reduce_isa_parse(const char *text, enum reduce_isa *isa);

/* Kernels of one instruction set; static storage, never NULL for a supported set, NULL otherwise.
 */
const struct reduce_kernels *reduce_select(enum reduce_isa isa);

/* One reduction: `inputs` arrays of `count` elements, combined into each of `outputs` arrays. An
 * output may be exactly one of the inputs (in place); other overlap is not allowed. Arrays need
 * their element's alignment only. */
struct reduction {
    enum dtype dtype;
    enum reduce_op op;   /* must be allowed for the dtype (reduce_op_allows) */
    uint32_t divisor;    /* at least 1; used by REDUCE_AVG alone: a first hop passes REDUCE_SUM, and
                          * the last hop REDUCE_AVG with the number of ranks */
    unsigned inputs;     /* 1..REDUCE_MAX_INPUTS; one input alone is copied */
    unsigned outputs;    /* 0 or more */
    unsigned past_cache; /* so many outputs, from the first, are stored past the cache
                          * (common/memory/copy.h); not the output from which the others are
                          * copied or in which the result is divided, nor what is not aligned */
    size_t count;
    const void **in; /* [inputs] */
    void **out;      /* [outputs] */
};
/* Make the reduction. */
void reduce_run(const struct reduce_kernels *kernels, const struct reduction *reduction);

/* One element's conversions, used by tests and examples; no F16C needed. Narrowing rounds to
 * nearest even, and a NaN becomes the canonical one. */
float f16_to_f32(uint16_t half);
uint16_t f32_to_f16(float value);
float bf16_to_f32(uint16_t value);
uint16_t f32_to_bf16(float value);

#endif
