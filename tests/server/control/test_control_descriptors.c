/* The control thread when descriptors run out, and strangers at the port of the metrics. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
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

#define HELLO "{\"type\":\"hello\",\"protocol\":3,\"software\":\"x\",\"pid\":1}\n"
#define CROWD 40
#define PATIENCE_MS 20000

static char *directory;
static struct control_daemon *daemons[1];
static uint16_t ports[1];

static void setup(void)
{
    directory = suite_make_directory();
    ports[0] = 0;
}

static void teardown(void)
{
    if (daemons[0])
        control_daemon_free(daemons[0]);
    daemons[0] = NULL;
    suite_remove_directory(directory);
}

static void start(struct control_daemon *daemon)
{
    struct error error = {0};
    ck_assert_msg(control_daemon_start(daemon, &error) == 0, "%s", error.text);
}

/* Below the number that the next descriptor would get; returns what it was. */
static rlim_t use_up_descriptors(void)
{
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    rlim_t before = limit.rlim_cur;
    int next = dup(STDERR_FILENO);
    ck_assert_int_ge(next, 0);
    close(next);
    limit.rlim_cur = (rlim_t)next;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return before;
}

static void allow_descriptors(rlim_t soft)
{
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = soft;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void ping_often(struct control_client *client)
{
    struct message message;
    for (int i = 0; i < 100; i++) {
        control_client_write(client, "{\"type\":\"ping\"}\n");
        control_client_expect(client, MESSAGE_PONG, &message);
    }
}

static void connect_tcp(int fd, uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
}

/* Sockets that are made before descriptors run out, and connected then. */
static void connect_unix(int fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%.107s", daemons[0]->config.socket_path);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
}

static uint32_t libevent_lines;

static void count_libevent_line(int severity, const char *text)
{
    (void)severity, (void)text;
    libevent_lines++;
}

/* A free port that nobody else gets before the daemon has it: bound here, where the daemon may
 * bind and listen too. The caller closes it once the daemon runs. */
static int hold_port(uint16_t *port)
{
    int fd = control_daemon_bind(port), yes = 1;
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)), 0);
    return fd;
}

/* A daemon with metrics that logs to a pipe; its reading end. */
static int start_with_metrics(uint16_t *metrics_port)
{
    int told[2];
    ck_assert_int_eq(pipe2(told, O_CLOEXEC | O_NONBLOCK), 0);
    int held = hold_port(metrics_port);
    ports[0] = 0;
    daemons[0] = control_daemon_create(directory, 1, 0, ports);
    daemons[0]->config.metrics_port = *metrics_port;
    log_init(&daemons[0]->log, "test", LOG_LEVEL_ERROR, told[1], false);
    event_set_log_callback(count_libevent_line);
    start(daemons[0]);
    close(held);
    return told[0];
}

static void get_metrics(int http)
{
    static const char request[] = "GET /metrics HTTP/1.0\r\n\r\n";
    char text[4096] = "";
    ck_assert_int_eq(send(http, request, strlen(request), MSG_NOSIGNAL), (ssize_t)strlen(request));
    struct pollfd wait = {http, POLLIN, 0};
    ck_assert_int_eq(poll(&wait, 1, 20000), 1);
    ck_assert_int_gt(recv(http, text, sizeof(text) - 1, 0), 0);
    ck_assert_ptr_nonnull(strstr(text, "200 OK"));
}

/* Without a descriptor for them, connections wait; that is said once, and not tried all the time.
 */
