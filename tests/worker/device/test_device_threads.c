/* Calls of several threads that meet on a device, on the stand-in for CUDA's driver. */
#include "worker/shoal.h"

#include "common/base/clock.h"
#include "tests/lib/cuda/cuda_stand_in.h"
#include "tests/lib/server/world.h"
#include "tests/lib/suite.h"
#include "worker/job/job.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void run(const struct fake_daemon_options *options, void (*body)(struct member *))
{
    world_run(options, body);
    stand_in_check_nothing_left(true);
}

enum { COUNT = 100, SLOT = 8192 };

static float *constant(struct member *member, float value)
{
    float values[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        values[i] = value;
    float *memory = shoal_device_alloc(member->job, sizeof(values));
    ck_assert_msg(memory != NULL, "%s", shoal_error_text());
    GOOD(shoal_device_copy(member->job, memory, values, sizeof(values)));
    return memory;
}

static void expect_constant(struct member *member, const float *memory, float value)
{
    float got[COUNT];
    GOOD(shoal_device_copy(member->job, got, memory, sizeof(got)));
    for (size_t i = 0; i < COUNT; i++)
        EXPECT(got[i] == value);
}

/* --- the end of a group -------------------------------------------------------------------- */

/* The driver finds the result's arrival and the end of the group at once: the result still gets to
 * the device. */
static void check_done_before_the_end(struct member *member)
{
    struct fake_daemon *daemon = member->world->daemon;
    shoal_job *job = member->job;
    struct arena_header *header = (struct arena_header *)(void *)job->arena.base;
    shoal_group *group;
    shoal_request *request;
    pthread_t waits;
    stand_in_open_device(member->job);
    float *data = constant(member, 3), *result = constant(member, 0);
    GOOD(shoal_group_open(job, (int[]){0}, 1, -1, &group));
    fake_daemon_hold(daemon, true);
    GOOD(shoal_group_set_stream(group, SHOAL_MEMORY_DEVICE, NULL));
    GOOD(shoal_all_reduce(group, data, result, COUNT, SHOAL_F32, SHOAL_SUM, &request));
    pthread_create(&waits, NULL, world_wait_well, request);
    while (fake_daemon_staged_chunks(daemon) < 1)
        sched_yield();
    world_lock_sleeping(job);
    fake_daemon_say(daemon,
                    "{\"type\":\"failed\",\"group\":1,\"code\":-5,\"text\":\"rank 7 is gone\"}\n");
    fake_daemon_hold(daemon, false);
    /* The chunk, and the end of the request. */
    while (atomic_load(&header->completion_tail) - job->arena.completion_index < 2)
        sched_yield();
    pthread_mutex_unlock(&job->lock);
    pthread_join(waits, NULL);
    expect_constant(member, result, 3);
    BAD(shoal_barrier(group, NULL), SHOAL_ELOST, "rank 7 is gone");
    shoal_device_free(job, data);
    shoal_device_free(job, result);
}

START_TEST(test_done_before_the_end)
{
    stand_in_open()->seed((uint64_t)_i);
    run(&(struct fake_daemon_options){.world_size = 1}, check_done_before_the_end);
}
END_TEST

/* --- opening ------------------------------------------------------------------------------- */

struct opening {
    shoal_job *job;
    char path[256];
};

static void *open_slowly(void *argument)
{
    const struct opening *opening = argument;
    struct shoal_device_options options = {.struct_size = sizeof(options),
                                           .library = opening->path};
    BAD(shoal_device_open(opening->job, &options), SHOAL_EUNSUPPORTED, opening->path);
    return NULL;
}

/* The driver is a pipe, and takes as long to load as that is open. Nothing else waits for it. */
static void check_slow_driver(struct member *member)
{
    struct opening opening = {.job = member->job};
    char *directory = suite_make_directory();
    pthread_t opens;
    int fd;
    snprintf(opening.path, sizeof(opening.path), "%s/libcuda.so.1", directory);
    ck_assert_int_eq(mkfifo(opening.path, 0600), 0);
    pthread_create(&opens, NULL, open_slowly, &opening);
    while ((fd = open(opening.path, O_WRONLY | O_NONBLOCK | O_CLOEXEC)) < 0) {
        ck_assert_int_eq(errno, ENXIO); /* nobody reads it yet */
        sched_yield();
    }
    GOOD(shoal_barrier(shoal_world(member->job), NULL));
    BAD(shoal_group_set_stream(shoal_world(member->job), SHOAL_MEMORY_DEVICE, NULL), SHOAL_ESTATE,
        "no device");
    BAD(shoal_device_open(member->job, NULL), SHOAL_ESTATE, "another thread");
    close(fd);
    pthread_join(opens, NULL);
    stand_in_open_device(member->job);
    suite_remove_directory(directory);
}

START_TEST(test_slow_driver)
{
    run(&(struct fake_daemon_options){.world_size = 1}, check_slow_driver);
}
END_TEST

/* The limit lies in the middle of a slot that is there already, or where the next would be; and of
 * a page, of which the system would pin all. */
static void check_half_pinned(struct member *member, bool next)
{
    enum { LARGE = 60000 };
    const struct stand_in *cuda = stand_in_open();
    shoal_job *job = member->job;
    shoal_group *group;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    void *probe = shoal_alloc(job, SLOT);
    uint64_t offset = (uint64_t)((uint8_t *)probe - job->arena.base);
    shoal_free(job, probe);
    if (!next)
        offset = job->progress.staging.first_offset + 2 * SLOT;
    uint64_t limit = offset + page + page / 4;
    struct shoal_device_options options = {
        .struct_size = sizeof(options), .library = cuda->path, .pinned_bytes = limit};
    GOOD(shoal_device_open(job, &options));
    GOOD(shoal_group_open(job, (int[]){0}, 1, -1, &group));
    uint64_t own = group->core.own.offset, pinned = job->progress.pinned_bytes;
    ck_assert(own + SLOT <= pinned || own >= pinned);
    ck_assert_uint_eq(pinned, (next ? limit : offset) / page * page);
    float *data = shoal_device_alloc(job, LARGE * sizeof(float));
    GOOD(shoal_group_set_stream(group, SHOAL_MEMORY_DEVICE, shoal_device_stream(job)));
    GOOD(shoal_all_reduce(group, data, data, LARGE, SHOAL_F32, SHOAL_SUM, NULL));
    shoal_device_free(job, data);
}

static void check_half_pinned_slot(struct member *member)
{
    check_half_pinned(member, false);
}

static void check_half_pinned_place(struct member *member)
{
    check_half_pinned(member, true);
}

START_TEST(test_no_slot_is_half_pinned)
{
    run(&(struct fake_daemon_options){.world_size = 1, .chunk_bytes = SLOT},
        _i ? check_half_pinned_place : check_half_pinned_slot);
}
END_TEST

/* --- closing under a call ------------------------------------------------------------------ */

struct fixture {
    struct fake_daemon *daemon;
    shoal_job *job;
    void *stream; /* the test's */
    shoal_request *request;
    float *memory;
    atomic_bool reduces; /* the thread that does is about to */
};

static void fixture_open(struct fixture *fixture)
{
    const struct stand_in *cuda = stand_in_open();
    fixture->daemon = fake_daemon_start(&(struct fake_daemon_options){.world_size = 1});
    struct shoal_options options = world_options(fixture->daemon, 1);
    GOOD(shoal_open(&options, &fixture->job));
    stand_in_open_device(fixture->job);
    GOOD(shoal_group_set_stream(shoal_world(fixture->job), SHOAL_MEMORY_DEVICE, NULL));
    fixture->memory = shoal_device_alloc(fixture->job, COUNT * sizeof(float));
    ck_assert_ptr_nonnull(fixture->memory);
    /* The request does not end while the daemon is held. */
    fake_daemon_hold(fixture->daemon, true);
    GOOD(shoal_all_reduce(shoal_world(fixture->job), fixture->memory, fixture->memory, COUNT,
                          SHOAL_F32, SHOAL_SUM, &fixture->request));
    fixture->stream = cuda->stream_make();
}

/* The job is closed by now, and its memory on the device with it. */
static void fixture_close(struct fixture *fixture)
{
    const struct stand_in *cuda = stand_in_open();
    cuda->stream_drop(fixture->stream);
    fake_daemon_stop(fixture->daemon);
    stand_in_check_nothing_left(false);
}

/* The waits for a ring, while closing. */
static struct {
    atomic_int calls, timeouts;
    atomic_bool last; /* the next ring is */
    atomic_bool rung; /* it has */
    atomic_int calls_beyond;
} polls;
static _Thread_local bool closing;

/* Takes the place of libc's. In shoal_close nothing else waits for so long. */
int poll(struct pollfd *pollers, nfds_t count, int timeout_ms)
{
    bool counts = closing && timeout_ms == (int)(DEVICE_LOOK_NS / NS_PER_MS);
    struct timespec time = {.tv_sec = timeout_ms / 1000,
                            .tv_nsec = (long)(timeout_ms % 1000) * 1000000};
    polls.calls += counts;
    polls.calls_beyond += counts && polls.rung;
    int ready = ppoll(pollers, count, timeout_ms < 0 ? NULL : &time, NULL);
    polls.timeouts += counts && ready == 0;
    polls.rung |= counts && polls.last && ready > 0;
    return ready;
}

static void *close_job(void *job)
{
    closing = true;
    GOOD(shoal_close(job));
    return NULL;
}

static void *reduce_until_closed(void *argument)
{
    struct fixture *fixture = argument;
    shoal_group *world = shoal_world(fixture->job);
    shoal_request *request;
    GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, fixture->stream));
    fixture->reduces = true;
    BAD(shoal_all_reduce(world, fixture->memory, fixture->memory, 1, SHOAL_F32, SHOAL_SUM,
                         &request),
        SHOAL_ESTATE, "being closed");
    return NULL;
}

