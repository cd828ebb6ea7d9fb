/* Groups that are not opened as they should be. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/server/coordinator_network.h"
#include "tests/lib/suite.h"

static struct network *network;

static void setup(void)
{
    network = network_create_connected(3);
}

/* Let ranks wait for groups for so long. */
static void set_group_ms(uint32_t group_ms)
{
    for (uint32_t node = 0; node < 3; node++)
        network_config(network, node)->group_ms = group_ms;
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

/* All ranks' first collective can fail where the job is ready, while it is not yet so elsewhere:
 * what comes from there, or from the engine of this node, is told once the ranks have joined. */
START_TEST(test_group_fails_before_the_job_is_ready)
{
    struct network_worker *workers[4];
    const char *name = network_name_at(network, 0);
    struct error error = {0};
    network_hold_engine(network, 2, true);
    for (int32_t rank = 0; rank < 4; rank++)
        workers[rank] =
            network_join(network, rank < 2 ? 0 : (uint32_t)rank - 1, name, 4, rank, -1, 0);
    network_settle(network);
    struct coordinator *coordinator = network_coordinator(network, 1);
    uint64_t job = network_first_job(network);
    if (_i == 0) {
        struct message failed = {.type = MESSAGE_GROUP_FAILED,
                                 .job_id = job,
                                 .code = ERR_MISMATCH,
                                 .text = "the ranks disagree"};
        ck_assert_int_eq(
            coordinator_peer_message(coordinator, network_now(network), 2, &failed, &error), 0);
        ck_assert_uint_eq(network_engine_groups_failed(network, 1), 1);
    } else {
        network_engine_says(network, 1,
                            (struct engine_event){.type = ENGINE_GROUP_FAILED,
                                                  .job = job,
                                                  .code = ERR_MISMATCH,
                                                  .text = "the ranks disagree"});
        network_settle(network); /* the others hear it before they are ready, too */
        ck_assert_uint_eq(network_engine_groups_failed(network, 0), 1);
        ck_assert_uint_eq(network_engine_groups_failed(network, 1), 0);
    }
    for (int rank = 0; rank < 4; rank++)
        ck_assert(workers[rank]->state == CLIENT_JOINING && !workers[rank]->failed);
    network_hold_engine(network, 2, false);
    network_settle(network);
    for (int rank = 0; rank < 4; rank++) {
        ck_assert_int_eq(workers[rank]->state, CLIENT_JOINED);
        bool told = _i == 1 || rank == 2; /* the message of case 0 was for node 1 alone */
        ck_assert_uint_eq(workers[rank]->failed_count, told);
        if (told) {
            ck_assert_int_eq(workers[rank]->failure.code, ERR_MISMATCH);
            network_assert_text(workers[rank], "the ranks disagree");
        }
    }
}
END_TEST

/* One rank cannot open a group, first, second or last of three: the others hear it at once, those
 * that ask later too, and nobody of the next attempt does. */
START_TEST(test_one_rank_cannot_open_it)
{
    static const uint32_t both[] = {0, 1}, ranks[] = {0, 2, 3};
    struct network_worker *workers[4], *asking[3];
    int unable_at = _i / 2;
    network_join_four(network, workers, network_name_at(network, 1 + (uint32_t)_i % 2));
    uint32_t most = network_config(network, 0)->groups_per_job;
    network_config(network, 0)->groups_per_job = 1;
    network_group_open(network, workers[0], both, 2, 0, 0); /* rank 0 may wait for no more */
    for (int i = 0; i < 3; i++)
        asking[i] = workers[i == unable_at ? 0 : i < unable_at ? i + 2 : i + 1];
    for (int i = 0; i < 3; i++) {
        network_group_open(network, asking[i], ranks, 3, 0, 0);
        network_settle(network);
        for (int j = 0; j < 3; j++)
            ck_assert_int_eq(asking[j]->group_refused, j <= i && i >= unable_at);
    }
    network_assert_text(workers[0], "waits for 1 groups");
    for (int i = 2; i < 4; i++) {
        network_assert_text(workers[i], "rank 0 on node a cannot open the group: rank 0 of job");
        ck_assert_int_eq(workers[i]->failure.code, ERR_MEMORY);
    }
    network_config(network, 0)->groups_per_job = most;
    for (int i = 0; i < 3; i++) {
        asking[i]->group_refused = false;
        network_group_open(network, asking[i], ranks, 3, 0, 0);
    }
    network_settle(network);
    for (int i = 0; i < 3; i++)
        ck_assert(asking[i]->group_opened && !asking[i]->group_refused);
}
END_TEST

/* A rank that knows of the refusal tries again while another has not heard of it; and the refusal
 * is forgotten after a minute. */
START_TEST(test_a_refusal_ends)
{
    static const uint32_t both[] = {0, 1}, ranks[] = {0, 2, 3};
    struct network_worker *workers[4];
    set_group_ms(100000);
    network_join_four(network, workers, network_name_at(network, 1));
    uint32_t most = network_config(network, 0)->groups_per_job;
    network_config(network, 0)->groups_per_job = 1;
    network_group_open(network, workers[0], both, 2, 0, 0);
    network_group_open(network, workers[0], ranks, 3, 0, 0);
    network_settle(network);
    ck_assert(workers[0]->group_refused);
    network_config(network, 0)->groups_per_job = most;
    if (_i == 0)
        network_run(network, 61000);
    else
        network_group_open(network, workers[0], ranks, 3, 0, 0);
    network_settle(network);
    network_group_open(network, workers[2], ranks, 3, 0, 0);
    network_settle(network);
    ck_assert(!workers[2]->group_refused && !workers[2]->group_opened);
}
END_TEST

/* Ranks that have waited for 10 s say for whom: one of each node, once. */
START_TEST(test_told_for_whom_it_waits)
{
    static const uint32_t ranks[] = {0, 1, 2, 3};
    struct network_worker *workers[4];
    set_group_ms(60000);
    network_join_four(network, workers, network_name_at(network, (uint32_t)_i));
    for (int i = 0; i < 3; i++)
        network_group_open(network, workers[i], ranks, 4, 0, 0);
    network_run(network, 9900);
    for (int i = 0; i < 4; i++)
        ck_assert_uint_eq(workers[i]->waiting_count, 0);
    network_run(network, 20000);
    for (int i = 0; i < 4; i++)
        ck_assert_uint_eq(workers[i]->waiting_count, i == 0 || i == 2);
    ck_assert_msg(strstr(workers[2]->waiting, "rank 3 of job 'train-") != NULL, "%s",
                  workers[2]->waiting);
    network_group_open(network, workers[3], ranks, 4, 0, 0);
    network_settle(network);
    ck_assert(workers[0]->group_opened);
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
    tcase_add_loop_test(cases, test_group_fails_before_the_job_is_ready, 0, 2);
    tcase_add_loop_test(cases, test_one_rank_cannot_open_it, 0, 6);
    tcase_add_loop_test(cases, test_a_refusal_ends, 0, 2);
    tcase_add_loop_test(cases, test_told_for_whom_it_waits, 0, 3);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