START_TEST(test_no_descriptors_left)
{
    struct control_client good, late = {.uid = geteuid()};
    uint16_t metrics_port;
    char text[4096] = "";
    int told = start_with_metrics(&metrics_port);
    control_client_open(&good, daemons[0]);
    control_client_hello(&good);
    late.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    late.doorbell = -1;
    line_reader_init(&late.lines, MESSAGE_LINE_BYTES);
    int http = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    rlim_t before = use_up_descriptors();
    connect_unix(late.fd);
    connect_tcp(http, metrics_port);
    ping_often(&good);
    ck_assert_uint_eq(libevent_lines, 0);
    ck_assert_int_gt(read(told, text, sizeof(text) - 1), 0);
    const char *first = strstr(text, "connections cannot be accepted");
    ck_assert_msg(first && !strstr(first + 1, "connections cannot"), "%s", text);
    allow_descriptors(before);
    control_client_hello(&late);
    get_metrics(http);
    close(http);
    control_client_close(&good);
    control_client_close(&late);
    int log_fd = daemons[0]->log.fd;
    control_daemon_free(daemons[0]);
    daemons[0] = NULL;
    event_set_log_callback(NULL);
    close(told);
    close(log_fd);
}
END_TEST

/* A join whose descriptors the kernel cannot hand over, or whose doorbell the daemon cannot make.
 */
START_TEST(test_join_without_descriptors)
{
    static const char *const refusals[] = {"no descriptors left", "cannot make a doorbell"};
    struct control_client worker, again;
    struct message message;
    daemons[0] = control_daemon_create(directory, 1, 0, ports);
    start(daemons[0]);
    control_client_open(&worker, daemons[0]);
    control_client_hello(&worker);
    control_client_open(&again, daemons[0]);
    control_client_hello(&again);
    int before_join = dup(STDERR_FILENO);
    ck_assert_int_ge(before_join, 0);
    close(before_join);
    /* The join itself opens two here, and closes one again: none or one is left for the daemon's
     * two copies, or two or three for these and both ends of the doorbell. */
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = (rlim_t)before_join + 2 + 2 * (rlim_t)_i;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    control_client_join(&worker, "train", 1, 0);
    control_client_expect(&worker, MESSAGE_ERROR, &message);
    ck_assert_int_eq(message.code, ERR_MEMORY);
    ck_assert_msg(strstr(message.text, refusals[_i]), "%s", message.text);
    allow_descriptors(before);
    control_client_join(&again, "train", 1, 0);
    control_client_expect(&again, MESSAGE_JOINED, &message);
    message_clear(&message);
    control_client_close(&worker);
    control_client_close(&again);
}
END_TEST

/* A connection that waits too long for a descriptor is told so. */
START_TEST(test_turned_away_without_descriptors)
{
    struct control_client late = {.uid = geteuid()};
    struct message message;
    daemons[0] = control_daemon_create(directory, 1, 0, ports);
    start(daemons[0]);
    late.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    late.doorbell = -1;
    line_reader_init(&late.lines, MESSAGE_LINE_BYTES);
    rlim_t before = use_up_descriptors();
    connect_unix(late.fd);
    control_client_write(&late,
                         "{\"type\":\"hello\",\"protocol\":3,\"software\":\"x\",\"pid\":1}\n");
    control_client_expect(&late, MESSAGE_ERROR, &message);
    ck_assert_int_eq(message.code, ERR_MEMORY);
    ck_assert_msg(strstr(message.text, "no descriptors left"), "%s", message.text);
    ck_assert_ptr_null(control_client_line(&late));
    allow_descriptors(before);
    /* A turn that refuses may take the first of those that come now along. */
    bool let_in = false;
    for (int i = 0; i < 100 && !let_in; i++) {
        control_client_close(&late);
        control_client_open(&late, daemons[0]);
        control_client_write(&late,
                             "{\"type\":\"hello\",\"protocol\":3,\"software\":\"x\",\"pid\":1}\n");
        let_in = strstr(control_client_line(&late), "\"error\"") == NULL;
    }
    ck_assert(let_in);
    control_client_close(&late);
}
END_TEST

