/* The kernels for AVX-512 (F, BW, VL, DQ); compiled with -mavx512f -mavx512bw -mavx512vl -mavx512dq
 * -mf16c. */
#include "common/reduce/reduce_kernels.h"

#include <immintrin.h>

typedef __m512 vector_f32;
typedef __m512d vector_f64;

enum {
    step_f32 = 64,
    step_f64 = 64,
    step_f16 = 32,
    step_bf16 = 32,
};

static inline void write_512(char *p, __m512i v, bool past_cache)
{
    if (past_cache)
        _mm512_stream_si512((__m512i *)p, v);
    else
        _mm512_storeu_si512((__m512i *)p, v);
}

#define REDUCE_TAIL(D, OP) reduce_kernels_scalar.run[D][OP]

static inline __m512 canonical_f32(__m512 v)
{
    __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(REDUCE_NAN_F32));
    return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), nan);
}

static inline __m512d canonical_f64(__m512d v)
{
    __m512d nan = _mm512_castsi512_pd(_mm512_set1_epi64(REDUCE_NAN_F64));
    return _mm512_mask_mov_pd(v, _mm512_cmp_pd_mask(v, v, _CMP_UNORD_Q), nan);
}

static inline __m512 load_f32(const char *p)
{
    return _mm512_loadu_ps((const float *)p);
}

static inline void store_f32(char *p, __m512 v, bool past_cache)
{
    write_512(p, _mm512_castps_si512(canonical_f32(v)), past_cache);
}

static inline __m512d load_f64(const char *p)
{
    return _mm512_loadu_pd((const double *)p);
}

static inline void store_f64(char *p, __m512d v, bool past_cache)
{
    write_512(p, _mm512_castpd_si512(canonical_f64(v)), past_cache);
}

static inline __m512 load_f16(const char *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

static inline void store_f16(char *p, __m512 v, bool past_cache)
{
    reduce_write_256(p, _mm512_cvtps_ph(canonical_f32(v), _MM_FROUND_TO_NEAREST_INT), past_cache);
}

static inline __m512 load_bf16(const char *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* Nearest even: add just under half, and one more if the bit that stays is odd. */
static inline void store_bf16(char *p, __m512 v, bool past_cache)
{
    __m512i bits = _mm512_castps_si512(canonical_f32(v));
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    bits = _mm512_srli_epi32(bits, 16);
    reduce_write_256(p, _mm512_cvtepi32_epi16(bits), past_cache);
}

/* minps gives its second operand for zeros and NaN. Both orders joined give the -0 and keep a NaN;
 * for max the +0 survives the AND, and the NaN is put back. */
#define DEFINE_FLOAT(V, suffix, scalar)                                                            \
    static inline vector_##V sum_##V(vector_##V a, vector_##V b)                                   \
    {                                                                                              \
        return _mm512_add_##suffix(a, b);                                                          \
    }                                                                                              \
    static inline vector_##V prod_##V(vector_##V a, vector_##V b)                                  \
    {                                                                                              \
        return _mm512_mul_##suffix(a, b);                                                          \
    }                                                                                              \
    static inline vector_##V min_##V(vector_##V a, vector_##V b)                                   \
    {                                                                                              \
        return _mm512_or_##suffix(_mm512_min_##suffix(a, b), _mm512_min_##suffix(b, a));           \
    }                                                                                              \
    static inline vector_##V max_##V(vector_##V a, vector_##V b)                                   \
    {                                                                                              \
        vector_##V both =                                                                          \
            _mm512_and_##suffix(_mm512_max_##suffix(a, b), _mm512_max_##suffix(b, a));             \
        __mmask16 nan = _mm512_cmp_##suffix##_mask(a, b, _CMP_UNORD_Q);                            \
        return _mm512_mask_add_##suffix(both, nan, a, b);                                          \
    }                                                                                              \
    static inline vector_##V divide_##V(vector_##V v, uint32_t divisor)                            \
    {                                                                                              \
        return _mm512_div_##suffix(v, _mm512_set1_##suffix((scalar)divisor));                      \
    }

DEFINE_FLOAT(f32, ps, float)
DEFINE_FLOAT(f64, pd, double)
REDUCE_KEEP(f32)
REDUCE_KEEP(f64)

/* There is no product of bytes: multiply the even and the odd ones as 16-bit lanes. */
static inline __m512i product_epi8(__m512i a, __m512i b)
{
    __m512i even = _mm512_mullo_epi16(a, b);
    __m512i odd = _mm512_mullo_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
    return _mm512_or_si512(_mm512_and_si512(even, _mm512_set1_epi16(0xff)),
                           _mm512_slli_epi16(odd, 8));
}

/* DEFINE_INTEGER defines a type's vectors, how they lie in memory, and its order. */
#define DEFINE_INTEGER(V, minimum, maximum)                                                        \
    typedef __m512i vector_##V;                                                                    \
    enum { step_##V = 64 };                                                                        \
    static inline __m512i load_##V(const char *p)                                                  \
    {                                                                                              \
        return _mm512_loadu_si512((const __m512i *)p);                                             \
    }                                                                                              \
    static inline void store_##V(char *p, __m512i v, bool past_cache)                              \
    {                                                                                              \
        write_512(p, v, past_cache);                                                               \
    }                                                                                              \
    REDUCE_ORDER(V, minimum, maximum)

DEFINE_INTEGER(i8, _mm512_min_epi8, _mm512_max_epi8)
DEFINE_INTEGER(u8, _mm512_min_epu8, _mm512_max_epu8)
DEFINE_INTEGER(i16, _mm512_min_epi16, _mm512_max_epi16)
DEFINE_INTEGER(u16, _mm512_min_epu16, _mm512_max_epu16)
DEFINE_INTEGER(i32, _mm512_min_epi32, _mm512_max_epi32)
DEFINE_INTEGER(u32, _mm512_min_epu32, _mm512_max_epu32)
DEFINE_INTEGER(i64, _mm512_min_epi64, _mm512_max_epi64)
DEFINE_INTEGER(u64, _mm512_min_epu64, _mm512_max_epu64)

REDUCE_BITS(u8, _mm512_add_epi8, product_epi8, _mm512_set1_epi8(1))
REDUCE_BITS(u16, _mm512_add_epi16, _mm512_mullo_epi16, _mm512_set1_epi16(1))
REDUCE_BITS(u32, _mm512_add_epi32, _mm512_mullo_epi32, _mm512_set1_epi32(1))
REDUCE_BITS(u64, _mm512_add_epi64, _mm512_mullo_epi64, _mm512_set1_epi64(1))

REDUCE_KERNELS(REDUCE_DEFINE)

const struct reduce_kernels reduce_kernels_avx512 = {
    .isa = REDUCE_ISA_AVX512,
    .run = {REDUCE_ENTRIES},
};
