/* Sealed messages where something is lacking: memory to seal, post or open one, a message that does
 * not come, keys; and buffers that a fabric may still read. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/openssl_memory.h"
#include "tests/lib/server/sealed_half.h"
#include "tests/lib/suite.h"

#define SENDS 12
#define MS NS_PER_MS
/* Limits for the shortest silence that timeouts.peer_ms allows, 1 s. */
#define STUCK_MS 500
#define MISSING_MS 10000

static struct sealed_half half;
static struct exchange_send sends[SENDS];
static uint8_t payload[HALF_LARGE_BYTES], places[32][HALF_MESSAGE_BYTES];

/* --- what refuses ----------------------------------------------------------------------------- */

static const struct transport_ops *true_ops;
static struct transport_ops refusing_ops;
static int send_code;       /* what sends are refused with; 0: they are not */
static int sends_until;     /* how many are taken before that */
static bool slabs_refused;  /* memory for buffers */
static uint32_t sends_seen; /* by the fabric */
static int sent_code;       /* what the fabric says of those that it took; 0: that they were sent */

static int refusing_send(struct transport *transport, uint32_t peer, const struct iovec *parts,
                         void *const *registrations, unsigned count, void *context)
{
    if (send_code != 0 && sends_until-- <= 0)
        return send_code;
    sends_seen++;
    return true_ops->send(transport, peer, parts, registrations, count, context);
}

static int refusing_register(struct transport *transport, void *address, size_t bytes,
                             void **registration, struct error *error)
{
    if (slabs_refused)
        return ERR_MEMORY;
    return true_ops->register_memory(transport, address, bytes, registration, error);
}

static int refusing_poll(struct transport *transport, struct transport_event *events, int room)
{
    int count = true_ops->poll(transport, events, room);
    for (int i = 0; i < count; i++) {
        if (events[i].type == TRANSPORT_SENT && sent_code != 0)
            events[i].status = sent_code;
    }
    return count;
}

static void start(bool datagrams)
{
    half_start(&half, datagrams, datagrams);
    true_ops = half.engine.transport->ops;
    refusing_ops = *true_ops;
    refusing_ops.send = refusing_send;
    refusing_ops.register_memory = refusing_register;
    refusing_ops.poll = refusing_poll;
    half.engine.transport->ops = &refusing_ops;
    for (int i = 0; i < 32; i++)
        EXPECT(transport_post_receive(half.other, 0, places[i], sizeof(places[i]), NULL,
                                      places[i]) == 0);
}

/* --- what goes out ---------------------------------------------------------------------------- */

/* A sign of life with a payload: nobody but the test looks at what arrives. */
static void send_one(int number, uint32_t bytes)
{
    struct wire_header header = {.type = WIRE_KEEPALIVE, .payload_bytes = bytes};
    sends[number] = (struct exchange_send){.node = 1, .payload = payload, .payload_bytes = bytes};
    wire_encode_header(sends[number].header, &header);
    engine_send(&half.engine, &sends[number]);
}

/* How many have come, each opened, and of the sequence after the one before; their places are
 * receives again. */
static uint64_t arrived(uint64_t before)
{
    struct transport_event events[32];
    int count;
    half_deliver(&half);
    while ((count = transport_poll(half.other, events, 32)) > 0) {
        for (int i = 0; i < count; i++) {
            if (events[i].type != TRANSPORT_RECEIVED)
                continue;
            uint8_t *message = events[i].context;
            ck_assert_uint_eq(seal_sequence(message, events[i].bytes), before++);
            ck_assert_int_eq(seal_open(half.opener, message, WIRE_HEADER_BYTES, events[i].bytes),
                             0);
            EXPECT(transport_post_receive(half.other, 0, message, HALF_MESSAGE_BYTES, NULL,
                                          message) == 0);
        }
    }
    return before;
}

static void tick(uint64_t ms)
{
    engine_check_protected(&half.engine, ms * MS);
}

