/* Sends and receives of which one does not fit the other, against real daemons: both calls fail,
 * with what each gave, and everything else goes on. And receives of what is sent, up to a size. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/suite.h"
#include "tests/lib/worker/library_job.h"

#define LARGE 400001u /* elements of 8 bytes: many chunks */
#define ROUNDS 2

static const struct library_shape shapes[] = {
    {1, 2, NULL},
    {2, 1, NULL},
    {3, 1, NULL},
    {2, 1, "{\"fabric\":{\"provider\":\"tcp;ofi_rxm\"}}"},
    {2, 1, "{\"recovery\": true}"},
    {3, 2, "{\"recovery\": true}"},
};
#define SHAPES (int)(sizeof(shapes) / sizeof(shapes[0]))

enum way { NAMED, ANY, UP_TO, ANY_UP_TO };

static const struct unfit {
    size_t sent, wanted;
    enum shoal_dtype sent_dtype, wanted_dtype;
    enum way way;
    bool in_arena;
    const char *words; /* behind "sends " */
} unfits[] = {
    {8, 9, SHOAL_I64, SHOAL_I64, NAMED, false, "8 int64, rank 1 receives 9 int64"},
    {9, 8, SHOAL_I64, SHOAL_I64, NAMED, true, "9 int64, rank 1 receives 8 int64"},
    {8, 8, SHOAL_I64, SHOAL_F64, NAMED, false, "8 int64, rank 1 receives 8 double"},
    {8, 16, SHOAL_I64, SHOAL_I32, NAMED, true, "8 int64, rank 1 receives 16 int32"},
    {0, 1, SHOAL_F32, SHOAL_F32, NAMED, false, "0 float, rank 1 receives 1 float"},
    {1, 0, SHOAL_F32, SHOAL_F32, NAMED, true, "1 float, rank 1 receives 0 float"},
    {LARGE, 3, SHOAL_I64, SHOAL_I64, NAMED, false, "400001 int64, rank 1 receives 3"},
    {3, LARGE, SHOAL_I64, SHOAL_I64, NAMED, true, "3 int64, rank 1 receives 400001"},
    {LARGE, LARGE - 1, SHOAL_I64, SHOAL_I64, NAMED, true, "400001 int64, rank 1"},
    {LARGE - 1, LARGE, SHOAL_I64, SHOAL_I64, ANY, false, "400000 int64, rank 1"},
    {7, 8, SHOAL_U8, SHOAL_U8, ANY, false, "7 uint8, rank 1 receives 8 uint8"},
    {9, 8, SHOAL_U8, SHOAL_U8, UP_TO, false, "9 uint8, rank 1 receives "},
    {LARGE, LARGE - 1, SHOAL_I64, SHOAL_I64, ANY_UP_TO, true, "400001 int64, rank 1"},
    {1, LARGE, SHOAL_F32, SHOAL_I32, UP_TO, false, "1 float, rank 1 receives "},
};
#define UNFITS (int)(sizeof(unfits) / sizeof(unfits[0]))

static void *get_memory(struct library_rank *self, size_t bytes, bool in_arena)
{
    void *memory = in_arena ? shoal_alloc(self->job, bytes) : malloc(bytes);
    ck_assert_ptr_nonnull(memory);
    memset(memory, 0x5a, bytes);
    return memory;
}

static void give_back(struct library_rank *self, void *memory, bool in_arena)
{
    if (in_arena)
        shoal_free(self->job, memory);
    else
        free(memory);
}

static int receive(shoal_group *group, void *data, const struct unfit *it, int tag,
                   shoal_request **request)
{
    switch (it->way) {
    case NAMED:
        return shoal_recv(group, data, it->wanted, it->wanted_dtype, 0, tag, request);
    case ANY:
        return shoal_recv_any(group, data, it->wanted, it->wanted_dtype, tag, NULL, request);
    case UP_TO:
        return shoal_recv_up_to(group, data, it->wanted, it->wanted_dtype, 0, tag, NULL, NULL,
                                request);
    default:
        return shoal_recv_up_to(group, data, it->wanted, it->wanted_dtype, SHOAL_ANY_RANK, tag,
                                NULL, NULL, request);
    }
}

/* Check that a send that fits goes through, with the tag that those before it had, and a
 * collective. */
