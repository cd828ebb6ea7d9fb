/* What fusion buffers on a device need: gradients of the caller's gathered into a buffer and
 * results written back, in batches, on the caller's stream; memory of the device for the buffers.
 */
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
    void *end;    /* an event: what the last step does on its stream */
    bool ended;   /* there was one */
};

/* memory: the caller's, or NULL: plan->total_bytes are allocated. Zeroed. gradients and parameters
 * are referred to. ERR_MEMORY, ERR_SYSTEM. */
int device_fusion_open(struct device_fusion *fusion, struct device *device, void *memory,
                       const struct plan *plan, void *const *gradients,
                       const struct plan_parameter *parameters, struct error *error);
/* Nothing may be under way. */
void device_fusion_close(struct device_fusion *fusion);

/* Put onto the stream what brings the buffer's gradients together, and what writes them back. */
int device_fusion_gather(const struct device_fusion *fusion, const struct plan *plan,
                         const struct plan_buffer *buffer, struct error *error);
int device_fusion_scatter(const struct device_fusion *fusion, const struct plan *plan,
                          const struct plan_buffer *buffer, void *stream, struct error *error);
/* What is on the stream by now ends a step. */
int device_fusion_end(struct device_fusion *fusion, void *stream, struct error *error);
/* What comes onto the stream next comes behind the end of the last step. */
int device_fusion_follow(const struct device_fusion *fusion, void *stream, struct error *error);
/* The memory is zeroed for another plan of the same parameters; gradients that lie in it (own:
 * there are some) move to their offsets there, for which the stream is waited for; through as much
 * memory again, of the device's, or the process's where the device has no more. */
int device_fusion_move(const struct device_fusion *fusion, const struct plan *from,
                       const struct plan *to, bool own, struct error *error);

#endif
