/* shoalperf's parts: laid out for every rank, moved by hand, spoiled. */
#include <stdlib.h>
#include <string.h>

#include "common/reduce/reduce.h"
#include "tests/lib/reduce_into.h"
#include "tests/lib/suite.h"
#include "worker/programs/shoalperf/perf_parts.h"

#define RANKS_MAX 5

static const enum collective_kind kinds[] = {COLLECTIVE_ALL_GATHER, COLLECTIVE_REDUCE_SCATTER,
                                             COLLECTIVE_GATHER,     COLLECTIVE_SCATTER,
                                             COLLECTIVE_ALL_TO_ALL, COLLECTIVE_SEND};
#define KINDS 6
#define UNEVEN_KINDS 5 /* a send has one size */

struct world {
    struct perf_parts_case is;
    struct perf_parts parts[RANKS_MAX];
    void *memory[RANKS_MAX][2];
};

static bool sends_one(enum collective_kind kind)
{
    return kind == COLLECTIVE_ALL_GATHER || kind == COLLECTIVE_GATHER || kind == COLLECTIVE_SEND;
}

static bool receives_one(enum collective_kind kind)
{
    return kind == COLLECTIVE_REDUCE_SCATTER || kind == COLLECTIVE_SCATTER ||
           kind == COLLECTIVE_SEND;
}

static struct perf_parts_case case_of(enum collective_kind kind, uint32_t ranks, uint64_t count)
{
    return (struct perf_parts_case){.what = {.collective = kind,
                                             .dtype = DTYPE_I32,
                                             .ranks = ranks,
                                             .root = ranks - 1,
                                             .round = 3},
                                    .count = count};
}

/* Both buffers are exactly as large as is said, so that a sanitizer sees what lies behind. */
static void world_open(struct world *world, const struct perf_parts_case *is)
{
    struct error error;
    uint64_t data = is->count * is->what.ranks * dtype_bytes(is->what.dtype);
    uint64_t bytes = perf_parts_bytes(data, is->what.ranks);
    world->is = *is;
    for (uint32_t rank = 0; rank < is->what.ranks; rank++) {
        world->is.what.rank = rank;
        for (int i = 0; i < 2; i++)
            ck_assert_ptr_nonnull(world->memory[rank][i] = aligned_alloc(64, bytes));
        ck_assert_int_eq(perf_parts_make(&world->parts[rank], &world->is, world->memory[rank][0],
                                         world->memory[rank][1], &error),
                         0);
        ck_assert_uint_le(world->parts[rank].send.bytes, bytes);
        ck_assert_uint_le(world->parts[rank].recv.bytes, bytes);
        perf_parts_prepare(&world->parts[rank]);
    }
}

static void world_close(struct world *world)
{
    for (uint32_t rank = 0; rank < world->is.what.ranks; rank++) {
        perf_parts_clear(&world->parts[rank]);
        free(world->memory[rank][0]);
        free(world->memory[rank][1]);
    }
}

/* Move what rank `from` sends to rank `to` to where that goes. */
static void move_part(struct world *world, uint32_t from, uint32_t to)
{
    const struct perf_side *send = &world->parts[from].send, *recv = &world->parts[to].recv;
    if (send->parts == 0 || recv->parts == 0)
        return;
    if (world->is.what.collective == COLLECTIVE_SEND && to != (from + 1) % world->is.what.ranks)
        return;
    uint32_t out = sends_one(world->is.what.collective) ? 0 : to;
    uint32_t in = receives_one(world->is.what.collective) ? 0 : from;
    ck_assert_uint_eq(send->counts[out], recv->counts[in]);
    ck_assert_uint_eq(send->counts[out], perf_parts_count(&world->is, from, to));
    memmove(recv->buffers[in], send->buffers[out],
            send->counts[out] * dtype_bytes(world->is.what.dtype));
}

/* With the kernels that the daemon has. */
static void reduce_part(struct world *world, uint32_t to)
{
    const void *in[RANKS_MAX];
    uint32_t ranks = world->is.what.ranks;
    const struct perf_side *recv = &world->parts[to].recv;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        in[rank] = world->parts[rank].send.buffers[to];
        ck_assert_uint_eq(world->parts[rank].send.counts[to], recv->counts[0]);
    }
    if (recv->counts[0] > 0)
        reduce_into(reduce_select(REDUCE_ISA_SCALAR), world->is.what.dtype, world->is.what.op, in,
                    ranks, recv->buffers[0], recv->counts[0], ranks);
}

