/* Reading the workers' rings: users share a round, and what waits for a ring to be read waits for
 * as many rounds as it takes. The engine's own code and an exchange, without threads, so that a
 * round ends where the test says. */
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/transport/transport_memory.h"
#include "server/engine/engine.h"
#include "server/engine/engine_private.h"
#include "tests/lib/suite.h"

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg("%s", #condition);                                                        \
    } while (0)

#define CHUNK_BYTES 256u
#define RANKS 64u
#define ENTRIES 1024u
#define MANY_JOB 7ull /* of a user who submits much */
#define OTHER_JOB 8ull

static struct engine engine;
static struct config config;
static struct config_server server;
static struct log log_nowhere;
static struct memory_fabric *fabric;
static uint32_t all_here[RANKS];
static const uint32_t zero = 0, one = 1;

struct rank {
    struct arena arena; /* the worker's mapping */
    int bell;           /* its end of its completion doorbell */
};

static void setup(void)
{
    static const char *const names[] = {"a"};
    struct memory_fabric_options options = {
        .seed = 1, .least_delay_ns = 1, .most_delay_ns = 10, .nodes = 1};
    engine = (struct engine){.config = &config, .log = &log_nowhere, .node_count = 1};
    config = (struct config){.servers = &server, .server_count = 1};
    log_init(&log_nowhere, "test", LOG_LEVEL_ERROR, -1, false);
    fabric = memory_fabric_create(&options);
    EXPECT(memory_fabric_open(fabric, 0, &engine.transport) == 0);
    engine.peers = calloc(1, sizeof(*engine.peers));
    engine.moving = calloc(BITS_WORDS(1u), sizeof(*engine.moving));
    engine.peers[0].backlog_end = &engine.peers[0].backlog;
    engine.poll_descriptor = epoll_create1(EPOLL_CLOEXEC);
    EXPECT(engine_queue_init(&engine.commands, NULL) == 0);
    EXPECT(engine_queue_init(&engine.events, NULL) == 0);
    struct buffer_pool_io pool_io = engine_pool_io(&engine);
    EXPECT(buffer_pool_create(&engine.pool, WIRE_HEADER_BYTES + CHUNK_BYTES, 1 << 20, &pool_io,
                              NULL) == 0);
    struct exchange_options exchange = {.node_count = 1,
                                        .node_names = names,
                                        .chunk_bytes = CHUNK_BYTES,
                                        .least_shard_bytes = 64,
                                        .window_chunks = 8,
                                        .late_ns = 1000,
                                        .pool = engine.pool,
                                        .io = engine_exchange_io(&engine)};
    EXPECT(exchange_create(&engine.exchange, &exchange, NULL) == 0);
}

static void teardown(void)
{
    exchange_close_jobs(engine.exchange);
    exchange_run(engine.exchange);
    ck_assert_ptr_null(engine.workers);
    ck_assert_ptr_null(engine.shares);
    ck_assert_uint_eq(engine.leaving, 0);
    ck_assert_uint_eq(engine.trace_unread, 0);
    exchange_destroy(engine.exchange);
    buffer_pool_destroy(engine.pool);
    transport_close(engine.transport);
    memory_fabric_destroy(fabric);
    struct engine_event *event;
    while ((event = engine_queue_take_event(&engine.events)) != NULL)
        engine_event_free(event);
    engine_queue_clear(&engine.events);
    engine_queue_clear(&engine.commands);
    close(engine.poll_descriptor);
    free(engine.moving);
    free(engine.peers);
}

static void give(struct engine_command command)
{
    engine_command(&engine, &command);
    EXPECT(engine_take_commands(&engine));
}

static struct engine_event *next_event(enum engine_event_type type)
{
    struct engine_event *event = engine_queue_take_event(&engine.events);
    ck_assert_ptr_nonnull(event);
    ck_assert_msg(event->type == type, "event %d: %s", event->type, event->text);
    return event;
}

static void open_job(uint64_t job, uint32_t user, uint32_t ranks)
{
    struct engine_job roster = {.job = job,
                                .name = "train",
                                .user = user,
                                .world_size = ranks,
                                .rank_nodes = all_here,
                                .server_count = 1,
                                .server_nodes = &zero,
                                .server_weights = &one};
    give((struct engine_command){.kind = COMMAND_JOB_OPEN, .job = job, .roster = &roster});
    engine_event_free(next_event(ENGINE_JOB_OPENED));
}

static void attach(struct rank *rank, uint64_t job, uint32_t number)
{
    struct arena daemon;
    int fd = -1, bells[2];
    EXPECT(arena_create(&rank->arena, 1 << 20, ENTRIES, &fd, NULL) == 0);
    EXPECT(arena_attach(&daemon, fd, 1 << 30, NULL) == 0);
    close(fd);
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, bells) == 0);
    rank->bell = bells[0];
    give((struct engine_command){
        .kind = COMMAND_WORKER_ATTACH,
        .job = job,
        .attach = {.rank = number,
                   .arena = daemon,
                   .submission_doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                   .completion_doorbell = bells[1]}});
}

