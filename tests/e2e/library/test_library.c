/* The library's calls against real daemons: every collective, type and operation, and groups. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/reduce/dtype.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/library_job.h"

#define LARGEST 100003
#define CANARY 0xa5

static const size_t counts[] = {0, 1, 3, 1000, LARGEST};
#define COUNTS (sizeof(counts) / sizeof(counts[0]))

static const struct library_shape shapes[] = {
    {1, 3, NULL},
    {2, 2, NULL},
    {2, 1, "{\"data\": {\"chunk_bytes\": 4096, \"least_shard_bytes\": 64}}"},
};
#define SHAPES ((int)(sizeof(shapes) / sizeof(shapes[0])))

/* Where a collective's data lies: both in private memory or in the arena, mixed, and in place. */
enum placement { PRIVATE, PRIVATE_IN_PLACE, ARENA, ARENA_IN_PLACE, INTO_ARENA, OUT_OF_ARENA };
#define PLACEMENTS 6

struct memory {
    uint8_t *private_send, *private_recv, *arena_send, *arena_recv;
    uint8_t *send, *recv, *copy;
};

static void memory_create(struct memory *memory, shoal_job *job)
{
    size_t bytes = LARGEST * 8 + 64;
    memory->private_send = malloc(bytes);
    memory->private_recv = malloc(bytes);
    memory->copy = malloc(bytes);
    memory->arena_send = shoal_alloc(job, bytes);
    memory->arena_recv = shoal_alloc(job, bytes);
    ck_assert(memory->private_send && memory->private_recv && memory->copy && memory->arena_send &&
              memory->arena_recv);
}

static void memory_free(struct memory *memory, shoal_job *job)
{
    free(memory->private_send);
    free(memory->private_recv);
    free(memory->copy);
    shoal_free(job, memory->arena_send);
    shoal_free(job, memory->arena_recv);
}

/* Choose send and recv, and put the rank's data and canaries there. */
static void memory_place(struct memory *memory, unsigned choice, enum shoal_dtype dtype,
                         size_t count, int rank, uint64_t seed)
{
    enum placement placement = choice % PLACEMENTS;
    bool from_arena =
        placement == ARENA || placement == ARENA_IN_PLACE || placement == OUT_OF_ARENA;
    bool to_arena = placement == ARENA || placement == INTO_ARENA;
    size_t bytes = count * shoal_dtype_bytes(dtype);
    memory->send = from_arena ? memory->arena_send : memory->private_send;
    memory->recv = to_arena ? memory->arena_recv : memory->private_recv;
    if (placement == PRIVATE_IN_PLACE || placement == ARENA_IN_PLACE)
        memory->recv = memory->send;
    memset(memory->recv, CANARY, bytes + 16);
    library_fill(dtype, memory->send, count, rank, seed);
    memset(memory->send + bytes, CANARY, 16);
    memcpy(memory->copy, memory->send, bytes + 16);
}

static void memory_check(const struct memory *memory, const void *expected, size_t bytes,
                         const char *what)
{
    if (expected && memcmp(memory->recv, expected, bytes) != 0)
        ck_abort_msg("%s: not the sum", what);
    if (memory->recv != memory->send || !expected)
        if (memcmp(memory->send, memory->copy, bytes + 16) != 0)
            ck_abort_msg("%s: what was sent has changed", what);
    if (!expected && memory->recv != memory->send)
        for (size_t i = 0; i < bytes; i++)
            if (memory->recv[i] != CANARY)
                ck_abort_msg("%s: byte %zu written where nothing is received", what, i);
    for (int i = 0; i < 16; i++)
        if (memory->recv[bytes + (size_t)i] != CANARY)
            ck_abort_msg("%s: written %d bytes behind the end", what, i);
}

/* --- reductions ---------------------------------------------------------------------------- */

/* One all_reduce and one reduce; `expected` is everybody's, and changed by one rank at a time. */
static void reduce_both(struct library_rank *self, struct memory *memory, enum shoal_dtype dtype,
                        enum shoal_op op, size_t count, uint64_t seed)
{
    uint8_t *expected = self->of->argument;
    shoal_group *world = shoal_world(self->job);
    size_t bytes = count * shoal_dtype_bytes(dtype);
    unsigned choice = (unsigned)(self->rank + (int)seed);
    int root = (int)(seed % (uint64_t)self->of->size);
    char what[96];
    snprintf(what, sizeof(what), "%s %s count %zu placement %u", dtype_name(dtype),
             reduce_op_name(op), count, choice % PLACEMENTS);
    if (library_meet(self))
        library_expect(self->of, library_in_order, self->of->size, dtype, op, count, seed,
                       expected);
    library_meet(self);
    memory_place(memory, choice, dtype, count, self->rank, seed);
    GOOD(shoal_all_reduce(world, memory->send, memory->recv, count, dtype, op, NULL));
    memory_check(memory, expected, bytes, what);
    memory_place(memory, choice + 1, dtype, count, self->rank, seed);
    GOOD(shoal_reduce(world, memory->send, memory->recv, count, dtype, op, root, NULL));
    memory_check(memory, self->rank == root ? expected : NULL, bytes, what);
    /* And with nowhere to receive, where that is allowed. */
    memory_place(memory, choice + 2, dtype, count, self->rank, seed);
    void *nowhere = self->rank == root ? memory->recv : NULL;
    GOOD(shoal_reduce(world, memory->send, nowhere, count, dtype, op, root, NULL));
    memory_check(memory, self->rank == root ? expected : NULL, bytes, what);
}

