/* How much time a daemon's exchange takes for collectives of many blocks: one node of a large job,
 * all the others played by this program, which answers at once. Not a test.
 *
 *   bench_exchange [nodes [ranks on a node [elements of a part]]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/format/route.h"
#include "common/memory/buffer.h"
#include "common/reduce/reduce.h"
#include "server/exchange/exchange.h"

#define JOB 7
#define CHUNK_BYTES 4096
#define SUBMITTED_MAX 512 /* of a rank, as the library does */
#define RING_BATCH 128    /* as the engine does */
#define FABRIC_BATCH 64
#define ARENA_BYTES (2u << 20)

#define NEED(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

struct incoming {
    struct incoming *next;
    uint32_t node;
    uint32_t bytes;
    struct wire_header header;
};

struct peer {
    struct buffer *posted[64];
    uint32_t posted_count;
    uint32_t under_way; /* contributions to us without an answer */
    uint32_t next_rank; /* of ours, whose block it contributes to next */
    uint32_t next_own;  /* and for which of its own */
};

struct bench {
    uint32_t nodes, per_node, ranks;
    uint64_t count;
    enum collective_kind kind;
    uint64_t sequence;
    uint32_t window;
    struct exchange *exchange;
    struct buffer_pool *pool;
    struct exchange_worker *workers;
    struct peer *peers;
    struct exchange_send *sends;
    struct reduce_task *tasks;
    struct incoming *first, **last;
    uint32_t *next_block; /* of each of our ranks */
    bool *submitted;      /* the collective itself */
    uint64_t messages;
};

static uint32_t node_of(const struct bench *bench, uint32_t rank)
{
    return bench->per_node ? rank / bench->per_node : 0;
}

/* --- the table -------------------------------------------------------------------------------- */

static void io_send(void *context, struct exchange_send *send)
{
    struct bench *bench = context;
    send->next = bench->sends;
    bench->sends = send;
}

static void io_reduce(void *context, struct reduce_task *task)
{
    struct bench *bench = context;
    task->next = bench->tasks;
    bench->tasks = task;
}

static void io_complete(void *context, struct exchange_worker *worker,
                        const struct arena_completion *completion)
{
    (void)context, (void)worker, (void)completion;
}

static int io_post_receive(void *context, uint32_t node, struct buffer *buffer)
{
    struct bench *bench = context;
    struct peer *peer = &bench->peers[node];
    NEED(peer->posted_count < 64);
    peer->posted[peer->posted_count++] = buffer;
    return 0;
}

static void io_event(void *context, struct engine_event *event)
{
    (void)context;
    fprintf(stderr, "event %d: %s\n", (int)event->type, event->text);
    exit(1);
}

static void io_release_worker(void *context, struct exchange_worker *worker)
{
    (void)context, (void)worker;
}

/* --- the other nodes -------------------------------------------------------------------------- */

static void bring(struct bench *bench, uint32_t node, uint8_t type, const struct wire_ask *ask,
                  uint32_t bytes)
{
    struct incoming *it = calloc(1, sizeof(*it));
    NEED(it);
    it->node = node;
    it->bytes = bytes;
    it->header = (struct wire_header){.type = type,
                                      .token = 1000 + node,
                                      .job = JOB,
                                      .generation = 1,
                                      .sequence = bench->sequence,
                                      .payload_bytes = bytes,
                                      .ask = *ask};
    *bench->last = it;
    bench->last = &it->next;
}

static void answer(struct bench *bench, const struct exchange_send *send)
{
    struct wire_header header;
    struct error error;
    uint8_t message[WIRE_HEADER_BYTES + CHUNK_BYTES];
    memcpy(message, send->header, WIRE_HEADER_BYTES);
    NEED(wire_decode_header(message, WIRE_HEADER_BYTES + send->payload_bytes, &header, &error) ==
         0);
    if (header.type == WIRE_RESULT) {
        bench->peers[send->node].under_way--;
        return;
    }
    struct route route =
        route_find((enum collective_kind)header.ask.kind, 0, header.ask.block, bench->ranks);
    bool returns = header.ask.block > 0 && (route.to == ROUTE_ALL || node_of(bench, route.to) == 0);
    uint32_t bytes = returns ? (uint32_t)header.ask.count * 4 : 0;
    bring(bench, send->node, WIRE_RESULT, &header.ask, bytes);
}

