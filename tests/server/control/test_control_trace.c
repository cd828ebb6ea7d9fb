/* A trace as a client of the control thread takes it: who may, which job, one at a time, and what
 * becomes of it when the job, the client or the daemon ends. The engine is a stand-in. */
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/log/log_ring.h"
#include "server/control/ground/control_internal.h"
#include "tests/lib/server/control_daemon.h"
#include "tests/lib/suite.h"

#define LONG_MS 60000u

static char *directory;
static struct control_daemon *daemon_a;
static struct control_client worker;

static void setup(void)
{
    static const uint16_t any_port = 0;
    directory = suite_make_directory();
    daemon_a = control_daemon_create(directory, 1, 0, &any_port);
}

static void teardown(void)
{
    control_daemon_free(daemon_a);
    suite_remove_directory(directory);
}

static void open_client(struct control_client *client)
{
    control_client_open(client, daemon_a);
    control_client_hello(client);
}

static void open_client_as(struct control_client *client, uint32_t uid)
{
    control_client_open_as(client, daemon_a, uid);
    control_client_hello(client);
}

/* A daemon with a job "train" of one rank. */
static void start(void)
{
    struct error error = {0};
    struct message message;
    ck_assert_msg(control_daemon_start(daemon_a, &error) == 0, "%s", error.text);
    open_client(&worker);
    control_client_join(&worker, "train", 1, 0);
    control_client_expect(&worker, MESSAGE_JOINED, &message);
}

static void ask(struct control_client *client, const char *job, unsigned duration_ms)
{
    char line[128];
    snprintf(line, sizeof(line), "{\"type\":\"trace\",\"job\":\"%s\",\"duration_ms\":%u}\n", job,
             duration_ms);
    control_client_write(client, line);
}

/* The next line, which must be of this type. */
static json_t *expect(struct control_client *client, const char *type)
{
    const char *line = control_client_line(client);
    ck_assert_msg(line != NULL, "the end in place of %s", type);
    json_t *object = json_loads(line, 0, NULL);
    ck_assert_msg(strcmp(json_string_value(json_object_get(object, "type")), type) == 0,
                  "%s in place of %s", line, type);
    return object;
}

static void expect_error(struct control_client *client, int code, const char *words)
{
    struct message message;
    control_client_expect(client, MESSAGE_ERROR, &message);
    ck_assert_int_eq(message.code, code);
    ck_assert_msg(strstr(message.text, words) != NULL, "no \"%s\" in %s", words, message.text);
}

static void begin(struct control_client *client, unsigned duration_ms)
{
    ask(client, "train", duration_ms);
    json_decref(expect(client, "tracing"));
}

static void expect_traced(struct control_client *client, const char *end)
{
    json_t *traced = expect(client, "traced");
    ck_assert_str_eq(json_string_value(json_object_get(traced, "end")), end);
    ck_assert_str_eq(json_string_value(json_object_get(traced, "job")), "train");
    ck_assert_str_eq(json_string_value(json_object_get(traced, "node")), "a");
    ck_assert_int_eq(json_integer_value(json_object_get(traced, "records")),
                     CONTROL_DAEMON_RECORDS);
    ck_assert_int_eq(json_integer_value(json_object_get(traced, "world_size")), 1);
    ck_assert_uint_eq(json_array_size(json_object_get(traced, "nodes")), 1);
    ck_assert_int_gt(json_integer_value(json_object_get(traced, "wall_offset_ns")), 0);
    json_decref(traced);
}

/* All records, as the stand-in makes them. */
static void read_all(struct control_client *client)
{
    json_int_t next = 0;
    while (next < CONTROL_DAEMON_RECORDS) {
        control_client_write(client, "{\"type\":\"trace_read\"}\n");
        json_t *part = expect(client, "trace_records");
        size_t i;
        const json_t *record;
        ck_assert_uint_gt(json_array_size(json_object_get(part, "records")), 0);
        json_array_foreach(json_object_get(part, "records"), i, record)
        {
            json_int_t numbers[11];
            for (size_t n = 0; n < 11; n++)
                numbers[n] = json_integer_value(json_array_get(record, n));
            if (json_array_size(record) != 11 || numbers[4] != (next ? next : -1) ||
                numbers[7] != (next % 2 ? next : -1) || numbers[9] != 1000 + next ||
                numbers[10] != 2000 + next)
                ck_abort_msg("record %d is wrong", (int)next);
            next++;
        }
        json_decref(part);
    }
}

