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

int main(void)
{
    Suite *suite = suite_create("coordinator_generations");
    TCase *tests = tcase_create("generations");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, test_rank_lost_while_opening, 0, 3);
    tcase_add_test(tests, test_refused_while_opening);
    tcase_add_loop_test(tests, test_two_losses, 0, 300);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
