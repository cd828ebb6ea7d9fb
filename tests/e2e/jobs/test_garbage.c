/* Bytes that make no sense, on the doors of a daemon (the fabric's is in test_attack_ports.c):
 * logged where the daemon reads them, and nothing else happens to the job that runs. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/looping_job.h"
#include "tests/lib/suite.h"

static struct cluster *cluster;
static struct looping_job job;

/* Two daemons with a job that runs. */
static void setup(void)
{
    cluster = cluster_start(2, NULL);
    looping_job_start(&job, cluster, 2);
}

static void teardown(void)
{
    looping_job_end(&job);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}

static int connect_unix(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", cluster->nodes[0].socket_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static int connect_tcp(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static void send_all(int fd, const void *bytes, size_t count)
{
    for (size_t done = 0; done < count;) {
        ssize_t sent = send(fd, (const char *)bytes + done, count - done, MSG_NOSIGNAL);
        if (sent < 0)
            return; /* closed on us: that is right */
        done += (size_t)sent;
    }
}

/* The other side closes, having answered what it liked. */
static bool is_closed(int fd)
{
    char bytes[4096];
    for (int64_t until = process_now_ms() + CLUSTER_PATIENCE_MS; process_now_ms() < until;) {
        struct pollfd polled = {.fd = fd, .events = POLLIN};
        if (poll(&polled, 1, 100) == 1 && recv(fd, bytes, sizeof(bytes), 0) <= 0)
            return true;
    }
    return false;
}

struct log_lines {
    const char *text;
    int more_than;
};

static int count_text(const char *log, const char *text)
{
    int count = 0;
    for (; (log = strstr(log, text)); log += strlen(text))
        count++;
    return count;
}

static bool is_logged(void *context)
{
    const struct log_lines *lines = context;
    return count_text(cluster_log(cluster, 0), lines->text) > lines->more_than;
}

/* Sent to an open connection; it is closed, with a line in the log that has `logged`. */
static void refused(int fd, const void *bytes, size_t count, const char *logged)
{
    struct log_lines lines = {logged, count_text(cluster_log(cluster, 0), logged)};
    send_all(fd, bytes, count);
    bool closed = is_closed(fd);
    close(fd);
    ck_assert_msg(closed, "not closed after %.60s", (const char *)bytes);
    ck_assert_msg(wait_until(is_logged, &lines, CLUSTER_PATIENCE_MS), "not logged: %.60s; log:\n%s",
                  (const char *)bytes, cluster_log(cluster, 0));
}

#define REFUSED(fd, text, logged) refused(fd, text, sizeof(text) - 1, logged)
#define HELLO "{\"type\":\"hello\",\"protocol\":3,\"software\":\"test\",\"pid\":1}\n"

/* A line of more than 1 MiB. */
static void refuse_long_line(int fd, const char *logged)
{
    size_t bytes = 3u << 20;
    char *line = malloc(bytes);
    memset(line, ' ', bytes);
    refused(fd, line, bytes, logged);
    free(line);
}

START_TEST(test_unix_socket)
{
    static const char closed[] = " is closed: ";
    REFUSED(connect_unix(), "GET / HTTP/1.0\r\n\r\n", closed);
    REFUSED(connect_unix(), "\0\1\2\3\xff\xfe\n", closed);
    REFUSED(connect_unix(), "[]\n", closed);
    REFUSED(connect_unix(), "{\"type\":\"status\"}\n", closed); /* before hello */
    REFUSED(connect_unix(), HELLO "{\"type\":\"ready\"}\n", closed);
    REFUSED(connect_unix(), HELLO "{\"type\":\"job_open\"}\n", closed);
    REFUSED(connect_unix(), HELLO "{\"type\":\"join\",\"job\":7}\n", closed);
    REFUSED(connect_unix(), HELLO HELLO, closed);
    /* A proper join, but no descriptors with it. */
    REFUSED(connect_unix(),
            HELLO "{\"type\":\"join\",\"job\":\"x\",\"world_size\":1,\"rank\":0,"
                  "\"local_rank\":0,\"timeout_ms\":0}\n",
            closed);
    refuse_long_line(connect_unix(), closed);
    close(connect_unix()); /* nothing at all */
}
END_TEST

START_TEST(test_control_port)
{
    uint16_t port = cluster->nodes[0].port;
    static const char reason[] = " is over: ";
    REFUSED(connect_tcp(port), "GET / HTTP/1.0\r\n\r\n", reason);
    REFUSED(connect_tcp(port), "\x16\x03\x01\x02\n", reason);
    REFUSED(connect_tcp(port), "{\"type\":\"ping\",\"heard\":0}\n", reason);
    REFUSED(connect_tcp(port), "{\"type\":\"hello\",\"protocol\":3}\n", reason);
    REFUSED(connect_tcp(port),
            "{\"type\":\"hello\",\"protocol\":3,\"software\":\"x\",\"node\":\"nobody\","
            "\"roster\":\"00\",\"nonce\":\"00\"}\n",
            reason);
    refuse_long_line(connect_tcp(port), reason);
    close(connect_tcp(port));
}
END_TEST

/* A worker that dies in the middle of a line, and hundreds that say nothing. */
START_TEST(test_halves_and_crowds)
{
    int fd = connect_unix();
    send_all(fd, "{\"type\":\"hel", 12);
    close(fd);
    int crowd[200];
    for (int i = 0; i < 200; i++)
        crowd[i] = i % 2 ? connect_unix() : connect_tcp(cluster->nodes[0].port);
    json_t *status = cluster_status(cluster, 0);
    ck_assert_ptr_nonnull(status);
    json_decref(status);
    for (int i = 0; i < 200; i++)
        close(crowd[i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("garbage");
    TCase *tests = tcase_create("garbage");
    tcase_set_timeout(tests, 300);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_unix_socket);
    tcase_add_test(tests, test_control_port);
    tcase_add_test(tests, test_halves_and_crowds);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