static void check_all_goes_on(struct library_rank *self, int tag)
{
    shoal_group *world = shoal_world(self->job);
    int64_t value = self->rank, sum = 0;
    if (self->rank == 0)
        GOOD(shoal_send(world, &(int64_t){41}, 1, SHOAL_I64, 1, tag, NULL));
    if (self->rank == 1) {
        GOOD(shoal_recv(world, &sum, 1, SHOAL_I64, 0, tag, NULL));
        ck_assert_int_eq(sum, 41);
    }
    GOOD(shoal_all_reduce(world, &value, &sum, 1, SHOAL_I64, SHOAL_SUM, NULL));
    ck_assert_int_eq(sum, self->of->size * (self->of->size - 1) / 2);
}

/* Either side comes first, in turns. */
static void unfit_run(struct library_rank *self)
{
    shoal_group *world = shoal_world(self->job);
    size_t bytes = LARGE * 8;
    int64_t early = 0;
    shoal_request *waits = NULL;
    if (self->rank == 1) /* under way all the time */
        GOOD(shoal_recv(world, &early, 1, SHOAL_I64, 0, 1000, &waits));
    for (int i = 0; i < UNFITS * ROUNDS; i++) {
        const struct unfit *it = &unfits[i % UNFITS];
        bool first = (self->rank == 0) == (i / UNFITS % 2 == 0);
        shoal_request *request = NULL;
        uint8_t *data = self->rank < 2 ? get_memory(self, bytes, it->in_arena) : NULL;
        for (int step = 0; step < 2 && self->rank < 2; step++) {
            if (step == 1)
                library_meet(self);
            if (first != (step == 0))
                continue;
            if (self->rank == 0)
                GOOD(shoal_send(world, data, it->sent, it->sent_dtype, 1, i % 3, &request));
            else
                GOOD(receive(world, data, it, i % 3, &request));
        }
        if (self->rank >= 2)
            library_meet(self);
        char words[160];
        snprintf(words, sizeof(words), "in group 0 does not fit: rank 0 of the group sends %s",
                 it->words);
        if (self->rank < 2) {
            BAD(shoal_wait(request, -1), SHOAL_EMISMATCH, words);
            for (size_t at = 0; at < bytes; at++) /* nothing was copied */
                if (data[at] != 0x5a)
                    ck_abort_msg("case %d: byte %zu", i, at);
            give_back(self, data, it->in_arena);
        }
        check_all_goes_on(self, i % 3);
    }
    if (self->rank == 0)
        GOOD(shoal_send(world, &(int64_t){43}, 1, SHOAL_I64, 1, 1000, NULL));
    if (self->rank == 1) {
        GOOD(shoal_wait(waits, -1));
        ck_assert_int_eq(early, 43);
    }
}

START_TEST(what_does_not_fit_fails_alone)
{
    library_shape_run(&shapes[_i], unfit_run, NULL);
}
END_TEST

/* Many at once, each other one of which does not fit, in a group that is not the world. */
static void many_run(struct library_rank *self)
{
    enum { MANY = 200 };
    shoal_group *group;
    const int members[] = {1, 0};
    shoal_request *requests[MANY];
    static int32_t data[2][MANY][6];
    if (self->rank > 1)
        return;
    GOOD(shoal_group_open(self->job, members, 2, -1, &group));
    for (int i = 0; i < MANY; i++) {
        int at = self->rank == 0 ? i : MANY - 1 - i;
        int32_t *own = data[self->rank][at];
        for (int k = 0; k < 6; k++)
            own[k] = self->rank == 0 ? at + k : -1;
        size_t count = at % 2 ? 5 : 6;
        if (self->rank == 0)
            GOOD(shoal_send(group, own, 5, SHOAL_I32, 0, at, &requests[at]));
        else
            GOOD(shoal_recv(group, own, count, SHOAL_I32, 1, at, &requests[at]));
    }
    for (int i = 0; i < MANY; i++) {
        if (i % 2 == 0) {
            BAD(shoal_wait(requests[i], -1), SHOAL_EMISMATCH,
                "rank 1 of the group sends 5 int32, rank 0 receives 6 int32");
            continue;
        }
        GOOD(shoal_wait(requests[i], -1));
        for (int k = 0; k < 5; k++)
            ck_assert_int_eq(data[self->rank][i][k], i + k);
    }
    GOOD(shoal_barrier(group, NULL));
    GOOD(shoal_group_close(group));
}

