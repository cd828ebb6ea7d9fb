/* The library's collectives with parts against real daemons: groups, many at once, disagreements,
 * ranks that leave. */
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/reduce/dtype.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/library_job.h"
#include "worker/programs/shoalperf/perf_parts.h"

static const enum collective_kind kinds[] = {COLLECTIVE_ALL_GATHER, COLLECTIVE_REDUCE_SCATTER,
                                             COLLECTIVE_GATHER, COLLECTIVE_SCATTER,
                                             COLLECTIVE_ALL_TO_ALL};
#define KINDS 5

/* --- shoalperf's data, on any group --------------------------------------------------------- */

struct flight {
    struct perf_parts parts;
    void *send, *recv;
    shoal_request *request;
    bool in_arena;
    shoal_job *job;
};

/* Everything that is drawn from `seed` must be the same on all ranks; where memory lies need not.
 */
static struct perf_parts_case case_of(shoal_group *group, enum collective_kind kind, uint64_t count,
                                      uint32_t seed)
{
    uint32_t ranks = (uint32_t)shoal_group_size(group);
    return (struct perf_parts_case){
        .what = {.collective = kind,
                 .dtype = (enum dtype)(seed % DTYPE_COUNT),
                 .op = kind == COLLECTIVE_REDUCE_SCATTER && seed % 2 ? REDUCE_MAX : REDUCE_SUM,
                 .rank = (uint32_t)shoal_group_rank(group),
                 .ranks = ranks,
                 .root = seed % ranks,
                 .round = seed},
        .count = count,
        .uneven = seed / 2 % 2 == 1,
        .in_place = kind != COLLECTIVE_ALL_TO_ALL && seed / 4 % 2 == 1,
    };
}

static struct flight *flight_start(struct library_rank *self, shoal_group *group,
                                   enum collective_kind kind, uint64_t count, uint32_t seed)
{
    struct flight *flight = calloc(1, sizeof(*flight));
    ck_assert_ptr_nonnull(flight);
    struct perf_parts_case is = case_of(group, kind, count, seed);
    struct error error;
    uint64_t bytes = perf_parts_bytes(count * is.what.ranks * 8, is.what.ranks);
    flight->job = self->job;
    flight->in_arena = (seed + (uint32_t)self->rank) % 3 == 0; /* some ranks, and others not */
    flight->send = flight->in_arena ? shoal_alloc(self->job, bytes) : aligned_alloc(64, bytes);
    flight->recv = flight->in_arena ? shoal_alloc(self->job, bytes) : aligned_alloc(64, bytes);
    ck_assert_msg(flight->send && flight->recv, "%s", shoal_error_text());
    ck_assert_int_eq(perf_parts_make(&flight->parts, &is, flight->send, flight->recv, &error), 0);
    perf_parts_prepare(&flight->parts);
    GOOD(perf_parts_start(&flight->parts, flight->parts.send.memory, flight->parts.recv.memory,
                          group, &flight->request));
    return flight;
}

static void flight_free(struct flight *flight)
{
    perf_parts_clear(&flight->parts);
    if (flight->in_arena) {
        shoal_free(flight->job, flight->send);
        shoal_free(flight->job, flight->recv);
    } else {
        free(flight->send);
        free(flight->recv);
    }
    free(flight);
}

static void flight_check(struct flight *flight)
{
    const struct perf_parts_case *is = &flight->parts.is;
    uint64_t wrong = perf_parts_check(&flight->parts);
    ck_assert_msg(wrong == 0, "%s of %llu %s, root %u, rank %u of %u%s%s%s: %llu wrong",
                  collective_name(is->what.collective), (unsigned long long)is->count,
                  dtype_name(is->what.dtype), is->what.root, is->what.rank, is->what.ranks,
                  is->uneven ? ", uneven" : "", is->in_place ? ", in place" : "",
                  flight->in_arena ? ", arena" : "", (unsigned long long)wrong);
}

static void flight_finish(struct flight *flight)
{
    GOOD(shoal_wait(flight->request, -1));
    flight_check(flight);
    flight_free(flight);
}

static void group_use(struct library_rank *self, shoal_group *group, uint32_t seed)
{
    static const uint64_t counts[] = {1, 3, 1000, 20011};
    for (unsigned kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < 4; i++)
            flight_finish(flight_start(self, group, kinds[kind], counts[i], seed++));
}

