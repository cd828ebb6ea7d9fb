/* Events that end one part in a job that goes on, and must not end the others': a daemon that
 * drains, or has no room; newcomers; other users' jobs; servers that come later. */
#include <stdio.h>

#include "tests/lib/server/coordinator_network.h"
#include "tests/lib/suite.h"

#define RANKS 4
#define SOON_MS 3000
#define LONG_MS 9000

static struct network *network;
static struct network_worker *workers[RANKS];
static const char *name;

static void start_weighted(uint32_t home, const uint32_t *weights)
{
    network = network_create(3, weights, 7);
    network_connect_all(network);
    network_settle(network);
    name = network_name_at(network, home);
    network_join_four(network, workers, name);
}

static void start(uint32_t home)
{
    static const uint32_t weights[] = {1, 1, 1};
    start_weighted(home, weights);
}

static void lose(int rank)
{
    network_kill(network, workers[rank]);
    network_settle(network);
}

static void release(void)
{
    for (int rank = 0; rank < RANKS; rank++) {
        if (workers[rank]->state == CLIENT_JOINED)
            network_release(network, workers[rank]);
    }
    network_settle(network);
}

static void rejoin(void)
{
    for (int rank = 0; rank < RANKS; rank++) {
        if (workers[rank]->state == CLIENT_APART)
            network_rejoin(network, workers[rank], LONG_MS, LONG_MS);
    }
    network_settle(network);
}

static struct network_worker *newcomer_at(uint32_t node, uint32_t timeout_ms)
{
    struct network_worker *newcomer = network_join(network, node, name, 0, -1, -1, timeout_ms);
    network_settle(network);
    return newcomer;
}

static void restart(uint32_t node)
{
    network_crash(network, node);
    network_settle(network);
    network_connect_all(network);
    network_settle(network);
}

