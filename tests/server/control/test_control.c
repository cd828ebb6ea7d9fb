/* The control thread over real sockets, with a stand-in engine. */
#include <fcntl.h>
#include <jansson.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/control/ground/control_internal.h"
#include "tests/lib/server/control_daemon.h"
#include "tests/lib/suite.h"

static char *directory;
static struct control_daemon *daemons[2];
static uint16_t ports[2];

static void setup(void)
{
    directory = suite_make_directory();
}

static void teardown(void)
{
    for (int i = 0; i < 2; i++) {
        if (daemons[i])
            control_daemon_free(daemons[i]);
        daemons[i] = NULL;
    }
    suite_remove_directory(directory);
}

static void start(struct control_daemon *daemon)
{
    struct error error = {0};
    ck_assert_msg(control_daemon_start(daemon, &error) == 0, "%s", error.text);
}

/* One daemon that is alone. */
static struct control_daemon *start_one(void)
{
    ports[0] = 0;
    daemons[0] = control_daemon_create(directory, 1, 0, ports);
    start(daemons[0]);
    return daemons[0];
}

/* Two daemons, sockets handed over so that the ports are known before. */
static void create_two(void)
{
    int fds[2] = {control_daemon_bind(&ports[0]), control_daemon_bind(&ports[1])};
    for (uint32_t i = 0; i < 2; i++) {
        daemons[i] = control_daemon_create(directory, 2, i, ports);
        daemons[i]->options.listen_fd = fds[i];
    }
}

/* The status, once `node`'s first peer's value of the key is as wanted. */
static void wait_peer(struct control_daemon *daemon, const char *key, const char *piece)
{
    struct control_client client;
    control_client_open(&client, daemon);
    control_client_hello(&client);
    for (int attempt = 0; attempt < 2000; attempt++) {
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
        poll(NULL, 0, 10); /* between two questions; nothing depends on how long */
    }
    ck_abort_msg("%s never became %s", key, piece);
}

START_TEST(test_hello_and_status)
{
    struct control_client client;
    start_one();
    control_client_open(&client, daemons[0]);
    control_client_hello(&client);
    control_client_write(&client, "{\"type\":\"status\"}\n{\"type\":\"status\"}\n");
    for (int i = 0; i < 2; i++) {
        json_t *status = json_loads(control_client_line(&client), 0, NULL);
        ck_assert_ptr_nonnull(status);
        ck_assert_str_eq(json_string_value(json_object_get(status, "type")), "status");
        ck_assert_str_eq(json_string_value(json_object_get(status, "node")), "a");
        ck_assert_int_eq(json_integer_value(json_object_get(status, "pid")), getpid());
        json_decref(status);
    }
    control_client_close(&client);
}
END_TEST

START_TEST(test_other_protocol)
{
    struct control_client client;
    struct message message;
    start_one();
    control_client_open(&client, daemons[0]);
    control_client_write(&client,
                         "{\"type\":\"hello\",\"protocol\":9,\"software\":\"next\",\"pid\":1}\n");
    control_client_expect(&client, MESSAGE_ERROR, &message);
    ck_assert_int_eq(message.code, ERR_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(message.text, "next speaks 9"));
    ck_assert_ptr_null(control_client_line(&client));
    control_client_close(&client);
}
END_TEST

static const char *const garbage[] = {
    "GET / HTTP/1.1\r\n\r\n",
    "{\"type\":\"status\"}\n",
    "{\"type\":\"hello\",\"protocol\":3,\"software\":\"x\"}\n",
    "{\"type\":\"hello\",\"protocol\":3,\"software\":\"x\",\"pid\":1}\n{\"type\":\"leave\"}\n",
    "{\"type\":\"hello\",\"protocol\":3,\"software\":\"x\",\"pid\":1}\n{\"type\":\"join\","
    "\"job\":\"t\",\"world_size\":1,\"rank\":0,\"local_rank\":0,\"timeout_ms\":0}\n",
};

