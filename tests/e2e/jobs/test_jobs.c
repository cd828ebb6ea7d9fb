/* Many jobs: at once, one after the other, with groups, and what is left of them: nothing. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

/* Memory that an allocator may keep; a leak of one chunk buffer in every job is many times that. */
#define RESIDENT_TOLERANCE_KiB 4096

static const struct {
    uint32_t nodes, ranks_per_node;
} shapes[] = {{1, 4}, {2, 2}, {3, 1}};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static char *directory;

static void setup(void)
{
    directory = suite_make_directory();
}

static void teardown(void)
{
    suite_remove_directory(directory);
}

static void run_mode(struct cluster *cluster, const char *job, uint32_t ranks_per_node,
                     const char *mode, const char *file)
{
    struct process *workers[CLUSTER_NODES_MAX * 4];
    const char *argv[] = {CLUSTER_HELPER, mode, file, NULL};
    cluster_job(cluster, job, ranks_per_node, argv, workers);
    ck_assert_int_eq(cluster_job_end(workers, cluster->count * ranks_per_node), 0);
}

static void every_shape(const char *mode)
{
    for (size_t i = 0; i < SHAPES; i++) {
        struct cluster *cluster = cluster_start(shapes[i].nodes, NULL);
        run_mode(cluster, mode, shapes[i].ranks_per_node, mode, "");
        ck_assert_int_eq(cluster_stop(cluster), 0);
        cluster_free(cluster);
    }
}

START_TEST(test_subgroups)
{
    every_shape("subgroups");
}
END_TEST

START_TEST(test_groups_in_different_order)
{
    every_shape("crossed");
}
END_TEST

START_TEST(test_callback)
{
    every_shape("callback");
}
END_TEST

START_TEST(test_wait_that_times_out)
{
    for (size_t i = 0; i < SHAPES; i++) {
        struct cluster *cluster = cluster_start(shapes[i].nodes, NULL);
        struct process *workers[4];
        uint32_t count = shapes[i].nodes * shapes[i].ranks_per_node;
        char file[512];
        snprintf(file, sizeof(file), "%s/go-%zu", directory, i);
        const char *argv[] = {CLUSTER_HELPER, "timeout", file, NULL};
        cluster_job(cluster, "patient", shapes[i].ranks_per_node, argv, workers);
        for (uint32_t rank = 0; rank + 1 < count; rank++)
            ck_assert(process_wait_text(workers[rank], "timed out", CLUSTER_PATIENCE_MS));
        fclose(fopen(file, "w"));
        ck_assert_int_eq(cluster_job_end(workers, count), 0);
        ck_assert_int_eq(cluster_stop(cluster), 0);
        cluster_free(cluster);
    }
}
END_TEST

