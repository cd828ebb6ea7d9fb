/* Choosing kernels, and driving them block by block. */
#include "common/reduce.h"

#include "common/error.h"
#include "common/reduce_kernels.h"

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
static void integers_divide(enum dtype dtype, void *block, size_t count, uint32_t divisor)
{
    char *at = block;
    size_t bytes = dtype_bytes(dtype);
    for (size_t i = 0; i < count; i++, at += bytes) {
        int32_t i32;
        int64_t i64;
        switch (dtype) {
        case DTYPE_I8:
            *(int8_t *)at = (int8_t)(*(int8_t *)at / (int64_t)divisor);
            break;
        case DTYPE_U8:
            *(uint8_t *)at = (uint8_t)(*(uint8_t *)at / divisor);
            break;
        case DTYPE_I32:
            memcpy(&i32, at, sizeof(i32));
            i32 = (int32_t)(i32 / (int64_t)divisor);
            memcpy(at, &i32, sizeof(i32));
            break;
        default:
            assert(dtype == DTYPE_I64);
            memcpy(&i64, at, sizeof(i64));
            i64 /= (int64_t)divisor;
            memcpy(at, &i64, sizeof(i64));
        }
    }
}

/* memcpy, but nothing where source and destination are one array. */
static void block_copy(void *to, const void *from, size_t at, size_t bytes)
{
    if (to != from)
        memcpy((char *)to + at, (const char *)from + at, bytes);
}

void reduce_run(const struct reduce_kernels *kernels, enum dtype dtype, enum reduce_op op,
                const void *const *in, unsigned inputs, void *const *out, unsigned outputs,
                size_t count, uint32_t divisor)
{
    assert(inputs >= 1 && inputs <= REDUCE_MAX_INPUTS && divisor >= 1);
    assert(reduce_op_allows(op, dtype));
    bool divide = op == REDUCE_AVG && divisor > 1;
    bool divide_after = divide && dtype_is_integer(dtype);
    bool copy = inputs == 1 && (!divide || divide_after);
    if (op == REDUCE_AVG && dtype_is_integer(dtype))
        op = REDUCE_SUM;
    reduce_kernel *kernel = kernels->run[dtype][op];

    const size_t size = dtype_bytes(dtype), total = outputs > 0 ? count * size : 0;
    for (size_t at = 0; at < total; at += BLOCK_BYTES) {
        size_t bytes = total - at < BLOCK_BYTES ? total - at : BLOCK_BYTES;
        if (copy)
            block_copy(out[0], in[0], at, bytes);
        else
            kernel(out[0], in, inputs, at, bytes / size, divisor);
        if (divide_after)
            integers_divide(dtype, (char *)out[0] + at, bytes / size, divisor);
        /* The first output's block is complete and every input's has been read. */
        for (unsigned i = 1; i < outputs; i++)
            block_copy(out[i], out[0], at, bytes);
    }
}
