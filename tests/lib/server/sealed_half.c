#include "tests/lib/server/sealed_half.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const uint8_t out_key[SEAL_KEY_BYTES] = "from the engine to the test...";
static const uint8_t in_key[SEAL_KEY_BYTES] = "from the test to the engine...";

uint64_t half_token(uint32_t node)
{
    return 0x0100 + node;
}

static void token_of(uint32_t node, uint8_t token[TRANSPORT_TOKEN_BYTES])
{
    memset(token, 0, TRANSPORT_TOKEN_BYTES);
    token[0] = (uint8_t)node;
    token[1] = 1;
}

void half_deliver(struct sealed_half *half)
{
    uint64_t next_ns;
    while ((next_ns = memory_fabric_next_ns(half->fabric)) != UINT64_MAX) {
        half->now_ns = next_ns;
        memory_fabric_advance(half->fabric, next_ns);
    }
}

void half_poll(struct sealed_half *half)
{
    do {
        half_deliver(half);
        engine_take_reduced(&half->engine);
        engine_return_lost(&half->engine);
        exchange_run(half->engine.exchange);
    } while (engine_poll_transport(&half->engine, half->now_ns) || half->engine.protect_done);
}

void half_connect(struct sealed_half *half)
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
    EXPECT(transport_address(half->other, connect->address, &connect->address_bytes, NULL) == 0);
    engine_command(&half->engine, &command);
    EXPECT(engine_take_commands(&half->engine));
    token_of(0, token);
    EXPECT(transport_address(half->engine.transport, address, &bytes, NULL) == 0);
    EXPECT(transport_connect(half->other, 0, address, bytes, token, NULL) == 0);
    half_poll(half);
    half->next = 0;
}

static struct engine_job job_of_two(void)
{
    static const uint32_t rank_nodes[] = {0, 1}, owner[] = {0}, weights[] = {1};
    return (struct engine_job){.job = HALF_JOB,
                               .world_size = 2,
                               .rank_nodes = rank_nodes,
                               .server_count = 1,
                               .server_nodes = owner,
                               .server_weights = weights};
}

static void half_open_fabric(struct sealed_half *half, bool shared_receives, bool reorder)
{
    struct memory_fabric_options options = {.seed = 1,
                                            .least_delay_ns = 1,
                                            .most_delay_ns = 10,
                                            .shared_receives = shared_receives,
                                            .reorder = reorder,
                                            .nodes = 2};
    half->fabric = memory_fabric_create(&options);
    EXPECT(memory_fabric_open(half->fabric, 0, &half->engine.transport) == 0);
    EXPECT(memory_fabric_open(half->fabric, 1, &half->other) == 0);
}

static void half_create_engine(struct sealed_half *half)
{
    struct engine *engine = &half->engine;
    half->config = (struct config){.servers = half->servers, .server_count = 2};
    log_init(&half->log, "test", LOG_LEVEL_ERROR, -1, false);
    half->names[0] = "a";
    half->names[1] = "b";
    *engine = (struct engine){.config = &half->config,
                              .log = &half->log,
                              .node_names = half->names,
                              .node_count = 2,
                              .seal_bytes = SEAL_TRAILER_BYTES};
    engine->peers = calloc(2, sizeof(*engine->peers));
    engine->moving = calloc(BITS_WORDS(2u), sizeof(*engine->moving));
    for (uint32_t i = 0; i < 2; i++)
        engine->peers[i].backlog_end = &engine->peers[i].backlog;
    engine_protect_init(engine);
    EXPECT(engine_queue_init(&engine->commands, NULL) == 0);
    EXPECT(engine_queue_init(&engine->events, NULL) == 0);
    EXPECT(reducer_start(&engine->reducer, reduce_select(REDUCE_ISA_SCALAR), 0, -1, NULL, NULL) ==
           0);
}

static void half_create_exchange(struct sealed_half *half, bool shared_receives)
{
    struct engine *engine = &half->engine;
    struct buffer_pool_io pool_io = engine_pool_io(engine);
    EXPECT(buffer_pool_create(&engine->pool, HALF_MESSAGE_BYTES, 64 << 20, &pool_io, NULL) == 0);
    struct exchange_options exchange = {.node_count = 2,
                                        .node_names = half->names,
                                        .chunk_bytes = HALF_CHUNK_BYTES,
                                        .least_shard_bytes = 64,
                                        .window_chunks = 8,
                                        .window_bytes = 1 << 20,
                                        .late_ns = 1000,
                                        .shared_receives = shared_receives,
                                        .pool = engine->pool,
                                        .io = engine_exchange_io(engine)};
    EXPECT(exchange_create(&engine->exchange, &exchange, NULL) == 0);
}

void half_start(struct sealed_half *half, bool shared_receives, bool reorder)
{
    half_create_engine(half);
    half_open_fabric(half, shared_receives, reorder);
    half_create_exchange(half, shared_receives);
    EXPECT(seal_create(&half->sealer, in_key, NULL) == 0);
    EXPECT(seal_create(&half->opener, out_key, NULL) == 0);
    half_connect(half);
    struct engine_job job = job_of_two();
    EXPECT(exchange_job_open(half->engine.exchange, &job, NULL) == 0);
}

