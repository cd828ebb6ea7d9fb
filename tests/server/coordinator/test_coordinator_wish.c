/* Jobs that lose ranks and wish to be as many again before they go on: a newcomer ends the wait, or
 * time does. Nobody who lives waits for one who does not come for longer than that. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/server/coordinator_network.h"
#include "tests/lib/suite.h"

#define RANKS 4
#define WORKERS 8
#define WAIT_MS 6000
#define LONG_MS 30000
/* The time that the home keeps for opening, of the time of whoever has least. */
#define RESERVE_MS 2000

static struct network *network;
static struct network_worker *workers[WORKERS]; /* the ranks, then newcomers */
static uint32_t home, worker_count;

static void start(uint32_t node, uint64_t seed)
{
    static const uint32_t weights[] = {1, 1, 1};
    home = node;
    network = network_create(3, weights, seed);
    network_connect_all(network);
    network_settle(network);
    network_keep_log(network);
    network_join_four(network, workers, network_name_at(network, home));
    worker_count = RANKS;
}

static void end(void)
{
    for (uint32_t i = 0; i < worker_count; i++) {
        if (!workers[i]->closed)
            network_kill(network, workers[i]);
    }
    network_connect_all(network);
    network_run(network, 20000);
    network_assert_empty(network);
    network_free(network);
}

static struct network_worker *come(uint32_t node, uint32_t timeout_ms)
{
    struct network_worker *newcomer =
        network_join(network, node, network_name_at(network, home), 0, -1, -1, timeout_ms);
    ck_assert_uint_lt(worker_count, WORKERS);
    workers[worker_count++] = newcomer;
    return newcomer;
}

static void wish(uint32_t rank, uint32_t least_ranks, uint32_t wait_ms)
{
    workers[rank]->least_ranks = least_ranks;
    workers[rank]->wait_ms = wait_ms;
}

static void wish_all(uint32_t least_ranks, uint32_t wait_ms)
{
    for (uint32_t rank = 0; rank < RANKS; rank++)
        wish(rank, least_ranks, wait_ms);
}

static void kill(uint32_t rank)
{
    network_kill(network, workers[rank]);
    network_settle(network);
}

static void release(void)
{
    for (uint32_t i = 0; i < worker_count; i++) {
        if (!workers[i]->closed && workers[i]->state == CLIENT_JOINED && workers[i]->failed)
            network_release(network, workers[i]);
    }
    network_settle(network);
}

/* Whoever has failed asks for the next generation, as it wishes. */
static void go_on(void)
{
    release();
    for (uint32_t i = 0; i < worker_count; i++) {
        if (workers[i]->state == CLIENT_APART)
            network_rejoin(network, workers[i], LONG_MS, LONG_MS);
    }
    network_settle(network);
}

static uint32_t count_in(enum network_worker_state state)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < worker_count; i++)
        count += !workers[i]->closed && workers[i]->state == state && !workers[i]->failed;
    return count;
}

/* Nobody has been told anything yet. */
static void assert_waiting(uint32_t ranks)
{
    ck_assert_uint_eq(count_in(CLIENT_JOINED), 0);
    ck_assert_uint_eq(count_in(CLIENT_JOINING), ranks);
}

/* All that live are the ranks of one generation. */
static void assert_together(uint32_t generation, uint32_t ranks)
{
    ck_assert_uint_eq(count_in(CLIENT_JOINED), ranks);
    for (uint32_t i = 0; i < worker_count; i++) {
        if (workers[i]->closed)
            continue;
        ck_assert_int_eq(workers[i]->state, CLIENT_JOINED);
        ck_assert_uint_eq(workers[i]->joined.world_size, ranks);
        ck_assert_uint_eq(workers[i]->joined.generation, generation);
    }
}

/* The loop variable is the home; the newcomer is on another node than it, or on the same. */
START_TEST(test_a_newcomer_ends_the_wait)
{
    start((uint32_t)_i % 3, 7);
    wish_all(RANKS, WAIT_MS);
    kill(1);
    go_on();
    network_run(network, WAIT_MS / 2);
    assert_waiting(3);
    come((home + (uint32_t)_i / 3) % 3, 0);
    network_settle(network); /* no time passes */
    assert_together(2, RANKS);
    ck_assert_uint_eq(workers[0]->failed_count, 1);
    ck_assert_int_eq(workers[RANKS]->joined.rank, 3);
    ck_assert_uint_eq(network_log_count(network, "could go on with 3 ranks, and waits for "
                                                 "newcomers until it has 4, for 6000 ms at most"),
                      1);
    ck_assert_uint_eq(network_log_count(network, "waits no more"), 0);
    end();
}
END_TEST

