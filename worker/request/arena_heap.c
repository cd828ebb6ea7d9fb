#include "worker/request/arena_heap.h"

#include "common/base/error.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int arena_heap_init(struct arena_heap *heap, uint64_t offset, uint64_t bytes)
{
    assert(offset % ARENA_HEAP_ALIGNMENT == 0);
    bytes -= bytes % ARENA_HEAP_ALIGNMENT;
    struct arena_heap_block *blocks = calloc(16, sizeof(*blocks));
    if (!blocks)
        return ERR_MEMORY;
    blocks[0] = (struct arena_heap_block){.offset = offset, .bytes = bytes};
    *heap = (struct arena_heap){
        .blocks = blocks, .block_count = 1, .block_capacity = 16, .free_bytes = bytes};
    return 0;
}

void arena_heap_clear(struct arena_heap *heap)
{
    free(heap->blocks);
    *heap = (struct arena_heap){0};
}

static int reserve_block(struct arena_heap *heap)
{
    if (heap->block_count < heap->block_capacity)
        return 0;
    size_t capacity = 2 * heap->block_capacity;
    struct arena_heap_block *blocks = realloc(heap->blocks, capacity * sizeof(*blocks));
    if (!blocks)
        return ERR_MEMORY;
    heap->blocks = blocks;
    heap->block_capacity = capacity;
    return 0;
}

static void remove_block(struct arena_heap *heap, size_t i)
{
    heap->block_count--;
    memmove(&heap->blocks[i], &heap->blocks[i + 1],
            (heap->block_count - i) * sizeof(heap->blocks[0]));
}

int arena_heap_allocate(struct arena_heap *heap, uint64_t bytes, uint64_t *offset)
{
    if (bytes > heap->free_bytes)
        return ERR_MEMORY;
    if (bytes == 0)
        bytes = 1;
    bytes = (bytes + ARENA_HEAP_ALIGNMENT - 1) / ARENA_HEAP_ALIGNMENT * ARENA_HEAP_ALIGNMENT;
    if (reserve_block(heap) < 0)
        return ERR_MEMORY;
    for (size_t i = 0; i < heap->block_count; i++) {
        struct arena_heap_block *block = &heap->blocks[i];
        if (block->used || block->bytes < bytes)
            continue;
        if (block->bytes > bytes) {
            memmove(block + 2, block + 1, (heap->block_count - i - 1) * sizeof(*block));
            heap->block_count++;
            block[1] = (struct arena_heap_block){.offset = block->offset + bytes,
                                                 .bytes = block->bytes - bytes};
            block->bytes = bytes;
        }
        block->used = true;
        heap->free_bytes -= bytes;
        *offset = block->offset;
        return 0;
    }
    return ERR_MEMORY;
}

static int compare_offset(const void *key, const void *element)
{
    uint64_t offset = *(const uint64_t *)key;
    const struct arena_heap_block *block = element;
    return offset < block->offset ? -1 : offset > block->offset;
}

int arena_heap_free(struct arena_heap *heap, uint64_t offset)
{
    struct arena_heap_block *block =
        bsearch(&offset, heap->blocks, heap->block_count, sizeof(*block), compare_offset);
    if (!block || !block->used)
        return ERR_INVALID;
    size_t i = (size_t)(block - heap->blocks);
    block->used = false;
    heap->free_bytes += block->bytes;
    if (i + 1 < heap->block_count && !block[1].used) {
        block->bytes += block[1].bytes;
        remove_block(heap, i + 1);
    }
    if (i > 0 && !block[-1].used) {
        block[-1].bytes += block->bytes;
        remove_block(heap, i);
    }
    return 0;
}

uint64_t arena_heap_free_bytes(const struct arena_heap *heap)
{
    return heap->free_bytes;
}

uint64_t arena_heap_largest_bytes(const struct arena_heap *heap)
{
    uint64_t largest = 0;
    for (size_t i = 0; i < heap->block_count; i++)
        if (!heap->blocks[i].used && heap->blocks[i].bytes > largest)
            largest = heap->blocks[i].bytes;
    return largest;
}
