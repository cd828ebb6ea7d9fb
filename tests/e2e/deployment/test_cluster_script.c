/* scripts/cluster.sh: a cluster in network namespaces that comes up, runs ranks, and leaves nothing
 * behind, whatever stops it. Needs the right to make namespaces. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/perf_run.h"

#define SCRIPT TEST_SOURCE_DIR "/scripts/cluster.sh"

static const char *reason; /* why this machine cannot run them, or NULL */
static char names[2][32];

/* One command, its words divided by blanks, to its end. */
#define START(...) (snprintf(command, sizeof(command), __VA_ARGS__), process_run_words(command))

static struct process *ended(struct process *process, int expected)
{
    int code = process_wait(process, 2 * CLUSTER_PATIENCE_MS);
    ck_assert_msg(code == expected, "exit code %d, not %d: %.700s%.700s", code, expected,
                  process_output(process), process_errors(process));
    return process;
}

static void run_ended(struct process *process, int expected)
{
    process_free(ended(process, expected));
}

static bool namespaces_left(const char *name)
{
    char prefix[64];
    snprintf(prefix, sizeof(prefix), "shoal-%s-", name);
    struct process *process = process_run_words("ip netns list");
    process_wait(process, CLUSTER_PATIENCE_MS);
    bool left = strstr(process_output(process), prefix) != NULL;
    process_free(process);
    return left;
}

static void assert_nothing_left(const char *name)
{
    char path[128];
    snprintf(path, sizeof(path), "/run/shoal-cluster/%s", name);
    ck_assert_msg(!namespaces_left(name), "namespaces of %s are left", name);
    ck_assert_msg(access(path, F_OK) != 0, "%s is left", path);
}

/* Unchecked: in the parent, so that the clusters go also when a test has failed. */
static void setup(void)
{
    char command[256];
    for (int i = 0; i < 2; i++)
        snprintf(names[i], sizeof(names[i]), "test-%d-%c", (int)getpid(), 'a' + i);
    if (geteuid() != 0) {
        reason = "needs root";
        return;
    }
    setenv("separator", "!", 1); /* a name of the script's own: the caller's must not count */
    struct process *process = START(SCRIPT " up --no-daemons --nodes 1 --rate 1gbit --name %s "
                                           "--build " CLUSTER_BIN "..",
                                    names[0]);
    if (process_wait(process, CLUSTER_PATIENCE_MS) != 0)
        reason = "network namespaces, bridges, veth or tbf are not allowed here";
    process_free(process);
    if (!reason)
        process_free(ended(START(SCRIPT " down --name %s", names[0]), 0));
}

static void teardown(void)
{
    char command[256];
    for (int i = 0; !reason && i < 2; i++) {
        if (!namespaces_left(names[i]))
            continue;
        struct process *process = START(SCRIPT " down --name %s", names[i]);
        process_wait(process, CLUSTER_PATIENCE_MS);
        process_free(process);
    }
}

static bool skipped(const char *name)
{
    if (reason)
        suite_skip(name, "%s", reason);
    return reason != NULL;
}

static void cluster_up(const char *name, const char *options)
{
    char command[512];
    run_ended(START(SCRIPT " up --name %s --build " CLUSTER_BIN ".. %s", name, options), 0);
}

static void cluster_down(const char *name)
{
    char command[256];
    run_ended(START(SCRIPT " down --name %s", name), 0);
    assert_nothing_left(name);
}

static int occurrences(const char *text, const char *word)
{
    int count = 0;
    for (; (text = strstr(text, word)) != NULL; text++)
        count++;
    return count;
}

