/* How long a thread waited for a processor: what the kernel says, and a thread that has to share.
 */
#include "server/engine/threads/run_delay.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/lib/server/engine_fixture.h"
#include "tests/lib/suite.h"

#define ENOUGH_NS (5 * NS_PER_MS)

START_TEST(the_second_number_is_it)
{
    uint64_t ns = 1;
    ck_assert(run_delay_parse("12345 678 9\n", &ns));
    ck_assert_uint_eq(ns, 678);
    ck_assert(run_delay_parse("0 0 0\n", &ns));
    ck_assert_uint_eq(ns, 0);
    ck_assert(run_delay_parse("18446744073709551615 18446744073709551615 1\n", &ns));
    ck_assert_uint_eq(ns, UINT64_MAX);
}
END_TEST

START_TEST(another_text_says_nothing)
{
    static const char *const texts[] = {
        "", " ", "1", "1 ", "1 2", "1  2 3", "1 -2 3", "1 x 3", "x 2 3", "1 18446744073709551616 3",
    };
    uint64_t ns = 4711;
    ck_assert(!run_delay_parse(texts[_i], &ns));
    ck_assert_uint_eq(ns, 4711);
}
END_TEST

START_TEST(where_nothing_is_told_it_is_nothing)
{
    struct run_delay delay = {.descriptor = -1, .ns = 7};
    ck_assert_uint_eq(run_delay_take(&delay), 0);
    run_delay_close(&delay);
}
END_TEST

static _Atomic uint64_t said_more_ns; /* by the kernel, with each look; 0: what is true */

/* In place of the C library's. */
ssize_t pread(int descriptor, void *bytes, size_t room, off_t offset)
{
    static _Atomic uint64_t said_ns;
    ssize_t (*call)(int, void *, size_t, off_t);
    uint64_t more_ns = atomic_load(&said_more_ns);
    if (more_ns > 0)
        return snprintf(bytes, room, "0 %" PRIu64 " 1\n", atomic_fetch_add(&said_ns, more_ns));
    *(void **)&call = dlsym(RTLD_NEXT, "pread");
    return call(descriptor, bytes, room, offset);
}

static atomic_bool over;

static void *other_main(void *argument)
{
    (void)argument;
    while (!atomic_load(&over))
        ;
    return NULL;
}

/* This process has one processor from now on, which another thread never leaves. */
static pthread_t processor_share(void)
{
    cpu_set_t all, one;
    pthread_t other;
    int processor = 0;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(all), &all), 0);
    while (!CPU_ISSET(processor, &all))
        processor++;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
    atomic_store(&over, false);
    ck_assert_int_eq(pthread_create(&other, NULL, other_main, NULL), 0);
    return other;
}

static void processor_have(pthread_t other)
{
    atomic_store(&over, true);
    pthread_join(other, NULL);
}

/* Two threads that both want the same processor: each waits while the other has it. */
START_TEST(a_thread_that_shares_its_processor_waits)
{
    struct run_delay delay;
    uint64_t waited_ns = 0, end_ns = clock_now_ns() + PATIENCE_NS;
    if (!run_delay_open(&delay))
        return; /* this kernel does not tell */
    pthread_t other = processor_share();
    while (waited_ns < ENOUGH_NS && clock_now_ns() < end_ns)
        waited_ns += run_delay_take(&delay);
    processor_have(other);
    run_delay_close(&delay);
    ck_assert_uint_ge(waited_ns, ENOUGH_NS);
}
END_TEST

/* The kernel says that the engine's thread had no processor for all of each tick. */
START_TEST(an_engine_without_a_processor_stands_still)
{
    static const uint32_t all_here[] = {0};
    struct node node;
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
    bool still = false;
    struct run_delay delay;
    if (!run_delay_open(&delay))
        return; /* this kernel does not tell */
    run_delay_close(&delay);
    atomic_store(&said_more_ns, 300 * NS_PER_MS); /* ticks may come late */
    node_configure(&node, 0, 1, 1);
    node_start(&node);
    open_job(&node, 1, all_here, 1);
    node_settle(&node);
    while (!still) {
        struct engine_status status = node_status(&node, 0);
        const struct waits_figures *waits = &status.jobs[0].waits;
        still =
            status.job_count > 0 && waits->window_us > 0 && waits->still_us >= waits->window_us / 2;
        engine_status_clear(&status);
        ck_assert(clock_now_ns() < end_ns);
        poll(NULL, 0, 20);
    }
    engine_stop(node.engine);
    atomic_store(&said_more_ns, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("run_delay");
    TCase *cases = tcase_create("run_delay");
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, the_second_number_is_it);
    tcase_add_loop_test(cases, another_text_says_nothing, 0, 10);
    tcase_add_test(cases, where_nothing_is_told_it_is_nothing);
    tcase_add_test(cases, a_thread_that_shares_its_processor_waits);
    tcase_add_test(cases, an_engine_without_a_processor_stands_still);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
