/* The data path as it runs: engines with their threads, real arenas, and libfabric's tcp between
 * two of them. */
#include "server/engine.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/dtype.h"
#include "common/reduce.h"
#include "tests/lib/suite.h"

#define EXPECT_MSG(condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg(__VA_ARGS__);                                                             \
    } while (0)
#define EXPECT(condition) EXPECT_MSG(condition, "%s", #condition)

#define JOB 0x1234567890abcdefull
#define PATIENCE_NS (60 * NS_PER_S)
#define CHUNK_BYTES 4096u

/* --- engines ---------------------------------------------------------------------------------- */

struct node {
    struct config config;
    struct config_server servers[2];
    struct log log;
    struct engine *engine;
};

static void node_configure(struct node *node, uint32_t self, uint32_t count, uint32_t threads)
{
    *node = (struct node){0};
    node->config = (struct config){.servers = node->servers,
                                   .server_count = count,
                                   .self = self,
                                   .chunk_bytes = CHUNK_BYTES,
                                   .least_shard_bytes = 256,
                                   .window_chunks = 4,
                                   .reduce_threads = threads,
                                   .memory_bytes = 16 << 20,
                                   .late_ms = 60000};
    for (uint32_t i = 0; i < count; i++) {
        node->servers[i].weight = 1;
        node->servers[i].name[0] = (char)('a' + i);
    }
    strcpy(node->config.listen_address, "127.0.0.1");
    strcpy(node->config.provider, "tcp");
    strcpy(node->config.isa, "auto");
    log_init(&node->log, "test", LOG_LEVEL_ERROR, -1, false);
}

static void node_start(struct node *node)
{
    struct error error = {0};
    int result = engine_start(&node->engine, &node->config, &node->log, &error);
    EXPECT_MSG(result == 0, "%s", error.text);
}

/* The next event, which must be of this type. */
static struct engine_event *node_event(struct node *node, enum engine_event_type type)
{
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
    for (;;) {
        struct engine_event *event = engine_next_event(node->engine);
        if (event) {
            EXPECT_MSG(event->type == type, "event %d, not %d: %s", event->type, type, event->text);
            return event;
        }
        struct pollfd fd = {engine_event_descriptor(node->engine), POLLIN, 0};
        poll(&fd, 1, 1000);
        EXPECT_MSG(clock_now_ns() < end_ns, "event %d does not come", type);
    }
}

static void node_expect(struct node *node, enum engine_event_type type, int code)
{
    struct engine_event *event = node_event(node, type);
    EXPECT_MSG(event->code == code, "%d: %s", event->code, event->text);
    engine_event_free(event);
}

/* All commands given so far have been carried out; nothing is in progress. */
static void node_settle(struct node *node)
{
    engine_drain(node->engine);
    node_expect(node, ENGINE_IDLE, 0);
}

static void nodes_connect(struct node nodes[2])
{
    static const uint8_t given_by[2][TRANSPORT_TOKEN_BYTES] = {"token of node a",
                                                               "token of node b"};
    for (uint32_t self = 2; self-- > 0;) { /* b expects before a connects */
        uint8_t address[TRANSPORT_ADDRESS_BYTES];
        uint32_t bytes = 0, other = 1 - self;
        engine_fabric_address(nodes[other].engine, address, &bytes);
        engine_peer_connect(nodes[self].engine, other, self == 0, address, bytes, given_by[self],
                            given_by[other]);
        if (self == 1)
            node_settle(&nodes[1]);
    }
    for (uint32_t self = 0; self < 2; self++)
        node_expect(&nodes[self], ENGINE_PEER_UP, 0);
}

/* The status is a picture of ten times a second: wait for one that has so many collectives. */
static struct engine_status node_status(struct node *node, uint64_t collectives)
{
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
    for (;;) {
        struct engine_status status;
        EXPECT(engine_status(node->engine, &status) == 0);
        if (status.collectives >= collectives && status.slots == 0)
            return status;
        engine_status_clear(&status);
        poll(NULL, 0, 10);
        EXPECT(clock_now_ns() < end_ns);
    }
}

