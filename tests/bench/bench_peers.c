/* The memory and time that a daemon needs for its peers, with a roster of any size and the
 * configuration's defaults.
 *
 *   bench_peers PEERS...
 *
 * One daemon of a roster of PEERS + 1 nodes, all of them servers, in this process: its real
 * coordinator, exchange and transport. All peers are connected; then a job opens with two ranks on
 * each node. Nobody is at the other end: the program counts what is promised and posted, and what a
 * look at idle peers costs.
 *
 * Prints a line of JSON for each number of peers:
 *   chunk_bytes, window       the group's values of both
 *   receive_bytes             promised for receives of the peers' messages
 *   sum_bytes                 promised for sums on this node
 *   allocated_bytes           of chunk buffers: all receives are posted
 *   peer_heap_bytes           heap of an idle peer in coordinator and exchange
 *   fabric_heap_bytes         of the transport without a connection, its queues among it
 *   tick_us                   a tick of the exchange (there are ten a second), all peers idle
 *   poll_us                   a look at the transport, of which each round of the engine has one */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/format/message.h"
#include "common/format/window.h"
#include "common/format/wire.h"
#include "common/log/log.h"
#include "common/memory/buffer.h"
#include "common/transport/transport.h"
#include "server/coordinator/coordinator.h"
#include "server/exchange/exchange.h"
#include "server/jobs/membership.h"
#include "tests/bench/bench_ground.h"

#define PEERS_MAX 4095
#define LOOKS 2000
#define SILENCES 8 /* ticks, at least, in options.silence_ns */

struct daemon {
    struct config config;
    struct log *log;
    struct membership membership;
    struct coordinator *coordinator;
    struct buffer_pool *pool;
    struct exchange *exchange;
    struct transport *transport;
    const char **names;
    struct buffer **posted; /* [room] */
    size_t posted_count, room;
    uint32_t nodes;
};

/* --- what the daemon asks of the world, of which there is none ---------------------------------
 */

static int io_post_receive(void *context, uint32_t node, struct buffer *buffer)
{
    struct daemon *daemon = context;
    (void)node;
    if (daemon->posted_count == daemon->room) {
        daemon->room = daemon->room * 2 + 1024;
        daemon->posted = realloc(daemon->posted, daemon->room * sizeof(*daemon->posted));
        NEED(daemon->posted);
    }
    daemon->posted[daemon->posted_count++] = buffer;
    return 0;
}

static void io_send(void *context, struct exchange_send *send)
{
    (void)context, (void)send;
    NEED_TEXT(false, "an idle daemon sends");
}

static void io_reduce(void *context, struct reduce_task *task)
{
    (void)context, (void)task;
}

static void io_complete(void *context, struct exchange_worker *worker,
                        const struct arena_completion *completion)
{
    (void)context, (void)worker, (void)completion;
}

static void io_event(void *context, struct engine_event *event)
{
    (void)context;
    engine_event_free(event);
}

static void io_release_worker(void *context, struct exchange_worker *worker)
{
    (void)context, (void)worker;
}

static void io_peer_silent(void *context, uint32_t node, const char *what)
{
    (void)context, (void)node;
    NEED_TEXT(false, what);
}

static uint64_t world_random(void *context)
{
    (void)context;
    return 1;
}

static void world_send_peer(void *context, uint32_t node, const struct message *message)
{
    (void)context, (void)node, (void)message;
}

static void world_end_worker(void *context, uint32_t handle)
{
    (void)context, (void)handle;
}

static void world_command(void *context, const struct engine_command *command)
{
    (void)context, (void)command;
}

/* --- the daemon --------------------------------------------------------------------------------
 */

static void open_transport(struct daemon *daemon)
{
    const struct config *config = &daemon->config;
    struct transport_options options = {
        .provider = config->provider,
        .interface_address = config->fabric_address,
        .message_bytes = WIRE_HEADER_BYTES + config->chunk_bytes,
        .peers = daemon->nodes,
        .sends_per_peer = 4 * config->window_chunks,
        .receives_per_peer = 4 * config->window_chunks,
        .log = daemon->log,
    };
    struct error error;
    NEED_TEXT(transport_open(&daemon->transport, &options, &error) == 0, error.text);
}

static void open_exchange(struct daemon *daemon)
{
    const struct config *config = &daemon->config;
    struct error error;
    NEED_TEXT(buffer_pool_create(&daemon->pool, WIRE_HEADER_BYTES + config->chunk_bytes,
                                 config->memory_bytes, NULL, &error) == 0,
              error.text);
    struct exchange_options options = {.self = 0,
                                       .node_count = daemon->nodes,
                                       .node_names = daemon->names,
                                       .chunk_bytes = config->chunk_bytes,
                                       .least_shard_bytes = config->least_shard_bytes,
                                       .window_chunks = config->window_chunks,
                                       .window_bytes = config->window_bytes,
                                       .late_ns = NS_PER_S,
                                       .silence_ns = NS_PER_S,
                                       .pool = daemon->pool,
                                       .io = {.context = daemon,
                                              .send = io_send,
                                              .reduce = io_reduce,
                                              .complete = io_complete,
                                              .post_receive = io_post_receive,
                                              .event = io_event,
                                              .release_worker = io_release_worker,
                                              .peer_silent = io_peer_silent}};
    NEED_TEXT(exchange_create(&daemon->exchange, &options, &error) == 0, error.text);
}

