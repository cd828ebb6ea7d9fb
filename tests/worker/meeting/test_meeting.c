/* The meeting place: threads are ranks. Each round ends alike for all of them, and its result is
 * the one that the order of the ranks gives. Rounds that are given up leave nothing behind; a seed
 * decides by whom and when. */
#include <fenv.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory/copy.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/meeting_table.h"
#include "worker/meeting/meeting.h"

#define RANKS_MOST 6
#define ROUNDS 1000u
#define COUNT 33u
#define COUNT_FEW 3u         /* beside what is asked for, where there are no parts */
#define COUNT_ALONE 2000u    /* not small */
#define COUNT_LARGE 17000u   /* more than a slice */
#define COUNT_PIECES 500001u /* in pieces, and those in shares that are not all equal */

struct world {
    void *memory;
    uint32_t size, count, rounds;
    bool lines; /* ranks come to some rounds before the first has ended; some rounds are larger */
    unsigned voids;  /* of 100 arrivals, with lines of 1000 looks, so many give the round up */
    bool decline;    /* and as many do not come at all; the first round's last rank among them */
    unsigned differ; /* of 100 arrivals so many ask for another tensor */
    _Atomic uint32_t met[ROUNDS + 1], voided[ROUNDS + 1];
    /* Where nobody declines, who gives a round to the daemon waits there for the others. */
    pthread_barrier_t daemon;
};

struct rank {
    struct world *world;
    uint32_t number;
    uint64_t seed;
    pthread_t thread;
};

static uint32_t draw(struct rank *rank, uint32_t below)
{
    rank->seed = rank->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rank->seed >> 33) % below;
}

static float value_of(uint32_t rank, uint64_t round, uint32_t index)
{
    return (float)(rank + 1) * 0.1f + (float)(round % 97) * 1e-3f + (float)index;
}

static uint32_t count_of(const struct world *world, uint64_t round)
{
    if (!world->lines || round % 7 != 0)
        return world->count;
    return round % 35 == 0 ? COUNT_LARGE : COUNT_ALONE;
}

static struct meeting_ask ask_of(const struct world *world, uint64_t round)
{
    struct meeting_ask ask = {.kind = (uint32_t)(round % COLLECTIVE_SEND), .dtype = DTYPE_F32};
    if (collective_has_root(ask.kind))
        ask.root = (uint32_t)(round / COLLECTIVE_SEND % world->size);
    ask.op = collective_has_op(ask.kind) && round % 2 ? REDUCE_MAX : REDUCE_SUM;
    ask.count = ask.kind == COLLECTIVE_BARRIER ? 0 : count_of(world, round);
    return ask;
}

static bool sends(const struct meeting_ask *ask, uint32_t rank)
{
    bool one = ask->kind == COLLECTIVE_BROADCAST || ask->kind == COLLECTIVE_SCATTER;
    return ask->kind != COLLECTIVE_BARRIER && (!one || ask->root == rank);
}

static bool receives(const struct meeting_ask *ask, uint32_t rank)
{
    bool one = ask->kind == COLLECTIVE_REDUCE || ask->kind == COLLECTIVE_GATHER;
    return ask->kind != COLLECTIVE_BARRIER && (!one || ask->root == rank);
}

/* Return element `index` of part `from` of what a rank receives. A rank's part p begins with
 * element p * count of its values. */
static float wanted_of(const struct world *world, uint64_t round, const struct meeting_ask *ask,
                       uint32_t rank, uint32_t from, uint32_t index)
{
    uint32_t at = index + (meeting_sends_parts(ask->kind) ? rank * (uint32_t)ask->count : 0);
    if (!collective_has_op(ask->kind))
        return value_of(meeting_receives_parts(ask->kind) ? from : ask->root, round, at);
    float wanted = value_of(0, round, at);
    for (uint32_t r = 1; r < world->size; r++) {
        float value = value_of(r, round, at);
        if (ask->op == REDUCE_SUM)
            wanted += value;
        else
            wanted = value > wanted ? value : wanted;
    }
    return wanted;
}