/* Two clusters have the same addresses, and neither hears of the other. */
START_TEST(test_two_side_by_side)
{
    if (skipped("test_two_side_by_side"))
        return;
    char command[512];
    cluster_up(names[0], "--nodes 2 --cpu-nodes 1 --rate 1gbit");
    cluster_up(names[1], "--nodes 2");
    struct process *runs[2];
    for (int i = 0; i < 2; i++)
        runs[i] = START(SCRIPT " run -n %d --name %s -- shoalperf all_reduce --count 1,1000003 "
                               "-d all -w 1 -n 1 --json",
                        i + 1, names[i]);
    for (int i = 0; i < 2; i++) {
        ended(runs[i], 0);
        ck_assert_int_eq(occurrences(process_output(runs[i]), "\"wrong\":0}"), 2 * PERF_TYPES);
        const char *ranks = i ? "\"ranks\":4,\"nodes\":2" : "\"ranks\":2,\"nodes\":2";
        ck_assert_msg(strstr(process_output(runs[i]), ranks) != NULL, "no %s", ranks);
        process_free(runs[i]);
    }
    struct process *process = ended(START(SCRIPT " status --name %s", names[0]), 0);
    ck_assert_int_eq(occurrences(process_output(process), "\nnode"), 2);
    ck_assert_int_eq(occurrences(process_output(process), "\ncpu0"), 1);
    ck_assert_int_eq(occurrences(process_output(process), "pid "), 3);
    process_free(process);
    cluster_down(names[0]);
    ck_assert(namespaces_left(names[1]));
    cluster_down(names[1]);
}
END_TEST

/* Nobody waits for the daemon, as where the first process of a container does not. */
START_TEST(test_status_of_a_daemon_that_has_ended)
{
    if (skipped("test_status_of_a_daemon_that_has_ended"))
        return;
    char command[512];
    ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    cluster_up(names[0], "--nodes 2");
    struct process *process = ended(START(SCRIPT " status --name %s", names[0]), 0);
    const char *line = strstr(process_output(process), "\nnode1");
    ck_assert(line != NULL && strstr(line, "pid ") != NULL);
    pid_t daemon = (pid_t)strtol(strstr(line, "pid ") + strlen("pid "), NULL, 10);
    process_free(process);
    siginfo_t info;
    ck_assert(daemon > 1 && kill(daemon, SIGKILL) == 0);
    ck_assert_int_eq(waitid(P_PID, (id_t)daemon, &info, WEXITED | WNOWAIT), 0);
    process = ended(START(SCRIPT " status --name %s", names[0]), 0);
    ck_assert_int_eq(occurrences(process_output(process), "pid "), 1);
    ck_assert_int_eq(occurrences(process_output(process), "ended"), 1);
    process_free(process);
    cluster_down(names[0]);
}
END_TEST

/* Whether this congestion control is there without a module that would have to be loaded. */
static bool kernel_has(const char *congestion)
{
    char line[256] = "";
    FILE *file = fopen("/proc/sys/net/ipv4/tcp_available_congestion_control", "re");
    if (!file)
        return false;
    bool has = fgets(line, sizeof(line), file) && strstr(line, congestion);
    fclose(file);
    return has;
}

START_TEST(test_links_are_shaped_at_both_ends)
{
    if (skipped("test_links_are_shaped_at_both_ends"))
        return;
    char command[512];
    cluster_up(names[0], "--no-daemons --nodes 2 --cpu-nodes 1 --rate 500mbit");
    struct process *process =
        ended(START(SCRIPT " exec bridge --name %s -- tc qdisc show", names[0]), 0);
    ck_assert_int_eq(occurrences(process_output(process), "rate 500Mbit"), 3);
    ck_assert_int_eq(occurrences(process_output(process), "lat 10ms"), 3);
    process_free(process);
    for (int i = 0; i < 3; i++) {
        const char *const nodes[] = {"node0", "node1", "cpu0"};
        process = ended(
            START(SCRIPT " exec %s --name %s -- tc qdisc show dev eth0", nodes[i], names[0]), 0);
        ck_assert_int_eq(occurrences(process_output(process), "rate 500Mbit"), 1);
        /* A node's own queue is longer than what it can have under way: it drops nothing. */
        ck_assert_int_eq(occurrences(process_output(process), "lat 10ms"), 0);
        process_free(process);
    }
    process = ended(START(SCRIPT " exec node7 --name %s -- true", names[0]), 1);
    ck_assert(strstr(process_errors(process), "node0 to node1, cpu0 to cpu0, or bridge") != NULL);
    process_free(process);
    /* No way out: only the cluster's own network has a route. */
    process = ended(START(SCRIPT " exec node0 --name %s -- ip route", names[0]), 0);
    ck_assert_int_eq(occurrences(process_output(process), "\n"), 1);
    ck_assert(strstr(process_output(process), "10.77.0.0/16") != NULL);
    ck_assert(strstr(process_output(process), "congctl cubic") != NULL || !kernel_has("cubic"));
    process_free(process);
    cluster_down(names[0]);
}
END_TEST

