/* Small collectives of ranks on one node, which meet without the daemon, and go to it when they do
 * not. Ranks mix ways to start, to wait and to come late; whatever the way, results are the same
 * bits and disagreements are named. */
#include <stdlib.h>
#include <time.h>

#include "tests/lib/suite.h"
#include "tests/lib/worker/library_job.h"

#define ROUNDS 400u

static uint64_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void come_late(uint32_t us)
{
    struct timespec late = {.tv_nsec = (long)us * 1000};
    nanosleep(&late, NULL);
}

/* --- the same bits ------------------------------------------------------------------------- */

static void every_type(struct library_rank *self)
{
    static uint8_t recv[LIBRARY_RANKS_MAX][8 * 1000], wanted[LIBRARY_RANKS_MAX][8000];
    for (unsigned dtype = SHOAL_F32; dtype <= SHOAL_I64; dtype++) {
        for (unsigned op = SHOAL_SUM; op <= SHOAL_BXOR; op++) {
            if (op >= SHOAL_BAND && dtype <= SHOAL_BF16)
                continue;
            uint64_t seed = dtype * 8 + op;
            for (int again = 0; again < 3; again++) { /* the first may go to the daemon */
                library_fill((enum shoal_dtype)dtype, recv[self->rank], 999, self->rank, seed);
                GOOD(shoal_all_reduce(shoal_world(self->job), recv[self->rank], recv[self->rank],
                                      999, (enum shoal_dtype)dtype, (enum shoal_op)op, NULL));
                library_expect(self->of, library_in_order, self->of->size, (enum shoal_dtype)dtype,
                               (enum shoal_op)op, 999, seed, wanted[self->rank]);
                ck_assert_msg(memcmp(recv[self->rank], wanted[self->rank],
                                     999 * shoal_dtype_bytes((enum shoal_dtype)dtype)) == 0,
                              "type %u, reduction %u", dtype, op);
            }
        }
    }
}

START_TEST(types_and_reductions)
{
    library_cluster_run(1, NULL, 4, every_type, NULL);
}
END_TEST

/* --- all ways at once ---------------------------------------------------------------------- */

static void was_called(void *argument, int result)
{
    __atomic_store_n((int *)argument, result == SHOAL_OK ? 1 : -1, __ATOMIC_SEQ_CST);
}

/* A collective of a round, whose kind and size are the same on all ranks. */
static int round_start(struct library_rank *self, shoal_group *group, uint32_t round, int64_t *data,
                       shoal_request **request)
{
    size_t count = round % 13 == 5 ? 20000 : round % 7 + 1; /* a large one between */
    int size = shoal_group_size(group), root = (int)(round % (uint32_t)size);
    for (size_t i = 0; i < count; i++)
        data[i] = (int64_t)(round * 1000 + i) * (self->rank + 1);
    switch (round % 4) {
    case 0:
        return shoal_barrier(group, request);
    case 1:
        return shoal_broadcast(group, data, count, SHOAL_I64, root, request);
    case 2:
        return shoal_reduce(group, data, data, count, SHOAL_I64, SHOAL_SUM, root, request);
    default:
        return shoal_all_reduce(group, data, data, count, SHOAL_I64, SHOAL_MAX, request);
    }
}

static void round_check(struct library_rank *self, uint32_t round, const int64_t *data)
{
    size_t count = round % 13 == 5 ? 20000 : round % 7 + 1;
    int64_t size = self->of->size, root = round % size;
    for (size_t i = 0; i < count && round % 4 != 0; i++) {
        int64_t unit = (int64_t)(round * 1000 + i), wanted = unit * size;
        if (round % 4 == 1)
            wanted = unit * (root + 1);
        else if (round % 4 == 2)
            wanted = root == self->rank ? unit * size * (size + 1) / 2 : unit * (self->rank + 1);
        if (data[i] != wanted)
            ck_abort_msg("rank %d, round %u, element %zu: %lld, not %lld", self->rank, round, i,
                         (long long)data[i], (long long)wanted);
    }
}

/* By a seed of its own each rank waits at once, later, by tests, by a callback, or comes late. */
static void mixed(struct library_rank *self)
{
    uint64_t seed = *(uint64_t *)self->of->argument * 100 + (uint64_t)self->rank;
    int64_t *data = calloc(2 * 20000, sizeof(*data));
    ck_assert_ptr_nonnull(data);
    for (uint32_t round = 0; round < ROUNDS; round += 2) {
        shoal_request *requests[2];
        int called = 0;
        if (random_next(&seed) % 20 == 0)
            come_late((uint32_t)(random_next(&seed) % 15000));
        bool at_once = random_next(&seed) % 2;
        for (uint32_t i = 0; i < 2; i++)
            GOOD(round_start(self, shoal_world(self->job), round + i, data + i * 20000,
                             at_once ? NULL : &requests[i]));
        if (!at_once && random_next(&seed) % 4 == 0)
            GOOD(shoal_request_on_complete(requests[1], was_called, &called));
        else
            called = 1;
        if (!at_once && random_next(&seed) % 4 == 0)
            while (shoal_test(requests[1]) == SHOAL_EAGAIN)
                come_late(50);
        for (uint32_t i = 0; i < 2; i++) {
            if (!at_once)
                GOOD(shoal_wait(requests[i], -1));
            round_check(self, round + i, data + i * 20000);
        }
        while (__atomic_load_n(&called, __ATOMIC_SEQ_CST) == 0)
            come_late(50);
        ck_assert_int_eq(called, 1);
    }
    free(data);
}

