/* Ranks gathering at their home, and the numbers that they get. */
#include "server/jobs/gathering.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

static struct config_server servers[] = {{.name = "a"}, {.name = "b"}, {.name = "c"}};
static const struct config config = {.servers = servers, .server_count = 3};
static struct gathering *gathering;
static struct error error;
static uint32_t wished_recovery; /* enum message_recovery, of those that come */
static uint32_t mark;            /* of their run */

static void teardown(void)
{
    if (gathering)
        gathering_free(gathering);
    gathering = NULL;
}

static void start(uint32_t world_size)
{
    teardown();
    gathering = gathering_create("train", 1000, world_size);
    ck_assert_ptr_nonnull(gathering);
    error = (struct error){0};
    wished_recovery = MESSAGE_RECOVERY_CONFIGURED;
    mark = 0;
}

static int add_as(uint32_t uid, uint32_t world_size, uint32_t node, uint32_t member, int32_t rank,
                  int32_t local_rank)
{
    struct gathering_member one = {.node = node,
                                   .member = member,
                                   .rank = rank,
                                   .local_rank = local_rank,
                                   .pid = 500 + member,
                                   .recovery = wished_recovery,
                                   .mark = mark};
    return gathering_add(gathering, &one, uid, world_size, &config, &error);
}

static int add(uint32_t node, uint32_t member, int32_t rank, int32_t local_rank)
{
    return add_as(1000, gathering->world_size, node, member, rank, local_rank);
}

static void add_well(uint32_t node, uint32_t member, int32_t rank, int32_t local_rank)
{
    ck_assert_msg(add(node, member, rank, local_rank) == 0, "%s", error.text);
}

static void missing(const char *wanted)
{
    char text[256];
    gathering_missing_text(gathering, text, sizeof(text));
    ck_assert_str_eq(text, wanted);
}

/* Node and member of each rank, "0/1 2/7". */
static void assigned(const char *wanted)
{
    uint32_t nodes[8], members[8];
    char text[128] = "";
    ck_assert(gathering_complete(gathering));
    gathering_assign(gathering, nodes, members);
    for (uint32_t rank = 0; rank < gathering->world_size; rank++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%u/%u", rank ? " " : "",
                 nodes[rank], members[rank]);
    ck_assert_str_eq(text, wanted);
}

/* --- who may */

START_TEST(test_complete_with_the_last)
{
    start(2);
    ck_assert(!gathering_complete(gathering));
    add_well(0, 1, 0, 0);
    ck_assert(!gathering_complete(gathering));
    add_well(1, 1, 1, 0); /* the same number on another node is another worker */
    ck_assert(gathering_complete(gathering));
    ck_assert_uint_eq(gathering->members[1].pid, 501);
}
END_TEST

START_TEST(test_refused_user)
{
    start(2);
    ck_assert_int_eq(add_as(1001, 2, 1, 4, -1, -1), ERR_REFUSED);
    ck_assert_str_eq(error.text,
                     "job 'train' belongs to user 1000; process 504 on node b runs as user 1001");
    ck_assert_int_eq(add_as(0, 2, 1, 4, -1, -1), ERR_REFUSED); /* root is another user too */
    ck_assert_uint_eq(gathering->count, 0);
}
END_TEST

START_TEST(test_refused_world_size)
{
    start(2);
    add_well(0, 1, -1, -1);
    ck_assert_int_eq(add_as(1000, 3, 2, 4, -1, -1), ERR_REFUSED);
    ck_assert_str_eq(error.text, "job 'train' has a world size of 2 by its first rank; process 504 "
                                 "on node c asks for 3");
    ck_assert_uint_eq(gathering->count, 1);
}
END_TEST

/* A process whose run is not known fits with any. */
START_TEST(test_refused_run)
{
    start(4);
    add_well(0, 1, 0, -1);
    mark = 7;
    add_well(1, 2, 1, -1);
    mark = 8;
    ck_assert_int_eq(add_as(1000, 3, 2, 4, 2, -1), ERR_REFUSED);
    ck_assert_str_eq(error.text,
                     "job 'train' gathers the ranks of another run than that of process "
                     "504 on node c: give each run a name of its own (SHOAL_JOB, "
                     "shoalrun --job)");
    mark = 0;
    add_well(2, 4, 2, -1);
    mark = 7;
    add_well(2, 5, 3, -1);
}
END_TEST

