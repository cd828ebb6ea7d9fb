/* Lines that another daemon says about a job's waits: questions about jobs that are not here,
 * answers that nobody asked for, and figures that make no sense. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
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

/* --- a node that does not answer ---------------------------------------------------------------
 */

/* The stand-in for b's engine, on which its control thread waits while `is_shut`. */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_opens = PTHREAD_COND_INITIALIZER;
static bool is_shut;
static int (*real_status)(struct engine *engine, struct engine_status *status);

static int status_behind_the_gate(struct engine *engine, struct engine_status *status)
{
    pthread_mutex_lock(&gate);
    while (is_shut)
        pthread_cond_wait(&gate_opens, &gate);
    pthread_mutex_unlock(&gate);
    return real_status(engine, status);
}

static void gate_set(bool shut)
{
    pthread_mutex_lock(&gate);
    is_shut = shut;
    pthread_cond_broadcast(&gate_opens);
    pthread_mutex_unlock(&gate);
}

static struct control_daemon *two[2];

static void setup_two(void)
{
    struct error error = {0};
    directory = suite_make_directory();
    ck_assert_int_eq(chmod(directory, 0755), 0);
    int fds[2] = {control_daemon_bind(&ports[0]), control_daemon_bind(&ports[1])};
    for (uint32_t i = 0; i < 2; i++) {
        two[i] = control_daemon_create(directory, 2, i, ports);
        two[i]->options.listen_fd = fds[i];
        two[i]->config.socket_mode = 0666;
    }
    real_status = two[1]->options.engine.status;
    two[1]->options.engine.status = status_behind_the_gate;
    for (uint32_t i = 0; i < 2; i++)
        ck_assert_msg(control_daemon_start(two[i], &error) == 0, "%s", error.text);
}

static void teardown_two(void)
{
    gate_set(false);
    for (uint32_t i = 0; i < 2; i++)
        control_daemon_free(two[i]);
    suite_remove_directory(directory);
}

static void open_as(struct control_client *client, uint32_t uid, uint32_t node)
{
    control_client_open_as(client, two[node], uid);
    control_client_hello(client);
}

/* One user asks without end while a node is silent. The job's owner, root and everybody else are
 * answered as soon as anybody. */
START_TEST(nobody_asks_in_vain_while_a_node_is_silent)
{
    enum { OWNER = 4242, CURIOUS = 4243, MANY = 40 };
    struct control_client workers[2], many[MANY], owner, root;
    struct message message;
    if (geteuid() != 0) {
        suite_skip("nobody_asks_in_vain", "needs root to become two users");
        return;
    }
    for (uint32_t i = 0; i < 2; i++) {
        open_as(&workers[i], OWNER, i);
        control_client_join(&workers[i], "train", 2, (int)i);
    }
    for (uint32_t i = 0; i < 2; i++) {
        control_client_expect(&workers[i], MESSAGE_JOINED, &message);
        message_clear(&message);
    }
    gate_set(true);
    for (int i = 0; i < MANY; i++) {
        open_as(&many[i], CURIOUS, 0);
        control_client_write(&many[i], "{\"type\":\"why\",\"job\":\"train\"}\n");
    }
    open_as(&owner, OWNER, 0);
    open_as(&root, 0, 0);
    struct control_client *asking[] = {&owner, &root, &many[0], &many[MANY - 1]};
    for (int i = 0; i < 2; i++)
        control_client_write(asking[i], "{\"type\":\"why\",\"job\":\"train\"}\n");
    for (int i = 0; i < 4; i++) {
        const char *line = control_client_line(asking[i]);
        ck_assert_msg(line && strstr(line, "\"type\":\"why\"") &&
                          strstr(line, "\"silent_nodes\":[\"b\"]"),
                      "%s", line ? line : "nothing");
    }
    gate_set(false);
    for (int i = 0; i < MANY; i++)
        control_client_close(&many[i]);
    control_client_close(&owner);
    control_client_close(&root);
    for (int i = 0; i < 2; i++)
        control_client_close(&workers[i]);
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
    TCase *silent = tcase_create("silent");
    tcase_set_timeout(silent, 60);
    tcase_add_checked_fixture(silent, setup_two, teardown_two);
    tcase_add_test(silent, nobody_asks_in_vain_while_a_node_is_silent);
    suite_add_tcase(suite, silent);
    return suite_main(suite);
}