static void world_run(struct world *world)
{
    uint32_t ranks = world->is.what.ranks;
    for (uint32_t to = 0; to < ranks; to++) {
        if (world->is.what.collective == COLLECTIVE_REDUCE_SCATTER)
            reduce_part(world, to);
        else
            for (uint32_t from = 0; from < ranks; from++)
                move_part(world, from, to);
    }
}

static uint64_t world_wrong(const struct world *world)
{
    uint64_t wrong = 0;
    for (uint32_t rank = 0; rank < world->is.what.ranks; rank++)
        wrong += perf_parts_check(&world->parts[rank]);
    return wrong;
}

static void check_case(const struct perf_parts_case *is)
{
    struct world world;
    world_open(&world, is);
    uint64_t before = world_wrong(&world);
    world_run(&world);
    uint64_t after = world_wrong(&world);
    ck_assert_msg(after == 0, "%s of %u ranks, %s, count %llu, %s%s: %llu wrong",
                  collective_name(is->what.collective), is->what.ranks, dtype_name(is->what.dtype),
                  (unsigned long long)is->count, is->uneven ? "uneven " : "",
                  is->in_place ? "in place" : "", (unsigned long long)after);
    /* Nothing was there before, except in place, where one's own may be. */
    if (is->what.ranks > 1 && is->count > 2)
        ck_assert_uint_gt(before, 0);
    if (perf_parts_repeats(is)) {
        world_run(&world);
        ck_assert_uint_eq(world_wrong(&world), 0);
    }
    world_close(&world);
}

START_TEST(test_every_case_comes_out)
{
    static const uint64_t counts[] = {1, 2, 3, 1000, PERF_PERIOD + 7};
    for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++)
        for (uint32_t ranks = 1; ranks <= RANKS_MAX; ranks++)
            for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
                for (unsigned flags = 0; flags < 4; flags++) {
                    struct perf_parts_case is = case_of(kinds[_i], ranks, counts[i]);
                    is.what.dtype = (enum dtype)dtype;
                    is.uneven = (flags & 1) && _i < UNEVEN_KINDS;
                    is.in_place = (flags & 2) && kinds[_i] < COLLECTIVE_ALL_TO_ALL;
                    /* Making values takes time: not everything with everything. */
                    if ((dtype + i + flags) % 3 == 0)
                        check_case(&is);
                }
}
END_TEST

START_TEST(test_every_operation)
{
    for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype += 3)
        for (unsigned op = 0; op < REDUCE_OP_COUNT; op++) {
            struct perf_parts_case is = case_of(COLLECTIVE_REDUCE_SCATTER, 3, 100);
            if (!reduce_op_allows(op, dtype))
                continue;
            is.what.dtype = (enum dtype)dtype;
            is.what.op = (enum reduce_op)op;
            check_case(&is);
        }
}
END_TEST

/* The sizes of nccl-tests' large buffer, however it is divided. */
START_TEST(test_counts_add_up)
{
    for (uint32_t ranks = 1; ranks <= 8; ranks++)
        for (uint64_t count = 1; count <= 9; count++) {
            struct perf_parts_case is = case_of(kinds[_i], ranks, count);
            uint64_t differ = 0;
            is.uneven = true;
            for (uint32_t rank = 0; rank < ranks; rank++) {
                uint64_t sent = 0, received = 0;
                for (uint32_t peer = 0; peer < ranks; peer++) {
                    sent += perf_parts_count(&is, rank, peer);
                    received += perf_parts_count(&is, peer, rank);
                    differ += perf_parts_count(&is, rank, peer) != count;
                }
                if (!sends_one(kinds[_i]))
                    ck_assert_uint_eq(sent, ranks * count);
                if (!receives_one(kinds[_i]))
                    ck_assert_uint_eq(received, ranks * count);
            }
            if (ranks > 1)
                ck_assert_uint_gt(differ, 0);
        }
}
END_TEST

/* --- what must show --------------------------------------------------------------------------- */

static struct world spoiled;

static void spoiled_open(enum collective_kind kind, bool uneven)
{
    struct perf_parts_case is = case_of(kind, 4, 100);
    is.uneven = uneven;
    world_open(&spoiled, &is);
    world_run(&spoiled);
    ck_assert_uint_eq(world_wrong(&spoiled), 0);
}

