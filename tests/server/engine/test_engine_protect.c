/* Sealed messages at the engine: its own code and exchange on the fabric in memory, without
 * threads, so that the order of events is the test's. The test is the other node, and has its keys.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/transport/transport_memory.h"
#include "server/engine/engine.h"
#include "server/engine/engine_private.h"
#include "tests/lib/suite.h"

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg("%s", #condition);                                                        \
    } while (0)

#define JOB 7ull
#define CHUNK_BYTES 262144u
#define LARGE_BYTES 200000u /* more than the engine's thread seals or opens itself */
#define MESSAGE_BYTES (WIRE_HEADER_BYTES + CHUNK_BYTES + SEAL_TRAILER_BYTES)

static const uint8_t out_key[SEAL_KEY_BYTES] = "from the engine to the test...";
static const uint8_t in_key[SEAL_KEY_BYTES] = "from the test to the engine...";

/* Node 0 is the engine; the test is node 1. */
static struct engine engine;
static struct config config;
static struct config_server servers[2];
static struct log log_nowhere;
static struct memory_fabric *fabric;
static struct transport *other;
static struct seal *sealer, *opener; /* the test's */
static uint64_t now_ns, next;        /* sequence of the test's next message */
static uint8_t messages[16][MESSAGE_BYTES];

static uint64_t token_number(uint32_t node)
{
    return 0x0100 + node;
}

static void token_of(uint32_t node, uint8_t token[TRANSPORT_TOKEN_BYTES])
{
    memset(token, 0, TRANSPORT_TOKEN_BYTES);
    token[0] = (uint8_t)node;
    token[1] = 1;
}

/* Whatever is under way arrives in the transports' queues. */
static void deliver(void)
{
    uint64_t next_ns;
    while ((next_ns = memory_fabric_next_ns(fabric)) != UINT64_MAX) {
        now_ns = next_ns;
        memory_fabric_advance(fabric, next_ns);
    }
}

static void poll_engine(void)
{
    do {
        deliver();
        engine_take_reduced(&engine);
        engine_return_lost(&engine);
        exchange_run(engine.exchange);
    } while (engine_poll_transport(&engine, now_ns) || engine.protect_done);
}

static void connect_both(void)
{
    struct engine_command command = {.kind = COMMAND_PEER_CONNECT,
                                     .peer_connect = {.node = 1, .sealed = true}};
    struct engine_peer_connect *connect = &command.peer_connect;
    uint8_t token[TRANSPORT_TOKEN_BYTES], address[TRANSPORT_ADDRESS_BYTES];
    uint32_t bytes = 0;
    token_of(0, connect->receive_token);
    token_of(1, connect->send_token);
    memcpy(connect->seal_key, out_key, sizeof(connect->seal_key));
    memcpy(connect->open_key, in_key, sizeof(connect->open_key));
    EXPECT(transport_address(other, connect->address, &connect->address_bytes, NULL) == 0);
    engine_command(&engine, &command);
    EXPECT(engine_take_commands(&engine));
    token_of(0, token);
    EXPECT(transport_address(engine.transport, address, &bytes, NULL) == 0);
    EXPECT(transport_connect(other, 0, address, bytes, token, NULL) == 0);
    poll_engine();
    next = 0;
}

static struct engine_job job_of_two(void)
{
    static const uint32_t rank_nodes[] = {0, 1}, owner[] = {0}, weights[] = {1};
    return (struct engine_job){.job = JOB,
                               .world_size = 2,
                               .rank_nodes = rank_nodes,
                               .server_count = 1,
                               .server_nodes = owner,
                               .server_weights = weights};
}

