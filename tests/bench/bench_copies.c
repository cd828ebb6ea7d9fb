/* The floor of a broadcast or an all_gather between private buffers of processes, through memory
 * that they share: threads that copy into it and out of it, and do nothing else.
 *
 *   bench_copies broadcast|all_gather RANKS ITERATIONS BYTES...
 *
 * BYTES is what a rank has at the end, of an all_gather a multiple of RANKS. Each that sends has a
 * ring of 8 blocks, and 1 MiB at most; it goes on to the next collective when it is done, as far as
 * there is room. A thread for each rank is on a core of its own if there are as many; else it
 * yields while it waits. Blocks of 32, 64, ... 512 KiB are tried. Prints {"bytes", "ranks",
 * "time_us", "block_bytes"} of the fastest for each size. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/memory/copy.h"
#include "tests/bench/bench_core.h"

#define RANKS_MAX 64
#define RING_BYTES ((size_t)1 << 20)
#define RING_BLOCKS 8
#define BLOCK_LEAST ((size_t)32 << 10)
#define BLOCK_MOST ((size_t)512 << 10)

/* How much has ever been put into a ring, or taken from it by one rank. */
struct count {
    _Alignas(64) _Atomic uint64_t bytes;
};

struct bench {
    bool gathers, own_cores;
    unsigned ranks, iterations;
    size_t bytes, part; /* that a rank has at the end, that each sender sends */
    size_t block, ring; /* bytes */
    uint8_t *sends[RANKS_MAX], *recvs[RANKS_MAX], *rings[RANKS_MAX];
    struct count put[RANKS_MAX], taken[RANKS_MAX][RANKS_MAX]; /* of the first by the second */
    pthread_barrier_t begin;
};

struct rank {
    struct bench *bench;
    unsigned number;
    pthread_t thread;
    uint64_t sent;                /* bytes, in all collectives before */
    size_t put, taken[RANKS_MAX]; /* of this one */
    double time_us;
};

static bool sends(const struct bench *bench, unsigned rank)
{
    return bench->gathers || rank == 0;
}

static size_t less(size_t one, size_t other)
{
    return one < other ? one : other;
}

static size_t block_at(const struct bench *bench, size_t done)
{
    return less(bench->block, bench->part - done);
}

/* Nobody has yet to take what lies where the next block goes. */
static bool has_room(struct rank *rank)
{
    struct bench *bench = rank->bench;
    uint64_t end = rank->sent + rank->put + bench->block;
    for (unsigned i = 0; i < bench->ranks; i++) {
        if (i != rank->number &&
            end > atomic_load(&bench->taken[rank->number][i].bytes) + bench->ring)
            return false;
    }
    return true;
}

static void copy_out(const struct bench *bench, void *to, const void *from, size_t bytes)
{
    if (bench->bytes >= COPY_PAST_CACHE_BYTES)
        copy_result(to, from, bytes);
    else
        memcpy(to, from, bytes);
}

/* Parts, blocks and rings are powers of two: so a block is never divided. */
static uint8_t *ring_at(const struct rank *rank, unsigned sender, size_t done)
{
    return rank->bench->rings[sender] + (rank->sent + done) % rank->bench->ring;
}

static bool put_block(struct rank *rank)
{
    struct bench *bench = rank->bench;
    unsigned me = rank->number;
    if (!sends(bench, me) || rank->put == bench->part || !has_room(rank))
        return false;
    size_t bytes = block_at(bench, rank->put);
    memcpy(ring_at(rank, me, rank->put), bench->sends[me] + rank->put, bytes);
    if (bench->gathers)
        copy_out(bench, bench->recvs[me] + me * bench->part + rank->put,
                 bench->sends[me] + rank->put, bytes);
    rank->put += bytes;
    atomic_store(&bench->put[me].bytes, rank->sent + rank->put);
    return true;
}

static bool take_block(struct rank *rank, unsigned sender)
{
    struct bench *bench = rank->bench;
    unsigned me = rank->number;
    size_t done = rank->taken[sender];
    if (sender == me || !sends(bench, sender) || done == bench->part)
        return false;
    size_t bytes = block_at(bench, done);
    if (atomic_load(&bench->put[sender].bytes) < rank->sent + done + bytes)
        return false;
    copy_out(bench, bench->recvs[me] + (bench->gathers ? sender * bench->part : 0) + done,
             ring_at(rank, sender, done), bytes);
    rank->taken[sender] += bytes;
    atomic_store(&bench->taken[sender][me].bytes, rank->sent + rank->taken[sender]);
    return true;
}

static bool is_done(const struct rank *rank)
{
    const struct bench *bench = rank->bench;
    if (sends(bench, rank->number) && rank->put < bench->part)
        return false;
    for (unsigned i = 0; i < bench->ranks; i++) {
        if (i != rank->number && sends(bench, i) && rank->taken[i] < bench->part)
            return false;
    }
    return true;
}

static void run_once(struct rank *rank)
{
    struct bench *bench = rank->bench;
    rank->put = 0;
    memset(rank->taken, 0, sizeof(rank->taken));
    while (!is_done(rank)) {
        bool any = put_block(rank);
        for (unsigned i = 0; i < bench->ranks; i++)
            any |= take_block(rank, i);
        if (!any && !bench->own_cores)
            sched_yield();
    }
    rank->sent += bench->part;
}

