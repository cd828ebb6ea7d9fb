/* One training step's fusion buffers: which gradients are ready, which buffer may be sent next.
 *
 * Pure. Buffers are sent in the plan's order only, each when it is complete and all before it have
 * been sent: the order is then the same on all ranks, in whatever order gradients appear on each.
 * A gradient is claimed (then its data may be gathered, without a lock), then filled.
 *
 * Calls nothing.
 */
#ifndef WORKER_FUSION_FUSION_H
#define WORKER_FUSION_FUSION_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/fusion/plan.h"

struct fusion_step {
    const struct plan *plan;
    uint32_t parameter_count;
    uint8_t *claimed;  /* [parameter] */
    uint32_t *missing; /* [buffer]: gradients not yet filled */
    uint32_t *order;   /* [claimed_count]: parameters in the order in which they were claimed */
    uint32_t claimed_count;
    uint32_t sent; /* buffers */
};

/* For plans of this many parameters. ERR_MEMORY. */
int fusion_step_init(struct fusion_step *step, uint32_t parameter_count);
void fusion_step_clear(struct fusion_step *step);

/* Begin a step with nothing ready. The plan must stay. */
void fusion_step_begin(struct fusion_step *step, const struct plan *plan);

/* The gradient of parameter `index` is about to be gathered. ERR_INVALID: there is no such
 * parameter, or it was claimed before in this step. */
int fusion_step_claim(struct fusion_step *step, uint64_t index);
/* The gradient, which was claimed, has been gathered. */
void fusion_step_fill(struct fusion_step *step, uint32_t index);

/* True: *buffer is the next to send, and counts as sent. False: its turn has not come. */
bool fusion_step_next(struct fusion_step *step, uint32_t *buffer);

/* The order learned in this step, for which `order` has room: the parameters as they were claimed,
 * then the others as a backward pass would have them, last registered first. */
void fusion_step_order(const struct fusion_step *step, uint32_t *order);

/* A time during which something was under way. */
struct fusion_interval {
    uint64_t start_ns, end_ns;
};

/* The length of the union of the intervals (sorted by start), and of the part of it that lies
 * inside `window`. */
void fusion_measure(const struct fusion_interval *intervals, uint32_t count,
                    struct fusion_interval window, uint64_t *total_ns, uint64_t *inside_ns);

#endif