static int descriptor_count(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* --- workers ---------------------------------------------------------------------------------- */

struct worker {
    struct arena arena;
    uint32_t rank;
    int submission_doorbell, completion_doorbell;
};

static void worker_attach(struct worker *worker, struct node *node, uint32_t rank)
{
    *worker = (struct worker){.rank = rank};
    struct arena daemon;
    int fd = -1;
    EXPECT(arena_create(&worker->arena, 2 << 20, 16, &fd, NULL) == 0);
    EXPECT(arena_attach(&daemon, fd, 1 << 30, NULL) == 0);
    close(fd);
    worker->submission_doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    worker->completion_doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    engine_worker_attach(node->engine, JOB, rank, &daemon,
                         fcntl(worker->submission_doorbell, F_DUPFD_CLOEXEC, 0),
                         fcntl(worker->completion_doorbell, F_DUPFD_CLOEXEC, 0));
}

static void worker_release(struct worker *worker)
{
    arena_unmap(&worker->arena);
    close(worker->submission_doorbell);
    close(worker->completion_doorbell);
}

static void ring(int descriptor)
{
    uint64_t one = 1;
    EXPECT(write(descriptor, &one, sizeof(one)) == sizeof(one));
}

static void worker_push(struct worker *worker, const struct arena_submission *submission)
{
    EXPECT(arena_push_submission(&worker->arena, submission));
    if (arena_daemon_needs_doorbell(&worker->arena))
        ring(worker->submission_doorbell);
}

static float *worker_data(struct worker *worker)
{
    return (float *)(void *)(worker->arena.base + worker->arena.data_offset);
}

static void worker_submit(struct worker *worker, uint64_t sequence, uint64_t count)
{
    struct arena_submission it = {.type = ARENA_SUBMIT,
                                  .kind = COLLECTIVE_ALL_REDUCE,
                                  .dtype = DTYPE_F32,
                                  .op = REDUCE_SUM,
                                  .request = 1000 + sequence,
                                  .sequence = sequence,
                                  .count = count,
                                  .in_offset = worker->arena.data_offset,
                                  .out_offset = worker->arena.data_offset};
    worker_push(worker, &it);
}

/* Sleeps until the request is reported as done; it must be the next. */
static void worker_wait(struct worker *worker, uint64_t request)
{
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
    struct arena_completion completion;
    while (!arena_pop_completion(&worker->arena, &completion)) {
        EXPECT_MSG(clock_now_ns() < end_ns, "request %lu is not done", (unsigned long)request);
        if (arena_worker_prepare_sleep(&worker->arena))
            continue;
        struct pollfd fd = {worker->completion_doorbell, POLLIN, 0};
        poll(&fd, 1, 1000);
        uint64_t rung;
        ssize_t got = read(worker->completion_doorbell, &rung, sizeof(rung));
        (void)got;
        arena_worker_cancel_sleep(&worker->arena);
    }
    EXPECT(completion.type == ARENA_REQUEST_DONE && completion.request == request);
}

static void open_job(struct node *nodes, uint32_t node_count, const uint32_t *rank_nodes,
                     uint32_t ranks)
{
    static const uint32_t servers[] = {0, 1}, weights[] = {1, 1};
    struct engine_job job = {.job = JOB,
                             .name = "train",
                             .world_size = ranks,
                             .rank_nodes = rank_nodes,
                             .server_count = node_count,
                             .server_nodes = servers,
                             .server_weights = weights};
    for (uint32_t i = 0; i < node_count; i++) {
        engine_job_open(nodes[i].engine, &job);
        node_expect(&nodes[i], ENGINE_JOB_OPENED, 0);
    }
}

/* One all_reduce of all workers, checked. */
static void reduce_once(struct worker *workers, uint32_t count, uint64_t sequence,
                        uint64_t elements)
{
    float sum = 0;
    for (uint32_t rank = 0; rank < count; rank++) {
        for (uint64_t i = 0; i < elements; i++)
            worker_data(&workers[rank])[i] = (float)(rank + i % 1000);
        sum += (float)rank;
    }
    for (uint32_t rank = 0; rank < count; rank++)
        worker_submit(&workers[rank], sequence, elements);
    for (uint32_t rank = 0; rank < count; rank++) {
        worker_wait(&workers[rank], 1000 + sequence);
        for (uint64_t i = 0; i < elements; i++)
            EXPECT(worker_data(&workers[rank])[i] == sum + (float)(count * (i % 1000)));
    }
}

/* --- one engine ------------------------------------------------------------------------------- */

static const uint32_t all_here[] = {0, 0, 0};

struct alone {
    struct node node;
    struct worker workers[3];
    uint32_t count;
    int descriptors; /* before */
};

static void alone_start(struct alone *alone, uint32_t workers, uint32_t threads, uint32_t late_ms)
{
    *alone = (struct alone){.count = workers, .descriptors = descriptor_count()};
    node_configure(&alone->node, 0, 1, threads);
    alone->node.config.late_ms = late_ms;
    node_start(&alone->node);
    open_job(&alone->node, 1, all_here, workers);
    for (uint32_t rank = 0; rank < workers; rank++)
        worker_attach(&alone->workers[rank], &alone->node, rank);
    node_settle(&alone->node);
}

static void alone_stop(struct alone *alone)
{
    engine_stop(alone->node.engine);
    for (uint32_t rank = 0; rank < alone->count; rank++)
        worker_release(&alone->workers[rank]);
    ck_assert_int_eq(descriptor_count(), alone->descriptors);
}

START_TEST(ranks_of_one_node_reduce)
{
    struct alone alone;
    alone_start(&alone, 3, (uint32_t)_i, 60000);
    static const uint64_t sizes[] = {1, 16, 1000, 1024, 30000, 400000, 0, 7};
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < 8; i++) {
        reduce_once(alone.workers, 3, i, sizes[i]);
        bytes += sizes[i] * sizeof(float);
    }
    struct engine_status status = node_status(&alone.node, 8);
    ck_assert_uint_eq(status.collectives, 8);
    ck_assert_uint_eq(status.bytes_reduced, 3 * bytes);
    ck_assert_uint_eq(status.workers, 3);
    ck_assert_uint_eq(status.bytes_in + status.bytes_out, 0);
    ck_assert_uint_eq(status.dropped_messages, 0);
    ck_assert_uint_eq(status.buffer_bytes_limit, 16 << 20);
    ck_assert_uint_eq(status.buffer_bytes_used, 0);
    ck_assert_uint_eq(status.peer_count, 1);
    ck_assert_uint_eq(status.job_count, 1);
    ck_assert_uint_eq(status.jobs[0].job, JOB);
    ck_assert_uint_eq(status.jobs[0].collectives, 8);
    ck_assert_uint_eq(status.jobs[0].bytes_submitted, 3 * bytes);
    ck_assert_uint_eq(status.jobs[0].groups, 1);
    ck_assert_uint_ne(status.jobs[0].slowest_rank, UINT32_MAX);
    ck_assert_uint_gt(status.now_ns, 0);
    engine_status_clear(&status);
    alone_stop(&alone);
}
END_TEST

