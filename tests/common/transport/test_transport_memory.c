/* The fabric that the cluster tests stand on: it must be deterministic, honest about the rules of
 * common/transport/transport.h, and able to lose what a network loses. */
#include "common/transport/transport_memory.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

#define NODES 4

static const uint8_t token[TRANSPORT_TOKEN_BYTES] = "a token of sort";
static const uint8_t other_token[TRANSPORT_TOKEN_BYTES] = "another token..";

struct cluster {
    struct memory_fabric *fabric;
    struct transport *nodes[NODES];
    struct transport_event events[NODES][512];
    int counts[NODES];
};

static struct memory_fabric_options base_options(void)
{
    return (struct memory_fabric_options){
        .seed = 1, .least_delay_ns = 100, .most_delay_ns = 1000, .nodes = NODES};
}

static void cluster_open(struct cluster *c, const struct memory_fabric_options *options)
{
    memset(c, 0, sizeof(*c));
    c->fabric = memory_fabric_create(options);
    for (uint32_t i = 0; i < NODES; i++)
        ck_assert_int_eq(memory_fabric_open(c->fabric, i, &c->nodes[i]), 0);
}

static void cluster_close(struct cluster *c)
{
    for (int i = 0; i < NODES; i++)
        transport_close(c->nodes[i]);
    memory_fabric_destroy(c->fabric);
}

static void collect(struct cluster *c)
{
    for (int i = 0; i < NODES; i++)
        c->counts[i] +=
            transport_poll(c->nodes[i], c->events[i] + c->counts[i], 512 - c->counts[i]);
}

/* Advance until nothing is under way. Returns how many steps of time that took. */
static int run(struct cluster *c)
{
    int steps = 0;
    for (uint64_t now; (now = memory_fabric_next_ns(c->fabric)) != UINT64_MAX; steps++) {
        memory_fabric_advance(c->fabric, now);
        collect(c);
        ck_assert_int_lt(steps, 100000);
    }
    collect(c);
    return steps;
}

static int count_of(const struct cluster *c, int node, enum transport_event_type type)
{
    int count = 0;
    for (int i = 0; i < c->counts[node]; i++)
        count += c->events[node][i].type == type;
    return count;
}

static const struct transport_event *last_of(const struct cluster *c, int node,
                                             enum transport_event_type type)
{
    const struct transport_event *found = NULL;
    for (int i = 0; i < c->counts[node]; i++) {
        if (c->events[node][i].type == type)
            found = &c->events[node][i];
    }
    return found;
}

static int connect_as(struct cluster *c, uint32_t from, uint32_t to, const uint8_t *with,
                      bool expect)
{
    uint8_t address[TRANSPORT_ADDRESS_BYTES];
    uint32_t bytes = 0;
    struct error error = {0};
    ck_assert_int_eq(transport_address(c->nodes[to], address, &bytes, &error), 0);
    return (expect ? transport_expect : transport_connect)(c->nodes[from], to, address, bytes, with,
                                                           &error);
}

static void pair(struct cluster *c, uint32_t a, uint32_t b)
{
    ck_assert_int_eq(connect_as(c, b, a, token, true), 0);
    ck_assert_int_eq(connect_as(c, a, b, token, false), 0);
    run(c);
}

static int send_number(struct cluster *c, uint32_t from, uint32_t to, uint32_t *number)
{
    struct iovec part = {number, sizeof(*number)};
    return transport_send(c->nodes[from], to, &part, NULL, 1, number);
}

static void post(struct cluster *c, uint32_t node, uint32_t peer, uint32_t *place)
{
    ck_assert_int_eq(
        transport_post_receive(c->nodes[node], peer, place, sizeof(*place), NULL, place), 0);
}

START_TEST(information)
{
    struct cluster c;
    struct memory_fabric_options options = base_options();
    options.shared_receives = _i;
    cluster_open(&c, &options);
    const struct transport_info *info = transport_info(c.nodes[2]);
    ck_assert_str_eq(info->provider, "memory");
    ck_assert_str_eq(info->endpoint, "memory");
    ck_assert_str_eq(info->local, "node 2");
    ck_assert_int_eq(info->per_peer_receives, !_i);
    ck_assert_int_eq(transport_descriptor(c.nodes[0]), -1);
    ck_assert(transport_can_sleep(c.nodes[0]));
    struct transport *again = NULL;
    ck_assert_int_eq(memory_fabric_open(c.fabric, 0, &again), ERR_INVALID);
    ck_assert_int_eq(memory_fabric_open(c.fabric, NODES, &again), ERR_INVALID);
    cluster_close(&c);
}
END_TEST