/* `got` has room for a part of each rank, and lies odd for some. */
static void check_result(const struct rank *rank, uint64_t round, const struct meeting_ask *ask,
                         const uint8_t *got)
{
    uint32_t parts = meeting_receives_parts(ask->kind) ? rank->world->size : 1;
    uint32_t count = (uint32_t)ask->count;
    for (uint32_t i = 0; i < parts * count && receives(ask, rank->number); i++) {
        float value,
            wanted = wanted_of(rank->world, round, ask, rank->number, i / count, i % count);
        memcpy(&value, got + i * sizeof(value), sizeof(value));
        if (memcmp(&wanted, &value, sizeof(wanted)) != 0) /* each assertion takes its time */
            ck_abort_msg("round %" PRIu64 ", kind %u: element %u is %g, not %g", round, ask->kind,
                         i, (double)value, (double)wanted);
    }
}

/* Make in `data` what this rank sends to the round. */
static void set_sends(const struct rank *rank, uint64_t round, const struct meeting_ask *ask,
                      float *data, const void *send[RANKS_MOST])
{
    uint32_t size = rank->world->size;
    for (uint32_t i = 0; i < size * ask->count && sends(ask, rank->number); i++)
        data[i] = value_of(rank->number, round, i);
    for (uint32_t i = 0; i < size; i++)
        send[i] = sends(ask, rank->number) ? &data[i * ask->count] : NULL;
}

/* Overwrite what is free once the rank has come: all but what a reduce_scatter sends to itself. */
static void spoil(const struct rank *rank, const struct meeting_ask *ask, float *data)
{
    for (uint32_t i = 0; i < rank->world->size; i++) {
        if (ask->kind != COLLECTIVE_REDUCE_SCATTER || i != rank->number)
            memset(data + i * ask->count, 0x55, ask->count * sizeof(*data));
    }
}

/* Where in `to` it receives. */
static void set_recvs(const struct rank *rank, const struct meeting_ask *ask, uint8_t *to,
                      void *recv[RANKS_MOST])
{
    for (uint32_t i = 0; i < rank->world->size; i++)
        recv[i] = receives(ask, rank->number) ? to + i * ask->count * sizeof(float) : NULL;
}

/* Come to the round, and go on until there is a verdict. */
static enum meeting_verdict attend_with(struct rank *rank, struct meeting *meeting, uint64_t round,
                                        float *data, uint8_t *to)
{
    struct world *world = rank->world;
    struct meeting_ask ask = ask_of(world, round);
    ask.identity = draw(rank, 100) < world->differ;
    bool in_pieces = meeting_in_pieces(&ask, world->size);
    const void *send[RANKS_MOST];
    void *recv[RANKS_MOST];
    bool gives_up = draw(rank, 100) < world->voids;
    bool declines = draw(rank, 100) < world->voids;
    if (world->decline && (declines || (round == 1 && rank->number == world->size - 1)))
        return meeting_void(meeting, round);
    set_sends(rank, round, &ask, data, send);
    set_recvs(rank, &ask, to, recv);
    enum meeting_verdict verdict = meeting_arrive(meeting, round, &ask, send);
    if (!in_pieces)
        spoil(rank, &ask, data);
    for (uint32_t looks = draw(rank, 50); verdict != MEETING_MET && verdict != MEETING_VOID;
         looks--) {
        if (gives_up && looks == 0)
            verdict = meeting_void(meeting, round);
        else
            verdict = meeting_look(meeting, round);
        if (verdict == MEETING_SUMS)
            verdict = meeting_help(meeting, round, &ask);
        if (verdict == MEETING_TURN)
            verdict = meeting_turn(meeting, round, &ask, send, recv);
        if (verdict == MEETING_OPEN)
            sched_yield();
        if (looks == 0)
            looks = 50;
    }
    if (verdict == MEETING_MET) {
        meeting_take(meeting, &ask, recv);
        check_result(rank, round, &ask, to);
    } else {
        meeting_leave(meeting, round);
    }
    return verdict;
}

