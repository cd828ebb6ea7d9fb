/* The edges of the float formats: conversions over all 16-bit values and their rounding
 * boundaries, NaN, infinities, zeros and subnormals, in every instruction set. */
#include "common/reduce/reduce.h"

#include "tests/lib/reduce_into.h"
#include "tests/lib/reduce_reference.h"
#include "tests/lib/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ISA_COUNT = REDUCE_ISA_AVX512 + 1, ALL = 65536 };

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static bool isa_usable(int isa, const char *test)
{
    if (reduce_isa_supported((enum reduce_isa)isa))
        return true;
    suite_skip(test, "%s is not supported by the processor", reduce_isa_name((enum reduce_isa)isa));
    return false;
}

/* Same number, the sign of zero included, or both NaN. */
static bool same_value(double a, double b)
{
    return isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b);
}

START_TEST(test_widen_all)
{
    for (unsigned i = 0; i < ALL; i++) {
        uint16_t bits = (uint16_t)i;
        if (!same_value(f16_to_f32(bits), reference_decode(reference_f16, bits)))
            ck_abort_msg("f16 %04x widens to %a", i, f16_to_f32(bits));
        if (!same_value(bf16_to_f32(bits), reference_decode(reference_bf16, bits)))
            ck_abort_msg("bf16 %04x widens to %a", i, bf16_to_f32(bits));
    }
}
END_TEST

START_TEST(test_round_trip_all)
{
    for (unsigned i = 0; i < ALL; i++) {
        unsigned half = (i & 0x7fff) > 0x7c00 ? 0x7e00 : i;
        unsigned brain = (i & 0x7fff) > 0x7f80 ? 0x7fc0 : i;
        if (f32_to_f16(f16_to_f32((uint16_t)i)) != half)
            ck_abort_msg("f16 %04x", i);
        if (f32_to_bf16(bf16_to_f32((uint16_t)i)) != brain)
            ck_abort_msg("bf16 %04x", i);
    }
}
END_TEST

static void check_narrow(uint32_t bits)
{
    float value = float_of(bits);
    if (f32_to_f16(value) != reference_encode(reference_f16, value))
        ck_abort_msg("f16 of %a (%08x) is %04x", value, bits, f32_to_f16(value));
    if (f32_to_bf16(value) != reference_encode(reference_bf16, value))
        ck_abort_msg("bf16 of %a (%08x) is %04x", value, bits, f32_to_bf16(value));
}

/* Around every value of both formats and around the middle to its neighbour. */
START_TEST(test_narrow_boundaries)
{
    for (unsigned i = 0; i < ALL; i++) {
        uint32_t half = bits_of(f16_to_f32((uint16_t)i)), brain = i << 16;
        float middle = (f16_to_f32((uint16_t)i) + f16_to_f32((uint16_t)(i + 1))) / 2;
        for (int step = -1; step <= 1; step++) {
            check_narrow(half + (uint32_t)step);
            check_narrow(bits_of(middle) + (uint32_t)step);
            check_narrow(brain + (uint32_t)step);
            check_narrow(brain + 0x8000u + (uint32_t)step);
        }
    }
}
END_TEST

START_TEST(test_narrow_random)
{
    uint32_t *bits = malloc(ALL * sizeof(*bits));
    ck_assert_ptr_nonnull(bits);
    for (unsigned special = 0; special <= 256; special += 64) {
        reference_fill(DTYPE_F32, bits, ALL, 7 + special, special);
        for (unsigned i = 0; i < ALL; i++)
            check_narrow(bits[i]);
    }
    free(bits);
}
END_TEST

