/* Chunk buffers: fixed-size, aligned, from slabs, with a limit to what all users of a pool together
 * are promised. One thread uses a pool. Calls common/base. */
#ifndef COMMON_MEMORY_BUFFER_H
#define COMMON_MEMORY_BUFFER_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

struct buffer_pool;

/* Memory for a wire header and a chunk: `data` has room for WIRE_HEADER_BYTES + chunk_bytes. It is
 * aligned to 64 bytes, so the payload behind the header is too. */
struct buffer {
    uint8_t *data;
    uint32_t capacity; /* bytes at data */
    uint32_t references;
    void *registration; /* the slab's fabric registration, or NULL; see buffer_pool_io */
    struct buffer_pool *pool;
    struct buffer *next;
    uint32_t peer;       /* free for the user: the node that it was received from */
    uint32_t connection; /* free for the user: which of that node's connections it was posted for */
};

/* Functions that register a slab's memory with a fabric; both may be NULL. */
struct buffer_pool_io {
    void *context;
    int (*register_slab)(void *context, void *address, size_t bytes, void **registration,
                         struct error *error);
    void (*unregister_slab)(void *context, void *registration);
};

/* buffer_bytes is rounded up to 64. limit_bytes bounds what is promised (buffer_pool_reserve), not
 * what is taken: a user who takes more than it was promised has a bound of its own. Slabs stay
 * until the pool goes. */
int buffer_pool_create(struct buffer_pool **pool, uint32_t buffer_bytes, uint64_t limit_bytes,
                       const struct buffer_pool_io *io, struct error *error);
/* All buffers must be back. */
void buffer_pool_destroy(struct buffer_pool *pool);

/* Promise `count` buffers to a user (a group). ERR_MEMORY with asked, promised and limit. */
int buffer_pool_reserve(struct buffer_pool *pool, uint64_t count, struct error *error);
void buffer_pool_unreserve(struct buffer_pool *pool, uint64_t count);

/* Memory of another kind that counts towards the limit, as much as what is promised does.
 * ERR_MEMORY as above. */
int buffer_pool_charge(struct buffer_pool *pool, uint64_t bytes, struct error *error);
void buffer_pool_uncharge(struct buffer_pool *pool, uint64_t bytes);

/* One reference, or NULL when out of memory. */
struct buffer *buffer_get(struct buffer_pool *pool);
/* One reference more. */
void buffer_hold(struct buffer *buffer);
/* Drop a reference; the last one returns the buffer to its pool. */
void buffer_release(struct buffer *buffer);

/* `count` buffers that were handed out will not come back (a closed fabric had them): their memory
 * goes with the pool. */
void buffer_pool_forget(struct buffer_pool *pool, uint64_t count);

uint64_t buffer_pool_limit_bytes(const struct buffer_pool *pool);
uint64_t buffer_pool_allocated_bytes(const struct buffer_pool *pool); /* of all slabs */
uint64_t buffer_pool_used_bytes(const struct buffer_pool *pool);      /* of buffers handed out */
uint64_t buffer_pool_reserved_bytes(const struct buffer_pool *pool);  /* promised and charged */

#endif
