#include "tests/lib/reduce_reference.h"

#include <math.h>
#include <string.h>

const struct reference_format reference_f16 = {5, 10}, reference_bf16 = {8, 7};

double reference_decode(struct reference_format format, uint16_t bits)
{
    int bias = (1 << (format.exponent_bits - 1)) - 1, top = (1 << format.exponent_bits) - 1;
    int mantissa = bits & ((1 << format.mantissa_bits) - 1);
    int exponent = (bits >> format.mantissa_bits) & top;
    double sign = bits & 0x8000 ? -1.0 : 1.0;
    if (exponent == top)
        return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - format.mantissa_bits);
    return sign *
           ldexp(mantissa + (1 << format.mantissa_bits), exponent - bias - format.mantissa_bits);
}

uint16_t reference_encode(struct reference_format format, double value)
{
    int bias = (1 << (format.exponent_bits - 1)) - 1, top = (1 << format.exponent_bits) - 1;
    if (isnan(value))
        return (uint16_t)((top << format.mantissa_bits) | (1 << (format.mantissa_bits - 1)));
    int sign = signbit(value) ? 0x8000 : 0, exponent = 1 - bias;
    double magnitude = fabs(value);
    if (magnitude > 0 && isfinite(magnitude) && ilogb(magnitude) > exponent)
        exponent = ilogb(magnitude);
    /* Units of the last place; the rounding mode of the tests is nearest even. */
    double units = nearbyint(ldexp(magnitude, format.mantissa_bits - exponent));
    double limit = ldexp(1.0, bias + 1);
    if (isinf(magnitude) || ldexp(units, exponent - format.mantissa_bits) >= limit)
        return (uint16_t)(sign | top << format.mantissa_bits);
    int whole = (int)units, hidden = 1 << format.mantissa_bits;
    if (whole < hidden) /* a subnormal: exponent field zero */
        return (uint16_t)(sign | whole);
    /* A carry to the next power of two runs from the mantissa into the exponent by itself. */
    return (uint16_t)(sign | (((exponent + bias) << format.mantissa_bits) + (whole - hidden)));
}

static double float_pick(enum reduce_op op, double a, double b)
{
    if (isnan(a) || isnan(b))
        return NAN;
    if (a == 0 && b == 0)
        return (op == REDUCE_MIN) == (signbit(a) != 0) ? a : b;
    return op == REDUCE_MIN ? fmin(a, b) : fmax(a, b);
}

/* f32, f16 and bf16 as f32. */
static float float_load(enum dtype dtype, const void *from)
{
    float value;
    uint16_t bits;
    if (dtype == DTYPE_F32)
        return memcpy(&value, from, sizeof(value)), value;
    memcpy(&bits, from, sizeof(bits));
    return (float)reference_decode(dtype == DTYPE_F16 ? reference_f16 : reference_bf16, bits);
}

static float reduce_float(enum dtype dtype, enum reduce_op op, const void *const *in,
                          unsigned inputs, size_t at, uint32_t divisor)
{
    volatile float result = float_load(dtype, (const char *)in[0] + at);
    for (unsigned i = 1; i < inputs; i++) {
        float value = float_load(dtype, (const char *)in[i] + at);
        if (op == REDUCE_SUM || op == REDUCE_AVG)
            result = result + value;
        else if (op == REDUCE_PROD)
            result = result * value;
        else
            result = (float)float_pick(op, result, value);
    }
    return op == REDUCE_AVG ? result / (float)divisor : result;
}

static double reduce_double(enum reduce_op op, const void *const *in, unsigned inputs, size_t at,
                            uint32_t divisor)
{
    double value;
    memcpy(&value, (const char *)in[0] + at, sizeof(value));
    volatile double result = value;
    for (unsigned i = 1; i < inputs; i++) {
        memcpy(&value, (const char *)in[i] + at, sizeof(value));
        if (op == REDUCE_SUM || op == REDUCE_AVG)
            result = result + value;
        else if (op == REDUCE_PROD)
            result = result * value;
        else
            result = float_pick(op, result, value);
    }
    return op == REDUCE_AVG ? result / divisor : result;
}

static bool is_signed(enum dtype dtype)
{
    return dtype == DTYPE_I8 || dtype == DTYPE_I16 || dtype == DTYPE_I32 || dtype == DTYPE_I64;
}

/* Return an element as 128 bits, which hold every type's numbers, sums and, wrapped, products. */
static __int128 integer_load(enum dtype dtype, const void *from)
{
    uint64_t bits = 0; /* little-endian: the low bytes, which is what wrapping means */
    memcpy(&bits, from, dtype_bytes(dtype));
    uint64_t top = 1ull << (8 * dtype_bytes(dtype) - 1);
    return is_signed(dtype) && bits & top ? (__int128)bits - top - top : (__int128)bits;
}

