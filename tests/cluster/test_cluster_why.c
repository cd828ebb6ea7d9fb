/* Whole clusters on virtual time in which one rank comes late, or none: whom the daemons' accounts
 * name, and what they say of a step. */
#include "tests/lib/suite.h"
#include "tests/lib/virtual/virtual_cluster.h"

#include "common/base/clock.h"

#ifdef SHOAL_SANITIZED
#define SEEDS 2
#else
#define SEEDS 5
#endif

#define LIMIT_NS (200 * NS_PER_S)
#define LATE_NS (30 * NS_PER_MS)
#define STEP_NS (NS_PER_MS / 2) /* in which all ranks go on */
#define CYCLES 60

enum { NODES = 3, RANKS = 5 };
static const uint32_t rank_nodes[RANKS] = {0, 1, 2, 1, 0};

static struct virtual_cluster *cluster_start(uint64_t seed, uint32_t nodes, uint32_t *job)
{
    static const uint32_t one_node[RANKS] = {0};
    struct virtual_options options = {.seed = seed, .nodes = nodes, .reorder = seed % 2 == 0};
    struct virtual_job what = {.name = "why",
                               .ranks = RANKS,
                               .rank_nodes = nodes == 1 ? one_node : rank_nodes,
                               .collectives = 5000,
                               .most_count = 3000,
                               .in_flight = 1,
                               .kinds = 1u << COLLECTIVE_ALL_REDUCE,
                               .seed = seed};
    struct virtual_cluster *cluster = virtual_cluster_create(&options);
    *job = virtual_cluster_start(cluster, &what);
    virtual_cluster_run_for(cluster, 20 * NS_PER_MS);
    return cluster;
}

static void cluster_end(struct virtual_cluster *cluster, uint32_t job)
{
    for (uint32_t rank = 0; rank < RANKS; rank++)
        virtual_cluster_kill_worker(cluster, job, rank);
    virtual_cluster_finish(cluster, virtual_cluster_now_ns(cluster) + LIMIT_NS);
    virtual_cluster_destroy(cluster);
}

/* All ranks stand still between steps; those that are not late go on first. */
static struct verdict verdict_of(struct virtual_cluster *cluster, uint32_t job, uint32_t late)
{
    struct verdict verdict;
    for (int i = 0; i < CYCLES; i++) {
        virtual_cluster_hold(cluster, job, late, true);
        virtual_cluster_run_for(cluster, LATE_NS);
        virtual_cluster_hold(cluster, job, late, false);
        virtual_cluster_run_for(cluster, STEP_NS);
    }
    virtual_cluster_why(cluster, &verdict);
    return verdict;
}

static void late_rank(uint64_t seed, uint32_t nodes)
{
    uint32_t job, late = (uint32_t)(seed % RANKS);
    struct virtual_cluster *cluster = cluster_start(seed, nodes, &job);
    struct verdict verdict = verdict_of(cluster, job, late);
    ck_assert_msg(verdict.kind == VERDICT_RANK_LATE && verdict.rank == late &&
                      verdict.node == (nodes == 1 ? 0 : rank_nodes[late]),
                  "%s: rank %u, node %u; rank %u was", verdict_kind_name(verdict.kind),
                  verdict.rank, verdict.node, late);
    /* A step takes 30.5 ms, of which 30 are the late rank's own, and the job ran without them at
     * first. In the rest there are a few collectives: how many is a matter of the seed, which
     * orders messages. */
    double part = verdict.lost_ms / verdict.step_ms;
    ck_assert_msg(part > 0.84 && part < 0.99, "%.3f of a step", part);
    cluster_end(cluster, job);
}

START_TEST(a_late_rank_of_several_nodes_is_named)
{
    late_rank((uint64_t)_i, NODES);
}
END_TEST

START_TEST(a_late_rank_of_one_node_is_named)
{
    late_rank((uint64_t)_i, 1);
}
END_TEST

START_TEST(where_nobody_is_late_no_rank_is_named)
{
    struct verdict verdict;
    uint32_t job;
    struct virtual_cluster *cluster = cluster_start((uint64_t)_i, NODES, &job);
    virtual_cluster_run_for(cluster, 20 * NS_PER_MS);
    virtual_cluster_why(cluster, &verdict);
    ck_assert_msg(verdict.kind != VERDICT_UNKNOWN && verdict.lost_ms < verdict.step_ms / 3,
                  "%s: rank %u, node %u: %.3f of %.3f ms", verdict_kind_name(verdict.kind),
                  verdict.rank, verdict.node, verdict.lost_ms, verdict.step_ms);
    cluster_end(cluster, job);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cluster_why");
    TCase *cases = tcase_create("cluster_why");
    tcase_set_timeout(cases, 300);
    tcase_add_loop_test(cases, a_late_rank_of_several_nodes_is_named, 0, SEEDS);
    tcase_add_loop_test(cases, a_late_rank_of_one_node_is_named, 0, SEEDS);
    tcase_add_loop_test(cases, where_nobody_is_late_no_rank_is_named, 0, SEEDS);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
