/* Memory inside the arena's data area: what shoal_alloc hands out, and staging slots.
 *
 * The bookkeeping is outside the arena, so that a stray write into a gradient cannot spoil it, and
 * so that free memory is never touched. Blocks are kept in the order of their offsets: first fit,
 * joined with free neighbours when given back. One thread at a time.
 *
 * Calls nothing.
 */
#ifndef WORKER_REQUEST_ARENA_HEAP_H
#define WORKER_REQUEST_ARENA_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARENA_HEAP_ALIGNMENT 64u

struct arena_heap_block {
    uint64_t offset, bytes;
    bool used;
};

struct arena_heap {
    struct arena_heap_block *blocks; /* ascending, without gaps; no two free neighbours */
    size_t block_count, block_capacity;
    uint64_t free_bytes;
};

/* A heap of [offset, offset + bytes), all of it free; offset is aligned. Returns 0 or ERR_MEMORY.
 */
int arena_heap_init(struct arena_heap *heap, uint64_t offset, uint64_t bytes);
void arena_heap_clear(struct arena_heap *heap);

/* *offset: an aligned block of at least `bytes` (0 counts as 1). ERR_MEMORY: no block is large
 * enough. */
int arena_heap_allocate(struct arena_heap *heap, uint64_t bytes, uint64_t *offset);
/* Give a block back. ERR_INVALID when none begins at offset. */
int arena_heap_free(struct arena_heap *heap, uint64_t offset);

uint64_t arena_heap_free_bytes(const struct arena_heap *heap);
uint64_t arena_heap_largest_bytes(const struct arena_heap *heap); /* largest free block */

#endif
