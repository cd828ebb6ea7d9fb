/* The library's sends and receives against real daemons: every type, sizes from nothing to many
 * chunks, many at once, groups, mistakes, ranks that leave. */
#include <stdio.h>
#include <stdlib.h>

#include "common/reduce/dtype.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/library_job.h"

#define DATAGRAMS "{\"fabric\":{\"provider\":\"tcp;ofi_rxm\"}}"
#define SMALL_CHUNKS "{\"data\": {\"chunk_bytes\": 4096, \"least_shard_bytes\": 64}}"

/* Memory of a rank, now in the arena, now not. */
struct place {
    shoal_job *job;
    void *data;
    bool in_arena;
};

static struct place place_new(struct library_rank *self, size_t bytes, bool in_arena)
{
    struct place place = {.job = self->job, .in_arena = in_arena};
    place.data = in_arena ? shoal_alloc(self->job, bytes + 1) : malloc(bytes + 1);
    ck_assert_msg(place.data != NULL, "%s", shoal_error_text());
    memset(place.data, 0x5a, bytes + 1);
    return place;
}

static void place_free(struct place *place)
{
    if (place->in_arena)
        shoal_free(place->job, place->data);
    else
        free(place->data);
}

/* --- right ---------------------------------------------------------------------------------- */

struct pair {
    struct place sent, received;
    shoal_request *send, *receive;
};

static uint64_t seed_of(int from, int to, uint64_t round)
{
    return round * 1000 + (uint64_t)(from * 20 + to);
}

/* Everybody to everybody, receives first or sends first, all waited for at the end. */
static void exchange(struct library_rank *self, shoal_group *group, enum shoal_dtype dtype,
                     size_t count, uint64_t round)
{
    struct pair pairs[LIBRARY_RANKS_MAX];
    int rank = shoal_group_rank(group), size = shoal_group_size(group);
    size_t bytes = count * shoal_dtype_bytes(dtype);
    for (int step = 0; step < 2; step++) {
        for (int peer = 0; peer < size; peer++) {
            struct pair *it = &pairs[peer];
            if (peer == rank)
                continue;
            if (step == (int)((round + (uint64_t)rank) % 2)) {
                it->sent = place_new(self, bytes, (round + (uint64_t)(rank + peer)) % 3 == 0);
                library_fill(dtype, it->sent.data, count, rank, seed_of(rank, peer, round));
                GOOD(shoal_send(group, it->sent.data, count, dtype, peer, 5, &it->send));
            } else {
                it->received = place_new(self, bytes, (round + (uint64_t)(rank * peer)) % 4 == 0);
                GOOD(shoal_recv(group, it->received.data, count, dtype, peer, 5, &it->receive));
            }
        }
    }
    uint8_t *expected = malloc(bytes + 1);
    for (int peer = 0; peer < size; peer++) {
        struct pair *it = &pairs[peer];
        if (peer == rank)
            continue;
        GOOD(shoal_wait(it->send, -1));
        GOOD(shoal_wait(it->receive, -1));
        library_fill(dtype, expected, count, peer, seed_of(peer, rank, round));
        ck_assert_msg(memcmp(it->received.data, expected, bytes) == 0 &&
                          ((uint8_t *)it->received.data)[bytes] == 0x5a,
                      "%zu %s from %d to %d, round %llu", count, dtype_name(dtype), peer, rank,
                      (unsigned long long)round);
        place_free(&it->sent);
        place_free(&it->received);
    }
    free(expected);
}

static void every_type_and_size(struct library_rank *self)
{
    static const size_t counts[] = {0, 1, 3, 1000, 20011};
    uint64_t round = 0;
    for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++)
        for (unsigned i = 0; i < 5; i++)
            exchange(self, shoal_world(self->job), dtype, counts[i], round++);
}

START_TEST(every_type_arrives)
{
    library_cluster_run((uint32_t)_i, _i == 3 ? SMALL_CHUNKS : NULL, 6 / _i, every_type_and_size,
                        NULL);
}
END_TEST

static void in_groups(struct library_rank *self)
{
    static const int lists[][4] = {{3, 1, 0, 2}, {2, 0, 3}, {1, 2}};
    static const int sizes[] = {4, 3, 2};
    shoal_group *groups[3] = {NULL};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < sizes[i]; k++)
            if (lists[i][k] == self->rank)
                GOOD(shoal_group_open(self->job, lists[i], sizes[i], -1, &groups[i]));
    for (uint64_t round = 0; round < 8; round++)
        for (int i = 0; i < 3; i++)
            if (groups[i])
                exchange(self, groups[i], SHOAL_F32, 700 * round, round);
    for (int i = 0; i < 3; i++)
        if (groups[i])
            GOOD(shoal_group_close(groups[i]));
}