START_TEST(test_refused_rank_given_twice)
{
    start(3);
    add_well(0, 1, 2, 0);
    ck_assert_int_eq(add(1, 9, 2, 0), ERR_REFUSED);
    ck_assert_str_eq(error.text, "rank 2 of job 'train' is given twice: to process 501 on node a "
                                 "and to process 509 on node b");
    add_well(1, 9, 1, 0); /* with a free one it may */
    add_well(1, 10, -1, 0);
}
END_TEST

START_TEST(test_refused_twice_the_same)
{
    start(3);
    add_well(1, 7, -1, -1);
    ck_assert_int_eq(add(1, 7, -1, -1), ERR_REFUSED);
    ck_assert_str_eq(error.text, "process 507 on node b has joined job 'train' twice");
    ck_assert_int_eq(add(1, 7, 2, 0), ERR_REFUSED);
    add_well(2, 7, -1, -1);
    ck_assert_uint_eq(gathering->count, 2);
}
END_TEST

START_TEST(test_withdrawn)
{
    start(3);
    add_well(0, 1, 0, 0);
    add_well(0, 2, 1, 0);
    add_well(1, 1, 2, 0);
    ck_assert(!gathering_remove(gathering, 1, 2)); /* no such one */
    ck_assert(gathering_remove(gathering, 0, 2));
    ck_assert(!gathering_remove(gathering, 0, 2));
    ck_assert(!gathering_complete(gathering));
    ck_assert_uint_eq(gathering->members[0].member, 1);
    ck_assert_uint_eq(gathering->members[1].node, 1); /* the order of arrival stays */
    missing("rank 1 of job 'train' has not joined");
    add_well(2, 5, 1, 0); /* the rank is free again */
    assigned("0/1 2/5 1/1");
}
END_TEST

START_TEST(test_removed_by_place)
{
    start(3);
    for (uint32_t member = 1; member <= 3; member++)
        add_well(0, member, -1, -1);
    gathering_remove_at(gathering, 2); /* the last of a full one: nothing behind it is moved */
    ck_assert_uint_eq(gathering->count, 2);
    gathering_remove_at(gathering, 0);
    ck_assert_uint_eq(gathering->count, 1);
    ck_assert_uint_eq(gathering->members[0].member, 2);
}
END_TEST

/* --- who gets which rank */

START_TEST(test_asked_for_are_kept)
{
    start(3);
    add_well(2, 1, 0, 0);
    add_well(0, 2, 2, 0);
    add_well(1, 3, 1, 0);
    assigned("2/1 1/3 0/2");
}
END_TEST

START_TEST(test_handed_out_by_node)
{
    start(4);
    add_well(2, 1, -1, -1);
    add_well(0, 9, -1, -1);
    add_well(1, 4, -1, -1);
    add_well(0, 3, -1, -1);
    assigned("0/3 0/9 1/4 2/1");
}
END_TEST

START_TEST(test_local_ranks_before_members)
{
    start(4);
    add_well(0, 1, -1, -1); /* unknown ones last, whatever their number */
    add_well(0, 2, -1, 1);
    add_well(0, 3, -1, 0);
    add_well(0, 4, -1, -1);
    assigned("0/3 0/2 0/1 0/4");
}
END_TEST

START_TEST(test_holes_are_filled)
{
    start(5);
    add_well(0, 1, 3, -1);
    add_well(1, 2, 0, -1);
    add_well(2, 3, -1, -1);
    add_well(1, 4, -1, -1);
    add_well(0, 5, -1, -1);
    assigned("1/2 0/5 1/4 0/1 2/3");
}
END_TEST