/* Strangers leave the descriptors of workers alone. */
START_TEST(test_strangers_leave_descriptors)
{
    struct control_client good;
    struct rlimit limit;
    struct message message;
    uint16_t metrics_port;
    int tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int http = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char byte;
    int held = hold_port(&metrics_port);
    ports[0] = 0;
    daemons[0] = control_daemon_create(directory, 1, 0, ports);
    daemons[0]->config.metrics_port = metrics_port;
    daemons[0]->config.workers = 8;
    daemons[0]->config.connections = 16;
    int next = dup(STDERR_FILENO);
    ck_assert_int_ge(next, 0);
    close(next);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = (rlim_t)next + control_descriptors_needed(&daemons[0]->config, false);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    start(daemons[0]); /* takes some of those that are left for strangers, which are none now */
    connect_tcp(tcp, control_port(daemons[0]->control));
    connect_tcp(http, metrics_port);
    ck_assert_int_le(recv(tcp, &byte, 1, 0), 0);
    ck_assert_int_le(recv(http, &byte, 1, 0), 0);
    control_client_open(&good, daemons[0]);
    control_client_hello(&good);
    control_client_join(&good, "train", 1, 0);
    control_client_expect(&good, MESSAGE_JOINED, &message);
    message_clear(&message);
    control_client_close(&good);
    close(held);
    close(tcp);
    close(http);
}
END_TEST

/* --- the port of the metrics */

static int open_http(uint16_t port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    connect_tcp(fd, port);
    return fd;
}

static bool has_ended(int fd, int timeout_ms)
{
    char bytes[256];
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    return poll(&polled, 1, timeout_ms) == 1 && recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) <= 0;
}

static uint16_t start_metrics(void)
{
    uint16_t port;
    int held = hold_port(&port);
    daemons[0] = control_daemon_create(directory, 1, 0, ports);
    daemons[0]->config.metrics_port = port;
    start(daemons[0]);
    close(held);
    return port;
}

/* The oldest of many silent ones give way, and whoever asks is answered. */
START_TEST(test_silent_crowd)
{
    uint16_t port = start_metrics();
    int crowd[CROWD], ended = 0;
    for (int i = 0; i < CROWD; i++)
        crowd[i] = open_http(port);
    int asks = open_http(port);
    get_metrics(asks);
    close(asks);
    for (int i = 0; i < CROWD / 2; i++)
        ended += has_ended(crowd[i], PATIENCE_MS);
    ck_assert_int_eq(ended, CROWD / 2);
    for (int i = 0; i < CROWD; i++)
        close(crowd[i]);
}
END_TEST

static int open_http_as(uint32_t uid, uint16_t port)
{
    ck_assert_int_eq(syscall(SYS_setresuid, -1, uid, -1), 0);
    int fd = open_http(port);
    ck_assert_int_eq(syscall(SYS_setresuid, -1, 0, -1), 0);
    return fd;
}

/* One user has all places, and takes each place that becomes free, until another user asks. */
START_TEST(test_crowd_of_one_user)
{
    enum { GREEDY = 4242, SLOW = 4243, PLACES = 16 };
    if (geteuid() != 0) {
        suite_skip("crowd_of_one_user", "needs root to become two users");
        return;
    }
    uint16_t port = start_metrics();
    int crowd[CROWD], slow[PLACES / 2], more = 0;
    for (int i = 0; i < PLACES; i++)
        crowd[i] = open_http_as(GREEDY, port);
    ck_assert(!has_ended(crowd[0], 100)); /* all of them */
    for (int i = 0; i < PLACES / 2; i++) {
        slow[i] = open_http_as(SLOW, port);
        for (int j = 0; j < 3; j++)
            crowd[PLACES + more++] = open_http_as(GREEDY, port);
    }
    ck_assert_int_le(PLACES + more, CROWD);
    for (int i = 0; i < PLACES / 2; i++) {
        get_metrics(slow[i]);
        close(slow[i]);
    }
    for (int i = 0; i < PLACES + more; i++)
        close(crowd[i]);
}
END_TEST

/* A byte now and then gives a connection no more time. */
START_TEST(test_trickle)
{
    int fd = open_http(start_metrics());
    uint64_t start_ns = clock_now_ns();
    while (!has_ended(fd, 100)) {
        ck_assert_uint_lt(clock_now_ns() - start_ns, PATIENCE_MS * NS_PER_MS);
        (void)!send(fd, "G", 1, MSG_NOSIGNAL);
    }
    close(fd);
}
END_TEST

