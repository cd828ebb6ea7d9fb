/* Strangers at the control port, and daemons that claim a name which another one has. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/format/wire.h"
#include "server/control/ground/control_internal.h"
#include "tests/lib/server/control_daemon.h"
#include "tests/lib/server/raw_peer.h"
#include "tests/lib/suite.h"

#define DAEMONS 3
#define PATIENCE_MS 60000

static char *directory;
static struct control_daemon *daemons[DAEMONS];
static char logs[DAEMONS][300];
static uint16_t ports[2];
static int fds[2];

static void setup(void)
{
    directory = suite_make_directory();
    fds[0] = control_daemon_bind(&ports[0]);
    fds[1] = control_daemon_bind(&ports[1]);
}

static void end(int index)
{
    if (!daemons[index])
        return;
    int fd = daemons[index]->log.fd;
    control_daemon_free(daemons[index]);
    daemons[index] = NULL;
    close(fd);
}

static void teardown(void)
{
    for (int i = 0; i < DAEMONS; i++)
        end(i);
    for (int i = 0; i < 2; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
    suite_remove_directory(directory);
}

/* Node `node` of a roster of two, as daemon `index`, which has a file for its log. */
static void create(int index, uint32_t node, int listen_fd)
{
    daemons[index] = control_daemon_create(directory, 2, node, ports);
    daemons[index]->options.listen_fd = listen_fd;
    daemons[index]->config.heartbeat_ms = 100;
    snprintf(daemons[index]->config.socket_path, sizeof(daemons[index]->config.socket_path),
             "%.80s/%d.sock", directory, index);
    snprintf(logs[index], sizeof(logs[index]), "%.200s/%d.log", directory, index);
    int fd = open(logs[index], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    log_init(&daemons[index]->log, "test", LOG_LEVEL_INFO, fd, false);
}

static void start(int index)
{
    struct error error = {0};
    ck_assert_msg(control_daemon_start(daemons[index], &error) == 0, "%s", error.text);
}

static int take_fd(int node)
{
    int fd = fds[node];
    fds[node] = -1;
    return fd;
}

static void start_both(void)
{
    for (int i = 0; i < 2; i++) {
        create(i, (uint32_t)i, take_fd(i));
        start(i);
    }
}

/* A daemon that also says it is a, on another port. */
static void start_second(void)
{
    uint16_t other;
    create(2, 0, control_daemon_bind(&other));
    start(2);
}

static char *read_log(int index)
{
    FILE *file = fopen(logs[index], "r");
    ck_assert_ptr_nonnull(file);
    char *text = calloc(1, 1 << 20);
    ck_assert_ptr_nonnull(text);
    ck_assert_uint_lt(fread(text, 1, (1 << 20) - 1, file), (1 << 20) - 1);
    fclose(file);
    return text;
}

static uint32_t count_in_log(int index, const char *piece)
{
    uint32_t count = 0;
    char *text = read_log(index);
    for (const char *at = text; (at = strstr(at, piece)); at += strlen(piece))
        count++;
    free(text);
    return count;
}

static void wait_log(int index, const char *piece)
{
    for (int waited = 0; waited < PATIENCE_MS; waited += 10) {
        if (count_in_log(index, piece) > 0)
            return;
        poll(NULL, 0, 10); /* between two looks; nothing depends on how long */
    }
    ck_abort_msg("not logged: %s; log:\n%.3000s", piece, read_log(index));
}

/* The status of its only peer, once the key's value has the piece. */
static void wait_peer(int index, const char *key, const char *piece)
{
    struct control_client client;
    control_client_open(&client, daemons[index]);
    control_client_hello(&client);
    for (int waited = 0; waited < PATIENCE_MS; waited += 10) {
        control_client_write(&client, "{\"type\":\"status\"}\n");
        json_t *status = json_loads(control_client_line(&client), 0, NULL);
        ck_assert_ptr_nonnull(status);
        json_t *peer = json_array_get(json_object_get(status, "peers"), 0);
        bool found = strstr(json_string_value(json_object_get(peer, key)), piece) != NULL;
        json_decref(status);
        if (found) {
            control_client_close(&client);
            return;
        }
        poll(NULL, 0, 10);
    }
    ck_abort_msg("%s never became %s; log:\n%.3000s", key, piece, read_log(index));
}

/* --- two daemons of one name */

static void join_both(struct control_client workers[2])
{
    struct message message;
    for (int i = 0; i < 2; i++) {
        control_client_open(&workers[i], daemons[i]);
        control_client_hello(&workers[i]);
        control_client_join(&workers[i], "train", 2, i);
    }
    for (int i = 0; i < 2; i++)
        control_client_expect(&workers[i], MESSAGE_JOINED, &message);
}

/* The job of both goes on: no rank was told that it has failed. */
static void expect_running(struct control_client workers[2])
{
    struct message message;
    for (int i = 0; i < 2; i++) {
        control_client_write(&workers[i], "{\"type\":\"ping\"}\n");
        control_client_expect(&workers[i], MESSAGE_PONG, &message);
    }
}

START_TEST(test_second_daemon_of_a_name)
{
    struct control_client workers[2];
    start_both();
    join_both(workers);
    start_second();
    wait_peer(2, "last_error",
              "it refuses: another daemon of that name is connected with node b, from 127.0.0.1:");
    wait_log(1, "two daemons are called a: the one at 127.0.0.1:");
    wait_log(0, "another daemon of that name, at 127.0.0.1:");
    expect_running(workers);
    wait_peer(0, "state", "up");
    wait_peer(1, "state", "up");
    ck_assert_uint_eq(count_in_log(1, "has connected again"), 0);
    /* The first goes, and the second has the name at once. */
    for (int i = 0; i < 2; i++)
        control_client_close(&workers[i]);
    end(0);
    wait_peer(2, "state", "up");
    wait_peer(1, "state", "up");
}
END_TEST

/* A daemon that was killed is replaced without a question: its connection has ended. */
START_TEST(test_restarted_daemon)
{
    start_both();
    wait_peer(1, "state", "up");
    end(0);
    start_second();
    wait_peer(1, "state", "up");
    wait_peer(2, "state", "up");
    ck_assert_uint_eq(count_in_log(1, "two daemons are called a"), 0);
}
END_TEST

/* A daemon connects once more: it knows what became of its older connection. */
START_TEST(test_same_daemon_connects_again)
{
    struct raw_peer first, second;
    struct message message;
    create(1, 1, take_fd(1));
    start(1);
    raw_peer_open(&first, daemons[1], 4711);
    raw_peer_shake_hands(&first);
    ck_assert(raw_peer_next(&first, &message));
    ck_assert_int_eq(message.type, MESSAGE_FABRIC);
    raw_peer_open(&second, daemons[1], 4711);
    raw_peer_shake_hands(&second);
    ck_assert(raw_peer_next(&second, &message));
    ck_assert_int_eq(message.type, MESSAGE_FABRIC);
    ck_assert(raw_peer_is_closed(&first));
    ck_assert_uint_eq(first.their_incarnation, second.their_incarnation);
    wait_log(1, "it has connected again");
    raw_peer_close(&first);
    raw_peer_close(&second);
}
END_TEST

/* The older one says nothing any more: it stays until it has been silent for too long, and then
 * the other gets its name. */
START_TEST(test_older_daemon_is_silent)
{
    struct raw_peer silent, next;
    struct message message;
    create(1, 1, take_fd(1));
    daemons[1]->config.peer_ms = 1500;
    start(1);
    raw_peer_open(&silent, daemons[1], 1);
    raw_peer_shake_hands(&silent);
    ck_assert(raw_peer_next(&silent, &message));
    raw_peer_open(&next, daemons[1], 2);
    raw_peer_shake_hands(&next);
    ck_assert(raw_peer_next(&next, &message));
    ck_assert_int_eq(message.type, MESSAGE_FABRIC);
    ck_assert(raw_peer_is_closed(&silent));
    ck_assert_uint_eq(count_in_log(1, "two daemons are called"), 0);
    wait_log(1, "no heartbeat for 1500 ms");
    raw_peer_close(&silent);
    raw_peer_close(&next);
}
END_TEST

/* The older one answers: the newer one is told where it is, and nothing else happens. */
START_TEST(test_older_daemon_answers)
{
    struct raw_peer first, second;
    struct message message;
    create(1, 1, take_fd(1));
    start(1);
    raw_peer_open(&first, daemons[1], 1);
    raw_peer_shake_hands(&first);
    ck_assert(raw_peer_next(&first, &message));
    raw_peer_open(&second, daemons[1], 2);
    raw_peer_shake_hands(&second);
    if (_i == 1) /* impatient: it is not the node's yet */
        raw_peer_send(&second, &(struct message){.type = MESSAGE_JOB_READY, .job_id = 1});
    /* The contest may not have begun with the first of them. */
    struct pollfd answer = {second.fd, POLLIN, 0};
    for (int waited = 0; _i == 0 && waited < 20000; waited += 10) {
        raw_peer_send(&first, &(struct message){.type = MESSAGE_PING});
        if (poll(&answer, 1, 10) > 0)
            break;
    }
    if (_i == 0) {
        ck_assert(raw_peer_next(&second, &message));
        ck_assert_int_eq(message.type, MESSAGE_REFUSED);
        ck_assert_int_eq(message.code, ERR_REFUSED);
        ck_assert_ptr_nonnull(strstr(message.text, "is connected with node b, from 127.0.0.1:"));
        ck_assert(raw_peer_next(&first, &message));
        ck_assert_int_eq(message.type, MESSAGE_CONTESTED);
        ck_assert_ptr_nonnull(strstr(message.text, "at 127.0.0.1:"));
    } else {
        wait_log(1, "job_ready before it was told to go on");
    }
    ck_assert(raw_peer_is_closed(&second));
    raw_peer_send(&first, &(struct message){.type = MESSAGE_PING});
    ck_assert_uint_eq(count_in_log(1, "it has connected again"), 0);
    raw_peer_close(&first);
    raw_peer_close(&second);
}
END_TEST

START_TEST(test_other_wire_version)
{
    struct raw_peer peer;
    struct message message;
    create(1, 1, take_fd(1));
    start(1);
    raw_peer_open(&peer, daemons[1], 1);
    peer.hello.wire = WIRE_VERSION + 1;
    raw_peer_send(&peer, &peer.hello);
    ck_assert(raw_peer_next(&peer, &message));
    ck_assert_int_eq(message.type, MESSAGE_HELLO);
    ck_assert_uint_eq(message.wire, WIRE_VERSION);
    ck_assert(raw_peer_is_closed(&peer));
    wait_log(1, "raw speaks version");
    raw_peer_close(&peer);
}
END_TEST

/* --- strangers */

#define HELD 400

static atomic_bool flooding;

/* Half of them from the roster's address, the others from many. */
static int stranger(int number)
{
    return raw_connect(ports[1], number % 2 ? 1 : (uint8_t)(2 + number % 200));
}

/* Silent connections; those that are closed are made anew at once. */
static void *hold(void *argument)
{
    int *held = argument;
    while (flooding) {
        uint32_t closed = 0;
        for (int i = 0; i < HELD; i++) {
            char byte;
            if (held[i] >= 0 && (recv(held[i], &byte, 1, MSG_DONTWAIT) > 0 || errno == EAGAIN))
                continue;
            if (held[i] >= 0)
                close(held[i]);
            held[i] = stranger(i);
            closed++;
        }
        if (closed == 0)
            poll(NULL, 0, 1);
    }
    return NULL;
}

/* Strangers hold whatever places they get, and take what becomes free. */
START_TEST(test_strangers_hold_all_places)
{
    static int held[HELD];
    pthread_t thread;
    create(1, 1, take_fd(1));
    start(1);
    for (int i = 0; i < HELD; i++) {
        held[i] = stranger(i);
        ck_assert_int_ge(held[i], 0);
    }
    flooding = true;
    ck_assert_int_eq(pthread_create(&thread, NULL, hold, held), 0);
    create(0, 0, take_fd(0));
    start(0);
    wait_peer(0, "state", "up");
    wait_peer(1, "state", "up");
    flooding = false;
    pthread_join(thread, NULL);
    for (int i = 0; i < HELD; i++) {
        if (held[i] >= 0)
            close(held[i]);
    }
}
END_TEST

/* New connections all the time, from the roster's address; those that are closed are made anew. */
static void *flood(void *argument)
{
    static const char garbage[] = "{\"type\":\"ping\",\"heard\":0}\n";
    enum { KEPT = 64 };
    int kept[KEPT];
    (void)argument;
    memset(kept, -1, sizeof(kept));
    for (uint32_t i = 0; flooding; i++) {
        if (kept[i % KEPT] >= 0)
            close(kept[i % KEPT]);
        kept[i % KEPT] = raw_connect(ports[1], 1);
        if (kept[i % KEPT] < 0)
            poll(NULL, 0, 1); /* no ports left for a while */
        else if (i % 2)
            send(kept[i % KEPT], garbage, strlen(garbage), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    for (int i = 0; i < KEPT; i++) {
        if (kept[i] >= 0)
            close(kept[i]);
    }
    return NULL;
}

/* A daemon gets through a crowd that never stops, and the log stays short. */
START_TEST(test_flood_of_strangers)
{
    pthread_t thread;
    create(1, 1, take_fd(1));
    start(1);
    flooding = true;
    ck_assert_int_eq(pthread_create(&thread, NULL, flood, NULL), 0);
    wait_log(1, "ping in place of hello");
    create(0, 0, take_fd(0));
    start(0);
    wait_peer(1, "state", "up");
    flooding = false;
    pthread_join(thread, NULL);
    /* A burst for each class of addresses, and one line in 5 s. */
    uint32_t lines = count_in_log(1, "\n");
    ck_assert_msg(lines < 2 * LOG_THROTTLE_BURST + 40, "%u lines", lines);
}
END_TEST

/* Strangers have all descriptors that are not kept for workers: one of them gives its own up. */
START_TEST(test_strangers_have_all_descriptors)
{
    enum { LEFT = 40, STRANGERS = 30 };
    struct rlimit limit, before;
    struct raw_peer peer;
    struct message message;
    int held[STRANGERS];
    create(1, 1, take_fd(1));
    int next = dup(STDERR_FILENO);
    ck_assert_int_ge(next, 0);
    close(next);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = before;
    limit.rlim_cur =
        (rlim_t)next + LEFT + (rlim_t)control_descriptors_needed(&daemons[1]->config, false);
    if (limit.rlim_cur > limit.rlim_max) {
        suite_skip("test_strangers_have_all_descriptors", "it may not have enough descriptors");
        return;
    }
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    start(1); /* looks at the limit */
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    /* Both ends of each are in this process. */
    for (int i = 0; i < STRANGERS; i++) {
        held[i] = raw_connect(ports[1], (uint8_t)(10 + i));
        ck_assert_int_ge(held[i], 0);
    }
    wait_log(1, "descriptors are short");
    for (int i = 0; i < 3; i++) {
        raw_peer_open(&peer, daemons[1], 4711);
        raw_peer_shake_hands(&peer);
        ck_assert(raw_peer_next(&peer, &message));
        ck_assert_int_eq(message.type, MESSAGE_FABRIC);
        raw_peer_close(&peer);
    }
    for (int i = 0; i < STRANGERS; i++)
        close(held[i]);
}
END_TEST

START_TEST(test_lines_of_strangers)
{
    create(1, 1, take_fd(1));
    start(1);
    for (int i = 0; i < 500; i++) {
        char byte;
        int fd = raw_connect(ports[1], 7);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(send(fd, "nonsense\n", 9, MSG_NOSIGNAL), 9);
        while (recv(fd, &byte, 1, 0) > 0) {
        }
        close(fd);
    }
    uint32_t lines = count_in_log(1, "is over");
    ck_assert_uint_ge(lines, LOG_THROTTLE_BURST);
    ck_assert_uint_le(lines, LOG_THROTTLE_BURST + 20);
    /* When it is over, it is told how many there were. */
    wait_log(1, "left out");
}
END_TEST

/* Lines that a user of this node causes: nonsense, and joins that are refused. */
START_TEST(test_lines_of_a_user)
{
    enum { TIMES = 3 * LOG_THROTTLE_BURST };
    struct message message;
    create(0, 0, take_fd(0));
    start(0);
    for (uint32_t i = 0; i < TIMES; i++) {
        struct control_client client;
        control_client_open(&client, daemons[0]);
        control_client_hello(&client);
        if (_i == 0) {
            control_client_write(&client, "nonsense\n");
        } else {
            control_client_join(&client, "train", 1, 5);
            control_client_expect(&client, MESSAGE_ERROR, &message);
        }
        ck_assert_ptr_null(control_client_line(&client));
        control_client_close(&client);
    }
    const char *piece = _i == 0 ? "is closed" : "has not joined";
    uint32_t lines = count_in_log(0, piece);
    ck_assert_uint_ge(lines, LOG_THROTTLE_BURST);
    ck_assert_uint_le(lines, LOG_THROTTLE_BURST + 20);
    wait_log(0, "left out");
}
END_TEST

/* --- the path of the Unix socket */

START_TEST(test_path_of_a_successor_stays)
{
    struct stat before, after;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    create(1, 1, take_fd(1));
    start(1);
    snprintf(address.sun_path, sizeof(address.sun_path), "%.107s", daemons[1]->config.socket_path);
    ck_assert_int_eq(unlink(address.sun_path), 0);
    int successor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(successor, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(stat(address.sun_path, &before), 0);
    end(1);
    ck_assert_int_eq(stat(address.sun_path, &after), 0);
    ck_assert_uint_eq(before.st_ino, after.st_ino);
    close(successor);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control peers");
    TCase *cases = tcase_create("control peers");
    tcase_set_timeout(cases, 180);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_second_daemon_of_a_name);
    tcase_add_test(cases, test_restarted_daemon);
    tcase_add_test(cases, test_same_daemon_connects_again);
    tcase_add_test(cases, test_older_daemon_is_silent);
    tcase_add_loop_test(cases, test_older_daemon_answers, 0, 2);
    tcase_add_test(cases, test_other_wire_version);
    tcase_add_test(cases, test_strangers_hold_all_places);
    tcase_add_test(cases, test_flood_of_strangers);
    tcase_add_test(cases, test_strangers_have_all_descriptors);
    tcase_add_test(cases, test_lines_of_strangers);
    tcase_add_loop_test(cases, test_lines_of_a_user, 0, 2);
    tcase_add_test(cases, test_path_of_a_successor_stays);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
