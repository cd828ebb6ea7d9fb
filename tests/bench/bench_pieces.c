/* The floor of an all-reduce between private buffers: threads that copy and sum what it has to copy
 * and sum, in pieces through blocks that they share, and do nothing else.
 *
 *   bench_pieces RANKS [MEBIBYTES [ROUNDS]]      f32 of each rank (64), how often (10)
 *
 * A thread for each rank puts what the others need of a piece, sums its own share of the piece
 * before, and takes the others' sums of the one before that; then it waits for all. It is on a core
 * of its own if there are as many; else it yields while it waits. Prints {"ranks", "time_us"}. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/reduce/reduce.h"
#include "tests/bench/bench_core.h"

#define RANKS_MAX 64
#define WARMUPS 2
/* Sizes as in worker/meeting: a block of a share, and room for all that a rank puts of a piece. */
#define BLOCK_BYTES (512u << 10)
#define ROOM_BYTES (1u << 20)

struct bench {
    unsigned ranks, rounds;
    size_t bytes, block; /* of a buffer; of a share of a piece */
    bool own_cores;
    const struct reduce_kernels *kernels;
    uint8_t *sends[RANKS_MAX], *recvs[RANKS_MAX], *rooms[RANKS_MAX][2];
    _Alignas(64) _Atomic uint64_t turned;
};

struct rank {
    struct bench *bench;
    unsigned number;
    pthread_t thread;
    uint64_t turns, began_ns, ended_ns;
};

/* Until all have made as many turns. */
static void wait_all(struct rank *rank)
{
    struct bench *bench = rank->bench;
    uint64_t all = ++rank->turns * bench->ranks;
    atomic_fetch_add(&bench->turned, 1);
    while (atomic_load(&bench->turned) < all) {
        if (!bench->own_cores)
            sched_yield();
    }
}

/* Block `share` of a piece, of what a rank has put; share `ranks` is its sum. */
static uint8_t *block_of(const struct bench *bench, unsigned rank, size_t piece, unsigned share)
{
    return bench->rooms[rank][piece % 2] + share * bench->block;
}

/* Where a share of a piece lies in a buffer. */
static size_t at(const struct bench *bench, size_t piece, unsigned share)
{
    return (piece * bench->ranks + share) * bench->block;
}

static void sum(const struct bench *bench, unsigned rank, size_t piece)
{
    const void *in[RANKS_MAX];
    void *out[] = {bench->recvs[rank] + at(bench, piece, rank),
                   block_of(bench, rank, piece, bench->ranks)};
    for (unsigned i = 0; i < bench->ranks; i++)
        in[i] = block_of(bench, i, piece, rank);
    in[rank] = bench->sends[rank] + at(bench, piece, rank);
    struct reduction reduction = {.dtype = DTYPE_F32,
                                  .op = REDUCE_SUM,
                                  .divisor = 1,
                                  .inputs = bench->ranks,
                                  .outputs = 2,
                                  .count = bench->block / sizeof(float),
                                  .in = in,
                                  .out = out};
    reduce_run(bench->kernels, &reduction);
}

static void run_once(struct rank *rank)
{
    const struct bench *bench = rank->bench;
    unsigned me = rank->number;
    size_t pieces = bench->bytes / (bench->block * bench->ranks);
    for (size_t turn = 0; turn < pieces + 2; turn++) {
        for (unsigned i = 0; i < bench->ranks && turn < pieces; i++) {
            if (i != me)
                memcpy(block_of(bench, me, turn, i), bench->sends[me] + at(bench, turn, i),
                       bench->block);
        }
        if (turn >= 1 && turn <= pieces)
            sum(bench, me, turn - 1);
        for (unsigned i = 0; i < bench->ranks && turn >= 2; i++) {
            if (i != me)
                memcpy(bench->recvs[me] + at(bench, turn - 2, i),
                       block_of(bench, i, turn - 2, bench->ranks), bench->block);
        }
        wait_all(rank);
    }
}

static void *rank_run(void *context)
{
    struct rank *rank = context;
    struct bench *bench = rank->bench;
    if (bench->own_cores)
        core_take(rank->number);
    memset(bench->sends[rank->number], 1, bench->bytes);
    memset(bench->recvs[rank->number], 2, bench->bytes);
    for (unsigned i = 0; i < WARMUPS; i++)
        run_once(rank);
    rank->began_ns = clock_now_ns();
    for (unsigned i = 0; i < bench->rounds; i++)
        run_once(rank);
    rank->ended_ns = clock_now_ns();
    return NULL;
}

static bool allocate(struct bench *bench)
{
    bool all = true;
    for (unsigned i = 0; i < bench->ranks; i++) {
        bench->sends[i] = aligned_alloc(4096, bench->bytes);
        bench->recvs[i] = aligned_alloc(4096, bench->bytes);
        all &= bench->sends[i] && bench->recvs[i];
        for (unsigned half = 0; half < 2; half++) {
            bench->rooms[i][half] = aligned_alloc(4096, ROOM_BYTES);
            all &= bench->rooms[i][half] != NULL;
        }
    }
    return all;
}

int main(int argc, char **argv)
{
    static struct bench bench;
    static struct rank ranks[RANKS_MAX];
    bench.ranks = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
    bench.bytes = (argc > 2 ? strtoul(argv[2], NULL, 10) : 64) << 20;
    bench.rounds = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 10;
    if (bench.ranks < 2 || bench.ranks > RANKS_MAX || !bench.bytes || !bench.rounds) {
        fprintf(stderr, "usage: bench_pieces RANKS [MEBIBYTES [ROUNDS]]\n");
        return 2;
    }
    size_t block = ROOM_BYTES / (bench.ranks + 1) / 4096 * 4096;
    bench.block = block < BLOCK_BYTES ? block : BLOCK_BYTES;
    bench.own_cores = cores_suffice(bench.ranks);
    bench.kernels = reduce_select(reduce_isa_best());
    bool ready = allocate(&bench);
    for (unsigned i = 0; i < bench.ranks && ready; i++) {
        ranks[i] = (struct rank){.bench = &bench, .number = i};
        ready = pthread_create(&ranks[i].thread, NULL, rank_run, &ranks[i]) == 0;
    }
    if (!ready) {
        fprintf(stderr, "bench_pieces: no memory or no thread\n");
        return 1;
    }
    double total_us = 0;
    for (unsigned i = 0; i < bench.ranks; i++) {
        pthread_join(ranks[i].thread, NULL);
        total_us += (double)(ranks[i].ended_ns - ranks[i].began_ns) / 1e3;
    }
    /* Elements that do not fill a piece are left out here. */
    size_t piece = bench.block * bench.ranks;
    double whole = (double)(bench.bytes / piece * piece) / (double)bench.bytes;
    printf("{\"ranks\":%u,\"time_us\":%.2f}\n", bench.ranks,
           total_us / bench.ranks / bench.rounds / whole);
    return 0;
}