START_TEST(exchange)
{
    struct cluster c;
    struct memory_fabric_options options = base_options();
    options.shared_receives = _i;
    cluster_open(&c, &options);
    pair(&c, 0, 1);
    ck_assert_int_eq(count_of(&c, 0, TRANSPORT_PEER_UP), 1);
    ck_assert_int_eq(count_of(&c, 1, TRANSPORT_PEER_UP), 1);
    uint8_t head[64], body[1000], in[2000];
    memset(head, 1, sizeof(head));
    memset(body, 2, sizeof(body));
    ck_assert_int_eq(transport_post_receive(c.nodes[1], 0, in, sizeof(in), NULL, &in), 0);
    ck_assert_uint_eq(memory_fabric_receives(c.fabric, 1, 0), 1);
    struct iovec parts[2] = {{head, sizeof(head)}, {body, sizeof(body)}};
    ck_assert_int_eq(transport_send(c.nodes[0], 1, parts, NULL, 2, &head), 0);
    ck_assert_int_eq(transport_poll(c.nodes[1], c.events[1], 10), 0); /* time stands */
    run(&c);
    const struct transport_event *event = last_of(&c, 1, TRANSPORT_RECEIVED);
    ck_assert_ptr_nonnull(event);
    ck_assert_uint_eq(event->bytes, 1064);
    ck_assert_uint_eq(event->peer, 0);
    ck_assert_ptr_eq(event->context, &in);
    ck_assert(in[63] == 1 && in[64] == 2 && in[1063] == 2);
    ck_assert_int_eq(count_of(&c, 0, TRANSPORT_SENT), 1);
    ck_assert_ptr_eq(last_of(&c, 0, TRANSPORT_SENT)->context, &head);
    ck_assert_int_eq(last_of(&c, 0, TRANSPORT_SENT)->status, 0);
    ck_assert_uint_eq(memory_fabric_receives(c.fabric, 1, 0), 0);
    cluster_close(&c);
}
END_TEST

/* Send 100 numbers from 0 to 1 and from 2 to 1; the order in which 1 gets them, as one string. */
static char *history(uint64_t seed, bool reorder)
{
    struct cluster *c = malloc(sizeof(*c));
    struct memory_fabric_options options = base_options();
    options.seed = seed;
    options.reorder = reorder;
    cluster_open(c, &options);
    pair(c, 0, 1);
    pair(c, 1, 2);
    static uint32_t out[200], in[200];
    char *text = calloc(1, 200 * 16);
    for (uint32_t i = 0; i < 200; i++) {
        out[i] = i;
        post(c, 1, i % 2 ? 2 : 0, &in[i]);
        ck_assert_int_eq(send_number(c, i % 2 ? 2 : 0, 1, &out[i]), 0);
    }
    run(c);
    ck_assert_int_eq(count_of(c, 1, TRANSPORT_RECEIVED), 200);
    for (int i = 0; i < c->counts[1]; i++) {
        const struct transport_event *event = &c->events[1][i];
        if (event->type != TRANSPORT_RECEIVED)
            continue;
        uint32_t number = *(uint32_t *)event->context;
        ck_assert_uint_eq(event->peer, number % 2 ? 2 : 0);
        snprintf(text + strlen(text), 16, "%u ", number);
    }
    cluster_close(c);
    free(c);
    return text;
}

static bool in_order(const char *text, uint32_t parity)
{
    long last = -1;
    for (char *rest = NULL; *text; text = rest + 1) {
        long number = strtol(text, &rest, 10);
        if ((uint32_t)number % 2 != parity)
            continue;
        if (number < last)
            return false;
        last = number;
    }
    return true;
}