START_TEST(test_a_trace)
{
    struct control_client client;
    start();
    open_client(&client);
    for (int i = 0; i < 2; i++) {
        begin(&client, 20);
        expect_traced(&client, "time");
        read_all(&client);
        control_client_write(&client, "{\"type\":\"trace_read\"}\n");
        expect_error(&client, ERR_STATE, "no trace");
    }
    control_client_close(&client);
    control_client_close(&worker);
}
END_TEST

START_TEST(test_jobs_that_cannot_be_traced)
{
    struct control_client client, early;
    start();
    open_client(&client);
    ask(&client, "other", 20);
    expect_error(&client, ERR_INVALID, "node a has no part in a job 'other' (it has: 'train')");
    open_client(&early);
    control_client_join(&early, "gathers", 2, 0);
    /* The two connections are read in any order: ask until the join has been. */
    struct message message = {0};
    for (int attempt = 0; attempt < 2000; attempt++) {
        ask(&client, "gathers", 20);
        control_client_expect(&client, MESSAGE_ERROR, &message);
        if (message.code == ERR_STATE)
            break;
        poll(NULL, 0, 5);
    }
    ck_assert_ptr_nonnull(strstr(message.text, "job 'gathers' does not run yet"));
    control_client_close(&early);
    control_client_close(&client);
    control_client_close(&worker);
}
END_TEST

START_TEST(test_an_engine_that_refuses)
{
    struct control_client client;
    control_daemon_refuse_traces(daemon_a);
    start();
    open_client(&client);
    for (int i = 0; i < 2; i++) {
        begin(&client, LONG_MS);
        expect_error(&client, ERR_STATE, "no traces today");
    }
    control_client_close(&client);
    control_client_close(&worker);
}
END_TEST

START_TEST(test_one_at_a_time)
{
    struct control_client client, second;
    char words[96];
    start();
    open_client(&client);
    open_client(&second);
    begin(&client, 100);
    ask(&client, "train", 20);
    expect_error(&client, ERR_REFUSED, "one at a time");
    ask(&second, "train", 20);
    snprintf(words, sizeof(words), "process %d of user %u takes a trace of job 'train' on node a",
             getpid(), geteuid());
    expect_error(&second, ERR_REFUSED, words);
    control_client_write(&second, "{\"type\":\"trace_read\"}\n"); /* not its own */
    expect_error(&second, ERR_STATE, "no trace");
    expect_traced(&client, "time");
    ask(&second, "train", 20); /* it is not read yet */
    expect_error(&second, ERR_REFUSED, "one at a time");
    read_all(&client);
    begin(&second, 20);
    expect_traced(&second, "time");
    read_all(&second);
    control_client_close(&second);
    control_client_close(&client);
    control_client_close(&worker);
}
END_TEST

/* Asks until the daemon has seen that another client is gone. */
static void begin_when_free(struct control_client *client)
{
    for (int attempt = 0; attempt < 2000; attempt++) {
        ask(client, "train", 20);
        const char *line = control_client_line(client);
        ck_assert_ptr_nonnull(line);
        if (strstr(line, "\"tracing\""))
            return;
        ck_assert_ptr_nonnull(strstr(line, "one at a time"));
        poll(NULL, 0, 5);
    }
    ck_abort_msg("the trace of a client that is gone is never over");
}

START_TEST(test_a_client_that_goes)
{
    struct control_client client, next;
    start();
    /* While it is taken, and while it is read. */
    open_client(&client);
    begin(&client, LONG_MS);
    control_client_close(&client);
    open_client(&client);
    begin_when_free(&client);
    expect_traced(&client, "time");
    control_client_write(&client, "{\"type\":\"trace_read\"}\n");
    json_decref(expect(&client, "trace_records"));
    control_client_close(&client);
    open_client(&next);
    begin_when_free(&next);
    expect_traced(&next, "time");
    read_all(&next);
    control_client_close(&next);
    control_client_close(&worker);
}
END_TEST

START_TEST(test_a_job_that_ends)
{
    struct control_client client;
    struct message message;
    start();
    open_client(&client);
    begin(&client, LONG_MS);
    control_client_write(&worker, "{\"type\":\"leave\"}\n");
    control_client_expect(&worker, MESSAGE_LEFT, &message);
    expect_traced(&client, "job closed");
    read_all(&client);
    control_client_close(&client);
    control_client_close(&worker);
}
END_TEST

