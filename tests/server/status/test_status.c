/* The status document and the metrics, of a coordinator in several states. */
#include "server/status/status.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/status/status_metric.h"
#include "tests/lib/server/coordinator_network.h"
#include "tests/lib/suite.h"

static const uint32_t weights[] = {1, 2};
static struct network *network;
static struct engine_status engine;
static struct engine_job_status engine_jobs[1];
static struct engine_peer_status engine_peers[2];
static struct transport_info transport;
static struct status_rates rates;
static struct membership membership;

static void setup(void)
{
    network = network_create(2, weights, 3);
    network_connect_all(network);
    network_settle(network);
    ck_assert_int_eq(membership_init(&membership, 2, 0, 500, 3000, 0), 0);
    membership_connected(&membership, 1, 1, network_now(network) - 40 * NETWORK_MS);
    membership_up(&membership, 1, network_now(network));
    engine_jobs[0] = (struct engine_job_status){
        .bytes_submitted = 4096,
        .collectives = 12,
        .met_collectives = 11,
        .met_bytes = 44,
        .slots = 3,
        .kept_bytes = 4321,
        .slowest_rank = 1,
        .slowest_times = 5,
        .waits = {.window_us = 3000000,
                  .collectives = 40,
                  .step = 5,
                  .self_us = 500000,
                  .rank = {{1, 750000, 0, 7, 0}},
                  .node = {{1, 1500000, 250000, 1800000, 9}}},
        .overlap = {.window_us = 4000000, .hidden_us = 1000000, .exposed_us = 500000}};
    engine_jobs[0].waits.rank[1].rank = WAITS_NOBODY;
    engine_jobs[0].waits.node[1].node = WAITS_NOBODY;
    engine_peers[1] =
        (struct engine_peer_status){.node = 1,
                                    .up = true,
                                    .sealed = true,
                                    .refused = {[SEAL_ALTERED] = 2, [SEAL_REPEATED] = 3},
                                    .unsent = 4,
                                    .bytes_in = UINT64_C(1) << 40,
                                    .bytes_out = 17};
    engine = (struct engine_status){.bytes_in = 1000,
                                    .bytes_out = 2000,
                                    .bytes_reduced = 3000,
                                    .collectives = 4,
                                    .met_collectives = 2,
                                    .dropped_messages = 5,
                                    .buffer_bytes_used = 6,
                                    .buffer_bytes_allocated = 7,
                                    .buffer_bytes_reserved = 8,
                                    .buffer_bytes_limit = 9,
                                    .buffer_bytes_set_aside = 3,
                                    .slots = 10,
                                    .jobs = engine_jobs,
                                    .job_count = 1,
                                    .peers = engine_peers,
                                    .peer_count = 2};
    snprintf(transport.provider, sizeof(transport.provider), "tcp");
    snprintf(transport.endpoint, sizeof(transport.endpoint), "connected");
    snprintf(transport.version, sizeof(transport.version), "libfabric 1.17");
    snprintf(transport.local, sizeof(transport.local), "10.0.0.0:4711");
    rates = (struct status_rates){0};
}

static void teardown(void)
{
    membership_clear(&membership);
    network_free(network);
}

static struct account_book accounts = {
    .node = "a",
    .limits = {
        [ACCOUNT_MEMORY] = 1 << 20, [ACCOUNT_OUTPUT] = 1 << 20, [ACCOUNT_DESCRIPTORS] = 100}};

