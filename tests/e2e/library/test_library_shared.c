/* Results that the ranks of a node share, against real daemons. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "common/reduce/dtype.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/library_job.h"

#define LARGEST 50021
#define BEFORE 192 /* bytes of the shared memory before the largest result */
#define BYTES ((size_t)LARGEST * 8 + BEFORE + 64)
#define MIB ((size_t)1 << 20)

static const size_t counts[] = {0, 1, 1000, LARGEST};
#define COUNTS (sizeof(counts) / sizeof(counts[0]))

static const struct library_shape shapes[] = {
    {1, 4, NULL},
    {2, 2, NULL},
    {2, 2, "{\"data\": {\"chunk_bytes\": 4096, \"least_shard_bytes\": 64}}"},
    {1, 2, "{\"data\": {\"reduce_threads\": 0}}"},
    {2, 1, NULL},
};
#define SHAPES ((int)(sizeof(shapes) / sizeof(shapes[0])))

static const uint8_t *share(shoal_group *group, size_t bytes)
{
    const void *shared = shoal_shared_alloc(group, bytes);
    ck_assert_msg(shared != NULL, "%s", shoal_error_text());
    return shared;
}

static uint8_t *at(const uint8_t *shared, size_t offset)
{
    return (uint8_t *)(uintptr_t)shared + offset;
}

/* shoal_shared_alloc gives nothing, with these words. */
static void refused(shoal_group *group, size_t bytes, const char *words)
{
    ck_assert_ptr_null(shoal_shared_alloc(group, bytes));
    ck_assert_msg(strstr(shoal_error_text(), words) != NULL, "%s", shoal_error_text());
}

/* --- results ------------------------------------------------------------------------------- */

struct sums {
    const uint8_t *shared;
    uint8_t *private_send, *arena_send;
};

static void check_sum(const struct library_rank *self, const struct sums *sums, size_t offset,
                      size_t bytes, const char *what)
{
    const uint8_t *expected = self->of->argument;
    if (memcmp(sums->shared + offset, expected, bytes) != 0)
        ck_abort_msg("rank %d: %s: not the sum", self->rank, what);
    for (size_t i = 0; i < BYTES; i++)
        if ((i < BEFORE || i >= BEFORE + (size_t)LARGEST * 8) && sums->shared[i] != 0)
            ck_abort_msg("rank %d: %s: byte %zu was written to", self->rank, what, i);
}

/* The ranks' data lies in the arena, or privately, or some of it here and some there. */
static void sum_once(struct library_rank *self, const struct sums *sums, enum shoal_dtype dtype,
                     enum shoal_op op, size_t count, uint64_t seed)
{
    size_t offset = BEFORE + 64 * (size_t)(seed % 3);
    size_t bytes = count * shoal_dtype_bytes(dtype);
    char what[96];
    if (offset + bytes > BEFORE + (size_t)LARGEST * 8)
        offset = BEFORE;
    snprintf(what, sizeof(what), "%s %s count %zu seed %d", dtype_name(dtype), reduce_op_name(op),
             count, (int)seed);
    if (library_meet(self))
        library_expect(self->of, library_in_order, self->of->size, dtype, op, count, seed,
                       self->of->argument);
    library_meet(self);
    bool in_arena = seed % 3 == 0 || (seed % 3 == 1 && self->rank % 2 == 0);
    uint8_t *send = in_arena ? sums->arena_send : sums->private_send;
    library_fill(dtype, send, count, self->rank, seed);
    GOOD(shoal_all_reduce(shoal_world(self->job), send, at(sums->shared, offset), count, dtype, op,
                          NULL));
    check_sum(self, sums, offset, bytes, what);
    uint8_t *again = malloc(bytes + 1);
    ck_assert_ptr_nonnull(again);
    library_fill(dtype, again, count, self->rank, seed);
    if (memcmp(send, again, bytes) != 0)
        ck_abort_msg("%s: what was sent has changed", what);
    free(again);
    library_meet(self);
}

