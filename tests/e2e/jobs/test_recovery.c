/* A cluster in network namespaces, with recovery on: its connections are reset, and a link is taken
 * down for a second, in the middle of a run whose ranks see nothing but time. Needs root. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

#define SCRIPT TEST_SOURCE_DIR "/scripts/cluster.sh"
#define BACK "node1 is reached over the fabric, and its jobs go on"

static const char *reason; /* why this machine cannot run them, or NULL */
static char name[32];

/* One command, its words divided by blanks, to its end: its exit code. */
static int run(const char *words)
{
    struct process *process = process_run_words(words);
    int code = process_wait(process, 2 * CLUSTER_PATIENCE_MS);
    process_free(process);
    return code;
}

#define START(...) (snprintf(command, sizeof(command), __VA_ARGS__), process_run_words(command))
#define RUN(...) (snprintf(command, sizeof(command), __VA_ARGS__), run(command))

/* Unchecked: in the parent, so that the cluster goes also when a test has failed. */
static void setup(void)
{
    char command[512];
    snprintf(name, sizeof(name), "test-%d-r", (int)getpid());
    if (geteuid() != 0)
        reason = "needs root";
    else if (RUN(SCRIPT " up --no-daemons --nodes 1 --rate 1gbit --name %s --build " CLUSTER_BIN
                        "..",
                 name) != 0)
        reason = "network namespaces, bridges, veth or tbf are not allowed here";
    else
        RUN(SCRIPT " down --name %s", name);
}

static void teardown(void)
{
    char command[512];
    if (!reason)
        RUN(SCRIPT " down --name %s", name);
}

/* How often the node's log says so. */
static int logged_by(const char *node, const char *words)
{
    char path[128], line[1024];
    int count = 0;
    snprintf(path, sizeof(path), "/run/shoal-cluster/%s/%s.log", name, node);
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof(line), file))
        count += strstr(line, words) != NULL;
    fclose(file);
    return count;
}

static int logged(const char *words)
{
    return logged_by("node0", words);
}

static bool is_open(void *context)
{
    (void)context;
    return logged(" is open") > 0;
}

struct times {
    const char *words;
    int count;
    const char *node; /* NULL: node0 */
};

static bool logged_times(void *context)
{
    const struct times *times = context;
    return logged_by(times->node ? times->node : "node0", times->words) >= times->count;
}

/* Its daemon counts sums: the rank of node1 has joined. */
static bool is_running(void *context)
{
    (void)context;
    char command[512];
    struct process *process =
        START(CLUSTER_BIN "shoalctl --socket /run/shoal-cluster/%s/node1.sock status --json", name);
    process_wait(process, CLUSTER_PATIENCE_MS);
    const char *counted = strstr(process_output(process), "\"collectives\":");
    bool running = counted && strtol(counted + strlen("\"collectives\":"), NULL, 10) > 0;
    process_free(process);
    return running;
}

static struct process *run_begin(const char *protect)
{
    char command[512];
    ck_assert_int_eq(RUN(SCRIPT " up --name %s --build " CLUSTER_BIN ".. --nodes 2 --cpu-nodes 1 "
                                "--rate 200mbit --set recovery=true --set protect=\"%s\"",
                         name, protect),
                     0);
    struct process *ranks =
        START(SCRIPT " run --name %s -- shoalperf all_reduce -b 4M -w 1 -n 25 --json", name);
    ck_assert(wait_until(is_open, NULL, CLUSTER_PATIENCE_MS));
    ck_assert(wait_until(is_running, NULL, CLUSTER_PATIENCE_MS));
    return ranks;
}

/* Each connection of node1, of both planes, is reset at both of its ends. False: the kernel cannot.
 */
static bool connections_reset(void)
{
    char command[512];
    struct process *process = START("ip netns exec shoal-%s-node1 ss -HK dst 10.77.0.0/16", name);
    process_wait(process, CLUSTER_PATIENCE_MS);
    bool could = strstr(process_output(process), "ESTAB") != NULL;
    process_free(process);
    return could;
}

