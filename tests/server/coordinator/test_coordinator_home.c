/* Jobs that begin while the daemon that their name stands for is not there: with recovery they
 * gather at the next one, all at the same, whoever comes and goes meanwhile. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/server/coordinator_network.h"
#include "tests/lib/suite.h"

#define NODES 4
#define HOME 3 /* it has no ranks */
#define PEER_MS 1500
#define SAY_MS 500
#define LONG_MS 9000
#define SEEDS 60
#define RANKS_MAX 4

static struct network *network;
static struct network_worker *workers[RANKS_MAX];
static uint32_t worker_count;

/* All but the home are connected with each other. */
static void start(bool recovery, uint64_t seed)
{
    static const uint32_t weights[NODES] = {1, 1, 1, 1};
    network = network_create(NODES, weights, seed);
    for (uint32_t node = 0; node < NODES; node++) {
        network_config(network, node)->recovery = recovery;
        network_config(network, node)->peer_ms = PEER_MS;
    }
    for (uint32_t node = 0; node < HOME; node++)
        for (uint32_t other = 0; other < node; other++)
            network_connect(network, other, node);
    network_settle(network);
    network_keep_log(network);
    worker_count = 0;
}

static void come(uint32_t node, uint32_t ranks)
{
    int32_t rank = (int32_t)worker_count;
    workers[worker_count++] =
        network_join(network, node, network_name_at(network, HOME), ranks, rank, -1, LONG_MS);
}

static void assert_all(enum network_worker_state state)
{
    for (uint32_t i = 0; i < worker_count; i++) {
        ck_assert_msg(workers[i]->state == state, "rank %u: state %d, not %d: %s", i,
                      (int)workers[i]->state, (int)state, workers[i]->failure.text);
        if (state == CLIENT_JOINED)
            ck_assert_uint_eq(workers[i]->joined.generation, 1);
    }
}

static uint32_t opened_at(char node)
{
    char text[64];
    snprintf(text, sizeof(text), "gathers at node %c: server d", node);
    return network_log_count(network, text);
}

static void end(void)
{
    for (uint32_t i = 0; i < worker_count; i++) {
        if (!workers[i]->closed)
            network_kill(network, workers[i]);
    }
    network_settle(network);
    network_connect_all(network);
    network_run(network, 20000);
    network_assert_empty(network);
    network_free(network);
}

/* The log says in the first second who is not there, once on each node. The loop variable: recovery
 * is configured; without it the job waits. */
START_TEST(test_a_job_begins_without_its_home)
{
    start(_i == 1, 7);
    come(0, 4);
    come(0, 4);
    come(1, 4);
    come(2, 4);
    network_run(network, SAY_MS - 1);
    ck_assert_uint_eq(network_log_count(network, "cannot gather"), 0);
    network_run(network, 2);
    ck_assert_uint_eq(network_log_count(network, "cannot gather at its home: server d"), 3);
    network_run(network, PEER_MS - SAY_MS);
    ck_assert_uint_eq(opened_at('a'), _i == 1 ? 3 : 0);
    assert_all(CLIENT_JOINING);
    network_run(network, PEER_MS);
    if (_i == 1) {
        assert_all(CLIENT_JOINED);
        ck_assert_uint_eq(network_log_count(network, "begins without: server d"), 1);
        ck_assert_uint_eq(network_engine_jobs(network, 0), 1);
    } else {
        assert_all(CLIENT_JOINING);
        network_run(network, LONG_MS);
        assert_all(CLIENT_OVER);
        network_assert_text(workers[3], "cannot gather at its home: server d");
    }
    end();
}
END_TEST

/* Its ranks are on one node, which needs no other. */
START_TEST(test_a_job_of_one_node)
{
    start(true, 7);
    come(1, 2);
    come(1, 2);
    network_run(network, PEER_MS + 1);
    assert_all(CLIENT_JOINED);
    ck_assert_uint_eq(network_engine_jobs(network, 1), 1);
    ck_assert_uint_eq(network_engine_jobs(network, 0), 0);
    end();
}
END_TEST

