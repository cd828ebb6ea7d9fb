/* The engine's reactions to its fabric's events: its own code and exchange on the fabric in memory,
 * without threads, so that the order of events and commands is the test's. */
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
#define CHUNK_BYTES 256u

/* Node 0 is the engine; the test is node 1. */
struct half {
    struct engine engine;
    struct config config;
    struct config_server servers[2];
    struct log log;
    struct memory_fabric *fabric;
    struct transport *other;
    uint64_t now_ns;
    uint32_t connections;
};

static void token_of(uint32_t connection, uint32_t node, uint8_t token[TRANSPORT_TOKEN_BYTES])
{
    memset(token, 0, TRANSPORT_TOKEN_BYTES);
    token[0] = (uint8_t)connection;
    token[1] = (uint8_t)(1 + node);
}

static uint64_t token_number(uint32_t connection, uint32_t node)
{
    return connection + ((uint64_t)(1 + node) << 8);
}

/* Whatever is under way arrives in the transports' queues. */
static void deliver(struct half *half)
{
    uint64_t next_ns;
    while ((next_ns = memory_fabric_next_ns(half->fabric)) != UINT64_MAX) {
        half->now_ns = next_ns;
        memory_fabric_advance(half->fabric, next_ns);
    }
}

static void other_poll(struct half *half)
{
    struct transport_event events[64];
    while (transport_poll(half->other, events, 64) > 0)
        continue;
}

/* Gives the command, carried out with the next engine_take_commands. */
static void command_connect(struct half *half)
{
    struct engine_command command = {.kind = COMMAND_PEER_CONNECT, .peer_connect = {.node = 1}};
    struct engine_peer_connect *connect = &command.peer_connect;
    half->connections++;
    token_of(half->connections, 0, connect->receive_token);
    token_of(half->connections, 1, connect->send_token);
    EXPECT(transport_address(half->other, connect->address, &connect->address_bytes, NULL) == 0);
    engine_command(&half->engine, &command);
}

static void other_connect(struct half *half)
{
    uint8_t token[TRANSPORT_TOKEN_BYTES], address[TRANSPORT_ADDRESS_BYTES];
    uint32_t bytes = 0;
    token_of(half->connections, 0, token);
    EXPECT(transport_address(half->engine.transport, address, &bytes, NULL) == 0);
    EXPECT(transport_connect(half->other, 0, address, bytes, token, NULL) == 0);
}

static void half_start_as(struct half *half, bool shared_receives, bool recovery)
{
    memset(half, 0, sizeof(*half));
    struct memory_fabric_options options = {.seed = 1,
                                            .least_delay_ns = 1,
                                            .most_delay_ns = 10,
                                            .shared_receives = shared_receives,
                                            .nodes = 2};
    half->fabric = memory_fabric_create(&options);
    struct engine *engine = &half->engine;
    EXPECT(memory_fabric_open(half->fabric, 0, &engine->transport) == 0);
    EXPECT(memory_fabric_open(half->fabric, 1, &half->other) == 0);
    half->config =
        (struct config){.servers = half->servers, .server_count = 2, .recovery = recovery};
    log_init(&half->log, "test", LOG_LEVEL_ERROR, -1, false);
    engine->config = &half->config;
    engine->log = &half->log;
    engine->node_count = 2;
    engine->peers = calloc(2, sizeof(*engine->peers));
    engine->moving = calloc(BITS_WORDS(2u), sizeof(*engine->moving));
    for (uint32_t i = 0; i < 2; i++)
        engine->peers[i].backlog_end = &engine->peers[i].backlog;
    EXPECT(engine_queue_init(&engine->commands, NULL) == 0);
    EXPECT(engine_queue_init(&engine->events, NULL) == 0);
    struct buffer_pool_io pool_io = engine_pool_io(engine);
    EXPECT(buffer_pool_create(&engine->pool, WIRE_HEADER_BYTES + CHUNK_BYTES, 1 << 20, &pool_io,
                              NULL) == 0);
    static const char *names[] = {"a", "b"};
    engine->node_names = names;
    struct exchange_options exchange = {.node_count = 2,
                                        .node_names = names,
                                        .chunk_bytes = CHUNK_BYTES,
                                        .least_shard_bytes = 64,
                                        .window_chunks = 8,
                                        .late_ns = 1000,
                                        .shared_receives = shared_receives,
                                        .recovery = recovery,
                                        .pool = engine->pool,
                                        .io = engine_exchange_io(engine)};
    EXPECT(exchange_create(&engine->exchange, &exchange, NULL) == 0);
    command_connect(half);
    EXPECT(engine_take_commands(engine));
    other_connect(half);
    deliver(half);
    static const uint32_t rank_nodes[] = {0, 1}, servers[] = {0}, weights[] = {1};
    struct engine_job job = {.job = JOB,
                             .world_size = 2,
                             .rank_nodes = rank_nodes,
                             .server_count = 1,
                             .server_nodes = servers,
                             .server_weights = weights};
    EXPECT(exchange_job_open(engine->exchange, &job, NULL) == 0);
}

