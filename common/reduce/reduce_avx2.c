/* The kernels for AVX2 with F16C; compiled with -mavx2 -mf16c. */
#include "common/reduce/reduce_kernels.h"

#include <immintrin.h>

typedef __m256 vector_f32;
typedef __m256d vector_f64;

enum {
    step_f32 = 32,
    step_f64 = 32,
    step_f16 = 16,
    step_bf16 = 16,
};

static inline void write_128(char *p, __m128i v, bool past_cache)
{
    if (past_cache)
        _mm_stream_si128((__m128i *)p, v);
    else
        _mm_storeu_si128((__m128i *)p, v);
}

#define REDUCE_TAIL(D, OP) reduce_kernels_scalar.run[D][OP]

static inline __m256 canonical_f32(__m256 v)
{
    __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(REDUCE_NAN_F32));
    return _mm256_blendv_ps(v, nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}

static inline __m256d canonical_f64(__m256d v)
{
    __m256d nan = _mm256_castsi256_pd(_mm256_set1_epi64x(REDUCE_NAN_F64));
    return _mm256_blendv_pd(v, nan, _mm256_cmp_pd(v, v, _CMP_UNORD_Q));
}

static inline __m256 load_f32(const char *p)
{
    return _mm256_loadu_ps((const float *)p);
}

static inline void store_f32(char *p, __m256 v, bool past_cache)
{
    reduce_write_256(p, _mm256_castps_si256(canonical_f32(v)), past_cache);
}

static inline __m256d load_f64(const char *p)
{
    return _mm256_loadu_pd((const double *)p);
}

static inline void store_f64(char *p, __m256d v, bool past_cache)
{
    reduce_write_256(p, _mm256_castpd_si256(canonical_f64(v)), past_cache);
}

static inline __m256 load_f16(const char *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

static inline void store_f16(char *p, __m256 v, bool past_cache)
{
    write_128(p, _mm256_cvtps_ph(canonical_f32(v), _MM_FROUND_TO_NEAREST_INT), past_cache);
}

static inline __m256 load_bf16(const char *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

/* Nearest even: add just under half, and one more if the bit that stays is odd. */
static inline void store_bf16(char *p, __m256 v, bool past_cache)
{
    __m256i bits = _mm256_castps_si256(canonical_f32(v));
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    bits = _mm256_srli_epi32(bits, 16);
    /* The pack works within 128-bit halves; bring the low quarters of both together. */
    bits = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0x08);
    write_128(p, _mm256_castsi256_si128(bits), past_cache);
}

/* minps gives its second operand for zeros and NaN. Both orders joined give the -0 and keep a NaN;
 * for max the +0 survives the AND, and the NaN is put back. */
#define DEFINE_FLOAT(V, suffix, scalar)                                                            \
    static inline vector_##V sum_##V(vector_##V a, vector_##V b)                                   \
    {                                                                                              \
        return _mm256_add_##suffix(a, b);                                                          \
    }                                                                                              \
    static inline vector_##V prod_##V(vector_##V a, vector_##V b)                                  \
    {                                                                                              \
        return _mm256_mul_##suffix(a, b);                                                          \
    }                                                                                              \
    static inline vector_##V min_##V(vector_##V a, vector_##V b)                                   \
    {                                                                                              \
        return _mm256_or_##suffix(_mm256_min_##suffix(a, b), _mm256_min_##suffix(b, a));           \
    }                                                                                              \
    static inline vector_##V max_##V(vector_##V a, vector_##V b)                                   \
    {                                                                                              \
        vector_##V both =                                                                          \
            _mm256_and_##suffix(_mm256_max_##suffix(a, b), _mm256_max_##suffix(b, a));             \
        return _mm256_or_##suffix(both, _mm256_cmp_##suffix(a, b, _CMP_UNORD_Q));                  \
    }                                                                                              \
    static inline vector_##V divide_##V(vector_##V v, uint32_t divisor)                            \
    {                                                                                              \
        return _mm256_div_##suffix(v, _mm256_set1_##suffix((scalar)divisor));                      \
    }

DEFINE_FLOAT(f32, ps, float)
DEFINE_FLOAT(f64, pd, double)
REDUCE_KEEP(f32)
REDUCE_KEEP(f64)

/* There is no product of bytes: multiply the even and the odd ones as 16-bit lanes. */
static inline __m256i product_epi8(__m256i a, __m256i b)
{
    __m256i even = _mm256_mullo_epi16(a, b);
    __m256i odd = _mm256_mullo_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
    return _mm256_or_si256(_mm256_and_si256(even, _mm256_set1_epi16(0xff)),
                           _mm256_slli_epi16(odd, 8));
}

/* Low 64 bits: low * low, plus the two cross products moved up. */
static inline __m256i product_epi64(__m256i a, __m256i b)
{
    __m256i cross = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(a, 32), b),
                                     _mm256_mul_epu32(a, _mm256_srli_epi64(b, 32)));
    return _mm256_add_epi64(_mm256_mul_epu32(a, b), _mm256_slli_epi64(cross, 32));
}

