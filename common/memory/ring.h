/* A queue of pointers from one thread to one other, without locks. The consumer may sleep on a
 * futex (ring_pop_wait) or be woken by other means (ring_prepare_sleep). Calls nothing. */
#ifndef COMMON_MEMORY_RING_H
#define COMMON_MEMORY_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* One thread pushes, the producer; one pops, the consumer. */
struct ring {
    void **entries;
    uint32_t mask;
    _Alignas(64) _Atomic uint32_t tail; /* producer's */
    _Alignas(64) _Atomic uint32_t head; /* consumer's */
    _Alignas(64) _Atomic uint32_t sleeping;
};

/* capacity: a power of two. 0 or ERR_MEMORY. */
int ring_init(struct ring *ring, uint32_t capacity);
void ring_clear(struct ring *ring);

/* Producer. false: full. */
bool ring_push(struct ring *ring, void *entry);
/* Producer, after pushing: whether the consumer announced sleep; clears the announcement. */
bool ring_consumer_sleeps(struct ring *ring);
/* Producer: wake a consumer that is in ring_pop_wait. */
void ring_wake(struct ring *ring);

/* Consumer. NULL: empty. */
void *ring_pop(struct ring *ring);
/* Consumer: announce sleep. true: there is something after all, and the announcement is withdrawn.
 */
bool ring_prepare_sleep(struct ring *ring);
void ring_cancel_sleep(struct ring *ring);
/* Consumer: sleep until something is there. NULL entries cannot be pushed, so it never returns
 * NULL. */
void *ring_pop_wait(struct ring *ring);

#endif
