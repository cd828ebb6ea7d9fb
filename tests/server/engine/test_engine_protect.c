/* Sealed messages at the engine: what opens and what goes out, and what comes of messages that were
 * altered, repeated, cut or moved. */
#include <string.h>

#include "tests/lib/server/sealed_half.h"
#include "tests/lib/suite.h"

static struct sealed_half half;

/* Small ones at once, large ones by the reducer, in turn: all of them, once. */
START_TEST(messages_of_all_sizes_open)
{
    bool shared = _i > 0, reorder = _i == 2;
    half_start(&half, shared, reorder);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 8; i++)
            half_post(&half, half.messages[i],
                      half_make(&half, half.messages[i], half.next++,
                                i % 3 == 1 ? HALF_LARGE_BYTES : 100u * (uint32_t)i));
        half_poll(&half);
        ck_assert_uint_eq(half_dropped(&half), 8 * (uint64_t)(round + 1));
    }
    ck_assert_uint_eq(half.engine.peers[1].messages_in, 160);
    ck_assert_ptr_null(half_event(&half));
    exchange_check(half.engine.exchange);
    half_stop(&half);
}
END_TEST

/* --- refusals --------------------------------------------------------------------------------- */

static void flip_payload(uint8_t *message, uint32_t *bytes)
{
    (void)bytes;
    message[WIRE_HEADER_BYTES] ^= 1;
}

static void flip_header(uint8_t *message, uint32_t *bytes)
{
    (void)bytes;
    message[17] ^= 1; /* of another job, for one */
}

static void flip_tag(uint8_t *message, uint32_t *bytes)
{
    message[*bytes - 1] ^= 0x80;
}

static void cut(uint8_t *message, uint32_t *bytes)
{
    (void)message;
    *bytes = WIRE_HEADER_BYTES + SEAL_TRAILER_BYTES - 1;
}

static void cut_payload(uint8_t *message, uint32_t *bytes)
{
    /* the trailer moves along */
    memmove(message + WIRE_HEADER_BYTES, message + WIRE_HEADER_BYTES + 8,
            *bytes - WIRE_HEADER_BYTES - 8);
    *bytes -= 8;
}

static void repeat(uint8_t *message, uint32_t *bytes)
{
    *bytes = half_make(&half, message, 2, 100);
}

static void leave_one_out(uint8_t *message, uint32_t *bytes)
{
    *bytes = half_make(&half, message, half.next + 1, 100);
}

static void leave_many_out(uint8_t *message, uint32_t *bytes)
{
    *bytes = half_make(&half, message, half.next + SEAL_WINDOW_MESSAGES + 1, 100);
}

static void seal_with_another_key(uint8_t *message, uint32_t *bytes)
{
    struct seal *own = half.sealer;
    static const uint8_t key[SEAL_KEY_BYTES] = "of another connection..........";
    EXPECT(seal_create(&half.sealer, key, NULL) == 0);
    *bytes = half_make(&half, message, half.next, 100);
    seal_destroy(half.sealer);
    half.sealer = own;
}

static void in_the_clear(uint8_t *message, uint32_t *bytes)
{
    struct wire_header header = {.type = WIRE_CONTRIBUTION,
                                 .token = half_token(0),
                                 .job = 1234,
                                 .generation = 1,
                                 .payload_bytes = 36,
                                 .ask = {.dtype = DTYPE_F32, .op = REDUCE_SUM}};
    wire_encode_header(message, &header);
    memset(message + WIRE_HEADER_BYTES, 0, 36);
    *bytes = WIRE_HEADER_BYTES + 36; /* its end says sequence 0, which has been */
}

