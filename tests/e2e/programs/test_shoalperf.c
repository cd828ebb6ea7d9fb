/* shoalperf over real daemons: every collective, type and operation, odd counts, several shapes of
 * a cluster. Collectives in parts are in test_shoalperf_parts.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/fake_daemon.h"
#include "tests/lib/worker/perf_run.h"

#define ODD "--count 1,3,1001 -w 0 -n 1 -d all"

START_TEST(test_all_reduce_one_node)
{
    ck_assert_int_eq(perf_rows_measured("--nodes 1 -n 4", "all_reduce -o all " ODD),
                     3 * PERF_PAIRS);
}
END_TEST

START_TEST(test_all_reduce_two_nodes)
{
    ck_assert_int_eq(perf_rows_measured("--nodes 2 -n 2", "all_reduce -o all " ODD),
                     3 * PERF_PAIRS);
}
END_TEST

START_TEST(test_all_reduce_three_nodes)
{
    ck_assert_int_eq(perf_rows_measured("--nodes 3 -n 1", "all_reduce -o all " ODD),
                     3 * PERF_PAIRS);
}
END_TEST

START_TEST(test_all_reduce_cpu_node)
{
    ck_assert_int_eq(perf_rows_measured("--nodes 1 -n 2 --cpu-nodes 1", "all_reduce -o all " ODD),
                     3 * PERF_PAIRS);
    ck_assert_int_eq(perf_rows_measured("--nodes 2 -n 1 --cpu-nodes 1", "all_reduce -o all " ODD),
                     3 * PERF_PAIRS);
    /* The CPU nodes own everything. */
    ck_assert_int_eq(perf_rows_measured("--nodes 2 -n 1 --cpu-nodes 2",
                                        "all_reduce --count 1,1000003 "
                                        "-w 0 -n 1 -d float"),
                     2);
}
END_TEST

START_TEST(test_all_reduce_datagrams)
{
    ck_assert_int_eq(perf_rows_measured("--nodes 2 -n 2 --provider tcp;ofi_rxm",
                                        "all_reduce -o sum --count 1,3,1000003 -w 0 -n 1 -d all"),
                     3 * PERF_TYPES);
}
END_TEST

START_TEST(test_all_reduce_large)
{
    static const char *const shapes[] = {"--nodes 1 -n 4", "--nodes 2 -n 2", "--nodes 3 -n 1"};
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(
            perf_rows_measured(shapes[i], "all_reduce --count 1000003 -w 1 -n 2 -d all -o sum"),
            PERF_TYPES);
        ck_assert_int_eq(perf_rows_measured(shapes[i], "all_reduce -b 4 -e 16M -f 16 -w 1 -n 2"),
                         6);
    }
}
END_TEST

START_TEST(test_arena_and_in_place)
{
    static const char *const shapes[] = {"--nodes 1 -n 4", "--nodes 2 -n 2", "--nodes 3 -n 1"};
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(perf_rows_measured(
                             shapes[i], "all_reduce --count 1,3,1000003 -w 1 -n 2 -d all --arena"),
                         3 * PERF_TYPES);
        ck_assert_int_eq(perf_rows_measured(shapes[i],
                                            "all_reduce --count 1,3,1000003 -w 1 -n 2 -d "
                                            "float --arena --in-place"),
                         3);
        ck_assert_int_eq(
            perf_rows_measured(shapes[i],
                               "all_reduce --count 1,1000003 -w 1 -n 2 -d half --in-place"),
            2);
    }
}
END_TEST

/* The results are right, whichever memory is written again. */
START_TEST(test_rewrite)
{
    static const char *const collectives[] = {
        "all_reduce",     "all_reduce --in-place --arena",  "reduce -r 1", "broadcast -r 1",
        "reduce_scatter", "all_gather --uneven --in-place", "barrier"};
    for (size_t i = 0; i < sizeof(collectives) / sizeof(collectives[0]); i++) {
        char words[128];
        snprintf(words, sizeof(words), "%s --count 1001 -w 1 -n 3 --rewrite", collectives[i]);
        ck_assert_int_eq(perf_rows_measured("--nodes 1 -n 3", words), 1);
    }
}
END_TEST

START_TEST(test_shared_result)
{
    static const char *const shapes[] = {"--nodes 1 -n 4", "--nodes 2 -n 2", "--nodes 3 -n 1"};
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(perf_rows_measured(shapes[i], "all_reduce --count 1,3,1000003 -w 1 -n 2 "
                                                       "-d all --arena --shared-result"),
                         3 * PERF_TYPES);
        ck_assert_int_eq(perf_rows_measured(shapes[i], "all_reduce --count 1,1000003 -w 1 -n 2 "
                                                       "-o all --shared-result"),
                         2 * 5);
    }
}
END_TEST

