/* Private to reduce*.c: the table of kernels, and the one loop that all instruction sets share.
 *
 * An instruction set's file supplies, for each element type T and each family V (the type that is
 * computed in: f16 and bf16 compute in f32),
 *     step_T                      bytes of memory that one vector covers
 *     vector_V                    the register type
 *     load_T(p)                   unaligned; f16 and bf16 convert
 *     store_T(p, v, past_cache)   unaligned, or past the cache, if the set can: then aligned to
 *                                 step_T. Floats convert, round and make NaN canonical
 *     sum_V(a, b), prod_V ...     the combining step
 *     divide_V(v, n)              floats: the average's last step
 *     REDUCE_TAIL(D, OP)          the kernel for the elements that fill no vector
 * and then expands REDUCE_KEEP for each V, REDUCE_TRUTHS for each unsigned one, REDUCE_KERNELS with
 * REDUCE_DEFINE for the functions, and REDUCE_ENTRIES for the table.
 */
#ifndef COMMON_REDUCE_REDUCE_KERNELS_H
#define COMMON_REDUCE_REDUCE_KERNELS_H

#include "common/reduce/reduce.h"

#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>

/* Half a vector of one set, a whole one of the other. Past the cache: `p` is aligned to it. */
static inline void reduce_write_256(char *p, __m256i v, bool past_cache)
{
    if (past_cache)
        _mm256_stream_si256((__m256i *)p, v);
    else
        _mm256_storeu_si256((__m256i *)p, v);
}
#endif

/* Combine `count` elements that lie `at` bytes into every array. All inputs of a vector are loaded
 * before it is stored, so out may be one of them. past_cache: out + at is the beginning of a line,
 * and copy_fence is the caller's. */
typedef void reduce_kernel(void *out, const void *const *in, unsigned inputs, size_t at,
                           size_t count, uint32_t divisor, bool past_cache);

/* NULL where the op is not allowed, and for the integers' average: reduce.c divides their sum. */
struct reduce_kernels {
    enum reduce_isa isa;
    reduce_kernel *run[DTYPE_COUNT][REDUCE_OP_COUNT];
};

extern const struct reduce_kernels reduce_kernels_scalar;
extern const struct reduce_kernels reduce_kernels_avx2;
extern const struct reduce_kernels reduce_kernels_avx512;

/* The canonical bits of a NaN, in f32; f16 and bf16 get theirs by narrowing it. */
#define REDUCE_NAN_F32 0x7fc00000u
#define REDUCE_NAN_F64 0x7ff8000000000000u

/* K(dtype number, T, V, op number, name, combining step, last step) */
#define REDUCE_FLOAT_KERNELS(K, D, T, V)                                                           \
    K(D, T, V, REDUCE_SUM, sum, sum, keep)                                                         \
    K(D, T, V, REDUCE_AVG, avg, sum, divide)                                                       \
    K(D, T, V, REDUCE_PROD, prod, prod, keep)                                                      \
    K(D, T, V, REDUCE_MIN, min, min, keep)                                                         \
    K(D, T, V, REDUCE_MAX, max, max, keep)

/* These kernels do not ask for the sign: a signed type takes those of the unsigned one of its size.
 */
#define REDUCE_BITS_KERNELS(K, D, T)                                                               \
    K(D, T, T, REDUCE_SUM, sum, sum, keep)                                                         \
    K(D, T, T, REDUCE_PROD, prod, prod, keep)                                                      \
    K(D, T, T, REDUCE_BAND, band, band, keep)                                                      \
    K(D, T, T, REDUCE_BOR, bor, bor, keep)                                                         \
    K(D, T, T, REDUCE_BXOR, bxor, bxor, keep)                                                      \
    K(D, T, T, REDUCE_LAND, land, min, truth)                                                      \
    K(D, T, T, REDUCE_LOR, lor, bor, truth)                                                        \
    K(D, T, T, REDUCE_LXOR, lxor, lxor, truth)

#define REDUCE_ORDER_KERNELS(K, D, T)                                                              \
    K(D, T, T, REDUCE_MIN, min, min, keep)                                                         \
    K(D, T, T, REDUCE_MAX, max, max, keep)

