/* Whole clusters on virtual time whose jobs go on: ranks, machines, homes and daemons are lost at
 * any moment, also while the next generation forms, and those that are left become it. */
#include "tests/lib/suite.h"
#include "tests/lib/virtual/virtual_cluster.h"

#include <string.h>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/format/message.h"

#ifdef SHOAL_SANITIZED
#define SEEDS 3
#else
#define SEEDS 8
#endif

#define LIMIT_NS (200 * NS_PER_S)
#define COLLECTIVES 120u

enum { NODES = 4, RANKS = 6 };
static const uint32_t rank_nodes[] = {0, 1, 2, 1, 3, 0};

struct going {
    struct virtual_cluster *cluster;
    uint32_t job;
    uint64_t seed;
};

static struct virtual_job job_of_six(uint64_t seed)
{
    return (struct virtual_job){.name = "goes on",
                                .ranks = RANKS,
                                .rank_nodes = rank_nodes,
                                .groups = 2,
                                .collectives = COLLECTIVES,
                                .most_count = 5000,
                                .in_flight = 3,
                                .arena = seed % 2,
                                .goes_on = true,
                                .seed = seed};
}

static struct virtual_outcome outcome(const struct going *going, uint32_t rank)
{
    return virtual_cluster_outcome(going->cluster, going->job, rank);
}

/* Until all of its ranks have joined, and something else is under way each time. */
static struct going begin_job(const struct virtual_job *job, bool recovery)
{
    struct virtual_options options = {
        .seed = job->seed, .nodes = NODES, .sends = true, .recovery = recovery};
    struct going going = {.cluster = virtual_cluster_create(&options), .seed = job->seed};
    going.job = virtual_cluster_start(going.cluster, job);
    for (uint32_t i = 0; i < RANKS; i++) {
        while (!outcome(&going, i).joined)
            virtual_cluster_run(going.cluster, 1);
    }
    virtual_cluster_run(going.cluster, going.seed * 977 % 3000);
    return going;
}

static struct going begin(uint64_t seed, bool recovery)
{
    struct virtual_job job = job_of_six(seed);
    return begin_job(&job, recovery);
}

/* Begin a job that wishes for as many ranks as it has. */
static struct going begin_wishing(uint64_t seed, bool recovery)
{
    struct virtual_job job = job_of_six(seed);
    job.least_ranks = RANKS;
    return begin_job(&job, recovery);
}

/* All but those that are gone (bits) have done all, as ranks of one later generation, in which are
 * so many newcomers. */
static void finish(struct going *going, uint32_t gone, uint32_t newcomers)
{
    uint32_t ranks = RANKS - (uint32_t)__builtin_popcount(gone) + newcomers;
    struct virtual_outcome first = {0};
    virtual_cluster_finish(going->cluster, LIMIT_NS);
    for (uint32_t i = 0; i < RANKS; i++) {
        struct virtual_outcome it = outcome(going, i);
        if (gone >> i & 1)
            continue;
        if (first.ranks == 0)
            first = it;
        ck_assert_msg(it.ended && it.code == 0, "rank %u, now %u of %u: %d %s", i, it.rank,
                      it.ranks, it.code, it.text);
        ck_assert_uint_ge(it.generation, 2);
        ck_assert_uint_eq(it.ranks, ranks);
        ck_assert_uint_eq(it.number, first.number);
    }
}

static void end(struct going *going, uint32_t gone)
{
    finish(going, gone, 0);
    virtual_cluster_destroy(going->cluster);
}

/* The bits of the ranks of a node. */
static uint32_t ranks_on(uint32_t node)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < RANKS; i++)
        bits |= (uint32_t)(rank_nodes[i] == node) << i;
    return bits;
}

START_TEST(test_a_rank_is_lost)
{
    struct going going = begin(41000 + (uint64_t)_i, _i % 2);
    uint32_t lost = (uint32_t)_i % RANKS;
    virtual_cluster_kill_worker(going.cluster, going.job, lost);
    end(&going, 1u << lost);
}
END_TEST