static enum meeting_verdict attend(struct rank *rank, struct meeting *meeting, uint64_t round)
{
    size_t bytes = (size_t)rank->world->size * rank->world->count * sizeof(float);
    bool pieces = rank->world->count == COUNT_PIECES; /* what is not aligned does not pass so */
    float *data = malloc(bytes);
    uint8_t *got = malloc(bytes + 1);
    ck_assert(data && got);
    enum meeting_verdict verdict =
        attend_with(rank, meeting, round, data, got + (pieces ? 0 : rank->number % 2));
    free(got);
    free(data);
    return verdict;
}

/* Tell, as attend does, that the rounds first to next - 1 are void, which others may not know
 * yet. */
static void all_void(struct world *world, struct meeting *meeting, uint64_t first, uint64_t next)
{
    meeting_leave(meeting, next - 1);
    for (; first < next; first++) {
        atomic_fetch_add(&world->voided[first], 1);
        pthread_barrier_wait(&world->daemon);
    }
}

/* Come to the round behind the line, with data that nothing else in the line uses. */
static enum meeting_verdict join(struct rank *rank, struct meeting *meeting, uint64_t round,
                                 float *data)
{
    struct meeting_ask ask = ask_of(rank->world, round);
    const void *send[RANKS_MOST];
    ask.identity = draw(rank, 100) < rank->world->differ;
    set_sends(rank, round, &ask, data, send);
    enum meeting_verdict verdict = meeting_arrive(meeting, round, &ask, send);
    spoil(rank, &ask, data);
    return verdict;
}

/* Return what has become of the first round in the line; take its result and check it if it has
 * met. */
static enum meeting_verdict leave(struct rank *rank, struct meeting *meeting, uint64_t round,
                                  uint8_t *to)
{
    struct meeting_ask ask = ask_of(rank->world, round);
    void *recv[RANKS_MOST];
    enum meeting_verdict verdict = draw(rank, 1000) < rank->world->voids
                                       ? meeting_void(meeting, round)
                                       : meeting_look(meeting, round);
    if (verdict == MEETING_SUMS)
        verdict = meeting_help(meeting, round, &ask);
    if (verdict != MEETING_MET)
        return verdict;
    set_recvs(rank, &ask, to, recv);
    meeting_take(meeting, &ask, recv);
    check_result(rank, round, &ask, to);
    atomic_fetch_add(&rank->world->met[round], 1);
    return verdict;
}

static void run_lines(struct rank *rank, struct meeting *meeting)
{
    struct world *world = rank->world;
    size_t bytes = RANKS_MOST * COUNT_LARGE * sizeof(float);
    float *data[MEETING_LINE];
    for (uint32_t i = 0; i < MEETING_LINE; i++)
        ck_assert_ptr_nonnull(data[i] = malloc(bytes));
    uint8_t *got = malloc(bytes);
    uint64_t first = 1, next = 1;
    ck_assert_ptr_nonnull(got);
    while (first <= world->rounds) {
        struct meeting_ask ask = ask_of(world, next);
        bool comes = next <= world->rounds && (next == first || draw(rank, 4) > 0) &&
                     meeting_may_come(meeting, &ask);
        if (comes && join(rank, meeting, next, data[next % MEETING_LINE]) != MEETING_VOID) {
            ck_assert_uint_le(++next - first, MEETING_LINE);
            continue;
        }
        enum meeting_verdict verdict =
            next == first ? MEETING_VOID : leave(rank, meeting, first, got);
        if (verdict == MEETING_VOID) {
            next += next == first;
            all_void(world, meeting, first, next);
            first = next;
        } else if (verdict == MEETING_MET) {
            first++;
        } else {
            sched_yield();
        }
    }
    free(got);
    for (uint32_t i = 0; i < MEETING_LINE; i++)
        free(data[i]);
}

static void *run_rank(void *argument)
{
    struct rank *rank = argument;
    struct world *world = rank->world;
    struct meeting meeting;
    ck_assert(meeting_init(&meeting, world->memory, meeting_bytes(world->size), rank->number,
                           world->size));
    if (world->lines)
        run_lines(rank, &meeting);
    for (uint64_t round = 1; round <= world->rounds && !world->lines; round++) {
        if (attend(rank, &meeting, round) == MEETING_MET) {
            atomic_fetch_add(&world->met[round], 1);
        } else {
            atomic_fetch_add(&world->voided[round], 1);
            if (!world->decline) /* else a rank may be rounds ahead */
                pthread_barrier_wait(&world->daemon);
        }
    }
    return NULL;
}