START_TEST(every_type_arrives_by_datagrams)
{
    library_cluster_run(2, DATAGRAMS, 3, every_type_and_size, NULL);
}
END_TEST

START_TEST(groups_have_numbers_of_their_own)
{
    library_cluster_run((uint32_t)_i, NULL, 4 / _i, in_groups, NULL);
}
END_TEST

/* More than fit the window, the arena's staging and the rings; a message of many chunks around the
 * ring of ranks, blocking, and back. */
static void around(struct library_rank *self)
{
    enum { COUNT = 1500007 };
    shoal_group *world = shoal_world(self->job);
    int size = self->of->size, next = (self->rank + 1) % size;
    int previous = (self->rank + size - 1) % size;
    for (int round = 0; round < 3; round++) {
        struct place place = place_new(self, COUNT * 4, round == 1);
        int32_t *data = place.data;
        if (self->rank == 0) {
            for (int32_t i = 0; i < COUNT; i++)
                data[i] = i * 3 + round;
            GOOD(shoal_send(world, data, COUNT, SHOAL_I32, next, 0, NULL));
            memset(data, 0, COUNT * 4);
            GOOD(shoal_recv(world, data, COUNT, SHOAL_I32, previous, 0, NULL));
        } else {
            GOOD(shoal_recv(world, data, COUNT, SHOAL_I32, previous, 0, NULL));
            for (int32_t i = 0; i < COUNT; i++)
                data[i]++;
            GOOD(shoal_send(world, data, COUNT, SHOAL_I32, next, 0, NULL));
        }
        for (int32_t i = 0; self->rank == 0 && i < COUNT; i++)
            if (data[i] != i * 3 + round + size - 1)
                ck_abort_msg("element %d: %d", i, data[i]);
        place_free(&place);
    }
}

START_TEST(a_large_message_goes_around)
{
    library_cluster_run((uint32_t)_i, NULL, _i == 1 ? 3 : 1, around, NULL);
}
END_TEST

/* With one tag they come in the order in which they were sent, with another one as they please.
 * Every rank asks for all before it sends any; in the same order that may be more than the library
 * has under way at once. */
static void many_of(struct library_rank *self, int most, bool crossing)
{
    static const int tags[] = {0, 2147483647};
    shoal_group *world = shoal_world(self->job);
    int peer = self->rank ^ 1, all = 2 * most;
    int64_t *received = calloc((size_t)all, sizeof(*received));
    shoal_request **requests = calloc((size_t)all, sizeof(shoal_request *));
    shoal_request **sends = calloc((size_t)all, sizeof(shoal_request *));
    for (int i = 0; i < all; i++)
        GOOD(shoal_recv(world, &received[i], 1, SHOAL_I64, peer, tags[i / most], &requests[i]));
    int64_t sum = self->rank;
    GOOD(shoal_all_reduce(world, &sum, &sum, 1, SHOAL_I64, SHOAL_SUM, NULL));
    ck_assert_int_eq(sum, self->of->size * (self->of->size - 1) / 2);
    for (int k = 0; k < all; k++) {
        int i = crossing ? (k + most) % all : k;
        int64_t value = self->rank * 1000000 + i; /* what was sent may be changed at once */
        GOOD(shoal_send(world, &value, 1, SHOAL_I64, peer, tags[i / most], &sends[i]));
    }
    for (int i = all; i-- > 0;) {
        GOOD(shoal_wait(requests[i], -1));
        GOOD(shoal_wait(sends[i], -1));
        ck_assert_int_eq(received[i], peer * 1000000 + i);
    }
    free(received);
    free(requests);
    free(sends);
}

static void many(struct library_rank *self)
{
    many_of(self, 120, true);
    many_of(self, 600, false);
}

START_TEST(many_are_under_way)
{
    library_cluster_run((uint32_t)_i, NULL, 4 / _i, many, NULL);
}
END_TEST

struct counter {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int called;
};

static void called(void *argument, int result)
{
    struct counter *counter = argument;
    pthread_mutex_lock(&counter->lock);
    ck_assert_int_eq(result, SHOAL_OK);
    counter->called++;
    pthread_cond_signal(&counter->changed);
    pthread_mutex_unlock(&counter->lock);
}