static const struct {
    void (*spoil)(uint8_t *message, uint32_t *bytes);
    enum seal_refusal refusal;
    const char *text;
} attacks[] = {
    {flip_payload, SEAL_ALTERED, "altered on its way"},
    {flip_header, SEAL_ALTERED, "altered on its way"},
    {flip_tag, SEAL_ALTERED, "altered on its way"},
    {cut, SEAL_SHORT, "cut short"},
    {cut_payload, SEAL_ALTERED, "altered on its way"},
    {repeat, SEAL_REPEATED, "a second time"},
    {leave_one_out, SEAL_DISORDERED, "before one that was sent earlier"},
    {leave_many_out, SEAL_DISORDERED, "before one that was sent earlier"},
    {seal_with_another_key, SEAL_ALTERED, "another key"},
    {in_the_clear, SEAL_REPEATED, "a second time"},
};
#define ATTACKS (int)(sizeof(attacks) / sizeof(attacks[0]))

/* Five true messages, then the attack in place of the next, which comes after it, then others. */
static void attack(int number)
{
    for (int i = 0; i < 5; i++)
        half_post(&half, half.messages[i],
                  half_make(&half, half.messages[i], half.next++, i == 3 ? HALF_LARGE_BYTES : 10));
    half_poll(&half);
    ck_assert_uint_eq(half_dropped(&half), 5);
    uint32_t bytes = half_make(&half, half.messages[5], half.next, 100);
    attacks[number].spoil(half.messages[5], &bytes);
    half_post(&half, half.messages[5], bytes);
    half_deliver(&half);
    for (int i = 6; i < 11; i++)
        half_post(&half, half.messages[i],
                  half_make(&half, half.messages[i], half.next++, i == 7 ? HALF_LARGE_BYTES : 10));
    half_poll(&half);
    for (int i = 0; i < SEAL_REFUSALS; i++)
        ck_assert_uint_eq(half.engine.peers[1].refused[i], i == (int)attacks[number].refusal);
}

static void expect_new_connection(uint64_t dropped)
{
    transport_disconnect(half.other, 0);
    half_poll(&half);
    half_connect(&half);
    half_post(&half, half.messages[0], half_make(&half, half.messages[0], half.next++, 10));
    half_poll(&half);
    ck_assert_uint_eq(half_dropped(&half), dropped + 1);
    exchange_check(half.engine.exchange);
}

/* Nothing of it reaches the exchange, nor does what comes after it; the connection ends, once, with
 * the reason; a new connection works. */
START_TEST(an_attack_is_named_and_ends_the_connection)
{
    half_start(&half, false, false);
    attack(_i);
    ck_assert_uint_eq(half_dropped(&half), 5);
    half_expect_down(&half, attacks[_i].text);
    ck_assert_ptr_null(half_event(&half));
    expect_new_connection(5);
    half_stop(&half);
}
END_TEST

/* A datagram may be anybody's who has heard the token: it is dropped and counted, and what the peer
 * itself sends is taken, be it of the same sequence. */
START_TEST(an_attack_by_a_datagram_costs_nothing)
{
    if (attacks[_i].refusal == SEAL_DISORDERED)
        return; /* that is the peer's own doing, and another test's matter */
    half_start(&half, true, true);
    attack(_i);
    ck_assert_uint_eq(half_dropped(&half), 10);
    ck_assert_ptr_null(half_event(&half));
    ck_assert(half.engine.peers[1].connected);
    exchange_check(half.engine.exchange);
    half_stop(&half);
}
END_TEST

/* A message that the peer has sealed, and could not have sent so early, tells that others are
 * lost. */
START_TEST(a_datagram_far_ahead_ends_the_connection)
{
    half_start(&half, true, true);
    uint32_t bytes = half_make(&half, half.messages[0], SEAL_WINDOW_MESSAGES - 1, 100);
    half_post(&half, half.messages[0], bytes);
    half_poll(&half);
    ck_assert_uint_eq(half_dropped(&half), 1);
    bytes = half_make(&half, half.messages[0], SEAL_WINDOW_MESSAGES, 100);
    half_post(&half, half.messages[0], bytes);
    half_poll(&half);
    ck_assert_uint_eq(half_dropped(&half), 1);
    ck_assert_uint_eq(half.engine.peers[1].refused[SEAL_DISORDERED], 1);
    half_expect_down(&half, "before one that was sent earlier");
    expect_new_connection(1);
    half_stop(&half);
}
END_TEST

