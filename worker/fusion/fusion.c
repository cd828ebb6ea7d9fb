#include "worker/fusion/fusion.h"

#include "common/base/error.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int fusion_step_init(struct fusion_step *step, uint32_t parameter_count)
{
    size_t room = (size_t)parameter_count + 1;
    struct fusion_step made = {
        .parameter_count = parameter_count,
        .claimed = calloc(room, sizeof(*made.claimed)),
        .missing = calloc(room, sizeof(*made.missing)),
        .order = calloc(room, sizeof(*made.order)),
    };
    if (!made.claimed || !made.missing || !made.order) {
        fusion_step_clear(&made);
        return ERR_MEMORY;
    }
    *step = made;
    return 0;
}

void fusion_step_clear(struct fusion_step *step)
{
    free(step->claimed);
    free(step->missing);
    free(step->order);
    *step = (struct fusion_step){0};
}

void fusion_step_begin(struct fusion_step *step, const struct plan *plan)
{
    assert(plan->parameter_count == step->parameter_count);
    step->plan = plan;
    memset(step->claimed, 0, step->parameter_count);
    for (uint32_t i = 0; i < plan->buffer_count; i++)
        step->missing[i] = plan->buffers[i].member_count;
    step->claimed_count = 0;
    step->sent = 0;
}

int fusion_step_claim(struct fusion_step *step, uint64_t index)
{
    if (index >= step->parameter_count || step->claimed[index])
        return ERR_INVALID;
    step->claimed[index] = 1;
    step->order[step->claimed_count++] = (uint32_t)index;
    return 0;
}

void fusion_step_fill(struct fusion_step *step, uint32_t index)
{
    assert(step->claimed[index]);
    step->missing[step->plan->buffer_of[index]]--;
}

bool fusion_step_next(struct fusion_step *step, uint32_t *buffer)
{
    if (step->sent >= step->plan->buffer_count || step->missing[step->sent] > 0)
        return false;
    *buffer = step->sent++;
    return true;
}

void fusion_step_order(const struct fusion_step *step, uint32_t *order)
{
    uint32_t count = step->claimed_count;
    memcpy(order, step->order, count * sizeof(*order));
    for (uint32_t i = step->parameter_count; i-- > 0;)
        if (!step->claimed[i])
            order[count++] = i;
}

static uint64_t overlap_ns(struct fusion_interval a, struct fusion_interval b)
{
    uint64_t start = a.start_ns > b.start_ns ? a.start_ns : b.start_ns;
    uint64_t end = a.end_ns < b.end_ns ? a.end_ns : b.end_ns;
    return end > start ? end - start : 0;
}

void fusion_measure(const struct fusion_interval *intervals, uint32_t count,
                    struct fusion_interval window, uint64_t *total_ns, uint64_t *inside_ns)
{
    uint64_t total = 0, inside = 0, covered_until = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct fusion_interval part = intervals[i];
        if (part.start_ns < covered_until)
            part.start_ns = covered_until;
        if (part.end_ns <= part.start_ns)
            continue;
        total += part.end_ns - part.start_ns;
        inside += overlap_ns(part, window);
        covered_until = part.end_ns;
    }
    *total_ns = total;
    *inside_ns = inside;
}
