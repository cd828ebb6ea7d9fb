/* Whole clusters in one process, on virtual time: every result is compared with the reference bit
 * for bit, invariants are checked at every moment, and nothing may be left behind. */
#include "tests/lib/suite.h"
#include "tests/lib/virtual/virtual_cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/error.h"

#ifdef SHOAL_SANITIZED
#define SEEDS 6
#define PARTS_SEEDS 6
#else
#define SEEDS 12
#define PARTS_SEEDS 20
#endif

#define PARTS_KINDS                                                                                \
    (1u << COLLECTIVE_ALL_GATHER | 1u << COLLECTIVE_REDUCE_SCATTER | 1u << COLLECTIVE_GATHER |     \
     1u << COLLECTIVE_SCATTER | 1u << COLLECTIVE_ALL_TO_ALL)
/* All but sends. */
#define COLLECTIVE_KINDS ((1u << COLLECTIVE_SEND) - 1)
#define LIMIT_NS (100 * NS_PER_S)

static void assert_all_finished(const struct virtual_cluster *cluster, uint32_t job, uint32_t ranks)
{
    for (uint32_t i = 0; i < ranks; i++) {
        struct virtual_outcome outcome = virtual_cluster_outcome(cluster, job, i);
        ck_assert_msg(outcome.ended && outcome.code == 0, "rank %u: %d %s", i, outcome.code,
                      outcome.text);
    }
}

/* Beyond 8 nodes windows are smaller, and of a group on few nodes those to servers without its
 * ranks are smaller than those between its nodes. */
START_TEST(windows_of_large_rosters)
{
    uint64_t seed = (uint64_t)_i + 1;
    struct virtual_options options = {.seed = seed,
                                      .nodes = 9 + seed % 4,
                                      .window_chunks = 2 + (uint32_t)(seed % 7),
                                      .reorder = seed % 2,
                                      .shared_receives = seed % 3 == 0};
    struct virtual_cluster *cluster = virtual_cluster_create(&options);
    uint32_t rank_nodes[2][12];
    uint32_t ranks[2] = {options.nodes, 5};
    for (uint32_t i = 0; i < 12; i++) {
        rank_nodes[0][i] = i;
        rank_nodes[1][i] = i % 3 * 2;
    }
    for (uint32_t job = 0; job < 2; job++) {
        struct virtual_job description = {.name = job ? "few" : "all",
                                          .ranks = ranks[job],
                                          .rank_nodes = rank_nodes[job],
                                          .groups = 2,
                                          .collectives = 16,
                                          .most_count = 30000,
                                          .in_flight = 1 + (uint32_t)(seed % 5),
                                          .arena = true,
                                          .seed = seed * 11 + job};
        virtual_cluster_start(cluster, &description);
    }
    virtual_cluster_finish(cluster, LIMIT_NS);
    for (uint32_t job = 0; job < 2; job++)
        assert_all_finished(cluster, job, ranks[job]);
    virtual_cluster_destroy(cluster);
}
END_TEST

/* A random cluster and job, all from the seed. */
static void random_run(uint64_t seed, uint64_t most_count, bool reorder, bool shared_receives)
{
    srand48((long)seed);
    uint32_t nodes = 1 + (uint32_t)(lrand48() % 4);
    uint32_t weights[4];
    for (uint32_t i = 0; i < nodes; i++)
        weights[i] = (uint32_t)(lrand48() % 4);
    weights[lrand48() % nodes] = 2;
    struct virtual_options options = {.seed = seed,
                                      .nodes = nodes,
                                      .weights = weights,
                                      .window_chunks = 2 + (uint32_t)(lrand48() % 12),
                                      .reorder = reorder,
                                      .shared_receives = shared_receives};
    struct virtual_cluster *cluster = virtual_cluster_create(&options);
    uint32_t rank_nodes[2][8];
    uint32_t ranks[2];
    for (uint32_t job = 0; job < 2; job++) {
        ranks[job] = 1 + (uint32_t)(lrand48() % 6);
        for (uint32_t i = 0; i < ranks[job]; i++)
            rank_nodes[job][i] = (uint32_t)(lrand48() % nodes);
        struct virtual_job description = {.name = job ? "second" : "first",
                                          .ranks = ranks[job],
                                          .rank_nodes = rank_nodes[job],
                                          .groups = (uint32_t)(lrand48() % 4),
                                          .collectives = 24,
                                          .most_count = most_count,
                                          .in_flight = 1 + (uint32_t)(lrand48() % 6),
                                          .arena = true,
                                          .priorities = lrand48() % 2,
                                          .seed = seed * 7 + job};
        virtual_cluster_start(cluster, &description);
    }
    virtual_cluster_finish(cluster, LIMIT_NS);
    for (uint32_t job = 0; job < 2; job++)
        assert_all_finished(cluster, job, ranks[job]);
    virtual_cluster_destroy(cluster);
}