/* Whatever sequence a stranger writes into his datagrams, the window does not move. */
START_TEST(a_strangers_sequences_are_not_taken)
{
    static const uint64_t sequences[] = {
        0, 1, 2, SEAL_WINDOW_MESSAGES - 1, SEAL_WINDOW_MESSAGES, UINT64_MAX};
    const int count = sizeof(sequences) / sizeof(sequences[0]);
    half_start(&half, true, true);
    for (int i = 0; i < count; i++) {
        uint32_t bytes = half_make(&half, half.messages[i], sequences[i], 40);
        half.messages[i][bytes - 1] ^= 1;
        half_post(&half, half.messages[i], bytes);
    }
    half_poll(&half);
    ck_assert_uint_eq(half.engine.peers[1].refused[SEAL_ALTERED], count);
    for (int i = 0; i < 3; i++)
        half_post(&half, half.messages[i], half_make(&half, half.messages[i], half.next++, 40));
    half_poll(&half);
    ck_assert_uint_eq(half_dropped(&half), 3);
    ck_assert_ptr_null(half_event(&half));
    half_stop(&half);
}
END_TEST

/* A large message is altered, which a thread opens while others wait behind it. */
START_TEST(an_altered_large_message_takes_those_behind_it_along)
{
    half_start(&half, false, false);
    for (int i = 0; i < 6; i++) {
        uint32_t bytes = half_make(&half, half.messages[i], half.next++, HALF_LARGE_BYTES);
        if (i == 2)
            half.messages[i][WIRE_HEADER_BYTES + 12345] ^= 4;
        half_post(&half, half.messages[i], bytes);
    }
    half_poll(&half);
    ck_assert_uint_eq(half_dropped(&half), 2);
    ck_assert_uint_eq(half.engine.peers[1].refused[SEAL_ALTERED], 1);
    half_expect_down(&half, "altered on its way");
    ck_assert_ptr_null(half_event(&half));
    half_stop(&half);
}
END_TEST

/* Whoever shares the datagram endpoint and has no token costs nobody a connection. */
START_TEST(a_strangers_datagram_costs_nothing)
{
    half_start(&half, true, false);
    struct wire_header header = {
        .type = WIRE_RESULT, .token = 4711, .job = HALF_JOB, .generation = 1};
    wire_encode_header(half.messages[0], &header);
    half_post(&half, half.messages[0], WIRE_HEADER_BYTES);
    half_post(&half, half.messages[1], 3);
    half_poll(&half);
    ck_assert_ptr_null(half_event(&half));
    ck_assert(half.engine.peers[1].connected);
    half_post(&half, half.messages[2], half_make(&half, half.messages[2], half.next++, 0));
    half_poll(&half);
    ck_assert_uint_eq(half_dropped(&half), 1);
    half_stop(&half);
}
END_TEST

/* A side that seals while the other does not: said, rather than guessed. */
START_TEST(both_sides_seal_or_none)
{
    half_start(&half, false, false);
    transport_disconnect(half.engine.transport, 1);
    engine_drop_peer(&half.engine, 1, false);
    half.engine.seal_bytes = _i == 0 ? 0 : SEAL_TRAILER_BYTES;
    struct engine_command command = {.kind = COMMAND_PEER_CONNECT,
                                     .peer_connect = {.node = 1, .sealed = _i == 0}};
    engine_command(&half.engine, &command);
    EXPECT(engine_take_commands(&half.engine));
    half_expect_down(&half, _i == 0 ? "and not here" : "and not there");
    half_stop(&half);
}
END_TEST

/* --- what goes out ---------------------------------------------------------------------------- */

static uint8_t places[64][HALF_MESSAGE_BYTES];

