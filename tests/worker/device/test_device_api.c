/* Collectives on a device's memory, on the stand-in for CUDA's driver: every rank a thread, all on
 * one GPU, the daemon in a thread too. */
#include "worker/shoal.h"

#include "tests/lib/cuda/cuda_stand_in.h"
#include "tests/lib/server/world.h"
#include "tests/lib/suite.h"
#include "worker/job/job.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* Through staging slots, and in larger arenas through the pool. */
static void run(const struct fake_daemon_options *options, void (*body)(struct member *))
{
    world_run(options, body);
    stand_in_check_nothing_left(true);
    world_run_large(options, body);
    stand_in_check_nothing_left(true);
}

/* --- stream order -------------------------------------------------------------------------- */

/* Device memory with these values, copied there in the order of the stream. */
static float *device_floats(struct member *member, const float *values, size_t count)
{
    float *memory = shoal_device_alloc(member->job, count * sizeof(float));
    ck_assert_msg(memory != NULL, "%s", shoal_error_text());
    GOOD(shoal_device_copy(member->job, memory, values, count * sizeof(float)));
    return memory;
}

static void fill(float *values, size_t count, int rank, int seed)
{
    for (size_t i = 0; i < count; i++)
        values[i] = (float)(rank + 1) * 0.1f + (float)((i * 7 + (size_t)seed) % 1000) * 0.01f;
}

/* Check that the CPU path and the device's give the same results of the same numbers, to the
 * bit. */
static void check_same_as_host(struct member *member)
{
    shoal_group *world = shoal_world(member->job);
    void *stream;
    stand_in_open_device(member->job);
    stream = shoal_device_stream(member->job);
    const size_t counts[] = {1, 5, 1024, 1025, 20000, 300001};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        size_t count = counts[i], bytes = count * sizeof(float);
        float *host = malloc(bytes), *expected = malloc(bytes), *got = malloc(bytes);
        fill(host, count, member->rank, (int)i);
        GOOD(shoal_all_reduce(world, host, expected, count, SHOAL_F32, SHOAL_AVG, NULL));
        float *send = device_floats(member, host, count);
        float *recv = device_floats(member, host, count);
        shoal_request *request;
        GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, stream));
        GOOD(shoal_all_reduce(world, send, recv, count, SHOAL_F32, SHOAL_AVG, &request));
        GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_HOST, NULL));
        GOOD(shoal_request_wait_stream(request, stream));
        shoal_request_free(request);
        GOOD(shoal_device_copy(member->job, got, recv, bytes));
        ck_assert_int_eq(memcmp(got, expected, bytes), 0);
        shoal_device_free(member->job, send);
        shoal_device_free(member->job, recv);
        free(host);
        free(expected);
        free(got);
    }
}

START_TEST(test_all_reduce_is_the_hosts)
{
    const struct stand_in *cuda = stand_in_open();
    cuda->seed((uint64_t)_i + 1);
    cuda->set_version(_i % 3 == 0 ? 13000 : _i % 3 == 1 ? 12080 : 12000);
    run(&(struct fake_daemon_options){.world_size = (uint32_t)_i % 4 + 1, .servers = 2, .seed = 5},
        check_same_as_host);
    ck_assert_int_eq(cuda->unpinned(), 2 * (_i % 4 + 1) * 6 * 3); /* the test's own */
    if (_i % 3 < 2)
        ck_assert_int_gt(cuda->calls("cuMemcpyBatchAsync"), 0);
    else
        ck_assert_int_eq(cuda->calls("cuMemcpyBatchAsync"), 0);
    ck_assert_int_eq(cuda->default_operations(), 0);
}
END_TEST

/* An all-reduce on this stream, as long as the chunks of the fake daemon are small. */
static shoal_request *start(struct member *member, void *stream, const float *send, float *recv,
                            size_t count, uint32_t priority)
{
    shoal_group *world = shoal_world(member->job);
    shoal_request *request;
    GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, stream));
    GOOD(shoal_group_set_priority(world, priority));
    GOOD(shoal_all_reduce(world, send, recv, count, SHOAL_F32, SHOAL_SUM, &request));
    GOOD(shoal_group_set_priority(world, 0));
    GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_HOST, NULL));
    return request;
}