/* --- right ---------------------------------------------------------------------------------- */

static const struct {
    int count, ranks[6];
} lists[] = {
    {6, {5, 4, 3, 2, 1, 0}}, {6, {3, 0, 4, 1, 5, 2}},
    {3, {5, 0, 2}},          {2, {4, 1}},
    {3, {2, 0, 1}},          {2, {5, 3}},
    {4, {1, 5, 0, 3}},       {1, {4}},
};
#define LISTS (sizeof(lists) / sizeof(lists[0]))

static bool is_member(size_t list, int rank)
{
    for (int i = 0; i < lists[list].count; i++)
        if (lists[list].ranks[i] == rank)
            return true;
    return false;
}

static void groups_in_turn(struct library_rank *self)
{
    group_use(self, shoal_world(self->job), 1);
    for (uint32_t i = 0; i < LISTS; i++) {
        shoal_group *group;
        if (!is_member(i, self->rank))
            continue;
        GOOD(shoal_group_open(self->job, lists[i].ranks, lists[i].count, -1, &group));
        group_use(self, group, 100 * i + 3);
        GOOD(shoal_group_close(group));
    }
}

START_TEST(groups_in_any_order_of_ranks)
{
    const char *small = "{\"data\": {\"chunk_bytes\": 4096, \"least_shard_bytes\": 64}}";
    library_cluster_run((uint32_t)_i, _i == 3 ? small : NULL, 6 / _i, groups_in_turn, NULL);
}
END_TEST

static void many_ranks(struct library_rank *self)
{
    group_use(self, shoal_world(self->job), 0);
    group_use(self, shoal_world(self->job), 22);
}

START_TEST(sixteen_ranks_on_a_node)
{
    library_cluster_run(1, NULL, 16, many_ranks, NULL);
}
END_TEST

/* Random bits, NaNs among them, arrive as they were sent, and sums are the reference's. */
static void every_bit(struct library_rank *self)
{
    enum { COUNT = 777 };
    shoal_group *world = shoal_world(self->job);
    int size = self->of->size;
    uint8_t *expected = self->of->argument;
    uint64_t seed = 0;
    uint8_t *send = malloc((size_t)size * COUNT * 8), *recv = malloc((size_t)size * COUNT * 8);
    for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        size_t part = COUNT * shoal_dtype_bytes(dtype), all = (size_t)size * COUNT;
        seed++;
        library_fill(dtype, send, COUNT, self->rank, seed);
        GOOD(shoal_all_gather(world, send, recv, COUNT, dtype, NULL));
        for (int rank = 0; rank < size; rank++) {
            library_fill(dtype, send, COUNT, rank, seed);
            ck_assert_msg(memcmp(recv + (size_t)rank * part, send, part) == 0, "%s from %d",
                          dtype_name(dtype), rank);
        }
        for (unsigned op = 0; op < REDUCE_OP_COUNT; op++) {
            if (!reduce_op_allows(op, dtype))
                continue;
            seed++;
            if (library_meet(self))
                library_expect(self->of, library_in_order, size, dtype, op, all, seed, expected);
            library_meet(self);
            library_fill(dtype, send, all, self->rank, seed);
            GOOD(shoal_reduce_scatter(world, send, recv, COUNT, dtype, op, NULL));
            ck_assert_msg(memcmp(recv, expected + (size_t)self->rank * part, part) == 0,
                          "%s %s on rank %d", dtype_name(dtype), reduce_op_name(op), self->rank);
            library_meet(self);
        }
    }
    free(send);
    free(recv);
}

START_TEST(every_type_and_operation_is_exact)
{
    uint8_t *expected = malloc((size_t)LIBRARY_RANKS_MAX * 777 * 8);
    library_cluster_run((uint32_t)_i, NULL, 2, every_bit, expected);
    free(expected);
}
END_TEST

/* --- many in flight ------------------------------------------------------------------------- */

#define FLIGHTS 60
#define SUMS 5003

struct counter {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int called, failed;
};

static void called(void *argument, int result)
{
    struct counter *counter = argument;
    pthread_mutex_lock(&counter->lock);
    counter->called++;
    counter->failed += result != SHOAL_OK;
    pthread_cond_signal(&counter->changed);
    pthread_mutex_unlock(&counter->lock);
}