START_TEST(test_garbage_ends_one_connection)
{
    struct control_client good, bad;
    struct message message;
    start_one();
    control_client_open(&good, daemons[0]);
    control_client_hello(&good);
    control_client_join(&good, "train", 1, 0);
    control_client_expect(&good, MESSAGE_JOINED, &message);
    control_client_open(&bad, daemons[0]);
    control_client_write(&bad, garbage[_i]);
    const char *line = control_client_line(&bad);
    while (line && strstr(line, "\"hello\""))
        line = control_client_line(&bad);
    ck_assert_ptr_null(line);
    control_client_close(&bad);
    control_client_write(&good, "{\"type\":\"leave\"}\n");
    control_client_expect(&good, MESSAGE_LEFT, &message);
    ck_assert_ptr_null(control_client_line(&good));
    control_client_close(&good);
}
END_TEST

START_TEST(test_long_line)
{
    struct control_client client;
    start_one();
    control_client_open(&client, daemons[0]);
    char *bytes = malloc(1 << 20);
    memset(bytes, 'x', 1 << 20);
    /* The daemon closes at some point; how much it takes before is its matter. */
    for (int i = 0; i < 4; i++) {
        if (send(client.fd, bytes, 1 << 20, MSG_NOSIGNAL) < 0)
            break;
    }
    free(bytes);
    ck_assert_ptr_null(control_client_line(&client));
    control_client_close(&client);
}
END_TEST

/* Thousands of requests in a packet, of somebody who does not read: others are served meanwhile,
 * and no more statuses are made than are read. */
START_TEST(test_status_flood)
{
    enum { REQUESTS = 3600 };
    static const char request[] = "{\"type\":\"status\"}\n";
    struct control_client flood, client;
    struct message message;
    start_one();
    control_client_open(&flood, daemons[0]);
    control_client_hello(&flood);
    control_client_open(&client, daemons[0]);
    control_client_hello(&client);
    char *text = calloc(REQUESTS, sizeof(request));
    for (int i = 0; i < REQUESTS; i++)
        memcpy(text + (size_t)i * strlen(request), request, strlen(request));
    control_client_write(&flood, text);
    free(text);
    for (int i = 0; i < 3; i++) {
        control_client_write(&client, "{\"type\":\"ping\"}\n");
        control_client_expect(&client, MESSAGE_PONG, &message);
    }
    ck_assert_uint_lt(control_daemon_status_count(daemons[0]), REQUESTS / 2);
    for (int i = 0; i < REQUESTS; i++)
        ck_assert_ptr_nonnull(strstr(control_client_line(&flood), "\"status\""));
    control_client_close(&flood);
    control_client_close(&client);
}
END_TEST

/* Told why, and closed. */
static void expect_refused(struct control_client *client, const char *why)
{
    const char *line = control_client_line(client);
    ck_assert_msg(line && strstr(line, why), "no \"%s\" in %s", why, line ? line : "nothing");
    ck_assert_ptr_null(control_client_line(client));
}

START_TEST(test_connection_limit)
{
    struct control_client first, second;
    ports[0] = 0;
    daemons[0] = control_daemon_create(directory, 1, 0, ports);
    daemons[0]->config.connections = 1;
    start(daemons[0]);
    control_client_open(&first, daemons[0]);
    control_client_hello(&first);
    control_client_open(&second, daemons[0]);
    expect_refused(&second, "there may be 1 connections to the Unix socket on node a "
                            "(limits.connections)");
    control_client_write(&first, "{\"type\":\"status\"}\n");
    ck_assert_ptr_nonnull(control_client_line(&first));
    control_client_close(&first);
    control_client_close(&second);
}
END_TEST

static void open_as(struct control_client *client, uid_t uid)
{
    control_client_open_as(client, daemons[0], uid);
}

