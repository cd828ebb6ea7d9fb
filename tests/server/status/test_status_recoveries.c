/* The status and the metrics of jobs that lose ranks and go on. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "server/status/status.h"
#include "tests/lib/server/coordinator_network.h"
#include "tests/lib/suite.h"

#define LONG_MS 9000

static struct network *network;
static struct network_worker *workers[4];
static char *name;
static struct engine_status engine;
static struct engine_peer_status engine_peers[3];
static struct transport_info transport;
static struct membership membership;
static struct status_rates rates;
static struct account_book accounts = {.node = "a"};

/* Ranks 0 to 3 on nodes 0 to 2; the job's home is node 0. */
static void setup(void)
{
    static const uint32_t weights[] = {1, 1, 1};
    network = network_create(3, weights, 5);
    network_connect_all(network);
    network_settle(network);
    name = strdup(network_name_at(network, 0));
    network_join_four(network, workers, name);
    ck_assert_int_eq(membership_init(&membership, 3, 0, 500, 3000, 0), 0);
    engine = (struct engine_status){.peers = engine_peers, .peer_count = 3};
}

static void teardown(void)
{
    membership_clear(&membership);
    free(name);
    network_free(network);
}

static struct status_source source_of(uint32_t node)
{
    return (struct status_source){
        .software = "shoald test",
        .now_ns = network_now(network),
        .instruction_set = "avx2",
        .topology = "8 cores",
        .config = network_config(network, node),
        .transport = &transport,
        .engine = &engine,
        .membership = &membership,
        .coordinator = network_coordinator(network, node),
        .accounts = &accounts,
        .rates = &rates,
    };
}

/* The node's document, the caller's. */
static json_t *status_at(uint32_t node)
{
    struct status_source source = source_of(node);
    size_t length;
    char *text = status_document(&source, &length);
    json_error_t error;
    json_t *status = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    ck_assert_msg(status != NULL, "%s in %s", error.text, text);
    free(text);
    return status;
}

/* The only job of the node's document, the caller's; NULL: it has none. */
static json_t *job_at(uint32_t node)
{
    json_t *status = status_at(node);
    json_t *jobs = json_object_get(status, "jobs");
    ck_assert_uint_le(json_array_size(jobs), 1);
    json_t *job = json_incref(json_array_get(jobs, 0));
    size_t i;
    json_t *ended;
    json_array_foreach(json_object_get(status, "ended"), i, ended) /* what goes on is none */
        ck_assert_str_eq(json_string_value(json_object_get(ended, "state")),
                         job ? "completed" : "failed");
    json_decref(status);
    return job;
}

static void expect(const json_t *object, const char *key, const char *wanted)
{
    char *text = json_dumps(json_object_get(object, key), JSON_COMPACT | JSON_ENCODE_ANY);
    ck_assert_msg(text && strcmp(text, wanted) == 0, "%s: %s, not %s", key, text, wanted);
    free(text);
}

static void expect_times(const json_t *job, const char *kind, const char *wanted)
{
    expect(json_object_get(json_object_get(job, "recovered"), kind), "times", wanted);
}

/* `rest` follows the job's name. */
static void expect_metric(uint32_t node, const char *metric, const char *rest, bool wanted)
{
    struct status_source source = source_of(node);
    size_t length;
    char *text = status_metrics(&source, &length), whole[300];
    snprintf(whole, sizeof(whole), "%s{job=\"%s\"%s", metric, name, rest);
    ck_assert_msg((strstr(text, whole) != NULL) == wanted, "%s in %s", whole, text);
    free(text);
}

static void release(int rank)
{
    network_release(network, workers[rank]);
    network_settle(network);
}

/* Until the next generation runs, of all ranks but one. */
static void go_on_without(int lost)
{
    for (int rank = 0; rank < 4; rank++) {
        if (rank != lost)
            release(rank);
    }
    for (int rank = 0; rank < 4; rank++) {
        if (rank != lost)
            network_rejoin(network, workers[rank], LONG_MS, LONG_MS);
    }
    network_settle(network);
}

