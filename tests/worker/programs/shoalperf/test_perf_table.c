#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/reduce/reduce.h"
#include "tests/lib/reduce_into.h"
#include "tests/lib/suite.h"
#include "worker/programs/shoalperf/perf_options.h"
#include "worker/programs/shoalperf/perf_table.h"
#include "worker/programs/shoalperf/perf_values.h"

#define WORDS(...) ((char **)(const char *[]){"shoalperf", __VA_ARGS__, NULL})

static int parse(struct perf_options *options, struct error *error, char **words)
{
    int count = 0;
    while (words[count])
        count++;
    return perf_options_parse(count, words, options, error);
}

/* --- options -------------------------------------------------------------------------------- */

START_TEST(test_options)
{
    struct perf_options options;
    struct error error = {0};
    ck_assert_int_eq(parse(&options, &error,
                           WORDS("all_reduce", "-b", "1K", "-e", "64M", "-f", "4", "-d", "float32",
                                 "-o", "sum", "-w", "1", "-n", "3", "--arena", "--json")),
                     0);
    ck_assert_int_eq(options.collective, COLLECTIVE_ALL_REDUCE);
    ck_assert_uint_eq(options.least_bytes, 1024);
    ck_assert_uint_eq(options.most_bytes, 64u << 20);
    ck_assert_uint_eq(options.factor, 4);
    ck_assert_uint_eq(options.step_bytes, 0);
    ck_assert_int_eq(options.dtype, DTYPE_F32);
    ck_assert_uint_eq(options.warmup, 1);
    ck_assert_uint_eq(options.iterations, 3);
    ck_assert(options.arena && options.json && options.check && !options.in_place);
    ck_assert_int_eq(
        parse(&options, &error,
              WORDS("--in-place", "reduce", "-r", "3", "--check", "0", "-d", "all", "-o", "all")),
        0);
    ck_assert_int_eq(options.collective, COLLECTIVE_REDUCE);
    ck_assert_uint_eq(options.root, 3);
    ck_assert(options.in_place && !options.check && options.all_ops && options.all_dtypes);
    ck_assert_uint_eq(options.most_bytes, options.least_bytes);
}
END_TEST

static void refuse(char **words, const char *expected)
{
    struct perf_options options;
    struct error error = {0};
    ck_assert_int_eq(parse(&options, &error, words), ERR_INVALID);
    ck_assert_msg(strstr(error.text, expected), "\"%s\" lacks \"%s\"", error.text, expected);
}

START_TEST(test_options_refused)
{
    refuse(WORDS("-b", "4"), "which collective?");
    refuse(WORDS("all_scatter"), "unknown collective \"all_scatter\"");
    refuse(WORDS("reduce", "reduce"), "one collective only");
    refuse(WORDS("reduce", "-b", "x"), "-b: ");
    refuse(WORDS("reduce", "-b", "2K", "-e", "1K"), "-e is less than -b");
    refuse(WORDS("reduce", "-f", "1"), "-f: got \"1\"");
    refuse(WORDS("barrier", "--plot", "x.svg"), "--plot: a barrier has no sizes");
    refuse(WORDS("reduce", "--plot", ""), "--plot: the name of a file is empty");
    refuse(WORDS("reduce", "--plot"), "--plot needs a value");
    refuse(WORDS("reduce", "-i", "0"), "-i: got \"0\"");
    refuse(WORDS("reduce", "-b", "1", "-e", "64M", "-i", "1"), "more than 100000 sizes");
    refuse(WORDS("reduce", "-d", "float99"), "-d: unknown type \"float99\"");
    refuse(WORDS("reduce", "-o", "mean"), "-o: unknown operation \"mean\"");
    refuse(WORDS("reduce", "-d", "float", "-o", "bxor"), "bxor is not defined for float");
    refuse(WORDS("reduce", "--count", "1,0"), "--count: got \"0\"");
    refuse(WORDS("reduce", "--count", ",3"), "--count: got \"\"");
    refuse(WORDS("reduce", "--count", ""), "no count given");
    refuse(WORDS("reduce", "--check", "2"), "--check: got \"2\"");
    refuse(WORDS("reduce", "-n", "0"), "-n: got \"0\"");
    refuse(WORDS("reduce", "-n"), "-n needs a value");
    refuse(WORDS("reduce", "--uneven"), "--uneven: reduce has no parts");
    refuse(WORDS("reduce", "--rewrite", "--device", "cuda"), "--rewrite: not on a device");
    refuse(WORDS("reduce", "--device", "tpu"), "--device: got \"tpu\", must be cpu or cuda");
    refuse(WORDS("reduce", "--device", "cuda", "--arena"), "--arena: buffers are there or on");
    refuse(WORDS("all_to_all", "--in-place"), "--in-place: all_to_all cannot be");
    refuse(WORDS("sendrecv", "--in-place"), "--in-place: sendrecv cannot be");
    refuse(WORDS("sendrecv", "--uneven"), "--uneven: sendrecv has no parts");
    refuse(WORDS("reduce", "--shared-result"), "--shared-result: only all_reduce has one");
    refuse(WORDS("all_reduce", "--shared-result", "--in-place"), "--shared-result: not in place");
    refuse(WORDS("all_reduce", "--device", "cuda", "--shared-result"),
           "--shared-result: not on a device");
    refuse(WORDS("send"), "unknown collective \"send\"");
    refuse(WORDS("reduce", "--blocking"), "unknown option --blocking");
}
END_TEST