/* The call is held up by a stream that is full, and that goes on when the request is over which
 * closing fails. */
START_TEST(test_close_lets_full_streams_go_on)
{
    const struct stand_in *cuda = stand_in_open();
    struct fixture fixture = {.reduces = false};
    pthread_t reduces;
    fixture_open(&fixture);
    GOOD(shoal_request_wait_stream(fixture.request, fixture.stream));
    cuda->stream_limit(fixture.stream, 2);
    long calls = cuda->calls("cuEventRecord");
    pthread_create(&reduces, NULL, reduce_until_closed, &fixture);
    while (!fixture.reduces || cuda->calls("cuEventRecord") == calls)
        sched_yield();
    GOOD(shoal_close(fixture.job));
    pthread_join(reduces, NULL);
    fixture_close(&fixture);
}
END_TEST

/* Nothing is waited for any more when a stream is seen to have come past its wait. */
START_TEST(test_close_ends_with_the_last_ring)
{
    const struct stand_in *cuda = stand_in_open();
    struct fixture fixture;
    pthread_t closes;
    fixture_open(&fixture);
    cuda->stream_hold(fixture.stream);
    GOOD(shoal_request_wait_stream(fixture.request, fixture.stream));
    pthread_create(&closes, NULL, close_job, fixture.job);
    while (polls.timeouts == 0) /* older rings have been heard then */
        sched_yield();
    int calls = polls.calls;
    while (polls.calls == calls)
        sched_yield();
    polls.last = true;
    cuda->stream_let_go(fixture.stream);
    pthread_join(closes, NULL);
    ck_assert_int_eq(polls.calls_beyond, 0);
    fixture_close(&fixture);
}
END_TEST

