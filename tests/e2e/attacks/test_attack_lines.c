/* Lines that are expensive to read, from whoever may send some: strangers, and a user with many
 * connections. The job of another user goes on, and no daemon misses a heartbeat. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/looping_job.h"
#include "tests/lib/suite.h"

#define NODES 2
#define STRANGERS 19 /* as many as were let in: servers and 17 */
#define CONNECTIONS 64
#define CROWD 200 /* connections to each node */
#define PEER_MS 3000
#define LINE_BYTES ((size_t)1 << 20)
#define ATTACKER_UID 65533
#define OTHER_UID 65532
#define HELLO "{\"type\":\"hello\",\"protocol\":3,\"software\":\"test\",\"pid\":1}\n"
#define PING "{\"type\":\"ping\",\"x\":["

static struct cluster *cluster;
static struct looping_job job;

/* Daemons that find each other silent after a while, and a job that runs. */
static void setup(void)
{
    cluster = cluster_start(NODES, "{\"timeouts\":{\"heartbeat_ms\":100,\"peer_ms\":3000}}");
    ck_assert_int_eq(chmod(cluster->directory, 0755), 0);
    for (uint32_t node = 0; node < NODES; node++)
        ck_assert_int_eq(chmod(cluster->nodes[node].socket_path, 0666), 0);
    looping_job_start(&job, cluster, 2);
}

static void teardown(void)
{
    looping_job_end(&job);
    for (uint32_t node = 0; node < NODES; node++)
        ck_assert_ptr_null(strstr(cluster_log(cluster, node), "no heartbeat"));
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}

/* Connect as this user, where this process may become another; the kernel has credentials for each
 * thread. */
static int connect_unix(uint32_t node, unsigned uid)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", cluster->nodes[node].socket_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool root = geteuid() == 0;
    if (root)
        ck_assert_int_eq(syscall(SYS_setresuid, -1, uid, -1), 0);
    int result = connect(fd, (struct sockaddr *)&address, sizeof(address));
    if (root)
        ck_assert_int_eq(syscall(SYS_setresuid, -1, 0, -1), 0);
    ck_assert_int_eq(result, 0);
    return fd;
}