START_TEST(test_random_clusters)
{
    random_run(1000 + (uint64_t)_i, 9000, false, false);
}
END_TEST

START_TEST(test_random_clusters_with_reordering)
{
    random_run(2000 + (uint64_t)_i, 9000, true, false);
}
END_TEST

START_TEST(test_random_clusters_on_datagrams)
{
    random_run(3000 + (uint64_t)_i, 9000, true, true);
}
END_TEST

/* Shards of many chunks, and of different sizes. */
START_TEST(test_random_clusters_with_many_chunks)
{
    random_run(4000 + (uint64_t)_i, 40000, _i % 2, _i % 4 == 3);
}
END_TEST

/* Many blocks in small windows: several ranks on a node, which come in any order, share a window to
 * each owner, and each takes part in other blocks. */
START_TEST(test_parts_in_small_windows)
{
    uint64_t seed = 10150 + (uint64_t)_i;
    srand48((long)seed);
    uint32_t nodes = 2 + (uint32_t)(lrand48() % 2);
    uint32_t rank_nodes[8], ranks = 4 + (uint32_t)(lrand48() % 5);
    for (uint32_t i = 0; i < ranks; i++)
        rank_nodes[i] = i < nodes ? i : (uint32_t)(lrand48() % nodes);
    struct virtual_options options = {.seed = seed,
                                      .nodes = nodes,
                                      .window_chunks = 2 + (uint32_t)(lrand48() % 2),
                                      .reorder = lrand48() % 2,
                                      .shared_receives = lrand48() % 4 == 0};
    struct virtual_cluster *cluster = virtual_cluster_create(&options);
    struct virtual_job job = {.name = "parts",
                              .ranks = ranks,
                              .rank_nodes = rank_nodes,
                              .groups = (uint32_t)(lrand48() % 3),
                              .collectives = 24,
                              .most_count = 6000,
                              .in_flight = 1 + (uint32_t)(lrand48() % 4),
                              .arena = true,
                              .priorities = lrand48() % 2,
                              .kinds = PARTS_KINDS,
                              .seed = seed};
    virtual_cluster_start(cluster, &job);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_all_finished(cluster, 0, ranks);
    virtual_cluster_destroy(cluster);
}
END_TEST

/* Sends among sums: several chunks in small windows, many under way, to and from ranks of the same
 * node and of others, groups in which they have other numbers. */
static struct virtual_job sends_job(const char *name, uint64_t seed, const uint32_t *rank_nodes,
                                    uint32_t ranks)
{
    return (struct virtual_job){.name = name,
                                .ranks = ranks,
                                .rank_nodes = rank_nodes,
                                .groups = (uint32_t)(lrand48() % 3),
                                .collectives = 60,
                                .most_count = 12000,
                                .in_flight = 1 + (uint32_t)(lrand48() % 6),
                                .arena = lrand48() % 2,
                                .kinds = 1u << COLLECTIVE_SEND |
                                         (lrand48() % 2 ? 0u : 1u << COLLECTIVE_ALL_REDUCE),
                                .seed = seed};
}

static struct virtual_cluster *sends_cluster(uint64_t seed, uint32_t nodes, uint32_t *rank_nodes,
                                             uint32_t *ranks)
{
    srand48((long)seed);
    *ranks = 2 + (uint32_t)(lrand48() % 6);
    for (uint32_t i = 0; i < *ranks; i++)
        rank_nodes[i] = i < nodes ? i : (uint32_t)(lrand48() % nodes);
    struct virtual_options options = {.seed = seed,
                                      .nodes = nodes,
                                      .window_chunks = 2 + (uint32_t)(lrand48() % 3),
                                      .reorder = lrand48() % 2,
                                      .shared_receives = lrand48() % 4 == 0,
                                      .sends = true};
    return virtual_cluster_create(&options);
}