static void release(struct rank *rank)
{
    arena_unmap(&rank->arena);
    close(rank->bell);
}

/* Barriers of all ranks of the job, beginning with this one. */
static void push(struct rank *rank, uint64_t first, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct arena_submission it = {
            .type = ARENA_SUBMIT, .kind = COLLECTIVE_BARRIER, .sequence = first + i};
        EXPECT(arena_push_submission(&rank->arena, &it));
    }
}

static uint32_t unread(const struct rank *rank)
{
    return rank->arena.submission_mask + 1 - arena_submission_room(&rank->arena);
}

START_TEST(users_share_a_round)
{
    static struct rank many[RANKS], other;
    uint32_t left = 0;
    open_job(MANY_JOB, 1000, RANKS);
    open_job(OTHER_JOB, 1001, 1);
    for (uint32_t i = 0; i < RANKS; i++) {
        attach(&many[i], MANY_JOB, i);
        push(&many[i], 0, ENTRIES);
    }
    attach(&other, OTHER_JOB, 0);
    push(&other, 0, 1);
    EXPECT(engine_read_workers(&engine, 1));
    ck_assert_uint_eq(unread(&other), 0);
    for (uint32_t i = 0; i < RANKS; i++)
        left += unread(&many[i]);
    /* A slice is over long before a bounded part of every ring has been read. */
    ck_assert_uint_gt(left, RANKS * (ENTRIES - 128));
    /* The workers take turns: each ring is read in some round. */
    for (int round = 0; left > 0; round++) {
        EXPECT(engine_read_workers(&engine, 1));
        EXPECT(round < 100000);
        left = 0;
        for (uint32_t i = 0; i < RANKS; i++)
            left += unread(&many[i]);
    }
    EXPECT(!engine_read_workers(&engine, 1));
    give((struct engine_command){.kind = COMMAND_JOB_CLOSE, .job = MANY_JOB});
    give((struct engine_command){.kind = COMMAND_JOB_CLOSE, .job = OTHER_JOB});
    exchange_run(engine.exchange);
    for (uint32_t i = 0; i < RANKS; i++)
        release(&many[i]);
    release(&other);
}
END_TEST

START_TEST(a_leave_is_read_in_rounds_and_to_where_it_was_said)
{
    struct rank leaver, stayer;
    open_job(MANY_JOB, 1000, 2);
    attach(&leaver, MANY_JOB, 0);
    attach(&stayer, MANY_JOB, 1);
    push(&leaver, 0, ENTRIES - 24);
    give((struct engine_command){.kind = COMMAND_WORKER_DETACH, .job = MANY_JOB, .rank = 0});
    ck_assert_ptr_null(engine_queue_take_event(&engine.events));
    ck_assert_uint_eq(engine.leaving, 1);
    /* Neither a second time nor what comes now counts. */
    give((struct engine_command){.kind = COMMAND_WORKER_DETACH, .job = MANY_JOB, .rank = 0});
    ck_assert_uint_eq(engine.leaving, 1);
    push(&leaver, ENTRIES - 24, 24);
    for (int round = 0; engine.leaving > 0; round++) {
        EXPECT(engine_read_workers(&engine, 1));
        EXPECT(round < 100000);
    }
    struct engine_event *detached = next_event(ENGINE_WORKER_DETACHED);
    ck_assert_uint_eq(detached->rank, 0);
    ck_assert_uint_eq(detached->positions[0].sequences, ENTRIES - 24);
    engine_event_free(detached);
    ck_assert_uint_eq(unread(&leaver), 24);
    EXPECT(!engine_read_workers(&engine, 1));
    give((struct engine_command){.kind = COMMAND_JOB_CLOSE, .job = MANY_JOB});
    release(&leaver);
    release(&stayer);
}
END_TEST

/* Its ring makes no sense; its job ends. */
START_TEST(a_leave_ends_with_the_worker)
{
    struct rank leaver;
    open_job(MANY_JOB, 1000, 2);
    attach(&leaver, MANY_JOB, 0);
    push(&leaver, 0, 500);
    if (_i == 0)
        push(&leaver, 0, 1); /* a number that was there before */
    else
        push(&leaver, 500, 1);
    give((struct engine_command){.kind = COMMAND_WORKER_DETACH, .job = MANY_JOB, .rank = 0});
    ck_assert_uint_eq(engine.leaving, 1);
    if (_i == 0) {
        for (int round = 0; engine.leaving > 0; round++) {
            engine_read_workers(&engine, 1);
            EXPECT(round < 100000);
        }
        engine_event_free(next_event(ENGINE_WORKER_FAILED));
        engine_event_free(next_event(ENGINE_WORKER_DETACHED));
    }
    give((struct engine_command){.kind = COMMAND_JOB_CLOSE, .job = MANY_JOB});
    exchange_run(engine.exchange);
    ck_assert_uint_eq(engine.leaving, 0);
    engine_event_free(next_event(ENGINE_WORKER_RELEASED));
    ck_assert_ptr_null(engine_queue_take_event(&engine.events));
    release(&leaver);
}
END_TEST

