#include "common/format/window.h"

#include "tests/lib/suite.h"

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg("%s", #condition);                                                        \
    } while (0)

START_TEST(the_window_shrinks_beyond_16_nodes)
{
    static const struct {
        uint32_t configured, nodes, window;
    } cases[] = {
        {16, 1, 16},  {16, 16, 16},  {16, 17, 15},   {16, 32, 8}, {16, 100, 2},
        {16, 128, 2}, {16, 1024, 2}, {256, 1024, 4}, {2, 1, 2},   {2, 1024, 2},
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        ck_assert_uint_eq(window_chunks(cases[i].configured, cases[i].nodes), cases[i].window);
    for (uint32_t configured = 2; configured <= 256; configured++) {
        for (uint32_t nodes = 2; nodes <= 1024; nodes++) {
            uint32_t window = window_chunks(configured, nodes);
            EXPECT(window >= 2 && window <= window_chunks(configured, nodes - 1));
            EXPECT(window == 2 || window * nodes <= configured * 16 || nodes <= 16);
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
    ck_assert_uint_eq(window_of_lead(4, 8), 8);
    ck_assert_uint_eq(window_of_lead(64, 7), 8);
    ck_assert_uint_eq(window_of_lead(64, 9), 9);
    ck_assert_uint_eq(window_of_lead(10, UINT32_MAX), 10);
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
    /* beyond 16 nodes the largest group is no longer one over all of them, but one of 16: its sums,
     * its members' receives, and those for the servers outside */
    ck_assert_uint_eq(window_buffers_most(16, 1000, 1000, true),
                      16 * 1000 + 15 * 35 + (1000 - 16) * 18);
    ck_assert_uint_eq(window_buffers_most(16, 1000, 1, true), 2 * 1000 + 999 * 7);
}
END_TEST

/* doc/design/memory.md: groups over all nodes, all of them servers, with several ranks each. */
START_TEST(the_table_of_the_paper)
{
    static const struct {
        uint32_t nodes;
        uint64_t buffers;
    } rows[] = {{2, 67}, {4, 169}, {16, 781}, {32, 845}, {100, 893}, {1024, 9209}};
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint32_t window = window_chunks(16, rows[i].nodes);
        uint64_t receives = (rows[i].nodes - 1) * (uint64_t)window_receives(window, true, true);
        ck_assert_uint_eq(receives + window_sums(window, rows[i].nodes), rows[i].buffers);
    }
    ck_assert_uint_eq(window_buffers_most(16, 1000, 1000, true), 34237);
}
END_TEST

/* More nodes, servers or window never need less. */
START_TEST(more_never_needs_less)
{
    for (uint32_t nodes = 1; nodes <= 40; nodes++) {
        for (uint32_t servers = 1; servers <= nodes; servers++) {
            uint64_t here = window_buffers_most(16, nodes, servers, true);
            EXPECT(here <= window_buffers_most(16, nodes + 1, servers, true));
            EXPECT(here <= window_buffers_most(17, nodes, servers, true));
            EXPECT(servers == nodes || here <= window_buffers_most(16, nodes, servers + 1, true));
            EXPECT(servers == nodes || here <= window_buffers_most(16, nodes, servers, false));
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("window");
    TCase *tests = tcase_create("window");
    tcase_add_test(tests, the_window_shrinks_beyond_16_nodes);
    tcase_add_test(tests, below_it_a_pipeline_is_kept_full);
    tcase_add_test(tests, what_a_peer_may_send_has_receives);
    tcase_add_test(tests, the_most_of_any_group);
    tcase_add_test(tests, the_table_of_the_paper);
    tcase_add_test(tests, more_never_needs_less);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
