/* Large collectives of ranks on one node, which pass through their place in pieces: each rank is
 * needed to the end, whether it waits, does not, or leaves. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/lib/suite.h"
#include "tests/lib/worker/library_job.h"

#define PIECES 140000u /* i64: passes in pieces */

/* What passes in pieces needs every rank to its end: of one that does not wait, or has freed the
 * request, the library's thread makes the turns. */
static void nobody_waits_for_pieces(struct library_rank *self)
{
    const size_t count = 3 * PIECES;
    shoal_group *world = shoal_world(self->job);
    int64_t *data = calloc(count, sizeof(*data));
    ck_assert_ptr_nonnull(data);
    for (int round = 0; round < 20; round++) {
        shoal_request *request = NULL;
        bool away = self->rank == round % 3, frees = round % 4 == 3;
        data[0] = data[count - 1] = self->rank + 1;
        GOOD(shoal_all_reduce(world, data, data, count, SHOAL_I64, SHOAL_SUM,
                              away ? &request : NULL));
        if (away && frees)
            shoal_request_free(request);
        library_meet(self);
        if (away && !frees)
            GOOD(shoal_wait(request, -1));
        GOOD(shoal_barrier(world, NULL)); /* behind it */
        ck_assert_int_eq(data[0], 6);
        ck_assert_int_eq(data[count - 1], 6);
    }
    free(data);
}

START_TEST(pieces_that_nobody_waits_for)
{
    library_cluster_run(1, NULL, 3, nobody_waits_for_pieces, NULL);
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

/* What lies in the arena on all ranks is the daemon's; where it does on some, and on others between
 * two elements, all give it to the daemon. */
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
    tcase_add_test(core, pieces_at_two_places);
    tcase_add_test(core, pieces_of_odd_buffers);
    tcase_add_loop_test(core, a_rank_that_closes_the_job, 0, 4);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
