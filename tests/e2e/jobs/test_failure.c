/* A worker or daemon that dies, stops answering or is told to end: everybody else hears who, and
 * what has nothing to do with it goes on. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cluster.h"
#include "tests/lib/job_name.h"
#include "tests/lib/stop_file.h"
#include "tests/lib/suite.h"

/* Five seconds is what users are promised; the rest is for a machine that is busy with tests. */
#define HEARD_MS 30000

static struct stop_file stop;

static void setup(void)
{
    stop_file_create(&stop);
}

static void teardown(void)
{
    stop_file_free(&stop);
}

static void wait_running(struct process **workers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        ck_assert_msg(process_wait_text(workers[i], "running", CLUSTER_PATIENCE_MS),
                      "rank %u does not run: %.500s", i, process_output(workers[i]));
}

/* Its collective failed, with a text that has both. */
static void heard(struct process *worker, const char *who, const char *what)
{
    int code = process_wait(worker, HEARD_MS);
    const char *text = process_output(worker);
    ck_assert_msg(code == 7, "exit code %d: %.500s %.500s", code, text, process_errors(worker));
    ck_assert_msg(strstr(text, who) && strstr(text, what), "no \"%s\" and \"%s\" in: %.900s", who,
                  what, text);
}

/* A second job of two ranks, on one node alone. */
static void neighbours_start(struct cluster *cluster, uint32_t node, const char *name,
                             struct process *workers[2])
{
    const char *argv[] = {CLUSTER_HELPER, "loop", stop.path, NULL};
    for (uint32_t rank = 0; rank < 2; rank++)
        workers[rank] = cluster_worker(cluster, node, name, rank, 2, argv);
}

/* Buffers for receives stay as many as there ever were; test_jobs has memory over many jobs. */
static bool nothing_held(const json_t *status)
{
    const json_t *workers = json_object_get(status, "workers");
    return json_array_size(json_object_get(status, "jobs")) == 0 &&
           json_integer_value(json_object_get(workers, "count")) == 0 &&
           json_integer_value(json_object_get(status, "slots")) == 0;
}

/* A job of all nodes runs, by a new name. */
static void works(struct cluster *cluster, const char *name, uint32_t ranks_per_node)
{
    struct process *workers[CLUSTER_NODES_MAX * 4];
    const char *argv[] = {CLUSTER_HELPER, "once", NULL};
    cluster_job(cluster, name, ranks_per_node, argv, workers);
    ck_assert_int_eq(cluster_job_end(workers, cluster->count * ranks_per_node), 0);
}

/* mode: what the victims' job does. */
static void worker_killed(const char *mode, const char *extra)
{
    struct cluster *cluster = cluster_start(2, extra);
    struct process *workers[4], *others[4];
    const char *argv[] = {CLUSTER_HELPER, mode, stop.path, NULL};
    const char *loop[] = {CLUSTER_HELPER, "loop", stop.path, NULL};
    cluster_job(cluster, "victim", 2, argv, workers);
    cluster_job(cluster, "other", 2, loop, others);
    wait_running(workers, 4);
    wait_running(others, 4);
    process_signal(workers[2], SIGKILL);
    ck_assert_int_eq(process_wait(workers[2], CLUSTER_PATIENCE_MS), 128 + SIGKILL);
    for (uint32_t rank = 0; rank < 4; rank++)
        if (rank != 2)
            heard(workers[rank], "rank 2", "node1");
    for (uint32_t rank = 0; rank < 4; rank++)
        process_free(workers[rank]);
    stop_file_raise(&stop);
    ck_assert_int_eq(cluster_job_end(others, 4), 0);
    for (uint32_t node = 0; node < 2; node++)
        ck_assert(cluster_wait_status(cluster, node, nothing_held, CLUSTER_PATIENCE_MS));
    ck_assert_ptr_nonnull(strstr(cluster_log(cluster, 1), "rank 2"));
    works(cluster, "victim", 2); /* the name is free again */
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}

START_TEST(test_worker_killed)
{
    worker_killed("loop", NULL);
}
END_TEST

