/* Each kind of command on its way from the control thread to the exchange: the engine's own queue
 * and switch, and an exchange, without threads. */
#include <errno.h>
#include <fcntl.h>
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

#define JOB 7ull
#define RANKS 2u
#define CHUNK_BYTES 256u
#define SEGMENT_BYTES 4096u
#define WORKER 40u /* the number of rank 0's connection */

static struct engine engine;
static struct config config;
static struct config_server servers[2];
static struct log log_nowhere;
static struct memory_fabric *fabric;
static struct transport *other;
static struct arena arenas[RANKS]; /* the workers' mappings */
static int bells[RANKS];           /* the workers' ends of their completion doorbells */
static bool given[COMMAND_TRACE_STOP + 1];

static const uint32_t all_here[RANKS] = {0, 0}, zero = 0, one = 1;
static const struct engine_job roster = {.job = JOB,
                                         .name = "train",
                                         .world_size = RANKS,
                                         .rank_nodes = all_here,
                                         .server_count = 1,
                                         .server_nodes = &zero,
                                         .server_weights = &one};

/* The sanitizers have allocators of their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define REFUSES false
static size_t refused_bytes;
#else
#define REFUSES true
static size_t refused_bytes; /* memory of exactly this size is not to be had; 0: all is */

void *__libc_calloc(size_t count, size_t item_bytes);

void *calloc(size_t count, size_t item_bytes)
{
    if (refused_bytes > 0 && count * item_bytes == refused_bytes)
        return NULL;
    return __libc_calloc(count, item_bytes);
}
#endif

