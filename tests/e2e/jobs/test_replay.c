/* A rank is killed, started again from its checkpoint, gets the sums that it has missed, and the
 * job ends with the bits of one that nothing has happened to: real processes. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/stop_file.h"
#include "tests/lib/suite.h"

#define RANKS_MAX 6
#define RANK_PROGRAM TEST_BUILD_DIR "/tests/replay_rank"
#define STEPS "30"
/* The checkpoint before it has step 20. */
#define DEATH "23"
#define GRADIENT_BYTES (50003 * 4)

static struct stop_file stop;

static void setup(void)
{
    stop_file_create(&stop);
}

static void teardown(void)
{
    for (int id = 0; id < RANKS_MAX; id++) {
        char name[640];
        snprintf(name, sizeof(name), "%s.%d", stop.path, id);
        unlink(name);
    }
    stop_file_free(&stop);
}

static void start(struct cluster *cluster, uint32_t per_node, int dies, struct process **workers)
{
    uint32_t size = cluster->count * per_node;
    for (uint32_t rank = 0; rank < size; rank++) {
        char id[16];
        snprintf(id, sizeof(id), "%u", rank);
        const char *argv[] = {
            RANK_PROGRAM, "train", stop.path, id, STEPS, (int)rank == dies ? DEATH : NULL, NULL};
        workers[rank] = cluster_worker(cluster, rank / per_node, "replayed", rank, size, argv);
    }
}

/* Copy the bits with which the rank has ended: they are the same on all. */
static void bits_of(struct process *worker, char bits[32])
{
    const char *said = strstr(process_output(worker), "bits ");
    ck_assert_msg(said != NULL, "%s", process_output(worker));
    snprintf(bits, 32, "%.21s", said);
}

static void end(struct process **workers, uint32_t size, char bits[32])
{
    for (uint32_t rank = 0; rank < size; rank++) {
        char own[32];
        ck_assert_msg(process_wait(workers[rank], CLUSTER_PATIENCE_MS) == 0, "rank %u: %s", rank,
                      process_output(workers[rank]));
        bits_of(workers[rank], own);
        if (rank == 0)
            memcpy(bits, own, sizeof(own));
        ck_assert_str_eq(own, bits);
    }
    for (uint32_t rank = 0; rank < size; rank++)
        process_free(workers[rank]);
}

static void undisturbed(struct cluster *cluster, uint32_t per_node, char bits[32])
{
    struct process *workers[RANKS_MAX];
    start(cluster, per_node, -1, workers);
    end(workers, cluster->count * per_node, bits);
}

static struct process *come_back(struct cluster *cluster, uint32_t per_node, uint32_t dies)
{
    char id[16];
    snprintf(id, sizeof(id), "%u", dies);
    const char *argv[] = {RANK_PROGRAM, "back", stop.path, id, STEPS, NULL};
    return cluster_worker(cluster, dies / per_node, "replayed", dies, cluster->count * per_node,
                          argv);
}

static json_int_t replay_figure(const json_t *status, const char *key)
{
    return json_integer_value(json_object_get(json_object_get(status, "replay"), key));
}

/* All that are wanted; less one if this node had the sum in which the rank has died, and another
 * had not: then it is kept no more, and neither is the one that went for it. */
static bool kept(const json_t *status, json_int_t wanted)
{
    json_int_t results = replay_figure(status, "results");
    return results == wanted || results == wanted - 1;
}

/* Return whether the last 16 are kept, of which half are gradients. Memory that is under way or to
 * be used again counts. */
static bool sixteen_kept(const json_t *status)
{
    json_int_t bytes = replay_figure(status, "used_bytes");
    return kept(status, 16) && bytes > 7 * GRADIENT_BYTES && bytes < 12 * GRADIENT_BYTES;
}

static bool four_kept(const json_t *status)
{
    json_int_t bytes = replay_figure(status, "used_bytes");
    return kept(status, 4) && bytes > GRADIENT_BYTES;
}

static bool limit_reached(const json_t *status)
{
    json_int_t bytes = replay_figure(status, "used_bytes");
    return replay_figure(status, "limit_bytes") == 500000 && bytes > GRADIENT_BYTES &&
           bytes <= 500000;
}

static bool nothing_kept(const json_t *status)
{
    return replay_figure(status, "results") == 0 && replay_figure(status, "used_bytes") == 0;
}

/* Check that the rank has got the three steps from the checkpoint on. It has one result more if its
 * part of the sum in which it has died was there already; one less if another rank heard of its
 * death before it had the result before that sum. */
static void caught_up(struct process *worker)
{
    cluster_worker_says(worker, "caught up with ");
    const char *said = strstr(process_output(worker), "caught up with ");
    ck_assert_msg(said && said[15] >= '5' && said[15] <= '7', "%s", process_output(worker));
}