/* Check that the ranks that are not closed are together, and that nobody was waited for. */
static void assert_together(uint32_t generation, uint32_t world_size)
{
    uint32_t rank = 0;
    for (int i = 0; i < RANKS; i++) {
        if (workers[i]->closed)
            continue;
        ck_assert_msg(workers[i]->state == CLIENT_JOINED && !workers[i]->failed,
                      "rank %d: state %d, '%s'", i, (int)workers[i]->state,
                      workers[i]->failure.text);
        ck_assert_uint_eq(workers[i]->joined.generation, generation);
        ck_assert_uint_eq(workers[i]->joined.world_size, world_size);
        ck_assert_int_eq(workers[i]->joined.rank, (int)rank++);
    }
    ck_assert_uint_gt(rank, 0);
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

/* --- a daemon that drains. The loop variable is the home. */

static void drain_b(void)
{
    coordinator_drain(network_coordinator(network, 1), network_now(network), LONG_MS);
    network_settle(network);
}

/* Its ranks are waited for no more, and it is not asked. It has another job, and stays. */
START_TEST(test_drain_before_it_opens)
{
    start((uint32_t)_i);
    network_hold_engine(network, 1, true);
    struct network_worker *busy = network_join(network, 1, "busy", 1, 0, -1, 0);
    network_settle(network);
    network_hold_engine(network, 1, false);
    network_settle(network);
    ck_assert_int_eq(busy->state, CLIENT_JOINED);
    lose(0);
    release();
    network_hold_engine(network, 1, true); /* it is not idle */
    drain_b();
    ck_assert(workers[2]->closed);
    rejoin();
    ck_assert(!coordinator_stopped(network_coordinator(network, 1)));
    ck_assert(!busy->closed);
    assert_together(2, 2);
    network_hold_engine(network, 1, false);
    network_settle(network);
    ck_assert(coordinator_stopped(network_coordinator(network, 1)));
    ck_assert_uint_eq(workers[1]->failed_count, 1); /* b had no part in it any more */
    end();
}
END_TEST

START_TEST(test_drain_while_it_opens)
{
    start((uint32_t)_i);
    lose(0);
    release();
    network_hold_engine(network, 2, true);
    rejoin();
    drain_b();
    network_assert_text(workers[2], "node b is shutting down");
    network_hold_engine(network, 2, false);
    network_settle(network);
    assert_together(3, 2);
    ck_assert_uint_eq(workers[1]->failed_count, 1); /* it has been told of no other failure */
    end();
}
END_TEST

/* A newcomer there is refused, and nobody is told to forget it who has not heard of it. */
START_TEST(test_drain_newcomer)
{
    start(0);
    network_hold_engine(network, 1, true);
    drain_b();
    uint64_t dropped = coordinator_dropped_messages(network_coordinator(network, 2));
    struct network_worker *newcomer = newcomer_at(1, 0);
    network_assert_text(newcomer, "node b is shutting down");
    ck_assert_uint_eq(coordinator_dropped_messages(network_coordinator(network, 2)), dropped);
    network_hold_engine(network, 1, false);
    network_settle(network);
    end();
}
END_TEST

/* --- a daemon without room. The loop variable is the home. */

START_TEST(test_newcomer_without_room)
{
    start((uint32_t)_i);
    restart(1);
    release();
    rejoin();
    assert_together(2, 3);
    struct network_worker *newcomer = newcomer_at(1, 0);
    network_refuse_job_open(network, 1, "over the memory limit");
    release();
    rejoin();
    network_assert_text(newcomer, "over the memory limit");
    assert_together(4, 3);
    end();
}
END_TEST

START_TEST(test_server_without_room)
{
    start((uint32_t)_i);
    network_refuse_job_open(network, 1, "over the memory limit");
    restart(1);
    release();
    rejoin();
    assert_together(3, 3);
    ck_assert_uint_eq(workers[0]->weight_count, 2);
    end();
}
END_TEST

/* --- newcomers */

/* How long it waits is its own affair. */
START_TEST(test_newcomer_in_a_hurry)
{
    start(0);
    lose(0);
    struct network_worker *newcomer = newcomer_at(1, 2500);
    release();
    network_hold_engine(network, 2, true);
    rejoin();
    network_run(network, SOON_MS);
    ck_assert_int_eq(newcomer->state, CLIENT_JOINING);
    network_hold_engine(network, 2, false);
    network_settle(network);
    assert_together(2, 4);
    network_kill(network, newcomer);
    end();
}
END_TEST

/* All ranks are lost while the generation opens that the newcomer was to join. */
START_TEST(test_newcomer_alone)
{
    start(2);
    lose(2);
    lose(3);
    release();
    rejoin();
    assert_together(2, 2);
    struct network_worker *newcomer = newcomer_at(1, 0);
    release();
    network_hold_engine(network, 2, true);
    rejoin();
    lose(0);
    lose(1);
    network_hold_engine(network, 2, false);
    network_settle(network);
    network_assert_text(newcomer, "is over: all its ranks are gone");
    ck_assert_int_eq(newcomer->failure.code, ERR_REFUSED);
    end();
}
END_TEST

START_TEST(test_newcomers_limit)
{
    start(0);
    network_keep_log(network);
    network_config(network, 0)->workers = 4; /* of which two are at work */
    struct network_worker *newcomers[7];
    for (int i = 0; i < 6; i++)
        newcomers[i] = newcomer_at(2, LONG_MS);
    ck_assert_uint_gt(network_log_count(network, "is not heard: of node"), 0);
    newcomers[6] = newcomer_at(1, LONG_MS); /* of another node, which has one alone */
    lose(3);
    release();
    rejoin();
    assert_together(2, 8); /* as many as its home knows */
    network_run(network, LONG_MS + 2000);
    for (int i = 0; i < 7; i++) {
        ck_assert_int_ne(newcomers[i]->state, CLIENT_JOINING);
        if (!newcomers[i]->closed)
            network_kill(network, newcomers[i]);
    }
    end();
}
END_TEST

/* --- what is kept */

/* Jobs of another user that fail, one after the other, push out their like. */
START_TEST(test_other_users)
{
    start(0);
    for (uint32_t node = 0; node < 3; node++)
        network_config(network, node)->jobs = 4;
    lose(0);
    network_set_uid(network, 1001);
    for (int i = 0; i < 6; i++) {
        char other[24];
        snprintf(other, sizeof(other), "other-%d", i);
        struct network_worker *two[] = {network_join(network, 1, other, 2, 0, -1, 0),
                                        network_join(network, 2, other, 2, 1, -1, 0)};
        network_settle(network);
        ck_assert_int_eq(two[1]->state, CLIENT_JOINED);
        network_kill(network, two[0]);
        network_settle(network);
        network_kill(network, two[1]);
        network_settle(network);
    }
    network_set_uid(network, 1000);
    release();
    rejoin();
    assert_together(2, 3);
    end();
}
END_TEST

/* The only server is away when the time for rank 1 is over, which does not ask: it is not waited
 * for anew. */
START_TEST(test_server_comes_later)
{
    static const uint32_t weights[] = {0, 0, 1};
    start_weighted(1, weights);
    network_crash(network, 2);
    network_settle(network);
    release();
    network_rejoin(network, workers[0], 3 * LONG_MS, SOON_MS);
    network_rejoin(network, workers[2], 3 * LONG_MS, SOON_MS);
    network_run(network, 2ull * SOON_MS);
    ck_assert_int_eq(workers[0]->state, CLIENT_JOINING);
    network_connect_all(network);
    network_settle(network);
    ck_assert_int_eq(workers[0]->state, CLIENT_JOINED);
    ck_assert_int_eq(workers[2]->state, CLIENT_JOINED);
    ck_assert_uint_eq(workers[2]->joined.world_size, 2);
    end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator_parting");
    TCase *tests = tcase_create("parting");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, test_drain_before_it_opens, 0, 3);
    tcase_add_loop_test(tests, test_drain_while_it_opens, 0, 3);
    tcase_add_test(tests, test_drain_newcomer);
    tcase_add_loop_test(tests, test_newcomer_without_room, 0, 3);
    tcase_add_loop_test(tests, test_server_without_room, 0, 3);
    tcase_add_test(tests, test_newcomer_in_a_hurry);
    tcase_add_test(tests, test_newcomer_alone);
    tcase_add_test(tests, test_newcomers_limit);
    tcase_add_test(tests, test_other_users);
    tcase_add_test(tests, test_server_comes_later);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
