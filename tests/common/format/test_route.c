/* common/route: every kind's blocks, against what the collective means. */
#include <check.h>
#include <stdlib.h>

#include "common/format/route.h"
#include "tests/lib/suite.h"

#define RANKS_MAX 9u

static const enum collective_kind block_kinds[] = {COLLECTIVE_ALL_GATHER, COLLECTIVE_REDUCE_SCATTER,
                                                   COLLECTIVE_GATHER, COLLECTIVE_SCATTER,
                                                   COLLECTIVE_ALL_TO_ALL};
#define BLOCK_KINDS (sizeof(block_kinds) / sizeof(block_kinds[0]))

START_TEST(whole_kinds_have_no_blocks)
{
    static const enum collective_kind whole[] = {COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE,
                                                 COLLECTIVE_BROADCAST, COLLECTIVE_BARRIER};
    for (unsigned i = 0; i < 4; i++) {
        ck_assert(!route_in_blocks(whole[i]));
        ck_assert(!route_block_valid(whole[i], 0, 1, 4));
        ck_assert_uint_eq(route_block_count(whole[i], 0, 1, 4), 0);
        ck_assert_uint_eq(route_next_block(whole[i], 0, 1, 4, 0), 0);
        ck_assert_uint_eq(route_find(whole[i], 1, 0, 4).owner, ROUTE_NONE);
    }
    for (unsigned i = 0; i < BLOCK_KINDS; i++)
        ck_assert(route_in_blocks(block_kinds[i]));
    ck_assert(!route_in_blocks(COLLECTIVE_KIND_COUNT));
}
END_TEST

START_TEST(whole_kinds_go_between_all_or_the_root)
{
    struct route all = route_find(COLLECTIVE_ALL_REDUCE, 2, 0, 4);
    struct route reduce = route_find(COLLECTIVE_REDUCE, 2, 0, 4);
    struct route broadcast = route_find(COLLECTIVE_BROADCAST, 2, 0, 4);
    struct route barrier = route_find(COLLECTIVE_BARRIER, 2, 0, 4);
    for (uint32_t rank = 0; rank < 4; rank++) {
        ck_assert(route_sends(&all, rank) && route_receives(&all, rank));
        ck_assert(route_sends(&reduce, rank));
        ck_assert_int_eq(route_receives(&reduce, rank), rank == 2);
        ck_assert_int_eq(route_sends(&broadcast, rank), rank == 2);
        ck_assert_int_eq(route_receives(&broadcast, rank), rank != 2);
        ck_assert(!route_sends(&barrier, rank) && !route_receives(&barrier, rank));
        ck_assert(route_takes_part(&all, rank) && route_takes_part(&reduce, rank) &&
                  route_takes_part(&broadcast, rank) && route_takes_part(&barrier, rank));
    }
}
END_TEST

START_TEST(the_collective_itself_is_everybodys)
{
    for (unsigned i = 0; i < BLOCK_KINDS; i++) {
        struct route route = route_find(block_kinds[i], 1, 0, 3);
        ck_assert(!route_block_valid(block_kinds[i], 1, 0, 3));
        for (uint32_t rank = 0; rank < 3; rank++)
            ck_assert(route_takes_part(&route, rank) && !route_sends(&route, rank) &&
                      !route_receives(&route, rank));
    }
}
END_TEST

/* Return whether data must get from rank `from` to rank `to`, as the collectives are defined. */
static bool must_travel(enum collective_kind kind, uint32_t root, uint32_t from, uint32_t to)
{
    switch (kind) {
    case COLLECTIVE_GATHER:
        return from != root && to == root;
    case COLLECTIVE_SCATTER:
        return from == root && to != root;
    default:
        return from != to;
    }
}

START_TEST(every_part_travels_once)
{
    enum collective_kind kind = block_kinds[_i];
    for (uint32_t ranks = 1; ranks <= RANKS_MAX; ranks++) {
        for (uint32_t root = 0; root < ranks; root++) {
            unsigned travels[RANKS_MAX][RANKS_MAX] = {{0}};
            for (uint32_t block = 1; block <= ranks * ranks + 2; block++) {
                if (!route_block_valid(kind, root, block, ranks))
                    continue;
                struct route route = route_find(kind, root, block, ranks);
                ck_assert_uint_lt(route.owner, ranks);
                for (uint32_t from = 0; from < ranks; from++)
                    for (uint32_t to = 0; to < ranks; to++)
                        travels[from][to] +=
                            route_sends(&route, from) && route_receives(&route, to) && from != to;
                /* The owner has the data, or wants it: it never only passes by. */
                ck_assert(route_sends(&route, route.owner) || route_receives(&route, route.owner));
            }
            for (uint32_t from = 0; from < ranks; from++)
                for (uint32_t to = 0; to < ranks; to++)
                    ck_assert_uint_eq(travels[from][to], must_travel(kind, root, from, to));
        }
    }
}
END_TEST