static struct status_source source_of(uint32_t node)
{
    return (struct status_source){
        .software = "shoald test",
        .pid = 4242,
        .now_ns = network_now(network),
        .started_ns = network_now(network) - 1500 * NETWORK_MS,
        .connections = 3,
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

static json_t *document(void)
{
    struct status_source source = source_of(0);
    size_t length;
    char *text = status_document(&source, &length);
    ck_assert_ptr_nonnull(text);
    ck_assert_uint_eq(strlen(text), length);
    /* One line. */
    ck_assert_ptr_eq(strchr(text, '\n'), text + length - 1);
    json_error_t error;
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    ck_assert_msg(json != NULL, "%s in %s", error.text, text);
    free(text);
    return json;
}

static json_t *job_of(json_t *status, size_t index)
{
    return json_array_get(json_object_get(status, "jobs"), index);
}

static void expect_text(const json_t *object, const char *key, const char *wanted)
{
    ck_assert_msg(json_is_string(json_object_get(object, key)), "%s is not a string", key);
    ck_assert_str_eq(json_string_value(json_object_get(object, key)), wanted);
}

static void expect_number(const json_t *object, const char *key, json_int_t wanted)
{
    ck_assert_msg(json_is_integer(json_object_get(object, key)), "%s is not an integer", key);
    ck_assert_int_eq(json_integer_value(json_object_get(object, key)), wanted);
}

static void expect_ranks(const json_t *object, const char *key, const char *wanted)
{
    char *text = json_dumps(json_object_get(object, key), JSON_COMPACT);
    ck_assert_ptr_nonnull(text);
    ck_assert_str_eq(text, wanted);
    free(text);
}

START_TEST(test_head)
{
    json_t *status = document();
    expect_text(status, "type", "status");
    expect_text(status, "software", "shoald test");
    expect_text(status, "node", "a");
    expect_text(status, "state", "running");
    expect_text(status, "instruction_set", "avx2");
    expect_text(status, "topology", "8 cores");
    expect_number(status, "pid", 4242);
    ck_assert_double_eq_tol(json_number_value(json_object_get(status, "uptime_s")), 1.5, 1e-9);
    const json_t *provider = json_object_get(status, "provider");
    expect_text(provider, "name", "tcp");
    expect_text(provider, "endpoint", "connected");
    expect_text(provider, "version", "libfabric 1.17");
    expect_text(provider, "address", "10.0.0.0:4711");
    const json_t *traffic = json_object_get(status, "traffic");
    expect_number(traffic, "bytes_in", 1000);
    expect_number(traffic, "bytes_out", 2000);
    expect_number(traffic, "bytes_reduced", 3000);
    expect_number(traffic, "collectives", 4);
    expect_number(traffic, "met_collectives", 2);
    expect_number(traffic, "dropped_messages", 5);
    const json_t *memory = json_object_get(status, "memory");
    expect_number(memory, "used_bytes", 6);
    expect_number(memory, "allocated_bytes", 7);
    expect_number(memory, "reserved_bytes", 8);
    expect_number(memory, "limit_bytes", 9);
    expect_number(memory, "set_aside_bytes", 3);
    expect_number(status, "slots", 10);
    expect_number(json_object_get(status, "workers"), "count", 0);
    expect_number(json_object_get(status, "workers"), "limit", 64);
    expect_number(json_object_get(status, "connections"), "count", 3);
    expect_number(json_object_get(status, "limits"), "groups_per_job", 16);
    expect_number(json_object_get(status, "limits"), "pinned_bytes", 1 << 20);
    ck_assert_uint_eq(json_array_size(json_object_get(status, "jobs")), 0);
    json_decref(status);
}
END_TEST

START_TEST(test_peers)
{
    json_t *status = document();
    ck_assert_uint_eq(json_array_size(json_object_get(status, "peers")), 1);
    const json_t *peer = json_array_get(json_object_get(status, "peers"), 0);
    expect_number(peer, "node", 1);
    expect_text(peer, "name", "b");
    expect_text(peer, "address", "10.0.0.1:7001");
    expect_number(peer, "weight", 2);
    expect_text(peer, "state", "up");
    expect_text(peer, "fabric", "up");
    ck_assert(json_is_true(json_object_get(peer, "sealed")));
    const json_t *refused = json_object_get(peer, "refused");
    expect_number(refused, "short", 0);
    expect_number(refused, "altered", 2);
    expect_number(refused, "repeated", 3);
    expect_number(refused, "disordered", 0);
    expect_number(refused, "unkeyed", 0);
    expect_number(peer, "unsent", 4);
    expect_number(peer, "bytes_in", (json_int_t)1 << 40);
    expect_number(peer, "silent_ms", 40);
    expect_text(peer, "last_error", "");
    ck_assert(json_is_null(json_object_get(peer, "away_ms")));
    expect_number(peer, "recovered", 0);
    expect_number(peer, "recovered_ms", 0);
    json_decref(status);
    membership_lost(&membership, 1, network_now(network), "it went \"away\"");
    engine.peer_count = 0; /* an engine that does not know it */
    status = document();
    peer = json_array_get(json_object_get(status, "peers"), 0);
    expect_text(peer, "state", "down");
    expect_text(peer, "fabric", "down");
    expect_text(peer, "last_error", "it went \"away\"");
    ck_assert(json_is_null(json_object_get(peer, "silent_ms")));
    json_decref(status);
}
END_TEST

/* With recovery on: away for 20 ms when it came back, and away again. */
START_TEST(test_away)
{
    uint64_t now_ns = network_now(network);
    membership_begin_session(&membership, 1, 7);
    ck_assert(membership_away(&membership, 1, now_ns - 30 * NETWORK_MS));
    membership_lost(&membership, 1, now_ns - 30 * NETWORK_MS, "connection reset");
    membership_connected(&membership, 1, 1, now_ns - 11 * NETWORK_MS);
    membership_up(&membership, 1, now_ns - 10 * NETWORK_MS);
    ck_assert(membership_away(&membership, 1, now_ns - 5 * NETWORK_MS));
    membership_lost(&membership, 1, now_ns - 5 * NETWORK_MS, "connection reset");
    json_t *status = document();
    const json_t *peer = json_array_get(json_object_get(status, "peers"), 0);
    expect_text(peer, "state", "down");
    expect_number(peer, "away_ms", 5);
    expect_number(peer, "recovered", 1);
    expect_number(peer, "recovered_ms", 20);
    json_decref(status);
}
END_TEST

START_TEST(test_gathering)
{
    network_join(network, 0, network_name_at(network, 0), 4, 2, -1, 0);
    network_join(network, 1, network_name_at(network, 0), 4, 0, -1, 0);
    network_settle(network);
    json_t *status = document(), *job = job_of(status, 0);
    expect_text(job, "state", "gathering");
    expect_text(job, "name", network_name_at(network, 0));
    expect_number(job, "world_size", 4);
    expect_number(job, "uid", 1000);
    expect_number(job, "joined", 2);
    expect_ranks(job, "ranks_present", "[0,2]");
    expect_ranks(job, "ranks_missing", "[1,3]");
    expect_ranks(job, "local_ranks", "[{\"rank\":2,\"pid\":4001}]");
    ck_assert(json_is_null(json_object_get(job, "job_id")));
    ck_assert(json_is_null(json_object_get(job, "slowest_rank")));
    json_decref(status);
    /* With one that has no number yet nobody can say who is missing. */
    network_join(network, 1, network_name_at(network, 0), 4, -1, -1, 0);
    network_settle(network);
    status = document();
    expect_number(job_of(status, 0), "joined", 3);
    ck_assert(json_is_null(json_object_get(job_of(status, 0), "waits_for")));
    expect_ranks(job_of(status, 0), "ranks_missing", "[]");
    json_decref(status);
}
END_TEST

static const struct {
    const char *text, *shown;
    bool name; /* else no job may have it for its name */
} controls[] = {{"\xc2\x9b"
                 "2J",
                 "\\u009b2J", true},
                {"\xe2\x80\xae"
                 "a",
                 "\\u202ea", true},
                {"\x1b]0;x\x07", "\\u001b]0;x\\u0007", false},
                {"a\x7f\n", "a\\u007f\\u000a", false}};

/* Names and words of others reach a terminal or a page as escapes. */
START_TEST(test_controls)
{
    network_join(network, 0, controls[_i].text, 2, 0, -1, 0);
    network_settle(network);
    snprintf(membership.peers[1].reason, sizeof(membership.peers[1].reason), "%s",
             controls[_i].text);
    json_t *status = document();
    if (controls[_i].name)
        expect_text(job_of(status, 0), "name", controls[_i].shown);
    else
        ck_assert_ptr_null(job_of(status, 0));
    expect_text(json_array_get(json_object_get(status, "peers"), 0), "last_error",
                controls[_i].shown);
    json_decref(status);
}
END_TEST

/* The longest name that becomes longest is a label as a whole, and so good UTF-8. */
START_TEST(test_longest_label)
{
    char name[CONFIG_NAME_BYTES] = "", label[METRICS_LABEL_BYTES];
    while (strlen(name) + 2 < sizeof(name))
        strcat(name, "\xc2\x9b");
    strcat(name, "a");
    ck_assert_uint_eq(strlen(name), sizeof(name) - 1);
    metrics_label(name, label);
    ck_assert_uint_eq(strlen(label), (sizeof(name) - 2) / 2 * strlen("\\\\u009b") + 1);
    ck_assert_str_eq(label + strlen(label) - 8, "\\\\u009ba");
}
END_TEST

START_TEST(test_joining_elsewhere)
{
    network_join(network, 0, network_name_at(network, 1), 3, -1, -1, 0);
    network_join(network, 0, network_name_at(network, 1), 3, 1, -1, 0);
    network_settle(network);
    json_t *status = document();
    ck_assert_uint_eq(json_array_size(json_object_get(status, "jobs")), 1);
    expect_text(job_of(status, 0), "state", "joining");
    expect_ranks(job_of(status, 0), "local_ranks",
                 "[{\"rank\":null,\"pid\":4001},{\"rank\":1,\"pid\":4002}]");
    expect_number(json_object_get(status, "workers"), "count", 2);
    json_decref(status);
}
END_TEST

START_TEST(test_running_late_failed)
{
    static const uint32_t rank_1[] = {1};
    uint32_t node_1[] = {1};
    struct network_worker *workers[] = {
        network_join(network, 0, network_name_at(network, 0), 2, 0, -1, 0),
        network_join(network, 1, network_name_at(network, 0), 2, 1, -1, 0)};
    network_settle(network);
    engine_jobs[0].job = workers[0]->joined.job_id;
    network_set_late(network, 1, rank_1, 1);
    network_engine_says(network, 0,
                        (struct engine_event){.type = ENGINE_LATE,
                                              .job = engine_jobs[0].job,
                                              .sequence = 17,
                                              .nodes = node_1,
                                              .node_count = 1});
    network_settle(network);
    json_t *status = document(), *job = job_of(status, 0);
    char id[32];
    snprintf(id, sizeof(id), "%016llx", (unsigned long long)engine_jobs[0].job);
    expect_text(job, "state", "running");
    expect_text(job, "job_id", id);
    expect_ranks(job, "ranks_present", "[0,1]");
    expect_ranks(job, "ranks_missing", "[]");
    expect_ranks(job, "local_ranks", "[{\"rank\":0,\"pid\":4001}]");
    expect_number(job, "groups", 1);
    expect_number(job, "bytes", 4096);
    expect_number(job, "collectives", 12);
    expect_number(job, "met_collectives", 11);
    expect_number(job, "met_bytes", 44);
    expect_number(job, "slots", 3);
    expect_number(job, "request_bytes", 4321);
    expect_number(job, "slowest_rank", 1);
    expect_number(job, "slowest_times", 5);
    const json_t *late = json_array_get(json_object_get(job, "late"), 0);
    expect_number(late, "group", 0);
    expect_number(late, "sequence", 17);
    expect_ranks(late, "ranks", "[1]");
    ck_assert_int_ge(json_integer_value(json_object_get(late, "since_ms")), 1000);
    ck_assert_ptr_null(json_object_get(job, "error"));
    const json_t *waits = json_object_get(job, "waits");
    ck_assert_double_eq_tol(json_number_value(json_object_get(waits, "window_s")), 3, 1e-9);
    ck_assert_double_eq_tol(json_number_value(json_object_get(waits, "own_part_s")), 0.5, 1e-9);
    expect_number(waits, "collectives", 40);
    expect_number(waits, "step_collectives", 5);
    expect_ranks(waits, "ranks", "[{\"rank\":1,\"times\":7,\"start_s\":0.75,\"data_s\":0}]");
    expect_ranks(waits, "nodes",
                 "[{\"node\":\"b\",\"times\":9,\"start_s\":1.5,\"data_s\":0.25,\"alone_s\":1.8}]");
    const json_t *time = json_object_get(job, "time");
    ck_assert_double_eq_tol(json_number_value(json_object_get(time, "window_s")), 4, 1e-9);
    ck_assert_double_eq_tol(json_number_value(json_object_get(time, "computing_s")), 2.5, 1e-9);
    ck_assert_double_eq_tol(json_number_value(json_object_get(time, "hidden_s")), 1, 1e-9);
    ck_assert_double_eq_tol(json_number_value(json_object_get(time, "exposed_s")), 0.5, 1e-9);
    json_decref(status);
    struct status_source source = source_of(0);
    size_t length;
    char *text = status_metrics(&source, &length), line[200];
    ck_assert_ptr_nonnull(strstr(text, "part=\"computing\"} 0.625000\n"));
    ck_assert_ptr_nonnull(strstr(text, "part=\"hidden\"} 0.250000\n"));
    ck_assert_ptr_nonnull(strstr(text, "part=\"exposed\"} 0.125000\n"));
    snprintf(line, sizeof(line),
             "shoal_job_wait_ratio{job=\"%s\",cause=\"node\",culprit=\"b\"} 0.500000\n",
             network_name_at(network, 0));
    ck_assert_msg(strstr(text, line) != NULL, "%s is not in %s", line, text);
    ck_assert_ptr_nonnull(strstr(text, "cause=\"rank\",culprit=\"1\"} 0.250000\n"));
    free(text);
    network_kill(network, workers[1]);
    network_settle(network);
    status = document();
    expect_text(job_of(status, 0), "state", "failed");
    expect_text(job_of(status, 0), "error", "rank 1 on node b is gone: its process 4002 ended");
    json_decref(status);
}
END_TEST

START_TEST(test_left_ranks_are_missing)
{
    struct network_worker *workers[] = {
        network_join(network, 0, network_name_at(network, 0), 2, 0, -1, 0),
        network_join(network, 1, network_name_at(network, 0), 2, 1, -1, 0)};
    network_settle(network);
    network_leave(network, workers[1]);
    network_settle(network);
    json_t *status = document();
    expect_ranks(job_of(status, 0), "ranks_present", "[0]");
    expect_ranks(job_of(status, 0), "ranks_missing", "[1]");
    json_decref(status);
}
END_TEST

static void expect_page(const char *address, uint16_t port, const char *wanted)
{
    struct config *config = network_config(network, 0);
    snprintf(config->metrics_address, sizeof(config->metrics_address), "%s", address);
    config->metrics_port = port;
    json_t *status = document();
    ck_assert_pstr_eq(json_string_value(json_object_get(status, "page")), wanted);
    json_decref(status);
}

START_TEST(test_page)
{
    expect_page("", 0, NULL);
    expect_page("127.0.0.1", 7071, "http://127.0.0.1:7071/");
    expect_page("0.0.0.0", 7071, "http://127.0.0.1:7071/");
    expect_page("::1", 65535, "http://[::1]:65535/");
    expect_page("::", 1, "http://127.0.0.1:1/");
    expect_page("gpu1.example.com", 80, "http://gpu1.example.com:80/");
}
END_TEST

START_TEST(test_draining)
{
    network_join(network, 0, network_name_at(network, 0), 1, 0, -1, 0);
    network_settle(network);
    coordinator_drain(network_coordinator(network, 0), network_now(network), 1000);
    json_t *status = document();
    expect_text(status, "state", "draining");
    json_decref(status);
}
END_TEST

START_TEST(test_rates)
{
    /* The first sample only sets the start. */
    status_rates_sample(&rates, 1000000000, 500, 700);
    ck_assert_double_eq(rates.in_GBps, 0);
    status_rates_sample(&rates, 1500000000, 500 + 1000000000, 700);
    ck_assert_double_eq_tol(rates.in_GBps, 2.0, 1e-9);
    ck_assert_double_eq(rates.out_GBps, 0);
    status_rates_sample(&rates, 1500000000, 500 + 1000000000, 700); /* no time has passed */
    ck_assert_double_eq_tol(rates.in_GBps, 2.0, 1e-9);
    json_t *status = document();
    ck_assert_double_eq_tol(
        json_number_value(json_object_get(json_object_get(status, "traffic"), "in_GBps")), 2.0,
        1e-6);
    json_decref(status);
}
END_TEST

/* The configured rate goes before that of the interface. */
START_TEST(test_link)
{
    static const struct {
        uint32_t configured, seen, told;
        const char *metric;
    } all[] = {{0, 0, 0, NULL},
               {0, 10000, 10000, "\nshoal_link_bytes_per_second 1250000000\n"},
               {1000, 10000, 1000, "\nshoal_link_bytes_per_second 125000000\n"},
               {4000000, 0, 4000000, "\nshoal_link_bytes_per_second 500000000000\n"}};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        network_config(network, 0)->link_mbits = all[i].configured;
        transport.link_mbits = all[i].seen;
        json_t *status = document();
        json_t *told = json_object_get(json_object_get(status, "traffic"), "link_mbits");
        ck_assert_int_eq(json_integer_value(told), all[i].told);
        json_decref(status);
        struct status_source source = source_of(0);
        size_t length;
        char *text = status_metrics(&source, &length);
        ck_assert_ptr_nonnull(text);
        const char *found = strstr(text, all[i].metric ? all[i].metric : "shoal_link_bytes");
        ck_assert_msg(!found == !all[i].metric, "%zu: %s", i, text);
        free(text);
    }
    transport.link_mbits = 0;
}
END_TEST

START_TEST(test_users)
{
    struct error error;
    json_t *status = document();
    ck_assert_uint_eq(json_array_size(json_object_get(status, "users")), 0);
    json_decref(status);
    for (uint32_t uid = 1000; uid < 1002; uid++) {
        ck_assert_int_eq(account_charge(&accounts, uid, ACCOUNT_MEMORY, uid + 1, &error), 0);
        ck_assert_int_eq(account_charge(&accounts, uid, ACCOUNT_LEFT, 7, &error), 0);
        ck_assert_int_eq(account_charge(&accounts, uid, ACCOUNT_OUTPUT, uid + 2, &error), 0);
        ck_assert_int_eq(account_charge(&accounts, uid, ACCOUNT_DESCRIPTORS, 3, &error), 0);
    }
    status = document();
    const json_t *users = json_object_get(status, "users");
    ck_assert_uint_eq(json_array_size(users), 2);
    for (uint32_t i = 0; i < 2; i++) {
        const json_t *user = json_array_get(users, i);
        expect_number(user, "uid", 1000 + i);
        expect_number(user, "memory_bytes", 1001 + i);
        expect_number(user, "left_bytes", 7);
        expect_number(user, "output_bytes", 1002 + i);
        expect_number(user, "descriptors", 3);
    }
    expect_number(json_object_get(status, "limits"), "user_bytes", 1 << 20);
    json_decref(status);
    account_book_clear(&accounts);
}
END_TEST

START_TEST(test_warnings)
{
    const struct log_line lines[] = {
        {LOG_LEVEL_WARNING, "2026-11-23T16:00:00.000Z", "job 'a\"b' waits", 0},
        {LOG_LEVEL_ERROR, "2026-11-23T16:00:01.000Z", "out of descriptors", 0},
    };
    struct status_source source = source_of(0);
    source.warnings = lines;
    source.warning_count = 2;
    char *text = status_document(&source, NULL);
    json_t *status = json_loads(text, 0, NULL), *warnings = json_object_get(status, "warnings");
    ck_assert_uint_eq(json_array_size(warnings), 2);
    expect_text(json_array_get(warnings, 0), "text", "job 'a\"b' waits");
    expect_text(json_array_get(warnings, 0), "level", "warning");
    expect_text(json_array_get(warnings, 1), "time", "2026-11-23T16:00:01.000Z");
    expect_text(json_array_get(warnings, 1), "level", "error");
    json_decref(status);
    free(text);
    status = document();
    ck_assert(json_is_array(json_object_get(status, "warnings")));
    json_decref(status);
}
END_TEST

/* The metrics have a verdict on the job that runs; they say nothing of others. */
START_TEST(test_verdicts_in_metrics)
{
    static const struct {
        const char *begin, *end;
    } wanted[] = {
        {"shoal_job_step_seconds{job=", "} 0.040000\n"},
        {"shoal_job_step_without_seconds{job=",
         ",kind=\"rank late\",culprit=\"b\",rank=\"3\"} 0.028000\n"},
        {"shoal_job_step_without_seconds{job=",
         ",kind=\"link slow\",culprit=\"b\",rank=\"\"} 0.028000\n"},
    };
    struct verdict verdict = {.rank = 3, .node = 1, .step_ms = 40, .without_ms = 28};
    network_join(network, 0, network_name_at(network, 0), 1, 0, -1, 0);
    network_settle(network);
    static const struct {
        enum verdict_kind kind;
        uint32_t node;
        bool step, late, link;
    } cases[] = {
        {VERDICT_RANK_LATE, 1, true, true, false},
        {VERDICT_LINK_SLOW, 1, true, false, true},
        {VERDICT_LINK_SLOW, 2, true, false, false}, /* there is no such node */
        {VERDICT_NOBODY, WAITS_NOBODY, true, false, false},
        {VERDICT_UNKNOWN, WAITS_NOBODY, false, false, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bool has[] = {cases[i].step, cases[i].late, cases[i].link};
        verdict.kind = cases[i].kind;
        verdict.node = cases[i].node;
        verdict.rank = verdict.kind == VERDICT_RANK_LATE ? 3 : WAITS_NOBODY;
        struct status_verdict verdicts[] = {{4711, verdict}, {0, verdict}};
        struct status_source source = source_of(0);
        verdicts[1].job = coordinator_jobs(source.coordinator)->id;
        verdicts[0].verdict.kind = VERDICT_NODE_LATE;
        source.verdicts = verdicts;
        source.verdict_count = 2;
        size_t length;
        char *text = status_metrics(&source, &length), line[200];
        for (size_t k = 0; k < 3; k++) {
            snprintf(line, sizeof(line), "%s\"%s\"%s", wanted[k].begin, network_name_at(network, 0),
                     wanted[k].end);
            ck_assert_msg((strstr(text, line) != NULL) == has[k], "%zu: %s, %s", i, line, text);
        }
        ck_assert_ptr_null(strstr(text, "node late"));
        free(text);
    }
}
END_TEST

START_TEST(test_metrics)
{
    network_join(network, 0, network_name_at(network, 0), 1, 0, -1, 0);
    network_settle(network);
    struct status_source source = source_of(0);
    size_t length;
    char *text = status_metrics(&source, &length);
    static const char *const lines[] = {
        "# TYPE shoal_daemon_info gauge\n",
        "shoal_daemon_info{software=\"shoald test\",node=\"a\",provider=\"tcp\"} 1\n",
        "# TYPE shoal_in_bytes_total counter\n",
        "shoal_in_bytes_total 1000\n",
        "shoal_slots 10\n",
        "shoal_buffer_reserved_bytes 8\n",
        "shoal_buffer_limit_bytes 9\n",
        "shoal_buffer_set_aside_bytes 3\n",
        "shoal_jobs{state=\"running\"} 1\n",
        "shoal_workers 1\n",
        "shoal_peer_up{peer=\"b\"} 1\n",
        "shoal_peer_away{peer=\"b\"} 0\n",
        "shoal_peer_recovered_total{peer=\"b\"} 0\n",
        "shoal_peer_refused_messages_total{peer=\"b\",reason=\"altered\"} 2\n",
        "shoal_peer_in_bytes_total{peer=\"b\"} 1099511627776\n",
    };
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        ck_assert_msg(strstr(text, lines[i]) != NULL, "%s is not in\n%s", lines[i], text);
    ck_assert_uint_eq(strlen(text), length);
    /* Every line is a comment, or a name and a number. */
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (line[0] == '#')
            continue;
        const char *value = strrchr(line, ' ');
        ck_assert_ptr_nonnull(value);
        ck_assert_int_eq(strncmp(line, "shoal_", 6), 0);
        ck_assert_uint_eq(strspn(value + 1, "0123456789."), strlen(value + 1));
    }
    free(text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("status");
    TCase *cases = tcase_create("status");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_head);
    tcase_add_test(cases, test_peers);
    tcase_add_test(cases, test_away);
    tcase_add_test(cases, test_gathering);
    tcase_add_test(cases, test_longest_label);
    tcase_add_loop_test(cases, test_controls, 0, sizeof(controls) / sizeof(controls[0]));
    tcase_add_test(cases, test_joining_elsewhere);
    tcase_add_test(cases, test_running_late_failed);
    tcase_add_test(cases, test_left_ranks_are_missing);
    tcase_add_test(cases, test_page);
    tcase_add_test(cases, test_draining);
    tcase_add_test(cases, test_rates);
    tcase_add_test(cases, test_link);
    tcase_add_test(cases, test_users);
    tcase_add_test(cases, test_warnings);
    tcase_add_test(cases, test_metrics);
    tcase_add_test(cases, test_verdicts_in_metrics);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
