/* The public calls, with a daemon in a thread and every rank in a thread of its own. */
#include "worker/shoal.h"

#include "tests/lib/server/world.h"
#include "tests/lib/suite.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* --- collectives --------------------------------------------------------------------------- */

static void check_sizes(struct member *member)
{
    shoal_group *world = shoal_world(member->job);
    int size = shoal_world_size(member->job);
    ck_assert_int_eq(shoal_group_size(world), size);
    ck_assert_int_eq(shoal_group_rank(world), member->rank);
    ck_assert_int_eq(shoal_local_size(member->job), size);
    ck_assert_int_eq(shoal_local_rank(member->job), member->rank);
    ck_assert_int_eq(shoal_node_count(member->job), 1);
    const size_t counts[] = {0, 1, 3, 1000, 4096, 20000, 100003};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        size_t count = counts[i];
        float *data = calloc(count + 1, sizeof(*data));
        for (size_t j = 0; j < count; j++)
            data[j] = (float)(member->rank + 1);
        GOOD(shoal_all_reduce(world, data, data, count, SHOAL_F32, SHOAL_SUM, NULL));
        for (size_t j = 0; j < count; j++)
            EXPECT(data[j] == (float)(size * (size + 1) / 2));
        GOOD(shoal_all_reduce(world, data, data, count, SHOAL_F32, SHOAL_AVG, NULL));
        for (size_t j = 0; j < count; j++)
            EXPECT(data[j] == (float)(size * (size + 1) / 2));
        float *result = calloc(count + 1, sizeof(*result));
        GOOD(shoal_reduce(world, data, member->rank == 0 ? result : NULL, count, SHOAL_F32,
                          SHOAL_MAX, 0, NULL));
        GOOD(shoal_broadcast(world, result, count, SHOAL_F32, 0, NULL));
        ck_assert_int_eq(memcmp(result, data, count * sizeof(*data)), 0);
        free(result);
        free(data);
        GOOD(shoal_barrier(world, NULL));
    }
}

START_TEST(test_collectives)
{
    for (uint32_t ranks = 1; ranks <= WORLD_RANKS_MAX; ranks++)
        world_run(&(struct fake_daemon_options){.world_size = ranks, .servers = ranks, .seed = 3},
                  check_sizes);
}
END_TEST

static void check_async(struct member *member)
{
    enum { REQUESTS = 40, COUNT = 3000 };
    shoal_group *world = shoal_world(member->job);
    int64_t *data[REQUESTS];
    shoal_request *requests[REQUESTS];
    for (int i = 0; i < REQUESTS; i++) {
        /* Some in the arena, some not. */
        data[i] = i % 3 ? malloc(COUNT * sizeof(int64_t))
                        : shoal_alloc(member->job, COUNT * sizeof(int64_t));
        ck_assert_ptr_nonnull(data[i]);
        for (int j = 0; j < COUNT; j++)
            data[i][j] = i + j;
        GOOD(shoal_group_set_priority(world, (uint32_t)i % 5));
        GOOD(shoal_all_reduce(world, data[i], data[i], i % 7 ? COUNT : 5, SHOAL_I64, SHOAL_SUM,
                              &requests[i]));
    }
    GOOD(shoal_group_set_priority(world, 0));
    for (int k = 0; k < REQUESTS; k++) {
        int i = (k * 7 + member->rank) % REQUESTS;
        if (k % 4 == 0) {
            int result;
            while ((result = shoal_test(requests[i])) == SHOAL_EAGAIN)
                ;
            ck_assert_int_eq(result, SHOAL_OK);
        }
        GOOD(shoal_wait(requests[i], k % 2 ? -1 : 60000));
        for (int j = 0; j < (i % 7 ? COUNT : 5); j++)
            EXPECT(data[i][j] == (int64_t)(i + j) * shoal_world_size(member->job));
        if (i % 3)
            free(data[i]);
        else
            shoal_free(member->job, data[i]);
    }
}

