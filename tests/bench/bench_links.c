/* An all-reduce of a large job on links of a given rate and delay, in virtual time.
 *
 *   bench_links NODES RANKS_PER_NODE MIB [LATE_MS [turns|fifo]]
 *
 * Real are the exchanges of all nodes, with the configuration's defaults for a roster of as many
 * servers. Played are the links, the sums, which take no time, and the payloads: a buffer has
 * memory for its header alone. The figures therefore show the order and the number of messages, and
 * how much a node may have under way: the effect of the windows on the links.
 *
 * A node has a link of 100 Gbit/s each way to a switch that blocks and drops nothing, and 10 us lie
 * between any two. A message takes the sender's link for its bytes. Messages that wait for the link
 * leave by turns of the peers, as from TCP's sockets (turns, the default), or as they were sent
 * (fifo). 10 us after its beginning a message takes the receiver's link, as it comes, or waits for
 * that. A chunk takes along our header and what TCP, IP and Ethernet add to a segment of 9000
 * bytes.
 *
 * LATE_MS: the ranks of the middle node begin so much later than all others.
 *
 * Prints a line of JSON:
 *   chunk_bytes, window       the job's values of both
 *   bound_us                  the payload's bytes over the rate, and two delays
 *   virtual_us                until the last rank has its result
 *   frames_ratio              bytes on the links over the payload's
 *   port_bytes                the most that waited for any node's link
 *   messages                  that a daemon received, mean
 *   exchange_ns               processor time of the exchanges for a message, on this machine */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/format/arena.h"
#include "common/format/window.h"
#include "common/memory/buffer.h"
#include "server/exchange/exchange.h"
#include "tests/bench/bench_ground.h"

#define NODES_MAX 1024u
#define RANKS_MAX 64u
#define RATE_BYTES_PER_US 12500u /* 100 Gbit/s */
#define DELAY_NS (10 * 1000ull)
#define SEGMENT_BYTES 8948u /* of payload, in a packet of 9000 */
#define FRAME_BYTES 90u     /* Ethernet with its gap 38, IP 20, TCP with time stamps 32 */
#define JOB 1
#define NONE UINT32_MAX
/* Time goes by in steps, each with what falls due in it. An event that is due after the last step
 * waits there, and is looked at again. */
#define STEP_NS 64u
#define STEPS (1u << 17)

enum due_kind { DUE_LINK_FREE, DUE_SENT, DUE_AT_PORT, DUE_THERE, DUE_RANKS };

struct due {
    struct due *next;
    uint64_t at_ns;
    enum due_kind kind;
    uint16_t from, to;
    struct exchange_send *send;
    struct buffer *buffer;
    uint32_t bytes; /* of the message */
};

/* The order in which a link takes what waits for it. */
enum leave { LEAVE_BY_TURNS, LEAVE_FIFO, LEAVE_ORDERS };

struct due_list {
    struct due *first, **end;
};

struct posted {
    struct buffer *first;
};

/* Messages in order: to a peer, or all. Peers that have some take turns. */
struct outgoing {
    struct exchange_send *first, *last;
    uint32_t next; /* in turn, or NONE */
};

struct played;

struct node {
    struct played *played;
    uint32_t number;
    struct buffer_pool *pool;
    struct exchange *exchange;
    struct posted *posted; /* [nodes]: receives, by peer */
    struct reduce_task *tasks, **tasks_end;
    struct outgoing *outgoing; /* [nodes]: what leaves, to a peer or all */
    uint32_t turns, last_turn; /* the first peer in turn and the last, or NONE */
    bool sending;              /* its link is */
    uint64_t in_free_ns;       /* the other way the link is free from then on */
};

struct played {
    uint32_t nodes, per_node;
    uint64_t bytes, late_ns;
    enum leave leave;
    struct config config;
    const char **names;
    struct node *node;
    struct due_list *step; /* [STEPS] */
    struct due *free;
    uint64_t now_ns, due_count;
    uint8_t *memory; /* all arenas' */
    uint64_t done, end_ns;
    uint64_t messages, payload_bytes, frame_bytes, port_ns;
};

/* --- time ------------------------------------------------------------------------------------- */

static void due_list_add(struct due_list *list, struct due *due)
{
    due->next = NULL;
    if (!list->first)
        list->end = &list->first;
    *list->end = due;
    list->end = &due->next;
}

static void due_place(struct played *played, struct due *due)
{
    uint64_t last_ns = played->now_ns + (STEPS - 1ull) * STEP_NS;
    uint64_t at_ns = due->at_ns < last_ns ? due->at_ns : last_ns;
    due_list_add(&played->step[at_ns / STEP_NS % STEPS], due);
}