/* Small and large ones in turn; the fabric takes some of them, and then has no memory. All come in
 * the end, in their order, and nobody is blamed. */
START_TEST(a_message_that_is_not_posted_stays_the_next)
{
    start(false);
    send_code = ERR_MEMORY;
    sends_until = _i;
    for (int i = 0; i < SENDS; i++)
        send_one(i, i % 3 == 1 ? HALF_LARGE_BYTES : 100u * (uint32_t)i);
    half_poll(&half);
    ck_assert_uint_eq(arrived(0), (uint64_t)_i);
    tick(1000);
    tick(1000 + STUCK_MS - 1);
    half_poll(&half);
    ck_assert_uint_eq(arrived((uint64_t)_i), (uint64_t)_i);
    send_code = 0;
    tick(1000 + STUCK_MS);
    half_poll(&half);
    half_poll(&half);
    ck_assert_uint_eq(arrived((uint64_t)_i), SENDS);
    half_poll(&half);
    tick(60000); /* the time of before does not count */
    ck_assert_ptr_null(half_event(&half));
    ck_assert_uint_eq(half.engine.protect_messages.in_use, 0);
    half_stop(&half);
}
END_TEST

/* Not for ever: then it is this side that says why, and no other. */
START_TEST(a_fabric_without_memory_ends_the_connection_in_time)
{
    start(_i == 1);
    send_code = ERR_MEMORY;
    send_one(0, 100);
    send_one(1, HALF_LARGE_BYTES);
    tick(1000);
    tick(1000 + STUCK_MS - 1);
    ck_assert_ptr_null(half_event(&half));
    tick(1000 + STUCK_MS);
    half_expect_down(&half, "a message could not be posted here for 500 ms (out of memory");
    ck_assert_uint_eq(sends_seen, 0);
    half_stop(&half);
}
END_TEST

/* A connection that is being made takes them later. */
START_TEST(a_message_waits_for_its_connection)
{
    start(false);
    send_code = ERR_LOST;
    send_one(0, 100);
    tick(1000);
    tick(1000 + 2 * STUCK_MS);
    ck_assert_ptr_null(half_event(&half));
    send_code = 0;
    half_poll(&half);
    tick(3000);
    half_poll(&half);
    ck_assert_uint_eq(arrived(0), 1);
    half_poll(&half);
    half_stop(&half);
}
END_TEST

/* A datagram that the fabric gives up is one that the peer would miss: this side says so. */
START_TEST(a_datagram_that_is_not_sent_ends_the_connection)
{
    start(true);
    sent_code = ERR_LOST;
    for (int i = 0; i < 3; i++)
        send_one(i, 100);
    half_poll(&half);
    half_expect_down(&half, "a sealed message could not be sent on the fabric link between a");
    ck_assert_ptr_null(half_event(&half));
    half_stop(&half);
}
END_TEST

/* Up to the last message of the first key. */
static uint64_t use_up_a_key(void)
{
    uint64_t count = 0;
    while (count < SEAL_EPOCH_MESSAGES) {
        for (int i = 0; i < 8; i++)
            send_one(i, 10);
        half_poll(&half);
        count = arrived(count);
        half_poll(&half);
    }
    ck_assert_uint_eq(count, SEAL_EPOCH_MESSAGES);
    return count;
}

/* The next key takes memory. */
START_TEST(a_message_that_is_not_sealed_stays_the_next)
{
    start(false);
    uint64_t count = use_up_a_key();
    openssl_memory_refuse(true);
    for (int i = 0; i < 3; i++)
        send_one(i, i == 1 ? HALF_LARGE_BYTES : 100);
    half_poll(&half);
    tick(1000);
    half_poll(&half);
    openssl_memory_refuse(false);
    ck_assert_uint_eq(arrived(count), count);
    tick(1100);
    half_poll(&half);
    ck_assert_uint_eq(arrived(count), count + 3);
    half_poll(&half);
    ck_assert_ptr_null(half_event(&half));
    openssl_memory_refuse(true); /* it has its key */
    send_one(3, 100);
    openssl_memory_refuse(false);
    half_poll(&half);
    ck_assert_uint_eq(arrived(count + 3), count + 4);
    half_poll(&half);
    half_stop(&half);
}
END_TEST

