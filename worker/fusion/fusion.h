/* One training step's fusion buffers: which gradients are ready, which buffer may be sent next.
 *
 * Pure. Buffers are sent in the plan's order only, each when it is complete and all before it have
 * been sent: the order is then the same on all ranks, in whatever order gradients appear on each.
 * A gradient is claimed (then its data may be gathered, without a lock), then filled.
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
    uint32_t *order;   /* in which gradients were claimed */
    uint32_t claimed_count;
    uint32_t sent; /* buffers */
};

/* For plans of this many parameters. ERR_MEMORY. */
int fusion_step_init(struct fusion_step *step, uint32_t parameter_count);
void fusion_step_clear(struct fusion_step *step);

/* Begin a step with nothing ready. The plan must stay. */
void fusion_step_begin(struct fusion_step *step, const struct plan *plan);

/* ERR_INVALID: no such parameter, or claimed already in this step. */
int fusion_step_claim(struct fusion_step *step, uint64_t index);
void fusion_step_fill(struct fusion_step *step, uint32_t index);

/* The next buffer to send, if its turn has come; it counts as sent then. */
bool fusion_step_next(struct fusion_step *step, uint32_t *buffer);

/* The order learned in this step: as claimed, then the others as a backward pass would have them,
 * last registered first. order has room for all. */
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
