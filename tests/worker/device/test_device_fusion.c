/* Fusion buffers on a device: what they give is what those in memory give, in the order of streams.
 */
#include "worker/shoal.h"

#include "tests/lib/cuda/cuda_stand_in.h"
#include "tests/lib/server/world.h"
#include "tests/lib/suite.h"
#include "worker/api/fusion_handle.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { PARAMETERS = 40, STEPS = 5 };

static bool streams_wait = true; /* for words: the host need not */

static size_t count_of(int index)
{
    return (size_t)(index * 97 % 700) + 1;
}

static float value(int rank, int step, int index, size_t i)
{
    return (float)(rank + 1) * 0.37f + (float)step * 1.1f +
           (float)(index * 3 + (int)(i % 50)) * 0.01f;
}

static void make_gradient(float *to, int rank, int step, int index)
{
    for (size_t i = 0; i < count_of(index); i++)
        to[i] = value(rank, step, index, i);
}

/* A parameter has no gradient in some steps. */
static bool absent(int step, int index)
{
    return (step * 7 + index) % 11 == 0;
}

struct side {
    shoal_fusion *fusion;
    float *own[PARAMETERS]; /* the caller's gradients; NULL: in the buffer */
};

static void make_side(struct member *member, struct side *side, int own_every, int on_device,
                      void *device_memory)
{
    struct shoal_parameter parameters[PARAMETERS];
    for (int i = 0; i < PARAMETERS; i++) {
        size_t bytes = count_of(i) * sizeof(float);
        side->own[i] = NULL;
        if (own_every && i % own_every == 0)
            side->own[i] = on_device ? shoal_device_alloc(member->job, bytes) : malloc(bytes);
        parameters[i] = (struct shoal_parameter){side->own[i], count_of(i), SHOAL_F32};
    }
    struct shoal_fusion_options options = {.struct_size = sizeof(options),
                                           .threshold_bytes = 9000,
                                           .first_buffer_bytes = 3000,
                                           .op = SHOAL_AVG,
                                           .on_device = on_device,
                                           .device_memory = device_memory};
    GOOD(shoal_fusion_create(shoal_world(member->job), parameters, PARAMETERS, &options,
                             &side->fusion));
}

static void free_side(struct member *member, struct side *side, int on_device)
{
    shoal_fusion_free(side->fusion);
    for (int i = 0; i < PARAMETERS; i++) {
        if (on_device)
            shoal_device_free(member->job, side->own[i]);
        else
            free(side->own[i]);
    }
}

