/* The library's receives from any rank against real daemons: who it was, in which order, among
 * receives that name the rank, ranks that leave. */
#include <stdlib.h>

#include "tests/lib/suite.h"
#include "tests/lib/worker/library_job.h"

/* The value names the rank that sent it, and the message's number among that rank's. */
#define VALUE(rank, number) ((int64_t)(rank)*1000000 + (number))

static void fill(int64_t *data, size_t count, int rank, int number)
{
    for (size_t i = 0; i < count; i++)
        data[i] = VALUE(rank, number) + (int64_t)i;
}

static void check(const int64_t *data, size_t count, int rank, int number)
{
    for (size_t i = 0; i < count; i++)
        if (data[i] != VALUE(rank, number) + (int64_t)i)
            ck_abort_msg("element %zu of number %d from %d: %lld", i, number, rank,
                         (long long)data[i]);
}

/* --- right ---------------------------------------------------------------------------------- */

/* Rank 0 takes what comes, one after the other. */
static void one_takes_all(struct library_rank *self)
{
    enum { EACH = 30, MOST = 40001 };
    static const size_t counts[] = {0, 1, MOST};
    shoal_group *world = shoal_world(self->job);
    int64_t *data = self->rank % 2 ? malloc(MOST * 8) : shoal_alloc(self->job, MOST * 8);
    for (int k = 0; k < 3; k++) {
        int next[LIBRARY_RANKS_MAX] = {0};
        for (int n = 0; self->rank != 0 && n < EACH; n++) {
            fill(data, counts[k], self->rank, n);
            GOOD(shoal_send(world, data, counts[k], SHOAL_I64, 0, k, NULL));
        }
        for (int n = 0; self->rank == 0 && n < EACH * (self->of->size - 1); n++) {
            int source = -1;
            GOOD(shoal_recv_any(world, data, counts[k], SHOAL_I64, k, &source, NULL));
            ck_assert_int_gt(source, 0);
            ck_assert_int_lt(source, self->of->size);
            check(data, counts[k], source, next[source]++);
        }
    }
    if (self->rank % 2)
        free(data);
    else
        shoal_free(self->job, data);
}

START_TEST(one_rank_takes_what_comes)
{
    library_cluster_run((uint32_t)_i, NULL, 6 / _i, one_takes_all, NULL);
}
END_TEST

/* Send to everybody, and receive more messages than may look for a sender at once. The messages of
 * one rank come in the order in which they were sent, to the receives in the order in which they
 * were asked for. */
static void all_at_once(struct library_rank *self)
{
#ifdef SHOAL_SANITIZED
    enum { EACH = 15, COUNT = 3 }; /* what they say to each other grows with the square of it */
#else
    enum { EACH = 40, COUNT = 3 };
#endif
    shoal_group *world = shoal_world(self->job);
    int size = self->of->size, all = EACH * (size - 1), next[LIBRARY_RANKS_MAX] = {0};
    int64_t(*data)[COUNT] = calloc((size_t)all, sizeof(*data)), out[COUNT];
    int *sources = calloc((size_t)all, sizeof(*sources));
    shoal_request **requests = calloc((size_t)all, sizeof(shoal_request *));
    shoal_request **sends = calloc((size_t)all, sizeof(shoal_request *));
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < all && step == self->rank % 2; i++)
            GOOD(shoal_recv_any(world, data[i], COUNT, SHOAL_I64, 9, &sources[i], &requests[i]));
        for (int i = 0; i < all && step != self->rank % 2; i++) {
            int to = (self->rank + 1 + i % (size - 1)) % size;
            fill(out, COUNT, self->rank, i / (size - 1));
            GOOD(shoal_send(world, out, COUNT, SHOAL_I64, to, 9, &sends[i]));
        }
    }
    for (int i = all; i-- > 0;) {
        GOOD(shoal_wait(requests[i], -1));
        GOOD(shoal_wait(sends[i], -1));
    }
    for (int i = 0; i < all; i++)
        check(data[i], COUNT, sources[i], next[sources[i]]++);
    for (int rank = 0; rank < size; rank++)
        ck_assert_int_eq(next[rank], rank == self->rank ? 0 : EACH);
    free(data);
    free(sources);
    free(requests);
    free(sends);
}