START_TEST(test_many_asynchronous_collectives)
{
    world_run(&(struct fake_daemon_options){.world_size = 3, .servers = 2, .seed = 11},
              check_async);
}
END_TEST

static void check_zero_copy(struct member *member)
{
    float *data = shoal_alloc(member->job, 100000 * sizeof(float));
    ck_assert_uint_eq((uintptr_t)data % 64, 0);
    for (int i = 0; i < 100000; i++)
        data[i] = (float)i;
    GOOD(
        shoal_all_reduce(shoal_world(member->job), data, data, 100000, SHOAL_F32, SHOAL_SUM, NULL));
    for (int i = 0; i < 100000; i++)
        EXPECT(data[i] == (float)i * 2);
    ck_assert_uint_eq(fake_daemon_staged_chunks(member->world->daemon), 0);
    shoal_free(member->job, data);
    shoal_free(member->job, NULL);
}

START_TEST(test_arena_memory_needs_no_copy)
{
    world_run(&(struct fake_daemon_options){.world_size = 2}, check_zero_copy);
}
END_TEST

/* --- callbacks and descriptor -------------------------------------------------------------- */

static void check_callbacks(struct member *member)
{
    struct notes notes = NOTES;
    shoal_group *world = shoal_world(member->job);
    double data[8] = {1, 2, 3};
    shoal_request *request;
    /* Nobody waits: the background thread must see to it. */
    GOOD(shoal_all_reduce(world, data, data, 8, SHOAL_F64, SHOAL_SUM, &request));
    GOOD(shoal_request_on_complete(request, note_call, &notes));
    int again = shoal_request_on_complete(request, note_call, &notes);
    ck_assert_int_eq(again, SHOAL_ESTATE);
    notes_wait(&notes, 1);
    ck_assert_int_eq(notes.last_result, SHOAL_OK);
    ck_assert(data[2] == 6);
    GOOD(shoal_test(request));
    shoal_request_free(request);
    /* Complete already: called at once. */
    GOOD(shoal_barrier(world, &request));
    while (shoal_test(request) == SHOAL_EAGAIN)
        ;
    GOOD(shoal_request_on_complete(request, note_call, &notes));
    ck_assert_int_eq(notes.calls, 2);
    GOOD(shoal_wait(request, -1));
    /* Forgotten, and still completed. */
    static float large[2][50000];
    GOOD(shoal_all_reduce(world, large[member->rank], large[member->rank], 50000, SHOAL_F32,
                          SHOAL_SUM, &request));
    GOOD(shoal_request_on_complete(request, note_call, &notes));
    shoal_request_free(request);
    shoal_request_free(NULL);
    notes_wait(&notes, 3);
}

START_TEST(test_callbacks)
{
    world_run(&(struct fake_daemon_options){.world_size = 2, .seed = 5}, check_callbacks);
}
END_TEST

static void check_descriptor(struct member *member)
{
    shoal_group *world = shoal_world(member->job);
    int fd = shoal_completions_descriptor(member->job);
    ck_assert_int_ge(fd, 0);
    for (int round = 0; round < 20; round++) {
        int32_t data = 1;
        shoal_request *request;
        GOOD(shoal_all_reduce(world, &data, &data, 1, SHOAL_I32, SHOAL_SUM, &request));
        struct pollfd poller = {.fd = fd, .events = POLLIN};
        int result = SHOAL_EAGAIN;
        while (result == SHOAL_EAGAIN) {
            ck_assert_int_eq(poll(&poller, 1, 60000), 1);
            GOOD(shoal_completions_clear(member->job));
            result = shoal_test(request);
        }
        ck_assert_int_eq(result, SHOAL_OK);
        ck_assert_int_eq(data, 2);
        GOOD(shoal_wait(request, 0));
    }
}

START_TEST(test_completions_descriptor)
{
    world_run(&(struct fake_daemon_options){.world_size = 2, .seed = 5}, check_descriptor);
}
END_TEST

