#include "worker/device/device_fusion.h"

#include <stdlib.h>

int device_fusion_open(struct device_fusion *fusion, struct device *device, void *memory,
                       const struct plan *plan, void *const *gradients,
                       const struct plan_parameter *parameters, struct error *error)
{
    struct device_fusion made = {.device = device,
                                 .memory = memory,
                                 .allocated = !memory,
                                 .gradients = gradients,
                                 .parameters = parameters};
    void *allocated = memory;
    made.absent = calloc(plan->parameter_count + 1, sizeof(*made.absent));
    if (!made.absent)
        return error_set(error, ERR_MEMORY, "out of memory for fusion buffers");
    int code = device_event_create(device, &made.end, error);
    if (code == 0 && !memory) {
        code = device_allocate(device, plan->total_bytes, &allocated, error);
        if (code < 0)
            device_event_destroy(device, made.end);
    }
    if (code < 0) {
        free(made.absent);
        return code;
    }
    made.memory = allocated;
    code = device_clear(device, made.memory, plan->total_bytes, error);
    if (code < 0) {
        device_fusion_close(&made);
        return code;
    }
    *fusion = made;
    return 0;
}

void device_fusion_close(struct device_fusion *fusion)
{
    struct error ignored;
    if (fusion->allocated)
        device_free(fusion->device, fusion->memory, &ignored);
    device_event_destroy(fusion->device, fusion->end);
    free(fusion->absent);
    *fusion = (struct device_fusion){0};
}

/* Copies that are put onto a stream when there are enough of them. */
struct batch {
    struct device *device;
    void *stream;
    struct device_copy copies[DEVICE_COPIES_MAX];
    uint32_t count;
};

static int flush(struct batch *batch, struct error *error)
{
    int code = batch->count == 0 ? 0
                                 : device_copy_on(batch->device, batch->stream, batch->copies,
                                                  batch->count, error);
    batch->count = 0;
    return code;
}

static int add(struct batch *batch, void *to, const void *from, uint64_t bytes, struct error *error)
{
    if (bytes == 0)
        return 0;
    batch->copies[batch->count++] = (struct device_copy){.to = to, .from = from, .bytes = bytes};
    return batch->count < DEVICE_COPIES_MAX ? 0 : flush(batch, error);
}

static uint64_t bytes_of(const struct device_fusion *fusion, uint32_t index)
{
    return plan_gradient_bytes(&fusion->parameters[index]);
}

int device_fusion_gather(const struct device_fusion *fusion, const struct plan *plan,
                         const struct plan_buffer *buffer, struct error *error)
{
    struct batch batch = {.device = fusion->device, .stream = fusion->stream};
    int code = 0;
    for (uint32_t i = 0; i < buffer->member_count && code == 0; i++) {
        uint32_t index = plan->members[buffer->first_member + i];
        uint8_t *memory = fusion->memory + plan->offset_of[index];
        if (fusion->absent[index])
            code = device_zero_on(fusion->device, fusion->stream, memory, bytes_of(fusion, index),
                                  error);
        else if (fusion->gradients[index])
            code = add(&batch, memory, fusion->gradients[index], bytes_of(fusion, index), error);
    }
    return code < 0 ? code : flush(&batch, error);
}

int device_fusion_scatter(const struct device_fusion *fusion, const struct plan *plan,
                          const struct plan_buffer *buffer, void *stream, struct error *error)
{
    struct batch batch = {.device = fusion->device, .stream = stream};
    int code = 0;
    for (uint32_t i = 0; i < buffer->member_count && code == 0; i++) {
        uint32_t index = plan->members[buffer->first_member + i];
        if (fusion->gradients[index])
            code = add(&batch, fusion->gradients[index], fusion->memory + plan->offset_of[index],
                       bytes_of(fusion, index), error);
    }
    return code < 0 ? code : flush(&batch, error);
}

int device_fusion_end(struct device_fusion *fusion, void *stream, struct error *error)
{
    int code = device_event_record(fusion->device, fusion->end, stream, error);
    if (code == 0)
        fusion->ended = true;
    return code;
}

int device_fusion_follow(const struct device_fusion *fusion, void *stream, struct error *error)
{
    return fusion->ended ? device_follow_on(fusion->device, stream, fusion->end, error) : 0;
}

static int move_through(const struct device_fusion *fusion, const struct plan *from,
                        const struct plan *to, uint8_t *copy, struct error *error)
{
    struct device *device = fusion->device;
    struct batch batch = {.device = device, .stream = fusion->stream};
    int code = add(&batch, copy, fusion->memory, from->total_bytes, error);
    if (code == 0)
        code = flush(&batch, error);
    if (code == 0)
        code = device_zero_on(device, fusion->stream, fusion->memory, to->total_bytes, error);
    for (uint32_t i = 0; i < to->parameter_count && code == 0; i++) {
        if (!fusion->gradients[i])
            code = add(&batch, fusion->memory + to->offset_of[i], copy + from->offset_of[i],
                       bytes_of(fusion, i), error);
    }
    if (code == 0)
        code = flush(&batch, error);
    int finished = device_finish_on(device, fusion->stream, code < 0 ? NULL : error);
    return code < 0 ? code : finished;
}

/* Where the device has no more memory, which frameworks like to take whole. */
static int move_through_host(const struct device_fusion *fusion, const struct plan *from,
                             const struct plan *to, struct error *error)
{
    void *copy = malloc(from->total_bytes);
    if (!copy)
        return error->code; /* of the device's memory */
    int code = move_through(fusion, from, to, copy, error);
    struct error ignored;
    /* A device that no longer tells may still write there. */
    if (code == 0 || device_finish_on(fusion->device, fusion->stream, &ignored) == 0)
        free(copy);
    return code;
}

int device_fusion_move(const struct device_fusion *fusion, const struct plan *from,
                       const struct plan *to, bool own, struct error *error)
{
    void *copy;
    if (!own)
        return device_zero_on(fusion->device, fusion->stream, fusion->memory, to->total_bytes,
                              error);
    int code = device_allocate(fusion->device, from->total_bytes, &copy, error);
    if (code == ERR_MEMORY)
        return move_through_host(fusion, from, to, error);
    if (code < 0)
        return code;
    code = move_through(fusion, from, to, copy, error);
    struct error ignored;
    device_free(fusion->device, copy, &ignored);
    return code;
}