/* Known bits, so that reference and kernels cannot be wrong together. */
START_TEST(test_narrow_by_hand)
{
    ck_assert_uint_eq(f32_to_f16(1.0f), 0x3c00);
    ck_assert_uint_eq(f32_to_f16(-2.0f), 0xc000);
    ck_assert_uint_eq(f32_to_f16(65504.0f), 0x7bff);
    ck_assert_uint_eq(f32_to_f16(65519.996f), 0x7bff);
    ck_assert_uint_eq(f32_to_f16(65520.0f), 0x7c00);
    ck_assert_uint_eq(f32_to_f16(-INFINITY), 0xfc00);
    ck_assert_uint_eq(f32_to_f16(0x1p-24f), 0x0001);
    ck_assert_uint_eq(f32_to_f16(0x1p-25f), 0x0000);
    ck_assert_uint_eq(f32_to_f16(-0x1.000002p-25f), 0x8001);
    ck_assert_uint_eq(f32_to_f16(0x1.ff8p-15f), 0x03ff);
    ck_assert_uint_eq(f32_to_f16(0x1.fffp-15f), 0x0400);
    ck_assert_uint_eq(f32_to_f16(1.0f + 0x1p-11f), 0x3c00);
    ck_assert_uint_eq(f32_to_f16(1.0f + 0x3p-11f), 0x3c02);
    ck_assert_uint_eq(f32_to_f16(-NAN), 0x7e00);
    ck_assert_uint_eq(f32_to_bf16(1.0f), 0x3f80);
    ck_assert_uint_eq(f32_to_bf16(1.0f + 0x1p-8f), 0x3f80);
    ck_assert_uint_eq(f32_to_bf16(1.0f + 0x3p-8f), 0x3f82);
    ck_assert_uint_eq(f32_to_bf16(float_of(0x7f7fffff)), 0x7f80);
    ck_assert_uint_eq(f32_to_bf16(float_of(0xff800001)), 0x7fc0);
    ck_assert_uint_eq(f32_to_bf16(-0.0f), 0x8000);
}
END_TEST

/* A row of 16-bit values, combined with all 65536, against the reference. */
static void check_all_values(enum reduce_isa isa, enum dtype dtype, enum reduce_op op,
                             const uint16_t *all, const uint16_t *other, uint32_t divisor)
{
    uint16_t *result = malloc(ALL * sizeof(*result)), *expected = malloc(ALL * sizeof(*expected));
    const void *in[] = {all, other};
    unsigned inputs = other ? 2 : 1;
    ck_assert(result && expected);
    reference_reduce(dtype, op, in, inputs, expected, ALL, divisor);
    reduce_into(reduce_select(isa), dtype, op, in, inputs, result, ALL, divisor);
    for (unsigned i = 0; i < ALL; i++)
        if (result[i] != expected[i])
            ck_abort_msg("%s %s: %04x with %04x gives %04x, not %04x", dtype_name(dtype),
                         reduce_op_name(op), all[i], other ? other[i] : 0, result[i], expected[i]);
    free(result);
    free(expected);
}

/* The vector conversions see every value; with half a unit of the last place as the other operand
 * (and a little more, in the odd rounds) every rounding is a tie, or next to one. */