static int64_t *sum_start(struct library_rank *self, int number, shoal_request **request)
{
    int64_t *data = malloc(SUMS * sizeof(*data));
    ck_assert_ptr_nonnull(data);
    for (int k = 0; k < SUMS; k++)
        data[k] = number * 1000 + k + self->rank;
    GOOD(shoal_all_reduce(shoal_world(self->job), data, data, SUMS, SHOAL_I64, SHOAL_SUM, request));
    return data;
}

static void sum_check(const struct library_rank *self, int number, int64_t *data)
{
    int64_t size = self->of->size;
    for (int k = 0; k < SUMS; k++)
        if (data[k] != size * (number * 1000 + k) + size * (size - 1) / 2)
            ck_abort_msg("all_reduce %d, element %d: %lld", number, k, (long long)data[k]);
    free(data);
}

/* A third by callback, a third by descriptor and test, a third by wait; last to first. */
static void request_finish(struct library_rank *self, shoal_request *request, int number,
                           struct counter *counter, int *asked)
{
    if (number % 3 == 0) {
        GOOD(shoal_request_on_complete(request, called, counter));
        ++*asked;
    }
    while (number % 3 == 1 && shoal_test(request) == SHOAL_EAGAIN) {
        struct pollfd polled = {.fd = shoal_completions_descriptor(self->job), .events = POLLIN};
        ck_assert_int_eq(poll(&polled, 1, CLUSTER_PATIENCE_MS), 1);
        GOOD(shoal_completions_clear(self->job));
    }
    GOOD(shoal_wait(request, -1));
}

static void many_in_flight(struct library_rank *self)
{
    struct counter counter = {.called = 0};
    struct flight *flights[FLIGHTS];
    shoal_request *requests[FLIGHTS];
    int64_t *sums[FLIGHTS];
    int asked = 0;
    shoal_group *world = shoal_world(self->job);
    pthread_mutex_init(&counter.lock, NULL);
    pthread_cond_init(&counter.changed, NULL);
    ck_assert_int_ge(shoal_completions_descriptor(self->job), 0);
    for (int i = 0; i < FLIGHTS; i++) {
        GOOD(shoal_group_set_priority(world, (uint32_t)(FLIGHTS - i) % 5));
        flights[i] = NULL;
        if (i % 4 == 3)
            sums[i] = sum_start(self, i, &requests[i]);
        else
            flights[i] =
                flight_start(self, world, kinds[i % KINDS], i % 10 == 0 ? 20011 : 100, (uint32_t)i);
        if (flights[i])
            requests[i] = flights[i]->request;
    }
    for (int i = FLIGHTS - 1; i >= 0; i--) {
        request_finish(self, requests[i], i, &counter, &asked);
        if (!flights[i]) {
            sum_check(self, i, sums[i]);
            continue;
        }
        flight_check(flights[i]);
        flight_free(flights[i]);
    }
    pthread_mutex_lock(&counter.lock);
    while (counter.called < asked)
        pthread_cond_wait(&counter.changed, &counter.lock);
    pthread_mutex_unlock(&counter.lock);
    GOOD(shoal_close(self->job)); /* after which nothing can call */
    self->job = NULL;
    ck_assert_int_eq(counter.called, asked);
    ck_assert_int_eq(counter.failed, 0);
    pthread_cond_destroy(&counter.changed);
    pthread_mutex_destroy(&counter.lock);
}

START_TEST(many_kinds_in_flight)
{
    library_cluster_run((uint32_t)_i, NULL, 4 / _i, many_in_flight, NULL);
}
END_TEST