static int connect_tcp(uint32_t node)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(cluster->nodes[node].port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* How much of it was taken before the other side closed. */
static size_t send_all(int fd, const char *bytes, size_t count)
{
    size_t done = 0;
    while (done < count) {
        ssize_t sent = send(fd, bytes + done, count - done, MSG_NOSIGNAL);
        if (sent < 0)
            break;
        done += (size_t)sent;
    }
    return done;
}

/* A line of so many bytes, without its newline, of objects that mean nothing. */
static char *expensive_line(const char *begin, size_t bytes)
{
    char *line = malloc(bytes + 1);
    size_t used = (size_t)sprintf(line, "%s", begin);
    while (used + 8 < bytes)
        used += (size_t)sprintf(line + used, "{},");
    sprintf(line + used - 1, "]}");
    return line;
}

static void status_is_given(uint32_t node)
{
    json_t *status = cluster_status(cluster, node);
    ck_assert_ptr_nonnull(status);
    json_decref(status);
}

/* Strangers' lines of 1 MiB, all of which end at once: they are cut off at 4 KiB. */
START_TEST(test_strangers)
{
    char *line = expensive_line("{\"type\":\"hello\",\"x\":[", LINE_BYTES - 64);
    int fds[NODES * STRANGERS];
    for (int i = 0; i < NODES * STRANGERS; i++) {
        fds[i] = connect_tcp((uint32_t)i % NODES);
        send_all(fds[i], line, strlen(line));
    }
    for (int i = 0; i < NODES * STRANGERS; i++)
        send_all(fds[i], "\n", 1);
    for (uint32_t node = 0; node < NODES; node++) {
        status_is_given(node);
        ck_assert(
            cluster_wait_log(cluster, node, "a line of more than 4096 bytes", CLUSTER_PATIENCE_MS));
    }
    for (int i = 0; i < NODES * STRANGERS; i++)
        close(fds[i]);
    free(line);
}
END_TEST

/* A user's pings of 1 MiB on many connections that end at once. */
START_TEST(test_long_pings)
{
    char *line = expensive_line(PING, LINE_BYTES - 64);
    int fds[NODES * CONNECTIONS];
    for (int i = 0; i < NODES * CONNECTIONS; i++) {
        fds[i] = connect_unix((uint32_t)i % NODES, ATTACKER_UID);
        send_all(fds[i], HELLO, strlen(HELLO));
        send_all(fds[i], line, strlen(line));
    }
    for (int i = 0; i < NODES * CONNECTIONS; i++)
        send_all(fds[i], "\n", 1);
    for (uint32_t node = 0; node < NODES; node++)
        status_is_given(node);
    for (int i = 0; i < NODES * CONNECTIONS; i++)
        close(fds[i]);
    free(line);
}
END_TEST

/* A connection that has much to say, in pieces as the socket takes them, and does not read what it
 * is told but throws it away. */
struct talker {
    int fd;
    size_t said; /* of the lines, which come again and again */
};

static void talker_go_on(struct talker *talker, const char *lines, size_t bytes)
{
    static char answers[65536];
    ssize_t sent;
    while ((sent = send(talker->fd, lines + talker->said, bytes - talker->said,
                        MSG_NOSIGNAL | MSG_DONTWAIT)) > 0)
        talker->said = (talker->said + (size_t)sent) % bytes;
    while (recv(talker->fd, answers, sizeof(answers), MSG_DONTWAIT) > 0)
        ;
}

/* Another user's connection that asks whether the daemon is there, as a worker does that waits. */
struct asker {
    int fd;
    int64_t asked_ms; /* 0: it has its answer */
    int answers;
};

static void asker_go_on(struct asker *asker)
{
    char answer[4096];
    if (asker->asked_ms == 0) {
        ck_assert_int_gt(send(asker->fd, "{\"type\":\"ping\"}\n", 16, MSG_NOSIGNAL), 0);
        asker->asked_ms = process_now_ms();
    } else if (recv(asker->fd, answer, sizeof(answer), MSG_DONTWAIT) > 0) {
        asker->asked_ms = 0;
        asker->answers++;
    } else {
        /* The worker would say that its daemon is gone. */
        ck_assert_int_lt(process_now_ms() - asker->asked_ms, PEER_MS);
    }
}

/* Lines that are as long and as nested as they may be, on many connections and for seconds. */
START_TEST(test_flood_of_allowed_lines)
{
    char line[4096];
    size_t used = (size_t)snprintf(line, sizeof(line), "%s", PING);
    while (used + 8 < sizeof(line))
        used += (size_t)snprintf(line + used, sizeof(line) - used, "[],");
    used += (size_t)snprintf(line + used - 1, sizeof(line) - used, "]}\n") - 1;
    struct talker talkers[NODES * CROWD] = {{0}};
    struct asker askers[NODES] = {{0}};
    for (int i = 0; i < NODES * CROWD; i++) {
        talkers[i].fd = connect_unix((uint32_t)i % NODES, ATTACKER_UID);
        send_all(talkers[i].fd, HELLO, strlen(HELLO));
    }
    for (uint32_t node = 0; node < NODES; node++) {
        askers[node].fd = connect_unix(node, OTHER_UID);
        send_all(askers[node].fd, HELLO, strlen(HELLO));
    }
    for (int64_t until = process_now_ms() + 6000; process_now_ms() < until;) {
        for (int i = 0; i < NODES * CROWD; i++) {
            talker_go_on(&talkers[i], line, used);
            asker_go_on(&askers[i % NODES]);
        }
    }
    for (uint32_t node = 0; node < NODES; node++) {
        status_is_given(node);
        ck_assert_int_gt(askers[node].answers, 1);
        close(askers[node].fd);
    }
    for (int i = 0; i < NODES * CROWD; i++)
        close(talkers[i].fd);
}
END_TEST

/* Halves of long lines, which nobody is going to end: they are not kept. */
START_TEST(test_halves)
{
    char *line = expensive_line("{\"type\":\"group_open\",\"ranks\":[", LINE_BYTES - 64);
    long before = process_resident_KiB(cluster->nodes[0].daemon->pid);
    int fds[200];
    for (int i = 0; i < 200; i++) {
        fds[i] = connect_unix(0, ATTACKER_UID);
        send_all(fds[i], HELLO, strlen(HELLO));
        send_all(fds[i], line, strlen(line));
    }
    status_is_given(0);
    long after = process_resident_KiB(cluster->nodes[0].daemon->pid);
    ck_assert_int_gt(before, 0);
    ck_assert_int_lt(after, before + 64 * 1024);
    for (int i = 0; i < 200; i++)
        close(fds[i]);
    free(line);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attack_lines");
    TCase *tests = tcase_create("lines");
    tcase_set_timeout(tests, 300);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_strangers);
    tcase_add_test(tests, test_long_pings);
    tcase_add_test(tests, test_flood_of_allowed_lines);
    tcase_add_test(tests, test_halves);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
