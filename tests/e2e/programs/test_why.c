/* shoalctl why of real jobs: a rank that comes late, on one host and on two nodes; a job without
 * trouble; and what is said when there is no such job. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

/* Much more than what other ranks wait for a processor of a busy machine. */
#define LATE_MS "60"

static char *directory;
static char stop[512];
static struct cluster *cluster;
static struct process *ranks[6];
static uint32_t rank_count;

static void setup(void)
{
    directory = suite_make_directory();
    snprintf(stop, sizeof(stop), "%.500s/stop", directory);
}

static void teardown(void)
{
    for (uint32_t i = 0; i < rank_count; i++)
        process_free(ranks[i]);
    rank_count = 0;
    cluster_free(cluster);
    cluster = NULL;
    suite_remove_directory(directory);
}

static void job_start(uint32_t nodes, uint32_t ranks_per_node, const char *late)
{
    const char *argv[] = {CLUSTER_HELPER, "lag", stop, "60000", late, LATE_MS, NULL};
    cluster = cluster_start(nodes, NULL);
    cluster_job(cluster, "train", ranks_per_node, argv, ranks);
    rank_count = nodes * ranks_per_node;
    for (uint32_t i = 0; i < rank_count; i++)
        ck_assert_msg(process_wait_text(ranks[i], "running", CLUSTER_PATIENCE_MS), "%s",
                      process_output(ranks[i]));
}

static void job_end(void)
{
    FILE *file = fopen(stop, "w");
    ck_assert_ptr_nonnull(file);
    fclose(file);
    ck_assert_int_eq(cluster_job_end(ranks, rank_count), 0);
    rank_count = 0;
    ck_assert_int_eq(cluster_stop(cluster), 0);
}

static json_t *why(uint32_t node)
{
    const char *words[] = {"why", "train", "--json", NULL};
    struct process *process = cluster_shoalctl(cluster, node, words);
    int code = process_wait(process, CLUSTER_PATIENCE_MS);
    ck_assert_msg(code == 0, "%s", process_errors(process));
    json_t *document = json_loads(process_output(process), 0, NULL);
    ck_assert_msg(document != NULL, "%s", process_output(process));
    process_free(process);
    return document;
}

struct wanted {
    uint32_t node; /* that is asked */
    const char *kind, *of_node;
    int rank;
    char last[2048];
};

/* After this number of collectives the first ones, made while the job begins, no longer count. */
#define ENOUGH_COLLECTIVES 30

static bool is_wanted(void *context)
{
    struct wanted *wanted = context;
    json_t *document = why(wanted->node);
    const json_t *rank = json_object_get(document, "rank");
    const char *node = json_string_value(json_object_get(document, "of_node"));
    const char *kind = json_string_value(json_object_get(document, "kind"));
    bool is = kind && node && strcmp(kind, wanted->kind) == 0 &&
              strcmp(node, wanted->of_node) == 0 && json_integer_value(rank) == wanted->rank &&
              json_integer_value(json_object_get(document, "collectives")) >= ENOUGH_COLLECTIVES;
    char *text = json_dumps(document, JSON_COMPACT);
    snprintf(wanted->last, sizeof(wanted->last), "%s", text ? text : "");
    free(text);
    json_decref(document);
    return is;
}

static double number(const json_t *document, const char *key)
{
    ck_assert_msg(json_is_number(json_object_get(document, key)), "no number %s", key);
    return json_number_value(json_object_get(document, key));
}

/* Check that what goes from one node comes at the other, and that memory is of all of them. */
static void daemons_check(const json_t *reports)
{
    size_t i;
    json_t *report;
    ck_assert_uint_eq(json_array_size(reports), cluster->count);
    json_array_foreach(reports, i, report)
    {
        const json_t *daemon = json_object_get(report, "daemon");
        const json_t *links = json_object_get(daemon, "links");
        double in = 0, out = 0;
        ck_assert_double_gt(number(daemon, "time_s"), 0);
        ck_assert_double_gt(number(json_object_get(daemon, "memory"), "limit_bytes"), 0);
        ck_assert_uint_eq(json_array_size(links), cluster->count - 1);
        for (size_t k = 0; k < json_array_size(links); k++) {
            in += number(json_array_get(links, k), "bytes_in");
            out += number(json_array_get(links, k), "bytes_out");
        }
        ck_assert(cluster->count == 1 || (in > 0 && out > 0));
        ck_assert_double_ge(number(daemon, "bytes_in"), in);
        ck_assert_double_ge(number(daemon, "bytes_out"), out);
    }
}

