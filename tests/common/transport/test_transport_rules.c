/* The rules of common/transport/transport.h, on the connected libfabric kind and on the fabric in
 * memory alike: a random life of three nodes that send, receive, part and meet again. Every
 * operation comes back exactly once, messages arrive whole, in order, and in the connection that
 * they were sent in, and a pair that nobody ends loses none. */
#include "common/transport/transport.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/transport/transport_memory.h"
#include "tests/lib/suite.h"

#define NODES 3
#define RECEIVES 6
#define SENDS 4
#define OPS_MAX 20000
#define MESSAGE_MAX 30000
#define PATIENCE_NS (60 * NS_PER_S)

struct op {
    bool posted;
    bool is_send;
    uint32_t node, peer;
    uint64_t connection; /* of the pair, when it was posted */
    uint8_t *data;
    uint32_t bytes;
};

/* One direction, from a node to a peer. */
struct way {
    uint64_t sent, received; /* messages of this connection */
    uint32_t credit;         /* receives at the peer that no message was sent for yet */
    uint32_t posted;         /* receives of the node from the peer */
};

enum pair_state { PAIR_IDLE, PAIR_CONNECTING, PAIR_UP, PAIR_ENDING };

struct pair {
    enum pair_state state;
    uint64_t connection;
    int ups;
};

struct world {
    struct memory_fabric *fabric; /* NULL: libfabric */
    struct transport *nodes[NODES];
    struct way ways[NODES][NODES];
    struct pair pairs[NODES][NODES]; /* by smaller and larger number */
    struct op *ops;
    uint32_t op_count, open_ops;
    uint64_t connections, delivered, returned, failed;
    uint64_t random;
    struct log log;
};

/* The header of every message; a pattern follows. */
struct head {
    uint64_t connection;
    uint64_t sequence;
    uint32_t from, to;
    uint32_t bytes;
};

static uint32_t pick(struct world *w, uint32_t bound)
{
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->random >> 33) % bound;
}

static struct pair *pair_of(struct world *w, uint32_t a, uint32_t b)
{
    return a < b ? &w->pairs[a][b] : &w->pairs[b][a];
}

static void world_open(struct world *w, bool memory, uint64_t seed)
{
    memset(w, 0, sizeof(*w));
    w->random = seed * 7919 + 1;
    w->ops = calloc(OPS_MAX, sizeof(w->ops[0]));
    log_init(&w->log, "test", LOG_LEVEL_ERROR, 2, false);
    struct memory_fabric_options fabric = {.seed = seed,
                                           .least_delay_ns = 10,
                                           .most_delay_ns = 5000,
                                           .nodes = NODES,
                                           .sends_per_peer = SENDS};
    if (memory)
        w->fabric = memory_fabric_create(&fabric);
    for (uint32_t i = 0; i < NODES; i++) {
        struct transport_options options = {.provider = "tcp",
                                            .interface_address = "127.0.0.1",
                                            .message_bytes = MESSAGE_MAX,
                                            .peers = NODES,
                                            .sends_per_peer = SENDS,
                                            .receives_per_peer = RECEIVES,
                                            .log = &w->log};
        struct error error = {0};
        int code = memory ? memory_fabric_open(w->fabric, i, &w->nodes[i])
                          : transport_open(&w->nodes[i], &options, &error);
        ck_assert_msg(code == 0, "%s", error.text);
    }
}

static void world_close(struct world *w)
{
    for (uint32_t i = 0; i < NODES; i++)
        transport_close(w->nodes[i]);
    if (w->fabric)
        memory_fabric_destroy(w->fabric);
    for (uint32_t i = 0; i < w->op_count; i++)
        free(w->ops[i].data);
    free(w->ops);
}

static struct op *op_new(struct world *w, bool is_send, uint32_t node, uint32_t peer,
                         uint32_t bytes)
{
    ck_assert_uint_lt(w->op_count, OPS_MAX);
    struct op *op = &w->ops[w->op_count++];
    *op = (struct op){.posted = true,
                      .is_send = is_send,
                      .node = node,
                      .peer = peer,
                      .connection = pair_of(w, node, peer)->connection,
                      .data = malloc(bytes),
                      .bytes = bytes};
    w->open_ops++;
    return op;
}