static char *http_ask(uint16_t port, const char *request, size_t length)
{
    static char answer[65536];
    size_t count = 0;
    ssize_t got;
    int fd = open_http(port);
    ck_assert_int_eq(send(fd, request, length, MSG_NOSIGNAL), (ssize_t)length);
    shutdown(fd, SHUT_WR);
    while (count < sizeof(answer) - 1 &&
           (got = recv(fd, answer + count, sizeof(answer) - 1 - count, 0)) > 0)
        count += (size_t)got;
    answer[count] = '\0';
    close(fd);
    return answer;
}

static void http_expect(uint16_t port, const char *request, const char *status, const char *piece)
{
    const char *answer = http_ask(port, request, strlen(request));
    ck_assert_msg(strncmp(answer, status, strlen(status)) == 0, "%s: %.100s", request, answer);
    ck_assert_msg(strstr(answer, piece) != NULL, "%s: %s", request, answer);
}

START_TEST(test_requests)
{
    static char large[3 * 4096];
    uint16_t port = start_metrics();
    http_expect(port, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.0 200 ",
                "\nshoal_draining 0\n");
    http_expect(port, "GET /metrics?x HTTP/1.1\r\n\r\n and more", "HTTP/1.0 200 ",
                "\nshoal_draining 0\n");
    http_expect(port, "GET /status.json HTTP/1.1\r\n\r\n", "HTTP/1.0 200 ",
                "\r\nX-Frame-Options: DENY\r\n");
    http_expect(port, "GET /x HTTP/1.1\r\n\r\n", "HTTP/1.0 404 ", "\r\n\r\n");
    http_expect(port, "GET /metrics/ HTTP/1.1\r\n\r\n", "HTTP/1.0 404 ", "\r\n\r\n");
    http_expect(port, "PUT / HTTP/1.1\r\n\r\n", "HTTP/1.0 405 ", "Allow: GET, HEAD\r\n");
    http_expect(port, "PUT /metrics HTTP/1.1\r\n\r\n", "HTTP/1.0 405 ", "Allow: GET, HEAD\r\n");
    http_expect(port, "\x16\x03\x01\n\n", "HTTP/1.0 400 ", "\r\n\r\n");
    http_expect(port, "GET /metr", "", ""); /* ends in the middle: no answer */
    const char *answer = http_ask(port, "HEAD /metrics HTTP/1.1\r\n\r\n", 26);
    ck_assert_msg(strncmp(answer, "HTTP/1.0 200 ", 13) == 0, "%s", answer);
    ck_assert_ptr_null(strstr(answer, "Content-Length: 0\r\n"));
    ck_assert_ptr_null(strstr(answer, "shoal_draining"));
    memset(large, 'a', sizeof(large));
    answer = http_ask(port, large, sizeof(large));
    ck_assert_msg(answer[0] == '\0' || strncmp(answer, "HTTP/1.0 431 ", 13) == 0, "%s", answer);
}
END_TEST

/* The page, under a policy that lets nothing else run; and what it asks for, each of its own kind.
 */
START_TEST(test_page)
{
    uint16_t port = start_metrics();
    const char *answer = http_ask(port, "GET / HTTP/1.1\r\n\r\n", 18);
    ck_assert_msg(strncmp(answer, "HTTP/1.0 200 ", 13) == 0, "%.100s", answer);
    ck_assert_ptr_nonnull(strstr(answer, "\r\nContent-Type: text/html; charset=utf-8\r\n"));
    ck_assert_ptr_nonnull(strstr(answer, "Content-Security-Policy: default-src 'none'; "));
    ck_assert_ptr_nonnull(strstr(answer, "frame-ancestors 'none'\r\n"));
    ck_assert_ptr_nonnull(strstr(answer, "X-Content-Type-Options: nosniff\r\n"));
    ck_assert_ptr_nonnull(strstr(answer, "\r\n\r\n<!doctype html>"));
    ck_assert_ptr_nonnull(strstr(answer, "</html>\n"));
    answer = http_ask(port, "HEAD / HTTP/1.1\r\n\r\n", 19);
    ck_assert_ptr_null(strstr(answer, "<html"));
    for (int i = 0; i < 3; i++) {
        http_expect(port, "GET /status.json HTTP/1.1\r\n\r\n", "HTTP/1.0 200 ",
                    "\r\n\r\n{\"type\":\"status\",");
        http_expect(port, "GET /status.json HTTP/1.1\r\n\r\n", "HTTP/1.0 200 ",
                    "\r\nContent-Type: application/json\r\n");
        http_expect(port, "GET /why.json HTTP/1.1\r\n\r\n", "HTTP/1.0 200 ",
                    "\r\n\r\n{\"type\":\"whys\",\"jobs\":[],\"steps\":[],\"left_out\":0}\n");
    }
}
END_TEST