static void start(bool shared_receives, bool reorder)
{
    static const char *const names[] = {"a", "b"};
    struct memory_fabric_options options = {.seed = 1,
                                            .least_delay_ns = 1,
                                            .most_delay_ns = 10,
                                            .shared_receives = shared_receives,
                                            .reorder = reorder,
                                            .nodes = 2};
    fabric = memory_fabric_create(&options);
    engine = (struct engine){.config = &config, .log = &log_nowhere, .node_count = 2};
    engine.seal_bytes = SEAL_TRAILER_BYTES;
    config = (struct config){.servers = servers, .server_count = 2};
    log_init(&log_nowhere, "test", LOG_LEVEL_ERROR, -1, false);
    EXPECT(memory_fabric_open(fabric, 0, &engine.transport) == 0);
    EXPECT(memory_fabric_open(fabric, 1, &other) == 0);
    engine.peers = calloc(2, sizeof(*engine.peers));
    for (uint32_t i = 0; i < 2; i++)
        engine.peers[i].backlog_end = &engine.peers[i].backlog;
    engine_protect_init(&engine);
    EXPECT(engine_queue_init(&engine.commands, NULL) == 0);
    EXPECT(engine_queue_init(&engine.events, NULL) == 0);
    EXPECT(reducer_start(&engine.reducer, reduce_select(REDUCE_ISA_SCALAR), 0, -1, NULL, NULL) ==
           0);
    struct buffer_pool_io pool_io = engine_pool_io(&engine);
    EXPECT(buffer_pool_create(&engine.pool, MESSAGE_BYTES, 64 << 20, &pool_io, NULL) == 0);
    struct exchange_options exchange = {.node_count = 2,
                                        .node_names = names,
                                        .chunk_bytes = CHUNK_BYTES,
                                        .least_shard_bytes = 64,
                                        .window_chunks = 8,
                                        .window_bytes = 1 << 20,
                                        .late_ns = 1000,
                                        .shared_receives = shared_receives,
                                        .pool = engine.pool,
                                        .io = engine_exchange_io(&engine)};
    EXPECT(exchange_create(&engine.exchange, &exchange, NULL) == 0);
    EXPECT(seal_create(&sealer, in_key, NULL) == 0);
    EXPECT(seal_create(&opener, out_key, NULL) == 0);
    connect_both();
    struct engine_job job = job_of_two();
    EXPECT(exchange_job_open(engine.exchange, &job, NULL) == 0);
}

static void stop(void)
{
    exchange_job_close(engine.exchange, JOB);
    engine_drop_peer(&engine, 1);
    transport_disconnect(engine.transport, 1);
    poll_engine();
    ck_assert_uint_eq(engine.sends_posted, 0);
    ck_assert_uint_eq(engine.protect_messages.in_use, 0);
    ck_assert_uint_eq(engine.links, 0);
    exchange_abandon_receives(engine.exchange);
    exchange_destroy(engine.exchange);
    ck_assert_uint_eq(buffer_pool_used_bytes(engine.pool), 0);
    buffer_pool_destroy(engine.pool);
    reducer_stop(engine.reducer);
    engine_protect_clear(&engine);
    struct transport_event events[64];
    while (transport_poll(other, events, 64) > 0)
        continue;
    transport_close(engine.transport);
    transport_close(other);
    memory_fabric_destroy(fabric);
    struct engine_event *event;
    while ((event = engine_queue_take_event(&engine.events)) != NULL)
        engine_event_free(event);
    engine_queue_clear(&engine.events);
    engine_queue_clear(&engine.commands);
    free(engine.peers);
    seal_destroy(sealer);
    seal_destroy(opener);
}

/* The first event after news of the peer's coming up, or NULL. */
static struct engine_event *next_event(void)
{
    for (;;) {
        struct engine_event *event = engine_queue_take_event(&engine.events);
        if (!event || event->type != ENGINE_PEER_UP)
            return event;
        engine_event_free(event);
    }
}

/* A contribution to a group that does not exist, which is dropped and counted; sealed. */
static uint32_t make(uint8_t *message, uint64_t sequence, uint32_t payload_bytes)
{
    struct wire_header header = {.type = WIRE_CONTRIBUTION,
                                 .token = token_number(0),
                                 .job = 1234,
                                 .payload_bytes = payload_bytes,
                                 .ask = {.dtype = DTYPE_F32, .op = REDUCE_SUM}};
    wire_encode_header(message, &header);
    memset(message + WIRE_HEADER_BYTES, 0x5a, payload_bytes);
    EXPECT(seal_message(sealer, sequence, message, WIRE_HEADER_BYTES, message + WIRE_HEADER_BYTES,
                        payload_bytes) == 0);
    return WIRE_HEADER_BYTES + payload_bytes + SEAL_TRAILER_BYTES;
}

static void post(uint8_t *message, uint32_t bytes)
{
    struct iovec part = {message, bytes};
    EXPECT(transport_send(other, 0, &part, NULL, 1, NULL) == 0);
}