static void every_reduction(struct library_rank *self)
{
    struct memory memory;
    uint64_t seed = 0;
    memory_create(&memory, self->job);
    for (size_t i = 0; i < COUNTS; i++)
        for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++)
            for (unsigned op = 0; op < REDUCE_OP_COUNT; op++)
                if (reduce_op_allows(op, dtype))
                    reduce_both(self, &memory, dtype, op, counts[i], ++seed);
    memory_free(&memory, self->job);
}

START_TEST(every_type_and_operation_is_exact)
{
    uint8_t *expected = malloc(LARGEST * 8);
    library_shape_run(&shapes[_i], every_reduction, expected);
    free(expected);
}
END_TEST

/* An operation that a type does not have is refused on every rank, and the job goes on. */
static void no_bits_of_floats(struct library_rank *self)
{
    shoal_group *world = shoal_world(self->job);
    uint64_t data[4] = {0}, one = 1;
    for (unsigned dtype = SHOAL_F32; dtype <= SHOAL_BF16; dtype++)
        for (unsigned op = SHOAL_BAND; op <= SHOAL_LXOR; op++)
            BAD(shoal_all_reduce(world, data, data, 4, dtype, op, NULL), SHOAL_EINVALID,
                reduce_op_name(op));
    GOOD(shoal_all_reduce(world, &one, &one, 1, SHOAL_I64, SHOAL_SUM, NULL));
    ck_assert_uint_eq(one, (uint64_t)self->of->size);
}

START_TEST(bitwise_operations_are_for_integers)
{
    library_shape_run(&shapes[_i], no_bits_of_floats, NULL);
}
END_TEST

/* --- broadcast and barrier ----------------------------------------------------------------- */

static void every_broadcast(struct library_rank *self)
{
    struct memory memory;
    uint64_t seed = 0;
    memory_create(&memory, self->job);
    for (size_t i = 0; i < COUNTS; i++)
        for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++)
            for (int root = 0; root < self->of->size; root++) {
                size_t count = counts[i], bytes = count * shoal_dtype_bytes(dtype);
                seed++;
                memory_place(&memory, (unsigned)self->rank + (unsigned)seed, dtype, count,
                             self->rank, seed);
                GOOD(
                    shoal_broadcast(shoal_world(self->job), memory.send, count, dtype, root, NULL));
                library_fill(dtype, memory.copy, count, root, seed);
                ck_assert_msg(memcmp(memory.send, memory.copy, bytes + 16) == 0,
                              "%s count %zu from root %d", dtype_name(dtype), count, root);
            }
    memory_free(&memory, self->job);
}

START_TEST(every_root_broadcasts_every_type)
{
    library_shape_run(&shapes[_i], every_broadcast, NULL);
}
END_TEST

static void barriers(struct library_rank *self)
{
    _Atomic int *entered = self->of->argument;
    for (int round = 1; round <= 50; round++) {
        atomic_fetch_add(entered, 1);
        GOOD(shoal_barrier(shoal_world(self->job), NULL));
        int seen = atomic_load(entered);
        if (seen < round * self->of->size || seen > (round + 1) * self->of->size)
            ck_abort_msg("round %d: %d ranks have entered", round, seen);
    }
}

START_TEST(nobody_leaves_a_barrier_before_all_have_come)
{
    _Atomic int entered = 0;
    library_shape_run(&shapes[_i], barriers, &entered);
    ck_assert_int_eq(atomic_load(&entered), 50 * (int)shapes[_i].nodes * shapes[_i].ranks_per_node);
}
END_TEST

/* --- groups -------------------------------------------------------------------------------- */

