/* The floor of memory: copies between buffers that are in no cache, a thread on every core.
 *
 *   bench_copy [MEBIBYTES [ROUNDS]]      of each buffer (default 64), how often (default 5)
 *
 * Prints {"threads", "copy_GBps"}: bytes copied by all threads together, in GB/s. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"

#define THREADS_MAX 256

struct copier {
    pthread_t thread;
    pthread_barrier_t *start;
    size_t bytes;
    unsigned rounds;
    uint8_t *from, *to;
    uint64_t began_ns, ended_ns;
};

static void *copier_run(void *context)
{
    struct copier *copier = context;
    memset(copier->from, 1, copier->bytes); /* pages of its own, both */
    memset(copier->to, 2, copier->bytes);
    pthread_barrier_wait(copier->start);
    copier->began_ns = clock_now_ns();
    for (unsigned i = 0; i < copier->rounds; i++)
        memcpy(i % 2 ? copier->from : copier->to, i % 2 ? copier->to : copier->from, copier->bytes);
    copier->ended_ns = clock_now_ns();
    return NULL;
}

int main(int argc, char **argv)
{
    static struct copier copiers[THREADS_MAX];
    size_t bytes = (argc > 1 ? strtoul(argv[1], NULL, 10) : 64) << 20;
    unsigned rounds = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 5;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned threads = cores < 1 ? 1 : cores > THREADS_MAX ? THREADS_MAX : (unsigned)cores;
    if (!bytes || !rounds) {
        fprintf(stderr, "usage: bench_copy [MEBIBYTES [ROUNDS]]\n");
        return 2;
    }
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, threads);
    for (unsigned i = 0; i < threads; i++) {
        copiers[i] = (struct copier){.start = &start,
                                     .bytes = bytes,
                                     .rounds = rounds,
                                     .from = aligned_alloc(4096, bytes),
                                     .to = aligned_alloc(4096, bytes)};
        if (!copiers[i].from || !copiers[i].to ||
            pthread_create(&copiers[i].thread, NULL, copier_run, &copiers[i])) {
            fprintf(stderr, "bench_copy: no memory or no thread\n");
            return 1;
        }
    }
    uint64_t began = UINT64_MAX, ended = 0;
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(copiers[i].thread, NULL);
        began = copiers[i].began_ns < began ? copiers[i].began_ns : began;
        ended = copiers[i].ended_ns > ended ? copiers[i].ended_ns : ended;
    }
    printf("{\"threads\":%u,\"copy_GBps\":%.4f}\n", threads,
           (double)bytes * rounds * threads / (double)(ended - began));
    return 0;
}
