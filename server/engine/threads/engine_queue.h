/* Queues between the control thread and the engine: commands one way, events the other. Both are
 * rare, so a lock is good enough. */
#ifndef SERVER_ENGINE_ENGINE_QUEUE_H
#define SERVER_ENGINE_ENGINE_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/commands/engine_command.h"
#include "server/commands/engine_event.h"

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

/* Copies the command, and takes what is handed over in it. */
/* False: no memory for the list of COMMAND_JOB_OPEN or COMMAND_GROUP_OPEN. */
bool engine_queue_put_command(struct engine_queue *queue, const struct engine_command *command);
/* The caller carries it out and frees it with free(). NULL when empty; the descriptor is then
 * clear. */
struct engine_command_item *engine_queue_take_command(struct engine_queue *queue);
/* Takes the event. */
void engine_queue_put_event(struct engine_queue *queue, struct engine_event *event);
/* Return the next event, which is freed with engine_event_free. NULL when empty; the descriptor is
 * then clear. */
struct engine_event *engine_queue_take_event(struct engine_queue *queue);

#endif
