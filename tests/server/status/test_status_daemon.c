/* Figures that daemons tell each other of themselves: there and back, in words, and figures that
 * make no sense. */
#include "server/status/status_daemon.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

#define NODES_MAX 20u
#define MS 1000000ull

static struct engine_peer_status peers[NODES_MAX];
static struct engine_status engine;
static struct membership membership;
static struct config config = {.link_mbits = 400000};
static const struct transport_info transport = {.link_mbits = 10000};
static struct config_server servers[NODES_MAX];

/* Return the status of node 1. */
static struct status_daemon taken(uint32_t nodes)
{
    struct status_daemon daemon;
    ck_assert_int_eq(membership_init(&membership, nodes, 1, 500, 3000, 0), 0);
    membership_connected(&membership, 0, 7, 10 * MS);
    membership_begin_session(&membership, 0, 5);
    membership_up(&membership, 0, 10 * MS);
    ck_assert(membership_away(&membership, 0, 20 * MS));
    for (uint32_t i = 0; i < nodes; i++) {
        uint64_t base = i == 1 ? 0 : (uint64_t)(i + 1) << 33;
        peers[i] =
            (struct engine_peer_status){.node = i, .bytes_in = base + 1, .bytes_out = base + 2};
        snprintf(servers[i].name, sizeof(servers[i].name), "n%u", i);
    }
    engine = (struct engine_status){.now_ns = 5500 * MS,
                                    .bytes_in = UINT64_C(1) << 40,
                                    .bytes_out = 17,
                                    .buffer_bytes_used = UINT64_C(3) << 32,
                                    .buffer_bytes_reserved = UINT64_C(4) << 32,
                                    .buffer_bytes_limit = INT64_MAX,
                                    .peers = peers,
                                    .peer_count = nodes};
    config.servers = servers;
    config.server_count = nodes;
    status_daemon_take(&daemon, &(struct status_source){.engine = &engine,
                                                        .membership = &membership,
                                                        .config = &config,
                                                        .transport = &transport,
                                                        .started_ns = 500 * MS});
    membership_clear(&membership);
    return daemon;
}

START_TEST(it_comes_as_it_was_told)
{
    const struct status_daemon daemon = taken((uint32_t)_i);
    struct status_daemon come;
    uint32_t words[STATUS_DAEMON_WORDS_MAX];
    uint32_t links = _i <= 13 ? (uint32_t)_i - 1 : 0, count = status_daemon_pack(&daemon, words);
    ck_assert_uint_eq(daemon.link_count, links);
    ck_assert_uint_eq(count, STATUS_DAEMON_WORDS + links * STATUS_LINK_WORDS);
    ck_assert(status_daemon_unpack(&come, words, count, (uint32_t)_i));
    ck_assert_uint_eq(come.time_ms, 5000);
    ck_assert_uint_eq(come.memory_used_bytes, UINT64_C(3) << 32);
    ck_assert_uint_eq(come.memory_reserved_bytes, UINT64_C(4) << 32);
    ck_assert_uint_eq(come.memory_limit_bytes, INT64_MAX);
    ck_assert_uint_eq(come.bytes_in, UINT64_C(1) << 40);
    ck_assert_uint_eq(come.bytes_out, 17);
    ck_assert_uint_eq(come.link_mbits, 400000);
    ck_assert_uint_eq(come.away, 1);
    ck_assert_uint_eq(come.recovered, 0);
    for (uint32_t i = 0; i < links; i++) {
        uint32_t node = i == 0 ? 0 : i + 1; /* not itself */
        ck_assert_uint_eq(come.links[i].node, node);
        ck_assert_uint_eq(come.links[i].bytes_in, ((uint64_t)(node + 1) << 33) + 1);
        ck_assert_uint_eq(come.links[i].bytes_out, ((uint64_t)(node + 1) << 33) + 2);
    }
}
END_TEST

START_TEST(numbers_without_sense_are_refused)
{
    struct status_daemon daemon = taken(13), come;
    uint32_t words[STATUS_DAEMON_WORDS_MAX + STATUS_LINK_WORDS] = {0};
    ck_assert_uint_eq(status_daemon_pack(&daemon, words), STATUS_DAEMON_WORDS_MAX);
    for (uint32_t count = 0; count <= STATUS_DAEMON_WORDS_MAX + STATUS_LINK_WORDS; count++) {
        bool good = count >= STATUS_DAEMON_WORDS && count <= STATUS_DAEMON_WORDS_MAX &&
                    (count - STATUS_DAEMON_WORDS) % STATUS_LINK_WORDS == 0;
        ck_assert_msg(status_daemon_unpack(&come, words, count, 13) == good, "%u", count);
    }
    /* The last link is with a node that a smaller roster has not. */
    ck_assert(!status_daemon_unpack(&come, words, STATUS_DAEMON_WORDS_MAX, 12));
}
END_TEST

START_TEST(it_is_told_in_words)
{
    const struct status_daemon daemon = taken(3);
    struct json_text text;
    size_t length;
    json_text_init(&text);
    json_text_open_object(&text, NULL);
    status_put_daemon(&text, &daemon, &config);
    json_text_close_object(&text);
    char *line = json_text_take(&text, &length);
    ck_assert_ptr_nonnull(line);
    json_t *said = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    json_t *wanted = json_loads(
        "{\"time_s\":5,\"bytes_in\":1099511627776,\"bytes_out\":17,\"link_mbits\":400000,"
        "\"memory\":{\"used_bytes\":12884901888,"
        "\"reserved_bytes\":17179869184,\"limit_bytes\":9223372036854775807},"
        "\"away\":1,\"recovered\":0,\"links\":["
        "{\"node\":\"n0\",\"bytes_in\":8589934593,\"bytes_out\":8589934594},"
        "{\"node\":\"n2\",\"bytes_in\":25769803777,"
        "\"bytes_out\":25769803778}]}",
        0, NULL);
    ck_assert_ptr_nonnull(wanted);
    ck_assert_msg(said != NULL, "%s", line);
    ck_assert_msg(json_equal(said, wanted), "%s", line);
    json_decref(said);
    json_decref(wanted);
    free(line);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("status_daemon");
    TCase *cases = tcase_create("status_daemon");
    tcase_add_loop_test(cases, it_comes_as_it_was_told, 2, NODES_MAX);
    tcase_add_test(cases, numbers_without_sense_are_refused);
    tcase_add_test(cases, it_is_told_in_words);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
