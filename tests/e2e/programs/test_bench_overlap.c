/* The replay of a backward pass, as the benchmark runs it: what it makes of a table, and what it
 * refuses. How long anything takes is not looked at. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/bench_program.h"
#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

#define PROGRAM TEST_BUILD_DIR "/bench/bench_overlap"
#define HEADING "tensor,elements,operations\n"

static const char resnet50[] = TEST_SOURCE_DIR "/tests/bench/models/resnet50.csv";

static char *folder;

static void setup(void)
{
    folder = suite_make_directory();
}

static void teardown(void)
{
    suite_remove_directory(folder);
}

static const char *table_write(const char *text)
{
    static char path[512];
    snprintf(path, sizeof(path), "%s/table.csv", folder);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    return path;
}

/* On so many nodes of one rank each; the line of JSON. The arguments end with NULL. */
static json_t *replayed(const char *nodes, const char *const *arguments)
{
    const char *argv[32] = {
        CLUSTER_BIN "shoalrun", "--timeout", "100", "--nodes", nodes, "-n", "1", "--", PROGRAM};
    int count = 9;
    for (; *arguments; arguments++)
        argv[count++] = *arguments;
    json_t *row = bench_program_run(argv);
    ck_assert(json_is_integer(json_object_get(row, "wrong")));
    ck_assert_int_eq(json_integer_value(json_object_get(row, "wrong")), 0);
    ck_assert(json_real_value(json_object_get(row, "last_us")) > 0);
    ck_assert(json_is_real(json_object_get(row, "exposed_us")));
    return row;
}

static long long whole(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    ck_assert_msg(json_is_integer(value), "%s", key);
    return json_integer_value(value);
}

static double backward_us(const json_t *row)
{
    return json_real_value(json_object_get(row, "backward_us"));
}

/* Work without parameters takes its time and has no gradient; every gradient begins at a multiple
 * of 64 bytes. */
START_TEST(test_table_with_work_without_parameters)
{
    const char *table = table_write("# a comment\n" HEADING "first,1000,10\nnothing,0,500\n"
                                    "# another\nlast,16,0\n");
    json_t *row = replayed("2", (const char *[]){table, "float", "1e8", "2", NULL});
    ck_assert_int_eq(whole(row, "parameters"), 2);
    ck_assert_int_eq(whole(row, "bytes"), 4032 + 64);
    ck_assert_int_eq(whole(row, "buffers"), 1);
    ck_assert_int_eq(whole(row, "last_bytes"), 4032 + 64);
    /* 2 (n-1) / n of the bytes at 1e8 B/s are 0.9 of it. */
    ck_assert_double_eq_tol(backward_us(row), 4096 / 1e8 / 0.9 * 1e6, 0.1);
    json_decref(row);
}
END_TEST

START_TEST(test_types_thresholds_and_fractions)
{
    /* Backwards: 2 MiB fill the first buffer, then 3 and 4 fill the second one, 1 is left. */
    const char *table = table_write(HEADING "a,262144,1\nb,1048576,2\nc,786432,3\nd,524288,4\n");
    json_t *row = replayed("2", (const char *[]){table, "float", "1e10", "1", "5", "0.5", NULL});
    ck_assert_int_eq(whole(row, "parameters"), 4);
    ck_assert_int_eq(whole(row, "bytes"), 10 << 20);
    ck_assert_int_eq(whole(row, "buffers"), 3);
    ck_assert_int_eq(whole(row, "last_bytes"), 1 << 20);
    ck_assert_double_eq_tol(backward_us(row), (10 << 20) / 1e10 / 0.5 * 1e6, 0.1);
    json_decref(row);
    /* Half as many bytes each. Over four nodes each link carries 3/2 of a buffer. */
    row = replayed("4", (const char *[]){table, "bfloat16", "1e10", "1", "2", NULL});
    ck_assert_int_eq(whole(row, "bytes"), 5 << 20);
    ck_assert_int_eq(whole(row, "buffers"), 3);
    ck_assert_int_eq(whole(row, "last_bytes"), 1 << 19);
    ck_assert_double_eq_tol(backward_us(row), 1.5 * (5 << 20) / 1e10 / 0.9 * 1e6, 0.1);
    json_decref(row);
}
END_TEST

/* The table of this architecture: scripts/bench/self_test.py adds the tables up. */
START_TEST(test_resnet50)
{
    json_t *row = replayed("2", (const char *[]){resnet50, "bfloat16", "1e11", "1", "25", NULL});
    ck_assert_int_eq(whole(row, "parameters"), 161);
    ck_assert_int_ge(whole(row, "bytes"), 2 * 25557032LL);
    ck_assert_int_le(whole(row, "bytes"), 2 * 25557032LL + 161LL * 62);
    json_decref(row);
}
END_TEST

static void refused(const char *const *arguments, const char *expected)
{
    const char *argv[16] = {PROGRAM};
    for (int i = 0; arguments[i]; i++)
        argv[i + 1] = arguments[i];
    bench_program_refuses(argv, expected);
}

static void table_refused(const char *text, const char *expected)
{
    refused((const char *[]){table_write(text), "float", "1e9", "1", NULL}, expected);
}

START_TEST(test_wrong_tables)
{
    static const char *const wrong[] = {"a,1", "a,1,", ",1,1", "a,-1,1", "a,1,x", "a,1,1,1", "a"};
    char text[1024];
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        snprintf(text, sizeof(text), "# one\n%sgood,1,1\n%s\n", HEADING, wrong[i]);
        table_refused(text, "table.csv: line 4: must be a name, elements and operations");
    }
    table_refused("a,1,1\n", "line 1: must be the heading");
    table_refused("", "there are no operations");
    table_refused(HEADING "a,1,0\n", "there are no operations");
    table_refused(HEADING "a,0,1\n", "there are no elements");
    table_refused(HEADING "a,1,1", "line 2: too long, or without an end");
    snprintf(text, sizeof(text), "%s%0500d,1,1\n", HEADING, 0);
    table_refused(text, "line 2: too long");
}
END_TEST

START_TEST(test_wrong_arguments)
{
    const char *table = table_write(HEADING "a,1,1\n");
    refused((const char *[]){NULL}, "usage");
    refused((const char *[]){table, "float", "1e9", NULL}, "usage");
    refused((const char *[]){table, "float", "1e9", "1", "1", "1", "1", NULL}, "usage");
    refused((const char *[]){table, "int8", "1e9", "1", NULL}, "TYPE: got \"int8\"");
    refused((const char *[]){table, "float", "0", "1", NULL}, "BYTES_PER_S: got \"0\"");
    refused((const char *[]){table, "float", "nan", "1", NULL}, "BYTES_PER_S: got \"nan\"");
    refused((const char *[]){table, "float", "1e9", "-1", NULL}, "STEPS: got \"-1\"");
    refused((const char *[]){table, "float", "1e9", "1", "x", NULL}, "MEBIBYTES: got \"x\"");
    refused((const char *[]){table, "float", "1e9", "1", "1", "", NULL}, "FRACTION: got \"\"");
    refused((const char *[]){"/nowhere/table.csv", "float", "1e9", "1", NULL}, "/nowhere/table");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bench overlap");
    TCase *cases = tcase_create("replay");
    tcase_set_timeout(cases, 400);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_table_with_work_without_parameters);
    tcase_add_test(cases, test_types_thresholds_and_fractions);
    tcase_add_test(cases, test_resnet50);
    tcase_add_test(cases, test_wrong_tables);
    tcase_add_test(cases, test_wrong_arguments);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