/* The call refused the operation. */
static void op_take_back(struct world *w, struct op *op)
{
    ck_assert_ptr_eq(op, &w->ops[w->op_count - 1]);
    free(op->data);
    w->op_count--;
    w->open_ops--;
}

/* --- actions --- */

static void act_post(struct world *w, uint32_t node, uint32_t peer)
{
    struct way *way = &w->ways[node][peer];
    struct pair *pair = pair_of(w, node, peer);
    if (way->posted >= RECEIVES || (pair->state != PAIR_UP && pair->state != PAIR_CONNECTING))
        return;
    struct op *op = op_new(w, false, node, peer, MESSAGE_MAX);
    int code = transport_post_receive(w->nodes[node], peer, op->data, op->bytes, NULL, op);
    if (code == ERR_LOST) {
        /* The receive failed, and the event is not polled yet: this never happens while nobody
         * ended the pair. */
        ck_assert(pair->state != PAIR_UP);
        op_take_back(w, op);
        return;
    }
    ck_assert_int_eq(code, 0);
    way->posted++;
    w->ways[peer][node].credit++;
}

static void act_send(struct world *w, uint32_t node, uint32_t peer)
{
    struct way *way = &w->ways[node][peer];
    struct pair *pair = pair_of(w, node, peer);
    if (way->credit == 0 || pair->state != PAIR_UP)
        return;
    uint32_t bytes = (uint32_t)sizeof(struct head) + pick(w, MESSAGE_MAX - sizeof(struct head));
    struct op *op = op_new(w, true, node, peer, bytes);
    struct head head = {pair->connection, way->sent, node, peer, bytes};
    memcpy(op->data, &head, sizeof(head));
    for (uint32_t i = sizeof(head); i < bytes; i++)
        op->data[i] = (uint8_t)(i * 31 + head.sequence);
    uint32_t first = pick(w, 2) ? bytes : pick(w, bytes);
    struct iovec parts[2] = {{op->data, first}, {op->data + first, bytes - first}};
    int code = transport_send(w->nodes[node], peer, parts, NULL, first < bytes ? 2 : 1, op);
    if (code == ERR_AGAIN) {
        op_take_back(w, op);
        return;
    }
    ck_assert_int_eq(code, 0);
    way->sent++;
    way->credit--;
}

static void act_connect(struct world *w, uint32_t a, uint32_t b)
{
    struct pair *pair = pair_of(w, a, b);
    if (pair->state != PAIR_IDLE)
        return;
    uint8_t token[TRANSPORT_TOKEN_BYTES], of_a[TRANSPORT_ADDRESS_BYTES],
        of_b[TRANSPORT_ADDRESS_BYTES];
    uint32_t bytes_a = 0, bytes_b = 0;
    struct error error = {0};
    for (int i = 0; i < TRANSPORT_TOKEN_BYTES; i++)
        token[i] = (uint8_t)pick(w, 256);
    *pair = (struct pair){.state = PAIR_CONNECTING, .connection = ++w->connections};
    memset(&w->ways[a][b], 0, sizeof(w->ways[a][b]));
    memset(&w->ways[b][a], 0, sizeof(w->ways[b][a]));
    ck_assert_int_eq(transport_address(w->nodes[a], of_a, &bytes_a, &error), 0);
    ck_assert_int_eq(transport_address(w->nodes[b], of_b, &bytes_b, &error), 0);
    int code = transport_expect(w->nodes[b], a, of_a, bytes_a, token, &error);
    ck_assert_msg(code == 0, "%s", error.text);
    code = transport_connect(w->nodes[a], b, of_b, bytes_b, token, &error);
    ck_assert_msg(code == 0, "%s", error.text);
    for (uint32_t i = pick(w, RECEIVES + 1); i > 0; i--) {
        act_post(w, a, b);
        act_post(w, b, a);
    }
}

