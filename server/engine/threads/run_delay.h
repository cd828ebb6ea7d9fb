/* How long a thread was ready to run and did not get a processor: others ran on it. Linux counts
 * that for each thread, the second number of /proc/thread-self/schedstat, in ns
 * (Documentation/scheduler/sched-stats.rst). A thread that sleeps cannot tell by the clock: it does
 * not know when what woke it had come. */
#ifndef SERVER_ENGINE_THREADS_RUN_DELAY_H
#define SERVER_ENGINE_THREADS_RUN_DELAY_H

#include <stdbool.h>
#include <stdint.h>

struct run_delay {
    int descriptor; /* -1: the kernel does not tell */
    uint64_t ns;    /* until the last look */
};

/* Open the measure for the calling thread. False: the kernel does not tell; then run_delay_take is
 * 0. */
bool run_delay_open(struct run_delay *delay);
/* Since the last look, or run_delay_open; any thread may ask. */
uint64_t run_delay_take(struct run_delay *delay);
void run_delay_close(struct run_delay *delay);

/* The number out of what the file has. False: it is not there. */
bool run_delay_parse(const char *text, uint64_t *ns);

#endif