enum { COUNT = 50000 };

static float *constant(struct member *member, float value)
{
    float *values = malloc(COUNT * sizeof(*values));
    for (size_t i = 0; i < COUNT; i++)
        values[i] = value;
    float *memory = device_floats(member, values, COUNT);
    free(values);
    return memory;
}

static void expect_constant(struct member *member, const float *memory, float value)
{
    float *got = malloc(COUNT * sizeof(*got));
    GOOD(shoal_device_copy(member->job, got, memory, COUNT * sizeof(*got)));
    for (size_t i = 0; i < COUNT; i++)
        EXPECT(got[i] == value);
    free(got);
}

/* Check that the call sends what the stream writes before it, however late, and does not wait.
 * Another stream finds the result after its wait, with nobody waiting on the host. */
static void check_late_stream(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    void *stream = cuda->stream_make(), *other = cuda->stream_make();
    stand_in_open_device(member->job);
    float *data = constant(member, 1), *late = constant(member, 2), *copy = constant(member, 0);
    cuda->stream_hold(stream);
    cuda->stream_copy(stream, data, late, COUNT * sizeof(float));
    shoal_request *request = start(member, stream, data, data, COUNT, 0);
    GOOD(shoal_request_wait_stream(request, other));
    cuda->stream_copy(other, copy, data, COUNT * sizeof(float));
    ck_assert_int_eq(shoal_test(request), SHOAL_EAGAIN);
    shoal_request_free(request);
    expect_constant(member, data, 1);
    cuda->stream_let_go(stream);
    cuda->stream_finish(other);
    expect_constant(member, copy, 2.0f * (float)member->world->size);
    shoal_device_free(member->job, data);
    shoal_device_free(member->job, late);
    shoal_device_free(member->job, copy);
    cuda->stream_drop(stream);
    cuda->stream_drop(other);
}

START_TEST(test_late_stream)
{
    stand_in_open()->seed((uint64_t)_i + 9);
    run(&(struct fake_daemon_options){.world_size = 3, .servers = 2, .seed = 1}, check_late_stream);
}
END_TEST

/* A rank that only receives: its memory is its stream's until that has come to the call. */
static void check_late_receiver(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    void *stream = cuda->stream_make();
    shoal_group *world = shoal_world(member->job);
    stand_in_open_device(member->job);
    float *data = constant(member, member->rank == 0 ? 5 : 7), *before = constant(member, 0);
    shoal_request *request;
    if (member->rank > 0) {
        cuda->stream_hold(stream);
        cuda->stream_copy(stream, before, data, COUNT * sizeof(float));
    }
    GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, stream));
    GOOD(shoal_broadcast(world, data, COUNT, SHOAL_F32, 0, &request));
    if (member->rank > 0) {
        BAD(shoal_wait(request, 50), SHOAL_ETIMEOUT, "its stream has not come to it");
        expect_constant(member, data, 7);
        cuda->stream_let_go(stream);
    }
    GOOD(shoal_wait(request, -1));
    expect_constant(member, data, 5);
    expect_constant(member, before, member->rank == 0 ? 0 : 7);
    /* To the last rank alone; the others name nothing to receive into. */
    int root = member->world->size - 1;
    GOOD(shoal_reduce(world, data, member->rank == root ? before : NULL, COUNT, SHOAL_F32,
                      SHOAL_MAX, root, NULL));
    if (member->rank == root)
        expect_constant(member, before, 5);
    GOOD(shoal_barrier(world, NULL));
    GOOD(shoal_all_reduce(world, NULL, NULL, 0, SHOAL_F32, SHOAL_SUM, NULL));
    shoal_device_free(member->job, data);
    shoal_device_free(member->job, before);
    cuda->stream_drop(stream);
}

START_TEST(test_late_receiver)
{
    run(&(struct fake_daemon_options){.world_size = 3, .seed = 4}, check_late_receiver);
}
END_TEST

/* A stream that waits for one collective and is then the stream of another that is more urgent and
 * has more chunks than there are slots: the second must not take what the first needs. */
