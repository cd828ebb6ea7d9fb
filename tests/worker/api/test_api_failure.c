/* Failures, as a caller of the library sees them. */
#include "worker/shoal.h"

#include "common/base/clock.h"
#include "tests/lib/server/world.h"
#include "tests/lib/suite.h"
#include "worker/drive/drive.h"
#include "worker/job/job.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void check_timeout(struct member *member)
{
    shoal_group *world = shoal_world(member->job);
    static float large[30000];
    shoal_request *request;
    fake_daemon_hold(member->world->daemon, true);
    GOOD(shoal_all_reduce(world, large, large, 30000, SHOAL_F32, SHOAL_SUM, &request));
    BAD(shoal_wait(request, 0), SHOAL_ETIMEOUT, "all_reduce of 30000 float (sum)");
    BAD(shoal_wait(request, 20), SHOAL_ETIMEOUT, "0 back");
    ck_assert_int_eq(shoal_test(request), SHOAL_EAGAIN);
    fake_daemon_hold(member->world->daemon, false);
    GOOD(shoal_wait(request, -1));
}

START_TEST(test_wait_times_out_and_goes_on)
{
    world_run(&(struct fake_daemon_options){.world_size = 1}, check_timeout);
}
END_TEST

static pthread_barrier_t both;

/* A rank that gives up in a blocking call, and makes no other, still gives what it has: the others
 * have not given up. */
static void check_gives_up(struct member *member)
{
    static float data[2][200000]; /* more than there are slots */
    float *own = data[member->rank];
    shoal_group *world = shoal_world(member->job);
    shoal_request *request;
    if (member->rank == 0) {
        member->job->timeout_ms = 20;
        BAD(shoal_all_reduce(world, own, own, 200000, SHOAL_F32, SHOAL_SUM, NULL), SHOAL_ETIMEOUT,
            "all_reduce");
        member->job->timeout_ms = 60000;
        pthread_barrier_wait(&both);
    } else {
        pthread_barrier_wait(&both);
        GOOD(shoal_all_reduce(world, own, own, 200000, SHOAL_F32, SHOAL_SUM, &request));
        GOOD(shoal_wait(request, 20000));
    }
    pthread_barrier_wait(&both);
}

START_TEST(test_who_gives_up_still_gives)
{
    pthread_barrier_init(&both, NULL, 2);
    world_run(&(struct fake_daemon_options){.world_size = 2}, check_gives_up);
}
END_TEST

#define BUSY_STEPS 10000u

struct busy {
    struct arena daemon; /* the other side's view */
    unsigned asked;
};

/* Never done while it counts, and each time there is news for the driver, of an old request. */
static bool busy_done(const void *argument)
{
    struct busy *busy = (struct busy *)(uintptr_t)argument;
    struct arena_completion news = {.type = ARENA_REQUEST_DONE};
    ck_assert(arena_push_completion(&busy->daemon, &news));
    return ++busy->asked >= BUSY_STEPS;
}

static void check_busy_driver(struct member *member)
{
    shoal_job *job = member->job;
    GOOD(shoal_barrier(shoal_world(job), NULL));
    pthread_mutex_lock(&job->lock);
    /* All was read, so that the worker's place is the daemon's, which is silent from now on. */
    struct busy busy = {.daemon = job->arena};
    ck_assert_int_eq(drive_wait(job, busy_done, &busy, clock_now_ns()), DRIVE_TIMEOUT);
    pthread_mutex_unlock(&job->lock);
    ck_assert_uint_lt(busy.asked, 10);
}

START_TEST(test_busy_driver_looks_at_its_deadline)
{
    world_run(&(struct fake_daemon_options){.world_size = 1}, check_busy_driver);
}
END_TEST