START_TEST(deterministic)
{
    char *one = history(7, _i), *again = history(7, _i), *other = history(8, _i);
    ck_assert_str_eq(one, again);
    ck_assert_str_ne(one, other);
    /* Each pair's own order holds exactly when reordering is off. */
    ck_assert_int_eq(in_order(one, 0), !_i);
    ck_assert_int_eq(in_order(one, 1), !_i);
    free(one);
    free(again);
    free(other);
}
END_TEST

START_TEST(delays)
{
    struct cluster c;
    struct memory_fabric_options options = base_options();
    options.least_delay_ns = 500;
    options.most_delay_ns = 700;
    cluster_open(&c, &options);
    ck_assert_uint_eq(memory_fabric_next_ns(c.fabric), UINT64_MAX);
    pair(&c, 0, 1);
    uint32_t out = 5, in[50];
    for (int i = 0; i < 50; i++) {
        uint64_t start = 10000 + (uint64_t)i * 1000;
        memory_fabric_advance(c.fabric, start);
        post(&c, 1, 0, &in[i]);
        ck_assert_int_eq(send_number(&c, 0, 1, &out), 0);
        ck_assert_uint_ge(memory_fabric_next_ns(c.fabric), start);
        memory_fabric_advance(c.fabric, start + 499);
        collect(&c);
        ck_assert_int_eq(count_of(&c, 1, TRANSPORT_RECEIVED), i);
        memory_fabric_advance(c.fabric, start + 700);
        memory_fabric_advance(c.fabric, start); /* time does not go back */
        collect(&c);
        ck_assert_int_eq(count_of(&c, 1, TRANSPORT_RECEIVED), i + 1);
    }
    cluster_close(&c);
}
END_TEST

START_TEST(tokens)
{
    struct cluster c;
    struct memory_fabric_options options = base_options();
    cluster_open(&c, &options);
    /* Nobody expects it yet. */
    ck_assert_int_eq(connect_as(&c, 0, 1, token, false), 0);
    ck_assert_int_eq(connect_as(&c, 0, 1, token, false), ERR_STATE);
    run(&c);
    ck_assert_int_eq(count_of(&c, 0, TRANSPORT_PEER_DOWN), 1);
    /* The wrong one. */
    uint32_t in = 0;
    ck_assert_int_eq(connect_as(&c, 1, 0, token, true), 0);
    post(&c, 1, 0, &in);
    ck_assert_int_eq(connect_as(&c, 0, 1, other_token, false), 0);
    run(&c);
    ck_assert_int_eq(count_of(&c, 0, TRANSPORT_PEER_DOWN), 2);
    ck_assert_int_eq(c.counts[1], 0);
    /* The right one; what was posted before is there. */
    ck_assert_int_eq(connect_as(&c, 0, 1, token, false), 0);
    run(&c);
    ck_assert_int_eq(count_of(&c, 0, TRANSPORT_PEER_UP), 1);
    ck_assert_int_eq(count_of(&c, 1, TRANSPORT_PEER_UP), 1);
    uint32_t out = 77;
    ck_assert_int_eq(send_number(&c, 0, 1, &out), 0);
    run(&c);
    ck_assert_uint_eq(in, 77);
    /* Addresses are looked at. */
    struct error error = {0};
    uint8_t address[4] = {3, 0, 0, 0};
    ck_assert_int_eq(transport_connect(c.nodes[0], 2, address, 4, token, &error), ERR_PROTOCOL);
    ck_assert_int_eq(transport_connect(c.nodes[0], NODES, address, 4, token, &error), ERR_INVALID);
    ck_assert_int_eq(transport_expect(c.nodes[0], 3, address, 3, token, &error), ERR_PROTOCOL);
    cluster_close(&c);
}
END_TEST