static void due_add(struct played *played, const struct due *what)
{
    if (!played->free) {
        enum { MANY = 4096 };
        struct due *more = own(MANY * sizeof(*more));
        for (int i = 0; i < MANY; i++) {
            more[i].next = played->free;
            played->free = &more[i];
        }
    }
    struct due *due = played->free;
    played->free = due->next;
    *due = *what;
    played->due_count++;
    due_place(played, due);
}

/* --- links ------------------------------------------------------------------------------------ */

static uint64_t on_link_bytes(uint32_t bytes)
{
    return bytes + (uint64_t)((bytes + SEGMENT_BYTES - 1) / SEGMENT_BYTES) * FRAME_BYTES;
}

static uint64_t on_link_ns(uint32_t bytes)
{
    return on_link_bytes(bytes) * 1000 / RATE_BYTES_PER_US;
}

static void turn_append(struct node *node, uint32_t number)
{
    node->outgoing[number].next = NONE;
    if (node->turns == NONE)
        node->turns = number;
    else
        node->outgoing[node->last_turn].next = number;
    node->last_turn = number;
}

/* Return which queue a message joins. */
static uint32_t outgoing_number(const struct played *played, const struct exchange_send *send)
{
    return played->leave == LEAVE_BY_TURNS ? send->node : 0;
}

/* The queue whose first message goes next, or NONE. A peer with more has another turn. */
static uint32_t outgoing_take(struct node *node)
{
    uint32_t number = node->turns;
    if (number == NONE)
        return NONE;
    node->turns = node->outgoing[number].next;
    if (node->outgoing[number].first->next)
        turn_append(node, number);
    return number;
}

static void link_go_on(struct node *node)
{
    struct played *played = node->played;
    uint32_t number = node->sending ? NONE : outgoing_take(node);
    if (number == NONE)
        return;
    struct exchange_send *send = node->outgoing[number].first;
    node->outgoing[number].first = send->next;
    uint32_t bytes = WIRE_HEADER_BYTES + send->payload_bytes;
    struct due due = {.kind = DUE_AT_PORT,
                      .at_ns = played->now_ns + DELAY_NS,
                      .from = (uint16_t)node->number,
                      .to = (uint16_t)send->node,
                      .send = send,
                      .bytes = bytes};
    due_add(played, &due);
    due.kind = DUE_LINK_FREE;
    due.at_ns = played->now_ns + on_link_ns(bytes);
    due_add(played, &due);
    node->sending = true;
    played->payload_bytes += send->payload_bytes;
    played->frame_bytes += on_link_bytes(bytes);
}

static void io_send(void *context, struct exchange_send *send)
{
    struct node *node = context;
    uint32_t number = outgoing_number(node->played, send);
    struct outgoing *to = &node->outgoing[number];
    send->next = NULL;
    if (to->first) {
        to->last->next = send;
    } else {
        to->first = send;
        turn_append(node, number);
    }
    to->last = send;
    link_go_on(node);
}

/* Its first byte is at the receiver's link. The sender is done with it when that has taken all, as
 * it would be when it hears so, less the way back. */
static void message_at_port(struct played *played, struct due due)
{
    struct node *to = &played->node[due.to];
    struct buffer *buffer = to->posted[due.from].first;
    NEED_TEXT(buffer, "a message without a receive");
    to->posted[due.from].first = buffer->next;
    memcpy(buffer->data, due.send->header, WIRE_HEADER_BYTES);
    uint64_t begin_ns = to->in_free_ns > played->now_ns ? to->in_free_ns : played->now_ns;
    if (begin_ns - played->now_ns > played->port_ns)
        played->port_ns = begin_ns - played->now_ns;
    to->in_free_ns = begin_ns + on_link_ns(due.bytes);
    due.buffer = buffer;
    due.kind = DUE_THERE;
    due.at_ns = to->in_free_ns;
    due_add(played, &due);
    due.kind = DUE_SENT;
    due_add(played, &due);
}

/* --- the rest of a node's world --------------------------------------------------------------- */

static void io_reduce(void *context, struct reduce_task *task)
{
    struct node *node = context;
    task->next = NULL;
    if (!node->tasks)
        node->tasks_end = &node->tasks;
    *node->tasks_end = task;
    node->tasks_end = &task->next;
}

static void io_complete(void *context, struct exchange_worker *worker,
                        const struct arena_completion *completion)
{
    struct node *node = context;
    (void)worker;
    if (completion->type != ARENA_REQUEST_DONE)
        return;
    node->played->done++;
    node->played->end_ns = node->played->now_ns;
}

static int io_post_receive(void *context, uint32_t peer, struct buffer *buffer)
{
    struct node *node = context;
    buffer->capacity = WIRE_HEADER_BYTES + node->played->config.chunk_bytes;
    buffer->next = node->posted[peer].first;
    node->posted[peer].first = buffer;
    return 0;
}

