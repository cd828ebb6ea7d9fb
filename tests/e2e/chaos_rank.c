/* A rank of scripts/chaos.py: all-reduces whose results are known, one after the other, whatever is
 * killed beside it.
 *
 *   chaos_rank RANKS LARGEST SEED FILE
 *
 * Sizes are from 4 KiB to LARGEST bytes, by SEED; every second buffer is private, the others are of
 * the arena. When a rank is lost it goes on as the next generation. While there are fewer than
 * RANKS, all ranks look for newcomers twice a second; with CHAOS_NEWCOMER set it is one. Ends when
 * FILE is there. Where the job has recovery it outlives the daemon of its node. It says, one line
 * each, with the time of CLOCK_MONOTONIC in ms:
 *
 *   MS step STEP BYTES            the result was there at MS, and is right
 *   MS lost TEXT                  a call has failed
 *   MS generation N RANK SIZE     it goes on
 *
 * Exit codes: 0 as expected, 1 wrong result, 7 a call failed that nothing can be done about.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "worker/shoal.h"

#define EXIT_WRONG 1
#define EXIT_FAILED 7
#define SMALLEST 4096u
#define PATIENCE_MS 30000
#define STRAGGLERS_MS 2000
#define LOOK_MS 500

struct rank {
    shoal_job *job;
    uint64_t seed, step;
    size_t largest;
    int wanted; /* ranks */
    const char *file;
    float *arena, *own;
    long looked_ms; /* for newcomers */
};

static long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void fail(const char *what)
{
    printf("%ld failed %s: %s\n", now_ms(), what, shoal_error_text());
    exit(EXIT_FAILED);
}

/* splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014. */
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* From SMALLEST to the largest, each power of two as often as any other. */
static size_t step_bytes(const struct rank *self)
{
    uint64_t number = mix(self->seed ^ self->step);
    unsigned powers = 0;
    while ((size_t)SMALLEST << (powers + 1) <= self->largest)
        powers++;
    size_t bytes = (size_t)SMALLEST << number % (powers + 1);
    return bytes - (number >> 32) % (bytes / 4) / sizeof(float) * sizeof(float);
}

/* Small whole numbers, so that sums are exact in any order. */
static float element(uint64_t step, size_t i)
{
    return (float)((i * 7 + step * 13) % 31);
}

static void fill(const struct rank *self, float *data, size_t count)
{
    for (size_t i = 0; i < count; i++)
        data[i] = element(self->step, i) + (float)(shoal_rank(self->job) + 1);
}

static void check(const struct rank *self, const float *data, size_t count)
{
    float size = (float)shoal_world_size(self->job);
    for (size_t i = 0; i < count; i++) {
        float right = size * element(self->step, i) + size * (size + 1) / 2;
        if (memcmp(&data[i], &right, sizeof(right)) == 0)
            continue;
        printf("%ld wrong step %llu: element %zu of %zu is %g, not %g\n", now_ms(),
               (unsigned long long)self->step, i, count, (double)data[i], (double)right);
        exit(EXIT_WRONG);
    }
}

/* The ranks that are left begin where the first of them is; newcomers do not know where that is. */
static int agree(struct rank *self)
{
    double step = (double)self->step; /* exact up to 2^53 */
    int result = shoal_broadcast(shoal_world(self->job), &step, 1, SHOAL_F64, 0, NULL);
    if (result == SHOAL_OK)
        self->step = (uint64_t)step;
    return result;
}

static void say_generation(const struct rank *self)
{
    printf("%ld generation %d %d %d\n", now_ms(), shoal_generation(self->job),
           shoal_rank(self->job), shoal_world_size(self->job));
}

static void go_on(struct rank *self)
{
    struct shoal_reconfigure_options options = {
        .struct_size = sizeof(options), .timeout_ms = PATIENCE_MS, .stragglers_ms = STRAGGLERS_MS};
    int result;
    do {
        result = shoal_job_reconfigure(self->job, &options);
        if (result == SHOAL_OK)
            result = agree(self);
    } while (result == SHOAL_ELOST);
    if (result != SHOAL_OK)
        fail("reconfigure");
    say_generation(self);
    self->looked_ms = now_ms();
}

enum sign { SIGN_NONE, SIGN_LOOK = 1, SIGN_END = 2 };

/* Rank 0 decides for all, in the step's last element. */
static enum sign sign_of(const struct rank *self)
{
    if (shoal_rank(self->job) != 0)
        return SIGN_NONE;
    if (access(self->file, F_OK) == 0)
        return SIGN_END;
    bool looks =
        shoal_world_size(self->job) < self->wanted && now_ms() >= self->looked_ms + LOOK_MS;
    return looks ? SIGN_LOOK : SIGN_NONE;
}

/* One step; false: that was the last. */
static bool step(struct rank *self)
{
    size_t bytes = step_bytes(self), count = bytes / sizeof(float) - 1;
    float *data = self->step % 2 == 0 ? self->arena : self->own;
    fill(self, data, count);
    data[count] = (float)sign_of(self);
    int result =
        shoal_all_reduce(shoal_world(self->job), data, data, count + 1, SHOAL_F32, SHOAL_SUM, NULL);
    long there_ms = now_ms();
    if (result != SHOAL_OK) {
        printf("%ld lost %s\n", there_ms, shoal_error_text());
        if (result != SHOAL_ELOST && result != SHOAL_EREFUSED && result != SHOAL_EDISCONNECTED)
            fail("all_reduce");
        go_on(self);
        return true;
    }
    check(self, data, count);
    printf("%ld step %llu %zu\n", there_ms, (unsigned long long)self->step, bytes);
    self->step++;
    if (data[count] == (float)SIGN_LOOK)
        go_on(self);
    return data[count] != (float)SIGN_END;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: chaos_rank RANKS LARGEST SEED FILE\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct rank self = {.wanted = atoi(argv[1]),
                        .largest = strtoul(argv[2], NULL, 10),
                        .seed = strtoull(argv[3], NULL, 10),
                        .file = argv[4]};
    struct shoal_options options = {.struct_size = sizeof(options),
                                    .newcomer = getenv("CHAOS_NEWCOMER") != NULL,
                                    .timeout_ms = 2 * PATIENCE_MS};
    if (self.largest < SMALLEST || shoal_open(&options, &self.job) != SHOAL_OK)
        fail("open");
    self.arena = shoal_alloc(self.job, self.largest);
    self.own = malloc(self.largest);
    if (!self.arena || !self.own)
        fail("memory");
    say_generation(&self);
    if (options.newcomer && agree(&self) != SHOAL_OK)
        go_on(&self);
    while (step(&self))
        ;
    free(self.own);
    shoal_free(self.job, self.arena);
    return shoal_close(self.job) == SHOAL_OK ? 0 : EXIT_FAILED;
}
