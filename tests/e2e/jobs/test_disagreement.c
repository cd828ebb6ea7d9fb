/* Ranks that ask for different things, come late, or leave early: everybody hears who, and what. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

static char *directory;
static char file[512];
static char heard[512]; /* there: all ranks have said what they heard */

static void setup(void)
{
    directory = suite_make_directory();
    snprintf(file, sizeof(file), "%s/go", directory);
    snprintf(heard, sizeof(heard), "%s/heard", directory);
}

static void teardown(void)
{
    suite_remove_directory(directory);
}

static void file_create(const char *name)
{
    FILE *created = fopen(name, "w");
    ck_assert_ptr_nonnull(created);
    fclose(created);
}

/* Every rank's call failed, and its text has all the parts. */
static void all_heard(struct process **workers, uint32_t count, const char *mode,
                      const char *const *parts)
{
    for (uint32_t rank = 0; rank < count; rank++) {
        int code = process_wait(workers[rank], CLUSTER_PATIENCE_MS);
        const char *text = process_output(workers[rank]);
        ck_assert_msg(code == 7, "%s, rank %u: exit code %d: %.500s %.500s", mode, rank, code, text,
                      process_errors(workers[rank]));
        for (int i = 0; parts[i]; i++)
            ck_assert_msg(strstr(text, parts[i]) != NULL, "%s, rank %u: no \"%s\" in: %.800s", mode,
                          rank, parts[i], text);
        process_free(workers[rank]);
    }
}

static const struct {
    const char *mode;
    const char *parts[6]; /* five barriers went before */
} disagreements[] = {
    {"count", {"collective 5 of group 0 ", "rank 3 ", "1000", "999", NULL}},
    {"dtype", {"collective 5 of group 0 ", "rank 3 ", "float", "int32", NULL}},
    {"op", {"collective 5 of group 0 ", "rank 3 ", "sum", "max", NULL}},
    {"kind", {"collective 5 of group 0 ", "rank 3 ", "all_reduce", "broadcast", NULL}},
    {"root", {"collective 5 of group 0 ", "rank 3 ", "root 0", "root 1", NULL}},
    {"identity", {"collective 5 of group 0 ", "rank 3 ", "of tensor 7", "of tensor 8", NULL}},
};

static void disagree(uint32_t nodes, uint32_t ranks_per_node, const char *extra)
{
    struct cluster *cluster = cluster_start(nodes, extra);
    struct process *workers[16], *others[16];
    uint32_t count = nodes * ranks_per_node;
    const char *loop[] = {CLUSTER_HELPER, "loop", file, NULL};
    cluster_job(cluster, "other", ranks_per_node, loop, others);
    for (size_t i = 0; i < sizeof(disagreements) / sizeof(disagreements[0]); i++) {
        const char *argv[] = {CLUSTER_HELPER, disagreements[i].mode, heard, NULL};
        cluster_job(cluster, disagreements[i].mode, ranks_per_node, argv, workers);
        for (uint32_t rank = 0; rank < count; rank++)
            process_wait_text(workers[rank], "failed: ", CLUSTER_PATIENCE_MS);
        file_create(heard);
        all_heard(workers, count, disagreements[i].mode, disagreements[i].parts);
        ck_assert_int_eq(remove(heard), 0);
    }
    file_create(file);
    ck_assert_int_eq(cluster_job_end(others, count), 0);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}

START_TEST(test_disagreement_one_node)
{
    disagree(1, 4, NULL);
}
END_TEST

START_TEST(test_disagreement_two_nodes)
{
    disagree(2, 2, NULL);
}
END_TEST

START_TEST(test_disagreement_four_nodes)
{
    disagree(4, 1, NULL);
}
END_TEST

START_TEST(test_disagreement_datagrams)
{
    disagree(2, 2, "{\"fabric\":{\"provider\":\"tcp;ofi_rxm\"}}");
}
END_TEST

static bool has_late_rank(const json_t *status)
{
    const json_t *job = json_array_get(json_object_get(status, "jobs"), 0);
    const json_t *late = json_array_get(json_object_get(job, "late"), 0);
    const json_t *ranks = json_object_get(late, "ranks");
    if (!late || json_array_size(ranks) == 0)
        return false;
    /* The collective before it did not go through the daemon on one node. */
    ck_assert_int_eq(json_integer_value(json_object_get(late, "sequence")), 1);
    return json_array_size(ranks) == 1 && json_integer_value(json_array_get(ranks, 0)) == 3;
}

