/* Strangers at the ports of a daemon: silent crowds, and few descriptors. The job that runs goes
 * on, and new ones are joined. */
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/looping_job.h"
#include "tests/lib/suite.h"

#define PORTS_MAX 16
#define FABRIC_CROWD 400
/* Descriptors of a daemon with few: for the daemon itself, two peers, 8 workers with 8 other
 * connections, and what a user may have under way. */
#define FEW_DESCRIPTORS 780
#define FEW_LIMITS "{\"limits\":{\"workers\":8,\"connections\":16}}"
#define CROWD_FEW 400

static struct cluster *cluster;
static struct looping_job job;

/* Two daemons with a job that runs. */
static void job_start(const char *extra)
{
    cluster = cluster_start(2, extra);
    looping_job_start(&job, cluster, 2);
}

static void job_end(void)
{
    looping_job_end(&job);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}

/* A new job finds its way. */
static void job_once(void)
{
    struct process *others[4];
    const char *argv[] = {CLUSTER_HELPER, "once", NULL};
    cluster_job(cluster, "afterwards", 2, argv, others);
    ck_assert_int_eq(cluster_job_end(others, 4), 0);
}

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

/* A port of the first daemon's fabric. */
static uint16_t fabric_port(void)
{
    uint16_t ports[PORTS_MAX];
    int count = listening_ports(cluster->nodes[0].daemon->pid, ports);
    for (int i = 0; i < count; i++) {
        if (ports[i] != cluster->nodes[0].port)
            return ports[i];
    }
    ck_abort_msg("the fabric has no port");
}

static int begin_connection(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_ge(fd, 0);
    (void)!connect(fd, (struct sockaddr *)&address, sizeof(address));
    return fd;
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
    pid_t pid = cluster->nodes[0].daemon->pid;
    struct pollfd crowd[FABRIC_CROWD];
    int before = descriptors_of(pid), most = 0;
    for (int i = 0; i < FABRIC_CROWD; i++) {
        crowd[i] = (struct pollfd){.fd = begin_connection(port), .events = POLLOUT};
    }
    for (int look = 0; look < 10; look++) {
        poll(crowd, FABRIC_CROWD, 100);
        for (int i = 0; i < FABRIC_CROWD; i++) {
            if (!(crowd[i].revents & POLLOUT) || i % 16 > 3)
                continue; /* most say nothing */
            if (i % 16 == 3)
                (void)!send(crowd[i].fd, noise, sizeof(noise), MSG_NOSIGNAL);
            else
                (void)!send(crowd[i].fd, texts[i % 16], strlen(texts[i % 16]), MSG_NOSIGNAL);
        }
        int now = descriptors_of(pid);
        most = now > most ? now : most;
    }
    for (int i = 0; i < FABRIC_CROWD; i++)
        close(crowd[i].fd);
    ck_assert_msg(most - before < FABRIC_CROWD / 4, "%d descriptors more than %d", most - before,
                  before);
}

START_TEST(test_crowd_on_the_fabric)
{
    job_start(NULL);
    crowd_on(fabric_port());
    job_once();
    job_end();
}
END_TEST

/* A process that holds connections to a port until it is killed. */
static pid_t crowd_start(uint16_t port)
{
    int told[2];
    char byte;
    ck_assert_int_eq(pipe(told), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        int held[CROWD_FEW];
        for (int i = 0; i < CROWD_FEW; i++)
            held[i] = begin_connection(port);
        (void)held;
        (void)!write(told[1], "r", 1);
        for (;;)
            pause();
    }
    close(told[1]);
    ck_assert_int_eq(read(told[0], &byte, 1), 1);
    close(told[0]);
    return pid;
}

/* More than the daemon has, spread over its ports: its workers still get theirs. */
START_TEST(test_few_descriptors)
{
    struct rlimit few = {FEW_DESCRIPTORS, FEW_DESCRIPTORS};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    job_start(FEW_LIMITS);
    uint16_t fabric = fabric_port(), control = cluster->nodes[0].port;
    pid_t crowd[] = {crowd_start(fabric), crowd_start(fabric), crowd_start(control)};
    poll(NULL, 0, 1000); /* the daemon takes what it takes */
    job_once();
    for (size_t i = 0; i < sizeof(crowd) / sizeof(crowd[0]); i++) {
        kill(crowd[i], SIGKILL);
        waitpid(crowd[i], NULL, 0);
    }
    job_end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attack ports");
    TCase *tests = tcase_create("ports");
    tcase_set_timeout(tests, 300);
    tcase_add_test(tests, test_crowd_on_the_fabric);
    tcase_add_test(tests, test_few_descriptors);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
