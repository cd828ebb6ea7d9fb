#include "worker/request/kept_memory.h"

#include <assert.h>
#include <stdlib.h>
#include <utlist.h>

#define BLOCK_ALIGNMENT 64u
/* Most spares, since they are looked through one after another. */
#define SPARES_MAX 256u

struct kept_block {
    _Alignas(BLOCK_ALIGNMENT) struct kept_memory *memory; /* whose it is */
    uint64_t bytes, taken_bytes;    /* behind this: what there are, and what was asked for */
    struct kept_block *prev, *next; /* among the spares */
};

static void spare_remove(struct kept_memory *memory, struct kept_block *spare)
{
    DL_DELETE(memory->spares, spare);
    memory->spare_count--;
}

static void spare_free_oldest(struct kept_memory *memory)
{
    struct kept_block *oldest = memory->spares;
    spare_remove(memory, oldest);
    memory->held_bytes -= oldest->bytes;
    free(oldest);
}

/* The smallest that is large enough, if not half of it or more would be for nothing. */
static struct kept_block *spare_take(struct kept_memory *memory, uint64_t bytes)
{
    struct kept_block *best = NULL, *spare;
    DL_FOREACH(memory->spares, spare)
    {
        if (spare->bytes >= bytes && spare->bytes / 2 < bytes &&
            (!best || spare->bytes < best->bytes))
            best = spare;
    }
    if (best)
        spare_remove(memory, best);
    return best;
}

/* Blocks that are taken are less than twice what was asked for, so it is enough that spares go. */
static struct kept_block *block_make(struct kept_memory *memory, uint64_t bytes)
{
    uint64_t taken_bytes = memory->taken_bytes + bytes;
    uint64_t most_bytes = taken_bytes > memory->most_bytes ? taken_bytes : memory->most_bytes;
    while (memory->spares && memory->held_bytes + bytes > 2 * most_bytes)
        spare_free_oldest(memory);
    struct kept_block *made = aligned_alloc(BLOCK_ALIGNMENT, sizeof(*made) + bytes);
    if (!made)
        return NULL;
    *made = (struct kept_block){.memory = memory, .bytes = bytes};
    memory->held_bytes += bytes;
    return made;
}

void *kept_memory_take(struct kept_memory *memory, uint64_t bytes)
{
    if (bytes > SIZE_MAX / 4)
        return NULL;
    uint64_t rounded = (bytes + BLOCK_ALIGNMENT - 1) / BLOCK_ALIGNMENT * BLOCK_ALIGNMENT;
    struct kept_block *block = spare_take(memory, rounded);
    if (!block)
        block = block_make(memory, rounded);
    if (!block)
        return NULL;
    block->taken_bytes = rounded;
    memory->taken_bytes += rounded;
    if (memory->taken_bytes > memory->most_bytes)
        memory->most_bytes = memory->taken_bytes;
    return block + 1;
}

void kept_memory_give_back(void *taken)
{
    if (!taken)
        return;
    struct kept_block *block = (struct kept_block *)taken - 1;
    struct kept_memory *memory = block->memory;
    assert(memory->taken_bytes >= block->taken_bytes);
    memory->taken_bytes -= block->taken_bytes;
    DL_APPEND(memory->spares, block);
    memory->spare_count++;
    if (memory->spare_count > SPARES_MAX)
        spare_free_oldest(memory);
}

void kept_memory_clear(struct kept_memory *memory)
{
    assert(memory->taken_bytes == 0);
    while (memory->spares)
        spare_free_oldest(memory);
}
