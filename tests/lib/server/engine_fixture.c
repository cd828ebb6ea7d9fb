#include "tests/lib/server/engine_fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/reduce/dtype.h"

/* --- engines ---------------------------------------------------------------------------------- */

void node_configure(struct node *node, uint32_t self, uint32_t count, uint32_t threads)
{
    *node = (struct node){0};
    node->config = (struct config){.servers = node->servers,
                                   .server_count = count,
                                   .self = self,
                                   .chunk_bytes = CHUNK_BYTES,
                                   .least_shard_bytes = 256,
                                   .window_chunks = 4,
                                   .window_bytes = 1u << 19,
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

void node_start(struct node *node)
{
    if (node->sealed)
        strcpy(node->config.protect, "encrypt");
    struct error error = {0};
    int result = engine_start(&node->engine, &node->config, NULL, &node->log, &error);
    EXPECT_MSG(result == 0, "%s", error.text);
}

struct engine_event *node_event(struct node *node, enum engine_event_type type)
{
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
    for (;;) {
        struct engine_event *event = engine_next_event(node->engine);
        if (event && event->type == ENGINE_WORKER_RELEASED && type != ENGINE_WORKER_RELEASED) {
            engine_event_free(event);
            continue;
        }
        if (event) {
            EXPECT_MSG(event->type == type, "event %d, not %d: %s", event->type, type, event->text);
            return event;
        }
        struct pollfd fd = {engine_event_descriptor(node->engine), POLLIN, 0};
        poll(&fd, 1, 1000);
        EXPECT_MSG(clock_now_ns() < end_ns, "event %d does not come", type);
    }
}

void node_expect(struct node *node, enum engine_event_type type, int code)
{
    struct engine_event *event = node_event(node, type);
    EXPECT_MSG(event->code == code, "%d: %s", event->code, event->text);
    engine_event_free(event);
}

void node_settle(struct node *node)
{
    give(node->engine, .kind = COMMAND_DRAIN);
    node_expect(node, ENGINE_IDLE, 0);
}

void nodes_connect(struct node nodes[2])
{
    static const uint8_t given_by[2][TRANSPORT_TOKEN_BYTES] = {"token of node a",
                                                               "token of node b"};
    static const uint8_t keys[2][ENGINE_SEAL_KEY_BYTES] = {"what node a seals its messages ",
                                                           "what node b seals its messages "};
    for (uint32_t self = 2; self-- > 0;) { /* b expects before a connects */
        uint32_t other = 1 - self;
        struct engine_command command = {.kind = COMMAND_PEER_CONNECT,
                                         .peer_connect = {.node = other,
                                                          .connection = ++nodes[self].connections,
                                                          .active = self == 0}};
        struct engine_peer_connect *connect = &command.peer_connect;
        engine_fabric_address(nodes[other].engine, connect->address, &connect->address_bytes);
        memcpy(connect->receive_token, given_by[self], TRANSPORT_TOKEN_BYTES);
        memcpy(connect->send_token, given_by[other], TRANSPORT_TOKEN_BYTES);
        connect->sealed = nodes[self].sealed;
        memcpy(connect->seal_key, keys[self], ENGINE_SEAL_KEY_BYTES);
        connect->seal_key[0] ^= nodes[self].wrong_key;
        memcpy(connect->open_key, keys[other], ENGINE_SEAL_KEY_BYTES);
        engine_command(nodes[self].engine, &command);
        if (self == 1)
            node_settle(&nodes[1]);
    }
    for (uint32_t self = 0; self < 2; self++)
        node_expect(&nodes[self], ENGINE_PEER_UP, 0);
}

/* The status is a picture of ten times a second: wait for one that has so many collectives. */
struct engine_status node_status(struct node *node, uint64_t collectives)
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

int descriptor_count(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* --- workers ---------------------------------------------------------------------------------- */

void worker_attach(struct worker *worker, struct node *node, uint32_t rank)
{
    *worker = (struct worker){.rank = rank};
    struct arena daemon;
    int fd = -1;
    EXPECT(arena_create(&worker->arena, 2 << 20, 16, &fd, NULL) == 0);
    EXPECT(arena_attach(&daemon, fd, 1 << 30, NULL) == 0);
    close(fd);
    worker->submission_doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int bell[2];
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, bell) == 0);
    worker->completion_doorbell = bell[0];
    give(node->engine, .kind = COMMAND_WORKER_ATTACH, .job = JOB,
         .attach = {.worker = 100 + rank,
                    .rank = rank,
                    .arena = daemon,
                    .submission_doorbell = fcntl(worker->submission_doorbell, F_DUPFD_CLOEXEC, 0),
                    .completion_doorbell = bell[1]});
}

void worker_release(struct worker *worker)
{
    arena_unmap(&worker->arena);
    close(worker->submission_doorbell);
    close(worker->completion_doorbell);
}

void ring(int descriptor)
{
    uint64_t one = 1;
    EXPECT(write(descriptor, &one, sizeof(one)) == sizeof(one));
}

void worker_push(struct worker *worker, const struct arena_submission *submission)
{
    EXPECT(arena_push_submission(&worker->arena, submission));
    if (arena_daemon_needs_doorbell(&worker->arena))
        ring(worker->submission_doorbell);
}

static float *worker_data(struct worker *worker)
{
    return (float *)(void *)(worker->arena.base + worker->arena.data_offset);
}

void worker_submit(struct worker *worker, uint64_t sequence, uint64_t count)
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

struct arena_completion worker_next(struct worker *worker)
{
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
    struct arena_completion completion;
    while (!arena_pop_completion(&worker->arena, &completion)) {
        EXPECT_MSG(clock_now_ns() < end_ns, "rank %u is told nothing", worker->rank);
        if (arena_worker_prepare_sleep(&worker->arena))
            continue;
        struct pollfd fd = {worker->completion_doorbell, POLLIN, 0};
        poll(&fd, 1, 1000);
        uint8_t rings[64];
        ssize_t got = read(worker->completion_doorbell, rings, sizeof(rings));
        (void)got;
        arena_worker_cancel_sleep(&worker->arena);
    }
    return completion;
}

void worker_wait(struct worker *worker, uint64_t request)
{
    struct arena_completion completion = worker_next(worker);
    EXPECT_MSG(completion.type == ARENA_REQUEST_DONE && completion.request == request,
               "request %lu is not done", (unsigned long)request);
}

void open_job(struct node *nodes, uint32_t node_count, const uint32_t *rank_nodes, uint32_t ranks)
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
        give(nodes[i].engine, .kind = COMMAND_JOB_OPEN, .job = JOB, .roster = &job);
        node_expect(&nodes[i], ENGINE_JOB_OPENED, 0);
    }
}

void reduce_once(struct worker *workers, uint32_t count, uint64_t sequence, uint64_t elements)
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
