/* Whole clusters on virtual time in which a daemon stands still for a while, or its heartbeats come
 * late: for less than timeouts.peer_ms that is nothing but time; for more it is a loss, by name. */
#include "tests/lib/suite.h"
#include "tests/lib/virtual/virtual_cluster.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/error.h"

#ifdef SHOAL_SANITIZED
#define SEEDS 3
#else
#define SEEDS 6
#endif

#define LIMIT_NS (200 * NS_PER_S)
#define SILENCE_NS (3 * NS_PER_S) /* timeouts.peer_ms by default */
#define SHORT_NS (SILENCE_NS * 2 / 3)
#define SETTLED_NS (10 * NS_PER_S)

enum { NODES = 3, RANKS = 4 };
static const uint32_t rank_nodes[] = {0, 1, 2, 1};

static struct virtual_cluster *cluster_of_three(uint64_t seed, bool shared_receives)
{
    struct virtual_options options = {
        .seed = seed, .nodes = NODES, .reorder = seed % 2 == 0, .shared_receives = shared_receives};
    return virtual_cluster_create(&options);
}

static uint32_t job_start(struct virtual_cluster *cluster, const char *name, uint64_t seed,
                          uint32_t collectives)
{
    struct virtual_job job = {.name = name,
                              .ranks = RANKS,
                              .rank_nodes = rank_nodes,
                              .groups = 1,
                              .collectives = collectives,
                              .most_count = 9000,
                              .in_flight = 4,
                              .kinds = (1u << COLLECTIVE_SEND) - 1,
                              .seed = seed};
    return virtual_cluster_start(cluster, &job);
}

static void assert_finished(const struct virtual_cluster *cluster, uint32_t job)
{
    for (uint32_t i = 0; i < RANKS; i++) {
        struct virtual_outcome outcome = virtual_cluster_outcome(cluster, job, i);
        ck_assert_msg(outcome.ended && outcome.code == 0, "rank %u: %d %s", i, outcome.code,
                      outcome.text);
    }
}

static void assert_nobody_lost(const struct virtual_cluster *cluster)
{
    for (uint32_t i = 0; i < NODES; i++)
        ck_assert_uint_eq(virtual_cluster_losses(cluster, i), 0);
    ck_assert_uint_eq(virtual_cluster_silences(cluster), 0);
}

static void assert_all_linked(const struct virtual_cluster *cluster)
{
    for (uint32_t a = 0; a < NODES; a++) {
        for (uint32_t b = a + 1; b < NODES; b++)
            ck_assert(virtual_cluster_linked(cluster, a, b));
    }
}

/* --- pauses ----------------------------------------------------------------------------------- */

START_TEST(test_a_short_pause_is_nothing_but_time)
{
    uint64_t seed = 26000 + (uint64_t)_i;
    struct virtual_cluster *cluster = cluster_of_three(seed, _i % 3 == 2);
    uint32_t job = job_start(cluster, "paused", seed, 300);
    virtual_cluster_run(cluster, 20 + (uint64_t)_i * 977);
    for (uint32_t round = 0; round < 4; round++) {
        uint32_t node = ((uint32_t)_i + round) % NODES;
        virtual_cluster_pause(cluster, node, true);
        virtual_cluster_run_for(cluster, SHORT_NS);
        virtual_cluster_pause(cluster, node, false);
        virtual_cluster_run_for(cluster, 200000);
    }
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_finished(cluster, job);
    assert_nobody_lost(cluster);
    virtual_cluster_destroy(cluster);
}
END_TEST

/* The others lose it while it stands still. Its own ranks do not wait longer for it than they. When
 * it goes on it hears that it was lost, connects again, and all is as before. */