START_TEST(test_kernels_all_values)
{
    static const enum dtype dtypes[] = {DTYPE_F16, DTYPE_BF16};
    if (!isa_usable(_i, "test_kernels_all_values"))
        return;
    uint16_t *all = malloc(ALL * sizeof(*all)), *other = calloc(ALL, sizeof(*other));
    ck_assert(all && other);
    for (unsigned i = 0; i < ALL; i++)
        all[i] = (uint16_t)i;
    for (unsigned k = 0; k < 2; k++) {
        int mantissa = dtypes[k] == DTYPE_F16 ? 10 : 7;
        memset(other, 0, ALL * sizeof(*other));
        check_all_values((enum reduce_isa)_i, dtypes[k], REDUCE_SUM, all, other, 1);
        check_all_values((enum reduce_isa)_i, dtypes[k], REDUCE_AVG, all, NULL, 2);
        check_all_values((enum reduce_isa)_i, dtypes[k], REDUCE_AVG, all, NULL, 3);
        check_all_values((enum reduce_isa)_i, dtypes[k], REDUCE_AVG, all, NULL, UINT32_MAX);
        for (unsigned round = 0; round < 4; round++) {
            for (int i = 0; i < ALL; i++) {
                int exponent = (i & 0x7fff) >> mantissa;
                int small = exponent > mantissa + 1 ? exponent - mantissa - 1 : 0;
                int sign = round & 2 ? 0x8000 : 0;
                other[i] = (uint16_t)(sign | small << mantissa | (int)(round & 1));
            }
            check_all_values((enum reduce_isa)_i, dtypes[k], REDUCE_SUM, all, other, 1);
        }
        for (unsigned op = 0; op <= REDUCE_MAX; op++) {
            for (unsigned i = 0; i < ALL; i++)
                other[i] = (uint16_t)(i * 40503u + 1);
            check_all_values((enum reduce_isa)_i, dtypes[k], (enum reduce_op)op, all, other, 7);
        }
    }
    free(all);
    free(other);
}
END_TEST

/* Names for the operands of the table below, in each format. */
enum value { ZERO, MINUS_ZERO, ONE, TWO, INF, MINUS_INF, QUIET, SIGNALLING, NEGATIVE, CANONICAL };

static const uint64_t value_bits[][4] = {
    /* f32, f64, f16, bf16 */
    [ZERO] = {0, 0, 0, 0},
    [MINUS_ZERO] = {0x80000000, 0x8000000000000000, 0x8000, 0x8000},
    [ONE] = {0x3f800000, 0x3ff0000000000000, 0x3c00, 0x3f80},
    [TWO] = {0x40000000, 0x4000000000000000, 0x4000, 0x4000},
    [INF] = {0x7f800000, 0x7ff0000000000000, 0x7c00, 0x7f80},
    [MINUS_INF] = {0xff800000, 0xfff0000000000000, 0xfc00, 0xff80},
    [QUIET] = {0x7fc12345, 0x7ff8000012345678, 0x7e12, 0x7fc1},
    [SIGNALLING] = {0x7f800001, 0x7ff0000000000001, 0x7c01, 0x7f81},
    [NEGATIVE] = {0xffffffff, 0xffffffffffffffff, 0xffff, 0xffff},
    [CANONICAL] = {0x7fc00000, 0x7ff8000000000000, 0x7e00, 0x7fc0},
};

static const struct {
    enum reduce_op op;
    enum value a, b, expected;
} special_cases[] = {
    {REDUCE_SUM, INF, MINUS_INF, CANONICAL},
    {REDUCE_SUM, INF, ONE, INF},
    {REDUCE_SUM, QUIET, ONE, CANONICAL},
    {REDUCE_SUM, ONE, SIGNALLING, CANONICAL},
    {REDUCE_SUM, NEGATIVE, QUIET, CANONICAL},
    {REDUCE_SUM, QUIET, NEGATIVE, CANONICAL},
    {REDUCE_SUM, MINUS_ZERO, MINUS_ZERO, MINUS_ZERO},
    {REDUCE_SUM, ZERO, MINUS_ZERO, ZERO},
    {REDUCE_SUM, ONE, ONE, TWO},
    {REDUCE_AVG, TWO, ZERO, ONE},
    {REDUCE_AVG, NEGATIVE, ONE, CANONICAL},
    {REDUCE_AVG, MINUS_ZERO, MINUS_ZERO, MINUS_ZERO},
    {REDUCE_PROD, ZERO, INF, CANONICAL},
    {REDUCE_PROD, MINUS_ZERO, ONE, MINUS_ZERO},
    {REDUCE_PROD, MINUS_INF, MINUS_INF, INF},
    {REDUCE_PROD, SIGNALLING, ZERO, CANONICAL},
    {REDUCE_MIN, ZERO, MINUS_ZERO, MINUS_ZERO},
    {REDUCE_MIN, MINUS_ZERO, ZERO, MINUS_ZERO},
    {REDUCE_MAX, ZERO, MINUS_ZERO, ZERO},
    {REDUCE_MAX, MINUS_ZERO, ZERO, ZERO},
    {REDUCE_MAX, MINUS_ZERO, MINUS_ZERO, MINUS_ZERO},
    {REDUCE_MIN, ZERO, ZERO, ZERO},
    {REDUCE_MIN, QUIET, MINUS_INF, CANONICAL},
    {REDUCE_MIN, MINUS_INF, QUIET, CANONICAL},
    {REDUCE_MIN, NEGATIVE, SIGNALLING, CANONICAL},
    {REDUCE_MIN, SIGNALLING, ZERO, CANONICAL},
    {REDUCE_MAX, QUIET, INF, CANONICAL},
    {REDUCE_MAX, INF, SIGNALLING, CANONICAL},
    {REDUCE_MAX, NEGATIVE, ZERO, CANONICAL},
    {REDUCE_MAX, ZERO, NEGATIVE, CANONICAL},
    {REDUCE_MIN, ONE, MINUS_INF, MINUS_INF},
    {REDUCE_MAX, ONE, INF, INF},
    {REDUCE_MIN, TWO, ONE, ONE},
    {REDUCE_MAX, TWO, ONE, TWO},
};

