/* The memory for each worker and each peer, and the processor time of each step, that a daemon
 * needs in a large job. A whole cluster in one process, or several beside each other.
 *
 *   bench_scale NODES RANKS_PER_NODE [CLUSTERS [join]]
 *
 * Real are the coordinators, their messages, and the exchanges with their buffers, of every node.
 * Played are the workers, the links, which hand on at once and in order, and the sums, which are
 * not made. The played parts map what they need by themselves, so that the heap is the daemons'
 * alone; the time of the links is no daemon's time.
 *
 * Prints a line of JSON: bytes of heap and of chunk buffers of a daemon (means), connected and with
 * the job open; for each step the time of a daemon, mean and most, and the messages over the fabric
 * that it received, mean; and how long the step takes in virtual time, where each daemon has a
 * processor of its own and a link of 100 Gbit/s and 10 us. A daemon takes what has come in the
 * order in which this program gets there, so that is an upper bound.
 *
 * join: without collectives, but with the heap of each daemon counted by itself: "home_bytes" is
 * the most that one has with the job open. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/format/arena.h"
#include "common/format/message.h"
#include "common/memory/buffer.h"
#include "server/coordinator/coordinator.h"
#include "server/exchange/exchange.h"
#include "server/jobs/membership.h"
#include "tests/bench/bench_ground.h"

#define NODES_MAX 1024
#define CHUNK_BYTES 4096u
#define SHARD_BYTES 1024u
#define POSTED_MAX 64
#define ARENA_BYTES (1u << 20)
#define ARENA_ENTRIES 64
#define ROUNDS 60
#define FABRIC_BATCH 64                /* as the engine takes */
#define ITEMS_MAX 65536                /* on their way to a daemon */
#define LINES_BYTES ((size_t)16 << 30) /* what is not written to takes no memory */
#define NOW_NS NS_PER_S
#define LINK_BYTES_PER_US 12500u /* 100 Gbit/s */
#define LINK_DELAY_NS (10 * 1000ull)

struct scale;

enum item_kind { ITEM_LINE, ITEM_MESSAGE, ITEM_SENT, ITEM_TASK, ITEM_EVENT };

/* Something on its way to a daemon. */
struct item {
    enum item_kind kind;
    uint32_t from, to;
    void *what;
    size_t length;
    uint64_t at_ns; /* when it is there, in virtual time */
};

/* In the order in which they came. */
struct items {
    struct item *item; /* [ITEMS_MAX] */
    uint32_t first, end;
};

struct peer {
    struct buffer *posted[POSTED_MAX];
    uint32_t posted_count;
};

struct daemon {
    struct scale *scale;
    uint32_t number, base; /* in its cluster; of the cluster among all */
    struct config config;
    struct membership membership;
    struct coordinator *coordinator;
    struct buffer_pool *pool;
    struct exchange *exchange;
    const char *names[NODES_MAX];
    struct peer peers[NODES_MAX];
    struct items in; /* what is on its way to it */
    uint64_t spent_ns, messages;
    uint64_t free_ns, link_ns; /* in virtual time: what it has done, and has sent, is over */
    int64_t heap;              /* bytes, where each daemon's are counted */
};

struct rank {
    uint32_t daemon, handle;
    struct exchange_worker *worker;
};

struct scale {
    uint32_t nodes, per_node, ranks;   /* of a cluster */
    uint32_t daemon_count, rank_count; /* of all clusters */
    bool counts_heaps;
    struct daemon *daemons;
    struct rank *rank; /* [rank_count]; handle is the place + 1 */
    struct items out;  /* of the daemon that runs, until the links take it */
    char *lines;       /* [LINES_BYTES]: of a step, between daemons */
    size_t lines_used;
    uint64_t random, sequence;
    uint32_t joined, left;
    uint64_t done; /* requests, of all ranks */
};

static uint64_t buffer_bytes(const struct scale *scale)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < scale->daemon_count; i++)
        bytes += buffer_pool_allocated_bytes(scale->daemons[i].pool);
    return bytes;
}

/* --- what is on its way ----------------------------------------------------------------------- */

static void items_add(struct items *items, struct item item)
{
    NEED(items->end < ITEMS_MAX);
    items->item[items->end++] = item;
}

/* By the daemon that runs: for another of its cluster, or for itself. */
static void item_put(const struct daemon *by, struct item item)
{
    items_add(&by->scale->out, item);
}