static void check_counts(char **words, enum dtype dtype, const uint64_t *expected, size_t length)
{
    struct perf_options options;
    struct error error = {0};
    uint64_t *counts;
    size_t used;
    ck_assert_int_eq(parse(&options, &error, words), 0);
    ck_assert_int_eq(perf_counts(&options, dtype, 4, &counts, &used, &error), 0);
    ck_assert_uint_eq(used, length);
    for (size_t i = 0; i < length; i++)
        ck_assert_uint_eq(counts[i], expected[i]);
    free(counts);
    options.dtype = dtype;
    ck_assert_uint_eq(perf_row_count(&options, 4), length);
}

START_TEST(test_counts)
{
    check_counts(WORDS("all_reduce", "-b", "4", "-e", "1K", "-f", "4"), DTYPE_F32,
                 (uint64_t[]){1, 4, 16, 64, 256}, 5);
    /* 4 bytes are rounded up to one element, which then is not measured again. */
    check_counts(WORDS("all_reduce", "-b", "4", "-e", "64", "-f", "2"), DTYPE_F64,
                 (uint64_t[]){1, 2, 4, 8}, 4);
    check_counts(WORDS("all_reduce", "-b", "0", "-e", "4", "-f", "2"), DTYPE_U8,
                 (uint64_t[]){1, 2, 4}, 3);
    check_counts(WORDS("all_reduce", "-b", "10", "-e", "31", "-i", "10"), DTYPE_F16,
                 (uint64_t[]){5, 10, 15}, 3);
    check_counts(WORDS("all_reduce", "-b", "1M"), DTYPE_I8, (uint64_t[]){1u << 20}, 1);
    check_counts(WORDS("reduce", "--count", "1,3,1000003"), DTYPE_I64, (uint64_t[]){1, 3, 1000003},
                 3);
    /* With 4 ranks that have a part each, a size is that of all parts, a count that of one. */
    check_counts(WORDS("all_gather", "-b", "4", "-e", "1K", "-f", "4"), DTYPE_F32,
                 (uint64_t[]){1, 4, 16, 64}, 4);
    check_counts(WORDS("scatter", "--count", "1,3"), DTYPE_F32, (uint64_t[]){1, 3}, 2);
    check_counts(WORDS("sendrecv", "-b", "4", "-e", "64", "-f", "4"), DTYPE_F32,
                 (uint64_t[]){1, 4, 16}, 3);
    check_counts(WORDS("barrier", "-b", "4", "-e", "64", "-f", "2"), DTYPE_F32, (uint64_t[]){0}, 1);
}
END_TEST