START_TEST(groups_open_close_and_are_refused)
{
    struct alone alone;
    alone_start(&alone, 2, 0, 60000);
    uint32_t ranks[] = {1, 0};
    engine_group_open(alone.node.engine, JOB, 7, ranks, 2);
    struct engine_event *event = node_event(&alone.node, ENGINE_GROUP_OPENED);
    ck_assert_uint_eq(event->job, JOB);
    ck_assert_uint_eq(event->group, 7);
    ck_assert_int_eq(event->code, 0);
    engine_event_free(event);
    engine_group_open(alone.node.engine, JOB, 7, ranks, 2);
    event = node_event(&alone.node, ENGINE_GROUP_OPENED);
    ck_assert_int_eq(event->code, ERR_STATE);
    ck_assert_str_eq(event->text, "group 7 is open already");
    engine_event_free(event);
    engine_group_close(alone.node.engine, JOB, 7);
    engine_group_open(alone.node.engine, JOB, 7, ranks, 2);
    node_expect(&alone.node, ENGINE_GROUP_OPENED, 0);
    struct engine_job again = {.job = JOB,
                               .world_size = 2,
                               .rank_nodes = all_here,
                               .server_count = 1,
                               .server_nodes = all_here,
                               .server_weights = ranks};
    engine_job_open(alone.node.engine, &again);
    event = node_event(&alone.node, ENGINE_JOB_OPENED);
    ck_assert_uint_eq(event->job, JOB);
    ck_assert_int_eq(event->code, ERR_STATE);
    ck_assert_ptr_nonnull(strstr(event->text, "is open already"));
    engine_event_free(event);
    alone_stop(&alone);
}
END_TEST