/* When it is there: links send one thing after the other. */
static uint64_t item_arrives_ns(struct daemon *by, const struct item *item)
{
    bool travels = item->kind == ITEM_LINE || item->kind == ITEM_MESSAGE;
    if (!travels)
        return by->free_ns;
    const struct exchange_send *send = item->what;
    size_t bytes = item->kind == ITEM_LINE ? item->length : WIRE_HEADER_BYTES + send->payload_bytes;
    if (by->link_ns < by->free_ns)
        by->link_ns = by->free_ns;
    by->link_ns += bytes * 1000 / LINK_BYTES_PER_US;
    return by->link_ns + LINK_DELAY_NS;
}

/* For a line that travels, until the step is over: no daemon's heap. */
static char *line_room(struct scale *scale, size_t bytes)
{
    char *room = scale->lines + scale->lines_used;
    scale->lines_used += bytes;
    NEED(scale->lines_used <= LINES_BYTES);
    return room;
}

/* The links take what the daemon has put to where it goes. */
static void items_carry(struct daemon *by)
{
    struct items *out = &by->scale->out;
    for (; out->first < out->end; out->first++) {
        struct item item = out->item[out->first];
        item.at_ns = item_arrives_ns(by, &item);
        items_add(&by->scale->daemons[by->base + item.to].in, item);
    }
    out->first = out->end = 0;
}

/* --- what a daemon uses ------------------------------------------------------------------------
 */

static void daemon_spend(struct daemon *daemon, uint64_t start_ns)
{
    uint64_t ns = processor_ns() - start_ns;
    daemon->spent_ns += ns;
    daemon->free_ns += ns;
}

/* The heap while the daemon runs is its own. */
static int64_t heap_begin(const struct daemon *daemon)
{
    return daemon->scale->counts_heaps ? (int64_t)heap_bytes() : 0;
}

static void heap_end(struct daemon *daemon, int64_t before)
{
    if (daemon->scale->counts_heaps)
        daemon->heap += (int64_t)heap_bytes() - before;
}

/* --- the exchange's table --------------------------------------------------------------------- */

static void io_send(void *context, struct exchange_send *send)
{
    const struct daemon *daemon = context;
    item_put(daemon,
             (struct item){
                 .kind = ITEM_MESSAGE, .from = daemon->number, .to = send->node, .what = send});
}

static void io_reduce(void *context, struct reduce_task *task)
{
    const struct daemon *daemon = context;
    item_put(daemon, (struct item){.kind = ITEM_TASK, .to = daemon->number, .what = task});
}

static void io_complete(void *context, struct exchange_worker *worker,
                        const struct arena_completion *completion)
{
    const struct daemon *daemon = context;
    (void)worker;
    if (completion->type == ARENA_REQUEST_DONE)
        daemon->scale->done++;
}

static int io_post_receive(void *context, uint32_t node, struct buffer *buffer)
{
    struct daemon *daemon = context;
    struct peer *peer = &daemon->peers[node];
    NEED(peer->posted_count < POSTED_MAX);
    peer->posted[peer->posted_count++] = buffer;
    return 0;
}

static void io_event(void *context, struct engine_event *event)
{
    const struct daemon *daemon = context;
    item_put(daemon, (struct item){.kind = ITEM_EVENT, .to = daemon->number, .what = event});
}

static void io_release_worker(void *context, struct exchange_worker *worker)
{
    (void)context;
    free(worker);
}

/* --- the coordinator's table ------------------------------------------------------------------ */

static uint64_t world_random(void *context)
{
    const struct daemon *daemon = context;
    return daemon->scale->random += 0x9e3779b97f4a7c15ull;
}

static void world_send_peer(void *context, uint32_t node, const struct message *message)
{
    const struct daemon *daemon = context;
    size_t length;
    char *line = message_encode(message, &length);
    NEED(line);
    line[--length] = '\0'; /* without the newline */
    char *travels = line_room(daemon->scale, length + 1);
    memcpy(travels, line, length + 1);
    free(line);
    item_put(daemon, (struct item){.kind = ITEM_LINE,
                                   .from = daemon->number,
                                   .to = node,
                                   .what = travels,
                                   .length = length});
}