enum { FAILURES = 10 };
static struct device_queue *stuck[FAILURES]; /* of jobs that are closed */

/* The device fails while closing waits for a stream, which may still look at its word: that stays,
 * and closing ends. */
START_TEST(test_close_of_a_device_that_fails_meanwhile)
{
    const struct stand_in *cuda = stand_in_open();
    for (int i = 0; i < FAILURES; i++) {
        struct fixture fixture;
        pthread_t closes;
        fixture_open(&fixture);
        cuda->stream_hold(fixture.stream);
        GOOD(shoal_request_wait_stream(fixture.request, fixture.stream));
        stuck[i] = fixture.job->device;
        polls.calls = 0;
        pthread_create(&closes, NULL, close_job, fixture.job);
        while (polls.calls == 0) /* it waits */
            sched_yield();
        cuda->break_device(STAND_IN_ILLEGAL_ADDRESS);
        pthread_join(closes, NULL);
        ck_assert_int_eq(cuda->live().registrations, 2 * (i + 1));
        uint32_t free_count = stuck[i]->free_count;
        ck_assert_uint_eq(*device_word(stuck[i]->device, stuck[i]->free_words[free_count - 1]), 1);
        cuda->break_device(0);
        cuda->stream_let_go(fixture.stream);
        cuda->stream_drop(fixture.stream);
        fake_daemon_stop(fixture.daemon);
    }
}
END_TEST