START_TEST(test_sends_among_sums)
{
    uint64_t seed = 11000 + (uint64_t)_i;
    uint32_t rank_nodes[8], ranks;
    struct virtual_cluster *cluster = sends_cluster(seed, 1 + (uint32_t)_i % 3, rank_nodes, &ranks);
    struct virtual_job job = sends_job("sends", seed, rank_nodes, ranks);
    virtual_cluster_start(cluster, &job);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_all_finished(cluster, 0, ranks);
    virtual_cluster_destroy(cluster);
}
END_TEST

static uint64_t digest_of(uint64_t seed, uint32_t nodes, uint32_t chunk_bytes, uint32_t window,
                          const uint32_t *weights)
{
    static const uint32_t rank_nodes[] = {0, 0, 1, 1, 2};
    struct virtual_options options = {.seed = seed,
                                      .nodes = nodes,
                                      .chunk_bytes = chunk_bytes,
                                      .window_chunks = window,
                                      .weights = weights,
                                      .reorder = true};
    struct virtual_cluster *cluster = virtual_cluster_create(&options);
    struct virtual_job job = {.name = "bits",
                              .ranks = 5,
                              .rank_nodes = rank_nodes,
                              .groups = 2,
                              .collectives = 20,
                              .most_count = 20000,
                              .in_flight = 4,
                              .arena = true,
                              .priorities = true,
                              .seed = 42};
    virtual_cluster_start(cluster, &job);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_all_finished(cluster, 0, 5);
    uint64_t digest = 0;
    for (uint32_t i = 0; i < 5; i++)
        digest = digest * 31 + virtual_cluster_outcome(cluster, 0, i).digest;
    virtual_cluster_destroy(cluster);
    return digest;
}

START_TEST(test_same_bits_whatever_the_timing_and_the_cut)
{
    static const uint32_t skewed[] = {5, 1, 0, 3};
    uint64_t digest = digest_of(1, 3, 4096, 4, NULL);
    ck_assert(digest == digest_of(2, 3, 4096, 4, NULL));
    ck_assert(digest == digest_of(3, 3, 16384, 2, NULL));
    ck_assert(digest == digest_of(4, 3, 65536, 16, NULL));
    ck_assert(digest == digest_of(5, 4, 8192, 3, skewed));
}
END_TEST

/* A node receives of an all-gather what it has not, once, and sends what it has to each other node,
 * though servers have no ranks and ranks are several on a node (doc/protocol/data.md). */
START_TEST(test_no_more_travels_than_must)
{
    static const enum collective_kind kinds[] = {COLLECTIVE_ALL_GATHER, COLLECTIVE_REDUCE_SCATTER,
                                                 COLLECTIVE_ALL_TO_ALL};
    static const uint32_t rank_nodes[] = {0, 1, 2, 2, 0, 1}, weights[] = {0, 1, 0, 3};
    struct virtual_options options = {.seed = 77, .nodes = 4, .weights = weights};
    struct virtual_cluster *cluster = virtual_cluster_create(&options);
    struct virtual_job job = {.name = "bytes",
                              .ranks = 6,
                              .rank_nodes = rank_nodes,
                              .collectives = 10,
                              .most_count = 9000,
                              .in_flight = 2,
                              .kinds = 1u << kinds[_i],
                              .even = true,
                              .seed = 78};
    virtual_cluster_start(cluster, &job);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_all_finished(cluster, 0, 6);
    uint64_t part_bytes = virtual_cluster_part_bytes(cluster, 0);
    ck_assert_uint_gt(part_bytes, 0);
    uint64_t parts = kinds[_i] == COLLECTIVE_ALL_TO_ALL ? 2 * 2 * 2 : 2 * 2; /* of other nodes */
    for (uint32_t node = 0; node < 4; node++) {
        struct virtual_traffic traffic = virtual_cluster_traffic(cluster, node);
        ck_assert_uint_eq(traffic.sent, node < 3 ? parts * part_bytes : 0);
        ck_assert_uint_eq(traffic.received, node < 3 ? parts * part_bytes : 0);
    }
    virtual_cluster_destroy(cluster);
}
END_TEST

