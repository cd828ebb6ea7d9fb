/* The line that says where long work is, over real daemons: on a terminal it is drawn and erased,
 * in a pipe and on a terminal that cannot erase it there is not a byte of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"
#include "tests/lib/terminal.h"

#define END "\033[K\r"
#define ERASE "\r\033[K"
#define PERF CLUSTER_BIN "shoalperf", "all_reduce", "-w", "0", "-n", "1"

/* The text behind `from` where it is next; the test fails when it is not. */
static const char *next(const char *from, const char *text)
{
    const char *at = strstr(from, text);
    ck_assert_msg(at != NULL, "no %s in: %s", text, from);
    return at + strlen(text);
}

/* shoalperf under shoalrun, as users start it: two ranks, of which one draws. */
static struct terminal *perf_start(const char *variable, unsigned columns)
{
    const char *argv[] = {
        CLUSTER_BIN "shoalrun", "-n", "2", "--", PERF, "--count", "1024,7", "-d", "all", NULL};
    const char *environment[] = {variable, NULL};
    return terminal_start(argv, environment, columns, 24);
}

static void perf_end(struct terminal *terminal)
{
    ck_assert_msg(terminal_wait(terminal, CLUSTER_PATIENCE_MS) == 0, "%s", terminal->text);
    next(next(terminal->text, "# shoalperf"), "Avg bus bandwidth");
}

START_TEST(test_perf_on_a_terminal)
{
    struct terminal *terminal = perf_start(NULL, 100);
    perf_end(terminal);
    const char *at = next(terminal->text, "\rrow 1 of 24: all_reduce sum, float, 4 KiB" END);
    at = next(at, ERASE " ");
    at = next(at, "\rrow 2 of 24: all_reduce sum, float, 28 B" END);
    at = next(at, ERASE " ");
    at = next(at, "\rrow 24 of 24: ");
    at = next(at, ERASE " ");
    at = next(at, ERASE "# Out of bounds");
    ck_assert_ptr_null(strchr(at, '\033'));
    ck_assert_ptr_null(strstr(terminal->text, "row 25"));
    terminal_free(terminal);

    terminal = perf_start(NULL, 20);
    perf_end(terminal);
    next(terminal->text, "\rrow 1 of 24: all_re" END);
    terminal_free(terminal);
}
END_TEST

START_TEST(test_perf_elsewhere)
{
    struct terminal *terminal = perf_start("TERM=dumb", 100);
    perf_end(terminal);
    ck_assert_ptr_null(strchr(terminal->text, '\033'));
    ck_assert_ptr_null(strstr(terminal->text, "row 1"));
    terminal_free(terminal);

    const char *argv[] = {CLUSTER_BIN "shoalrun", "-n", "2", "--", PERF, NULL};
    const char *environment[] = {"TERM=xterm", NULL};
    struct process *process =
        process_start(&(struct process_start){.argv = argv, .environment = environment});
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 0);
    ck_assert_ptr_null(strpbrk(process_output(process), "\033\r"));
    ck_assert_ptr_null(strpbrk(process_errors(process), "\033\r"));
    process_free(process);
}
END_TEST

static struct cluster *cluster;
static struct process *rank;
static char *directory;

static bool job_runs(const json_t *status)
{
    const json_t *job = json_array_get(json_object_get(status, "jobs"), 0);
    const char *state = json_string_value(json_object_get(job, "state"));
    return state && strcmp(state, "running") == 0;
}

static void trace_setup(void)
{
    const char *argv[] = {CLUSTER_BIN "shoalperf", "all_reduce", "-n", "1000000000", NULL};
    directory = suite_make_directory();
    cluster = cluster_start(1, NULL);
    cluster_job(cluster, "perf", 1, argv, &rank);
    ck_assert(cluster_wait_status(cluster, 0, job_runs, CLUSTER_PATIENCE_MS));
}

static void trace_teardown(void)
{
    process_free(rank);
    cluster_free(cluster);
    suite_remove_directory(directory);
}

static struct terminal *trace(const char *job, const char *seconds, const char *variable, int code)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/trace.json", directory);
    const char *socket_path = cluster->nodes[0].socket_path;
    const char *argv[] = {CLUSTER_BIN "shoalctl",
                          "--socket",
                          socket_path,
                          "trace",
                          job,
                          "--seconds",
                          seconds,
                          "--output",
                          path,
                          NULL};
    const char *environment[] = {variable, NULL};
    struct terminal *terminal = terminal_start(argv, environment, 80, 24);
    ck_assert_msg(terminal_wait(terminal, CLUSTER_PATIENCE_MS) == code, "%s", terminal->text);
    return terminal;
}

START_TEST(test_trace)
{
    struct terminal *terminal = trace("perf", "1.5", NULL, 0);
    const char *at = next(terminal->text, "\rrecording job 'perf': 0.0 of 1.5 s" END);
    at = next(at, "\rrecording job 'perf': ");
    at = next(at, ERASE);
    ck_assert_ptr_null(strchr(at, '\033'));
    next(at, " of job 'perf' on node node0");
    terminal_free(terminal);

    terminal = trace("perf", "0.1", "TERM=dumb", 0);
    ck_assert_ptr_null(strchr(terminal->text, '\033'));
    terminal_free(terminal);

    /* An error is said on a line of its own. */
    terminal = trace("other", "0.1", NULL, 1);
    const char *line = strstr(terminal->text, "shoalctl: ");
    ck_assert_ptr_nonnull(line);
    ck_assert(line == terminal->text || line[-1] == 'K' || line[-1] == '\n');
    terminal_free(terminal);

    const char *words[] = {"trace", "perf", "--seconds", "0.1", "--output", "/dev/null", NULL};
    struct process *process = cluster_shoalctl(cluster, 0, words);
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 0);
    ck_assert_ptr_null(strpbrk(process_errors(process), "\033\r"));
    ck_assert_ptr_null(strpbrk(process_output(process), "\033\r"));
    process_free(process);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("progress");
    TCase *perf = tcase_create("perf"), *traced = tcase_create("trace");
    tcase_set_timeout(perf, 240);
    tcase_set_timeout(traced, 240);
    tcase_add_test(perf, test_perf_on_a_terminal);
    tcase_add_test(perf, test_perf_elsewhere);
    tcase_add_checked_fixture(traced, trace_setup, trace_teardown);
    tcase_add_test(traced, test_trace);
    suite_add_tcase(suite, perf);
    suite_add_tcase(suite, traced);
    return suite_main(suite);
}