START_TEST(cut)
{
    struct cluster c;
    struct memory_fabric_options options = base_options();
    cluster_open(&c, &options);
    pair(&c, 0, 1);
    pair(&c, 0, 2);
    uint32_t out[8] = {0}, in[8] = {0}, spare = 0, through = 9, got = 0;
    for (int i = 0; i < 8; i++) {
        post(&c, 1, 0, &in[i]);
        ck_assert_int_eq(send_number(&c, 0, 1, &out[i]), 0);
    }
    post(&c, 0, 1, &spare);
    post(&c, 2, 0, &got);
    ck_assert_int_eq(send_number(&c, 0, 2, &through), 0);
    memory_fabric_cut(c.fabric, 0, 1);
    collect(&c);
    ck_assert_int_eq(count_of(&c, 0, TRANSPORT_PEER_DOWN), 0);
    memory_fabric_advance(c.fabric, 1);
    collect(&c);
    for (int node = 0; node < 2; node++) {
        const struct transport_event *down = last_of(&c, node, TRANSPORT_PEER_DOWN);
        ck_assert_ptr_nonnull(down);
        ck_assert_ptr_eq(down, &c.events[node][c.counts[node] - 1]);
        ck_assert_uint_eq(down->peer, (uint32_t)!node);
        ck_assert_msg(strlen(down->text) > 0, "no reason");
    }
    run(&c);
    ck_assert_int_eq(count_of(&c, 0, TRANSPORT_PEER_DOWN), 1);
    ck_assert_int_eq(count_of(&c, 1, TRANSPORT_RECEIVED), 0);
    ck_assert_int_eq(count_of(&c, 1, TRANSPORT_RETURNED), 8);
    ck_assert_int_eq(count_of(&c, 0, TRANSPORT_RETURNED), 1);
    ck_assert_int_eq(count_of(&c, 0, TRANSPORT_SENT), 9); /* eight failed, one through */
    ck_assert_uint_eq(got, 9);
    ck_assert_int_eq(send_number(&c, 0, 1, &out[0]), ERR_LOST);
    ck_assert_int_eq(transport_post_receive(c.nodes[0], 1, in, 4, NULL, in), ERR_LOST);
    pair(&c, 0, 1);
    post(&c, 1, 0, &in[0]);
    ck_assert_int_eq(send_number(&c, 0, 1, &through), 0);
    run(&c);
    ck_assert_uint_eq(in[0], 9);
    cluster_close(&c);
}
END_TEST

/* Messages that have waited arrive in the order in which they were sent, and before what is on its
 * way. */
START_TEST(block)
{
    enum { BEFORE = 20, COUNT = 30 };
    struct cluster c;
    struct memory_fabric_options options = base_options();
    uint32_t out[COUNT], in[COUNT] = {0};
    options.seed = 1 + (uint64_t)_i;
    options.least_delay_ns = 1;
    options.most_delay_ns = 20;
    cluster_open(&c, &options);
    pair(&c, 0, 1);
    for (uint32_t i = 0; i < COUNT; i++) {
        post(&c, 1, 0, &in[i]);
        out[i] = i + 1;
    }
    memory_fabric_block(c.fabric, 0, 1, true);
    for (uint32_t i = 0; i < BEFORE; i++)
        ck_assert_int_eq(send_number(&c, 0, 1, &out[i]), 0);
    memory_fabric_advance(c.fabric, 10000);
    collect(&c);
    ck_assert_int_eq(count_of(&c, 0, TRANSPORT_SENT), BEFORE);
    ck_assert_int_eq(count_of(&c, 1, TRANSPORT_RECEIVED), 0);
    for (uint32_t i = BEFORE; i < COUNT; i++)
        ck_assert_int_eq(send_number(&c, 0, 1, &out[i]), 0);
    memory_fabric_advance(c.fabric, 10005 + (uint64_t)_i % 5);
    memory_fabric_block(c.fabric, 0, 1, false);
    run(&c);
    for (uint32_t i = 0; i < COUNT; i++)
        ck_assert_uint_eq(in[i], i + 1);
    cluster_close(&c);
}
END_TEST