/* How many rounds have met. */
static uint32_t run_ranks(const struct world *of, uint64_t seed)
{
    struct world world = *of;
    uint32_t size = world.size, met = 0;
    struct rank ranks[RANKS_MOST];
    world.memory = aligned_alloc(64, meeting_bytes(size));
    ck_assert_ptr_nonnull(world.memory);
    memset(world.memory, 0, meeting_bytes(size));
    pthread_barrier_init(&world.daemon, NULL, size);
    for (uint32_t i = 0; i < size; i++) {
        ranks[i] = (struct rank){.world = &world, .number = i, .seed = seed * 977 + i};
        ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < size; i++)
        pthread_join(ranks[i].thread, NULL);
    for (uint32_t round = 1; round <= world.rounds; round++) {
        ck_assert_msg(world.met[round] == 0 || world.voided[round] == 0,
                      "round %u has met for %u and not for %u", round, world.met[round],
                      world.voided[round]);
        met += world.met[round] > 0;
    }
    pthread_barrier_destroy(&world.daemon);
    free(world.memory);
    return met;
}

/* Ranks that ask for different things, of which some have gone on when others find that out. */
START_TEST(test_some_differ)
{
    struct world world = {.count = COUNT, .rounds = ROUNDS, .differ = 10, .decline = _i % 2};
    world.size = 2 + (uint32_t)_i / 2 % 2;
    uint32_t met = run_ranks(&world, (uint64_t)_i);
    ck_assert_uint_lt(met, ROUNDS);
    /* With two ranks, one may be through with all rounds while the other still compares. */
    if (!world.decline)
        ck_assert_uint_gt(met, 0);
    world.count = COUNT_PIECES;
    world.rounds = 2 * COLLECTIVE_SEND;
    run_ranks(&world, (uint64_t)_i);
}
END_TEST

static void run_world(uint32_t size, uint32_t count, unsigned voids, bool decline, uint64_t seed)
{
    struct world world = {.size = size,
                          .count = count,
                          .rounds = count == COUNT         ? ROUNDS
                                    : count == COUNT_LARGE ? ROUNDS / 50
                                                           : 2 * COLLECTIVE_SEND,
                          .voids = voids,
                          .decline = decline};
    uint32_t met = run_ranks(&world, seed);
    if (voids == 0)
        ck_assert_uint_eq(met, world.rounds);
    else if (decline)
        ck_assert_uint_lt(met, world.rounds);
    /* If nobody declines, all of them may come before anybody has given up. */
}

START_TEST(test_all_meet)
{
    run_world(2, COUNT, 0, false, 1);
    run_world(2, COUNT_FEW, 0, false, 6);
    run_world(3, COUNT_FEW, 0, false, 7);
    run_world(5, COUNT, 0, false, 2);
    run_world(4, COUNT_LARGE, 0, false, 3);
}
END_TEST

START_TEST(test_all_pass_in_pieces)
{
    static const uint32_t sizes[] = {2, 3, 6};
    run_world(sizes[_i], COUNT_PIECES, 0, false, 5);
}
END_TEST

START_TEST(test_some_give_up)
{
    run_world(2, COUNT, 20, false, (uint64_t)_i);
    run_world(2, COUNT, 10, true, (uint64_t)_i);
    run_world(4, COUNT, 10, true, (uint64_t)_i);
    if (_i < 2)
        run_world(4, COUNT_LARGE, 10, _i % 2, (uint64_t)_i);
    if (_i >= 2)
        run_world(3, COUNT_PIECES, 20, _i % 2, (uint64_t)_i);
    if (_i >= 2)
        run_world(2, COUNT_PIECES, 20, _i % 2, (uint64_t)_i);
}
END_TEST

START_TEST(test_lines)
{
    struct world world = {.count = COUNT, .rounds = ROUNDS, .lines = true};
    world.size = 2 + (uint32_t)_i % 4;
    ck_assert_uint_eq(run_ranks(&world, (uint64_t)_i), ROUNDS);
    world.voids = 2;
    ck_assert_uint_gt(run_ranks(&world, (uint64_t)_i), 0);
    world.differ = 1;
    ck_assert_uint_lt(run_ranks(&world, (uint64_t)_i), ROUNDS);
}
END_TEST