static uint64_t dropped(void)
{
    struct exchange_totals totals;
    exchange_totals(engine.exchange, &totals);
    return totals.dropped_messages;
}

/* Small ones at once, large ones by the reducer, in turn: all of them, once. */
START_TEST(messages_of_all_sizes_open)
{
    bool shared = _i > 0, reorder = _i == 2;
    start(shared, reorder);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 8; i++)
            post(messages[i],
                 make(messages[i], next++, i % 3 == 1 ? LARGE_BYTES : 100u * (uint32_t)i));
        poll_engine();
        ck_assert_uint_eq(dropped(), 8 * (uint64_t)(round + 1));
    }
    ck_assert_uint_eq(engine.peers[1].messages_in, 160);
    ck_assert_ptr_null(next_event());
    exchange_check(engine.exchange);
    stop();
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
    *bytes = make(message, 2, 100);
}

static void leave_one_out(uint8_t *message, uint32_t *bytes)
{
    *bytes = make(message, next + 1, 100);
}

static void leave_many_out(uint8_t *message, uint32_t *bytes)
{
    *bytes = make(message, next + SEAL_WINDOW_MESSAGES + 1, 100);
}

static void seal_with_another_key(uint8_t *message, uint32_t *bytes)
{
    struct seal *own = sealer;
    EXPECT(seal_create(&sealer, out_key, NULL) == 0);
    *bytes = make(message, next, 100);
    seal_destroy(sealer);
    sealer = own;
}

