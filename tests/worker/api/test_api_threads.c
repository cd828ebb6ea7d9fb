/* Calls of several threads that meet inside the library. */
#include "worker/shoal.h"

#include "tests/lib/server/world.h"
#include "tests/lib/suite.h"
#include "worker/drive/drive.h"
#include "worker/job/job.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* --- memory that holds up who touches it --------------------------------------------------- */

/* A page that cannot be touched: the thread that does so says so and sleeps until it is let on. */
static struct {
    float *page;
    int touched[2], let[2]; /* pipes */
} gate;

static void gate_hold(int number, siginfo_t *info, void *context)
{
    (void)context;
    char byte = 0;
    if (info->si_addr < (void *)gate.page ||
        info->si_addr >= (void *)((char *)gate.page + getpagesize())) {
        signal(number, SIG_DFL); /* a fault of another kind ends the test */
        return;
    }
    if (write(gate.touched[1], &byte, 1) != 1 || read(gate.let[0], &byte, 1) != 1 ||
        mprotect(gate.page, (size_t)getpagesize(), PROT_READ | PROT_WRITE) != 0)
        _exit(1);
}

static void gate_make(void)
{
    gate.page = mmap(NULL, (size_t)getpagesize(), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(gate.page != MAP_FAILED);
    ck_assert_int_eq(pipe(gate.touched), 0);
    ck_assert_int_eq(pipe(gate.let), 0);
    struct sigaction action = {.sa_sigaction = gate_hold, .sa_flags = SA_SIGINFO};
    ck_assert_int_eq(sigaction(SIGSEGV, &action, NULL), 0);
}

static void gate_close(void)
{
    ck_assert_int_eq(mprotect(gate.page, (size_t)getpagesize(), PROT_NONE), 0);
}

static void gate_await(void)
{
    char byte;
    ck_assert_int_eq(read(gate.touched[0], &byte, 1), 1);
}

static void gate_open(void)
{
    ck_assert_int_eq(write(gate.let[1], "", 1), 1);
}

/* --- a fusion whose first gradient lies behind the gate ------------------------------------ */

struct fixture {
    struct fake_daemon *daemon;
    shoal_job *job;
    shoal_fusion *fusion;
    float other[4];
};

static void fixture_open(struct fixture *fixture)
{
    gate_make();
    *fixture = (struct fixture){
        .daemon = fake_daemon_start(&(struct fake_daemon_options){.world_size = 1})};
    struct shoal_options options = world_options(fixture->daemon, 1);
    GOOD(shoal_open(&options, &fixture->job));
    struct shoal_parameter parameters[2] = {
        {.gradient = gate.page, .count = 4, .dtype = SHOAL_F32},
        {.gradient = fixture->other, .count = 4, .dtype = SHOAL_F32}};
    GOOD(shoal_fusion_create(shoal_world(fixture->job), parameters, 2, NULL, &fixture->fusion));
    gate.page[0] = 3;
}

static void *say_ready(void *argument)
{
    struct fixture *fixture = argument;
    GOOD(shoal_fusion_ready(fixture->fusion, 0));
    return NULL;
}

static void *wait_well(void *argument)
{
    struct fixture *fixture = argument;
    GOOD(shoal_fusion_wait(fixture->fusion, -1));
    return NULL;
}

static void *wait_until_closed(void *argument)
{
    struct fixture *fixture = argument;
    BAD(shoal_fusion_wait(fixture->fusion, -1), SHOAL_ESTATE, "clos");
    return NULL;
}

/* The first waits for a gradient that is being copied; the second is refused all the same. */
START_TEST(test_two_waits_for_one_step)
{
    struct fixture fixture;
    pthread_t gathers, waits;
    fixture_open(&fixture);
    gate_close();
    pthread_create(&gathers, NULL, say_ready, &fixture);
    gate_await();
    pthread_create(&waits, NULL, wait_well, &fixture);
    while (shoal_fusion_ready(fixture.fusion, 1) != SHOAL_ESTATE) /* it is in the wait then */
        sched_yield();
    BAD(shoal_fusion_wait(fixture.fusion, -1), SHOAL_ESTATE, "another thread");
    gate_open();
    pthread_join(gathers, NULL);
    pthread_join(waits, NULL);
    ck_assert(gate.page[0] == 3);
    shoal_fusion_free(fixture.fusion);
    GOOD(shoal_close(fixture.job));
    fake_daemon_stop(fixture.daemon);
}
END_TEST

/* --- what a thread has set ----------------------------------------------------------------- */

struct setter {
    shoal_group *group;
    uint32_t priority, found; /* to set, 0: nothing; of a collective before that */
};

static void *set_priority(void *argument)
{
    struct setter *setter = argument;
    shoal_request *request;
    float value = 1;
    GOOD(shoal_all_reduce(setter->group, &value, &value, 1, SHOAL_F32, SHOAL_SUM, &request));
    setter->found = request->core.ask.priority;
    GOOD(shoal_wait(request, -1));
    if (setter->priority > 0)
        GOOD(shoal_group_set_priority(setter->group, setter->priority));
    return NULL;
}

/* Threads come and go, and their pthread_t with them. */
START_TEST(test_priority_dies_with_its_thread)
{
    enum { THREADS = 40 };
    pthread_t seen[THREADS];
    size_t distinct = 0;
    struct fixture fixture;
    fixture_open(&fixture);
    shoal_group *world = shoal_world(fixture.job);
    GOOD(shoal_group_set_priority(world, 9));
    for (uint32_t i = 0; i < THREADS; i++) {
        struct setter setter = {.group = world, .priority = i % 4 == 3 ? 0 : 5 + i};
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, set_priority, &setter), 0);
        size_t place = 0;
        while (place < distinct && !pthread_equal(seen[place], thread))
            place++;
        if (place == distinct)
            seen[distinct++] = thread;
        pthread_join(thread, NULL);
        ck_assert_uint_eq(setter.found, 0);
    }
    ck_assert_uint_le(world->settings_count, distinct + 1);
    struct setter self = {.group = world};
    set_priority(&self);
    ck_assert_uint_eq(self.found, 9);
    GOOD(shoal_close(fixture.job));
    fake_daemon_stop(fixture.daemon);
}
END_TEST

