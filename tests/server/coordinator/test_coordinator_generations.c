/* Jobs that lose ranks and go on, one loss after the other: also while the next generation opens,
 * at moments that a seed chooses. Nobody who lives waits for one who does not. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/server/coordinator_network.h"
#include "tests/lib/suite.h"

#define RANKS 4
/* Far above what a generation takes, far below what would be waited for. */
#define SOON_MS 3000
#define LONG_MS 9000

static struct network *network;
static struct network_worker *workers[RANKS];

static void start(uint32_t home, uint64_t seed)
{
    static const uint32_t weights[] = {1, 1, 1};
    network = network_create(3, weights, seed);
    network_connect_all(network);
    network_settle(network);
    network_join_four(network, workers, network_name_at(network, home));
}

static void end(void)
{
    for (int rank = 0; rank < RANKS; rank++) {
        if (!workers[rank]->closed)
            network_kill(network, workers[rank]);
    }
    network_connect_all(network);
    network_run(network, 20000);
    network_assert_empty(network);
    network_free(network);
}

/* Whoever has failed asks for the next generation. */
static void go_on(void)
{
    for (int rank = 0; rank < RANKS; rank++) {
        if (!workers[rank]->closed && workers[rank]->state == CLIENT_JOINED &&
            workers[rank]->failed)
            network_release(network, workers[rank]);
    }
    network_settle(network);
    for (int rank = 0; rank < RANKS; rank++) {
        if (workers[rank]->state == CLIENT_APART)
            network_rejoin(network, workers[rank], LONG_MS, LONG_MS);
    }
}

/* All that live are in one job, numbered in their old order. */
static void assert_together(uint32_t least_generation)
{
    const struct network_worker *first = NULL;
    uint32_t living = 0;
    for (int rank = 0; rank < RANKS; rank++) {
        const struct network_worker *worker = workers[rank];
        if (worker->closed)
            continue;
        ck_assert_msg(worker->state == CLIENT_JOINED && !worker->failed, "rank %d: state %d, '%s'",
                      rank, (int)worker->state, worker->failure.text);
        first = first ? first : worker;
        ck_assert(worker->joined.job_id == first->joined.job_id);
        ck_assert_int_eq(worker->joined.rank, (int)living++);
        ck_assert_uint_ge(worker->joined.generation, least_generation);
    }
    ck_assert_uint_gt(living, 0);
    ck_assert_uint_eq(first->joined.world_size, living);
}

/* Until nobody has to ask again. */
static void recover(void)
{
    for (int round = 0; round < 4; round++) {
        go_on();
        network_run(network, SOON_MS / 4);
    }
}

/* The loop variable is the home. */
START_TEST(test_rank_lost_while_opening)
{
    start((uint32_t)_i, 7);
    network_kill(network, workers[1]);
    network_settle(network);
    go_on();
    network_hold_engine(network, 1, true);
    network_settle(network);
    network_kill(network, workers[3]);
    network_settle(network);
    network_hold_engine(network, 1, false);
    network_settle(network);
    assert_together(3); /* without a word to those that waited */
    ck_assert_uint_eq(workers[0]->failed_count, 1);
    end();
}
END_TEST

/* Rank 3 lives and does not ask. How long it is waited for is said by those who say it at all. */
START_TEST(test_straggler)
{
    start(0, 7);
    network_kill(network, workers[1]);
    network_settle(network);
    for (int rank = 0; rank < RANKS; rank++) {
        if (rank != 1)
            network_release(network, workers[rank]);
    }
    network_settle(network);
    network_rejoin(network, workers[0], LONG_MS, 0);
    network_settle(network);
    network_rejoin(network, workers[2], LONG_MS, SOON_MS);
    network_run(network, SOON_MS / 2);
    ck_assert_int_ne(workers[0]->state, CLIENT_JOINED);
    network_run(network, SOON_MS);
    ck_assert_int_eq(workers[0]->state, CLIENT_JOINED);
    ck_assert_int_eq(workers[2]->state, CLIENT_JOINED);
    ck_assert_uint_eq(workers[2]->joined.world_size, 2);
    end();
}
END_TEST

/* Rank 1 has said that it leaves, and has no answer yet, when the job fails: it is not waited for.
 */
