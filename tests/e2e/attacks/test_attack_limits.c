/* One user takes all there is of something before another user asks. The daemons are real, under
 * their sandbox. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/lib/looping_job.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/hostile_rank.h"

#define IDLE 128
#define CROWD 100
#define STRANGER 65533

static struct cluster *cluster;

static bool begin(const char *test, uint32_t nodes, const char *keys)
{
    if (geteuid() != 0) {
        suite_skip(test, "needs root to become two users");
        return false;
    }
    cluster = cluster_start(nodes, keys);
    ck_assert_int_eq(chmod(cluster->directory, 0755), 0);
    ck_assert_int_eq(chmod(cluster->nodes[0].socket_path, 0666), 0);
    return true;
}

static void end(void)
{
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}

/* One user of one node opens 128 connections, each the first rank of a job that gets no other
 * rank. Other users' jobs run on both nodes. */
START_TEST(test_idle_connections)
{
    static struct hostile_rank idle[IDLE];
    struct looping_job job;
    char name[32];
    if (!begin("idle_connections", 2, "{}"))
        return;
    for (int i = 0; i < IDLE; i++) {
        snprintf(name, sizeof(name), "idle-%d", i);
        hostile_join(&idle[i], cluster, name, 0, 2);
    }
    ck_assert_int_gt(send(idle[0].fd, "{\"type\":\"ping\"}\n", 16, MSG_NOSIGNAL), 0);
    hostile_hears(&idle[0], "\"pong\"", "\"error\"");
    looping_job_start(&job, cluster, 2);
    looping_job_end(&job);
    for (int i = 0; i < IDLE; i++)
        hostile_leave(&idle[i]);
    end();
}
END_TEST

static int http_open(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), result = -1;
    /* The daemon may not have come so far yet. */
    for (int waits = 0; result != 0 && waits < CLUSTER_PATIENCE_MS / 10; waits++) {
        result = connect(fd, (struct sockaddr *)&address, sizeof(address));
        if (result != 0)
            poll(NULL, 0, 10);
    }
    ck_assert_int_eq(result, 0);
    return fd;
}

/* Whoever has connected before them, and is slow to ask, is served. */
START_TEST(test_metrics_port)
{
    static const char ask[] = "GET /metrics HTTP/1.0\r\n\r\n";
    char keys[96], byte;
    int crowd[CROWD];
    uint16_t port = cluster_free_port();
    snprintf(keys, sizeof(keys), "{\"metrics\":{\"address\":\"127.0.0.1\",\"port\":%u}}", port);
    if (!begin("metrics_port", 1, keys))
        return;
    int slow = http_open(port);
    ck_assert_int_eq(syscall(SYS_setresuid, -1, STRANGER, -1), 0);
    for (int i = 0; i < CROWD; i++)
        crowd[i] = http_open(port);
    ck_assert_int_eq(syscall(SYS_setresuid, -1, 0, -1), 0);
    struct pollfd first = {.fd = crowd[0], .events = POLLIN};
    ck_assert_int_eq(poll(&first, 1, CLUSTER_PATIENCE_MS), 1); /* it had to go */
    ck_assert_int_eq(send(slow, ask, sizeof(ask) - 1, MSG_NOSIGNAL), (ssize_t)sizeof(ask) - 1);
    ck_assert_int_eq(recv(slow, &byte, 1, 0), 1);
    close(slow);
    for (int i = 0; i < CROWD; i++)
        close(crowd[i]);
    end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attack_limits");
    TCase *tests = tcase_create("attack_limits");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, test_idle_connections);
    tcase_add_test(tests, test_metrics_port);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