START_TEST(test_a_long_pause_is_a_loss)
{
    uint64_t seed = 26100 + (uint64_t)_i;
    uint32_t node = (uint32_t)_i % NODES;
    char lost[32], own[96];
    struct virtual_cluster *cluster = cluster_of_three(seed, _i % 3 == 2);
    uint32_t before = job_start(cluster, "before", seed, 20);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_finished(cluster, before);
    uint64_t used = virtual_cluster_used_bytes(cluster, node);
    uint32_t hit = job_start(cluster, "hit", seed, 400);
    while (!virtual_cluster_outcome(cluster, hit, 0).joined)
        virtual_cluster_run(cluster, 16);
    virtual_cluster_run(cluster, 100 + (uint64_t)_i * 977);
    virtual_cluster_pause(cluster, node, true);
    virtual_cluster_run_for(cluster, SILENCE_NS * 3 / 2);
    snprintf(lost, sizeof(lost), "node n%u", node);
    snprintf(own, sizeof(own), "the daemon of this node (n%u) has not answered for 3000 ms", node);
    for (uint32_t i = 0; i < RANKS; i++) {
        struct virtual_outcome outcome = virtual_cluster_outcome(cluster, hit, i);
        bool its = rank_nodes[i] == node;
        ck_assert_msg(outcome.ended && outcome.code == (its ? ERR_DISCONNECTED : ERR_LOST) &&
                          strstr(outcome.text, its ? own : lost),
                      "rank %u: %d %s", i, outcome.code, outcome.text);
    }
    ck_assert_uint_eq(virtual_cluster_losses(cluster, node), 0); /* it does not know yet */
    virtual_cluster_pause(cluster, node, false);
    virtual_cluster_run_for(cluster, NS_PER_MS);
    ck_assert_uint_eq(virtual_cluster_losses(cluster, node), NODES - 1);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_all_linked(cluster);
    uint32_t after = job_start(cluster, "after", seed, 20);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_finished(cluster, after);
    ck_assert_uint_eq(virtual_cluster_used_bytes(cluster, node), used);
    virtual_cluster_destroy(cluster);
}
END_TEST

/* Two that stood still at the same time find what the other has said meanwhile. */
START_TEST(test_a_pause_of_all_daemons)
{
    uint64_t seed = 26200 + (uint64_t)_i;
    struct virtual_cluster *cluster = cluster_of_three(seed, _i % 3 == 2);
    uint32_t job = job_start(cluster, "paused", seed, 300);
    virtual_cluster_run(cluster, 20 + (uint64_t)_i * 977);
    for (uint32_t i = 0; i < NODES; i++)
        virtual_cluster_pause(cluster, i, true);
    virtual_cluster_run_for(cluster, SHORT_NS);
    for (uint32_t i = 0; i < NODES; i++)
        virtual_cluster_pause(cluster, i, false);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_finished(cluster, job);
    assert_nobody_lost(cluster);
    virtual_cluster_destroy(cluster);
}
END_TEST

/* All ranks of the job have failed; those of other nodes name that node. */
static void assert_lost(const struct virtual_cluster *cluster, uint32_t job, uint32_t node)
{
    char name[32];
    snprintf(name, sizeof(name), "node n%u", node);
    for (uint32_t i = 0; i < RANKS; i++) {
        struct virtual_outcome outcome = virtual_cluster_outcome(cluster, job, i);
        ck_assert_msg(outcome.ended && outcome.code != 0, "rank %u: %d %s", i, outcome.code,
                      outcome.text);
        ck_assert_msg(rank_nodes[i] == node || strstr(outcome.text, name), "rank %u: %d %s", i,
                      outcome.code, outcome.text);
    }
}

/* A daemon that is killed where it stands. */
START_TEST(test_a_paused_daemon_dies)
{
    uint64_t seed = 26300 + (uint64_t)_i;
    uint32_t node = (uint32_t)_i % NODES;
    struct virtual_cluster *cluster = cluster_of_three(seed, _i % 3 == 2);
    uint32_t hit = job_start(cluster, "hit", seed, 4000);
    virtual_cluster_run(cluster, 2000 + (uint64_t)_i * 977);
    virtual_cluster_pause(cluster, node, true);
    virtual_cluster_run_for(cluster, (uint64_t)_i * NS_PER_S / 2);
    virtual_cluster_kill_daemon(cluster, node);
    virtual_cluster_run_for(cluster, NS_PER_S);
    virtual_cluster_return(cluster, node);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_lost(cluster, hit, node);
    uint32_t after = job_start(cluster, "after", seed, 20);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_finished(cluster, after);
    virtual_cluster_destroy(cluster);
}
END_TEST

/* --- heartbeats ------------------------------------------------------------------------------- */

START_TEST(test_heartbeats_a_little_late)
{
    uint64_t seed = 26400 + (uint64_t)_i;
    struct virtual_cluster *cluster = cluster_of_three(seed, _i % 3 == 2);
    uint32_t job = job_start(cluster, "late", seed, 200);
    for (uint32_t round = 0; round < 4; round++) {
        uint32_t from = ((uint32_t)_i + round) % NODES;
        virtual_cluster_run(cluster, 20 + (uint64_t)_i * 311);
        virtual_cluster_delay_control(cluster, from, (from + 1) % NODES, SHORT_NS);
        virtual_cluster_run_for(cluster, SHORT_NS + NS_PER_MS);
    }
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_finished(cluster, job);
    assert_nobody_lost(cluster);
    virtual_cluster_destroy(cluster);
}
END_TEST

