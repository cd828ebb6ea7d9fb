/* Two users who may do nothing but use the socket, beside root: what one of them does costs neither
 * the other's job nor root's, nor more memory than he may have. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/stop_file.h"
#include "tests/lib/suite.h"

#define ALICE "61001"
#define BOB "61002"
#define MIB (1ul << 20)

static struct stop_file stop;
static struct cluster *cluster;

static void setup(void)
{
    stop_file_create(&stop);
    ck_assert_int_eq(chmod(stop.directory, 0755), 0);
}

static void teardown(void)
{
    stop_file_free(&stop);
}

/* Whether other users can run the helper from where this tree is built. */
static bool can_be_others(const char *test)
{
    if (geteuid() != 0) {
        suite_skip(test, "processes of other users take root");
        return false;
    }
    struct process *probe = process_run((const char *const[]){
        "setpriv", "--reuid", ALICE, "--regid", ALICE, "--clear-groups", CLUSTER_HELPER, NULL});
    int code = process_wait(probe, CLUSTER_PATIENCE_MS);
    bool can = code == 1 && strstr(process_output(probe), "no mode");
    process_free(probe);
    if (!can)
        suite_skip(test, "other users cannot run what is built in %s", TEST_BUILD_DIR);
    return can;
}

static void start(uint32_t nodes, const char *extra)
{
    cluster = cluster_start(nodes, extra);
    ck_assert_int_eq(chmod(cluster->directory, 0755), 0);
    for (uint32_t node = 0; node < nodes; node++)
        ck_assert_int_eq(chmod(cluster->nodes[node].socket_path, 0666), 0);
}

/* Both ranks of a job of a user (NULL: this one), on the first node. */
static void job_of(const char *user, const char *job, const char *mode, size_t count,
                   struct process *workers[2])
{
    char elements[32];
    snprintf(elements, sizeof(elements), "%zu", count);
    const char *argv[] = {"setpriv",      "--reuid", user,      "--regid", user, "--clear-groups",
                          CLUSTER_HELPER, mode,      stop.path, elements,  NULL};
    for (uint32_t rank = 0; rank < 2; rank++)
        workers[rank] = cluster_worker(cluster, 0, job, rank, 2, user ? argv : argv + 6);
}

static void wait_running(struct process *workers[2])
{
    for (uint32_t rank = 0; rank < 2; rank++)
        ck_assert_msg(process_wait_text(workers[rank], "running", CLUSTER_PATIENCE_MS),
                      "rank %u does not run: %.500s", rank, process_output(workers[rank]));
}

static void is_refused(struct process *workers[2], const char *words)
{
    for (uint32_t rank = 0; rank < 2; rank++) {
        ck_assert_int_eq(process_wait(workers[rank], 2 * CLUSTER_PATIENCE_MS), 7);
        const char *text = process_output(workers[rank]);
        ck_assert_msg(strstr(text, words) || rank > 0, "no \"%s\" in: %.900s", words, text);
        process_free(workers[rank]);
    }
}

static long daemon_KiB(void)
{
    return process_resident_KiB(cluster->nodes[0].daemon->pid);
}

/* Memory that a worker has never touched is touched by the daemon; whose it is makes the
 * difference. */
START_TEST(test_sparse_arenas)
{
    struct process *root[2], *bob[2], *alice[2], *more[2];
    if (!can_be_others("test_sparse_arenas"))
        return;
    start(1, "{\"limits\":{\"user_bytes\":134217728},\"timeouts\":{\"join_ms\":3000}}");
    setenv("SHOAL_ARENA_BYTES", "67108864", 1);
    job_of(NULL, "root", "loop", 10007, root);
    job_of(BOB, "bob", "loop", 10007, bob);
    wait_running(root);
    wait_running(bob);
    long before_KiB = daemon_KiB();
    job_of(ALICE, "alice", "sparse", 48 * MIB / sizeof(float), alice);
    wait_running(alice);
    job_of(ALICE, "more", "sparse", 48 * MIB / sizeof(float), more);
    is_refused(more, "user " ALICE " may have 134217728 bytes of arenas and shared memory "
                     "(limits.user_bytes)");
#ifndef SHOAL_SANITIZED /* there, what is touched counts several times */
    ck_assert_int_lt(daemon_KiB(), before_KiB + (128 + 32) * 1024);
#else
    (void)before_KiB;
#endif
    stop_file_raise(&stop);
    ck_assert_int_eq(cluster_job_end(alice, 2), 0);
    ck_assert_int_eq(cluster_job_end(root, 2), 0);
    ck_assert_int_eq(cluster_job_end(bob, 2), 0);
    /* A user who has left may come again. */
    job_of(ALICE, "again", "once", 1000, alice);
    ck_assert_int_eq(cluster_job_end(alice, 2), 0);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("users");
    TCase *tests = tcase_create("users");
    tcase_set_timeout(tests, 300);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_sparse_arenas);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