static uint32_t count_pairs(char **words)
{
    struct perf_options options;
    struct error error = {0};
    ck_assert_int_eq(parse(&options, &error, words), 0);
    uint32_t place = 0, pairs = 0;
    enum dtype dtype;
    enum reduce_op op;
    while (perf_next_pair(&options, &place, &dtype, &op)) {
        ck_assert(reduce_op_allows(op, dtype));
        pairs++;
    }
    options.count_count = 3;
    uint64_t counts = options.collective == COLLECTIVE_BARRIER ? 1 : 3;
    ck_assert_uint_eq(perf_row_count(&options, 4), counts * pairs);
    return pairs;
}

START_TEST(test_pairs)
{
    ck_assert_uint_eq(count_pairs(WORDS("all_reduce")), 1);
    ck_assert_uint_eq(count_pairs(WORDS("all_reduce", "-d", "all")), 12);
    ck_assert_uint_eq(count_pairs(WORDS("all_reduce", "-o", "all")), 5);
    ck_assert_uint_eq(count_pairs(WORDS("reduce", "-d", "uint8", "-o", "all")), 11);
    ck_assert_uint_eq(count_pairs(WORDS("reduce", "-d", "all", "-o", "bor")), 8);
    ck_assert_uint_eq(count_pairs(WORDS("reduce", "-d", "all", "-o", "all")), 4 * 5 + 8 * 11);
    ck_assert_uint_eq(count_pairs(WORDS("broadcast", "-d", "all", "-o", "all")), 12);
    ck_assert_uint_eq(count_pairs(WORDS("reduce_scatter", "-d", "all", "-o", "all")), 108);
    ck_assert_uint_eq(count_pairs(WORDS("all_to_all", "-d", "all", "-o", "all")), 12);
    ck_assert_uint_eq(count_pairs(WORDS("sendrecv", "-d", "all", "-o", "all")), 12);
    ck_assert_uint_eq(count_pairs(WORDS("barrier", "-d", "all", "-o", "all")), 1);
}
END_TEST

/* --- values --------------------------------------------------------------------------------- */

/* Every type and operation: the expected results against the reduction that the daemon uses, on
 * one node and on two (the sum of nodes 0 and 1 rounded before the owner's sum). */
static void compare_with_kernels(enum dtype dtype, enum reduce_op op, uint32_t ranks)
{
    struct perf_case what = {
        .dtype = dtype, .op = op, .ranks = ranks, .root = 0, .round = 7, .rank = 0};
    struct perf_values values[16];
    const void *inputs[16];
    struct error error;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        what.rank = rank;
        ck_assert_int_eq(perf_values_make(&values[rank], &what, &error), 0);
        inputs[rank] = values[rank].input;
    }
    const struct reduce_kernels *kernels = reduce_select(REDUCE_ISA_SCALAR);
    size_t bytes = (size_t)PERF_PERIOD * dtype_bytes(dtype);
    void *whole = malloc(bytes), *low = malloc(bytes), *high = malloc(bytes);
    reduce_into(kernels, dtype, op, inputs, ranks, whole, PERF_PERIOD, ranks);
    uint64_t first = 0;
    ck_assert_msg(perf_values_check(&values[0], whole, PERF_PERIOD, &first) == 0,
                  "%s %s, %u ranks: element %lu", dtype_name(dtype), reduce_op_name(op), ranks,
                  (unsigned long)first);
    if (ranks > 1) {
        uint32_t half = ranks / 2;
        enum reduce_op first_hop = op == REDUCE_AVG ? REDUCE_SUM : op;
        reduce_into(kernels, dtype, first_hop, inputs, half, low, PERF_PERIOD, 1);
        reduce_into(kernels, dtype, first_hop, inputs + half, ranks - half, high, PERF_PERIOD, 1);
        const void *sums[] = {low, high};
        reduce_into(kernels, dtype, op, sums, 2, whole, PERF_PERIOD, ranks);
        ck_assert_msg(perf_values_check(&values[0], whole, PERF_PERIOD, NULL) == 0,
                      "%s %s, %u ranks on two nodes", dtype_name(dtype), reduce_op_name(op), ranks);
    }
    free(whole);
    free(low);
    free(high);
    for (uint32_t rank = 0; rank < ranks; rank++)
        ck_assert_mem_eq(values[rank].expected, values[0].expected, bytes);
    for (uint32_t rank = 0; rank < ranks; rank++)
        perf_values_clear(&values[rank]);
}