/* Let node a end the pair, or both before either knows. */
static void act_end(struct world *w, uint32_t a, uint32_t b, bool both)
{
    struct pair *pair = pair_of(w, a, b);
    if (pair->state != PAIR_UP)
        return;
    transport_disconnect(w->nodes[a], b);
    pair->state = both ? PAIR_IDLE : PAIR_ENDING;
    if (both)
        transport_disconnect(w->nodes[b], a);
    struct iovec part = {w, 1};
    ck_assert_int_eq(transport_send(w->nodes[a], b, &part, NULL, 1, NULL), ERR_LOST);
    ck_assert_int_eq(transport_post_receive(w->nodes[a], b, w, 1, NULL, NULL), ERR_LOST);
}

/* --- events --- */

static void check_message(struct world *w, const struct op *op, uint32_t bytes)
{
    struct way *way = &w->ways[op->peer][op->node];
    struct head head;
    ck_assert_uint_ge(bytes, sizeof(head));
    memcpy(&head, op->data, sizeof(head));
    ck_assert_uint_eq(head.bytes, bytes);
    ck_assert_uint_eq(head.from, op->peer);
    ck_assert_uint_eq(head.to, op->node);
    ck_assert_uint_eq(head.connection, op->connection);
    /* An event of the connection before may be polled after the pair met again. */
    if (head.connection == pair_of(w, op->node, op->peer)->connection)
        ck_assert_uint_eq(head.sequence, way->received++);
    bool whole = true;
    for (uint32_t i = sizeof(head); i < bytes; i++)
        whole &= op->data[i] == (uint8_t)(i * 31 + head.sequence);
    ck_assert_msg(whole, "a message of %u bytes is damaged", bytes);
    w->delivered++;
}

static void on_operation(struct world *w, uint32_t node, const struct transport_event *event)
{
    struct op *op = event->context;
    ck_assert_msg(op->posted, "an operation came back twice");
    ck_assert_uint_eq(op->node, node);
    ck_assert_uint_eq(op->peer, event->peer);
    ck_assert_int_eq(op->is_send, event->type == TRANSPORT_SENT);
    op->posted = false;
    w->open_ops--;
    struct pair *pair = pair_of(w, op->node, op->peer);
    bool current = op->connection == pair->connection;
    if (!op->is_send && current)
        w->ways[op->node][op->peer].posted--;
    if (event->type == TRANSPORT_RECEIVED)
        check_message(w, op, event->bytes);
    w->returned += event->type == TRANSPORT_RETURNED;
    w->failed += event->type == TRANSPORT_SENT && event->status != 0;
    if (event->type == TRANSPORT_RETURNED || event->status != 0) {
        ck_assert_int_lt(event->status, 0);
        ck_assert_msg(!current || pair->state == PAIR_ENDING || pair->state == PAIR_IDLE,
                      "an operation of a pair that nobody ended failed");
    }
    free(op->data);
    op->data = NULL;
}

static void on_event(struct world *w, uint32_t node, const struct transport_event *event)
{
    if (event->context) {
        on_operation(w, node, event);
        return;
    }
    ck_assert_uint_lt(event->peer, NODES);
    struct pair *pair = pair_of(w, node, event->peer);
    if (event->type == TRANSPORT_PEER_UP) {
        ck_assert_int_eq(pair->state, PAIR_CONNECTING);
        if (++pair->ups == 2)
            pair->state = PAIR_UP;
    } else {
        ck_assert_int_eq(event->type, TRANSPORT_PEER_DOWN);
        ck_assert_msg(pair->state == PAIR_ENDING, "PEER_DOWN of a pair that nobody ended: %s",
                      event->text);
        pair->state = PAIR_IDLE;
        for (uint32_t i = 0; i < w->op_count; i++) {
            const struct op *op = &w->ops[i];
            ck_assert_msg(!op->posted || op->node != node || op->peer != event->peer,
                          "PEER_DOWN came before an operation of the peer");
        }
    }
}

