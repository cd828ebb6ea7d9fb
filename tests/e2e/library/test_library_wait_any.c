/* Waiting for the first of several requests, against real daemons: collectives that the ranks of a
 * node do alone and others, sends, receives; what has failed; what is refused. */
#include <stdlib.h>

#include "tests/lib/suite.h"
#include "tests/lib/worker/library_job.h"

static const struct library_shape shapes[] = {{1, 3, NULL}, {3, 1, NULL}};
#define SHAPES (int)(sizeof(shapes) / sizeof(shapes[0]))

/* Receives that are served in an order that only the sender knows, and collectives of two groups
 * between them. Each is told once. */
static void all_run(struct library_rank *self)
{
    enum { MANY = 24 };
    shoal_group *world = shoal_world(self->job), *other;
    const int members[] = {2, 1, 0};
    int32_t values[MANY], sums[MANY] = {0};
    shoal_request *requests[MANY];
    GOOD(shoal_group_open(self->job, members, 3, -1, &other));
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < MANY; i++) {
            shoal_group *group = i % 2 ? world : other;
            values[i] = 10 * i + self->rank;
            sums[i] = -1;
            if (i % 3 == 0 && self->rank == 0)
                GOOD(shoal_recv(world, &sums[i], 1, SHOAL_I32, 1, i, &requests[i]));
            else if (i % 3)
                GOOD(shoal_all_reduce(group, &values[i], &sums[i], 1, SHOAL_I32, SHOAL_SUM,
                                      &requests[i]));
            else
                requests[i] = NULL;
        }
        for (int i = MANY; self->rank == 1 && i-- > 0;)
            if (i % 3 == 0)
                GOOD(shoal_send(world, &values[i], 1, SHOAL_I32, 0, i, NULL));
        int left = 0;
        for (int i = 0; i < MANY; i++)
            left += requests[i] != NULL;
        for (; left > 0; left--) {
            size_t index = MANY;
            GOOD(shoal_wait_any(requests, MANY, &index, -1));
            ck_assert_uint_lt(index, MANY);
            ck_assert_ptr_nonnull(requests[index]);
            requests[index] = NULL;
            int i = (int)index;
            ck_assert_int_eq(sums[i], i % 3 ? 3 * 10 * i + 3 : 10 * i + 1);
        }
    }
    GOOD(shoal_group_close(other));
}

START_TEST(each_is_told_once)
{
    library_shape_run(&shapes[_i], all_run, NULL);
}
END_TEST

/* One comes late: the other does not wait for it, and neither does the time. */
static void late_run(struct library_rank *self)
{
    shoal_group *world = shoal_world(self->job);
    int64_t late = 0, soon = 0, unfit = 0;
    size_t index;
    if (self->rank == 0) {
        shoal_request *requests[4] = {NULL};
        GOOD(shoal_recv(world, &late, 1, SHOAL_I64, 1, 1, &requests[1]));
        BAD(shoal_wait_any(requests, 4, &index, 1), SHOAL_ETIMEOUT, "none of the requests");
        ck_assert_uint_eq(index, 4);
        GOOD(shoal_recv(world, &soon, 1, SHOAL_I64, 2, 2, &requests[3]));
        GOOD(shoal_wait_any(requests, 4, &index, -1));
        ck_assert_uint_eq(index, 3);
        ck_assert_int_eq(soon, 2);
        requests[3] = NULL;
        GOOD(shoal_recv(world, &unfit, 1, SHOAL_I64, 2, 3, &requests[0]));
        BAD(shoal_wait_any(requests, 4, &index, -1), SHOAL_EMISMATCH, "does not fit");
        ck_assert_uint_eq(index, 0);
        requests[0] = NULL;
        library_meet(self);
        GOOD(shoal_wait_any(requests, 4, &index, -1));
        ck_assert_uint_eq(index, 1);
        ck_assert_int_eq(late, 1);
        requests[1] = NULL;
        BAD(shoal_wait_any(requests, 4, &index, -1), SHOAL_EINVALID, "there is no request");
        BAD(shoal_wait_any(NULL, 1, &index, -1), SHOAL_EINVALID, "requests is NULL");
        BAD(shoal_wait_any(requests, 4, NULL, -1), SHOAL_EINVALID, "index is NULL");
        BAD(shoal_wait_any(requests, 4, &index, -2), SHOAL_EINVALID, "timeout_ms");
        BAD(shoal_wait_any(NULL, 0, &index, -1), SHOAL_EINVALID, "there is no request");
    } else if (self->rank == 1) {
        library_meet(self);
        GOOD(shoal_send(world, &(int64_t){1}, 1, SHOAL_I64, 0, 1, NULL));
    } else {
        int64_t two[] = {2, 2};
        GOOD(shoal_send(world, two, 1, SHOAL_I64, 0, 2, NULL));
        BAD(shoal_send(world, two, 2, SHOAL_I64, 0, 3, NULL), SHOAL_EMISMATCH, "2 int64");
        library_meet(self);
    }
}

START_TEST(one_comes_late)
{
    library_shape_run(&shapes[_i], late_run, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("library_wait_any");
    TCase *all = tcase_create("all");
    tcase_set_timeout(all, 120);
    tcase_add_loop_test(all, each_is_told_once, 0, SHAPES);
    tcase_add_loop_test(all, one_comes_late, 0, SHAPES);
    suite_add_tcase(suite, all);
    return suite_main(suite);
}
