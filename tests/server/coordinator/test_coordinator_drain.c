/* A daemon that is to end: what it still waits for, and what its workers and peers hear. */
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

START_TEST(test_drain_idle)
{
    struct coordinator *coordinator = network_coordinator(network, 0);
    struct network_worker *waiting =
        network_join(network, 0, network_name_at(network, 1), 2, 0, -1, 0);
    struct network_worker *gathering =
        network_join(network, 1, network_name_at(network, 0), 2, 0, -1, 0);
    network_settle(network);
    coordinator_drain(coordinator, network_now(network), 1000);
    network_settle(network);
    network_assert_text(waiting, "node a is shutting down");
    network_assert_text(gathering, "node a is shutting down");
    ck_assert_int_eq(gathering->failure.code, ERR_REFUSED);
    ck_assert(coordinator_stopped(coordinator));
}
END_TEST

START_TEST(test_drain_running)
{
    struct network_worker *workers[4];
    network_join_four(network, workers, network_name_at(network, 1));
    struct coordinator *coordinator = network_coordinator(network, 0);
    coordinator_drain(coordinator, network_now(network), 1000);
    ck_assert(coordinator_draining(coordinator) && !coordinator_stopped(coordinator));
    struct network_worker *more = network_join(network, 0, "more", 1, 0, -1, 0);
    network_assert_text(more, "node a is shutting down");
    ck_assert_uint_eq(workers[0]->failed_count, 0);
    network_settle(network); /* the engine is idle */
    ck_assert(coordinator_stopped(coordinator));
    ck_assert_int_eq(workers[0]->failure.code, ERR_REFUSED);
    network_assert_text(workers[0], "node a is shutting down");
    network_assert_text(workers[3], "node a is shutting down");
    ck_assert(workers[0]->closed && !workers[3]->closed);
    ck_assert_uint_eq(network_engine_jobs(network, 0), 0);
}
END_TEST

/* The ranks of node a are done, and its engine is idle. The others may not have taken yet what it
 * has sent them. */
static struct coordinator *drain_after_leaving(struct network_worker *workers[4], uint32_t home)
{
    struct coordinator *coordinator = network_coordinator(network, 0);
    network_join_four(network, workers, network_name_at(network, home));
    network_leave(network, workers[0]);
    network_leave(network, workers[1]);
    network_settle(network);
    coordinator_drain(coordinator, network_now(network), 1000);
    network_settle(network);
    ck_assert(coordinator_draining(coordinator) && !coordinator_stopped(coordinator));
    ck_assert_uint_eq(workers[2]->failed_count + workers[3]->failed_count, 0);
    return coordinator;
}

START_TEST(test_drain_waits_for_the_others_to_leave)
{
    struct network_worker *workers[4];
    struct coordinator *coordinator = drain_after_leaving(workers, (uint32_t)_i);
    network_leave(network, workers[2]);
    network_settle(network);
    ck_assert(!coordinator_stopped(coordinator));
    network_leave(network, workers[3]);
    network_settle(network);
    ck_assert(coordinator_stopped(coordinator));
    ck_assert_uint_eq(workers[2]->failed_count + workers[3]->failed_count, 0);
    network_assert_empty(network);
}
END_TEST

/* A rank that has said that it leaves, and has no answer yet, is as good as gone. Another job on
 * the node has ranks that go on: that one is told. */
START_TEST(test_drain_tells_jobs_apart)
{
    struct network_worker *workers[4];
    struct network_worker *other = network_join(network, 0, "other", 1, 0, -1, 0);
    network_join_four(network, workers, network_name_at(network, (uint32_t)_i));
    struct coordinator *coordinator = network_coordinator(network, 0);
    network_leave(network, workers[0]);
    network_settle(network);
    network_leave(network, workers[1]);
    coordinator_drain(coordinator, network_now(network), 1000);
    network_engine_says(network, 0, (struct engine_event){.type = ENGINE_IDLE});
    network_settle(network);
    ck_assert(!coordinator_stopped(coordinator));
    network_assert_text(other, "node a is shutting down");
    ck_assert_uint_eq(workers[2]->failed_count + workers[3]->failed_count, 0);
    network_leave(network, other);
    network_leave(network, workers[2]);
    network_leave(network, workers[3]);
    network_settle(network);
    ck_assert(coordinator_stopped(coordinator));
    ck_assert_uint_eq(workers[2]->failed_count + workers[3]->failed_count, 0);
}
END_TEST