#define REDUCE_KERNELS(K)                                                                          \
    REDUCE_FLOAT_KERNELS(K, DTYPE_F32, f32, f32)                                                   \
    REDUCE_FLOAT_KERNELS(K, DTYPE_F64, f64, f64)                                                   \
    REDUCE_FLOAT_KERNELS(K, DTYPE_F16, f16, f32)                                                   \
    REDUCE_FLOAT_KERNELS(K, DTYPE_BF16, bf16, f32)                                                 \
    REDUCE_BITS_KERNELS(K, DTYPE_U8, u8)                                                           \
    REDUCE_BITS_KERNELS(K, DTYPE_U16, u16)                                                         \
    REDUCE_BITS_KERNELS(K, DTYPE_U32, u32)                                                         \
    REDUCE_BITS_KERNELS(K, DTYPE_U64, u64)                                                         \
    REDUCE_ORDER_KERNELS(K, DTYPE_U8, u8)                                                          \
    REDUCE_ORDER_KERNELS(K, DTYPE_U16, u16)                                                        \
    REDUCE_ORDER_KERNELS(K, DTYPE_U32, u32)                                                        \
    REDUCE_ORDER_KERNELS(K, DTYPE_U64, u64)                                                        \
    REDUCE_ORDER_KERNELS(K, DTYPE_I8, i8)                                                          \
    REDUCE_ORDER_KERNELS(K, DTYPE_I16, i16)                                                        \
    REDUCE_ORDER_KERNELS(K, DTYPE_I32, i32)                                                        \
    REDUCE_ORDER_KERNELS(K, DTYPE_I64, i64)

/* The entries of the table: signed types have those of the unsigned ones too. */
#define REDUCE_ENTRIES                                                                             \
    REDUCE_KERNELS(REDUCE_ENTRY)                                                                   \
    REDUCE_BITS_KERNELS(REDUCE_ENTRY, DTYPE_I8, u8)                                                \
    REDUCE_BITS_KERNELS(REDUCE_ENTRY, DTYPE_I16, u16)                                              \
    REDUCE_BITS_KERNELS(REDUCE_ENTRY, DTYPE_I32, u32)                                              \
    REDUCE_BITS_KERNELS(REDUCE_ENTRY, DTYPE_I64, u64)

/* REDUCE_KEEP defines the last step of all kernels but averages and truths: it changes nothing. */
#define REDUCE_KEEP(V)                                                                             \
    static inline vector_##V keep_##V(vector_##V v, uint32_t divisor)                              \
    {                                                                                              \
        (void)divisor;                                                                             \
        return v;                                                                                  \
    }

/* REDUCE_TRUTHS defines the logical steps of an unsigned type: a number that is not 0 counts as 1.
 * `one` is a vector of ones. */
#define REDUCE_TRUTHS(V, one)                                                                      \
    static inline vector_##V truth_##V(vector_##V v, uint32_t divisor)                             \
    {                                                                                              \
        (void)divisor;                                                                             \
        return min_##V(v, one);                                                                    \
    }                                                                                              \
    static inline vector_##V lxor_##V(vector_##V a, vector_##V b)                                  \
    {                                                                                              \
        return bxor_##V(truth_##V(a, 1), truth_##V(b, 1));                                         \
    }

/* REDUCE_ORDER defines the steps that ask for the sign; `minimum` and `maximum` take two vectors.
 */
#define REDUCE_ORDER(V, minimum, maximum)                                                          \
    static inline vector_##V min_##V(vector_##V a, vector_##V b)                                   \
    {                                                                                              \
        return minimum(a, b);                                                                      \
    }                                                                                              \
    static inline vector_##V max_##V(vector_##V a, vector_##V b)                                   \
    {                                                                                              \
        return maximum(a, b);                                                                      \
    }                                                                                              \
    REDUCE_KEEP(V)

/* REDUCE_BITS defines the steps that do not, of an unsigned type, so that wrapping is defined;
 * `add` and `multiply` take two vectors. */
