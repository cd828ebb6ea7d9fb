/* Fusion buffers on a device: the code gathers gradients of the caller's into a buffer and writes
 * results back, in batches, on the caller's stream, and allocates memory of the device for the
 * buffers. Calls device.h, worker/fusion and common/base. */
#ifndef WORKER_DEVICE_DEVICE_FUSION_H
#define WORKER_DEVICE_DEVICE_FUSION_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "worker/device/device.h"
#include "worker/fusion/plan.h"

/* Buffers of a plan on a device. gradients: [parameter], the caller's memory or NULL: in `memory`.
 */
struct device_fusion {
    struct device *device;
    void *stream;
    uint8_t *memory;
    bool allocated; /* here, not by the caller */
    void *const *gradients;
    const struct plan_parameter *parameters;
    bool *absent; /* [parameter]: no gradient in this step, counts as zero */
    void *end;    /* an event: the last step has done on its stream what it does there */
    bool ended;   /* a step has ended before */
};

/* memory: the caller's, or NULL: plan->total_bytes are allocated. Zeroed. gradients and parameters
 * are referred to. ERR_MEMORY, ERR_SYSTEM. */
int device_fusion_open(struct device_fusion *fusion, struct device *device, void *memory,
                       const struct plan *plan, void *const *gradients,
                       const struct plan_parameter *parameters, struct error *error);
/* Nothing may be under way. */
void device_fusion_close(struct device_fusion *fusion);

/* Put onto the fusion's stream what brings the buffer's gradients together. */
int device_fusion_gather(const struct device_fusion *fusion, const struct plan *plan,
                         const struct plan_buffer *buffer, struct error *error);
/* Put onto the stream what writes the buffer's results back into the gradients. */
int device_fusion_scatter(const struct device_fusion *fusion, const struct plan *plan,
                          const struct plan_buffer *buffer, void *stream, struct error *error);
/* End a step with the work that is on the stream by now. */
int device_fusion_end(struct device_fusion *fusion, void *stream, struct error *error);
/* Make work that comes onto the stream next come behind the end of the last step. */
int device_fusion_follow(const struct device_fusion *fusion, void *stream, struct error *error);
/* The memory is used for another plan of the same parameters: it is zeroed, but gradients that lie
 * in it (own: there are some) move to their offsets in the new plan. They go through as much memory
 * again, of the device, or of the process where the device has no more; the stream is waited for.
 */
int device_fusion_move(const struct device_fusion *fusion, const struct plan *from,
                       const struct plan *to, bool own, struct error *error);

#endif