static void check_waiting_stream(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    void *streams[2] = {cuda->stream_make(), cuda->stream_make()};
    stand_in_open_device(member->job);
    float *first = constant(member, 1), *second = constant(member, 2), *third = constant(member, 3);
    for (int round = 0; round < 4; round++) {
        cuda->stream_hold(streams[1]);
        shoal_request *slow = start(member, streams[1], first, first, COUNT, 9);
        GOOD(shoal_request_wait_stream(slow, streams[0]));
        shoal_request *urgent = start(member, streams[0], second, second, COUNT, 0);
        shoal_request *free_of_both = start(member, NULL, third, third, COUNT, 5);
        GOOD(shoal_wait(free_of_both, -1));
        ck_assert_int_eq(shoal_test(urgent), SHOAL_EAGAIN);
        cuda->stream_let_go(streams[1]);
        GOOD(shoal_wait(urgent, -1));
        GOOD(shoal_wait(slow, -1));
    }
    float times = 1;
    for (int round = 0; round < 4; round++)
        times *= (float)member->world->size;
    expect_constant(member, first, times);
    expect_constant(member, second, 2 * times);
    expect_constant(member, third, 3 * times);
    shoal_device_free(member->job, first);
    shoal_device_free(member->job, second);
    shoal_device_free(member->job, third);
    cuda->stream_drop(streams[0]);
    cuda->stream_drop(streams[1]);
}

START_TEST(test_waiting_stream)
{
    run(&(struct fake_daemon_options){.world_size = 2, .chunk_bytes = 1024, .seed = 7},
        check_waiting_stream);
}
END_TEST

struct full_stream {
    struct fake_daemon *daemon;
    long calls;
};

/* When the other thread is in its call, and the stream keeps it there. */
static void *let_daemon_go(void *argument)
{
    const struct full_stream *full = argument;
    while (stand_in_open()->calls("cuEventRecord") == full->calls)
        sched_yield();
    fake_daemon_hold(full->daemon, false);
    return NULL;
}

/* A call on a stream that is full waits until the stream goes on, and that takes the driver. */
static void check_full_stream(struct member *member)
{
    enum { ROOM = 8 };
    const struct stand_in *cuda = stand_in_open();
    void *stream = cuda->stream_make();
    pthread_t thread;
    stand_in_open_device(member->job);
    float *first = constant(member, 1), *second = constant(member, 2);
    fake_daemon_hold(member->world->daemon, true);
    shoal_request *slow = start(member, shoal_device_stream(member->job), first, first, COUNT, 0);
    GOOD(shoal_request_wait_stream(slow, stream));
    cuda->stream_limit(stream, ROOM);
    for (int i = 2; i < ROOM; i++) /* two are there for the wait */
        cuda->stream_copy(stream, second, second, sizeof(float));
    /* The driver has nothing more to do: the daemon has all slots, and the group's own. */
    while (fake_daemon_staged_chunks(member->world->daemon) < 33)
        sched_yield();
    struct full_stream full = {member->world->daemon, cuda->calls("cuEventRecord")};
    ck_assert_int_eq(pthread_create(&thread, NULL, let_daemon_go, &full), 0);
    shoal_request *request = start(member, stream, second, second, COUNT, 0);
    GOOD(shoal_request_wait_stream(request, stream));
    GOOD(shoal_wait(slow, -1));
    GOOD(shoal_wait(request, -1));
    pthread_join(thread, NULL);
    expect_constant(member, first, 1);
    expect_constant(member, second, 2);
    shoal_device_free(member->job, first);
    shoal_device_free(member->job, second);
    cuda->stream_drop(stream);
}

START_TEST(test_full_stream)
{
    run(&(struct fake_daemon_options){.world_size = 1, .seed = 2}, check_full_stream);
}
END_TEST

