/* A coordinator with very many workers: what it does for each must not grow with their number. A
 * step that does is not measured but noticed: the test would run for minutes. */
#include <stdio.h>
#include <stdlib.h>

#include "server/coordinator/coordinator.h"
#include "tests/lib/suite.h"

#define WORKERS 8192u

static struct config config;
static struct config_server server;
static struct log log_nowhere;
static struct membership membership;
static struct coordinator *coordinator;
static uint64_t opened_job;
static uint32_t attached, joined;
static uint32_t local_ranks[WORKERS]; /* by rank */

static uint64_t io_random(void *context)
{
    (void)context;
    return 4711;
}

static void io_send_worker(void *context, uint32_t worker, const struct message *message)
{
    (void)context;
    ck_assert_int_eq(message->type, MESSAGE_JOINED);
    ck_assert_int_eq(message->rank, (int32_t)worker - 1);
    ck_assert_int_gt(attached, message->rank); /* it may submit at once */
    ck_assert_uint_eq(message->local_size, WORKERS);
    ck_assert_uint_eq(message->node_count, 1);
    local_ranks[message->rank] = (uint32_t)message->local_rank;
    joined++;
}

static void io_command(void *context, const struct engine_command *command)
{
    (void)context;
    if (command->kind == COMMAND_JOB_OPEN) {
        opened_job = command->job;
        return;
    }
    ck_assert_int_eq(command->kind, COMMAND_WORKER_ATTACH);
    ck_assert_uint_eq(command->attach.worker, command->attach.rank + 1);
    attached++;
}

static void setup(void)
{
    static const struct coordinator_io io = {
        .random = io_random, .send_worker = io_send_worker, .command = io_command};
    snprintf(server.name, sizeof(server.name), "a");
    server.weight = 1;
    config = (struct config){.servers = &server,
                             .server_count = 1,
                             .chunk_bytes = 65536,
                             .least_shard_bytes = 4096,
                             .jobs = 2,
                             .workers = 2 * WORKERS, /* half of them one user may have */
                             .groups_per_job = 2,
                             .join_ms = 10000};
    log_init(&log_nowhere, "many", LOG_LEVEL_ERROR, -1, false);
    attached = joined = 0;
    ck_assert_int_eq(membership_init(&membership, 1, 0, 500, 3000, 0), 0);
    ck_assert_int_eq(coordinator_create(&coordinator, &config, &log_nowhere, &membership, &io), 0);
}

static void teardown(void)
{
    coordinator_destroy(coordinator);
    membership_clear(&membership);
}

/* Every rank of one job joins on this node; `local_rank` says which number it asks for. */
static void open_job(int32_t (*local_rank)(uint32_t rank))
{
    const struct coordinator_credentials credentials = {1000, 1};
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        struct message join = {.type = MESSAGE_JOIN,
                               .job = "many",
                               .world_size = WORKERS,
                               .rank = (int32_t)rank,
                               .local_rank = local_rank(rank)};
        struct error error = {0};
        ck_assert_int_eq(
            coordinator_worker_message(coordinator, 1, rank + 1, &credentials, &join, &error), 0);
    }
    struct engine_event opened = {.type = ENGINE_JOB_OPENED, .job = opened_job};
    ck_assert(coordinator_engine_event(coordinator, 2, &opened));
    ck_assert_uint_eq(attached, WORKERS);
    ck_assert_uint_eq(joined, WORKERS);
}

static int32_t backwards(uint32_t rank)
{
    return (int32_t)(WORKERS - 1 - rank);
}

static int32_t backwards_but_one(uint32_t rank)
{
    return rank == 17 ? 0 : backwards(rank);
}

static int32_t unknown(uint32_t rank)
{
    (void)rank;
    return -1;
}

START_TEST(test_local_ranks_kept)
{
    open_job(backwards);
    for (uint32_t rank = 0; rank < WORKERS; rank++)
        ck_assert_uint_eq(local_ranks[rank], WORKERS - 1 - rank);
}
END_TEST

START_TEST(test_local_ranks_by_order)
{
    open_job(_i ? backwards_but_one : unknown);
    for (uint32_t rank = 0; rank < WORKERS; rank++)
        ck_assert_uint_eq(local_ranks[rank], rank);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator_many");
    TCase *cases = tcase_create("many");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_local_ranks_kept);
    tcase_add_loop_test(cases, test_local_ranks_by_order, 0, 2);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
