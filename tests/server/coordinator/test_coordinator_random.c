/* Many seeds: workers come, leave and die, daemons crash, links break, at any moment. However it
 * goes, every join is answered in time, all nodes see one roster, and nothing is left in the end.
 * The invariants are asserted by tests/lib/server/coordinator_network.c at each step. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/server/coordinator_network.h"
#include "tests/lib/suite.h"

#define NODES 4

struct drive {
    struct network *network;
    struct network_worker *workers[NETWORK_WORKERS_MAX];
    uint32_t count, jobs;
    bool harm;
};

static void start_job(struct drive *drive)
{
    struct network *network = drive->network;
    uint32_t world_size = 1 + network_random(network, 6), style = network_random(network, 3);
    if (drive->count + world_size > NETWORK_WORKERS_MAX - 8)
        return;
    char name[32];
    snprintf(name, sizeof(name), "job-%u", drive->jobs++);
    uint32_t missing = drive->harm && network_random(network, 6) == 0;
    for (uint32_t rank = 0; rank + missing < world_size; rank++) {
        /* All ranks given, none, or every other one. */
        int32_t wish = style == 0 || (style == 1 && rank % 2) ? (int32_t)rank : -1;
        drive->workers[drive->count++] =
            network_join(network, network_random(network, NODES), name, world_size, wish, -1,
                         500 + network_random(network, 5000));
        if (network_random(network, 3) == 0)
            network_step(network);
    }
}

static void open_group(struct drive *drive, struct network_worker *worker)
{
    uint32_t ranks[8], count = worker->joined.world_size;
    for (uint32_t i = 0; i < count; i++)
        ranks[i] = count - 1 - i;
    network_group_open(drive->network, worker, ranks, count, 0, 1000);
}

static void act(struct drive *drive)
{
    struct network *network = drive->network;
    uint32_t what = network_random(network, 100);
    struct network_worker *worker =
        drive->count ? drive->workers[network_random(network, drive->count)] : NULL;
    bool joined = worker && worker->state == CLIENT_JOINED && !worker->closed;
    if (what < 12)
        start_job(drive);
    else if (what < 30 && joined && !worker->failed)
        network_leave(network, worker);
    else if (what < 45 && joined && !worker->failed && !worker->group_opened)
        open_group(drive, worker);
    else if (what < 60 && joined && worker->failed)
        network_kill(network, worker);
    else if (what < 63 && drive->harm && worker && !worker->closed &&
             network_random(network, 4) == 0)
        network_kill(network, worker);
    else if (what < 64 && drive->harm && network_random(network, 20) == 0)
        network_crash(network, network_random(network, NODES));
    else if (what < 65 && drive->harm && network_random(network, 4) == 0)
        network_cut(network, network_random(network, NODES), 0, "cut");
    else if (what < 70)
        network_connect_all(network);
    else if (what < 72)
        network_run(network, network_random(network, 800));
    else
        for (uint32_t i = network_random(network, 16); i > 0; i--)
            network_step(network);
}

static void finish(struct drive *drive)
{
    struct network *network = drive->network;
    network_connect_all(network);
    network_settle(network);
    network_connect_all(network);
    /* Twice: leaving may make others fail, who then go. */
    for (int round = 0; round < 3; round++) {
        network_run(network, 20000);
        for (uint32_t i = 0; i < drive->count; i++) {
            struct network_worker *worker = drive->workers[i];
            ck_assert_int_ne(worker->state, CLIENT_JOINING);
            if (worker->closed)
                continue;
            if (worker->failed)
                network_kill(network, worker);
            else if (worker->state == CLIENT_JOINED)
                network_leave(network, worker);
        }
    }
    network_run(network, 20000);
    network_assert_empty(network);
}

static void run_seed(uint64_t seed, bool harm)
{
    static const uint32_t all_weights[][NODES] = {{1, 1, 1, 1}, {2, 1, 0, 0}, {0, 0, 0, 3}};
    struct drive *drive = calloc(1, sizeof(*drive));
    drive->network = network_create(NODES, all_weights[seed % 3], seed);
    drive->harm = harm;
    for (uint32_t node = 0; node < NODES && !harm; node++)
        network_config(drive->network, node)->jobs = network_config(drive->network, node)->workers =
            NETWORK_WORKERS_MAX;
    network_connect_all(drive->network);
    for (int i = 0; i < 1500; i++)
        act(drive);
    finish(drive);
    uint32_t joined = 0, left = 0;
    for (uint32_t i = 0; i < drive->count; i++) {
        joined += drive->workers[i]->joined.job_id != 0;
        left += drive->workers[i]->left;
        if (!harm && drive->workers[i]->joined.job_id == 0)
            ck_abort_msg("seed %llu: a join failed without harm: %s", (unsigned long long)seed,
                         drive->workers[i]->failure.text);
    }
    ck_assert_uint_gt(joined, 0);
    if (!harm)
        ck_assert_uint_eq(joined, left);
    network_free(drive->network);
    free(drive);
}

START_TEST(test_peaceful)
{
    run_seed((uint64_t)_i + 1, false);
}
END_TEST

START_TEST(test_harmful)
{
    run_seed((uint64_t)_i + 1000, true);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator, any order");
    TCase *cases = tcase_create("seeds");
    tcase_set_timeout(cases, 120);
    tcase_add_loop_test(cases, test_peaceful, 0, 20);
    tcase_add_loop_test(cases, test_harmful, 0, 60);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