static uint64_t copied_slot(shoal_job *job)
{
    uint64_t offset = 0;
    pthread_mutex_lock(&job->lock);
    for (uint32_t i = 0; i < job->progress.staging.slot_count; i++)
        if (job->progress.staging.slots[i].copying)
            offset = job->progress.staging.slots[i].offset;
    pthread_mutex_unlock(&job->lock);
    return offset;
}

static void *copy_to_arena(void *argument)
{
    const struct fixture *fixture = argument;
    void *place = shoal_alloc(fixture->job, sizeof(float));
    BAD(shoal_device_copy(fixture->job, place, fixture->memory, sizeof(float)), SHOAL_ESYSTEM,
        "CUDA_ERROR_ILLEGAL_ADDRESS");
    return place;
}

static void *reduce(void *argument)
{
    const struct fixture *fixture = argument;
    shoal_group *world = shoal_world(fixture->job);
    GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, NULL));
    BAD(shoal_all_reduce(world, fixture->memory, fixture->memory, COUNT, SHOAL_F32, SHOAL_SUM,
                         NULL),
        SHOAL_ESYSTEM, "CUDA_ERROR_ILLEGAL_ADDRESS");
    return NULL;
}

/* A copy to the arena is under way when the device fails, and goes on: the call has failed, nothing
 * waits for the copy, and it finds the arena. */
START_TEST(test_close_leaves_a_copy_of_a_failed_device)
{
    const struct stand_in *cuda = stand_in_open();
    struct fixture fixture;
    pthread_t copies;
    float value = 7, got;
    void *place;
    fixture_open(&fixture);
    while (fake_daemon_staged_chunks(fixture.daemon) == 0) /* the first request's is there */
        sched_yield();
    GOOD(shoal_device_copy(fixture.job, fixture.memory, &value, sizeof(value)));
    stuck[0] = fixture.job->device;
    cuda->copies_hold(true);
    pthread_create(&copies, NULL, _i == 0 ? reduce : copy_to_arena, &fixture);
    while (cuda->copies_begun() == 0)
        sched_yield();
    uint64_t offset = copied_slot(fixture.job);
    const uint8_t *arena = fixture.job->arena.base;
    cuda->break_device(STAND_IN_ILLEGAL_ADDRESS);
    pthread_join(copies, &place);
    GOOD(shoal_close(fixture.job));
    ck_assert_int_eq(cuda->copies_begun(), 1);
    ck_assert_int_eq(cuda->live().registrations, 2);
    cuda->copies_hold(false);
    while (cuda->copies_begun() > 0)
        sched_yield();
    memcpy(&got, place ? place : arena + offset, sizeof(got));
    ck_assert_float_eq(got, 7);
    cuda->stream_drop(fixture.stream);
    fake_daemon_stop(fixture.daemon);
}
END_TEST

/* A stream that has not come past its wait when the time is over still uses the fusion's memory,
 * for which freeing would wait. */