/* Nobody waits for them: the background thread does what is left, and calls back. */
static void without_waiting(struct library_rank *self)
{
    enum { COUNT = 100003, ROUNDS = 10 };
    shoal_group *world = shoal_world(self->job);
    struct counter counter = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    int peer = self->rank ^ 1;
    int32_t *out = calloc(COUNT, 4), *in = calloc(COUNT, 4);
    for (int round = 0; round < ROUNDS; round++) {
        shoal_request *requests[2];
        for (int i = 0; i < COUNT; i++)
            out[i] = round * self->rank + i;
        GOOD(shoal_send(world, out, COUNT, SHOAL_I32, peer, 1, &requests[0]));
        GOOD(shoal_recv(world, in, COUNT, SHOAL_I32, peer, 1, &requests[1]));
        for (int i = 0; i < 2; i++) {
            GOOD(shoal_request_on_complete(requests[i], called, &counter));
            shoal_request_free(requests[i]);
        }
        pthread_mutex_lock(&counter.lock);
        while (counter.called < 2 * (round + 1))
            pthread_cond_wait(&counter.changed, &counter.lock);
        pthread_mutex_unlock(&counter.lock);
        for (int i = 0; i < COUNT; i++)
            if (in[i] != round * peer + i)
                ck_abort_msg("round %d, element %d: %d", round, i, in[i]);
    }
    free(out);
    free(in);
}

START_TEST(callbacks_are_called)
{
    library_cluster_run((uint32_t)_i, NULL, 4 / _i, without_waiting, NULL);
}
END_TEST

/* A send that nobody has waited for arrives, though its rank has left the job. */
static void sender_leaves(struct library_rank *self)
{
    float data[1000];
    shoal_request *request;
    if (self->rank == 0) {
        library_fill(SHOAL_F32, data, 1000, 0, 3);
        GOOD(shoal_send(shoal_world(self->job), data, 1000, SHOAL_F32, 1, 0, &request));
        shoal_request_free(request);
        GOOD(shoal_close(self->job));
        self->job = NULL;
    }
    library_meet(self);
    if (self->rank == 1) {
        float expected[1000];
        library_fill(SHOAL_F32, expected, 1000, 0, 3);
        GOOD(shoal_recv(shoal_world(self->job), data, 1000, SHOAL_F32, 0, 0, NULL));
        ck_assert(memcmp(data, expected, sizeof(data)) == 0);
        BAD(shoal_recv(shoal_world(self->job), data, 1, SHOAL_F32, 0, 0, NULL), SHOAL_ELOST,
            "rank 0 has left job");
    }
}

START_TEST(a_sender_that_leaves_has_sent)
{
    library_cluster_run((uint32_t)_i, NULL, 2 / _i, sender_leaves, NULL);
}
END_TEST

/* --- wrong ---------------------------------------------------------------------------------- */

static void refused(struct library_rank *self)
{
    shoal_group *world = shoal_world(self->job);
    int size = self->of->size, self_rank = self->rank, other = (self->rank + 1) % size;
    float data[4] = {0};
    shoal_request *request = NULL;
    BAD(shoal_send(world, data, 4, SHOAL_F32, self_rank, 0, NULL), SHOAL_EINVALID,
        "is not another rank of the group (0 to 1)");
    BAD(shoal_recv(world, data, 4, SHOAL_F32, self_rank, 0, &request), SHOAL_EINVALID,
        "recv: rank");
    BAD(shoal_send(world, data, 4, SHOAL_F32, size, 0, NULL), SHOAL_EINVALID,
        "send: rank 2 is not another rank of the group (0 to 1)");
    BAD(shoal_recv(world, data, 4, SHOAL_F32, -2, 0, NULL), SHOAL_EINVALID, "recv: rank -2 is not");
    BAD(shoal_send(world, data, 4, SHOAL_F32, other, -1, NULL), SHOAL_EINVALID,
        "send: tag -1 is less than 0");
    BAD(shoal_recv(world, data, 4, (enum shoal_dtype)12, other, 0, NULL), SHOAL_EINVALID,
        "recv: 12 is no element type");
    BAD(shoal_send(world, NULL, 4, SHOAL_F32, other, 0, NULL), SHOAL_EINVALID,
        "send: the buffer is NULL");
    BAD(shoal_recv(world, data, SIZE_MAX, SHOAL_F64, other, 0, NULL), SHOAL_EINVALID,
        "elements are too many");
    ck_assert_ptr_null(request);
    /* more than the arena holds */
    void *large = malloc(2ull * LIBRARY_ARENA_BYTES);
    BAD(shoal_send(world, large, 2ull * LIBRARY_ARENA_BYTES, SHOAL_U8, other, 0, NULL),
        SHOAL_EMEMORY, "no room for 67108864 bytes in the arena");
    BAD(shoal_recv(world, large, 2ull * LIBRARY_ARENA_BYTES, SHOAL_U8, other, 0, NULL),
        SHOAL_EMEMORY, "SHOAL_ARENA_BYTES makes it larger");
    free(large);
    /* None of it counts. */
    exchange(self, world, SHOAL_F32, 100, 1);
    GOOD(shoal_send(world, NULL, 0, SHOAL_F32, other, 1, &request));
    GOOD(shoal_recv(world, NULL, 0, SHOAL_F32, other, 1, NULL));
    GOOD(shoal_wait(request, -1));
}

