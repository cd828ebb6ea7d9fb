/* The daemon of a node with ranks is killed and started again while its ranks live: they come back
 * with the new one, which knows nothing of the job. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/server/coordinator_network.h"
#include "tests/lib/suite.h"

#define RANKS 4
#define NODES 3
/* The time for which the network's daemons wait for ranks. */
#define RESTART_MS 2000
#define LONG_MS 9000

static struct network *network;
static struct network_worker *workers[RANKS];

static void start(uint32_t home, uint64_t seed)
{
    static const uint32_t weights[] = {1, 1, 1};
    network = network_create(NODES, weights, seed);
    for (uint32_t node = 0; node < NODES; node++)
        network_config(network, node)->recovery = true;
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
    network_settle(network);
    network_connect_all(network);
    network_run(network, 20000);
    network_assert_empty(network);
    network_free(network);
}

/* Whoever has failed asks for the next generation, and who is without a daemon comes back. */
static void go_on(void)
{
    for (int rank = 0; rank < RANKS; rank++) {
        struct network_worker *worker = workers[rank];
        if (!worker->closed && worker->state == CLIENT_JOINED && worker->failed)
            network_release(network, worker);
        else if (!worker->closed && worker->state == CLIENT_ORPHAN)
            network_return(network, worker, LONG_MS, LONG_MS);
    }
    network_settle(network);
    for (int rank = 0; rank < RANKS; rank++) {
        if (workers[rank]->state == CLIENT_APART)
            network_rejoin(network, workers[rank], LONG_MS, LONG_MS);
    }
}

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

/* All that live are in one job, numbered in their old order. */
static void assert_together(uint32_t size, uint32_t least_generation)
{
    const struct network_worker *first = NULL;
    ck_assert_uint_eq(living(), size);
    uint32_t next = 0;
    for (int rank = 0; rank < RANKS; rank++) {
        const struct network_worker *worker = workers[rank];
        if (worker->closed)
            continue;
        ck_assert_msg(worker->state == CLIENT_JOINED && !worker->failed, "rank %d: state %d, '%s'",
                      rank, (int)worker->state, worker->failure.text);
        first = first ? first : worker;
        ck_assert(worker->joined.job_id == first->joined.job_id);
        ck_assert(worker->joined.lineage == first->joined.lineage);
        ck_assert_int_eq(worker->joined.rank, (int)next++);
        ck_assert_uint_eq(worker->joined.world_size, size);
        ck_assert_uint_ge(worker->joined.generation, least_generation);
    }
}

/* The loop variable is the home and the node. Node 0 has two ranks. */
START_TEST(test_all_come_back)
{
    start((uint32_t)_i % NODES, 7);
    network_keep_log(network);
    network_restart(network, (uint32_t)_i / NODES);
    network_settle(network);
    ck_assert_uint_gt(network_log_count(network, "whose daemon has ended"), 0);
    for (uint32_t generation = 2; generation < 5; generation++) {
        reconnect();
        go_on();
        network_settle(network);
        assert_together(RANKS, generation);
        network_restart(network, ((uint32_t)_i / NODES + generation) % NODES);
    }
    reconnect();
    go_on();
    network_settle(network);
    assert_together(RANKS, 5);
    end();
}
END_TEST

/* Nobody decides before they are back, and nobody after RESTART_MS waits. */
START_TEST(test_some_stay_away)
{
    start((uint32_t)_i, 7);
    network_restart(network, 2);
    reconnect();
    for (int rank = 0; rank < 3; rank++)
        network_release(network, workers[rank]);
    network_settle(network);
    for (int rank = 0; rank < 3; rank++)
        network_rejoin(network, workers[rank], LONG_MS, RESTART_MS / 4);
    network_run(network, RESTART_MS / 2);
    for (int rank = 0; rank < 3; rank++)
        ck_assert_int_eq(workers[rank]->state, CLIENT_JOINING);
    network_run(network, RESTART_MS);
    workers[3]->closed = true;
    assert_together(3, 2);
    workers[3]->closed = false;
    network_return(network, workers[3], LONG_MS, LONG_MS);
    network_settle(network);
    network_assert_text(workers[3], "has gone on without rank 3");
    ck_assert(workers[3]->closed);
    end();
}
END_TEST