/* In memory, and on the device with the copies on a stream that is late now and then. */
static void check_steps(struct member *member, int own_every, void *device_memory)
{
    const struct stand_in *cuda = stand_in_open();
    struct side host, device;
    void *stream = cuda->stream_make(), *side_stream = cuda->stream_make();
    float *data[PARAMETERS], *results[STEPS][PARAMETERS];
    make_side(member, &host, own_every, 0, NULL);
    make_side(member, &device, own_every, 1, device_memory);
    GOOD(shoal_fusion_set_stream(device.fusion, stream));
    for (int i = 0; i < PARAMETERS; i++)
        data[i] = malloc(count_of(i) * sizeof(float));
    for (int step = 0; step < STEPS; step++) {
        bool held = step > 0 && (step + member->rank) % 2;
        if (held)
            cuda->stream_hold(stream);
        for (int k = 0; k < PARAMETERS; k++) {
            int i = PARAMETERS - 1 - (k + member->rank) % PARAMETERS;
            size_t bytes = count_of(i) * sizeof(float);
            if (absent(step, i))
                continue;
            make_gradient(shoal_fusion_gradient(host.fusion, (size_t)i), member->rank, step, i);
            GOOD(shoal_fusion_ready(host.fusion, (size_t)i));
            /* Not before the stream comes to it: that of the step before may still be copied. */
            float *source = shoal_device_alloc(member->job, bytes);
            make_gradient(data[i], member->rank, step, i);
            GOOD(shoal_device_copy(member->job, source, data[i], bytes));
            cuda->stream_copy(stream, shoal_fusion_gradient(device.fusion, (size_t)i), source,
                              bytes);
            results[step][i] = source; /* freed later, and used for the result until then */
            GOOD(shoal_fusion_ready(device.fusion, (size_t)i));
        }
        GOOD(shoal_fusion_wait(host.fusion, -1));
        if (held && !streams_wait)
            cuda->stream_let_go(stream);
        GOOD(shoal_fusion_wait_stream(device.fusion, stream, -1));
        if (held && streams_wait) /* the host has not waited for it */
            cuda->stream_let_go(stream);
        for (int i = 0; i < PARAMETERS; i++) {
            size_t bytes = count_of(i) * sizeof(float);
            if (absent(step, i))
                results[step][i] = shoal_device_alloc(member->job, bytes);
            cuda->stream_copy(stream, results[step][i],
                              shoal_fusion_gradient(device.fusion, (size_t)i), bytes);
        }
        cuda->stream_finish(stream);
        for (int i = 0; i < PARAMETERS; i++) {
            size_t bytes = count_of(i) * sizeof(float);
            GOOD(shoal_device_copy(member->job, data[i], results[step][i], bytes));
            ck_assert_msg(memcmp(data[i], shoal_fusion_gradient(host.fusion, (size_t)i), bytes) ==
                              0,
                          "step %d, parameter %d", step, i);
            shoal_device_free(member->job, results[step][i]);
        }
    }
    struct shoal_fusion_statistics statistics = {.struct_size = sizeof(statistics)};
    GOOD(shoal_fusion_statistics(device.fusion, &statistics));
    ck_assert_uint_gt(statistics.buffers, 3);
    for (int i = 0; i < PARAMETERS; i++)
        free(data[i]);
    free_side(member, &host, 0);
    free_side(member, &device, 1);
    cuda->stream_drop(stream);
    cuda->stream_drop(side_stream);
}

static void check_fusion(struct member *member)
{
    struct shoal_parameter parameters[PARAMETERS];
    struct shoal_fusion_options on_device = {.struct_size = sizeof(on_device), .on_device = 1};
    shoal_fusion *fusion;
    for (int i = 0; i < PARAMETERS; i++)
        parameters[i] = (struct shoal_parameter){NULL, count_of(i), SHOAL_F32};
    BAD(shoal_fusion_create(shoal_world(member->job), parameters, PARAMETERS, &on_device, &fusion),
        SHOAL_ESTATE, "no device");
    stand_in_open_device(member->job);
    check_steps(member, 0, NULL);
    check_steps(member, 1, NULL);
    void *memory = shoal_device_alloc(member->job, shoal_fusion_bytes(parameters, PARAMETERS));
    check_steps(member, 3, memory);
    shoal_device_free(member->job, memory);
}

START_TEST(test_fusion_is_the_hosts)
{
    const struct stand_in *cuda = stand_in_open();
    cuda->seed((uint64_t)_i);
    streams_wait = _i != 2;
    cuda->set_memory_operations(streams_wait);
    world_run(&(struct fake_daemon_options){.world_size = (uint32_t)_i % 3 + 1,
                                            .chunk_bytes = 1024,
                                            .seed = (uint64_t)_i},
              check_fusion);
    stand_in_check_nothing_left(true);
}
END_TEST

static void ready_and_wait(struct side *side, void *stream, bool held)
{
    for (int i = PARAMETERS - 1; i >= 0; i--)
        GOOD(shoal_fusion_ready(side->fusion, (size_t)i));
    if (held)
        stand_in_open()->stream_hold(stream);
    GOOD(shoal_fusion_wait_stream(side->fusion, stream, -1));
}

static struct shoal_fusion_statistics statistics_of(const struct side *side)
{
    struct shoal_fusion_statistics statistics = {.struct_size = sizeof(statistics)};
    GOOD(shoal_fusion_statistics(side->fusion, &statistics));
    ck_assert_uint_ge(statistics.communication_ns, statistics.exposed_ns);
    return statistics;
}

/* Check the times of steps that end on a stream: a step has none before its results are there,
 * while the host steps ahead; the stream's waiting is exposed, and only that. */