static void io_event(void *context, struct engine_event *event)
{
    (void)context;
    NEED_TEXT(event->code == 0, event->text);
    engine_event_free(event);
}

static void io_release_worker(void *context, struct exchange_worker *worker)
{
    (void)context, (void)worker;
}

/* Run the node as its daemon's engine would now. */
static void node_run(struct node *node)
{
    exchange_run(node->exchange);
    while (node->tasks) {
        struct reduce_task *task = node->tasks;
        node->tasks = task->next;
        exchange_reduced(node->exchange, task);
        if (!node->tasks)
            exchange_run(node->exchange);
    }
}

static void ranks_submit(struct node *node)
{
    struct played *played = node->played;
    struct error error;
    for (uint32_t i = 0; i < played->per_node; i++) {
        struct exchange_worker *worker =
            exchange_find_worker(node->exchange, JOB, node->number * played->per_node + i);
        struct arena_submission it = {.type = ARENA_SUBMIT,
                                      .kind = COLLECTIVE_ALL_REDUCE,
                                      .count = played->bytes / sizeof(float),
                                      .in_offset = worker->arena.data_offset,
                                      .out_offset = worker->arena.data_offset};
        NEED_TEXT(exchange_submit(node->exchange, worker, &it, played->now_ns, &error) == 0,
                  error.text);
    }
}

static void due_do(struct played *played, const struct due *due)
{
    uint32_t from;
    struct error error;
    bool at_sender = due->kind == DUE_SENT || due->kind == DUE_LINK_FREE;
    struct node *node = &played->node[at_sender ? due->from : due->to];
    switch (due->kind) {
    case DUE_AT_PORT:
        message_at_port(played, *due);
        return;
    case DUE_LINK_FREE:
        node->sending = false;
        link_go_on(node);
        return;
    case DUE_SENT:
        exchange_sent(node->exchange, due->send);
        break;
    case DUE_THERE:
        played->messages++;
        NEED_TEXT(exchange_receive(node->exchange, due->from, due->buffer, due->bytes,
                                   played->now_ns, &from, &error) == 0,
                  error.text);
        break;
    case DUE_RANKS:
        ranks_submit(node);
        break;
    }
    node_run(node);
}

static void play(struct played *played)
{
    for (uint64_t step = 0; played->due_count > 0;) {
        struct due_list *here = &played->step[step % STEPS], list = *here;
        here->first = NULL;
        while (list.first) {
            struct due *due = list.first;
            list.first = due->next;
            if (due->at_ns / STEP_NS > step) {
                played->now_ns = step * STEP_NS;
                due_place(played, due);
                continue;
            }
            struct due what = *due;
            due->next = played->free;
            played->free = due;
            played->due_count--;
            played->now_ns = what.at_ns;
            due_do(played, &what);
        }
        step += !here->first; /* what has fallen due within the step comes before the next one */
    }
}

/* --- a node ----------------------------------------------------------------------------------- */

static uint64_t link_token(uint32_t from, uint32_t to)
{
    return 0x70000000ull + from * 10000ull + to;
}

static void node_open_exchange(struct node *node)
{
    const struct config *config = &node->played->config;
    struct error error;
    struct exchange_options options = {.self = node->number,
                                       .node_count = node->played->nodes,
                                       .node_names = node->played->names,
                                       .chunk_bytes = config->chunk_bytes,
                                       .least_shard_bytes = config->least_shard_bytes,
                                       .window_chunks = config->window_chunks,
                                       .window_bytes = config->window_bytes,
                                       .late_ns = 1000 * NS_PER_S,
                                       .pool = node->pool,
                                       .io = {.context = node,
                                              .send = io_send,
                                              .reduce = io_reduce,
                                              .complete = io_complete,
                                              .post_receive = io_post_receive,
                                              .event = io_event,
                                              .release_worker = io_release_worker}};
    NEED_TEXT(exchange_create(&node->exchange, &options, &error) == 0, error.text);
}

static void node_open(struct played *played, uint32_t number, const struct engine_job *job)
{
    struct node *node = &played->node[number];
    struct error error;
    *node = (struct node){.played = played, .number = number, .turns = NONE};
    node->outgoing = own(played->nodes * sizeof(*node->outgoing));
    node->posted = own(played->nodes * sizeof(*node->posted));
    NEED(buffer_pool_create(&node->pool, WIRE_HEADER_BYTES, UINT64_MAX / 2, NULL, &error) == 0);
    node_open_exchange(node);
    for (uint32_t peer = 0; peer < played->nodes; peer++) {
        if (peer != number)
            exchange_peer_up(node->exchange, peer, link_token(peer, number),
                             link_token(number, peer));
    }
    NEED_TEXT(exchange_job_open(node->exchange, job, &error) == 0, error.text);
    for (uint32_t i = 0; i < played->per_node; i++) {
        struct exchange_worker *worker = calloc(1, sizeof(*worker));
        NEED(worker);
        worker->rank = number * played->per_node + i;
        NEED_TEXT(arena_attach_memory(&worker->arena, played->memory,
                                      played->bytes + ARENA_LEAST_BYTES, &error) == 0,
                  error.text);
        NEED_TEXT(exchange_attach(node->exchange, JOB, worker, &error) == 0, error.text);
    }
}

