/* shoalctl why of a job on three nodes, network namespaces, of which one has a slow link: tc(8)
 * makes it so while the job runs. Needs root, and the right to make namespaces. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

#define SCRIPT TEST_SOURCE_DIR "/scripts/cluster.sh"

static char name[64], stop[300], told[300];
static char *directory;
static bool ready;

static bool done(const char *words)
{
    struct process *process = process_run_words(words);
    bool well = process_wait(process, 2 * CLUSTER_PATIENCE_MS) == 0;
    process_free(process);
    return well;
}

#define DONE(...) (snprintf(command, sizeof(command), __VA_ARGS__), done(command))

/* Unchecked: in the parent, so that the cluster goes also when the test has failed. */
static void setup(void)
{
    char command[1024];
    directory = suite_make_directory();
    snprintf(name, sizeof(name), "why-%d", (int)getpid());
    snprintf(stop, sizeof(stop), "%.280s/stop", directory);
    snprintf(told, sizeof(told), "%.280s/job", directory);
    ready = geteuid() == 0 &&
            DONE(SCRIPT " up --nodes 3 --rate 1gbit --name %s --build " CLUSTER_BIN "..", name);
}

static void teardown(void)
{
    char command[1024];
    if (ready)
        DONE(SCRIPT " down --name %s", name);
    suite_remove_directory(directory);
}

static char last[4096];

/* Asks a node that the fault is not on. */
static bool link_is_named(void *context)
{
    char command[1024];
    snprintf(command, sizeof(command),
             SCRIPT " exec node0 --name %s -- " CLUSTER_BIN "shoalctl why %s --json", name,
             (const char *)context);
    struct process *process = process_run_words(command);
    process_wait(process, CLUSTER_PATIENCE_MS);
    json_t *why = json_loads(process_output(process), 0, NULL);
    const char *kind = json_string_value(json_object_get(why, "kind"));
    const char *node = json_string_value(json_object_get(why, "of_node"));
    double step_ms = json_number_value(json_object_get(why, "step_ms"));
    bool named = kind && node && strcmp(kind, "link slow") == 0 && strcmp(node, "node1") == 0 &&
                 json_is_null(json_object_get(why, "to_node")) &&
                 json_number_value(json_object_get(why, "lost_ms")) > step_ms / 4;
    snprintf(last, sizeof(last), "%s%s", process_output(process), process_errors(process));
    json_decref(why);
    process_free(process);
    return named;
}

static bool job_is_told(void *context)
{
    char *job = context;
    FILE *file = fopen(told, "r");
    bool is = file && fscanf(file, "%100s", job) == 1;
    if (file)
        fclose(file);
    return is;
}

/* 50 Mbit/s instead of a thousand, for all that leaves node1: 1.6 MB each time. */
START_TEST(test_slow_link)
{
    char command[1024], job[128] = "";
    if (!ready) {
        suite_skip("test_why_link", "no right to make network namespaces, bridges, veth or tbf");
        return;
    }
    const char *argv[] = {SCRIPT, "run", "-n", "2",     "--name", name,
                          "--",   "sh",  "-c", command, NULL};
    snprintf(command, sizeof(command),
             "[ $RANK != 0 ] || echo $SHOAL_JOB > %s; exec " CLUSTER_HELPER " lag %s 400000 -1 0",
             told, stop);
    struct process *run = process_run(argv);
    ck_assert_msg(wait_until(job_is_told, job, CLUSTER_PATIENCE_MS), "%s", process_errors(run));
    ck_assert_msg(process_wait_text(run, "running", CLUSTER_PATIENCE_MS), "%s",
                  process_errors(run));
    ck_assert(DONE("tc -n shoal-%s-node1 qdisc replace dev eth0 root tbf rate 50mbit burst 98304 "
                   "limit 16777216",
                   name));
    ck_assert_msg(wait_until(link_is_named, job, CLUSTER_PATIENCE_MS), "%s", last);
    FILE *file = fopen(stop, "w");
    ck_assert_ptr_nonnull(file);
    fclose(file);
    int code = process_wait(run, 2 * CLUSTER_PATIENCE_MS);
    ck_assert_msg(code == 0, "exit code %d: %s", code, process_errors(run));
    process_free(run);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("why_link");
    TCase *tests = tcase_create("why_link");
    tcase_set_timeout(tests, 300);
    tcase_add_unchecked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_slow_link);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
