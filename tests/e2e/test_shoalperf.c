/* shoalperf over real daemons: every collective, type and operation, odd counts, several shapes of
 * a cluster. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

#define ARGUMENTS_MAX 48

/* "shoalrun <shape> -- shoalperf <words>", both split at blanks; the lines of JSON counted. */
static int rows_measured(const char *shape, const char *words)
{
    char line[1024], *rest = NULL;
    const char *argv[ARGUMENTS_MAX] = {CLUSTER_BIN "shoalrun"};
    snprintf(line, sizeof(line), "--timeout 240 %s -- %sshoalperf %s --json", shape, CLUSTER_BIN,
             words);
    int count = 1;
    for (char *word = strtok_r(line, " ", &rest); word && count < ARGUMENTS_MAX - 1;
         word = strtok_r(NULL, " ", &rest))
        argv[count++] = word;
    struct process *process = process_run(argv);
    int code = process_wait(process, 300000);
    ck_assert_msg(code == 0, "%s, %s: exit code %d\n%.500s\n%.2000s", shape, words, code,
                  process_output(process), process_errors(process));
    int rows = 0;
    const char *text = process_output(process);
    for (const char *end; (end = strchr(text, '\n')); text = end + 1, rows++) {
        json_t *row = json_loadb(text, (size_t)(end - text), 0, NULL);
        ck_assert_msg(row != NULL, "no JSON: %.200s", text);
        ck_assert_int_eq(json_integer_value(json_object_get(row, "wrong")), 0);
        ck_assert(json_is_integer(json_object_get(row, "wrong")));
        ck_assert(json_real_value(json_object_get(row, "time_us")) > 0);
        json_decref(row);
    }
    process_free(process);
    return rows;
}

/* 4 floating types by 5 operations and 4 integer types by 8. */
#define PAIRS 52
#define ODD "--count 1,3,1001 -w 0 -n 1 -d all"

START_TEST(test_all_reduce_one_node)
{
    ck_assert_int_eq(rows_measured("--nodes 1 -n 4", "all_reduce -o all " ODD), 3 * PAIRS);
}
END_TEST

START_TEST(test_all_reduce_two_nodes)
{
    ck_assert_int_eq(rows_measured("--nodes 2 -n 2", "all_reduce -o all " ODD), 3 * PAIRS);
}
END_TEST

START_TEST(test_all_reduce_three_nodes)
{
    ck_assert_int_eq(rows_measured("--nodes 3 -n 1", "all_reduce -o all " ODD), 3 * PAIRS);
}
END_TEST

START_TEST(test_all_reduce_cpu_node)
{
    ck_assert_int_eq(rows_measured("--nodes 1 -n 2 --cpu-nodes 1", "all_reduce -o all " ODD),
                     3 * PAIRS);
    ck_assert_int_eq(rows_measured("--nodes 2 -n 1 --cpu-nodes 1", "all_reduce -o all " ODD),
                     3 * PAIRS);
    /* The CPU nodes own everything. */
    ck_assert_int_eq(rows_measured("--nodes 2 -n 1 --cpu-nodes 2", "all_reduce --count 1,1000003 "
                                                                   "-w 0 -n 1 -d float"),
                     2);
}
END_TEST

START_TEST(test_all_reduce_datagrams)
{
    ck_assert_int_eq(rows_measured("--nodes 2 -n 2 --provider tcp;ofi_rxm",
                                   "all_reduce -o sum --count 1,3,1000003 -w 0 -n 1 -d all"),
                     3 * 8);
}
END_TEST

START_TEST(test_all_reduce_large)
{
    static const char *const shapes[] = {"--nodes 1 -n 4", "--nodes 2 -n 2", "--nodes 3 -n 1"};
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(
            rows_measured(shapes[i], "all_reduce --count 1000003 -w 1 -n 2 -d all -o sum"), 8);
        ck_assert_int_eq(rows_measured(shapes[i], "all_reduce -b 4 -e 16M -f 16 -w 1 -n 2"), 6);
    }
}
END_TEST

START_TEST(test_arena_and_in_place)
{
    static const char *const shapes[] = {"--nodes 1 -n 4", "--nodes 2 -n 2", "--nodes 3 -n 1"};
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(
            rows_measured(shapes[i], "all_reduce --count 1,3,1000003 -w 1 -n 2 -d all --arena"),
            3 * 8);
        ck_assert_int_eq(rows_measured(shapes[i], "all_reduce --count 1,3,1000003 -w 1 -n 2 -d "
                                                  "float --arena --in-place"),
                         3);
        ck_assert_int_eq(
            rows_measured(shapes[i], "all_reduce --count 1,1000003 -w 1 -n 2 -d half --in-place"),
            2);
    }
}
END_TEST