/* --- a driver that asks the daemon for a sign ---------------------------------------------- */

/* Takes the place of libc's: the first message to the daemon that is sent while this is armed is
 * held up. The library sends with this call alone, and the fake daemon does not. */
static struct {
    _Atomic bool armed, reached;
    int let[2]; /* a pipe */
} ping;

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    char byte;
    if (atomic_exchange(&ping.armed, false)) {
        atomic_store(&ping.reached, true);
        if (read(ping.let[0], &byte, 1) != 1)
            _exit(1);
    }
    return syscall(SYS_sendmsg, fd, message, flags);
}

static void *open_with_the_other(void *job)
{
    shoal_group *group;
    GOOD(shoal_group_open(job, (int[]){0, 1}, 2, -1, &group));
    return NULL;
}

static void *reduce_alone(void *group)
{
    static float data[100000];
    data[99999] = 3;
    GOOD(shoal_all_reduce(group, data, data, 100000, SHOAL_F32, SHOAL_SUM, NULL));
    ck_assert(data[99999] == 3);
    return NULL;
}

static pthread_barrier_t both;

/* Check that a request wakes the driver which is about to sleep, and has let the lock go to ask the
 * daemon for a sign. Without that the driver would sleep until the answer, which never comes. */
static void check_about_to_sleep(struct member *member)
{
    shoal_job *job = member->job;
    shoal_group *own;
    pthread_t opens, reduces;
    if (member->rank == 1) {
        pthread_barrier_wait(&both);
        open_with_the_other(job);
        return;
    }
    GOOD(shoal_group_open(job, (int[]){0}, 1, -1, &own));
    ck_assert_int_eq(pipe(ping.let), 0);
    pthread_create(&opens, NULL, open_with_the_other, job);
    for (bool sleeping = false; !sleeping; sched_yield()) {
        pthread_mutex_lock(&job->lock);
        sleeping = job->openings && job->driver_sleeping;
        if (sleeping)
            atomic_store(&ping.armed, true);
        pthread_mutex_unlock(&job->lock);
    }
    while (!atomic_load(&ping.reached))
        sched_yield();
    pthread_create(&reduces, NULL, reduce_alone, own);
    for (unsigned waiters = 0; waiters < 2; sched_yield()) {
        pthread_mutex_lock(&job->lock);
        waiters = job->waiters;
        pthread_mutex_unlock(&job->lock);
    }
    ck_assert_int_eq(write(ping.let[1], "", 1), 1);
    pthread_join(reduces, NULL);
    pthread_barrier_wait(&both);
    pthread_join(opens, NULL);
}

