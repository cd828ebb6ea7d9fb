/* Control connections between daemons that break, with recovery on: what was not heard is said
 * again on the next one, once, and what cannot go on is lost and begins anew. */
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/jobs/conversation.h"
#include "tests/lib/job_name.h"
#include "tests/lib/server/control_daemon.h"
#include "tests/lib/server/raw_peer.h"
#include "tests/lib/suite.h"

#define PATIENCE_MS 60000
#define GOES_ON "is reached over the fabric, and its jobs go on"

static char *directory;
static struct control_daemon *daemons[2];
static char logs[2][300];
static uint16_t ports[2];
static int fds[2];

static void setup(void)
{
    directory = suite_make_directory();
    for (int i = 0; i < 2; i++)
        fds[i] = control_daemon_bind(&ports[i]);
}

static void teardown(void)
{
    for (int i = 0; i < 2; i++) {
        if (daemons[i]) {
            int fd = daemons[i]->log.fd;
            control_daemon_free(daemons[i]);
            daemons[i] = NULL;
            close(fd);
        }
        if (fds[i] >= 0)
            close(fds[i]);
    }
    suite_remove_directory(directory);
}

static void start(int node, uint32_t peer_ms)
{
    struct error error = {0};
    daemons[node] = control_daemon_create(directory, 2, (uint32_t)node, ports);
    daemons[node]->options.listen_fd = fds[node];
    fds[node] = -1;
    daemons[node]->config.heartbeat_ms = 100;
    daemons[node]->config.peer_ms = peer_ms;
    daemons[node]->config.recovery = true;
    snprintf(logs[node], sizeof(logs[node]), "%.200s/%d.log", directory, node);
    int fd = open(logs[node], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    log_init(&daemons[node]->log, "test", LOG_LEVEL_INFO, fd, false);
    ck_assert_msg(control_daemon_start(daemons[node], &error) == 0, "%s", error.text);
}

static int logged(int node, const char *piece)
{
    static char text[1 << 18];
    FILE *file = fopen(logs[node], "re");
    ck_assert_ptr_nonnull(file);
    size_t bytes = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[bytes] = '\0';
    int count = 0;
    for (const char *at = text; (at = strstr(at, piece)); at += strlen(piece))
        count++;
    return count;
}

static void wait_logged(int node, const char *piece, int count)
{
    for (int waited = 0; waited < PATIENCE_MS; waited += 10) {
        if (logged(node, piece) >= count)
            return;
        poll(NULL, 0, 10); /* between two looks; nothing depends on how long */
    }
    ck_abort_msg("not logged %d times: %s", count, piece);
}

/* --- a peer, said word by word, that connects to node b */

/* Its fabric; the session that begins is worked out as the paper says, or goes on. */
static void peer_connects(struct raw_peer *peer, uint64_t session, uint64_t heard,
                          struct message *theirs)
{
    raw_peer_open(peer, daemons[1], 4711);
    peer->fabric.session = session;
    peer->fabric.heard = heard;
    raw_peer_shake_hands(peer);
    raw_peer_expect(peer, MESSAGE_FABRIC, theirs);
}

static uint64_t session_of(const struct raw_peer *peer, const struct message *theirs)
{
    uint64_t own, other;
    memcpy(&own, peer->fabric.token, sizeof(own));
    memcpy(&other, theirs->token, sizeof(other));
    return own ^ other;
}

static uint64_t begin(struct raw_peer *peer)
{
    struct message theirs;
    ck_assert_int_eq(listen(fds[0], 64), 0); /* a machine whose daemon lives refuses nothing */
    peer_connects(peer, 0, 0, &theirs);
    ck_assert_uint_eq(theirs.session, 0);
    ck_assert_uint_eq(theirs.heard, 0);
    wait_logged(1, "is reached over the fabric", 1);
    return session_of(peer, &theirs);
}

/* A worker of node b asks for a job whose home is a: that a hears, and then that it has gone. */
START_TEST(test_what_was_not_heard_is_said_again)
{
    struct raw_peer peer;
    struct message message;
    struct control_client worker;
    char job[64];
    start(1, 20000);
    uint64_t session = begin(&peer);
    job_name_with_home(job, "train", 0, 2);
    control_client_open(&worker, daemons[1]);
    control_client_hello(&worker);
    control_client_join(&worker, job, 2, 1);
    raw_peer_expect(&peer, MESSAGE_JOB_JOIN, &message);
    for (uint64_t heard = 0; heard < 2; heard++) {
        raw_peer_close(&peer);
        wait_logged(1, "is away: its jobs wait 20000 ms", (int)heard + 1);
        peer_connects(&peer, session, heard, &message);
        ck_assert_uint_eq(message.session, session);
        ck_assert_uint_eq(message.heard, 2 * heard); /* of what is sent below, but the ping */
        wait_logged(1, GOES_ON, (int)heard + 1);
        if (heard == 0)
            raw_peer_expect(&peer, MESSAGE_JOB_JOIN, &message);
        raw_peer_send(&peer, &(struct message){.type = MESSAGE_JOB_READY, .job_id = 1});
        raw_peer_send(&peer, &(struct message){.type = MESSAGE_PING, .heard = 1});
        raw_peer_send(&peer, &(struct message){.type = MESSAGE_JOB_CLOSE, .job_id = 1});
    }
    control_client_close(&worker);
    raw_peer_expect(&peer, MESSAGE_JOB_WITHDRAW, &message);
    ck_assert_int_eq(logged(1, "is lost"), 0);
    raw_peer_close(&peer);
}
END_TEST

/* A user says more than is kept for a node that is away. Lines that others have said are kept, and
 * the node comes back to its jobs. */
START_TEST(test_a_user_with_much_to_say)
{
    enum { LINES = 40000, USER = 61001 };
    struct raw_peer peer;
    struct message message;
    struct control_client talker;
    char job[64], words[500], line[800];
    uint64_t heard = 0;
    if (geteuid() != 0) {
        suite_skip("a_user_with_much_to_say", "connecting as another user takes root");
        return;
    }
    start(1, 20000);
    uint64_t session = begin(&peer);
    ck_assert_int_eq(chmod(directory, 0755), 0);
    ck_assert_int_eq(chmod(daemons[1]->config.socket_path, 0666), 0);
    raw_peer_close(&peer);
    wait_logged(1, "is away", 1);
    job_name_with_home(job, "train", 0, 2);
    memset(words, 'x', sizeof(words) - 1);
    words[sizeof(words) - 1] = '\0';
    snprintf(line, sizeof(line),
             "{\"type\":\"unable\",\"job\":\"%s\",\"world_size\":2,\"rank\":1,\"code\":-3,"
             "\"text\":\"%s\"}\n",
             job, words);
    control_client_open_as(&talker, daemons[1], USER);
    control_client_hello(&talker);
    for (int i = 0; i < LINES; i++)
        control_client_write(&talker, line);
    control_client_write(&talker, "{\"type\":\"ping\"}\n");
    control_client_expect(&talker, MESSAGE_PONG, &message); /* all has been read */
    control_client_join(&talker, job, 2, 1);
    control_client_expect(&talker, MESSAGE_ERROR, &message);
    ck_assert_msg(strstr(message.text, "node a has yet to hear as much of user 61001"), "%s",
                  message.text);
    control_client_close(&talker);
    peer_connects(&peer, session, 0, &message);
    ck_assert_uint_eq(message.session, session);
    wait_logged(1, GOES_ON, 1);
    ck_assert_int_eq(logged(1, "cannot be kept"), 0);
    while (heard * sizeof(words) < CONVERSATION_USER_MOST_BYTES / 2) {
        raw_peer_expect(&peer, MESSAGE_JOB_UNABLE, &message);
        ck_assert_uint_eq(message.uid, USER);
        heard++;
    }
    raw_peer_close(&peer);
}
END_TEST

/* The peer has forgotten, or has never known, where they were: a session begins with this
 * connection. */
START_TEST(test_another_session)
{
    struct raw_peer peer;
    struct message theirs;
    start(1, 20000);
    uint64_t session = begin(&peer);
    raw_peer_close(&peer);
    wait_logged(1, "is away", 1);
    peer_connects(&peer, _i == 0 ? 0 : session ^ 1, 0, &theirs);
    ck_assert_uint_eq(theirs.session, 0);
    wait_logged(1, "is reached over the fabric", 2);
    wait_logged(1, "node a is lost: it does not know any more where they were", 1);
    ck_assert_int_eq(logged(1, GOES_ON), 0);
    uint64_t next = session_of(&peer, &theirs);
    raw_peer_close(&peer);
    wait_logged(1, "is away", 2);
    peer_connects(&peer, next, 0, &theirs);
    ck_assert_uint_eq(theirs.session, next);
    wait_logged(1, GOES_ON, 1);
    raw_peer_close(&peer);
}
END_TEST

/* The peer does not come back in time. Then its session is over. */
START_TEST(test_away_for_too_long)
{
    struct raw_peer peer;
    struct message theirs;
    start(1, 600);
    uint64_t session = begin(&peer);
    raw_peer_close(&peer);
    wait_logged(1, "is away: its jobs wait 600 ms", 1);
    wait_logged(1, "node a is lost: no other connection for 600 ms after the last one", 1);
    peer_connects(&peer, session, 0, &theirs);
    ck_assert_uint_eq(theirs.session, 0);
    raw_peer_close(&peer);
}
END_TEST

/* Its daemon has ended: whoever waits for its connection need not. */
START_TEST(test_a_machine_that_refuses)
{
    struct raw_peer peer;
    start(1, 50000);
    begin(&peer);
    close(fds[0]);
    fds[0] = -1;
    raw_peer_close(&peer);
    wait_logged(1, "is away: its jobs wait 50000 ms", 1);
    wait_logged(1, "node a is lost: Connection refused", 1);
}
END_TEST

/* The peer says that it has heard lines which were not said: no session goes on with that. */
START_TEST(test_a_count_that_cannot_be)
{
    struct raw_peer peer;
    struct message theirs;
    start(1, 20000);
    uint64_t session = begin(&peer);
    raw_peer_send(&peer, &(struct message){.type = MESSAGE_PING, .heard = 5});
    ck_assert(raw_peer_is_closed(&peer));
    raw_peer_close(&peer);
    wait_logged(1, "node a is lost: it has heard 5 lines, it says", 1);
    ck_assert_int_eq(logged(1, "is away"), 0);
    peer_connects(&peer, session, 0, &theirs);
    ck_assert_uint_eq(theirs.session, 0);
    raw_peer_close(&peer);
}
END_TEST

/* Node a connects, and has given the session up between its fabric and the answer. */
START_TEST(test_a_session_that_is_over)
{
    struct raw_peer peer;
    struct message theirs;
    ck_assert_int_eq(listen(fds[1], 4), 0);
    start(0, 20000);
    raw_peer_accept(&peer, fds[1], daemons[0], &theirs);
    ck_assert_uint_eq(theirs.session, 0);
    peer.fabric.session = 12345;
    raw_peer_send(&peer, &peer.fabric);
    ck_assert(raw_peer_is_closed(&peer));
    raw_peer_close(&peer);
    wait_logged(0, "goes on with a session that is over", 1);
}
END_TEST

/* --- two daemons */

/* Ends every TCP connection of node b's port, as a firewall between the two may. */
static int break_connections(void)
{
    struct rlimit limit;
    int count = 0;
    getrlimit(RLIMIT_NOFILE, &limit);
    for (int fd = 3; fd < 4096 && (rlim_t)fd < limit.rlim_cur; fd++) {
        struct sockaddr_in own = {0}, other = {0};
        socklen_t bytes = sizeof(own), other_bytes = sizeof(other);
        if (getsockname(fd, (struct sockaddr *)&own, &bytes) == 0 && own.sin_family == AF_INET &&
            own.sin_port == htons(ports[1]) &&
            getpeername(fd, (struct sockaddr *)&other, &other_bytes) == 0)
            count += shutdown(fd, SHUT_RDWR) == 0;
    }
    return count;
}

static void join_both(struct control_client workers[2], const char *job)
{
    struct message message;
    for (int i = 0; i < 2; i++) {
        control_client_open(&workers[i], daemons[i]);
        control_client_hello(&workers[i]);
        control_client_join(&workers[i], job, 2, i);
    }
    for (int i = 0; i < 2; i++)
        control_client_expect(&workers[i], MESSAGE_JOINED, &message);
}

START_TEST(test_jobs_go_on)
{
    struct control_client workers[2], others[2];
    struct message message;
    for (int i = 0; i < 2; i++)
        start(i, 20000);
    join_both(workers, "one");
    for (int times = 1; times <= 3; times++) {
        ck_assert_int_eq(break_connections(), 1);
        for (int i = 0; i < 2; i++)
            wait_logged(i, GOES_ON, times);
    }
    join_both(others, "two");
    for (int i = 0; i < 2; i++)
        control_client_write(&workers[i], "{\"type\":\"leave\"}\n");
    for (int i = 0; i < 2; i++) {
        control_client_expect(&workers[i], MESSAGE_LEFT, &message);
        ck_assert_int_eq(logged(i, "has failed"), 0);
    }
    for (int i = 0; i < 2; i++) {
        control_client_close(&workers[i]);
        control_client_close(&others[i]);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control_recovery");
    TCase *tests = tcase_create("recovery");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, test_what_was_not_heard_is_said_again);
    tcase_add_test(tests, test_a_user_with_much_to_say);
    tcase_add_loop_test(tests, test_another_session, 0, 2);
    tcase_add_test(tests, test_away_for_too_long);
    tcase_add_test(tests, test_a_machine_that_refuses);
    tcase_add_test(tests, test_a_count_that_cannot_be);
    tcase_add_test(tests, test_a_session_that_is_over);
    tcase_add_test(tests, test_jobs_go_on);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
