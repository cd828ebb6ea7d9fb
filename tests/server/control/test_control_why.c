/* What another daemon says of a job's waits: questions about jobs that are not here, answers that
 * nobody asked for, and figures that make no sense. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server/status/status_daemon.h"
#include "server/waits/waits.h"
#include "tests/lib/server/control_daemon.h"
#include "tests/lib/server/raw_peer.h"
#include "tests/lib/suite.h"

static char *directory;
static struct control_daemon *daemon_b;
static struct raw_peer peer;
static uint16_t ports[2];
static int other_fd;

static void setup(void)
{
    struct message message;
    struct error error = {0};
    directory = suite_make_directory();
    other_fd = control_daemon_bind(&ports[0]);
    int fd = control_daemon_bind(&ports[1]);
    daemon_b = control_daemon_create(directory, 2, 1, ports);
    daemon_b->options.listen_fd = fd;
    ck_assert_msg(control_daemon_start(daemon_b, &error) == 0, "%s", error.text);
    raw_peer_open(&peer, daemon_b, 4711);
    raw_peer_shake_hands(&peer);
    ck_assert(raw_peer_next(&peer, &message));
    ck_assert_int_eq(message.type, MESSAGE_FABRIC);
}

static void teardown(void)
{
    raw_peer_close(&peer);
    control_daemon_free(daemon_b);
    close(other_fd);
    suite_remove_directory(directory);
}

/* The answer says that there is nothing: the list of figures is empty. */
static void peer_asks(uint32_t request)
{
    struct message message;
    raw_peer_send(
        &peer, &(struct message){.type = MESSAGE_WHY_QUERY, .job_id = 0xabc, .request = request});
    ck_assert(raw_peer_next(&peer, &message));
    ck_assert_int_eq(message.type, MESSAGE_WHY_REPLY);
    ck_assert_uint_eq(message.job_id, 0xabc);
    ck_assert_uint_eq(message.request, request);
}

static void peer_answers(uint32_t *words, uint32_t count, uint32_t *daemon, uint32_t daemon_count)
{
    raw_peer_send(&peer, &(struct message){.type = MESSAGE_WHY_REPLY,
                                           .job_id = 0xabc,
                                           .request = 1,
                                           .members = {words, count},
                                           .servers = {daemon, daemon_count}});
}

START_TEST(a_job_that_is_not_here_has_no_figures)
{
    peer_asks(0);
    peer_asks(UINT32_MAX);
}
END_TEST

START_TEST(an_answer_that_nobody_waits_for_is_dropped)
{
    uint32_t words[WAITS_WORDS] = {0}; /* of node 0, which the peer is */
    uint32_t daemon[STATUS_DAEMON_WORDS] = {0};
    peer_answers(words, WAITS_WORDS, daemon, STATUS_DAEMON_WORDS);
    peer_answers(words, 0, NULL, 0);
    peer_asks(2);
}
END_TEST

START_TEST(figures_of_another_number_end_the_connection)
{
    uint32_t words[WAITS_WORDS + 1] = {0}, daemon[STATUS_DAEMON_WORDS] = {0};
    peer_answers(words,
                 _i == 0   ? 1
                 : _i == 1 ? WAITS_WORDS - 1
                           : WAITS_WORDS + 1,
                 daemon, STATUS_DAEMON_WORDS);
    ck_assert(raw_peer_is_closed(&peer));
}
END_TEST

START_TEST(a_daemon_without_sense_ends_the_connection)
{
    static const uint32_t counts[] = {0, STATUS_DAEMON_WORDS - 1, STATUS_DAEMON_WORDS + 1,
                                      STATUS_DAEMON_WORDS + STATUS_LINK_WORDS,
                                      STATUS_DAEMON_WORDS_MAX + STATUS_LINK_WORDS};
    uint32_t words[WAITS_WORDS] = {0};
    uint32_t daemon[STATUS_DAEMON_WORDS_MAX + STATUS_LINK_WORDS] = {0};
    daemon[STATUS_DAEMON_WORDS] = 2; /* a node that is not in the roster */
    peer_answers(words, WAITS_WORDS, daemon, counts[_i]);
    ck_assert(raw_peer_is_closed(&peer));
}
END_TEST

START_TEST(figures_of_another_node_end_the_connection)
{
    struct waits_figures figures = {.own = 1};
    uint32_t words[WAITS_WORDS];
    uint32_t daemon[STATUS_DAEMON_WORDS] = {0};
    waits_pack(&figures, words);
    peer_answers(words, WAITS_WORDS, daemon, STATUS_DAEMON_WORDS);
    ck_assert(raw_peer_is_closed(&peer));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control_why");
    TCase *cases = tcase_create("control_why");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, a_job_that_is_not_here_has_no_figures);
    tcase_add_test(cases, an_answer_that_nobody_waits_for_is_dropped);
    tcase_add_loop_test(cases, figures_of_another_number_end_the_connection, 0, 3);
    tcase_add_loop_test(cases, a_daemon_without_sense_ends_the_connection, 0, 5);
    tcase_add_test(cases, figures_of_another_node_end_the_connection);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