static void check_times(struct member *member)
{
    enum { AHEAD = 12, TRIES = 300 };
    const struct stand_in *cuda = stand_in_open();
    struct side side;
    void *stream = cuda->stream_make();
    stand_in_open_device(member->job);
    make_side(member, &side, 0, 1, NULL);
    GOOD(shoal_fusion_set_stream(side.fusion, stream));
    ready_and_wait(&side, stream, false); /* by the host */
    struct shoal_fusion_statistics first = statistics_of(&side), now;
    /* The stream comes to its wait when everything is there. */
    ready_and_wait(&side, stream, true);
    do {
        now = statistics_of(&side);
        sched_yield();
    } while (memcmp(&now, &first, sizeof(now)) == 0);
    ck_assert_uint_gt(now.communication_ns, 0);
    ck_assert_uint_eq(now.exposed_ns, 0);
    ck_assert(now.buffers == first.buffers && now.bytes == first.bytes);
    cuda->stream_let_go(stream);
    cuda->stream_finish(stream);
    /* The stream waits for a while before its results are there. */
    for (int i = 1; i <= TRIES; i++) {
        first = now;
        fake_daemon_hold(member->world->daemon, true);
        ready_and_wait(&side, stream, false);
        for (int k = 0; k < 100 * i; k++)
            sched_yield();
        now = statistics_of(&side);
        ck_assert_int_eq(memcmp(&now, &first, sizeof(now)), 0);
        fake_daemon_hold(member->world->daemon, false);
        cuda->stream_finish(stream);
        now = statistics_of(&side);
        ck_assert_int_ne(memcmp(&now, &first, sizeof(now)), 0);
        if (now.exposed_ns > 0)
            break;
    }
    ck_assert_uint_gt(now.exposed_ns, 0);
    /* The host is ahead. */
    cuda->stream_hold(stream);
    for (int i = 0; i < AHEAD; i++)
        ready_and_wait(&side, stream, false);
    first = statistics_of(&side);
    ck_assert_int_eq(memcmp(&now, &first, sizeof(now)), 0);
    cuda->stream_let_go(stream);
    cuda->stream_finish(stream);
    now = statistics_of(&side);
    ck_assert_int_ne(memcmp(&now, &first, sizeof(now)), 0);
    free_side(member, &side, 1);
    cuda->stream_drop(stream);
}

START_TEST(test_times)
{
    world_run(&(struct fake_daemon_options){.world_size = 1, .chunk_bytes = 1024}, check_times);
    stand_in_check_nothing_left(true);
}
END_TEST

static void check_misuse(struct member *member)
{
    struct side host, device;
    stand_in_open_device(member->job);
    make_side(member, &host, 0, 0, NULL);
    make_side(member, &device, 0, 1, NULL);
    BAD(shoal_fusion_set_stream(host.fusion, NULL), SHOAL_EINVALID, "not on a device");
    BAD(shoal_fusion_wait_stream(host.fusion, NULL, -1), SHOAL_EINVALID, "not on a device");
    BAD(shoal_fusion_wait_stream(device.fusion, NULL, -2), SHOAL_EINVALID, "less than -1");
    GOOD(shoal_fusion_ready(device.fusion, 3));
    BAD(shoal_fusion_set_stream(device.fusion, shoal_device_stream(member->job)), SHOAL_ESTATE,
        "ready already");
    GOOD(shoal_fusion_wait_stream(device.fusion, NULL, -1));
    /* The second step fails: the wait puts it onto the stream or says it, and the next call does.
     */
    fake_daemon_fail(member->world->daemon, -1, SHOAL_ELOST, "rank 9 is gone");
    int result = SHOAL_OK;
    for (int step = 0; result == SHOAL_OK && step < 1000; step++)
        result = shoal_fusion_wait_stream(device.fusion, shoal_device_stream(member->job), -1);
    ck_assert_int_eq(result, SHOAL_ELOST);
    ck_assert_ptr_nonnull(strstr(shoal_error_text(), "rank 9 is gone"));
    BAD(shoal_fusion_ready(device.fusion, 1), SHOAL_ELOST, "rank 9 is gone");
    free_side(member, &host, 0);
    /* The other one goes with the job. */
    struct shoal_parameter many = {NULL, SIZE_MAX / 2, SHOAL_F64};
    ck_assert_uint_eq(shoal_fusion_bytes(&many, 1), 0);
}

