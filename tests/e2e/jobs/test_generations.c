/* A job that loses ranks and goes on: real processes. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/lib/cluster.h"
#include "tests/lib/job_name.h"
#include "tests/lib/stop_file.h"
#include "tests/lib/suite.h"

static struct stop_file stop;

static void setup(void)
{
    stop_file_create(&stop);
}

static void teardown(void)
{
    stop_file_free(&stop);
}

static bool nothing_held(const json_t *status)
{
    const json_t *workers = json_object_get(status, "workers");
    return json_array_size(json_object_get(status, "jobs")) == 0 &&
           json_integer_value(json_object_get(workers, "count")) == 0 &&
           json_array_size(json_object_get(status, "users")) == 0;
}

static bool second_runs(const json_t *status)
{
    const json_t *job = json_array_get(json_object_get(status, "jobs"), 0);
    return json_integer_value(json_object_get(job, "generation")) == 2;
}

/* lost: ranks of the job of `size`, killed one after the other once all run. */
static void ranks_lost(uint32_t nodes, uint32_t per_node, const uint32_t *lost, uint32_t count,
                       const char *floats)
{
    struct cluster *cluster = cluster_start(nodes, NULL);
    struct process *workers[8];
    uint32_t size = nodes * per_node, left = 0;
    const char *argv[] = {CLUSTER_HELPER, "survive", stop.path, floats, NULL};
    cluster_job(cluster, "elastic", per_node, argv, workers);
    for (uint32_t rank = 0; rank < size; rank++)
        cluster_worker_says(workers[rank], "running");
    for (uint32_t i = 0; i < count; i++) {
        cluster_process_kill(workers[lost[i]]);
        process_free(workers[lost[i]]);
        workers[lost[i]] = NULL;
        uint32_t now = 0;
        for (uint32_t rank = 0; rank < size; rank++) {
            char line[80];
            if (!workers[rank])
                continue;
            snprintf(line, sizeof(line), "generation %u: rank %u of %u\nrunning again", i + 2,
                     now++, size - i - 1);
            cluster_worker_says(workers[rank], line);
        }
    }
    stop_file_raise(&stop);
    for (uint32_t rank = 0; rank < size; rank++) {
        if (workers[rank])
            workers[left++] = workers[rank];
    }
    ck_assert_int_eq(cluster_job_end(workers, left), 0);
    for (uint32_t node = 0; node < nodes; node++)
        ck_assert(cluster_wait_status(cluster, node, nothing_held, CLUSTER_PATIENCE_MS));
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
    stop_file_withdraw(&stop);
}

/* A machine goes with its daemon and ranks; gone: the node, which is the job's home or is not. */
static void node_lost(uint32_t gone)
{
    struct cluster *cluster = cluster_start(3, NULL);
    struct process *workers[3];
    char name[64];
    const char *argv[] = {CLUSTER_HELPER, "survive", stop.path, "100003", NULL};
    job_name_with_home(name, "elastic", 1, 3);
    cluster_job(cluster, name, 1, argv, workers);
    for (uint32_t rank = 0; rank < 3; rank++)
        cluster_worker_says(workers[rank], "running");
    cluster_process_kill(cluster->nodes[gone].daemon);
    process_signal(workers[gone], SIGKILL);
    process_wait(workers[gone], CLUSTER_PATIENCE_MS);
    process_free(workers[gone]);
    for (uint32_t rank = gone; rank < 2; rank++)
        workers[rank] = workers[rank + 1];
    cluster_worker_says(workers[0], "generation 2: rank 0 of 2\nrunning again");
    cluster_worker_says(workers[1], "generation 2: rank 1 of 2\nrunning again");
    ck_assert(cluster_wait_status(cluster, gone == 0 ? 1 : 0, second_runs, CLUSTER_PATIENCE_MS));
    stop_file_raise(&stop);
    ck_assert_int_eq(cluster_job_end(workers, 2), 0);
    for (uint32_t node = 0; node < 3; node++)
        ck_assert(node == gone ||
                  cluster_wait_status(cluster, node, nothing_held, CLUSTER_PATIENCE_MS));
    cluster_stop(cluster);
    cluster_free(cluster);
    stop_file_withdraw(&stop);
}

START_TEST(test_node_lost)
{
    node_lost(2);
    node_lost(1);
}
END_TEST

