/* Whole clusters on virtual time whose daemons die, with their machine or without, in any state,
 * and return as others: with nothing but their configuration, and of another incarnation. */
#include "tests/lib/suite.h"
#include "tests/lib/virtual/virtual_cluster.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "tests/lib/job_name.h"

#ifdef SHOAL_SANITIZED
#define SEEDS 4
#else
#define SEEDS 12
#endif

#define LIMIT_NS (200 * NS_PER_S)
#define SILENCE_NS (3 * NS_PER_S) /* timeouts.peer_ms by default */
#define SETTLED_NS (10 * NS_PER_S)

enum { NODES = 3, RANKS = 4 };
static const uint32_t rank_nodes[] = {0, 1, 2, 1};

static struct virtual_job job_of_four(const char *name, uint64_t seed, uint32_t collectives)
{
    return (struct virtual_job){.name = name,
                                .ranks = RANKS,
                                .rank_nodes = rank_nodes,
                                .groups = 1,
                                .collectives = collectives,
                                .most_count = 9000,
                                .in_flight = 4,
                                .arena = seed % 2,
                                .kinds = (1u << COLLECTIVE_SEND) - 1,
                                .seed = seed};
}

static void assert_finished(const struct virtual_cluster *cluster, uint32_t job, uint32_t ranks)
{
    for (uint32_t i = 0; i < ranks; i++) {
        struct virtual_outcome outcome = virtual_cluster_outcome(cluster, job, i);
        ck_assert_msg(outcome.ended && outcome.code == 0, "rank %u: %d %s", i, outcome.code,
                      outcome.text);
    }
}

static void kill(struct virtual_cluster *cluster, uint32_t node, bool machine)
{
    if (machine)
        virtual_cluster_switch_off(cluster, node);
    else
        virtual_cluster_kill_daemon(cluster, node);
}

/* A job of all nodes runs, with the right bits. */
static void run_job(struct virtual_cluster *cluster, const char *name, uint64_t seed)
{
    struct virtual_job job = job_of_four(name, seed, 20);
    uint32_t number = virtual_cluster_start(cluster, &job);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_finished(cluster, number, RANKS);
}

/* The ranks of an open job know in time who is gone. */
static void assert_told(const struct virtual_cluster *cluster, uint32_t job, uint32_t node,
                        const bool joined[RANKS])
{
    char lost[32], own[64];
    snprintf(lost, sizeof(lost), "node n%u", node);
    snprintf(own, sizeof(own), "the daemon of this node (n%u) went away", node);
    for (uint32_t i = 0; i < RANKS; i++) {
        struct virtual_outcome outcome = virtual_cluster_outcome(cluster, job, i);
        if (!joined[i])
            continue;
        ck_assert_msg(outcome.ended && outcome.code != 0, "rank %u: %d %s", i, outcome.code,
                      outcome.text);
        if (rank_nodes[i] != node)
            ck_assert_msg(outcome.code == ERR_LOST && strstr(outcome.text, lost), "rank %u: %d %s",
                          i, outcome.code, outcome.text);
        else
            ck_assert_msg(outcome.code == ERR_STATE ||
                              (outcome.code == ERR_DISCONNECTED && strcmp(outcome.text, own) == 0),
                          "rank %u: %d %s", i, outcome.code, outcome.text);
    }
}

/* away_ns: until it is back. */
static void death_and_return(uint64_t seed, uint32_t node, bool machine, bool shared_receives,
                             uint64_t away_ns)
{
    struct virtual_options options = {
        .seed = seed, .nodes = NODES, .reorder = seed % 3 == 0, .shared_receives = shared_receives};
    struct virtual_cluster *cluster = virtual_cluster_create(&options);
    run_job(cluster, "before", seed);
    uint64_t used[NODES];
    for (uint32_t i = 0; i < NODES; i++)
        used[i] = virtual_cluster_used_bytes(cluster, i);

    struct virtual_job job = job_of_four("hit", seed, 400);
    uint32_t hit = virtual_cluster_start(cluster, &job);
    virtual_cluster_run(cluster, 20 + seed * 977 % 9000);
    bool joined[RANKS];
    for (uint32_t i = 0; i < RANKS; i++)
        joined[i] = virtual_cluster_outcome(cluster, hit, i).joined;
    kill(cluster, node, machine);
    ck_assert(!virtual_cluster_alive(cluster, node));
    virtual_cluster_run_for(cluster, away_ns);
    if (away_ns <= SILENCE_NS) {
        virtual_cluster_return(cluster, node);
        virtual_cluster_run_for(cluster, SILENCE_NS * 5 / 4 - away_ns);
    }
    assert_told(cluster, hit, node, joined);
    virtual_cluster_return(cluster, node);
    virtual_cluster_finish(cluster, LIMIT_NS);

    run_job(cluster, "after", seed); /* its groups are those of the jobs before */
    for (uint32_t i = 0; i < NODES; i++)
        ck_assert_uint_eq(virtual_cluster_used_bytes(cluster, i), used[i]);
    virtual_cluster_destroy(cluster);
}

START_TEST(test_a_daemon_dies_and_returns)
{
    death_and_return(25000 + (uint64_t)_i, (uint32_t)_i % NODES, false, _i % 4 == 3,
                     SILENCE_NS * 5 / 4);
}
END_TEST

START_TEST(test_a_machine_dies_and_returns)
{
    death_and_return(25100 + (uint64_t)_i, (uint32_t)_i % NODES, true, _i % 4 == 3,
                     SILENCE_NS * 5 / 4);
}
END_TEST

/* Before anybody has missed it: of the older connection the others hear only from the new daemon.
 */
