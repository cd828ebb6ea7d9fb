/* Whole clusters on virtual time whose connections break while the daemons live, with recovery on:
 * the ranks see nothing but time, and get the bits of an undisturbed run. No rank is told of
 * anything stable that another one lacks, and each is told of all before it leaves
 * (tests/lib/virtual). */
#include "tests/lib/suite.h"
#include "tests/lib/virtual/virtual_cluster.h"

#include <string.h>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/format/message.h"

#ifdef SHOAL_SANITIZED
#define SEEDS 3
#else
#define SEEDS 6
#endif

#define LIMIT_NS (200 * NS_PER_S)
#define SILENCE_NS (3 * NS_PER_S) /* timeouts.peer_ms by default */

static const uint32_t rank_nodes[] = {0, 1, 2, 1, 0};
enum { RANKS = 5, NODES = 4 }; /* node 3 has no ranks: a server alone */

/* Numbers of the history alone: the job's are the same in all of its runs. */
static uint32_t pick(uint64_t *random, uint32_t below)
{
    *random = *random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*random >> 33) % below;
}

static struct virtual_cluster *cluster_create(uint64_t seed)
{
    struct virtual_options options = {.seed = seed,
                                      .nodes = NODES,
                                      .chunk_bytes = 4096,
                                      .window_chunks = seed % 2 ? 4 : 2,
                                      .sends = true,
                                      .keep_steps = seed % 2 ? 5 : 0,
                                      .recovery = true};
    return virtual_cluster_create(&options);
}

static uint32_t job_start_as(struct virtual_cluster *cluster, uint64_t seed, uint32_t kinds,
                             const char *name, uint32_t recovery)
{
    struct virtual_job job = {.name = name,
                              .recovery = recovery,
                              .ranks = RANKS,
                              .rank_nodes = rank_nodes,
                              .groups = 2,
                              .collectives = 150,
                              .most_count = 9000,
                              .in_flight = 4,
                              .arena = true,
                              .priorities = seed % 2,
                              .kinds = kinds,
                              .seed = seed};
    return virtual_cluster_start(cluster, &job);
}

static uint32_t job_start(struct virtual_cluster *cluster, uint64_t seed, uint32_t kinds)
{
    return job_start_as(cluster, seed, kinds, "through", MESSAGE_RECOVERY_ON);
}

static void undisturbed(uint64_t seed, uint32_t kinds, uint64_t digests[RANKS])
{
    struct virtual_cluster *cluster = cluster_create(seed);
    uint32_t job = job_start(cluster, seed, kinds);
    virtual_cluster_finish(cluster, LIMIT_NS);
    for (uint32_t i = 0; i < RANKS; i++)
        digests[i] = virtual_cluster_outcome(cluster, job, i).digest;
    virtual_cluster_destroy(cluster);
}

static void assert_digests(const struct virtual_cluster *cluster, uint32_t job,
                           const uint64_t digests[RANKS])
{
    for (uint32_t i = 0; i < RANKS; i++) {
        struct virtual_outcome outcome = virtual_cluster_outcome(cluster, job, i);
        ck_assert_msg(outcome.ended && outcome.code == 0, "rank %u: %d %s", i, outcome.code,
                      outcome.text);
        ck_assert_uint_eq(outcome.digest, digests[i]);
    }
}

/* And connections have been made anew, on both sides. */
static void assert_nothing_lost(const struct virtual_cluster *cluster, uint32_t times)
{
    uint32_t resumed = 0;
    for (uint32_t i = 0; i < NODES; i++) {
        ck_assert_uint_eq(virtual_cluster_losses(cluster, i), 0);
        resumed += virtual_cluster_resumed(cluster, i);
    }
    ck_assert_uint_ge(resumed / 2, times);
}

/* One fault, of a pair of nodes: either plane is reset, or both are cut for less than peer_ms. */
static void disturb(struct virtual_cluster *cluster, uint64_t *random)
{
    uint32_t a = pick(random, NODES), b = (a + 1 + pick(random, NODES - 1)) % NODES;
    uint32_t what = pick(random, 3);
    if (what < 2) {
        virtual_cluster_reset(cluster, a, b, what == 1);
        return;
    }
    virtual_cluster_cut(cluster, a, b);
    virtual_cluster_run(cluster, pick(random, 400));
    virtual_cluster_run_for(cluster, pick(random, 4) * NS_PER_S / 4);
    virtual_cluster_join_again(cluster, a, b);
}

static void go_through(uint64_t seed, uint32_t kinds)
{
    uint64_t digests[RANKS], random = seed;
    undisturbed(seed, kinds, digests);
    struct virtual_cluster *cluster = cluster_create(seed);
    uint32_t job = job_start(cluster, seed, kinds);
    virtual_cluster_run(cluster, 1000 + pick(&random, 2000));
    uint32_t faults = 0;
    for (; faults < 12 && !virtual_cluster_ended(cluster); faults++) {
        disturb(cluster, &random);
        virtual_cluster_run(cluster, pick(&random, 4) ? pick(&random, 3000) : pick(&random, 30));
    }
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_digests(cluster, job, digests);
    assert_nothing_lost(cluster, faults / 2); /* one may meet what the last one has left */
    virtual_cluster_destroy(cluster);
}

START_TEST(test_collectives_go_through)
{
    go_through(30000 + (uint64_t)_i, (1u << COLLECTIVE_SEND) - 1);
}
END_TEST

START_TEST(test_all_kinds_go_through)
{
    go_through(31000 + (uint64_t)_i, 0);
}
END_TEST

/* Two jobs on the same links: one fails with the connection, and names the node, the other one goes
 * on to the same bits. */
START_TEST(test_a_job_that_refuses)
{
    uint64_t digests[RANKS], seed = 32000 + (uint64_t)_i, random = seed;
    undisturbed(seed, 0, digests);
    struct virtual_cluster *cluster = cluster_create(seed);
    uint32_t job = job_start(cluster, seed, 0);
    uint32_t other = job_start_as(cluster, seed + 500, 0, "refuses", MESSAGE_RECOVERY_OFF);
    virtual_cluster_run(cluster, 3000 + pick(&random, 1000));
    for (uint32_t i = 0; i < RANKS; i++)
        ck_assert(!virtual_cluster_outcome(cluster, other, i).ended);
    virtual_cluster_reset(cluster, 0, 1 + (uint32_t)_i % 3, _i % 2 == 1);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_digests(cluster, job, digests);
    for (uint32_t i = 0; i < RANKS; i++) {
        struct virtual_outcome outcome = virtual_cluster_outcome(cluster, other, i);
        ck_assert(outcome.ended);
        ck_assert_msg(outcome.code == ERR_LOST && strstr(outcome.text, " is gone: "), "%d %s",
                      outcome.code, outcome.text);
    }
    assert_nothing_lost(cluster, 1);
    virtual_cluster_destroy(cluster);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cluster_recovery");
    TCase *through = tcase_create("through");
    tcase_set_timeout(through, 120);
    tcase_add_loop_test(through, test_collectives_go_through, 0, SEEDS);
    tcase_add_loop_test(through, test_all_kinds_go_through, 0, SEEDS);
    tcase_add_loop_test(through, test_a_job_that_refuses, 0, SEEDS);
    suite_add_tcase(suite, through);
    return suite_main(suite);
}
