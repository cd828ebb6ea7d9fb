/* Groups that are not opened as they should be. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/coordinator_network.h"
#include "tests/lib/suite.h"

static const uint32_t ones[] = {1, 1, 1, 1};
static struct network *network;

static void setup(void)
{
    network = network_create(3, ones, 7);
    network_connect_all(network);
    network_settle(network);
}

static void teardown(void)
{
    network_free(network);
}

/* A group that becomes ready when one rank has stopped waiting is left for that rank. */
START_TEST(test_group_ready_too_late)
{
    struct network_worker *workers[4];
    static const uint32_t ranks[] = {0, 3};
    network_join_four(network, workers, network_name_at(network, (uint32_t)_i));
    network_hold_engine(network, 1, true);
    network_group_open(network, workers[0], ranks, 2, 0, 0);
    network_group_open(network, workers[3], ranks, 2, 0, 500);
    network_run(network, 2000);
    ck_assert(workers[3]->group_refused);
    network_assert_text(workers[3], "the group has not been opened in time");
    ck_assert(!workers[0]->group_opened);
    network_hold_engine(network, 1, false);
    network_settle(network);
    ck_assert(workers[0]->group_opened && !workers[3]->group_opened);
    struct message close = {.type = MESSAGE_WORKER_GROUP_CLOSE, .group = workers[0]->group};
    ck_assert_int_eq(network_say(network, workers[0], &close), 0);
    network_settle(network);
    for (uint32_t node = 0; node < 3; node++)
        ck_assert_uint_eq(network_engine_groups(network, node), 0);
    ck_assert_int_eq(workers[3]->state, CLIENT_JOINED);
}
END_TEST

/* A rank that leaves while the group that it asked for is being opened: the others are told, and do
 * not wait for it. */
START_TEST(test_rank_leaves_while_group_opens)
{
    struct network_worker *workers[4];
    static const uint32_t ranks[] = {0, 3};
    network_join_four(network, workers, network_name_at(network, (uint32_t)_i));
    network_hold_engine(network, 1, true);
    network_group_open(network, workers[0], ranks, 2, 0, 0);
    network_group_open(network, workers[3], ranks, 2, 0, 0);
    network_settle(network);
    network_leave(network, workers[3]);
    network_settle(network);
    ck_assert(workers[3]->left);
    ck_assert(!workers[0]->group_opened && !workers[0]->group_refused);
    network_hold_engine(network, 1, false);
    network_settle(network);
    ck_assert(!workers[0]->group_opened && workers[0]->group_refused);
    network_assert_text(workers[0], "rank 3 of the group has left job");
    ck_assert_int_eq(workers[0]->failure.code, ERR_LOST);
    for (uint32_t node = 0; node < 3; node++)
        ck_assert_uint_eq(network_engine_groups(network, node), 0);
    ck_assert_int_eq(workers[0]->state, CLIENT_JOINED);
}
END_TEST

/* rank_left and group_open come from different daemons, in any order. */
START_TEST(test_rank_left_overtakes_group_open)
{
    struct network_worker *workers[4];
    uint32_t ranks[] = {0, 3};
    struct message_position positions[] = {{0, 10}, {1, 0}};
    network_join_four(network, workers, network_name_at(network, 0));
    uint64_t job = workers[0]->joined.job_id;
    struct message left = {.type = MESSAGE_RANK_LEFT,
                           .job_id = job,
                           .rank = 3,
                           .positions = positions,
                           .position_count = 2};
    struct message open = {
        .type = MESSAGE_GROUP_OPEN, .job_id = job, .group = 1, .ranks = {ranks, 2}};
    struct error error = {0};
    struct coordinator *coordinator = network_coordinator(network, 1);
    ck_assert_int_eq(coordinator_peer_message(coordinator, 1, 2, &left, &error), 0);
    ck_assert_uint_eq(network_engine_group_ranks_left(network, 1), 0);
    ck_assert_int_eq(coordinator_peer_message(coordinator, 1, 0, &open, &error), 0);
    ck_assert_uint_eq(network_engine_groups(network, 1), 1);
    ck_assert_uint_eq(network_engine_group_ranks_left(network, 1), 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator_group");
    TCase *cases = tcase_create("group");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_loop_test(cases, test_group_ready_too_late, 0, 3);
    tcase_add_loop_test(cases, test_rank_leaves_while_group_opens, 0, 3);
    tcase_add_test(cases, test_rank_left_overtakes_group_open);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
