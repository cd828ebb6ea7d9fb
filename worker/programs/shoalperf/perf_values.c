#include "worker/programs/shoalperf/perf_values.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0xA5

/* splitmix64's mixing of the four numbers. */
static uint64_t hash(uint32_t rank, uint32_t index, uint32_t round)
{
    uint64_t x = ((uint64_t)rank << 40) ^ ((uint64_t)round << 20) ^ index;
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* Integers up to this are exact in the type, and so are all sums of magnitudes below it. */
static int64_t exact_limit(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F16:
        return 1 << 11;
    case DTYPE_BF16:
        return 1 << 8;
    case DTYPE_F32:
        return 1 << 24;
    default:
        return 1ll << 53;
    }
}

static int64_t float_value(const struct perf_case *what, uint32_t rank, uint32_t index)
{
    uint64_t random = hash(rank, index, what->round);
    if (what->op == REDUCE_PROD) /* an exponent; few ranks, so that products stay in range */
        return rank < 8 ? (int64_t)(random % 3) - 1 : 0;
    bool adds = what->op == REDUCE_SUM || what->op == REDUCE_AVG;
    int64_t limit = exact_limit(what->dtype);
    if (adds && what->collective != COLLECTIVE_BROADCAST)
        limit = limit / what->ranks - 1;
    limit = limit < 1 ? 1 : limit;
    return (int64_t)(random % (2 * (uint64_t)limit + 1)) - limit;
}

/* Return what rank 0 gives in addition, so that the sum of all is a multiple of the number of
 * ranks. */
static int64_t divisible_extra(const struct perf_case *what, uint32_t index)
{
    int64_t sum = 0, ranks = what->ranks;
    assert(ranks > 0);
    for (uint32_t rank = 0; rank < what->ranks; rank++)
        sum += float_value(what, rank, index);
    return -(sum % ranks);
}

int64_t perf_value(const struct perf_case *what, uint32_t rank, uint32_t index)
{
    if (dtype_is_integer(what->dtype))
        return (int64_t)hash(rank, index, what->round);
    int64_t value = float_value(what, rank, index);
    bool divides = what->op == REDUCE_AVG && what->collective != COLLECTIVE_BROADCAST;
    if (divides && rank == 0)
        value += divisible_extra(what, index);
    return value;
}

/* Wrap a value to the type's range. Numbers of DTYPE_U64 beyond int64_t stay as their bits. */
static int64_t wrap(enum dtype dtype, int64_t value)
{
    uint64_t unused = 64 - 8 * dtype_bytes(dtype), bits = (uint64_t)value << unused;
    bool has_sign = dtype == DTYPE_I8 || dtype == DTYPE_I16 || dtype == DTYPE_I32;
    return has_sign ? (int64_t)bits >> unused : (int64_t)(bits >> unused);
}

static bool is_below(enum dtype dtype, int64_t a, int64_t b)
{
    return dtype == DTYPE_U64 ? (uint64_t)a < (uint64_t)b : a < b;
}

static int64_t integer_combine(enum dtype dtype, enum reduce_op op, int64_t a, int64_t b)
{
    switch (op) {
    case REDUCE_PROD:
        return wrap(dtype, (int64_t)((uint64_t)a * (uint64_t)b));
    case REDUCE_MIN:
        return is_below(dtype, a, b) ? a : b;
    case REDUCE_MAX:
        return is_below(dtype, a, b) ? b : a;
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
        return wrap(dtype, (int64_t)((uint64_t)a + (uint64_t)b));
    }
}

static int64_t expected_integer(const struct perf_case *what, uint32_t index)
{
    int64_t result = wrap(what->dtype, perf_value(what, 0, index));
    for (uint32_t rank = 1; rank < what->ranks; rank++)
        result = integer_combine(what->dtype, what->op, result,
                                 wrap(what->dtype, perf_value(what, rank, index)));
    if (what->op >= REDUCE_LAND)
        return result != 0;
    if (what->op == REDUCE_AVG && what->dtype == DTYPE_U64)
        return (int64_t)((uint64_t)result / what->ranks);
    return what->op == REDUCE_AVG ? result / (int64_t)what->ranks : result;
}

static double expected_float(const struct perf_case *what, uint32_t index)
{
    int64_t result = perf_value(what, 0, index);
    for (uint32_t rank = 1; rank < what->ranks; rank++) {
        int64_t value = perf_value(what, rank, index);
        if (what->op == REDUCE_MIN)
            result = value < result ? value : result;
        else if (what->op == REDUCE_MAX)
            result = value > result ? value : result;
        else /* products: of exponents */
            result += value;
    }
    if (what->op == REDUCE_PROD)
        return ldexp(1.0, (int)result);
    return (double)(what->op == REDUCE_AVG ? result / (int64_t)what->ranks : result);
}