#define SIGNS _mm256_set1_epi64x(INT64_MIN)

static inline __m256i above_epi64(__m256i a, __m256i b)
{
    return _mm256_cmpgt_epi64(a, b);
}

/* There is no comparison of unsigned numbers: move both to where signed ones have that order. */
static inline __m256i above_epu64(__m256i a, __m256i b)
{
    return above_epi64(_mm256_xor_si256(a, SIGNS), _mm256_xor_si256(b, SIGNS));
}

#define minimum_epi64(a, b) _mm256_blendv_epi8(a, b, above_epi64(a, b))
#define maximum_epi64(a, b) _mm256_blendv_epi8(b, a, above_epi64(a, b))
#define minimum_epu64(a, b) _mm256_blendv_epi8(a, b, above_epu64(a, b))
#define maximum_epu64(a, b) _mm256_blendv_epi8(b, a, above_epu64(a, b))

/* DEFINE_INTEGER defines a type's vectors, how they lie in memory, and its order. */
#define DEFINE_INTEGER(V, minimum, maximum)                                                        \
    typedef __m256i vector_##V;                                                                    \
    enum { step_##V = 32 };                                                                        \
    static inline __m256i load_##V(const char *p)                                                  \
    {                                                                                              \
        return _mm256_loadu_si256((const __m256i *)p);                                             \
    }                                                                                              \
    static inline void store_##V(char *p, __m256i v, bool past_cache)                              \
    {                                                                                              \
        reduce_write_256(p, v, past_cache);                                                        \
    }                                                                                              \
    REDUCE_ORDER(V, minimum, maximum)

DEFINE_INTEGER(i8, _mm256_min_epi8, _mm256_max_epi8)
DEFINE_INTEGER(u8, _mm256_min_epu8, _mm256_max_epu8)
DEFINE_INTEGER(i16, _mm256_min_epi16, _mm256_max_epi16)
DEFINE_INTEGER(u16, _mm256_min_epu16, _mm256_max_epu16)
DEFINE_INTEGER(i32, _mm256_min_epi32, _mm256_max_epi32)
DEFINE_INTEGER(u32, _mm256_min_epu32, _mm256_max_epu32)
DEFINE_INTEGER(i64, minimum_epi64, maximum_epi64)
DEFINE_INTEGER(u64, minimum_epu64, maximum_epu64)

REDUCE_BITS(u8, _mm256_add_epi8, product_epi8, _mm256_set1_epi8(1))
REDUCE_BITS(u16, _mm256_add_epi16, _mm256_mullo_epi16, _mm256_set1_epi16(1))
REDUCE_BITS(u32, _mm256_add_epi32, _mm256_mullo_epi32, _mm256_set1_epi32(1))
REDUCE_BITS(u64, _mm256_add_epi64, product_epi64, _mm256_set1_epi64x(1))

REDUCE_KERNELS(REDUCE_DEFINE)

const struct reduce_kernels reduce_kernels_avx2 = {
    .isa = REDUCE_ISA_AVX2,
    .run = {REDUCE_ENTRIES},
};