/* An all_reduce in a group of these ranks, and a broadcast and a reduce from a root inside it. */
static void group_use(struct library_rank *self, shoal_group *group, const int *ranks, int count,
                      uint64_t seed)
{
    enum { N = 777 };
    uint16_t data[N], expected[N];
    int place = shoal_group_rank(group), root = count - 1;
    ck_assert_int_eq(shoal_group_size(group), count);
    ck_assert_int_eq(ranks[place], self->rank);
    library_expect(self->of, ranks, count, SHOAL_BF16, SHOAL_AVG, N, seed, expected);
    library_fill(SHOAL_BF16, data, N, self->rank, seed);
    GOOD(shoal_all_reduce(group, data, data, N, SHOAL_BF16, SHOAL_AVG, NULL));
    ck_assert_msg(memcmp(data, expected, sizeof(data)) == 0, "a group of %d", count);
    library_fill(SHOAL_BF16, data, N, self->rank, seed);
    GOOD(shoal_reduce(group, data, data, N, SHOAL_BF16, SHOAL_AVG, root, NULL));
    if (place != root)
        library_fill(SHOAL_BF16, expected, N, self->rank, seed);
    ck_assert_msg(memcmp(data, expected, sizeof(data)) == 0, "the root of a group of %d", count);
    library_fill(SHOAL_BF16, data, N, self->rank, seed);
    library_fill(SHOAL_BF16, expected, N, ranks[root], seed);
    GOOD(shoal_broadcast(group, data, N, SHOAL_BF16, root, NULL));
    ck_assert_msg(memcmp(data, expected, sizeof(data)) == 0, "from the root of %d", count);
    GOOD(shoal_barrier(group, NULL));
}

static const struct {
    int count, ranks[6];
} lists[] = {
    {6, {5, 4, 3, 2, 1, 0}},
    {6, {3, 0, 4, 1, 5, 2}},
    {3, {5, 0, 2}},
    {2, {4, 1}},
    {3, {2, 0, 1}},
    {2, {5, 3}},
    {1, {4}},
    {4, {1, 5, 0, 3}},
};
#define LISTS (sizeof(lists) / sizeof(lists[0]))

static bool is_member(size_t list, int rank)
{
    for (int i = 0; i < lists[list].count; i++)
        if (lists[list].ranks[i] == rank)
            return true;
    return false;
}

/* Opened, used, closed and opened again: the second has nothing of the first. */
static void groups_in_turn(struct library_rank *self)
{
    for (uint64_t round = 0; round < 3; round++)
        for (size_t i = 0; i < LISTS; i++) {
            shoal_group *group;
            if (!is_member(i, self->rank)) {
                BAD(shoal_group_open(self->job, lists[i].ranks, lists[i].count, -1, &group),
                    SHOAL_EINVALID, "rank");
                continue;
            }
            GOOD(shoal_group_open(self->job, lists[i].ranks, lists[i].count, -1, &group));
            group_use(self, group, lists[i].ranks, lists[i].count, 100 * round + i);
            GOOD(shoal_group_close(group));
        }
    BAD(shoal_group_close(shoal_world(self->job)), SHOAL_EINVALID, "all ranks");
}

START_TEST(groups_in_any_order_of_ranks)
{
    library_cluster_run((uint32_t)_i, NULL, 6 / _i, groups_in_turn, NULL);
}
END_TEST

/* Two groups of the same ranks: each has its own sequence. Ranks start on the two in different
 * order, which is right, as the order is of a group only. */
static void equal_groups(struct library_rank *self)
{
    enum { N = 5000, ROUNDS = 20 };
    static const int ranks[] = {2, 0, 3, 1};
    shoal_group *groups[2];
    static int32_t data[4][2][ROUNDS][N];
    shoal_request *requests[2][ROUNDS];
    for (int g = 0; g < 2; g++)
        GOOD(shoal_group_open(self->job, ranks, 4, -1, &groups[g]));
    for (int k = 0; k < 2; k++) {
        int g = self->rank % 2 ? k : 1 - k;
        for (int round = 0; round < ROUNDS; round++) {
            int32_t *mine = data[self->rank][g][round];
            for (int i = 0; i < N; i++)
                mine[i] = (g + 1) * 1000 * round + i + self->rank;
            GOOD(shoal_all_reduce(groups[g], mine, mine, N, SHOAL_I32, SHOAL_SUM,
                                  &requests[g][round]));
        }
    }
    for (int g = 0; g < 2; g++)
        for (int round = 0; round < ROUNDS; round++) {
            GOOD(shoal_wait(requests[g][round], -1));
            for (int i = 0; i < N; i++)
                if (data[self->rank][g][round][i] != 4 * ((g + 1) * 1000 * round + i) + 6)
                    ck_abort_msg("group %d round %d element %d", g, round, i);
        }
    for (int g = 0; g < 2; g++)
        GOOD(shoal_group_close(groups[g]));
}