/* --- one thread plays all ranks ------------------------------------------------------------- */

START_TEST(test_asks_differ)
{
    struct table table;
    struct meeting_ask two = one_number;
    int32_t numbers[2] = {1, 2};
    const void *value[] = {numbers};
    two.count = 2;
    table_set(&table);
    ck_assert_int_eq(meeting_arrive(&table.at[0], 1, &one_number, value), MEETING_OPEN);
    ck_assert_int_eq(meeting_arrive(&table.at[1], 1, &two, value), MEETING_OPEN);
    ck_assert_int_eq(meeting_arrive(&table.at[2], 1, &one_number, value), MEETING_VOID);
    ck_assert_int_eq(meeting_look(&table.at[0], 1), MEETING_VOID);
    ck_assert_int_eq(meeting_look(&table.at[1], 1), MEETING_VOID);
    free(table.memory);
}
END_TEST

START_TEST(test_later_round)
{
    struct table table;
    int32_t number = 1, got = 0;
    const void *value[] = {&number};
    void *recv[] = {&got};
    table_set(&table);
    /* Rank 1 has had round 1 elsewhere, and comes to round 2. */
    ck_assert_int_eq(meeting_arrive(&table.at[0], 1, &one_number, value), MEETING_OPEN);
    ck_assert_int_eq(meeting_arrive(&table.at[1], 2, &one_number, value), MEETING_OPEN);
    ck_assert_int_eq(meeting_look(&table.at[0], 1), MEETING_VOID);
    ck_assert_int_eq(meeting_void(&table.at[0], 1), MEETING_VOID);
    ck_assert_int_eq(meeting_arrive(&table.at[2], 1, &one_number, value), MEETING_VOID);
    meeting_leave(&table.at[0], 1);
    meeting_leave(&table.at[2], 1);
    ck_assert_int_eq(meeting_arrive(&table.at[0], 2, &one_number, value), MEETING_OPEN);
    ck_assert_int_eq(meeting_arrive(&table.at[2], 2, &one_number, value), MEETING_MET);
    /* A rank that is slow to look finds out, too, when others have gone on. */
    meeting_take(&table.at[2], &one_number, recv);
    ck_assert_int_eq(got, 3);
    ck_assert_int_eq(meeting_void(&table.at[2], 3), MEETING_VOID);
    ck_assert_int_eq(meeting_look(&table.at[0], 2), MEETING_MET);
    ck_assert_int_eq(meeting_look(&table.at[1], 2), MEETING_MET);
    free(table.memory);
}
END_TEST

/* A large sum is cut into slices, and each rank that comes by takes one; a rank that does not come
 * is not needed. */
START_TEST(test_slices)
{
    struct table table;
    static int32_t numbers[COUNT_LARGE], got[COUNT_LARGE];
    const void *value[] = {numbers};
    void *recv[] = {got};
    struct meeting_ask large = one_number;
    large.count = COUNT_LARGE;
    for (uint32_t i = 0; i < COUNT_LARGE; i++)
        numbers[i] = (int32_t)i;
    table_set(&table);
    for (uint32_t i = 0; i < 2; i++)
        ck_assert_int_eq(meeting_arrive(&table.at[i], 1, &large, value), MEETING_OPEN);
    ck_assert_int_eq(meeting_arrive(&table.at[2], 1, &large, value), MEETING_SUMS);
    ck_assert_int_eq(meeting_look(&table.at[0], 1), MEETING_SUMS);
    ck_assert_int_eq(meeting_void(&table.at[0], 1), MEETING_OPEN); /* too late */
    ck_assert_int_eq(meeting_help(&table.at[1], 1, &large), MEETING_MET);
    ck_assert_int_eq(meeting_help(&table.at[2], 1, &large), MEETING_OPEN); /* nothing is left */
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_int_eq(meeting_look(&table.at[i], 1), MEETING_MET);
        memset(got, 0, sizeof(got));
        meeting_take(&table.at[i], &large, recv);
        for (uint32_t n = 0; n < COUNT_LARGE; n++)
            ck_assert_int_eq(got[n], 3 * (int32_t)n);
    }
    free(table.memory);
}
END_TEST