/* Every rank of a job that loses one gets an error; the other job is not touched. */
START_TEST(test_a_killed_worker)
{
    uint64_t seed = 4000 + (uint64_t)_i;
    static const uint32_t rank_nodes[] = {0, 1, 2, 0};
    struct virtual_options options = {.seed = seed, .nodes = 3, .reorder = true};
    struct virtual_cluster *cluster = virtual_cluster_create(&options);
    struct virtual_job job = {.name = "hit",
                              .ranks = 4,
                              .rank_nodes = rank_nodes,
                              .groups = 2,
                              .collectives = 400,
                              .most_count = 9000,
                              .in_flight = 4,
                              .arena = true,
                              .seed = seed};
    uint32_t hit = virtual_cluster_start(cluster, &job);
    job.name = "spared";
    job.collectives = 30;
    uint32_t spared = virtual_cluster_start(cluster, &job);
    virtual_cluster_run(cluster, 500 + (uint64_t)_i * 137);
    virtual_cluster_kill_worker(cluster, hit, 2);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_all_finished(cluster, spared, 4);
    for (uint32_t i = 0; i < 4; i++) {
        struct virtual_outcome outcome = virtual_cluster_outcome(cluster, hit, i);
        ck_assert(outcome.ended);
        ck_assert_int_ne(outcome.code, 0);
        if (i != 2) /* before the job was open the join times out, naming the rank as well */
            ck_assert_msg(strstr(outcome.text, "rank 2"), "rank %u: %s", i, outcome.text);
    }
    virtual_cluster_destroy(cluster);
}
END_TEST

START_TEST(test_a_cut_link)
{
    uint64_t seed = 5000 + (uint64_t)_i;
    static const uint32_t rank_nodes[] = {0, 1, 2, 1};
    struct virtual_options options = {.seed = seed, .nodes = 3, .reorder = _i % 2 == 0};
    struct virtual_cluster *cluster = virtual_cluster_create(&options);
    struct virtual_job job = {.name = "before",
                              .ranks = 4,
                              .rank_nodes = rank_nodes,
                              .groups = 1,
                              .collectives = 400,
                              .most_count = 9000,
                              .in_flight = 4,
                              .seed = seed};
    uint32_t before = virtual_cluster_start(cluster, &job);
    virtual_cluster_run(cluster, 3000 + (uint64_t)_i * 211);
    virtual_cluster_cut(cluster, 0, 1);
    virtual_cluster_finish(cluster, LIMIT_NS);
    for (uint32_t i = 0; i < 4; i++) {
        struct virtual_outcome outcome = virtual_cluster_outcome(cluster, before, i);
        ck_assert_msg(outcome.ended && outcome.code != 0, "rank %u: %d %s", i, outcome.code,
                      outcome.text);
    }
    virtual_cluster_join_again(cluster, 0, 1);
    job.name = "after";
    job.collectives = 20;
    uint32_t after = virtual_cluster_start(cluster, &job);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_all_finished(cluster, after, 4);
    virtual_cluster_destroy(cluster);
}
END_TEST

/* Ranks that ask for different things are all told who asked for what. */
START_TEST(test_ranks_that_disagree)
{
    uint64_t seed = 6000 + (uint64_t)_i;
    static const uint32_t rank_nodes[] = {0, 0, 1, 2};
    struct virtual_options options = {.seed = seed, .nodes = 3};
    struct virtual_cluster *cluster = virtual_cluster_create(&options);
    struct virtual_job job = {.name = "mixed",
                              .ranks = 4,
                              .rank_nodes = rank_nodes,
                              .collectives = 300,
                              .most_count = 9000,
                              .in_flight = 3,
                              .arena = true,
                              .seed = seed};
    uint32_t number = virtual_cluster_start(cluster, &job);
    uint32_t culprit = (uint32_t)_i % 4;
    virtual_cluster_run(cluster, 1500);
    virtual_cluster_mislead(cluster, number, culprit);
    virtual_cluster_finish(cluster, LIMIT_NS);
    char words[64];
    snprintf(words, sizeof(words), "rank %u asked for", culprit);
    for (uint32_t i = 0; i < 4; i++) {
        struct virtual_outcome outcome = virtual_cluster_outcome(cluster, number, i);
        ck_assert_msg(outcome.code == ERR_MISMATCH, "rank %u: %d %s", i, outcome.code,
                      outcome.text);
        ck_assert_msg(strstr(outcome.text, words), "rank %u: %s", i, outcome.text);
    }
    virtual_cluster_destroy(cluster);
}
END_TEST