static void half_start(struct half *half, bool shared_receives)
{
    half_start_as(half, shared_receives, false);
}

static void half_stop(struct half *half)
{
    struct engine *engine = &half->engine;
    exchange_job_close(engine->exchange, JOB);
    engine_drop_peer(engine, 1, false);
    transport_disconnect(engine->transport, 1);
    deliver(half);
    while (engine_poll_transport(engine, half->now_ns))
        deliver(half);
    engine_return_lost(engine);
    exchange_abandon_receives(engine->exchange);
    exchange_destroy(engine->exchange);
    buffer_pool_destroy(engine->pool);
    other_poll(half);
    transport_close(engine->transport);
    transport_close(half->other);
    memory_fabric_destroy(half->fabric);
    struct engine_event *event;
    while ((event = engine_queue_take_event(&engine->events)) != NULL)
        engine_event_free(event);
    engine_queue_clear(&engine->events);
    engine_queue_clear(&engine->commands);
    free(engine->moving);
    free(engine->peers);
}

/* An event of this type is next, after news of the peer's coming up. */
static struct engine_event *next_event(struct half *half)
{
    for (;;) {
        struct engine_event *event = engine_queue_take_event(&half->engine.events);
        if (!event || event->type != ENGINE_PEER_UP)
            return event;
        engine_event_free(event);
    }
}

/* A message of the connection to a group that does not exist: it is dropped, and counted. */
static void other_send(struct half *half, uint32_t connection, uint8_t *message)
{
    struct wire_header header = {.type = WIRE_CONTRIBUTION,
                                 .token = token_number(connection, 0),
                                 .job = 1234,
                                 .generation = 1,
                                 .ask = {.dtype = DTYPE_F32, .op = REDUCE_SUM}};
    wire_encode_header(message, &header);
    struct iovec part = {message, WIRE_HEADER_BYTES};
    EXPECT(transport_send(half->other, 0, &part, NULL, 1, NULL) == 0);
}

static uint64_t dropped(const struct half *half)
{
    struct exchange_totals totals;
    exchange_totals(half->engine.exchange, &totals);
    return totals.dropped_messages;
}

/* A connection that is ended and made again between two looks at the fabric: messages of the old
 * one, received already, are not held against the new one. */
