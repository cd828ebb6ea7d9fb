#include "common/base/clock.h"

#include <poll.h>
#include <time.h>

#include "tests/lib/suite.h"

START_TEST(time_never_goes_back)
{
    uint64_t last = clock_now_ns();
    ck_assert_uint_gt(last, 0);
    for (int i = 0; i < 10000; i++) {
        uint64_t now = clock_now_ns();
        if (now < last)
            ck_abort_msg("%llu after %llu", (unsigned long long)now, (unsigned long long)last);
        last = now;
    }
}
END_TEST

START_TEST(it_is_the_monotonic_clock_in_nanoseconds)
{
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    uint64_t now = clock_now_ns();
    clock_gettime(CLOCK_MONOTONIC, &after);
    ck_assert_uint_ge(now, (uint64_t)before.tv_sec * NS_PER_S + (uint64_t)before.tv_nsec);
    ck_assert_uint_le(now, (uint64_t)after.tv_sec * NS_PER_S + (uint64_t)after.tv_nsec);
}
END_TEST

START_TEST(the_tick_follows_and_is_never_ahead)
{
    uint64_t before = clock_now_ns(), tick = clock_tick_ns();
    for (int i = 0; i < 1000; i++) {
        ck_assert_uint_le(tick, clock_now_ns());
        tick = clock_tick_ns();
    }
    while (tick < before) { /* Check's time ends it */
        poll(NULL, 0, 1);
        tick = clock_tick_ns();
    }
}
END_TEST

START_TEST(a_wait_takes_at_least_its_time)
{
    uint64_t before = clock_now_ns();
    poll(NULL, 0, 3);
    ck_assert_uint_ge(clock_now_ns() - before, 3 * NS_PER_MS);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("clock");
    TCase *tests = tcase_create("clock");
    tcase_add_test(tests, time_never_goes_back);
    tcase_add_test(tests, it_is_the_monotonic_clock_in_nanoseconds);
    tcase_add_test(tests, the_tick_follows_and_is_never_ahead);
    tcase_add_test(tests, a_wait_takes_at_least_its_time);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