START_TEST(test_a_rank_that_leaves_early)
{
    static const uint32_t rank_nodes[] = {0, 1, 1};
    struct virtual_options options = {.seed = 7000 + (uint64_t)_i, .nodes = 2};
    struct virtual_cluster *cluster = virtual_cluster_create(&options);
    struct virtual_job job = {.name = "left",
                              .ranks = 3,
                              .rank_nodes = rank_nodes,
                              .collectives = 60,
                              .most_count = 5000,
                              .in_flight = 2,
                              .kinds = COLLECTIVE_KINDS,
                              .seed = 7};
    uint32_t number = virtual_cluster_start(cluster, &job);
    virtual_cluster_leave_early(cluster, number, 1, 10);
    virtual_cluster_finish(cluster, LIMIT_NS);
    ck_assert_int_eq(virtual_cluster_outcome(cluster, number, 1).code, 0);
    ck_assert_uint_eq(virtual_cluster_outcome(cluster, number, 1).finished, 10);
    for (uint32_t i = 0; i < 3; i += 2) {
        struct virtual_outcome outcome = virtual_cluster_outcome(cluster, number, i);
        ck_assert_msg(outcome.code == ERR_LOST && strstr(outcome.text, "rank 1 has left"),
                      "rank %u: %d %s", i, outcome.code, outcome.text);
        ck_assert_uint_eq(outcome.finished, 10);
    }
    virtual_cluster_destroy(cluster);
}
END_TEST

/* A rank leaves while others have sends or receives with it: those ranks learn it, and nobody waits
 * for ever. Ranks that had nothing more to do with it may have finished. */
START_TEST(test_a_rank_that_leaves_with_sends_due)
{
    uint64_t seed = 12000 + (uint64_t)_i;
    uint32_t rank_nodes[8], ranks;
    struct virtual_cluster *cluster = sends_cluster(seed, 1 + (uint32_t)_i % 3, rank_nodes, &ranks);
    struct virtual_job job = sends_job("left", seed, rank_nodes, ranks);
    job.kinds = 1u << COLLECTIVE_SEND;
    job.groups = 0; /* with several, those who lose one leave the others */
    uint32_t leaver = (uint32_t)(lrand48() % ranks);
    uint32_t number = virtual_cluster_start(cluster, &job);
    virtual_cluster_leave_early(cluster, number, leaver, (uint32_t)(lrand48() % 12));
    virtual_cluster_finish(cluster, LIMIT_NS);
    char words[64];
    snprintf(words, sizeof(words), "rank %u has left job 'left'", leaver);
    for (uint32_t i = 0; i < ranks; i++) {
        struct virtual_outcome outcome = virtual_cluster_outcome(cluster, number, i);
        ck_assert_msg(outcome.code == 0 ||
                          (outcome.code == ERR_LOST && strstr(outcome.text, words)),
                      "rank %u: %d %s", i, outcome.code, outcome.text);
    }
    virtual_cluster_destroy(cluster);
}
END_TEST

START_TEST(test_a_killed_worker_with_sends_under_way)
{
    uint64_t seed = 13000 + (uint64_t)_i;
    uint32_t rank_nodes[8], ranks;
    struct virtual_cluster *cluster = sends_cluster(seed, 1 + (uint32_t)_i % 3, rank_nodes, &ranks);
    struct virtual_job job = sends_job("hit", seed, rank_nodes, ranks);
    job.collectives = 600;
    uint32_t hit = virtual_cluster_start(cluster, &job);
    job.name = "spared";
    job.collectives = 30;
    uint32_t spared = virtual_cluster_start(cluster, &job);
    virtual_cluster_run(cluster, 500 + (uint64_t)_i * 137);
    virtual_cluster_kill_worker(cluster, hit, 1);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_all_finished(cluster, spared, ranks);
    for (uint32_t i = 0; i < ranks; i++) {
        struct virtual_outcome outcome = virtual_cluster_outcome(cluster, hit, i);
        ck_assert_msg(outcome.ended && outcome.code != 0, "rank %u: %d %s", i, outcome.code,
                      outcome.text);
        if (i != 1)
            ck_assert_msg(strstr(outcome.text, "rank 1"), "rank %u: %s", i, outcome.text);
    }
    virtual_cluster_destroy(cluster);
}
END_TEST