static void open_coordinator(struct daemon *daemon)
{
    const struct config *config = &daemon->config;
    NEED(membership_init(&daemon->membership, daemon->nodes, 0, config->heartbeat_ms,
                         config->peer_ms, NS_PER_S) == 0);
    struct coordinator_io world = {
        .context = daemon,
        .random = world_random,
        .send_peer = world_send_peer,
        .end_worker = world_end_worker,
        .command = world_command,
    };
    NEED(coordinator_create(&daemon->coordinator, config, NULL, &daemon->membership, &world) == 0);
}

/* Open all that has something for each peer, the transport apart; every peer is connected. */
static void open_peers(struct daemon *daemon)
{
    open_exchange(daemon);
    open_coordinator(daemon);
    for (uint32_t node = 1; node < daemon->nodes; node++) {
        membership_connected(&daemon->membership, node, 1, NS_PER_S);
        coordinator_peer_connected(daemon->coordinator, NS_PER_S, node);
        exchange_peer_up(daemon->exchange, node, node, node);
        membership_up(&daemon->membership, node, NS_PER_S);
        coordinator_peer_up(daemon->coordinator, NS_PER_S, node);
    }
}

static void open_job(struct daemon *daemon)
{
    uint32_t nodes = daemon->nodes, ranks = 2 * nodes;
    uint32_t *numbers = calloc(ranks + 2 * (size_t)nodes, sizeof(*numbers));
    NEED(numbers);
    for (uint32_t rank = 0; rank < ranks; rank++)
        numbers[rank] = rank / 2;
    for (uint32_t node = 0; node < nodes; node++) {
        numbers[ranks + node] = node;
        numbers[ranks + nodes + node] = 1;
    }
    struct engine_job job = {.job = 1,
                             .name = "bench",
                             .world_size = ranks,
                             .rank_nodes = numbers,
                             .server_count = nodes,
                             .server_nodes = numbers + ranks,
                             .server_weights = numbers + ranks + nodes};
    struct error error;
    NEED_TEXT(exchange_job_open(daemon->exchange, &job, &error) == 0, error.text);
    free(numbers);
}

static void close_daemon(struct daemon *daemon)
{
    exchange_close_jobs(daemon->exchange);
    exchange_run(daemon->exchange);
    transport_stop(daemon->transport);
    exchange_abandon_receives(daemon->exchange);
    exchange_destroy(daemon->exchange);
    buffer_pool_destroy(daemon->pool);
    transport_close(daemon->transport);
    coordinator_destroy(daemon->coordinator);
    membership_clear(&daemon->membership);
    free(daemon->posted);
    free(daemon->names);
    config_clear(&daemon->config);
}

/* --- what is measured --------------------------------------------------------------------------
 */

static double tick_us(struct daemon *daemon)
{
    uint64_t now_ns = 2 * NS_PER_S;
    for (int i = 0; i < 2 * SILENCES; i++, now_ns += NS_PER_S / SILENCES)
        exchange_tick(daemon->exchange, now_ns); /* all have been quiet for long */
    uint64_t start_ns = processor_ns();
    for (int i = 0; i < LOOKS; i++)
        exchange_tick(daemon->exchange, now_ns);
    return (double)(processor_ns() - start_ns) / 1e3 / LOOKS;
}

static double poll_us(struct daemon *daemon)
{
    struct transport_event events[16];
    uint64_t start_ns = processor_ns();
    for (int i = 0; i < LOOKS; i++)
        NEED(transport_poll(daemon->transport, events, 16) == 0);
    return (double)(processor_ns() - start_ns) / 1e3 / LOOKS;
}

static void measure(struct log *log, uint32_t peers)
{
    struct daemon daemon = {.log = log, .nodes = peers + 1};
    configure_node(&daemon.config, 0, daemon.nodes,
                   "\"fabric\":{\"provider\":\"tcp\",\"address\":\"127.0.0.1\"},"
                   "\"limits\":{\"memory_bytes\":68719476736}");
    daemon.names = calloc(daemon.nodes, sizeof(*daemon.names));
    NEED(daemon.names);
    for (uint32_t i = 0; i < daemon.nodes; i++)
        daemon.names[i] = daemon.config.servers[i].name;
    uint64_t before = heap_bytes();
    open_transport(&daemon);
    uint64_t fabric = heap_bytes() - before;
    before = heap_bytes();
    open_peers(&daemon);
    uint64_t up = heap_bytes() - before;
    open_job(&daemon);
    uint64_t promised = buffer_pool_reserved_bytes(daemon.pool);
    uint64_t buffer = (daemon.config.chunk_bytes + WIRE_HEADER_BYTES + 63u) & ~63u;
    uint32_t window = window_chunks(daemon.config.window_chunks, daemon.nodes);
    uint64_t sums = window_sums(window, daemon.nodes) * buffer;
    printf("{\"peers\":%u,\"chunk_bytes\":%u,\"window\":%u,\"receive_bytes\":%llu,"
           "\"sum_bytes\":%llu,\"allocated_bytes\":%llu,\"peer_heap_bytes\":%.0f,"
           "\"fabric_heap_bytes\":%llu,\"tick_us\":%.3f,\"poll_us\":%.3f}\n",
           peers, daemon.config.chunk_bytes, window, (unsigned long long)(promised - sums),
           (unsigned long long)sums, (unsigned long long)buffer_pool_allocated_bytes(daemon.pool),
           (double)up / peers, (unsigned long long)fabric, tick_us(&daemon), poll_us(&daemon));
    fflush(stdout);
    close_daemon(&daemon);
}

int main(int argc, char **argv)
{
    struct log log;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_peers PEERS...\n");
        return 2;
    }
    log_init(&log, "bench_peers", LOG_LEVEL_WARNING, 2, false);
    for (int i = 1; i < argc; i++)
        measure(&log, number_of(argv[i], 1, PEERS_MAX));
    log_close(&log);
    return 0;
}
