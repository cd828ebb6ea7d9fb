/* Ranks that others wait for: found, named, and blamed when they may be waited for no longer. */
#include <string.h>

#include "tests/lib/server/coordinator_network.h"
#include "tests/lib/suite.h"

static struct network *network;

static void setup(void)
{
    network = network_create_connected(3);
}

static void teardown(void)
{
    network_free(network);
}

static const struct job_late *late_of(uint32_t node)
{
    return coordinator_jobs(network_coordinator(network, node))->lates;
}

START_TEST(test_late)
{
    static const uint32_t rank_3[] = {3};
    uint32_t nodes[] = {1, 2};
    struct network_worker *workers[4];
    network_join_four(network, workers, network_name_at(network, 0));
    network_set_late(network, 2, rank_3, 1);
    network_engine_says(network, 0,
                        (struct engine_event){.type = ENGINE_LATE,
                                              .job = workers[0]->joined.job_id,
                                              .sequence = 17,
                                              .nodes = nodes,
                                              .node_count = 2});
    network_settle(network);
    const struct job_late *late = late_of(0);
    ck_assert_ptr_nonnull(late);
    ck_assert_uint_eq(late->sequence, 17);
    ck_assert_uint_eq(late->rank_count, 1);
    ck_assert_uint_eq(late->ranks[0], 3);
    /* The report stays while the rank is late, and goes when the rank has come. */
    network_run(network, 6000);
    ck_assert_ptr_nonnull(late_of(0));
    network_set_late(network, 2, NULL, 0);
    network_run(network, 6000);
    ck_assert_ptr_null(late_of(0));
    ck_assert_ptr_null(late_of(2));
}
END_TEST

/* timeouts.collective_ms: whoever has come meanwhile is not blamed; who has not ends the job. */
START_TEST(test_late_for_too_long)
{
    static const uint32_t rank_3[] = {3};
    uint32_t nodes[] = {1, 2};
    struct network_worker *workers[4];
    network_run(network, 10000);
    network_config(network, 0)->collective_ms = 8000;
    network_join_four(network, workers, network_name_at(network, 0));
    for (uint64_t sequence = 17; sequence < 19; sequence++) {
        network_set_late(network, 2, rank_3, 1);
        network_engine_says(network, 0,
                            (struct engine_event){.type = ENGINE_LATE,
                                                  .job = workers[0]->joined.job_id,
                                                  .sequence = sequence,
                                                  .nodes = nodes,
                                                  .node_count = 2});
        network_run(network, 2500);
        ck_assert_ptr_nonnull(late_of(0));
        if (sequence == 17)
            network_set_late(network, 2, NULL, 0);
        network_run(network, 1000);
    }
    for (uint32_t i = 0; i < 3; i++) {
        network_assert_text(workers[i], "rank 3 (the first on node c) has not reached "
                                        "collective 18 of group 0 for 8000 ms");
        /* Not a timeout: that is of a wait, which the request outlives. */
        ck_assert_int_eq(workers[i]->failure.code, ERR_LOST);
    }
}
END_TEST

/* A rank that waits for a late one for 10 s says so, once a minute at most. A daemon that knows
 * it tells a rank of its own node that is not late, and any other only if it has no ranks. */
START_TEST(test_told_of_late_ranks)
{
    static const struct {
        uint32_t finder, late_node, late[2], count;
        uint32_t tellers[2], teller_count;
        const char *text;
    } cases[] = {
        {0,
         1,
         {3},
         1,
         {0, 2},
         2,
         "rank 3 (on node b) has not reached collective 17 of group 0 of job"},
        {0,
         0,
         {0},
         1,
         {1},
         1,
         "rank 0 (on node a) has not reached collective 17 of group 0 of job"},
        {0, 0, {0, 1}, 2, {0}, 0, NULL},
        {2,
         1,
         {2, 3},
         2,
         {0},
         1,
         "ranks 2, 3 (the first on node b) have not reached collective 17"},
    };
    uint32_t finder = cases[_i].finder, node = cases[_i].late_node, late[2];
    struct network_worker *workers[4];
    const char *name = network_name_at(network, 0);
    for (int32_t rank = 0; rank < 4; rank++)
        workers[rank] = network_join(network, (uint32_t)rank / 2, name, 4, rank, -1, 0);
    network_settle(network);
    memcpy(late, cases[_i].late, sizeof(late));
    network_set_late(network, node, late, cases[_i].count);
    struct engine_event event = {
        .type = ENGINE_LATE, .job = workers[0]->joined.job_id, .sequence = 17};
    if (node == finder) {
        event.ranks = late;
        event.rank_count = cases[_i].count;
    } else {
        event.nodes = &node;
        event.node_count = 1;
    }
    network_run(network, 6000);
    network_engine_says(network, finder, event); /* they have been late for 5 s */
    network_run(network, 4900);
    for (int i = 0; i < 4; i++)
        ck_assert_uint_eq(workers[i]->waiting_count, 0);
    for (uint32_t minute = 0; minute < 2; minute++) {
        network_run(network, minute == 0 ? 50000 : 20000);
        uint32_t told = 0;
        for (int i = 0; i < 4; i++)
            told += workers[i]->waiting_count;
        ck_assert_uint_eq(told, (minute + 1) * cases[_i].teller_count);
        for (uint32_t i = 0; i < cases[_i].teller_count; i++) {
            const struct network_worker *teller = workers[cases[_i].tellers[i]];
            ck_assert_uint_eq(teller->waiting_count, minute + 1);
            ck_assert_msg(strstr(teller->waiting, cases[_i].text), "%s", teller->waiting);
        }
    }
}
END_TEST

