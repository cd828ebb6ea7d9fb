#include "common/format/window.h"

#include "common/format/wire.h"
#include "tests/lib/suite.h"

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg("%s", #condition);                                                        \
    } while (0)

START_TEST(the_window_shrinks_beyond_8_nodes)
{
    static const struct {
        uint32_t configured, nodes, window;
    } cases[] = {
        {16, 1, 16},    {16, 8, 16}, {16, 9, 14},  {16, 32, 4}, {16, 33, 4}, {16, 1024, 4},
        {256, 1024, 4}, {2, 1, 2},   {2, 1024, 2}, {3, 9, 3},   {5, 16, 4},  {256, 300, 6},
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        ck_assert_uint_eq(window_chunks(cases[i].configured, cases[i].nodes), cases[i].window);
    for (uint32_t configured = 2; configured <= 256; configured++) {
        for (uint32_t nodes = 2; nodes <= 1024; nodes++) {
            uint32_t window = window_chunks(configured, nodes);
            EXPECT(window >= 2 && window <= window_chunks(configured, nodes - 1));
            EXPECT(window <= configured && (window >= 4 || window == configured));
            EXPECT(window <= 4 || window * nodes <= configured * 8 || nodes <= 8);
        }
    }
}
END_TEST

START_TEST(below_it_a_pipeline_is_kept_full)
{
    static const struct {
        uint32_t pieces, window;
    } shards[] = {{0, 4}, {1, 4}, {19, 4}, {20, 5}, {128, 32}, {UINT32_MAX, UINT32_MAX / 4}};
    for (unsigned i = 0; i < sizeof(shards) / sizeof(shards[0]); i++)
        ck_assert_uint_eq(window_of_shard(shards[i].pieces), shards[i].window);
    ck_assert_uint_eq(window_of_lead(4, 8, 16), 8);
    ck_assert_uint_eq(window_of_lead(64, 7, 16), 8);
    ck_assert_uint_eq(window_of_lead(64, 9, 16), 9);
    ck_assert_uint_eq(window_of_lead(10, UINT32_MAX, 16), 10);
    ck_assert_uint_eq(window_of_lead(64, 64, 16), 16);
    ck_assert_uint_eq(window_of_lead(4, 8, 2), 2);
    ck_assert_uint_eq(window_of_gathered(64, 1u << 19, 1u << 16, 1), 64);
    ck_assert_uint_eq(window_of_gathered(64, 1u << 19, 1u << 16, 2), 4);
    ck_assert_uint_eq(window_of_gathered(64, 1u << 19, 1u << 16, 3), 2);
    ck_assert_uint_eq(window_of_gathered(64, UINT32_MAX, UINT32_MAX, 1023), 2);
    ck_assert_uint_eq(window_of_gathered(3, 1u << 19, 1u << 16, 2), 3);
    ck_assert_uint_eq(window_of_gathered(64, UINT32_MAX, 1, 2), 64);
    ck_assert_uint_eq(window_of_gathered(4, 1u << 19, 0, 3), 4); /* chunks without data */
    ck_assert_uint_eq(window_of_network(1u << 19, 1u << 16), 8);
    ck_assert_uint_eq(window_of_network(1u << 19, (1u << 16) + 64), 7);
    ck_assert_uint_eq(window_of_network(1u << 19, 1u << 18), 4);
    ck_assert_uint_eq(window_of_network(1, 16u << 20), 4);
    ck_assert_uint_eq(window_of_network(1, 0), UINT32_MAX); /* chunks without data */
}
END_TEST

START_TEST(what_a_peer_may_send_has_receives)
{
    ck_assert_uint_eq(window_receives(16, false, false), 0);
    ck_assert_uint_eq(window_receives(16, true, false), 18);
    ck_assert_uint_eq(window_receives(16, false, true), 18);
    ck_assert_uint_eq(window_receives(16, true, true), 35);
    ck_assert_uint_eq(window_sums(16, 2), 32);
    ck_assert_uint_eq(window_sums(256, 1u << 31), 256ull << 31);
}
END_TEST

START_TEST(the_most_of_any_group)
{
    /* alone: no group has an owner elsewhere */
    ck_assert_uint_eq(window_buffers_most(16, 1, 1, true), 0);
    /* doc/design/memory.md's example: two nodes of two ranks, both servers */
    ck_assert_uint_eq(window_buffers_most(16, 2, 2, true), 35 + 32);
    ck_assert_uint_eq(window_buffers_most(16, 2, 1, true), 67);
    ck_assert_uint_eq(window_buffers_most(16, 2, 1, false), 67);
    /* three nodes: a group over all is the largest */
    ck_assert_uint_eq(window_buffers_most(4, 3, 3, true), 4 * 3 + 2 * 11);
    /* between, a smaller group needs more: larger windows, beside those to the servers outside */
    ck_assert_uint_eq(window_buffers_most(16, 20, 20, true), 7 * 35 + 12 * 8 + 8 * 16 + 12 * 6);
    /* of large rosters the largest group is again one over all nodes */
    ck_assert_uint_eq(window_buffers_most(16, 1000, 1000, true), 4 * 1000 + 999 * 11);
    ck_assert_uint_eq(window_buffers_most(16, 1000, 1, true), 4 * 1000 + 999 * 11);
}
END_TEST

/* doc/design/memory.md: groups over all nodes, all of them servers, with several ranks each. */
START_TEST(the_table_of_the_paper)
{
    static const struct {
        uint32_t nodes;
        uint64_t buffers;
    } rows[] = {{2, 67}, {4, 169}, {8, 373}, {16, 413}, {65, 964}, {257, 3844}, {1001, 15004}};
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint32_t window = window_chunks(16, rows[i].nodes);
        uint64_t receives = (rows[i].nodes - 1) * (uint64_t)window_receives(window, true, true);
        ck_assert_uint_eq(receives + window_sums(window, rows[i].nodes), rows[i].buffers);
    }
}
END_TEST