START_TEST(test_exit_code_and_environment)
{
    if (skipped("test_exit_code_and_environment"))
        return;
    cluster_up(names[0], "--no-daemons --nodes 2");
    const char *argv[] = {SCRIPT,
                          "run",
                          "--name",
                          names[0],
                          "-n",
                          "2",
                          "--",
                          "sh",
                          "-c",
                          "echo \"$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, "
                          "$MASTER_ADDR\"; if [ $RANK = 3 ]; then exit 37; fi",
                          NULL};
    struct process *process = ended(process_run(argv), 37);
    const char *const lines[] = {"0 of 4, 0 of 2, 10.77.0.1\n", "1 of 4, 1 of 2, 10.77.0.1\n",
                                 "2 of 4, 0 of 2, 10.77.0.1\n", "3 of 4, 1 of 2, 10.77.0.1\n"};
    for (int i = 0; i < 4; i++)
        ck_assert_msg(strstr(process_output(process), lines[i]) != NULL, "no %s", lines[i]);
    ck_assert(strstr(process_errors(process), "rank 3 on node1: exit code 37") != NULL);
    process_free(process);
    cluster_down(names[0]);
}
END_TEST

/* Each is heard of once, however many end while another one's end is dealt with. */
START_TEST(test_ranks_that_fail_together)
{
    if (skipped("test_ranks_that_fail_together"))
        return;
    char command[512];
    cluster_up(names[0], "--no-daemons --nodes 2");
    for (int i = 0; i < 10; i++) {
        struct process *process = ended(START(SCRIPT " run --name %s -n 8 -- false", names[0]), 1);
        for (int rank = 0; rank < 16; rank++) {
            char line[64];
            snprintf(line, sizeof(line), "rank %d on node%d: exit code 1\n", rank, rank / 8);
            const char *errors = process_errors(process), *found = strstr(errors, line);
            if (found)
                ck_assert_msg(!strstr(found + 1, line), "%s twice", line);
        }
        ck_assert_msg(!strstr(process_errors(process), "line "), "%s", process_errors(process));
        process_free(process);
    }
    cluster_down(names[0]);
}
END_TEST

START_TEST(test_interrupted_run)
{
    if (skipped("test_interrupted_run"))
        return;
    char command[512];
    cluster_up(names[0], "--no-daemons --nodes 2");
    /* A child of a child, which holds on. */
    const char *argv[] = {SCRIPT,
                          "run",
                          "--name",
                          names[0],
                          "--",
                          "sh",
                          "-c",
                          "sh -c 'trap \"sleep 0.5; exit\" TERM; echo running; "
                          "while :; do sleep 0.1; done' & wait",
                          NULL};
    struct process *process = process_run(argv);
    ck_assert(process_wait_text(process, "running\nrunning\n", CLUSTER_PATIENCE_MS));
    process_signal(process, SIGINT);
    run_ended(process, 130);
    for (int i = 0; i < 2; i++) {
        process = ended(START("ip netns pids shoal-%s-node%d", names[0], i), 0);
        ck_assert_str_eq(process_output(process), "");
        process_free(process);
    }
    cluster_down(names[0]);
}
END_TEST

/* Down takes what runs with it, also when its starter was killed outright. */
START_TEST(test_down_ends_what_runs)
{
    if (skipped("test_down_ends_what_runs"))
        return;
    char command[512];
    cluster_up(names[0], "--nodes 2");
    struct process *process =
        START(SCRIPT " run --name %s -- " CLUSTER_HELPER " loop /nonexistent", names[0]);
    ck_assert(process_wait_text(process, "running", CLUSTER_PATIENCE_MS));
    cluster_down(names[0]);
    ck_assert_int_ne(process_wait(process, CLUSTER_PATIENCE_MS), 0);
    process_free(process);
}
END_TEST

