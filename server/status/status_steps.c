#include "server/status/status_steps.h"

#define US_PER_MS 1e3
#define NS_PER_S 1e9

static uint32_t steps_us(double ms)
{
    double us = ms * US_PER_MS;
    return us < 0 ? 0 : us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

/* Return how long the others wait for ranks: a slow link or daemon is no rank's fault. */
static double steps_waiting_ms(const struct verdict *verdict)
{
    switch (verdict->kind) {
    case VERDICT_RANK_LATE:
    case VERDICT_RANK_DRAINS:
    case VERDICT_NODE_LATE:
        return verdict->lost_ms;
    case VERDICT_UNKNOWN:
    case VERDICT_NOBODY:
    case VERDICT_LINK_SLOW:
    case VERDICT_RECEIVER_SLOW:
    case VERDICT_SERVER_SLOW:
        break;
    }
    return 0;
}

/* A collective is under way here once all ranks of this node have begun it. The wait for a rank of
 * another node is therefore part of the communication that has nothing beside it, and the wait for
 * one of this node is not. */
static struct status_step steps_point(const struct verdict *verdict,
                                      const struct overlap_figures *overlap, uint32_t self)
{
    double step_ms = verdict->step_ms, waiting_ms = steps_waiting_ms(verdict), network_ms = 0;
    if (overlap->window_us > 0)
        network_ms = step_ms * overlap->exposed_us / overlap->window_us;
    if (verdict->node != self)
        network_ms -= waiting_ms;
    if (network_ms > step_ms - waiting_ms)
        network_ms = step_ms - waiting_ms;
    return (struct status_step){.step_us = steps_us(step_ms),
                                .waiting_us = steps_us(waiting_ms),
                                .network_us = steps_us(network_ms)};
}

void status_steps_add(struct status_steps *steps, uint64_t now_ns, const struct verdict *verdict,
                      uint32_t step, const struct overlap_figures *overlap, uint32_t self)
{
    if (verdict->kind == VERDICT_UNKNOWN || (step == 0 && steps->step > 0))
        return;
    if (steps->step == 0 && step > 0)
        steps->count = 0; /* times of collectives and of steps do not compare */
    steps->step = step;
    if (steps->count > 0 &&
        now_ns < steps->points[(steps->count - 1) % STATUS_STEPS].at_ns + STATUS_STEPS_NS)
        return;
    struct status_step *point = &steps->points[steps->count++ % STATUS_STEPS];
    *point = steps_point(verdict, overlap, self);
    point->at_ns = now_ns;
}

void status_put_steps(struct json_text *text, const char *key, const struct status_steps *steps,
                      uint64_t now_ns)
{
    uint32_t first = steps->count > STATUS_STEPS ? steps->count - STATUS_STEPS : 0;
    json_text_open_array(text, key);
    for (uint32_t i = first; i < steps->count; i++) {
        const struct status_step *it = &steps->points[i % STATUS_STEPS];
        json_text_open_array(text, NULL);
        json_text_real(text, NULL, (double)(now_ns - it->at_ns) / NS_PER_S);
        json_text_real(text, NULL, it->step_us / US_PER_MS);
        json_text_real(text, NULL, it->waiting_us / US_PER_MS);
        json_text_real(text, NULL, it->network_us / US_PER_MS);
        json_text_close_array(text);
    }
    json_text_close_array(text);
}