static void *rank_run(void *context)
{
    struct rank *rank = context;
    struct bench *bench = rank->bench;
    if (bench->own_cores)
        core_take(rank->number);
    memset(bench->sends[rank->number], (int)rank->number + 1, bench->part);
    memset(bench->recvs[rank->number], 0, bench->bytes);
    pthread_barrier_wait(&bench->begin);
    for (unsigned i = 0; i < bench->iterations / 10 + 1; i++)
        run_once(rank);
    uint64_t began_ns = clock_now_ns();
    for (unsigned i = 0; i < bench->iterations; i++)
        run_once(rank);
    rank->time_us = (double)(clock_now_ns() - began_ns) / 1e3 / bench->iterations;
    return NULL;
}

/* Whether each has what the others have sent, by the first and the last byte of each part. */
static bool is_right(const struct bench *bench)
{
    bool right = true;
    for (unsigned to = 0; to < bench->ranks; to++) {
        for (unsigned from = 0; from < (bench->gathers ? bench->ranks : 1); from++) {
            const uint8_t *part = bench->recvs[to] + from * bench->part;
            bool has = bench->gathers || to > 0;
            right &= !has || (part[0] == from + 1 && part[bench->part - 1] == from + 1);
        }
    }
    return right;
}

/* The mean over ranks of their mean times; less than 0: there is no thread, or
 * what arrived is wrong. */
static double run_block(struct bench *bench)
{
    static struct rank ranks[RANKS_MAX];
    double total_us = 0;
    memset(bench->put, 0, sizeof(bench->put));
    memset(bench->taken, 0, sizeof(bench->taken));
    for (unsigned i = 0; i < bench->ranks; i++) {
        ranks[i] = (struct rank){.bench = bench, .number = i};
        if (pthread_create(&ranks[i].thread, NULL, rank_run, &ranks[i]) != 0)
            return -1;
    }
    for (unsigned i = 0; i < bench->ranks; i++) {
        pthread_join(ranks[i].thread, NULL);
        total_us += ranks[i].time_us;
    }
    return is_right(bench) ? total_us / bench->ranks : -1;
}

static int run_size(struct bench *bench, size_t bytes)
{
    double best_us = 0;
    size_t best_block = 0;
    bench->bytes = bytes;
    bench->part = bench->gathers ? bytes / bench->ranks : bytes;
    for (bench->block = BLOCK_LEAST; bench->block <= BLOCK_MOST; bench->block *= 2) {
        bench->ring = less(RING_BLOCKS * bench->block, RING_BYTES);
        double time_us = run_block(bench);
        if (time_us < 0)
            return -1;
        if (!best_block || time_us < best_us) {
            best_us = time_us;
            best_block = bench->block;
        }
        if (bench->block >= bench->part)
            break;
    }
    printf("{\"bytes\":%zu,\"ranks\":%u,\"time_us\":%.2f,\"block_bytes\":%zu}\n", bytes,
           bench->ranks, best_us, best_block);
    return 0;
}

static bool allocate(struct bench *bench, size_t most)
{
    bool all = pthread_barrier_init(&bench->begin, NULL, bench->ranks) == 0;
    for (unsigned i = 0; i < bench->ranks; i++) {
        bench->sends[i] = aligned_alloc(4096, most);
        bench->recvs[i] = aligned_alloc(4096, most);
        bench->rings[i] = aligned_alloc(4096, RING_BYTES);
        all &= bench->sends[i] && bench->recvs[i] && bench->rings[i];
        if (all)
            memset(bench->rings[i], 0, RING_BYTES);
    }
    return all;
}

/* Whole blocks go into the ring one behind the other: a part is a whole block, or of them. */
static bool size_fits(const struct bench *bench, size_t bytes)
{
    size_t part = bytes / (bench->gathers ? bench->ranks : 1);
    return part > 0 && (part & (part - 1)) == 0 && bytes % (bench->gathers ? bench->ranks : 1) == 0;
}

int main(int argc, char **argv)
{
    static struct bench bench;
    const char *name = argc > 1 ? argv[1] : "";
    bench.gathers = strcmp(name, "all_gather") == 0;
    bench.ranks = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
    bench.iterations = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 0;
    bool good = (bench.gathers || strcmp(name, "broadcast") == 0) && argc > 4 && bench.ranks > 1 &&
                bench.ranks <= RANKS_MAX && bench.iterations > 0;
    size_t most = 4096;
    for (int i = 4; i < argc && good; i++) {
        size_t bytes = strtoul(argv[i], NULL, 10);
        good = size_fits(&bench, bytes);
        most = bytes > most ? (bytes + 4095) / 4096 * 4096 : most;
    }
    if (!good) {
        fprintf(stderr, "usage: bench_copies broadcast|all_gather RANKS ITERATIONS BYTES...\n"
                        "What each sends is a power of two.\n");
        return 2;
    }
    bench.own_cores = cores_suffice(bench.ranks);
    int code = allocate(&bench, most) ? 0 : -1;
    for (int i = 4; i < argc && code == 0; i++)
        code = run_size(&bench, strtoul(argv[i], NULL, 10));
    if (code < 0)
        fprintf(stderr, "bench_copies: no memory, no thread, or wrong copies\n");
    return code < 0;
}
