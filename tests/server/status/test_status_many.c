/* The status with very many workers: making it must take a walk through them, not one for each, or
 * these tests would run for hours. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/auth/auth.h"
#include "server/status/status.h"
#include "tests/lib/job_name.h"
#include "tests/lib/suite.h"

#define WORKERS 8192u

static struct config_server servers[2];
static struct config config;
static struct log log_nowhere;
static struct membership membership;
static struct coordinator *coordinator;

static uint64_t io_random(void *context)
{
    (void)context;
    return 4711;
}

static void setup(void)
{
    static const struct coordinator_io io = {.random = io_random};
    snprintf(servers[0].name, sizeof(servers[0].name), "a");
    snprintf(servers[1].name, sizeof(servers[1].name), "b");
    config = (struct config){.servers = servers,
                             .server_count = 2,
                             .chunk_bytes = 65536,
                             .least_shard_bytes = 4096,
                             .jobs = 1 << 20,
                             .workers = 2 * WORKERS, /* half of them one user may have */
                             .groups_per_job = 2,
                             .join_ms = 10000};
    log_init(&log_nowhere, "many", LOG_LEVEL_ERROR, -1, false);
    ck_assert_int_eq(membership_init(&membership, 2, 0, 500, 3000, 0), 0);
    ck_assert_int_eq(coordinator_create(&coordinator, &config, &log_nowhere, &membership, &io), 0);
}

static void teardown(void)
{
    coordinator_destroy(coordinator);
    membership_clear(&membership);
}

static uint32_t uid = 1000;

static void join(uint32_t worker, const char *job, uint32_t world_size, int32_t rank)
{
    const struct coordinator_credentials credentials = {uid, worker};
    struct message message = {.type = MESSAGE_JOIN, .world_size = world_size, .rank = rank};
    struct error error = {0};
    snprintf(message.job, sizeof(message.job), "%s", job);
    ck_assert_int_eq(
        coordinator_worker_message(coordinator, 1, worker, &credentials, &message, &error), 0);
}

/* The jobs of the status, which the caller lets go. */
static json_t *jobs_of_status(void)
{
    static const struct transport_info transport;
    static const struct engine_status engine;
    static const struct status_rates rates;
    static const struct account_book accounts;
    struct status_source source = {.software = "shoald test",
                                   .now_ns = 2,
                                   .started_ns = 1,
                                   .instruction_set = "avx2",
                                   .topology = "8 cores",
                                   .config = &config,
                                   .transport = &transport,
                                   .engine = &engine,
                                   .membership = &membership,
                                   .coordinator = coordinator,
                                   .accounts = &accounts,
                                   .rates = &rates};
    size_t length;
    char *text = status_document(&source, &length);
    ck_assert_ptr_nonnull(text);
    json_t *status = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_ptr_nonnull(status);
    free(text);
    json_t *jobs = json_incref(json_object_get(status, "jobs"));
    json_decref(status);
    return jobs;
}

static size_t size_of(const json_t *job, const char *key)
{
    return json_array_size(json_object_get(job, key));
}

/* Every worker waits for a job of its own, whose home is here or is not connected. */
START_TEST(test_a_job_for_each_worker)
{
    for (uint32_t worker = 1; worker <= WORKERS; worker++) {
        char name[32];
        snprintf(name, sizeof(name), "job %u", worker);
        join(worker, name, 2, 0);
    }
    json_t *jobs = jobs_of_status();
    ck_assert_uint_eq(json_array_size(jobs), WORKERS);
    bool *seen = calloc(WORKERS + 1, sizeof(*seen));
    for (uint32_t i = 0; i < WORKERS; i++) {
        const json_t *job = json_array_get(jobs, i);
        const char *name = json_string_value(json_object_get(job, "name"));
        const json_t *local = json_array_get(json_object_get(job, "local_ranks"), 0);
        json_int_t pid = json_integer_value(json_object_get(local, "pid"));
        ck_assert_int_eq(pid, atoi(name + strlen("job ")));
        ck_assert(!seen[pid]);
        seen[pid] = true;
        ck_assert_uint_eq(size_of(job, "local_ranks"), 1);
        ck_assert_str_eq(json_string_value(json_object_get(job, "state")),
                         auth_home_of_job(name, 2) == 0 ? "gathering" : "joining");
    }
    free(seen);
    json_decref(jobs);
}
END_TEST