/* With restart_ms 0, of a node that cannot be reached, and after a drain: as without it. */
START_TEST(test_not_waited_for)
{
    start(0, 7);
    if (_i == 0) {
        for (uint32_t node = 0; node < NODES; node++)
            network_config(network, node)->restart_ms = 0;
    } else if (_i == 1) {
        network_cut(network, 2, 0, "no heartbeat"); /* the machine may be gone */
        network_cut(network, 2, 1, "no heartbeat");
    } else {
        coordinator_drain(network_coordinator(network, 2), network_now(network), LONG_MS);
        network_settle(network);
    }
    network_restart(network, 2);
    workers[3]->closed = true;
    network_settle(network);
    go_on();
    network_settle(network);
    assert_together(3, 2);
    end();
}
END_TEST

/* A place is not given to another user's process, nor while the daemon of its rank lives, nor to
 * one of another node. */
START_TEST(test_impostors)
{
    start(0, 7);
    network_restart(network, 2);
    reconnect();
    struct network_worker thief = *workers[3], *other;
    other = network_join(network, 1, "other", 2, 0, -1, LONG_MS); /* for its place in the table */
    network_kill(network, other);
    network_settle(network);
    *other = thief;
    network_set_uid(network, 1001);
    network_return(network, other, LONG_MS, LONG_MS);
    network_run(network, RESTART_MS / 2);
    ck_assert_int_eq(other->state, CLIENT_JOINING);
    network_set_uid(network, 1000);
    network_run(network, RESTART_MS + 100); /* nobody has answered */
    network_assert_text(other, "no daemon that is left remembers the job");
    *other = *workers[2];
    network_return(network, other, LONG_MS, LONG_MS);
    network_settle(network);
    network_assert_text(other, "rank 2 of job");
    network_assert_text(other, "is not without a daemon");
    *other = *workers[2];
    other->node = 2;
    network_return(network, other, LONG_MS, LONG_MS);
    network_settle(network);
    network_assert_text(other, "has gone on without rank 2");
    workers[3]->closed = true;
    go_on();
    network_settle(network);
    assert_together(3, 2);
    end();
}
END_TEST

/* The rank has come back, and its process ends before the others have asked. */
START_TEST(test_back_and_gone)
{
    start((uint32_t)_i, 7);
    network_restart(network, 2);
    reconnect();
    network_return(network, workers[3], LONG_MS, LONG_MS);
    network_settle(network);
    network_kill(network, workers[3]);
    network_settle(network);
    go_on();
    network_settle(network);
    assert_together(3, 2);
    end();
}
END_TEST

/* Nobody is left who remembers the job: the daemons that were started say so in the end. */
START_TEST(test_everybody_forgets)
{
    start(0, 7);
    for (uint32_t node = 0; node < NODES; node++)
        network_restart(network, node);
    reconnect();
    go_on();
    network_run(network, RESTART_MS + 100);
    for (int rank = 0; rank < RANKS; rank++)
        network_assert_text(workers[rank], "no daemon that is left remembers the job");
    end();
}
END_TEST

/* The rank asks to go on with all others, and is turned down twice, because its daemon asks until
 * the refusal is noted. Meanwhile the rank asks otherwise. */
START_TEST(test_turned_down_twice)
{
    struct error error = {0};
    start(0, 7);
    network_restart(network, 2);
    reconnect();
    network_return(network, workers[3], LONG_MS, LONG_MS);
    network_settle(network);
    struct message again = {
        .type = MESSAGE_JOB_REFUSED, .member = workers[3]->id, .code = ERR_AGAIN};
    snprintf(again.job, sizeof(again.job), "%s", workers[3]->job);
    snprintf(again.text, sizeof(again.text), "not all its ranks");
    ck_assert_int_eq(coordinator_peer_message(network_coordinator(network, 2), network_now(network),
                                              0, &again, &error),
                     0);
    go_on();
    network_settle(network);
    assert_together(4, 2);
    end();
}
END_TEST