START_TEST(test_time_passes)
{
    start((uint32_t)_i, 7);
    wish_all(RANKS, WAIT_MS);
    kill(1);
    go_on();
    network_run(network, WAIT_MS - 100);
    assert_waiting(3);
    network_run(network, 200);
    assert_together(2, 3);
    ck_assert_uint_eq(workers[0]->failed_count, 1);
    ck_assert_uint_eq(network_log_count(network, "waits no more until it has 4 ranks, after 6000"),
                      1);
    end();
}
END_TEST

/* The job goes on as without a wish: at once, and without ranks that come later. In the second run
 * the number is there, with the newcomer; in the third a time without a number is no wish. */
START_TEST(test_nothing_to_wait_for)
{
    start(0, 7);
    kill(1);
    if (_i == 1) {
        wish_all(RANKS, WAIT_MS);
        come(2, 0);
        network_settle(network);
    } else if (_i == 2) {
        wish_all(0, WAIT_MS);
    }
    go_on();
    assert_together(2, _i == 1 ? 4 : 3);
    ck_assert_uint_eq(network_log_count(network, "waits for newcomers"), 0);
    ck_assert_int_eq(come(1, 0)->state, CLIENT_JOINING);
    network_settle(network);
    ck_assert_uint_eq(count_in(CLIENT_JOINING), 1);
    end();
}
END_TEST

/* The lost survivor does not count any more: two newcomers are needed then. */
START_TEST(test_survivor_lost_while_waiting)
{
    start((uint32_t)_i, 7);
    wish_all(RANKS, WAIT_MS);
    kill(1);
    go_on();
    kill(2);
    assert_waiting(2);
    come(0, 0);
    network_settle(network);
    assert_waiting(3);
    come(1, 0);
    network_settle(network);
    assert_together(2, RANKS);
    end();
}
END_TEST

/* Its wish goes with the rank that had it. */
START_TEST(test_the_wish_of_a_lost_rank)
{
    start(0, 7);
    wish(3, RANKS, WAIT_MS);
    kill(1);
    go_on();
    assert_waiting(3);
    kill(3);
    assert_together(2, 2);
    end();
}
END_TEST

/* The greatest number and the longest time, whosever they are. */
START_TEST(test_different_wishes)
{
    start(0, 7);
    wish(0, 3, WAIT_MS);
    wish(2, RANKS, WAIT_MS / 3);
    kill(1);
    go_on();
    network_run(network, WAIT_MS - 100);
    assert_waiting(3);
    if (_i == 0)
        network_run(network, 200);
    else
        come(1, 0);
    network_settle(network);
    assert_together(2, _i == 0 ? 3 : 4);
    end();
}
END_TEST

/* Rank 2 has not wished for it, and has less time than the others wait. */
START_TEST(test_the_time_of_another)
{
    start(0, 7);
    wish(0, RANKS, LONG_MS);
    kill(1);
    release();
    network_rejoin(network, workers[0], LONG_MS, LONG_MS);
    network_rejoin(network, workers[2], 5000, LONG_MS);
    network_rejoin(network, workers[3], LONG_MS, LONG_MS);
    network_run(network, 5000 - RESERVE_MS - 100);
    assert_waiting(3);
    network_run(network, 200);
    assert_together(2, 3);
    end();
}
END_TEST

/* Rank 3 lives and does not ask: the wait begins when it is waited for no more. */
START_TEST(test_after_stragglers)
{
    start(0, 7);
    wish_all(RANKS, WAIT_MS);
    kill(1);
    release();
    network_rejoin(network, workers[0], LONG_MS, 2000);
    network_rejoin(network, workers[2], LONG_MS, 2000);
    network_run(network, 2000 + WAIT_MS - 100);
    ck_assert_int_eq(workers[0]->state, CLIENT_JOINING);
    ck_assert_uint_eq(network_log_count(network, "could go on with 2 ranks"), 1);
    if (_i == 1) { /* it asks after all, and counts */
        network_rejoin(network, workers[3], LONG_MS, 2000);
        network_settle(network);
        assert_waiting(3);
    }
    network_run(network, 200);
    ck_assert_uint_eq(count_in(CLIENT_JOINED), _i == 1 ? 3 : 2);
    ck_assert_uint_eq(workers[0]->joined.world_size, _i == 1 ? 3 : 2);
    end();
}
END_TEST