static void world_send_worker(void *context, uint32_t handle, const struct message *message)
{
    const struct daemon *daemon = context;
    struct scale *scale = daemon->scale;
    size_t length;
    (void)handle;
    free(message_encode(message, &length));
    scale->joined += message->type == MESSAGE_JOINED;
    scale->left += message->type == MESSAGE_LEFT;
    NEED_TEXT(message->type == MESSAGE_JOINED || message->type == MESSAGE_LEFT, message->text);
}

static void world_end_worker(void *context, uint32_t handle)
{
    (void)context, (void)handle;
}

static struct engine_event *event_of(enum engine_event_type type, uint64_t job, int code,
                                     const struct error *error)
{
    struct engine_event *event = engine_event_create(type);
    event->job = job;
    event->code = code;
    snprintf(event->text, sizeof(event->text), "%s", code ? error->text : "");
    return event;
}

static void daemon_attach(struct daemon *daemon, uint64_t job, uint32_t number, uint32_t handle)
{
    struct rank *rank = &daemon->scale->rank[handle - 1];
    struct exchange_worker *worker = calloc(1, sizeof(*worker));
    struct error error;
    NEED(worker);
    worker->rank = number;
    NEED(arena_format(&worker->arena, own(ARENA_BYTES), ARENA_BYTES, ARENA_ENTRIES, &error) == 0);
    NEED_TEXT(exchange_attach(daemon->exchange, job, worker, &error) == 0, error.text);
    rank->worker = worker;
}

static void world_command(void *context, const struct engine_command *command)
{
    struct daemon *daemon = context;
    struct exchange *exchange = daemon->exchange;
    struct error error;
    int code;
    switch (command->kind) {
    case COMMAND_JOB_OPEN:
        code = exchange_job_open(exchange, command->roster, &error);
        io_event(daemon, event_of(ENGINE_JOB_OPENED, command->job, code, &error));
        break;
    case COMMAND_JOB_CLOSE:
        exchange_job_close(exchange, command->job);
        break;
    case COMMAND_JOB_FAIL:
        NEED_TEXT(false, "the job failed");
        break;
    case COMMAND_RANK_DEPARTED:
        exchange_rank_left(exchange, command->job, command->group, command->departed.rank,
                           command->departed.sequences);
        break;
    case COMMAND_WORKER_ATTACH:
        daemon_attach(daemon, command->job, command->attach.rank, command->attach.worker);
        break;
    case COMMAND_WORKER_DETACH:
        exchange_detach(exchange, exchange_find_worker(exchange, command->job, command->rank));
        break;
    default:
        break;
    }
}

/* --- a daemon --------------------------------------------------------------------------------- */

static void daemon_create(struct scale *scale, uint32_t place)
{
    struct daemon *daemon = &scale->daemons[place];
    uint32_t number = place % scale->nodes;
    struct error error;
    daemon->scale = scale;
    daemon->number = number;
    daemon->base = place - number;
    daemon->in.item = own(ITEMS_MAX * sizeof(struct item));
    char sections[128];
    snprintf(sections, sizeof(sections), "\"data\":{\"chunk_bytes\":%u,\"least_shard_bytes\":%u}",
             CHUNK_BYTES, SHARD_BYTES);
    configure_node(&daemon->config, number, scale->nodes, sections);
    const struct config *config = &daemon->config;
    NEED(membership_init(&daemon->membership, scale->nodes, number, config->heartbeat_ms,
                         config->peer_ms, NOW_NS) == 0);
    struct coordinator_io world = {
        .context = daemon,
        .random = world_random,
        .send_peer = world_send_peer,
        .send_worker = world_send_worker,
        .end_worker = world_end_worker,
        .command = world_command,
    };
    NEED(coordinator_create(&daemon->coordinator, config, NULL, &daemon->membership, &world) == 0);
    NEED(buffer_pool_create(&daemon->pool, WIRE_HEADER_BYTES + CHUNK_BYTES, config->memory_bytes,
                            NULL, &error) == 0);
    for (uint32_t i = 0; i < scale->nodes; i++)
        daemon->names[i] = config->servers[i].name;
    struct exchange_options options = {.self = number,
                                       .node_count = scale->nodes,
                                       .node_names = daemon->names,
                                       .chunk_bytes = CHUNK_BYTES,
                                       .least_shard_bytes = SHARD_BYTES,
                                       .window_chunks = config->window_chunks,
                                       .window_bytes = config->window_bytes,
                                       .late_ns = NS_PER_S,
                                       .pool = daemon->pool,
                                       .io = {.context = daemon,
                                              .send = io_send,
                                              .reduce = io_reduce,
                                              .complete = io_complete,
                                              .post_receive = io_post_receive,
                                              .event = io_event,
                                              .release_worker = io_release_worker}};
    NEED(exchange_create(&daemon->exchange, &options, &error) == 0);
}