/* --- workers that misbehave ------------------------------------------------------------------- */

static void expect_worker_failed(struct node *node, uint32_t rank, const char *words)
{
    struct engine_event *event = node_event(node, ENGINE_WORKER_FAILED);
    ck_assert_uint_eq(event->job, JOB);
    ck_assert_uint_eq(event->rank, rank);
    ck_assert_msg(strstr(event->text, words) != NULL, "%s", event->text);
    engine_event_free(event);
}

START_TEST(nonsense_in_a_ring_is_reported)
{
    struct alone alone;
    alone_start(&alone, 3, 0, 60000);
    struct arena_submission nonsense = {.type = 77};
    worker_push(&alone.workers[1], &nonsense);
    expect_worker_failed(&alone.node, 1, "submission type 77 does not exist");
    /* it is read no more, and so reported once */
    worker_push(&alone.workers[1], &nonsense);
    /* a tail that is ahead of what the ring can hold */
    struct arena_header *header = (struct arena_header *)(void *)alone.workers[2].arena.base;
    atomic_store(&header->submission_tail, 1000);
    ring(alone.workers[2].submission_doorbell);
    expect_worker_failed(&alone.node, 2, "its submission ring makes no sense");
    node_settle(&alone.node);
    ck_assert_ptr_null(engine_next_event(alone.node.engine));
    alone_stop(&alone);
}
END_TEST

START_TEST(a_worker_that_reads_nothing_is_reported)
{
    struct alone alone;
    alone_start(&alone, 1, 0, 60000);
    struct worker *worker = &alone.workers[0];
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
    for (uint64_t sequence = 0; sequence < 33; sequence++) { /* one more than completions fit */
        while (arena_submission_room(&worker->arena) == 0) {
            poll(NULL, 0, 1);
            EXPECT(clock_now_ns() < end_ns);
        }
        worker_submit(worker, sequence, 1);
    }
    expect_worker_failed(&alone.node, 0, "it lets its completion ring overflow");
    alone_stop(&alone);
}
END_TEST

START_TEST(attaching_what_does_not_belong_is_reported)
{
    struct alone alone;
    alone_start(&alone, 1, 0, 60000);
    struct worker other;
    worker_attach(&other, &alone.node, 0); /* a second one with its rank */
    expect_worker_failed(&alone.node, 0, "rank 0 is not of this node, or attached");
    worker_release(&other);
    worker_attach(&other, &alone.node, 5);
    expect_worker_failed(&alone.node, 5, "rank 5");
    worker_release(&other);
    reduce_once(alone.workers, 1, 0, 100); /* the first one is unharmed */
    alone_stop(&alone);
}
END_TEST