START_TEST(many_look_for_a_sender)
{
    library_cluster_run((uint32_t)_i, NULL, 6 / _i, all_at_once, NULL);
}
END_TEST

START_TEST(many_look_by_datagrams)
{
    library_cluster_run(3, "{\"fabric\":{\"provider\":\"tcp;ofi_rxm\"}}", 2, all_at_once, NULL);
}
END_TEST

/* Receives from rank 1 and from any one with the same tag, started in turns while others look: each
 * message comes once, and rank 1's in their order to either kind. */
static void among_named(struct library_rank *self)
{
    enum { EACH = 60 };
    shoal_group *world = shoal_world(self->job);
    int size = self->of->size, named = 0, any = 0, seen[LIBRARY_RANKS_MAX][EACH] = {{0}};
    int64_t from_one[EACH], from_any[EACH * LIBRARY_RANKS_MAX];
    int sources[EACH * LIBRARY_RANKS_MAX];
    shoal_request *requests[EACH], *others[EACH * LIBRARY_RANKS_MAX];
    if (self->rank != 0) {
        for (int n = 0; n < EACH; n++) {
            int64_t value = VALUE(self->rank, n);
            GOOD(shoal_send(world, &value, 1, SHOAL_I64, 0, 0, NULL));
        }
        return;
    }
    int wanted = EACH * (size - 1); /* when all the named ones are started, half are not yet gone */
    for (int i = 0; i < wanted; i++) {
        if (i % 2 == 1 && named < EACH / 2) {
            GOOD(shoal_recv(world, &from_one[named], 1, SHOAL_I64, 1, 0, &requests[named]));
            named++;
        } else {
            GOOD(shoal_recv_any(world, &from_any[any], 1, SHOAL_I64, 0, &sources[any],
                                &others[any]));
            any++;
        }
        if (i % 7 == 0 && any > 0) { /* some are waited for meanwhile */
            GOOD(shoal_wait(others[any - 1], -1));
            others[any - 1] = NULL;
        }
    }
    for (int i = 0; i < named; i++) {
        GOOD(shoal_wait(requests[i], -1));
        ck_assert_int_eq(from_one[i] / 1000000, 1);
        ck_assert(i == 0 || from_one[i] > from_one[i - 1]);
        seen[1][from_one[i] % 1000000]++;
    }
    for (int i = 0; i < any; i++) {
        if (others[i])
            GOOD(shoal_wait(others[i], -1));
        ck_assert_int_eq(from_any[i] / 1000000, sources[i]);
        seen[sources[i]][from_any[i] % 1000000]++;
    }
    for (int rank = 1; rank < size; rank++)
        for (int n = 0; n < EACH; n++)
            ck_assert_int_eq(seen[rank][n], 1);
}

START_TEST(among_receives_that_name_the_rank)
{
    library_cluster_run((uint32_t)_i, NULL, 6 / _i, among_named, NULL);
}
END_TEST

/* Check that the source in a group is its place there, and that each tag looks for itself. */
static void in_a_group(struct library_rank *self)
{
    static const int members[] = {3, 0, 2};
    shoal_group *group;
    if (self->rank == 1)
        return;
    GOOD(shoal_group_open(self->job, members, 3, -1, &group));
    int64_t value = 100 + self->rank;
    if (self->rank == 0) {
        int64_t first = 0, second = 0;
        int sources[2] = {-1, -1};
        shoal_request *requests[2];
        GOOD(shoal_recv_any(group, &first, 1, SHOAL_I64, 1, &sources[0], &requests[0]));
        GOOD(shoal_recv_any(group, &second, 1, SHOAL_I64, 2, &sources[1], &requests[1]));
        GOOD(shoal_wait(requests[1], -1)); /* the sender of the other one waits for this */
        ck_assert_int_eq(second, 102);
        ck_assert_int_eq(sources[1], 2);
        BAD(shoal_wait(requests[0], 20), SHOAL_ETIMEOUT, "recv of 1 int64 from any rank of group");
        library_meet(self);
        GOOD(shoal_wait(requests[0], -1));
        ck_assert_int_eq(first, 103);
        ck_assert_int_eq(sources[0], 0);
    } else {
        if (self->rank == 2)
            GOOD(shoal_send(group, &value, 1, SHOAL_I64, 1, 2, NULL));
        library_meet(self);
        if (self->rank == 3)
            GOOD(shoal_send(group, &value, 1, SHOAL_I64, 1, 1, NULL));
    }
    GOOD(shoal_group_close(group));
}