START_TEST(test_a_machine_is_back_before_it_is_missed)
{
    death_and_return(25200 + (uint64_t)_i, (uint32_t)_i % NODES, true, _i % 4 == 3,
                     SILENCE_NS / 4 + (uint64_t)_i * 50 * NS_PER_MS);
}
END_TEST

/* A job that has nothing to do with the node goes on as if nothing had happened. */
START_TEST(test_a_job_of_others_goes_on)
{
    static const uint32_t weights[] = {1, 1, 0}, others[] = {0, 1, 1, 0};
    uint64_t seed = 25300 + (uint64_t)_i;
    char name[64];
    struct virtual_options options = {.seed = seed, .nodes = NODES, .weights = weights};
    struct virtual_cluster *cluster = virtual_cluster_create(&options);
    struct virtual_job job = job_of_four("hit", seed, 400);
    uint32_t hit = virtual_cluster_start(cluster, &job);
    job = job_of_four(name, seed + 1, 60);
    job_name_with_home(name, "spared", (uint32_t)_i % 2, NODES);
    job.rank_nodes = others;
    uint32_t spared = virtual_cluster_start(cluster, &job);
    virtual_cluster_run(cluster, 20 + (uint64_t)_i * 607);
    kill(cluster, 2, _i % 2);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_finished(cluster, spared, RANKS);
    for (uint32_t i = 0; i < RANKS; i++)
        ck_assert_int_ne(virtual_cluster_outcome(cluster, hit, i).code, 0);
    virtual_cluster_return(cluster, 2);
    virtual_cluster_run_for(cluster, SETTLED_NS);
    ck_assert(virtual_cluster_linked(cluster, 0, 2) && virtual_cluster_linked(cluster, 1, 2));
    virtual_cluster_destroy(cluster);
}
END_TEST

/* The job's home dies, which has nothing else to do with it. Whether the job came after all. */
static bool home_dies(uint64_t seed, uint64_t after_ns)
{
    static const uint32_t weights[] = {1, 1, 0}, others[] = {0, 1, 1, 0};
    char name[64];
    struct virtual_options options = {.seed = seed, .nodes = NODES, .weights = weights};
    struct virtual_cluster *cluster = virtual_cluster_create(&options);
    virtual_cluster_run_for(cluster, NS_PER_S);
    struct virtual_job job = job_of_four(name, seed, 20);
    job_name_with_home(name, "gathering", 2, NODES);
    job.rank_nodes = others;
    uint32_t number = virtual_cluster_start(cluster, &job);
    virtual_cluster_run_for(cluster, after_ns);
    kill(cluster, 2, seed % 2);
    virtual_cluster_run_for(cluster, NS_PER_S);
    virtual_cluster_return(cluster, 2);
    virtual_cluster_finish(cluster, LIMIT_NS);
    bool came = virtual_cluster_outcome(cluster, number, 0).code == 0;
    for (uint32_t i = 0; i < RANKS; i++) {
        struct virtual_outcome outcome = virtual_cluster_outcome(cluster, number, i);
        ck_assert_msg(came ? outcome.code == 0
                           : outcome.code == ERR_LOST && strstr(outcome.text, "node n2"),
                      "rank %u: %d %s", i, outcome.code, outcome.text);
    }
    virtual_cluster_destroy(cluster);
    return came;
}

/* Ranks that gather ask the home anew when it is back; an open job ends with its home. */
START_TEST(test_a_home_that_is_back_is_asked_again)
{
    uint32_t came = 0;
    for (uint64_t i = 0; i < SEEDS; i++)
        came += home_dies(25500 + i, i * 2 * NS_PER_MS / SEEDS);
    ck_assert_uint_ge(came, 1);
    ck_assert_uint_lt(came, SEEDS);
}
END_TEST

/* All die, one after the other or at once, and are there again: nothing is left of before. */
START_TEST(test_all_daemons_die)
{
    uint64_t seed = 25400 + (uint64_t)_i;
    struct virtual_options options = {.seed = seed, .nodes = NODES};
    struct virtual_cluster *cluster = virtual_cluster_create(&options);
    struct virtual_job job = job_of_four("hit", seed, 400);
    uint32_t hit = virtual_cluster_start(cluster, &job);
    virtual_cluster_run(cluster, 3000 + (uint64_t)_i * 607);
    for (uint32_t i = 0; i < NODES; i++) {
        kill(cluster, i, false);
        virtual_cluster_run_for(cluster, (uint64_t)_i % 3 * 10000);
    }
    for (uint32_t i = 0; i < NODES; i++)
        virtual_cluster_return(cluster, i);
    virtual_cluster_run_for(cluster, SILENCE_NS);
    for (uint32_t i = 0; i < RANKS; i++) {
        struct virtual_outcome outcome = virtual_cluster_outcome(cluster, hit, i);
        ck_assert_msg(outcome.ended && outcome.code != 0, "rank %u: %d %s", i, outcome.code,
                      outcome.text);
    }
    run_job(cluster, "after", seed);
    virtual_cluster_destroy(cluster);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cluster_daemons");
    TCase *deaths = tcase_create("deaths");
    tcase_set_timeout(deaths, 120);
    tcase_add_loop_test(deaths, test_a_daemon_dies_and_returns, 0, SEEDS);
    tcase_add_loop_test(deaths, test_a_machine_dies_and_returns, 0, SEEDS);
    tcase_add_loop_test(deaths, test_a_machine_is_back_before_it_is_missed, 0, SEEDS);
    tcase_add_loop_test(deaths, test_a_job_of_others_goes_on, 0, SEEDS / 2);
    tcase_add_test(deaths, test_a_home_that_is_back_is_asked_again);
    tcase_add_loop_test(deaths, test_all_daemons_die, 0, SEEDS / 4);
    suite_add_tcase(suite, deaths);
    return suite_main(suite);
}