START_TEST(freeze)
{
    struct cluster c;
    struct memory_fabric_options options = base_options();
    cluster_open(&c, &options);
    pair(&c, 0, 1);
    pair(&c, 0, 2);
    uint32_t out[3] = {1, 2, 3}, in[3] = {0};
    post(&c, 0, 1, &in[0]);
    post(&c, 1, 0, &in[1]);
    post(&c, 2, 0, &in[2]);
    memory_fabric_freeze(c.fabric, 1, true);
    ck_assert_int_eq(send_number(&c, 1, 0, &out[0]), 0);
    ck_assert_int_eq(send_number(&c, 0, 1, &out[1]), 0);
    ck_assert_int_eq(send_number(&c, 0, 2, &out[2]), 0);
    run(&c); /* ends: what is held counts as nothing under way */
    ck_assert(in[0] == 0 && in[1] == 0 && in[2] == 3);
    ck_assert_int_eq(count_of(&c, 0, TRANSPORT_PEER_DOWN), 0);
    ck_assert_int_eq(count_of(&c, 1, TRANSPORT_SENT), 0);
    memory_fabric_advance(c.fabric, 1000000);
    ck_assert_uint_eq(memory_fabric_next_ns(c.fabric), UINT64_MAX);
    memory_fabric_freeze(c.fabric, 1, false);
    run(&c);
    ck_assert(in[0] == 1 && in[1] == 2);
    /* Cutting off a frozen one is told to the other at once. */
    memory_fabric_freeze(c.fabric, 1, true);
    memory_fabric_cut(c.fabric, 0, 1);
    run(&c);
    ck_assert_int_eq(count_of(&c, 0, TRANSPORT_PEER_DOWN), 1);
    ck_assert_int_eq(count_of(&c, 1, TRANSPORT_PEER_DOWN), 0);
    cluster_close(&c);
}
END_TEST

START_TEST(disconnect)
{
    struct cluster c;
    struct memory_fabric_options options = base_options();
    cluster_open(&c, &options);
    uint32_t out[4] = {1, 2, 3, 4}, in[4] = {0};
    for (int round = 1; round <= 5; round++) {
        pair(&c, 0, 1);
        for (int i = 0; i < 4; i++) {
            post(&c, 0, 1, &in[i]);
            post(&c, 1, 0, &in[i]);
            ck_assert_int_eq(send_number(&c, 0, 1, &out[i]), 0);
        }
        memory_fabric_advance(c.fabric, memory_fabric_next_ns(c.fabric));
        transport_disconnect(c.nodes[0], 1);
        transport_disconnect(c.nodes[0], 1);
        ck_assert_int_eq(send_number(&c, 0, 1, &out[0]), ERR_LOST);
        run(&c);
        ck_assert_int_eq(count_of(&c, 0, TRANSPORT_PEER_DOWN), 0);
        ck_assert_int_eq(count_of(&c, 1, TRANSPORT_PEER_DOWN), round);
        ck_assert_int_eq(count_of(&c, 0, TRANSPORT_SENT), 4 * round);
        ck_assert_int_eq(count_of(&c, 0, TRANSPORT_RETURNED), 4 * round);
        ck_assert_int_eq(count_of(&c, 1, TRANSPORT_RETURNED) + count_of(&c, 1, TRANSPORT_RECEIVED),
                         4 * round);
        ck_assert_ptr_eq(last_of(&c, 1, TRANSPORT_PEER_DOWN), &c.events[1][c.counts[1] - 1]);
    }
    /* Taken back before it was polled: no UP and no DOWN of an old pair. */
    ck_assert_int_eq(connect_as(&c, 1, 0, token, true), 0);
    ck_assert_int_eq(connect_as(&c, 0, 1, token, false), 0);
    memory_fabric_advance(c.fabric, UINT64_MAX / 2);
    transport_disconnect(c.nodes[0], 1);
    transport_disconnect(c.nodes[1], 0);
    int before = c.counts[0];
    run(&c);
    ck_assert_int_eq(c.counts[0], before);
    cluster_close(&c);
}
END_TEST

START_TEST(close_one)
{
    struct cluster c;
    struct memory_fabric_options options = base_options();
    options.shared_receives = _i;
    cluster_open(&c, &options);
    pair(&c, 0, 1);
    uint32_t out = 6, in = 0;
    post(&c, 1, 0, &in);
    post(&c, 0, 1, &in);
    ck_assert_int_eq(send_number(&c, 1, 0, &out), 0);
    transport_close(c.nodes[1]);
    run(&c);
    ck_assert_int_eq(count_of(&c, 0, TRANSPORT_PEER_DOWN), !_i);
    ck_assert_int_eq(memory_fabric_open(c.fabric, 1, &c.nodes[1]), 0);
    if (_i)
        transport_disconnect(c.nodes[0], 1);
    pair(&c, 0, 1);
    post(&c, 1, 0, &in);
    ck_assert_int_eq(send_number(&c, 0, 1, &out), 0);
    run(&c);
    ck_assert_uint_eq(in, 6);
    cluster_close(&c);
}
END_TEST