/* The rank dies, all others stop there, and it comes back. */
static void killed(uint32_t nodes, uint32_t per_node, uint32_t dies)
{
    struct cluster *cluster =
        cluster_start(nodes, "{\"recovery\":true,\"replay\":{\"keep_steps\":16}}");
    struct process *workers[RANKS_MAX];
    uint32_t size = nodes * per_node, other = dies == 0 ? 1 : 0;
    char bits[32], before[32];
    undisturbed(cluster, per_node, before);
    for (uint32_t node = 0; node < nodes; node++) /* the job is over */
        ck_assert(cluster_wait_status(cluster, node, nothing_kept, CLUSTER_PATIENCE_MS));
    start(cluster, per_node, (int)dies, workers);
    ck_assert_int_eq(process_wait(workers[dies], CLUSTER_PATIENCE_MS), 128 + SIGKILL);
    process_free(workers[dies]);
    cluster_worker_says(workers[other], "lost");
    ck_assert(cluster_wait_status(cluster, other / per_node, sixteen_kept, CLUSTER_PATIENCE_MS));
    workers[dies] = come_back(cluster, per_node, dies);
    caught_up(workers[dies]);
    char ends[64];
    snprintf(ends, sizeof(ends), "rank %u of %u", dies, size);
    cluster_worker_says(workers[dies], ends);
    end(workers, size, bits);
    ck_assert_str_eq(bits, before);
    for (uint32_t node = 0; node < nodes; node++)
        ck_assert(cluster_wait_status(cluster, node, nothing_kept, CLUSTER_PATIENCE_MS));
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}

START_TEST(test_last_rank)
{
    killed(3, 1, 2);
}
END_TEST

START_TEST(test_middle_rank)
{
    killed(3, 1, 1);
}
END_TEST

/* With three ranks on a node the order decides bits, too. */
START_TEST(test_first_of_a_node)
{
    killed(2, 3, 3);
}
END_TEST

/* All ranks are on one node: its daemon answers itself. */
START_TEST(test_one_node)
{
    killed(1, 3, 0);
}
END_TEST

/* Let the rank come back too late: the error names what it needs. */
static void too_late(const char *extra, bool (*keeps)(const json_t *status))
{
    struct cluster *cluster = cluster_start(3, extra);
    struct process *workers[3];
    start(cluster, 1, 2, workers);
    ck_assert_int_eq(process_wait(workers[2], CLUSTER_PATIENCE_MS), 128 + SIGKILL);
    process_free(workers[2]);
    cluster_worker_says(workers[0], "lost");
    ck_assert(cluster_wait_status(cluster, 0, keeps, CLUSTER_PATIENCE_MS));
    workers[2] = come_back(cluster, 1, 2);
    ck_assert_int_eq(process_wait(workers[2], CLUSTER_PATIENCE_MS), 7);
    ck_assert_msg(strstr(process_output(workers[2]),
                         "replay of result 40: it is not kept; kept are all-reduces of the "
                         "numbers 4") != NULL,
                  "%s", process_output(workers[2]));
    for (int rank = 0; rank < 3; rank++)
        process_free(workers[rank]);
    cluster_stop(cluster);
    cluster_free(cluster);
}

START_TEST(test_too_many_missed)
{
    too_late("{\"recovery\":true,\"replay\":{\"keep_steps\":4}}", four_kept);
}
END_TEST

START_TEST(test_bytes_bound)
{
    too_late("{\"recovery\":true,\"replay\":{\"keep_steps\":100,\"keep_bytes\":500000}}",
             limit_reached);
}
END_TEST

START_TEST(test_nothing_kept)
{
    struct cluster *cluster = cluster_start(3, "{\"recovery\":true}");
    struct process *workers[3];
    start(cluster, 1, 2, workers);
    ck_assert_int_eq(process_wait(workers[2], CLUSTER_PATIENCE_MS), 128 + SIGKILL);
    process_free(workers[2]);
    workers[2] = come_back(cluster, 1, 2);
    ck_assert_int_eq(process_wait(workers[2], CLUSTER_PATIENCE_MS), 7);
    ck_assert_ptr_nonnull(strstr(process_output(workers[2]),
                                 "no daemon of another rank keeps results (replay.keep_steps)"));
    for (int rank = 0; rank < 3; rank++)
        process_free(workers[rank]);
    cluster_stop(cluster);
    cluster_free(cluster);
}
END_TEST

/* The node's daemon goes with the rank; both are started again. */
START_TEST(test_node)
{
    struct cluster *cluster = cluster_start(3, "{\"recovery\":true,\"replay\":{\"keep_steps\":16},"
                                               "\"timeouts\":{\"restart_ms\":0}}");
    struct process *workers[3];
    char bits[32], before[32];
    undisturbed(cluster, 1, before);
    start(cluster, 1, 1, workers);
    ck_assert_int_eq(process_wait(workers[1], CLUSTER_PATIENCE_MS), 128 + SIGKILL);
    process_free(workers[1]);
    cluster_kill(cluster, 1);
    cluster_restart(cluster, 1);
    workers[1] = come_back(cluster, 1, 1);
    caught_up(workers[1]);
    end(workers, 3, bits);
    ck_assert_str_eq(bits, before);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("replay");
    TCase *tests = tcase_create("ranks that are started again");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 240);
    tcase_add_test(tests, test_last_rank);
    tcase_add_test(tests, test_middle_rank);
    tcase_add_test(tests, test_first_of_a_node);
    tcase_add_test(tests, test_one_node);
    tcase_add_test(tests, test_too_many_missed);
    tcase_add_test(tests, test_bytes_bound);
    tcase_add_test(tests, test_nothing_kept);
    tcase_add_test(tests, test_node);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
