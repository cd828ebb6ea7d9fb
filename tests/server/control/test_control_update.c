/* The update of the control thread: one for all callbacks of a turn of the loop, and the last one
 * loses nothing. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/control/ground/control_internal.h"
#include "tests/lib/server/control_daemon.h"
#include "tests/lib/suite.h"

#define CLIENTS 5
#define PINGS 200u

static char *directory;
static struct control_daemon *daemon_;

static void setup(void)
{
    static const uint16_t any_port = 0;
    directory = suite_make_directory();
    daemon_ = control_daemon_create(directory, 1, 0, &any_port);
    daemon_->options.alive_ms = 0; /* once a second */
}

static void teardown(void)
{
    control_daemon_free(daemon_);
    suite_remove_directory(directory);
}

/* At most one update, however many callbacks. */
static void turn(struct control *control)
{
    uint64_t updates = control->updates;
    ck_assert_int_ge(event_base_loop(control->base, EVLOOP_ONCE | EVLOOP_NONBLOCK), 0);
    ck_assert_uint_le(control->updates, updates + 1);
}

/* Turns until one in which there was nothing to do: how many there were before it. On a slow
 * machine a turn may be too short for all that has come, and a timer of the daemon may strike. */
static uint32_t rest(struct control *control)
{
    for (uint32_t turns = 0;; turns++) {
        uint64_t updates = control->updates;
        turn(control);
        if (control->updates == updates)
            return turns;
    }
}

/* The test's thread is the control thread. */
START_TEST(test_one_for_all_callbacks_of_a_turn)
{
    struct error error = {0};
    struct control *control;
    ck_assert_int_eq(control_create(&control, &daemon_->options, &error), 0);
    daemon_->options.signal_fd = -1; /* taken over */
    struct control_client clients[CLIENTS];
    for (int i = 0; i < CLIENTS; i++)
        control_client_open(&clients[i], daemon_);
    rest(control);
    ck_assert_uint_eq(HASH_COUNT(control->workers), CLIENTS);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < CLIENTS; i++)
            control_client_write(&clients[i],
                                 round == 0 ? "{\"type\":\"hello\",\"protocol\":" : "nonsense");
        ck_assert_uint_ge(rest(control), 1); /* a callback for each connection */
    }
    for (int i = 0; i < CLIENTS; i++)
        control_client_write(&clients[i], "\n"); /* a line that makes no sense: each is cut off */
    ck_assert_uint_ge(rest(control), 1);
    ck_assert_uint_eq(HASH_COUNT(control->workers), 0);
    for (int i = 0; i < CLIENTS; i++) {
        ck_assert_ptr_null(control_client_line(&clients[i]));
        control_client_close(&clients[i]);
    }
    control_free(control);
}
END_TEST

/* However often it is asked for, and also when nothing else happens. */
START_TEST(test_asked_for_often)
{
    struct error error = {0};
    struct control *control;
    ck_assert_int_eq(control_create(&control, &daemon_->options, &error), 0);
    daemon_->options.signal_fd = -1;
    rest(control);
    uint64_t updates = control->updates;
    for (int i = 0; i < 10; i++)
        control_update_later(control);
    ck_assert_uint_eq(control->updates, updates); /* not in the middle of something */
    uint32_t turns = rest(control);
    ck_assert_uint_ge(turns, 1);
    ck_assert_uint_le(turns, 3); /* with those of two timers that may strike */
    control_free(control);
}
END_TEST

/* Everybody is told what they were to be told, although the end comes in the same turn: the answers
 * to what a client has asked, the end of the job to its ranks, and the end of each connection. */
START_TEST(test_the_last_one_loses_nothing)
{
    struct error error = {0};
    struct control_client ranks[2], asker;
    struct message message;
    char text[PINGS * 20] = "";
    ck_assert_msg(control_daemon_start(daemon_, &error) == 0, "%s", error.text);
    for (int i = 0; i < 2; i++) {
        control_client_open(&ranks[i], daemon_);
        control_client_hello(&ranks[i]);
        control_client_join(&ranks[i], "train", 2, i);
    }
    for (int i = 0; i < 2; i++) {
        control_client_expect(&ranks[i], MESSAGE_JOINED, &message);
        message_clear(&message);
    }
    control_client_open(&asker, daemon_);
    control_client_hello(&asker);
    for (uint32_t i = 0; i < PINGS; i++)
        strcat(text, "{\"type\":\"ping\"}\n");
    strcat(text, "{\"type\":\"drain\"}\n");
    control_client_write(&asker, text);
    for (uint32_t i = 0; i < PINGS; i++)
        control_client_expect(&asker, MESSAGE_PONG, &message);
    control_client_expect(&asker, MESSAGE_DRAINING, &message);
    ck_assert_ptr_null(control_client_line(&asker));
    for (int i = 0; i < 2; i++) {
        control_client_expect(&ranks[i], MESSAGE_FAILED, &message);
        ck_assert_str_eq(message.text, "node a is shutting down");
        ck_assert_ptr_null(control_client_line(&ranks[i]));
        control_client_close(&ranks[i]);
    }
    control_client_close(&asker);
    ck_assert_int_eq(control_daemon_join(daemon_), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control_update");
    TCase *cases = tcase_create("update");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_one_for_all_callbacks_of_a_turn);
    tcase_add_test(cases, test_asked_for_often);
    tcase_add_test(cases, test_the_last_one_loses_nothing);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