/* A send and its receive of different sizes: these two fail, and all else comes through. */
START_TEST(test_a_send_and_a_receive_that_disagree)
{
    uint64_t seed = 14000 + (uint64_t)_i;
    uint32_t rank_nodes[8], ranks;
    struct virtual_cluster *cluster = sends_cluster(seed, 1 + (uint32_t)_i % 3, rank_nodes, &ranks);
    struct virtual_job job = sends_job("mixed", seed, rank_nodes, ranks);
    job.collectives = 400;
    uint32_t number = virtual_cluster_start(cluster, &job);
    uint32_t refused = 0;
    for (uint32_t i = 0; i < ranks; i++) {
        virtual_cluster_run(cluster, 500);
        virtual_cluster_mislead_send(cluster, number, i);
    }
    virtual_cluster_finish(cluster, LIMIT_NS);
    for (uint32_t i = 0; i < ranks; i++) {
        struct virtual_outcome outcome = virtual_cluster_outcome(cluster, number, i);
        ck_assert_msg(outcome.code == 0, "rank %u: %d %s", i, outcome.code, outcome.text);
        refused += outcome.refused;
    }
    /* Each makes two ends fail, unless two of them meet. */
    ck_assert_uint_ge(refused, 2);
    ck_assert_uint_eq(refused % 2, 0);
    ck_assert_uint_le(refused, 2 * ranks);
    virtual_cluster_destroy(cluster);
}
END_TEST

START_TEST(test_a_late_rank_is_reported_and_the_job_goes_on)
{
    static const uint32_t rank_nodes[] = {0, 0, 1};
    struct virtual_options options = {.seed = 8000 + (uint64_t)_i, .nodes = 2};
    struct virtual_cluster *cluster = virtual_cluster_create(&options);
    struct virtual_job job = {.name = "late",
                              .ranks = 3,
                              .rank_nodes = rank_nodes,
                              .collectives = 40,
                              .most_count = 5000,
                              .in_flight = 2,
                              .kinds = COLLECTIVE_KINDS,
                              .seed = 8};
    uint32_t number = virtual_cluster_start(cluster, &job);
    uint32_t rank = (uint32_t)_i % 3;
    while (virtual_cluster_outcome(cluster, number, rank).finished < 5)
        virtual_cluster_run(cluster, 16);
    virtual_cluster_hold(cluster, number, rank, true);
    uint64_t until_ns = virtual_cluster_now_ns(cluster) + NS_PER_S;
    while (virtual_cluster_now_ns(cluster) < until_ns)
        virtual_cluster_run(cluster, 16);
    uint32_t reports =
        virtual_cluster_late_reports(cluster, 0) + virtual_cluster_late_reports(cluster, 1);
    ck_assert_uint_ge(reports, 1);
    virtual_cluster_hold(cluster, number, rank, false);
    virtual_cluster_finish(cluster, LIMIT_NS);
    assert_all_finished(cluster, number, 3);
    virtual_cluster_destroy(cluster);
}
END_TEST

START_TEST(test_jobs_in_a_row_leave_nothing)
{
    static const uint32_t rank_nodes[] = {0, 1, 1, 2};
    struct virtual_options options = {.seed = 9000, .nodes = 3};
    struct virtual_cluster *cluster = virtual_cluster_create(&options);
    uint64_t used = 0;
    for (uint32_t i = 0; i < 12; i++) {
        struct virtual_job job = {.name = "again",
                                  .ranks = 4,
                                  .rank_nodes = rank_nodes,
                                  .groups = 1,
                                  .collectives = 10,
                                  .most_count = 5000,
                                  .in_flight = 2,
                                  .seed = 5};
        uint32_t number = virtual_cluster_start(cluster, &job);
        virtual_cluster_finish(cluster, LIMIT_NS);
        assert_all_finished(cluster, number, 4);
        if (i == 0)
            used = virtual_cluster_used_bytes(cluster, 0);
        ck_assert_uint_eq(virtual_cluster_used_bytes(cluster, 0), used);
    }
    virtual_cluster_destroy(cluster);
}
END_TEST

