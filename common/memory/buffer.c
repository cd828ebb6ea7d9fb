#include "common/memory/buffer.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Buffers of a slab: enough that registering is rare, few enough that a small job stays small. */
#define BUFFER_SLAB_BUFFERS 16

struct buffer_slab {
    struct buffer_slab *next;
    void *memory;
    size_t bytes;
    void *registration;
    struct buffer buffers[BUFFER_SLAB_BUFFERS];
};

struct buffer_pool {
    uint32_t buffer_bytes;
    uint64_t limit_bytes;
    uint64_t reserved; /* buffers */
    uint64_t charged_bytes;
    uint64_t used;
    uint64_t allocated;
    struct buffer_pool_io io;
    struct buffer_slab *slabs;
    struct buffer *free_list;
};

int buffer_pool_create(struct buffer_pool **pool, uint32_t buffer_bytes, uint64_t limit_bytes,
                       const struct buffer_pool_io *io, struct error *error)
{
    struct buffer_pool *made = calloc(1, sizeof(*made));
    if (!made)
        return error_set(error, ERR_MEMORY, "no memory for a buffer pool");
    made->buffer_bytes = (buffer_bytes + 63u) & ~63u;
    made->limit_bytes = limit_bytes;
    if (io)
        made->io = *io;
    *pool = made;
    return 0;
}

void buffer_pool_destroy(struct buffer_pool *pool)
{
    if (!pool)
        return;
    assert(pool->used == 0);
    while (pool->slabs) {
        struct buffer_slab *slab = pool->slabs;
        pool->slabs = slab->next;
        if (slab->registration)
            pool->io.unregister_slab(pool->io.context, slab->registration);
        munmap(slab->memory, slab->bytes);
        free(slab);
    }
    free(pool);
}

int buffer_pool_reserve(struct buffer_pool *pool, uint64_t count, struct error *error)
{
    uint64_t most = (pool->limit_bytes - pool->charged_bytes) / pool->buffer_bytes;
    if (count > most || pool->reserved > most - count)
        return error_set(error, ERR_MEMORY,
                         "%" PRIu64 " chunk buffers (%" PRIu64 " bytes) asked for, %" PRIu64
                         " bytes already promised, the limit limits.memory_bytes is %" PRIu64,
                         count, count * pool->buffer_bytes, buffer_pool_reserved_bytes(pool),
                         pool->limit_bytes);
    pool->reserved += count;
    return 0;
}

void buffer_pool_unreserve(struct buffer_pool *pool, uint64_t count)
{
    assert(count <= pool->reserved);
    pool->reserved -= count;
}

int buffer_pool_charge(struct buffer_pool *pool, uint64_t bytes, struct error *error)
{
    uint64_t taken = buffer_pool_reserved_bytes(pool);
    if (bytes > pool->limit_bytes || taken > pool->limit_bytes - bytes)
        return error_set(error, ERR_MEMORY,
                         "%" PRIu64 " bytes asked for, %" PRIu64
                         " bytes already promised, the limit limits.memory_bytes is %" PRIu64,
                         bytes, taken, pool->limit_bytes);
    pool->charged_bytes += bytes;
    return 0;
}

void buffer_pool_uncharge(struct buffer_pool *pool, uint64_t bytes)
{
    assert(bytes <= pool->charged_bytes);
    pool->charged_bytes -= bytes;
}

static int buffer_pool_grow(struct buffer_pool *pool)
{
    struct buffer_slab *slab = calloc(1, sizeof(*slab));
    if (!slab)
        return ERR_MEMORY;
    slab->bytes = (size_t)pool->buffer_bytes * BUFFER_SLAB_BUFFERS;
    slab->memory =
        mmap(NULL, slab->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (slab->memory == MAP_FAILED) {
        free(slab);
        return ERR_MEMORY;
    }
    if (pool->io.register_slab &&
        pool->io.register_slab(pool->io.context, slab->memory, slab->bytes, &slab->registration,
                               NULL) != 0) {
        munmap(slab->memory, slab->bytes);
        free(slab);
        return ERR_MEMORY;
    }
    slab->next = pool->slabs;
    pool->slabs = slab;
    pool->allocated += BUFFER_SLAB_BUFFERS;
    for (int i = BUFFER_SLAB_BUFFERS; i-- > 0;) {
        struct buffer *buffer = &slab->buffers[i];
        buffer->data = (uint8_t *)slab->memory + (size_t)i * pool->buffer_bytes;
        buffer->capacity = pool->buffer_bytes;
        buffer->registration = slab->registration;
        buffer->pool = pool;
        buffer->next = pool->free_list;
        pool->free_list = buffer;
    }
    return 0;
}

struct buffer *buffer_get(struct buffer_pool *pool)
{
    if (!pool->free_list && buffer_pool_grow(pool) != 0)
        return NULL;
    struct buffer *buffer = pool->free_list;
    pool->free_list = buffer->next;
    buffer->next = NULL;
    buffer->references = 1;
    pool->used++;
    return buffer;
}

void buffer_hold(struct buffer *buffer)
{
    assert(buffer->references > 0);
    buffer->references++;
}

void buffer_release(struct buffer *buffer)
{
    if (!buffer)
        return;
    assert(buffer->references > 0);
    if (--buffer->references > 0)
        return;
    struct buffer_pool *pool = buffer->pool;
    buffer->next = pool->free_list;
    pool->free_list = buffer;
    pool->used--;
}

void buffer_pool_forget(struct buffer_pool *pool, uint64_t count)
{
    assert(count <= pool->used);
    pool->used -= count;
}

uint64_t buffer_pool_limit_bytes(const struct buffer_pool *pool)
{
    return pool->limit_bytes;
}

uint64_t buffer_pool_allocated_bytes(const struct buffer_pool *pool)
{
    return pool->allocated * pool->buffer_bytes;
}

uint64_t buffer_pool_used_bytes(const struct buffer_pool *pool)
{
    return pool->used * pool->buffer_bytes;
}

uint64_t buffer_pool_reserved_bytes(const struct buffer_pool *pool)
{
    return pool->reserved * pool->buffer_bytes + pool->charged_bytes;
}