START_TEST(test_rank_lost)
{
    json_t *job = job_at(0);
    expect(job, "lost", "null");
    expect_times(job, "generation", "0");
    json_decref(job);
    network_kill(network, workers[1]);
    network_run(network, 1500);
    job = job_at(0);
    expect(job, "state", "\"failed\"");
    const json_t *lost = json_object_get(job, "lost");
    expect(lost, "ranks", "[1]");
    expect(lost, "nodes", "[]");
    expect(lost, "awaited", "[0,2,3]");
    ck_assert_int_ge(json_integer_value(json_object_get(lost, "since_ms")), 1000);
    json_decref(job);
    go_on_without(1);
    for (uint32_t node = 0; node < 3; node++) {
        job = job_at(node);
        expect(job, "state", "\"running\"");
        expect(job, "generation", "2");
        expect(job, "lost", "null");
        expect_times(job, "generation", "1");
        expect_times(job, "server", "0");
        expect_times(job, "daemon", "0");
        const json_t *it = json_object_get(json_object_get(job, "recovered"), "generation");
        ck_assert_int_ge(json_integer_value(json_object_get(it, "last_ms")), 1500);
        json_decref(job);
    }
    expect_metric(0, "shoal_job_generation", "} 2\n", true);
    expect_metric(0, "shoal_job_recovered_total", ",kind=\"generation\"} 1\n", true);
    expect_metric(0, "shoal_job_recovered_total", ",kind=\"server\"} 0\n", true);
    expect_metric(0, "shoal_job_recovered_seconds_total", ",kind=\"generation\"} 1.5", true);
    expect_metric(0, "shoal_job_recovered_last_seconds", ",kind=\"generation\"} 1.5", true);
    expect_metric(0, "shoal_job_lost_seconds", "}", false);
}
END_TEST

/* All ranks leave, or all are killed: whoever has not seen how it ended finds it for ten minutes.
 */
START_TEST(test_ended)
{
    network_run(network, 3000);
    for (int rank = 0; rank < 4; rank++)
        network_leave(network, workers[rank]);
    network_settle(network);
    for (uint32_t rank = 0; rank < 2; rank++)
        workers[rank] = network_join(network, rank, name, 2, (int32_t)rank, -1, 0);
    network_settle(network);
    network_kill(network, workers[1]);
    network_settle(network);
    network_kill(network, workers[0]);
    network_settle(network);
    json_t *status = status_at(0), *ended = json_object_get(status, "ended");
    ck_assert_uint_eq(json_array_size(json_object_get(status, "jobs")), 0);
    ck_assert_uint_eq(json_array_size(ended), 2);
    const json_t *last = json_array_get(ended, 0), *first = json_array_get(ended, 1);
    ck_assert_str_eq(json_string_value(json_object_get(first, "name")), name);
    expect(first, "state", "\"completed\"");
    expect(first, "error", "null");
    expect(first, "world_size", "4");
    ck_assert_double_ge(json_number_value(json_object_get(first, "ran_s")), 3);
    expect(last, "state", "\"failed\"");
    expect(last, "world_size", "2");
    const char *error = json_string_value(json_object_get(last, "error"));
    ck_assert_ptr_nonnull(strstr(error, "rank 1 on node b is gone: its process "));
    json_decref(status);
    network_run(network, ENDED_NS / NETWORK_MS + 1);
    status = status_at(0);
    ck_assert_uint_eq(json_array_size(json_object_get(status, "ended")), 0);
    json_decref(status);
}
END_TEST

