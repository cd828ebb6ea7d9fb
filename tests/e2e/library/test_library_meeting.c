/* Collectives of ranks on one node, which meet without the daemon, and go to it when they do not.
 * Ranks mix ways to start, to wait and to come late; whatever the way, results are the same bits
 * and disagreements are named. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "common/reduce/dtype.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/library_job.h"

#define ROUNDS 400u
#define LARGE 60000u   /* i64: more than one slice of a sum */
#define PIECES 140000u /* i64: passes in pieces */
#define BURST 5u
#define SIZE_MOST 4u

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
    for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        for (unsigned op = 0; op < REDUCE_OP_COUNT; op++) {
            if (!reduce_op_allows(op, dtype))
                continue;
            uint64_t seed = dtype * REDUCE_OP_COUNT + op;
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

/* --- parts ---------------------------------------------------------------------------------- */

#define PARTS_COUNT 700u
#define PARTS_BYTES (8 * LIBRARY_RANKS_MAX * PARTS_COUNT)

struct parts_case {
    enum shoal_dtype dtype;
    enum shoal_op op;
    size_t count;
    int root;
};

/* Kind 0 to 5, into `recv`; the last has no parts. */
static int every_kind(shoal_group *group, const struct parts_case *at, int kind,
                      const uint8_t *send, uint8_t *recv, shoal_request **request)
{
    switch (kind) {
    case 0:
        return shoal_all_gather(group, send, recv, at->count, at->dtype, request);
    case 1:
        return shoal_reduce_scatter(group, send, recv, at->count, at->dtype, at->op, request);
    case 2:
        return shoal_gather(group, send, recv, at->count, at->dtype, at->root, request);
    case 3:
        return shoal_scatter(group, send, recv, at->count, at->dtype, at->root, request);
    case 5:
        return shoal_all_reduce(group, send, recv, at->count, at->dtype, at->op, request);
    default:
        return shoal_all_to_all(group, send, recv, at->count, at->dtype, request);
    }
}

/* With a collective before it that is the daemon's, and under way, a small one goes there too. */
static void by_daemon(struct library_rank *self, const struct parts_case *at, int kind,
                      const uint8_t *send, uint8_t *recv)
{
    const size_t count = 140000; /* so much passes in pieces, unless it is in the arena */
    int64_t *large = shoal_alloc(self->job, count * sizeof(*large));
    shoal_request *requests[2];
    ck_assert_ptr_nonnull(large);
    GOOD(shoal_all_reduce(shoal_world(self->job), large, large, count, SHOAL_I64, SHOAL_SUM,
                          &requests[0]));
    GOOD(every_kind(shoal_world(self->job), at, kind, send, recv, &requests[1]));
    for (int i = 0; i < 2; i++)
        GOOD(shoal_wait(requests[i], -1));
    shoal_free(self->job, large);
}

static void both_ways(struct library_rank *self)
{
    static const struct parts_case cases[] = {
        {SHOAL_F32, SHOAL_SUM, 1, 0},   {SHOAL_F16, SHOAL_AVG, 33, 1},
        {SHOAL_BF16, SHOAL_MAX, 7, 1},  {SHOAL_I32, SHOAL_SUM, 256, 0},
        {SHOAL_F64, SHOAL_AVG, 700, 0}, {SHOAL_I8, SHOAL_PROD, 3, 1},
        {SHOAL_I16, SHOAL_AVG, 99, 1},  {SHOAL_U16, SHOAL_MAX, 5, 0},
        {SHOAL_U32, SHOAL_PROD, 64, 1}, {SHOAL_U64, SHOAL_MIN, 700, 0},
        {SHOAL_I64, SHOAL_LXOR, 33, 1}, {SHOAL_U8, SHOAL_LAND, 40, 0},
    };
    uint8_t *memory = calloc(3, PARTS_BYTES), *send = memory;
    ck_assert_ptr_nonnull(memory);
    uint8_t *met = memory + PARTS_BYTES, *daemons = met + PARTS_BYTES;
    for (int round = 0; round < 3; round++) /* by then there is a place */
        GOOD(shoal_barrier(shoal_world(self->job), NULL));
    for (int i = 0; i < (int)(sizeof(cases) / sizeof(cases[0])) * 6; i++) {
        const struct parts_case *at = &cases[i / 6];
        library_fill(at->dtype, send, at->count * (size_t)self->of->size, self->rank, (uint64_t)i);
        memset(met, 0xab, 2 * PARTS_BYTES);
        GOOD(every_kind(shoal_world(self->job), at, i % 6, send, met, NULL));
        by_daemon(self, at, i % 6, send, daemons);
        ck_assert_msg(memcmp(met, daemons, PARTS_BYTES) == 0, "case %d, kind %d", i / 6, i % 6);
    }
    free(memory);
}

START_TEST(parts_both_ways)
{
    library_cluster_run(1, NULL, 2 << _i, both_ways, NULL);
}
END_TEST

/* Parts of any size, anywhere: those of one size meet. A rank whose own list differs from the
 * others' is named. */
static void lists(struct library_rank *self)
{
    int32_t send[3] = {1 + self->rank, 2, 3}, recv[3][3];
    void *const buffers[3] = {recv[2], recv[0], recv[1]};
    for (int round = 0; round < 40; round++) {
        size_t most = 1 + (size_t)round % 3;
        const size_t counts[3] = {most, round % 2 ? most : 1, most};
        memset(recv, 0, sizeof(recv));
        GOOD(shoal_all_gather_v(shoal_world(self->job), send, buffers, counts, SHOAL_I32, NULL));
        for (int i = 0; i < 3; i++) {
            const int32_t *got = buffers[i];
            ck_assert_int_eq(got[0], 1 + i);
            ck_assert_int_eq(got[1], counts[i] > 1 ? 2 : 0);
        }
    }
    size_t count = self->rank == 1 ? 2 : 1;
    BAD(shoal_all_gather(shoal_world(self->job), send, recv, count, SHOAL_I32, NULL),
        SHOAL_EMISMATCH, "rank 1");
}

START_TEST(parts_in_lists)
{
    library_cluster_run(1, NULL, 3, lists, NULL);
}
END_TEST

/* --- all ways at once ---------------------------------------------------------------------- */

static void was_called(void *argument, int result)
{
    __atomic_store_n((int *)argument, result == SHOAL_OK ? 1 : -1, __ATOMIC_SEQ_CST);
}

static size_t round_count(uint32_t round)
{
    return round % 13 == 5 ? LARGE : round % 29 == 7 ? PIECES : round % 7 + 1;
}

/* A collective of a round, whose kind and size are the same on all ranks. */
static int round_start(struct library_rank *self, shoal_group *group, uint32_t round, int64_t *data,
                       shoal_request **request)
{
    size_t count = round_count(round); /* a large one between */
    int size = shoal_group_size(group), root = (int)(round % (uint32_t)size);
    int64_t *own = data + (size_t)self->rank * count; /* of all that parts make */
    for (size_t i = 0; i < count * (round % 6 < 4 ? 1 : (size_t)size); i++)
        data[i] = (int64_t)(round * 1000 + i) * (self->rank + 1);
    switch (round % 6) {
    case 0:
        return shoal_barrier(group, request);
    case 1:
        return shoal_broadcast(group, data, count, SHOAL_I64, root, request);
    case 2:
        return shoal_reduce(group, data, data, count, SHOAL_I64, SHOAL_SUM, root, request);
    case 4:
        return shoal_all_gather(group, own, data, count, SHOAL_I64, request);
    case 5:
        return shoal_reduce_scatter(group, data, own, count, SHOAL_I64, SHOAL_SUM, request);
    default:
        return shoal_all_reduce(group, data, data, count, SHOAL_I64, SHOAL_MAX, request);
    }
}

static void round_check(struct library_rank *self, uint32_t round, const int64_t *data)
{
    size_t count = round_count(round);
    int64_t size = self->of->size, root = round % size;
    size_t first = round % 6 == 5 ? (size_t)self->rank * count : 0;
    size_t end = round % 6 == 4 ? (size_t)size * count : first + count;
    for (size_t i = first; i < end && round % 6 != 0; i++) {
        int64_t unit = (int64_t)(round * 1000 + i), wanted = unit * size;
        if (round % 6 == 1)
            wanted = unit * (root + 1);
        else if (round % 6 == 4)
            wanted = unit * (int64_t)(i / count + 1);
        else if (round % 6 == 5)
            wanted = unit * size * (size + 1) / 2;
        else if (round % 6 == 2)
            wanted = root == self->rank ? unit * size * (size + 1) / 2 : unit * (self->rank + 1);
        if (data[i] != wanted)
            ck_abort_msg("rank %d, round %u, element %zu: %lld, not %lld", self->rank, round, i,
                         (long long)data[i], (long long)wanted);
    }
}

/* Start one of a burst: its caller waits at once, or has it under way, perhaps with a callback. */
static void mixed_start(struct library_rank *self, uint64_t *seed, uint32_t round, int64_t *data,
                        shoal_request **request, int *called)
{
    bool at_once = random_next(seed) % 4 == 0;
    GOOD(round_start(self, shoal_world(self->job), round, data, at_once ? NULL : request));
    *called = 1;
    if (at_once || random_next(seed) % 3 > 0)
        return;
    *called = 0;
    GOOD(shoal_request_on_complete(*request, was_called, called));
}

static void mixed_end(uint64_t *seed, shoal_request *request, int *called)
{
    if (request && random_next(seed) % 4 == 0)
        while (shoal_test(request) == SHOAL_EAGAIN)
            come_late(50);
    if (request)
        GOOD(shoal_wait(request, -1));
    while (__atomic_load_n(called, __ATOMIC_SEQ_CST) == 0)
        come_late(50);
    ck_assert_int_eq(*called, 1);
}

/* By a seed of its own each rank waits at once, later, by tests, by a callback, or comes late. */
static void mixed(struct library_rank *self)
{
    uint64_t seed = *(uint64_t *)self->of->argument * 100 + (uint64_t)self->rank;
    const size_t each = (size_t)SIZE_MOST * PIECES;
    int64_t *data = calloc(BURST * each, sizeof(*data));
    ck_assert_ptr_nonnull(data);
    for (uint32_t round = 0; round < ROUNDS; round += BURST) {
        shoal_request *requests[BURST] = {NULL};
        int called[BURST];
        if (random_next(&seed) % 20 == 0)
            come_late((uint32_t)(random_next(&seed) % 15000));
        for (uint32_t i = 0; i < BURST; i++)
            mixed_start(self, &seed, round + i, data + i * each, &requests[i], &called[i]);
        for (uint32_t i = 0; i < BURST; i++)
            mixed_end(&seed, requests[i], &called[i]);
        for (uint32_t i = 0; i < BURST; i++)
            round_check(self, round + i, data + i * each);
    }
    free(data);
}

START_TEST(all_ways)
{
    uint64_t seed = (uint64_t)_i;
    library_cluster_run(1, NULL, _i % 2 ? 2 : 4, mixed, &seed);
}
END_TEST

/* Check that data which a rank has given is used though the rank does not wait, and does nothing,
 * meanwhile. */
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
    const size_t larger[] = {8, 30000, 3 * PIECES};
    int large = *(int *)self->of->argument;
    static int32_t data[LIBRARY_RANKS_MAX][3 * PIECES];
    for (int round = 0; round < 5; round++) /* by then they meet */
        GOOD(shoal_barrier(shoal_world(self->job), NULL));
    size_t count = self->rank == 2 ? larger[large] : large == 2 ? 3 * PIECES - 1 : 7;
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

/* A rank that dies in the middle of a round, or between two (killed: whenever that is), is named to
 * all others. */
static void dies(const char *way, uint32_t size)
{
    struct cluster *cluster = cluster_start(1, NULL);
    struct process *workers[LIBRARY_RANKS_MAX];
    char file[] = "/tmp/shoal-meeting-XXXXXX", name[32];
    ck_assert_int_eq(close(mkstemp(file)), 0);
    bool killed = strcmp(way, "killed") == 0;
    const char *argv[] = {CLUSTER_HELPER, killed ? "coming" : way, killed ? "/nowhere" : file,
                          NULL};
    cluster_job(cluster, "victim", size, argv, workers);
    if (killed) {
        ck_assert(process_wait_text(workers[size - 1], "running", CLUSTER_PATIENCE_MS));
        process_signal(workers[size - 1], SIGKILL);
    }
    snprintf(name, sizeof(name), "rank %u", size - 1);
    for (uint32_t i = 0; i < size; i++) {
        int code = process_wait(workers[i], CLUSTER_PATIENCE_MS);
        bool last = i == size - 1;
        ck_assert_msg(last ? code != 0 && code != 7
                           : code == 7 && strstr(process_output(workers[i]), name),
                      "rank %u: %d %s", i, code, process_output(workers[i]));
        process_free(workers[i]);
    }
    unlink(file);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}

START_TEST(a_rank_that_dies)
{
    static const char *const ways[] = {"coming", "taking", "passing", "killed"};
    dies(ways[_i % 4], _i < 4 ? 2 : 4);
}
END_TEST

/* A rank that stops there and lives is named to all others, after timeouts.collective_ms. */
START_TEST(a_rank_that_stops)
{
    static const char *const ways[] = {"stops coming", "stops taking", "stops passing"};
    uint32_t size = _i < 3 ? 2 : 4;
    char file[] = "/tmp/shoal-meeting-XXXXXX", text[64];
    struct process *workers[LIBRARY_RANKS_MAX];
    struct cluster *cluster = cluster_start(1, "{\"timeouts\":{\"collective_ms\":2500}}");
    ck_assert_int_eq(close(mkstemp(file)), 0);
    const char *argv[] = {CLUSTER_HELPER, ways[_i % 3], file, NULL};
    cluster_job(cluster, "victim", size, argv, workers);
    /* The rank "has not reached" a collective that came to the daemon; it "does not go on in" any
     * other. */
    snprintf(text, sizeof(text), "rank %u (the first on node node0) ", size - 1);
    for (uint32_t i = 0; i < size - 1; i++) {
        int code = process_wait(workers[i], CLUSTER_PATIENCE_MS);
        ck_assert_msg(code == 7 && strstr(process_output(workers[i]), text), "rank %u: %d %s", i,
                      code, process_output(workers[i]));
        process_free(workers[i]);
    }
    process_signal(workers[size - 1], SIGKILL);
    process_wait(workers[size - 1], CLUSTER_PATIENCE_MS);
    process_free(workers[size - 1]);
    unlink(file);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

/* --- what the daemon knows of it ------------------------------------------------------------ */

static json_int_t figure(const json_t *status, const char *key)
{
    const json_t *job = json_array_get(json_object_get(status, "jobs"), 0);
    return json_integer_value(json_object_get(job, key));
}

/* Return how many bytes of all ranks the daemon has counted, once they are `bytes` or more. */
static json_int_t bytes_from(struct cluster *cluster, json_int_t bytes)
{
    json_int_t counted = -1;
    while (counted < bytes) {
        json_t *status = cluster_status(cluster, 0);
        counted = figure(status, "bytes");
        json_decref(status);
    }
    return counted;
}

/* When it has counted `collectives`, met or not: how many met. */
static json_int_t met_of(struct cluster *cluster, json_int_t collectives)
{
    json_int_t met = -1;
    while (met < 0) {
        json_t *status = cluster_status(cluster, 0);
        if (figure(status, "collectives") >= collectives)
            met = figure(status, "met_collectives");
        json_decref(status);
    }
    return met;
}

/* One collective of every kind: how many of the five met. Whether or not they do, each is counted,
 * with the bytes that it has when the daemon does it. A rank that a busy machine keeps away for too
 * long lets none meet. */
static json_int_t every_kind_counted(struct library_rank *self, size_t count)
{
    const struct parts_case at = {SHOAL_F32, SHOAL_SUM, count, 1};
    const json_int_t bytes = (2 * 4 * 4 + 2 * 2 * 3 + 2 * 4 * 3) * (json_int_t)count * 4;
    struct cluster *cluster = self->of->cluster;
    uint8_t *send = calloc(4 * count, 4), *recv = calloc(4 * count, 4);
    static json_int_t collectives, before, met;
    ck_assert(send && recv);
    if (library_meet(self)) {
        json_t *status = cluster_status(cluster, 0);
        collectives = figure(status, "collectives");
        before = figure(status, "bytes");
        met = figure(status, "met_collectives");
        json_decref(status);
    }
    library_meet(self);
    for (int kind = 0; kind < 5; kind++)
        GOOD(every_kind(shoal_world(self->job), &at, kind, send, recv, NULL));
    if (library_meet(self)) {
        met = met_of(cluster, collectives + 5) - met;
        ck_assert_int_eq(bytes_from(cluster, before + bytes), before + bytes);
    }
    library_meet(self);
    free(send);
    free(recv);
    return met;
}

/* A collective that has met is counted as if the daemon had done it. */
static void counted(struct library_rank *self)
{
    while (every_kind_counted(self, 5) < 5)
        ; /* until there is a place, and nobody is late */
    while (every_kind_counted(self, 2 * PIECES) < 5)
        ;
    /* The daemon tells a rank that has the descriptor of all completions. */
    ck_assert_int_ge(shoal_completions_descriptor(self->job), 0);
    ck_assert_int_eq(every_kind_counted(self, 5), 0);
}

START_TEST(the_daemon_counts_what_met)
{
    library_cluster_run(1, NULL, 4, counted, NULL);
}
END_TEST

/* --- many under way ------------------------------------------------------------------------- */

#define MANY 50

struct many_call {
    pthread_t by;
    int result; /* 0: not called */
};

static void many_called(void *argument, int result)
{
    struct many_call *call = argument;
    call->by = pthread_self();
    __atomic_store_n(&call->result, result == SHOAL_OK ? 1 : -1, __ATOMIC_SEQ_CST);
}

/* Meanwhile its group may be closed. */
static void slowly_called(void *argument, int result)
{
    come_late(100);
    many_called(argument, result);
}

/* Many of a group under way at once; with `calls` nobody waits for them. How many met. */
static json_int_t many_once(struct library_rank *self, shoal_group *group, struct many_call *calls)
{
    shoal_request *requests[MANY];
    int at_once[MANY];
    int32_t data[MANY];
    static json_int_t before, collectives, met;
    if (library_meet(self)) {
        json_t *status = cluster_status(self->of->cluster, 0);
        collectives = figure(status, "collectives");
        before = figure(status, "met_collectives");
        json_decref(status);
    }
    library_meet(self);
    for (int i = 0; i < MANY; i++) {
        data[i] = self->rank + i;
        GOOD(shoal_all_reduce(group, &data[i], &data[i], 1, SHOAL_I32, SHOAL_SUM, &requests[i]));
        if (!calls)
            continue;
        calls[i].result = 0;
        GOOD(shoal_request_on_complete(requests[i], many_called, &calls[i]));
        at_once[i] = __atomic_load_n(&calls[i].result, __ATOMIC_SEQ_CST);
    }
    for (int i = 0; i < MANY && calls; i++) {
        while (__atomic_load_n(&calls[i].result, __ATOMIC_SEQ_CST) == 0)
            come_late(50);
        /* A call that starts another one calls nobody back. */
        if (at_once[i] == 0)
            ck_assert(!pthread_equal(calls[i].by, pthread_self()));
        ck_assert_int_eq(calls[i].result, 1);
    }
    for (int i = 0; i < MANY; i++) {
        if (calls)
            shoal_request_free(requests[i]);
        else
            GOOD(shoal_wait(requests[i], -1));
        ck_assert_int_eq(data[i], 3 * i + 3);
    }
    if (library_meet(self))
        met = met_of(self->of->cluster, collectives + MANY) - before;
    library_meet(self);
    return met;
}

/* Start many, which meet one after another, as soon as there is a place, until somebody is late. */
static void many(struct library_rank *self)
{
    struct many_call calls[MANY] = {0};
    shoal_group *group = shoal_world(self->job);
    bool called = *(int *)self->of->argument;
    while (many_once(self, group, called ? calls : NULL) < MANY / 2)
        ;
}

START_TEST(many_under_way)
{
    int called = _i;
    library_cluster_run(1, NULL, 3, many, &called);
}
END_TEST

/* Callbacks of two groups, one of which the library's thread waits for; the groups are closed while
 * it may still be in callbacks of theirs, and others take their memory. */
static void groups_called(struct library_rank *self)
{
    for (int again = 0; again < 30; again++) {
        shoal_group *groups[2];
        struct many_call calls[2][4] = {0};
        shoal_request *requests[2][4];
        int32_t data[2][4];
        for (int g = 0; g < 2; g++) {
            GOOD(shoal_group_open(self->job, library_in_order, 3, -1, &groups[g]));
            for (int i = 0; i < 3; i++)
                GOOD(shoal_barrier(groups[g], NULL));
        }
        for (int i = 0; i < 8; i++) {
            int32_t *one = &data[i % 2][i / 2];
            *one = self->rank + i;
            GOOD(shoal_all_reduce(groups[i % 2], one, one, 1, SHOAL_I32, SHOAL_SUM,
                                  &requests[i % 2][i / 2]));
            if (i % 4 < 2)
                GOOD(shoal_request_on_complete(requests[i % 2][i / 2], slowly_called,
                                               &calls[i % 2][i / 2]));
        }
        for (int i = 7; i >= 0; i--) {
            GOOD(shoal_wait(requests[i % 2][i / 2], -1));
            ck_assert_int_eq(data[i % 2][i / 2], 3 * i + 3);
        }
        for (int g = 0; g < 2; g++)
            GOOD(shoal_group_close(groups[g]));
        for (int i = 0; i < 8; i++) /* they are on this thread's stack */
            while (i % 4 < 2 && __atomic_load_n(&calls[i % 2][i / 2].result, __ATOMIC_SEQ_CST) == 0)
                come_late(20);
    }
}

START_TEST(callbacks_of_two_groups)
{
    library_cluster_run(1, NULL, 3, groups_called, NULL);
}
END_TEST

/* The place is memory that limits.memory_bytes counts. Without one everything goes to the daemon.
 */
static void no_place(struct library_rank *self)
{
    int64_t value = 1;
    for (int round = 0; round < 20; round++)
        GOOD(shoal_all_reduce(shoal_world(self->job), &value, &value, 1, SHOAL_I64, SHOAL_MAX,
                              NULL));
    if (library_meet(self)) {
        json_t *status = cluster_status(self->of->cluster, 0);
        ck_assert_int_eq(figure(status, "met_collectives"), 0);
        json_decref(status);
    }
    library_meet(self);
}

START_TEST(no_memory_for_a_place)
{
    library_cluster_run(1, "{\"limits\":{\"memory_bytes\":2097152}}", 16, no_place, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("library_meeting");
    TCase *core = tcase_create("core");
    tcase_set_timeout(core, 120);
    tcase_add_test(core, types_and_reductions);
    tcase_add_loop_test(core, parts_both_ways, 0, 3);
    tcase_add_test(core, parts_in_lists);
    tcase_add_loop_test(core, all_ways, 0, 4);
    tcase_add_test(core, a_rank_that_does_not_wait);
    tcase_add_test(core, fusion_waits_for_one_that_met);
    tcase_add_loop_test(core, ranks_that_disagree, 0, 3);
    tcase_add_test(core, a_wait_that_timed_out);
    tcase_add_loop_test(core, a_rank_that_dies, 0, 8);
    tcase_add_loop_test(core, a_rank_that_stops, 0, 6);
    tcase_add_test(core, the_daemon_counts_what_met);
    tcase_add_loop_test(core, many_under_way, 0, 2);
    tcase_add_test(core, callbacks_of_two_groups);
    tcase_add_test(core, no_memory_for_a_place);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