static __int128 integer_combine(enum reduce_op op, __int128 a, __int128 b)
{
    switch (op) {
    case REDUCE_PROD:
        return (__int128)((unsigned __int128)a * (unsigned __int128)b);
    case REDUCE_MIN:
        return a < b ? a : b;
    case REDUCE_MAX:
        return a < b ? b : a;
    case REDUCE_LAND:
        return a && b;
    case REDUCE_LOR:
        return a || b;
    case REDUCE_LXOR:
        return !a != !b;
    case REDUCE_BAND:
        return a & b;
    case REDUCE_BOR:
        return a | b;
    case REDUCE_BXOR:
        return a ^ b;
    default:
        return a + b;
    }
}

static void reduce_integer(enum dtype dtype, enum reduce_op op, const void *const *in,
                           unsigned inputs, size_t at, void *to, uint32_t divisor)
{
    size_t bytes = dtype_bytes(dtype);
    __int128 result = integer_load(dtype, (const char *)in[0] + at);
    for (unsigned i = 1; i < inputs; i++) {
        result = integer_combine(op, result, integer_load(dtype, (const char *)in[i] + at));
        memcpy(to, &result, bytes);
        result = integer_load(dtype, to);
    }
    if (op == REDUCE_AVG)
        result /= divisor;
    if (op >= REDUCE_LAND)
        result = result != 0;
    memcpy(to, &result, bytes);
}

static void float_store(enum dtype dtype, void *to, float value)
{
    const uint32_t canonical = 0x7fc00000;
    if (dtype == DTYPE_F32) {
        memcpy(to, isnan(value) ? (const void *)&canonical : &value, sizeof(value));
        return;
    }
    uint16_t bits = reference_encode(dtype == DTYPE_F16 ? reference_f16 : reference_bf16, value);
    memcpy(to, &bits, sizeof(bits));
}

void reference_reduce(enum dtype dtype, enum reduce_op op, const void *const *in, unsigned inputs,
                      void *result, size_t count, uint32_t divisor)
{
    size_t bytes = dtype_bytes(dtype);
    if (inputs == 1 && op < REDUCE_LAND && (op != REDUCE_AVG || divisor == 1)) {
        memcpy(result, in[0], count * bytes);
        return;
    }
    for (size_t at = 0; at < count * bytes; at += bytes) {
        char *to = (char *)result + at;
        if (dtype_is_integer(dtype)) {
            reduce_integer(dtype, op, in, inputs, at, to, divisor);
        } else if (dtype == DTYPE_F64) {
            double value = reduce_double(op, in, inputs, at, divisor);
            const uint64_t canonical = 0x7ff8000000000000;
            memcpy(to, isnan(value) ? (const void *)&canonical : &value, sizeof(value));
        } else {
            float_store(dtype, to, reduce_float(dtype, op, in, inputs, at, divisor));
        }
    }
}

static uint64_t random_next(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15; /* splitmix64 */
    uint64_t z = *state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* Bits at the edges of a format: sign, exponent and mantissa each from its own few. */
static uint64_t edge_bits(uint64_t random, int exponent_bits, int mantissa_bits)
{
    uint64_t top = (1ull << exponent_bits) - 1, full = (1ull << mantissa_bits) - 1;
    const uint64_t exponents[] = {0, 0, 1, top / 2, top - 1, top, top, top};
    const uint64_t mantissas[] = {0, 0, 1, 2, full, full - 1, full / 2 + 1, random >> 16 & full};
    uint64_t sign = random >> 8 & 1;
    return (sign << exponent_bits | exponents[random & 7]) << mantissa_bits |
           mantissas[random >> 4 & 7];
}

/* An element's bits, in the low bytes. */
static uint64_t fill_bits(enum dtype dtype, uint64_t random, bool edge)
{
    double ordinary = (double)(int64_t)random * 0x1p-60;
    float single = (float)ordinary;
    uint64_t bits = 0;
    switch (dtype) {
    case DTYPE_F64:
        memcpy(&bits, &ordinary, sizeof(ordinary));
        return edge ? edge_bits(random, 11, 52) : bits;
    case DTYPE_F32:
        memcpy(&bits, &single, sizeof(single));
        return edge ? edge_bits(random, 8, 23) : bits;
    case DTYPE_F16:
        return edge ? edge_bits(random, 5, 10) : reference_encode(reference_f16, ordinary);
    case DTYPE_BF16:
        return edge ? edge_bits(random, 8, 7) : reference_encode(reference_bf16, ordinary);
    default: /* the greatest and the least, signed; zero and the greatest, unsigned */
        return edge ? ((random >> 1 & 1) << (8 * dtype_bytes(dtype) - 1)) - (random & 1) : random;
    }
}

void reference_fill(enum dtype dtype, void *array, size_t count, uint64_t seed, unsigned special)
{
    size_t bytes = dtype_bytes(dtype);
    uint64_t state = seed;
    for (size_t i = 0; i < count; i++) {
        uint64_t choice = random_next(&state), bits = random_next(&state);
        bool unusual = (choice & 0xff) < special, edge = choice >> 8 & 1;
        if (!unusual || edge)
            bits = fill_bits(dtype, bits, unusual);
        memcpy((char *)array + i * bytes, &bits, bytes);
    }
}