START_TEST(test_close_leaves_a_stuck_stream)
{
    const struct stand_in *cuda = stand_in_open();
    struct fixture fixture;
    shoal_fusion *fusion;
    struct shoal_parameter parameter = {.count = COUNT, .dtype = SHOAL_F32};
    struct shoal_fusion_options options = {.struct_size = sizeof(options), .on_device = 1};
    fixture_open(&fixture);
    GOOD(shoal_fusion_create(shoal_world(fixture.job), &parameter, 1, &options, &fusion));
    cuda->stream_hold(fixture.stream);
    cuda->stream_copy(fixture.stream, shoal_fusion_gradient(fusion, 0), fixture.memory,
                      COUNT * sizeof(float));
    GOOD(shoal_request_wait_stream(fixture.request, fixture.stream));
    stuck[0] = fixture.job->device;
    GOOD(shoal_close(fixture.job));
    ck_assert_int_eq(cuda->late_frees(), 0);
    cuda->stream_let_go(fixture.stream);
    cuda->stream_finish(fixture.stream);
    cuda->stream_drop(fixture.stream);
    ck_assert_uint_eq(
        *device_word(stuck[0]->device, stuck[0]->free_words[stuck[0]->free_count - 1]), 1);
    fake_daemon_stop(fixture.daemon);
}
END_TEST

/* The driver refuses, at first, to tell when the stream has come past its wait: closing waits for
 * that all the same. */
START_TEST(test_close_waits_after_a_refusal)
{
    const struct stand_in *cuda = stand_in_open();
    struct fixture fixture;
    pthread_t closes;
    fixture_open(&fixture);
    cuda->stream_hold(fixture.stream);
    cuda->stream_refuse(fixture.stream, 1);
    GOOD(shoal_request_wait_stream(fixture.request, fixture.stream));
    pthread_create(&closes, NULL, close_job, fixture.job);
    while (polls.calls == 0) /* it waits */
        sched_yield();
    cuda->stream_let_go(fixture.stream);
    pthread_join(closes, NULL);
    fixture_close(&fixture);
}
END_TEST

/* The stream refuses for good: the word stays pinned, for the stream looks at it after the
 * close. */
START_TEST(test_close_leaves_a_wait_that_nothing_follows)
{
    const struct stand_in *cuda = stand_in_open();
    struct fixture fixture;
    fixture_open(&fixture);
    cuda->stream_hold(fixture.stream);
    cuda->stream_refuse(fixture.stream, 2);
    BAD(shoal_request_wait_stream(fixture.request, fixture.stream), SHOAL_EMEMORY, "cuEventRecord");
    stuck[0] = fixture.job->device;
    GOOD(shoal_close(fixture.job));
    ck_assert_int_eq(cuda->live().registrations, 2);
    cuda->stream_let_go(fixture.stream);
    cuda->stream_finish(fixture.stream);
    cuda->stream_drop(fixture.stream);
    fake_daemon_stop(fixture.daemon);
}
END_TEST

/* Check that the close waits: it cannot end before the call is let go on, however long that is. */
static void expect_waiting(pthread_t closes)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    ck_assert_int_eq(pthread_timedjoin_np(closes, NULL, &until), ETIMEDOUT);
}

/* The job is closed while the call is held up by what holds the stream. */
static void close_under(struct fixture *fixture, pthread_t call, void *held)
{
    pthread_t closes;
    pthread_create(&closes, NULL, close_job, fixture->job);
    expect_waiting(closes);
    stand_in_open()->stream_let_go(held);
    pthread_join(call, NULL);
    pthread_join(closes, NULL);
    fixture_close(fixture);
}

static void *copy(void *argument)
{
    const struct fixture *fixture = argument;
    float value;
    GOOD(shoal_device_copy(fixture->job, &value, fixture->memory, sizeof(value)));
    return NULL;
}