/* Ranks that gather elsewhere by then, and one that comes later, meet at the home. */
START_TEST(test_the_home_comes)
{
    start(true, 7);
    come(0, 3);
    come(1, 3);
    network_run(network, PEER_MS + 100);
    ck_assert_uint_eq(opened_at('a'), 2);
    network_connect_all(network);
    network_settle(network);
    assert_all(CLIENT_JOINING);
    come(2, 3);
    network_settle(network);
    assert_all(CLIENT_JOINED);
    ck_assert_uint_eq(network_engine_jobs(network, HOME), 1);
    end();
}
END_TEST

/* Node b is connected with the home, the others are not. They meet when whoever stands in for it
 * is. */
START_TEST(test_a_home_that_some_reach)
{
    start(true, 7);
    network_connect(network, 1, HOME);
    come(0, 3);
    come(1, 3);
    come(2, 3);
    network_run(network, 2 * PEER_MS + 100);
    assert_all(CLIENT_JOINING);
    network_connect(network, 0, HOME);
    network_run(network, 1000);
    assert_all(CLIENT_JOINING); /* node c is told again and again that it is to ask the home */
    network_connect(network, 2, HOME);
    network_settle(network);
    assert_all(CLIENT_JOINED);
    end();
}
END_TEST

/* The home is never connected with all: each rank gets an answer within its time. */
START_TEST(test_a_home_that_some_never_reach)
{
    start(true, 7);
    network_connect(network, 0, HOME);
    come(0, 2);
    come(1, 2);
    network_run(network, LONG_MS + 2000);
    assert_all(CLIENT_OVER);
    network_assert_text(workers[0], "rank 1 of job");
    network_assert_text(workers[1], "cannot gather at its home: server d");
    end();
}
END_TEST

/* The next one in line. */
START_TEST(test_who_stands_in_is_lost)
{
    start(true, 7);
    come(1, 2);
    network_run(network, PEER_MS + 100);
    ck_assert_uint_eq(opened_at('a'), 1);
    network_crash(network, 0);
    come(2, 2);
    network_run(network, 3 * PEER_MS + 100);
    assert_all(CLIENT_JOINED);
    ck_assert_uint_eq(opened_at('b'), 2);
    end();
}
END_TEST

/* All that is told here happens in an order that the seed gives: whatever it is, the job begins,
 * once. */
START_TEST(test_the_home_comes_at_any_moment)
{
    start(true, 100 + (uint64_t)_i);
    bool connected[HOME] = {false};
    uint32_t links = 0;
    for (uint32_t moves = 0; worker_count < 3 || links < HOME; moves++) {
        uint32_t node = network_random(network, HOME);
        if (network_random(network, 2) == 0 && worker_count < 3)
            come(worker_count, 3);
        else if (!connected[node]) {
            network_connect(network, node, HOME);
            connected[node] = true;
            links++;
        }
        for (uint32_t steps = network_random(network, 6); steps > 0 && network_step(network);)
            steps--;
        if (network_random(network, 3) == 0)
            network_run(network, network_random(network, PEER_MS));
    }
    network_run(network, 3 * PEER_MS);
    assert_all(CLIENT_JOINED);
    uint32_t jobs = 0;
    for (uint32_t node = 0; node < HOME; node++)
        jobs += network_engine_jobs(network, node);
    ck_assert_uint_eq(jobs, 3);
    end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator_home");
    TCase *tests = tcase_create("coordinator_home");
    tcase_add_loop_test(tests, test_a_job_begins_without_its_home, 0, 2);
    tcase_add_test(tests, test_a_job_of_one_node);
    tcase_add_test(tests, test_the_home_comes);
    tcase_add_test(tests, test_a_home_that_some_reach);
    tcase_add_test(tests, test_a_home_that_some_never_reach);
    tcase_add_test(tests, test_who_stands_in_is_lost);
    tcase_add_loop_test(tests, test_the_home_comes_at_any_moment, 0, SEEDS);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