START_TEST(test_reduce)
{
    ck_assert_int_eq(rows_measured("--nodes 1 -n 4", "reduce -r 3 -o all " ODD), 3 * PAIRS);
    ck_assert_int_eq(rows_measured("--nodes 2 -n 2", "reduce -r 1 -o all " ODD), 3 * PAIRS);
    ck_assert_int_eq(rows_measured("--nodes 3 -n 1", "reduce -r 2 --count 1,3,1000003 -n 2 -d all"),
                     3 * 8);
    ck_assert_int_eq(rows_measured("--nodes 2 -n 2", "reduce -r 2 --count 1,1000003 -n 2 "
                                                     "--in-place --arena"),
                     2);
}
END_TEST

START_TEST(test_broadcast)
{
    static const char *const shapes[] = {"--nodes 1 -n 4", "--nodes 2 -n 2", "--nodes 3 -n 1"};
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(
            rows_measured(shapes[i], "broadcast -r 2 --count 1,3,1000003 -w 1 -n 2 -d all"), 3 * 8);
        ck_assert_int_eq(rows_measured(shapes[i], "broadcast --count 3,1000003 --arena -n 2"), 2);
    }
}
END_TEST

START_TEST(test_barrier)
{
    ck_assert_int_eq(rows_measured("--nodes 1 -n 4", "barrier"), 1);
    ck_assert_int_eq(rows_measured("--nodes 2 -n 2", "barrier"), 1);
    ck_assert_int_eq(rows_measured("--nodes 1 -n 1", "barrier"), 1);
}
END_TEST

static const char *const parted[] = {"all_gather", "reduce_scatter", "gather -r 1", "scatter -r 2",
                                     "all_to_all"};
#define PARTED 5

/* _i: the collective. Private and arena memory, parts of one size and of many, everybody's own part
 * in place. */
START_TEST(test_parts)
{
    static const char *const shapes[] = {"--nodes 1 -n 4", "--nodes 2 -n 2", "--nodes 3 -n 1",
                                         "--nodes 2 -n 2 --cpu-nodes 1"};
    static const char *const ways[] = {
        "", "--uneven", "--arena", "--uneven --arena", "--in-place", "--uneven --in-place --arena"};
    char words[256];
    int ways_count = strcmp(parted[_i], "all_to_all") == 0 ? 4 : 6;
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < (i < 2 ? ways_count : 2); k++) {
            snprintf(words, sizeof(words), "%s --count 1,3,%s -w 1 -n 2 -d %s %s", parted[_i],
                     k < 2 ? "1000003" : "100003", k == 0 ? "half" : "float", ways[k]);
            ck_assert_int_eq(rows_measured(shapes[i], words), 3);
        }
}
END_TEST

START_TEST(test_parts_of_every_type)
{
    static const char *const shapes[] = {"--nodes 1 -n 4", "--nodes 2 -n 2"};
    char words[256];
    snprintf(words, sizeof(words), "%s --count 1,3,%s -w 0 -n 1 -d all%s", parted[_i],
             strcmp(parted[_i], "reduce_scatter") == 0 ? "1000003" : "1001",
             _i % 2 ? " --uneven" : "");
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(rows_measured(shapes[i], words), 3 * 8);
}
END_TEST

START_TEST(test_reduce_scatter_every_operation)
{
    ck_assert_int_eq(rows_measured("--nodes 1 -n 4", "reduce_scatter -o all " ODD), 3 * PAIRS);
    ck_assert_int_eq(rows_measured("--nodes 2 -n 2", "reduce_scatter -o all --uneven " ODD),
                     3 * PAIRS);
}
END_TEST

/* Sizes are of the large buffer. */
START_TEST(test_parts_sizes)
{
    char words[256];
    for (int i = 0; i < PARTED; i++) {
        snprintf(words, sizeof(words), "%s -b 4 -e 16M -f 16 -w 1 -n 2", parted[i]);
        ck_assert_int_eq(rows_measured("--nodes 2 -n 2", words), 6);
        snprintf(words, sizeof(words), "%s -r 0 --count 1,1000 -w 0 -n 1", parted[i]);
        ck_assert_int_eq(rows_measured("--nodes 1 -n 1", words), 2);
    }
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
    ck_assert_ptr_nonnull(strstr(process_errors(process), "unknown collective \"all_scatter\""));
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
    tcase_add_test(tests, test_reduce);
    tcase_add_test(tests, test_broadcast);
    tcase_add_test(tests, test_barrier);
    tcase_add_loop_test(tests, test_parts, 0, PARTED);
    tcase_add_loop_test(tests, test_parts_of_every_type, 0, PARTED);
    tcase_add_test(tests, test_reduce_scatter_every_operation);
    tcase_add_test(tests, test_parts_sizes);
    tcase_add_test(tests, test_table_output);
    tcase_add_test(tests, test_usage);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