START_TEST(test_two_jobs_at_once)
{
    struct cluster *cluster = cluster_start(2, NULL);
    struct process *one[4], *other[4];
    char file[512];
    snprintf(file, sizeof(file), "%s/stop", directory);
    const char *small[] = {CLUSTER_HELPER, "loop", file, "17", NULL};
    const char *large[] = {CLUSTER_HELPER, "loop", file, "2000003", NULL};
    cluster_job(cluster, "small", 2, small, one);
    cluster_job(cluster, "large", 2, large, other);
    for (int rank = 0; rank < 4; rank++) {
        ck_assert(process_wait_text(one[rank], "running", CLUSTER_PATIENCE_MS));
        ck_assert(process_wait_text(other[rank], "running", CLUSTER_PATIENCE_MS));
    }
    /* Others come and go meanwhile. */
    for (int i = 0; i < 5; i++)
        run_mode(cluster, "short", 2, "once", "");
    fclose(fopen(file, "w"));
    ck_assert_int_eq(cluster_job_end(one, 4), 0);
    ck_assert_int_eq(cluster_job_end(other, 4), 0);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

struct usage {
    struct cluster *cluster;
    int descriptors[CLUSTER_NODES_MAX];
    long resident_KiB[CLUSTER_NODES_MAX];
};

static bool is_idle(const json_t *status)
{
    return json_array_size(json_object_get(status, "jobs")) == 0 &&
           json_integer_value(json_object_get(json_object_get(status, "workers"), "count")) == 0;
}

static void wait_idle(struct cluster *cluster)
{
    for (uint32_t node = 0; node < cluster->count; node++)
        ck_assert(cluster_wait_status(cluster, node, is_idle, CLUSTER_PATIENCE_MS));
}

static void usage_take(struct usage *usage)
{
    for (uint32_t node = 0; node < usage->cluster->count; node++) {
        pid_t pid = usage->cluster->nodes[node].daemon->pid;
        usage->descriptors[node] = process_descriptor_count(pid);
        usage->resident_KiB[node] = process_resident_KiB(pid);
    }
}

/* The connection of shoalctl, which asked last, closes a moment after it has ended. */
static bool usage_is_as_before(void *context)
{
    struct usage *before = context, now = {.cluster = before->cluster};
    usage_take(&now);
    for (uint32_t node = 0; node < now.cluster->count; node++) {
        if (now.descriptors[node] != before->descriptors[node])
            return false;
#ifndef SHOAL_SANITIZED /* there, freed memory is kept on purpose */
        if (now.resident_KiB[node] > before->resident_KiB[node] + RESIDENT_TOLERANCE_KiB)
            return false;
#endif
    }
    return true;
}

/* Note the fewest descriptors that each daemon comes down to: shoalctl's last connection is gone
 * then. */
static bool descriptors_fall(void *context)
{
    struct usage *least = context;
    for (uint32_t node = 0; node < least->cluster->count; node++) {
        int now = process_descriptor_count(least->cluster->nodes[node].daemon->pid);
        if (now < least->descriptors[node])
            least->descriptors[node] = now;
    }
    return false;
}

static void usage_compare(struct usage *before)
{
    wait_idle(before->cluster);
    if (wait_until(usage_is_as_before, before, 10000))
        return;
    struct usage now = {.cluster = before->cluster};
    usage_take(&now);
    for (uint32_t node = 0; node < now.cluster->count; node++)
        ck_assert_msg(false, "node %u: %d descriptors, before %d; %ld KiB, before %ld KiB", node,
                      now.descriptors[node], before->descriptors[node], now.resident_KiB[node],
                      before->resident_KiB[node]);
}

static void usage_begin(struct usage *usage, struct cluster *cluster)
{
    *usage = (struct usage){.cluster = cluster};
    wait_idle(cluster);
    usage_take(usage);
    wait_until(descriptors_fall, usage, 500);
}

static void many_jobs(uint32_t nodes, uint32_t ranks_per_node, int warmup, int jobs)
{
    struct cluster *cluster = cluster_start(nodes, NULL);
    struct usage before;
    for (int i = 0; i < warmup; i++)
        run_mode(cluster, "warmup", ranks_per_node, "once", "");
    usage_begin(&before, cluster);
    for (int i = 0; i < jobs; i++) {
        char name[64];
        snprintf(name, sizeof(name), "job-%d", i);
        run_mode(cluster, name, ranks_per_node, i % 10 == 9 ? "subgroups" : "once", "");
    }
    usage_compare(&before);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}

START_TEST(test_hundred_jobs_on_one_daemon)
{
    many_jobs(1, 2, 20, 100);
}
END_TEST

START_TEST(test_many_jobs_on_two_daemons)
{
    many_jobs(2, 2, 20, 50);
}
END_TEST

/* A rank is killed in the middle of a collective; the others hear of it. */
static void killed_job(struct cluster *cluster, int number)
{
    struct process *workers[4];
    char name[64];
    snprintf(name, sizeof(name), "killed-%d", number);
    const char *argv[] = {CLUSTER_HELPER, "loop", "/nonexistent", "500009", NULL};
    cluster_job(cluster, name, 2, argv, workers);
    for (int rank = 0; rank < 4; rank++)
        ck_assert(process_wait_text(workers[rank], "running", CLUSTER_PATIENCE_MS));
    process_signal(workers[number % 4], SIGKILL);
    for (int rank = 0; rank < 4; rank++) {
        ck_assert_int_eq(process_wait(workers[rank], CLUSTER_PATIENCE_MS),
                         rank == number % 4 ? 128 + SIGKILL : 7);
        process_free(workers[rank]);
    }
}

START_TEST(test_killed_jobs_leave_nothing)
{
    struct cluster *cluster = cluster_start(2, NULL);
    struct usage before;
    for (int i = 0; i < 8; i++)
        killed_job(cluster, i);
    usage_begin(&before, cluster);
    for (int i = 0; i < 20; i++)
        killed_job(cluster, i);
    usage_compare(&before);
    run_mode(cluster, "after", 2, "once", "");
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

/* Ranks without a number get one, node by node. */
START_TEST(test_ranks_assigned)
{
    struct cluster *cluster = cluster_start(2, NULL);
    struct process *workers[4];
    char world[] = "WORLD_SIZE=4";
    for (uint32_t i = 0; i < 4; i++) {
        char socket_path[192];
        snprintf(socket_path, sizeof(socket_path), "SHOAL_SOCKET=%s",
                 cluster->nodes[i % 2].socket_path);
        const char *argv[] = {CLUSTER_HELPER, "once", NULL};
        const char *environment[] = {world, socket_path, "SHOAL_JOB=unnumbered", NULL};
        struct process_start start = {.argv = argv, .environment = environment};
        workers[i] = process_start(&start);
    }
    /* The sum of rank + 1 is checked: every number is there once. */
    ck_assert_int_eq(cluster_job_end(workers, 4), 0);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("jobs");
    TCase *tests = tcase_create("jobs");
    tcase_set_timeout(tests, 500);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_subgroups);
    tcase_add_test(tests, test_groups_in_different_order);
    tcase_add_test(tests, test_callback);
    tcase_add_test(tests, test_wait_that_times_out);
    tcase_add_test(tests, test_two_jobs_at_once);
    tcase_add_test(tests, test_hundred_jobs_on_one_daemon);
    tcase_add_test(tests, test_many_jobs_on_two_daemons);
    tcase_add_test(tests, test_killed_jobs_leave_nothing);
    tcase_add_test(tests, test_ranks_assigned);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