START_TEST(test_order_of_arrival_does_not_matter)
{
    /* All ranks of a job must get the same numbers however their joins raced. */
    static const struct gathering_member all[] = {
        {0, 1, -1, 0, 1, 0, 0, false, false, 0, false, 0, 0, 0},
        {0, 2, -1, 1, 2, 0, 0, false, false, 0, false, 0, 0, 0},
        {1, 1, 4, 0, 3, 0, 0, false, false, 0, false, 0, 0, 0},
        {1, 2, -1, 0, 4, 0, 0, false, false, 0, false, 0, 0, 0},
        {2, 1, -1, -1, 5, 0, 0, false, false, 0, false, 0, 0, 0},
        {2, 2, 0, -1, 6, 0, 0, false, false, 0, false, 0, 0, 0},
    };
    unsigned seed = (unsigned)_i + 1;
    uint32_t order[6] = {0, 1, 2, 3, 4, 5};
    for (uint32_t i = 5; i > 0; i--) {
        uint32_t j = (uint32_t)rand_r(&seed) % (i + 1), other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
    start(6);
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(gathering_add(gathering, &all[order[i]], 1000, 6, &config, &error), 0);
    assigned("2/2 0/1 0/2 1/2 1/1 2/1");
}
END_TEST

START_TEST(test_every_member_gets_one_rank)
{
    unsigned seed = (unsigned)_i + 100;
    for (int round = 0; round < 50; round++) {
        uint32_t world_size = 1 + (uint32_t)rand_r(&seed) % 8, nodes[8], members[8];
        int32_t wished[9];
        start(world_size);
        for (uint32_t member = 0; member < world_size; member++) {
            /* Wishes that collide are refused, and come without one then. */
            int32_t rank = rand_r(&seed) % 2 ? rand_r(&seed) % (int)world_size : -1;
            uint32_t node = (uint32_t)rand_r(&seed) % 3;
            if (add(node, member, rank, -1) < 0) {
                rank = -1;
                add_well(node, member, rank, -1);
            }
            wished[member] = rank;
        }
        uint32_t seen = 0;
        gathering_assign(gathering, nodes, members);
        for (uint32_t rank = 0; rank < world_size; rank++) {
            ck_assert_uint_lt(nodes[rank], 3);
            ck_assert_uint_lt(members[rank], world_size);
            seen |= 1u << members[rank];
            if (wished[members[rank]] >= 0)
                ck_assert_int_eq(wished[members[rank]], rank);
        }
        ck_assert_uint_eq(seen, (1u << world_size) - 1);
    }
}
END_TEST

/* --- who is missing */

START_TEST(test_missing_by_rank)
{
    start(4);
    add_well(0, 1, 1, 0);
    missing("ranks 0, 2, 3 of job 'train' have not joined");
    add_well(0, 2, 3, 0);
    add_well(0, 3, 0, 0);
    missing("rank 2 of job 'train' has not joined");
}
END_TEST

START_TEST(test_missing_by_number)
{
    start(4);
    add_well(0, 1, 1, 0);
    add_well(0, 2, -1, 0); /* which rank that will be is not known yet */
    missing("2 of 4 ranks of job 'train' have not joined");
}
END_TEST

START_TEST(test_missing_of_many)
{
    start(1000);
    add_well(0, 1, 0, 0);
    missing("ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 987 more of job 'train' have not "
            "joined");
}
END_TEST

START_TEST(test_recovery_is_one_for_all)
{
    start(3);
    wished_recovery = MESSAGE_RECOVERY_OFF;
    add_well(0, 1, 0, -1);
    ck_assert_uint_eq(gathering->recovery, MESSAGE_RECOVERY_OFF);
    wished_recovery = MESSAGE_RECOVERY_CONFIGURED;
    ck_assert_int_eq(add(1, 2, 1, -1), ERR_REFUSED);
    ck_assert_str_eq(error.text,
                     "job 'train' has no recovery by its first rank; process 502 on node "
                     "b asks for recovery as configured");
    /* The first one goes: who comes next is the first. */
    ck_assert(gathering_remove(gathering, 0, 1));
    add_well(1, 2, 1, -1);
    ck_assert_uint_eq(gathering->recovery, MESSAGE_RECOVERY_CONFIGURED);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gathering");
    TCase *cases = tcase_create("gathering");
    tcase_add_checked_fixture(cases, NULL, teardown);
    tcase_add_test(cases, test_complete_with_the_last);
    tcase_add_test(cases, test_refused_user);
    tcase_add_test(cases, test_refused_world_size);
    tcase_add_test(cases, test_refused_rank_given_twice);
    tcase_add_test(cases, test_refused_run);
    tcase_add_test(cases, test_refused_twice_the_same);
    tcase_add_test(cases, test_withdrawn);
    tcase_add_test(cases, test_removed_by_place);
    tcase_add_test(cases, test_asked_for_are_kept);
    tcase_add_test(cases, test_handed_out_by_node);
    tcase_add_test(cases, test_local_ranks_before_members);
    tcase_add_test(cases, test_holes_are_filled);
    tcase_add_loop_test(cases, test_order_of_arrival_does_not_matter, 0, 10);
    tcase_add_loop_test(cases, test_every_member_gets_one_rank, 0, 4);
    tcase_add_test(cases, test_missing_by_rank);
    tcase_add_test(cases, test_missing_by_number);
    tcase_add_test(cases, test_missing_of_many);
    tcase_add_test(cases, test_recovery_is_one_for_all);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