static void every_sum(struct library_rank *self)
{
    struct sums sums = {.shared = share(shoal_world(self->job), BYTES),
                        .private_send = malloc(BYTES),
                        .arena_send = shoal_alloc(self->job, BYTES)};
    ck_assert(sums.private_send && sums.arena_send);
    uint64_t seed = 0;
    for (size_t i = 0; i < COUNTS; i++)
        for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++)
            for (unsigned op = SHOAL_SUM; op <= SHOAL_MAX; op += 1 + (i > 1))
                sum_once(self, &sums, (enum shoal_dtype)dtype, (enum shoal_op)op, counts[i],
                         seed++);
    free(sums.private_send);
    GOOD(shoal_shared_free(shoal_world(self->job), sums.shared));
    shoal_free(self->job, sums.arena_send);
}

START_TEST(results_are_the_sums_wherever_the_data_lies)
{
    void *expected = malloc(BYTES);
    ck_assert_ptr_nonnull(expected);
    library_shape_run(&shapes[_i], every_sum, expected);
    free(expected);
}
END_TEST

/* A result is there as long as one of the node's ranks has not started what comes next, and can be
 * summed again, into the same place. */
static void sums_of_sums(struct library_rank *self)
{
    shoal_group *world = shoal_world(self->job);
    int64_t *own = shoal_alloc(self->job, 100 * sizeof(*own));
    const int64_t *shared = (const int64_t *)(const void *)share(world, 100 * sizeof(*own));
    int64_t expected = 0;
    for (int i = 0; i < 100; i++)
        own[i] = self->rank + i;
    for (int round = 0; round < 20; round++) {
        const void *send = round == 0 ? (const void *)own : shared;
        GOOD(shoal_all_reduce(world, send, (void *)(uintptr_t)shared, 100, SHOAL_I64, SHOAL_SUM,
                              NULL));
        int size = self->of->size;
        expected = round == 0 ? size * (size - 1) / 2 : expected * size;
        int64_t at_7 = round == 0 ? 7 * size : 0;
        for (int r = 0; r < round; r++)
            at_7 = r == 0 ? 7 * (int64_t)size * size : at_7 * size;
        ck_assert_int_eq(shared[0], expected);
        ck_assert_int_eq(shared[7] - shared[0], at_7);
        if (round > 12) /* before it overflows */
            break;
    }
    shoal_free(self->job, own);
}

START_TEST(a_result_can_be_summed_in_its_place)
{
    library_shape_run(&shapes[_i], sums_of_sums, NULL);
}
END_TEST

/* Several pieces, groups whose ranks are in other orders, priorities, requests under way at once.
 */
static void in_groups(struct library_rank *self)
{
    enum { PIECES = 8, COUNT = 5003 };
    int ranks[2] = {self->rank % 2 + 2, self->rank % 2}; /* 2, 0 and 3, 1 */
    shoal_group *group, *world = shoal_world(self->job);
    GOOD(shoal_group_open(self->job, ranks, 2, -1, &group));
    const float *of_world = (const float *)(const void *)share(world, (size_t)PIECES * 32768);
    const float *of_group = (const float *)(const void *)share(group, (size_t)PIECES * 32768);
    float *send = shoal_alloc(self->job, COUNT * sizeof(*send));
    for (int i = 0; i < COUNT; i++)
        send[i] = (float)(self->rank + 1);
    for (int round = 0; round < 10; round++) {
        shoal_request *requests[2 * PIECES];
        for (int i = 0; i < PIECES; i++) {
            GOOD(shoal_group_set_priority(i % 2 ? world : group, (uint32_t)(PIECES - i)));
            GOOD(shoal_all_reduce(world, send, at((const void *)of_world, (size_t)i * 32768), COUNT,
                                  SHOAL_F32, SHOAL_SUM, &requests[i]));
            GOOD(shoal_all_reduce(group, send, at((const void *)of_group, (size_t)i * 32768), COUNT,
                                  SHOAL_F32, SHOAL_MAX, &requests[PIECES + i]));
        }
        if (round == 0)
            BAD(shoal_group_close(group), SHOAL_ESTATE, "under way");
        for (int i = 0; i < 2 * PIECES; i++)
            GOOD(shoal_wait(requests[i], -1));
        for (int i = 0; i < PIECES * 8192; i++) {
            bool inside = i % 8192 < COUNT;
            ck_assert(of_world[i] == (inside ? 10.0f : 0.0f));
            ck_assert(of_group[i] == (inside ? (float)(self->rank % 2 + 3) : 0.0f));
        }
        library_meet(self);
    }
    GOOD(shoal_group_close(group));
    shoal_free(self->job, send);
}

