/* The daemon of a node with ranks is killed and started again: its ranks, which live, go on with
 * the others as the next generation. Real processes. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/lib/cluster.h"
#include "tests/lib/job_name.h"
#include "tests/lib/stop_file.h"
#include "tests/lib/suite.h"

#define NODES 3
#define RECOVERY "{\"recovery\":true,\"timeouts\":{\"restart_ms\":60000}}"

static struct stop_file stop;
static struct cluster *cluster;
static struct process *workers[NODES];

/* One rank on each of three nodes, in a job whose home is node 1. */
static void start_as(const char *what, const char *extra)
{
    char name[64];
    const char *argv[] = {CLUSTER_HELPER, what, stop.path, "100003", NULL};
    stop_file_create(&stop);
    cluster = cluster_start(NODES, extra);
    job_name_with_home(name, "lasting", 1, NODES);
    cluster_job(cluster, name, 1, argv, workers);
    for (uint32_t rank = 0; rank < NODES; rank++)
        cluster_worker_says(workers[rank], "running");
}

static void start(const char *extra)
{
    start_as("survive", extra);
}

static uint32_t wanted; /* generation, or a later one */

static bool runs(const json_t *status)
{
    const json_t *job = json_array_get(json_object_get(status, "jobs"), 0);
    const json_t *state = json_object_get(job, "state");
    return json_integer_value(json_object_get(job, "generation")) >= wanted &&
           json_is_string(state) && strcmp(json_string_value(state), "running") == 0;
}

/* On each node, of the daemon that is there now. Whether the programs have asked for it, or the
 * library has gone on by itself: they check each of their sums. */
static void all_run(uint32_t generation)
{
    wanted = generation;
    for (uint32_t node = 0; node < NODES; node++)
        ck_assert_msg(cluster_wait_status(cluster, node, runs, CLUSTER_PATIENCE_MS),
                      "node %u has no generation %u; its rank: %.900s", node, generation,
                      process_output(workers[node]));
}

static bool nothing_held(const json_t *status)
{
    const json_t *of = json_object_get(status, "workers");
    return json_array_size(json_object_get(status, "jobs")) == 0 &&
           json_integer_value(json_object_get(of, "count")) == 0 &&
           json_array_size(json_object_get(status, "users")) == 0;
}

static void end(uint32_t left)
{
    stop_file_raise(&stop);
    ck_assert_int_eq(cluster_job_end(workers, left), 0);
    for (uint32_t node = 0; node < NODES; node++)
        ck_assert(process_wait(cluster->nodes[node].daemon, 0) >= 0 ||
                  cluster_wait_status(cluster, node, nothing_held, CLUSTER_PATIENCE_MS));
    cluster_stop(cluster);
    cluster_free(cluster);
    stop_file_free(&stop);
}

/* Another one than the home, then the home, then one that was started again before. */
START_TEST(test_one_daemon)
{
    static const uint32_t killed[] = {2, 1, 2};
    start(RECOVERY);
    for (uint32_t i = 0; i < 3; i++) {
        cluster_kill(cluster, killed[i]);
        cluster_restart(cluster, killed[i]);
        all_run(i + 2);
    }
    end(NODES);
}
END_TEST

/* The library goes on by itself: a program that gives up at the first error sees none. */
START_TEST(test_nothing_but_time)
{
    static const uint32_t killed[] = {2, 1, 0, 1};
    start_as("loop", RECOVERY);
    for (uint32_t i = 0; i < 4; i++) {
        cluster_kill(cluster, killed[i]);
        cluster_restart(cluster, killed[i]);
        all_run(i + 2);
    }
    end(NODES);
}
END_TEST

/* The others wait, and say so. */
START_TEST(test_daemon_is_long_away)
{
    start(RECOVERY);
    cluster_kill(cluster, 1);
    ck_assert(cluster_wait_log(cluster, 2, "waits for rank 1 on node node1, whose daemon has ended",
                               CLUSTER_PATIENCE_MS));
    cluster_restart(cluster, 1);
    all_run(2);
    end(NODES);
}
END_TEST

START_TEST(test_all_daemons_but_one)
{
    start(RECOVERY);
    cluster_kill(cluster, 0);
    cluster_kill(cluster, 1);
    cluster_restart(cluster, 1);
    cluster_restart(cluster, 0);
    all_run(2);
    end(NODES);
}
END_TEST

/* Nobody comes in its place: the others go on, and the rank there has an error that says why. */
START_TEST(test_daemon_stays_away)
{
    start("{\"recovery\":true,\"timeouts\":{\"restart_ms\":1500}}");
    cluster_kill(cluster, 1);
    cluster_worker_says(workers[0], "generation 2: rank 0 of 2\nrunning again");
    cluster_worker_says(workers[2], "generation 2: rank 1 of 2\nrunning again");
    ck_assert_int_eq(process_wait(workers[1], CLUSTER_PATIENCE_MS), 7);
    ck_assert_ptr_nonnull(strstr(process_output(workers[1]),
                                 "the daemon of this node has not come back within 1500 ms"));
    process_free(workers[1]);
    workers[1] = workers[2];
    end(2);
}
END_TEST

/* Without it nobody waits. */
START_TEST(test_without_recovery)
{
    start(NULL);
    cluster_kill(cluster, 1);
    cluster_worker_says(workers[0], "generation 2: rank 0 of 2\nrunning again");
    cluster_worker_says(workers[2], "generation 2: rank 1 of 2\nrunning again");
    ck_assert_int_eq(process_wait(workers[1], CLUSTER_PATIENCE_MS), 7);
    process_free(workers[1]);
    workers[1] = workers[2];
    end(2);
}
END_TEST

/* All that remembered the job are gone. */
START_TEST(test_every_daemon)
{
    start("{\"recovery\":true,\"timeouts\":{\"restart_ms\":8000}}");
    for (uint32_t node = 0; node < NODES; node++)
        cluster_kill(cluster, node);
    for (uint32_t node = 0; node < NODES; node++)
        cluster_restart(cluster, node);
    for (uint32_t rank = 0; rank < NODES; rank++) {
        ck_assert_int_eq(process_wait(workers[rank], CLUSTER_PATIENCE_MS), 7);
        ck_assert_msg(
            strstr(process_output(workers[rank]), "no daemon that is left remembers the job"), "%s",
            process_output(workers[rank]));
        process_free(workers[rank]);
    }
    end(0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("restart");
    TCase *tcase = tcase_create("restart");
    tcase_set_timeout(tcase, 240);
    tcase_add_test(tcase, test_one_daemon);
    tcase_add_test(tcase, test_nothing_but_time);
    tcase_add_test(tcase, test_daemon_is_long_away);
    tcase_add_test(tcase, test_all_daemons_but_one);
    tcase_add_test(tcase, test_daemon_stays_away);
    tcase_add_test(tcase, test_without_recovery);
    tcase_add_test(tcase, test_every_daemon);
    suite_add_tcase(suite, tcase);
    return suite_main(suite);
}
