#include "common/transport/transport_memory_wire.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Until a message looks for a receive again, at first and at most. */
#define RECEIVE_WAIT_NS 5000u
#define RECEIVE_WAIT_MOST_NS 1000000u

void memory_fault(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("memory fabric: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

void *memory_allocate(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory)
        memory_fault("out of memory");
    return memory;
}

/* splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014) */
static uint64_t memory_random_next(struct memory_fabric *fabric)
{
    uint64_t z = fabric->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t memory_random(struct memory_fabric *fabric, uint64_t least, uint64_t most)
{
    return most > least ? least + memory_random_next(fabric) % (most - least + 1) : least;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

struct memory_side *memory_side(struct memory_fabric *fabric, uint32_t node, uint32_t peer)
{
    return &fabric->nodes[node].sides[peer];
}

/* --- events and receives --- */

struct transport_event *memory_event_push(struct memory_node *node, enum transport_event_type type,
                                          uint32_t peer, int status)
{
    struct memory_queued_event *queued = memory_allocate(sizeof(*queued));
    queued->event.type = type;
    queued->event.peer = peer;
    queued->event.status = status;
    *node->events_last = queued;
    node->events_last = &queued->next;
    return &queued->event;
}

struct memory_queued_event *memory_event_pop(struct memory_node *node)
{
    struct memory_queued_event *queued = node->events;
    node->events = queued->next;
    if (!node->events)
        node->events_last = &node->events;
    return queued;
}

void memory_events_withdraw(struct memory_node *node, uint32_t peer)
{
    struct memory_queued_event **link = &node->events;
    while (*link) {
        struct memory_queued_event *queued = *link;
        enum transport_event_type type = queued->event.type;
        if (queued->event.peer == peer &&
            (type == TRANSPORT_PEER_UP || type == TRANSPORT_PEER_DOWN)) {
            *link = queued->next;
            free(queued);
        } else {
            link = &queued->next;
        }
    }
    node->events_last = link;
    node->sides[peer].down_queued = false;
}

void memory_receive_append(struct memory_receive_list *list, struct memory_receive *receive)
{
    if (!list->first)
        list->last = &list->first;
    *list->last = receive;
    list->last = &receive->next;
    list->count++;
}

struct memory_receive *memory_receive_pop(struct memory_receive_list *list)
{
    struct memory_receive *receive = list->first;
    if (receive) {
        list->first = receive->next;
        list->count--;
    }
    return receive;
}

struct memory_receive_list *memory_receives_for(struct memory_node *node, uint32_t peer)
{
    return node->fabric->options.shared_receives ? &node->shared : &node->sides[peer].receives;
}

/* --- what is under way --- */

void memory_item_insert(struct memory_fabric *fabric, struct memory_item *item)
{
    struct memory_item *before = fabric->last;
    while (before && (before->due_ns > item->due_ns ||
                      (before->due_ns == item->due_ns && before->sequence > item->sequence)))
        before = before->previous;
    item->previous = before;
    item->next = before ? before->next : fabric->first;
    *(item->next ? &item->next->previous : &fabric->last) = item;
    *(before ? &before->next : &fabric->first) = item;
}

static void item_unlink(struct memory_fabric *fabric, struct memory_item *item)
{
    assert((item->previous == NULL) == (item == fabric->first));
    *(item->next ? &item->next->previous : &fabric->last) = item->previous;
    *(item->previous ? &item->previous->next : &fabric->first) = item->next;
}

static void item_free(struct memory_item *item)
{
    free(item->data);
    free(item);
}

void memory_items_clear(struct memory_fabric *fabric)
{
    while (fabric->first) {
        struct memory_item *item = fabric->first;
        item_unlink(fabric, item);
        item_free(item);
    }
}

struct memory_item *memory_item_create(struct memory_fabric *fabric, enum memory_item_kind kind,
                                       uint32_t from, uint32_t to)
{
    struct memory_item *item = memory_allocate(sizeof(*item));
    item->kind = kind;
    item->from = from;
    item->to = to;
    item->epoch = memory_side(fabric, from, to)->epoch;
    item->sequence = fabric->sequence++;
    return item;
}

uint64_t memory_arrival_choose(struct memory_fabric *fabric, struct memory_side *side, bool message)
{
    uint64_t due_ns = fabric->now_ns + memory_random(fabric, fabric->options.least_delay_ns,
                                                     fabric->options.most_delay_ns);
    due_ns = later(due_ns, side->floor_ns);
    if (!message || !fabric->options.reorder)
        due_ns = later(due_ns, side->latest_ns);
    side->latest_ns = later(due_ns, side->latest_ns);
    if (!message)
        side->floor_ns = due_ns;
    return due_ns;
}

void memory_control_send(struct memory_fabric *fabric, enum memory_item_kind kind, uint32_t from,
                         uint32_t to, const char *text)
{
    struct memory_item *item = memory_item_create(fabric, kind, from, to);
    item->due_ns = memory_arrival_choose(fabric, memory_side(fabric, from, to), false);
    snprintf(item->text, sizeof(item->text), "%s", text);
    memory_item_insert(fabric, item);
}

uint64_t memory_checksum(const struct iovec *parts, unsigned count)
{
    uint64_t sum = 1469598103934665603u; /* FNV-1a */
    for (unsigned i = 0; i < count; i++) {
        const uint8_t *data = parts[i].iov_base;
        for (size_t j = 0; j < parts[i].iov_len; j++)
            sum = (sum ^ data[j]) * 1099511628211u;
    }
    return sum;
}

/* --- the end of a pair --- */

static void sent_push(struct memory_fabric *fabric, const struct memory_item *item, int status)
{
    struct memory_node *node = &fabric->nodes[item->from];
    node->sides[item->to].sends--;
    memory_event_push(node, TRANSPORT_SENT, item->to, status)->context = item->context;
}

void memory_items_drop(struct memory_fabric *fabric, uint32_t from, uint32_t to, bool wire,
                       bool tell)
{
    for (struct memory_item *item = fabric->first, *next; item; item = next) {
        /* The analyzer does not know that item->previous is the one before, so takes a freed item
         * for linked.
         * NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
        next = item->next;
        if (item->from != from || item->to != to || (item->kind != ITEM_SEND && !wire))
            continue;
        item_unlink(fabric, item);
        if (item->kind == ITEM_SEND && tell)
            sent_push(fabric, item, ERR_LOST);
        item_free(item);
    }
}

static void receives_return(struct memory_node *node, uint32_t peer)
{
    struct memory_receive *receive;
    while ((receive = memory_receive_pop(&node->sides[peer].receives))) {
        memory_event_push(node, TRANSPORT_RETURNED, peer, ERR_LOST)->context = receive->context;
        free(receive);
    }
}

void memory_side_end(struct memory_node *node, uint32_t peer)
{
    memory_items_drop(node->fabric, node->number, peer, false, true);
    receives_return(node, peer);
    node->sides[peer].state = SIDE_IDLE;
    node->sides[peer].epoch = 0;
}

static void side_down(struct memory_node *node, uint32_t peer, const char *text)
{
    memory_side_end(node, peer);
    struct transport_event *event = memory_event_push(node, TRANSPORT_PEER_DOWN, peer, ERR_LOST);
    snprintf(event->text, sizeof(event->text), "%s", text);
    node->sides[peer].down_queued = true;
}

/* --- delivery --- */

/* The message leaves its sender's memory. */
static void deliver_send(struct memory_fabric *fabric, struct memory_item *item)
{
    if (memory_checksum(item->parts, item->part_count) != item->checksum)
        memory_fault("node %u changed a message to node %u before it was sent", item->from,
                     item->to);
    item->data = memory_allocate(item->bytes);
    size_t used = 0;
    for (unsigned i = 0; i < item->part_count; i++) {
        if (item->parts[i].iov_len > 0)
            memcpy(item->data + used, item->parts[i].iov_base, item->parts[i].iov_len);
        used += item->parts[i].iov_len;
    }
    sent_push(fabric, item, 0);
    item->kind = ITEM_MESSAGE;
    item->due_ns = item->arrival_ns;
    memory_item_insert(fabric, item);
}

/* Whether one that was sent before it waits for a receive. */
static bool waits_behind(const struct memory_fabric *fabric, const struct memory_item *item)
{
    if (!fabric->options.messages_wait || fabric->options.reorder)
        return false;
    for (const struct memory_item *it = fabric->first; it; it = it->next) {
        if (it->wait_ns > 0 && it->from == item->from && it->to == item->to &&
            it->sequence < item->sequence)
            return true;
    }
    return false;
}

/* Looked at again soon, in turn. */
static void message_wait(struct memory_fabric *fabric, struct memory_item *item)
{
    uint64_t wait_ns = item->wait_ns ? 2 * item->wait_ns : RECEIVE_WAIT_NS;
    item->wait_ns = wait_ns < RECEIVE_WAIT_MOST_NS ? wait_ns : RECEIVE_WAIT_MOST_NS;
    item->due_ns = fabric->now_ns + item->wait_ns;
    memory_item_insert(fabric, item);
}

/* Whether it is over for the item. */
static bool deliver_message(struct memory_fabric *fabric, struct memory_item *item)
{
    struct memory_node *node = &fabric->nodes[item->to];
    struct memory_side *side = &node->sides[item->from];
    bool shared = fabric->options.shared_receives;
    bool known = side->state == SIDE_UP;
    if (!node->open || (!shared && (!known || side->epoch != item->epoch)))
        return true; /* the connection that it came over is gone */
    struct memory_receive *receive =
        waits_behind(fabric, item) ? NULL
                                   : memory_receive_pop(memory_receives_for(node, item->from));
    if (!receive) {
        /* A datagram of a pair that this side does not have is counted in nobody's window. */
        if (shared && !known)
            return true;
        if (fabric->options.messages_wait) {
            message_wait(fabric, item);
            return false;
        }
        memory_fault("node %u sent %u bytes to node %u, which has no receive posted for it",
                     item->from, item->bytes, item->to);
    }
    if (receive->bytes < item->bytes)
        memory_fault("node %u sent %u bytes to node %u, whose receive has room for %u", item->from,
                     item->bytes, item->to, receive->bytes);
    if (item->bytes > 0)
        memcpy(receive->data, item->data, item->bytes);
    struct transport_event *event =
        memory_event_push(node, TRANSPORT_RECEIVED, known ? item->from : TRANSPORT_NO_PEER, 0);
    event->bytes = item->bytes;
    event->context = receive->context;
    free(receive);
    return true;
}

static void deliver_control(struct memory_fabric *fabric, struct memory_item *item)
{
    struct memory_node *node = &fabric->nodes[item->to];
    struct memory_side *side = &node->sides[item->from];
    if (!node->open || side->epoch != item->epoch)
        return;
    if (item->kind == ITEM_DOWN) {
        side_down(node, item->from, item->text);
    } else {
        side->state = SIDE_UP;
        memory_event_push(node, TRANSPORT_PEER_UP, item->from, 0);
    }
}

/* Whether the item waits for a frozen node, or for its way to be free. */
static bool item_held(const struct memory_fabric *fabric, const struct memory_item *item)
{
    bool leaves = item->kind == ITEM_SEND;
    if (!leaves && !item->local && fabric->nodes[item->from].sides[item->to].blocked)
        return true;
    return (!item->local && fabric->nodes[item->from].frozen) ||
           (!leaves && fabric->nodes[item->to].frozen);
}

void memory_fabric_advance(struct memory_fabric *fabric, uint64_t now_ns)
{
    fabric->now_ns = later(fabric->now_ns, now_ns);
    /* Delivering may put new items anywhere behind: start over after each. */
    for (struct memory_item *item = fabric->first; item && item->due_ns <= fabric->now_ns;) {
        if (item_held(fabric, item)) {
            item = item->next;
            continue;
        }
        item_unlink(fabric, item);
        if (item->kind == ITEM_SEND) {
            deliver_send(fabric, item);
        } else {
            bool over = true;
            if (item->kind == ITEM_MESSAGE)
                over = deliver_message(fabric, item);
            else
                deliver_control(fabric, item);
            if (over)
                item_free(item);
        }
        item = fabric->first;
    }
}

uint64_t memory_fabric_next_ns(const struct memory_fabric *fabric)
{
    for (const struct memory_item *item = fabric->first; item; item = item->next) {
        if (!item_held(fabric, item))
            return item->due_ns;
    }
    return UINT64_MAX;
}

void memory_fabric_cut(struct memory_fabric *fabric, uint32_t a, uint32_t b)
{
    const uint32_t ends[2][2] = {{a, b}, {b, a}};
    memory_items_drop(fabric, a, b, true, true);
    memory_items_drop(fabric, b, a, true, true);
    for (int i = 0; i < 2; i++) {
        struct memory_side *side = memory_side(fabric, ends[i][0], ends[i][1]);
        if (side->epoch == 0)
            continue;
        struct memory_item *item = memory_item_create(fabric, ITEM_DOWN, ends[i][1], ends[i][0]);
        item->epoch = side->epoch;
        item->due_ns = fabric->now_ns;
        item->local = true;
        snprintf(item->text, sizeof(item->text), "connection lost (cut)");
        memory_item_insert(fabric, item);
    }
}

/* All that is on the wire from one to the other, in order; linked by `next` alone. */
static struct memory_item *wire_take(struct memory_fabric *fabric, uint32_t from, uint32_t to)
{
    struct memory_item *first = NULL, **end = &first;
    for (struct memory_item *item = fabric->first, *next; item; item = next) {
        /* The analyzer takes a freed item for linked, as in memory_items_drop.
         * NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
        next = item->next;
        if (item->from != from || item->to != to || item->kind == ITEM_SEND || item->local)
            continue;
        item_unlink(fabric, item);
        item->next = NULL;
        *end = item;
        end = &item->next;
    }
    return first;
}

void memory_fabric_block(struct memory_fabric *fabric, uint32_t from, uint32_t to, bool blocked)
{
    struct memory_side *side = memory_side(fabric, from, to);
    side->blocked = blocked;
    if (blocked)
        return;
    uint64_t due_ns = fabric->now_ns;
    for (struct memory_item *item = wire_take(fabric, from, to), *next; item; item = next) {
        next = item->next;
        if (item->due_ns <= fabric->now_ns && item->epoch != side->epoch) {
            item_free(item);
            continue;
        }
        /* An item that is not due yet may not arrive before those that have waited. */
        if (item->due_ns <= due_ns)
            item->due_ns = ++due_ns;
        memory_item_insert(fabric, item);
    }
    for (struct memory_item *item = fabric->first; item; item = item->next) {
        /* The analyzer errs as above. NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
        if (item->from == from && item->to == to && item->kind == ITEM_SEND &&
            item->arrival_ns <= due_ns)
            item->arrival_ns = ++due_ns;
    }
    side->latest_ns = later(side->latest_ns, due_ns);
}

void memory_fabric_freeze(struct memory_fabric *fabric, uint32_t node, bool frozen)
{
    fabric->nodes[node].frozen = frozen;
}

uint32_t memory_fabric_receives(const struct memory_fabric *fabric, uint32_t node, uint32_t peer)
{
    const struct memory_node *n = &fabric->nodes[node];
    return fabric->options.shared_receives ? n->shared.count : n->sides[peer].receives.count;
}