START_TEST(shared_receives)
{
    struct cluster c;
    struct memory_fabric_options options = base_options();
    options.shared_receives = options.reorder = true;
    cluster_open(&c, &options);
    pair(&c, 0, 1);
    pair(&c, 2, 1);
    ck_assert_int_eq(connect_as(&c, 3, 1, token, false), 0); /* 1 knows nothing of 3 */
    uint32_t out[4] = {10, 11, 12, 13}, in[4] = {0};
    for (int i = 0; i < 3; i++)
        post(&c, 1, TRANSPORT_NO_PEER, &in[i]);
    ck_assert_uint_eq(memory_fabric_receives(c.fabric, 1, 0), 3);
    ck_assert_int_eq(send_number(&c, 0, 1, &out[0]), 0);
    ck_assert_int_eq(send_number(&c, 2, 1, &out[2]), 0);
    ck_assert_int_eq(send_number(&c, 3, 1, &out[3]), 0);
    run(&c);
    ck_assert_int_eq(count_of(&c, 1, TRANSPORT_RECEIVED), 3);
    for (int i = 0; i < c.counts[1]; i++) {
        const struct transport_event *event = &c.events[1][i];
        if (event->type != TRANSPORT_RECEIVED)
            continue;
        uint32_t number = *(uint32_t *)event->context;
        ck_assert_uint_eq(event->peer, number == 13 ? TRANSPORT_NO_PEER : number - 10);
    }
    /* With no receive left, a stranger's message is lost; giving up a peer keeps receives. */
    ck_assert_int_eq(send_number(&c, 3, 1, &out[3]), 0);
    run(&c);
    post(&c, 1, 0, &in[3]);
    transport_disconnect(c.nodes[1], 0);
    run(&c);
    ck_assert_int_eq(count_of(&c, 1, TRANSPORT_RETURNED), 0);
    ck_assert_int_eq(count_of(&c, 0, TRANSPORT_PEER_DOWN), 0);
    ck_assert_uint_eq(memory_fabric_receives(c.fabric, 1, 2), 1);
    cluster_close(&c);
}
END_TEST

START_TEST(limits_and_registration)
{
    struct cluster c;
    struct memory_fabric_options options = base_options();
    options.sends_per_peer = 2;
    options.registration_needed = true;
    cluster_open(&c, &options);
    pair(&c, 0, 1);
    uint32_t out[3] = {1, 2, 3}, in[3] = {0};
    void *registrations[2] = {NULL, NULL};
    struct error error = {0};
    ck_assert_int_eq(transport_register(c.nodes[0], out, sizeof(out), &registrations[0], &error),
                     0);
    ck_assert_int_eq(transport_register(c.nodes[1], in, sizeof(in), &registrations[1], &error), 0);
    ck_assert_ptr_nonnull(registrations[0]);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(transport_post_receive(c.nodes[1], 0, &in[i], 4, registrations[1], &in[i]),
                         0);
    for (int i = 0; i < 3; i++) {
        struct iovec part = {&out[i], 4};
        ck_assert_int_eq(transport_send(c.nodes[0], 1, &part, registrations, 1, &out[i]),
                         i < 2 ? 0 : ERR_AGAIN);
    }
    run(&c);
    struct iovec part = {&out[2], 4};
    ck_assert_int_eq(transport_send(c.nodes[0], 1, &part, registrations, 1, &out[2]), 0);
    run(&c);
    ck_assert(in[0] == 1 && in[1] == 2 && in[2] == 3);
    transport_unregister(c.nodes[0], registrations[0]);
    transport_unregister(c.nodes[1], registrations[1]);
    transport_unregister(c.nodes[1], NULL);
    cluster_close(&c);
}
END_TEST

/* Messages without a receive stay in their order until there is one; those of a connection that is
 * gone are forgotten. _i: shared receives. */
