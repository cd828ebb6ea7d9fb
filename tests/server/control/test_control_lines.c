/* How long a line may be, said to a control thread by whom it matters to, and who may not have more
 * connections. Spaces make a line as long as one likes. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/server/control_daemon.h"
#include "tests/lib/suite.h"

#define GROUP_OPEN "{\"type\":\"group_open\",\"request\":1,\"ranks\":[0],\"nth\":0,\"timeout_ms\":0"
#define PING "{\"type\":\"ping\""

static char *directory;
static struct control_daemon *daemon_;
static struct control_client client;

static void setup(void)
{
    static const uint16_t any_port = 0;
    struct error error = {0};
    directory = suite_make_directory();
    daemon_ = control_daemon_create(directory, 1, 0, &any_port);
    ck_assert_msg(control_daemon_start(daemon_, &error) == 0, "%s", error.text);
    control_client_open(&client, daemon_);
    control_client_hello(&client);
}

static void teardown(void)
{
    control_client_close(&client);
    control_daemon_free(daemon_);
    suite_remove_directory(directory);
}

static void join(void)
{
    struct message message;
    control_client_join(&client, "train", 1, 0);
    control_client_expect(&client, MESSAGE_JOINED, &message);
}

/* Write a line that begins with `begin` and has `bytes` bytes, with the newline. */
static void write_line(const char *begin, size_t bytes)
{
    char *line = malloc(bytes + 1);
    memset(line, ' ', bytes);
    memcpy(line, begin, strlen(begin));
    memcpy(line + bytes - 2, "}\n", 3);
    ck_assert_int_eq(send(client.fd, line, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
    free(line);
}

static void expect_answer(enum message_type type)
{
    struct message message;
    control_client_expect(&client, type, &message);
}

static void expect_end(void)
{
    ck_assert_ptr_null(control_client_line(&client));
}

START_TEST(test_short_lines)
{
    write_line(PING, MESSAGE_FIRST_LINE_BYTES);
    expect_answer(MESSAGE_PONG);
    write_line(PING, MESSAGE_FIRST_LINE_BYTES + 1);
    expect_end();
}
END_TEST

/* A client that has not joined has no ranks to name. */
START_TEST(test_list_before_the_join)
{
    write_line(GROUP_OPEN, MESSAGE_FIRST_LINE_BYTES + 1);
    expect_end();
}
END_TEST

START_TEST(test_list_of_a_job)
{
    join();
    write_line(GROUP_OPEN, MESSAGE_FIRST_LINE_BYTES + MESSAGE_LIST_RANK_BYTES);
    expect_answer(MESSAGE_WORKER_GROUP_OPENED);
    write_line(PING, MESSAGE_FIRST_LINE_BYTES);
    expect_answer(MESSAGE_PONG);
    write_line(GROUP_OPEN, MESSAGE_FIRST_LINE_BYTES + MESSAGE_LIST_RANK_BYTES + 1);
    expect_end();
}
END_TEST

/* A line that is no list may be no longer than before the join. */
START_TEST(test_other_lines_of_a_job)
{
    join();
    write_line(PING, MESSAGE_FIRST_LINE_BYTES + 1);
    expect_end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control_lines");
    TCase *cases = tcase_create("lines");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_short_lines);
    tcase_add_test(cases, test_list_before_the_join);
    tcase_add_test(cases, test_list_of_a_job);
    tcase_add_test(cases, test_other_lines_of_a_job);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
