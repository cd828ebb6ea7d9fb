#include "common/log/log_throttle.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/suite.h"

#define START_NS (1000 * NS_PER_S)

static struct log log_;
static int reader;
static struct log_throttle throttle;
static char text[65536];

static void setup(void)
{
    int fds[2];
    ck_assert_int_eq(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
    log_init(&log_, "shoald", LOG_LEVEL_INFO, fds[1], true);
    close(fds[1]);
    reader = fds[0];
    throttle = (struct log_throttle){0};
}

static void teardown(void)
{
    log_close(&log_);
    close(reader);
}

/* Lines written since the last call; they are in `text`. */
static uint32_t lines(void)
{
    ssize_t got = read(reader, text, sizeof(text) - 1);
    text[got > 0 ? got : 0] = '\0';
    uint32_t count = 0;
    for (const char *end = text; (end = strchr(end, '\n')); end++)
        count++;
    return count;
}

static void say(uint64_t now_ns, uint32_t times)
{
    for (uint32_t i = 0; i < times; i++)
        log_throttled(&log_, &throttle, now_ns, LOG_LEVEL_WARNING, "stranger %s", "x");
}

START_TEST(a_burst_goes_and_then_one_line_an_interval)
{
    say(START_NS, LOG_THROTTLE_BURST);
    ck_assert_uint_eq(lines(), LOG_THROTTLE_BURST);
    ck_assert_ptr_null(strstr(text, "left out"));
    say(START_NS + LOG_THROTTLE_INTERVAL_NS - 1, 1000);
    ck_assert_uint_eq(lines(), 0);
    say(START_NS + LOG_THROTTLE_INTERVAL_NS, 1000);
    ck_assert_uint_eq(lines(), 1);
    ck_assert_str_eq(text, "<4>stranger x (1000 more such lines were left out)\n");
    say(START_NS + 2 * LOG_THROTTLE_INTERVAL_NS, 1);
    ck_assert_uint_eq(lines(), 1);
    ck_assert_ptr_nonnull(strstr(text, "(999 more"));
    ck_assert_uint_eq(throttle.left_out, 0);
}
END_TEST

START_TEST(quiet_time_gives_the_burst_back)
{
    say(START_NS, 10 * LOG_THROTTLE_BURST);
    ck_assert_uint_eq(lines(), LOG_THROTTLE_BURST);
    say(START_NS + LOG_THROTTLE_BURST * LOG_THROTTLE_INTERVAL_NS, 10 * LOG_THROTTLE_BURST);
    ck_assert_uint_eq(lines(), LOG_THROTTLE_BURST);
    /* No more than one burst, however long it was. */
    say(START_NS + 1000 * LOG_THROTTLE_BURST * LOG_THROTTLE_INTERVAL_NS, 10 * LOG_THROTTLE_BURST);
    ck_assert_uint_eq(lines(), LOG_THROTTLE_BURST);
}
END_TEST

/* A flood of a day is a bounded number of lines. */
START_TEST(a_flood_of_a_day)
{
    uint64_t passed = 0, left_out = 0, told = 0, count = 0;
    for (uint64_t ms = 0; ms < 86400000; ms += 10, count++) {
        if (log_throttle_pass(&throttle, START_NS + ms * NS_PER_MS, &left_out)) {
            passed++;
            told += left_out;
        }
    }
    uint64_t intervals = 86400 * NS_PER_S / LOG_THROTTLE_INTERVAL_NS;
    ck_assert_uint_ge(passed, intervals);
    ck_assert_uint_le(passed, intervals + LOG_THROTTLE_BURST);
    ck_assert_uint_eq(passed + told + throttle.left_out, count);
}
END_TEST

START_TEST(what_the_level_keeps_back_uses_up_nothing)
{
    for (uint32_t i = 0; i < 1000; i++)
        log_throttled(&log_, &throttle, START_NS, LOG_LEVEL_DEBUG, "debug");
    log_throttled(NULL, &throttle, START_NS, LOG_LEVEL_ERROR, "nobody logs");
    say(START_NS, LOG_THROTTLE_BURST);
    ck_assert_uint_eq(lines(), LOG_THROTTLE_BURST);
}
END_TEST

START_TEST(the_end_of_a_flood_is_told)
{
    log_throttle_sweep(&log_, &throttle, START_NS, "strangers");
    say(START_NS, LOG_THROTTLE_BURST + 7);
    ck_assert_uint_eq(lines(), LOG_THROTTLE_BURST);
    log_throttle_sweep(&log_, &throttle, START_NS, "strangers");
    ck_assert_uint_eq(lines(), 0);
    ck_assert_uint_eq(throttle.left_out, 7);
    log_throttle_sweep(&log_, &throttle, START_NS + LOG_THROTTLE_INTERVAL_NS, "strangers");
    ck_assert_uint_eq(lines(), 1);
    ck_assert_str_eq(text, "<4>7 lines about strangers were left out\n");
    log_throttle_sweep(&log_, &throttle, START_NS + 9 * LOG_THROTTLE_INTERVAL_NS, "strangers");
    ck_assert_uint_eq(lines(), 0);
}
END_TEST

START_TEST(one_users_lines_do_not_hide_anothers)
{
    static struct log_throttles throttles;
    struct log_throttle *first = log_throttle_of(&throttles, 1000);
    ck_assert_ptr_eq(first, log_throttle_of(&throttles, 1000));
    ck_assert_ptr_ne(first, log_throttle_of(&throttles, 1001));
    ck_assert_ptr_ne(first, log_throttle_of(&throttles, 0));
    for (uint32_t i = 0; i < 1000; i++)
        log_throttled(&log_, first, START_NS, LOG_LEVEL_WARNING, "of user 1000");
    ck_assert_uint_eq(lines(), LOG_THROTTLE_BURST);
    log_throttled(&log_, log_throttle_of(&throttles, 1001), START_NS, LOG_LEVEL_WARNING,
                  "of user 1001");
    ck_assert_uint_eq(lines(), 1);
    log_throttles_sweep(&log_, &throttles, START_NS + LOG_THROTTLE_INTERVAL_NS, "users");
    ck_assert_uint_eq(lines(), 1);
    ck_assert_ptr_nonnull(strstr(text, "968 lines about users"));
    /* Numbers that follow each other spread. */
    uint32_t used = 0;
    static struct log_throttles spread;
    for (uint64_t uid = 1000; uid < 1000 + LOG_THROTTLES_MAX; uid++)
        log_throttle_of(&spread, uid)->left_out = 1;
    for (uint32_t i = 0; i < LOG_THROTTLES_MAX; i++)
        used += (uint32_t)spread.of[i].left_out;
    ck_assert_uint_ge(used, LOG_THROTTLES_MAX / 2);
}
END_TEST

START_TEST(a_long_line_stays_one_line)
{
    char *big = text + sizeof(text) / 2;
    memset(big, 'x', 4000);
    big[4000] = '\0';
    log_throttled(&log_, &throttle, START_NS, LOG_LEVEL_WARNING, "%s\nand more", big);
    ck_assert_uint_eq(lines(), 1);
    ck_assert_uint_ge(strlen(text), 1700);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("log_throttle");
    TCase *tests = tcase_create("log_throttle");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, a_burst_goes_and_then_one_line_an_interval);
    tcase_add_test(tests, quiet_time_gives_the_burst_back);
    tcase_add_test(tests, a_flood_of_a_day);
    tcase_add_test(tests, what_the_level_keeps_back_uses_up_nothing);
    tcase_add_test(tests, the_end_of_a_flood_is_told);
    tcase_add_test(tests, one_users_lines_do_not_hide_anothers);
    tcase_add_test(tests, a_long_line_stays_one_line);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
