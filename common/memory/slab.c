#include "common/memory/slab.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#define SLAB_BLOCK_OBJECTS 32

struct slab_block {
    struct slab_block *next;
    alignas(max_align_t) unsigned char objects[];
};

void slab_init(struct slab *slab, size_t object_bytes)
{
    size_t alignment = alignof(max_align_t);
    *slab = (struct slab){.object_bytes = (object_bytes + alignment - 1) / alignment * alignment};
}

void slab_clear(struct slab *slab)
{
    while (slab->blocks) {
        struct slab_block *block = slab->blocks;
        slab->blocks = block->next;
        free(block);
    }
    slab->free_list = NULL;
    slab->in_use = 0;
}

static int slab_grow(struct slab *slab)
{
    struct slab_block *block = malloc(sizeof(*block) + SLAB_BLOCK_OBJECTS * slab->object_bytes);
    if (!block)
        return -1;
    block->next = slab->blocks;
    slab->blocks = block;
    for (size_t i = SLAB_BLOCK_OBJECTS; i-- > 0;) {
        void *object = block->objects + i * slab->object_bytes;
        *(void **)object = slab->free_list;
        slab->free_list = object;
    }
    return 0;
}

void *slab_get(struct slab *slab)
{
    if (!slab->free_list && slab_grow(slab) != 0)
        return NULL;
    void *object = slab->free_list;
    slab->free_list = *(void **)object;
    slab->in_use++;
    return memset(object, 0, slab->object_bytes);
}

void slab_put(struct slab *slab, void *object)
{
    *(void **)object = slab->free_list;
    slab->free_list = object;
    slab->in_use--;
}
