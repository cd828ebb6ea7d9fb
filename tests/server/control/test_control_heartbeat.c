/* Heartbeats of two control threads, one of which is held up. */
#include <fcntl.h>
#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/control/ground/control_internal.h"
#include "tests/lib/server/control_daemon.h"
#include "tests/lib/suite.h"

#define PATIENCE_MS 20000
#define SILENCE_MS 1000 /* more than a busy machine takes a thread's core away */

static char *directory;
static struct control_daemon *daemons[2];
static int log_fd;
static atomic_bool hold;
static sem_t held, go_on;

/* In the control thread of the first daemon, 50 times a second. */
static void notice(void *context, enum control_notice notice)
{
    (void)context;
    if (notice != CONTROL_ALIVE || !atomic_exchange(&hold, false))
        return;
    sem_post(&held);
    while (sem_wait(&go_on) < 0)
        ;
}

static void setup(void)
{
    uint16_t ports[2];
    char path[512];
    int fds[2] = {control_daemon_bind(&ports[0]), control_daemon_bind(&ports[1])};
    directory = suite_make_directory();
    snprintf(path, sizeof(path), "%s/log", directory);
    log_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(log_fd, 0);
    atomic_store(&hold, false);
    ck_assert_int_eq(sem_init(&held, 0, 0), 0);
    ck_assert_int_eq(sem_init(&go_on, 0, 0), 0);
    for (uint32_t i = 0; i < 2; i++) {
        daemons[i] = control_daemon_create(directory, 2, i, ports);
        daemons[i]->options.listen_fd = fds[i];
        daemons[i]->config.heartbeat_ms = 20;
        daemons[i]->config.peer_ms =
            i == 0 ? SILENCE_MS : 60000; /* only the first finds the other silent */
    }
    log_init(&daemons[0]->log, "test", LOG_LEVEL_INFO, log_fd, false);
    daemons[0]->options.notice = notice;
    daemons[0]->options.alive_ms = 20;
}

static void teardown(void)
{
    for (uint32_t i = 0; i < 2; i++)
        control_daemon_free(daemons[i]);
    close(log_fd);
    sem_destroy(&held);
    sem_destroy(&go_on);
    suite_remove_directory(directory);
}

static void start_both(void)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct error error = {0};
        ck_assert_msg(control_daemon_start(daemons[i], &error) == 0, "%s", error.text);
    }
}

/* Whether the log has the text. */
static bool logged(const char *text)
{
    static char log[65536];
    ssize_t bytes = pread(log_fd, log, sizeof(log) - 1, 0);
    ck_assert_int_ge(bytes, 0);
    log[bytes] = '\0';
    return strstr(log, text) != NULL;
}

static void wait_logged(const char *text)
{
    for (int waited = 0; !logged(text); waited += 5) {
        ck_assert_msg(waited < PATIENCE_MS, "never logged: %s", text);
        poll(NULL, 0, 5);
    }
}

static uint64_t milliseconds(void)
{
    return clock_now_ns() / 1000000;
}

/* A thread that was held up for longer than a peer may be silent finds that the peer has spoken. */
START_TEST(test_what_has_come_is_no_silence)
{
    start_both();
    wait_logged("is reached over the fabric");
    for (int times = 0; times < 3; times++) {
        atomic_store(&hold, true);
        while (sem_wait(&held) < 0)
            ;
        for (uint64_t until = milliseconds() + SILENCE_MS + 400; milliseconds() < until;)
            poll(NULL, 0, 50);
        sem_post(&go_on);
    }
    /* All has been looked at when something new is answered. */
    struct control_client client;
    struct message pong;
    control_client_open(&client, daemons[0]);
    control_client_hello(&client);
    control_client_write(&client, "{\"type\":\"ping\"}\n");
    control_client_expect(&client, MESSAGE_PONG, &pong);
    control_client_close(&client);
    ck_assert(!logged("no heartbeat"));
}
END_TEST

/* And one that is silent is gone, in both directions of the connection. */
START_TEST(test_silence)
{
    daemons[1]->config.heartbeat_ms = 30000;
    start_both();
    wait_logged("no heartbeat for 1000 ms");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control_heartbeat");
    TCase *cases = tcase_create("heartbeat");
    tcase_set_timeout(cases, 120);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_what_has_come_is_no_silence);
    tcase_add_test(cases, test_silence);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