/* Check calls that are refused without asking anybody: each says why, and the job goes on. */
static void refused_calls(struct library_rank *self)
{
    shoal_group *world = shoal_world(self->job);
    int32_t data[64] = {0}, other[64];
    void *list[4] = {data, data + 1, NULL, data + 3};
    const size_t counts[4] = {1, 1, 1, 1};
    BAD(shoal_all_gather(world, data + 1, data, 4, SHOAL_I32, NULL), SHOAL_EINVALID,
        "all_gather: the buffers overlap");
    BAD(shoal_all_to_all(world, data, data + 4, 4, SHOAL_I32, NULL), SHOAL_EINVALID,
        "all_to_all: the buffers overlap");
    BAD(shoal_all_gather_v(world, other, list, counts, SHOAL_I32, NULL), SHOAL_EINVALID,
        "all_gather: the buffer to receive into from rank 2 is NULL");
    BAD(shoal_all_gather_v(world, other, list, NULL, SHOAL_I32, NULL), SHOAL_EINVALID,
        "all_gather: the list of counts is NULL");
    BAD(shoal_all_to_all_v(world, NULL, counts, list, counts, SHOAL_I32, NULL), SHOAL_EINVALID,
        "all_to_all: the list of buffers is NULL");
    BAD(shoal_reduce_scatter(world, data, other, 4, SHOAL_F32, SHOAL_BAND, NULL), SHOAL_EINVALID,
        "reduce_scatter: band is not for float");
    BAD(shoal_scatter(world, data, other, 4, SHOAL_F32, 4, NULL), SHOAL_EINVALID,
        "scatter: root 4 is not a rank of the group");
    BAD(shoal_gather(world, data, other, 4, SHOAL_F32, -1, NULL), SHOAL_EINVALID,
        "gather: root -1 is not a rank of the group");
    group_use(self, world, 7);
}

START_TEST(calls_that_are_refused)
{
    library_cluster_run(2, NULL, 2, refused_calls, NULL);
}
END_TEST

/* --- disagreements -------------------------------------------------------------------------- */

static int32_t four[4][4][64]; /* of each rank, for each peer */

/* All parts of 5, but what the rank says of one peer's. */
static void counts_but(size_t *counts, int peer, size_t count)
{
    for (int i = 0; i < 4; i++)
        counts[i] = i == peer ? count : 5;
}

static int all_gather_size(struct library_rank *self, shoal_group *world)
{
    int32_t *data = four[self->rank][0];
    return shoal_all_gather(world, data + 60, data, self->rank == 3 ? 6 : 5, SHOAL_I32, NULL);
}

/* Gather as many elements in all as the others, divided in another way. */
static int all_gather_parts(struct library_rank *self, shoal_group *world)
{
    int32_t(*data)[64] = four[self->rank], own[8] = {0};
    void *list[4] = {data[0], data[1], data[2], data[3]};
    size_t counts[4] = {5, 5, 5, 5};
    if (self->rank == 3) {
        counts[1] = 7;
        counts[2] = 3;
    }
    return shoal_all_gather_v(world, own, list, counts, SHOAL_I32, NULL);
}

static int reduce_scatter_parts(struct library_rank *self, shoal_group *world)
{
    int32_t(*data)[64] = four[self->rank], own[8];
    const void *list[4] = {data[0], data[1], data[2], data[3]};
    size_t counts[4] = {5, 5, 5, 5};
    if (self->rank == 0) {
        counts[1] = 7;
        counts[2] = 3;
    }
    return shoal_reduce_scatter_v(world, list, own, counts, SHOAL_I32, SHOAL_SUM, NULL);
}

static int gather_size(struct library_rank *self, shoal_group *world)
{
    int32_t own[8] = {0};
    return shoal_gather(world, own, four[self->rank], self->rank == 2 ? 7 : 5, SHOAL_I32, 1, NULL);
}

static int scatter_size(struct library_rank *self, shoal_group *world)
{
    int32_t own[8];
    return shoal_scatter(world, four[self->rank], own, self->rank == 0 ? 7 : 5, SHOAL_I32, 3, NULL);
}

/* Between ranks 1 and 3: 0 and 2, who have nothing to do with it, hear of it too. */
static int all_to_all_size(struct library_rank *self, shoal_group *world)
{
    int32_t(*data)[64] = four[self->rank];
    const void *from[4] = {data[0], data[1], data[2], data[3]};
    void *to[4] = {data[0] + 32, data[1] + 32, data[2] + 32, data[3] + 32};
    size_t sent[4], received[4];
    counts_but(sent, 3, self->rank == 1 ? 7 : 5);
    counts_but(received, -1, 5);
    return shoal_all_to_all_v(world, from, sent, to, received, SHOAL_I32, NULL);
}