START_TEST(many_at_once)
{
    library_shape_run(&shapes[_i], many_run, NULL);
}
END_TEST

/* --- up to a size ----------------------------------------------------------------------------- */

/* The receiver learns the size from what comes; what lies behind it stays. */
static void up_to_run(struct library_rank *self)
{
    static const size_t sizes[] = {0, 1, 7, 32768, 32769, 100000, LARGE - 1, LARGE};
    shoal_group *world = shoal_world(self->job);
    int senders = self->of->size - 1;
    for (int i = 0; i < (int)(sizeof(sizes) / sizeof(sizes[0])) * 4; i++) {
        size_t size = sizes[i / 4];
        bool in_arena = i % 2, any = i / 2 % 2;
        double *data = get_memory(self, LARGE * sizeof(*data), in_arena);
        const double untouched = data[0];
        for (int from = 1; from <= senders; from++) {
            if (self->rank == from) {
                for (size_t k = 0; k < size; k++)
                    data[k] = from * 1e6 + (double)k;
                GOOD(shoal_send(world, data, size, SHOAL_F64, 0, 5, NULL));
            }
            if (self->rank != 0)
                continue;
            int source = -7;
            size_t got = 99;
            GOOD(shoal_recv_up_to(world, data, LARGE, SHOAL_F64, any ? SHOAL_ANY_RANK : from, 5,
                                  &source, &got, NULL));
            ck_assert_uint_eq(got, size);
            ck_assert_int_ge(source, 1);
            ck_assert(any || source == from);
            for (size_t k = 0; k < LARGE; k++) {
                double wanted = k < size ? source * 1e6 + (double)k : untouched;
                if (memcmp(&data[k], &wanted, sizeof(*data)) != 0)
                    ck_abort_msg("%zu: element %zu is %g", size, k, data[k]);
            }
        }
        GOOD(shoal_barrier(world, NULL));
        give_back(self, data, in_arena);
    }
}

START_TEST(a_size_that_is_not_known)
{
    library_shape_run(&shapes[_i], up_to_run, NULL);
}
END_TEST

static void refused_run(struct library_rank *self)
{
    shoal_group *world = shoal_world(self->job);
    int64_t value;
    size_t count;
    if (self->rank > 0)
        return;
    BAD(shoal_recv_up_to(world, &value, 1, SHOAL_I64, -2, 0, NULL, &count, NULL), SHOAL_EINVALID,
        "rank -2 is not another rank");
    BAD(shoal_recv_up_to(world, &value, 1, SHOAL_I64, 0, 0, NULL, &count, NULL), SHOAL_EINVALID,
        "rank 0 is not another rank");
    BAD(shoal_recv_up_to(world, NULL, 1, SHOAL_I64, 1, 0, NULL, &count, NULL), SHOAL_EINVALID,
        "the buffer is NULL");
    BAD(shoal_recv_up_to(world, &value, 1, (enum shoal_dtype)99, 1, 0, NULL, &count, NULL),
        SHOAL_EINVALID, "99 is no element type");
    BAD(shoal_recv_up_to(world, &value, 1, SHOAL_I64, 1, -1, NULL, &count, NULL), SHOAL_EINVALID,
        "tag -1");
}

START_TEST(calls_that_are_refused)
{
    library_shape_run(&shapes[0], refused_run, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("library_unfit");
    TCase *unfit = tcase_create("unfit");
    tcase_set_timeout(unfit, 300);
    tcase_add_loop_test(unfit, what_does_not_fit_fails_alone, 0, SHAPES);
    tcase_add_loop_test(unfit, many_at_once, 0, SHAPES);
    suite_add_tcase(suite, unfit);
    TCase *up_to = tcase_create("up to");
    tcase_set_timeout(up_to, 300);
    tcase_add_loop_test(up_to, a_size_that_is_not_known, 0, SHAPES);
    tcase_add_test(up_to, calls_that_are_refused);
    suite_add_tcase(suite, up_to);
    return suite_main(suite);
}