START_TEST(two_groups_of_equal_ranks_are_apart)
{
    library_cluster_run((uint32_t)_i, NULL, 4 / _i, equal_groups, NULL);
}
END_TEST

/* A ring of pairs: rank r is in {r, r+1} and {r-1, r}, and starts on them in an order of its own.
 */
static void ring_of_pairs(struct library_rank *self)
{
    enum { N = 20011 };
    int size = self->of->size, r = self->rank;
    int pairs[2][2] = {{r, (r + 1) % size}, {(r + size - 1) % size, r}};
    shoal_group *groups[2];
    shoal_request *requests[2];
    double *data[2], *expected = malloc(N * sizeof(double));
    for (int k = 0; k < 2; k++) {
        int g = (k + (r == 0)) % 2; /* opening in a circle would never end */
        GOOD(shoal_group_open(self->job, pairs[g], 2, -1, &groups[g]));
    }
    for (uint64_t round = 0; round < 10; round++) {
        for (int k = 0; k < 2; k++) {
            int g = (k + (int)round + r) % 2;
            data[g] = malloc(N * sizeof(double));
            library_fill(SHOAL_F64, data[g], N, r, round * 100 + (uint64_t)pairs[g][0]);
            GOOD(shoal_all_reduce(groups[g], data[g], data[g], N, SHOAL_F64, SHOAL_PROD,
                                  &requests[g]));
        }
        BAD(shoal_group_close(shoal_world(self->job)), SHOAL_EINVALID, "all ranks");
        for (int g = 0; g < 2; g++) {
            GOOD(shoal_wait(requests[g], -1));
            library_expect(self->of, pairs[g], 2, SHOAL_F64, SHOAL_PROD, N,
                           round * 100 + (uint64_t)pairs[g][0], expected);
            ck_assert_msg(memcmp(data[g], expected, N * sizeof(double)) == 0, "pair %d", g);
            free(data[g]);
        }
    }
    free(expected);
}

START_TEST(overlapping_groups_started_in_different_orders)
{
    library_cluster_run((uint32_t)_i, NULL, 4 / _i, ring_of_pairs, NULL);
}
END_TEST

static void wrong_groups(struct library_rank *self)
{
    shoal_group *group;
    const int twice[] = {0, 1, 0}, outside[] = {0, 1, 4}, reversed[] = {3, 2, 1, 0};
    BAD(shoal_group_open(self->job, twice, 3, -1, &group), SHOAL_EINVALID, "0");
    BAD(shoal_group_open(self->job, outside, 3, -1, &group), SHOAL_EINVALID, "4");
    BAD(shoal_group_open(self->job, library_in_order, 0, -1, &group), SHOAL_EINVALID, "");
    BAD(shoal_group_open(self->job, library_in_order, 2, -2, &group), SHOAL_EINVALID, "timeout_ms");
    library_meet(self);
    /* Rank 3 does not come: the others are told so, and by name. */
    if (self->rank != 3)
        BAD(shoal_group_open(self->job, library_in_order, 4, 300, &group), SHOAL_ETIMEOUT, "3");
    library_meet(self);
    /* Now it does: the same list is opened after all. */
    GOOD(shoal_group_open(self->job, library_in_order, 4, 20000, &group));
    group_use(self, group, library_in_order, 4, 8);
    GOOD(shoal_group_open(self->job, reversed, 4, -1, &group));
    group_use(self, group, reversed, 4, 9);
}

START_TEST(a_group_that_cannot_be)
{
    library_cluster_run((uint32_t)_i, NULL, 4 / _i, wrong_groups, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("library");
    TCase *collectives = tcase_create("collectives");
    tcase_set_timeout(collectives, 300);
    tcase_add_loop_test(collectives, every_type_and_operation_is_exact, 0, SHAPES);
    tcase_add_loop_test(collectives, bitwise_operations_are_for_integers, 0, SHAPES);
    tcase_add_loop_test(collectives, every_root_broadcasts_every_type, 0, SHAPES);
    tcase_add_loop_test(collectives, nobody_leaves_a_barrier_before_all_have_come, 0, SHAPES);
    suite_add_tcase(suite, collectives);
    TCase *groups = tcase_create("groups"); /* _i: nodes */
    tcase_set_timeout(groups, 300);
    tcase_add_loop_test(groups, groups_in_any_order_of_ranks, 1, 3);
    tcase_add_loop_test(groups, two_groups_of_equal_ranks_are_apart, 1, 3);
    tcase_add_loop_test(groups, overlapping_groups_started_in_different_orders, 1, 3);
    tcase_add_loop_test(groups, a_group_that_cannot_be, 1, 3);
    suite_add_tcase(suite, groups);
    return suite_main(suite);
}