START_TEST(test_one_leaves_while_it_fails)
{
    start((uint32_t)_i, 7);
    network_leave(network, workers[1]);
    network_kill(network, workers[2]);
    network_settle(network);
    go_on();
    network_settle(network);
    assert_together(2);
    ck_assert_uint_eq(workers[0]->joined.world_size, 2);
    end();
}
END_TEST

/* Not the same again and again: what no loss explains ends the wait. */
START_TEST(test_refused_while_opening)
{
    start(0, 7);
    network_kill(network, workers[1]);
    network_settle(network);
    network_refuse_job_open(network, 2, "over the memory limit");
    go_on();
    network_settle(network);
    for (int rank = 0; rank < RANKS; rank++) {
        ck_assert_int_eq(workers[rank]->state, CLIENT_OVER);
        if (rank != 1)
            network_assert_text(workers[rank], "over the memory limit");
    }
    end();
}
END_TEST

/* To take newcomers in, one rank asks, and the job fails for the others: they all go on. */
START_TEST(test_newcomers)
{
    start((uint32_t)_i, 7);
    network_kill(network, workers[0]);
    network_settle(network);
    go_on();
    network_settle(network);
    assert_together(2);
    struct network_worker *other = network_join(network, 1, "another", 0, -1, -1, 2000);
    struct network_worker *first =
        network_join(network, (uint32_t)_i, network_name_at(network, (uint32_t)_i), 0, -1, 7, 0);
    network_set_uid(network, 1001);
    struct network_worker *foreign =
        network_join(network, 2, network_name_at(network, (uint32_t)_i), 0, -1, -1, 2000);
    network_set_uid(network, 1000);
    network_settle(network);
    ck_assert_int_eq(first->state, CLIENT_JOINING);
    network_release(network, workers[2]);
    network_settle(network);
    network_assert_text(workers[1], "rank 1 on node b goes on to the next generation");
    network_rejoin(network, workers[2], LONG_MS, LONG_MS);
    workers[0] = workers[1]; /* the newcomer comes last */
    workers[1] = workers[2];
    workers[2] = workers[3];
    workers[3] = first;
    go_on();
    network_settle(network);
    assert_together(3);
    ck_assert_uint_eq(first->joined.world_size, 4);
    network_run(network, 4000);
    network_assert_text(other, "no job 'another' of user 1000 has begun a next generation");
    network_assert_text(foreign, "of user 1001");
    end();
}
END_TEST

/* A rank that is started again takes its old number: the others are numbered around it. */
START_TEST(test_newcomers_choose)
{
    start(0, 7);
    network_kill(network, workers[1]);
    network_settle(network);
    go_on();
    network_settle(network);
    assert_together(2);
    const char *name = network_name_at(network, 0);
    struct network_worker *first = network_join(network, 1, name, 0, 1, -1, 0);
    struct network_worker *second = network_join(network, 2, name, 0, 1, -1, 0);
    struct network_worker *third = network_join(network, 2, name, 0, 99, -1, 0);
    network_settle(network);
    network_release(network, workers[0]);
    network_settle(network);
    network_rejoin(network, workers[0], LONG_MS, LONG_MS);
    go_on();
    network_settle(network);
    ck_assert_int_eq(first->joined.rank, 1);
    ck_assert_int_eq(workers[0]->joined.rank, 0);
    ck_assert_int_eq(workers[2]->joined.rank, 2);
    ck_assert_int_eq(workers[3]->joined.rank, 3);
    ck_assert_int_eq(second->joined.rank + third->joined.rank, 4 + 5); /* it is taken; none such */
    ck_assert_uint_eq(first->joined.world_size, 6);
    network_kill(network, first);
    network_kill(network, second);
    network_kill(network, third);
    network_settle(network);
    end();
}
END_TEST