/* Many at once, of all sizes, on several streams; words and events are used again. */
static void check_many(struct member *member)
{
    enum { REQUESTS = 60, STREAMS = 6 };
    const struct stand_in *cuda = stand_in_open();
    void *streams[STREAMS];
    shoal_request *requests[REQUESTS];
    int32_t *data[REQUESTS], values[2000];
    shoal_group *world = shoal_world(member->job);
    stand_in_open_device(member->job);
    for (int i = 0; i < STREAMS; i++)
        streams[i] = cuda->stream_make();
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < REQUESTS; i++) {
            size_t count = (size_t)(i * 37 + 1) % 2000;
            for (size_t j = 0; j < count; j++)
                values[j] = (int32_t)j * (i + 1) + member->rank;
            data[i] = shoal_device_alloc(member->job, count * sizeof(values[0]));
            GOOD(shoal_device_copy(member->job, data[i], values, count * sizeof(values[0])));
            GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, streams[i % STREAMS]));
            GOOD(shoal_all_reduce(world, data[i], data[i], count, SHOAL_I32, SHOAL_SUM,
                                  &requests[i]));
            GOOD(shoal_request_wait_stream(requests[i], streams[i % STREAMS]));
        }
        for (int i = 0; i < REQUESTS; i++) {
            size_t count = (size_t)(i * 37 + 1) % 2000;
            GOOD(shoal_wait(requests[i], -1));
            GOOD(shoal_device_copy(member->job, values, data[i], count * sizeof(values[0])));
            int size = member->world->size;
            for (size_t j = 0; j < count; j++)
                EXPECT(values[j] == (int32_t)j * (i + 1) * size + size * (size - 1) / 2);
            shoal_device_free(member->job, data[i]);
        }
    }
    for (int i = 0; i < STREAMS; i++)
        cuda->stream_drop(streams[i]);
}

START_TEST(test_many)
{
    const struct stand_in *cuda = stand_in_open();
    run(&(struct fake_daemon_options){.world_size = 4, .servers = 2, .seed = 2}, check_many);
    /* Small ones leave in one call. */
    ck_assert_int_gt(cuda->calls("cuMemcpyBatchAsync"), 0);
}
END_TEST

/* Every collective in parts gives on the device what it gives on the host. */
static void check_parts(struct member *member)
{
    enum { PART = 700 };
    const struct stand_in *cuda = stand_in_open();
    shoal_group *world = shoal_world(member->job);
    int size = member->world->size, root = size - 1;
    size_t all = (size_t)size * PART * sizeof(float), part = PART * sizeof(float);
    void *stream = cuda->stream_make();
    stand_in_open_device(member->job);
    float *host = malloc(all), *expected = malloc(all), *got = malloc(all);
    fill(host, (size_t)size * PART, member->rank, 3);
    float *send = device_floats(member, host, (size_t)size * PART);
    float *recv = device_floats(member, host, (size_t)size * PART);
    for (int kind = 0; kind < 5; kind++) {
        size_t bytes = kind == 1 || kind == 3 ? part : all;
        for (int on_device = 0; on_device < 2; on_device++) {
            float *from = on_device ? send : host, *to = on_device ? recv : expected;
            shoal_request *request;
            memset(got, 0, all);
            if (on_device)
                GOOD(shoal_device_copy(member->job, recv, got, all));
            else
                memset(expected, 0, all);
            GOOD(shoal_group_set_stream(world, (enum shoal_memory)on_device, stream));
            if (kind == 0)
                GOOD(shoal_all_gather(world, from, to, PART, SHOAL_F32, &request));
            else if (kind == 1)
                GOOD(shoal_reduce_scatter(world, from, to, PART, SHOAL_F32, SHOAL_SUM, &request));
            else if (kind == 2)
                GOOD(shoal_gather(world, from, to, PART, SHOAL_F32, root, &request));
            else if (kind == 3)
                GOOD(shoal_scatter(world, from, to, PART, SHOAL_F32, root, &request));
            else
                GOOD(shoal_all_to_all(world, from, to, PART, SHOAL_F32, &request));
            if (on_device)
                GOOD(shoal_request_wait_stream(request, stream));
            GOOD(shoal_wait(request, -1));
        }
        GOOD(shoal_device_copy(member->job, got, recv, bytes));
        ck_assert_int_eq(memcmp(got, expected, bytes), 0);
    }
    /* In place: a rank's own part lies where it goes already. */
    float *own = recv + member->rank * PART;
    GOOD(shoal_device_copy(member->job, own, host, part));
    GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, stream));
    GOOD(shoal_all_gather(world, own, recv, PART, SHOAL_F32, NULL));
    GOOD(shoal_device_copy(member->job, got, own, part));
    ck_assert_int_eq(memcmp(got, host, part), 0);
    shoal_device_free(member->job, send);
    shoal_device_free(member->job, recv);
    cuda->stream_drop(stream);
    free(host);
    free(expected);
    free(got);
}