/* Poll all; whether anything came. */
static bool go_on(struct world *w)
{
    bool any = false;
    if (w->fabric && memory_fabric_next_ns(w->fabric) != UINT64_MAX) {
        memory_fabric_advance(w->fabric, memory_fabric_next_ns(w->fabric));
        any = true;
    }
    for (uint32_t i = 0; i < NODES; i++) {
        struct transport_event events[5];
        int count = transport_poll(w->nodes[i], events, 1 + (int)pick(w, 5));
        for (int j = 0; j < count; j++)
            on_event(w, i, &events[j]);
        any |= count > 0;
    }
    return any;
}

/* Sleep until any of them has something to say. */
static void rest(struct world *w)
{
    struct pollfd fds[NODES];
    for (uint32_t i = 0; i < NODES; i++) {
        if (!transport_can_sleep(w->nodes[i]))
            return;
        fds[i] = (struct pollfd){transport_descriptor(w->nodes[i]), POLLIN, 0};
    }
    if (!w->fabric)
        poll(fds, NODES, 1000);
}

static void act(struct world *w, bool may_end)
{
    uint32_t a = pick(w, NODES), b = (a + 1 + pick(w, NODES - 1)) % NODES;
    uint32_t choice = pick(w, 100);
    if (choice < 40)
        act_send(w, a, b);
    else if (choice < 90)
        act_post(w, a, b);
    else if (choice < 97)
        act_connect(w, a, b);
    else if (may_end && choice == 99)
        act_end(w, a, b, pick(w, 2));
}

/* Until what `done` asks for is so. */
static void settle(struct world *w, bool (*done)(struct world *))
{
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
    while (!done(w)) {
        if (!go_on(w))
            rest(w);
        ck_assert_msg(clock_now_ns() < end_ns, "waited in vain: %u operations are out",
                      w->open_ops);
    }
}

static bool all_pairs_settled(struct world *w)
{
    for (uint32_t a = 0; a < NODES; a++) {
        for (uint32_t b = a + 1; b < NODES; b++) {
            enum pair_state state = w->pairs[a][b].state;
            if (state == PAIR_CONNECTING || state == PAIR_ENDING)
                return false;
        }
    }
    return true;
}

static bool all_sent_received(struct world *w)
{
    for (uint32_t a = 0; a < NODES; a++) {
        for (uint32_t b = 0; b < NODES; b++) {
            if (pair_of(w, a, b)->state == PAIR_UP && w->ways[a][b].sent != w->ways[a][b].received)
                return false;
        }
    }
    return true;
}

static bool nothing_out(struct world *w)
{
    return w->open_ops == 0;
}

START_TEST(random_life)
{
    struct world *w = malloc(sizeof(*w));
    bool memory = _i % 2, may_end = _i % 4 >= 2;
    world_open(w, memory, (uint64_t)_i);
    for (int step = 0; step < 6000; step++) {
        act(w, may_end);
        if (pick(w, 3) == 0)
            go_on(w);
    }
    settle(w, all_pairs_settled);
    settle(w, all_sent_received);
    ck_assert_uint_gt(w->delivered, 100);
    if (!may_end)
        ck_assert_uint_eq(w->returned + w->failed, 0);
    else
        ck_assert_uint_gt(w->returned, 0);
    for (uint32_t a = 0; a < NODES; a++) {
        for (uint32_t b = a + 1; b < NODES; b++)
            act_end(w, a, b, pick(w, 2));
    }
    settle(w, all_pairs_settled);
    settle(w, nothing_out);
    for (int i = 0; i < 100; i++)
        go_on(w); /* anything that comes now is one too many, and fails on_event */
    world_close(w);
    free(w);
}
END_TEST

/* Closing in the middle of it abandons what is out, and leaves nothing behind. */
START_TEST(random_close)
{
    struct world *w = malloc(sizeof(*w));
    world_open(w, _i % 2, (uint64_t)_i + 100);
    for (int step = 0; step < 300 + _i * 50; step++) {
        act(w, true);
        if (pick(w, 4) == 0)
            go_on(w);
    }
    world_close(w);
    free(w);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("transport_rules");
    TCase *c = tcase_create("rules");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, random_life, 0, 16);
    tcase_add_loop_test(c, random_close, 0, 16);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    transport_prepare_environment();
    return suite_main(suite());
}
