/* Time. Pure parts never ask for it: they are handed `now_ns`. */
#ifndef COMMON_BASE_CLOCK_H
#define COMMON_BASE_CLOCK_H

#include <stdint.h>

#define NS_PER_MS 1000000ull
#define NS_PER_S 1000000000ull

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t clock_now_ns(void);
/* The same as of the last tick of the system, which may be 10 ms ago; takes a fifth of the time. */
uint64_t clock_tick_ns(void);

#endif