START_TEST(all_ways)
{
    uint64_t seed = (uint64_t)_i;
    library_cluster_run(1, NULL, _i % 2 ? 2 : 4, mixed, &seed);
}
END_TEST

/* What a rank has given is used though it does not wait, and does nothing, meanwhile. */
static void nobody_waits(struct library_rank *self)
{
    for (int round = 0; round < 20; round++) {
        int32_t value = self->rank + 1;
        shoal_request *request = NULL;
        bool away = self->rank == 0;
        if (self->rank == 1 && round % 2)
            come_late(25000); /* longer than ranks wait for each other */
        GOOD(shoal_all_reduce(shoal_world(self->job), &value, &value, 1, SHOAL_I32, SHOAL_SUM,
                              away ? &request : NULL));
        library_meet(self); /* rank 0 comes here with its request under way */
        if (away)
            GOOD(shoal_wait(request, -1));
        ck_assert_int_eq(value, 6);
    }
}

START_TEST(a_rank_that_does_not_wait)
{
    library_cluster_run(1, NULL, 3, nobody_waits, NULL);
}
END_TEST

/* The first step of fusion buffers ends with a small broadcast, which may meet while whoever waits
 * for it sleeps as if for the daemon: with this peer_ms, for 100 s. */
static void first_steps(struct library_rank *self)
{
    for (int round = 0; round < 5; round++)
        GOOD(shoal_barrier(shoal_world(self->job), NULL));
    for (int again = 0; again < 10; again++) {
        struct shoal_parameter parameters[2] = {{.count = 3, .dtype = SHOAL_F32},
                                                {.count = 5, .dtype = SHOAL_F32}};
        shoal_fusion *fusion;
        GOOD(shoal_fusion_create(shoal_world(self->job), parameters, 2, NULL, &fusion));
        for (size_t i = 0; i < 2; i++)
            GOOD(shoal_fusion_ready(fusion, i));
        come_late((uint32_t)self->rank * 2000);
        GOOD(shoal_fusion_wait(fusion, 20000));
        shoal_fusion_free(fusion);
    }
}

START_TEST(fusion_waits_for_one_that_met)
{
    library_cluster_run(1, "{\"timeouts\":{\"peer_ms\":300000}}", 3, first_steps, NULL);
}
END_TEST

/* --- errors -------------------------------------------------------------------------------- */

static void disagree(struct library_rank *self)
{
    int large = *(int *)self->of->argument;
    static int32_t data[LIBRARY_RANKS_MAX][30000];
    for (int round = 0; round < 5; round++) /* by then they meet */
        GOOD(shoal_barrier(shoal_world(self->job), NULL));
    size_t count = self->rank == 2 ? (large ? 30000 : 8) : 7;
    BAD(shoal_all_reduce(shoal_world(self->job), data[self->rank], data[self->rank], count,
                         SHOAL_I32, SHOAL_SUM, NULL),
        SHOAL_EMISMATCH, "rank 2");
}

START_TEST(ranks_that_disagree)
{
    int large = _i;
    library_cluster_run(1, NULL, 3, disagree, &large);
}
END_TEST

/* A wait that times out leaves the request alive, and a group cannot be closed under it. */
static void patience(struct library_rank *self)
{
    shoal_group *group;
    shoal_request *request;
    int64_t value = 1 + self->rank;
    GOOD(shoal_group_open(self->job, library_in_order, 2, -1, &group));
    for (int round = 0; round < 5; round++)
        GOOD(shoal_barrier(group, NULL));
    if (self->rank == 0) {
        GOOD(shoal_all_reduce(group, &value, &value, 1, SHOAL_I64, SHOAL_SUM, &request));
        BAD(shoal_group_close(group), SHOAL_ESTATE, "under way");
        BAD(shoal_wait(request, 2), SHOAL_ETIMEOUT, "2 ms");
        BAD(shoal_wait(request, 40), SHOAL_ETIMEOUT, "40 ms");
    }
    library_meet(self);
    if (self->rank == 1)
        GOOD(shoal_all_reduce(group, &value, &value, 1, SHOAL_I64, SHOAL_SUM, &request));
    GOOD(shoal_wait(request, -1));
    ck_assert_int_eq(value, 3);
    GOOD(shoal_group_close(group));
}

START_TEST(a_wait_that_timed_out)
{
    library_cluster_run(1, NULL, 2, patience, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("library_meeting");
    TCase *core = tcase_create("core");
    tcase_set_timeout(core, 120);
    tcase_add_test(core, types_and_reductions);
    tcase_add_loop_test(core, all_ways, 0, 4);
    tcase_add_test(core, a_rank_that_does_not_wait);
    tcase_add_test(core, fusion_waits_for_one_that_met);
    tcase_add_loop_test(core, ranks_that_disagree, 0, 2);
    tcase_add_test(core, a_wait_that_timed_out);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