START_TEST(test_driver_that_is_about_to_sleep)
{
    pthread_barrier_init(&both, NULL, 2);
    world_run(&(struct fake_daemon_options){.world_size = 2, .silence_ms = 6000, .mute = true},
              check_about_to_sleep);
}
END_TEST

/* --- the driver's role, claimed ------------------------------------------------------------ */

static void *wait_for_good(void *request)
{
    GOOD(shoal_wait(request, -1));
    return NULL;
}

/* Whoever drives, for a request that does not end, gives the role to the thread that claims it, and
 * has it back afterwards. */
static void check_claim(bool waited_for)
{
    struct fake_daemon *daemon = fake_daemon_start(&(struct fake_daemon_options){.world_size = 1});
    struct shoal_options options = world_options(daemon, 1);
    static float data[100000];
    shoal_request *request;
    shoal_job *job;
    pthread_t waits;
    GOOD(shoal_open(&options, &job));
    fake_daemon_hold(daemon, true);
    data[99999] = 3;
    GOOD(shoal_all_reduce(shoal_world(job), data, data, 100000, SHOAL_F32, SHOAL_SUM, &request));
    if (waited_for)
        pthread_create(&waits, NULL, wait_for_good, request);
    pthread_mutex_lock(&job->lock);
    for (int times = 0; times < 100; times++) {
        while (!job->driver_sleeping || (waited_for && job->waiters == 0)) {
            pthread_mutex_unlock(&job->lock);
            sched_yield();
            pthread_mutex_lock(&job->lock);
        }
        ck_assert(drive_claim(job));
        ck_assert(job->driver == JOB_DRIVER_WAITER && !job->driver_sleeping);
        drive_release(job);
    }
    pthread_mutex_unlock(&job->lock);
    fake_daemon_hold(daemon, false);
    if (waited_for)
        pthread_join(waits, NULL);
    else
        GOOD(shoal_wait(request, -1));
    ck_assert(data[99999] == 3);
    GOOD(shoal_close(job));
    fake_daemon_stop(daemon);
}

START_TEST(test_claim_of_the_drivers_role)
{
    check_claim(true);
    check_claim(false);
}
END_TEST

/* --- closing under a call ------------------------------------------------------------------ */

static void *close_job(void *job)
{
    GOOD(shoal_close(job));
    return NULL;
}

/* Check that the close waits: it cannot end before the call is let go on, however long that is. A
 * close that does not wait for the call ends well within this time. */
static void expect_waiting(pthread_t closes)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    ck_assert_int_eq(pthread_timedjoin_np(closes, NULL, &until), ETIMEDOUT);
}

/* The results are being written back, with nothing left to wait for. */
START_TEST(test_close_waits_for_a_fusion_wait)
{
    struct fixture fixture;
    pthread_t waits, closes;
    fixture_open(&fixture);
    GOOD(shoal_fusion_ready(fixture.fusion, 0));
    gate_close();
    pthread_create(&waits, NULL, wait_until_closed, &fixture);
    gate_await();
    pthread_create(&closes, NULL, close_job, fixture.job);
    expect_waiting(closes);
    gate_open();
    pthread_join(waits, NULL);
    pthread_join(closes, NULL);
    ck_assert(gate.page[0] == 3);
    fake_daemon_stop(fixture.daemon);
}
END_TEST

static void *open_until_closed(void *job)
{
    shoal_group *group;
    BAD(shoal_group_open(job, (int[]){0}, 1, -1, &group), SHOAL_ESTATE, "closed");
    return NULL;
}