START_TEST(test_one_user_cannot_shut_others_out)
{
    if (geteuid() != 0) {
        suite_skip("test_one_user_cannot_shut_others_out", "only root can connect as others");
        return;
    }
    struct control_client clients[3], other, root;
    ports[0] = 0;
    daemons[0] = control_daemon_create(directory, 1, 0, ports);
    daemons[0]->config.connections = 4;
    daemons[0]->config.workers = 1;
    daemons[0]->config.socket_mode = 0666;
    ck_assert_int_eq(chmod(directory, 0755), 0);
    start(daemons[0]);
    for (int i = 0; i < 3; i++)
        open_as(&clients[i], 65533);
    expect_refused(&clients[2],
                   "2 of them one user's: there are 2, user 65533 has 2 and asks for 1 "
                   "more; end some of them first, or raise the limit");
    open_as(&other, 65534);
    control_client_hello(&other);
    control_client_open(&root, daemons[0]);
    control_client_hello(&root);
    control_client_hello(&clients[0]);
    control_client_hello(&clients[1]);
    for (int i = 0; i < 3; i++)
        control_client_close(&clients[i]);
    control_client_close(&other);
    control_client_close(&root);
}
END_TEST

START_TEST(test_arena_over_the_limit)
{
    struct control_client client;
    struct message message;
    ports[0] = 0;
    daemons[0] = control_daemon_create(directory, 1, 0, ports);
    daemons[0]->config.arena_bytes = 4096;
    start(daemons[0]);
    control_client_open(&client, daemons[0]);
    control_client_hello(&client);
    control_client_join(&client, "train", 1, 0);
    control_client_expect(&client, MESSAGE_ERROR, &message);
    ck_assert_int_eq(message.code, ERR_MEMORY);
    ck_assert_ptr_nonnull(strstr(message.text, "limit of 4096 (limits.arena_bytes)"));
    ck_assert_ptr_null(control_client_line(&client));
    control_client_close(&client);
}
END_TEST

START_TEST(test_drain_by_request)
{
    struct control_client client, worker;
    struct message message;
    start_one();
    control_client_open(&worker, daemons[0]);
    control_client_hello(&worker);
    control_client_join(&worker, "train", 1, 0);
    control_client_expect(&worker, MESSAGE_JOINED, &message);
    control_client_open(&client, daemons[0]);
    control_client_hello(&client);
    control_client_write(&client, "{\"type\":\"drain\"}\n");
    control_client_expect(&client, MESSAGE_DRAINING, &message);
    control_client_expect(&worker, MESSAGE_FAILED, &message);
    ck_assert_int_eq(message.code, ERR_REFUSED);
    ck_assert_str_eq(message.text, "node a is shutting down");
    ck_assert_int_eq(control_daemon_join(daemons[0]), 0);
    ck_assert_int_ne(access(daemons[0]->config.socket_path, F_OK), 0);
    control_client_close(&client);
    control_client_close(&worker);
}
END_TEST

START_TEST(test_signals)
{
    start_one();
    control_daemon_signal(daemons[0], SIGHUP);
    control_daemon_signal(daemons[0], SIGTERM);
    ck_assert_int_eq(control_daemon_join(daemons[0]), 0);
}
END_TEST

START_TEST(test_parent_gone)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    ports[0] = 0;
    daemons[0] = control_daemon_create(directory, 1, 0, ports);
    daemons[0]->options.parent_fd = ends[0];
    start(daemons[0]);
    close(ends[1]);
    ck_assert_int_eq(control_daemon_join(daemons[0]), 0);
}
END_TEST