/* The peers' parts of our blocks: all of them in an all-gather, their own in an all-to-all. */
static void contribute(struct bench *bench, uint32_t node)
{
    struct peer *peer = &bench->peers[node];
    while (peer->under_way < bench->window && peer->next_rank < bench->per_node) {
        bool pairs = bench->kind == COLLECTIVE_ALL_TO_ALL;
        struct wire_ask ask = {.kind = (uint8_t)bench->kind, .count = bench->count};
        ask.block =
            pairs ? 1 + peer->next_rank * bench->ranks + node * bench->per_node + peer->next_own
                  : 1 + peer->next_rank;
        bring(bench, node, WIRE_CONTRIBUTION, &ask, 0);
        peer->under_way++;
        if (pairs && ++peer->next_own < bench->per_node)
            continue;
        peer->next_own = 0;
        peer->next_rank++;
    }
}

static bool deliver(struct bench *bench)
{
    struct incoming *it = bench->first;
    if (!it)
        return false;
    bench->first = it->next;
    if (!bench->first)
        bench->last = &bench->first;
    struct peer *peer = &bench->peers[it->node];
    NEED(peer->posted_count > 0);
    struct buffer *buffer = peer->posted[--peer->posted_count];
    wire_encode_header(buffer->data, &it->header);
    memset(buffer->data + WIRE_HEADER_BYTES, 0, it->bytes);
    uint32_t from;
    struct error error;
    if (exchange_receive(bench->exchange, it->node, buffer, WIRE_HEADER_BYTES + it->bytes, 0, &from,
                         &error) != 0) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    bench->messages++;
    free(it);
    return true;
}

/* --- our ranks -------------------------------------------------------------------------------- */

static bool submit_one(struct bench *bench, uint32_t rank)
{
    struct exchange_worker *worker = &bench->workers[rank];
    if (worker->requests >= SUBMITTED_MAX)
        return false;
    uint32_t block = bench->next_block[rank];
    if (bench->submitted[rank] && block == 0)
        return false;
    struct arena_submission it = {.type = ARENA_SUBMIT,
                                  .kind = (uint8_t)bench->kind,
                                  .sequence = bench->sequence,
                                  .count = bench->count,
                                  .block = block,
                                  .in_offset = worker->arena.data_offset,
                                  .out_offset = worker->arena.data_offset + CHUNK_BYTES};
    if (block == 0)
        it.count = bench->count * bench->ranks;
    if (block == 0 && bench->kind == COLLECTIVE_ALL_TO_ALL)
        it.count = 0;
    struct error error;
    if (exchange_submit(bench->exchange, worker, &it, 0, &error) != 0) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    bench->submitted[rank] = true;
    bench->next_block[rank] = route_next_block(bench->kind, 0, rank, bench->ranks, block + 1);
    return true;
}

/* One round of the engine's loop; whether anything was done. */
static bool run_once(struct bench *bench)
{
    bool any = false;
    for (uint32_t rank = 0; rank < bench->per_node; rank++) {
        for (uint32_t i = 0; i < RING_BATCH && submit_one(bench, rank); i++)
            any = true;
    }
    for (uint32_t i = 0; i < FABRIC_BATCH && deliver(bench); i++)
        any = true;
    exchange_run(bench->exchange);
    while (bench->tasks) {
        struct reduce_task *task = bench->tasks;
        bench->tasks = task->next;
        exchange_reduced(bench->exchange, task);
        any = true;
    }
    while (bench->sends) {
        struct exchange_send *send = bench->sends;
        bench->sends = send->next;
        answer(bench, send);
        uint32_t node = send->node;
        exchange_sent(bench->exchange, send);
        contribute(bench, node);
        any = true;
    }
    exchange_run(bench->exchange);
    return any || bench->sends || bench->tasks;
}