static void say_held(struct network_worker *worker, uint32_t rank, uint64_t number)
{
    struct message held = {
        .type = MESSAGE_HELD, .group = 0, .rank = (int32_t)rank, .sequence = number};
    ck_assert_int_eq(network_say(network, worker, &held), 0);
}

/* Rank 0 says each second that rank 1 holds up a collective which passes through their memory. */
START_TEST(test_held_at_a_place)
{
    struct network_worker *workers[4];
    network_config(network, 0)->collective_ms = _i == 0 ? 0 : 12500;
    network_join_four(network, workers, network_name_at(network, 1));
    network_run(network, 2000);
    for (uint32_t second = 1; second <= 11; second++) {
        say_held(workers[0], 1, 7);
        bool known = second >= 5; /* timeouts.late_ms */
        ck_assert_ptr_nonnull(late_of(0));
        ck_assert_uint_eq(late_of(0)->rank_count, known);
        network_run(network, 1000);
        ck_assert_uint_eq(workers[0]->waiting_count, second >= 10);
    }
    ck_assert_msg(strstr(workers[0]->waiting, "rank 1 (on node a) does not go on in collective 7 "
                                              "of group 0 of job") != NULL,
                  "%s", workers[0]->waiting);
    if (_i == 0) { /* it goes on, to another collective that it holds up */
        say_held(workers[0], 1, 8);
        ck_assert_uint_eq(late_of(0)->rank_count, 0);
        network_run(network, 4000);
        ck_assert_ptr_null(late_of(0));
        return;
    }
    for (int i = 0; i < 2; i++) {
        say_held(workers[0], 1, 7);
        network_run(network, 1000);
    }
    network_assert_text(workers[2], "rank 1 (the first on node a) does not go on in collective 7 "
                                    "of group 0 for 12500 ms");
    ck_assert_int_eq(workers[2]->failure.code, ERR_LOST);
}
END_TEST

/* A rank can say it only of another rank of its node and of the group. */
START_TEST(test_held_makes_no_sense)
{
    static const struct {
        int32_t group, rank;
    } cases[] = {{0, 0}, {0, 3}, {0, 4}, {1, 1}}; /* the last group may have ended just now */
    struct network_worker *workers[4];
    network_join_four(network, workers, network_name_at(network, 1));
    struct message held = {
        .type = MESSAGE_HELD, .group = cases[_i].group, .rank = cases[_i].rank, .sequence = 7};
    int refused = cases[_i].group == 0 ? ERR_PROTOCOL : 0;
    ck_assert_int_eq(network_say(network, workers[0], &held), refused);
    ck_assert_ptr_null(late_of(0));
}
END_TEST

START_TEST(test_late_here)
{
    uint32_t rank_1[] = {1};
    struct network_worker *workers[4];
    network_join_four(network, workers, network_name_at(network, 1));
    network_set_late(network, 0, rank_1, 1);
    for (uint64_t sequence = 3; sequence < 5; sequence++)
        network_engine_says(network, 0,
                            (struct engine_event){.type = ENGINE_LATE,
                                                  .job = workers[0]->joined.job_id,
                                                  .sequence = sequence,
                                                  .ranks = rank_1,
                                                  .rank_count = 1});
    ck_assert_uint_eq(late_of(0)->sequence, 4);
    ck_assert_ptr_null(late_of(0)->next);
    network_set_late(network, 0, NULL, 0);
    network_run(network, 11000);
    ck_assert_ptr_null(late_of(0));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator_late");
    TCase *cases = tcase_create("coordinator_late");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_late);
    tcase_add_test(cases, test_late_for_too_long);
    tcase_add_loop_test(cases, test_held_at_a_place, 0, 2);
    tcase_add_loop_test(cases, test_held_makes_no_sense, 0, 4);
    tcase_add_loop_test(cases, test_told_of_late_ranks, 0, 4);
    tcase_add_test(cases, test_late_here);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
