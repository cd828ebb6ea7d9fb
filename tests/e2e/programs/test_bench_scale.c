/* The cluster in one process that the benchmark measures: that it is whole, and what it counts. How
 * long anything takes is not looked at. */
#include "tests/lib/bench_program.h"
#include "tests/lib/suite.h"

#define PROGRAM TEST_BUILD_DIR "/bench/bench_scale"

static json_t *measured(const char *nodes, const char *per_node)
{
    return bench_program_run((const char *[]){PROGRAM, nodes, per_node, NULL});
}

static double messages(const json_t *row, const char *step)
{
    const json_t *value = json_object_get(row, step);
    ck_assert_msg(json_is_object(value), "%s", step);
    ck_assert(bench_program_number(value, "mean_us") > 0);
    ck_assert(bench_program_number(value, "most_us") >= bench_program_number(value, "mean_us"));
    return bench_program_number(value, "messages");
}

/* A contribution to and a result from each other node for its own chunk, and for each of theirs. */
START_TEST(test_messages)
{
    static const struct {
        const char *nodes, *per_node;
        int node_count, rank_count;
    } shapes[] = {{"2", "1", 2, 2}, {"5", "2", 5, 10}, {"20", "3", 20, 60}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        json_t *row = measured(shapes[i].nodes, shapes[i].per_node);
        double others = shapes[i].node_count - 1;
        ck_assert_int_eq((int)bench_program_number(row, "nodes"), shapes[i].node_count);
        ck_assert_int_eq((int)bench_program_number(row, "ranks"), shapes[i].rank_count);
        ck_assert_double_eq_tol(messages(row, "all_reduce"), 2 * others, 0.001);
        ck_assert_double_eq_tol(messages(row, "barrier"), 2 * others / shapes[i].node_count, 0.001);
        ck_assert_double_eq(messages(row, "join"), 0);
        ck_assert_double_eq(messages(row, "leave"), 0);
        json_decref(row);
    }
}
END_TEST

/* More with a job than without, and with more of either. */
START_TEST(test_memory)
{
#ifdef SHOAL_SANITIZED
    suite_skip("test_memory", "under a sanitizer the C library does not know the heap");
    return;
#endif
    json_t *small = measured("10", "2"), *workers = measured("10", "8"),
           *nodes = measured("40", "2");
    json_t *rows[] = {small, workers, nodes};
    for (int i = 0; i < 3; i++) {
        ck_assert(bench_program_number(rows[i], "up_bytes") > 0);
        ck_assert(bench_program_number(rows[i], "joined_bytes") >
                  bench_program_number(rows[i], "up_bytes"));
        ck_assert(bench_program_number(rows[i], "worked_bytes") >
                  bench_program_number(rows[i], "joined_bytes"));
        ck_assert(bench_program_number(rows[i], "left_bytes") <
                  bench_program_number(rows[i], "joined_bytes"));
        ck_assert(bench_program_number(rows[i], "buffer_bytes") > 0);
    }
    ck_assert(bench_program_number(workers, "joined_bytes") >
              bench_program_number(small, "joined_bytes"));
    ck_assert(bench_program_number(nodes, "up_bytes") > bench_program_number(small, "up_bytes"));
    ck_assert(bench_program_number(nodes, "buffer_bytes") >
              bench_program_number(small, "buffer_bytes"));
    for (int i = 0; i < 3; i++)
        json_decref(rows[i]);
}
END_TEST

START_TEST(test_wrong_arguments)
{
    static const struct {
        const char *nodes, *per_node, *expected;
    } cases[] = {{NULL, NULL, "usage"},     {"4", NULL, "usage"}, {"0", "1", "\"0\""},
                 {"2000", "1", "\"2000\""}, {"x", "1", "\"x\""},  {"2", "-1", "\"-1\""}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        bench_program_refuses((const char *[]){PROGRAM, cases[i].nodes, cases[i].per_node, NULL},
                              cases[i].expected);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bench scale");
    TCase *cases = tcase_create("scale");
    tcase_set_timeout(cases, 400);
    tcase_add_test(cases, test_messages);
    tcase_add_test(cases, test_memory);
    tcase_add_test(cases, test_wrong_arguments);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