/* --- ends ------------------------------------------------------------------------------------- */

START_TEST(a_detached_worker_has_been_read_to_the_end)
{
    struct alone alone;
    alone_start(&alone, 2, 1, 60000);
    for (uint64_t sequence = 0; sequence < 5; sequence++)
        EXPECT(arena_push_submission(&alone.workers[0].arena,
                                     &(struct arena_submission){.type = ARENA_SUBMIT,
                                                                .kind = COLLECTIVE_BARRIER,
                                                                .sequence = sequence}));
    engine_worker_detach(alone.node.engine, JOB, 0); /* no doorbell was rung */
    struct engine_event *event = node_event(&alone.node, ENGINE_WORKER_DETACHED);
    ck_assert_uint_eq(event->job, JOB);
    ck_assert_uint_eq(event->rank, 0);
    ck_assert_uint_eq(event->position_count, 1);
    ck_assert_uint_eq(event->positions[0].group, 0);
    ck_assert_uint_eq(event->positions[0].sequences, 5);
    engine_event_free(event);
    engine_worker_detach(alone.node.engine, JOB, 0); /* once is enough */
    engine_worker_detach(alone.node.engine, JOB, 9);
    engine_worker_detach(alone.node.engine, 1, 0);
    engine_rank_left(alone.node.engine, JOB, 0, 0, 5);
    for (uint64_t sequence = 0; sequence < 6; sequence++) {
        struct arena_submission it = {.type = ARENA_SUBMIT,
                                      .kind = COLLECTIVE_BARRIER,
                                      .request = sequence,
                                      .sequence = sequence};
        worker_push(&alone.workers[1], &it);
        if (sequence < 5)
            worker_wait(&alone.workers[1], sequence);
    }
    event = node_event(&alone.node, ENGINE_GROUP_FAILED);
    ck_assert_int_eq(event->code, ERR_LOST);
    ck_assert_str_eq(event->text, "rank 0 has left job 'train' after 5 collectives of group 0");
    engine_event_free(event);
    alone_stop(&alone);
}
END_TEST

START_TEST(a_failed_job_is_silent_and_a_closed_one_gone)
{
    struct alone alone;
    alone_start(&alone, 2, 1, 60000);
    reduce_once(alone.workers, 2, 0, 5000);
    worker_submit(&alone.workers[0], 1, 5000);
    engine_job_fail(alone.node.engine, JOB);
    node_settle(&alone.node);
    worker_submit(&alone.workers[1], 1, 5000);
    node_settle(&alone.node);
    struct arena_completion completion;
    ck_assert(!arena_pop_completion(&alone.workers[0].arena, &completion));
    ck_assert(!arena_pop_completion(&alone.workers[1].arena, &completion));
    int attached = descriptor_count();
    engine_job_close(alone.node.engine, JOB);
    node_settle(&alone.node);
    ck_assert_int_eq(descriptor_count(), attached - 4); /* its doorbells are closed */
    ck_assert_ptr_null(engine_next_event(alone.node.engine));
    /* the same number may be used again */
    open_job(&alone.node, 1, all_here, 2);
    alone_stop(&alone);
}
END_TEST

START_TEST(draining_waits_for_what_is_in_progress)
{
    struct alone alone;
    alone_start(&alone, 2, 1, 60000);
    worker_submit(&alone.workers[0], 0, 1000);
    /* nothing but the query's answer: so it is being waited for */
    struct engine_event *event;
    do {
        engine_late_query(alone.node.engine, JOB, 0, 0);
        event = node_event(&alone.node, ENGINE_LATE);
        uint32_t missing = event->rank_count;
        if (missing == 1)
            ck_assert_uint_eq(event->ranks[0], 1);
        engine_event_free(event);
        if (missing == 1)
            break;
    } while (true);
    engine_drain(alone.node.engine);
    engine_late_query(alone.node.engine, JOB, 0, 0);
    engine_event_free(node_event(&alone.node, ENGINE_LATE));
    ck_assert_ptr_null(engine_next_event(alone.node.engine));
    worker_submit(&alone.workers[1], 0, 1000);
    node_expect(&alone.node, ENGINE_IDLE, 0);
    for (uint32_t rank = 0; rank < 2; rank++)
        worker_wait(&alone.workers[rank], 1000);
    alone_stop(&alone);
}
END_TEST

