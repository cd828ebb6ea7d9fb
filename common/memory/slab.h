/* Objects of one size, taken and given back without calling malloc in the steady state.
 * One thread uses a slab. Calls nothing. */
#ifndef COMMON_MEMORY_SLAB_H
#define COMMON_MEMORY_SLAB_H

#include <stddef.h>

struct slab_block;

struct slab {
    size_t object_bytes;
    struct slab_block *blocks;
    void *free_list;
    size_t in_use;
};

void slab_init(struct slab *slab, size_t object_bytes);
/* Frees all blocks; objects still in use are gone. */
void slab_clear(struct slab *slab);
/* A zeroed object, or NULL when out of memory. */
void *slab_get(struct slab *slab);
void slab_put(struct slab *slab, void *object);

#endif
