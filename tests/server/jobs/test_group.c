/* Groups of a job, and those that ask for one. */
#include "server/jobs/group.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/error.h"
#include "tests/lib/suite.h"

static const uint32_t ranks[] = {5, 0, 3};

/* --- open groups */

START_TEST(test_created)
{
    uint32_t given[] = {5, 0, 3};
    struct group *group = group_create(7, 2, given, 3, 4);
    given[0] = 99; /* the array is copied */
    ck_assert_uint_eq(group->id, 7);
    ck_assert_uint_eq(group->nth, 2);
    ck_assert_uint_eq(group->count, 3);
    ck_assert_mem_eq(group->ranks, ranks, sizeof(ranks));
    ck_assert(!group->ready && !group->failed);
    ck_assert_uint_eq(group->closed_count, 0);
    ck_assert_uint_eq(group->deadline_ns, UINT64_MAX);
    for (uint32_t node = 0; node < 4; node++)
        ck_assert(!group->opened[node]);
    group_free(group);
}
END_TEST

START_TEST(test_position_is_the_groups_order)
{
    struct group *group = group_create(1, 0, ranks, 3, 1);
    ck_assert_int_eq(group_position(group, 5), 0);
    ck_assert_int_eq(group_position(group, 0), 1);
    ck_assert_int_eq(group_position(group, 3), 2);
    ck_assert_int_eq(group_position(group, 1), -1);
    ck_assert_int_eq(group_position(group, UINT32_MAX), -1);
    group_free(group);
}
END_TEST

START_TEST(test_closed_by_the_last)
{
    struct group *group = group_create(1, 0, ranks, 3, 1);
    ck_assert(!group_close_rank(group, 3));
    ck_assert(!group_close_rank(group, 5));
    ck_assert(!group_close_rank(group, 5)); /* twice counts once */
    ck_assert(!group_close_rank(group, 1)); /* not in it */
    ck_assert_uint_eq(group->closed_count, 2);
    ck_assert(group_close_rank(group, 0));
    ck_assert(!group_close_rank(group, 0)); /* it was closed already: nothing is to be done again */
    ck_assert_uint_eq(group->closed_count, 3);
    group_free(group);
}
END_TEST

START_TEST(test_one_rank_alone)
{
    struct group *group = group_create(1, 0, ranks, 1, 1);
    ck_assert(group_close_rank(group, 5));
    group_free(group);
}
END_TEST

/* --- lists of ranks */

START_TEST(test_valid)
{
    static const struct {
        uint32_t ranks[4], count, world_size;
        bool valid;
    } lists[] = {
        {{0}, 1, 1, true},           {{3, 2, 1, 0}, 4, 4, true}, {{3, 0}, 2, 4, true},
        {{0}, 0, 4, false},          {{4}, 1, 4, false},         {{0, 1, 2, 3}, 4, 3, false},
        {{1, 1}, 2, 4, false},       {{0, 2, 0}, 3, 4, false},   {{0, UINT32_MAX}, 2, 4, false},
        {{0, 1, 2, 2}, 4, 4, false}, {{0}, 0, 0, false},         {{0}, 1, 0, false},
    };
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        ck_assert_msg(group_ranks_valid(lists[i].ranks, lists[i].count, lists[i].world_size) ==
                          lists[i].valid,
                      "list %zu", i);
}
END_TEST

START_TEST(test_valid_at_random)
{
    /* Against the definition: all pairs different, all below the world size. */
    unsigned seed = 7;
    int valid_count = 0;
    for (int round = 0; round < 5000; round++) {
        uint32_t list[6], count = (uint32_t)rand_r(&seed) % 7,
                          world_size = 1 + (uint32_t)rand_r(&seed) % 12;
        bool valid = count > 0 && count <= world_size;
        for (uint32_t i = 0; i < count && i < 6; i++) {
            list[i] = (uint32_t)rand_r(&seed) % (world_size + (round % 2));
            valid = valid && list[i] < world_size;
            for (uint32_t j = 0; j < i; j++)
                valid = valid && list[i] != list[j];
        }
        if (count > 6)
            continue;
        ck_assert(group_ranks_valid(list, count, world_size) == valid);
        valid_count += valid;
    }
    ck_assert_int_gt(valid_count, 100);
    ck_assert_int_lt(valid_count, 4900);
}
END_TEST

START_TEST(test_equal_in_order_and_length)
{
    static const uint32_t other[] = {5, 3, 0};
    ck_assert(group_ranks_equal(ranks, 3, ranks, 3));
    ck_assert(group_ranks_equal(ranks, 1, other, 1));
    ck_assert(!group_ranks_equal(ranks, 3, other, 3)); /* the order is part of a group */
    ck_assert(!group_ranks_equal(ranks, 3, ranks, 2));
    ck_assert(!group_ranks_equal(ranks, 2, ranks, 3));
}
END_TEST

/* --- groups-to-be */

START_TEST(test_gathering)
{
    struct group_gathering *gathering = group_gathering_create(4, ranks, 3);
    uint32_t missing[3];
    ck_assert_uint_eq(gathering->nth, 4);
    ck_assert_uint_eq(group_gathering_missing(gathering, missing), 3);
    ck_assert_mem_eq(missing, ranks, sizeof(ranks));

    ck_assert_int_eq(group_gathering_add(gathering, 0, 10 + 0, 1000), 0);
    ck_assert_uint_eq(gathering->joined_count, 1);
    ck_assert_uint_eq(gathering->deadline_ns[1], 1000); /* at the rank's place in the list */
    ck_assert_uint_eq(group_gathering_missing(gathering, missing), 2);
    ck_assert_uint_eq(missing[0], 5);
    ck_assert_uint_eq(missing[1], 3);

    ck_assert_int_eq(group_gathering_add(gathering, 3, 10 + 3, 3000), 0);
    ck_assert_int_eq(group_gathering_add(gathering, 5, 10 + 5, 2000), 0);
    ck_assert_uint_eq(gathering->joined_count, 3);
    ck_assert_uint_eq(group_gathering_missing(gathering, missing), 0);
    group_gathering_free(gathering);
}
END_TEST

START_TEST(test_gathering_refuses)
{
    struct group_gathering *gathering = group_gathering_create(0, ranks, 3);
    ck_assert_int_eq(group_gathering_add(gathering, 5, 10 + 5, 1000), 0);
    ck_assert_int_eq(group_gathering_add(gathering, 5, 10 + 5, 9000), ERR_STATE);
    ck_assert_int_eq(group_gathering_add(gathering, 1, 10 + 1, 1000), ERR_INVALID);
    /* A refusal leaves everything as it was. */
    ck_assert_uint_eq(gathering->joined_count, 1);
    ck_assert_uint_eq(gathering->deadline_ns[0], 1000);
    group_gathering_free(gathering);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group");
    TCase *cases = tcase_create("group");
    tcase_add_test(cases, test_created);
    tcase_add_test(cases, test_position_is_the_groups_order);
    tcase_add_test(cases, test_closed_by_the_last);
    tcase_add_test(cases, test_one_rank_alone);
    tcase_add_test(cases, test_valid);
    tcase_add_test(cases, test_valid_at_random);
    tcase_add_test(cases, test_equal_in_order_and_length);
    tcase_add_test(cases, test_gathering);
    tcase_add_test(cases, test_gathering_refuses);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