START_TEST(test_single_elements_show)
{
    for (int uneven = 0; uneven < (_i < UNEVEN_KINDS ? 2 : 1); uneven++) {
        spoiled_open(kinds[_i], uneven);
        struct perf_side *recv = &spoiled.parts[3].recv, *send = &spoiled.parts[3].send;
        uint32_t last = recv->parts - 1;
        ((int32_t *)recv->buffers[last])[recv->counts[last] - 1] ^= 1;
        ck_assert_uint_eq(perf_parts_check(&spoiled.parts[3]), 1);
        last = send->parts - 1;
        ((int32_t *)send->buffers[last])[0] ^= 1; /* what was sent has changed */
        ck_assert_uint_eq(perf_parts_check(&spoiled.parts[3]), 2);
        /* Behind the end. */
        recv->memory[recv->bytes - 1] ^= 1;
        ck_assert_uint_eq(perf_parts_check(&spoiled.parts[3]), 3);
        if (uneven) { /* before the first */
            recv->memory[0] ^= 1;
            ck_assert_uint_eq(perf_parts_check(&spoiled.parts[3]), 4);
        }
        world_close(&spoiled);
    }
}
END_TEST

/* Even parts are of one size: only what is in them can show that they were mixed up. */
START_TEST(test_parts_in_the_wrong_place_show)
{
    spoiled_open(kinds[_i], false);
    size_t bytes = 100 * sizeof(int32_t);
    struct perf_side *a = &spoiled.parts[3].recv, *b = &spoiled.parts[2].recv;
    void *one = a->buffers[0], *other = a->parts > 1 ? a->buffers[1] : b->buffers[0];
    char kept[400];
    ck_assert_uint_eq(bytes, sizeof(kept));
    memcpy(kept, one, bytes);
    memcpy(one, other, bytes);
    memcpy(other, kept, bytes);
    ck_assert_uint_gt(world_wrong(&spoiled), 190);
    world_close(&spoiled);
}
END_TEST

/* A sender that gives everybody, or the next round, the same. */
START_TEST(test_rounds_and_receivers_differ)
{
    struct world later;
    spoiled_open(kinds[_i], false);
    struct perf_parts_case is = spoiled.is;
    is.what.round++;
    world_open(&later, &is);
    world_run(&later);
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct perf_side *old = &spoiled.parts[rank].recv;
        for (uint32_t i = 0; i < old->parts; i++) {
            const struct perf_side *now = &later.parts[rank].recv;
            ck_assert_uint_gt(perf_values_check(&now->values[i], old->buffers[i], 100, NULL), 95);
        }
        const struct perf_side *send = &later.parts[rank].send;
        for (uint32_t i = 1; i < send->parts; i++)
            ck_assert_uint_gt(perf_values_check_input(&send->values[i], send->buffers[i - 1], 100),
                              95);
    }
    world_close(&later);
    world_close(&spoiled);
}
END_TEST

/* A side tells which rank receives nothing, and which data lies in place. */
START_TEST(test_sides)
{
    struct perf_parts_case is = case_of(COLLECTIVE_GATHER, 3, 10);
    is.in_place = true;
    struct world world;
    world_open(&world, &is);
    for (uint32_t rank = 0; rank < 3; rank++) {
        ck_assert_uint_eq(world.parts[rank].send.parts, 1);
        ck_assert_uint_eq(world.parts[rank].recv.parts, rank == 2 ? 3 : 0);
        ck_assert_int_eq(world.parts[rank].is.in_place, rank == 2);
    }
    ck_assert_ptr_eq(world.parts[2].send.buffers[0], world.parts[2].recv.buffers[2]);
    /* Nothing may be written where nothing is received. */
    ck_assert_uint_eq(perf_parts_check(&world.parts[0]), 0);
    world.parts[0].recv.memory[5] = 0;
    ck_assert_uint_eq(perf_parts_check(&world.parts[0]), 1);
    world_close(&world);

    is.what.collective = COLLECTIVE_SCATTER;
    world_open(&world, &is);
    ck_assert_uint_eq(world.parts[0].send.parts, 0);
    ck_assert_uint_eq(world.parts[2].send.parts, 3);
    ck_assert_ptr_eq(world.parts[2].recv.buffers[0], world.parts[2].send.buffers[2]);
    world_close(&world);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("perf_parts");
    TCase *right = tcase_create("right");
    tcase_set_timeout(right, 240);
    tcase_add_loop_test(right, test_every_case_comes_out, 0, KINDS);
    tcase_add_test(right, test_every_operation);
    tcase_add_loop_test(right, test_counts_add_up, 0, UNEVEN_KINDS);
    tcase_add_test(right, test_sides);
    suite_add_tcase(suite, right);
    TCase *wrong = tcase_create("wrong");
    tcase_set_timeout(wrong, 60);
    tcase_add_loop_test(wrong, test_single_elements_show, 0, KINDS);
    tcase_add_loop_test(wrong, test_parts_in_the_wrong_place_show, 0, KINDS);
    tcase_add_loop_test(wrong, test_rounds_and_receivers_differ, 0, KINDS);
    suite_add_tcase(suite, wrong);
    return suite_main(suite);
}
