/* Time. Pure parts never ask for it: they are handed `now_ns`. */
#ifndef COMMON_BASE_CLOCK_H
#define COMMON_BASE_CLOCK_H

#include <stdint.h>

#define NS_PER_MS 1000000ull
#define NS_PER_S 1000000000ull

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t clock_now_ns(void);
/* CLOCK_MONOTONIC as of the last tick of the system, which may be 10 ms ago, in nanoseconds; takes
 * a fifth of the time of clock_now_ns. */
uint64_t clock_tick_ns(void);

#endif
