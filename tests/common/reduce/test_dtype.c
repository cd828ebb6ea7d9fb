#include "common/reduce/dtype.h"

#include "common/base/error.h"
#include "tests/lib/suite.h"

#include <string.h>

START_TEST(test_bytes)
{
    const size_t bytes[DTYPE_COUNT] = {4, 8, 2, 2, 1, 1, 4, 8, 2, 2, 4, 8};
    for (unsigned i = 0; i < DTYPE_COUNT; i++)
        ck_assert_uint_eq(dtype_bytes(i), bytes[i]);
    ck_assert_uint_eq(dtype_bytes(DTYPE_COUNT), 0);
    ck_assert_uint_eq(dtype_bytes(~0u), 0);
}
END_TEST

/* These numbers travel on the wire. */
START_TEST(test_numbers)
{
    ck_assert_int_eq(DTYPE_F32, 0);
    ck_assert_int_eq(DTYPE_BF16, 3);
    ck_assert_int_eq(DTYPE_I64, 7);
    ck_assert_int_eq(DTYPE_I16, 8);
    ck_assert_int_eq(DTYPE_U64, 11);
    ck_assert_int_eq(REDUCE_SUM, 0);
    ck_assert_int_eq(REDUCE_BXOR, 7);
    ck_assert_int_eq(REDUCE_LXOR, 10);
    ck_assert_int_eq(COLLECTIVE_ALL_REDUCE, 0);
    ck_assert_int_eq(COLLECTIVE_BARRIER, 3);
}
END_TEST

START_TEST(test_is_integer)
{
    for (unsigned i = 0; i < DTYPE_COUNT; i++)
        ck_assert_int_eq(dtype_is_integer(i), i >= DTYPE_I8);
    ck_assert(!dtype_is_integer(DTYPE_COUNT));
    ck_assert(!dtype_is_integer(~0u));
}
END_TEST

START_TEST(test_dtype_names)
{
    static const char *const names[DTYPE_COUNT] = {"float", "double", "half",   "bfloat16",
                                                   "int8",  "uint8",  "int32",  "int64",
                                                   "int16", "uint16", "uint32", "uint64"};
    for (unsigned i = 0; i < DTYPE_COUNT; i++) {
        enum dtype parsed = DTYPE_COUNT;
        ck_assert_str_eq(dtype_name(i), names[i]);
        ck_assert_int_eq(dtype_parse(names[i], &parsed), 0);
        ck_assert_uint_eq(parsed, i);
    }
    ck_assert_str_eq(dtype_name(DTYPE_COUNT), "?");
    ck_assert_str_eq(dtype_name(~0u), "?");
}
END_TEST

START_TEST(test_dtype_aliases)
{
    static const struct {
        const char *text;
        enum dtype dtype;
    } rows[] = {
        {"float32", DTYPE_F32}, {"f32", DTYPE_F32}, {"float64", DTYPE_F64}, {"f64", DTYPE_F64},
        {"float16", DTYPE_F16}, {"f16", DTYPE_F16}, {"bf16", DTYPE_BF16},   {"i8", DTYPE_I8},
        {"u8", DTYPE_U8},       {"i32", DTYPE_I32}, {"i64", DTYPE_I64},     {"i16", DTYPE_I16},
        {"u16", DTYPE_U16},     {"u32", DTYPE_U32}, {"u64", DTYPE_U64},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        enum dtype parsed = DTYPE_COUNT;
        ck_assert_int_eq(dtype_parse(rows[i].text, &parsed), 0);
        ck_assert_int_eq(parsed, rows[i].dtype);
    }
}
END_TEST

/* Outputs are set on success only. */
START_TEST(test_parse_refuses)
{
    static const char *const wrong[] = {NULL,   "",        "Float", "float ",
                                        "floa", "uint128", "?",     "sum1"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        enum dtype dtype = DTYPE_I8;
        enum reduce_op op = REDUCE_MAX;
        enum collective_kind kind = COLLECTIVE_BROADCAST;
        ck_assert_int_eq(dtype_parse(wrong[i], &dtype), ERR_INVALID);
        ck_assert_int_eq(reduce_op_parse(wrong[i], &op), ERR_INVALID);
        ck_assert_int_eq(collective_parse(wrong[i], &kind), ERR_INVALID);
        ck_assert_int_eq(dtype, DTYPE_I8);
        ck_assert_int_eq(op, REDUCE_MAX);
        ck_assert_int_eq(kind, COLLECTIVE_BROADCAST);
    }
}
END_TEST

START_TEST(test_op_names)
{
    static const char *const names[REDUCE_OP_COUNT] = {"sum", "avg",  "prod", "min", "max", "band",
                                                       "bor", "bxor", "land", "lor", "lxor"};
    for (unsigned i = 0; i < REDUCE_OP_COUNT; i++) {
        enum reduce_op parsed = REDUCE_OP_COUNT;
        ck_assert_str_eq(reduce_op_name(i), names[i]);
        ck_assert_int_eq(reduce_op_parse(names[i], &parsed), 0);
        ck_assert_uint_eq(parsed, i);
    }
    ck_assert_str_eq(reduce_op_name(REDUCE_OP_COUNT), "?");
}
END_TEST

START_TEST(test_op_allows)
{
    for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        for (unsigned op = 0; op < REDUCE_OP_COUNT; op++)
            ck_assert_int_eq(reduce_op_allows(op, dtype), op < REDUCE_BAND || dtype >= DTYPE_I8);
        ck_assert(!reduce_op_allows(REDUCE_OP_COUNT, dtype));
        ck_assert(!reduce_op_allows(~0u, dtype));
    }
    ck_assert(!reduce_op_allows(REDUCE_SUM, DTYPE_COUNT));
    ck_assert(!reduce_op_allows(REDUCE_BAND, ~0u));
}
END_TEST

START_TEST(test_op_changes_one)
{
    for (unsigned op = 0; op < REDUCE_OP_COUNT; op++) {
        bool truth = op == REDUCE_LAND || op == REDUCE_LOR || op == REDUCE_LXOR;
        ck_assert_int_eq(reduce_op_changes_one((enum reduce_op)op, 1), truth);
        ck_assert_int_eq(reduce_op_changes_one((enum reduce_op)op, 2), truth || op == REDUCE_AVG);
    }
}
END_TEST

START_TEST(test_collective_names)
{
    static const char *const names[COLLECTIVE_KIND_COUNT] = {
        "all_reduce",     "reduce", "broadcast", "barrier",    "all_gather",
        "reduce_scatter", "gather", "scatter",   "all_to_all", "send"};
    for (unsigned i = 0; i < COLLECTIVE_KIND_COUNT; i++) {
        enum collective_kind parsed = COLLECTIVE_KIND_COUNT;
        ck_assert_str_eq(collective_name(i), names[i]);
        ck_assert_int_eq(collective_parse(names[i], &parsed), 0);
        ck_assert_uint_eq(parsed, i);
    }
    ck_assert_str_eq(collective_name(COLLECTIVE_KIND_COUNT), "?");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dtype");
    TCase *tests = tcase_create("dtype");
    tcase_add_test(tests, test_bytes);
    tcase_add_test(tests, test_numbers);
    tcase_add_test(tests, test_is_integer);
    tcase_add_test(tests, test_dtype_names);
    tcase_add_test(tests, test_dtype_aliases);
    tcase_add_test(tests, test_parse_refuses);
    tcase_add_test(tests, test_op_names);
    tcase_add_test(tests, test_op_allows);
    tcase_add_test(tests, test_op_changes_one);
    tcase_add_test(tests, test_collective_names);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