START_TEST(test_values_exact)
{
    static const uint32_t worlds[] = {1, 2, 3, 4, 7, 16};
    for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++)
        for (unsigned op = 0; op < REDUCE_OP_COUNT; op++)
            for (size_t i = 0; reduce_op_allows(op, dtype) && i < 6; i++)
                compare_with_kernels((enum dtype)dtype, (enum reduce_op)op, worlds[i]);
}
END_TEST

START_TEST(test_values_differ)
{
    struct perf_case what = {.dtype = DTYPE_F32, .ranks = 4, .rank = 1};
    struct perf_values one, other, later;
    struct error error;
    ck_assert_int_eq(perf_values_make(&one, &what, &error), 0);
    what.rank = 2;
    ck_assert_int_eq(perf_values_make(&other, &what, &error), 0);
    what.round = 1;
    ck_assert_int_eq(perf_values_make(&later, &what, &error), 0);
    /* Ranks give different data, rounds different results: stale or swapped ones show. */
    ck_assert_uint_gt(perf_values_check_input(&one, other.input, PERF_PERIOD), PERF_PERIOD / 2);
    ck_assert_uint_gt(perf_values_check(&one, later.expected, PERF_PERIOD, NULL), PERF_PERIOD / 2);
    perf_values_clear(&one);
    perf_values_clear(&other);
    perf_values_clear(&later);
}
END_TEST

START_TEST(test_values_found_wrong)
{
    const uint64_t count = 3 * PERF_PERIOD + 5;
    struct perf_case what = {.dtype = DTYPE_I32, .ranks = 1};
    struct perf_values values;
    struct error error;
    ck_assert_int_eq(perf_values_make(&values, &what, &error), 0);
    int32_t *data = malloc(count * sizeof(*data));
    uint64_t first = 99;
    perf_values_fill(&values, data, count); /* of one rank: the result is the input */
    ck_assert_uint_eq(perf_values_check(&values, data, count, &first), 0);
    ck_assert_uint_eq(perf_values_check_input(&values, data, count), 0);
    ck_assert_uint_eq(first, 99);
    data[PERF_PERIOD + 17] ^= 1;
    data[count - 1] ^= 1 << 30;
    ck_assert_uint_eq(perf_values_check(&values, data, count, &first), 2);
    ck_assert_uint_eq(first, PERF_PERIOD + 17);
    perf_values_poison(&values, data, count);
    ck_assert_uint_eq(perf_values_check_poison(&values, data, count), 0);
    ck_assert_uint_gt(perf_values_check(&values, data, count, NULL), count - 3);
    ((uint8_t *)data)[3] = 0;
    ck_assert_uint_eq(perf_values_check_poison(&values, data, count), 1);
    free(data);
    perf_values_clear(&values);
}
END_TEST

START_TEST(test_values_broadcast)
{
    struct perf_case what = {
        .collective = COLLECTIVE_BROADCAST, .dtype = DTYPE_BF16, .ranks = 3, .rank = 2, .root = 1};
    struct perf_values root, other;
    struct error error;
    ck_assert_int_eq(perf_values_make(&other, &what, &error), 0);
    what.rank = 1;
    ck_assert_int_eq(perf_values_make(&root, &what, &error), 0);
    ck_assert_mem_eq(root.input, other.expected, PERF_PERIOD * 2);
    ck_assert_mem_eq(root.input, root.expected, PERF_PERIOD * 2);
    perf_values_clear(&root);
    perf_values_clear(&other);
}
END_TEST