/* All workers wait for one job with more ranks than there are. */
START_TEST(test_one_job_for_all)
{
    char name[64];
    job_name_with_home(name, "job", (uint32_t)_i, 2);
    for (uint32_t worker = 1; worker <= WORKERS; worker++)
        join(worker, name, MESSAGE_RANKS_MAX, (int32_t)(2 * worker));
    json_t *jobs = jobs_of_status(), *job = json_array_get(jobs, 0);
    ck_assert_uint_eq(json_array_size(jobs), 1);
    ck_assert_uint_eq(size_of(job, "local_ranks"), WORKERS);
    ck_assert_uint_eq(size_of(job, "ranks_present"), _i == 0 ? WORKERS : 0);
    ck_assert_uint_eq(size_of(job, "ranks_missing"), _i == 0 ? MESSAGE_RANKS_MAX - WORKERS : 0);
    for (uint32_t i = 0; i < WORKERS; i++) {
        const json_t *local = json_array_get(json_object_get(job, "local_ranks"), i);
        ck_assert_int_eq(json_integer_value(json_object_get(local, "rank")), 2 * (i + 1));
    }
    json_decref(jobs);
}
END_TEST

/* Many jobs of the largest world, which one user may wait for: the lists have room for one. */
START_TEST(test_no_more_ranks_than_the_largest_job_has)
{
    enum { JOBS = 63 };
    char name[64], prefix[16];
    size_t listed = 0, left_out = 0;
    for (uint32_t worker = 1; worker <= JOBS; worker++) {
        snprintf(prefix, sizeof(prefix), "job%u-", worker);
        job_name_with_home(name, prefix, 0, 2);
        join(worker, name, MESSAGE_RANKS_MAX, 7);
    }
    json_t *jobs = jobs_of_status();
    ck_assert_uint_eq(json_array_size(jobs), JOBS);
    for (uint32_t i = 0; i < JOBS; i++) {
        const json_t *job = json_array_get(jobs, i);
        listed += size_of(job, "ranks_present") + size_of(job, "ranks_missing");
        left_out += (size_t)json_integer_value(json_object_get(job, "ranks_left_out"));
        ck_assert_uint_eq(size_of(job, "local_ranks"), 1);
    }
    ck_assert_uint_eq(listed, STATUS_RANKS_MAX);
    ck_assert_uint_eq(listed + left_out, (size_t)JOBS * MESSAGE_RANKS_MAX);
    json_decref(jobs);
}
END_TEST

/* One user's many ranks leave out no rank of another user, also of jobs that come later. Two users
 * who both want more than there is have half each. */
START_TEST(test_users_share_the_ranks)
{
    enum { JOBS = 6 };
    static const struct {
        uint32_t uid, world_size;
        size_t listed;
    } cases[JOBS] = {{1000, MESSAGE_RANKS_MAX, (STATUS_RANKS_MAX - 1000 - 8) / 2},
                     {1000, MESSAGE_RANKS_MAX, 0},
                     {1001, 1000, 1000},
                     {1002, 15000, 15000},
                     {1002, MESSAGE_RANKS_MAX, (STATUS_RANKS_MAX - 1008) / 2 - 15000},
                     {1003, 8, 8}};
    for (uint32_t i = 0; i < JOBS; i++) {
        char name[64], prefix[16];
        snprintf(prefix, sizeof(prefix), "job%u-", i);
        job_name_with_home(name, prefix, 0, 2);
        uid = cases[i].uid;
        join(i + 1, name, cases[i].world_size, 7);
    }
    json_t *jobs = jobs_of_status();
    ck_assert_uint_eq(json_array_size(jobs), JOBS);
    for (uint32_t i = 0; i < JOBS; i++) {
        const json_t *job = json_array_get(jobs, i);
        size_t listed = size_of(job, "ranks_present") + size_of(job, "ranks_missing");
        ck_assert_msg(listed == cases[i].listed, "job %u: %zu", i, listed);
    }
    json_decref(jobs);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("status_many");
    TCase *cases = tcase_create("many");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_a_job_for_each_worker);
    tcase_add_loop_test(cases, test_one_job_for_all, 0, 2);
    tcase_add_test(cases, test_no_more_ranks_than_the_largest_job_has);
    tcase_add_test(cases, test_users_share_the_ranks);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