START_TEST(no_memory_to_seal_ends_the_connection_in_time)
{
    start(false);
    use_up_a_key();
    openssl_memory_refuse(true);
    send_one(0, 100);
    tick(1000);
    ck_assert_ptr_null(half_event(&half));
    tick(1000 + STUCK_MS);
    openssl_memory_refuse(false);
    half_expect_down(&half, "a message could not be sealed here for 500 ms (out of memory");
    half_stop(&half);
}
END_TEST

/* Without a buffer to seal in, no sequence is taken yet. Messages under way give their buffers
 * back; a message that finds none at all is lost alone. */
START_TEST(a_message_without_a_buffer_leaves_no_gap)
{
    start(false);
    struct buffer *held = NULL, *buffer;
    slabs_refused = true;
    send_one(0, HALF_LARGE_BYTES);
    while ((buffer = buffer_get(half.engine.pool)) != NULL) {
        buffer->next = held;
        held = buffer;
    }
    send_one(1, 100); /* waits for the first */
    send_one(2, 100);
    half_poll(&half);
    half_poll(&half);
    ck_assert_uint_eq(arrived(0), 3);
    half_poll(&half);
    while ((buffer = buffer_get(half.engine.pool)) != NULL) {
        buffer->next = held;
        held = buffer;
    }
    send_one(3, 100); /* is lost */
    ck_assert_ptr_nonnull(half.engine.lost);
    half_poll(&half);
    while ((buffer = held) != NULL) {
        held = buffer->next;
        buffer_release(buffer);
    }
    send_one(4, 100);
    half_poll(&half);
    ck_assert_uint_eq(arrived(3), 4);
    half_poll(&half);
    ck_assert_ptr_null(half_event(&half));
    slabs_refused = false;
    half_stop(&half);
}
END_TEST

/* --- what comes in ---------------------------------------------------------------------------- */

static void use_up_the_others_key(void)
{
    while (half.next < SEAL_EPOCH_MESSAGES) {
        for (int i = 0; i < 8; i++)
            half_post(&half, half.messages[i], half_make(&half, half.messages[i], half.next++, 10));
        half_poll(&half);
    }
    ck_assert_uint_eq(half_dropped(&half), SEAL_EPOCH_MESSAGES);
}

/* A message for which there is no memory is not called altered, and is opened when there is
 * memory. */
START_TEST(a_message_that_is_not_opened_stays_the_next)
{
    start(_i == 1);
    use_up_the_others_key();
    for (int i = 0; i < 3; i++)
        half_post(&half, half.messages[i],
                  half_make(&half, half.messages[i], half.next++, i == 1 ? HALF_LARGE_BYTES : 100));
    half_deliver(&half);
    openssl_memory_refuse(true);
    half_poll(&half);
    tick(1000);
    tick(1000 + STUCK_MS - 1);
    openssl_memory_refuse(false);
    ck_assert_uint_eq(half_dropped(&half), SEAL_EPOCH_MESSAGES);
    tick(1000 + STUCK_MS);
    half_poll(&half);
    ck_assert_uint_eq(half_dropped(&half), SEAL_EPOCH_MESSAGES + 3);
    ck_assert_ptr_null(half_event(&half));
    for (int i = 0; i < SEAL_REFUSALS; i++)
        ck_assert_uint_eq(half.engine.peers[1].refused[i], 0);
    half_stop(&half);
}
END_TEST

