/* The plan of a model's fusion buffers: which gradients lie together, where, and in which order the
 * buffers are sent. Pure; the same on every rank that has the same parameters and order.
 *
 * Gradients are put, in the order given, into the open buffer of their data type; a buffer that has
 * reached its threshold is closed. Buffers are sent in the order in which they are closed, the
 * unfinished ones at the end in the order of their last gradients. Every gradient begins at a
 * multiple of PLAN_ALIGNMENT bytes, so the memory has the same size for any order.
 *
 * Calls common/reduce.
 */
#ifndef WORKER_FUSION_PLAN_H
#define WORKER_FUSION_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/reduce/dtype.h"

#define PLAN_ALIGNMENT 64u

struct plan_parameter {
    uint64_t count; /* elements */
    enum dtype dtype;
};

struct plan_buffer {
    enum dtype dtype;
    uint64_t offset, bytes; /* in the memory of all buffers; bytes are whole elements */
    uint32_t first_member;  /* in plan.members */
    uint32_t member_count;
    uint32_t priority; /* 0 for the buffer with the parameter registered first, and so on */
};

struct plan {
    struct plan_buffer *buffers; /* in the order in which they are sent */
    uint32_t buffer_count;
    uint32_t parameter_count;
    uint32_t *members;   /* parameters, buffer by buffer */
    uint32_t *buffer_of; /* [parameter] */
    uint64_t *offset_of; /* [parameter]: bytes in the memory of all buffers */
    uint64_t total_bytes;
};

/* count * the bytes of an element, without padding. */
uint64_t plan_gradient_bytes(const struct plan_parameter *parameter);
/* Add the bytes that the parameter takes in its buffer to *total. ERR_INVALID: 2^62 or more. */
int plan_add_bytes(uint64_t *total, const struct plan_parameter *parameter);

/* When a buffer is full, where nobody says: 25 MiB, or a chunk for each server where that is more,
 * so that with many of them messages do not get small. */
uint64_t plan_threshold_bytes(uint32_t servers, uint32_t chunk_bytes);

/* Make the plan. order: every parameter's index once. first_buffer_bytes: the threshold of the
 * buffer that is opened first, so that something is sent early. ERR_MEMORY, ERR_INVALID (2^62 bytes
 * or more in all). */
int plan_make(struct plan *plan, const struct plan_parameter *parameters, uint32_t parameter_count,
              const uint32_t *order, uint64_t threshold_bytes, uint64_t first_buffer_bytes);
void plan_clear(struct plan *plan);

/* Whether order has each of 0 .. count-1 once. seen: scratch of count bytes. */
bool plan_order_valid(const uint32_t *order, uint32_t count, uint8_t *seen);

#endif