static uint64_t link_token(uint32_t from, uint32_t to)
{
    return 0x70000000ull + from * 1000ull + to;
}

static void daemon_hears_peer(struct daemon *daemon, uint32_t peer)
{
    membership_connected(&daemon->membership, peer, 1, NOW_NS);
    coordinator_peer_connected(daemon->coordinator, NOW_NS, peer);
    exchange_peer_up(daemon->exchange, peer, link_token(peer, daemon->number),
                     link_token(daemon->number, peer));
    membership_up(&daemon->membership, peer, NOW_NS);
    coordinator_peer_up(daemon->coordinator, NOW_NS, peer);
}

static void line_deliver(struct daemon *daemon, const struct item *item)
{
    struct message message;
    struct error error;
    NEED_TEXT(message_decode(&message, MESSAGE_BETWEEN_DAEMONS, item->what, item->length, &error) ==
                  0,
              error.text);
    NEED_TEXT(coordinator_peer_message(daemon->coordinator, NOW_NS, item->from, &message, &error) ==
                  0,
              error.text);
    message_clear(&message);
}

/* The link's part: the header goes into a buffer that the daemon has posted (nobody reads the
 * payload, since nothing is summed), and the send back to its sender. */
static void message_carry(struct daemon *daemon, struct item *item)
{
    struct exchange_send *send = item->what;
    struct peer *peer = &daemon->peers[item->from];
    NEED(peer->posted_count > 0);
    struct buffer *buffer = peer->posted[--peer->posted_count];
    memcpy(buffer->data, send->header, WIRE_HEADER_BYTES);
    item->what = buffer;
    item->length = WIRE_HEADER_BYTES + send->payload_bytes;
    item_put(daemon, (struct item){.kind = ITEM_SENT, .to = item->from, .what = send});
}

static void message_deliver(struct daemon *daemon, const struct item *item)
{
    uint32_t from;
    struct error error;
    NEED_TEXT(exchange_receive(daemon->exchange, item->from, item->what, (uint32_t)item->length,
                               NOW_NS, &from, &error) == 0,
              error.text);
    daemon->messages++;
}

static void event_deliver(struct daemon *daemon, struct engine_event *event)
{
    NEED_TEXT(event->code == 0, event->text);
    NEED(coordinator_engine_event(daemon->coordinator, NOW_NS, event));
    engine_event_free(event);
}

/* Deliver the item as the daemon's threads would. */
static void item_deliver(struct daemon *daemon, const struct item *item)
{
    switch (item->kind) {
    case ITEM_LINE:
        line_deliver(daemon, item);
        coordinator_tick(daemon->coordinator, NOW_NS);
        break;
    case ITEM_MESSAGE:
        message_deliver(daemon, item);
        break;
    case ITEM_SENT:
        exchange_sent(daemon->exchange, item->what);
        break;
    case ITEM_TASK:
        exchange_reduced(daemon->exchange, item->what);
        break;
    case ITEM_EVENT:
        event_deliver(daemon, item->what);
        coordinator_tick(daemon->coordinator, NOW_NS);
        break;
    }
}

/* Run a round of the engine's loop, timed. The work of the links, before and after it, is not
 * timed. */
static void daemon_run(struct daemon *daemon)
{
    struct items *in = &daemon->in;
    uint32_t end = in->first + FABRIC_BATCH < in->end ? in->first + FABRIC_BATCH : in->end;
    for (uint32_t i = in->first; i < end; i++) {
        if (in->item[i].kind == ITEM_MESSAGE)
            message_carry(daemon, &in->item[i]);
    }
    for (uint32_t i = in->first; i < end; i++) {
        if (daemon->free_ns < in->item[i].at_ns)
            daemon->free_ns = in->item[i].at_ns;
    }
    int64_t heap = heap_begin(daemon);
    uint64_t start_ns = processor_ns();
    for (uint32_t i = in->first; i < end; i++)
        item_deliver(daemon, &in->item[i]);
    exchange_run(daemon->exchange);
    daemon_spend(daemon, start_ns);
    heap_end(daemon, heap);
    in->first = end;
    if (in->first == in->end)
        in->first = in->end = 0;
    items_carry(daemon);
}

