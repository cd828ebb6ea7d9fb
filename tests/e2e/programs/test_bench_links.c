/* The links of a large job, played in virtual time: the order in which exchanges send keeps them
 * full, and a late node costs its lateness; where messages leave as they were sent, a little more.
 * The figures are the same on every machine. */
#include "tests/lib/bench_program.h"
#include "tests/lib/suite.h"

#define PROGRAM TEST_BUILD_DIR "/bench/bench_links"

static json_t *measured(const char *nodes, const char *late_ms, const char *order)
{
    return bench_program_run((const char *[]){PROGRAM, nodes, "1", "32", late_ms, order, NULL});
}

/* Headers are 1.012 of the payload. */
START_TEST(links_are_full)
{
    static const struct {
        const char *nodes, *order;
        double growth; /* over the lateness */
    } shapes[] = {{"16", "turns", 1.02}, {"48", "turns", 1.02}, {"48", "fifo", 1.2}};
    json_t *prompt = measured(shapes[_i].nodes, "0", shapes[_i].order);
    json_t *late = measured(shapes[_i].nodes, "3", shapes[_i].order);
    double virtual_us = bench_program_number(prompt, "virtual_us");
    ck_assert_double_ge(virtual_us, bench_program_number(prompt, "bound_us"));
    ck_assert_double_le(virtual_us, 1.02 * bench_program_number(prompt, "bound_us"));
    ck_assert_double_ge(bench_program_number(late, "virtual_us"),
                        3000 + bench_program_number(late, "bound_us"));
    ck_assert_double_le(bench_program_number(late, "virtual_us") - virtual_us,
                        shapes[_i].growth * 3000);
    json_decref(prompt);
    json_decref(late);
}
END_TEST

START_TEST(wrong_arguments)
{
    static const struct {
        const char *nodes, *order, *expected;
    } cases[] = {{"4", "random", "usage"}, {"1", "turns", "\"1\""}, {"x", "turns", "\"x\""}};
    bench_program_refuses(
        (const char *[]){PROGRAM, cases[_i].nodes, "1", "1", "0", cases[_i].order, NULL},
        cases[_i].expected);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bench links");
    TCase *cases = tcase_create("links");
    tcase_set_timeout(cases, 600);
    tcase_add_loop_test(cases, links_are_full, 0, 3);
    tcase_add_loop_test(cases, wrong_arguments, 0, 3);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
