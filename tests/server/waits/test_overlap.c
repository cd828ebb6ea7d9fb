/* How a job's time splits, fed with collectives at made-up times. */
#include "server/waits/overlap.h"

#include <stdlib.h>

#include "tests/lib/suite.h"

#define MS UINT64_C(1000000)

static struct overlap overlap;

static void setup(void)
{
    overlap_init(&overlap, 100 * MS);
}

static void expect_at(uint64_t now_ns, uint32_t window_us, uint32_t hidden_us, uint32_t exposed_us)
{
    struct overlap_figures told;
    overlap_tell(&overlap, now_ns, &told);
    ck_assert_uint_eq(told.window_us, window_us);
    ck_assert_uint_eq(told.hidden_us, hidden_us);
    ck_assert_uint_eq(told.exposed_us, exposed_us);
}

START_TEST(nothing_is_told_of_nothing)
{
    expect_at(100 * MS, 0, 0, 0);
    expect_at(150 * MS, 50000, 0, 0);
}
END_TEST

START_TEST(one_that_is_waited_for_is_exposed)
{
    overlap_begin(&overlap, 110 * MS);
    expect_at(115 * MS, 15000, 0, 5000);
    overlap_end(&overlap, 120 * MS);
    expect_at(200 * MS, 100000, 0, 10000);
}
END_TEST

/* A backward pass begins buckets at 110, 120 and 130 ms; the last is over at 145. */
START_TEST(what_others_begin_behind_is_hidden)
{
    overlap_begin(&overlap, 110 * MS);
    overlap_begin(&overlap, 120 * MS);
    overlap_end(&overlap, 125 * MS);
    overlap_begin(&overlap, 130 * MS);
    overlap_end(&overlap, 132 * MS);
    overlap_end(&overlap, 145 * MS);
    expect_at(200 * MS, 100000, 20000, 15000);
}
END_TEST

START_TEST(gaps_are_computing)
{
    overlap_begin(&overlap, 110 * MS);
    overlap_end(&overlap, 112 * MS);
    overlap_begin(&overlap, 150 * MS);
    overlap_end(&overlap, 153 * MS);
    expect_at(200 * MS, 100000, 0, 5000);
}
END_TEST

START_TEST(time_does_not_run_backwards)
{
    overlap_begin(&overlap, 110 * MS);
    overlap_begin(&overlap, 109 * MS); /* a clock of another round */
    overlap_end(&overlap, 108 * MS);
    overlap_end(&overlap, 108 * MS);
    expect_at(120 * MS, 20000, 0, 0);
    overlap_begin(&overlap, 130 * MS);
    expect_at(129 * MS, 29000, 0, 0);
}
END_TEST

START_TEST(the_window_is_the_last_two_halves)
{
    overlap_begin(&overlap, 110 * MS);
    overlap_end(&overlap, 120 * MS);
    overlap_turn(&overlap, 200 * MS);
    expect_at(250 * MS, 150000, 0, 10000);
    overlap_begin(&overlap, 260 * MS);
    overlap_begin(&overlap, 265 * MS);
    overlap_turn(&overlap, 300 * MS); /* 35 ms since the newest began, and both go on */
    expect_at(300 * MS, 100000, 5000, 35000);
    overlap_end(&overlap, 310 * MS);
    overlap_end(&overlap, 330 * MS);
    expect_at(330 * MS, 130000, 5000, 65000);
    overlap_turn(&overlap, 400 * MS);
    expect_at(400 * MS, 100000, 0, 30000);
    overlap_turn(&overlap, 500 * MS);
    expect_at(500 * MS, 100000, 0, 0);
}
END_TEST

/* Whatever comes when: what is told is exactly the time in which something is under way. */
START_TEST(random_collectives_fill_the_time_that_they_take)
{
    srand(7);
    uint32_t open = 0;
    uint64_t now_ns = 100 * MS, busy_ns = 0;
    for (int i = 0; i < 20000; i++) {
        uint64_t passed_ns = (uint64_t)(rand() % 1000) * 1000;
        now_ns += passed_ns;
        busy_ns += open > 0 ? passed_ns : 0;
        if (open > 0 && rand() % 2 == 0) {
            overlap_end(&overlap, now_ns);
            open--;
        } else if (open < 5) {
            overlap_begin(&overlap, now_ns);
            open++;
        }
        struct overlap_figures told;
        overlap_tell(&overlap, now_ns, &told);
        ck_assert_uint_eq((uint64_t)told.hidden_us + told.exposed_us, busy_ns / 1000);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("overlap");
    TCase *cases = tcase_create("overlap");
    tcase_add_checked_fixture(cases, setup, NULL);
    tcase_add_test(cases, nothing_is_told_of_nothing);
    tcase_add_test(cases, one_that_is_waited_for_is_exposed);
    tcase_add_test(cases, what_others_begin_behind_is_hidden);
    tcase_add_test(cases, gaps_are_computing);
    tcase_add_test(cases, time_does_not_run_backwards);
    tcase_add_test(cases, the_window_is_the_last_two_halves);
    tcase_add_test(cases, random_collectives_fill_the_time_that_they_take);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
