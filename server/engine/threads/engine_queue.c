#include "server/engine/threads/engine_queue.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

int engine_queue_init(struct engine_queue *queue, struct error *error)
{
    *queue = (struct engine_queue){.descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (queue->descriptor < 0)
        return error_set_errno(error, errno, "cannot make an eventfd");
    pthread_mutex_init(&queue->lock, NULL);
    return 0;
}

void engine_queue_clear(struct engine_queue *queue)
{
    if (queue->descriptor < 0)
        return;
    pthread_mutex_destroy(&queue->lock);
    close(queue->descriptor);
    queue->descriptor = -1;
}

/* The lock is held in both, since `rung` is under it: the taker asks in each of its rounds. */
static void queue_ring(struct engine_queue *queue)
{
    uint64_t one = 1;
    if (queue->rung)
        return;
    ssize_t written = write(queue->descriptor, &one, sizeof(one));
    queue->rung = written == sizeof(one);
}

static void queue_silence(struct engine_queue *queue)
{
    uint64_t count;
    if (!queue->rung)
        return;
    ssize_t got = read(queue->descriptor, &count, sizeof(count));
    (void)got; /* nobody else reads it: it was there */
    queue->rung = false;
}

void engine_queue_wake(struct engine_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    queue_ring(queue);
    pthread_mutex_unlock(&queue->lock);
}

/* Both kinds of items begin with the pointer to the next one. */
static void queue_put(struct engine_queue *queue, void *item)
{
    *(void **)item = NULL;
    pthread_mutex_lock(&queue->lock);
    if (queue->last)
        *(void **)queue->last = item;
    else
        queue->first = item;
    queue->last = item;
    queue_ring(queue);
    pthread_mutex_unlock(&queue->lock);
}

static void *queue_take(struct engine_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    void *item = queue->first;
    if (item) {
        queue->first = *(void **)item;
        if (!queue->first)
            queue->last = NULL;
    } else {
        queue_silence(queue);
    }
    pthread_mutex_unlock(&queue->lock);
    return item;
}

_Static_assert(offsetof(struct engine_command_item, next) == 0, "a command is queued by its next");
_Static_assert(offsetof(struct engine_event, next) == 0, "an event is queued by its next");

bool engine_queue_put_command(struct engine_queue *queue, const struct engine_command *command)
{
    struct engine_command_item *item = engine_command_copy(command);
    if (item)
        queue_put(queue, item);
    return item != NULL;
}

struct engine_command_item *engine_queue_take_command(struct engine_queue *queue)
{
    return queue_take(queue);
}

void engine_queue_put_event(struct engine_queue *queue, struct engine_event *event)
{
    queue_put(queue, event);
}

struct engine_event *engine_queue_take_event(struct engine_queue *queue)
{
    return queue_take(queue);
}
