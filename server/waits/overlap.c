#include "server/waits/overlap.h"

#include <assert.h>

#define NS_PER_US 1000u

/* Clocks of two rounds may meet in one event: time does not run backwards here. */
static uint64_t overlap_passed(uint64_t since_ns, uint64_t now_ns)
{
    return now_ns > since_ns ? now_ns - since_ns : 0;
}

void overlap_init(struct overlap *overlap, uint64_t now_ns)
{
    *overlap = (struct overlap){.began_ns = {now_ns, now_ns}};
}

void overlap_begin(struct overlap *overlap, uint64_t now_ns)
{
    if (overlap->open++ > 0)
        overlap->hidden_ns[0] += overlap_passed(overlap->newest_ns, now_ns);
    overlap->newest_ns = now_ns;
}

void overlap_end(struct overlap *overlap, uint64_t now_ns)
{
    assert(overlap->open > 0);
    if (--overlap->open == 0)
        overlap->exposed_ns[0] += overlap_passed(overlap->newest_ns, now_ns);
}

/* Collectives under way at the turn count as if they were over, since nobody knows what comes. */
void overlap_turn(struct overlap *overlap, uint64_t now_ns)
{
    if (overlap->open > 0) {
        overlap->exposed_ns[0] += overlap_passed(overlap->newest_ns, now_ns);
        overlap->newest_ns = now_ns;
    }
    overlap->began_ns[1] = overlap->began_ns[0];
    overlap->hidden_ns[1] = overlap->hidden_ns[0];
    overlap->exposed_ns[1] = overlap->exposed_ns[0];
    overlap->began_ns[0] = now_ns;
    overlap->hidden_ns[0] = 0;
    overlap->exposed_ns[0] = 0;
}

static uint32_t overlap_us(uint64_t ns)
{
    uint64_t us = ns / NS_PER_US;
    return us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

void overlap_tell(const struct overlap *overlap, uint64_t now_ns, struct overlap_figures *figures)
{
    uint64_t open_ns = overlap->open > 0 ? overlap_passed(overlap->newest_ns, now_ns) : 0;
    *figures = (struct overlap_figures){
        .window_us = overlap_us(overlap_passed(overlap->began_ns[1], now_ns)),
        .hidden_us = overlap_us(overlap->hidden_ns[0] + overlap->hidden_ns[1]),
        .exposed_us = overlap_us(overlap->exposed_ns[0] + overlap->exposed_ns[1] + open_ns),
    };
}