START_TEST(messages_of_the_connection_before_are_passed_over)
{
    struct half half;
    uint8_t messages[4][WIRE_HEADER_BYTES];
    half_start(&half, false);
    while (engine_poll_transport(&half.engine, 1))
        continue;
    uint32_t receives = memory_fabric_receives(half.fabric, 0, 1);
    ck_assert_uint_gt(receives, 0);
    other_send(&half, 1, messages[0]);
    deliver(&half);
    ck_assert(engine_poll_transport(&half.engine, 2));
    ck_assert_uint_eq(dropped(&half), 1);
    for (int i = 0; i < 3; i++)
        other_send(&half, 1, messages[i]);
    deliver(&half);
    /* both before the messages are looked at */
    engine_command(&half.engine,
                   &(struct engine_command){.kind = COMMAND_PEER_DISCONNECT, .peer = 1});
    command_connect(&half);
    ck_assert(engine_take_commands(&half.engine));
    while (engine_poll_transport(&half.engine, 3))
        continue;
    ck_assert_ptr_null(next_event(&half));
    ck_assert_uint_eq(dropped(&half), 1);
    ck_assert_uint_eq(memory_fabric_receives(half.fabric, 0, 1), receives);
    /* and the new one works */
    deliver(&half);
    other_poll(&half);
    other_connect(&half);
    deliver(&half);
    while (engine_poll_transport(&half.engine, 4))
        deliver(&half);
    other_send(&half, 2, messages[0]);
    deliver(&half);
    while (engine_poll_transport(&half.engine, 5))
        deliver(&half);
    ck_assert_uint_eq(dropped(&half), 2);
    ck_assert_ptr_null(next_event(&half));
    exchange_check(half.engine.exchange);
    half_stop(&half);
}
END_TEST

/* Many messages that make no sense are one reason, once. */
START_TEST(a_batch_of_nonsense_is_reported_once)
{
    struct half half;
    bool shared = _i == 1;
    uint8_t messages[5][WIRE_HEADER_BYTES];
    half_start(&half, shared);
    while (engine_poll_transport(&half.engine, 1))
        continue;
    for (int i = 0; i < 5; i++) {
        memset(messages[i], 0xff, sizeof(messages[i]));
        struct iovec part = {messages[i], sizeof(messages[i])};
        EXPECT(transport_send(half.other, 0, &part, NULL, 1, NULL) == 0);
    }
    deliver(&half);
    while (engine_poll_transport(&half.engine, 2))
        deliver(&half);
    struct engine_event *event = next_event(&half);
    ck_assert_ptr_nonnull(event);
    ck_assert_int_eq(event->type, ENGINE_PEER_DOWN);
    ck_assert_uint_eq(event->node, 1);
    ck_assert_uint_gt(strlen(event->text), 0);
    engine_event_free(event);
    ck_assert_ptr_null(next_event(&half));
    ck_assert(!half.engine.peers[1].connected);
    half_stop(&half);
}
END_TEST

/* Where receives are shared a late message of the connection before is known by its token alone. */
START_TEST(a_late_datagram_costs_nothing)
{
    struct half half;
    uint8_t messages[2][WIRE_HEADER_BYTES];
    half_start(&half, true);
    while (engine_poll_transport(&half.engine, 1))
        continue;
    other_send(&half, 99, messages[0]);
    deliver(&half);
    ck_assert(engine_poll_transport(&half.engine, 2));
    ck_assert_ptr_null(next_event(&half));
    ck_assert(half.engine.peers[1].connected);
    other_send(&half, 1, messages[1]);
    deliver(&half);
    ck_assert(engine_poll_transport(&half.engine, 3));
    ck_assert_uint_eq(dropped(&half), 1);
    half_stop(&half);
}
END_TEST

/* --- sends that the fabric refuses ------------------------------------------------------------ */

/* Answers of the fabric's send, one after the other: ERR_AGAIN is followed by a second call. */
static int answers[2];
static unsigned answered;

static int answer(struct transport *transport, uint32_t peer, const struct iovec *parts,
                  void *const *registrations, unsigned part_count, void *context)
{
    (void)transport, (void)peer, (void)parts, (void)registrations, (void)part_count, (void)context;
    ck_assert_uint_lt(answered, 2);
    return answers[answered++];
}

