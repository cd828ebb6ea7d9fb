/* Lines that are expensive to read, from whoever may send some: strangers, and a user with many
 * connections. The job of another user goes on, and no daemon misses a heartbeat. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

#define NODES 2
#define STRANGERS 19 /* as many as were let in: servers and 17 */
#define CONNECTIONS 64
#define LINE_BYTES ((size_t)1 << 20)
#define STRANGER_UID 65533
#define HELLO "{\"type\":\"hello\",\"protocol\":1,\"software\":\"test\",\"pid\":1}\n"
#define PING "{\"type\":\"ping\",\"x\":["

static char *directory;
static char file[512];
static struct cluster *cluster;
static struct process *workers[2 * NODES];

/* Daemons that find each other silent after a second, and a job that runs. */
static void setup(void)
{
    directory = suite_make_directory();
    snprintf(file, sizeof(file), "%s/stop", directory);
    cluster = cluster_start(NODES, "{\"timeouts\":{\"heartbeat_ms\":100,\"peer_ms\":1500}}");
    ck_assert_int_eq(chmod(cluster->directory, 0755), 0);
    for (uint32_t node = 0; node < NODES; node++)
        ck_assert_int_eq(chmod(cluster->nodes[node].socket_path, 0666), 0);
    const char *argv[] = {CLUSTER_HELPER, "loop", file, NULL};
    cluster_job(cluster, "undisturbed", 2, argv, workers);
    for (int rank = 0; rank < 2 * NODES; rank++)
        ck_assert(process_wait_text(workers[rank], "running", CLUSTER_PATIENCE_MS));
}

static void teardown(void)
{
    FILE *stop = fopen(file, "w");
    ck_assert_ptr_nonnull(stop);
    fclose(stop);
    ck_assert_int_eq(cluster_job_end(workers, 2 * NODES), 0);
    for (uint32_t node = 0; node < NODES; node++)
        ck_assert_ptr_null(strstr(cluster_log(cluster, node), "no heartbeat"));
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
    suite_remove_directory(directory);
}

/* Of another user, where this one may become one; the kernel has credentials for each thread. */
static int connect_unix(uint32_t node)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", cluster->nodes[node].socket_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool root = geteuid() == 0;
    if (root)
        ck_assert_int_eq(syscall(SYS_setresuid, -1, STRANGER_UID, -1), 0);
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

static void ping_is_answered(uint32_t node)
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
        ping_is_answered(node);
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
        fds[i] = connect_unix((uint32_t)i % NODES);
        send_all(fds[i], HELLO, strlen(HELLO));
        send_all(fds[i], line, strlen(line));
    }
    for (int i = 0; i < NODES * CONNECTIONS; i++)
        send_all(fds[i], "\n", 1);
    for (uint32_t node = 0; node < NODES; node++)
        ping_is_answered(node);
    for (int i = 0; i < NODES * CONNECTIONS; i++)
        close(fds[i]);
    free(line);
}
END_TEST

/* What comes to the connections is read and dropped, so that they go on being answered. */
static void drop_answers(const int *fds, int count)
{
    static char bytes[65536];
    for (int i = 0; i < count; i++) {
        while (recv(fds[i], bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
            ;
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
    int fds[NODES * CONNECTIONS];
    for (int i = 0; i < NODES * CONNECTIONS; i++) {
        fds[i] = connect_unix((uint32_t)i % NODES);
        send_all(fds[i], HELLO, strlen(HELLO));
    }
    for (int64_t until = process_now_ms() + 5000; process_now_ms() < until;) {
        for (int i = 0; i < NODES * CONNECTIONS; i++) {
            ssize_t sent = send(fds[i], line, used, MSG_NOSIGNAL | MSG_DONTWAIT);
            /* A line is sent whole or not at all, or it would be another one. */
            if (sent > 0 && (size_t)sent < used)
                send_all(fds[i], line + sent, used - (size_t)sent);
        }
        drop_answers(fds, NODES * CONNECTIONS);
    }
    for (uint32_t node = 0; node < NODES; node++)
        ping_is_answered(node);
    for (int i = 0; i < NODES * CONNECTIONS; i++)
        close(fds[i]);
}
END_TEST

/* Halves of long lines, which nobody is going to end: they are not kept. */
START_TEST(test_halves)
{
    char *line = expensive_line("{\"type\":\"group_open\",\"ranks\":[", LINE_BYTES - 64);
    long before = process_resident_KiB(cluster->nodes[0].daemon->pid);
    int fds[200];
    for (int i = 0; i < 200; i++) {
        fds[i] = connect_unix(0);
        send_all(fds[i], HELLO, strlen(HELLO));
        send_all(fds[i], line, strlen(line));
    }
    ping_is_answered(0);
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
