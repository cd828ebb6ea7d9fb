#include "common/base/clock.h"

#include <time.h>

static uint64_t read_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t clock_now_ns(void)
{
    return read_ns(CLOCK_MONOTONIC);
}

uint64_t clock_tick_ns(void)
{
    return read_ns(CLOCK_MONOTONIC_COARSE);
}
