/* Whole clusters on virtual time whose links fail: the fabric alone, one way or both, for good or
 * for a while. */
#include "tests/lib/suite.h"
#include "tests/lib/virtual/virtual_cluster.h"

#include <string.h>

#include "common/base/clock.h"
#include "common/base/error.h"

#ifdef SHOAL_SANITIZED
#define SEEDS 3
#else
#define SEEDS 9
#endif

#define LIMIT_NS (100 * NS_PER_S)
#define SILENCE_NS (3 * NS_PER_S) /* timeouts.peer_ms by default */

static const uint32_t rank_nodes[] = {0, 1, 2, 1};
enum { RANKS = 4 };

static struct virtual_cluster *cluster_of_three(uint64_t seed, bool shared_receives)
{
    struct virtual_options options = {
        .seed = seed, .nodes = 3, .reorder = seed % 2 == 0, .shared_receives = shared_receives};
    return virtual_cluster_create(&options);
}

static struct virtual_job job_of_four(const char *name, uint64_t seed)
{
    return (struct virtual_job){.name = name,
                                .ranks = RANKS,
                                .rank_nodes = rank_nodes,
                                .groups = 1,
                                .collectives = 400,
                                .most_count = 9000,
                                .in_flight = 4,
                                .kinds = (1u << COLLECTIVE_SEND) - 1,
                                .seed = seed};
}

static void assert_finished(const struct virtual_cluster *cluster, uint32_t job)
{
    for (uint32_t i = 0; i < RANKS; i++) {
        struct virtual_outcome outcome = virtual_cluster_outcome(cluster, job, i);
        ck_assert_msg(outcome.ended && outcome.code == 0, "rank %u: %d %s", i, outcome.code,
                      outcome.text);
    }
}

/* Bits: 1: from 0 to 1 is cut, 2: from 1 to 0. */
static void cut(struct virtual_cluster *cluster, uint32_t ways, bool is_cut)
{
    if (ways & 1)
        virtual_cluster_cut_data(cluster, 0, 1, is_cut);
    if (ways & 2)
        virtual_cluster_cut_data(cluster, 1, 0, is_cut);
}

/* All ranks are told in time which link it is, by one end or the other; afterwards the cluster
 * works as before. */
static void data_cut(uint64_t seed, bool shared_receives, uint32_t ways)
{
    struct virtual_cluster *cluster = cluster_of_three(seed, shared_receives);
    struct virtual_job job = job_of_four("before", seed);
    uint32_t before = virtual_cluster_start(cluster, &job);
    virtual_cluster_run(cluster, 3000 + seed % 16 * 211);
    cut(cluster, ways, true);
    virtual_cluster_run_for(cluster, SILENCE_NS * 5 / 4);
    for (uint32_t i = 0; i < RANKS; i++) {
        struct virtual_outcome outcome = virtual_cluster_outcome(cluster, before, i);
        ck_assert_msg(outcome.ended && outcome.code == ERR_LOST &&
                          (strstr(outcome.text, "between n0 and n1") ||
                           strstr(outcome.text, "between n1 and n0")),
                      "rank %u: %d %s", i, outcome.code, outcome.text);
    }
    ck_assert_uint_ge(virtual_cluster_silences(cluster), 1);
    virtual_cluster_finish(cluster, LIMIT_NS);
    /* Where there are connections on the fabric, none is made; datagrams need none. */
    ck_assert(shared_receives || !virtual_cluster_linked(cluster, 0, 1));
    cut(cluster, ways, false);
    job.name = "after";
    job.collectives = 20;
    uint32_t after = virtual_cluster_start(cluster, &job);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_finished(cluster, after);
    virtual_cluster_destroy(cluster);
}

START_TEST(test_data_alone_is_cut)
{
    data_cut(20000 + (uint64_t)_i, false, 1 + (uint32_t)_i % 3);
}
END_TEST