START_TEST(no_memory_to_open_ends_the_connection_in_time)
{
    start(_i == 1);
    use_up_the_others_key();
    half_post(&half, half.messages[0], half_make(&half, half.messages[0], half.next++, 100));
    half_deliver(&half);
    openssl_memory_refuse(true);
    half_poll(&half);
    tick(1000);
    ck_assert_ptr_null(half_event(&half));
    tick(1000 + STUCK_MS);
    openssl_memory_refuse(false);
    half_expect_down(&half, "a message could not be opened here for 500 ms (out of memory");
    half_stop(&half);
}
END_TEST

/* A datagram that was altered on its way was dropped, and its like does not come: nobody waits for
 * it for ever. */
START_TEST(a_missing_datagram_ends_it_in_time)
{
    start(true);
    uint32_t bytes = half_make(&half, half.messages[0], half.next, 100);
    half.messages[0][WIRE_HEADER_BYTES] ^= 1;
    half_post(&half, half.messages[0], bytes);
    half_poll(&half);
    tick(1000);
    tick(1000 + 2 * MISSING_MS); /* none has come after it */
    half_post(&half, half.messages[1], half_make(&half, half.messages[1], half.next + 1, 100));
    half_poll(&half);
    tick(30000);
    tick(30000 + MISSING_MS - 1);
    ck_assert_ptr_null(half_event(&half));
    if (_i == 1) { /* it comes after all, and the next does not */
        half_post(&half, half.messages[0], half_make(&half, half.messages[0], half.next, 100));
        half_post(&half, half.messages[3], half_make(&half, half.messages[3], half.next + 3, 100));
        half_poll(&half);
        tick(30000 + MISSING_MS);
        tick(30000 + 2 * MISSING_MS - 1);
        ck_assert_ptr_null(half_event(&half));
        tick(30000 + 2 * MISSING_MS);
    } else {
        tick(30000 + MISSING_MS);
    }
    half_expect_down(&half, "has not come for 10000 ms");
    half_stop(&half);
}
END_TEST

/* --- keys ------------------------------------------------------------------------------------- */

/* The fabric would take the message in the clear. */
START_TEST(nothing_goes_out_without_keys)
{
    start(_i == 1);
    engine_drop_peer(&half.engine, 1, false);
    send_one(0, 100);
    engine_flush_backlog(&half.engine, 1);
    ck_assert_uint_eq(sends_seen, 0);
    ck_assert_uint_eq(half.engine.sends_posted, 0);
    ck_assert_uint_eq(half.engine.peers[1].unsent, 1);
    ck_assert_ptr_eq(half.engine.lost, &sends[0]);
    engine_return_lost(&half.engine);
    half_stop(&half);
}
END_TEST

/* The exchange would take it, and it came over the connection of now. */
START_TEST(nothing_comes_in_without_keys)
{
    struct wire_header header = {.type = WIRE_CONTRIBUTION,
                                 .token = half_token(0),
                                 .job = 1234,
                                 .generation = 1,
                                 .ask = {.dtype = DTYPE_F32, .op = REDUCE_SUM}};
    start(_i == 1);
    engine_drop_peer(&half.engine, 1, false);
    half.engine.peers[1].connection--;
    half.engine.peers[1].connected = true;
    exchange_peer_up(half.engine.exchange, 1, half_token(0), half_token(1));
    wire_encode_header(half.messages[0], &header);
    half_post(&half, half.messages[0], WIRE_HEADER_BYTES);
    half_poll(&half);
    ck_assert_uint_eq(half_dropped(&half), 0);
    if (_i == 0) /* a datagram is nobody's */
        ck_assert_uint_eq(half.engine.peers[1].refused[SEAL_UNKEYED], 1);
    ck_assert_ptr_null(half_event(&half));
    half_stop(&half);
}
END_TEST

/* --- what a fabric may still read ------------------------------------------------------------- */

static bool is_aside(const uint8_t *data)
{
    for (const struct buffer *buffer = half.engine.aside; buffer; buffer = buffer->next) {
        if (buffer->data == data)
            return true;
    }
    return false;
}