static bool somebody_names_it(void *context)
{
    struct cluster *cluster = context;
    for (uint32_t node = 0; node < cluster->count; node++) {
        json_t *status = cluster_status(cluster, node);
        bool shown = status && has_late_rank(status);
        json_decref(status);
        if (shown && strstr(cluster_log(cluster, node), "not reached collective 1 of group 0"))
            return true;
    }
    return false;
}

static void late(uint32_t nodes, uint32_t ranks_per_node)
{
    struct cluster *cluster = cluster_start(nodes, "{\"timeouts\":{\"late_ms\":200}}");
    struct process *workers[4];
    const char *argv[] = {CLUSTER_HELPER, "late", file, NULL};
    cluster_job(cluster, "waits", ranks_per_node, argv, workers);
    /* The owner of the collective's first chunk is the one that finds out. */
    ck_assert(wait_until(somebody_names_it, cluster, CLUSTER_PATIENCE_MS));
    file_create(file);
    ck_assert_int_eq(cluster_job_end(workers, 4), 0);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}

START_TEST(test_late_rank)
{
    late(1, 4);
    remove(file);
    late(2, 2);
    remove(file);
    late(4, 1);
}
END_TEST

/* A rank that leaves, with or without saying so, while others are in a collective. */
static void leaves(const char *mode, const char *expected)
{
    struct cluster *cluster = cluster_start(2, NULL);
    struct process *workers[4];
    const char *argv[] = {CLUSTER_HELPER, mode, file, NULL};
    cluster_job(cluster, mode, 2, argv, workers);
    for (uint32_t rank = 0; rank < 3; rank++)
        ck_assert(process_wait_text(workers[rank], "running", CLUSTER_PATIENCE_MS));
    file_create(file);
    all_heard(workers, 3, mode, (const char *[]){"rank 3", expected, NULL});
    ck_assert_int_eq(process_wait(workers[3], CLUSTER_PATIENCE_MS), 0);
    process_free(workers[3]);
    const char *once[] = {CLUSTER_HELPER, "once", NULL};
    cluster_job(cluster, mode, 2, once, workers);
    ck_assert_int_eq(cluster_job_end(workers, 4), 0);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}

START_TEST(test_rank_leaves)
{
    leaves("leave", "left");
}
END_TEST

START_TEST(test_rank_exits)
{
    leaves("exit", "gone");
}
END_TEST

/* Two processes that both say that they are rank 0. */
START_TEST(test_rank_twice)
{
    struct cluster *cluster = cluster_start(1, NULL);
    const char *argv[] = {CLUSTER_HELPER, "once", NULL};
    struct process *first = cluster_worker(cluster, 0, "twice", 0, 2, argv);
    struct process *second = cluster_worker(cluster, 0, "twice", 0, 2, argv);
    int64_t until = process_now_ms() + CLUSTER_PATIENCE_MS;
    while (process_wait(first, 10) == -1 && process_wait(second, 10) == -1)
        ck_assert_int_lt(process_now_ms(), until);
    struct process *refused = process_wait(first, 0) == -1 ? second : first;
    struct process *taken = refused == first ? second : first;
    ck_assert_int_eq(process_wait(refused, 0), 7);
    ck_assert_msg(strstr(process_output(refused), "refused") &&
                      strstr(process_output(refused), "rank 0"),
                  "%.500s", process_output(refused));
    struct process *other = cluster_worker(cluster, 0, "twice", 1, 2, argv);
    ck_assert_int_eq(process_wait(taken, CLUSTER_PATIENCE_MS), 0);
    ck_assert_int_eq(process_wait(other, CLUSTER_PATIENCE_MS), 0);
    process_free(first);
    process_free(second);
    process_free(other);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("disagreement");
    TCase *tests = tcase_create("disagreement");
    tcase_set_timeout(tests, 300);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_disagreement_one_node);
    tcase_add_test(tests, test_disagreement_two_nodes);
    tcase_add_test(tests, test_disagreement_four_nodes);
    tcase_add_test(tests, test_disagreement_datagrams);
    tcase_add_test(tests, test_late_rank);
    tcase_add_test(tests, test_rank_leaves);
    tcase_add_test(tests, test_rank_exits);
    tcase_add_test(tests, test_rank_twice);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
