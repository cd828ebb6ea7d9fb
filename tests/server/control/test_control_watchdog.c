/* Whether the daemon seems alive, to its watchdog and to the other daemons: by a control thread
 * that goes on, as long as its engine does. */
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server/control/ground/control_internal.h"
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

static void wait_for_words(int fd, char *text, size_t room, const char *words)
{
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
    while (logged(fd, text, room), !strstr(text, words)) {
        poll(NULL, 0, 5);
        EXPECT_MSG(clock_now_ns() < end_ns, "%s", text);
    }
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
    daemon->config.peer_ms = 200;
    struct error error = {0};
    EXPECT_MSG(control_daemon_start(daemon, &error) == 0, "%s", error.text);
    wait_for(&watch.meals, 3);
    logged(log_fd, text, sizeof(text));
    ck_assert_str_eq(text, "");

    atomic_store(&watch.stuck, true);
    wait_for_words(log_fd, text, sizeof(text), "the engine's thread is stuck for 1000 ms");
    wait_for(&watch.looks, 2); /* one may have been under way */
    uint64_t meals = atomic_load(&watch.meals);
    wait_for(&watch.looks, 5);
    ck_assert_uint_eq(atomic_load(&watch.meals), meals);
    logged(log_fd, text, sizeof(text));
    const char *first = strstr(text, "is stuck");
    ck_assert_msg(first != NULL && !strstr(first + 1, "is stuck"), "%s", text);

    atomic_store(&watch.stuck, false);
    wait_for(&watch.meals, 3);
    logged(log_fd, text, sizeof(text));
    ck_assert_msg(strstr(text, "the engine's thread goes on") != NULL, "%s", text);
    control_daemon_free(daemon);
    close(log_fd);
    suite_remove_directory(directory);
}
END_TEST

/* A stall of the thread that looks, or of the whole process, makes a look late: that is not the
 * engine's. Three of them would be. */
START_TEST(a_late_look_is_not_a_stuck_engine)
{
    struct config config = {.peer_ms = 3000};
    struct log log;
    log_init(&log, "test", LOG_LEVEL_ERROR, -1, false);
    struct control control = {.config = &config, .log = &log};
    control.options.engine.turns = played_turns;
    atomic_store(&watch.stuck, true);
    ck_assert(control_engine_goes_on(&control));
    for (int stalls = 0; stalls < 2; stalls++) {
        ck_assert(control_engine_goes_on(&control)); /* at once: it had no time to go on */
        control.watch.looked_ns -= 60 * NS_PER_S;
        ck_assert(control_engine_goes_on(&control));
    }
    control.watch.looked_ns -= 60 * NS_PER_S;
    ck_assert(!control_engine_goes_on(&control));
    atomic_store(&watch.stuck, false);
    ck_assert(control_engine_goes_on(&control));
    ck_assert_uint_eq(control.watch.still_ns, 0);
}
END_TEST

/* The engine of the second of two daemons gets stuck: the first one is told nothing any more. */
START_TEST(a_daemon_whose_engine_is_stuck_falls_silent)
{
    char *directory = suite_make_directory();
    uint16_t ports[2];
    char path[512], text[8192];
    snprintf(path, sizeof(path), "%s/log", directory);
    int log_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    EXPECT(log_fd >= 0);
    int fds[2] = {control_daemon_bind(&ports[0]), control_daemon_bind(&ports[1])};
    struct control_daemon *daemons[2];
    for (uint32_t i = 0; i < 2; i++) {
        struct error error = {0};
        daemons[i] = control_daemon_create(directory, 2, i, ports);
        daemons[i]->options.listen_fd = fds[i];
        daemons[i]->config.heartbeat_ms = 50;
        daemons[i]->config.peer_ms = 1000;
        if (i == 1)
            daemons[1]->options.engine.turns = played_turns;
        else
            log_init(&daemons[0]->log, "test", LOG_LEVEL_INFO, log_fd, false);
        EXPECT_MSG(control_daemon_start(daemons[i], &error) == 0, "%s", error.text);
    }
    wait_for_words(log_fd, text, sizeof(text), "node b is reached over the fabric");
    wait_for(&watch.looks, 60); /* before as many heartbeats: for longer than peer_ms */
    logged(log_fd, text, sizeof(text));
    ck_assert_msg(!strstr(text, "no heartbeat"), "%s", text);
    atomic_store(&watch.stuck, true);
    wait_for_words(log_fd, text, sizeof(text), "no heartbeat for 1000 ms");
    for (int i = 0; i < 2; i++)
        control_daemon_free(daemons[i]);
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
    tcase_add_test(tests, a_late_look_is_not_a_stuck_engine);
    tcase_add_test(tests, a_daemon_whose_engine_is_stuck_falls_silent);
    tcase_add_loop_test(tests, an_engine_that_is_asked_goes_round, 0, 2);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