/* The next one waits as the last one did. */
START_TEST(test_home_lost_while_waiting)
{
    start((uint32_t)_i, 7);
    wish_all(RANKS, WAIT_MS);
    kill(1);
    go_on();
    network_crash(network, home);
    network_settle(network);
    uint32_t left = count_in(CLIENT_JOINING);
    ck_assert_uint_gt(left, 0);
    assert_waiting(left);
    network_connect_all(network);
    network_settle(network);
    while (left < RANKS) {
        assert_waiting(left++);
        come((home + 1) % 3, 0);
        network_settle(network);
    }
    assert_together(2, RANKS);
    end();
}
END_TEST

/* The newcomer that ended the wait is lost while the generation opens: it goes on, and does not
 * begin anew. */
START_TEST(test_newcomer_lost_while_opening)
{
    start(0, 7);
    wish_all(RANKS, WAIT_MS);
    kill(1);
    go_on();
    network_run(network, WAIT_MS / 2);
    network_hold_engine(network, 1, true);
    come(1, 0);
    network_settle(network);
    kill(RANKS);
    network_hold_engine(network, 1, false);
    network_settle(network);
    assert_waiting(3);
    network_run(network, WAIT_MS / 2 - 100);
    assert_waiting(3);
    network_run(network, 200);
    assert_together(3, 3);
    ck_assert_uint_eq(workers[0]->failed_count, 1);
    end();
}
END_TEST

/* Its daemon was started again, and told the home what it wishes for. */
START_TEST(test_a_rank_that_comes_back)
{
    static const uint32_t weights[] = {1, 1, 1};
    home = 0;
    network = network_create(3, weights, 7);
    for (uint32_t node = 0; node < 3; node++)
        network_config(network, node)->recovery = true;
    network_connect_all(network);
    network_settle(network);
    network_join_four(network, workers, network_name_at(network, home));
    worker_count = RANKS;
    kill(1);
    network_restart(network, 2);
    network_settle(network);
    network_connect_all(network);
    network_settle(network);
    wish(3, RANKS, WAIT_MS);
    network_return(network, workers[3], LONG_MS, LONG_MS);
    go_on();
    assert_waiting(3);
    come(1, 0);
    network_settle(network);
    assert_together(2, RANKS);
    end();
}
END_TEST

/* While they wait the daemon of the only one that wishes for it is started again: it is waited for,
 * and its wish counts when it is back. */
START_TEST(test_who_wishes_is_away)
{
    static const uint32_t weights[] = {1, 1, 1};
    home = 0;
    network = network_create(3, weights, 7);
    for (uint32_t node = 0; node < 3; node++)
        network_config(network, node)->recovery = true;
    network_connect_all(network);
    network_settle(network);
    network_join_four(network, workers, network_name_at(network, home));
    worker_count = RANKS;
    wish(3, RANKS, WAIT_MS);
    kill(1);
    go_on();
    network_run(network, 1000);
    assert_waiting(3);
    network_restart(network, 2);
    network_settle(network);
    network_run(network, 500);
    network_connect_all(network);
    network_settle(network);
    network_return(network, workers[3], LONG_MS, LONG_MS);
    network_run(network, 1000);
    assert_waiting(3);
    come(1, 0);
    network_settle(network);
    assert_together(2, RANKS);
    end();
}
END_TEST

/* A newcomer is lost while the generation opens. Whoever asks again first, and wishes for nothing,
 * does not end the wait. */
START_TEST(test_who_wishes_asks_last)
{
    start(0, (uint64_t)_i);
    wish(2, RANKS, WAIT_MS);
    kill(1);
    go_on();
    network_run(network, WAIT_MS / 2);
    network_hold_engine(network, 1, true);
    come(1, 0);
    network_settle(network);
    kill(RANKS);
    network_hold_engine(network, 1, false);
    network_run(network, WAIT_MS / 2 - 100);
    assert_waiting(3);
    network_run(network, 200);
    assert_together(3, 3);
    end();
}
END_TEST