START_TEST(test_a_machine_is_lost)
{
    struct going going = begin(41100 + (uint64_t)_i, _i % 2);
    uint32_t node = (uint32_t)_i % NODES;
    virtual_cluster_switch_off(going.cluster, node);
    end(&going, ranks_on(node));
}
END_TEST

/* Its ranks end with its daemon, which is not started again. */
static void daemon_is_lost(struct going going, uint32_t node)
{
    uint32_t gone = ranks_on(node);
    virtual_cluster_kill_daemon(going.cluster, node);
    finish(&going, gone, 0);
    for (uint32_t i = 0; i < RANKS; i++) {
        if (gone >> i & 1)
            ck_assert_int_eq(outcome(&going, i).code, ERR_DISCONNECTED);
    }
    virtual_cluster_destroy(going.cluster);
}

/* Without recovery nobody waits for it. */
START_TEST(test_a_daemon_is_lost)
{
    daemon_is_lost(begin(41200 + (uint64_t)_i, false), (uint32_t)_i % NODES);
}
END_TEST

/* With it they come back with the next one, whoever was the home, and no rank is lost. */
START_TEST(test_a_daemon_is_started_again)
{
    struct going going = begin(41300 + (uint64_t)_i, true);
    uint32_t node = (uint32_t)_i % NODES;
    virtual_cluster_kill_daemon(going.cluster, node);
    virtual_cluster_run_for(going.cluster, (uint64_t)_i % 5 * 400 * NS_PER_MS);
    virtual_cluster_return(going.cluster, node);
    end(&going, 0);
}
END_TEST

/* The daemon is not started again: its ranks are waited for, for timeouts.restart_ms, and then the
 * others go on. */
START_TEST(test_a_daemon_is_not_started_again)
{
    daemon_is_lost(begin(41400 + (uint64_t)_i, true), (uint32_t)_i % NODES);
}
END_TEST

/* Twice, or the second one after the first, which may be while the next generation forms. */
START_TEST(test_daemons_are_started_again_and_again)
{
    struct going going = begin(41500 + (uint64_t)_i, true);
    uint32_t node = (uint32_t)_i % NODES;
    for (uint32_t i = 0; i < 2; i++) {
        virtual_cluster_kill_daemon(going.cluster, node);
        virtual_cluster_run(going.cluster, going.seed * 607 % 200);
        virtual_cluster_return(going.cluster, node);
        virtual_cluster_run(going.cluster, going.seed * 443 % 400);
        node = (node + (uint32_t)_i / 4 % 2) % NODES;
    }
    end(&going, 0);
}
END_TEST

START_TEST(test_two_ranks_are_lost)
{
    struct going going = begin(41600 + (uint64_t)_i, _i % 2);
    uint32_t first = (uint32_t)_i % RANKS, second = (first + 1 + (uint32_t)_i / 6) % RANKS;
    virtual_cluster_kill_worker(going.cluster, going.job, first);
    virtual_cluster_run(going.cluster, going.seed * 89 % 300);
    virtual_cluster_kill_worker(going.cluster, going.job, second);
    end(&going, 1u << first | 1u << second);
}
END_TEST

/* One after the other, until one rank is left. */
START_TEST(test_one_rank_is_left)
{
    struct going going = begin(41700 + (uint64_t)_i, _i % 2);
    uint32_t left = (uint32_t)_i % RANKS;
    for (uint32_t i = 0; i < RANKS; i++) {
        if (i == left)
            continue;
        virtual_cluster_kill_worker(going.cluster, going.job, i);
        virtual_cluster_run(going.cluster, going.seed * 89 % 700);
    }
    end(&going, ((1u << RANKS) - 1) & ~(1u << left));
}
END_TEST

/* Whether some rank of another node has heard that its job has failed. */
static bool heard(const struct going *going, uint32_t node)
{
    for (uint32_t i = 0; i < RANKS; i++) {
        if (rank_nodes[i] != node && outcome(going, i).code != 0)
            return true;
    }
    return false;
}