START_TEST(test_reduce)
{
    ck_assert_int_eq(perf_rows_measured("--nodes 1 -n 4", "reduce -r 3 -o all " ODD),
                     3 * PERF_PAIRS);
    ck_assert_int_eq(perf_rows_measured("--nodes 2 -n 2", "reduce -r 1 -o all " ODD),
                     3 * PERF_PAIRS);
    ck_assert_int_eq(
        perf_rows_measured("--nodes 3 -n 1", "reduce -r 2 --count 1,3,1000003 -n 2 -d all"),
        3 * PERF_TYPES);
    ck_assert_int_eq(perf_rows_measured("--nodes 2 -n 2", "reduce -r 2 --count 1,1000003 -n 2 "
                                                          "--in-place --arena"),
                     2);
}
END_TEST

START_TEST(test_broadcast)
{
    static const char *const shapes[] = {"--nodes 1 -n 4", "--nodes 2 -n 2", "--nodes 3 -n 1"};
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(
            perf_rows_measured(shapes[i], "broadcast -r 2 --count 1,3,1000003 -w 1 -n 2 -d all"),
            3 * PERF_TYPES);
        ck_assert_int_eq(perf_rows_measured(shapes[i], "broadcast --count 3,1000003 --arena -n 2"),
                         2);
    }
}
END_TEST

START_TEST(test_barrier)
{
    ck_assert_int_eq(perf_rows_measured("--nodes 1 -n 4", "barrier"), 1);
    ck_assert_int_eq(perf_rows_measured("--nodes 2 -n 2", "barrier"), 1);
    ck_assert_int_eq(perf_rows_measured("--nodes 1 -n 1", "barrier"), 1);
}
END_TEST

START_TEST(test_table_output)
{
    const char *argv[] = {CLUSTER_BIN "shoalrun",
                          "--nodes",
                          "1",
                          "-n",
                          "2",
                          "--",
                          CLUSTER_BIN "shoalperf",
                          "reduce",
                          "-b",
                          "1K",
                          "-e",
                          "4K",
                          "-f",
                          "2",
                          NULL};
    struct process *process = process_run(argv);
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 0);
    const char *text = process_output(process);
    ck_assert_ptr_nonnull(strstr(text, "# shoalperf reduce: 2 ranks on 1 nodes"));
    ck_assert_ptr_nonnull(strstr(text, "# Out of bounds values : 0 OK"));
    int rows = 0;
    for (const char *line = text; *line; line = strchr(line, '\n') + 1)
        rows += *line != '#';
    ck_assert_int_eq(rows, 3);
    process_free(process);
}
END_TEST

START_TEST(test_usage)
{
    const char *wrong[] = {CLUSTER_BIN "shoalperf", "all_scatter", NULL};
    struct process *process = process_run(wrong);
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 2);
    ck_assert_str_eq(process_errors(process), "shoalperf: unknown collective \"all_scatter\"\n"
                                              "Try 'shoalperf --help'.\n");
    process_free(process);
    /* No daemon there. */
    const char *argv[] = {CLUSTER_BIN "shoalperf", "barrier", NULL};
    const char *environment[] = {"SHOAL_SOCKET=/nonexistent/s", "RANK=0", "WORLD_SIZE=1", NULL};
    struct process_start start = {.argv = argv, .environment = environment};
    process = process_start(&start);
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 3);
    ck_assert_ptr_nonnull(strstr(process_errors(process), "/nonexistent/s"));
    process_free(process);
    /* A root that no rank has. */
    const char *root[] = {CLUSTER_BIN "shoalrun",  "--nodes", "1",  "-n", "2", "--",
                          CLUSTER_BIN "shoalperf", "reduce",  "-r", "2",  NULL};
    process = process_run(root);
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 3);
    ck_assert_ptr_nonnull(strstr(process_errors(process), "root 2, but there are 2 ranks"));
    process_free(process);
}
END_TEST

START_TEST(test_full_disk)
{
    if (access("/dev/full", W_OK) != 0) {
        suite_skip("full_disk", "there is no /dev/full");
        return;
    }
    const char *argv[] = {CLUSTER_BIN "shoalrun",
                          "--nodes",
                          "1",
                          "-n",
                          "2",
                          "--",
                          "/bin/sh",
                          "-c",
                          "exec " CLUSTER_BIN "shoalperf barrier -n 1 --json > /dev/full",
                          NULL};
    struct process *process = process_run(argv);
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 3);
    ck_assert_ptr_nonnull(strstr(process_errors(process), "the results could not be written"));
    process_free(process);
}
END_TEST

static struct process *plot_run(const char *words)
{
    char line[1024];
    snprintf(line, sizeof(line),
             "%sshoalrun -n 2 -- %sshoalperf all_gather -b 4K -e 64K -f 4 -w 0 -n 1 --json %s",
             CLUSTER_BIN, CLUSTER_BIN, words);
    return process_run_words(line);
}