START_TEST(test_close_waits_for_a_copy)
{
    const struct stand_in *cuda = stand_in_open();
    struct fixture fixture;
    pthread_t copies;
    fixture_open(&fixture);
    void *stream = shoal_device_stream(fixture.job);
    cuda->stream_hold(stream);
    long calls = cuda->calls("cuStreamSynchronize");
    pthread_create(&copies, NULL, copy, &fixture);
    while (cuda->calls("cuStreamSynchronize") == calls)
        sched_yield();
    close_under(&fixture, copies, stream);
}
END_TEST

static void *wait_on_stream(void *argument)
{
    const struct fixture *fixture = argument;
    GOOD(shoal_request_wait_stream(fixture->request, fixture->stream));
    return NULL;
}

START_TEST(test_close_waits_for_a_wait_on_a_full_stream)
{
    const struct stand_in *cuda = stand_in_open();
    struct fixture fixture;
    pthread_t waits;
    fixture_open(&fixture);
    cuda->stream_hold(fixture.stream);
    cuda->stream_limit(fixture.stream, 1);
    pthread_create(&waits, NULL, wait_on_stream, &fixture);
    while (cuda->calls("cuStreamWaitValue32") == 0)
        sched_yield();
    close_under(&fixture, waits, fixture.stream);
}
END_TEST

/* A parent's calls may be under way when it forks: its child must not even ask for the lock. */
START_TEST(test_forked_child_is_refused)
{
    struct fixture fixture;
    shoal_fusion *fusion;
    struct shoal_parameter parameter = {.count = 1, .dtype = SHOAL_F32};
    struct shoal_fusion_options options = {.struct_size = sizeof(options), .on_device = 1};
    fixture_open(&fixture);
    shoal_job *job = fixture.job;
    shoal_group *world = shoal_world(job);
    GOOD(shoal_fusion_create(world, &parameter, 1, &options, &fusion));
    pthread_mutex_lock(&job->lock);
    pid_t child = fork();
    if (child == 0) {
        void *memory = fixture.memory;
        shoal_device_free(job, memory);
        _exit(shoal_device_open(job, NULL) == SHOAL_ESTATE &&
                      shoal_group_set_stream(world, SHOAL_MEMORY_HOST, NULL) == SHOAL_ESTATE &&
                      shoal_request_wait_stream(fixture.request, NULL) == SHOAL_ESTATE &&
                      !shoal_device_alloc(job, 1) && !shoal_device_stream(job) &&
                      shoal_device_copy(job, memory, memory, 1) == SHOAL_ESTATE &&
                      shoal_fusion_set_stream(fusion, NULL) == SHOAL_ESTATE &&
                      shoal_fusion_wait_stream(fusion, NULL, 0) == SHOAL_ESTATE
                  ? 0
                  : 1);
    }
    pthread_mutex_unlock(&job->lock);
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    GOOD(shoal_close(job));
    fixture_close(&fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_threads");
    TCase *cases = tcase_create("device_threads");
    tcase_set_timeout(cases, 120);
    tcase_add_loop_test(cases, test_done_before_the_end, 0, 3);
    tcase_add_test(cases, test_slow_driver);
    tcase_add_loop_test(cases, test_no_slot_is_half_pinned, 0, 2);
    tcase_add_test(cases, test_close_lets_full_streams_go_on);
    tcase_add_test(cases, test_close_ends_with_the_last_ring);
    tcase_add_test(cases, test_close_leaves_a_stuck_stream);
    tcase_add_test(cases, test_close_waits_after_a_refusal);
    tcase_add_test(cases, test_close_leaves_a_wait_that_nothing_follows);
    tcase_add_test(cases, test_close_waits_for_a_copy);
    tcase_add_test(cases, test_close_waits_for_a_wait_on_a_full_stream);
    tcase_add_test(cases, test_forked_child_is_refused);
    suite_add_tcase(suite, cases);
    TCase *failures = tcase_create("failures");
    tcase_set_timeout(failures, 40); /* less than JOB_LEAVE_MS for each */
    tcase_add_loop_test(failures, test_close_leaves_a_copy_of_a_failed_device, 0, 2);
    tcase_add_test(failures, test_close_of_a_device_that_fails_meanwhile);
    suite_add_tcase(suite, failures);
    return suite_main(suite);
}