/* Records that are there are read before the daemon ends. */
START_TEST(test_a_drain)
{
    struct control_client client;
    start();
    open_client(&client);
    begin(&client, LONG_MS);
    control_daemon_signal(daemon_a, SIGTERM);
    expect_traced(&client, "draining");
    ask(&client, "train", 20);
    expect_error(&client, ERR_REFUSED, "node a is shutting down");
    read_all(&client);
    ck_assert_int_eq(control_daemon_join(daemon_a), 0);
    ck_assert_ptr_null(control_client_line(&client));
    control_client_close(&client);
    control_client_close(&worker);
}
END_TEST

/* A client that does not read does not keep the daemon. The line that says so is the user's, not
 * the daemon's own. */
START_TEST(test_a_drain_waits_for_no_reader_for_long)
{
    struct control_client client;
    struct log_line lines[LOG_RING_LINES_MAX];
    struct log_ring ring;
    bool told = false;
    log_ring_init(&ring);
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    log_init(&daemon_a->log, "test", LOG_LEVEL_WARNING, nowhere, false);
    daemon_a->log.ring = &ring;
    start();
    open_client(&client);
    begin(&client, 10);
    expect_traced(&client, "time");
    control_daemon_signal(daemon_a, SIGTERM);
    ck_assert_int_eq(control_daemon_join(daemon_a), 0);
    for (uint32_t i = log_ring_read(&ring, lines); i-- > 0;)
        told = told || (strstr(lines[i].text, "is thrown away") && lines[i].owner != 0);
    ck_assert(told);
    daemon_a->log.ring = NULL;
    daemon_a->log.fd = -1;
    close(nowhere);
    log_ring_destroy(&ring);
    control_client_close(&client);
    control_client_close(&worker);
}
END_TEST

/* control_free with a trace under way. */
START_TEST(test_an_end_at_once)
{
    struct control_client client;
    start();
    open_client(&client);
    begin(&client, LONG_MS);
    control_daemon_signal(daemon_a, SIGTERM);
    control_daemon_signal(daemon_a, SIGTERM);
    control_daemon_join(daemon_a);
    control_client_close(&client);
    control_client_close(&worker);
}
END_TEST

START_TEST(test_wrong_words)
{
    static const char *const lines[] = {
        "{\"type\":\"trace\",\"job\":\"train\"}\n",
        "{\"type\":\"trace\",\"job\":\"train\",\"duration_ms\":0}\n",
        "{\"type\":\"trace\",\"job\":\"train\",\"duration_ms\":60001}\n",
        "{\"type\":\"trace\",\"duration_ms\":5}\n",
    };
    struct control_client client;
    start();
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        open_client(&client);
        control_client_write(&client, lines[i]);
        ck_assert_ptr_null(control_client_line(&client));
        control_client_close(&client);
    }
    control_client_close(&worker);
}
END_TEST

START_TEST(test_another_user)
{
    struct control_client client;
    if (geteuid() != 0) {
        suite_skip("another_user", "needs root to become another user");
        return;
    }
    start();
    ck_assert_int_eq(chmod(directory, 0755), 0);
    ck_assert_int_eq(chmod(daemon_a->config.socket_path, 0666), 0);
    open_client_as(&client, 4242);
    ask(&client, "train", 20);
    expect_error(&client, ERR_REFUSED, "user 4242 may not trace job 'train'");
    control_client_close(&client);
    control_client_close(&worker);
}
END_TEST

/* Memory is for eight traces of all users: the oldest makes room for a ninth, but root's stays.
 * 1: the oldest is still being taken. */
