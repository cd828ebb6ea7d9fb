#include "common/memory/ring.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/error.h"

/* The sleeping protocol is Dekker's: the producer writes tail and then reads sleeping, the consumer
 * writes sleeping and then reads tail. All four are sequentially consistent, so one of the two sees
 * the other. */

int ring_init(struct ring *ring, uint32_t capacity)
{
    ring->entries = calloc(capacity, sizeof(*ring->entries));
    if (!ring->entries)
        return ERR_MEMORY;
    ring->mask = capacity - 1;
    atomic_init(&ring->tail, 0);
    atomic_init(&ring->head, 0);
    atomic_init(&ring->sleeping, 0);
    return 0;
}

void ring_clear(struct ring *ring)
{
    free(ring->entries);
    ring->entries = NULL;
}

bool ring_push(struct ring *ring, void *entry)
{
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    if (tail - atomic_load_explicit(&ring->head, memory_order_acquire) > ring->mask)
        return false;
    ring->entries[tail & ring->mask] = entry;
    atomic_store(&ring->tail, tail + 1);
    return true;
}

bool ring_consumer_sleeps(struct ring *ring)
{
    return atomic_load(&ring->sleeping) && atomic_exchange(&ring->sleeping, 0);
}

void ring_wake(struct ring *ring)
{
    syscall(SYS_futex, &ring->sleeping, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void *ring_pop(struct ring *ring)
{
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    if (head == atomic_load_explicit(&ring->tail, memory_order_acquire))
        return NULL;
    void *entry = ring->entries[head & ring->mask];
    atomic_store_explicit(&ring->head, head + 1, memory_order_release);
    return entry;
}

bool ring_prepare_sleep(struct ring *ring)
{
    atomic_store(&ring->sleeping, 1);
    if (atomic_load(&ring->tail) == atomic_load_explicit(&ring->head, memory_order_relaxed))
        return false;
    ring_cancel_sleep(ring);
    return true;
}

void ring_cancel_sleep(struct ring *ring)
{
    atomic_store(&ring->sleeping, 0);
}

void *ring_pop_wait(struct ring *ring)
{
    for (;;) {
        void *entry = ring_pop(ring);
        if (entry)
            return entry;
        if (!ring_prepare_sleep(ring))
            syscall(SYS_futex, &ring->sleeping, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
    }
}