START_TEST(test_parts)
{
    stand_in_open()->seed((uint64_t)_i);
    run(
        &(struct fake_daemon_options){
            .world_size = (uint32_t)_i + 1, .servers = 2, .chunk_bytes = 1024, .seed = 6},
        check_parts);
}
END_TEST

/* --- several devices ----------------------------------------------------------------------- */

/* The jobs of a process have a device each, and are in the order of its default stream. */
static void check_two_devices(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    struct shoal_device_options options = {.struct_size = sizeof(options),
                                           .number = member->rank,
                                           .library = cuda->path,
                                           .stream_waits = 1};
    GOOD(shoal_device_open(member->job, &options));
    float *data = constant(member, (float)member->rank + 1);
    for (int round = 0; round < 3; round++) {
        shoal_request *request = start(member, NULL, data, data, COUNT, 0);
        int result = shoal_request_wait_stream(request, NULL);
        ck_assert_msg(result == SHOAL_OK, "%s", shoal_error_text());
        GOOD(shoal_wait(request, -1));
    }
    expect_constant(member, data, 12);
    shoal_device_free(member->job, data);
}

START_TEST(test_two_devices)
{
    stand_in_open()->set_devices(2);
    run(&(struct fake_daemon_options){.world_size = 2, .seed = 9}, check_two_devices);
}
END_TEST

/* --- without waits for words --------------------------------------------------------------- */

static void check_host_waits(struct member *member)
{
    stand_in_open_device(member->job);
    void *stream = shoal_device_stream(member->job);
    float *data = constant(member, 1);
    shoal_request *request = start(member, stream, data, data, COUNT, 0);
    int result = shoal_request_wait_stream(request, stream);
    if (result != SHOAL_OK) { /* else it was complete already */
        ck_assert_int_eq(result, SHOAL_EUNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(shoal_error_text(), "GPU 0, stand-in"));
    }
    GOOD(shoal_wait(request, -1));
    expect_constant(member, data, (float)member->world->size);
    shoal_device_free(member->job, data);
}

START_TEST(test_streams_cannot_wait)
{
    stand_in_open()->set_memory_operations(false);
    run(&(struct fake_daemon_options){.world_size = 2, .seed = 8}, check_host_waits);
}
END_TEST

/* Where nobody has said that streams may wait, the host does, also for fusion buffers. */
static void check_streams_may_not_wait(struct member *member)
{
    struct shoal_device_options options = {.struct_size = sizeof(options),
                                           .library = stand_in_open()->path};
    GOOD(shoal_device_open(member->job, &options));
    float *data = constant(member, 1);
    fake_daemon_hold(member->world->daemon, 1);
    shoal_request *request = start(member, shoal_device_stream(member->job), data, data, COUNT, 0);
    BAD(shoal_request_wait_stream(request, shoal_device_stream(member->job)), SHOAL_EUNSUPPORTED,
        "SHOAL_STREAM_WAITS");
    fake_daemon_hold(member->world->daemon, 0);
    GOOD(shoal_wait(request, -1));
    expect_constant(member, data, (float)member->world->size);
    shoal_device_free(member->job, data);
}

START_TEST(test_streams_may_not_wait)
{
    unsetenv("SHOAL_STREAM_WAITS");
    run(&(struct fake_daemon_options){.world_size = 1, .seed = 8}, check_streams_may_not_wait);
}
END_TEST

static void check_variable(struct member *member)
{
    struct shoal_device_options options = {.struct_size = sizeof(options),
                                           .library = stand_in_open()->path};
    setenv("SHOAL_STREAM_WAITS", "2", 1);
    BAD(shoal_device_open(member->job, &options), SHOAL_EINVALID, "SHOAL_STREAM_WAITS");
    setenv("SHOAL_STREAM_WAITS", "1", 1);
    GOOD(shoal_device_open(member->job, &options));
    float *data = constant(member, 1);
    shoal_request *request = start(member, NULL, data, data, COUNT, 0);
    GOOD(shoal_request_wait_stream(request, NULL));
    GOOD(shoal_wait(request, -1));
    shoal_device_free(member->job, data);
    unsetenv("SHOAL_STREAM_WAITS");
}