START_TEST(messages_wait)
{
    struct cluster c;
    struct memory_fabric_options options = base_options();
    options.shared_receives = _i;
    options.messages_wait = true;
    cluster_open(&c, &options);
    pair(&c, 0, 1);
    uint32_t out[20], in[20];
    for (uint32_t i = 0; i < 20; i++) {
        out[i] = i;
        ck_assert_int_eq(send_number(&c, 0, 1, &out[i]), 0);
    }
    uint64_t now = 0;
    for (uint32_t i = 0; i < 10; i++) {
        now += 2000000; /* longer than a message waits until it looks again */
        memory_fabric_advance(c.fabric, now);
        collect(&c);
        ck_assert_int_eq(count_of(&c, 0, TRANSPORT_SENT), 20);
        ck_assert_int_eq(count_of(&c, 1, TRANSPORT_RECEIVED), (int)i);
        ck_assert_uint_lt(memory_fabric_next_ns(c.fabric), UINT64_MAX);
        post(&c, 1, 0, &in[i]);
    }
    memory_fabric_advance(c.fabric, now + 2000000);
    collect(&c);
    for (uint32_t i = 0; i < 10; i++)
        ck_assert_uint_eq(in[i], i);
    memory_fabric_cut(c.fabric, 0, 1);
    run(&c);
    ck_assert_int_eq(count_of(&c, 1, TRANSPORT_RECEIVED), 10);
    cluster_close(&c);
}
END_TEST

/* --- the user's faults end the test --- */

static void quiet_stderr(void)
{
    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stderr));
}

START_TEST(fault_no_receive)
{
    struct cluster c;
    struct memory_fabric_options options = base_options();
    options.shared_receives = _i;
    cluster_open(&c, &options);
    pair(&c, 0, 1);
    uint32_t out = 1;
    quiet_stderr();
    ck_assert_int_eq(send_number(&c, 0, 1, &out), 0);
    run(&c);
}
END_TEST

START_TEST(fault_too_long)
{
    struct cluster c;
    struct memory_fabric_options options = base_options();
    cluster_open(&c, &options);
    pair(&c, 0, 1);
    uint32_t out = 1, in = 0;
    quiet_stderr();
    ck_assert_int_eq(transport_post_receive(c.nodes[1], 0, &in, 3, NULL, &in), 0);
    ck_assert_int_eq(send_number(&c, 0, 1, &out), 0);
    run(&c);
}
END_TEST

START_TEST(fault_changed_before_sent)
{
    struct cluster c;
    struct memory_fabric_options options = base_options();
    cluster_open(&c, &options);
    pair(&c, 0, 1);
    uint32_t out = 1, in = 0;
    quiet_stderr();
    post(&c, 1, 0, &in);
    ck_assert_int_eq(send_number(&c, 0, 1, &out), 0);
    out = 2;
    run(&c);
}
END_TEST

START_TEST(fault_not_registered)
{
    struct cluster c;
    struct memory_fabric_options options = base_options();
    options.registration_needed = true;
    cluster_open(&c, &options);
    pair(&c, 0, 1);
    uint32_t out[2] = {0};
    struct error error = {0};
    void *registration = NULL;
    quiet_stderr();
    ck_assert_int_eq(transport_register(c.nodes[0], out, 4, &registration, &error), 0);
    struct iovec part = {out, _i ? 8 : 4};
    transport_send(c.nodes[0], 1, &part, _i ? &registration : NULL, 1, NULL);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("transport_memory");
    TCase *c = tcase_create("memory");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, information, 0, 2);
    tcase_add_loop_test(c, exchange, 0, 2);
    tcase_add_loop_test(c, deterministic, 0, 2);
    tcase_add_test(c, delays);
    tcase_add_test(c, tokens);
    tcase_add_test(c, cut);
    tcase_add_test(c, freeze);
    tcase_add_loop_test(c, block, 0, 20);
    tcase_add_test(c, disconnect);
    tcase_add_loop_test(c, close_one, 0, 2);
    tcase_add_test(c, shared_receives);
    tcase_add_test(c, limits_and_registration);
    tcase_add_loop_test(c, messages_wait, 0, 2);
    tcase_add_loop_test_raise_signal(c, fault_no_receive, SIGABRT, 0, 2);
    tcase_add_test_raise_signal(c, fault_too_long, SIGABRT);
    tcase_add_test_raise_signal(c, fault_changed_before_sent, SIGABRT);
    tcase_add_loop_test_raise_signal(c, fault_not_registered, SIGABRT, 0, 2);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    transport_prepare_environment();
    return suite_main(suite());
}
