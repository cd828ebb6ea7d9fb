/* The coordinator's actions when the engine had no memory for what it was asked. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/server/coordinator_network.h"
#include "tests/lib/suite.h"

static struct network *network;
static struct network_worker *workers[4];

static void setup(void)
{
    network = network_create_connected(3);
    network_join_four(network, workers, network_name_at(network, 1));
}

static void teardown(void)
{
    network_free(network);
}

/* Nobody knows how far it has got, so the others cannot go on without it: they are told. */
START_TEST(a_rank_leaves_without_its_positions)
{
    network_leave(network, workers[3]);
    struct engine_event event = {.type = ENGINE_WORKER_DETACHED,
                                 .job = workers[3]->joined.job_id,
                                 .rank = 3,
                                 .code = ERR_MEMORY};
    snprintf(event.text, sizeof(event.text), "no memory for how far it has got");
    network_engine_says(network, 2, event);
    network_settle(network);
    for (int rank = 0; rank < 3; rank++) {
        ck_assert_uint_eq(workers[rank]->failed_count, 1);
        ck_assert_int_eq(workers[rank]->failure.code, ERR_LOST);
        network_assert_text(workers[rank], "rank 3 on node c is gone: the daemon cannot serve "
                                           "process 4004: no memory for how far it has got");
    }
    ck_assert(!workers[3]->left);
    for (int rank = 0; rank < 3; rank++)
        network_leave(network, workers[rank]);
    network_settle(network);
    network_assert_empty(network);
}
END_TEST

START_TEST(a_worker_cannot_be_attached)
{
    struct engine_event event = {.type = ENGINE_WORKER_FAILED,
                                 .job = workers[0]->joined.job_id,
                                 .rank = 0,
                                 .code = ERR_MEMORY};
    snprintf(event.text, sizeof(event.text), "no memory for a worker");
    network_engine_says(network, 0, event);
    network_settle(network);
    network_assert_text(workers[3], "rank 0 on node a is gone: the daemon cannot serve process "
                                    "4001: no memory for a worker");
    for (int rank = 1; rank < 4; rank++)
        network_leave(network, workers[rank]);
    network_settle(network);
    network_assert_empty(network);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator_memory");
    TCase *tests = tcase_create("coordinator_memory");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, a_rank_leaves_without_its_positions);
    tcase_add_test(tests, a_worker_cannot_be_attached);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
