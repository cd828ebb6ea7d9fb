/* An engine on a system that does not let it sleep as it would like to. */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/epoll.h>

#include "tests/lib/engine_fixture.h"
#include "tests/lib/suite.h"

static _Atomic int answer; /* what the call below fails with */
static _Atomic uint64_t calls;

/* In place of the C library's: no kernel has it, or a filter forbids it. */
int epoll_pwait2(int epoll, struct epoll_event *events, int room, const struct timespec *timeout,
                 const sigset_t *signals)
{
    (void)epoll, (void)events, (void)room, (void)timeout, (void)signals;
    atomic_fetch_add(&calls, 1);
    if (atomic_load(&answer) == EINTR)
        poll(NULL, 0, 1);
    errno = atomic_load(&answer);
    return -1;
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

/* It must neither spin nor sleep for ever: the call is tried once, and all goes on as before. */
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

/* That is no reason to give it up. */
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

int main(void)
{
    Suite *suite = suite_create("engine_sleep");
    TCase *tests = tcase_create("engine_sleep");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, a_sleep_that_is_forbidden_is_done_otherwise, 0,
                        sizeof(answers) / sizeof(answers[0]));
    tcase_add_test(tests, an_interrupted_sleep_is_begun_again);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
