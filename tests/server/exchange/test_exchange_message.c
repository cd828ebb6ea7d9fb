/* Messages that other daemons send: everything in a message is checked, and one that is refused
 * changes nothing. */
#include "common/transport/transport.h"
#include "tests/lib/server/exchange_fixture.h"
#include "tests/lib/suite.h"

/* Three nodes with one rank each. This is node 0. */
static struct fixture *three_nodes(uint32_t server)
{
    struct fixture_options options = {.nodes = 3, .ranks = 3, .rank_nodes = {0, 1, 2}};
    options.weights[server] = 1;
    return fixture_create(&options);
}

#define COUNT (2 * FIXTURE_CHUNK)

static void expect_totals(const struct fixture *fixture, uint64_t slots, uint64_t dropped)
{
    struct exchange_totals totals;
    exchange_totals(fixture->exchange, &totals);
    EXPECT_MSG(totals.slots == slots, "%lu slots", (unsigned long)totals.slots);
    EXPECT(totals.dropped_messages == dropped);
}

/* Collective 0 goes through with this node as the owner; nothing of it has arrived yet. */
static void finish_as_owner(struct fixture *fixture)
{
    fixture_fill(fixture, 0, 0, COUNT, 1);
    fixture_submit_sum(fixture, 0, 0, COUNT);
    for (uint32_t node = 1; node < 3; node++) {
        for (uint32_t chunk = 0; chunk < 2; chunk++)
            EXPECT_MSG(fixture_contribute(fixture, node, 0, chunk, COUNT, (float)(10 * node)) == 0,
                       "%s", fixture->error.text);
    }
    fixture_all_reduced(fixture);
    EXPECT(fixture->send_count == 2); /* the other two wait for these */
    fixture_all_sent(fixture);
    EXPECT(fixture_completed(fixture, 0, 100));
    for (uint32_t i = 0; i < COUNT; i++)
        EXPECT(fixture_data(fixture, 0, 0)[i] == 31.0f + (float)i);
    EXPECT(fixture->event_count == 0);
    expect_totals(fixture, 0, 0);
}

/* --- the header ------------------------------------------------------------------------------- */

static const struct {
    uint32_t at;
    uint8_t byte;
    const char *words;
} headers[] = {
    {0, 0, "not the magic"},
    {4, WIRE_VERSION - 1, "version"},
    {4, WIRE_VERSION + 1, "version"},
    {5, 0, "unknown type 0"},
    {5, 13, "unknown type 13"},
    {6, 1, "status 1"},
    {8, 0xff, "a token that was not given out"},
    {8, 2, "a token that was not given out"}, /* that of node 2, sent by node 1 */
    {40, 4, "announces a payload of 260 bytes and has 256"},
    {47, 1, "codec 1"},
    {64, 0, "generation 0"},
    {68, 1, "reserved byte"},
    {104, 1, "reserved byte"},
    {127, 1, "reserved byte"},
};

START_TEST(wrong_headers_are_refused)
{
    struct fixture *fixture = three_nodes(0);
    uint8_t message[WIRE_HEADER_BYTES + 256] = {0};
    struct wire_header header = fixture_header(1, WIRE_CONTRIBUTION, 0, 0, COUNT);
    header.payload_bytes = 256;
    wire_encode_header(message, &header);
    message[headers[_i].at] = headers[_i].byte;
    uint32_t posted = fixture_posted(fixture, 1);
    fixture_expect_error(fixture, fixture_raw_message(fixture, 1, message, sizeof(message)),
                         ERR_PROTOCOL, headers[_i].words);
    ck_assert_uint_eq(fixture_posted(fixture, 1), posted); /* and the buffer is posted again */
    expect_totals(fixture, 0, 0);
    finish_as_owner(fixture);
    fixture_destroy(fixture);
}
END_TEST