/* Daemon by daemon, each all that has come, as with a processor of its own. */
static void settle(struct scale *scale)
{
    for (bool any = true; any;) {
        any = false;
        for (uint32_t i = 0; i < scale->daemon_count; i++) {
            for (; scale->daemons[i].in.end > 0; any = true)
                daemon_run(&scale->daemons[i]);
        }
    }
}

/* --- the steps -------------------------------------------------------------------------------- */

struct step {
    double mean_us, most_us, messages; /* of the daemons */
    double virtual_us;                 /* until the last has done its part */
};

static void step_begin(struct scale *scale)
{
    scale->lines_used = 0; /* nothing is on its way */
    for (uint32_t i = 0; i < scale->daemon_count; i++)
        scale->daemons[i].spent_ns = scale->daemons[i].messages = scale->daemons[i].free_ns =
            scale->daemons[i].link_ns = 0;
}

static struct step step_end(const struct scale *scale)
{
    struct step step = {0};
    for (uint32_t i = 0; i < scale->daemon_count; i++) {
        double spent_us = (double)scale->daemons[i].spent_ns / 1e3;
        step.mean_us += spent_us / scale->daemon_count;
        step.most_us = spent_us > step.most_us ? spent_us : step.most_us;
        step.messages += (double)scale->daemons[i].messages / scale->daemon_count;
        double virtual_us = (double)scale->daemons[i].free_ns / 1e3;
        step.virtual_us = virtual_us > step.virtual_us ? virtual_us : step.virtual_us;
    }
    return step;
}

static void step_print(const char *name, const struct step *step)
{
    printf("\"%s\":{\"mean_us\":%.3f,\"most_us\":%.3f,\"virtual_us\":%.3f,\"messages\":%.3f},",
           name, step->mean_us, step->most_us, step->virtual_us, step->messages);
}

/* A daemon's ranks one after another, timed together. */
static void ranks_do(struct scale *scale, void (*act)(struct scale *, uint32_t, const void *),
                     const void *what)
{
    for (uint32_t i = 0; i < scale->daemon_count; i++) {
        struct daemon *daemon = &scale->daemons[i];
        int64_t heap = heap_begin(daemon);
        uint64_t start_ns = processor_ns();
        for (uint32_t k = 0; k < scale->per_node; k++)
            act(scale, i * scale->per_node + k, what);
        exchange_run(daemon->exchange);
        coordinator_tick(daemon->coordinator, NOW_NS);
        daemon_spend(daemon, start_ns);
        heap_end(daemon, heap);
        items_carry(daemon);
    }
    settle(scale);
}

static void rank_says(struct scale *scale, uint32_t number, const void *what)
{
    struct message message = *(const struct message *)what;
    struct coordinator_credentials credentials = {.uid = 0, .pid = 1};
    struct error error;
    message.rank = (int32_t)(number % scale->ranks);
    message.local_rank = (int32_t)(number % scale->per_node);
    NEED_TEXT(coordinator_worker_message(scale->daemons[scale->rank[number].daemon].coordinator,
                                         NOW_NS, scale->rank[number].handle, &credentials, &message,
                                         &error) == 0,
              error.text);
}

static void join(struct scale *scale)
{
    struct message message = {.type = MESSAGE_JOIN, .job = "bench", .world_size = scale->ranks};
    ranks_do(scale, rank_says, &message);
    NEED(scale->joined == scale->rank_count);
}

static void leave(struct scale *scale)
{
    struct message message = {.type = MESSAGE_LEAVE};
    ranks_do(scale, rank_says, &message);
    NEED(scale->left == scale->rank_count);
}

static void rank_submits(struct scale *scale, uint32_t number, const void *what)
{
    struct exchange_worker *worker = scale->rank[number].worker;
    struct arena_submission it = *(const struct arena_submission *)what;
    struct error error;
    it.in_offset = it.out_offset = worker->arena.data_offset;
    NEED_TEXT(exchange_submit(scale->daemons[scale->rank[number].daemon].exchange, worker, &it,
                              NOW_NS, &error) == 0,
              error.text);
}

static void collective(struct scale *scale, enum collective_kind kind, uint64_t count)
{
    uint64_t done = scale->done;
    struct arena_submission it = {
        .type = ARENA_SUBMIT, .kind = (uint8_t)kind, .sequence = scale->sequence, .count = count};
    ranks_do(scale, rank_submits, &it);
    scale->sequence++;
    NEED(scale->done == done + scale->rank_count);
}