static bool one_worker(const json_t *status)
{
    return json_integer_value(json_object_get(json_object_get(status, "workers"), "count")) == 1;
}

static bool waits(const json_t *status)
{
    const json_t *job = json_array_get(json_object_get(status, "jobs"), 0);
    const char *state = json_string_value(json_object_get(job, "state"));
    return state && strcmp(state, "waiting") == 0;
}

/* Three are three again in the next generation: two wait until the third has come. */
START_TEST(test_wish)
{
    struct cluster *cluster = cluster_start(3, NULL);
    struct process *workers[3];
    char name[64];
    const char *argv[] = {CLUSTER_HELPER, "regrow", stop.path, "100003", NULL};
    const char *newcomer[] = {CLUSTER_HELPER, "newcomer", stop.path, "100003", NULL};
    job_name_with_home(name, "elastic", 0, 3);
    cluster_job(cluster, name, 1, argv, workers);
    for (uint32_t rank = 0; rank < 3; rank++)
        cluster_worker_says(workers[rank], "running");
    cluster_process_kill(workers[1]);
    process_free(workers[1]);
    ck_assert(cluster_wait_status(cluster, 0, waits, CLUSTER_PATIENCE_MS));
    ck_assert(cluster_wait_status(cluster, 2, waits, CLUSTER_PATIENCE_MS));
    workers[1] = cluster_worker(cluster, 1, name, 1, 3, newcomer);
    cluster_worker_says(workers[0], "generation 2: rank 0 of 3\nrunning again");
    cluster_worker_says(workers[2], "generation 2: rank 1 of 3\nrunning again");
    cluster_worker_says(workers[1], "running again");
    stop_file_raise(&stop);
    ck_assert_int_eq(cluster_job_end(workers, 3), 0);
    for (uint32_t node = 0; node < 3; node++)
        ck_assert(cluster_wait_status(cluster, node, nothing_held, CLUSTER_PATIENCE_MS));
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
    stop_file_withdraw(&stop);
}
END_TEST

/* Three become two, and three again. */
START_TEST(test_newcomer)
{
    struct cluster *cluster = cluster_start(3, NULL);
    struct process *workers[3];
    char name[64], grow[600];
    snprintf(grow, sizeof(grow), "%s.grow", stop.path);
    const char *argv[] = {CLUSTER_HELPER, "survive", stop.path, "100003", NULL};
    const char *newcomer[] = {CLUSTER_HELPER, "newcomer", stop.path, "100003", NULL};
    job_name_with_home(name, "elastic", 0, 3);
    cluster_job(cluster, name, 1, argv, workers);
    for (uint32_t rank = 0; rank < 3; rank++)
        cluster_worker_says(workers[rank], "running");
    cluster_process_kill(workers[1]);
    process_free(workers[1]);
    cluster_worker_says(workers[0], "generation 2: rank 0 of 2\nrunning again");
    cluster_worker_says(workers[2], "generation 2: rank 1 of 2\nrunning again");
    workers[1] = cluster_worker(cluster, 1, name, 1, 3, newcomer);
    ck_assert(cluster_wait_status(cluster, 1, one_worker, CLUSTER_PATIENCE_MS));
    FILE *file = fopen(grow, "w");
    ck_assert_ptr_nonnull(file);
    fclose(file);
    cluster_worker_says(workers[0], ": rank 0 of 3\nrunning again");
    cluster_worker_says(workers[2], ": rank 1 of 3\nrunning again");
    cluster_worker_says(workers[1], "running again");
    stop_file_raise(&stop);
    ck_assert_int_eq(cluster_job_end(workers, 3), 0);
    for (uint32_t node = 0; node < 3; node++)
        ck_assert(cluster_wait_status(cluster, node, nothing_held, CLUSTER_PATIENCE_MS));
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
    stop_file_withdraw(&stop);
    remove(grow);
}
END_TEST

/* The others go on without a rank that lives and does not ask, and it is told so. It stops wherever
 * it is in a collective that passes at once, in slices or in pieces. */