/* A newcomer that has gone again and one of another user are not among those that are there. */
START_TEST(test_newcomers_that_do_not_count)
{
    start(0, 7);
    wish_all(RANKS, WAIT_MS);
    kill(1);
    kill(2);
    go_on();
    struct network_worker *first = come(1, 0);
    network_settle(network);
    network_kill(network, first);
    network_settle(network);
    network_set_uid(network, 1001);
    struct network_worker *foreign = come(1, 2000);
    network_set_uid(network, 1000);
    come(2, 0);
    network_settle(network);
    assert_waiting(4);
    network_run(network, 4000);
    ck_assert(foreign->closed);
    assert_waiting(3);
    come(0, 0);
    network_settle(network);
    assert_together(2, RANKS);
    end();
}
END_TEST

/* Without a loss, to grow: all ranks ask, and wait for those that are to come. */
START_TEST(test_without_a_loss)
{
    start(0, 7);
    wish_all(RANKS + 1, WAIT_MS);
    network_release(network, workers[2]);
    network_settle(network);
    network_rejoin(network, workers[2], LONG_MS, LONG_MS);
    go_on();
    assert_waiting(RANKS);
    come(1, 0);
    network_settle(network);
    assert_together(2, RANKS + 1);
    end();
}
END_TEST

/* Losses and newcomers at moments that a seed chooses, and wishes of all kinds: in the end all that
 * live are together, however few. */
START_TEST(test_any_moment)
{
    uint64_t seed = (uint64_t)_i + 1;
    start((uint32_t)seed % 3, seed);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        wish(rank, network_random(network, 7), network_random(network, 2 * WAIT_MS));
    network_kill(network, workers[network_random(network, RANKS)]);
    for (uint32_t i = network_random(network, 12); i > 0; i--)
        network_step(network);
    for (uint32_t event = 0; event < 3; event++) {
        go_on();
        uint32_t node = network_random(network, 3), what = network_random(network, 4);
        if (what == 0)
            network_kill(network, workers[network_random(network, worker_count)]);
        else if (what == 1)
            network_crash(network, node);
        else
            come(node, 0);
        for (uint32_t i = network_random(network, 40); i > 0; i--)
            network_step(network);
        if (network_random(network, 2))
            network_run(network, network_random(network, WAIT_MS));
        if (what == 1)
            network_connect_all(network);
    }
    for (uint32_t round = 0; round < 6; round++) {
        go_on();
        network_run(network, 2 * (uint64_t)WAIT_MS);
    }
    for (uint32_t rank = 0; rank < RANKS; rank++)
        ck_assert_msg(workers[rank]->closed || workers[rank]->state == CLIENT_JOINED,
                      "rank %u: state %d, '%s'", rank, (int)workers[rank]->state,
                      workers[rank]->failure.text);
    end();
}
END_TEST

#ifdef SHOAL_SANITIZED
#define SEEDS 25
#else
#define SEEDS 250
#endif

int main(void)
{
    Suite *suite = suite_create("coordinator_wish");
    TCase *tests = tcase_create("wish");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, test_a_newcomer_ends_the_wait, 0, 6);
    tcase_add_loop_test(tests, test_time_passes, 0, 3);
    tcase_add_loop_test(tests, test_nothing_to_wait_for, 0, 3);
    tcase_add_loop_test(tests, test_survivor_lost_while_waiting, 0, 3);
    tcase_add_test(tests, test_the_wish_of_a_lost_rank);
    tcase_add_loop_test(tests, test_different_wishes, 0, 2);
    tcase_add_test(tests, test_the_time_of_another);
    tcase_add_loop_test(tests, test_after_stragglers, 0, 2);
    tcase_add_loop_test(tests, test_home_lost_while_waiting, 0, 3);
    tcase_add_test(tests, test_newcomer_lost_while_opening);
    tcase_add_test(tests, test_a_rank_that_comes_back);
    tcase_add_test(tests, test_who_wishes_is_away);
    tcase_add_loop_test(tests, test_who_wishes_asks_last, 0, 10);
    tcase_add_test(tests, test_newcomers_that_do_not_count);
    tcase_add_test(tests, test_without_a_loss);
    tcase_add_loop_test(tests, test_any_moment, 0, SEEDS);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
