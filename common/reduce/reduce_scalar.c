/* The kernels in plain C, for any processor: one element is one vector of the shared loop. The
 * vector files use them for tails. Nothing here needs F16C. */
#include "common/reduce/reduce_kernels.h"

typedef float vector_f32;
typedef double vector_f64;

enum {
    step_f32 = 4,
    step_f64 = 8,
    step_f16 = 2,
    step_bf16 = 2,
};

#define REDUCE_TAIL(D, OP)                                                                         \
    reduce_kernels_scalar.run[D][OP] /* never reached: no vector is part filled */

static uint32_t f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint64_t f64_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static double f64_from_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Binary16: 1 sign, 5 exponent (bias 15), 10 mantissa bits. */
float f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 31u, mantissa = half & 0x3ffu;
    if (exponent == 31) { /* infinity, or a NaN, which becomes quiet as in the hardware */
        uint32_t quiet = mantissa ? 0x00400000u : 0;
        return f32_from_bits(sign | 0x7f800000u | quiet | mantissa << 13);
    }
    if (exponent == 0) { /* zero and subnormals: mantissa * 2^-24, exact in f32 */
        float value = (float)mantissa * 0x1p-24f;
        return f32_from_bits(sign | f32_bits(value));
    }
    return f32_from_bits(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
}

uint16_t f32_to_f16(float value)
{
    uint32_t bits = f32_bits(value), magnitude = bits & 0x7fffffffu;
    uint32_t sign = bits >> 16 & 0x8000u, half;
    if (magnitude > 0x7f800000u)
        return 0x7e00;
    if (magnitude >= 0x477ff000u) { /* 65520 and above round to infinity */
        half = 0x7c00;
    } else if (magnitude >= 0x38800000u) { /* normal, at least 2^-14: round bit 13 to even */
        uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
        half = (rounded - ((127u - 15u) << 23)) >> 13;
    } else { /* subnormal: adding 0.5 leaves the multiple of 2^-24, rounded, in the low bits */
        half = f32_bits(f32_from_bits(magnitude) + 0.5f) - f32_bits(0.5f);
    }
    return (uint16_t)(sign | half);
}

float bf16_to_f32(uint16_t value)
{
    return f32_from_bits((uint32_t)value << 16);
}

uint16_t f32_to_bf16(float value)
{
    uint32_t bits = f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return REDUCE_NAN_F32 >> 16;
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#define DEFINE_MEMORY(T)                                                                           \
    static inline vector_##T load_##T(const char *p)                                               \
    {                                                                                              \
        vector_##T v;                                                                              \
        memcpy(&v, p, sizeof(v));                                                                  \
        return v;                                                                                  \
    }                                                                                              \
    static inline void write_##T(char *p, vector_##T v, bool past_cache)                           \
    {                                                                                              \
        (void)past_cache;                                                                          \
        memcpy(p, &v, sizeof(v));                                                                  \
    }

DEFINE_MEMORY(f32)
DEFINE_MEMORY(f64)

static inline void store_f32(char *p, float v, bool past_cache)
{
    write_f32(p, v == v ? v : f32_from_bits(REDUCE_NAN_F32), past_cache);
}

static inline void store_f64(char *p, double v, bool past_cache)
{
    write_f64(p, v == v ? v : f64_from_bits(REDUCE_NAN_F64), past_cache);
}

#define DEFINE_HALF(T)                                                                             \
    static inline float load_##T(const char *p)                                                    \
    {                                                                                              \
        uint16_t bits;                                                                             \
        memcpy(&bits, p, sizeof(bits));                                                            \
        return T##_to_f32(bits);                                                                   \
    }                                                                                              \
    static inline void store_##T(char *p, float v, bool past_cache)                                \
    {                                                                                              \
        (void)past_cache;                                                                          \
        uint16_t bits = f32_to_##T(v);                                                             \
        memcpy(p, &bits, sizeof(bits));                                                            \
    }

DEFINE_HALF(f16)
DEFINE_HALF(bf16)

/* Equal operands are the same number or two zeros, whose signs the bitwise step settles. */
#define DEFINE_FLOAT(V)                                                                            \
    static inline vector_##V sum_##V(vector_##V a, vector_##V b)                                   \
    {                                                                                              \
        return a + b;                                                                              \
    }                                                                                              \
    static inline vector_##V prod_##V(vector_##V a, vector_##V b)                                  \
    {                                                                                              \
        return a * b;                                                                              \
    }                                                                                              \
    static inline vector_##V min_##V(vector_##V a, vector_##V b)                                   \
    {                                                                                              \
        if (a != a || b != b)                                                                      \
            return a + b;                                                                          \
        if (a == b)                                                                                \
            return V##_from_bits(V##_bits(a) | V##_bits(b));                                       \
        return a < b ? a : b;                                                                      \
    }                                                                                              \
    static inline vector_##V max_##V(vector_##V a, vector_##V b)                                   \
    {                                                                                              \
        if (a != a || b != b)                                                                      \
            return a + b;                                                                          \
        if (a == b)                                                                                \
            return V##_from_bits(V##_bits(a) & V##_bits(b));                                       \
        return a > b ? a : b;                                                                      \
    }                                                                                              \
    static inline vector_##V divide_##V(vector_##V v, uint32_t divisor)                            \
    {                                                                                              \
        return v / (vector_##V)divisor;                                                            \
    }

DEFINE_FLOAT(f32)
DEFINE_FLOAT(f64)
REDUCE_KEEP(f32)
REDUCE_KEEP(f64)

#define lesser_of(a, b) ((a) < (b) ? (a) : (b))
#define greater_of(a, b) ((a) > (b) ? (a) : (b))
#define sum_of(a, b) ((a) + (b))
#define product_of(a, b) ((uint64_t)(a) * (b))

/* DEFINE_INTEGER defines a type's vectors, which are single elements, how they lie in memory, and
 * its order. */
#define DEFINE_INTEGER(V, type)                                                                    \
    typedef type vector_##V;                                                                       \
    enum { step_##V = sizeof(type) };                                                              \
    DEFINE_MEMORY(V)                                                                               \
    static inline void store_##V(char *p, type v, bool past_cache)                                 \
    {                                                                                              \
        write_##V(p, v, past_cache);                                                               \
    }                                                                                              \
    REDUCE_ORDER(V, lesser_of, greater_of)

DEFINE_INTEGER(i8, int8_t)
DEFINE_INTEGER(u8, uint8_t)
DEFINE_INTEGER(i16, int16_t)
DEFINE_INTEGER(u16, uint16_t)
DEFINE_INTEGER(i32, int32_t)
DEFINE_INTEGER(u32, uint32_t)
DEFINE_INTEGER(i64, int64_t)
DEFINE_INTEGER(u64, uint64_t)

REDUCE_BITS(u8, sum_of, product_of, 1)
REDUCE_BITS(u16, sum_of, product_of, 1)
REDUCE_BITS(u32, sum_of, product_of, 1)
REDUCE_BITS(u64, sum_of, product_of, 1)

REDUCE_KERNELS(REDUCE_DEFINE)

const struct reduce_kernels reduce_kernels_scalar = {
    .isa = REDUCE_ISA_SCALAR,
    .run = {REDUCE_ENTRIES},
};
