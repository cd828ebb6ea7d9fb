/* Whether the watchdog is fed: by a control thread that goes on, as long as its engine does. */
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server/engine/engine_private.h"
#include "tests/lib/server/control_daemon.h"
#include "tests/lib/server/engine_fixture.h"
#include "tests/lib/suite.h"

struct watch {
    _Atomic uint64_t turns; /* of the engine that is played */
    _Atomic uint64_t looks; /* at it */
    _Atomic uint64_t meals; /* CONTROL_ALIVE */
    _Atomic bool stuck;
};

static struct watch watch;

static uint64_t played_turns(struct engine *engine)
{
    (void)engine;
    atomic_fetch_add(&watch.looks, 1);
    if (!atomic_load(&watch.stuck))
        atomic_fetch_add(&watch.turns, 1);
    return atomic_load(&watch.turns);
}

static void notice(void *context, enum control_notice notice)
{
    (void)context;
    if (notice == CONTROL_ALIVE)
        atomic_fetch_add(&watch.meals, 1);
}

static void wait_for(_Atomic uint64_t *count, uint64_t more)
{
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS, from = atomic_load(count);
    while (atomic_load(count) < from + more) {
        poll(NULL, 0, 5);
        EXPECT(clock_now_ns() < end_ns);
    }
}

/* The text that the daemon has logged so far. */
static size_t logged(int fd, char *text, size_t room)
{
    ssize_t got = pread(fd, text, room - 1, 0);
    EXPECT(got >= 0);
    text[got] = '\0';
    return (size_t)got;
}

START_TEST(a_stuck_engine_is_noticed)
{
    char *directory = suite_make_directory();
    uint16_t port = 0;
    char path[512], text[8192];
    snprintf(path, sizeof(path), "%s/log", directory);
    int log_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    EXPECT(log_fd >= 0);
    struct control_daemon *daemon = control_daemon_create(directory, 1, 0, &port);
    log_init(&daemon->log, "test", LOG_LEVEL_WARNING, log_fd, false);
    daemon->options.engine.turns = played_turns;
    daemon->options.notice = notice;
    daemon->options.alive_ms = 5;
    struct error error = {0};
    EXPECT_MSG(control_daemon_start(daemon, &error) == 0, "%s", error.text);
    wait_for(&watch.meals, 3);
    logged(log_fd, text, sizeof(text));
    ck_assert_str_eq(text, "");

    atomic_store(&watch.stuck, true);
    wait_for(&watch.looks, 2); /* one may have been under way */
    uint64_t meals = atomic_load(&watch.meals);
    wait_for(&watch.looks, 5);
    ck_assert_uint_eq(atomic_load(&watch.meals), meals);
    logged(log_fd, text, sizeof(text));
    const char *first = strstr(text, "the engine's thread is stuck");
    ck_assert_msg(first != NULL && !strstr(first + 25, "is stuck"), "%s", text);

    atomic_store(&watch.stuck, false);
    wait_for(&watch.meals, 3);
    logged(log_fd, text, sizeof(text));
    ck_assert_msg(strstr(text, "the engine's thread goes on") != NULL, "%s", text);
    control_daemon_free(daemon);
    close(log_fd);
    suite_remove_directory(directory);
}
END_TEST

/* The real one goes round whenever it is asked. */
START_TEST(an_engine_that_is_asked_goes_round)
{
    struct node node;
    node_configure(&node, 0, 1, (uint32_t)_i);
    node_start(&node);
    for (int i = 0; i < 20; i++) {
        uint64_t turns = engine_turns(node.engine), end_ns = clock_now_ns() + PATIENCE_NS;
        while (atomic_load(&node.engine->turns) == turns) {
            poll(NULL, 0, 1);
            EXPECT(clock_now_ns() < end_ns);
        }
    }
    node_settle(&node); /* no command was lost */
    engine_stop(node.engine);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control_watchdog");
    TCase *tests = tcase_create("control_watchdog");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, a_stuck_engine_is_noticed);
    tcase_add_loop_test(tests, an_engine_that_is_asked_goes_round, 0, 2);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