/* Whoever decides is silent, which takes peer_ms to be seen. The next one has heard of the rank. */
START_TEST(test_home_is_silent)
{
    start(0, 7);
    network_config(network, 2)->peer_ms = RESTART_MS;
    network_restart(network, 2);
    network_settle(network);
    network_connect(network, 1, 2);
    network_settle(network);
    network_return(network, workers[3], LONG_MS, LONG_MS);
    network_run(network, RESTART_MS + RESTART_MS / 2);
    ck_assert_int_eq(workers[3]->state, CLIENT_JOINING);
    for (int rank = 0; rank < 2; rank++)
        network_kill(network, workers[rank]);
    network_crash(network, 0);
    network_settle(network);
    go_on();
    network_run(network, 2 * RESTART_MS); /* also for those of node 0 */
    assert_together(2, 2);
    network_restart(network, 0);
    end();
}
END_TEST

/* Daemons are killed and started again at any moment, ranks too, and the others go on: whoever has
 * not been refused is with all others in the end. One of the daemons, the home or another, is
 * spared: it remembers what the others have forgotten. */
START_TEST(test_any_moment)
{
    uint64_t seed = (uint64_t)_i + 1;
    uint32_t spared = (uint32_t)(seed / NODES % NODES);
    start((uint32_t)seed % NODES, seed);
    for (int round = 0; round < 4; round++) {
        if (network_random(network, 2))
            network_settle(network);
        network_restart(network, (spared + 1 + network_random(network, NODES - 1)) % NODES);
        for (uint32_t i = network_random(network, 20); i > 0; i--)
            network_step(network);
        if (network_random(network, 2))
            network_connect_all(network);
        struct network_worker *worker = workers[network_random(network, RANKS)];
        if (!worker->closed && network_random(network, 4) == 0)
            network_kill(network, worker);
        go_on();
        for (uint32_t i = network_random(network, 60); i > 0; i--)
            network_step(network);
        if (network_random(network, 3) == 0)
            network_restart(network, (spared + 1 + network_random(network, NODES - 1)) % NODES);
        for (int again = 0; again < 8; again++) {
            reconnect();
            go_on();
            network_run(network, RESTART_MS / 2);
        }
        if (living() > 0)
            assert_together(living(), 1);
        network_settle(network);
    }
    end();
}
END_TEST

/* The daemons of two nodes are started again, one soon after the other and again and again, and no
 * rank is lost by it. The third daemon, the home or another, is spared. */
START_TEST(test_two_daemons)
{
    uint64_t seed = (uint64_t)_i + 1;
    uint32_t spared = (uint32_t)(seed / NODES % NODES);
    start((uint32_t)seed % NODES, seed);
    for (int round = 0; round < 3; round++) {
        for (uint32_t which = 1; which < NODES; which++) {
            network_restart(network, (spared + which) % NODES);
            for (uint32_t i = network_random(network, 20); i > 0; i--)
                network_step(network);
            if (network_random(network, 2))
                network_connect_all(network);
            if (network_random(network, 2))
                go_on();
            for (uint32_t i = network_random(network, 60); i > 0; i--)
                network_step(network);
        }
        for (int again = 0; again < 8; again++) {
            reconnect();
            go_on();
            network_run(network, RESTART_MS / 8);
        }
        assert_together(RANKS, 1);
        network_settle(network);
    }
    end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator_restart");
    TCase *tests = tcase_create("restart");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, test_all_come_back, 0, NODES * NODES);
    tcase_add_loop_test(tests, test_some_stay_away, 0, NODES);
    tcase_add_loop_test(tests, test_not_waited_for, 0, 3);
    tcase_add_test(tests, test_impostors);
    tcase_add_loop_test(tests, test_back_and_gone, 0, NODES);
    tcase_add_test(tests, test_everybody_forgets);
    tcase_add_test(tests, test_turned_down_twice);
    tcase_add_test(tests, test_home_is_silent);
    tcase_add_loop_test(tests, test_any_moment, 0, 400);
    tcase_add_loop_test(tests, test_two_daemons, 0, 400);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
