/* Inside of the memory fabric: what is under way, and what becomes of it. Only
 * transport_memory*.c include this. */
#ifndef COMMON_TRANSPORT_TRANSPORT_MEMORY_WIRE_H
#define COMMON_TRANSPORT_TRANSPORT_MEMORY_WIRE_H

#include "common/transport/transport_memory.h"

/* Kinds of items under way. The items are sorted by time and, at equal times, by the order in which
 * they were made. */
enum memory_item_kind {
    ITEM_SEND,    /* a message still in its sender's memory; SENT when its time comes */
    ITEM_MESSAGE, /* a message on the wire */
    ITEM_UP,
    ITEM_DOWN,
};

struct memory_item {
    struct memory_item *next, *previous;
    uint64_t due_ns;
    uint64_t sequence;
    enum memory_item_kind kind;
    uint32_t from, to; /* UP and DOWN are for `to`, about `from` */
    uint64_t epoch;    /* of the pair when it was made */
    /* ITEM_SEND: pieces in the sender's memory, their checksum, and when they will arrive */
    struct iovec parts[2];
    unsigned part_count;
    uint64_t checksum;
    uint64_t arrival_ns;
    void *context;
    /* ITEM_MESSAGE */
    uint8_t *data;
    uint32_t bytes;
    uint64_t wait_ns; /* how long it waits for a receive until it looks again; 0: it does not */
    char text[64];    /* ITEM_DOWN: the reason */
    bool local;       /* ITEM_DOWN: known without word from the other side */
};

struct memory_queued_event {
    struct memory_queued_event *next;
    struct transport_event event;
};

struct memory_receive {
    struct memory_receive *next;
    void *data;
    uint32_t bytes;
    void *context;
};

struct memory_receive_list {
    struct memory_receive *first, **last;
    uint32_t count;
};

struct memory_region {
    uint8_t *address;
    size_t bytes;
};

enum memory_side_state { SIDE_IDLE, SIDE_EXPECTING, SIDE_CONNECTING, SIDE_UP };

/* The state that one node keeps of another. */
struct memory_side {
    enum memory_side_state state;
    bool down_queued; /* PEER_DOWN was not polled yet */
    bool blocked;     /* nothing arrives at the other */
    uint8_t token[TRANSPORT_TOKEN_BYTES];
    uint64_t epoch; /* the pair's, from the time that both had called */
    struct memory_receive_list receives;
    uint32_t sends;
    uint64_t latest_ns; /* due time of the last thing sent to the other */
    uint64_t sent_ns;   /* when the last message leaves its sender's memory */
    uint64_t floor_ns;  /* of the last UP or DOWN: messages never overtake those */
};

struct memory_node {
    struct transport transport; /* first */
    struct memory_fabric *fabric;
    uint32_t number;
    bool open;
    bool frozen;
    struct memory_queued_event *events, **events_last;
    struct memory_receive_list shared;
    struct memory_side *sides; /* by the other's number */
};

struct memory_fabric {
    struct memory_fabric_options options;
    uint64_t random;
    uint64_t now_ns;
    uint64_t sequence;
    uint64_t epoch;
    struct memory_item *first, *last;
    struct memory_node nodes[];
};

/* A fault of the fabric's user: a line on stderr and abort(). */
void memory_fault(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void *memory_allocate(size_t bytes); /* zeroed; never NULL */
uint64_t memory_random(struct memory_fabric *fabric, uint64_t least, uint64_t most);
struct memory_side *memory_side(struct memory_fabric *fabric, uint32_t node, uint32_t peer);

struct transport_event *memory_event_push(struct memory_node *node, enum transport_event_type type,
                                          uint32_t peer, int status);
struct memory_queued_event *memory_event_pop(struct memory_node *node);
/* Take back UP and DOWN of a peer that were not polled. */
void memory_events_withdraw(struct memory_node *node, uint32_t peer);

void memory_receive_append(struct memory_receive_list *list, struct memory_receive *receive);
struct memory_receive *memory_receive_pop(struct memory_receive_list *list);
struct memory_receive_list *memory_receives_for(struct memory_node *node, uint32_t peer);

struct memory_item *memory_item_create(struct memory_fabric *fabric, enum memory_item_kind kind,
                                       uint32_t from, uint32_t to);
void memory_item_insert(struct memory_fabric *fabric, struct memory_item *item);
/* When something that leaves now arrives. */
uint64_t memory_arrival_choose(struct memory_fabric *fabric, struct memory_side *side,
                               bool message);
void memory_control_send(struct memory_fabric *fabric, enum memory_item_kind kind, uint32_t from,
                         uint32_t to, const char *text);
uint64_t memory_checksum(const struct iovec *parts, unsigned count);
/* Drop what is under way from one to the other: what has not left its sender's memory comes back
 * to it (tell), what is on the wire only with `wire`. */
void memory_items_drop(struct memory_fabric *fabric, uint32_t from, uint32_t to, bool wire,
                       bool tell);
void memory_items_clear(struct memory_fabric *fabric);
/* Idle from now on; what was posted comes back. */
void memory_side_end(struct memory_node *node, uint32_t peer);

#endif