/* A job's membership has changed since, or the other node is ahead. */
START_TEST(what_is_of_another_generation_is_dropped)
{
    struct fixture *fixture = three_nodes(0);
    struct wire_header header = fixture_header(1, WIRE_CONTRIBUTION, 0, 0, COUNT);
    header.generation = 2;
    ck_assert_int_eq(fixture_message(fixture, 1, header, "of a generation to come", 23), 0);
    expect_totals(fixture, 0, 1);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(messages_shorter_than_a_header_are_refused)
{
    struct fixture *fixture = three_nodes(0);
    uint8_t nothing[WIRE_HEADER_BYTES] = {0};
    for (uint32_t bytes = 0; bytes < WIRE_HEADER_BYTES; bytes += 9)
        fixture_expect_error(fixture, fixture_raw_message(fixture, 1, nothing, bytes), ERR_PROTOCOL,
                             "shorter than its header");
    finish_as_owner(fixture);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(a_length_beyond_the_buffer_is_refused)
{
    struct fixture *fixture = three_nodes(0);
    struct buffer *buffer = fixture->posted[--fixture->posted_count];
    uint32_t from = 77;
    int result = exchange_receive(fixture->exchange, buffer->peer, buffer, buffer->capacity + 1, 0,
                                  &from, &fixture->error);
    fixture_expect_error(fixture, result, ERR_PROTOCOL, "a message of 385 bytes");
    exchange_check(fixture->exchange);
    finish_as_owner(fixture);
    fixture_destroy(fixture);
}
END_TEST

/* On a datagram fabric the token alone tells who has sent a message. */
START_TEST(the_token_tells_the_sender)
{
    struct fixture_options options = {
        .nodes = 3, .ranks = 3, .rank_nodes = {0, 1, 2}, .weights = {1}, .shared_receives = true};
    struct fixture *fixture = fixture_create(&options);
    struct wire_header header = fixture_header(0, WIRE_CONTRIBUTION, 0, 0, COUNT);
    fixture_expect_error(fixture, fixture_message(fixture, 1, header, NULL, 0), ERR_PROTOCOL,
                         "a token that was not given out");
    fixture_peer_down(fixture, 2);
    header = fixture_header(2, WIRE_CONTRIBUTION, 0, 0, COUNT);
    fixture_expect_error(fixture, fixture_message(fixture, 2, header, NULL, 0), ERR_PROTOCOL,
                         "a token that was not given out");
    exchange_peer_up(fixture->exchange, 2, fixture_receive_token(2), fixture_send_token(2));
    finish_as_owner(fixture); /* fixture_message checks who it was */
    fixture_destroy(fixture);
}
END_TEST

START_TEST(unknown_jobs_and_groups_are_dropped_and_counted)
{
    struct fixture *fixture = three_nodes(0);
    float payload[FIXTURE_CHUNK] = {0};
    for (uint8_t type = WIRE_CONTRIBUTION; type <= WIRE_GONE; type++) {
        struct wire_header header = fixture_header(1, type, 0, 0, COUNT);
        header.job = 0xdead;
        ck_assert_int_eq(fixture_message(fixture, 1, header, payload, sizeof(payload)), 0);
        header.job = FIXTURE_JOB;
        header.group = 5;
        ck_assert_int_eq(fixture_message(fixture, 1, header, payload, sizeof(payload)), 0);
        expect_totals(fixture, 0, 2 * (uint64_t)type);
    }
    ck_assert_uint_eq(fixture->event_count, 0);
    fixture_destroy(fixture);
}
END_TEST

/* --- contributions ---------------------------------------------------------------------------- */

static const struct {
    const char *words;
    uint32_t bytes; /* of the payload */
    struct wire_ask ask;
    uint32_t chunk;
} contributions[] = {
    {"a collective that does not exist", 256, {.kind = 10, .count = COUNT}, 0},
    {"does not exist: data type 12 is none of", 256, {.dtype = 12, .count = COUNT}, 0},
    {"does not exist: operation 11 is none of", 256, {.op = 11, .count = COUNT}, 0},
    {"a collective that does not exist", 256, {.op = REDUCE_BAND, .count = COUNT}, 0},
    {"a collective that does not exist", 0, {.kind = 1, .root = 3, .count = COUNT}, 0},
    {"a collective that does not exist", 256, {.count = UINT64_MAX}, 0},
    {"chunk 2, which does not exist", 256, {.count = COUNT}, 2},
    {"chunk 4294967295, which", 256, {.count = COUNT}, UINT32_MAX},
    {"chunk 1, which does not exist", 0, {.kind = COLLECTIVE_BARRIER}, 1},
    {"chunk 0, which does not exist", 256, {.dtype = DTYPE_F64, .count = 1ull << 59}, 0},
    {"of 252 bytes to chunk 0, where 256 were", 252, {.count = COUNT}, 0},
    {"of 0 bytes to chunk 0, where 256 were", 0, {.count = COUNT}, 0},
    {"of 256 bytes to chunk 0, where 4 were", 256, {.count = 1}, 0},
    {"of 4 bytes to chunk 0, where 0 were", 4, {.kind = COLLECTIVE_BARRIER}, 0},
    {"of 256 bytes to chunk 0, where 0", 256, {.kind = COLLECTIVE_BROADCAST, .count = COUNT}, 0},
    {"of 0 bytes to chunk 0, where 256", 0, {.kind = 2, .root = 1, .count = COUNT}, 0},
};

START_TEST(wrong_contributions_are_refused)
{
    struct fixture *fixture = three_nodes(0);
    uint8_t payload[256] = {0};
    struct wire_header header = fixture_header(1, WIRE_CONTRIBUTION, 0, contributions[_i].chunk, 0);
    header.ask = contributions[_i].ask;
    for (int i = 0; i < 10; i++)
        fixture_expect_error(fixture,
                             fixture_message(fixture, 1, header, payload, contributions[_i].bytes),
                             ERR_PROTOCOL, contributions[_i].words);
    expect_totals(fixture, 0, 0);
    finish_as_owner(fixture);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(a_contribution_to_another_nodes_shard)
{
    struct fixture_options options = {
        .nodes = 3, .ranks = 3, .rank_nodes = {0, 1, 2}, .weights = {1, 1, 0}};
    struct fixture *fixture = fixture_create(&options);
    uint8_t payload[256] = {0};
    /* two servers: of collective 0 the even chunks are this node's, of collective 1 the odd ones */
    struct wire_header header = fixture_header(1, WIRE_CONTRIBUTION, 0, 1, COUNT);
    fixture_expect_error(fixture, fixture_message(fixture, 1, header, payload, 256), ERR_PROTOCOL,
                         "another node owns it");
    header = fixture_header(1, WIRE_CONTRIBUTION, 1, 0, COUNT);
    fixture_expect_error(fixture, fixture_message(fixture, 1, header, payload, 256), ERR_PROTOCOL,
                         "another node owns it");
    header = fixture_header(1, WIRE_CONTRIBUTION, 1, 1, COUNT);
    ck_assert_int_eq(fixture_message(fixture, 1, header, payload, 256), 0);
    expect_totals(fixture, 1, 0);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(who_has_no_part_contributes_nothing)
{
    /* a server without ranks, a node with neither, and a node of ranks that owns nothing */
    struct fixture_options options = {
        .nodes = 4, .ranks = 2, .rank_nodes = {0, 1}, .weights = {1, 0, 1, 0}};
    struct fixture *fixture = fixture_create(&options);
    uint32_t alone[] = {0};
    ck_assert_int_eq(exchange_group_open(fixture->exchange, FIXTURE_JOB, 3, alone, 1, NULL), 0);
    float payload[FIXTURE_CHUNK] = {0};
    struct wire_header header = fixture_header(2, WIRE_CONTRIBUTION, 0, 0, COUNT);
    fixture_expect_error(fixture, fixture_message(fixture, 2, header, payload, 256), ERR_PROTOCOL,
                         "a contribution to group 0, in which it has no part");
    header = fixture_header(1, WIRE_CONTRIBUTION, 0, 0, COUNT);
    header.group = 3; /* all of it on this node */
    fixture_expect_error(fixture, fixture_message(fixture, 1, header, payload, 256), ERR_PROTOCOL,
                         "a contribution to group 3");
    header = fixture_header(1, WIRE_RESULT, 0, 0, COUNT);
    fixture_expect_error(fixture, fixture_message(fixture, 1, header, payload, 256), ERR_PROTOCOL,
                         "which does not wait for one from it"); /* no shard, but blocks */
    ck_assert_uint_eq(fixture->event_count, 0);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(a_contribution_that_came_already)
{
    struct fixture *fixture = three_nodes(0);
    ck_assert_int_eq(fixture_contribute(fixture, 1, 0, 1, COUNT, 10), 0);
    fixture_expect_error(fixture, fixture_contribute(fixture, 1, 0, 1, COUNT, 666), ERR_PROTOCOL,
                         "a second contribution to chunk 1 of collective 0");
    expect_totals(fixture, 1, 0);
    /* the first one counts */
    fixture_fill(fixture, 0, 0, COUNT, 0);
    fixture_submit_sum(fixture, 0, 0, COUNT);
    ck_assert_int_eq(fixture_contribute(fixture, 1, 0, 0, COUNT, 10), 0);
    ck_assert_int_eq(fixture_contribute(fixture, 2, 0, 0, COUNT, 20), 0);
    ck_assert_int_eq(fixture_contribute(fixture, 2, 0, 1, COUNT, 20), 0);
    fixture_expect_error(fixture, fixture_contribute(fixture, 2, 0, 1, COUNT, 666), ERR_PROTOCOL,
                         "a second contribution"); /* while it is being summed */
    fixture_all_reduced(fixture);
    for (uint32_t i = 0; i < COUNT; i++)
        EXPECT(fixture_data(fixture, 0, 0)[i] == 30.0f + (float)i);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(more_contributions_than_the_window)
{
    struct fixture *fixture = three_nodes(0);
    for (uint64_t sequence = 0; sequence < 4; sequence++)
        ck_assert_int_eq(fixture_contribute(fixture, 1, sequence, 0, FIXTURE_CHUNK, 1), 0);
    fixture_expect_error(fixture, fixture_contribute(fixture, 1, 4, 0, FIXTURE_CHUNK, 1),
                         ERR_PROTOCOL, "more than 4 contributions under way in group 0");
    /* each node has a window of its own, and gets a place back with each result */
    ck_assert_int_eq(fixture_contribute(fixture, 2, 0, 0, FIXTURE_CHUNK, 1), 0);
    fixture_submit_sum(fixture, 0, 0, FIXTURE_CHUNK);
    fixture_all_reduced(fixture);
    fixture_all_sent(fixture);
    ck_assert_int_eq(fixture_contribute(fixture, 1, 4, 0, FIXTURE_CHUNK, 1), 0);
    expect_totals(fixture, 4, 0);
    fixture_destroy(fixture);
}
END_TEST

/* A transport that takes fewer receives than the windows allow gets new ones as they are used. */
START_TEST(receives_are_posted_again_while_buffers_are_held)
{
    struct fixture_options options = {.nodes = 3,
                                      .ranks = 3,
                                      .rank_nodes = {0, 1, 2},
                                      .weights = {1},
                                      .shared_receives = true,
                                      .leave_down = true};
    struct fixture *fixture = fixture_create(&options);
    fixture->receives = 2;
    for (uint32_t node = 1; node < 3; node++)
        exchange_peer_up(fixture->exchange, node, fixture_receive_token(node),
                         fixture_send_token(node));
    for (uint64_t sequence = 0; sequence < 4; sequence++)
        ck_assert_int_eq(fixture_contribute(fixture, 1, sequence, 0, FIXTURE_CHUNK, 1), 0);
    ck_assert_uint_eq(fixture_posted(fixture, 1), 2);
    fixture_destroy(fixture);
}
END_TEST

/* A receive that comes back unused is posted again while its peer is up. */
START_TEST(a_receive_that_is_returned_is_posted_again)
{
    struct fixture *fixture = three_nodes(0);
    uint32_t posted = fixture_posted(fixture, 1);
    struct buffer *buffer = fixture->posted[--fixture->posted_count];
    exchange_receive_returned(fixture->exchange, buffer->peer, buffer);
    exchange_check(fixture->exchange);
    ck_assert_uint_eq(fixture_posted(fixture, 1), posted);
    finish_as_owner(fixture);
    fixture_destroy(fixture);
}
END_TEST

/* --- results ---------------------------------------------------------------------------------- */

START_TEST(results_that_nobody_waits_for)
{
    struct fixture *fixture = three_nodes(1);
    static const char *const words = "which does not wait for one from it";
    fixture_expect_error(fixture, fixture_result(fixture, 1, 0, 0, COUNT, 1), ERR_PROTOCOL, words);
    fixture_fill(fixture, 0, 0, COUNT, 1);
    fixture_submit_sum(fixture, 0, 0, COUNT);
    ck_assert_uint_eq(fixture->send_count, 2);
    fixture_expect_error(fixture, fixture_result(fixture, 1, 0, 2, COUNT, 1), ERR_PROTOCOL, words);
    fixture_expect_error(fixture, fixture_result(fixture, 1, 0, UINT32_MAX, COUNT, 1), ERR_PROTOCOL,
                         "a result for chunk 4294967295 of collective 0 of group 0");
    fixture_expect_error(fixture, fixture_result(fixture, 1, 1, 0, COUNT, 1), ERR_PROTOCOL, words);
    struct wire_header header = fixture_header(1, WIRE_RESULT, 0, 0, COUNT);
    uint8_t payload[256] = {0};
    fixture_expect_error(fixture, fixture_message(fixture, 1, header, payload, 252), ERR_PROTOCOL,
                         "a result of 252 bytes for a chunk of 256");
    fixture_expect_error(fixture, fixture_message(fixture, 1, header, NULL, 0), ERR_PROTOCOL,
                         "a result of 0 bytes");
    header.ask.op = REDUCE_MAX;
    fixture_expect_error(fixture, fixture_message(fixture, 1, header, payload, 256), ERR_PROTOCOL,
                         "or of another collective");
    /* the right ones still count, once, even while the send has not come back */
    for (uint32_t chunk = 0; chunk < 2; chunk++) {
        ck_assert_int_eq(fixture_result(fixture, 1, 0, chunk, COUNT, 5), 0);
        fixture_expect_error(fixture, fixture_result(fixture, 1, 0, chunk, COUNT, 6), ERR_PROTOCOL,
                             words);
    }
    fixture_all_sent(fixture);
    fixture_expect_error(fixture, fixture_result(fixture, 1, 0, 0, COUNT, 7), ERR_PROTOCOL, words);
    fixture_all_reduced(fixture);
    ck_assert(fixture_completed(fixture, 0, 100));
    for (uint32_t i = 0; i < COUNT; i++)
        EXPECT(fixture_data(fixture, 0, 0)[i] == 5);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(a_result_from_another_server)
{
    struct fixture_options options = {
        .nodes = 3, .ranks = 3, .rank_nodes = {0, 1, 2}, .weights = {0, 1, 1}};
    struct fixture *fixture = fixture_create(&options);
    fixture_submit_sum(fixture, 0, 0, COUNT); /* chunk 0 is node 1's, chunk 1 node 2's */
    fixture_all_sent(fixture);
    fixture_expect_error(fixture, fixture_result(fixture, 2, 0, 0, COUNT, 1), ERR_PROTOCOL,
                         "which does not wait for one from it");
    fixture_expect_error(fixture, fixture_result(fixture, 1, 0, 1, COUNT, 1), ERR_PROTOCOL,
                         "which does not wait for one from it");
    ck_assert_int_eq(fixture_result(fixture, 2, 0, 1, COUNT, 1), 0);
    ck_assert_int_eq(fixture_result(fixture, 1, 0, 0, COUNT, 1), 0);
    fixture_all_reduced(fixture);
    ck_assert(fixture_completed(fixture, 0, 100));
    fixture_destroy(fixture);
}
END_TEST

/* --- disagreements and errors ----------------------------------------------------------------- */

START_TEST(disagreements_that_make_no_sense)
{
    struct fixture_options options = {
        .nodes = 3, .ranks = 3, .rank_nodes = {0, 1, 2}, .weights = {1, 1, 0}};
    struct fixture *fixture = fixture_create(&options);
    uint8_t payload[3 * WIRE_RANK_ASK_BYTES] = {0};
    static const struct {
        uint64_t sequence;
        uint32_t chunk, bytes;
    } cases[] = {{0, 1, WIRE_RANK_ASK_BYTES},
                 {0, 0, 0},
                 {0, 0, WIRE_RANK_ASK_BYTES - 1},
                 {0, 0, WIRE_RANK_ASK_BYTES + 1},
                 {1, 0, WIRE_RANK_ASK_BYTES}};
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct wire_header header =
            fixture_header(1, WIRE_DISAGREE, cases[i].sequence, cases[i].chunk, COUNT);
        fixture_expect_error(fixture, fixture_message(fixture, 1, header, payload, cases[i].bytes),
                             ERR_PROTOCOL, "a disagreement about collective");
    }
    expect_totals(fixture, 0, 0);
    struct wire_header header = fixture_header(1, WIRE_DISAGREE, 0, 0, COUNT);
    ck_assert_int_eq(fixture_message(fixture, 1, header, payload, 2 * WIRE_RANK_ASK_BYTES), 0);
    fixture_expect_error(fixture,
                         fixture_message(fixture, 1, header, payload, 2 * WIRE_RANK_ASK_BYTES),
                         ERR_PROTOCOL, "a second disagreement in group 0");
    fixture_expect_error(fixture, fixture_contribute(fixture, 1, 0, 0, 16, 1), ERR_PROTOCOL,
                         "a second contribution to chunk 0");
    fixture_destroy(fixture);
}
END_TEST

/* Sequences that wait here are told to other daemons as late, and these would cut off the daemon
 * that says such a number, or such a code. */
START_TEST(what_the_control_plane_cannot_say_is_refused)
{
    struct fixture *fixture = three_nodes(0);
    float payload[FIXTURE_CHUNK] = {0};
    struct wire_header header = fixture_header(1, WIRE_CONTRIBUTION, 1ull << 63, 0, FIXTURE_CHUNK);
    fixture_expect_error(fixture, fixture_message(fixture, 1, header, payload, sizeof(payload)),
                         ERR_PROTOCOL, "9223372036854775808");
    header.type = WIRE_DISAGREE;
    header.ask.kind = 200;
    fixture_expect_error(fixture, fixture_message(fixture, 1, header, payload, 24), ERR_PROTOCOL,
                         "9223372036854775808");
    header = fixture_header(1, WIRE_ERROR, 0, 0, COUNT);
    header.status = -1000;
    fixture_expect_error(fixture, fixture_message(fixture, 1, header, NULL, 0), ERR_PROTOCOL,
                         "status -1000");
    expect_totals(fixture, 0, 0);
    exchange_tick(fixture->exchange, fixture->now_ns + 1000000);
    ck_assert_uint_eq(fixture->event_count, 0);
    /* the largest one that can be said */
    header = fixture_header(1, WIRE_CONTRIBUTION, INT64_MAX, 0, FIXTURE_CHUNK);
    ck_assert_int_eq(fixture_message(fixture, 1, header, payload, sizeof(payload)), 0);
    exchange_tick(fixture->exchange, fixture->now_ns + 1000000);
    struct engine_event *event = fixture_event(fixture, ENGINE_LATE);
    ck_assert_uint_eq(event->sequence, INT64_MAX);
    engine_event_free(event);
    fixture_destroy(fixture);
}
END_TEST

/* One disagreement beside the window's contributions is all that a node may have under way. */
START_TEST(more_disagreements_than_one)
{
    /* node 1 is a server too, so that it has receives for results to spend here */
    struct fixture_options options = {
        .nodes = 3, .ranks = 3, .rank_nodes = {0, 1, 2}, .weights = {1, 1, 0}};
    struct fixture *fixture = fixture_create(&options);
    uint8_t payload[WIRE_RANK_ASK_BYTES] = {0};
    struct wire_header header = fixture_header(1, WIRE_DISAGREE, 8, 0, COUNT);
    for (uint64_t i = 0; i < 5; i++) {
        /* it comes at any time; contributions have overtaken it or come after it */
        if (i == (uint64_t)_i)
            ck_assert_int_eq(fixture_message(fixture, 1, header, payload, sizeof(payload)), 0);
        if (i < 4) /* of one shard, this node's */
            ck_assert_int_eq(fixture_contribute(fixture, 1, 2 * i, 0, 16, 1), 0);
    }
    header.sequence = 10;
    fixture_expect_error(fixture, fixture_message(fixture, 1, header, payload, sizeof(payload)),
                         ERR_PROTOCOL, "a second disagreement in group 0");
    fixture_expect_error(fixture, fixture_contribute(fixture, 1, 10, 0, 16, 1), ERR_PROTOCOL,
                         "more than 4 contributions under way in group 0");
    fixture_destroy(fixture);
}
END_TEST

/* Two ranks of a node that disagree time and again: the owner hears of the first. */
START_TEST(one_disagreement_is_sent)
{
    struct fixture_options options = {
        .nodes = 2, .ranks = 3, .rank_nodes = {0, 0, 1}, .weights = {0, 1}};
    struct fixture *fixture = fixture_create(&options);
    fixture_submit_sum(fixture, 0, 0, COUNT);
    for (uint64_t sequence = 1; sequence < 6; sequence++)
        fixture_submit_sum(fixture, 0, sequence, COUNT);
    for (uint64_t sequence = 0; sequence < 6; sequence++)
        fixture_submit_sum(fixture, 1, sequence, COUNT + sequence / 2 * 16);
    fixture_all_reduced(fixture);
    uint32_t disagreements = 0;
    for (uint32_t i = 0; i < fixture->send_count; i++) {
        struct wire_header header = fixture_sending(fixture, i);
        ck_assert_uint_eq(header.type == WIRE_DISAGREE, header.sequence >= 2);
        if (header.type != WIRE_DISAGREE)
            continue;
        disagreements++;
        ck_assert_uint_eq(header.sequence, 2);
        ck_assert_uint_eq(header.payload_bytes, 2 * WIRE_RANK_ASK_BYTES);
        for (uint32_t k = 0; k < 2; k++) {
            uint32_t rank = 9;
            struct wire_ask ask;
            const uint8_t *bytes = fixture->sends[i]->payload;
            ck_assert_int_eq(wire_decode_rank_ask(bytes + (size_t)k * WIRE_RANK_ASK_BYTES,
                                                  WIRE_RANK_ASK_BYTES, &rank, &ask),
                             0);
            ck_assert_uint_eq(rank, k);
            ck_assert_uint_eq(ask.count, COUNT + k * 16);
        }
    }
    ck_assert_uint_eq(disagreements, 1);
    ck_assert_uint_eq(fixture->event_count, 0); /* the owner's answer is waited for */
    fixture_destroy(fixture);
}
END_TEST

START_TEST(an_error_fails_the_group_with_its_text)
{
    struct fixture *fixture = three_nodes(1);
    fixture_submit_sum(fixture, 0, 0, COUNT);
    struct wire_header header = fixture_header(1, WIRE_ERROR, 0, 0, COUNT);
    ck_assert_int_eq(fixture_message(fixture, 1, header, "rank 1 is odd", 13), 0);
    fixture_expect_failure(fixture, ERR_MISMATCH, "rank 1 is odd");
    ck_assert_uint_eq(fixture->event_count, 0);
    /* a second one is dropped, and so is all that comes for the group */
    ck_assert_int_eq(fixture_message(fixture, 1, header, "again", 5), 0);
    ck_assert_int_eq(fixture_result(fixture, 1, 0, 0, COUNT, 1), 0);
    ck_assert_uint_eq(fixture->event_count, 0);
    fixture_all_sent(fixture);
    expect_totals(fixture, 0, 2);
    ck_assert_uint_eq(fixture->completion_count, 0);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(long_texts_are_cut_and_other_bytes_do_no_harm)
{
    struct fixture_options options = {
        .nodes = 2, .ranks = 2, .rank_nodes = {0, 1}, .weights = {0, 1}, .chunk_bytes = 4096};
    static const struct {
        uint32_t length;
        size_t shown; /* "\n" becomes "\\u000a" */
    } texts[] = {{0, 0},
                 {1, 6},
                 {ERROR_TEXT_BYTES - 1, ERROR_TEXT_BYTES - 1},
                 {ERROR_TEXT_BYTES, ERROR_TEXT_BYTES - 1},
                 {4096, ERROR_TEXT_BYTES - 1}};
    char text[4096];
    memset(text, 'x', sizeof(text));
    text[0] = '\n';
    text[1] = '\xff';
    text[2] = '\x1b';
    for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct fixture *fixture = fixture_create(&options);
        struct wire_header header = fixture_header(1, WIRE_ERROR, 0, 0, COUNT);
        header.status = ERR_LOST;
        ck_assert_int_eq(fixture_message(fixture, 1, header, text, texts[i].length), 0);
        struct engine_event *event = fixture_event(fixture, ENGINE_GROUP_FAILED);
        ck_assert_int_eq(event->code, ERR_LOST);
        ck_assert_uint_eq(strlen(event->text), texts[i].shown);
        /* one line */
        for (size_t k = 0; k < texts[i].shown; k++)
            EXPECT((unsigned char)event->text[k] >= ' ');
        engine_event_free(event);
        fixture_destroy(fixture);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange_message");
    TCase *tests = tcase_create("exchange_message");
    tcase_add_loop_test(tests, wrong_headers_are_refused, 0, sizeof(headers) / sizeof(headers[0]));
    tcase_add_test(tests, what_is_of_another_generation_is_dropped);
    tcase_add_test(tests, messages_shorter_than_a_header_are_refused);
    tcase_add_test(tests, a_length_beyond_the_buffer_is_refused);
    tcase_add_test(tests, the_token_tells_the_sender);
    tcase_add_test(tests, unknown_jobs_and_groups_are_dropped_and_counted);
    tcase_add_loop_test(tests, wrong_contributions_are_refused, 0,
                        sizeof(contributions) / sizeof(contributions[0]));
    tcase_add_test(tests, a_contribution_to_another_nodes_shard);
    tcase_add_test(tests, who_has_no_part_contributes_nothing);
    tcase_add_test(tests, a_contribution_that_came_already);
    tcase_add_test(tests, more_contributions_than_the_window);
    tcase_add_test(tests, receives_are_posted_again_while_buffers_are_held);
    tcase_add_test(tests, a_receive_that_is_returned_is_posted_again);
    tcase_add_test(tests, results_that_nobody_waits_for);
    tcase_add_test(tests, a_result_from_another_server);
    tcase_add_test(tests, disagreements_that_make_no_sense);
    tcase_add_test(tests, what_the_control_plane_cannot_say_is_refused);
    tcase_add_loop_test(tests, more_disagreements_than_one, 0, 5);
    tcase_add_test(tests, one_disagreement_is_sent);
    tcase_add_test(tests, an_error_fails_the_group_with_its_text);
    tcase_add_test(tests, long_texts_are_cut_and_other_bytes_do_no_harm);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