static void setup(void)
{
    static const char *const names[] = {"a", "b"};
    struct memory_fabric_options options = {
        .seed = 1, .least_delay_ns = 1, .most_delay_ns = 10, .nodes = 2};
    engine = (struct engine){.config = &config, .log = &log_nowhere, .node_count = 2};
    config = (struct config){.servers = servers, .server_count = 2};
    memset(given, 0, sizeof(given));
    log_init(&log_nowhere, "test", LOG_LEVEL_ERROR, -1, false);
    fabric = memory_fabric_create(&options);
    EXPECT(memory_fabric_open(fabric, 0, &engine.transport) == 0);
    EXPECT(memory_fabric_open(fabric, 1, &other) == 0);
    engine.peers = calloc(2, sizeof(*engine.peers));
    engine.moving = calloc(BITS_WORDS(2u), sizeof(*engine.moving));
    for (uint32_t i = 0; i < 2; i++)
        engine.peers[i].backlog_end = &engine.peers[i].backlog;
    engine.poll_descriptor = epoll_create1(EPOLL_CLOEXEC);
    EXPECT(engine_queue_init(&engine.commands, NULL) == 0);
    EXPECT(engine_queue_init(&engine.events, NULL) == 0);
    struct buffer_pool_io pool_io = engine_pool_io(&engine);
    EXPECT(buffer_pool_create(&engine.pool, WIRE_HEADER_BYTES + CHUNK_BYTES, 1 << 20, &pool_io,
                              NULL) == 0);
    struct exchange_options exchange = {.node_count = 2,
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
    transport_disconnect(engine.transport, 1);
    engine_drop_peer(&engine, 1, false);
    while (engine_poll_transport(&engine, 1))
        continue;
    exchange_abandon_receives(engine.exchange);
    exchange_destroy(engine.exchange);
    buffer_pool_destroy(engine.pool);
    transport_close(engine.transport);
    transport_close(other);
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
    given[command.kind] = true;
    engine_command(&engine, &command);
    EXPECT(engine_take_commands(&engine));
    exchange_run(engine.exchange);
}

/* The next event, of the job, of which the caller may look at more. */
static void expect_event(enum engine_event_type type, int code, const char *text)
{
    struct engine_event *event = engine_queue_take_event(&engine.events);
    ck_assert_ptr_nonnull(event);
    ck_assert_int_eq(event->type, type);
    ck_assert_int_eq(event->code, code);
    ck_assert_msg(strstr(event->text, text) != NULL, "%s", event->text);
    ck_assert_uint_eq(event->job, JOB);
    engine_event_free(event);
}

static struct engine_job_status figures(void)
{
    struct engine_job_status job = {0};
    EXPECT(exchange_job_totals(engine.exchange, &job, 1) == 1);
    return job;
}

static void open_job(void)
{
    give((struct engine_command){.kind = COMMAND_JOB_OPEN, .job = JOB, .roster = &roster});
    expect_event(ENGINE_JOB_OPENED, 0, "");
}

static void attach(uint32_t rank)
{
    struct engine_attach attached = {.rank = rank, .worker = WORKER + rank};
    int fd, ends[2];
    EXPECT(arena_create(&arenas[rank], ARENA_LEAST_BYTES, 16, &fd, NULL) == 0);
    EXPECT(arena_attach(&attached.arena, fd, 1 << 30, NULL) == 0);
    close(fd);
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    bells[rank] = ends[0];
    attached.submission_doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    attached.completion_doorbell = ends[1];
    give((struct engine_command){.kind = COMMAND_WORKER_ATTACH, .job = JOB, .attach = attached});
}

static void release(uint32_t rank)
{
    arena_unmap(&arenas[rank]);
    close(bells[rank]);
}

static struct engine_segment make_segment(uint32_t number)
{
    uint8_t *base =
        mmap(NULL, SEGMENT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(base != MAP_FAILED);
    return (struct engine_segment){.number = number, .base = base, .bytes = SEGMENT_BYTES};
}

static bool is_mapped(const struct engine_segment *segment)
{
    return msync(segment->base, segment->bytes, MS_ASYNC) == 0;
}

START_TEST(jobs_and_groups)
{
    static const uint32_t ranks[] = {1, 0};
    open_job();
    ck_assert_uint_eq(figures().groups, 1);
    give((struct engine_command){
        .kind = COMMAND_GROUP_OPEN, .job = JOB, .group = 3, .members = {ranks, 2}});
    expect_event(ENGINE_GROUP_OPENED, 0, "");
    ck_assert_uint_eq(figures().groups, 2);
    give((struct engine_command){.kind = COMMAND_GROUP_CLOSE, .job = JOB, .group = 3});
    ck_assert_uint_eq(figures().groups, 1);
    ck_assert(!figures().failed);
    give((struct engine_command){.kind = COMMAND_JOB_FAIL, .job = JOB});
    ck_assert(figures().failed);
    give((struct engine_command){.kind = COMMAND_JOB_CLOSE, .job = JOB});
    ck_assert_uint_eq(exchange_job_totals(engine.exchange, NULL, 0), 0);
    ck_assert_ptr_null(engine_queue_take_event(&engine.events));
    for (int kind = COMMAND_JOB_OPEN; kind <= COMMAND_GROUP_CLOSE; kind++)
        ck_assert(given[kind]);
}
END_TEST

START_TEST(segments_and_groups_that_fail)
{
    struct engine_segment first = make_segment(4), second = make_segment(5);
    open_job();
    give((struct engine_command){.kind = COMMAND_SEGMENT_OPEN, .job = JOB, .segment = first});
    expect_event(ENGINE_SEGMENT_OPENED, 0, "");
    ck_assert(is_mapped(&first));
    give((struct engine_command){.kind = COMMAND_SEGMENT_CLOSE, .job = JOB, .segment = {4}});
    ck_assert(!is_mapped(&first));
    give((struct engine_command){.kind = COMMAND_GROUP_FAIL, .job = JOB});
    give((struct engine_command){.kind = COMMAND_SEGMENT_OPEN, .job = JOB, .segment = second});
    expect_event(ENGINE_SEGMENT_OPENED, ERR_STATE, "failed");
    ck_assert(!is_mapped(&second)); /* handed over, also when it is refused */
}
END_TEST

START_TEST(workers_and_their_ranks)
{
    open_job();
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        ck_assert_ptr_null(exchange_find_worker(engine.exchange, JOB, rank));
        attach(rank);
        ck_assert_ptr_nonnull(exchange_find_worker(engine.exchange, JOB, rank));
    }
    struct arena_submission barrier = {.type = ARENA_SUBMIT, .kind = COLLECTIVE_BARRIER};
    EXPECT(arena_push_submission(&arenas[0], &barrier));
    give((struct engine_command){.kind = COMMAND_LATE_QUERY, .job = JOB, .sequence = 0});
    struct engine_event *late = engine_queue_take_event(&engine.events);
    ck_assert_int_eq(late->type, ENGINE_LATE);
    ck_assert_uint_eq(late->rank_count, 2);
    engine_event_free(late);
    give((struct engine_command){.kind = COMMAND_WORKER_DETACH, .job = JOB, .rank = 0});
    struct engine_event *detached = engine_queue_take_event(&engine.events);
    ck_assert_int_eq(detached->type, ENGINE_WORKER_DETACHED);
    ck_assert_uint_eq(detached->rank, 0);
    ck_assert_uint_eq(detached->positions[0].sequences, 1); /* its ring was read to the end */
    engine_event_free(detached);
    give((struct engine_command){
        .kind = COMMAND_RANK_DEPARTED, .job = JOB, .departed = {.rank = 0, .sequences = 1}});
    ck_assert_ptr_null(engine_queue_take_event(&engine.events));
    for (uint64_t sequence = 0; sequence < 2; sequence++) {
        barrier.sequence = sequence;
        EXPECT(arena_push_submission(&arenas[1], &barrier));
    }
    EXPECT(engine_read_workers(&engine, 1));
    exchange_run(engine.exchange);
    expect_event(ENGINE_GROUP_FAILED, ERR_LOST, "rank 0 has left job 'train' after 1 collectives");
    give((struct engine_command){.kind = COMMAND_JOB_CLOSE, .job = JOB});
    ck_assert_ptr_null(engine.workers); /* and with them what was handed over */
    for (uint32_t rank = 0; rank < RANKS; rank++)
        release(rank);
}
END_TEST

START_TEST(traces)
{
    open_job();
    struct trace *trace = trace_create(17, JOB, 100), *second = trace_create(18, JOB, 100);
    give((struct engine_command){.kind = COMMAND_TRACE_START, .trace = trace});
    ck_assert_ptr_null(engine_queue_take_event(&engine.events));
    give((struct engine_command){.kind = COMMAND_TRACE_START, .trace = second});
    struct engine_event *event = engine_queue_take_event(&engine.events);
    ck_assert_int_eq(event->type, ENGINE_TRACED);
    ck_assert_int_eq(event->code, ERR_STATE);
    ck_assert_ptr_eq(event->trace, second); /* handed back */
    engine_event_free(event);
    give((struct engine_command){.kind = COMMAND_TRACE_STOP, .trace_number = 18});
    ck_assert_ptr_null(engine_queue_take_event(&engine.events));
    give((struct engine_command){.kind = COMMAND_TRACE_STOP, .trace_number = 17});
    event = engine_queue_take_event(&engine.events);
    ck_assert_int_eq(event->type, ENGINE_TRACED);
    ck_assert_int_eq(event->code, 0);
    ck_assert_ptr_eq(event->trace, trace);
    engine_event_free(event);
}
END_TEST

START_TEST(peers_the_drain_and_the_end)
{
    struct engine_command connect = {.kind = COMMAND_PEER_CONNECT, .peer_connect = {.node = 1}};
    EXPECT(transport_address(other, connect.peer_connect.address,
                             &connect.peer_connect.address_bytes, NULL) == 0);
    connect.peer_connect.receive_token[0] = 1;
    connect.peer_connect.send_token[0] = 2;
    give(connect);
    ck_assert(engine.peers[1].connected);
    give((struct engine_command){.kind = COMMAND_PEER_DISCONNECT, .peer = 1});
    ck_assert(!engine.peers[1].connected);
    give((struct engine_command){.kind = COMMAND_DRAIN});
    ck_assert(engine.draining);
    ck_assert(!engine.stopping);
    give((struct engine_command){.kind = COMMAND_STOP});
    ck_assert(engine.stopping);
}
END_TEST

/* Whatever the giver does with what it has lent, the command has its own. */
START_TEST(what_is_lent_is_copied)
{
    uint32_t nodes[] = {3, 1, 2}, numbers[] = {0, 1}, weights[] = {5, 6};
    struct engine_job lent = {.job = JOB,
                              .name = "train",
                              .world_size = 3,
                              .rank_nodes = nodes,
                              .server_count = 2,
                              .server_nodes = numbers,
                              .server_weights = weights};
    struct engine_command command = {.kind = COMMAND_JOB_OPEN, .job = JOB, .roster = &lent};
    struct engine_command_item *job = engine_command_copy(&command);
    command = (struct engine_command){
        .kind = COMMAND_GROUP_OPEN, .job = JOB, .group = 2, .members = {nodes, 3}};
    struct engine_command_item *group = engine_command_copy(&command);
    memset(nodes, 0xee, sizeof(nodes));
    memset(numbers, 0xee, sizeof(numbers));
    memset(weights, 0xee, sizeof(weights));
    memset(&lent, 0xee, sizeof(lent));
    const struct engine_job *kept = job->command.roster;
    ck_assert_uint_eq(kept->job, JOB);
    ck_assert_str_eq(kept->name, "train");
    ck_assert_uint_eq(kept->world_size, 3);
    ck_assert_mem_eq(kept->rank_nodes, ((uint32_t[]){3, 1, 2}), 3 * sizeof(uint32_t));
    ck_assert_mem_eq(kept->server_nodes, ((uint32_t[]){0, 1}), 2 * sizeof(uint32_t));
    ck_assert_mem_eq(kept->server_weights, ((uint32_t[]){5, 6}), 2 * sizeof(uint32_t));
    ck_assert_uint_eq(group->command.group, 2);
    ck_assert_uint_eq(group->command.members.count, 3);
    ck_assert_mem_eq(group->command.members.ranks, ((uint32_t[]){3, 1, 2}), 3 * sizeof(uint32_t));
    free(job);
    free(group);
}
END_TEST

/* A user's jobs ask for lists for which there is no memory: the job hears of it, the daemon goes
 * on. */
START_TEST(memory_for_lists_is_refused)
{
    static const uint32_t ranks[] = {1, 0};
    struct engine_command open = {.kind = COMMAND_JOB_OPEN, .job = JOB, .roster = &roster};
    if (!REFUSES) {
        suite_skip("memory_for_lists_is_refused", "the sanitizer's allocator refuses nothing");
        return;
    }
    refused_bytes = sizeof(struct engine_command_item) + (RANKS + 2) * sizeof(uint32_t);
    engine_command(&engine, &open);
    expect_event(ENGINE_JOB_OPENED, ERR_MEMORY, "no memory for the list of its ranks");
    ck_assert_ptr_null(engine_queue_take_command(&engine.commands));
    /* The coordinator gives these commands for a job that could not be opened. */
    give((struct engine_command){.kind = COMMAND_JOB_FAIL, .job = JOB});
    give((struct engine_command){.kind = COMMAND_JOB_CLOSE, .job = JOB});
    refused_bytes = 0;
    open_job();
    refused_bytes = sizeof(struct engine_command_item) + 2 * sizeof(uint32_t);
    engine_command(&engine,
                   &(struct engine_command){
                       .kind = COMMAND_GROUP_OPEN, .job = JOB, .group = 3, .members = {ranks, 2}});
    refused_bytes = 0;
    struct engine_event *event = engine_queue_take_event(&engine.events);
    ck_assert_int_eq(event->type, ENGINE_GROUP_OPENED);
    ck_assert_int_eq(event->code, ERR_MEMORY);
    ck_assert_uint_eq(event->group, 3);
    engine_event_free(event);
    ck_assert_uint_eq(figures().groups, 1);
}
END_TEST

START_TEST(memory_for_workers_is_refused)
{
    struct engine_segment segment = make_segment(4);
    if (!REFUSES) {
        suite_skip("memory_for_workers_is_refused", "the sanitizer's allocator refuses nothing");
        munmap(segment.base, segment.bytes);
        return;
    }
    open_job();
    refused_bytes = sizeof(struct exchange_segment);
    give((struct engine_command){.kind = COMMAND_SEGMENT_OPEN, .job = JOB, .segment = segment});
    expect_event(ENGINE_SEGMENT_OPENED, ERR_MEMORY, "no memory for shared memory");
    ck_assert(!is_mapped(&segment));
    refused_bytes = sizeof(struct engine_worker);
    attach(1);
    refused_bytes = 0;
    ck_assert_ptr_null(engine.workers);
    ck_assert_int_eq(read(bells[1], &segment, 1), 0); /* closed */
    struct engine_event *event = engine_queue_take_event(&engine.events);
    ck_assert_int_eq(event->type, ENGINE_WORKER_FAILED);
    ck_assert_int_eq(event->code, ERR_MEMORY);
    ck_assert_uint_eq(event->rank, 1);
    engine_event_free(event);
    /* The event lets the worker's user have the memory again. */
    event = engine_queue_take_event(&engine.events);
    ck_assert_ptr_nonnull(event);
    ck_assert_int_eq(event->type, ENGINE_WORKER_RELEASED);
    ck_assert_uint_eq(event->worker, WORKER + 1);
    engine_event_free(event);
    release(1);
    /* A report is not given now, and given later. */
    attach(0);
    refused_bytes = (RANKS + 1) * sizeof(uint32_t);
    give((struct engine_command){.kind = COMMAND_LATE_QUERY, .job = JOB, .sequence = 0});
    ck_assert_ptr_null(engine_queue_take_event(&engine.events));
    refused_bytes = 0;
    give((struct engine_command){.kind = COMMAND_LATE_QUERY, .job = JOB, .sequence = 0});
    expect_event(ENGINE_LATE, 0, "");
    /* A rank leaves, and nobody can say how far it has got. */
    refused_bytes = 2 * sizeof(struct engine_position);
    give((struct engine_command){.kind = COMMAND_WORKER_DETACH, .job = JOB, .rank = 0});
    refused_bytes = 0;
    event = engine_queue_take_event(&engine.events);
    ck_assert_int_eq(event->type, ENGINE_WORKER_DETACHED);
    ck_assert_int_eq(event->code, ERR_MEMORY);
    ck_assert_uint_eq(event->position_count, 0);
    engine_event_free(event);
    give((struct engine_command){.kind = COMMAND_JOB_CLOSE, .job = JOB});
    release(0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_command");
    TCase *tests = tcase_create("engine_command");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, jobs_and_groups);
    tcase_add_test(tests, segments_and_groups_that_fail);
    tcase_add_test(tests, workers_and_their_ranks);
    tcase_add_test(tests, traces);
    tcase_add_test(tests, peers_the_drain_and_the_end);
    tcase_add_test(tests, what_is_lent_is_copied);
    tcase_add_test(tests, memory_for_lists_is_refused);
    tcase_add_test(tests, memory_for_workers_is_refused);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
