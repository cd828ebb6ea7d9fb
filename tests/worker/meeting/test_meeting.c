/* The meeting place: threads are ranks. What each round ends with is the same for all of them, its
 * result is the one that the order of the ranks gives, and rounds that are given up, by whom and
 * when a seed decides, leave nothing behind. */
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"
#include "worker/meeting/meeting.h"

#define RANKS_MOST 6
#define ROUNDS 1000u
#define COUNT 33u

struct world {
    void *memory;
    uint32_t size;
    unsigned voids; /* of 100 arrivals, so many give the round up */
    bool decline;   /* and as many do not come at all */
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

static struct meeting_ask ask_of(uint64_t round, uint32_t size)
{
    switch (round % 3) {
    case 0:
        return (struct meeting_ask){
            .kind = COLLECTIVE_ALL_REDUCE, .dtype = DTYPE_F32, .op = REDUCE_SUM, .count = COUNT};
    case 1:
        return (struct meeting_ask){.kind = COLLECTIVE_BROADCAST,
                                    .dtype = DTYPE_F32,
                                    .root = (uint32_t)(round / 3 % size),
                                    .count = COUNT};
    default:
        return (struct meeting_ask){.kind = COLLECTIVE_BARRIER, .dtype = DTYPE_U8};
    }
}

static void check_result(const struct world *world, uint64_t round, const struct meeting_ask *ask,
                         const float *got)
{
    for (uint32_t i = 0; i < COUNT && ask->kind != COLLECTIVE_BARRIER; i++) {
        float wanted = value_of(ask->root, round, i);
        for (uint32_t r = 1; r < world->size && ask->kind == COLLECTIVE_ALL_REDUCE; r++)
            wanted += value_of(r, round, i);
        ck_assert_msg(memcmp(&wanted, &got[i], sizeof(wanted)) == 0,
                      "round %" PRIu64 ": element %u is %g, not %g", round, i, (double)got[i],
                      (double)wanted);
    }
}

static enum meeting_verdict attend(struct rank *rank, struct meeting *meeting, uint64_t round)
{
    struct world *world = rank->world;
    struct meeting_ask ask = ask_of(round, world->size);
    float send[COUNT], got[COUNT];
    bool gives_up = draw(rank, 100) < world->voids;
    if (world->decline && draw(rank, 100) < world->voids)
        return meeting_void(meeting, round);
    for (uint32_t i = 0; i < COUNT; i++)
        send[i] = value_of(rank->number, round, i);
    bool sends = ask.kind == COLLECTIVE_ALL_REDUCE || ask.root == rank->number;
    enum meeting_verdict verdict = meeting_arrive(meeting, round, &ask, sends ? send : NULL);
    for (uint32_t looks = draw(rank, 50); verdict == MEETING_OPEN; looks--) {
        if (gives_up && looks == 0)
            verdict = meeting_void(meeting, round);
        else
            verdict = meeting_look(meeting, round);
        if (verdict == MEETING_OPEN)
            sched_yield();
        if (looks == 0)
            looks = 50;
    }
    if (verdict == MEETING_MET) {
        meeting_take(meeting, &ask, got);
        check_result(world, round, &ask, got);
    }
    return verdict;
}

static void *run_rank(void *argument)
{
    struct rank *rank = argument;
    struct world *world = rank->world;
    struct meeting meeting;
    ck_assert(meeting_init(&meeting, world->memory, meeting_bytes(world->size), rank->number,
                           world->size));
    for (uint64_t round = 1; round <= ROUNDS; round++) {
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

static void run_world(uint32_t size, unsigned voids, bool decline, uint64_t seed)
{
    struct world world = {.size = size, .voids = voids, .decline = decline};
    struct rank ranks[RANKS_MOST];
    uint32_t met = 0;
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
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        ck_assert_msg(world.met[round] == 0 || world.voided[round] == 0,
                      "round %u has met for %u and not for %u", round, world.met[round],
                      world.voided[round]);
        met += world.met[round] > 0;
    }
    if (voids == 0)
        ck_assert_uint_eq(met, ROUNDS);
    else
        ck_assert_uint_lt(met, ROUNDS);
    pthread_barrier_destroy(&world.daemon);
    free(world.memory);
}

START_TEST(test_all_meet)
{
    run_world(2, 0, false, 1);
    run_world(5, 0, false, 2);
}
END_TEST

START_TEST(test_some_give_up)
{
    run_world(2, 20, false, (uint64_t)_i);
    run_world(4, 10, true, (uint64_t)_i);
}
END_TEST

/* --- one thread plays all ranks ------------------------------------------------------------- */

struct table {
    struct meeting at[3];
    void *memory;
};

static void table_set(struct table *table)
{
    table->memory = aligned_alloc(64, meeting_bytes(3));
    ck_assert_ptr_nonnull(table->memory);
    memset(table->memory, 0, meeting_bytes(3));
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_int_eq(i > 0 && meeting_complete(&table->at[0]), false);
        ck_assert(meeting_init(&table->at[i], table->memory, meeting_bytes(3), i, 3));
    }
    ck_assert(meeting_complete(&table->at[0]));
}

static const struct meeting_ask one = {
    .kind = COLLECTIVE_ALL_REDUCE, .dtype = DTYPE_I32, .op = REDUCE_SUM, .count = 1};

START_TEST(test_asks_differ)
{
    struct table table;
    struct meeting_ask two = one;
    int32_t value[2] = {1, 2};
    two.count = 2;
    table_set(&table);
    ck_assert_int_eq(meeting_arrive(&table.at[0], 1, &one, value), MEETING_OPEN);
    ck_assert_int_eq(meeting_arrive(&table.at[1], 1, &two, value), MEETING_OPEN);
    ck_assert_int_eq(meeting_arrive(&table.at[2], 1, &one, value), MEETING_VOID);
    ck_assert_int_eq(meeting_look(&table.at[0], 1), MEETING_VOID);
    ck_assert_int_eq(meeting_look(&table.at[1], 1), MEETING_VOID);
    free(table.memory);
}
END_TEST

START_TEST(test_later_round)
{
    struct table table;
    int32_t value = 1, got = 0;
    table_set(&table);
    /* Rank 1 has had round 1 elsewhere, and comes to round 2. */
    ck_assert_int_eq(meeting_arrive(&table.at[0], 1, &one, &value), MEETING_OPEN);
    ck_assert_int_eq(meeting_arrive(&table.at[1], 2, &one, &value), MEETING_OPEN);
    ck_assert_int_eq(meeting_look(&table.at[0], 1), MEETING_VOID);
    ck_assert_int_eq(meeting_void(&table.at[0], 1), MEETING_VOID);
    ck_assert_int_eq(meeting_arrive(&table.at[2], 1, &one, &value), MEETING_VOID);
    ck_assert_int_eq(meeting_arrive(&table.at[0], 2, &one, &value), MEETING_OPEN);
    ck_assert_int_eq(meeting_arrive(&table.at[2], 2, &one, &value), MEETING_MET);
    /* A rank that is slow to look finds out, too, when others have gone on. */
    meeting_take(&table.at[2], &one, &got);
    ck_assert_int_eq(got, 3);
    ck_assert_int_eq(meeting_void(&table.at[2], 3), MEETING_VOID);
    ck_assert_int_eq(meeting_look(&table.at[0], 2), MEETING_MET);
    ck_assert_int_eq(meeting_look(&table.at[1], 2), MEETING_MET);
    free(table.memory);
}
END_TEST

START_TEST(test_what_fits)
{
    struct meeting_ask ask = one;
    ck_assert(meeting_fits(&ask, 2));
    ck_assert(!meeting_fits(&ask, 1));
    ck_assert(!meeting_fits(&ask, MEETING_RANKS_MAX + 1));
    ask.count = MEETING_DATA_BYTES / 4;
    ck_assert(meeting_fits(&ask, 2));
    ask.count++;
    ck_assert(!meeting_fits(&ask, 2));
    ask.count = UINT64_MAX / 4 + 2; /* whose bytes wrap */
    ck_assert(!meeting_fits(&ask, 2));
    ask = (struct meeting_ask){.kind = COLLECTIVE_SEND, .count = 1};
    ck_assert(!meeting_fits(&ask, 2));
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
    tcase_add_loop_test(core, test_some_give_up, 0, 4);
    tcase_add_test(core, test_asks_differ);
    tcase_add_test(core, test_later_round);
    tcase_add_test(core, test_what_fits);
    tcase_add_test(core, test_another_version);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