START_TEST(late_ranks_are_reported)
{
    struct alone alone;
    alone_start(&alone, 2, 0, 100);
    worker_submit(&alone.workers[1], 0, 10);
    struct engine_event *event = node_event(&alone.node, ENGINE_LATE);
    ck_assert_uint_eq(event->job, JOB);
    ck_assert_uint_eq(event->group, 0);
    ck_assert_uint_eq(event->sequence, 0);
    ck_assert_uint_eq(event->rank_count, 1);
    ck_assert_uint_eq(event->ranks[0], 0);
    ck_assert_uint_eq(event->node_count, 0);
    engine_event_free(event);
    worker_submit(&alone.workers[0], 0, 10);
    worker_wait(&alone.workers[0], 1000);
    worker_wait(&alone.workers[1], 1000);
    alone_stop(&alone);
}
END_TEST

/* --- two engines over tcp --------------------------------------------------------------------- */

struct both {
    struct node nodes[2];
    struct worker workers[4];
    int descriptors;
};

static const uint32_t crossed[] = {0, 1, 1, 0};

static bool both_start(struct both *both, const char *name, uint32_t threads)
{
    if (!transport_fabric_available("tcp", true, "127.0.0.1")) {
        suite_skip(name, "libfabric has no tcp here");
        return false;
    }
    *both = (struct both){.descriptors = descriptor_count()};
    for (uint32_t i = 0; i < 2; i++) {
        node_configure(&both->nodes[i], i, 2, threads);
        node_start(&both->nodes[i]);
    }
    nodes_connect(both->nodes);
    open_job(both->nodes, 2, crossed, 4);
    for (uint32_t rank = 0; rank < 4; rank++)
        worker_attach(&both->workers[rank], &both->nodes[crossed[rank]], rank);
    return true;
}

static void both_stop(struct both *both)
{
    for (uint32_t i = 0; i < 2; i++)
        engine_stop(both->nodes[i].engine);
    for (uint32_t rank = 0; rank < 4; rank++)
        worker_release(&both->workers[rank]);
}

START_TEST(ranks_of_two_nodes_reduce)
{
    struct both both;
    if (!both_start(&both, "ranks_of_two_nodes_reduce", (uint32_t)_i))
        return;
    static const uint64_t sizes[] = {1, 0, 64, 1000, 2048, 30000, 300000, 13};
    for (uint64_t i = 0; i < 8; i++)
        reduce_once(both.workers, 4, i, sizes[i]);
    struct engine_status status[2];
    for (uint32_t i = 0; i < 2; i++) {
        status[i] = node_status(&both.nodes[i], 8);
        ck_assert_uint_eq(status[i].workers, 2);
        ck_assert_uint_gt(status[i].buffer_bytes_reserved, 0);
        ck_assert_uint_eq(status[i].peer_count, 2);
        ck_assert(status[i].peers[1 - i].up);
        ck_assert(!status[i].peers[i].up);
        ck_assert_uint_eq(status[i].peers[i].messages_in + status[i].peers[i].bytes_out, 0);
        ck_assert_uint_eq(status[i].bytes_in, status[i].peers[1 - i].bytes_in);
        ck_assert_uint_eq(status[i].bytes_out, status[i].peers[1 - i].bytes_out);
    }
    ck_assert_uint_eq(status[0].bytes_out, status[1].bytes_in);
    ck_assert_uint_eq(status[1].bytes_out, status[0].bytes_in);
    ck_assert_uint_eq(status[0].peers[1].messages_out, status[1].peers[0].messages_in);
    ck_assert_uint_gt(status[0].bytes_out, 331126ull * 4); /* about half out, half back */
    for (uint32_t i = 0; i < 2; i++)
        engine_status_clear(&status[i]);
    both_stop(&both);
}
END_TEST