/* --- groups -------------------------------------------------------------------------------- */

static void check_groups(struct member *member)
{
    int rank = member->rank, pair[2] = {rank / 2 * 2 + 1, rank / 2 * 2};
    int cross[2] = {rank % 2, rank % 2 + 2};
    shoal_group *groups[3];
    GOOD(shoal_group_open(member->job, pair, 2, -1, &groups[0]));
    GOOD(shoal_group_open(member->job, pair, 2, -1, &groups[1])); /* the same list again */
    GOOD(shoal_group_open(member->job, cross, 2, 60000, &groups[2]));
    ck_assert_int_eq(shoal_group_rank(groups[0]), rank % 2 ? 0 : 1);
    ck_assert_int_eq(shoal_group_size(groups[0]), 2);
    int64_t sums[3] = {rank, rank * 10, rank * 100};
    shoal_request *requests[3];
    /* Started in a different order on different ranks. */
    for (int i = 0; i < 3; i++) {
        int g = (i + rank) % 3;
        GOOD(
            shoal_all_reduce(groups[g], &sums[g], &sums[g], 1, SHOAL_I64, SHOAL_SUM, &requests[g]));
    }
    for (int g = 2; g >= 0; g--)
        GOOD(shoal_wait(requests[g], -1));
    ck_assert_int_eq(sums[0], rank < 2 ? 1 : 5);
    ck_assert_int_eq(sums[1], rank < 2 ? 10 : 50);
    ck_assert_int_eq(sums[2], rank % 2 ? 400 : 200);
    for (int g = 0; g < 3; g++)
        GOOD(shoal_group_close(groups[g]));
    GOOD(shoal_barrier(shoal_world(member->job), NULL));
}

START_TEST(test_groups)
{
    world_run(&(struct fake_daemon_options){.world_size = 4, .seed = 21}, check_groups);
}
END_TEST

static void check_group_arguments(struct member *member)
{
    shoal_job *job = member->job;
    shoal_group *group = NULL;
    BAD(shoal_group_open(job, (int[]){0, 0}, 2, -1, &group), SHOAL_EINVALID, "rank 0");
    BAD(shoal_group_open(job, (int[]){0, 2}, 2, -1, &group), SHOAL_EINVALID, "rank 2");
    BAD(shoal_group_open(job, (int[]){0, -1}, 2, -1, &group), SHOAL_EINVALID, "rank -1");
    BAD(shoal_group_open(job, (int[]){0}, 0, -1, &group), SHOAL_EINVALID, "0 ranks");
    BAD(shoal_group_open(job, (int[]){0, 1, 0}, 3, -1, &group), SHOAL_EINVALID, "3 ranks");
    BAD(shoal_group_open(job, NULL, 1, -1, &group), SHOAL_EINVALID, "rank");
    BAD(shoal_group_open(job, (int[]){1 - member->rank}, 1, -1, &group), SHOAL_EINVALID,
        "not in the group");
    BAD(shoal_group_open(job, (int[]){0, 1}, 2, -2, &group), SHOAL_EINVALID, "timeout_ms");
    BAD(shoal_group_open(job, (int[]){0, 1}, 2, -1, NULL), SHOAL_EINVALID, "NULL");
    BAD(shoal_group_close(shoal_world(job)), SHOAL_EINVALID, "all ranks");
    GOOD(shoal_group_close(NULL));
    ck_assert_ptr_null(group);
    /* The other never comes. */
    if (member->rank == 0)
        BAD(shoal_group_open(job, (int[]){1, 0}, 2, 1, &group), SHOAL_ETIMEOUT, "2 ranks");
}

START_TEST(test_group_arguments)
{
    world_run(&(struct fake_daemon_options){.world_size = 2}, check_group_arguments);
}
END_TEST

/* --- arguments ----------------------------------------------------------------------------- */