/* Data flows as ever, and yet a peer without heartbeats is lost: the side that misses them says so,
 * and the other one hears that it is cut off. */
START_TEST(test_heartbeats_too_late)
{
    uint64_t seed = 26500 + (uint64_t)_i;
    uint32_t from = (uint32_t)_i % NODES, to = (from + 1 + (uint32_t)_i / 3) % NODES;
    to = to == from ? (to + 1) % NODES : to;
    char silent[64], cut_off[80];
    bool told = false;
    struct virtual_cluster *cluster = cluster_of_three(seed, _i % 3 == 2);
    uint32_t hit = job_start(cluster, "hit", seed, 400);
    while (!virtual_cluster_outcome(cluster, hit, 0).joined)
        virtual_cluster_run(cluster, 16);
    virtual_cluster_hold(cluster, hit, 0, true); /* it is to last so long */
    virtual_cluster_delay_control(cluster, from, to, SILENCE_NS * 3 / 2);
    virtual_cluster_run_for(cluster, SILENCE_NS * 5 / 4);
    snprintf(silent, sizeof(silent), "node n%u (", from);
    snprintf(cut_off, sizeof(cut_off), "node n%u (", to);
    for (uint32_t i = 0; i < RANKS; i++) {
        struct virtual_outcome outcome = virtual_cluster_outcome(cluster, hit, i);
        bool missed = strstr(outcome.text, silent) &&
                      strstr(outcome.text, "is gone: no heartbeat for 3000 ms");
        ck_assert_msg(
            outcome.ended && outcome.code == ERR_LOST &&
                (missed || (strstr(outcome.text, cut_off) && strstr(outcome.text, "has closed"))),
            "rank %u: %d %s", i, outcome.code, outcome.text);
        told |= missed;
    }
    ck_assert(told);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_all_linked(cluster);
    uint32_t after = job_start(cluster, "after", seed, 20);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_finished(cluster, after);
    virtual_cluster_destroy(cluster);
}
END_TEST

/* Without any job, too; and whoever is idle is not lost for it. */
START_TEST(test_an_idle_cluster_has_heartbeats)
{
    struct virtual_cluster *cluster = cluster_of_three(26600, false);
    virtual_cluster_run_for(cluster, 5 * SILENCE_NS);
    assert_all_linked(cluster);
    assert_nobody_lost(cluster);
    virtual_cluster_delay_control(cluster, 2, 0, SILENCE_NS * 5 / 4);
    virtual_cluster_run_for(cluster, SILENCE_NS * 9 / 8);
    ck_assert_uint_eq(virtual_cluster_losses(cluster, 0), 1);
    ck_assert_uint_eq(virtual_cluster_losses(cluster, 1), 0);
    ck_assert_uint_eq(virtual_cluster_losses(cluster, 2), 1);
    virtual_cluster_run_for(cluster, SETTLED_NS);
    assert_all_linked(cluster);
    virtual_cluster_destroy(cluster);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cluster_pauses");
    TCase *pauses = tcase_create("pauses");
    tcase_set_timeout(pauses, 120);
    tcase_add_loop_test(pauses, test_a_short_pause_is_nothing_but_time, 0, SEEDS);
    tcase_add_loop_test(pauses, test_a_long_pause_is_a_loss, 0, SEEDS);
    tcase_add_loop_test(pauses, test_a_pause_of_all_daemons, 0, SEEDS / 3);
    tcase_add_loop_test(pauses, test_a_paused_daemon_dies, 0, SEEDS);
    suite_add_tcase(suite, pauses);
    TCase *heartbeats = tcase_create("heartbeats");
    tcase_set_timeout(heartbeats, 120);
    tcase_add_loop_test(heartbeats, test_heartbeats_a_little_late, 0, SEEDS);
    tcase_add_loop_test(heartbeats, test_heartbeats_too_late, 0, SEEDS);
    tcase_add_test(heartbeats, test_an_idle_cluster_has_heartbeats);
    suite_add_tcase(suite, heartbeats);
    return suite_main(suite);
}