START_TEST(test_socket_path)
{
    struct error error = {0};
    start_one();
    /* A live one is left alone. */
    daemons[1] = control_daemon_create(directory, 1, 0, ports);
    ck_assert_int_eq(control_daemon_start(daemons[1], &error), ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(error.text, daemons[0]->config.socket_path));
    control_daemon_free(daemons[1]);
    ck_assert_int_eq(access(daemons[0]->config.socket_path, F_OK), 0);
    control_daemon_signal(daemons[0], SIGTERM);
    control_daemon_join(daemons[0]);
    /* A stale one is replaced, a file is not. */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    daemons[1] = control_daemon_create(directory, 1, 0, ports);
    snprintf(address.sun_path, sizeof(address.sun_path), "%.107s", daemons[1]->config.socket_path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    close(fd);
    start(daemons[1]);
    control_daemon_free(daemons[1]);
    daemons[1] = control_daemon_create(directory, 1, 0, ports);
    fclose(fopen(daemons[1]->config.socket_path, "w"));
    ck_assert_int_eq(control_daemon_start(daemons[1], &error), ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(error.text, "is not a socket"));
}
END_TEST

START_TEST(test_no_secret_no_network)
{
    struct error error = {0};
    ports[0] = 0;
    daemons[0] = control_daemon_create(directory, 1, 0, ports);
    snprintf(daemons[0]->config.listen_address, CONFIG_NAME_BYTES, "0.0.0.0");
    ck_assert_int_eq(control_daemon_start(daemons[0], &error), ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(error.text, "needs a secret_file"));
}
END_TEST

/* A socket that a launcher hands over is refused too, whether it is bound or not: listening would
 * bind it. */
START_TEST(test_no_secret_no_network_handed_over)
{
    struct error error = {0};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    int listening = 0, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t length = sizeof(listening);
    if (_i == 1)
        ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ports[0] = 0;
    daemons[0] = control_daemon_create(directory, 1, 0, ports);
    daemons[0]->options.listen_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    ck_assert_int_eq(control_daemon_start(daemons[0], &error), ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(error.text, "is on 0.0.0.0:"));
    ck_assert_ptr_nonnull(strstr(error.text, "needs a secret_file"));
    ck_assert_int_eq(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length), 0);
    ck_assert_int_eq(listening, 0);
    close(fd);
}
END_TEST

/* --- two daemons */

START_TEST(test_job_on_two_nodes)
{
    struct control_client workers[2];
    struct message message;
    create_two();
    for (int i = 0; i < 2; i++) {
        control_daemon_set_secrets(daemons[i], 42, 0, false);
        start(daemons[i]);
    }
    for (int i = 0; i < 2; i++) {
        control_client_open(&workers[i], daemons[i]);
        control_client_hello(&workers[i]);
        control_client_join(&workers[i], _i ? "train" : "other", 2, -1);
    }
    for (int i = 0; i < 2; i++) {
        control_client_expect(&workers[i], MESSAGE_JOINED, &message);
        ck_assert_int_eq(message.rank, i);
        ck_assert_uint_eq(message.node_count, 2);
    }
    for (int i = 0; i < 2; i++)
        control_client_write(&workers[i], "{\"type\":\"group_open\",\"request\":9,\"ranks\":[1,0],"
                                          "\"nth\":0,\"timeout_ms\":15000}\n");
    for (int i = 0; i < 2; i++) {
        control_client_expect(&workers[i], MESSAGE_WORKER_GROUP_OPENED, &message);
        ck_assert_uint_eq(message.request, 9);
        ck_assert_int_eq(message.group, 1);
    }
    /* One dies; the other hears who. */
    control_client_close(&workers[1]);
    control_client_expect(&workers[0], MESSAGE_FAILED, &message);
    char text[128];
    snprintf(text, sizeof(text), "rank 1 on node b is gone: its process %d ended", getpid());
    ck_assert_str_eq(message.text, text);
    control_client_close(&workers[0]);
}
END_TEST

START_TEST(test_daemon_ends)
{
    struct control_client workers[2];
    struct message message;
    create_two();
    for (int i = 0; i < 2; i++) {
        start(daemons[i]);
        control_client_open(&workers[i], daemons[i]);
        control_client_hello(&workers[i]);
    }
    for (int i = 0; i < 2; i++)
        control_client_join(&workers[i], "train", 2, i);
    for (int i = 0; i < 2; i++) {
        control_client_expect(&workers[i], MESSAGE_JOINED, &message);
        message_clear(&message);
    }
    control_daemon_free(daemons[1]);
    daemons[1] = NULL;
    control_client_expect(&workers[0], MESSAGE_FAILED, &message);
    ck_assert_ptr_nonnull(strstr(message.text, "node b"));
    for (int i = 0; i < 2; i++)
        control_client_close(&workers[i]);
}
END_TEST