START_TEST(test_variable_lets_streams_wait)
{
    run(&(struct fake_daemon_options){.world_size = 1, .seed = 8}, check_variable);
}
END_TEST

/* Every other chunk of a small buffer with an identity has no element and needs no copy. The
 * daemon gets the chunks in order all the same, as the fake one checks. */
static void check_empty_chunks(struct member *member)
{
    enum { SMALL = 50 };
    shoal_group *world = shoal_world(member->job);
    float values[SMALL], got[SMALL];
    stand_in_open_device(member->job);
    fill(values, SMALL, 0, 1);
    float *memory = device_floats(member, values, SMALL);
    GOOD(shoal_group_set_identity(world, 1));
    GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, shoal_device_stream(member->job)));
    for (int round = 0; round < 8; round++)
        GOOD(shoal_all_reduce(world, memory, memory, SMALL, SHOAL_F32, SHOAL_MAX, NULL));
    GOOD(shoal_device_copy(member->job, got, memory, sizeof(got)));
    ck_assert_int_eq(memcmp(got, values, sizeof(got)), 0);
    shoal_device_free(member->job, memory);
}

START_TEST(test_empty_chunks)
{
    stand_in_open()->set_version(_i == 0 ? 13000 : 12000);
    run(
        &(struct fake_daemon_options){
            .world_size = 2, .servers = 4, .chunk_bytes = 64, .seed = (uint64_t)_i + 1},
        check_empty_chunks);
}
END_TEST

/* Host functions are late: requests go on without a ring, by looks. The rings of what is long over
 * come when another request waits behind the same events: they open nothing for it. */
static void check_late_rings(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    void *stream = cuda->stream_make();
    stand_in_open_device(member->job);
    float *data = constant(member, 1), *late = constant(member, 2);
    cuda->functions_hold(true);
    cuda->stream_hold(stream);
    shoal_request *request = start(member, stream, data, data, COUNT, 0);
    cuda->stream_let_go(stream);
    GOOD(shoal_wait(request, -1));
    cuda->stream_hold(stream);
    cuda->stream_copy(stream, data, late, COUNT * sizeof(float));
    request = start(member, stream, data, data, COUNT, 0);
    for (long rings = cuda->calls("cuLaunchHostFunc"); cuda->calls("cuLaunchHostFunc") == rings;)
        cuda->functions_hold(false); /* until the next one is asked for */
    ck_assert_int_eq(shoal_test(request), SHOAL_EAGAIN);
    cuda->stream_let_go(stream);
    GOOD(shoal_wait(request, -1));
    expect_constant(member, data, 2.0f * (float)member->world->size);
    shoal_device_free(member->job, data);
    shoal_device_free(member->job, late);
    cuda->stream_drop(stream);
}

START_TEST(test_late_rings)
{
    run(&(struct fake_daemon_options){.world_size = 1, .seed = 8}, check_late_rings);
}
END_TEST

/* --- failure ------------------------------------------------------------------------------- */

static pthread_barrier_t all_started;

/* The job fails while a stream waits: it goes on, and the request has the error. */
static void check_failed_job(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    void *stream = cuda->stream_make();
    stand_in_open_device(member->job);
    /* Some with no result on its way, some in the middle of them, or with the last of them. */
    bool held = member->world->size == 2;
    fake_daemon_hold(member->world->daemon, held);
    float *data = constant(member, 1), *others = constant(member, 2);
    shoal_request *request = start(member, stream, data, data, COUNT, 0);
    int result = shoal_request_wait_stream(request, stream);
    ck_assert(result == SHOAL_OK || result == SHOAL_ELOST);
    cuda->stream_hold(stream);
    shoal_request *gated = start(member, stream, others, others, COUNT, 0);
    pthread_barrier_wait(&all_started);
    if (member->rank == 0)
        fake_daemon_fail(member->world->daemon, -1, SHOAL_ELOST, "rank 9 is gone");
    BAD(shoal_wait(gated, -1), SHOAL_ELOST, "rank 9 is gone");
    cuda->stream_let_go(stream);
    cuda->stream_finish(stream);
    result = shoal_request_wait_stream(request, stream);
    ck_assert(result == SHOAL_ELOST || (result == SHOAL_OK && !held));
    ck_assert_int_eq(shoal_wait(request, -1), result);
    /* Nothing copies any more. */
    shoal_device_free(member->job, data);
    shoal_device_free(member->job, others);
    cuda->stream_drop(stream);
}