/* A site whose name comes to lead here (DNS rebinding) gets nothing but metrics: no browser shows
 * it the page, or lets it read names of jobs. */
START_TEST(test_names_of_others)
{
    static const char *const paths[] = {"/", "/status.json", "/why.json"};
    static const char *const own[] = {"127.0.0.1:7071", "[::1]:1", "localhost", "n0",
                                      "N0.roster.example"};
    char request[256], host[256];
    uint16_t port;
    int held = hold_port(&port);
    daemons[0] = control_daemon_create(directory, 1, 0, ports);
    daemons[0]->config.metrics_port = port;
    ck_assert_int_eq(gethostname(host, sizeof(host)), 0);
    snprintf(daemons[0]->config.servers[0].address, sizeof(daemons[0]->config.servers[0].address),
             "n0.roster.example");
    start(daemons[0]);
    close(held);
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: evil.example:7071\r\n\r\n",
                 paths[i]);
        http_expect(port, request, "HTTP/1.0 421 ", "\r\n\r\nThis daemon does not have the name");
        for (size_t k = 0; k < sizeof(own) / sizeof(own[0]); k++) {
            snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", paths[i],
                     own[k]);
            http_expect(port, request, "HTTP/1.0 200 ", "\r\n\r\n");
        }
    }
    snprintf(request, sizeof(request), "GET / HTTP/1.1\r\nHost: %.200s\r\n\r\n", host);
    http_expect(port, request, "HTTP/1.0 200 ", "</html>");
    http_expect(port, "GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", "HTTP/1.0 200 ",
                "\nshoal_draining 0\n");
    http_expect(port, "GET /x HTTP/1.1\r\nHost: evil.example\r\n\r\n", "HTTP/1.0 404 ", "");
    http_expect(port, "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "HTTP/1.0 400 ", "");
}
END_TEST

#define WHY "GET /why.json HTTP/1.0\r\n\r\n"
#define JOBS 9

static bool why_has(uint16_t port, const char *piece)
{
    for (uint64_t start_ns = clock_now_ns(); clock_now_ns() - start_ns < PATIENCE_MS * NS_PER_MS;) {
        if (strstr(http_ask(port, WHY, strlen(WHY)), piece))
            return true;
        poll(NULL, 0, 20);
    }
    return false;
}

static void join_as(struct control_client *client, uint32_t uid, const char *job)
{
    struct message message;
    control_client_open_as(client, daemons[0], uid);
    control_client_hello(client);
    control_client_join(client, job, 1, 0);
    control_client_expect(client, MESSAGE_JOINED, &message);
}