START_TEST(test_straggler)
{
    static const char *const counts[] = {"1000", "60000", "3000000"};
    struct cluster *cluster = cluster_start(1, "{\"timeouts\":{\"collective_ms\":1000}}");
    struct process *workers[3];
    const char *argv[] = {CLUSTER_HELPER, "survive", stop.path, counts[_i], NULL};
    cluster_job(cluster, "elastic", 3, argv, workers);
    for (uint32_t rank = 0; rank < 3; rank++)
        cluster_worker_says(workers[rank], "running");
    process_signal(workers[2], SIGSTOP);
    cluster_worker_says(workers[0], "generation 2: rank 0 of 2\nrunning again");
    cluster_worker_says(workers[1], "generation 2: rank 1 of 2\nrunning again");
    process_signal(workers[2], SIGCONT);
    ck_assert_int_eq(process_wait(workers[2], CLUSTER_PATIENCE_MS), 7);
    ck_assert_ptr_nonnull(
        strstr(process_output(workers[2]), "job 'elastic' has gone on without rank 2"));
    process_free(workers[2]);
    stop_file_raise(&stop);
    ck_assert_int_eq(cluster_job_end(workers, 2), 0);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
    stop_file_withdraw(&stop);
}
END_TEST

/* A rank that leaves fails its collectives, not the job: the others go on as after a loss. */
START_TEST(test_rank_leaves)
{
    struct cluster *cluster = cluster_start(2, NULL);
    struct process *workers[4];
    char leave[600];
    snprintf(leave, sizeof(leave), "%s.leave", stop.path);
    const char *argv[] = {CLUSTER_HELPER, "survive", stop.path, "1000", NULL};
    cluster_job(cluster, "elastic", 2, argv, workers);
    for (uint32_t rank = 0; rank < 4; rank++)
        cluster_worker_says(workers[rank], "running");
    FILE *file = fopen(leave, "w");
    ck_assert_ptr_nonnull(file);
    fclose(file);
    ck_assert_int_eq(process_wait(workers[3], CLUSTER_PATIENCE_MS), 0);
    process_free(workers[3]);
    for (uint32_t rank = 0; rank < 3; rank++) {
        char line[80];
        snprintf(line, sizeof(line), "generation 2: rank %u of 3\nrunning again", rank);
        cluster_worker_says(workers[rank], line);
    }
    stop_file_raise(&stop);
    ck_assert_int_eq(cluster_job_end(workers, 3), 0);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
    stop_file_withdraw(&stop);
    remove(leave);
}
END_TEST

START_TEST(test_rank_lost)
{
    ranks_lost(1, 3, (const uint32_t[]){1}, 1, "1000");
    ranks_lost(2, 2, (const uint32_t[]){0, 3}, 2, "300007");
}
END_TEST

/* The ranks that are left keep their fusion buffers, and the sums of their next steps are right: on
 * one node, and on four. Two ranks are lost, each in the middle of a step. */
static void fusion_goes_on(uint32_t nodes)
{
    struct cluster *cluster = cluster_start(nodes, NULL);
    struct process *workers[4];
    uint32_t lost = 0;
    const char *argv[] = {TEST_BUILD_DIR "/tests/fusion_rank", NULL};
    cluster_job(cluster, "fusion", 4 / nodes, argv, workers);
    for (uint32_t i = 0; i < 4; i++) {
        int code = process_wait(workers[i], CLUSTER_PATIENCE_MS);
        bool killed = code == 128 + SIGKILL;
        const char *said = process_output(workers[i]);
        ck_assert_msg(killed || (code == 0 && strstr(said, "generation 3: rank ") &&
                                 strstr(said, " of 2\ntrained\n")),
                      "exit code %d: %s", code, said);
        lost += killed;
        process_free(workers[i]);
    }
    ck_assert_uint_eq(lost, 2);
    for (uint32_t node = 0; node < nodes; node++)
        ck_assert(cluster_wait_status(cluster, node, nothing_held, CLUSTER_PATIENCE_MS));
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}

START_TEST(test_fusion_buffers)
{
    fusion_goes_on(1);
    fusion_goes_on(4);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("generations");
    TCase *tests = tcase_create("generations");
    tcase_set_timeout(tests, 300);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_rank_lost);
    tcase_add_test(tests, test_rank_leaves);
    tcase_add_test(tests, test_node_lost);
    tcase_add_loop_test(tests, test_straggler, 0, 3);
    tcase_add_test(tests, test_newcomer);
    tcase_add_test(tests, test_wish);
    tcase_add_test(tests, test_fusion_buffers);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