/* The call has its place among those that wait for the daemon, and is about to send. */
START_TEST(test_close_waits_for_a_group_open)
{
    struct fixture fixture;
    pthread_t opens, closes;
    fixture_open(&fixture);
    shoal_job *job = fixture.job;
    pthread_mutex_lock(&job->send_lock);
    pthread_create(&opens, NULL, open_until_closed, job);
    for (bool there = false; !there; sched_yield()) {
        pthread_mutex_lock(&job->lock);
        there = job->openings;
        job->daemon_gone = there; /* or closing would need the socket as well */
        pthread_mutex_unlock(&job->lock);
    }
    pthread_create(&closes, NULL, close_job, job);
    expect_waiting(closes);
    pthread_mutex_unlock(&job->send_lock);
    pthread_join(opens, NULL);
    pthread_join(closes, NULL);
    fake_daemon_stop(fixture.daemon);
}
END_TEST

/* Another thread is sending, and held up by a daemon that does not read: who waits for that daemon
 * still sees that it is silent. */
START_TEST(test_silent_daemon_while_another_sends)
{
    struct fake_daemon *daemon = fake_daemon_start(
        &(struct fake_daemon_options){.world_size = 1, .silence_ms = 60, .mute = true});
    struct shoal_options options = world_options(daemon, 1);
    shoal_job *job;
    float value = 1;
    GOOD(shoal_open(&options, &job));
    fake_daemon_hold(daemon, true);
    pthread_mutex_lock(&job->send_lock);
    BAD(shoal_all_reduce(shoal_world(job), &value, &value, 1, SHOAL_F32, SHOAL_SUM, NULL),
        SHOAL_EDISCONNECTED, "has not answered for 60 ms");
    pthread_mutex_unlock(&job->send_lock);
    ck_assert_uint_eq(fake_daemon_pings(daemon), 0);
    GOOD(shoal_close(job));
    fake_daemon_stop(daemon);
}
END_TEST

struct late_ping {
    shoal_job *job;
    atomic_bool done;
};

static void *reduce_late(void *argument)
{
    struct late_ping *late = argument;
    float value = 1;
    GOOD(shoal_all_reduce(shoal_world(late->job), &value, &value, 1, SHOAL_F32, SHOAL_SUM, NULL));
    late->done = true;
    return NULL;
}

/* The daemon was to be asked for a sign while another thread was sending: it is asked later, and
 * has its time from then on. */
START_TEST(test_daemon_is_asked_after_another_has_sent)
{
    struct fake_daemon *daemon =
        fake_daemon_start(&(struct fake_daemon_options){.world_size = 1, .silence_ms = 1500});
    struct late_ping late = {.done = false};
    struct shoal_options options = world_options(daemon, 1);
    pthread_t thread;
    GOOD(shoal_open(&options, &late.job));
    fake_daemon_hold(daemon, true);
    pthread_mutex_lock(&late.job->send_lock);
    pthread_create(&thread, NULL, reduce_late, &late);
    for (bool owed = false; !owed; sched_yield()) {
        pthread_mutex_lock(&late.job->lock);
        owed = late.job->pinged_ns != 0;
        pthread_mutex_unlock(&late.job->lock);
    }
    ck_assert_uint_eq(fake_daemon_pings(daemon), 0);
    pthread_mutex_unlock(&late.job->send_lock);
    while (fake_daemon_pings(daemon) == 0 && !late.done)
        sched_yield();
    fake_daemon_hold(daemon, false);
    pthread_join(thread, NULL);
    ck_assert_uint_ge(fake_daemon_pings(daemon), 1);
    GOOD(shoal_close(late.job));
    fake_daemon_stop(daemon);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("api_threads");
    TCase *cases = tcase_create("api_threads");
    tcase_set_timeout(cases, 120);
    tcase_add_test(cases, test_two_waits_for_one_step);
    tcase_add_test(cases, test_priority_dies_with_its_thread);
    tcase_add_test(cases, test_driver_that_is_about_to_sleep);
    tcase_add_test(cases, test_silent_daemon_while_another_sends);
    tcase_add_test(cases, test_daemon_is_asked_after_another_has_sent);
    tcase_add_test(cases, test_claim_of_the_drivers_role);
    tcase_add_test(cases, test_close_waits_for_a_fusion_wait);
    tcase_add_test(cases, test_close_waits_for_a_group_open);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
