/* Bytes that make no sense, on every door of a daemon: logged where the daemon reads them, and
 * nothing else happens to the job that runs. */
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

#define PORTS_MAX 16
#define FABRIC_CROWD 400

static char *directory;
static char file[512];
static struct cluster *cluster;
static struct process *workers[4];

/* Two daemons with a job that runs. */
static void setup(void)
{
    directory = suite_make_directory();
    snprintf(file, sizeof(file), "%s/stop", directory);
    cluster = cluster_start(2, NULL);
    const char *argv[] = {CLUSTER_HELPER, "loop", file, NULL};
    cluster_job(cluster, "undisturbed", 2, argv, workers);
    for (int rank = 0; rank < 4; rank++)
        ck_assert(process_wait_text(workers[rank], "running", CLUSTER_PATIENCE_MS));
}

static void teardown(void)
{
    FILE *stop = fopen(file, "w");
    ck_assert_ptr_nonnull(stop);
    fclose(stop);
    ck_assert_int_eq(cluster_job_end(workers, 4), 0);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
    suite_remove_directory(directory);
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
#define HELLO "{\"type\":\"hello\",\"protocol\":1,\"software\":\"test\",\"pid\":1}\n"

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
    REFUSED(connect_tcp(port), "{\"type\":\"ping\"}\n", reason);
    REFUSED(connect_tcp(port), "{\"type\":\"hello\",\"protocol\":1}\n", reason);
    REFUSED(connect_tcp(port),
            "{\"type\":\"hello\",\"protocol\":1,\"software\":\"x\",\"node\":\"nobody\","
            "\"roster\":\"00\",\"nonce\":\"00\"}\n",
            reason);
    refuse_long_line(connect_tcp(port), reason);
    close(connect_tcp(port));
}
END_TEST

/* TCP ports on which the process listens. */
static int listening_ports(pid_t pid, uint16_t ports[PORTS_MAX])
{
    unsigned long inodes[256];
    int inode_count = 0, count = 0;
    char path[64], target[64];
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *entries = opendir(path);
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        ssize_t length = readlinkat(dirfd(entries), entry->d_name, target, sizeof(target) - 1);
        target[length > 0 ? length : 0] = 0;
        if (inode_count < 256 && sscanf(target, "socket:[%lu]", &inodes[inode_count]) == 1)
            inode_count++;
    }
    if (entries)
        closedir(entries);
    char line[512];
    FILE *table = fopen("/proc/net/tcp", "re");
    while (table && fgets(line, sizeof(line), table)) {
        unsigned port, state;
        unsigned long inode;
        if (sscanf(line, "%*d: %*x:%x %*x:%*x %x %*x:%*x %*x:%*x %*x %*d %*d %lu", &port, &state,
                   &inode) != 3 ||
            state != 0x0a)
            continue;
        for (int i = 0; i < inode_count && count < PORTS_MAX; i++)
            if (inodes[i] == inode)
                ports[count++] = (uint16_t)port;
    }
    if (table)
        fclose(table);
    return count;
}

static int descriptors_of(pid_t pid)
{
    char path[64];
    int count = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *entries = opendir(path);
    ck_assert_ptr_nonnull(entries);
    while (readdir(entries))
        count++;
    closedir(entries);
    return count;
}

/* Nobody is expected, so that nobody gets an answer; where the kernel cannot do that, garbage is
 * refused and silence is ended. */
static void crowd_on(uint16_t port)
{
    static const char noise[8192] = {1, 2, 3};
    static const char *const texts[] = {"GET / HTTP/1.0\r\n\r\n", "x", "\xff\xff\xff\xff\xff"};
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    pid_t pid = cluster->nodes[0].daemon->pid;
    struct pollfd crowd[FABRIC_CROWD];
    int before = descriptors_of(pid), most = 0;
    for (int i = 0; i < FABRIC_CROWD; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        ck_assert_int_ge(fd, 0);
        (void)!connect(fd, (struct sockaddr *)&address, sizeof(address));
        crowd[i] = (struct pollfd){.fd = fd, .events = POLLOUT};
    }
    for (int look = 0; look < 10; look++) {
        poll(crowd, FABRIC_CROWD, 100);
        for (int i = 0; i < FABRIC_CROWD; i++) {
            if (!(crowd[i].revents & POLLOUT) || i % 16 > 3)
                continue; /* most say nothing */
            if (i % 16 == 3)
                send_all(crowd[i].fd, noise, sizeof(noise));
            else
                send_all(crowd[i].fd, texts[i % 16], strlen(texts[i % 16]));
        }
        int now = descriptors_of(pid);
        most = now > most ? now : most;
    }
    for (int i = 0; i < FABRIC_CROWD; i++)
        close(crowd[i].fd);
    ck_assert_msg(most - before < FABRIC_CROWD / 4, "%d descriptors more than %d", most - before,
                  before);
}

START_TEST(test_fabric_port)
{
    uint16_t ports[PORTS_MAX];
    int count = listening_ports(cluster->nodes[0].daemon->pid, ports), tried = 0;
    for (int i = 0; i < count; i++) {
        if (ports[i] == cluster->nodes[0].port)
            continue;
        tried++;
        crowd_on(ports[i]);
    }
    ck_assert_int_gt(tried, 0);
    /* A new job still finds its way. */
    struct process *others[4];
    const char *argv[] = {CLUSTER_HELPER, "once", NULL};
    cluster_job(cluster, "afterwards", 2, argv, others);
    ck_assert_int_eq(cluster_job_end(others, 4), 0);
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
    tcase_add_test(tests, test_fabric_port);
    tcase_add_test(tests, test_halves_and_crowds);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