START_TEST(disagreeing_nodes_learn_it)
{
    struct both both;
    if (!both_start(&both, "disagreeing_nodes_learn_it", 0))
        return;
    for (uint32_t rank = 0; rank < 4; rank++)
        worker_submit(&both.workers[rank], 0, crossed[rank] == 0 ? 100 : 200);
    for (uint32_t i = 0; i < 2; i++) {
        struct engine_event *event = node_event(&both.nodes[i], ENGINE_GROUP_FAILED);
        ck_assert_int_eq(event->code, ERR_MISMATCH);
        ck_assert_str_eq(event->text, "the ranks disagree on collective 0 of group 0: ranks 0, 3 "
                                      "asked for all_reduce sum float count 100; ranks 1, 2 asked "
                                      "for all_reduce sum float count 200");
        engine_event_free(event);
    }
    both_stop(&both);
}
END_TEST

START_TEST(a_peer_that_goes_is_reported)
{
    struct both both;
    if (!both_start(&both, "a_peer_that_goes_is_reported", 1))
        return;
    reduce_once(both.workers, 4, 0, 10000);
    for (uint32_t rank = 0; rank < 4; rank++) {
        if (crossed[rank] == 0)
            worker_submit(&both.workers[rank], 1, 100000); /* under way when it happens */
    }
    if (_i == 0) {
        engine_stop(both.nodes[1].engine);
        both.nodes[1].engine = NULL;
    } else {
        engine_peer_disconnect(both.nodes[1].engine, 0);
    }
    struct engine_event *event = node_event(&both.nodes[0], ENGINE_PEER_DOWN);
    ck_assert_uint_eq(event->node, 1);
    ck_assert_uint_gt(strlen(event->text), 0);
    engine_event_free(event);
    engine_job_fail(both.nodes[0].engine, JOB);
    node_settle(&both.nodes[0]);
    engine_job_close(both.nodes[0].engine, JOB);
    node_settle(&both.nodes[0]);
    both_stop(&both);
}
END_TEST

/* After a disconnection the pair connects anew, and other jobs go on over it. */
START_TEST(a_pair_connects_again)
{
    struct both both;
    if (!both_start(&both, "a_pair_connects_again", 1))
        return;
    reduce_once(both.workers, 4, 0, 5000);
    for (uint32_t i = 0; i < 2; i++) {
        engine_job_close(both.nodes[i].engine, JOB);
        node_settle(&both.nodes[i]);
    }
    engine_peer_disconnect(both.nodes[0].engine, 1);
    node_expect(&both.nodes[1], ENGINE_PEER_DOWN, 0);
    nodes_connect(both.nodes);
    open_job(both.nodes, 2, crossed, 4);
    for (uint32_t rank = 0; rank < 4; rank++) {
        worker_release(&both.workers[rank]);
        worker_attach(&both.workers[rank], &both.nodes[crossed[rank]], rank);
    }
    reduce_once(both.workers, 4, 0, 50000);
    both_stop(&both);
}
END_TEST

/* Stopping takes what is in progress along: the sanitizers see what it forgets. */
START_TEST(stopping_in_the_midst_of_it)
{
    struct both both;
    if (!both_start(&both, "stopping_in_the_midst_of_it", (uint32_t)_i))
        return;
    for (uint64_t sequence = 0; sequence < 6; sequence++) {
        for (uint32_t rank = 0; rank < 4; rank++) {
            if (rank != 2 || sequence < 3)
                worker_submit(&both.workers[rank], sequence, 200000);
        }
    }
    both_stop(&both);
    ck_assert_int_le(descriptor_count(), both.descriptors + 1);
}
END_TEST