START_TEST(groups_and_priorities)
{
    library_shape_run(&shapes[_i], in_groups, NULL);
}
END_TEST

/* --- what is refused ----------------------------------------------------------------------- */

static void misuse(struct library_rank *self)
{
    shoal_group *group, *world = shoal_world(self->job);
    int everyone[] = {0, 1};
    GOOD(shoal_group_open(self->job, everyone, 2, -1, &group));
    float *own = shoal_alloc(self->job, 4096);
    uint8_t *shared = at(share(world, 8192), 0);
    void *parts[] = {shared, own + 64};
    size_t sizes[] = {4, 4};
    int peer = 1 - self->rank, source;
    const char *words = "only an all_reduce writes to";
    BAD(shoal_broadcast(world, shared, 4, SHOAL_F32, peer, NULL), SHOAL_EINVALID, words);
    BAD(shoal_reduce(world, own, shared, 4, SHOAL_F32, SHOAL_SUM, self->rank, NULL), SHOAL_EINVALID,
        words);
    BAD(shoal_all_gather(world, own, shared + 64, 4, SHOAL_F32, NULL), SHOAL_EINVALID, words);
    BAD(shoal_all_gather_v(world, own, parts, sizes, SHOAL_F32, NULL), SHOAL_EINVALID, words);
    BAD(shoal_reduce_scatter(world, own, shared, 4, SHOAL_F32, SHOAL_SUM, NULL), SHOAL_EINVALID,
        words);
    BAD(shoal_gather(world, own, shared, 4, SHOAL_F32, self->rank, NULL), SHOAL_EINVALID, words);
    BAD(shoal_scatter(world, own, shared, 4, SHOAL_F32, peer, NULL), SHOAL_EINVALID, words);
    BAD(shoal_all_to_all(world, own, shared, 4, SHOAL_F32, NULL), SHOAL_EINVALID, words);
    BAD(shoal_recv(world, shared, 4, SHOAL_F32, peer, 0, NULL), SHOAL_EINVALID, words);
    BAD(shoal_recv_any(world, shared + 8188, 4, SHOAL_F32, 0, &source, NULL), SHOAL_EINVALID,
        words);
    BAD(shoal_all_reduce(world, own, shared + 4, 4, SHOAL_F32, SHOAL_SUM, NULL), SHOAL_EINVALID,
        "at a multiple of 64");
    BAD(shoal_all_reduce(world, own, shared + 8128, 17, SHOAL_F32, SHOAL_SUM, NULL), SHOAL_EINVALID,
        "must be inside");
    BAD(shoal_all_reduce(world, own, shared - 64, 17, SHOAL_F32, SHOAL_SUM, NULL), SHOAL_EINVALID,
        "must be inside");
    BAD(shoal_all_reduce(group, own, shared, 4, SHOAL_F32, SHOAL_SUM, NULL), SHOAL_EINVALID,
        "of group 0, not of group 1");
    BAD(shoal_shared_free(world, shared + 64), SHOAL_EINVALID, "not shared memory of group 0");
    BAD(shoal_shared_free(group, shared), SHOAL_EINVALID, "not shared memory of group 1");
    BAD(shoal_shared_free(NULL, shared), SHOAL_EINVALID, "the group is NULL");
    GOOD(shoal_shared_free(world, NULL));
    refused(world, 0, "0 bytes");
    refused(NULL, 64, "the group is NULL");
    /* None of it has started anything; and what is sent may lie there. */
    GOOD(shoal_all_reduce(world, own, shared, 1024, SHOAL_F32, SHOAL_SUM, NULL));
    GOOD(shoal_broadcast(world, self->rank == 0 ? (void *)shared : own, 4, SHOAL_F32, 0, NULL));
    GOOD(shoal_shared_free(world, shared));
    BAD(shoal_shared_free(world, shared), SHOAL_EINVALID, "not shared memory");
    shoal_free(self->job, own);
}

