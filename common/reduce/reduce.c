/* Choosing kernels, and driving them block by block. */
#include "common/reduce/reduce.h"

#include "common/base/error.h"
#include "common/memory/copy.h"
#include "common/reduce/reduce_kernels.h"

#include <assert.h>
#include <cpuid.h>
#include <string.h>

/* A block stays in the first-level cache between its sum, its division and its copies. */
enum { BLOCK_BYTES = 4096 };

static const char *const isa_names[] = {
    [REDUCE_ISA_SCALAR] = "scalar",
    [REDUCE_ISA_AVX2] = "avx2",
    [REDUCE_ISA_AVX512] = "avx512",
};
enum { ISA_COUNT = sizeof(isa_names) / sizeof(isa_names[0]) };

/* By CPUID alone: __builtin_cpu_supports of older compilers does not know the word. */
static bool cpu_has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* __builtin_cpu_supports (libgcc's cpuinfo, compiler-rt's the same) answers yes for AVX and later
 * only if OSXSAVE is set and XCR0, read with xgetbv, says that the system saves the YMM state, and
 * for AVX-512 the opmask and ZMM state too. F16C needs no state beyond AVX2's. */
bool reduce_isa_supported(enum reduce_isa isa)
{
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && cpu_has_f16c();
    switch (isa) {
    case REDUCE_ISA_SCALAR:
        return true;
    case REDUCE_ISA_AVX2:
        return avx2;
    case REDUCE_ISA_AVX512:
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    }
    return false;
}

enum reduce_isa reduce_isa_best(void)
{
    if (reduce_isa_supported(REDUCE_ISA_AVX512))
        return REDUCE_ISA_AVX512;
    return reduce_isa_supported(REDUCE_ISA_AVX2) ? REDUCE_ISA_AVX2 : REDUCE_ISA_SCALAR;
}

const char *reduce_isa_name(enum reduce_isa isa)
{
    return (unsigned)isa < ISA_COUNT ? isa_names[isa] : "?";
}

int reduce_isa_parse(const char *text, enum reduce_isa *isa)
{
    for (unsigned i = 0; text && i < ISA_COUNT; i++) {
        if (strcmp(isa_names[i], text) == 0) {
            *isa = (enum reduce_isa)i;
            return 0;
        }
    }
    return ERR_INVALID;
}

const struct reduce_kernels *reduce_select(enum reduce_isa isa)
{
    if (!reduce_isa_supported(isa))
        return NULL;
    switch (isa) {
    case REDUCE_ISA_SCALAR:
        return &reduce_kernels_scalar;
    case REDUCE_ISA_AVX2:
        return &reduce_kernels_avx2;
    case REDUCE_ISA_AVX512:
        return &reduce_kernels_avx512;
    }
    return NULL;
}

/* Divide integers in place, towards zero. One pass over a hot block costs little beside the sum,
 * and one piece of code cannot differ between instruction sets. */
#define DIVIDE(D, type, wide)                                                                      \
    case D:                                                                                        \
        for (size_t i = 0; i < count; i++) {                                                       \
            type value;                                                                            \
            char *at = (char *)block + i * sizeof(value);                                          \
            memcpy(&value, at, sizeof(value));                                                     \
            value = (type)(value / (wide)divisor);                                                 \
            memcpy(at, &value, sizeof(value));                                                     \
        }                                                                                          \
        return;

static void integers_divide(enum dtype dtype, void *block, size_t count, uint32_t divisor)
{
    switch (dtype) {
        DIVIDE(DTYPE_I8, int8_t, int64_t)
        DIVIDE(DTYPE_U8, uint8_t, uint32_t)
        DIVIDE(DTYPE_I16, int16_t, int64_t)
        DIVIDE(DTYPE_U16, uint16_t, uint32_t)
        DIVIDE(DTYPE_I32, int32_t, int64_t)
        DIVIDE(DTYPE_U32, uint32_t, uint32_t)
        DIVIDE(DTYPE_I64, int64_t, int64_t)
        DIVIDE(DTYPE_U64, uint64_t, uint64_t)
    default:
        assert(!"an integer");
    }
}

/* A block of `from` to the outputs, but for the one that it is. */
static void outputs_copy(const struct reduction *r, const void *from, size_t at, size_t bytes)
{
    for (unsigned i = 0; i < r->outputs; i++) {
        char *to = r->out[i];
        if (to == from)
            continue;
        if (i < r->past_cache)
            copy_past_cache(to + at, (const char *)from + at, bytes);
        else
            memcpy(to + at, (const char *)from + at, bytes);
    }
}

static void run_copy(const struct reduction *r, size_t total)
{
    /* Several copies block by block, so that the input is read once. */
    const size_t most = r->outputs == 1 ? total : BLOCK_BYTES;
    for (size_t at = 0; at < total; at += most)
        outputs_copy(r, r->in[0], at, total - at < most ? total - at : most);
}

static void run_kernel(const struct reduce_kernels *kernels, const struct reduction *r,
                       size_t total)
{
    bool integers_average = r->op == REDUCE_AVG && dtype_is_integer(r->dtype);
    bool divide_after = integers_average && r->divisor > 1;
    reduce_kernel *kernel = kernels->run[r->dtype][integers_average ? REDUCE_SUM : r->op];
    /* The output that the others are copied from: one that is to be in the cache, if there is. */
    void *out = r->out[r->past_cache < r->outputs ? r->past_cache : 0];
    bool past_cache = r->past_cache > 0 && r->outputs == 1 && !divide_after &&
                      (uintptr_t)out % COPY_LINE_BYTES == 0;
    const size_t size = dtype_bytes(r->dtype);
    for (size_t at = 0; at < total; at += BLOCK_BYTES) {
        size_t bytes = total - at < BLOCK_BYTES ? total - at : BLOCK_BYTES;
        kernel(out, r->in, r->inputs, at, bytes / size, r->divisor, past_cache);
        if (divide_after)
            integers_divide(r->dtype, (char *)out + at, bytes / size, r->divisor);
        /* This output's block is complete and every input's has been read. */
        outputs_copy(r, out, at, bytes);
    }
}

void reduce_run(const struct reduce_kernels *kernels, const struct reduction *reduction)
{
    const struct reduction *r = reduction;
    assert(r->inputs >= 1 && r->inputs <= REDUCE_MAX_INPUTS && r->divisor >= 1);
    assert(r->past_cache <= r->outputs && reduce_op_allows(r->op, r->dtype));
    const size_t total = r->count * dtype_bytes(r->dtype);
    if (r->outputs == 0)
        return;
    if (r->inputs == 1 && !reduce_op_changes_one(r->op, r->divisor))
        run_copy(r, total);
    else
        run_kernel(kernels, r, total);
    if (r->past_cache > 0)
        copy_fence();
}
