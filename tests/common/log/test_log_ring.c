#include "common/log/log_ring.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/log/log_throttle.h"
#include "tests/lib/suite.h"

static struct log_ring ring;
static struct log log_;
static struct log_line lines[LOG_RING_LINES_MAX];

static void setup(void)
{
    log_ring_init(&ring);
    log_init(&log_, "shoald", LOG_LEVEL_INFO, memfd_create("log", MFD_CLOEXEC), false);
    log_.ring = &ring;
}

static void teardown(void)
{
    close(log_.fd);
    log_close(&log_);
    log_ring_destroy(&ring);
}

/* Lines that are worth a warning are kept, with their time, and without what stands before their
 * text. */
START_TEST(test_warnings_are_kept)
{
    char file[512] = "";
    ck_assert_uint_eq(log_ring_read(&ring, lines), 0);
    log_info(&log_, "started");
    log_warning(&log_, "node %s is\ngone", "b");
    log_debug(&log_, "not logged");
    log_error(&log_, "ended");
    ck_assert_uint_eq(log_ring_read(&ring, lines), 2);
    ck_assert_int_eq(lines[0].level, LOG_LEVEL_WARNING);
    ck_assert_str_eq(lines[0].text, "node b is\\u000agone");
    ck_assert_int_eq(lines[1].level, LOG_LEVEL_ERROR);
    ck_assert_str_eq(lines[1].text, "ended");
    ck_assert_int_gt((int)pread(log_.fd, file, sizeof(file) - 1, 0), 0);
    ck_assert_uint_eq(strlen(lines[0].time), strcspn(file, " "));
    ck_assert_int_eq(lines[0].time[strlen(lines[0].time) - 1], 'Z');
}
END_TEST

/* Lines that the log's level keeps back are not kept here either. */
START_TEST(test_level)
{
    log_.level = LOG_LEVEL_ERROR;
    log_warning(&log_, "quiet");
    ck_assert_uint_eq(log_ring_read(&ring, lines), 0);
}
END_TEST

START_TEST(test_the_last_ones_stay)
{
    char text[32];
    for (uint32_t i = 0; i < 3 * LOG_RING_LINES_MAX + 5; i++)
        log_warning(&log_, "line %u", i);
    ck_assert_uint_eq(log_ring_read(&ring, lines), LOG_RING_LINES_MAX);
    for (uint32_t i = 0; i < LOG_RING_LINES_MAX; i++) {
        snprintf(text, sizeof(text), "line %u", 2 * LOG_RING_LINES_MAX + 5 + i);
        ck_assert_str_eq(lines[i].text, text);
    }
}
END_TEST

static uint32_t lines_with(const char *piece)
{
    uint32_t count = log_ring_read(&ring, lines), with = 0;
    for (uint32_t i = 0; i < count; i++)
        with += strstr(lines[i].text, piece) != NULL;
    return with;
}

/* Whoever causes many lines pushes out his own, once others have some; and they stay in order. */
START_TEST(test_nobody_pushes_out_others)
{
    static struct log_throttle greedy, other;
    for (uint32_t i = 0; i < 30; i++)
        log_throttled(&log_, &greedy, 1, LOG_LEVEL_WARNING, "greedy %u", i);
    ck_assert_uint_eq(lines_with("greedy"), LOG_RING_LINES_MAX);
    for (uint32_t i = 0; i < 4; i++) {
        log_throttled(&log_, &other, 1, LOG_LEVEL_WARNING, "other %u", i);
        log_error(&log_, "own %u", i);
    }
    for (uint32_t i = 0; i < 30; i++)
        log_throttled(&log_, &greedy, NS_PER_S * 1000, LOG_LEVEL_WARNING, "greedy again %u", i);
    ck_assert_uint_eq(lines_with("other"), 4);
    ck_assert_uint_eq(lines_with("own"), 4);
    ck_assert_uint_eq(lines_with("greedy again"), LOG_RING_LINES_MAX / 2);
    ck_assert_str_eq(lines[0].text, "other 0");
    ck_assert_str_eq(lines[7].text, "own 3");
    ck_assert_str_eq(lines[LOG_RING_LINES_MAX - 1].text, "greedy again 29");
}
END_TEST

/* Each has one: then the oldest goes, for it is a log. */
START_TEST(test_many_have_one_each)
{
    char text[32];
    for (uint32_t i = 0; i < 3 * LOG_RING_LINES_MAX; i++)
        log_write_of(&log_, 1000 + i, LOG_LEVEL_WARNING, "of %u", i);
    ck_assert_uint_eq(log_ring_read(&ring, lines), LOG_RING_LINES_MAX);
    snprintf(text, sizeof(text), "of %u", 2 * LOG_RING_LINES_MAX);
    ck_assert_str_eq(lines[0].text, text);
}
END_TEST

START_TEST(test_long_lines_are_cut)
{
    char text[4 * LOG_RING_TEXT_BYTES];
    memset(text, 'a', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    log_warning(&log_, "%s", text);
    ck_assert_uint_eq(log_ring_read(&ring, lines), 1);
    ck_assert_uint_eq(strlen(lines[0].text), LOG_RING_TEXT_BYTES - 1);
}
END_TEST

static void *write_lines(void *number)
{
    for (int i = 0; i < 200; i++)
        log_warning(&log_, "thread %d says %d", *(int *)number, *(int *)number);
    return NULL;
}

/* A line is one thread's, whoever reads meanwhile. */
START_TEST(test_threads)
{
    static int numbers[] = {1, 2, 3};
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, write_lines, &numbers[i]), 0);
    for (int reads = 0; reads < 50; reads++) {
        uint32_t count = log_ring_read(&ring, lines);
        for (uint32_t i = 0; i < count; i++) {
            int who, said;
            ck_assert_int_eq(sscanf(lines[i].text, "thread %d says %d", &who, &said), 2);
            ck_assert_int_eq(who, said);
        }
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("log_ring");
    TCase *cases = tcase_create("log_ring");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_warnings_are_kept);
    tcase_add_test(cases, test_level);
    tcase_add_test(cases, test_the_last_ones_stay);
    tcase_add_test(cases, test_nobody_pushes_out_others);
    tcase_add_test(cases, test_many_have_one_each);
    tcase_add_test(cases, test_long_lines_are_cut);
    tcase_add_test(cases, test_threads);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