START_TEST(a_trace_ends_when_the_rings_of_its_job_have_been_read)
{
    struct rank traced, other;
    open_job(MANY_JOB, 1000, 2);
    open_job(OTHER_JOB, 1001, 2);
    attach(&traced, MANY_JOB, 0);
    attach(&other, OTHER_JOB, 0);
    struct trace *first = trace_create(17, MANY_JOB, 100),
                 *second = trace_create(18, MANY_JOB, 100);
    give((struct engine_command){.kind = COMMAND_TRACE_START, .trace = first});
    push(&traced, 0, 500);
    push(&other, 0, 500);
    give((struct engine_command){.kind = COMMAND_TRACE_STOP, .trace_number = 16});
    ck_assert_uint_eq(exchange_traces_ending(engine.exchange), 0);
    give((struct engine_command){.kind = COMMAND_TRACE_STOP, .trace_number = 17});
    give((struct engine_command){.kind = COMMAND_TRACE_STOP, .trace_number = 17});
    ck_assert_uint_eq(engine.trace_unread, 1);
    ck_assert_ptr_null(engine_queue_take_event(&engine.events));
    if (_i == 0) {
        for (int round = 0; exchange_traces_ending(engine.exchange) > 0; round++) {
            EXPECT(engine_read_workers(&engine, 1));
            EXPECT(round < 100000);
        }
        ck_assert_uint_eq(unread(&traced), 0);
    }
    /* The next one does not wait for the rest of this one. */
    give((struct engine_command){.kind = COMMAND_TRACE_START, .trace = second});
    struct engine_event *event = next_event(ENGINE_TRACED);
    ck_assert_ptr_eq(event->trace, first);
    ck_assert_int_eq(event->code, 0);
    engine_event_free(event);
    give((struct engine_command){.kind = COMMAND_JOB_CLOSE, .job = MANY_JOB});
    exchange_run(engine.exchange);
    event = next_event(ENGINE_TRACED);
    ck_assert_ptr_eq(event->trace, second);
    engine_event_free(event);
    engine_event_free(next_event(ENGINE_WORKER_RELEASED));
    give((struct engine_command){.kind = COMMAND_JOB_CLOSE, .job = OTHER_JOB});
    exchange_run(engine.exchange);
    release(&traced);
    release(&other);
}
END_TEST

/* Memory that is written to, and a file that can be sealed against writing when that is gone: its
 * addresses would not tell, since something else may be there by then. */
struct memory {
    void *base;
    int fd;
};

static struct memory map(uint64_t bytes)
{
    struct memory memory = {.fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    EXPECT(memory.fd >= 0 && ftruncate(memory.fd, (off_t)bytes) == 0);
    memory.base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd, 0);
    EXPECT(memory.base != MAP_FAILED);
    memset(memory.base, 1, bytes);
    return memory;
}

static void expect_unmapped(const struct memory *memory)
{
    ck_assert_int_eq(fcntl(memory->fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
}

/* Memory that takes long to give back does not hold the engine's thread, and is told of
 * afterwards. */
START_TEST(large_memory_is_given_back_by_a_thread)
{
    enum { SMALL = 4096, LARGE = 8 << 20, COUNT = 5 };
    struct memory small = map(SMALL), large[COUNT];
    EXPECT(engine_release_start(&engine, NULL) == 0);
    engine_release(&engine, small.base, SMALL, NULL);
    expect_unmapped(&small);
    for (int i = 0; i < COUNT; i++)
        large[i] = map(LARGE);
    for (int i = 0; i < COUNT; i++) {
        struct engine_event *event = engine_event_create(ENGINE_WORKER_RELEASED);
        event->worker = (uint32_t)i;
        engine_release(&engine, large[i].base, LARGE, event);
    }
    struct pollfd told = {.fd = engine.events.descriptor, .events = POLLIN};
    EXPECT(poll(&told, 1, 30000) == 1);
    struct engine_event *event = next_event(ENGINE_WORKER_RELEASED);
    expect_unmapped(&large[event->worker]);
    engine_event_free(event);
    engine_release_stop(&engine); /* not before all is done */
    for (int i = 1; i < COUNT; i++)
        engine_event_free(next_event(ENGINE_WORKER_RELEASED));
    for (int i = 0; i < COUNT; i++) {
        expect_unmapped(&large[i]);
        close(large[i].fd);
    }
    close(small.fd);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_rings");
    TCase *tests = tcase_create("engine_rings");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, users_share_a_round);
    tcase_add_test(tests, a_leave_is_read_in_rounds_and_to_where_it_was_said);
    tcase_add_loop_test(tests, a_leave_ends_with_the_worker, 0, 2);
    tcase_add_loop_test(tests, a_trace_ends_when_the_rings_of_its_job_have_been_read, 0, 2);
    tcase_add_test(tests, large_memory_is_given_back_by_a_thread);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
