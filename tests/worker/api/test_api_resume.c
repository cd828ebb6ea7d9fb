/* A job that goes on by itself, as the library sees it: a daemon of the test fails and answers when
 * the test wants it. */
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include "tests/lib/server/world.h"
#include "tests/lib/suite.h"
#include "worker/drive/drive.h"
#include "worker/job/job.h"

#define LOST "node9 is gone"
#define SILENCE_MS 200

static void check_sum(shoal_job *job, shoal_group *group, int32_t seed)
{
    int32_t value = seed + shoal_rank(job), size = shoal_group_size(group);
    GOOD(shoal_all_reduce(group, &value, &value, 1, SHOAL_I32, SHOAL_SUM, NULL));
    ck_assert_int_eq(value, size * seed + size * (size - 1) / 2);
}

static void fail_once(struct member *member)
{
    if (member->rank == 0)
        fake_daemon_fail(member->world->daemon, -1, SHOAL_ELOST, LOST);
}

static void check_goes_on(struct member *member)
{
    shoal_group *world = shoal_world(member->job);
    check_sum(member->job, world, 5);
    fail_once(member);
    for (int i = 0; i < 10 || shoal_generation(member->job) == 1; i++) {
        check_sum(member->job, world, i);
        ck_assert_int_eq(shoal_rank(member->job), member->rank);
        ck_assert_int_eq(shoal_local_size(member->job) * shoal_node_count(member->job), 2);
    }
    ck_assert_int_eq(shoal_generation(member->job), 2);
}

START_TEST(test_goes_on)
{
    world_run(&(struct fake_daemon_options){.world_size = 2, .recovery = true}, check_goes_on);
}
END_TEST

/* The background thread that listens already is not woken each time that a wait is over. */
static void check_listens(struct member *member)
{
    shoal_job *job = member->job;
    check_sum(job, shoal_world(job), 8);
    for (bool listening = false; !listening; sched_yield()) {
        pthread_mutex_lock(&job->lock);
        listening = job->listening && job->driver == JOB_DRIVER_NONE;
        if (!listening)
            pthread_mutex_unlock(&job->lock);
    }
    struct pollfd poller = {.fd = job->listen_fd, .events = POLLIN};
    uint64_t rung;
    while (read(job->listen_fd, &rung, sizeof(rung)) > 0)
        ;
    job->driver = JOB_DRIVER_WAITER;
    drive_release(job);
    ck_assert_int_eq(poll(&poller, 1, 0), 0);
    job->background_requests++; /* it has something to do */
    job->driver = JOB_DRIVER_WAITER;
    drive_release(job);
    ck_assert_int_eq(poll(&poller, 1, 0), 1);
    job->background_requests--;
    pthread_mutex_unlock(&job->lock);
}

START_TEST(test_who_listens_is_not_woken)
{
    world_run(&(struct fake_daemon_options){.world_size = 1, .recovery = true}, check_listens);
}
END_TEST

/* --- a rank that cannot go on */

/* Check that the program can do what the library could not. */
static void check_reconfigures(shoal_job *job, shoal_group *group)
{
    GOOD(shoal_group_close(group));
    GOOD(shoal_job_reconfigure(job, NULL));
    ck_assert_int_eq(shoal_generation(job), 3);
    check_sum(job, shoal_world(job), 4);
}

/* Rank 1 does not get its group again. It says so, and nobody waits for it; all may reconfigure. */
static void check_refused(struct member *member)
{
    shoal_job *job = member->job;
    shoal_group *group;
    int code = SHOAL_OK;
    GOOD(shoal_group_open(job, (int[]){0, 1}, 2, -1, &group));
    check_sum(job, group, 3);
    fail_once(member);
    for (int32_t value = 1; code == SHOAL_OK;)
        code = shoal_all_reduce(group, &value, &value, 1, SHOAL_I32, SHOAL_MAX, NULL);
    ck_assert_int_eq(code, SHOAL_ELOST);
    if (member->rank == 1)
        ck_assert_msg(strstr(shoal_error_text(), "no room") && strstr(shoal_error_text(), LOST),
                      "%s", shoal_error_text());
    check_reconfigures(job, group);
}

START_TEST(test_a_rank_cannot_go_on)
{
    world_run(
        &(struct fake_daemon_options){.world_size = 2, .recovery = true, .refuses = SHOAL_EMEMORY},
        check_refused);
}
END_TEST

/* While it has left the one generation and has no other, it does not ask the daemon for a sign of
 * life, and misses none. */
static void check_apart(struct member *member)
{
    shoal_job *job = member->job;
    shoal_request *requests[3];
    static int32_t values[2][3];
    shoal_group *group;
    GOOD(shoal_group_open(job, (int[]){0, 1}, 2, -1, &group));
    check_sum(job, group, 3);
    if (member->rank == 0) /* one alone: nothing is let go before the failure */
        fake_daemon_hold(member->world->daemon, true);
    for (int i = 0; i < 3; i++)
        GOOD(shoal_all_reduce(group, &values[member->rank][i], &values[member->rank][i], 1,
                              SHOAL_I32, SHOAL_MAX, &requests[i]));
    fail_once(member);
    if (member->rank == 0)
        fake_daemon_hold(member->world->daemon, false);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(shoal_wait(requests[i], -1), SHOAL_ELOST);
        poll(NULL, 0, 2 * SILENCE_MS);
    }
    check_reconfigures(job, group);
}