START_TEST(test_cores)
{
    struct table table;
    int32_t number = 1;
    const void *value[] = {&number};
    table_set(&table);
    ck_assert_int_eq(meeting_core_of(&table.at[0], 1), -1); /* it has not said where it is */
    meeting_say_core(&table.at[0], 0);
    meeting_say_core(&table.at[1], 3);
    meeting_say_core(&table.at[2], 0);
    ck_assert_int_eq(meeting_core_of(&table.at[1], 0), 0);
    ck_assert_int_eq(meeting_core_of(&table.at[1], 1), 3);
    /* Rank 2 needs the core that it shares until it has come, and nobody another one. */
    meeting_arrive(&table.at[0], 1, &one_number, value);
    ck_assert(meeting_needs_core(&table.at[0], 1, 0));
    ck_assert(!meeting_needs_core(&table.at[0], 1, 1));
    meeting_arrive(&table.at[2], 1, &one_number, value);
    ck_assert(!meeting_needs_core(&table.at[0], 1, 0));
    ck_assert(!meeting_needs_core(&table.at[2], 1, 0));
    ck_assert(meeting_needs_core(&table.at[0], 1, 3));
    /* Rank 0 is ahead. */
    meeting_arrive(&table.at[0], 2, &one_number, value);
    meeting_arrive(&table.at[1], 1, &one_number, value);
    meeting_take(&table.at[0], &one_number, (void *[]){NULL});
    ck_assert(meeting_needs_core(&table.at[0], 2, 0));
    free(table.memory);
}
END_TEST

/* A rank needs its core, too, when another one waits for its turn. */
START_TEST(test_cores_in_turns)
{
    struct table table;
    uint8_t *memory = calloc(2, 2 * MEETING_DATA_BYTES);
    const void *send[] = {memory};
    void *recv[] = {memory + UINT64_C(2) * MEETING_DATA_BYTES};
    struct meeting_ask large = {
        .kind = COLLECTIVE_ALL_REDUCE, .dtype = DTYPE_U8, .count = 2 * MEETING_DATA_BYTES};
    ck_assert_ptr_nonnull(memory);
    table_set(&table);
    for (uint32_t i = 0; i < TABLE_RANKS; i++) {
        meeting_say_core(&table.at[i], i / 2);
        meeting_arrive(&table.at[i], 1, &large, send);
    }
    ck_assert(!meeting_needs_core(&table.at[0], 1, 0));
    ck_assert_int_eq(meeting_turn(&table.at[0], 1, &large, send, recv), MEETING_OPEN);
    ck_assert(meeting_needs_core(&table.at[0], 1, 0));
    ck_assert(!meeting_needs_core(&table.at[1], 1, 0)); /* its own is due */
    ck_assert_int_eq(meeting_turn(&table.at[1], 1, &large, send, recv), MEETING_OPEN);
    ck_assert(!meeting_needs_core(&table.at[0], 1, 0));
    ck_assert(meeting_needs_core(&table.at[0], 1, 1));
    free(table.memory);
    free(memory);
}
END_TEST

/* However the caller rounds, the bits are those of all ranks; and it rounds so afterwards. */
START_TEST(test_rounding)
{
    struct meeting_ask half = {
        .kind = COLLECTIVE_ALL_REDUCE, .dtype = DTYPE_F32, .op = REDUCE_SUM, .count = 1};
    struct table table;
    float numbers[3] = {1, 0x1p-25f, 0}, got = 0;
    void *recv[] = {&got};
    table_set(&table);
    ck_assert_int_eq(fesetround(FE_UPWARD), 0);
    for (uint32_t i = 0; i < 3; i++) {
        const void *value[] = {&numbers[i]};
        ck_assert_int_eq(meeting_arrive(&table.at[i], 1, &half, value),
                         i < 2 ? MEETING_OPEN : MEETING_MET);
    }
    int rounds = fegetround();
    fesetround(FE_TONEAREST);
    ck_assert_int_eq(rounds, FE_UPWARD);
    meeting_take(&table.at[0], &half, recv);
    ck_assert(got == 1);
    free(table.memory);
}
END_TEST