START_TEST(test_data_alone_is_cut_on_datagrams)
{
    data_cut(21000 + (uint64_t)_i, true, 1 + (uint32_t)_i % 3);
}
END_TEST

/* For less than silence may last: nobody notices. */
START_TEST(test_a_short_cut_is_only_a_delay)
{
    uint64_t seed = 22000 + (uint64_t)_i;
    struct virtual_cluster *cluster = cluster_of_three(seed, false);
    struct virtual_job job = job_of_four("through", seed);
    uint32_t through = virtual_cluster_start(cluster, &job);
    virtual_cluster_run(cluster, 3000 + (uint64_t)_i * 211);
    for (int round = 0; round < 3; round++) {
        uint32_t ways = 1 + (uint32_t)(_i + round) % 3;
        cut(cluster, ways, true);
        virtual_cluster_run_for(cluster, SILENCE_NS * 3 / 4);
        cut(cluster, ways, false);
        virtual_cluster_run_for(cluster, NS_PER_MS);
    }
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_finished(cluster, through);
    ck_assert_uint_eq(virtual_cluster_silences(cluster), 0);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_uint_eq(virtual_cluster_losses(cluster, i), 0);
    virtual_cluster_destroy(cluster);
}
END_TEST

/* A rank that is away for long is waited for: the signs of life say that the links are well. */
START_TEST(test_who_waits_for_a_rank_is_not_cut_off)
{
    uint64_t seed = 23000 + (uint64_t)_i;
    struct virtual_cluster *cluster = cluster_of_three(seed, _i % 2);
    struct virtual_job job = job_of_four("patient", seed);
    uint32_t patient = virtual_cluster_start(cluster, &job);
    uint32_t rank = (uint32_t)_i % RANKS;
    virtual_cluster_run(cluster, 3000 + (uint64_t)_i * 211);
    virtual_cluster_hold(cluster, patient, rank, true);
    virtual_cluster_run_for(cluster, 3 * SILENCE_NS);
    ck_assert(!virtual_cluster_outcome(cluster, patient, 0).ended);
    virtual_cluster_hold(cluster, patient, rank, false);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_finished(cluster, patient);
    virtual_cluster_destroy(cluster);
}
END_TEST

/* Without work nobody says anything, and so nobody is missed. */
START_TEST(test_an_idle_link_may_be_cut)
{
    struct virtual_cluster *cluster = cluster_of_three(24000, false);
    virtual_cluster_run_for(cluster, NS_PER_MS);
    cut(cluster, 3, true);
    virtual_cluster_run_for(cluster, 5 * SILENCE_NS);
    ck_assert(virtual_cluster_linked(cluster, 0, 1));
    cut(cluster, 3, false);
    struct virtual_job job = job_of_four("later", 24000);
    job.collectives = 20;
    uint32_t later = virtual_cluster_start(cluster, &job);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_finished(cluster, later);
    virtual_cluster_destroy(cluster);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cluster_links");
    TCase *cuts = tcase_create("cuts");
    tcase_set_timeout(cuts, 120);
    tcase_add_loop_test(cuts, test_data_alone_is_cut, 0, SEEDS);
    tcase_add_loop_test(cuts, test_data_alone_is_cut_on_datagrams, 0, SEEDS);
    tcase_add_test(cuts, test_an_idle_link_may_be_cut);
    suite_add_tcase(suite, cuts);
    TCase *delays = tcase_create("delays");
    tcase_set_timeout(delays, 120);
    tcase_add_loop_test(delays, test_a_short_cut_is_only_a_delay, 0, SEEDS);
    suite_add_tcase(suite, delays);
    TCase *waits = tcase_create("waits");
    tcase_set_timeout(waits, 120);
    tcase_add_loop_test(waits, test_who_waits_for_a_rank_is_not_cut_off, 0, SEEDS);
    suite_add_tcase(suite, waits);
    return suite_main(suite);
}