START_TEST(what_cannot_be_is_refused_and_changes_nothing)
{
    library_cluster_run(1, NULL, 2, misuse, NULL);
}
END_TEST

/* The mapping cannot be made writable, and is nothing that a descriptor is open for. */
static void write_to_it(struct library_rank *self)
{
    uint8_t *shared = at(share(shoal_world(self->job), 65536), 0);
    ck_assert_int_eq(mprotect(shared, 65536, PROT_READ | PROT_WRITE), -1);
    ck_assert_int_eq(errno, EACCES);
    ck_assert_int_eq(shared[0], 0);
}

START_TEST(ranks_cannot_write)
{
    library_cluster_run(1, NULL, 2, write_to_it, NULL);
}
END_TEST

/* Freeing waits for this rank's own collectives. */
static void free_too_early(struct library_rank *self)
{
    shoal_group *world = shoal_world(self->job);
    float *own = shoal_alloc(self->job, 4096);
    const uint8_t *shared = share(world, 4096);
    shoal_request *request;
    if (self->rank == 0) {
        GOOD(shoal_all_reduce(world, own, at(shared, 0), 1024, SHOAL_F32, SHOAL_SUM, &request));
        BAD(shoal_shared_free(world, shared), SHOAL_ESTATE, "under way");
        library_meet(self);
    } else {
        library_meet(self);
        GOOD(shoal_all_reduce(world, own, at(shared, 0), 1024, SHOAL_F32, SHOAL_SUM, &request));
    }
    GOOD(shoal_wait(request, -1));
    GOOD(shoal_shared_free(world, shared));
    shoal_free(self->job, own);
}

START_TEST(what_is_in_use_is_not_freed)
{
    library_cluster_run(1, NULL, 2, free_too_early, NULL);
}
END_TEST

/* --- ranks that do not agree --------------------------------------------------------------- */

static void other_places(struct library_rank *self)
{
    shoal_group *world = shoal_world(self->job);
    float *own = shoal_alloc(self->job, 4096);
    const uint8_t *shared = share(world, 8192), *other = share(world, 8192);
    library_meet(self); /* or a node is told of the failure before it has asked */
    int last = self->of->size - 1;
    void *place = self->rank == last       ? (void *)own
                  : self->rank == last - 1 ? at(other, 64)
                                           : at(shared, 128);
    int code = shoal_all_reduce(world, own, place, 1000, SHOAL_F32, SHOAL_SUM, NULL);
    char words[128];
    ck_assert_int_eq(code, SHOAL_EMISMATCH);
    snprintf(words, sizeof(words),
             "rank %d gave shared memory 1 at offset 64; rank %d gave memory "
             "of its own",
             last - 1, last);
    ck_assert_msg(strstr(shoal_error_text(), words) != NULL, "%s", shoal_error_text());
    if (self->of->cluster->count == 1)
        ck_assert_msg(
            strstr(shoal_error_text(),
                   "the result of collective 0 of group 0 goes to different places on the "
                   "ranks of node node0: ranks 0, 1 gave shared memory 0 at offset 128; ") != NULL,
            "%s", shoal_error_text());
    /* The memory is still there to be read, and can be given back. */
    ck_assert_int_eq(shared[8191] + other[8191], 0);
    GOOD(shoal_shared_free(world, other));
    refused(world, 8192, "goes to different places");
    shoal_free(self->job, own);
}

START_TEST(places_that_differ_on_a_node)
{
    library_shape_run(&shapes[_i], other_places, NULL);
}
END_TEST