START_TEST(test_failed_up_leaves_nothing)
{
    if (skipped("test_failed_up_leaves_nothing"))
        return;
    char command[512];
    struct process *process = ended(START(SCRIPT " up --nodes 2 --name %s --set data.chunk_bytes=7 "
                                                 "--build " CLUSTER_BIN "..",
                                          names[0]),
                                    1);
    ck_assert(strstr(process_errors(process), "/data/chunk_bytes") != NULL);
    process_free(process);
    assert_nothing_left(names[0]);
    /* A network that cannot be made: the number is no rate of tc's. */
    process = ended(
        START(SCRIPT " up --nodes 2 --name %s --rate 0gbit --build " CLUSTER_BIN "..", names[0]),
        2);
    process_free(process);
    assert_nothing_left(names[0]);
}
END_TEST

static bool half_up(void *name)
{
    return namespaces_left(name);
}

/* Sends the signal to an `up` that is under way. On a busy machine it may have ended just before:
 * then what it made is taken down, and it is tried again. */
static void up_interrupted(int signal, int expected)
{
    char command[512];
    for (int tries = 0; tries < 20; tries++) {
        struct process *process = START(
            SCRIPT " up --nodes 6 --rate 1gbit --name %s --build " CLUSTER_BIN "..", names[0]);
        ck_assert(wait_until(half_up, names[0], CLUSTER_PATIENCE_MS));
        process_signal(process, signal);
        bool was_done = process_wait(process, 2 * CLUSTER_PATIENCE_MS) == 0;
        if (!was_done) {
            run_ended(process, expected);
            return;
        }
        process_free(process);
        cluster_down(names[0]);
    }
    ck_abort_msg("up ended before the signal, twenty times");
}

START_TEST(test_interrupted_up_leaves_nothing)
{
    if (skipped("test_interrupted_up_leaves_nothing"))
        return;
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < 3; i++) {
        up_interrupted(signals[i], 130);
        assert_nothing_left(names[0]);
    }
    /* Killed outright it cannot clean up: down does. */
    up_interrupted(SIGKILL, 128 + SIGKILL);
    cluster_down(names[0]);
}
END_TEST

/* Where the machine's firewall sees what bridges pass on, this one's is spared. */
START_TEST(test_bridge_has_no_firewall)
{
    if (skipped("test_bridge_has_no_firewall"))
        return;
    const char *const hook = "/proc/sys/net/bridge/bridge-nf-call-iptables";
    char command[512];
    cluster_up(names[0], "--no-daemons --nodes 2");
    struct process *process = START(SCRIPT " exec bridge --name %s -- cat %s", names[0], hook);
    if (process_wait(process, CLUSTER_PATIENCE_MS) == 0)
        ck_assert_str_eq(process_output(process), "0\n");
    else
        suite_skip("test_bridge_has_no_firewall", "no firewall sees what bridges pass on here");
    process_free(process);
    cluster_down(names[0]);
}
END_TEST

START_TEST(test_congestion_control)
{
    if (skipped("test_congestion_control"))
        return;
    char command[512];
    cluster_up(names[0], "--no-daemons --nodes 1 --tcp reno"); /* which every kernel has */
    struct process *process = ended(START(SCRIPT " exec node0 --name %s -- ip route", names[0]), 0);
    ck_assert(strstr(process_output(process), "congctl reno") != NULL);
    process_free(process);
    cluster_down(names[0]);
    process = ended(
        START(SCRIPT " up --no-daemons --nodes 1 --tcp nosuch --name %s --build " CLUSTER_BIN "..",
              names[0]),
        1);
    ck_assert(strstr(process_errors(process), "no congestion control \"nosuch\"") != NULL);
    process_free(process);
    run_ended(START(SCRIPT " down --name %s", names[0]), 1); /* nothing was left */
}
END_TEST