START_TEST(test_special_values)
{
    enum { COUNT = 101 };
    if (!isa_usable(_i, "test_special_values"))
        return;
    for (size_t k = 0; k < sizeof(special_cases) / sizeof(special_cases[0]); k++) {
        for (unsigned dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
            unsigned char a[COUNT * 8], b[COUNT * 8], result[COUNT * 8];
            size_t size = dtype_bytes(dtype);
            for (size_t i = 0; i < COUNT; i++) {
                memcpy(a + i * size, &value_bits[special_cases[k].a][dtype], size);
                memcpy(b + i * size, &value_bits[special_cases[k].b][dtype], size);
            }
            const void *in[] = {a, b};
            reduce_into(reduce_select((enum reduce_isa)_i), (enum dtype)dtype, special_cases[k].op,
                        in, 2, result, COUNT, 2);
            const void *expected = &value_bits[special_cases[k].expected][dtype];
            for (size_t i = 0; i < COUNT; i++)
                if (memcmp(result + i * size, expected, size) != 0)
                    ck_abort_msg("row %zu, %s, element %zu", k, dtype_name(dtype), i);
        }
    }
}
END_TEST

/* One input is copied as it is, NaN payloads included; dividing it makes a NaN canonical. */
START_TEST(test_single_input)
{
    enum { COUNT = 50 };
    if (!isa_usable(_i, "test_single_input"))
        return;
    const struct reduce_kernels *kernels = reduce_select((enum reduce_isa)_i);
    uint32_t values[COUNT], first[COUNT], second[COUNT];
    for (unsigned i = 0; i < COUNT; i++)
        values[i] = i % 2 ? 0x7f800001 + i : 0xffc00000 + i;
    const void *in[] = {values};
    void *out[] = {first, second};
    struct reduction reduction = {.dtype = DTYPE_F32,
                                  .divisor = 1,
                                  .inputs = 1,
                                  .outputs = 2,
                                  .count = COUNT,
                                  .in = in,
                                  .out = out};
    for (unsigned op = 0; op <= REDUCE_MAX; op++) {
        memset(first, 0, sizeof(first));
        memset(second, 0, sizeof(second));
        reduction.op = (enum reduce_op)op;
        reduce_run(kernels, &reduction);
        ck_assert_mem_eq(first, values, sizeof(values));
        ck_assert_mem_eq(second, values, sizeof(values));
    }
    reduction.op = REDUCE_AVG;
    reduction.divisor = 2;
    reduce_run(kernels, &reduction);
    for (unsigned i = 0; i < COUNT; i++) {
        ck_assert_uint_eq(first[i], 0x7fc00000);
        ck_assert_uint_eq(second[i], 0x7fc00000);
    }
}
END_TEST