static void in_a_group_of_some(struct library_rank *self)
{
    in_a_group(self);
    if (self->rank == 1)
        library_meet(self);
}

START_TEST(groups_and_tags)
{
    library_cluster_run((uint32_t)_i, NULL, 4 / _i, in_a_group_of_some, NULL);
}
END_TEST

/* --- wrong ---------------------------------------------------------------------------------- */

static void refused(struct library_rank *self)
{
    shoal_group *world = shoal_world(self->job);
    float data[4];
    int source = 77;
    if (self->of->size == 1) {
        BAD(shoal_recv_any(world, data, 4, SHOAL_F32, 0, NULL, NULL), SHOAL_EINVALID,
            "recv: there is no other rank in the group");
        return;
    }
    BAD(shoal_recv_any(world, data, 4, SHOAL_F32, -1, &source, NULL), SHOAL_EINVALID,
        "recv: tag -1 is less than 0");
    BAD(shoal_recv_any(world, NULL, 4, SHOAL_F32, 0, &source, NULL), SHOAL_EINVALID,
        "recv: the buffer is NULL");
    ck_assert_int_eq(source, 77);
}

START_TEST(calls_that_are_refused)
{
    library_cluster_run(1, NULL, _i, refused, NULL);
}
END_TEST

/* Rank 1 leaves without having sent; rank 2 with a send that is under way. Nobody is left then. */
static void leaving(struct library_rank *self)
{
    shoal_group *world = shoal_world(self->job);
    int64_t value = self->rank;
    int source = -1;
    shoal_request *request;
    if (self->rank == 2) {
        library_meet(self);
        GOOD(shoal_send(world, &value, 1, SHOAL_I64, 0, 0, &request));
        shoal_request_free(request);
    }
    if (self->rank > 0) {
        GOOD(shoal_close(self->job));
        self->job = NULL;
        if (self->rank == 1)
            library_meet(self);
        return;
    }
    GOOD(shoal_recv_any(world, &value, 1, SHOAL_I64, 0, &source, &request));
    library_meet(self);
    GOOD(shoal_wait(request, -1));
    ck_assert_int_eq(source, 2);
    ck_assert_int_eq(value, 2);
    BAD(shoal_recv_any(world, &value, 1, SHOAL_I64, 0, &source, NULL), SHOAL_ELOST,
        "recv from any rank: all other ranks of the group have left the job");
    ck_assert_int_eq(source, 2);
}

START_TEST(ranks_that_leave)
{
    library_cluster_run((uint32_t)_i, NULL, 3 / _i, leaving, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("library_any");
    TCase *right = tcase_create("right"); /* _i: nodes */
    tcase_set_timeout(right, 300);
    tcase_add_loop_test(right, one_rank_takes_what_comes, 1, 4);
    tcase_add_loop_test(right, many_look_for_a_sender, 1, 4);
    tcase_add_test(right, many_look_by_datagrams);
    tcase_add_loop_test(right, among_receives_that_name_the_rank, 1, 4);
    tcase_add_loop_test(right, groups_and_tags, 1, 3);
    suite_add_tcase(suite, right);
    TCase *wrong = tcase_create("wrong");
    tcase_set_timeout(wrong, 300);
    tcase_add_loop_test(wrong, calls_that_are_refused, 1, 3);
    tcase_add_loop_test(wrong, ranks_that_leave, 1, 2);
    tcase_add_loop_test(wrong, ranks_that_leave, 3, 4);
    suite_add_tcase(suite, wrong);
    return suite_main(suite);
}