/* A name is one cluster's: the second `up` is refused and does the first no harm. */
START_TEST(test_name_is_taken)
{
    if (skipped("test_name_is_taken"))
        return;
    char command[512];
    cluster_up(names[0], "--no-daemons --nodes 1");
    struct process *process = ended(
        START(SCRIPT " up --no-daemons --nodes 1 --name %s --build " CLUSTER_BIN "..", names[0]),
        1);
    ck_assert(strstr(process_errors(process), "there is a cluster") != NULL);
    process_free(process);
    run_ended(START(SCRIPT " exec node0 --name %s -- true", names[0]), 0);
    cluster_down(names[0]);
    process = ended(START(SCRIPT " down --name %s", names[0]), 1);
    ck_assert(strstr(process_errors(process), "there is no cluster") != NULL);
    process_free(process);
    process = ended(START(SCRIPT " run --name %s -- true", names[0]), 1);
    ck_assert(strstr(process_errors(process), "there is no cluster") != NULL);
    process_free(process);
}
END_TEST

START_TEST(test_usage)
{
    static const char *const wrong[] = {
        "",
        "upp",
        "up --nodes",
        "up --nodes x",
        "up --nodes 0",
        "up --nodes 65",
        "up --nodes 2 --rate fast",
        "up --nodes 2 --tcp 'a b'",
        "up --nodes 2 --weights 3",
        "up --nodes 2 --set a.b.c=1",
        "up --nodes 2 --name ../x",
        "up --nodes 2 --name UP",
        "up --nodes 2 --nodez 3",
        "run -n 0 -- true",
        "down now",
    };
    char command[512];
    bool root = geteuid() == 0;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct process *process = START(SCRIPT " %s", wrong[i]);
        int code = process_wait(process, CLUSTER_PATIENCE_MS);
        ck_assert_msg(code == 2 || (!root && code == 1), "%s: exit code %d", wrong[i], code);
        ck_assert(strstr(process_errors(process), "cluster.sh: ") != NULL);
        process_free(process);
    }
    run_ended(START(SCRIPT " --help"), 0);
}
END_TEST

START_TEST(test_without_root)
{
    if (geteuid() != 0) {
        suite_skip("test_without_root", "needs root, to give it up");
        return;
    }
    const char *argv[] = {"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
                          "bash",    SCRIPT,    "up",    "--nodes", "2",     NULL};
    struct process *process = process_run(argv);
    int code = process_wait(process, CLUSTER_PATIENCE_MS);
    /* Where the tree cannot be read by others, bash says so, with 126 or 127. */
    if (code == 126 || code == 127) {
        suite_skip("test_without_root", "another user cannot read the tree");
    } else {
        ck_assert_int_eq(code, 1);
        ck_assert(strstr(process_errors(process), "needs root") != NULL);
    }
    process_free(process);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cluster script");
    TCase *tests = tcase_create("clusters");
    tcase_set_timeout(tests, 300);
    tcase_add_unchecked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_two_side_by_side);
    tcase_add_test(tests, test_status_of_a_daemon_that_has_ended);
    tcase_add_test(tests, test_links_are_shaped_at_both_ends);
    tcase_add_test(tests, test_bridge_has_no_firewall);
    tcase_add_test(tests, test_congestion_control);
    tcase_add_test(tests, test_exit_code_and_environment);
    tcase_add_test(tests, test_ranks_that_fail_together);
    tcase_add_test(tests, test_interrupted_run);
    tcase_add_test(tests, test_down_ends_what_runs);
    tcase_add_test(tests, test_failed_up_leaves_nothing);
    tcase_add_test(tests, test_interrupted_up_leaves_nothing);
    tcase_add_test(tests, test_name_is_taken);
    suite_add_tcase(suite, tests);
    TCase *arguments = tcase_create("arguments");
    tcase_set_timeout(arguments, 300);
    tcase_add_test(arguments, test_usage);
    tcase_add_test(arguments, test_without_root);
    suite_add_tcase(suite, arguments);
    return suite_main(suite);
}