/* The one that decides goes while the others ask it. */
START_TEST(test_homes_are_lost_while_they_decide)
{
    struct going going = begin(41800 + (uint64_t)_i, _i % 2);
    uint32_t first = (uint32_t)_i % NODES, second = (first + 1) % NODES;
    virtual_cluster_switch_off(going.cluster, first);
    while (!heard(&going, first))
        virtual_cluster_run(going.cluster, 1);
    virtual_cluster_run(going.cluster, going.seed * 89 % 70);
    for (uint32_t i = 0; i < RANKS; i++)
        ck_assert_uint_eq(outcome(&going, i).generation, 1);
    virtual_cluster_switch_off(going.cluster, second);
    end(&going, ranks_on(first) | ranks_on(second));
}
END_TEST

/* A server without ranks: no rank is lost with it, and it has no shards of what comes then. */
START_TEST(test_a_server_is_lost)
{
    static const uint32_t three[] = {0, 1, 2, 1, 2, 0};
    struct virtual_job job = job_of_six(41900 + (uint64_t)_i);
    job.rank_nodes = three;
    struct going going = begin_job(&job, _i % 2);
    if (_i % 4 < 2)
        virtual_cluster_switch_off(going.cluster, 3);
    else
        virtual_cluster_kill_daemon(going.cluster, 3);
    end(&going, 0);
}
END_TEST

/* A process that waits takes the place of one that is lost: at the end. */
START_TEST(test_a_newcomer_takes_the_place)
{
    struct going going = begin_wishing(42000 + (uint64_t)_i, _i % 2);
    uint32_t lost = (uint32_t)_i % RANKS, node = (uint32_t)_i % NODES, newcomer;
    bool early = _i % 3 == 0;
    if (early)
        newcomer = virtual_cluster_newcomer(going.cluster, going.job, node);
    virtual_cluster_run_for(going.cluster, early ? NS_PER_MS : 0);
    virtual_cluster_kill_worker(going.cluster, going.job, lost);
    virtual_cluster_run_for(going.cluster, (uint64_t)_i * 20 * NS_PER_MS);
    if (!early)
        newcomer = virtual_cluster_newcomer(going.cluster, going.job, node);
    finish(&going, 1u << lost, 1);
    struct virtual_outcome it = virtual_cluster_outcome(going.cluster, newcomer, 0);
    ck_assert_msg(it.ended && it.code == 0, "%d %s", it.code, it.text);
    ck_assert_uint_eq(it.rank, RANKS - 1);
    ck_assert_uint_eq(it.number, outcome(&going, (lost + 1) % RANKS).number);
    virtual_cluster_destroy(going.cluster);
}
END_TEST

/* A rank that is lost, and the wait for another in vain: they go on with fewer. */
START_TEST(test_nobody_takes_the_place)
{
    struct going going = begin_wishing(42100 + (uint64_t)_i, _i % 2);
    uint32_t lost = (uint32_t)_i % RANKS;
    virtual_cluster_kill_worker(going.cluster, going.job, lost);
    end(&going, 1u << lost);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cluster_generations");
    TCase *tests = tcase_create("generations");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, test_a_rank_is_lost, 0, SEEDS);
    tcase_add_loop_test(tests, test_a_machine_is_lost, 0, SEEDS);
    tcase_add_loop_test(tests, test_a_daemon_is_lost, 0, SEEDS);
    tcase_add_loop_test(tests, test_a_daemon_is_started_again, 0, SEEDS);
    tcase_add_loop_test(tests, test_a_daemon_is_not_started_again, 0, SEEDS / 2);
    tcase_add_loop_test(tests, test_daemons_are_started_again_and_again, 0, SEEDS);
    tcase_add_loop_test(tests, test_two_ranks_are_lost, 0, SEEDS);
    tcase_add_loop_test(tests, test_one_rank_is_left, 0, SEEDS);
    tcase_add_loop_test(tests, test_homes_are_lost_while_they_decide, 0, SEEDS);
    tcase_add_loop_test(tests, test_a_server_is_lost, 0, SEEDS);
    tcase_add_loop_test(tests, test_a_newcomer_takes_the_place, 0, SEEDS);
    tcase_add_loop_test(tests, test_nobody_takes_the_place, 0, SEEDS / 2);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