static int other_kinds(struct library_rank *self, shoal_group *world)
{
    int32_t *data = four[self->rank][0], *own = four[self->rank][3];
    if (self->rank == 1)
        return shoal_reduce_scatter(world, data, own, 5, SHOAL_I32, SHOAL_SUM, NULL);
    if (self->rank == 2)
        return shoal_all_reduce(world, data, data, 20, SHOAL_I32, SHOAL_SUM, NULL);
    return shoal_all_gather(world, own, data, 5, SHOAL_I32, NULL);
}

static int barrier_or_parts(struct library_rank *self, shoal_group *world)
{
    int32_t *data = four[self->rank][0], *own = four[self->rank][3];
    return self->rank == 2 ? shoal_barrier(world, NULL)
                           : shoal_all_to_all(world, data, own, 5, SHOAL_I32, NULL);
}

static int gather_or_scatter(struct library_rank *self, shoal_group *world)
{
    int32_t *data = four[self->rank][0], *own = four[self->rank][3];
    return self->rank == 0 ? shoal_scatter(world, data, own, 5, SHOAL_I32, 0, NULL)
                           : shoal_gather(world, own, data, 5, SHOAL_I32, 0, NULL);
}

static int other_roots(struct library_rank *self, shoal_group *world)
{
    int32_t *data = four[self->rank][0], *own = four[self->rank][3];
    return shoal_gather(world, own, data, 5, SHOAL_I32, self->rank == 3 ? 3 : 0, NULL);
}

static int other_types(struct library_rank *self, shoal_group *world)
{
    int32_t *data = four[self->rank][0], *own = four[self->rank][3];
    return shoal_all_to_all(world, data, own, 5, self->rank == 3 ? SHOAL_F32 : SHOAL_I32, NULL);
}

static int other_operations(struct library_rank *self, shoal_group *world)
{
    int32_t *data = four[self->rank][0], *own = four[self->rank][3];
    return shoal_reduce_scatter(world, data, own, 5, SHOAL_I32,
                                self->rank == 3 ? SHOAL_MAX : SHOAL_SUM, NULL);
}

static const struct {
    const char *name;
    int (*call)(struct library_rank *self, shoal_group *world);
    unsigned sure; /* ranks whose call cannot succeed; the others hear of it in the next at last */
    const char *words[4];
} disagreements[] = {
    {"all_gather size", all_gather_size, 15, {"ranks 0, 1, 2 asked", "rank 3 asked"}},
    {"all_gather parts", all_gather_parts, 15, {"rank 3 asked", "count 5 for the part of rank"}},
    {"reduce_scatter parts", reduce_scatter_parts, 15, {"rank 0 asked", "count 5", "part of rank"}},
    {"gather size", gather_size, 6, {"rank 2 asked", "rank 1 asked", "count 7", "count 5"}},
    {"scatter size", scatter_size, 9, {"rank 0 asked", "rank 3 asked", "count 7", "count 5"}},
    {"all_to_all size", all_to_all_size, 10, {"rank 1 asked", "rank 3 asked", "7", "5"}},
    {"kinds", other_kinds, 15, {"rank 1 asked for reduce_scatter", "all_reduce"}},
    {"barrier", barrier_or_parts, 15, {"rank 2 asked for barrier", "all_to_all"}},
    {"gather, scatter", gather_or_scatter, 15, {"rank 0 asked for scatter", "gather"}},
    {"roots", other_roots, 15, {"rank 3 asked", "root 3", "root 0"}},
    {"types", other_types, 15, {"rank 3 asked", "float", "int32"}},
    {"operations", other_operations, 15, {"rank 3 asked", "max", "sum"}},
};
#define DISAGREEMENTS ((int)(sizeof(disagreements) / sizeof(disagreements[0])))

static void disagree(struct library_rank *self)
{
    int which = *(int *)self->of->argument;
    const char *name = disagreements[which].name;
    shoal_group *world = shoal_world(self->job);
    group_use(self, world, 40);
    library_meet(self);
    int code = disagreements[which].call(self, world);
    ck_assert_msg(code == SHOAL_EMISMATCH ||
                      (code == SHOAL_OK && !(disagreements[which].sure >> self->rank & 1)),
                  "%s, rank %d: %d: %s", name, self->rank, code,
                  code ? shoal_error_text() : "no error");
    /* The group has failed for good, and says why. */
    BAD(shoal_barrier(world, NULL), SHOAL_EMISMATCH, "differs between ranks");
    for (int i = 0; i < 4 && disagreements[which].words[i]; i++)
        ck_assert_msg(strstr(shoal_error_text(), disagreements[which].words[i]) != NULL,
                      "%s, rank %d: no \"%s\" in: %s", name, self->rank,
                      disagreements[which].words[i], shoal_error_text());
}