#define REDUCE_BITS(V, add, multiply, one)                                                         \
    static inline vector_##V sum_##V(vector_##V a, vector_##V b)                                   \
    {                                                                                              \
        return (vector_##V)add(a, b);                                                              \
    }                                                                                              \
    static inline vector_##V prod_##V(vector_##V a, vector_##V b)                                  \
    {                                                                                              \
        return (vector_##V)multiply(a, b);                                                         \
    }                                                                                              \
    static inline vector_##V band_##V(vector_##V a, vector_##V b)                                  \
    {                                                                                              \
        return (vector_##V)(a & b);                                                                \
    }                                                                                              \
    static inline vector_##V bor_##V(vector_##V a, vector_##V b)                                   \
    {                                                                                              \
        return (vector_##V)(a | b);                                                                \
    }                                                                                              \
    static inline vector_##V bxor_##V(vector_##V a, vector_##V b)                                  \
    {                                                                                              \
        return (vector_##V)(a ^ b);                                                                \
    }                                                                                              \
    REDUCE_TRUTHS(V, one)

#define REDUCE_ENTRY(D, T, V, OP, name, combine, finish) [D][OP] = kernel_##name##_##T,

/* How far ahead of the loads the next lines are asked for: what was measured to be fastest, with
 * ordinary stores (two threads, in place) and with those past the cache. */
#define REDUCE_AHEAD_BYTES 1024
#define REDUCE_AHEAD_PAST_CACHE_BYTES 256

/* Ask for the lines that the `bytes` at p + ahead_bytes span. By number, since the address may lie
 * past the end of the array. */
static inline __attribute__((always_inline)) void reduce_prefetch(const char *p, size_t bytes,
                                                                  size_t ahead_bytes)
{
    uintptr_t ahead = (uintptr_t)p + ahead_bytes;
    __builtin_prefetch((const void *)ahead, 0, 3);
    if (bytes > 64)
        __builtin_prefetch((const void *)(ahead + 64), 0, 3);
    if (bytes > 128)
        __builtin_prefetch((const void *)(ahead + 128), 0, 3);
    if (bytes > 192)
        __builtin_prefetch((const void *)(ahead + 192), 0, 3);
}

/* Four vectors at a time through all the inputs, so that the accumulators stay in registers and
 * each input gives a whole cache line or more per visit; then one vector at a time; then the tail.
 */
#define REDUCE_DEFINE(D, T, V, OP, name, combine, finish)                                          \
    static void kernel_##name##_##T(void *out, const void *const *in, unsigned inputs, size_t at,  \
                                    size_t count, uint32_t divisor, bool past_cache)               \
    {                                                                                              \
        const size_t step = step_##T;                                                              \
        const size_t end = at + count * dtype_size_##T;                                            \
        const size_t ahead_bytes =                                                                 \
            past_cache ? REDUCE_AHEAD_PAST_CACHE_BYTES : REDUCE_AHEAD_BYTES;                       \
        (void)divisor;                                                                             \
        for (; end - at >= 4 * step; at += 4 * step) {                                             \
            const char *from = (const char *)in[0] + at;                                           \
            char *to = (char *)out + at;                                                           \
            reduce_prefetch(from, 4 * step, ahead_bytes);                                          \
            vector_##V v0 = load_##T(from);                                                        \
            vector_##V v1 = load_##T(from + step);                                                 \
            vector_##V v2 = load_##T(from + 2 * step);                                             \
            vector_##V v3 = load_##T(from + 3 * step);                                             \
            for (unsigned i = 1; i < inputs; i++) {                                                \
                from = (const char *)in[i] + at;                                                   \
                reduce_prefetch(from, 4 * step, ahead_bytes);                                      \
                v0 = combine##_##V(v0, load_##T(from));                                            \
                v1 = combine##_##V(v1, load_##T(from + step));                                     \
                v2 = combine##_##V(v2, load_##T(from + 2 * step));                                 \
                v3 = combine##_##V(v3, load_##T(from + 3 * step));                                 \
            }                                                                                      \
            store_##T(to, finish##_##V(v0, divisor), past_cache);                                  \
            store_##T(to + step, finish##_##V(v1, divisor), past_cache);                           \
            store_##T(to + 2 * step, finish##_##V(v2, divisor), past_cache);                       \
            store_##T(to + 3 * step, finish##_##V(v3, divisor), past_cache);                       \
        }                                                                                          \
        for (; end - at >= step; at += step) {                                                     \
            vector_##V v = load_##T((const char *)in[0] + at);                                     \
            for (unsigned i = 1; i < inputs; i++)                                                  \
                v = combine##_##V(v, load_##T((const char *)in[i] + at));                          \
            store_##T((char *)out + at, finish##_##V(v, divisor), false);                          \
        }                                                                                          \
        if (step > dtype_size_##T && at < end)                                                     \
            REDUCE_TAIL(D, OP)(out, in, inputs, at, (end - at) / dtype_size_##T, divisor, false);  \
    }

enum {
    dtype_size_f32 = 4,
    dtype_size_f64 = 8,
    dtype_size_f16 = 2,
    dtype_size_bf16 = 2,
    dtype_size_i8 = 1,
    dtype_size_u8 = 1,
    dtype_size_i32 = 4,
    dtype_size_i64 = 8,
    dtype_size_i16 = 2,
    dtype_size_u16 = 2,
    dtype_size_u32 = 4,
    dtype_size_u64 = 8,
};

#endif