static void check_mismatch(struct member *member)
{
    shoal_group *group;
    GOOD(shoal_group_open(member->job, (int[]){0, 1}, 2, -1, &group));
    int32_t data[4] = {1, 1, 1, 1};
    BAD(shoal_all_reduce(group, data, data, member->rank ? 4 : 3, SHOAL_I32, SHOAL_SUM, NULL),
        SHOAL_EMISMATCH, "rank 0 asked");
    BAD(shoal_barrier(group, NULL), SHOAL_EMISMATCH, "rank 0 asked");
    /* The other group goes on. */
    GOOD(shoal_all_reduce(shoal_world(member->job), data, data, 4, SHOAL_I32, SHOAL_SUM, NULL));
    ck_assert_int_eq(data[0], 2);
    GOOD(shoal_group_close(group));
}

START_TEST(test_disagreement_fails_the_group_alone)
{
    world_run(&(struct fake_daemon_options){.world_size = 2}, check_mismatch);
}
END_TEST

static bool something_in_ring(const shoal_job *job)
{
    struct arena_header *header = (struct arena_header *)(void *)job->arena.base;
    return atomic_load(&header->completion_tail) != job->arena.completion_index;
}

/* The last collective's end lies in the ring, and the end of its group, or of the job, in the
 * socket, which is read first. */
START_TEST(test_done_before_the_end)
{
    const char *const ends[] = {
        "{\"type\":\"failed\",\"group\":1,\"code\":-5,\"text\":\"rank 7 is gone\"}\n",
        "{\"type\":\"failed\",\"group\":-1,\"code\":-5,\"text\":\"rank 7 is gone\"}\n"};
    struct fake_daemon *daemon = fake_daemon_start(&(struct fake_daemon_options){.world_size = 1});
    struct shoal_options options = world_options(daemon, 1);
    shoal_job *job;
    shoal_group *group;
    shoal_request *request;
    pthread_t waits;
    GOOD(shoal_open(&options, &job));
    GOOD(shoal_group_open(job, (int[]){0}, 1, -1, &group));
    fake_daemon_hold(daemon, true);
    GOOD(shoal_barrier(group, &request));
    pthread_create(&waits, NULL, world_wait_well, request);
    world_lock_sleeping(job);
    fake_daemon_say(daemon, ends[_i]);
    fake_daemon_hold(daemon, false);
    while (!something_in_ring(job))
        sched_yield();
    pthread_mutex_unlock(&job->lock);
    pthread_join(waits, NULL);
    BAD(shoal_barrier(group, NULL), SHOAL_ELOST, "rank 7 is gone");
    GOOD(shoal_close(job));
    fake_daemon_stop(daemon);
}
END_TEST

static uint64_t free_bytes(shoal_job *job)
{
    pthread_mutex_lock(&job->lock);
    uint64_t bytes = arena_heap_free_bytes(&job->heap);
    pthread_mutex_unlock(&job->lock);
    return bytes;
}

/* Its own slot is with the daemon when the group fails, and comes back after it is closed. */
START_TEST(test_closing_a_failed_group_harms_nothing_else)
{
    struct fake_daemon *daemon = fake_daemon_start(&(struct fake_daemon_options){.world_size = 1});
    struct shoal_options options = world_options(daemon, 1);
    static float large[700000], other[10000];
    shoal_job *job;
    shoal_group *group;
    shoal_request *requests[2];
    GOOD(shoal_open(&options, &job));
    uint64_t bytes = free_bytes(job);
    GOOD(shoal_group_open(job, (int[]){0}, 1, -1, &group));
    fake_daemon_hold(daemon, true);
    GOOD(shoal_all_reduce(shoal_world(job), large, large, 700000, SHOAL_F32, SHOAL_SUM,
                          &requests[0])); /* takes all shared slots */
    GOOD(shoal_all_reduce(group, other, other, 10000, SHOAL_F32, SHOAL_SUM, &requests[1]));
    for (bool given = false; !given; sched_yield()) {
        pthread_mutex_lock(&job->lock);
        given = group->core.own.state == STAGING_GIVEN;
        pthread_mutex_unlock(&job->lock);
    }
    fake_daemon_say(daemon, "{\"type\":\"failed\",\"group\":1,\"code\":-6,\"text\":\"no\"}\n");
    BAD(shoal_wait(requests[1], -1), SHOAL_EMISMATCH, "no");
    GOOD(shoal_group_close(group));
    ck_assert_uint_lt(free_bytes(job), bytes);
    fake_daemon_hold(daemon, false);
    GOOD(shoal_wait(requests[0], -1));
    while (free_bytes(job) < bytes)
        GOOD(shoal_barrier(shoal_world(job), NULL));
    ck_assert_uint_eq(free_bytes(job), bytes);
    GOOD(shoal_close(job));
    fake_daemon_stop(daemon);
}
END_TEST