/* All of one collective; its block 0 is answered like the others. */
static void run_collective(struct bench *bench, enum collective_kind kind)
{
    bench->kind = kind;
    bench->messages = 0;
    for (uint32_t rank = 0; rank < bench->per_node; rank++) {
        bench->next_block[rank] = 0;
        bench->submitted[rank] = false;
    }
    uint64_t start_ns = clock_now_ns();
    for (uint32_t node = 1; node < bench->nodes; node++) {
        bench->peers[node].next_rank = bench->peers[node].next_own = 0;
        contribute(bench, node);
    }
    while (run_once(bench))
        ;
    double seconds = (double)(clock_now_ns() - start_ns) / 1e9;
    NEED(exchange_idle(bench->exchange));
    printf("%-12s %8llu messages received %10.3f s %8.2f us each\n", collective_name(kind),
           (unsigned long long)bench->messages, seconds, seconds * 1e6 / (double)bench->messages);
    bench->sequence++;
}

static void bench_open(struct bench *bench)
{
    struct error error;
    bench->ranks = bench->nodes * bench->per_node;
    bench->window = 16;
    if (bench->nodes > 16)
        bench->window =
            bench->window * 16 / bench->nodes < 2 ? 2 : bench->window * 16 / bench->nodes;
    bench->last = &bench->first;
    uint32_t *rank_nodes = calloc(bench->ranks, sizeof(*rank_nodes));
    uint32_t *servers = calloc(bench->nodes, sizeof(*servers));
    uint32_t *weights = calloc(bench->nodes, sizeof(*weights));
    const char **names = calloc(bench->nodes, sizeof(*names));
    bench->peers = calloc(bench->nodes, sizeof(*bench->peers));
    bench->workers = calloc(bench->per_node, sizeof(*bench->workers));
    bench->next_block = calloc(bench->per_node, sizeof(*bench->next_block));
    bench->submitted = calloc(bench->per_node, sizeof(*bench->submitted));
    for (uint32_t i = 0; i < bench->ranks; i++)
        rank_nodes[i] = node_of(bench, i);
    for (uint32_t i = 0; i < bench->nodes; i++) {
        servers[i] = (i + 1) % bench->nodes; /* those of the collectives are not ours */
        weights[i] = 1;
        names[i] = "node";
    }
    NEED(buffer_pool_create(&bench->pool, WIRE_HEADER_BYTES + CHUNK_BYTES, 1ull << 30, NULL,
                            &error) == 0);
    struct exchange_options options = {.node_count = bench->nodes,
                                       .node_names = names,
                                       .chunk_bytes = CHUNK_BYTES,
                                       .least_shard_bytes = 1024,
                                       .window_chunks = 16,
                                       .window_bytes = 1u << 19,
                                       .late_ns = NS_PER_S,
                                       .pool = bench->pool,
                                       .io = {.context = bench,
                                              .send = io_send,
                                              .reduce = io_reduce,
                                              .complete = io_complete,
                                              .post_receive = io_post_receive,
                                              .event = io_event,
                                              .release_worker = io_release_worker}};
    NEED(exchange_create(&bench->exchange, &options, &error) == 0);
    for (uint32_t i = 1; i < bench->nodes; i++)
        exchange_peer_up(bench->exchange, i, 1000 + i, 2000 + i);
    struct engine_job job = {.job = JOB,
                             .name = "bench",
                             .world_size = bench->ranks,
                             .rank_nodes = rank_nodes,
                             .server_count = bench->nodes,
                             .server_nodes = servers,
                             .server_weights = weights};
    NEED(exchange_job_open(bench->exchange, &job, &error) == 0);
    for (uint32_t rank = 0; rank < bench->per_node; rank++) {
        struct exchange_worker *worker = &bench->workers[rank];
        void *memory = aligned_alloc(4096, ARENA_BYTES);
        NEED(memory);
        memset(memory, 0, ARENA_BYTES);
        worker->rank = rank;
        NEED(arena_format(&worker->arena, memory, ARENA_BYTES, 1024, &error) == 0);
        NEED(exchange_attach(bench->exchange, JOB, worker, &error) == 0);
    }
    free(rank_nodes);
    free(servers);
    free(weights);
}

int main(int argc, char **argv)
{
    struct bench bench = {.nodes = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 100,
                          .per_node = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 10,
                          .count = argc > 3 ? strtoull(argv[3], NULL, 10) : 16};
    NEED(bench.nodes > 2 && bench.per_node > 0 && bench.count <= CHUNK_BYTES / 4);
    bench_open(&bench);
    run_collective(&bench, COLLECTIVE_ALL_GATHER);
    run_collective(&bench, COLLECTIVE_ALL_TO_ALL);
    return 0; /* the system takes all back */
}