static uint64_t aside_count(void)
{
    uint64_t count = 0;
    for (const struct buffer *buffer = half.engine.aside; buffer; buffer = buffer->next)
        count++;
    return count;
}

static void lose_a_connection(uint32_t messages)
{
    for (uint32_t i = 0; i < messages; i++)
        send_one((int)i, i == 1 ? HALF_LARGE_BYTES : 100);
    engine_take_reduced(&half.engine);
    transport_disconnect(half.engine.transport, 1);
    engine_drop_peer(&half.engine, 1, false);
    half_poll(&half);
    ck_assert_uint_eq(half.engine.sends_posted, 0);
    transport_disconnect(half.other, 0);
    half_connect(&half);
}

/* No message is opened in a buffer whose send was given up; the next messages are sealed there, so
 * there are no more of these than were ever under way. */
START_TEST(what_a_fabric_may_still_read_is_set_aside)
{
    start(true);
    lose_a_connection(4);
    ck_assert_uint_eq(aside_count(), 4);
    ck_assert_uint_ge(half.engine.aside_bytes, 4 * HALF_MESSAGE_BYTES);
    struct buffer *held = NULL, *buffer;
    for (int i = 0; i < 40; i++) {
        buffer = buffer_get(half.engine.pool);
        ck_assert(!is_aside(buffer->data));
        buffer->next = held;
        held = buffer;
    }
    while ((buffer = held) != NULL) {
        held = buffer->next;
        buffer_release(buffer);
    }
    uint64_t bytes = half.engine.aside_bytes;
    lose_a_connection(4);
    ck_assert_uint_eq(aside_count(), 4);
    ck_assert_uint_eq(half.engine.aside_bytes, bytes);
    for (int i = 0; i < 3; i++)
        send_one(i, 100);
    ck_assert_uint_eq(aside_count(), 1);
    half_poll(&half); /* sent: they stay what they are */
    ck_assert_uint_eq(aside_count(), 4);
    lose_a_connection(6);
    ck_assert_uint_eq(aside_count(), 6);
    half_stop(&half);
}
END_TEST

/* A connected endpoint has given back what it tells of. */
START_TEST(nothing_is_set_aside_where_connections_end)
{
    start(false);
    lose_a_connection(4);
    ck_assert_uint_eq(half.engine.aside_bytes, 0);
    half_stop(&half);
}
END_TEST

static TCase *lacking(void)
{
    TCase *tests = tcase_create("lacking");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, a_message_that_is_not_posted_stays_the_next, 0, 5);
    tcase_add_loop_test(tests, a_fabric_without_memory_ends_the_connection_in_time, 0, 2);
    tcase_add_test(tests, a_message_waits_for_its_connection);
    tcase_add_test(tests, a_datagram_that_is_not_sent_ends_the_connection);
    tcase_add_test(tests, a_message_that_is_not_sealed_stays_the_next);
    tcase_add_test(tests, no_memory_to_seal_ends_the_connection_in_time);
    tcase_add_test(tests, a_message_without_a_buffer_leaves_no_gap);
    tcase_add_loop_test(tests, a_message_that_is_not_opened_stays_the_next, 0, 2);
    tcase_add_loop_test(tests, no_memory_to_open_ends_the_connection_in_time, 0, 2);
    tcase_add_loop_test(tests, a_missing_datagram_ends_it_in_time, 0, 2);
    return tests;
}

int main(void)
{
    if (!openssl_memory_begin())
        return EXIT_FAILURE;
    Suite *suite = suite_create("engine_protect_faults");
    TCase *tests = tcase_create("engine_protect_faults");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, nothing_goes_out_without_keys, 0, 2);
    tcase_add_loop_test(tests, nothing_comes_in_without_keys, 0, 2);
    tcase_add_test(tests, what_a_fabric_may_still_read_is_set_aside);
    tcase_add_test(tests, nothing_is_set_aside_where_connections_end);
    suite_add_tcase(suite, tests);
    suite_add_tcase(suite, lacking());
    return suite_main(suite);
}