static void reconfigure_wish_misused(shoal_job *job)
{
    static const struct {
        int least_ranks, wait_ms;
        const char *text;
    } wrong[] = {
        {-1, 0, "least_ranks is -1, it must be 0 to 32768"},
        {32769, 0, "least_ranks is 32769, it must be 0 to 32768"},
        {2, -1, "wait_ms is -1, it must be 0 to timeout_ms, 500"},
        {2, 501, "wait_ms is 501, it must be 0 to timeout_ms, 500"},
        {0, 1, "wait_ms is 1 without least_ranks"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct shoal_reconfigure_options how = {.struct_size = sizeof(how),
                                                .timeout_ms = 500,
                                                .least_ranks = wrong[i].least_ranks,
                                                .wait_ms = wrong[i].wait_ms};
        BAD(shoal_job_reconfigure(job, &how), SHOAL_EINVALID, wrong[i].text);
    }
}

/* A rank that has said why it ends takes no leave: the daemon says that it is gone. */
START_TEST(test_set_ending)
{
    struct fake_daemon *daemon = fake_daemon_start(&(struct fake_daemon_options){.world_size = 1});
    struct shoal_options options = world_options(daemon, 1);
    shoal_job *job;
    BAD(shoal_set_ending(NULL, "x"), SHOAL_EINVALID, "NULL");
    GOOD(shoal_open(&options, &job));
    BAD(shoal_set_ending(job, NULL), SHOAL_EINVALID, "no reason");
    BAD(shoal_set_ending(job, ""), SHOAL_EINVALID, "no reason");
    BAD(shoal_set_ending(job, "\xff"), SHOAL_EINVALID, "UTF-8");
    if (_i == 1)
        GOOD(shoal_set_ending(job, "no more data"));
    GOOD(shoal_close(job));
    ck_assert_uint_eq(fake_daemon_workers_left(daemon), _i == 0);
    fake_daemon_stop(daemon);
}
END_TEST

START_TEST(test_reconfigure_misused)
{
    struct fake_daemon *daemon = fake_daemon_start(&(struct fake_daemon_options){.world_size = 1});
    struct shoal_options options = world_options(daemon, 1);
    struct shoal_reconfigure_options how = {.struct_size = 1};
    shoal_job *job;
    BAD(shoal_job_reconfigure(NULL, NULL), SHOAL_EINVALID, "NULL");
    BAD(shoal_generation(NULL), SHOAL_EINVALID, "NULL");
    GOOD(shoal_open(&options, &job));
    ck_assert_int_eq(shoal_generation(job), 1);
    BAD(shoal_job_reconfigure(job, &how), SHOAL_EINVALID, "struct_size");
    how = (struct shoal_reconfigure_options){.struct_size = sizeof(how), .timeout_ms = -1};
    BAD(shoal_job_reconfigure(job, &how), SHOAL_EINVALID, "timeout_ms");
    how = (struct shoal_reconfigure_options){.struct_size = sizeof(how), .stragglers_ms = -1};
    BAD(shoal_job_reconfigure(job, &how), SHOAL_EINVALID, "stragglers_ms");
    reconfigure_wish_misused(job);
    fake_daemon_hold(daemon, true);
    shoal_request *request;
    GOOD(shoal_barrier(shoal_world(job), &request));
    how = (struct shoal_reconfigure_options){.struct_size = sizeof(how), .timeout_ms = 100};
    BAD(shoal_job_reconfigure(job, &how), SHOAL_ETIMEOUT, "");
    fake_daemon_hold(daemon, false);
    GOOD(shoal_wait(request, -1));
    fake_daemon_fail(daemon, -1, SHOAL_EMISMATCH, "the ranks disagree");
    BAD(shoal_barrier(shoal_world(job), NULL), SHOAL_EMISMATCH, "disagree");
    BAD(shoal_job_reconfigure(job, NULL), SHOAL_ESTATE, "no rank was lost: the ranks disagree");
    GOOD(shoal_close(job));
    fake_daemon_stop(daemon);
}
END_TEST

/* This daemon does not answer `release`: the call ends, and the job can only be closed. */
START_TEST(test_reconfigure_without_an_answer)
{
    struct fake_daemon *daemon = fake_daemon_start(&(struct fake_daemon_options){.world_size = 1});
    struct shoal_options options = world_options(daemon, 1);
    struct shoal_reconfigure_options how = {.struct_size = sizeof(how), .timeout_ms = 100};
    shoal_job *job;
    GOOD(shoal_open(&options, &job));
    fake_daemon_fail(daemon, -1, SHOAL_ELOST, "rank 3 on node b is gone");
    BAD(shoal_barrier(shoal_world(job), NULL), SHOAL_ELOST, "rank 3");
    BAD(shoal_job_reconfigure(job, &how), SHOAL_ETIMEOUT, "does not answer");
    BAD(shoal_job_reconfigure(job, &how), SHOAL_ESTATE, "cannot go on");
    BAD(shoal_barrier(shoal_world(job), NULL), SHOAL_ELOST, "rank 3");
    GOOD(shoal_close(job));
    fake_daemon_stop(daemon);
}
END_TEST

/* "SHOAL_ETIMEOUT: the request lives on" is said of no request that has failed and is freed. */
START_TEST(test_failure_by_a_time_of_others)
{
    struct fake_daemon *daemon = fake_daemon_start(&(struct fake_daemon_options){.world_size = 1});
    struct shoal_options options = world_options(daemon, 1);
    shoal_job *job;
    GOOD(shoal_open(&options, &job));
    fake_daemon_hold(daemon, true);
    static float large[40000];
    shoal_request *request;
    GOOD(shoal_all_reduce(shoal_world(job), large, large, 40000, SHOAL_F32, SHOAL_SUM, &request));
    fake_daemon_fail(daemon, -1, SHOAL_ETIMEOUT, "node b does not answer");
    BAD(shoal_wait(request, -1), SHOAL_ELOST, "node b does not answer");
    BAD(shoal_barrier(shoal_world(job), NULL), SHOAL_ELOST, "node b does not answer");
    shoal_group *group;
    BAD(shoal_group_open(job, (int[]){0}, 1, -1, &group), SHOAL_ELOST, "node b");
    GOOD(shoal_close(job));
    fake_daemon_stop(daemon);
}
END_TEST

START_TEST(test_lost_rank_fails_what_is_under_way)
{
    struct fake_daemon *daemon = fake_daemon_start(&(struct fake_daemon_options){.world_size = 1});
    struct shoal_options options = world_options(daemon, 1);
    shoal_job *job;
    GOOD(shoal_open(&options, &job));
    fake_daemon_hold(daemon, true);
    static float large[2][40000];
    shoal_request *requests[2];
    struct notes notes = NOTES;
    for (int i = 0; i < 2; i++)
        GOOD(shoal_all_reduce(shoal_world(job), large[i], large[i], 40000, SHOAL_F32, SHOAL_SUM,
                              &requests[i]));
    GOOD(shoal_request_on_complete(requests[1], note_call, &notes));
    fake_daemon_fail(daemon, -1, SHOAL_ELOST, "rank 3 on node b is gone");
    notes_wait(&notes, 1);
    ck_assert_int_eq(notes.last_result, SHOAL_ELOST);
    ck_assert_str_eq(notes.text, "rank 3 on node b is gone");
    BAD(shoal_wait(requests[0], -1), SHOAL_ELOST, "rank 3 on node b is gone");
    BAD(shoal_test(requests[1]), SHOAL_ELOST, "rank 3");
    shoal_request_free(requests[1]);
    BAD(shoal_barrier(shoal_world(job), NULL), SHOAL_ELOST, "rank 3");
    shoal_group *group;
    BAD(shoal_group_open(job, (int[]){0}, 1, -1, &group), SHOAL_ELOST, "rank 3");
    GOOD(shoal_close(job));
    fake_daemon_stop(daemon);
}
END_TEST

/* A daemon that is stopped (SIGSTOP) keeps its socket open; only its silence tells. */
START_TEST(test_silent_daemon_is_gone)
{
    struct fake_daemon *daemon = fake_daemon_start(
        &(struct fake_daemon_options){.world_size = 1, .silence_ms = 60, .mute = true});
    struct shoal_options options = world_options(daemon, 1);
    shoal_job *job;
    GOOD(shoal_open(&options, &job));
    fake_daemon_hold(daemon, true);
    static float large[40000];
    BAD(shoal_all_reduce(shoal_world(job), large, large, 40000, SHOAL_F32, SHOAL_SUM, NULL),
        SHOAL_EDISCONNECTED, "has not answered for 60 ms");
    BAD(shoal_barrier(shoal_world(job), NULL), SHOAL_EDISCONNECTED, "has not answered");
    ck_assert_uint_eq(fake_daemon_pings(daemon), 1);
    GOOD(shoal_close(job));
    fake_daemon_stop(daemon);
}
END_TEST

START_TEST(test_daemon_that_answers_is_waited_for)
{
    /* Long enough for an answer on a machine that is short of processors. */
    struct fake_daemon *daemon =
        fake_daemon_start(&(struct fake_daemon_options){.world_size = 1, .silence_ms = 1500});
    struct shoal_options options = world_options(daemon, 1);
    shoal_job *job;
    shoal_request *request;
    GOOD(shoal_open(&options, &job));
    fake_daemon_hold(daemon, true);
    static float large[40000];
    GOOD(shoal_all_reduce(shoal_world(job), large, large, 40000, SHOAL_F32, SHOAL_SUM, &request));
    while (fake_daemon_pings(daemon) < 3)
        BAD(shoal_wait(request, 20), SHOAL_ETIMEOUT, "all_reduce");
    fake_daemon_hold(daemon, false);
    GOOD(shoal_wait(request, -1));
    GOOD(shoal_close(job));
    fake_daemon_stop(daemon);
}
END_TEST

static void *wait_for_lost_daemon(void *argument)
{
    BAD(shoal_wait(argument, -1), SHOAL_EDISCONNECTED, "went away");
    return NULL;
}

START_TEST(test_daemon_dies)
{
    struct fake_daemon *daemon = fake_daemon_start(&(struct fake_daemon_options){.world_size = 1});
    struct shoal_options options = world_options(daemon, 1);
    shoal_job *job;
    GOOD(shoal_open(&options, &job));
    fake_daemon_hold(daemon, true);
    static float large[2][40000];
    shoal_request *requests[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        GOOD(shoal_all_reduce(shoal_world(job), large[i], large[i], 40000, SHOAL_F32, SHOAL_SUM,
                              &requests[i]));
        pthread_create(&threads[i], NULL, wait_for_lost_daemon, requests[i]);
    }
    fake_daemon_stop(daemon);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    BAD(shoal_barrier(shoal_world(job), NULL), SHOAL_EDISCONNECTED, "went away");
    GOOD(shoal_close(job));
}
END_TEST

START_TEST(test_daemon_speaks_nonsense)
{
    const char *const lines[] = {"{\"type\":\"joined\"}\n", "not json\n", "{\"type\":\"what\"}\n",
                                 "{\"type\":\"hello\",\"protocol\":3,\"software\":\"x\","
                                 "\"node\":\"a\"}\n"};
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        struct fake_daemon *daemon =
            fake_daemon_start(&(struct fake_daemon_options){.world_size = 1});
        struct shoal_options options = world_options(daemon, 1);
        shoal_job *job;
        GOOD(shoal_open(&options, &job));
        fake_daemon_hold(daemon, true);
        fake_daemon_say(daemon, lines[i]);
        BAD(shoal_barrier(shoal_world(job), NULL), SHOAL_EPROTOCOL, "daemon");
        GOOD(shoal_close(job));
        fake_daemon_stop(daemon);
    }
}
END_TEST