static void check_arguments(struct member *member)
{
    shoal_group *world = shoal_world(member->job);
    float data[100];
    shoal_request *request = NULL;
#define ALL_REDUCE(send, recv, count, dtype, op)                                                   \
    shoal_all_reduce(world, send, recv, count, (enum shoal_dtype)(dtype), (enum shoal_op)(op),     \
                     &request)
    BAD(ALL_REDUCE(NULL, data, 1, 0, 0), SHOAL_EINVALID, "send is NULL");
    BAD(ALL_REDUCE(data, NULL, 1, 0, 0), SHOAL_EINVALID, "receive into is NULL");
    BAD(ALL_REDUCE(data, data, 1, 12, 0), SHOAL_EINVALID, "12 is no element type");
    BAD(ALL_REDUCE(data, data, 1, -1, 0), SHOAL_EINVALID, "-1 is no element type");
    BAD(ALL_REDUCE(data, data, 1, 0, 11), SHOAL_EINVALID, "11 is no operation");
    BAD(ALL_REDUCE(data, data, 1, SHOAL_F32, SHOAL_BXOR), SHOAL_EINVALID, "bxor");
    BAD(ALL_REDUCE(data, data + 1, 50, 0, 0), SHOAL_EINVALID, "overlap");
    BAD(ALL_REDUCE(data + 49, data, 50, 0, 0), SHOAL_EINVALID, "overlap");
    BAD(ALL_REDUCE(data, data, SIZE_MAX, 0, 0), SHOAL_EINVALID, "too many");
    BAD(ALL_REDUCE(data, data, SIZE_MAX / 8, 0, 0), SHOAL_EINVALID, "too many");
#undef ALL_REDUCE
    BAD(shoal_broadcast(world, data, 1, SHOAL_F32, 1, NULL), SHOAL_EINVALID, "root 1");
    BAD(shoal_broadcast(world, data, 1, SHOAL_F32, -1, NULL), SHOAL_EINVALID, "root -1");
    BAD(shoal_broadcast(world, NULL, 1, SHOAL_F32, 0, NULL), SHOAL_EINVALID, "NULL");
    BAD(shoal_reduce(world, data, data, 1, SHOAL_F32, SHOAL_SUM, 7, NULL), SHOAL_EINVALID,
        "root 7");
    BAD(shoal_wait(NULL, -1), SHOAL_EINVALID, "NULL");
    BAD(shoal_request_on_complete(NULL, note_call, NULL), SHOAL_EINVALID, "request");
    ck_assert_ptr_null(request);
    GOOD(shoal_barrier(world, &request));
    BAD(shoal_wait(request, -2), SHOAL_EINVALID, "timeout_ms");
    BAD(shoal_request_on_complete(request, NULL, NULL), SHOAL_EINVALID, "callback");
    GOOD(shoal_wait(request, -1));
    /* None of the refused ones took a sequence number. */
    data[0] = 4;
    GOOD(shoal_all_reduce(world, data, data, 1, SHOAL_F32, SHOAL_SUM, NULL));
    ck_assert(data[0] == 4);
}

START_TEST(test_arguments)
{
    world_run(&(struct fake_daemon_options){.world_size = 1}, check_arguments);
}
END_TEST

START_TEST(test_words)
{
    ck_assert_str_eq(shoal_version(), SHOAL_VERSION);
    ck_assert_str_eq(shoal_error_text(), "");
    for (int code = SHOAL_OK; code >= SHOAL_EAGAIN; code--)
        ck_assert_str_ne(shoal_result_name(code), "unknown error");
    ck_assert_str_eq(shoal_result_name(-99), "unknown error");
    ck_assert_uint_eq(shoal_dtype_bytes(SHOAL_BF16), 2);
    ck_assert_uint_eq(shoal_dtype_bytes((enum shoal_dtype)99), 0);
    GOOD(shoal_close(NULL));
}
END_TEST