/* Every node has a place of its own. */
static void own_places(struct library_rank *self)
{
    shoal_group *world = shoal_world(self->job);
    float *own = shoal_alloc(self->job, 4096), *result = shoal_alloc(self->job, 4096);
    for (int i = 0; i < 1000; i++)
        own[i] = (float)(self->rank + 1);
    const uint8_t *shared = share(world, 8192);
    void *place = self->rank < 2 ? (void *)at(shared, 4096) : result;
    GOOD(shoal_all_reduce(world, own, place, 1000, SHOAL_F32, SHOAL_SUM, NULL));
    for (int i = 0; i < 1000; i++)
        ck_assert(((float *)place)[i] == 10.0f);
    shoal_free(self->job, own);
    shoal_free(self->job, result);
}

START_TEST(places_may_differ_from_node_to_node)
{
    library_cluster_run(2, NULL, 2, own_places, NULL);
}
END_TEST

static void other_bytes(struct library_rank *self)
{
    shoal_group *world = shoal_world(self->job);
    const uint8_t *shared;
    if (self->rank == 0) {
        shared = share(world, 8192);
        library_meet(self);
        library_meet(self);
    } else {
        library_meet(self);
        refused(world, 4096, "rank 0 asked for 8192 bytes, rank 1 for 4096");
        library_meet(self);
        shared = share(world, 8192); /* the same piece */
    }
    int32_t *own = shoal_alloc(self->job, 64);
    *own = 21;
    GOOD(shoal_all_reduce(world, own, at(shared, 64), 1, SHOAL_I32, SHOAL_SUM, NULL));
    ck_assert_int_eq(*(const int32_t *)(const void *)(shared + 64), 42);
    shoal_free(self->job, own);
}

START_TEST(bytes_that_differ)
{
    library_cluster_run(1, NULL, 2, other_bytes, NULL);
}
END_TEST

/* --- memory -------------------------------------------------------------------------------- */

static int64_t reserved(struct cluster *cluster)
{
    json_t *status = cluster_status(cluster, 0);
    ck_assert_ptr_nonnull(status);
    int64_t bytes =
        json_integer_value(json_object_get(json_object_get(status, "memory"), "reserved_bytes"));
    json_decref(status);
    return bytes;
}

/* The status is a picture that is made ten times a second. */
static bool nothing_reserved(const json_t *status)
{
    return json_integer_value(
               json_object_get(json_object_get(status, "memory"), "reserved_bytes")) == 0;
}

static bool much_reserved(const json_t *status)
{
    return json_integer_value(json_object_get(json_object_get(status, "memory"),
                                              "reserved_bytes")) == 10 * (int64_t)MIB;
}

static void over_the_limit(struct library_rank *self)
{
    shoal_group *world = shoal_world(self->job);
    struct cluster *cluster = self->of->cluster;
    refused(world, 33 * MIB, "limits.memory_bytes of node node0 is 33554432");
    library_meet(self);
    const uint8_t *first = share(world, 20 * MIB);
    library_meet(self); /* both have it */
    refused(world, 13 * MIB, " has 20971520 and asks for 13631488 more; end some of them first");
    library_meet(self);
    GOOD(shoal_shared_free(world, first));
    ck_assert(cluster_wait_status(cluster, 0, nothing_reserved, CLUSTER_PATIENCE_MS));
    library_meet(self);
    const uint8_t *second = share(world, 32 * MIB);
    library_meet(self);
    ck_assert_int_eq(second[32 * MIB - 1], 0);
    GOOD(shoal_shared_free(world, second));
    library_meet(self);
    ck_assert(cluster_wait_status(cluster, 0, nothing_reserved, CLUSTER_PATIENCE_MS));
    library_meet(self);
}

START_TEST(memory_has_a_limit)
{
    library_cluster_run(1, "{\"limits\": {\"memory_bytes\": 33554432}}", 2, over_the_limit, NULL);
}
END_TEST

struct descriptors {
    pid_t pid;
    int most;
};