START_TEST(test_a_daemon_that_is_not_asked)
{
    world_run(
        &(struct fake_daemon_options){
            .world_size = 2, .recovery = true, .silence_ms = SILENCE_MS, .refuses = SHOAL_EMEMORY},
        check_apart);
}
END_TEST

/* --- the daemon is started again */

/* Closing a job waits for nobody who may never answer. */
static void check_closes(struct member *member)
{
    struct fake_daemon *daemon = member->world->daemon;
    check_sum(member->job, shoal_world(member->job), 6);
    fake_daemon_cut(daemon);
    while (fake_daemon_hellos(daemon) < 2)
        sched_yield();
    /* world_run closes it */
}

START_TEST(test_the_next_daemon_says_nothing)
{
    world_run(
        &(struct fake_daemon_options){.world_size = 1, .recovery = true, .restart_ms = 3600000},
        check_closes);
}
END_TEST

/* Check by what daemons know this rank. A daemon that ends before it is asked anything has told
 * nobody how it calls the rank: those that remember the job know it by what the daemon before
 * called it. */
static void check_former(struct member *member)
{
    struct fake_daemon *daemon = member->world->daemon;
    check_sum(member->job, shoal_world(member->job), 6);
    fake_daemon_restart(daemon, 2);
    while (fake_daemon_returned(daemon) < 1)
        sched_yield();
    ck_assert_uint_eq(fake_daemon_hellos(daemon), 4);
    ck_assert_uint_eq(fake_daemon_former(daemon), 1);
    fake_daemon_restart(daemon, 1); /* the last one was asked, and may have told */
    while (fake_daemon_returned(daemon) < 2)
        sched_yield();
    ck_assert_uint_eq(fake_daemon_hellos(daemon), 6);
    ck_assert_uint_eq(fake_daemon_former(daemon), 4);
}

START_TEST(test_a_daemon_that_was_never_asked)
{
    world_run(
        &(struct fake_daemon_options){.world_size = 1, .recovery = true, .restart_ms = 3600000},
        check_former);
}
END_TEST

/* --- shared memory */

/* Check that the rank uses the memory of the next generation when shared memory comes together with
 * the news that the job has failed. */
static void check_shared_of_the_last(struct member *member)
{
    shoal_group *world = shoal_world(member->job);
    const uint8_t *memory = shoal_shared_alloc(world, 4096);
    ck_assert_msg(memory != NULL, "%s", shoal_error_text());
    ck_assert_uint_eq(memory[0], 2);
    ck_assert_int_eq(shoal_generation(member->job), 2);
    ck_assert_uint_eq(world->shared_count, 1);
    check_sum(member->job, world, 7);
    GOOD(shoal_shared_free(world, memory));
}

START_TEST(test_shared_memory_of_the_last_generation)
{
    world_run(
        &(struct fake_daemon_options){.world_size = 2, .recovery = true, .fails_with_shared = true},
        check_shared_of_the_last);
}
END_TEST

static void *free_shared(void *argument)
{
    shoal_group *world = argument;
    GOOD(shoal_shared_free(world, world->job->shared->base));
    return NULL;
}

/* Check that the library says all that it has to say of this generation before the next one
 * begins. */
static void check_shared_is_given_back(struct member *member)
{
    shoal_job *job = member->job;
    pthread_t frees;
    unsigned sayings = 0;
    ck_assert_msg(shoal_shared_alloc(shoal_world(job), 4096) != NULL, "%s", shoal_error_text());
    pthread_mutex_lock(&job->send_lock);
    pthread_create(&frees, NULL, free_shared, shoal_world(job));
    for (bool unmapped = false; !unmapped; sched_yield()) {
        pthread_mutex_lock(&job->lock);
        unmapped = !job->shared;
        sayings = job->sayings;
        pthread_mutex_unlock(&job->lock);
    }
    ck_assert_uint_eq(sayings, 1);
    pthread_mutex_unlock(&job->send_lock);
    pthread_join(frees, NULL);
    ck_assert_uint_eq(job->sayings, 0);
}

START_TEST(test_shared_memory_is_given_back)
{
    world_run(&(struct fake_daemon_options){.world_size = 1, .recovery = true},
              check_shared_is_given_back);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("api_resume");
    TCase *tcase = tcase_create("resume");
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, test_goes_on);
    tcase_add_test(tcase, test_shared_memory_of_the_last_generation);
    tcase_add_test(tcase, test_shared_memory_is_given_back);
    tcase_add_test(tcase, test_a_rank_cannot_go_on);
    tcase_add_test(tcase, test_a_daemon_that_is_not_asked);
    tcase_add_test(tcase, test_the_next_daemon_says_nothing);
    tcase_add_test(tcase, test_a_daemon_that_was_never_asked);
    tcase_add_test(tcase, test_who_listens_is_not_woken);
    suite_add_tcase(suite, tcase);
    return suite_main(suite);
}