static void *wait_while_closing(void *argument)
{
    BAD(shoal_wait(argument, -1), SHOAL_ESTATE, "closed");
    return NULL;
}

START_TEST(test_close_ends_waits_and_calls_back)
{
    struct fake_daemon *daemon =
        fake_daemon_start(&(struct fake_daemon_options){.world_size = 1, .never_left = true});
    struct shoal_options options = world_options(daemon, 1);
    shoal_job *job;
    GOOD(shoal_open(&options, &job));
    fake_daemon_hold(daemon, true);
    static float large[2][40000];
    shoal_request *requests[2];
    struct notes notes = NOTES;
    for (int i = 0; i < 2; i++)
        GOOD(shoal_all_reduce(shoal_world(job), large[i], large[i], 40000, SHOAL_F32, SHOAL_SUM,
                              &requests[i]));
    GOOD(shoal_request_on_complete(requests[1], note_call, &notes));
    pthread_t thread;
    pthread_create(&thread, NULL, wait_while_closing, requests[0]);
    for (unsigned waiters = 0; waiters == 0;) {
        BAD(shoal_wait(requests[1], 1), SHOAL_ETIMEOUT, "chunks");
        pthread_mutex_lock(&job->lock);
        waiters = job->waiters;
        pthread_mutex_unlock(&job->lock);
    }
    GOOD(shoal_close(job));
    pthread_join(thread, NULL);
    ck_assert_int_eq(notes.calls, 1);
    ck_assert_int_eq(notes.last_result, SHOAL_ESTATE);
    fake_daemon_stop(daemon);
}
END_TEST

