/* Large collectives of ranks on one node, which pass through their place in pieces: each rank is
 * needed to the end, whether it waits, does not, or leaves. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/lib/suite.h"
#include "tests/lib/worker/library_job.h"

#define PIECES 140000u /* i64: passes in pieces */

/* A group of all ranks, which has a place by then. */
static shoal_group *group_with_place(struct library_rank *self)
{
    shoal_group *group;
    GOOD(shoal_group_open(self->job, library_in_order, 3, -1, &group));
    for (int round = 0; round < 3; round++)
        GOOD(shoal_barrier(group, NULL));
    return group;
}

/* Return whether the group closes: it does when nothing is under way, not even what has been
 * freed. */
static bool group_closes(void *group)
{
    return shoal_group_close(group) == SHOAL_OK;
}

/* Check that the library's thread makes the turns of a rank that does not wait, or has freed the
 * request: a collective that passes in pieces needs every rank to its end. */
static void nobody_waits_for_pieces(struct library_rank *self)
{
    const size_t count = 3 * PIECES;
    shoal_group *group = group_with_place(self);
    int64_t *data = calloc(count, sizeof(*data));
    ck_assert_ptr_nonnull(data);
    for (int round = 0; round < 20; round++) {
        shoal_request *request = NULL;
        bool away = self->rank == round % 3, frees = round % 4 == 3;
        data[0] = data[count - 1] = self->rank + 1;
        GOOD(shoal_all_reduce(group, data, data, count, SHOAL_I64, SHOAL_SUM,
                              away ? &request : NULL));
        if (away && frees)
            shoal_request_free(request);
        library_meet(self);
        if (away && !frees)
            GOOD(shoal_wait(request, -1));
        GOOD(shoal_barrier(group, NULL)); /* behind it */
        if (frees) {
            ck_assert(wait_until(group_closes, group, CLUSTER_PATIENCE_MS));
            group = group_with_place(self);
        }
        ck_assert_int_eq(data[0], 6);
        ck_assert_int_eq(data[count - 1], 6);
    }
    GOOD(shoal_group_close(group));
    free(data);
}

START_TEST(pieces_that_nobody_waits_for)
{
    library_cluster_run(1, NULL, 3, nobody_waits_for_pieces, NULL);
}
END_TEST

#define PART 150000u /* i64: streams */

enum stream { BROADCAST, ALL_GATHER, GATHER, SCATTER, ALL_TO_ALL, STREAMS };

static int stream_start(shoal_group *world, enum stream kind, int root, int64_t *send,
                        int64_t *recv, shoal_request **request)
{
    switch (kind) {
    case BROADCAST:
        return shoal_broadcast(world, recv, PART, SHOAL_I64, root, request);
    case ALL_GATHER:
        return shoal_all_gather(world, send, recv, PART, SHOAL_I64, request);
    case GATHER:
        return shoal_gather(world, send, recv, PART, SHOAL_I64, root, request);
    case SCATTER:
        return shoal_scatter(world, send, recv, PART, SHOAL_I64, root, request);
    default:
        return shoal_all_to_all(world, send, recv, PART, SHOAL_I64, request);
    }
}

/* Element i of what a rank sends as a part. */
static int64_t part_value(int from, int part, int round, uint32_t i)
{
    return ((int64_t)from * 8 + part) * 1000000000 + (int64_t)round * 1000000 + i;
}

static void stream_check(const struct library_rank *self, enum stream kind, int root, int round,
                         const int64_t *recv)
{
    int parts = kind == ALL_GATHER || kind == ALL_TO_ALL || kind == GATHER ? self->of->size : 1;
    int mine = kind == SCATTER || kind == ALL_TO_ALL ? self->rank : 0;
    unsigned wrong = 0;
    for (int part = 0; part < parts && (kind != GATHER || self->rank == root); part++) {
        for (uint32_t i = 0; i < PART; i++)
            wrong += recv[part * PART + i] != part_value(parts > 1 ? part : root, mine, round, i);
    }
    ck_assert_msg(wrong == 0, "kind %d, round %d, rank %d: %u wrong", kind, round, self->rank,
                  wrong);
}

/* Every kind that only moves data: when all wait, when one does not, and when one comes so late
 * that the others have given it to the daemon. In the last rounds an all_gather is in place. */
static void every_stream(struct library_rank *self)
{
    shoal_group *world = shoal_world(self->job);
    const struct timespec late = {.tv_nsec = 25000000};
    size_t bytes = 3 * PART * sizeof(int64_t);
    int64_t *send = malloc(bytes), *recv = malloc(bytes);
    ck_assert(send && recv);
    for (int round = 0; round < 3; round++) /* by then there is a place */
        GOOD(shoal_barrier(world, NULL));
    for (int round = 0; round < 9 * STREAMS; round++) {
        enum stream kind = round % STREAMS;
        int root = round % 3, way = round / STREAMS % 3;
        bool one = self->rank == (round + 1) % 3;
        shoal_request *request = NULL;
        for (uint32_t i = 0; i < 3 * PART; i++)
            send[i] = part_value(self->rank, (int)(i / PART), round, i % PART);
        memset(recv, 0xab, bytes);
        if (kind == BROADCAST && self->rank == root)
            memcpy(recv, send, PART * sizeof(*recv));
        library_meet(self);
        if (way == 2 && one)
            nanosleep(&late, NULL);
        bool in_place = kind == ALL_GATHER && round >= 6 * STREAMS;
        int64_t *own =
            in_place ? memcpy(recv + self->rank * PART, send, PART * sizeof(*recv)) : send;
        GOOD(stream_start(world, kind, root, own, recv, way == 1 && one ? &request : NULL));
        if (way == 1)
            library_meet(self);
        if (request)
            GOOD(shoal_wait(request, -1));
        stream_check(self, kind, root, round, recv);
    }
    free(recv);
    free(send);
}

