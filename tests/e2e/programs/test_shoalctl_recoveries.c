/* The words of shoalctl on jobs that lose ranks and servers: real daemons. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/lib/cluster.h"
#include "tests/lib/job_name.h"
#include "tests/lib/stop_file.h"
#include "tests/lib/suite.h"

static struct stop_file stop;

static void jobs_say(struct cluster *cluster, uint32_t node, const char *text)
{
    const char *words[] = {"jobs", NULL};
    struct process *shoalctl = cluster_shoalctl(cluster, node, words);
    ck_assert_int_eq(process_wait(shoalctl, CLUSTER_PATIENCE_MS), 0);
    ck_assert_msg(strstr(process_output(shoalctl), text) != NULL, "no \"%s\" in:\n%s", text,
                  process_output(shoalctl));
    process_free(shoalctl);
}

static const json_t *first_job(const json_t *status)
{
    return json_array_get(json_object_get(status, "jobs"), 0);
}

/* Rank 2 is gone, and the others, which are stopped, have not asked. */
static bool waits(const json_t *status)
{
    const json_t *lost = json_object_get(first_job(status), "lost");
    const json_t *ranks = json_object_get(lost, "ranks"),
                 *awaited = json_object_get(lost, "awaited");
    return json_array_size(ranks) == 1 && json_integer_value(json_array_get(ranks, 0)) == 2 &&
           json_array_size(awaited) == 2;
}

static bool has_recovered(const json_t *status, const char *kind)
{
    const json_t *it = json_object_get(json_object_get(first_job(status), "recovered"), kind);
    return json_integer_value(json_object_get(it, "times")) == 1 &&
           json_is_null(json_object_get(first_job(status), "lost"));
}

static bool has_gone_on(const json_t *status)
{
    return has_recovered(status, "generation");
}

static bool has_lost_server(const json_t *status)
{
    return has_recovered(status, "server");
}

START_TEST(test_rank_lost)
{
    stop_file_create(&stop);
    struct cluster *cluster = cluster_start(3, NULL);
    struct process *workers[3];
    char name[64];
    const char *argv[] = {CLUSTER_HELPER, "survive", stop.path, "1000", NULL};
    job_name_with_home(name, "elastic", 0, 3);
    cluster_job(cluster, name, 1, argv, workers);
    for (uint32_t rank = 0; rank < 3; rank++)
        cluster_worker_says(workers[rank], "running");
    jobs_say(cluster, 0, "running    1      3");
    process_signal(workers[0], SIGSTOP);
    process_signal(workers[1], SIGSTOP);
    cluster_process_kill(workers[2]);
    process_free(workers[2]);
    ck_assert(cluster_wait_status(cluster, 0, waits, CLUSTER_PATIENCE_MS));
    jobs_say(cluster, 0, "and may go on; gone: rank 2; waits for rank 0-1\n");
    process_signal(workers[0], SIGCONT);
    process_signal(workers[1], SIGCONT);
    cluster_worker_says(workers[0], "generation 2: rank 0 of 2\nrunning again");
    cluster_worker_says(workers[1], "generation 2: rank 1 of 2\nrunning again");
    for (uint32_t node = 0; node < 2; node++) {
        ck_assert(cluster_wait_status(cluster, node, has_gone_on, CLUSTER_PATIENCE_MS));
        jobs_say(cluster, node, " has recovered: generation 1 time (last ");
    }
    stop_file_raise(&stop);
    ck_assert_int_eq(cluster_job_end(workers, 2), 0);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
    stop_file_free(&stop);
}
END_TEST

/* A server without ranks: the job has as many ranks as before. */
START_TEST(test_server_lost)
{
    stop_file_create(&stop);
    struct cluster *cluster = cluster_start(3, NULL);
    struct process *workers[2];
    char name[64];
    const char *argv[] = {CLUSTER_HELPER, "survive", stop.path, "100003", NULL};
    job_name_with_home(name, "elastic", 0, 3);
    for (uint32_t rank = 0; rank < 2; rank++)
        workers[rank] = cluster_worker(cluster, rank, name, rank, 2, argv);
    for (uint32_t rank = 0; rank < 2; rank++)
        cluster_worker_says(workers[rank], "running");
    cluster_process_kill(cluster->nodes[2].daemon);
    for (uint32_t node = 0; node < 2; node++)
        ck_assert(cluster_wait_status(cluster, node, has_lost_server, CLUSTER_PATIENCE_MS));
    jobs_say(cluster, 1, " has recovered: server 1 time (last ");
    stop_file_raise(&stop);
    ck_assert_int_eq(cluster_job_end(workers, 2), 0);
    cluster_stop(cluster);
    cluster_free(cluster);
    stop_file_free(&stop);
}
END_TEST

static bool is_away(const json_t *status)
{
    const json_t *away = json_object_get(json_object_get(first_job(status), "lost"), "away");
    return json_array_size(away) == 1 && json_integer_value(json_array_get(away, 0)) == 2;
}

static bool has_lost_daemon(const json_t *status)
{
    return has_recovered(status, "daemon");
}

START_TEST(test_daemon_started_again)
{
    stop_file_create(&stop);
    struct cluster *cluster =
        cluster_start(3, "{\"recovery\":true,\"timeouts\":{\"restart_ms\":60000}}");
    struct process *workers[3];
    char name[64];
    const char *argv[] = {CLUSTER_HELPER, "survive", stop.path, "100003", NULL};
    job_name_with_home(name, "elastic", 1, 3);
    cluster_job(cluster, name, 1, argv, workers);
    for (uint32_t rank = 0; rank < 3; rank++)
        cluster_worker_says(workers[rank], "running");
    cluster_kill(cluster, 2);
    ck_assert(cluster_wait_status(cluster, 1, is_away, CLUSTER_PATIENCE_MS));
    jobs_say(cluster, 1, "; until its daemon is started again: rank 2");
    cluster_restart(cluster, 2);
    for (uint32_t node = 0; node < 2; node++)
        ck_assert(cluster_wait_status(cluster, node, has_lost_daemon, CLUSTER_PATIENCE_MS));
    stop_file_raise(&stop);
    ck_assert_int_eq(cluster_job_end(workers, 3), 0);
    cluster_stop(cluster);
    cluster_free(cluster);
    stop_file_free(&stop);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shoalctl_recoveries");
    TCase *cases = tcase_create("shoalctl_recoveries");
    tcase_set_timeout(cases, 300);
    tcase_add_test(cases, test_rank_lost);
    tcase_add_test(cases, test_server_lost);
    tcase_add_test(cases, test_daemon_started_again);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