/* One user's jobs have all eight places until another user has jobs. */
START_TEST(test_places_of_the_page)
{
    enum { GREEDY = 4242, OTHER = 4243 };
    struct control_client greedy[JOBS], other[2];
    uint16_t port;
    if (geteuid() != 0) {
        suite_skip("places_of_the_page", "needs root to become two users");
        return;
    }
    int held = hold_port(&port);
    daemons[0] = control_daemon_create(directory, 1, 0, ports);
    daemons[0]->config.metrics_port = port;
    daemons[0]->config.socket_mode = 0666;
    ck_assert_int_eq(chmod(directory, 0755), 0);
    start(daemons[0]);
    close(held);
    for (int i = 0; i < JOBS; i++) {
        char name[24];
        snprintf(name, sizeof(name), "greedy%d", i);
        join_as(&greedy[i], GREEDY, name);
    }
    ck_assert(why_has(port, "],\"left_out\":1}\n"));
    for (int i = 0; i < 2; i++)
        join_as(&other[i], OTHER, i == 0 ? "other0" : "other1");
    ck_assert(why_has(port, "\"job\":\"other0\""));
    ck_assert(why_has(port, "\"job\":\"other1\""));
    ck_assert(why_has(port, "],\"left_out\":3}\n"));
    ck_assert(why_has(port, "\"job\":\"greedy7\""));
    for (int i = 0; i < 2; i++)
        control_client_close(&other[i]);
    ck_assert(why_has(port, "],\"left_out\":1}\n"));
    for (int i = 0; i < JOBS; i++)
        control_client_close(&greedy[i]);
}
END_TEST

/* The page has verdicts on eight jobs: for each, the last one that was asked for. A job that is
 * over makes room. */
START_TEST(test_verdicts_for_the_page)
{
    struct control_client workers[JOBS];
    struct message message;
    uint16_t port = start_metrics();
    for (int i = 0; i < JOBS; i++) {
        char name[16];
        snprintf(name, sizeof(name), "job%d", i);
        control_client_open(&workers[i], daemons[0]);
        control_client_hello(&workers[i]);
        control_client_join(&workers[i], name, 1, 0);
        control_client_expect(&workers[i], MESSAGE_JOINED, &message);
    }
    ck_assert(why_has(port, "\"job\":\"job7\",\"node\":\"a\",\"kind\":\"unknown\""));
    ck_assert(why_has(port, "],\"left_out\":1}\n"));
    ck_assert(why_has(
        port,
        "],\"steps\":[{\"job\":\"job0\",\"step_collectives\":0,\"points\":[]},{\"job\":\"job1\","));
    /* The metrics ask for them, too, and say nothing of what is not known. */
    const char *metrics = http_ask(port, "GET /metrics HTTP/1.1\r\n\r\n", 25);
    ck_assert_ptr_nonnull(strstr(metrics, "# TYPE shoal_job_step_seconds gauge\n"));
    ck_assert_ptr_null(strstr(metrics, "shoal_job_step_seconds{"));
    ck_assert_ptr_null(strstr(http_ask(port, WHY, strlen(WHY)), "job8"));
    control_client_close(&workers[0]);
    ck_assert(why_has(port, "\"job\":\"job8\""));
    ck_assert_ptr_null(strstr(http_ask(port, WHY, strlen(WHY)), "job0"));
    for (int i = 1; i < JOBS; i++)
        control_client_close(&workers[i]);
    ck_assert(why_has(port, "\"jobs\":[],\"steps\":[],\"left_out\":0}\n"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control descriptors");
    TCase *cases = tcase_create("descriptors");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_no_descriptors_left);
    tcase_add_loop_test(cases, test_join_without_descriptors, 0, 2);
    tcase_add_test(cases, test_turned_away_without_descriptors);
    tcase_add_test(cases, test_strangers_leave_descriptors);
    suite_add_tcase(suite, cases);
    TCase *metrics = tcase_create("metrics");
    tcase_set_timeout(metrics, 60);
    tcase_add_checked_fixture(metrics, setup, teardown);
    tcase_add_test(metrics, test_silent_crowd);
    tcase_add_test(metrics, test_crowd_of_one_user);
    tcase_add_test(metrics, test_trickle);
    tcase_add_test(metrics, test_requests);
    tcase_add_test(metrics, test_page);
    tcase_add_test(metrics, test_names_of_others);
    tcase_add_test(metrics, test_verdicts_for_the_page);
    tcase_add_test(metrics, test_places_of_the_page);
    suite_add_tcase(suite, metrics);
    return suite_main(suite);
}