/* The average is taken in f32 before the rounding: the sum alone would be infinite in f16, and
 * 7 / 3 shows that the quotient is rounded once. */
START_TEST(test_average_in_f32)
{
    enum { COUNT = 70 };
    if (!isa_usable(_i, "test_average_in_f32"))
        return;
    const struct reduce_kernels *kernels = reduce_select((enum reduce_isa)_i);
    uint16_t big[COUNT], one[COUNT], two[COUNT], four[COUNT], result[COUNT];
    for (unsigned i = 0; i < COUNT; i++) {
        big[i] = 0x7bff;
        one[i] = 0x3c00;
        two[i] = 0x4000;
        four[i] = 0x4400;
    }
    const void *bigs[] = {big, big, big}, *numbers[] = {one, two, four};
    reduce_into(kernels, DTYPE_F16, REDUCE_AVG, bigs, 3, result, COUNT, 3);
    for (unsigned i = 0; i < COUNT; i++)
        ck_assert_uint_eq(result[i], 0x7bff);
    reduce_into(kernels, DTYPE_F16, REDUCE_SUM, bigs, 3, result, COUNT, 3);
    for (unsigned i = 0; i < COUNT; i++)
        ck_assert_uint_eq(result[i], 0x7c00);
    reduce_into(kernels, DTYPE_F16, REDUCE_AVG, numbers, 3, result, COUNT, 3);
    for (unsigned i = 0; i < COUNT; i++)
        ck_assert_uint_eq(result[i], 0x40ab);
}
END_TEST

/* Nothing but edges, in several inputs, against the reference. */
START_TEST(test_edges_only)
{
    enum { INPUTS = 5, COUNT = 6007 };
    if (!isa_usable(_i, "test_edges_only"))
        return;
    for (unsigned dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
        size_t bytes = COUNT * dtype_bytes(dtype);
        void *in[INPUTS], *result = malloc(bytes), *expected = malloc(bytes);
        for (unsigned i = 0; i < INPUTS; i++) {
            in[i] = malloc(bytes);
            reference_fill((enum dtype)dtype, in[i], COUNT, 100 + i, i < 2 ? 256 : 60);
        }
        for (unsigned op = 0; op <= REDUCE_MAX; op++) {
            for (unsigned inputs = 2; inputs <= INPUTS; inputs++) {
                const void **from = (const void **)in;
                reference_reduce((enum dtype)dtype, (enum reduce_op)op, from, inputs, expected,
                                 COUNT, 3);
                reduce_into(reduce_select((enum reduce_isa)_i), (enum dtype)dtype,
                            (enum reduce_op)op, from, inputs, result, COUNT, 3);
                ck_assert_msg(memcmp(result, expected, bytes) == 0, "%s %s of %u",
                              dtype_name(dtype), reduce_op_name(op), inputs);
            }
        }
        for (unsigned i = 0; i < INPUTS; i++)
            free(in[i]);
        free(result);
        free(expected);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reduce_float");
    TCase *tests = tcase_create("reduce_float");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, test_widen_all);
    tcase_add_test(tests, test_round_trip_all);
    tcase_add_test(tests, test_narrow_boundaries);
    tcase_add_test(tests, test_narrow_random);
    tcase_add_test(tests, test_narrow_by_hand);
    tcase_add_loop_test(tests, test_kernels_all_values, 0, ISA_COUNT);
    tcase_add_loop_test(tests, test_special_values, 0, ISA_COUNT);
    tcase_add_loop_test(tests, test_single_input, 0, ISA_COUNT);
    tcase_add_loop_test(tests, test_average_in_f32, 0, ISA_COUNT);
    tcase_add_loop_test(tests, test_edges_only, 0, ISA_COUNT);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