START_TEST(test_traces_of_many_users)
{
    enum { USERS = 9, FIRST = 4242 };
    struct control_client workers[USERS], clients[USERS];
    struct error error = {0};
    struct message message;
    if (geteuid() != 0) {
        suite_skip("traces_of_many_users", "needs root to become other users");
        return;
    }
    ck_assert_int_eq(chmod(directory, 0755), 0);
    daemon_a->config.socket_mode = 0666;
    ck_assert_msg(control_daemon_start(daemon_a, &error) == 0, "%s", error.text);
    for (uint32_t i = 0; i < USERS; i++) {
        char job[16];
        bool slow = _i == 1 && i == 1;
        snprintf(job, sizeof(job), "job%u", i);
        open_client_as(&workers[i], FIRST + i);
        control_client_join(&workers[i], job, 1, 0);
        control_client_expect(&workers[i], MESSAGE_JOINED, &message);
        message_clear(&message);
        open_client_as(&clients[i], i == 0 ? 0 : FIRST + i);
        ask(&clients[i], job, slow ? LONG_MS : 10);
        json_decref(expect(&clients[i], "tracing"));
        if (!slow)
            json_decref(expect(&clients[i], "traced"));
    }
    expect_error(&clients[1], ERR_REFUSED, "node a has memory for 8");
    control_client_write(&clients[1], "{\"type\":\"trace_read\"}\n");
    expect_error(&clients[1], ERR_STATE, "no trace to be read");
    read_all(&clients[0]);
    read_all(&clients[2]);
    read_all(&clients[USERS - 1]);
    for (uint32_t i = 0; i < USERS; i++) {
        control_client_close(&clients[i]);
        control_client_close(&workers[i]);
    }
}
END_TEST

/* Two users, each with a job; the socket is everybody's. */
static bool start_for_two(const char *test, struct control_client workers[2], uint32_t first)
{
    struct error error = {0};
    struct message message;
    if (geteuid() != 0) {
        suite_skip(test, "needs root to become two users");
        return false;
    }
    ck_assert_int_eq(chmod(directory, 0755), 0);
    daemon_a->config.socket_mode = 0666;
    ck_assert_msg(control_daemon_start(daemon_a, &error) == 0, "%s", error.text);
    for (uint32_t i = 0; i < 2; i++) {
        open_client_as(&workers[i], first + i);
        control_client_join(&workers[i], i == 0 ? "train" : "other", 1, 0);
        control_client_expect(&workers[i], MESSAGE_JOINED, &message);
    }
    return true;
}

/* One user takes a trace and does not read it, and another user takes his. */
START_TEST(test_users_do_not_wait_for_each_other)
{
    struct control_client workers[2], slow, quick;
    if (!start_for_two("users_do_not_wait_for_each_other", workers, 4242))
        return;
    open_client_as(&slow, 4243);
    open_client_as(&quick, 4242);
    ask(&slow, "other", LONG_MS);
    json_decref(expect(&slow, "tracing"));
    for (int i = 0; i < 3; i++) {
        begin(&quick, 20);
        expect_traced(&quick, "time");
        read_all(&quick);
    }
    control_client_close(&slow);
    control_client_close(&quick);
    control_client_close(&workers[0]);
    control_client_close(&workers[1]);
}
END_TEST

/* Root and whoever's job it is always get a trace of it: that of the other one ends, and is read as
 * any is. 0: root takes it first. */
START_TEST(test_root_and_the_owner_always_may)
{
    struct control_client workers[2], first, second;
    uint32_t uids[] = {_i == 0 ? 0 : 4242, _i == 0 ? 4242 : 0};
    if (!start_for_two("root_and_the_owner_always_may", workers, 4242))
        return;
    open_client_as(&first, uids[0]);
    open_client_as(&second, uids[1]);
    begin(&first, LONG_MS);
    begin(&second, 100);
    expect_traced(&first, "another trace");
    expect_traced(&second, "time");
    read_all(&second);
    read_all(&first);
    begin(&first, 20);
    expect_traced(&first, "time");
    control_client_close(&first);
    control_client_close(&second);
    control_client_close(&workers[0]);
    control_client_close(&workers[1]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control_trace");
    TCase *tests = tcase_create("control_trace");
    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_a_trace);
    tcase_add_test(tests, test_jobs_that_cannot_be_traced);
    tcase_add_test(tests, test_an_engine_that_refuses);
    tcase_add_test(tests, test_one_at_a_time);
    tcase_add_test(tests, test_a_client_that_goes);
    tcase_add_test(tests, test_a_job_that_ends);
    tcase_add_test(tests, test_a_drain);
    tcase_add_test(tests, test_a_drain_waits_for_no_reader_for_long);
    tcase_add_test(tests, test_an_end_at_once);
    tcase_add_test(tests, test_wrong_words);
    tcase_add_test(tests, test_another_user);
    tcase_add_test(tests, test_users_do_not_wait_for_each_other);
    tcase_add_loop_test(tests, test_traces_of_many_users, 0, 2);
    tcase_add_loop_test(tests, test_root_and_the_owner_always_may, 0, 2);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
