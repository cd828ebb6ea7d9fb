/* A small generator of pseudo-random numbers with the same sequence everywhere: SplitMix64
 * (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). */
#ifndef WORKER_EXAMPLES_DIGITS_RANDOM_H
#define WORKER_EXAMPLES_DIGITS_RANDOM_H

#include <stdint.h>

static inline uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Uniform in [0, 1), a multiple of 2^-24: exact in float. */
static inline float random_unit(uint64_t *state)
{
    return (float)(random_next(state) >> 40) * 0x1p-24F;
}

/* Uniform in [0, bound); the bias of the remainder is below 2^-32 for the bounds used here. */
static inline uint64_t random_below(uint64_t *state, uint64_t bound)
{
    return random_next(state) % bound;
}

#endif