START_TEST(test_open_arguments)
{
    shoal_job *job = NULL;
    const char *const variables[] = {
        "RANK",         "LOCAL_RANK",       "WORLD_SIZE",       "SHOAL_JOB",
        "SHOAL_SOCKET", "SHOAL_TIMEOUT_MS", "SHOAL_ARENA_BYTES"};
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
        unsetenv(variables[i]);
    struct shoal_options good = {.struct_size = sizeof(good),
                                 .socket_path = "/nonexistent/socket",
                                 .world_size = 2,
                                 .timeout_ms = 1000};
    BAD(shoal_open(&good, NULL), SHOAL_EINVALID, "job is NULL");
    struct shoal_options of_no_world = {.struct_size = sizeof(of_no_world), .rank_plus_1 = 1};
    BAD(shoal_open(&of_no_world, &job), SHOAL_EINVALID, "WORLD_SIZE");
    BAD(shoal_open(&good, &job), SHOAL_EDISCONNECTED, "/nonexistent/socket");
#define BAD_OPTION(field, value, words)                                                            \
    do {                                                                                           \
        struct shoal_options options = good;                                                       \
        options.field = (value);                                                                   \
        BAD(shoal_open(&options, &job), SHOAL_EINVALID, words);                                    \
    } while (0)
    char name[65];
    memset(name, 'x', 64);
    name[64] = '\0';
    BAD_OPTION(struct_size, 0, "struct_size");
    BAD_OPTION(job, name, "job's name");
    BAD_OPTION(job, "", "job's name");
    BAD_OPTION(job, "train\xff", "job's name is not UTF-8");
    BAD_OPTION(world_size, -1, "world_size");
    BAD_OPTION(world_size, 1 << 30, "world_size");
    BAD_OPTION(rank_plus_1, 3, "rank_plus_1");
    BAD_OPTION(rank_plus_1, -1, "rank_plus_1");
    BAD_OPTION(local_rank_plus_1, 3, "local_rank_plus_1");
    BAD_OPTION(timeout_ms, -1, "timeout_ms");
    BAD_OPTION(arena_bytes, 100, "arena_bytes");
    BAD_OPTION(arena_bytes, UINT64_MAX, "arena_bytes");
    char path[200];
    memset(path, 'p', sizeof(path));
    path[199] = '\0';
    BAD_OPTION(socket_path, path, "path");
#undef BAD_OPTION
    const struct {
        const char *variable, *value;
    } bad[] = {{"RANK", "2"},        {"RANK", "x"},  {"RANK", "-1"},
               {"LOCAL_RANK", "9"},  {"RANK", "1 "}, {"SHOAL_ARENA_BYTES", "12"},
               {"LOCAL_RANK", "0x1"}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        setenv(bad[i].variable, bad[i].value, 1);
        BAD(shoal_open(&good, &job), SHOAL_EINVALID, bad[i].variable);
        unsetenv(bad[i].variable);
    }
    ck_assert_ptr_null(job);
}
END_TEST

START_TEST(test_open_reads_the_environment)
{
    struct fake_daemon *daemon = fake_daemon_start(&(struct fake_daemon_options){.world_size = 1});
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    setenv("LOCAL_RANK", "0", 1);
    setenv("SHOAL_SOCKET", fake_daemon_path(daemon), 1);
    setenv("SHOAL_ARENA_BYTES", "4194304", 1);
    setenv("SHOAL_TIMEOUT_MS", "20000", 1);
    setenv("SHOAL_JOB", "mine", 1);
    shoal_job *job;
    GOOD(shoal_open(NULL, &job));
    ck_assert_int_eq(shoal_world_size(job), 1);
    ck_assert_ptr_null(shoal_alloc(job, 5 << 20));
    ck_assert_ptr_nonnull(strstr(shoal_error_text(), "4194304"));
    GOOD(shoal_close(job));
    ck_assert_uint_eq(fake_daemon_workers_left(daemon), 1);
    fake_daemon_stop(daemon);
}
END_TEST