static void nodes_open(struct played *played)
{
    uint32_t nodes = played->nodes, ranks = nodes * played->per_node;
    uint32_t *numbers = own((ranks + 2ull * nodes) * sizeof(*numbers));
    struct arena arena;
    struct error error;
    for (uint32_t rank = 0; rank < ranks; rank++)
        numbers[rank] = rank / played->per_node;
    for (uint32_t node = 0; node < nodes; node++) {
        numbers[ranks + node] = node;
        numbers[ranks + nodes + node] = 1;
    }
    struct engine_job job = {.job = JOB,
                             .name = "bench",
                             .world_size = ranks,
                             .rank_nodes = numbers,
                             .server_count = nodes,
                             .server_nodes = numbers + ranks,
                             .server_weights = numbers + ranks + nodes};
    configure_node(&played->config, 0, nodes, "\"limits\":{\"memory_bytes\":68719476736}");
    played->names = own(nodes * sizeof(*played->names));
    for (uint32_t i = 0; i < nodes; i++)
        played->names[i] = played->config.servers[i].name;
    played->memory = own(played->bytes + ARENA_LEAST_BYTES); /* never read: all arenas are one */
    NEED(arena_format(&arena, played->memory, played->bytes + ARENA_LEAST_BYTES, 64, &error) == 0);
    played->node = own(nodes * sizeof(*played->node));
    played->step = own(STEPS * sizeof(*played->step));
    for (uint32_t number = 0; number < nodes; number++)
        node_open(played, number, &job);
}

int main(int argc, char **argv)
{
    static const char *const orders[LEAVE_ORDERS] = {"turns", "fifo"};
    uint32_t order = 0;
    while (argc > 5 && order < LEAVE_ORDERS && strcmp(argv[5], orders[order]) != 0)
        order++;
    if (argc < 4 || argc > 6 || order == LEAVE_ORDERS) {
        fprintf(stderr, "usage: bench_links NODES RANKS_PER_NODE MIB [LATE_MS [turns|fifo]]\n");
        return 2;
    }
    struct played played = {.leave = (enum leave)order,
                            .nodes = number_of(argv[1], 2, NODES_MAX),
                            .per_node = number_of(argv[2], 1, RANKS_MAX),
                            .bytes = (uint64_t)number_of(argv[3], 1, 1024) << 20,
                            .late_ns =
                                argc > 4 ? number_of(argv[4], 0, 1000) * NS_PER_S / 1000 : 0};
    nodes_open(&played);
    for (uint32_t i = 0; i < played.nodes; i++) {
        struct due due = {.kind = DUE_RANKS, .to = (uint16_t)i};
        if (i == played.nodes / 2)
            due.at_ns = played.late_ns;
        due_add(&played, &due);
    }
    uint64_t start_ns = processor_ns();
    play(&played);
    uint64_t spent_ns = processor_ns() - start_ns;
    NEED(played.done == (uint64_t)played.nodes * played.per_node);
    double n = played.nodes;
    double bound_us =
        2 * (n - 1) / n * (double)played.bytes / RATE_BYTES_PER_US + 2 * (double)DELAY_NS / 1e3;
    printf("{\"nodes\":%u,\"ranks\":%u,\"bytes\":%llu,\"late_ms\":%.3f,\"chunk_bytes\":%u,"
           "\"window\":%u,\"bound_us\":%.3f,\"virtual_us\":%.3f,\"frames_ratio\":%.4f,"
           "\"port_bytes\":%llu,\"messages\":%.0f,\"exchange_ns\":%.0f}\n",
           played.nodes, played.nodes * played.per_node, (unsigned long long)played.bytes,
           (double)played.late_ns / 1e6, played.config.chunk_bytes,
           window_chunks(played.config.window_chunks, played.nodes), bound_us,
           (double)played.end_ns / 1e3, (double)played.frame_bytes / (double)played.payload_bytes,
           (unsigned long long)(played.port_ns * RATE_BYTES_PER_US / 1000),
           (double)played.messages / n, (double)spent_ns / (double)played.messages);
    fflush(stdout);
    _exit(0); /* the system takes all back */
}