void half_stop(struct sealed_half *half)
{
    exchange_job_close(half->engine.exchange, HALF_JOB);
    engine_drop_peer(&half->engine, 1, false);
    transport_disconnect(half->engine.transport, 1);
    half_poll(half);
    ck_assert_uint_eq(half->engine.sends_posted, 0);
    ck_assert_uint_eq(half->engine.protect_messages.in_use, 0);
    ck_assert_uint_eq(half->engine.links, 0);
    exchange_abandon_receives(half->engine.exchange);
    exchange_destroy(half->engine.exchange);
    engine_protect_release(&half->engine);
    ck_assert_uint_eq(buffer_pool_used_bytes(half->engine.pool), 0);
    buffer_pool_destroy(half->engine.pool);
    reducer_stop(half->engine.reducer);
    engine_protect_clear(&half->engine);
    struct transport_event events[64];
    while (transport_poll(half->other, events, 64) > 0)
        continue;
    transport_close(half->engine.transport);
    transport_close(half->other);
    memory_fabric_destroy(half->fabric);
    struct engine_event *event;
    while ((event = engine_queue_take_event(&half->engine.events)) != NULL)
        engine_event_free(event);
    engine_queue_clear(&half->engine.events);
    engine_queue_clear(&half->engine.commands);
    free(half->engine.moving);
    free(half->engine.peers);
    seal_destroy(half->sealer);
    seal_destroy(half->opener);
}

struct engine_event *half_event(struct sealed_half *half)
{
    for (;;) {
        struct engine_event *event = engine_queue_take_event(&half->engine.events);
        if (!event || event->type != ENGINE_PEER_UP)
            return event;
        engine_event_free(event);
    }
}

void half_expect_down(struct sealed_half *half, const char *text)
{
    struct engine_event *event = half_event(half);
    ck_assert_ptr_nonnull(event);
    ck_assert_int_eq(event->type, ENGINE_PEER_DOWN);
    ck_assert_uint_eq(event->node, 1);
    ck_assert_msg(strstr(event->text, text) != NULL, "%s", event->text);
    engine_event_free(event);
    ck_assert(!half->engine.peers[1].connected);
}

uint32_t half_make(struct sealed_half *half, uint8_t *message, uint64_t sequence,
                   uint32_t payload_bytes)
{
    struct wire_header header = {.type = WIRE_CONTRIBUTION,
                                 .token = half_token(0),
                                 .job = 1234,
                                 .generation = 1,
                                 .payload_bytes = payload_bytes,
                                 .ask = {.dtype = DTYPE_F32, .op = REDUCE_SUM}};
    wire_encode_header(message, &header);
    memset(message + WIRE_HEADER_BYTES, 0x5a, payload_bytes);
    EXPECT(seal_message(half->sealer, sequence, message, WIRE_HEADER_BYTES,
                        message + WIRE_HEADER_BYTES, payload_bytes) == 0);
    return WIRE_HEADER_BYTES + payload_bytes + SEAL_TRAILER_BYTES;
}

void half_post(struct sealed_half *half, const uint8_t *message, uint32_t bytes)
{
    struct iovec part = {(void *)(uintptr_t)message, bytes};
    EXPECT(transport_send(half->other, 0, &part, NULL, 1, NULL) == 0);
}

uint64_t half_dropped(struct sealed_half *half)
{
    struct exchange_totals totals;
    exchange_totals(half->engine.exchange, &totals);
    return totals.dropped_messages;
}

void half_take_part(struct sealed_half *half, uint64_t sequence, uint64_t count)
{
    struct engine_worker *worker = half->engine.workers;
    if (!worker) {
        void *memory =
            mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        worker = calloc(1, sizeof(*worker));
        EXPECT(worker && memory != MAP_FAILED);
        worker->exchange.arena.base = memory;
        worker->exchange.arena.total_bytes = 4 << 20;
        worker->submission_doorbell = worker->completion_doorbell = -1;
        worker->stopped = true; /* its rings are not looked at */
        half->engine.workers = worker;
        EXPECT(exchange_attach(half->engine.exchange, HALF_JOB, &worker->exchange, NULL) == 0);
    }
    uint64_t offset = sequence * HALF_CHUNK_BYTES; /* where its part and its result lie */
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
    if (exchange_submit(half->engine.exchange, &worker->exchange, &it, half->now_ns, &error) != 0)
        ck_abort_msg("%s", error.text);
    exchange_run(half->engine.exchange);
}

void half_contribute(struct sealed_half *half, uint8_t *message, uint64_t sequence, uint64_t count,
                     uint32_t chunk, uint32_t bytes)
{
    struct wire_header header = {
        .type = WIRE_CONTRIBUTION,
        .token = half_token(0),
        .job = HALF_JOB,
        .generation = 1,
        .sequence = sequence,
        .chunk = chunk,
        .payload_bytes = bytes,
        .ask = {
            .kind = COLLECTIVE_ALL_REDUCE, .dtype = DTYPE_F32, .op = REDUCE_SUM, .count = count}};
    wire_encode_header(message, &header);
    const float element = 1000;
    for (uint32_t i = 0; i < bytes / 4; i++)
        memcpy(message + WIRE_HEADER_BYTES + 4 * (size_t)i, &element, sizeof(element));
    EXPECT(seal_message(half->sealer, half->next++, message, WIRE_HEADER_BYTES,
                        message + WIRE_HEADER_BYTES, bytes) == 0);
    half_post(half, message, WIRE_HEADER_BYTES + bytes + SEAL_TRAILER_BYTES);
}
