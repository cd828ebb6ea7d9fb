#include "worker/fusion/plan.h"

#include "common/base/error.h"

#include <stdlib.h>
#include <string.h>

#define NO_BUFFER UINT32_MAX
#define MOST_BYTES (1ull << 62)
#define LEAST_THRESHOLD_BYTES (25ull << 20)

uint64_t plan_gradient_bytes(const struct plan_parameter *parameter)
{
    return parameter->count * dtype_bytes(parameter->dtype);
}

uint64_t plan_threshold_bytes(uint32_t servers, uint32_t chunk_bytes)
{
    uint64_t chunks = (uint64_t)servers * chunk_bytes;
    return chunks > LEAST_THRESHOLD_BYTES ? chunks : LEAST_THRESHOLD_BYTES;
}

static uint64_t padded_bytes(const struct plan_parameter *parameter)
{
    return (plan_gradient_bytes(parameter) + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
}

int plan_add_bytes(uint64_t *total, const struct plan_parameter *parameter)
{
    if (parameter->count > MOST_BYTES / 8 || *total + padded_bytes(parameter) >= MOST_BYTES)
        return ERR_INVALID;
    *total += padded_bytes(parameter);
    return 0;
}

static int check_size(const struct plan_parameter *parameters, uint32_t count)
{
    uint64_t total = 0;
    int code = 0;
    for (uint32_t i = 0; i < count && code == 0; i++)
        code = plan_add_bytes(&total, &parameters[i]);
    return code;
}

/* Buffers are made in the order of their first gradients, then sorted by when they close. */
struct opened {
    struct plan_buffer buffer;
    uint32_t number;  /* as it was opened */
    uint32_t closing; /* when it closes: the position of its last gradient in the order */
};

struct making {
    struct opened *opened;
    uint32_t opened_count;
    uint32_t *sent_as; /* [number as opened]: position among those sent */
};

/* Put every parameter into a buffer; buffer_of holds the number as opened. */
static void assign(struct plan *plan, struct making *making,
                   const struct plan_parameter *parameters, const uint32_t *order,
                   uint64_t threshold_bytes, uint64_t first_buffer_bytes)
{
    uint32_t open[DTYPE_COUNT];
    for (unsigned i = 0; i < DTYPE_COUNT; i++)
        open[i] = NO_BUFFER;
    for (uint32_t i = 0; i < plan->parameter_count; i++) {
        const struct plan_parameter *parameter = &parameters[order[i]];
        uint32_t *number = &open[parameter->dtype];
        if (*number == NO_BUFFER) {
            *number = making->opened_count++;
            making->opened[*number] =
                (struct opened){.buffer = {.dtype = parameter->dtype}, .number = *number};
        }
        struct opened *opened = &making->opened[*number];
        plan->buffer_of[order[i]] = *number;
        opened->buffer.bytes += padded_bytes(parameter);
        opened->buffer.member_count++;
        opened->closing = i;
        if (opened->buffer.bytes >= (*number == 0 ? first_buffer_bytes : threshold_bytes))
            *number = NO_BUFFER;
    }
}

static int compare_closing(const void *a, const void *b)
{
    const struct opened *one = a, *other = b;
    return one->closing < other->closing ? -1 : one->closing > other->closing;
}

/* Give buffers and gradients their offsets. */
static void plan_lay_out(struct plan *plan, struct making *making,
                         const struct plan_parameter *parameters, const uint32_t *order)
{
    qsort(making->opened, making->opened_count, sizeof(*making->opened), compare_closing);
    uint64_t offset = 0;
    uint32_t member = 0;
    for (uint32_t i = 0; i < making->opened_count; i++) {
        struct plan_buffer *buffer = &plan->buffers[i];
        *buffer = making->opened[i].buffer;
        making->sent_as[making->opened[i].number] = i;
        buffer->offset = offset;
        buffer->first_member = member;
        buffer->priority = NO_BUFFER;
        offset += buffer->bytes;
        member += buffer->member_count;
        /* From here on they count what has been placed. */
        buffer->bytes = 0;
        buffer->member_count = 0;
    }
    plan->buffer_count = making->opened_count;
    plan->total_bytes = offset;
    for (uint32_t i = 0; i < plan->parameter_count; i++) {
        uint32_t parameter = order[i];
        plan->buffer_of[parameter] = making->sent_as[plan->buffer_of[parameter]];
        struct plan_buffer *buffer = &plan->buffers[plan->buffer_of[parameter]];
        plan->members[buffer->first_member + buffer->member_count++] = parameter;
        plan->offset_of[parameter] = buffer->offset + buffer->bytes;
        buffer->bytes += padded_bytes(&parameters[parameter]);
    }
    uint32_t priority = 0;
    for (uint32_t i = 0; i < plan->parameter_count; i++) {
        struct plan_buffer *buffer = &plan->buffers[plan->buffer_of[i]];
        if (buffer->priority == NO_BUFFER)
            buffer->priority = priority++;
    }
}

int plan_make(struct plan *plan, const struct plan_parameter *parameters, uint32_t parameter_count,
              const uint32_t *order, uint64_t threshold_bytes, uint64_t first_buffer_bytes)
{
    int code = check_size(parameters, parameter_count);
    if (code < 0)
        return code;
    size_t room = (size_t)parameter_count + 1;
    struct plan made = {
        .parameter_count = parameter_count,
        .buffers = calloc(room, sizeof(*made.buffers)),
        .members = calloc(room, sizeof(*made.members)),
        .buffer_of = calloc(room, sizeof(*made.buffer_of)),
        .offset_of = calloc(room, sizeof(*made.offset_of)),
    };
    struct making making = {
        .opened = calloc(room, sizeof(*making.opened)),
        .sent_as = calloc(room, sizeof(*making.sent_as)),
    };
    if (made.buffers && made.members && made.buffer_of && made.offset_of && making.opened &&
        making.sent_as) {
        assign(&made, &making, parameters, order, threshold_bytes, first_buffer_bytes);
        plan_lay_out(&made, &making, parameters, order);
        *plan = made;
    } else {
        plan_clear(&made);
        code = ERR_MEMORY;
    }
    free(making.opened);
    free(making.sent_as);
    return code;
}

void plan_clear(struct plan *plan)
{
    free(plan->buffers);
    free(plan->members);
    free(plan->buffer_of);
    free(plan->offset_of);
    *plan = (struct plan){0};
}

bool plan_order_valid(const uint32_t *order, uint32_t count, uint8_t *seen)
{
    memset(seen, 0, count);
    for (uint32_t i = 0; i < count; i++) {
        if (order[i] >= count || seen[order[i]])
            return false;
        seen[order[i]] = 1;
    }
    return true;
}