START_TEST(test_worker_killed_in_parts)
{
    worker_killed("parts", NULL);
}
END_TEST

START_TEST(test_worker_killed_datagrams)
{
    worker_killed("loop", "{\"fabric\":{\"provider\":\"tcp;ofi_rxm\"}}");
}
END_TEST

/* Check that the daemon sees the end of the process, not that of the last process which has its
 * socket. */
static void forking_worker_killed(const char *mode)
{
    struct cluster *cluster = cluster_start(1, NULL);
    struct process *workers[2];
    const char *loop[] = {CLUSTER_HELPER, "loop", stop.path, NULL};
    const char *forks[] = {CLUSTER_HELPER, mode, stop.path, NULL};
    long child = 0;
    workers[0] = cluster_worker(cluster, 0, "victim", 0, 2, loop);
    workers[1] = cluster_worker(cluster, 0, "victim", 1, 2, forks);
    wait_running(workers, 2);
    ck_assert_int_eq(sscanf(process_output(workers[1]), "child %ld", &child), 1);
    process_signal(workers[1], SIGKILL);
    heard(workers[0], "rank 1", "gone");
    ck_assert_int_eq(kill((pid_t)child, 0), 0); /* all the while */
    for (uint32_t rank = 0; rank < 2; rank++)
        process_free(workers[rank]);
    ck_assert(cluster_wait_status(cluster, 0, nothing_held, CLUSTER_PATIENCE_MS));
    stop_file_raise(&stop);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}

START_TEST(test_worker_killed_beside_its_child)
{
    forking_worker_killed("forked");
}
END_TEST

START_TEST(test_worker_killed_beside_a_child_with_its_socket)
{
    forking_worker_killed("cloned");
}
END_TEST