START_TEST(every_kind_streams)
{
    library_cluster_run(1, NULL, 3, every_stream, NULL);
}
END_TEST

/* Two groups at once: the library's thread waits at one place, and makes the other's turns too. */
static void two_places(struct library_rank *self)
{
    shoal_group *groups[2];
    int64_t *data[2];
    for (int g = 0; g < 2; g++) {
        data[g] = calloc(PIECES, sizeof(*data[g]));
        ck_assert_ptr_nonnull(data[g]);
        GOOD(shoal_group_open(self->job, library_in_order, 3, -1, &groups[g]));
    }
    for (int round = 0; round < 40; round++) {
        shoal_request *requests[2];
        for (int g = 0; g < 2; g++) {
            data[g][PIECES - 1] = self->rank + g;
            GOOD(shoal_all_reduce(groups[g], data[g], data[g], PIECES, SHOAL_I64, SHOAL_SUM,
                                  &requests[g]));
        }
        for (int i = 0; i < 2; i++) { /* ranks wait in different orders */
            int g = (i + self->rank + round) % 2;
            GOOD(shoal_wait(requests[g], -1));
            ck_assert_int_eq(data[g][PIECES - 1], 3 + 3 * g);
        }
    }
    for (int g = 0; g < 2; g++) {
        GOOD(shoal_group_close(groups[g]));
        free(data[g]);
    }
}

START_TEST(pieces_at_two_places)
{
    library_cluster_run(1, NULL, 3, two_places, NULL);
}
END_TEST

/* Reduce buffers in odd places. A buffer that lies in the arena on all ranks is the daemon's. If it
 * does on some, and lies between two elements on others, all give it to the daemon. */
static void odd_buffers(struct library_rank *self)
{
    const size_t bytes = PIECES * sizeof(int64_t);
    uint8_t *own = calloc(1, bytes + 1), *in_arena = shoal_alloc(self->job, bytes);
    ck_assert(own && in_arena);
    for (int round = 0; round < 30; round++) {
        bool arena = round % 3 == 0 || (round % 3 == 1 && self->rank == 1);
        uint8_t *data = arena ? in_arena : own + (round % 2 && self->rank == 0 ? 1 : 0);
        int64_t value = self->rank + round;
        memcpy(data + bytes - sizeof(value), &value, sizeof(value));
        GOOD(shoal_all_reduce(shoal_world(self->job), data, data, PIECES, SHOAL_I64, SHOAL_SUM,
                              NULL));
        memcpy(&value, data + bytes - sizeof(value), sizeof(value));
        ck_assert_int_eq(value, 3 + 3 * round);
    }
    shoal_free(self->job, in_arena);
    free(own);
}

START_TEST(pieces_of_odd_buffers)
{
    library_cluster_run(1, NULL, 3, odd_buffers, NULL);
}
END_TEST

/* Whoever closes the job in the middle of one, or before all have come to it, is named to the
 * others, who do not wait in vain. */
static void leaves(struct library_rank *self)
{
    const size_t count = 40 * PIECES;
    shoal_group *world = shoal_world(self->job);
    int64_t *data = calloc(count, sizeof(*data));
    ck_assert_ptr_nonnull(data);
    for (int round = 0; round < 5; round++) /* by then they meet */
        GOOD(shoal_all_reduce(world, data, data, PIECES, SHOAL_I64, SHOAL_SUM, NULL));
    library_meet(self);
    bool first = *(int *)self->of->argument % 2;
    struct timespec later = {.tv_nsec = 3000000};
    if ((self->rank == 1) != first)
        nanosleep(&later, NULL);
    if (self->rank == 1) {
        shoal_request *request;
        GOOD(shoal_all_reduce(world, data, data, count, SHOAL_I64, SHOAL_SUM, &request));
        GOOD(shoal_close(self->job));
        self->job = NULL;
    } else {
        BAD(shoal_all_reduce(world, data, data, count, SHOAL_I64, SHOAL_SUM, NULL), SHOAL_ELOST,
            "rank 1");
    }
    library_meet(self);
    free(data);
}

START_TEST(a_rank_that_closes_the_job)
{
    int turn = _i;
    library_cluster_run(1, NULL, 3, leaves, &turn);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("library_pieces");
    TCase *core = tcase_create("core");
    tcase_set_timeout(core, 120);
    tcase_add_test(core, pieces_that_nobody_waits_for);
    tcase_add_test(core, every_kind_streams);
    tcase_add_test(core, pieces_at_two_places);
    tcase_add_test(core, pieces_of_odd_buffers);
    tcase_add_loop_test(core, a_rank_that_closes_the_job, 0, 4);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
