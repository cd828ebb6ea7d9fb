/* A bit for each of some numbered things, such as those peers that have something to do: a look at
 * them costs what they are, and a word for 64 of the others. */
#ifndef COMMON_BASE_BITS_H
#define COMMON_BASE_BITS_H

#include <stdint.h>

#define BITS_WORDS(count) (((count) + 63u) / 64u)

static inline void bits_set(uint64_t *words, uint32_t number)
{
    words[number / 64] |= UINT64_C(1) << number % 64;
}

static inline void bits_clear(uint64_t *words, uint32_t number)
{
    words[number / 64] &= ~(UINT64_C(1) << number % 64);
}

/* The first one from `number` on that is set, of `count`; or count. */
static inline uint32_t bits_from(const uint64_t *words, uint32_t count, uint32_t number)
{
    while (number < count) {
        uint64_t rest = words[number / 64] >> number % 64;
        if (rest)
            return number + (uint32_t)__builtin_ctzll(rest);
        number += 64 - number % 64;
    }
    return count;
}

#endif