static void in_the_clear(uint8_t *message, uint32_t *bytes)
{
    struct wire_header header = {.type = WIRE_CONTRIBUTION,
                                 .token = token_number(0),
                                 .job = 1234,
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
    int skip; /* 1: not on datagrams, where it is right */
} attacks[] = {
    {flip_payload, SEAL_ALTERED, "altered on its way", 0},
    {flip_header, SEAL_ALTERED, "altered on its way", 0},
    {flip_tag, SEAL_ALTERED, "altered on its way", 0},
    {cut, SEAL_SHORT, "cut short", 0},
    {cut_payload, SEAL_ALTERED, "altered on its way", 0},
    {repeat, SEAL_REPEATED, "a second time", 0},
    {leave_one_out, SEAL_DISORDERED, "before one that was sent earlier", 1},
    {leave_many_out, SEAL_DISORDERED, "before one that was sent earlier", 0},
    {seal_with_another_key, SEAL_ALTERED, "another key", 0},
    {in_the_clear, SEAL_REPEATED, "a second time", 0},
};
#define ATTACKS (int)(sizeof(attacks) / sizeof(attacks[0]))

/* Nothing of it reaches the exchange, nor does what comes after it; the connection ends, once, with
 * the reason; a new connection works. */
START_TEST(an_attack_is_named_and_ends_the_connection)
{
    int number = _i % ATTACKS;
    bool shared = _i >= ATTACKS;
    if (shared && attacks[number].skip)
        return;
    start(shared, shared);
    for (int i = 0; i < 5; i++)
        post(messages[i], make(messages[i], next++, i == 3 ? LARGE_BYTES : 10));
    poll_engine();
    ck_assert_uint_eq(dropped(), 5);
    uint32_t bytes = make(messages[5], next, 100);
    attacks[number].spoil(messages[5], &bytes);
    post(messages[5], bytes);
    deliver();
    next++;
    for (int i = 6; i < 10; i++)
        post(messages[i], make(messages[i], next++, i == 7 ? LARGE_BYTES : 10));
    poll_engine();
    ck_assert_uint_eq(dropped(), 5);
    struct engine_event *event = next_event();
    ck_assert_ptr_nonnull(event);
    ck_assert_int_eq(event->type, ENGINE_PEER_DOWN);
    ck_assert_uint_eq(event->node, 1);
    ck_assert_msg(strstr(event->text, attacks[number].text) != NULL, "%s", event->text);
    engine_event_free(event);
    ck_assert_ptr_null(next_event());
    for (int i = 0; i < SEAL_REFUSALS; i++)
        ck_assert_uint_eq(engine.peers[1].refused[i], i == (int)attacks[number].refusal);
    ck_assert(!engine.peers[1].connected);
    transport_disconnect(other, 0);
    poll_engine();
    connect_both();
    post(messages[0], make(messages[0], next++, 10));
    poll_engine();
    ck_assert_uint_eq(dropped(), 6);
    exchange_check(engine.exchange);
    stop();
}
END_TEST

/* The same of a large message, which is opened by a thread while others wait behind it. */
START_TEST(an_altered_large_message_takes_those_behind_it_along)
{
    start(false, false);
    for (int i = 0; i < 6; i++) {
        uint32_t bytes = make(messages[i], next++, LARGE_BYTES);
        if (i == 2)
            messages[i][WIRE_HEADER_BYTES + 12345] ^= 4;
        post(messages[i], bytes);
    }
    poll_engine();
    ck_assert_uint_eq(dropped(), 2);
    ck_assert_uint_eq(engine.peers[1].refused[SEAL_ALTERED], 1);
    struct engine_event *event = next_event();
    ck_assert_int_eq(event->type, ENGINE_PEER_DOWN);
    engine_event_free(event);
    ck_assert_ptr_null(next_event());
    stop();
}
END_TEST

/* Whoever shares the datagram endpoint and has no token costs nobody a connection. */
START_TEST(a_strangers_datagram_costs_nothing)
{
    start(true, false);
    struct wire_header header = {.type = WIRE_RESULT, .token = 4711, .job = JOB};
    wire_encode_header(messages[0], &header);
    post(messages[0], WIRE_HEADER_BYTES);
    post(messages[1], 3);
    poll_engine();
    ck_assert_ptr_null(next_event());
    ck_assert(engine.peers[1].connected);
    post(messages[2], make(messages[2], next++, 0));
    poll_engine();
    ck_assert_uint_eq(dropped(), 1);
    stop();
}
END_TEST

/* A side that seals while the other does not: said, rather than guessed. */
START_TEST(both_sides_seal_or_none)
{
    start(false, false);
    transport_disconnect(engine.transport, 1);
    engine_drop_peer(&engine, 1);
    engine.seal_bytes = _i == 0 ? 0 : SEAL_TRAILER_BYTES;
    struct engine_command command = {.kind = COMMAND_PEER_CONNECT,
                                     .peer_connect = {.node = 1, .sealed = _i == 0}};
    engine_command(&engine, &command);
    EXPECT(engine_take_commands(&engine));
    struct engine_event *event = next_event();
    ck_assert_int_eq(event->type, ENGINE_PEER_DOWN);
    ck_assert_msg(strstr(event->text, _i == 0 ? "and not here" : "and not there") != NULL, "%s",
                  event->text);
    engine_event_free(event);
    ck_assert(!engine.peers[1].connected);
    stop();
}
END_TEST

/* --- what goes out ---------------------------------------------------------------------------- */

static uint8_t places[64][MESSAGE_BYTES];

/* An all_reduce of which this node owns all chunks; its own rank has handed over its part. */
static void take_part(uint64_t sequence, uint64_t count)
{
    struct engine_worker *worker = engine.workers;
    if (!worker) {
        void *memory =
            mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        worker = calloc(1, sizeof(*worker));
        EXPECT(worker && memory != MAP_FAILED);
        worker->exchange.arena.base = memory;
        worker->exchange.arena.total_bytes = 4 << 20;
        worker->submission_doorbell = worker->completion_doorbell = -1;
        worker->stopped = true; /* its rings are not looked at */
        engine.workers = worker;
        EXPECT(exchange_attach(engine.exchange, JOB, &worker->exchange, NULL) == 0);
    }
    uint64_t offset = sequence * CHUNK_BYTES; /* where its part and its result lie */
    for (uint64_t i = 0; i < count; i++)
        ((float *)(void *)(worker->exchange.arena.base + offset))[i] = (float)i;
    struct arena_submission it = {.type = ARENA_SUBMIT,
                                  .kind = COLLECTIVE_ALL_REDUCE,
                                  .dtype = DTYPE_F32,
                                  .op = REDUCE_SUM,
                                  .sequence = sequence,
                                  .count = count,
                                  .in_offset = offset,
                                  .out_offset = offset};
    struct error error = {0};
    if (exchange_submit(engine.exchange, &worker->exchange, &it, now_ns, &error) != 0)
        ck_abort_msg("%s", error.text);
    exchange_run(engine.exchange);
}

/* This node's part of a chunk, as the other node's rank has it. */
static void contribute(uint8_t *message, uint64_t sequence, uint64_t count, uint32_t chunk,
                       uint32_t bytes)
{
    struct wire_header header = {
        .type = WIRE_CONTRIBUTION,
        .token = token_number(0),
        .job = JOB,
        .sequence = sequence,
        .chunk = chunk,
        .payload_bytes = bytes,
        .ask = {
            .kind = COLLECTIVE_ALL_REDUCE, .dtype = DTYPE_F32, .op = REDUCE_SUM, .count = count}};
    wire_encode_header(message, &header);
    const float element = 1000;
    for (uint32_t i = 0; i < bytes / 4; i++)
        memcpy(message + WIRE_HEADER_BYTES + 4 * (size_t)i, &element, sizeof(element));
    EXPECT(seal_message(sealer, next++, message, WIRE_HEADER_BYTES, message + WIRE_HEADER_BYTES,
                        bytes) == 0);
    post(message, WIRE_HEADER_BYTES + bytes + SEAL_TRAILER_BYTES);
}

/* Results of large and small chunks come sealed, in the order of their sequences, and with the sum
 * in them; the arena is as it was but for its own result. */
START_TEST(results_go_out_sealed_and_in_order)
{
    start(false, false);
    for (int i = 0; i < 64; i++)
        EXPECT(transport_post_receive(other, 0, places[i], sizeof(places[i]), NULL, places[i]) ==
               0);
    for (uint64_t i = 0; i < 6; i++) {
        uint32_t bytes = i % 2 ? LARGE_BYTES : 400;
        take_part(i, bytes / 4);
        contribute(messages[i], i, bytes / 4, 0, bytes);
    }
    poll_engine();
    struct transport_event events[64];
    uint64_t seen = 0;
    int count;
    while ((count = transport_poll(other, events, 64)) > 0) {
        for (int i = 0; i < count; i++) {
            if (events[i].type != TRANSPORT_RECEIVED)
                continue;
            uint8_t *message = events[i].context;
            struct wire_header header;
            struct error error = {0};
            ck_assert_uint_eq(seal_sequence(message, events[i].bytes), seen++);
            ck_assert_int_eq(seal_open(opener, message, WIRE_HEADER_BYTES, events[i].bytes), 0);
            ck_assert_msg(wire_decode_header(message, events[i].bytes - SEAL_TRAILER_BYTES, &header,
                                             &error) == 0,
                          "%s", error.text);
            ck_assert_int_eq(header.type, WIRE_RESULT);
            const float *sum = (const float *)(const void *)(message + WIRE_HEADER_BYTES);
            for (uint32_t j = 0; j < header.payload_bytes / 4; j++)
                ck_assert(sum[j] == 1000 + (float)j);
        }
        poll_engine();
    }
    ck_assert_uint_eq(seen, 6);
    ck_assert_ptr_null(next_event());
    ck_assert_uint_eq(engine.protect_messages.in_use, 0);
    stop();
}
END_TEST

/* What is sealed when the connection ends comes back to the exchange, as what is not does. */
START_TEST(what_is_under_way_when_it_ends_comes_back)
{
    start(_i == 1, false);
    for (uint64_t i = 0; i < 6; i++) {
        uint32_t bytes = i % 2 ? LARGE_BYTES : 400;
        take_part(i, bytes / 4);
        contribute(messages[i], i, bytes / 4, 0, bytes);
    }
    deliver();
    engine_poll_transport(&engine, now_ns);
    engine_take_reduced(&engine);
    exchange_run(engine.exchange);
    engine_drop_peer(&engine, 1);
    transport_disconnect(engine.transport, 1);
    poll_engine();
    ck_assert_uint_eq(engine.protect_messages.in_use, 0);
    stop();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_protect");
    TCase *tests = tcase_create("engine_protect");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, messages_of_all_sizes_open, 0, 3);
    tcase_add_loop_test(tests, an_attack_is_named_and_ends_the_connection, 0, 2 * ATTACKS);
    tcase_add_test(tests, an_altered_large_message_takes_those_behind_it_along);
    tcase_add_test(tests, a_strangers_datagram_costs_nothing);
    tcase_add_loop_test(tests, both_sides_seal_or_none, 0, 2);
    tcase_add_test(tests, results_go_out_sealed_and_in_order);
    tcase_add_loop_test(tests, what_is_under_way_when_it_ends_comes_back, 0, 2);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
