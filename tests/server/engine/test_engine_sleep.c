/* How an engine sleeps, also on a system that does not let it as it would like to, and what it does
 * when it has. */
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

#include "tests/lib/server/engine_fixture.h"
#include "tests/lib/suite.h"

static _Atomic int answer; /* what the call below fails with */
static _Atomic uint64_t calls;

/* No kernel has it, or a filter forbids it. */
static long refuse_wait(void)
{
    atomic_fetch_add(&calls, 1);
    if (atomic_load(&answer) == EINTR)
        poll(NULL, 0, 1);
    errno = atomic_load(&answer);
    return -1;
}

static _Atomic uint32_t wakes; /* of reduce threads: nobody else is woken so */

/* In place of the C library's. */
long syscall(long number, ...)
{
    if (number == SYS_epoll_pwait2)
        return refuse_wait();
    static _Atomic(long (*)(long, ...)) real;
    long (*call)(long, ...) = atomic_load(&real);
    if (!call) {
        *(void **)&call = dlsym(RTLD_NEXT, "syscall");
        atomic_store(&real, call);
    }
    long words[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        words[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_futex && words[1] == FUTEX_WAKE_PRIVATE)
        atomic_fetch_add(&wakes, 1);
    return call(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

static void wait_for_pictures(struct node *node, unsigned count)
{
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS, last_ns = 0;
    for (unsigned seen = 0; seen < count;) {
        struct engine_status status = node_status(node, 0);
        seen += status.now_ns > last_ns;
        last_ns = status.now_ns;
        engine_status_clear(&status);
        poll(NULL, 0, 10);
        EXPECT(clock_now_ns() < end_ns);
    }
}

static const int answers[] = {ENOSYS, EPERM, EACCES, EINVAL};

/* The engine must neither spin nor sleep for ever: the call is tried once, and all goes on as
 * before. */
START_TEST(a_sleep_that_is_forbidden_is_done_otherwise)
{
    atomic_store(&answer, answers[_i]);
    atomic_store(&calls, 0);
    struct node node;
    struct worker workers[2];
    static const uint32_t all_here[] = {0, 0};
    node_configure(&node, 0, 1, 1);
    node_start(&node);
    open_job(&node, 1, all_here, 2);
    for (uint32_t rank = 0; rank < 2; rank++)
        worker_attach(&workers[rank], &node, rank);
    node_settle(&node);
    wait_for_pictures(&node, 4);
    for (uint64_t sequence = 0; sequence < 5; sequence++)
        reduce_once(workers, 2, sequence, 3000);
    engine_stop(node.engine);
    for (uint32_t rank = 0; rank < 2; rank++)
        worker_release(&workers[rank]);
    ck_assert_uint_eq(atomic_load(&calls), 1);
}
END_TEST

/* An interruption is no reason to give the call up. */
START_TEST(an_interrupted_sleep_is_begun_again)
{
    atomic_store(&answer, EINTR);
    atomic_store(&calls, 0);
    struct node node;
    node_configure(&node, 0, 1, 1);
    node_start(&node);
    wait_for_pictures(&node, 2);
    atomic_store(&answer, ENOSYS);
    engine_stop(node.engine);
    ck_assert_uint_gt(atomic_load(&calls), 1);
}
END_TEST

#define RANKS 8u
#define SUMS 40u

/* Sums that come one by one, each too large to be done at once whoever it is, wake no thread for
 * most of them. On a busy machine an engine may find the next message before it has slept. */
START_TEST(after_a_sleep_one_sum_wakes_no_thread)
{
    atomic_store(&answer, ENOSYS);
    struct node node;
    struct worker workers[RANKS];
    static const uint32_t all_here[RANKS] = {0};
    node_configure(&node, 0, 1, 1);
    node_start(&node);
    open_job(&node, 1, all_here, RANKS);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        worker_attach(&workers[rank], &node, rank);
    node_settle(&node);
    uint32_t woken = SUMS;
    for (uint64_t i = 0; i < 20 && woken > SUMS / 2; i++) {
        uint32_t before = atomic_load(&wakes);
        for (uint64_t sum = 0; sum < SUMS; sum++)
            reduce_once(workers, RANKS, i * SUMS + sum, CHUNK_BYTES / sizeof(float));
        woken = atomic_load(&wakes) - before;
    }
    ck_assert_uint_le(woken, SUMS / 2);
    engine_stop(node.engine);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        worker_release(&workers[rank]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_sleep");
    TCase *tests = tcase_create("engine_sleep");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, a_sleep_that_is_forbidden_is_done_otherwise, 0,
                        sizeof(answers) / sizeof(answers[0]));
    tcase_add_test(tests, an_interrupted_sleep_is_begun_again);
    tcase_add_test(tests, after_a_sleep_one_sum_wakes_no_thread);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