/* Check that a forked child is refused: it would write into the arena, which is its parent's
 * too. */
static bool fusion_refused(shoal_fusion *fusion)
{
    struct shoal_fusion_statistics statistics = {.struct_size = sizeof(statistics)};
    return shoal_fusion_ready(fusion, 0) == SHOAL_ESTATE && !shoal_fusion_gradient(fusion, 0) &&
           !shoal_fusion_gradient(fusion, 1) && shoal_fusion_wait(fusion, 0) == SHOAL_ESTATE &&
           shoal_fusion_statistics(fusion, &statistics) == SHOAL_ESTATE;
}

START_TEST(test_forked_child_is_refused)
{
    struct fake_daemon *daemon = fake_daemon_start(&(struct fake_daemon_options){.world_size = 1});
    struct shoal_options options = world_options(daemon, 1);
    shoal_job *job;
    GOOD(shoal_open(&options, &job));
    float value = 1, gradient = 2;
    shoal_request *request;
    shoal_fusion *fusion;
    struct shoal_parameter parameters[2] = {{.gradient = &gradient, .count = 1, .dtype = SHOAL_F32},
                                            {.count = 1, .dtype = SHOAL_F32}};
    GOOD(shoal_fusion_create(shoal_world(job), parameters, 2, NULL, &fusion));
    struct pollfd completions = {.fd = shoal_completions_descriptor(job), .events = POLLIN};
    GOOD(shoal_barrier(shoal_world(job), NULL));
    GOOD(shoal_all_reduce(shoal_world(job), &value, &value, 1, SHOAL_F32, SHOAL_SUM, &request));
    pid_t child = fork();
    if (child == 0) {
        float x = 1;
        gradient = 999;
        bool refused = shoal_all_reduce(shoal_world(job), &x, &x, 1, SHOAL_F32, SHOAL_SUM, NULL) ==
                           SHOAL_ESTATE &&
                       !shoal_alloc(job, 64) && shoal_close(job) == SHOAL_ESTATE &&
                       shoal_test(request) == SHOAL_ESTATE &&
                       shoal_wait(request, 0) == SHOAL_ESTATE &&
                       shoal_group_set_priority(shoal_world(job), 1) == SHOAL_ESTATE &&
                       shoal_completions_descriptor(job) == SHOAL_ESTATE &&
                       shoal_completions_clear(job) == SHOAL_ESTATE && fusion_refused(fusion);
        shoal_fusion_free(fusion);
        shoal_request_free(request); /* as a garbage collector would */
        _exit(refused ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ck_assert_int_eq(poll(&completions, 1, 0), 1); /* of the barrier */
    GOOD(shoal_completions_clear(job));
    GOOD(shoal_wait(request, -1));
    GOOD(shoal_fusion_ready(fusion, 0));
    GOOD(shoal_fusion_wait(fusion, -1));
    ck_assert(gradient == 2);
    GOOD(shoal_barrier(shoal_world(job), NULL));
    shoal_fusion_free(fusion);
    GOOD(shoal_close(job));
    fake_daemon_stop(daemon);
}
END_TEST

/* A handle that was never opened, or is forgotten already. */
START_TEST(test_null_handles)
{
    enum { INVALID = SHOAL_EINVALID };
    const enum shoal_dtype type = SHOAL_F32;
    const enum shoal_op sum = SHOAL_SUM;
    float data[1] = {0};
    void *const buffers[1] = {data};
    const void *const sources[1] = {data};
    const size_t counts[1] = {1};
    struct shoal_parameter parameter = {.count = 1, .dtype = SHOAL_F32};
    struct shoal_fusion_statistics statistics = {.struct_size = sizeof(statistics)};
    shoal_group *group;
    shoal_fusion *fusion;
    BAD(shoal_rank(NULL), INVALID, "job is NULL");
    BAD(shoal_world_size(NULL), INVALID, "job is NULL");
    BAD(shoal_local_rank(NULL), INVALID, "job is NULL");
    BAD(shoal_local_size(NULL), INVALID, "job is NULL");
    BAD(shoal_node_count(NULL), INVALID, "job is NULL");
    ck_assert_ptr_null(shoal_world(NULL));
    ck_assert_ptr_null(shoal_alloc(NULL, 64));
    shoal_free(NULL, data);
    BAD(shoal_group_open(NULL, (int[]){0}, 1, -1, &group), INVALID, "job is NULL");
    BAD(shoal_completions_descriptor(NULL), INVALID, "job is NULL");
    BAD(shoal_completions_clear(NULL), INVALID, "job is NULL");
    BAD(shoal_test(NULL), INVALID, "request is NULL");
    BAD(shoal_group_rank(NULL), INVALID, "group is NULL");
    BAD(shoal_group_size(NULL), INVALID, "group is NULL");
    BAD(shoal_group_set_priority(NULL, 1), INVALID, "group is NULL");
    BAD(shoal_all_reduce(NULL, data, data, 1, type, sum, NULL), INVALID, "group is NULL");
    BAD(shoal_reduce(NULL, data, data, 1, type, sum, 0, NULL), INVALID, "group is NULL");
    BAD(shoal_broadcast(NULL, data, 1, type, 0, NULL), INVALID, "group is NULL");
    BAD(shoal_barrier(NULL, NULL), INVALID, "group is NULL");
    BAD(shoal_all_gather(NULL, data, data, 1, type, NULL), INVALID, "group is NULL");
    BAD(shoal_all_gather_v(NULL, data, buffers, counts, type, NULL), INVALID, "group is NULL");
    BAD(shoal_reduce_scatter(NULL, data, data, 1, type, sum, NULL), INVALID, "group is NULL");
    BAD(shoal_reduce_scatter_v(NULL, sources, data, counts, type, sum, NULL), INVALID, "group");
    BAD(shoal_gather(NULL, data, data, 1, type, 0, NULL), INVALID, "group is NULL");
    BAD(shoal_gather_v(NULL, data, 1, buffers, counts, type, 0, NULL), INVALID, "group is NULL");
    BAD(shoal_scatter(NULL, data, data, 1, type, 0, NULL), INVALID, "group is NULL");
    BAD(shoal_scatter_v(NULL, sources, counts, data, 1, type, 0, NULL), INVALID, "group is NULL");
    BAD(shoal_all_to_all(NULL, data, data, 1, type, NULL), INVALID, "group is NULL");
    BAD(shoal_all_to_all_v(NULL, sources, counts, buffers, counts, type, NULL), INVALID, "group");
    BAD(shoal_send(NULL, data, 1, type, 0, 0, NULL), INVALID, "group is NULL");
    BAD(shoal_recv(NULL, data, 1, type, 0, 0, NULL), INVALID, "group is NULL");
    BAD(shoal_recv_any(NULL, data, 1, type, 0, NULL, NULL), INVALID, "group is NULL");
    BAD(shoal_fusion_create(NULL, &parameter, 1, NULL, &fusion), INVALID, "group is NULL");
    BAD(shoal_fusion_ready(NULL, 0), INVALID, "fusion is NULL");
    BAD(shoal_fusion_wait(NULL, 0), INVALID, "fusion is NULL");
    BAD(shoal_fusion_statistics(NULL, &statistics), INVALID, "fusion is NULL");
    ck_assert_ptr_null(shoal_fusion_gradient(NULL, 0));
    BAD(shoal_device_open(NULL, NULL), INVALID, "job is NULL");
    BAD(shoal_group_set_stream(NULL, SHOAL_MEMORY_HOST, NULL), INVALID, "group is NULL");
    BAD(shoal_request_wait_stream(NULL, NULL), INVALID, "request is NULL");
    ck_assert_ptr_null(shoal_device_alloc(NULL, 1));
    shoal_device_free(NULL, data);
    ck_assert_ptr_null(shoal_device_stream(NULL));
    BAD(shoal_device_copy(NULL, data, data, 1), INVALID, "job is NULL");
    BAD(shoal_fusion_set_stream(NULL, NULL), INVALID, "fusion is NULL");
    BAD(shoal_fusion_wait_stream(NULL, NULL, 0), INVALID, "fusion is NULL");
    ck_assert_uint_eq(shoal_fusion_bytes(NULL, 1), 0);
    ck_assert_uint_eq(shoal_fusion_bytes(NULL, 0), 0);
    /* Parameters of which no fusion can be made have no size. */
    const struct shoal_parameter much[] = {{NULL, (size_t)1 << 58, SHOAL_F64},
                                           {NULL, (size_t)1 << 58, SHOAL_F64},
                                           {NULL, (size_t)1 << 60, SHOAL_U8}};
    ck_assert_uint_eq(shoal_fusion_bytes(much, 1), (size_t)1 << 61);
    ck_assert_uint_eq(shoal_fusion_bytes(much, 2), 0);
    ck_assert_uint_eq(shoal_fusion_bytes(&much[2], 1), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("api_failure");
    TCase *cases = tcase_create("api_failure");
    tcase_set_timeout(cases, 120);
    tcase_add_test(cases, test_silent_daemon_is_gone);
    tcase_add_test(cases, test_daemon_that_answers_is_waited_for);
    tcase_add_test(cases, test_wait_times_out_and_goes_on);
    tcase_add_test(cases, test_who_gives_up_still_gives);
    tcase_add_test(cases, test_busy_driver_looks_at_its_deadline);
    tcase_add_test(cases, test_disagreement_fails_the_group_alone);
    tcase_add_loop_test(cases, test_done_before_the_end, 0, 2);
    tcase_add_test(cases, test_closing_a_failed_group_harms_nothing_else);
    tcase_add_test(cases, test_failure_by_a_time_of_others);
    tcase_add_test(cases, test_lost_rank_fails_what_is_under_way);
    tcase_add_test(cases, test_daemon_dies);
    tcase_add_test(cases, test_daemon_speaks_nonsense);
    tcase_add_test(cases, test_close_ends_waits_and_calls_back);
    tcase_add_test(cases, test_forked_child_is_refused);
    tcase_add_test(cases, test_null_handles);
    tcase_add_loop_test(cases, test_set_ending, 0, 2);
    tcase_add_test(cases, test_reconfigure_misused);
    tcase_add_test(cases, test_reconfigure_without_an_answer);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