/* The rank of this node takes part in the first barrier, of which this node owns the one chunk. */
static void take_part(struct half *half)
{
    struct engine_worker *worker = calloc(1, sizeof(*worker));
    void *memory = mmap(NULL, 65536, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(worker && memory != MAP_FAILED);
    worker->exchange.arena.base = memory;
    worker->exchange.arena.total_bytes = 65536;
    worker->submission_doorbell = worker->completion_doorbell = -1;
    worker->stopped = true; /* its rings are not looked at */
    half->engine.workers = worker;
    EXPECT(exchange_attach(half->engine.exchange, JOB, &worker->exchange, NULL) == 0);
    struct arena_submission barrier = {.type = ARENA_SUBMIT, .kind = COLLECTIVE_BARRIER};
    struct error error = {0};
    if (exchange_submit(half->engine.exchange, &worker->exchange, &barrier, 1, &error) != 0)
        ck_abort_msg("%s", error.text);
    exchange_run(half->engine.exchange);
}

/* Let the other node's rank take part too: the answer to it is then to be sent. */
static void take_part_there(struct half *half, uint8_t *message)
{
    struct wire_header header = {.type = WIRE_CONTRIBUTION,
                                 .token = token_number(1, 0),
                                 .job = JOB,
                                 .generation = 1,
                                 .ask = {.kind = COLLECTIVE_BARRIER}};
    wire_encode_header(message, &header);
    struct iovec part = {message, WIRE_HEADER_BYTES};
    EXPECT(transport_send(half->other, 0, &part, NULL, 1, NULL) == 0);
    deliver(half);
    while (engine_poll_transport(&half->engine, 2))
        continue;
}

static const struct {
    int answers[2];
    int code; /* that the group fails with; 0: it does not */
} refusals[] = {
    {{ERR_MEMORY}, ERR_MEMORY},
    {{ERR_INVALID}, ERR_INVALID},
    {{ERR_AGAIN, ERR_MEMORY}, ERR_MEMORY},
    {{ERR_LOST}, 0}, /* whoever lost the peer fails its jobs */
    {{ERR_AGAIN, ERR_LOST}, 0},
};

/* Nobody would come to know otherwise, and the other nodes would wait for it. */
START_TEST(a_send_that_is_refused_fails_its_group)
{
    struct half half;
    uint8_t message[WIRE_HEADER_BYTES];
    half_start(&half, false);
    while (engine_poll_transport(&half.engine, 1))
        continue;
    const struct transport_ops *real = half.engine.transport->ops;
    struct transport_ops refusing = *real;
    refusing.send = answer;
    memcpy(answers, refusals[_i].answers, sizeof(answers));
    answered = 0;
    take_part(&half);
    half.engine.transport->ops = &refusing;
    take_part_there(&half, message);
    ck_assert_uint_eq(answered, refusals[_i].answers[1] ? 2 : 1);
    ck_assert(engine_return_lost(&half.engine));
    exchange_run(half.engine.exchange);
    struct engine_event *event = next_event(&half);
    ck_assert_int_eq(event != NULL, refusals[_i].code != 0);
    if (event) {
        ck_assert_int_eq(event->type, ENGINE_GROUP_FAILED);
        ck_assert_int_eq(event->code, refusals[_i].code);
        ck_assert_msg(strstr(event->text, "a message to node b could not be sent"), "%s",
                      event->text);
        engine_event_free(event);
    }
    ck_assert_ptr_null(next_event(&half));
    half.engine.transport->ops = real;
    half_stop(&half);
}
END_TEST

/* With recovery the message has a number, and the peer would miss it: the connection alone ends,
 * and the next one carries the message. Messages that come after it do not go before. */
START_TEST(a_send_that_is_refused_goes_over_the_next_connection)
{
    struct half half;
    uint8_t message[WIRE_HEADER_BYTES];
    half_start_as(&half, false, true);
    while (engine_poll_transport(&half.engine, 1))
        continue;
    const struct transport_ops *real = half.engine.transport->ops;
    struct transport_ops refusing = *real;
    refusing.send = answer;
    memcpy(answers, (int[]){ERR_MEMORY, ERR_MEMORY}, sizeof(answers));
    answered = 0;
    take_part(&half);
    half.engine.transport->ops = &refusing;
    take_part_there(&half, message);
    ck_assert_uint_eq(answered, 1);
    ck_assert_int_eq(half.engine.peers[1].unsendable, ERR_MEMORY);
    ck_assert(engine_return_lost(&half.engine));
    engine_end_unsendable(&half.engine);
    exchange_run(half.engine.exchange);
    struct engine_event *event = next_event(&half);
    ck_assert_ptr_nonnull(event);
    ck_assert_int_eq(event->type, ENGINE_PEER_DOWN);
    ck_assert_int_eq(event->code, ERR_DISCONNECTED); /* it may come back */
    ck_assert_msg(strstr(event->text, "a message could not be sent"), "%s", event->text);
    engine_event_free(event);
    ck_assert_ptr_null(next_event(&half)); /* no group has failed */
    ck_assert_int_eq(half.engine.peers[1].unsendable, 0);
    half.engine.transport->ops = real;
    half_stop(&half);
}
END_TEST

/* --- sends that fail later -------------------------------------------------------------------- */

static const struct transport_ops *real_ops;

/* The fabric's poll, with every send failed. */
static int poll_failing_sends(struct transport *transport, struct transport_event *events, int room)
{
    int count = real_ops->poll(transport, events, room);
    for (int i = 0; i < count; i++) {
        if (events[i].type == TRANSPORT_SENT)
            events[i].status = ERR_LOST;
    }
    return count;
}

/* Datagram endpoints: the peer stays, and would be waited for. Connected ones tell of the peer's
 * end, and whoever hears of that fails its jobs; so does whoever has given the peer up. */
START_TEST(a_send_that_fails_later_fails_its_group)
{
    struct half half;
    uint8_t message[WIRE_HEADER_BYTES], place[WIRE_HEADER_BYTES];
    bool shared = _i != 1, dropped_before = _i == 2;
    half_start(&half, shared);
    while (engine_poll_transport(&half.engine, 1))
        continue;
    EXPECT(transport_post_receive(half.other, 0, place, sizeof(place), NULL, NULL) == 0);
    take_part(&half);
    take_part_there(&half, message);
    ck_assert_uint_eq(half.engine.sends_posted, 1);
    real_ops = half.engine.transport->ops;
    struct transport_ops failing = *real_ops;
    failing.poll = poll_failing_sends;
    half.engine.transport->ops = &failing;
    deliver(&half);
    if (dropped_before) { /* and connected again, before the fabric is looked at */
        transport_disconnect(half.engine.transport, 1);
        engine_drop_peer(&half.engine, 1, false);
        command_connect(&half);
        ck_assert(engine_take_commands(&half.engine));
    }
    ck_assert(engine_poll_transport(&half.engine, 3));
    ck_assert_uint_eq(half.engine.sends_posted, 0);
    exchange_run(half.engine.exchange);
    struct engine_event *event = next_event(&half);
    ck_assert_int_eq(event != NULL, _i == 0);
    if (event) {
        ck_assert_int_eq(event->type, ENGINE_GROUP_FAILED);
        ck_assert_int_eq(event->code, ERR_LOST);
        ck_assert_msg(strstr(event->text, "a message to node b could not be sent"), "%s",
                      event->text);
        engine_event_free(event);
    }
    ck_assert_ptr_null(next_event(&half));
    half.engine.transport->ops = real_ops;
    half_stop(&half);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_fabric");
    TCase *tests = tcase_create("engine_fabric");
    tcase_add_test(tests, messages_of_the_connection_before_are_passed_over);
    tcase_add_loop_test(tests, a_batch_of_nonsense_is_reported_once, 0, 2);
    tcase_add_test(tests, a_late_datagram_costs_nothing);
    tcase_add_loop_test(tests, a_send_that_is_refused_fails_its_group, 0,
                        sizeof(refusals) / sizeof(refusals[0]));
    tcase_add_test(tests, a_send_that_is_refused_goes_over_the_next_connection);
    tcase_add_loop_test(tests, a_send_that_fails_later_fails_its_group, 0, 3);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
