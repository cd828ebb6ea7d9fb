/* What goes between the control thread and the engine: commands one way, events the other. Rare, so
 * a lock is good enough. */
#ifndef SERVER_ENGINE_ENGINE_QUEUE_H
#define SERVER_ENGINE_ENGINE_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/format/arena.h"
#include "common/transport/transport.h"
#include "server/engine/engine_event.h"

enum engine_command_type {
    COMMAND_STOP,
    COMMAND_PEER_CONNECT,
    COMMAND_PEER_DISCONNECT,
    COMMAND_JOB_OPEN,
    COMMAND_JOB_CLOSE,
    COMMAND_JOB_FAIL,
    COMMAND_GROUP_OPEN,
    COMMAND_GROUP_CLOSE,
    COMMAND_GROUP_FAIL,
    COMMAND_RANK_LEFT,
    COMMAND_SEGMENT_OPEN,
    COMMAND_SEGMENT_CLOSE,
    COMMAND_WORKER_ATTACH,
    COMMAND_WORKER_DETACH,
    COMMAND_LATE_QUERY,
    COMMAND_DRAIN,
    COMMAND_TRACE_START,
    COMMAND_TRACE_STOP,
};

/* One command; which fields count depends on the type. Freed with engine_command_free. */
struct engine_command {
    void *next; /* first: in a queue */
    enum engine_command_type type;
    uint64_t job;
    uint32_t group;
    uint32_t rank;
    uint64_t sequence;
    uint32_t node;
    bool active;
    uint8_t address[TRANSPORT_ADDRESS_BYTES];
    uint32_t address_bytes;
    uint8_t receive_token[TRANSPORT_TOKEN_BYTES];
    uint8_t send_token[TRANSPORT_TOKEN_BYTES];
    struct engine_job roster; /* its arrays are in `numbers` */
    uint32_t *numbers;        /* GROUP_OPEN: ranks */
    uint32_t number_count;
    struct arena arena;
    int submission_doorbell;
    int completion_doorbell;
    uint32_t segment;
    uint8_t *segment_base; /* mapped; the command's until it is carried out */
    uint64_t segment_bytes;
    struct trace *trace; /* the command's until it is carried out */
    uint32_t trace_number;
};

struct engine_queue {
    pthread_mutex_t lock;
    void *first;
    void *last;
    int descriptor; /* an eventfd, rung while the queue is not empty */
    bool rung;
};

/* Rings the descriptor of an empty queue too: who waits for it looks, and finds nothing. */
void engine_queue_wake(struct engine_queue *queue);
int engine_queue_init(struct engine_queue *queue, struct error *error);
void engine_queue_clear(struct engine_queue *queue); /* must be empty */

void engine_queue_put_command(struct engine_queue *queue, struct engine_command *command);
/* NULL when empty; the descriptor is then clear. */
struct engine_command *engine_queue_take_command(struct engine_queue *queue);
void engine_queue_put_event(struct engine_queue *queue, struct engine_event *event);
struct engine_event *engine_queue_take_event(struct engine_queue *queue);

/* A zeroed command; aborts when there is no memory for it. */
struct engine_command *engine_command_create(enum engine_command_type type);
void engine_command_free(struct engine_command *command);

#endif