/* A newcomer's daemon, process or link goes while it waits, or the home of the job. */
START_TEST(test_newcomers_and_losses)
{
    uint64_t seed = (uint64_t)_i + 1;
    start((uint32_t)seed % 3, seed);
    const char *name = network_name_at(network, (uint32_t)seed % 3);
    struct network_worker *newcomer =
        network_join(network, network_random(network, 3), name, 0, -1, -1, LONG_MS);
    if (network_random(network, 2))
        network_settle(network);
    network_release(network, workers[network_random(network, 4)]);
    for (uint32_t i = network_random(network, 20); i > 0; i--)
        network_step(network);
    go_on();
    for (uint32_t i = network_random(network, 40); i > 0; i--)
        network_step(network);
    uint32_t what = network_random(network, 4);
    if (what == 0)
        network_crash(network, newcomer->node);
    else if (what == 1)
        network_kill(network, newcomer);
    else if (what == 2)
        network_crash(network, network_random(network, 3));
    recover();
    bool some = false;
    for (int rank = 0; rank < RANKS; rank++)
        some = some || !workers[rank]->closed;
    if (some && newcomer->state != CLIENT_JOINED)
        assert_together(2);
    network_run(network, LONG_MS + 2000);
    ck_assert_int_ne(newcomer->state, CLIENT_JOINING);
    if (!newcomer->closed)
        network_kill(network, newcomer);
    end();
}
END_TEST

/* Put the workers that live first, in their order, and the newcomer behind them. */
static void add_rank(struct network_worker *newcomer)
{
    struct network_worker *dead = NULL;
    int count = 0;
    for (int rank = 0; rank < RANKS; rank++) {
        if (workers[rank]->closed)
            dead = workers[rank];
        else
            workers[count++] = workers[rank];
    }
    ck_assert_int_lt(count, RANKS);
    workers[count++] = newcomer;
    while (count < RANKS)
        workers[count++] = dead;
}

/* A daemon that is started anew and gets a rank by a newcomer knows no more of the job than that
 * generation. All agree on the next home without it. The loop variable is the home. */
START_TEST(test_home_lost_after_restart)
{
    uint32_t home = (uint32_t)_i, restarted = (home + 1) % 3;
    start(home, 7);
    network_crash(network, restarted);
    network_settle(network);
    network_connect_all(network);
    network_settle(network);
    go_on();
    network_settle(network);
    assert_together(2);
    struct network_worker *newcomer =
        network_join(network, restarted, network_name_at(network, home), 0, -1, -1, LONG_MS);
    network_settle(network);
    for (int rank = 0; rank < RANKS; rank++) {
        if (!workers[rank]->closed)
            network_release(network, workers[rank]);
    }
    go_on();
    network_settle(network);
    ck_assert_int_eq(newcomer->state, CLIENT_JOINED);
    add_rank(newcomer);
    assert_together(3);
    network_crash(network, home);
    network_settle(network);
    go_on();
    network_settle(network); /* nobody is waited for */
    assert_together(4);
    end();
}
END_TEST

/* A second loss at any moment after the first: of a rank, a daemon, a link. */
START_TEST(test_two_losses)
{
    uint64_t seed = (uint64_t)_i + 1;
    start((uint32_t)seed % 3, seed);
    network_kill(network, workers[network_random(network, 2)]);
    if (network_random(network, 2))
        network_settle(network);
    for (uint32_t i = network_random(network, 12); i > 0; i--)
        network_step(network);
    go_on();
    for (uint32_t i = network_random(network, 40); i > 0; i--)
        network_step(network);
    uint32_t node = network_random(network, 3), what = network_random(network, 3);
    struct network_worker *worker = workers[2 + network_random(network, 2)];
    if (what == 0)
        network_kill(network, worker);
    else
        network_crash(network, node);
    if (what == 2)
        network_connect_all(network);
    recover();
    bool some = false;
    for (int rank = 0; rank < RANKS; rank++)
        some = some || !workers[rank]->closed;
    if (some)
        assert_together(2);
    end();
}
END_TEST

static void reconnect(void)
{
    network_settle(network);
    network_connect_all(network);
    network_settle(network);
}

static uint32_t living(void)
{
    uint32_t count = 0;
    for (int rank = 0; rank < RANKS; rank++)
        count += !workers[rank]->closed;
    return count;
}