START_TEST(test_misuse)
{
    world_run(&(struct fake_daemon_options){.world_size = 1}, check_misuse);
    stand_in_check_nothing_left(true);
}
END_TEST

/* Two parameters in a buffer each, and everything that goes on in a step said with one call. */
struct pair {
    shoal_fusion *fusion;
    float *gradients[2]; /* the caller's, COUNT each */
};

enum { COUNT = 500 };

static void pair_set(struct member *member, const struct pair *pair, float first, float second)
{
    float values[COUNT];
    for (int i = 0; i < 2; i++) {
        for (size_t j = 0; j < COUNT; j++)
            values[j] = i == 0 ? first : second;
        GOOD(shoal_device_copy(member->job, pair->gradients[i], values, sizeof(values)));
    }
}

static void pair_expect(struct member *member, const struct pair *pair, float first, float second)
{
    float values[COUNT];
    for (int i = 0; i < 2; i++) {
        GOOD(shoal_device_copy(member->job, values, pair->gradients[i], sizeof(values)));
        for (size_t j = 0; j < COUNT; j++)
            EXPECT(values[j] == (i == 0 ? first : second));
    }
}

static void pair_ready(const struct pair *pair)
{
    GOOD(shoal_fusion_ready(pair->fusion, 1));
    GOOD(shoal_fusion_ready(pair->fusion, 0));
}

/* On this stream. */
static void pair_make(struct member *member, struct pair *pair, void *stream)
{
    struct shoal_fusion_options options = {.struct_size = sizeof(options),
                                           .threshold_bytes = COUNT * sizeof(float),
                                           .first_buffer_bytes = COUNT * sizeof(float),
                                           .on_device = 1};
    struct shoal_parameter parameters[2];
    stand_in_open_device(member->job);
    for (int i = 0; i < 2; i++) {
        pair->gradients[i] = shoal_device_alloc(member->job, COUNT * sizeof(float));
        parameters[i] = (struct shoal_parameter){pair->gradients[i], COUNT, SHOAL_F32};
    }
    pair_set(member, pair, 0, 0);
    GOOD(shoal_fusion_create(shoal_world(member->job), parameters, 2, &options, &pair->fusion));
    GOOD(shoal_fusion_set_stream(pair->fusion, stream));
}

/* And with the step behind it in which ranks agree on an order. */
static void pair_open(struct member *member, struct pair *pair, void *stream)
{
    pair_make(member, pair, stream);
    pair_ready(pair);
    GOOD(shoal_fusion_wait(pair->fusion, -1));
    ck_assert_uint_eq(pair->fusion->plan.buffer_count, 2);
    stand_in_open()->stream_finish(stream);
}

static void pair_close(struct member *member, struct pair *pair)
{
    shoal_fusion_free(pair->fusion);
    for (int i = 0; i < 2; i++)
        shoal_device_free(member->job, pair->gradients[i]);
}

static bool is_complete(shoal_job *job, const struct shoal_request *request)
{
    pthread_mutex_lock(&job->lock);
    bool complete = request->core.state == REQUEST_COMPLETE;
    pthread_mutex_unlock(&job->lock);
    return complete;
}

/* The host has waited for the first buffer and had no time left for the second. */
static void check_wait_goes_on(struct member *member)
{
    struct fake_daemon *daemon = member->world->daemon;
    void *stream = stand_in_open()->stream_make();
    struct pair pair;
    pair_open(member, &pair, stream);
    pair_set(member, &pair, 3, 4);
    GOOD(shoal_fusion_ready(pair.fusion, 1));
    while (!is_complete(member->job, pair.fusion->requests[0]))
        sched_yield();
    fake_daemon_hold(daemon, true);
    GOOD(shoal_fusion_ready(pair.fusion, 0));
    BAD(shoal_fusion_wait(pair.fusion, 0), SHOAL_ETIMEOUT, "all_reduce");
    ck_assert_uint_eq(pair.fusion->finished, 1);
    GOOD(shoal_fusion_wait_stream(pair.fusion, stream, -1));
    fake_daemon_hold(daemon, false);
    stand_in_open()->stream_finish(stream);
    pair_expect(member, &pair, 3, 4);
    pair_close(member, &pair);
    stand_in_open()->stream_drop(stream);
}