/* A job for which another one leaves no memory is told so, in the join's answer. */
START_TEST(test_too_little_memory_is_an_answer)
{
    static const uint32_t rank_nodes[] = {0, 0, 1, 1};
    struct virtual_options options = {
        .seed = 1, .nodes = 2, .chunk_bytes = 65536, .memory_bytes = 19 * (65536 + 128)};
    struct virtual_cluster *cluster = virtual_cluster_create(&options);
    struct virtual_job job = {.name = "first",
                              .ranks = 4,
                              .rank_nodes = rank_nodes,
                              .collectives = 10,
                              .most_count = 10,
                              .in_flight = 1,
                              .seed = 1};
    uint32_t first = virtual_cluster_start(cluster, &job);
    while (virtual_cluster_outcome(cluster, first, 0).finished < 1)
        virtual_cluster_run(cluster, 16);
    virtual_cluster_hold(cluster, first, 0, true);
    job.name = "second";
    uint32_t second = virtual_cluster_start(cluster, &job);
    /* A refused worker's connection is ended by its daemon. */
    while (!virtual_cluster_outcome(cluster, second, 3).ended)
        virtual_cluster_run(cluster, 16);
    virtual_cluster_hold(cluster, first, 0, false);
    virtual_cluster_finish(cluster, LIMIT_NS);
    for (uint32_t i = 0; i < 4; i++) {
        struct virtual_outcome outcome = virtual_cluster_outcome(cluster, second, i);
        ck_assert_msg(outcome.code == ERR_MEMORY && strstr(outcome.text, "limits.memory_bytes"),
                      "%d %s", outcome.code, outcome.text);
    }
    assert_all_finished(cluster, first, 4);
    virtual_cluster_destroy(cluster);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cluster");
    TCase *random = tcase_create("random");
    tcase_set_timeout(random, 120);
    tcase_add_loop_test(random, test_random_clusters, 0, SEEDS);
    tcase_add_loop_test(random, windows_of_large_rosters, 0, SEEDS);
    tcase_add_loop_test(random, test_random_clusters_with_reordering, 0, SEEDS);
    tcase_add_loop_test(random, test_random_clusters_on_datagrams, 0, SEEDS);
    tcase_add_loop_test(random, test_random_clusters_with_many_chunks, 0, SEEDS);
    tcase_add_loop_test(random, test_parts_in_small_windows, 0, PARTS_SEEDS);
    tcase_add_loop_test(random, test_sends_among_sums, 0, 2 * SEEDS);
    tcase_add_loop_test(random, test_no_more_travels_than_must, 0, 3);
    tcase_add_test(random, test_same_bits_whatever_the_timing_and_the_cut);
    suite_add_tcase(suite, random);
    TCase *faults = tcase_create("faults");
    tcase_set_timeout(faults, 120);
    tcase_add_loop_test(faults, test_a_killed_worker, 0, SEEDS);
    tcase_add_loop_test(faults, test_a_cut_link, 0, SEEDS);
    tcase_add_loop_test(faults, test_ranks_that_disagree, 0, 4 * SEEDS);
    tcase_add_loop_test(faults, test_a_rank_that_leaves_early, 0, 4);
    tcase_add_loop_test(faults, test_a_rank_that_leaves_with_sends_due, 0, 2 * SEEDS);
    tcase_add_loop_test(faults, test_a_killed_worker_with_sends_under_way, 0, SEEDS);
    tcase_add_loop_test(faults, test_a_send_and_a_receive_that_disagree, 0, SEEDS);
    tcase_add_loop_test(faults, test_a_late_rank_is_reported_and_the_job_goes_on, 0, 3);
    tcase_add_test(faults, test_jobs_in_a_row_leave_nothing);
    tcase_add_test(faults, test_too_little_memory_is_an_answer);
    suite_add_tcase(suite, faults);
    return suite_main(suite);
}