/* A connection that asked for the status closes a moment after it has had it. */
static bool no_more_than_before(void *context)
{
    const struct descriptors *descriptors = context;
    return process_descriptor_count(descriptors->pid) <= descriptors->most;
}

/* Return how much shared memory the daemon has mapped: how much else it has is the allocator's
 * doing, and depends on how much was under way at once. */
static int64_t mapped_bytes(const struct library_rank *self)
{
    return process_mapped_bytes(self->of->cluster->nodes[0].daemon->pid, "shoal-shared");
}

/* A thread gives it back, after the exchange has let go of it. */
static bool nothing_mapped(void *context)
{
    return mapped_bytes(context) == 0;
}

/* One uses the piece, the daemon writes all of it, then all is as before. */
static void use_and_free(struct library_rank *self, void *send, size_t bytes)
{
    shoal_group *world = shoal_world(self->job);
    const uint8_t *shared = share(world, bytes);
    GOOD(shoal_all_reduce(world, send, at(shared, 0), bytes, SHOAL_U8, SHOAL_MAX, NULL));
    ck_assert_int_eq(shared[bytes - 1], 3);
    ck_assert_int_ge(mapped_bytes(self), (int64_t)bytes); /* all that was not given back besides */
    GOOD(shoal_shared_free(world, shared));
}

static void again_and_again(struct library_rank *self)
{
    struct cluster *cluster = self->of->cluster;
    pid_t daemon = cluster->nodes[0].daemon->pid;
    uint8_t *send = shoal_alloc(self->job, 8 * MIB);
    memset(send, self->rank + 2, 8 * MIB);
    use_and_free(self, send, 8 * MIB);
    library_meet(self);
    ck_assert(cluster_wait_status(cluster, 0, nothing_reserved, CLUSTER_PATIENCE_MS));
    library_meet(self);
    ck_assert(wait_until(nothing_mapped, self, CLUSTER_PATIENCE_MS));
    struct descriptors before = {.pid = daemon, .most = process_descriptor_count(daemon)};
    library_meet(self);
    for (int i = 0; i < 20; i++)
        use_and_free(self, send, 8 * MIB);
    library_meet(self);
    ck_assert(cluster_wait_status(cluster, 0, nothing_reserved, CLUSTER_PATIENCE_MS));
    ck_assert(wait_until(nothing_mapped, self, CLUSTER_PATIENCE_MS));
    library_meet(self); /* nobody asks for the status, which takes a descriptor */
    ck_assert(wait_until(no_more_than_before, &before, CLUSTER_PATIENCE_MS));
    library_meet(self);
    /* A piece that is not freed goes with the job. */
    share(shoal_world(self->job), 10 * MIB);
    library_meet(self);
    ck_assert(cluster_wait_status(cluster, 0, much_reserved, CLUSTER_PATIENCE_MS));
    library_meet(self);
    shoal_free(self->job, send);
}