START_TEST(test_stream_goes_on_where_the_host_was)
{
    world_run(&(struct fake_daemon_options){.world_size = 1}, check_wait_goes_on);
    stand_in_check_nothing_left(true);
}
END_TEST

/* Wait for longer than all the operations take that the test has put onto any stream. */
static void pass_time(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    void *stream = cuda->stream_make(), *memory = shoal_device_alloc(member->job, 1);
    for (int i = 0; i < 50; i++)
        cuda->stream_copy(stream, memory, memory, 1);
    cuda->stream_finish(stream);
    shoal_device_free(member->job, memory);
    cuda->stream_drop(stream);
}

/* The results of a step are written back on another stream than the gradients are gathered on, and
 * later than the next step's are said to be ready: each step doubles them. */
static void check_two_streams(struct member *member, bool change)
{
    const struct stand_in *cuda = stand_in_open();
    void *streams[] = {cuda->stream_make(), cuda->stream_make()}, *results = cuda->stream_make();
    struct pair pair;
    pair_open(member, &pair, streams[0]);
    pair_set(member, &pair, 3, 4);
    cuda->stream_hold(results);
    pair_ready(&pair);
    GOOD(shoal_fusion_wait_stream(pair.fusion, results, -1));
    GOOD(shoal_fusion_set_stream(pair.fusion, streams[change]));
    pair_ready(&pair);
    pass_time(member);
    cuda->stream_let_go(results);
    GOOD(shoal_fusion_wait_stream(pair.fusion, results, -1));
    cuda->stream_finish(results);
    pair_expect(member, &pair, 12, 16);
    pair_close(member, &pair);
    cuda->stream_drop(results);
    for (int i = 0; i < 2; i++)
        cuda->stream_drop(streams[i]);
}

static void check_another_stream(struct member *member)
{
    check_two_streams(member, false);
}

static void check_changed_stream(struct member *member)
{
    check_two_streams(member, true);
}

/* The first step's results are written back by the host's order on the first stream; the other one
 * comes behind that. */
static void check_first_step(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    void *stream = cuda->stream_make(), *results = cuda->stream_make();
    struct pair pair;
    pair_make(member, &pair, stream);
    pair_set(member, &pair, 3, 4);
    float *copy = shoal_device_alloc(member->job, COUNT * sizeof(float)), got[COUNT];
    pair_ready(&pair);
    cuda->stream_hold(stream);
    GOOD(shoal_fusion_wait_stream(pair.fusion, results, -1));
    cuda->stream_copy(results, copy, pair.gradients[0], COUNT * sizeof(float));
    pass_time(member);
    cuda->stream_let_go(stream);
    cuda->stream_finish(results);
    GOOD(shoal_device_copy(member->job, got, copy, sizeof(got)));
    for (size_t i = 0; i < COUNT; i++)
        EXPECT(got[i] == 6);
    shoal_device_free(member->job, copy);
    pair_close(member, &pair);
    cuda->stream_drop(stream);
    cuda->stream_drop(results);
}

START_TEST(test_streams_follow_each_other)
{
    void (*const checks[])(struct member *) = {check_another_stream, check_changed_stream,
                                               check_first_step};
    stand_in_open()->seed((uint64_t)_i);
    world_run(&(struct fake_daemon_options){.world_size = 2}, checks[_i]);
    stand_in_check_nothing_left(true);
}
END_TEST

/* Three of a length that leaves room behind them, said to be ready in another order than the first
 * plan has; twice a step, behind a plan that is new. */