START_TEST(test_element_bits)
{
    static const struct {
        double value;
        uint16_t half, bfloat;
    } cases[] = {
        {0, 0x0000, 0x0000},   {1, 0x3c00, 0x3f80},    {-2, 0xc000, 0xc000},
        {0.5, 0x3800, 0x3f00}, {2047, 0x67ff, 0x44ff}, {-255, 0xdbf8, 0xc37f},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint16_t bits;
        perf_element_write(DTYPE_F16, cases[i].value, 0, &bits);
        ck_assert_uint_eq(bits, cases[i].half);
        ck_assert(cases[i].value == (double)f16_to_f32(bits));
        perf_element_write(DTYPE_BF16, cases[i].value, 0, &bits);
        ck_assert_uint_eq(bits, cases[i].bfloat);
    }
}
END_TEST

/* --- table ---------------------------------------------------------------------------------- */

static struct perf_row example_row(void)
{
    return (struct perf_row){
        .collective = COLLECTIVE_ALL_REDUCE,
        .dtype = DTYPE_F32,
        .op = REDUCE_SUM,
        .root = -1,
        .count = 1000000,
        .ranks = 4,
        .nodes = 2,
        .time_us = 2000,
        .checked = true,
    };
}

START_TEST(test_bandwidths)
{
    struct perf_row row = example_row();
    ck_assert_double_eq_tol(perf_algbw_GBps(&row), 2.0, 1e-12); /* 4e6 bytes in 2 ms */
    ck_assert_double_eq_tol(perf_busbw_GBps(&row), 3.0, 1e-12); /* 2 * 3 / 4 of it */
    row.collective = COLLECTIVE_REDUCE;
    ck_assert_double_eq_tol(perf_busbw_GBps(&row), 2.0, 1e-12);
    row.collective = COLLECTIVE_BROADCAST;
    ck_assert_double_eq_tol(perf_busbw_GBps(&row), 2.0, 1e-12);
    /* A million for each of 4 ranks: 16e6 bytes. */
    for (unsigned kind = COLLECTIVE_ALL_GATHER; kind <= COLLECTIVE_ALL_TO_ALL; kind++) {
        row.collective = kind;
        ck_assert_double_eq_tol(perf_algbw_GBps(&row), 8.0, 1e-12);
        ck_assert_double_eq_tol(perf_busbw_GBps(&row), 6.0, 1e-12); /* 3 / 4 of it */
    }
    row.collective = COLLECTIVE_SEND;
    ck_assert_double_eq_tol(perf_algbw_GBps(&row), 2.0, 1e-12);
    ck_assert_double_eq_tol(perf_busbw_GBps(&row), 2.0, 1e-12);
    ck_assert_str_eq(perf_collective_name(COLLECTIVE_SEND), "sendrecv");
    ck_assert_str_eq(perf_collective_name(COLLECTIVE_SCATTER), "scatter");
    row.collective = COLLECTIVE_ALL_REDUCE;
    row.ranks = 1;
    ck_assert_double_eq_tol(perf_busbw_GBps(&row), 0, 1e-12);
    row.time_us = 0;
    ck_assert_double_eq_tol(perf_algbw_GBps(&row), 0, 1e-12);
}
END_TEST

static char *printed(void (*print)(FILE *out, const struct perf_row *row),
                     const struct perf_row *row)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    print(out, row);
    fclose(out);
    return text;
}

static void words_check(const char *line, const char *expected)
{
    char word[64], squeezed[512] = "";
    int used = 0, at = 0;
    while (sscanf(line + at, "%63s%n", word, &used) == 1) {
        strcat(squeezed, *squeezed ? " " : "");
        strcat(squeezed, word);
        at += used;
    }
    ck_assert_str_eq(squeezed, expected);
}