/* A result as large as this is stored past the cache. */
START_TEST(test_large_gather)
{
    enum { SIZE = 8 };
    struct meeting at[SIZE];
    uint64_t bytes = MEETING_AT_ONCE_BYTES;
    struct meeting_ask ask = {.kind = COLLECTIVE_ALL_GATHER, .dtype = DTYPE_U8, .count = bytes};
    uint8_t *memory = aligned_alloc(64, meeting_bytes(SIZE));
    uint8_t *part = malloc(bytes), *got = malloc(SIZE * bytes + 1);
    void *recv[SIZE];
    ck_assert_uint_ge(SIZE * bytes, COPY_PAST_CACHE_BYTES);
    ck_assert(memory && part && got);
    memset(memory, 0, meeting_bytes(SIZE));
    for (uint32_t i = 0; i < SIZE; i++) {
        const void *send[] = {part};
        ck_assert(meeting_init(&at[i], memory, meeting_bytes(SIZE), i, SIZE));
        memset(part, (int)i + 1, bytes);
        recv[i] = got + 1 + i * bytes;
        ck_assert_int_eq(meeting_arrive(&at[i], 1, &ask, send),
                         i < SIZE - 1 ? MEETING_OPEN : MEETING_MET);
    }
    meeting_take(&at[3], &ask, recv);
    for (uint32_t i = 0; i < SIZE; i++) {
        memset(part, (int)i + 1, bytes);
        ck_assert_mem_eq(recv[i], part, bytes);
    }
    free(got);
    free(part);
    free(memory);
}
END_TEST

START_TEST(test_what_fits)
{
    struct meeting_ask ask = one_number;
    ck_assert(meeting_fits(&ask, 2));
    ck_assert(!meeting_fits(&ask, 1));
    ck_assert(!meeting_fits(&ask, MEETING_RANKS_MAX + 1));
    ask = (struct meeting_ask){.kind = COLLECTIVE_SEND, .dtype = DTYPE_F32, .count = 1};
    ck_assert(!meeting_fits(&ask, 2));
    /* Where there are many ranks the place would be too large. */
    ck_assert_uint_eq(meeting_data_bytes(2), MEETING_DATA_BYTES);
    ck_assert_uint_lt(meeting_data_bytes(MEETING_RANKS_MAX), MEETING_DATA_BYTES);
    for (uint32_t size = 2; size <= MEETING_RANKS_MAX; size++)
        ck_assert_uint_le(meeting_bytes(size), UINT64_C(22) << 20);
}
END_TEST

START_TEST(test_another_version)
{
    struct meeting meeting;
    uint64_t bytes = meeting_bytes(2);
    uint32_t *memory = aligned_alloc(64, bytes);
    ck_assert_ptr_nonnull(memory);
    memset(memory, 0, bytes);
    ck_assert(!meeting_init(&meeting, memory, bytes - 1, 0, 2));
    memory[0] = MEETING_VERSION + 1;
    ck_assert(!meeting_init(&meeting, memory, bytes, 0, 2));
    free(memory);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("meeting");
    TCase *core = tcase_create("core");
    tcase_set_timeout(core, 120);
    tcase_add_test(core, test_all_meet);
    tcase_add_loop_test(core, test_all_pass_in_pieces, 0, 3);
    tcase_add_loop_test(core, test_some_give_up, 0, 4);
    tcase_add_loop_test(core, test_some_differ, 0, 8);
    tcase_add_loop_test(core, test_lines, 0, 8);
    tcase_add_test(core, test_asks_differ);
    tcase_add_test(core, test_later_round);
    tcase_add_test(core, test_slices);
    tcase_add_test(core, test_cores);
    tcase_add_test(core, test_cores_in_turns);
    tcase_add_test(core, test_rounding);
    tcase_add_test(core, test_large_gather);
    tcase_add_test(core, test_what_fits);
    tcase_add_test(core, test_another_version);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
