/* Memory for copies of data that results overwrite (request_keep_sent). Memory that is given back
 * is taken again: the first touch of new memory may cost many times what the copy does.
 *
 * Pure; calls nothing. The caller holds the job's lock.
 */
#ifndef WORKER_REQUEST_KEPT_MEMORY_H
#define WORKER_REQUEST_KEPT_MEMORY_H

#include <stdint.h>

struct kept_block;

/* Zero-initialised: nothing is taken. */
struct kept_memory {
    struct kept_block *spares; /* the one that was given back first comes first */
    uint32_t spare_count;
    uint64_t held_bytes;  /* of all blocks, those that are taken and the spares */
    uint64_t taken_bytes; /* what is asked for now */
    uint64_t most_bytes;  /* and at once, so far */
};

/* Take so many bytes, on a border of 64. The memory is the caller's until given back. NULL: out of
 * memory. Never more is held than twice what was asked for at once. */
void *kept_memory_take(struct kept_memory *memory, uint64_t bytes);
/* NULL is ignored. */
void kept_memory_give_back(void *taken);
/* Free the spares: all that was taken has been given back. */
void kept_memory_clear(struct kept_memory *memory);

#endif