/* The bytes that a daemon receives of one group at once are flat from 64 peers on, and within the
 * limit as long as chunks can be smaller; up to 8 nodes, chunks have 256 KiB. */
START_TEST(receives_are_flat_in_large_rosters)
{
    static const uint32_t peers[] = {8, 9, 10, 12, 16, 31, 42, 63, 64, 100, 256, 500, 1000, 1023};
    uint64_t least = UINT64_MAX;
    for (unsigned i = 0; i < sizeof(peers) / sizeof(peers[0]); i++) {
        uint32_t nodes = peers[i] + 1, chunk = window_chunk_bytes(16, nodes, nodes);
        uint64_t all = peers[i] * (uint64_t)window_receives(window_chunks(16, nodes), true, true) *
                       (chunk + WIRE_HEADER_BYTES);
        uint64_t most = window_receives_most(16, nodes, nodes) * (chunk + WIRE_HEADER_BYTES);
        ck_assert_uint_le(most, WINDOW_RECEIVE_BYTES);
        ck_assert_uint_le(all, most);
        ck_assert_uint_eq(chunk % 64, 0);
        if (peers[i] >= 64 && all < least)
            least = all;
    }
    ck_assert_uint_ge(least * 11 / 10, WINDOW_RECEIVE_BYTES);
    for (uint32_t nodes = 1; nodes <= 8; nodes++)
        ck_assert_uint_eq(window_chunk_bytes(16, nodes, nodes), 256u << 10);
    ck_assert_uint_eq(window_chunk_bytes(16, 20, 20), 196672);
    ck_assert_uint_eq(window_chunk_bytes(16, 20, 1), 225792); /* few servers: larger chunks */
    ck_assert_uint_eq(window_chunk_bytes(256, 4096, 4096), 4096);
    ck_assert_uint_eq(window_chunk_bytes(16, 8, 0), 256u << 10);
}
END_TEST

/* A larger window never needs fewer buffers, nor leaves room for larger chunks. */
START_TEST(a_larger_window_never_needs_less)
{
    for (uint32_t nodes = 1; nodes <= 40; nodes++) {
        for (uint32_t servers = 1; servers <= nodes; servers++) {
            uint64_t here = window_buffers_most(16, nodes, servers, true);
            EXPECT(here <= window_buffers_most(17, nodes, servers, true));
            EXPECT(window_chunk_bytes(16, nodes, servers) >=
                   window_chunk_bytes(17, nodes, servers));
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("window");
    TCase *tests = tcase_create("window");
    tcase_add_test(tests, the_window_shrinks_beyond_8_nodes);
    tcase_add_test(tests, below_it_a_pipeline_is_kept_full);
    tcase_add_test(tests, what_a_peer_may_send_has_receives);
    tcase_add_test(tests, the_most_of_any_group);
    tcase_add_test(tests, the_table_of_the_paper);
    tcase_add_test(tests, receives_are_flat_in_large_rosters);
    tcase_add_test(tests, a_larger_window_never_needs_less);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