START_TEST(test_drain_does_not_wait_for_ever)
{
    struct network_worker *workers[4];
    struct coordinator *coordinator = drain_after_leaving(workers, (uint32_t)_i);
    network_run(network, 1100);
    ck_assert(coordinator_stopped(coordinator));
    network_assert_text(workers[2], "node a is shutting down");
    network_assert_text(workers[3], "node a is shutting down");
}
END_TEST

START_TEST(test_drain_too_long)
{
    struct network_worker *workers[4];
    network_join_four(network, workers, network_name_at(network, 1));
    struct coordinator *coordinator = network_coordinator(network, 0);
    coordinator_drain(coordinator, network_now(network), 1000);
    uint64_t due_ns = coordinator_tick(coordinator, network_now(network));
    ck_assert_uint_eq(due_ns, network_now(network) + 1000 * NETWORK_MS);
    coordinator_tick(coordinator, due_ns);
    ck_assert(coordinator_stopped(coordinator));
    network_assert_text(workers[1], "node a is shutting down");
}
END_TEST

static void retire(uint32_t node)
{
    coordinator_retire(network_coordinator(network, node), network_now(network));
    network_settle(network);
}

static bool retired(uint32_t node)
{
    struct coordinator *coordinator = network_coordinator(network, node);
    coordinator_tick(coordinator, network_now(network));
    return coordinator_retired(coordinator);
}

/* A node without ranks goes on as home and server of others' jobs, new ones too, until all are so.
 */
START_TEST(test_retire_together)
{
    struct network_worker *workers[4], *later[2];
    network_join_four(network, workers, network_name_at(network, (uint32_t)_i));
    network_leave(network, workers[0]);
    network_leave(network, workers[1]);
    retire(0);
    ck_assert(!retired(0));
    network_leave(network, workers[2]);
    network_leave(network, workers[3]);
    network_settle(network);
    for (int rank = 0; rank < 2; rank++)
        later[rank] =
            network_join(network, (uint32_t)rank + 1, network_name_at(network, 0), 2, rank, -1, 0);
    network_settle(network);
    ck_assert_uint_eq(network_engine_jobs(network, 0), 1);
    ck_assert_uint_eq(later[0]->failed_count + later[1]->failed_count, 0);
    network_leave(network, later[0]);
    network_leave(network, later[1]);
    retire(1);
    network_run(network, 10000);
    ck_assert(!retired(0) && !retired(1));
    retire(2);
    for (uint32_t node = 0; node < 3; node++)
        ck_assert(retired(node));
    network_assert_empty(network);
}
END_TEST

/* A node that drains has no ranks soon; one that is lost may come again within
 * timeouts.restart_ms. */
START_TEST(test_retire_without_the_lost)
{
    uint32_t restart_ms = network_config(network, 0)->restart_ms;
    retire(0);
    coordinator_drain(network_coordinator(network, 1), network_now(network), 1000);
    network_settle(network);
    ck_assert(!retired(0));
    network_cut(network, 0, 2, "lost");
    network_run(network, restart_ms - 100);
    ck_assert(!retired(0));
    network_run(network, 200);
    ck_assert(retired(0));
}
END_TEST

/* A daemon that comes in the place of a lost one has not retired, whatever the lost one had said.
 */
START_TEST(test_retire_anew)
{
    retire(0);
    retire(1);
    retire(2);
    ck_assert(retired(0));
    network_crash(network, 1);
    network_settle(network);
    network_connect_all(network);
    network_settle(network);
    ck_assert(!retired(0) && !retired(2));
    retire(1);
    ck_assert(retired(0) && retired(1) && retired(2));
}
END_TEST

int main(void)
{
    TCase *cases = tcase_create("drain");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_drain_idle);
    tcase_add_test(cases, test_drain_running);
    tcase_add_test(cases, test_drain_too_long);
    tcase_add_loop_test(cases, test_drain_waits_for_the_others_to_leave, 0, 3);
    tcase_add_loop_test(cases, test_drain_tells_jobs_apart, 0, 3);
    tcase_add_loop_test(cases, test_drain_does_not_wait_for_ever, 0, 3);
    tcase_add_loop_test(cases, test_retire_together, 0, 3);
    tcase_add_test(cases, test_retire_without_the_lost);
    tcase_add_test(cases, test_retire_anew);
    Suite *suite = suite_create("coordinator_drain");
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