START_TEST(calls_that_are_refused)
{
    library_cluster_run((uint32_t)_i, NULL, 2 / _i, refused, NULL);
}
END_TEST

/* A receive whose time is over goes on, and gets what comes later. */
static void late(struct library_rank *self)
{
    shoal_group *world = shoal_world(self->job);
    int32_t value = self->rank == 0 ? 42 : 0;
    if (self->rank == 1) {
        shoal_request *request;
        GOOD(shoal_recv(world, &value, 1, SHOAL_I32, 0, 9, &request));
        BAD(shoal_wait(request, 20), SHOAL_ETIMEOUT,
            "recv of 1 int32 from rank 0 of group 0 with tag 9, number 0: submitted");
        library_meet(self);
        GOOD(shoal_wait(request, -1));
        ck_assert_int_eq(value, 42);
    } else {
        library_meet(self);
        GOOD(shoal_send(world, &value, 1, SHOAL_I32, 1, 9, NULL));
    }
}

START_TEST(a_wait_that_times_out)
{
    library_cluster_run((uint32_t)_i, NULL, 2 / _i, late, NULL);
}
END_TEST

/* Rank 1 leaves while the others wait to get from it, or to give to it. */
static void left_alone(struct library_rank *self)
{
    int way = *(const int *)self->of->argument;
    shoal_group *world = shoal_world(self->job);
    float *data = calloc(200000, sizeof(*data));
    if (self->rank == 1) {
        GOOD(shoal_close(self->job));
        self->job = NULL;
    } else if (self->rank == 0) {
        BAD(way ? shoal_recv(world, data, 200000, SHOAL_F32, 1, 0, NULL)
                : shoal_send(world, data, 200000, SHOAL_F32, 1, 0, NULL),
            SHOAL_ELOST, "rank 1 has left job");
    }
    library_meet(self);
    if (self->job) /* who had nothing to do with it hears of it too */
        while (self->rank != 0 && shoal_barrier(world, NULL) == SHOAL_OK)
            ;
    free(data);
}

START_TEST(a_rank_that_leaves)
{
    int way = _i / 3;
    library_cluster_run(1 + (uint32_t)_i % 3, NULL, _i % 3 ? 1 + (_i % 3 == 1) : 3, left_alone,
                        &way);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("library_transfers");
    TCase *right = tcase_create("right"); /* _i: nodes */
    tcase_set_timeout(right, 300);
    tcase_add_loop_test(right, every_type_arrives, 1, 4);
    tcase_add_test(right, every_type_arrives_by_datagrams);
    tcase_add_loop_test(right, groups_have_numbers_of_their_own, 1, 3);
    tcase_add_loop_test(right, a_large_message_goes_around, 1, 4);
    tcase_add_loop_test(right, many_are_under_way, 1, 3);
    tcase_add_loop_test(right, callbacks_are_called, 1, 3);
    tcase_add_loop_test(right, a_sender_that_leaves_has_sent, 1, 3);
    suite_add_tcase(suite, right);
    TCase *wrong = tcase_create("wrong");
    tcase_set_timeout(wrong, 300);
    tcase_add_loop_test(wrong, calls_that_are_refused, 1, 3);
    tcase_add_loop_test(wrong, a_wait_that_times_out, 1, 3);
    tcase_add_loop_test(wrong, a_rank_that_leaves, 0, 6);
    suite_add_tcase(suite, wrong);
    return suite_main(suite);
}