/* Results of large and small chunks come sealed, in the order of their sequences, and with the sum
 * in them; the arena is as it was but for its own result. */
START_TEST(results_go_out_sealed_and_in_order)
{
    half_start(&half, false, false);
    for (int i = 0; i < 64; i++)
        EXPECT(transport_post_receive(half.other, 0, places[i], sizeof(places[i]), NULL,
                                      places[i]) == 0);
    for (uint64_t i = 0; i < 6; i++) {
        uint32_t bytes = i % 2 ? HALF_LARGE_BYTES : 400;
        half_take_part(&half, i, bytes / 4);
        half_contribute(&half, half.messages[i], i, bytes / 4, 0, bytes);
    }
    half_poll(&half);
    struct transport_event events[64];
    uint64_t seen = 0;
    int count;
    while ((count = transport_poll(half.other, events, 64)) > 0) {
        for (int i = 0; i < count; i++) {
            if (events[i].type != TRANSPORT_RECEIVED)
                continue;
            uint8_t *message = events[i].context;
            struct wire_header header;
            struct error error = {0};
            ck_assert_uint_eq(seal_sequence(message, events[i].bytes), seen++);
            ck_assert_int_eq(seal_open(half.opener, message, WIRE_HEADER_BYTES, events[i].bytes),
                             0);
            ck_assert_msg(wire_decode_header(message, events[i].bytes - SEAL_TRAILER_BYTES, &header,
                                             &error) == 0,
                          "%s", error.text);
            ck_assert_int_eq(header.type, WIRE_RESULT);
            const float *sum = (const float *)(const void *)(message + WIRE_HEADER_BYTES);
            for (uint32_t j = 0; j < header.payload_bytes / 4; j++)
                ck_assert(sum[j] == 1000 + (float)j);
        }
        half_poll(&half);
    }
    ck_assert_uint_eq(seen, 6);
    ck_assert_ptr_null(half_event(&half));
    ck_assert_uint_eq(half.engine.protect_messages.in_use, 0);
    half_stop(&half);
}
END_TEST

/* Messages that are sealed when the connection ends come back to the exchange, as those that are
 * not do. */
START_TEST(what_is_under_way_when_it_ends_comes_back)
{
    half_start(&half, _i == 1, false);
    for (uint64_t i = 0; i < 6; i++) {
        uint32_t bytes = i % 2 ? HALF_LARGE_BYTES : 400;
        half_take_part(&half, i, bytes / 4);
        half_contribute(&half, half.messages[i], i, bytes / 4, 0, bytes);
    }
    half_deliver(&half);
    engine_poll_transport(&half.engine, half.now_ns);
    engine_take_reduced(&half.engine);
    exchange_run(half.engine.exchange);
    engine_drop_peer(&half.engine, 1, false);
    transport_disconnect(half.engine.transport, 1);
    half_poll(&half);
    ck_assert_uint_eq(half.engine.protect_messages.in_use, 0);
    half_stop(&half);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_protect");
    TCase *tests = tcase_create("engine_protect");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, messages_of_all_sizes_open, 0, 3);
    tcase_add_loop_test(tests, an_attack_is_named_and_ends_the_connection, 0, ATTACKS);
    tcase_add_loop_test(tests, an_attack_by_a_datagram_costs_nothing, 0, ATTACKS);
    tcase_add_test(tests, a_datagram_far_ahead_ends_the_connection);
    tcase_add_test(tests, a_strangers_sequences_are_not_taken);
    tcase_add_test(tests, an_altered_large_message_takes_those_behind_it_along);
    tcase_add_test(tests, a_strangers_datagram_costs_nothing);
    tcase_add_loop_test(tests, both_sides_seal_or_none, 0, 2);
    tcase_add_test(tests, results_go_out_sealed_and_in_order);
    tcase_add_loop_test(tests, what_is_under_way_when_it_ends_comes_back, 0, 2);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