/* Each line of JSON has a point with its figures in each of the curves. */
START_TEST(test_plot)
{
    char folder[] = "/tmp/shoal-perf-XXXXXX", path[64], words[100], picture[16384] = "";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/plot.svg", folder);
    snprintf(words, sizeof(words), "--plot %s", path);
    struct process *process = plot_run(words);
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 0);
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_gt(fread(picture, 1, sizeof(picture) - 1, file), 1000);
    fclose(file);
    int rows = 0;
    for (const char *line = process_output(process); *line; line = strchr(line, '\n') + 1, rows++) {
        char time[32], algbw[32], busbw[32], title[200];
        unsigned long long bytes;
        const char *figures = strstr(line, "\"time_us\"");
        ck_assert_int_eq(sscanf(line, "{\"collective\":\"all_gather\",\"bytes\":%llu,", &bytes), 1);
        ck_assert_ptr_nonnull(figures);
        ck_assert_int_eq(sscanf(figures,
                                "\"time_us\":%31[0-9.],\"algbw_GBps\":%31[0-9.],"
                                "\"busbw_GBps\":%31[0-9.],",
                                time, algbw, busbw),
                         3);
        snprintf(title, sizeof(title), "<title>%llu bytes: %s us, algbw %s GB/s, busbw %s GB/s<",
                 bytes, time, algbw, busbw);
        ck_assert_msg(strstr(picture, title) != NULL, "no \"%s\" in %s", title, picture);
    }
    ck_assert_int_eq(rows, 3);
    process_free(process);
    unlink(path);
    rmdir(folder);
}
END_TEST

/* Said before anything is measured, and once. */
START_TEST(test_plot_nowhere)
{
    struct process *process = plot_run("--plot /none/plot.svg");
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 3);
    ck_assert_str_eq(process_output(process), "");
    const char *said = strstr(process_errors(process), "shoalperf: ");
    ck_assert_ptr_nonnull(said);
    const char *expected = "shoalperf: --plot /none/plot.svg: No such file or directory\n";
    ck_assert_msg(strncmp(said, expected, strlen(expected)) == 0, "%.300s", said);
    ck_assert_ptr_null(strstr(said + 1, "shoalperf: "));
    process_free(process);
}
END_TEST

/* A rank whose time passes in the middle of a collective ends with that, while data still comes
 * that nobody waits for. */
START_TEST(test_timeout_in_the_middle)
{
    struct fake_daemon *daemon =
        fake_daemon_start(&(struct fake_daemon_options){.world_size = 1, .chunk_bytes = 1024});
    char socket[300];
    snprintf(socket, sizeof(socket), "SHOAL_SOCKET=%s", fake_daemon_path(daemon));
    const char *environment[] = {socket, "RANK=0", "WORLD_SIZE=1", "SHOAL_TIMEOUT_MS=300", NULL};
    const char *argv[] = {CLUSTER_BIN "shoalperf",
                          "all_reduce",
                          "-b",
                          "64M",
                          "-e",
                          "64M",
                          "-w",
                          "0",
                          "-n",
                          "1",
                          NULL};
    struct process_start start = {.argv = argv, .environment = environment};
    struct process *process = process_start(&start);
    int code = process_wait(process, CLUSTER_PATIENCE_MS);
    ck_assert_msg(code == 3, "exit code %d: %.500s", code, process_errors(process));
    ck_assert_ptr_nonnull(strstr(process_errors(process), "300 ms have passed: all_reduce"));
    process_free(process);
    fake_daemon_stop(daemon);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shoalperf");
    TCase *tests = tcase_create("shoalperf");
    tcase_set_timeout(tests, 600);
    tcase_add_test(tests, test_all_reduce_one_node);
    tcase_add_test(tests, test_all_reduce_two_nodes);
    tcase_add_test(tests, test_all_reduce_three_nodes);
    tcase_add_test(tests, test_all_reduce_cpu_node);
    tcase_add_test(tests, test_all_reduce_datagrams);
    tcase_add_test(tests, test_all_reduce_large);
    tcase_add_test(tests, test_arena_and_in_place);
    tcase_add_test(tests, test_rewrite);
    tcase_add_test(tests, test_shared_result);
    tcase_add_test(tests, test_reduce);
    tcase_add_test(tests, test_broadcast);
    tcase_add_test(tests, test_barrier);
    tcase_add_test(tests, test_table_output);
    tcase_add_test(tests, test_usage);
    tcase_add_test(tests, test_full_disk);
    tcase_add_test(tests, test_plot);
    tcase_add_test(tests, test_plot_nowhere);
    suite_add_tcase(suite, tests);
    TCase *failure = tcase_create("failure");
    tcase_set_timeout(failure, 120);
    tcase_add_test(failure, test_timeout_in_the_middle);
    suite_add_tcase(suite, failure);
    return suite_main(suite);
}