START_TEST(test_worker_killed_one_node)
{
    struct cluster *cluster = cluster_start(1, NULL);
    struct process *workers[3];
    const char *argv[] = {CLUSTER_HELPER, "loop", stop.path, "1000003", NULL};
    cluster_job(cluster, "victim", 3, argv, workers);
    wait_running(workers, 3);
    process_signal(workers[0], SIGKILL);
    heard(workers[1], "rank 0", "gone");
    heard(workers[2], "rank 0", "gone");
    for (uint32_t rank = 0; rank < 3; rank++)
        process_free(workers[rank]);
    ck_assert(cluster_wait_status(cluster, 0, nothing_held, CLUSTER_PATIENCE_MS));
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

static void daemon_killed(const char *extra)
{
    struct cluster *cluster = cluster_start(2, extra);
    struct process *workers[4], *others[2];
    char name[64];
    const char *argv[] = {CLUSTER_HELPER, "loop", stop.path, NULL};
    job_name_with_home(name, "victim", 0, 2);
    cluster_job(cluster, name, 2, argv, workers);
    job_name_with_home(name, "other", 0, 2);
    neighbours_start(cluster, 0, name, others);
    wait_running(workers, 4);
    wait_running(others, 2);
    process_signal(cluster->nodes[1].daemon, SIGKILL);
    heard(workers[0], "node1", "gone");
    heard(workers[1], "node1", "gone");
    heard(workers[2], "daemon", ""); /* its own has gone */
    heard(workers[3], "daemon", "");
    for (uint32_t rank = 0; rank < 4; rank++)
        process_free(workers[rank]);
    stop_file_raise(&stop);
    ck_assert_int_eq(cluster_job_end(others, 2), 0);
    ck_assert(cluster_wait_status(cluster, 0, nothing_held, CLUSTER_PATIENCE_MS));
    ck_assert(cluster_wait_log(cluster, 0, "node1", 0));
    process_signal(cluster->nodes[0].daemon, SIGTERM);
    ck_assert_int_eq(process_wait(cluster->nodes[0].daemon, CLUSTER_PATIENCE_MS), 0);
    cluster_free(cluster);
}

START_TEST(test_daemon_killed)
{
    daemon_killed(NULL);
}
END_TEST

START_TEST(test_daemon_killed_datagrams)
{
    daemon_killed("{\"fabric\":{\"provider\":\"tcp;ofi_rxm\"}}");
}
END_TEST

/* The daemon that gathered the ranks dies: the same. */
START_TEST(test_home_killed)
{
    struct cluster *cluster = cluster_start(3, NULL);
    struct process *workers[3];
    char name[64];
    const char *argv[] = {CLUSTER_HELPER, "loop", stop.path, NULL};
    job_name_with_home(name, "victim", 2, 3);
    cluster_job(cluster, name, 1, argv, workers);
    wait_running(workers, 3);
    process_signal(cluster->nodes[2].daemon, SIGKILL);
    heard(workers[0], "node2", "gone");
    heard(workers[1], "node2", "gone");
    heard(workers[2], "daemon", "");
    for (uint32_t rank = 0; rank < 3; rank++)
        process_free(workers[rank]);
    cluster_free(cluster);
}
END_TEST

static void daemon_stopped(const char *extra)
{
    struct cluster *cluster = cluster_start(2, extra);
    struct process *workers[4], *others[2];
    char name[64];
    const char *argv[] = {CLUSTER_HELPER, "loop", stop.path, NULL};
    cluster_job(cluster, "victim", 2, argv, workers);
    job_name_with_home(name, "other", 0, 2);
    neighbours_start(cluster, 0, name, others);
    wait_running(workers, 4);
    wait_running(others, 2);
    process_signal(cluster->nodes[1].daemon, SIGSTOP);
    heard(workers[0], "node1", "gone");
    heard(workers[1], "node1", "gone");
    /* Its own ranks can hear of it only once it goes on. */
    process_signal(cluster->nodes[1].daemon, SIGCONT);
    heard(workers[2], "node", "gone");
    heard(workers[3], "node", "gone");
    for (uint32_t rank = 0; rank < 4; rank++)
        process_free(workers[rank]);
    stop_file_raise(&stop);
    ck_assert_int_eq(cluster_job_end(others, 2), 0);
    works(cluster, "again", 2); /* they have found each other again */
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}

START_TEST(test_daemon_stopped)
{
    daemon_stopped("{\"timeouts\":{\"peer_ms\":3000}}");
}
END_TEST

START_TEST(test_daemon_stopped_datagrams)
{
    daemon_stopped("{\"fabric\":{\"provider\":\"tcp;ofi_rxm\"},\"timeouts\":{\"peer_ms\":3000}}");
}
END_TEST

/* count: of floats that are handed over in one piece, or in many. */
static void rank_stopped(struct cluster *cluster, const char *count)
{
    struct process *workers[4];
    const char *argv[] = {CLUSTER_HELPER, "loop", stop.path, count, NULL};
    cluster_job(cluster, count, 2, argv, workers);
    wait_running(workers, 4);
    process_signal(workers[3], SIGSTOP);
    for (uint32_t rank = 0; rank < 3; rank++)
        heard(workers[rank], "rank 3 (the first on node node1) has not reached", "1500 ms");
    process_signal(workers[3], SIGKILL);
    process_wait(workers[3], CLUSTER_PATIENCE_MS);
    for (uint32_t rank = 0; rank < 4; rank++)
        process_free(workers[rank]);
}

START_TEST(test_rank_stopped)
{
    struct cluster *cluster = cluster_start(2, "{\"timeouts\":{\"collective_ms\":1500}}");
    rank_stopped(cluster, "1000");
    rank_stopped(cluster, "3000007");
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

START_TEST(test_rank_that_never_comes)
{
    struct cluster *cluster = cluster_start(2, "{\"timeouts\":{\"join_ms\":4000}}");
    const char *argv[] = {CLUSTER_HELPER, "once", NULL};
    struct process *workers[2];
    for (uint32_t rank = 0; rank < 2; rank++)
        workers[rank] = cluster_worker(cluster, rank, "incomplete", rank, 4, argv);
    for (uint32_t rank = 0; rank < 2; rank++) {
        ck_assert_int_eq(process_wait(workers[rank], 2 * CLUSTER_PATIENCE_MS), 7);
        ck_assert_msg(strstr(process_output(workers[rank]), "timed out") &&
                          strstr(process_output(workers[rank]), "2") &&
                          strstr(process_output(workers[rank]), "3"),
                      "%.500s", process_output(workers[rank]));
        process_free(workers[rank]);
    }
    ck_assert(cluster_wait_status(cluster, 0, nothing_held, CLUSTER_PATIENCE_MS));
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

static bool waits_for_node2(const json_t *status)
{
    const json_t *job = json_array_get(json_object_get(status, "jobs"), 0);
    const char *cause = json_string_value(json_object_get(job, "waits_for"));
    return cause && strstr(cause, "server node2 (");
}

static bool warns_of_node2(const json_t *status)
{
    size_t i;
    json_t *line;
    json_array_foreach(json_object_get(status, "warnings"), i, line)
    {
        const char *text = json_string_value(json_object_get(line, "text"));
        if (text && strstr(text, "waits to open: server node2"))
            return true;
    }
    return false;
}

/* A server that has no ranks is gone before the job begins: said long before the ranks' time is
 * over, in the home's log and status. */
START_TEST(test_server_that_is_not_there)
{
    struct cluster *cluster = cluster_start(3, NULL);
    const char *argv[] = {CLUSTER_HELPER, "once", NULL};
    struct process *workers[2];
    char name[64];
    process_signal(cluster->nodes[2].daemon, SIGKILL);
    process_wait(cluster->nodes[2].daemon, CLUSTER_PATIENCE_MS);
    job_name_with_home(name, "early", 0, 3);
    for (uint32_t rank = 0; rank < 2; rank++)
        workers[rank] = cluster_worker(cluster, rank, name, rank, 2, argv);
    ck_assert(cluster_wait_status(cluster, 0, waits_for_node2, CLUSTER_PATIENCE_MS));
    for (int waits = 0; !strstr(cluster_log(cluster, 0), "waits to open: server node2"); waits++)
        ck_assert(waits < 100 && process_wait(workers[0], 100) == -1);
    ck_assert(cluster_wait_status(cluster, 0, warns_of_node2, CLUSTER_PATIENCE_MS));
    for (uint32_t rank = 0; rank < 2; rank++) {
        process_signal(workers[rank], SIGKILL);
        process_wait(workers[rank], CLUSTER_PATIENCE_MS);
        process_free(workers[rank]);
    }
    cluster_stop(cluster);
    cluster_free(cluster);
}
END_TEST

/* The daemon that the job's name stands for is missing too, and has no ranks: with recovery another
 * one gathers them, and says so. */
START_TEST(test_home_that_is_not_there)
{
    struct cluster *cluster =
        cluster_start(3, "{\"recovery\":true,\"timeouts\":{\"peer_ms\":1000,\"restart_ms\":0}}");
    const char *argv[] = {CLUSTER_HELPER, "once", NULL};
    struct process *workers[2];
    char name[64];
    process_signal(cluster->nodes[2].daemon, SIGKILL);
    process_wait(cluster->nodes[2].daemon, CLUSTER_PATIENCE_MS);
    job_name_with_home(name, "early", 2, 3);
    for (uint32_t rank = 0; rank < 2; rank++)
        workers[rank] = cluster_worker(cluster, rank, name, rank, 2, argv);
    for (uint32_t rank = 0; rank < 2; rank++) {
        int code = process_wait(workers[rank], 2 * CLUSTER_PATIENCE_MS);
        ck_assert_msg(code == 0, "%d: %s", code, process_output(workers[rank]));
        process_free(workers[rank]);
    }
    ck_assert(strstr(cluster_log(cluster, 1), "cannot gather at its home: server node2"));
    ck_assert(strstr(cluster_log(cluster, 1), "gathers at node node0: server node2"));
    cluster_stop(cluster);
    cluster_free(cluster);
}
END_TEST

/* SIGTERM during a job: the daemon ends with 0, the ranks had right results as long as they had
 * any, and know why they have none any more. */
static void daemon_terminated(uint32_t nodes)
{
    struct cluster *cluster = cluster_start(nodes, "{\"timeouts\":{\"drain_ms\":2000}}");
    struct process *workers[CLUSTER_NODES_MAX * 2];
    const char *argv[] = {CLUSTER_HELPER, "loop", stop.path, "300007", NULL};
    cluster_job(cluster, "train", 2, argv, workers);
    wait_running(workers, nodes * 2);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    for (uint32_t rank = 0; rank < nodes * 2; rank++) {
        heard(workers[rank], "", "");
        process_free(workers[rank]);
    }
    cluster_free(cluster);
}

START_TEST(test_daemon_terminated)
{
    daemon_terminated(1);
    daemon_terminated(2);
}
END_TEST

/* A job that ends within the time to drain is not disturbed; a new one is refused meanwhile. */
/* Both ranks' first all-reduce of the helper's 10007 floats, and rank 0's second. */
static bool second_under_way(const json_t *status)
{
    const json_t *job = json_array_get(json_object_get(status, "jobs"), 0);
    return json_integer_value(json_object_get(job, "bytes")) == 3 * 10007 * 4;
}

START_TEST(test_drain_lets_jobs_finish)
{
    struct cluster *cluster = cluster_start(1, NULL);
    struct process *workers[2];
    const char *argv[] = {CLUSTER_HELPER, "late", stop.path, NULL};
    cluster_job(cluster, "train", 2, argv, workers);
    wait_running(workers, 2);
    /* Rank 0 is inside a collective that rank 1 will reach after the signal. */
    ck_assert(cluster_wait_status(cluster, 0, second_under_way, CLUSTER_PATIENCE_MS));
    process_signal(cluster->nodes[0].daemon, SIGTERM);
    ck_assert(cluster_wait_log(cluster, 0, "shutting down", CLUSTER_PATIENCE_MS));
    struct process *late =
        cluster_worker(cluster, 0, "new", 0, 1, (const char *[]){CLUSTER_HELPER, "once", NULL});
    ck_assert_int_eq(process_wait(late, CLUSTER_PATIENCE_MS), 7);
    ck_assert_msg(strstr(process_output(late), "refused") || strstr(process_output(late), "daemon"),
                  "%.500s", process_output(late));
    process_free(late);
    stop_file_raise(&stop);
    for (uint32_t rank = 0; rank < 2; rank++) {
        int code = process_wait(workers[rank], CLUSTER_PATIENCE_MS);
        /* Right results; the daemon may be gone when the job is closed. */
        ck_assert_msg(code == 0 || strstr(process_output(workers[rank]), "failed: close"),
                      "rank %u, exit code %d: %.500s", rank, code, process_output(workers[rank]));
        process_free(workers[rank]);
    }
    ck_assert_int_eq(process_wait(cluster->nodes[0].daemon, CLUSTER_PATIENCE_MS), 0);
    cluster_free(cluster);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("failure");
    TCase *tests = tcase_create("failure");
    tcase_set_timeout(tests, 300);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_worker_killed);
    tcase_add_test(tests, test_worker_killed_in_parts);
    tcase_add_test(tests, test_worker_killed_datagrams);
    tcase_add_test(tests, test_worker_killed_one_node);
    tcase_add_test(tests, test_worker_killed_beside_its_child);
    tcase_add_test(tests, test_worker_killed_beside_a_child_with_its_socket);
    tcase_add_test(tests, test_daemon_killed);
    tcase_add_test(tests, test_daemon_killed_datagrams);
    tcase_add_test(tests, test_home_killed);
    tcase_add_test(tests, test_daemon_stopped);
    tcase_add_test(tests, test_daemon_stopped_datagrams);
    tcase_add_test(tests, test_rank_stopped);
    tcase_add_test(tests, test_rank_that_never_comes);
    tcase_add_test(tests, test_server_that_is_not_there);
    tcase_add_test(tests, test_home_that_is_not_there);
    tcase_add_test(tests, test_daemon_terminated);
    tcase_add_test(tests, test_drain_lets_jobs_finish);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