/* value is exact in the type. A negative zero never is expected: integers have none. */
static uint16_t half_bits(double value)
{
    uint16_t sign = value < 0 ? 0x8000 : 0;
    if (value == 0)
        return 0;
    int exponent;
    double fraction =
        frexp(fabs(value), &exponent); /* fraction * 2^exponent, fraction in [0.5,1) */
    uint16_t mantissa = (uint16_t)(ldexp(fraction, 11) - 1024);
    return (uint16_t)(sign | ((exponent + 14) << 10) | mantissa);
}

void perf_element_write(enum dtype dtype, double value, int64_t integer, void *element)
{
    float single = (float)value;
    uint32_t bits;
    uint16_t half = 0;
    switch (dtype) {
    case DTYPE_F32:
        memcpy(element, &single, sizeof(single));
        return;
    case DTYPE_F64:
        memcpy(element, &value, sizeof(value));
        return;
    case DTYPE_BF16:
        memcpy(&bits, &single, sizeof(bits));
        half = (uint16_t)(bits >> 16);
        memcpy(element, &half, sizeof(half));
        return;
    case DTYPE_F16:
        half = half_bits(value);
        memcpy(element, &half, sizeof(half));
        return;
    default: /* the low bytes */
        memcpy(element, &integer, dtype_bytes(dtype));
    }
}

static void input_write(const struct perf_case *what, uint32_t rank, uint32_t index, void *element)
{
    int64_t value = perf_value(what, rank, index);
    bool power = what->op == REDUCE_PROD && what->collective != COLLECTIVE_BROADCAST;
    double real = power ? ldexp(1.0, (int)value) : (double)value;
    perf_element_write(what->dtype, real, value, element);
}

static void expected_write(const struct perf_case *what, uint32_t index, void *element)
{
    if (what->collective == COLLECTIVE_BROADCAST)
        input_write(what, what->root, index, element);
    else if (dtype_is_integer(what->dtype))
        perf_element_write(what->dtype, 0, expected_integer(what, index), element);
    else
        perf_element_write(what->dtype, expected_float(what, index), 0, element);
}

int perf_values_make(struct perf_values *values, const struct perf_case *what, struct error *error)
{
    uint32_t bytes = (uint32_t)dtype_bytes(what->dtype);
    uint8_t *input = malloc((size_t)PERF_PERIOD * bytes);
    uint8_t *expected = what->input_only ? NULL : malloc((size_t)PERF_PERIOD * bytes);
    if (!input || (!expected && !what->input_only)) {
        free(input);
        free(expected);
        return error_set(error, ERR_MEMORY, "out of memory");
    }
    for (uint32_t index = 0; index < PERF_PERIOD; index++) {
        input_write(what, what->rank, index, input + (size_t)index * bytes);
        if (expected)
            expected_write(what, index, expected + (size_t)index * bytes);
    }
    *values = (struct perf_values){what->dtype, bytes, input, expected};
    return 0;
}

void perf_values_clear(struct perf_values *values)
{
    free(values->input);
    free(values->expected);
    *values = (struct perf_values){0};
}

void perf_values_fill(const struct perf_values *values, void *data, uint64_t count)
{
    uint64_t bytes = count * values->element_bytes,
             period = (uint64_t)PERF_PERIOD * values->element_bytes;
    for (uint64_t done = 0; done < bytes; done += period)
        memcpy((uint8_t *)data + done, values->input,
               bytes - done < period ? bytes - done : period);
}

void perf_values_poison(const struct perf_values *values, void *data, uint64_t count)
{
    memset(data, POISON, count * values->element_bytes);
}

/* A period at a time; only where it differs, an element at a time. */
static uint64_t differences(const struct perf_values *values, const uint8_t *pattern,
                            const void *data, uint64_t count, uint64_t *first)
{
    const uint8_t *bytes = data;
    size_t size = values->element_bytes;
    uint64_t wrong = 0;
    for (uint64_t done = 0; done < count; done += PERF_PERIOD) {
        uint64_t now = count - done < PERF_PERIOD ? count - done : PERF_PERIOD;
        if (memcmp(bytes + done * size, pattern, now * size) == 0)
            continue;
        for (uint64_t i = 0; i < now; i++)
            if (memcmp(bytes + (done + i) * size, pattern + i * size, size) != 0 && wrong++ == 0 &&
                first)
                *first = done + i;
    }
    return wrong;
}

uint64_t perf_values_check(const struct perf_values *values, const void *data, uint64_t count,
                           uint64_t *first)
{
    assert(values->expected);
    return differences(values, values->expected, data, count, first);
}

uint64_t perf_values_check_input(const struct perf_values *values, const void *data, uint64_t count)
{
    return differences(values, values->input, data, count, NULL);
}

uint64_t perf_values_check_poison(const struct perf_values *values, const void *data,
                                  uint64_t count)
{
    const uint8_t *bytes = data;
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < count * values->element_bytes; i++)
        wrong += bytes[i] != POISON;
    return wrong;
}