/* --- starting --------------------------------------------------------------------------------- */

static void expect_no_start(struct node *node, int code, const char *words)
{
    int before = descriptor_count();
    struct error error = {0};
    struct engine *untouched = NULL;
    int result = engine_start(&untouched, &node->config, &node->log, &error);
    ck_assert_msg(result == code && error.code == code, "%d: %s", result, error.text);
    ck_assert_msg(strstr(error.text, words) != NULL, "%s", error.text);
    ck_assert_ptr_null(untouched);
    ck_assert_int_le(descriptor_count(), before + 1);
}

START_TEST(what_cannot_start_says_why)
{
    struct node node;
    node_configure(&node, 0, 1, 0);
    strcpy(node.config.isa, "mmx");
    expect_no_start(&node, ERR_CONFIG, "\"mmx\" is not known");
    node_configure(&node, 0, 1, 0);
    strcpy(node.config.provider, "carrier-pigeon");
    struct error error = {0};
    struct engine *engine = NULL;
    ck_assert_int_lt(engine_start(&engine, &node.config, &node.log, &error), 0);
    ck_assert_ptr_nonnull(strstr(error.text, "carrier-pigeon"));
    ck_assert_ptr_null(engine);
    engine_stop(NULL);
}
END_TEST

START_TEST(every_instruction_set_that_is_there_starts)
{
    static const char *const sets[] = {"scalar", "avx2", "avx512"};
    for (int i = 0; i < 3; i++) {
        struct node node;
        node_configure(&node, 0, 1, 2);
        strcpy(node.config.isa, sets[i]);
        enum reduce_isa isa;
        ck_assert_int_eq(reduce_isa_parse(sets[i], &isa), 0);
        if (!reduce_isa_supported(isa)) {
            expect_no_start(&node, ERR_UNSUPPORTED, "this machine has no");
            continue;
        }
        node_start(&node);
        const struct transport_info *info = engine_transport_info(node.engine);
        ck_assert_str_eq(info->provider, "tcp");
        ck_assert_str_eq(info->endpoint, "connected");
        engine_stop(node.engine);
    }
}
END_TEST

static TCase *one_engine(void)
{
    TCase *tests = tcase_create("one engine");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, ranks_of_one_node_reduce, 0, 3);
    tcase_add_test(tests, groups_open_close_and_are_refused);
    tcase_add_test(tests, nonsense_in_a_ring_is_reported);
    tcase_add_test(tests, a_worker_that_reads_nothing_is_reported);
    tcase_add_test(tests, attaching_what_does_not_belong_is_reported);
    tcase_add_test(tests, a_detached_worker_has_been_read_to_the_end);
    tcase_add_test(tests, a_failed_job_is_silent_and_a_closed_one_gone);
    tcase_add_test(tests, draining_waits_for_what_is_in_progress);
    tcase_add_test(tests, late_ranks_are_reported);
    tcase_add_test(tests, what_cannot_start_says_why);
    tcase_add_test(tests, every_instruction_set_that_is_there_starts);
    return tests;
}

static TCase *two_engines(void)
{
    TCase *tests = tcase_create("two engines");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, ranks_of_two_nodes_reduce, 0, 3);
    tcase_add_test(tests, disagreeing_nodes_learn_it);
    tcase_add_loop_test(tests, a_peer_that_goes_is_reported, 0, 2);
    tcase_add_test(tests, a_pair_connects_again);
    tcase_add_loop_test(tests, stopping_in_the_midst_of_it, 0, 3);
    return tests;
}

int main(void)
{
    transport_prepare_environment();
    Suite *suite = suite_create("engine");
    suite_add_tcase(suite, one_engine());
    suite_add_tcase(suite, two_engines());
    return suite_main(suite);
}