static void link_away_for_a_second(void)
{
    char command[512];
    ck_assert_int_eq(RUN("ip -n shoal-%s-node1 link set eth0 down", name), 0);
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL); /* this is the fault, and waits for nothing */
    ck_assert_int_eq(RUN("ip -n shoal-%s-node1 link set eth0 up", name), 0);
}

static void goes_on(const char *protect)
{
    char command[512];
    struct process *ranks = run_begin(protect);
    bool resets = connections_reset();
    if (!resets)
        suite_skip("resets", "the kernel does not end others' connections (ss -K)");
    if (resets) {
        struct times back = {BACK, 1, NULL};
        ck_assert(wait_until(logged_times, &back, CLUSTER_PATIENCE_MS));
        ck_assert(connections_reset());
        back.count = 2;
        ck_assert(wait_until(logged_times, &back, CLUSTER_PATIENCE_MS));
    }
    link_away_for_a_second();
    int code = process_wait(ranks, 2 * CLUSTER_PATIENCE_MS);
    ck_assert_msg(code == 0, "exit code %d: %.900s%.900s", code, process_output(ranks),
                  process_errors(ranks));
    ck_assert_msg(strstr(process_output(ranks), "\"wrong\":0}"), "%.900s", process_output(ranks));
    process_free(ranks);
    ck_assert_int_eq(logged("has failed"), 0);
    ck_assert_int_eq(RUN(SCRIPT " down --name %s", name), 0);
}

START_TEST(test_in_the_clear)
{
    if (reason)
        suite_skip("test_in_the_clear", "%s", reason);
    else
        goes_on("none");
}
END_TEST

START_TEST(test_sealed)
{
    if (reason)
        suite_skip("test_sealed", "%s", reason);
    else
        goes_on("encrypt");
}
END_TEST

/* Its machine refuses connections: nobody waits for one that has ended, be it that node0, which
 * connects to it, or cpu0, to which it connects. */
START_TEST(test_a_daemon_that_is_killed_is_lost)
{
    char command[512], path[128], pid[32] = "";
    if (reason) {
        suite_skip("test_a_daemon_that_is_killed_is_lost", "%s", reason);
        return;
    }
    struct process *ranks = run_begin("none");
    snprintf(path, sizeof(path), "/run/shoal-cluster/%s/node1.pid", name);
    FILE *file = fopen(path, "re");
    ck_assert(file && fgets(pid, sizeof(pid), file));
    fclose(file);
    ck_assert_int_eq(kill((pid_t)strtol(pid, NULL, 10), SIGKILL), 0);
    ck_assert_int_ne(process_wait(ranks, 2 * CLUSTER_PATIENCE_MS), 0);
    ck_assert_msg(strstr(process_errors(ranks), "node1 (rank 1) is gone"), "%.900s",
                  process_errors(ranks));
    process_free(ranks);
    const char *others[] = {"node0", "cpu0"};
    for (int i = 0; i < 2; i++) {
        struct times lost = {"node node1 is lost: Connection refused", 1, others[i]};
        ck_assert(wait_until(logged_times, &lost, CLUSTER_PATIENCE_MS));
        ck_assert_int_eq(logged_by(others[i], "no other connection for"), 0);
    }
    ck_assert_int_eq(logged("and its jobs go on"), 0);
    ck_assert_int_eq(RUN(SCRIPT " down --name %s", name), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("recovery");
    TCase *links = tcase_create("links");
    tcase_add_unchecked_fixture(links, setup, teardown);
    tcase_set_timeout(links, 300);
    tcase_add_test(links, test_in_the_clear);
    tcase_add_test(links, test_sealed);
    tcase_add_test(links, test_a_daemon_that_is_killed_is_lost);
    suite_add_tcase(suite, links);
    return suite_main(suite);
}