START_TEST(memory_is_given_back)
{
    struct cluster *cluster = cluster_start(1, NULL);
    for (int i = 0; i < 2; i++) {
        library_job_run(cluster, "memory", 2, again_and_again, NULL);
        ck_assert(cluster_wait_status(cluster, 0, nothing_reserved, CLUSTER_PATIENCE_MS));
    }
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

/* A rank that never asks for a piece gives up its right to it when it leaves, or closes the group.
 */
static void some_never_ask(struct library_rank *self)
{
    struct cluster *cluster = self->of->cluster;
    int ranks[] = {0, 1, 2};
    shoal_group *group;
    GOOD(shoal_group_open(self->job, ranks, 3, -1, &group));
    if (self->rank == 0) {
        GOOD(shoal_shared_free(group, share(group, MIB)));
        share(shoal_world(self->job), MIB);
        ck_assert_int_ge(reserved(cluster), 0);
    }
    if (self->rank == 1)
        share(group, MIB);
    GOOD(shoal_group_close(group));
    library_meet(self);
    if (self->rank == 0)
        GOOD(shoal_barrier(shoal_world(self->job), NULL));
    else
        GOOD(shoal_barrier(shoal_world(self->job), NULL));
}

START_TEST(memory_that_some_never_ask_for)
{
    struct cluster *cluster = cluster_start(1, NULL);
    library_job_run(cluster, "memory", 3, some_never_ask, NULL);
    ck_assert(cluster_wait_status(cluster, 0, nothing_reserved, CLUSTER_PATIENCE_MS));
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

/* --- failures ------------------------------------------------------------------------------ */

/* The job runs; then the victim, a rank or a daemon (-1: node 0's), is killed. Everybody else hears
 * of it, and can read what it has (the helper looks). */
static void kill_one(uint32_t nodes, int victim, const char *count)
{
    struct cluster *cluster = cluster_start(nodes, NULL);
    struct process *workers[8];
    const char *nowhere = "/nowhere", *argv[] = {CLUSTER_HELPER, "shared", nowhere, count, NULL};
    uint32_t size = 4;
    cluster_job(cluster, "victim", size / nodes, argv, workers);
    for (uint32_t i = 0; i < size; i++)
        ck_assert_msg(process_wait_text(workers[i], "running", CLUSTER_PATIENCE_MS), "%s",
                      process_output(workers[i]));
    struct process *killed = victim < 0 ? cluster->nodes[0].daemon : workers[victim];
    process_signal(killed, SIGKILL);
    ck_assert_int_eq(process_wait(killed, CLUSTER_PATIENCE_MS), 128 + SIGKILL);
    for (uint32_t i = 0; i < size; i++) {
        if ((int)i == victim)
            continue;
        int code = process_wait(workers[i], CLUSTER_PATIENCE_MS);
        ck_assert_msg(code == 7 && strstr(process_output(workers[i]), "gone"), "rank %u: %d %s", i,
                      code, process_output(workers[i]));
    }
    for (uint32_t i = 0; i < size; i++)
        process_free(workers[i]);
    for (uint32_t node = victim < 0 ? 1 : 0; node < nodes; node++)
        ck_assert(cluster_wait_status(cluster, node, nothing_reserved, CLUSTER_PATIENCE_MS));
    if (victim >= 0)
        ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}

START_TEST(a_rank_is_killed)
{
    kill_one((uint32_t)_i, 1, "10007");
    kill_one((uint32_t)_i, 3, "1000003");
}
END_TEST

START_TEST(a_daemon_is_killed)
{
    kill_one((uint32_t)_i, -1, "1000003");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("library_shared");
    TCase *results = tcase_create("results"), *wrong = tcase_create("wrong");
    TCase *memory = tcase_create("memory");
    tcase_set_timeout(results, 300);
    tcase_set_timeout(wrong, 120);
    tcase_set_timeout(memory, 300);
    tcase_add_loop_test(results, results_are_the_sums_wherever_the_data_lies, 0, SHAPES);
    tcase_add_loop_test(results, a_result_can_be_summed_in_its_place, 0, SHAPES);
    tcase_add_loop_test(results, groups_and_priorities, 0, 2);
    tcase_add_test(wrong, what_cannot_be_is_refused_and_changes_nothing);
    tcase_add_test(wrong, ranks_cannot_write);
    tcase_add_test(wrong, what_is_in_use_is_not_freed);
    tcase_add_loop_test(wrong, places_that_differ_on_a_node, 0, 2);
    tcase_add_test(wrong, places_may_differ_from_node_to_node);
    tcase_add_test(wrong, bytes_that_differ);
    tcase_add_test(memory, memory_has_a_limit);
    tcase_add_test(memory, memory_is_given_back);
    tcase_add_test(memory, memory_that_some_never_ask_for);
    tcase_add_loop_test(memory, a_rank_is_killed, 1, 3);
    tcase_add_loop_test(memory, a_daemon_is_killed, 1, 3);
    suite_add_tcase(suite, results);
    suite_add_tcase(suite, wrong);
    suite_add_tcase(suite, memory);
    return suite_main(suite);
}