START_TEST(a_ranks_blocks_are_found_in_order)
{
    enum collective_kind kind = block_kinds[_i];
    for (uint32_t ranks = 1; ranks <= RANKS_MAX; ranks++) {
        for (uint32_t root = 0; root < ranks; root++) {
            for (uint32_t rank = 0; rank < ranks; rank++) {
                uint32_t count = 0, next = route_next_block(kind, root, rank, ranks, 0);
                for (uint32_t block = 1; block <= ranks * ranks + 2; block++) {
                    if (!route_block_valid(kind, root, block, ranks))
                        continue;
                    struct route route = route_find(kind, root, block, ranks);
                    if (!route_takes_part(&route, rank))
                        continue;
                    ck_assert_uint_eq(next, block);
                    next = route_next_block(kind, root, rank, ranks, block + 1);
                    count++;
                }
                ck_assert_uint_eq(next, 0);
                ck_assert_uint_eq(count, route_block_count(kind, root, rank, ranks));
            }
        }
    }
}
END_TEST

START_TEST(blocks_that_do_not_exist)
{
    ck_assert(!route_block_valid(COLLECTIVE_ALL_GATHER, 0, 5, 4));
    ck_assert(route_block_valid(COLLECTIVE_ALL_GATHER, 0, 4, 4));
    ck_assert(!route_block_valid(COLLECTIVE_GATHER, 2, 3, 4)); /* the root's own */
    ck_assert(!route_block_valid(COLLECTIVE_SCATTER, 2, 3, 4));
    ck_assert(!route_block_valid(COLLECTIVE_ALL_TO_ALL, 0, 1, 4)); /* to itself */
    ck_assert(!route_block_valid(COLLECTIVE_ALL_TO_ALL, 0, 17, 4));
    ck_assert(!route_block_valid(COLLECTIVE_ALL_TO_ALL, 0, UINT32_MAX, 4));
    ck_assert(route_block_valid(COLLECTIVE_ALL_TO_ALL, 0, 65535u * 65535u - 1, ROUTE_MAX_RANKS));
    ck_assert(!route_block_valid(COLLECTIVE_ALL_TO_ALL, 0, 2, ROUTE_MAX_RANKS + 1));
}
END_TEST

/* Behind the blocks of sends: each pair has one for what is replayed, and one that asks. */
START_TEST(replays_are_behind_sends)
{
    bool seen[3 * 16 + 2] = {false};
    for (int what = ROUTE_SEND; what <= ROUTE_REPLAY_ASKS; what++) {
        for (uint32_t from = 0; from < 4; from++) {
            for (uint32_t to = 0; to < 4; to++) {
                uint32_t block = route_replay_block((enum route_replay)what, from, to, 4);
                ck_assert(block >= 1 && block <= 48 && !seen[block]);
                seen[block] = true;
                ck_assert_int_eq(route_replay(COLLECTIVE_SEND, block, 4), what);
                ck_assert_int_eq(route_block_valid(COLLECTIVE_SEND, 0, block, 4), from != to);
                struct route route = route_find(COLLECTIVE_SEND, 0, block, 4);
                ck_assert_uint_eq(route.from, from);
                ck_assert_uint_eq(route.owner, from);
                ck_assert_uint_eq(route.to, to);
            }
        }
    }
    ck_assert(!route_block_valid(COLLECTIVE_SEND, 0, 49 + 1, 4));
    ck_assert_int_eq(route_replay(COLLECTIVE_ALL_TO_ALL, 16 + 2, 4), ROUTE_SEND);
    ck_assert_int_eq(route_replay(COLLECTIVE_SEND, 0, 4), ROUTE_SEND);
    ck_assert_uint_ne(route_replay_block(ROUTE_REPLAY_ASKS, 32766, 32767, 32768), 0);
    ck_assert_uint_eq(route_replay_block(ROUTE_REPLAY, 0, 1, ROUTE_MAX_RANKS), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("route");
    TCase *tests = tcase_create("route");
    tcase_add_test(tests, whole_kinds_have_no_blocks);
    tcase_add_test(tests, whole_kinds_go_between_all_or_the_root);
    tcase_add_test(tests, the_collective_itself_is_everybodys);
    tcase_add_loop_test(tests, every_part_travels_once, 0, BLOCK_KINDS);
    tcase_add_loop_test(tests, a_ranks_blocks_are_found_in_order, 0, BLOCK_KINDS);
    tcase_add_test(tests, blocks_that_do_not_exist);
    tcase_add_test(tests, replays_are_behind_sends);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
