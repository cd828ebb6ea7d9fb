/* The ranks of a job go on by themselves, without their programs: only all together, and only when
 * there is a server. Whoever is turned down is told so, and may ask again. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/server/coordinator_network.h"
#include "tests/lib/suite.h"

#define RANKS 4
#define NODES 4
#define CPU 3 /* the node without ranks */
#define SOON_MS 3000
#define LONG_MS 9000

static struct network *network;
static struct network_worker *workers[RANKS];

/* Ranks are on nodes 0, 0, 1 and 2. */
static void start(const uint32_t *weights, uint32_t restart_ms)
{
    network = network_create(NODES, weights, 7);
    for (uint32_t node = 0; node < NODES; node++) {
        network_config(network, node)->recovery = true;
        network_config(network, node)->restart_ms = restart_ms;
    }
    network_connect_all(network);
    network_settle(network);
    network_join_four(network, workers, network_name_at(network, 0));
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

static const uint32_t all_serve[] = {1, 1, 1, 1}, one_serves[] = {0, 0, 0, 1};

static void lose_server(void)
{
    network_crash(network, CPU);
    network_settle(network);
}

static void release_all(void)
{
    for (int rank = 0; rank < RANKS; rank++) {
        if (!workers[rank]->closed && workers[rank]->state == CLIENT_JOINED)
            network_release(network, workers[rank]);
    }
    network_settle(network);
}

/* Let the ranks that can rejoin do so, with `whole`. */
static void ask(bool whole)
{
    for (int rank = 0; rank < RANKS; rank++) {
        workers[rank]->whole = whole;
        if (workers[rank]->state == CLIENT_APART)
            network_rejoin(network, workers[rank], LONG_MS, SOON_MS);
    }
    network_settle(network);
}

static void assert_together(uint32_t size, uint32_t generation)
{
    for (int rank = 0; rank < RANKS; rank++) {
        if (workers[rank]->closed)
            continue;
        ck_assert_msg(workers[rank]->state == CLIENT_JOINED, "rank %d: %s", rank,
                      workers[rank]->failure.text);
        ck_assert_uint_eq(workers[rank]->joined.world_size, size);
        ck_assert_uint_eq(workers[rank]->joined.generation, generation);
    }
}

static void assert_turned_down(const struct network_worker *worker, const char *text)
{
    ck_assert_int_eq(worker->state, CLIENT_APART);
    ck_assert_int_eq(worker->failure.code, ERR_AGAIN);
    network_assert_text(worker, text);
}

START_TEST(test_all_go_on)
{
    start(all_serve, 0);
    lose_server();
    release_all();
    ask(true);
    assert_together(RANKS, 2);
    for (int rank = 0; rank < RANKS; rank++)
        ck_assert_int_eq(workers[rank]->joined.rank, rank);
    end();
}
END_TEST

/* A job begins without a server that is not there when peer_ms have passed; one with ranks is
 * waited for. The loop variable: recovery is configured. */
START_TEST(test_a_job_begins_without_a_server)
{
    network = network_create(NODES, all_serve, 7);
    for (uint32_t node = 0; node < NODES; node++) {
        network_config(network, node)->recovery = _i == 1;
        network_config(network, node)->peer_ms = 1500;
    }
    network_connect_all(network);
    network_cut(network, 0, CPU, "connection refused");
    network_settle(network);
    network_keep_log(network);
    const char *job = network_name_at(network, 0);
    for (int rank = 0; rank < RANKS; rank++)
        workers[rank] =
            network_join(network, rank < 2 ? 0 : (uint32_t)rank - 1, job, RANKS, rank, -1, LONG_MS);
    network_run(network, 1400);
    ck_assert_uint_eq(network_log_count(network, "waits to open: server d"), 1);
    ck_assert_int_eq(workers[0]->state, CLIENT_JOINING);
    network_run(network, 200);
    ck_assert_int_eq(workers[0]->state, _i == 1 ? CLIENT_JOINED : CLIENT_JOINING);
    ck_assert_uint_eq(network_log_count(network, "begins without: server d"), _i == 1);
    network_connect(network, 0, CPU);
    network_settle(network);
    assert_together(RANKS, 1);
    ck_assert_uint_eq(network_engine_jobs(network, CPU), _i == 0);
    end();
}
END_TEST

/* The server is connected, and says nothing: the others go on without it, and it is asked again
 * when the job goes on the next time. */
START_TEST(test_a_server_does_not_answer)
{
    start(all_serve, 0);
    for (uint32_t node = 0; node < NODES; node++)
        network_config(network, node)->peer_ms = 100;
    lose_server();
    network_connect_all(network);
    network_settle(network);
    network_keep_log(network);
    network_hold_engine(network, CPU, true);
    release_all();
    ask(true);
    ck_assert_int_eq(workers[0]->state, CLIENT_JOINING);
    network_run(network, 5300);
    assert_together(RANKS, 3);
    ck_assert_uint_gt(network_log_count(network, "has not answered: job"), 0);
    ck_assert_uint_eq(network_engine_jobs(network, CPU), 0);
    network_hold_engine(network, CPU, false);
    network_settle(network);
    end();
}
END_TEST

/* One with ranks is waited for. */
START_TEST(test_a_node_with_ranks_does_not_answer)
{
    start(all_serve, 0);
    for (uint32_t node = 0; node < NODES; node++)
        network_config(network, node)->peer_ms = 100;
    lose_server();
    release_all();
    network_hold_engine(network, 2, true);
    ask(true);
    network_run(network, 7000);
    ck_assert_int_eq(workers[0]->state, CLIENT_JOINING);
    network_hold_engine(network, 2, false);
    network_settle(network);
    assert_together(RANKS, 2);
    end();
}
END_TEST

/* A rank that waits for a group hears first that the job has failed: it may ask again in the next
 * generation. */
START_TEST(test_a_group_is_being_opened)
{
    static const uint32_t ranks[] = {0, 3};
    start(all_serve, 0);
    network_group_open(network, workers[0], ranks, 2, 0, 0);
    network_settle(network);
    lose_server();
    ck_assert_uint_eq(workers[0]->failed_count, 1);
    ck_assert(workers[0]->group_refused);
    ck_assert_int_eq(workers[0]->failure.type, MESSAGE_ERROR); /* the last words */
    release_all();
    ask(true);
    assert_together(RANKS, 2);
    end();
}
END_TEST

START_TEST(test_a_rank_is_gone)
{
    start(all_serve, 0);
    network_kill(network, workers[1]);
    network_settle(network);
    release_all();
    ask(true);
    assert_turned_down(workers[0], "has not all its ranks any more");
    assert_turned_down(workers[3], "has not all its ranks any more");
    ask(false);
    assert_together(3, 2);
    end();
}
END_TEST

/* The loop variable says whether it asks first. */
START_TEST(test_a_program_asks)
{
    start(all_serve, 0);
    lose_server();
    release_all();
    workers[2]->whole = false;
    if (_i == 0)
        network_rejoin(network, workers[2], LONG_MS, SOON_MS);
    network_settle(network);
    for (int rank = 0; rank < RANKS; rank++) {
        workers[rank]->whole = rank != 2;
        if (rank != 2)
            network_rejoin(network, workers[rank], LONG_MS, SOON_MS);
    }
    network_settle(network);
    if (_i == 1) { /* all but one wait */
        ck_assert_int_eq(workers[0]->state, CLIENT_JOINING);
        network_rejoin(network, workers[2], LONG_MS, SOON_MS);
        network_settle(network);
    }
    assert_turned_down(workers[0], "has not all its ranks any more");
    ask(false);
    assert_together(RANKS, 2);
    end();
}
END_TEST

START_TEST(test_one_is_stopped)
{
    start(all_serve, 0);
    lose_server();
    release_all();
    for (int rank = 0; rank < RANKS - 1; rank++) {
        workers[rank]->whole = true;
        network_rejoin(network, workers[rank], LONG_MS, SOON_MS);
    }
    network_run(network, SOON_MS / 2);
    ck_assert_int_eq(workers[0]->state, CLIENT_JOINING);
    network_run(network, SOON_MS);
    assert_turned_down(workers[0], "has not all its ranks any more");
    ask(false);
    assert_together(RANKS, 2);
    end();
}
END_TEST

START_TEST(test_no_server_is_left)
{
    start(one_serves, 0);
    network_cut(network, 0, CPU, "connection reset");
    lose_server();
    release_all();
    ask(true);
    for (int rank = 0; rank < RANKS; rank++)
        assert_turned_down(workers[rank], "has no server any more");
    ask(false); /* a program may wait for one */
    ck_assert_int_eq(workers[0]->state, CLIENT_JOINING);
    network_connect_all(network);
    network_settle(network);
    assert_together(RANKS, 2);
    end();
}
END_TEST

START_TEST(test_the_server_comes_back)
{
    start(one_serves, 2000);
    lose_server();
    release_all();
    ask(true);
    network_run(network, 1000);
    ck_assert_int_eq(workers[0]->state, CLIENT_JOINING);
    network_connect_all(network);
    network_settle(network);
    assert_together(RANKS, 2);
    end();
}
END_TEST

START_TEST(test_the_server_does_not_come_back)
{
    start(one_serves, 2000);
    lose_server();
    release_all();
    ask(true);
    network_run(network, 1000);
    ck_assert_int_eq(workers[0]->state, CLIENT_JOINING);
    network_run(network, 1500);
    for (int rank = 0; rank < RANKS; rank++)
        assert_turned_down(workers[rank], "has no server any more");
    end();
}
END_TEST

/* A rank that came back with its next daemon asks as the others do, and is as little lost when it
 * is turned down. The loop variable is the node: of rank 0 and 1, 2, or 3. */
START_TEST(test_who_has_come_back_is_turned_down)
{
    start(all_serve, 2000);
    network_restart(network, (uint32_t)_i);
    network_settle(network);
    network_connect_all(network);
    network_settle(network);
    release_all();
    int program = _i == 2 ? 0 : 3;
    for (int rank = 0; rank < RANKS; rank++) {
        workers[rank]->whole = rank != program;
        if (workers[rank]->state == CLIENT_ORPHAN)
            network_return(network, workers[rank], LONG_MS, LONG_MS);
        else
            network_rejoin(network, workers[rank], LONG_MS, LONG_MS);
    }
    network_settle(network);
    for (int rank = 0; rank < RANKS; rank++) {
        if (rank != program)
            assert_turned_down(workers[rank], "has not all its ranks any more");
    }
    ask(false);
    assert_together(RANKS, 2);
    end();
}
END_TEST

/* The rank is turned down, and its process ends then: the others do not wait for it. */
START_TEST(test_who_has_come_back_ends)
{
    start(all_serve, 2000);
    network_restart(network, 2);
    network_settle(network);
    network_connect_all(network);
    network_settle(network);
    release_all();
    workers[3]->whole = workers[1]->whole = workers[2]->whole = true;
    network_return(network, workers[3], LONG_MS, LONG_MS);
    for (int rank = 0; rank < 3; rank++)
        network_rejoin(network, workers[rank], LONG_MS, LONG_MS);
    network_settle(network);
    assert_turned_down(workers[3], "has not all its ranks any more");
    if (_i == 0)
        network_kill(network, workers[3]);
    else
        network_leave(network, workers[3]);
    network_settle(network);
    workers[3]->closed = true;
    ask(false);
    assert_together(3, 2);
    end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator_whole");
    TCase *tcase = tcase_create("whole");
    tcase_add_test(tcase, test_all_go_on);
    tcase_add_loop_test(tcase, test_a_job_begins_without_a_server, 0, 2);
    tcase_add_test(tcase, test_a_server_does_not_answer);
    tcase_add_test(tcase, test_a_node_with_ranks_does_not_answer);
    tcase_add_test(tcase, test_a_group_is_being_opened);
    tcase_add_test(tcase, test_a_rank_is_gone);
    tcase_add_loop_test(tcase, test_a_program_asks, 0, 2);
    tcase_add_test(tcase, test_one_is_stopped);
    tcase_add_test(tcase, test_no_server_is_left);
    tcase_add_test(tcase, test_the_server_comes_back);
    tcase_add_test(tcase, test_the_server_does_not_come_back);
    tcase_add_loop_test(tcase, test_who_has_come_back_is_turned_down, 0, 3);
    tcase_add_loop_test(tcase, test_who_has_come_back_ends, 0, 2);
    suite_add_tcase(suite, tcase);
    return suite_main(suite);
}