/* On a busy machine everything else takes longer too: the figures have to go together. */
static void figures_check(uint32_t node, const char *of_node)
{
    json_t *document = why(node);
    double step_ms = number(document, "step_ms"), lost_ms = number(document, "lost_ms");
    ck_assert_double_eq_tol(number(document, "without_ms"), step_ms - lost_ms, 0.01 * step_ms);
    ck_assert_double_gt(step_ms, atof(LATE_MS));
    ck_assert_double_gt(lost_ms, 10);
    ck_assert_double_le(lost_ms, step_ms);
    ck_assert_double_eq(number(document, "step_collectives"), 1);
    ck_assert_double_le(number(document, "times"), number(document, "collectives"));
    ck_assert_double_gt(2 * number(document, "times"), number(document, "collectives"));
    ck_assert_uint_eq(json_array_size(json_object_get(document, "silent_nodes")), 0);
    daemons_check(json_object_get(document, "reports"));
    ck_assert_str_eq(json_string_value(json_object_get(document, "of_node")), of_node);
    json_decref(document);
}

static void text_check(uint32_t node, const char *sentence)
{
    const char *words[] = {"why", NULL}; /* the only job */
    struct process *process = cluster_shoalctl(cluster, node, words);
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 0);
    const char *text = process_output(process);
    int lines = 0;
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++)
        lines++;
    ck_assert_msg(lines == 5 && strstr(text, sentence), "%s", text);
    process_free(process);
}

static void late_rank(uint32_t nodes, uint32_t ranks_per_node, const char *rank, const char *node)
{
    char sentence[128];
    job_start(nodes, ranks_per_node, rank);
    for (uint32_t asked = 0; asked < nodes; asked++) {
        struct wanted wanted = {
            .node = asked, .kind = "rank late", .of_node = node, .rank = atoi(rank)};
        ck_assert_msg(wait_until(is_wanted, &wanted, CLUSTER_PATIENCE_MS), "%s", wanted.last);
        figures_check(asked, node);
    }
    snprintf(sentence, sizeof(sentence), "rank %s on node %s starts late", rank, node);
    text_check(0, sentence);
    job_end();
}

START_TEST(test_late_rank_on_one_host)
{
    late_rank(1, 3, "1", "node0");
}
END_TEST

START_TEST(test_late_rank_of_two_nodes)
{
    late_rank(2, 2, "3", "node1");
}
END_TEST

/* The rank is alone on its node: its own daemon knows nothing but what its shard tells. */
START_TEST(test_late_rank_alone_on_its_node)
{
    late_rank(3, 1, "1", "node1");
}
END_TEST

static void refused(const char *job, const char *text)
{
    const char *words[] = {"why", job, NULL};
    struct process *process = cluster_shoalctl(cluster, 0, words);
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 1);
    ck_assert_msg(strstr(process_errors(process), text) != NULL, "%s", process_errors(process));
    process_free(process);
}

START_TEST(test_no_such_job)
{
    cluster = cluster_start(1, NULL);
    refused("nothing", "node node0 has no part in a job 'nothing' (it has: none)");
    refused(NULL, "has no job");
    ck_assert_int_eq(cluster_stop(cluster), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("why");
    TCase *tests = tcase_create("why");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 300);
    tcase_add_test(tests, test_late_rank_on_one_host);
    tcase_add_test(tests, test_late_rank_of_two_nodes);
    tcase_add_test(tests, test_late_rank_alone_on_its_node);
    tcase_add_test(tests, test_no_such_job);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