/* The quickest of some rounds, after one that makes what the others use again. */
static void collective_measure(struct scale *scale, enum collective_kind kind, uint64_t count)
{
    struct step least = {0};
    for (int round = 0; round <= ROUNDS; round++) {
        step_begin(scale);
        collective(scale, kind, count);
        struct step step = step_end(scale);
        if (round == 1 || (round > 1 && step.mean_us < least.mean_us))
            least = step;
    }
    step_print(collective_name(kind), &least);
}

static void measure_collectives(struct scale *scale)
{
    /* A chunk for each server. */
    collective_measure(scale, COLLECTIVE_ALL_REDUCE, (uint64_t)scale->nodes * SHARD_BYTES / 4);
    collective_measure(scale, COLLECTIVE_BARRIER, 0);
}

static void scale_open(struct scale *scale, uint32_t clusters)
{
    scale->ranks = scale->nodes * scale->per_node;
    scale->daemon_count = scale->nodes * clusters;
    scale->rank_count = scale->ranks * clusters;
    scale->daemons = own(scale->daemon_count * sizeof(*scale->daemons));
    scale->rank = own(scale->rank_count * sizeof(*scale->rank));
    scale->lines = own(LINES_BYTES);
    scale->out.item = own(ITEMS_MAX * sizeof(struct item));
    for (uint32_t i = 0; i < scale->rank_count; i++)
        scale->rank[i] = (struct rank){.daemon = i / scale->per_node, .handle = i + 1};
    for (uint32_t i = 0; i < scale->daemon_count; i++) {
        int64_t heap = heap_begin(&(struct daemon){.scale = scale});
        daemon_create(scale, i);
        heap_end(&scale->daemons[i], heap);
    }
    for (uint32_t i = 0; i < scale->daemon_count; i++) {
        int64_t heap = heap_begin(&scale->daemons[i]);
        for (uint32_t peer = 0; peer < scale->nodes; peer++)
            if (peer != scale->daemons[i].number)
                daemon_hears_peer(&scale->daemons[i], peer);
        heap_end(&scale->daemons[i], heap);
        items_carry(&scale->daemons[i]);
    }
    settle(scale);
}

int main(int argc, char **argv)
{
    bool joins_alone = argc == 5 && strcmp(argv[4], "join") == 0;
    if (argc < 3 || argc > 5 || (argc == 5 && !joins_alone)) {
        fprintf(stderr, "usage: bench_scale NODES RANKS_PER_NODE [CLUSTERS [join]]\n");
        return 2;
    }
    struct scale scale = {.nodes = number_of(argv[1], 2, NODES_MAX),
                          .per_node = number_of(argv[2], 1, 100),
                          .counts_heaps = joins_alone};
    uint32_t clusters = argc > 3 ? number_of(argv[3], 1, 16) : 1;
    printf("{\"nodes\":%u,\"ranks\":%u,", scale.nodes, scale.nodes * scale.per_node);
    uint64_t nothing = heap_bytes(), up, joined, worked;
    scale_open(&scale, clusters);
    up = heap_bytes();
    step_begin(&scale);
    join(&scale);
    struct step step = step_end(&scale);
    step_print("join", &step);
    joined = heap_bytes();
    int64_t home = 0;
    for (uint32_t i = 0; i < scale.daemon_count; i++)
        home = scale.daemons[i].heap > home ? scale.daemons[i].heap : home;
    if (joins_alone)
        printf("\"home_bytes\":%lld,", (long long)home);
    else
        measure_collectives(&scale);
    worked = heap_bytes();
    uint64_t buffers = buffer_bytes(&scale);
    step_begin(&scale);
    leave(&scale);
    step = step_end(&scale);
    step_print("leave", &step);
    double daemons = scale.daemon_count;
    printf("\"up_bytes\":%.0f,\"joined_bytes\":%.0f,\"worked_bytes\":%.0f,\"left_bytes\":%.0f,"
           "\"buffer_bytes\":%.0f}\n",
           (double)(up - nothing) / daemons, (double)(joined - nothing) / daemons,
           (double)(worked - nothing) / daemons, (double)(heap_bytes() - nothing) / daemons,
           (double)buffers / daemons);
    fflush(stdout);
    _exit(
        0); /* the system takes all back; a leak checker does not see what `own` memory refers to */
}
