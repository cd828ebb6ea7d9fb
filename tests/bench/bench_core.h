/* Cores of the threads, for the floors that run a thread for each rank. */
#ifndef TESTS_BENCH_BENCH_CORE_H
#define TESTS_BENCH_BENCH_CORE_H

#include <sched.h>
#include <stdbool.h>
#include <unistd.h>

/* Whether each of so many threads can have a core of its own. */
static inline bool cores_suffice(unsigned threads)
{
    return sysconf(_SC_NPROCESSORS_ONLN) >= (long)threads;
}

/* This thread runs on that core alone; where that is refused, where the system puts it. */
static inline void core_take(unsigned number)
{
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(number, &core);
    sched_setaffinity(0, sizeof(core), &core);
}

#endif