/* A C program under srun, with nothing set for shoal but where the daemon is. */
START_TEST(test_open_under_a_launcher)
{
    struct fake_daemon *daemon = fake_daemon_start(&(struct fake_daemon_options){.world_size = 1});
    const char *const own[] = {"RANK",      "LOCAL_RANK",           "WORLD_SIZE",
                               "SHOAL_JOB", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        unsetenv(own[i]);
    setenv("SHOAL_SOCKET", fake_daemon_path(daemon), 1);
    setenv("SLURM_JOB_ID", "7", 1);
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_STEP_NUM_TASKS", "1", 1);
    setenv("SLURM_PROCID", "x", 1);
    shoal_job *job;
    BAD(shoal_open(NULL, &job), SHOAL_EINVALID, "SLURM_PROCID");
    setenv("SLURM_PROCID", "0", 1);
    GOOD(shoal_open(NULL, &job));
    ck_assert_int_eq(shoal_world_size(job), 1);
    ck_assert_int_eq(shoal_rank(job), 0);
    GOOD(shoal_close(job));
    /* Variables that are set for shoal go first. */
    setenv("WORLD_SIZE", "x", 1);
    BAD(shoal_open(NULL, &job), SHOAL_EINVALID, "WORLD_SIZE");
    fake_daemon_stop(daemon);
}
END_TEST

/* --- threads ------------------------------------------------------------------------------- */

struct hammer {
    struct member *member;
    shoal_group *group;
    pthread_t thread;
};

static void *hammer_run(void *argument)
{
    struct hammer *hammer = argument;
    int size = shoal_group_size(hammer->group);
    for (int round = 0; round < 60; round++) {
        size_t count = round % 9 == 0 ? 40000 : (size_t)round + 1;
        int64_t *data = malloc(count * sizeof(*data));
        for (size_t i = 0; i < count; i++)
            data[i] = (int64_t)i + round;
        shoal_request *request = NULL;
        bool wait = round % 2;
        GOOD(shoal_all_reduce(hammer->group, data, data, count, SHOAL_I64, SHOAL_SUM,
                              wait ? NULL : &request));
        if (!wait)
            GOOD(shoal_wait(request, -1));
        for (size_t i = 0; i < count; i++)
            EXPECT(data[i] == ((int64_t)i + round) * size);
        free(data);
    }
    return NULL;
}

static void check_threads(struct member *member)
{
    struct hammer hammers[3];
    for (int i = 0; i < 3; i++) {
        hammers[i].member = member;
        GOOD(shoal_group_open(member->job, (int[]){0, 1}, 2, -1, &hammers[i].group));
    }
    for (int i = 0; i < 3; i++)
        pthread_create(&hammers[i].thread, NULL, hammer_run, &hammers[i]);
    for (int i = 0; i < 3; i++)
        pthread_join(hammers[i].thread, NULL);
}

START_TEST(test_several_threads_of_a_rank)
{
    world_run(&(struct fake_daemon_options){.world_size = 2, .servers = 2, .seed = 31},
              check_threads);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("api");
    TCase *cases = tcase_create("api");
    tcase_set_timeout(cases, 120);
    tcase_add_test(cases, test_collectives);
    tcase_add_test(cases, test_many_asynchronous_collectives);
    tcase_add_test(cases, test_arena_memory_needs_no_copy);
    tcase_add_test(cases, test_callbacks);
    tcase_add_test(cases, test_completions_descriptor);
    tcase_add_test(cases, test_groups);
    tcase_add_test(cases, test_group_arguments);
    tcase_add_test(cases, test_arguments);
    tcase_add_test(cases, test_words);
    tcase_add_test(cases, test_open_arguments);
    tcase_add_test(cases, test_open_reads_the_environment);
    tcase_add_test(cases, test_open_under_a_launcher);
    tcase_add_test(cases, test_several_threads_of_a_rank);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