START_TEST(ranks_that_disagree)
{
    for (uint32_t nodes = 1; nodes <= 4; nodes *= 2) {
        struct cluster *cluster = cluster_start(nodes, NULL);
        library_job_run(cluster, "disagree", 4 / (int)nodes, disagree, &_i);
        /* And everything has been cleared away. */
        library_job_run(cluster, "disagree", 4 / (int)nodes, many_in_flight, NULL);
        ck_assert_int_eq(cluster_stop(cluster), 0);
        cluster_free(cluster);
    }
}
END_TEST

/* --- a rank that leaves ---------------------------------------------------------------------- */

/* Rank 3 closes with a collective of every kind under way; the others cannot finish for ever. */
static void leaving(struct library_rank *self)
{
    enum { ROUNDS = 100000, LEAVES = 3, COUNT = 30011 };
    shoal_group *world = shoal_world(self->job);
    struct flight *flights[KINDS];
    int code = SHOAL_OK;
    for (uint32_t round = 0; round < ROUNDS && code == SHOAL_OK; round++) {
        for (unsigned k = 0; k < KINDS; k++) {
            flights[k] = NULL;
            struct perf_parts_case is = case_of(world, kinds[k], COUNT, round * 8);
            flights[k] = calloc(1, sizeof(*flights[k]));
            struct error error;
            uint64_t bytes = perf_parts_bytes((uint64_t)COUNT * 4 * 8, 4);
            flights[k]->send = aligned_alloc(64, bytes);
            flights[k]->recv = aligned_alloc(64, bytes);
            ck_assert_int_eq(perf_parts_make(&flights[k]->parts, &is, flights[k]->send,
                                             flights[k]->recv, &error),
                             0);
            perf_parts_prepare(&flights[k]->parts);
            if (code == SHOAL_OK)
                code = perf_parts_start(&flights[k]->parts, flights[k]->parts.send.memory,
                                        flights[k]->parts.recv.memory, world, &flights[k]->request);
        }
        if (self->rank == 3 && round == LEAVES) {
            GOOD(shoal_close(self->job));
            self->job = NULL;
        }
        for (unsigned k = 0; k < KINDS; k++) {
            int result =
                self->job && flights[k]->request ? shoal_wait(flights[k]->request, -1) : SHOAL_OK;
            code = code ? code : result;
            if (result == SHOAL_OK && code == SHOAL_OK && self->job)
                flight_check(flights[k]);
            flight_free(flights[k]);
        }
        if (!self->job)
            return;
    }
    ck_assert_msg(code == SHOAL_ELOST && strstr(shoal_error_text(), "rank 3"), "rank %d: %d: %s",
                  self->rank, code, shoal_error_text());
}

START_TEST(a_rank_that_leaves_in_the_middle)
{
    struct cluster *cluster = cluster_start((uint32_t)_i, NULL);
    for (int round = 0; round < 3; round++) {
        library_job_run(cluster, "leaving", 4 / _i, leaving, NULL);
        library_job_run(cluster, "leaving", 4 / _i, many_in_flight, NULL);
    }
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("library_parts");
    TCase *right = tcase_create("right"); /* _i: nodes */
    tcase_set_timeout(right, 300);
    tcase_add_loop_test(right, groups_in_any_order_of_ranks, 1, 4);
    tcase_add_test(right, sixteen_ranks_on_a_node);
    tcase_add_loop_test(right, every_type_and_operation_is_exact, 1, 3);
    tcase_add_loop_test(right, many_kinds_in_flight, 1, 3);
    tcase_add_test(right, calls_that_are_refused);
    suite_add_tcase(suite, right);
    TCase *wrong = tcase_create("wrong");
    tcase_set_timeout(wrong, 300);
    tcase_add_loop_test(wrong, ranks_that_disagree, 0, DISAGREEMENTS);
    tcase_add_loop_test(wrong, a_rank_that_leaves_in_the_middle, 1, 3);
    suite_add_tcase(suite, wrong);
    return suite_main(suite);
}