START_TEST(test_other_secret)
{
    create_two();
    for (int i = 0; i < 2; i++) {
        control_daemon_set_secrets(daemons[i], (uint8_t)(i + 1), 0, false);
        start(daemons[i]);
    }
    wait_peer(daemons[0], "last_error", "connection closed");
    wait_peer(daemons[1], "state", "down");
}
END_TEST

START_TEST(test_other_roster)
{
    create_two();
    daemons[1]->config.chunk_bytes *= 2;
    start(daemons[0]);
    start(daemons[1]);
    wait_peer(daemons[0], "last_error", "another roster or other data sizes");
}
END_TEST

START_TEST(test_silent_peer)
{
    /* Somebody listens at b's address and never answers; then b comes up for real. */
    create_two();
    ck_assert_int_eq(listen(daemons[1]->options.listen_fd, 8), 0);
    daemons[0]->config.peer_ms = 300;
    start(daemons[0]);
    wait_peer(daemons[0], "state", "down");
    start(daemons[1]);
    wait_peer(daemons[0], "state", "up");
    wait_peer(daemons[1], "fabric", "down"); /* the stand-in's status knows no peers */
}
END_TEST

static const char *const tcp_garbage[] = {
    "\x16\x03\x01\x02\x00\x01\xfc\x03\x03 not json\n",
    "{\"type\":\"ping\"}\n",
    "{\"type\":\"job_failed\",\"job_id\":\"1\",\"code\":-5,\"text\":\"\"}\n",
    "{\"type\":\"hello\",\"protocol\":3,\"software\":\"x\",\"node\":\"b\",\"roster\":\"00\"}\n",
};

START_TEST(test_tcp_garbage)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    char byte;
    start_one();
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(control_port(daemons[0]->control));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_gt(send(fd, tcp_garbage[_i], strlen(tcp_garbage[_i]), MSG_NOSIGNAL), 0);
    ssize_t count;
    while ((count = recv(fd, &byte, 1, 0)) == 1) {
    }
    ck_assert_int_le(count, 0);
    close(fd);
    struct control_client client;
    control_client_open(&client, daemons[0]);
    control_client_hello(&client);
    control_client_close(&client);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control");
    TCase *cases = tcase_create("control");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_hello_and_status);
    tcase_add_test(cases, test_other_protocol);
    tcase_add_loop_test(cases, test_garbage_ends_one_connection, 0,
                        sizeof(garbage) / sizeof(garbage[0]));
    tcase_add_test(cases, test_long_line);
    tcase_add_test(cases, test_status_flood);
    tcase_add_test(cases, test_connection_limit);
    tcase_add_test(cases, test_one_user_cannot_shut_others_out);
    tcase_add_test(cases, test_arena_over_the_limit);
    tcase_add_test(cases, test_drain_by_request);
    tcase_add_test(cases, test_signals);
    tcase_add_test(cases, test_parent_gone);
    tcase_add_test(cases, test_socket_path);
    tcase_add_test(cases, test_no_secret_no_network);
    tcase_add_loop_test(cases, test_no_secret_no_network_handed_over, 0, 2);
    tcase_add_loop_test(cases, test_job_on_two_nodes, 0, 2);
    tcase_add_test(cases, test_daemon_ends);
    tcase_add_test(cases, test_other_secret);
    tcase_add_test(cases, test_other_roster);
    tcase_add_test(cases, test_silent_peer);
    tcase_add_loop_test(cases, test_tcp_garbage, 0, sizeof(tcp_garbage) / sizeof(tcp_garbage[0]));
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