/* Two that have asked wait for one that has not. */
START_TEST(test_waiting)
{
    uint32_t at = workers[3]->node;
    ck_assert_uint_ne(at, 0);
    network_kill(network, workers[0]);
    network_settle(network);
    for (int rank = 1; rank < 4; rank++)
        release(rank);
    network_rejoin(network, workers[1], LONG_MS, LONG_MS);
    network_rejoin(network, workers[2], LONG_MS, LONG_MS);
    network_run(network, 2000);
    json_t *job = job_at(0);
    expect(job, "state", "\"waiting\"");
    expect(job, "generation", "1");
    expect(job, "ranks_missing", "[0]");
    expect(json_object_get(job, "lost"), "ranks", "[0]");
    expect(json_object_get(job, "lost"), "awaited", "[3]");
    json_decref(job);
    expect_metric(0, "shoal_job_lost_seconds", "} 2.", true);
    expect_metric(0, "shoal_job_lost_ranks", "} 1\n", true);
    /* There nobody knows who has asked elsewhere. */
    job = job_at(at);
    expect(job, "state", "\"waiting\"");
    expect(json_object_get(job, "lost"), "awaited", "null");
    const json_t *here = json_object_get(job, "local_ranks");
    ck_assert_uint_ge(json_array_size(here), 1);
    json_decref(job);
    network_rejoin(network, workers[3], LONG_MS, LONG_MS);
    network_settle(network);
    job = job_at(0);
    ck_assert(!job || json_is_null(json_object_get(job, "lost")));
    json_decref(job);
}
END_TEST

/* All that are left have asked, and wish to be four again. */
START_TEST(test_waiting_for_newcomers)
{
    network_kill(network, workers[3]);
    network_settle(network);
    for (int rank = 0; rank < 3; rank++) {
        workers[rank]->least_ranks = 4;
        workers[rank]->wait_ms = LONG_MS;
    }
    json_t *job = job_at(0);
    expect(json_object_get(job, "lost"), "least_ranks", "null");
    json_decref(job);
    go_on_without(3);
    job = job_at(0);
    expect(job, "state", "\"waiting\"");
    expect(json_object_get(job, "lost"), "awaited", "[]");
    expect(json_object_get(job, "lost"), "least_ranks", "4");
    json_decref(job);
    network_run(network, LONG_MS);
    job = job_at(0);
    expect(job, "state", "\"running\"");
    expect(job, "world_size", "3");
    json_decref(job);
}
END_TEST

/* A server without ranks is lost: all ranks go on. */
START_TEST(test_server_lost)
{
    for (int rank = 0; rank < 4; rank++)
        network_leave(network, workers[rank]);
    network_settle(network);
    for (uint32_t rank = 0; rank < 2; rank++)
        workers[rank] = network_join(network, rank, name, 2, (int32_t)rank, -1, 0);
    network_settle(network);
    network_cut(network, 0, 2, "connection reset");
    network_cut(network, 1, 2, "connection reset");
    network_settle(network);
    json_t *job = job_at(1);
    expect(json_object_get(job, "lost"), "nodes", "[\"c\"]");
    expect(json_object_get(job, "lost"), "ranks", "[]");
    json_decref(job);
    for (int rank = 0; rank < 2; rank++)
        release(rank);
    for (int rank = 0; rank < 2; rank++)
        network_rejoin(network, workers[rank], LONG_MS, LONG_MS);
    network_settle(network);
    job = job_at(1);
    expect(job, "generation", "2");
    expect_times(job, "server", "1");
    expect_times(job, "generation", "0");
    json_decref(job);
}
END_TEST

/* A connection that has gone on counts for the jobs that need it. */
START_TEST(test_connection)
{
    network_away(network, 0, 1);
    network_run(network, 40);
    network_back(network, 0, 1);
    network_settle(network);
    json_t *job = job_at(0);
    expect_times(job, "connection", "1");
    expect(json_object_get(json_object_get(job, "recovered"), "connection"), "last_ms", "40");
    json_decref(job);
    job = job_at(2);
    expect_times(job, "connection", "0");
    json_decref(job);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("status_recoveries");
    TCase *cases = tcase_create("status_recoveries");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_rank_lost);
    tcase_add_test(cases, test_ended);
    tcase_add_test(cases, test_waiting);
    tcase_add_test(cases, test_waiting_for_newcomers);
    tcase_add_test(cases, test_server_lost);
    tcase_add_test(cases, test_connection);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