START_TEST(test_failed_job)
{
    stand_in_open()->seed((uint64_t)_i);
    pthread_barrier_init(&all_started, NULL, (unsigned)_i % 2 + 2);
    run(&(struct fake_daemon_options){.world_size = (uint32_t)_i % 2 + 2, .seed = (uint64_t)_i + 1},
        check_failed_job);
    ck_assert_int_eq(stand_in_open()->late_frees(), 0);
}
END_TEST

/* Closed with everything under way. */
static void check_closed(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    void *stream = cuda->stream_make();
    stand_in_open_device(member->job);
    enum { REQUESTS = 5 };
    float *data[REQUESTS];
    for (int i = 0; i < REQUESTS; i++) {
        data[i] = constant(member, 1);
        shoal_request *request = start(member, stream, data[i], data[i], COUNT, 0);
        if (i % 2)
            GOOD(shoal_request_wait_stream(request, stream));
        if (i % 3 == 0)
            shoal_request_free(request);
    }
    cuda->stream_drop(stream);
}

START_TEST(test_closed)
{
    stand_in_open()->seed((uint64_t)_i);
    world_run(&(struct fake_daemon_options){.world_size = 2, .seed = (uint64_t)_i + 1},
              check_closed);
    stand_in_check_nothing_left(false);
}
END_TEST

static struct device_queue *left; /* of a job that is closed */

/* The device fails under way, and no bell rings any more. A stream may still look at its word,
 * which stays with all that is the device's. */
static void check_broken(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    void *stream = cuda->stream_make();
    stand_in_open_device(member->job);
    left = member->job->device;
    float *data = constant(member, 1), *others = constant(member, 1);
    shoal_request *request = start(member, stream, data, data, COUNT, 0);
    GOOD(shoal_request_wait_stream(request, stream));
    shoal_request *gated = start(member, stream, others, others, COUNT, 0);
    cuda->break_device(STAND_IN_ILLEGAL_ADDRESS);
    int result = shoal_wait(gated, -1);
    ck_assert_msg(result == SHOAL_ESYSTEM && strstr(shoal_error_text(), "GPU 0, stand-in: cu") &&
                      strstr(shoal_error_text(), "CUDA_ERROR_ILLEGAL_ADDRESS"),
                  "%d: %s", result, shoal_error_text());
    shoal_request_free(request);
    cuda->stream_drop(stream);
}

START_TEST(test_broken_device)
{
    stand_in_open()->seed((uint64_t)_i);
    world_run(&(struct fake_daemon_options){.world_size = 1, .seed = 3}, check_broken);
    struct stand_in_live live = stand_in_open()->live();
    ck_assert_ptr_nonnull(left->device);
    ck_assert_int_eq(live.contexts, 1);
    ck_assert_int_eq(live.registrations, 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_api");
    TCase *order = tcase_create("stream order");
    tcase_set_timeout(order, 100);
    tcase_add_loop_test(order, test_all_reduce_is_the_hosts, 0, 6);
    tcase_add_loop_test(order, test_late_stream, 0, 3);
    tcase_add_test(order, test_late_receiver);
    tcase_add_test(order, test_waiting_stream);
    tcase_add_test(order, test_full_stream);
    tcase_add_test(order, test_many);
    tcase_add_loop_test(order, test_parts, 0, 4);
    tcase_add_test(order, test_two_devices);
    tcase_add_test(order, test_empty_chunks);
    tcase_add_test(order, test_late_rings);
    tcase_add_test(order, test_streams_cannot_wait);
    tcase_add_test(order, test_streams_may_not_wait);
    tcase_add_test(order, test_variable_lets_streams_wait);
    suite_add_tcase(suite, order);
    TCase *failure = tcase_create("failure");
    tcase_set_timeout(failure, 100);
    tcase_add_loop_test(failure, test_failed_job, 0, 8);
    tcase_add_loop_test(failure, test_closed, 0, 6);
    tcase_add_loop_test(failure, test_broken_device, 0, 4);
    suite_add_tcase(suite, failure);
    return suite_main(suite);
}