/* One loss after the other, daemons that drain or come again, and newcomers for the lost. */
START_TEST(test_many_generations)
{
    uint64_t seed = (uint64_t)_i + 1;
    uint32_t home = (uint32_t)seed % 3;
    start(home, seed);
    for (int round = 0; round < 6 && living() > 0; round++) {
        struct network_worker *newcomer = NULL;
        if (living() < RANKS && network_random(network, 2))
            newcomer = network_join(network, network_random(network, 3),
                                    network_name_at(network, home), 0, -1, -1, LONG_MS);
        if (network_random(network, 2))
            network_settle(network);
        struct network_worker *worker = workers[network_random(network, RANKS)];
        uint32_t what = network_random(network, 4), node = network_random(network, 3);
        if (what == 0)
            network_crash(network, node);
        else if (what == 3)
            coordinator_drain(network_coordinator(network, node), network_now(network), LONG_MS);
        else if (!worker->closed && what == 1)
            network_kill(network, worker);
        else if (!worker->closed)
            network_release(network, worker);
        for (uint32_t i = network_random(network, 20); i > 0; i--)
            network_step(network);
        go_on();
        for (uint32_t i = network_random(network, 40); i > 0; i--)
            network_step(network);
        if (network_random(network, 4) == 0)
            network_crash(network, network_random(network, 3));
        if (what == 3)
            network_crash(network, node); /* it has ended, and is started anew */
        reconnect();
        for (int again = 0; again < 4; again++) {
            if (newcomer && newcomer->state == CLIENT_JOINED) {
                add_rank(newcomer);
                newcomer = NULL;
            }
            go_on();
            network_run(network, SOON_MS / 4);
        }
        if (newcomer && newcomer->state == CLIENT_JOINED)
            add_rank(newcomer);
        else if (newcomer && !newcomer->closed)
            network_kill(network, newcomer);
        if (living() > 0)
            assert_together(1);
        network_settle(network);
    }
    end();
}
END_TEST

/* The home hears last that node 2 is gone, from its fabric: all others have asked by then. The next
 * generation is without that node, though its control connection is still there. */
START_TEST(test_fabric_is_lost_last)
{
    start(0, 7);
    network_cut(network, 1, 2, "cut");
    network_settle(network);
    for (int rank = 0; rank < 3; rank++)
        network_release(network, workers[rank]);
    network_settle(network);
    for (int rank = 0; rank < 3; rank++)
        network_rejoin(network, workers[rank], LONG_MS, LONG_MS);
    network_settle(network);
    ck_assert_int_eq(workers[0]->state, CLIENT_JOINING);
    network_lose_fabric(network, 0, 2);
    network_cut(network, 0, 2, "the fabric lost it");
    network_settle(network);
    network_kill(network, workers[3]);
    assert_together(2);
    ck_assert_uint_eq(workers[0]->joined.generation, 2);
    ck_assert_uint_eq(workers[0]->weight_count, 2);
    end();
}
END_TEST

/* With recovery on a server may be away while the next generation opens: that waits until it is
 * back, or opens without it. In the third run it was lost before, and has been there again. */
START_TEST(test_server_away)
{
    network = network_create_connected(4);
    network_join_four(network, workers, network_name_at(network, 0));
    if (_i == 2)
        network_cut(network, 0, 3, "cut");
    else
        network_kill(network, workers[1]);
    network_settle(network);
    if (_i == 2)
        network_connect(network, 0, 3);
    network_settle(network);
    network_away(network, 0, 3);
    go_on();
    network_settle(network);
    for (int rank = 0; rank < RANKS; rank++)
        ck_assert(workers[rank]->closed || workers[rank]->state == CLIENT_JOINING);
    if (_i == 0)
        network_back(network, 0, 3);
    else
        network_gone(network, 0, 3);
    network_settle(network);
    assert_together(2);
    ck_assert_uint_eq(workers[0]->joined.generation, 2); /* none has failed on the way */
    ck_assert_uint_eq(workers[0]->weight_count, _i == 0 ? 4 : 3);
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
    Suite *suite = suite_create("coordinator_generations");
    TCase *tests = tcase_create("generations");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, test_rank_lost_while_opening, 0, 3);
    tcase_add_test(tests, test_straggler);
    tcase_add_loop_test(tests, test_one_leaves_while_it_fails, 0, 3);
    tcase_add_test(tests, test_refused_while_opening);
    tcase_add_loop_test(tests, test_newcomers, 0, 3);
    tcase_add_test(tests, test_newcomers_choose);
    tcase_add_loop_test(tests, test_home_lost_after_restart, 0, 3);
    tcase_add_loop_test(tests, test_newcomers_and_losses, 0, SEEDS);
    tcase_add_loop_test(tests, test_two_losses, 0, SEEDS);
    tcase_add_loop_test(tests, test_many_generations, 0, SEEDS);
    tcase_add_test(tests, test_fabric_is_lost_last);
    tcase_add_loop_test(tests, test_server_away, 0, 3);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