static void check_padding(struct member *member)
{
    enum { LENGTH = 5, PARTS = 3, FIRST = 17 };
    struct shoal_fusion_options options = {.struct_size = sizeof(options), .on_device = 1};
    struct shoal_parameter parameters[PARTS];
    float *gradients[PARTS], values[FIRST], memory[64];
    void *stream = stand_in_open()->stream_make();
    stand_in_open_device(member->job);
    for (int i = 0; i < FIRST; i++)
        values[i] = 1;
    for (int i = 0; i < PARTS; i++) {
        size_t count = i == 0 ? FIRST : LENGTH;
        gradients[i] = shoal_device_alloc(member->job, sizeof(values));
        GOOD(shoal_device_copy(member->job, gradients[i], values, sizeof(values)));
        parameters[i] = (struct shoal_parameter){gradients[i], count, SHOAL_F32};
    }
    ck_assert_uint_eq(shoal_fusion_bytes(parameters, PARTS), sizeof(memory));
    options.device_memory = shoal_device_alloc(member->job, sizeof(memory));
    shoal_fusion *fusion;
    GOOD(shoal_fusion_create(shoal_world(member->job), parameters, PARTS, &options, &fusion));
    GOOD(shoal_fusion_set_stream(fusion, stream));
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < PARTS; i++)
            GOOD(shoal_fusion_ready(fusion, (size_t)i));
        GOOD(shoal_fusion_wait(fusion, -1));
    }
    stand_in_open()->stream_finish(stream);
    GOOD(shoal_device_copy(member->job, memory, options.device_memory, sizeof(memory)));
    int filled = 0;
    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++)
        filled += memory[i] != 0;
    ck_assert_int_eq(filled, FIRST + (PARTS - 1) * LENGTH);
    shoal_fusion_free(fusion);
    shoal_device_free(member->job, options.device_memory);
    for (int i = 0; i < PARTS; i++)
        shoal_device_free(member->job, gradients[i]);
    stand_in_open()->stream_drop(stream);
}

/* Check that results are right when the library placed the gradients, they become ready in another
 * order than the first plan has, and an allocation of the driver fails. */
static void check_move_without_memory(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    struct side side;
    void *stream = cuda->stream_make();
    float data[700], got[700];
    stand_in_open_device(member->job);
    make_side(member, &side, 0, 1, NULL);
    GOOD(shoal_fusion_set_stream(side.fusion, stream));
    for (int k = 0; k < PARAMETERS; k++) {
        int i = k * 7 % PARAMETERS;
        make_gradient(data, 0, 1, i);
        GOOD(shoal_device_copy(member->job, shoal_fusion_gradient(side.fusion, (size_t)i), data,
                               count_of(i) * sizeof(float)));
        GOOD(shoal_fusion_ready(side.fusion, (size_t)i));
    }
    const void *place = shoal_fusion_gradient(side.fusion, 1);
    cuda->fail_call("cuMemAlloc", 1, STAND_IN_OUT_OF_MEMORY);
    GOOD(shoal_fusion_wait_stream(side.fusion, stream, -1));
    ck_assert_str_eq(cuda->failed(), "cuMemAlloc");
    ck_assert_ptr_ne(shoal_fusion_gradient(side.fusion, 1), place);
    cuda->stream_finish(stream);
    for (int i = 0; i < PARAMETERS; i++) {
        size_t bytes = count_of(i) * sizeof(float);
        make_gradient(data, 0, 1, i);
        GOOD(shoal_device_copy(member->job, got, shoal_fusion_gradient(side.fusion, (size_t)i),
                               bytes));
        ck_assert_int_eq(memcmp(got, data, bytes), 0);
    }
    free_side(member, &side, 1);
    cuda->stream_drop(stream);
}

START_TEST(test_move_without_memory)
{
    world_run(&(struct fake_daemon_options){.world_size = 1}, check_move_without_memory);
    stand_in_check_nothing_left(true);
}
END_TEST

START_TEST(test_padding_is_zero)
{
    world_run(&(struct fake_daemon_options){.world_size = 2}, check_padding);
    stand_in_check_nothing_left(true);
}
END_TEST

static bool has_background(shoal_job *job)
{
    pthread_mutex_lock(&job->lock);
    bool has = job->background_requests > 0;
    pthread_mutex_unlock(&job->lock);
    return has;
}

