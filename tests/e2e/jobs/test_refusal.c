/* One rank cannot join, or errs and ends. All other ranks hear its reason at once. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/cluster.h"
#include "tests/lib/stop_file.h"
#include "tests/lib/suite.h"

#define RANKS 4
#define CULPRIT 1

/* The culprit's shell makes its rank fail. A rank waits for the others for 300 s by default,
 * longer than these tests do. */
static const struct {
    const char *name;
    const char *shell; /* what the culprit's shell does first */
    const char *words;
} causes[] = {
    {"memory", "ulimit -v 150000", "Cannot allocate memory"},
    {"descriptors", "ulimit -n 6", "Too many open files"},
    {"arena", "export SHOAL_ARENA_BYTES=2147483648", "limits.arena_bytes"},
};

static struct process *start(struct cluster *cluster, const char *job, uint32_t rank,
                             const char *shell)
{
    char script[512];
    const char *plain[] = {CLUSTER_HELPER, "once", NULL};
    const char *sh[] = {"/bin/sh", "-c", script, NULL};
    snprintf(script, sizeof(script), "%s; exec %s once", shell, CLUSTER_HELPER);
    uint32_t node = rank * cluster->count / RANKS;
    return cluster_worker(cluster, node, job, rank, RANKS, rank == CULPRIT ? sh : plain);
}

/* Its call failed, with both. */
static void hears(struct process *worker, const char *who, const char *words)
{
    int code = process_wait(worker, CLUSTER_PATIENCE_MS);
    const char *text = process_output(worker);
    ck_assert_msg(code == 7, "exit code %d: %.500s %.500s", code, text, process_errors(worker));
    ck_assert_msg(strstr(text, who) && strstr(text, words), "no \"%s\" and \"%s\" in: %.900s", who,
                  words, text);
    process_free(worker);
}

/* The culprit comes before the others, and after them. */
static void refuse(uint32_t nodes)
{
    struct cluster *cluster = cluster_start(nodes, "{\"limits\":{\"arena_bytes\":1073741824}}");
    for (size_t i = 0; i < 2 * sizeof(causes) / sizeof(causes[0]); i++) {
        struct process *ranks[RANKS];
        bool first = i % 2 == 0;
        const char *shell = causes[i / 2].shell, *words = causes[i / 2].words;
        char job[64], who[128];
        snprintf(job, sizeof(job), "%s-%s", causes[i / 2].name, first ? "first" : "last");
        snprintf(who, sizeof(who), "rank %d on node node%u cannot join job '%s': ", CULPRIT,
                 CULPRIT * nodes / RANKS, job);
        if (first) {
            ranks[CULPRIT] = start(cluster, job, CULPRIT, shell);
            hears(ranks[CULPRIT], "failed: ", words);
        }
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            if (rank != CULPRIT)
                ranks[rank] = start(cluster, job, rank, "");
        }
        if (!first) {
            ranks[CULPRIT] = start(cluster, job, CULPRIT, shell);
            hears(ranks[CULPRIT], "failed: ", words);
        }
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            if (rank != CULPRIT)
                hears(ranks[rank], who, words);
        }
    }
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}

START_TEST(test_refusal)
{
    refuse((uint32_t)_i);
}
END_TEST

/* All say the same, whoever was first. */
START_TEST(test_worlds_that_differ)
{
    struct cluster *cluster = cluster_start((uint32_t)_i, NULL);
    struct process *ranks[RANKS];
    for (uint32_t rank = 0; rank < RANKS; rank++)
        ranks[rank] = start(cluster, "worlds", rank, "export WORLD_SIZE=5");
    for (uint32_t rank = 0; rank < RANKS; rank++)
        hears(ranks[rank], "job 'worlds' has a world size of ", " by its first rank; process ");
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

/* The other ranks hear the error that a process had before it ended. */
START_TEST(test_a_rank_errs)
{
    struct cluster *cluster = cluster_start((uint32_t)_i, NULL);
    struct process *ranks[RANKS];
    const char *argv[] = {CLUSTER_HELPER, "errs", NULL};
    cluster_job(cluster, "errs", RANKS / (uint32_t)_i, argv, ranks);
    const char *words = "send: rank 11 is not another rank of the group";
    hears(ranks[RANKS - 1], "failed: send: invalid argument: ", words);
    for (uint32_t rank = 0; rank < RANKS - 1; rank++)
        hears(ranks[rank], "is gone: its process ", words);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

/* A rank that waits for another rank says which one, before anybody gives up. */
START_TEST(test_what_a_rank_waits_for)
{
    struct cluster *cluster = cluster_start((uint32_t)_i, NULL);
    const char *says[] = {"/bin/sh", "-c", "exec " CLUSTER_HELPER " once 2>&1", NULL};
    const char *plain[] = {CLUSTER_HELPER, "once", NULL};
    struct process *ranks[2] = {cluster_worker(cluster, 0, "waits", 0, 2, says)};
    cluster_worker_says(ranks[0], "shoal: rank 0 waits for its job to begin: rank 1 of job "
                                  "'waits' has not joined");
    ranks[1] = cluster_worker(cluster, (uint32_t)_i - 1, "waits", 1, 2, plain);
    ck_assert_int_eq(cluster_job_end(ranks, 2), 0);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

/* A rank that waits in a collective, for a group to open, or for a send says the same. */
START_TEST(test_what_a_call_waits_for)
{
    static const struct {
        const char *mode, *before, *after;
    } calls[] = {
        {"late", "rank 1", "has not reached collective 1 of group 0 of job 'waits'"},
        {"late group", "rank 1 of job 'waits'", "has not asked for the group"},
        {"late send", "recv of 1 float from rank 1 of group 0 with tag 5", NULL},
    };
    const char *mode = calls[_i / 2].mode;
    uint32_t node = (uint32_t)_i % 2;
    struct stop_file come; /* the last rank */
    struct cluster *cluster = cluster_start(node + 1, NULL);
    char script[640], text[256];
    stop_file_create(&come);
    snprintf(script, sizeof(script), "exec %s '%s' %s 2>&1", CLUSTER_HELPER, mode, come.path);
    const char *argv[] = {"/bin/sh", "-c", script, NULL};
    struct process *ranks[2] = {cluster_worker(cluster, 0, "waits", 0, 2, argv),
                                cluster_worker(cluster, node, "waits", 1, 2, argv)};
    int length = snprintf(text, sizeof(text), "shoal: rank 0 waits: %s", calls[_i / 2].before);
    if (calls[_i / 2].after)
        snprintf(text + length, sizeof(text) - (size_t)length, " (on node node%u) %s", node,
                 calls[_i / 2].after);
    cluster_worker_says(ranks[0], text);
    stop_file_raise(&come);
    ck_assert_int_eq(cluster_job_end(ranks, 2), 0);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
    stop_file_free(&come);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("refusal");
    TCase *tests = tcase_create("refusal");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, test_refusal, 1, 3);
    tcase_add_loop_test(tests, test_worlds_that_differ, 1, 3);
    tcase_add_loop_test(tests, test_a_rank_errs, 1, 3);
    tcase_add_loop_test(tests, test_what_a_rank_waits_for, 1, 3);
    tcase_add_loop_test(tests, test_what_a_call_waits_for, 0, 6);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