START_TEST(test_rows)
{
    struct perf_row row = example_row();
    char *text = printed(perf_table_row, &row);
    words_check(text, "4000000 1000000 float sum -1 2000.00 2.00 3.00 0");
    free(text);
    row.checked = false;
    row.root = 2;
    row.collective = COLLECTIVE_BROADCAST;
    text = printed(perf_table_row, &row);
    words_check(text, "4000000 1000000 float none 2 2000.00 2.00 2.00 N/A");
    free(text);
    row = example_row();
    row.collective = COLLECTIVE_REDUCE_SCATTER;
    text = printed(perf_table_row, &row);
    words_check(text, "16000000 1000000 float sum -1 2000.00 8.00 6.00 0");
    free(text);
    row = (struct perf_row){
        .collective = COLLECTIVE_BARRIER, .root = -1, .time_us = 5, .checked = true, .wrong = 1};
    text = printed(perf_table_row, &row);
    words_check(text, "0 0 none none -1 5.00 0.00 0.00 1");
    free(text);
}
END_TEST

START_TEST(test_json)
{
    struct perf_row row = example_row();
    row.wrong = 3;
    char *text = printed(perf_json_row, &row);
    ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1);
    json_t *object = json_loads(text, 0, NULL);
    free(text);
    const char *collective, *dtype, *op;
    json_int_t bytes, ranks, nodes, wrong;
    double time_us, algbw, busbw;
    ck_assert_int_eq(json_unpack(object, "{s:s, s:I, s:s, s:s, s:I, s:I, s:F, s:F, s:F, s:I !}",
                                 "collective", &collective, "bytes", &bytes, "dtype", &dtype, "op",
                                 &op, "ranks", &ranks, "nodes", &nodes, "time_us", &time_us,
                                 "algbw_GBps", &algbw, "busbw_GBps", &busbw, "wrong", &wrong),
                     0);
    ck_assert_str_eq(collective, "all_reduce");
    ck_assert_str_eq(dtype, "float");
    ck_assert_str_eq(op, "sum");
    ck_assert(bytes == 4000000 && ranks == 4 && nodes == 2 && wrong == 3);
    ck_assert_double_eq_tol(time_us, 2000, 1e-9);
    ck_assert_double_eq_tol(algbw, 2, 1e-9);
    ck_assert_double_eq_tol(busbw, 3, 1e-9);
    json_decref(object);
    row.checked = false;
    text = printed(perf_json_row, &row);
    ck_assert_ptr_nonnull(strstr(text, "\"wrong\":null"));
    free(text);
}
END_TEST

START_TEST(test_head_and_foot)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    perf_table_head(out, "reduce", 4, 2, "arena");
    perf_table_foot(out, 0, 6, 3);
    perf_table_foot(out, 5, 0, 0);
    fclose(out);
    for (const char *line = text; *line; line = strchr(line, '\n') + 1)
        ck_assert_int_eq(*line, '#');
    ck_assert_ptr_nonnull(strstr(text, "4 ranks on 2 nodes, arena"));
    ck_assert_ptr_nonnull(strstr(text, "# Out of bounds values : 0 OK\n"));
    ck_assert_ptr_nonnull(strstr(text, "# Avg bus bandwidth    : 2\n"));
    ck_assert_ptr_nonnull(strstr(text, "# Out of bounds values : 5 FAILED\n"));
    free(text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("perf_table");
    TCase *options = tcase_create("options");
    tcase_add_test(options, test_options);
    tcase_add_test(options, test_options_refused);
    tcase_add_test(options, test_counts);
    tcase_add_test(options, test_pairs);
    suite_add_tcase(suite, options);
    TCase *values = tcase_create("values");
    tcase_set_timeout(values, 120);
    tcase_add_test(values, test_values_exact);
    tcase_add_test(values, test_values_differ);
    tcase_add_test(values, test_values_found_wrong);
    tcase_add_test(values, test_values_broadcast);
    tcase_add_test(values, test_element_bits);
    suite_add_tcase(suite, values);
    TCase *table = tcase_create("table");
    tcase_add_test(table, test_bandwidths);
    tcase_add_test(table, test_rows);
    tcase_add_test(table, test_json);
    tcase_add_test(table, test_head_and_foot);
    suite_add_tcase(suite, table);
    return suite_main(suite);
}