/* Results come when nobody waits for them any more, into memory that is still there. */
static void check_late_results(struct member *member)
{
    struct fake_daemon *daemon = member->world->daemon;
    shoal_job *job = member->job;
    shoal_group *world = shoal_world(job);
    void *stream = stand_in_open()->stream_make();
    struct pair pair;
    pair_open(member, &pair, stream);
    fake_daemon_hold(daemon, true);
    pair_ready(&pair);
    int timeout_ms = job->timeout_ms;
    job->timeout_ms = 20;
    shoal_fusion_free(pair.fusion);
    job->timeout_ms = timeout_ms;
    fake_daemon_hold(daemon, false);
    while (has_background(job))
        sched_yield();
    GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, stream));
    GOOD(shoal_all_reduce(world, pair.gradients[0], pair.gradients[0], COUNT, SHOAL_F32, SHOAL_SUM,
                          NULL));
    for (int i = 0; i < 2; i++)
        shoal_device_free(job, pair.gradients[i]);
    stand_in_open()->stream_drop(stream);
}

START_TEST(test_freed_before_its_results)
{
    world_run(&(struct fake_daemon_options){.world_size = 1}, check_late_results);
    stand_in_check_nothing_left(true);
}
END_TEST

/* Step until a call of the driver fails, which the failure names. A step has gradients of the
 * caller's and of the library's, and lacks some. */
static int use_fusion(struct side *side, void *stream)
{
    int result = shoal_fusion_set_stream(side->fusion, stream);
    for (int step = 0; step < 3 && result == SHOAL_OK; step++) {
        for (int i = PARAMETERS - 1; i >= 0 && result == SHOAL_OK; i--)
            if (!absent(step, i))
                result = shoal_fusion_ready(side->fusion, (size_t)i);
        if (result == SHOAL_OK)
            result = shoal_fusion_wait_stream(side->fusion, stream, -1);
    }
    return result;
}

static void expect_named(int result)
{
    const char *failed = stand_in_open()->failed();
    if (result != SHOAL_OK)
        ck_assert_msg(failed[0] && strstr(shoal_error_text(), failed),
                      "\"%s\" failed, and it says: %s", failed, shoal_error_text());
}

static void check_any_call(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    struct shoal_device_options options = {
        .struct_size = sizeof(options), .library = cuda->path, .stream_waits = 1};
    struct shoal_parameter parameters[PARAMETERS];
    struct shoal_fusion_options made = {
        .struct_size = sizeof(made), .threshold_bytes = 20000, .on_device = 1};
    struct side side = {NULL};
    void *stream = cuda->stream_make();
    int result = shoal_device_open(member->job, &options);
    for (int i = 0; i < PARAMETERS; i++) {
        if (result == SHOAL_OK && i % 3 == 0 &&
            !(side.own[i] = shoal_device_alloc(member->job, count_of(i) * sizeof(float))))
            result = SHOAL_EMEMORY;
        parameters[i] = (struct shoal_parameter){side.own[i], count_of(i), SHOAL_F32};
    }
    if (result == SHOAL_OK)
        result = shoal_fusion_create(shoal_world(member->job), parameters, PARAMETERS, &made,
                                     &side.fusion);
    if (result == SHOAL_OK)
        result = use_fusion(&side, stream);
    expect_named(result);
    cuda->stream_finish(stream);
    free_side(member, &side, 1);
    cuda->stream_drop(stream);
}

static void run_any_call(int nth)
{
    (void)nth;
    world_run(&(struct fake_daemon_options){.world_size = 1, .seed = 1}, check_any_call);
    stand_in_check_nothing_left(true);
}

START_TEST(test_any_call_fails)
{
    stand_in_fail_each_call(run_any_call);
    ck_assert_int_eq(stand_in_open()->default_operations(), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_fusion");
    TCase *core = tcase_create("core");
    tcase_set_timeout(core, 120);
    tcase_add_loop_test(core, test_fusion_is_the_hosts, 0, 5);
    tcase_add_test(core, test_times);
    tcase_add_test(core, test_misuse);
    tcase_add_test(core, test_stream_goes_on_where_the_host_was);
    tcase_add_loop_test(core, test_streams_follow_each_other, 0, 3);
    tcase_add_test(core, test_move_without_memory);
    tcase_add_test(core, test_padding_is_zero);
    tcase_add_test(core, test_freed_before_its_results);
    suite_add_tcase(suite, core);
    TCase *calls = tcase_create("any call");
    tcase_set_timeout(calls, 240);
    tcase_add_test(calls, test_any_call_fails);
    suite_add_tcase(suite, calls);
    return suite_main(suite);
}
