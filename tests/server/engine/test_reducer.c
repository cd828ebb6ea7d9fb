#include "server/engine/threads/reducer.h"

#include <poll.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "common/reduce/reduce_kernels.h"
#include "tests/lib/suite.h"

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg("%s", #condition);                                                        \
    } while (0)

#define LARGE 16384u /* elements: well above what the submitter does itself */
#define SMALL 16u
#define PATIENCE_S 20

/* One sum of two arrays into a third. */
struct work {
    struct reduce_task task;
    const void *in[2];
    void *out[1];
    float *data; /* [3 * count] */
    uint32_t count;
    uint32_t number;
    int taken;
};

static void work_init(struct work *work, uint32_t number, uint32_t count)
{
    *work = (struct work){.number = number, .count = count};
    work->data = malloc(3 * (size_t)count * sizeof(float));
    EXPECT(work->data);
    for (uint32_t i = 0; i < count; i++) {
        work->data[i] = (float)(number % 1000);
        work->data[count + i] = (float)(i % 100);
    }
    work->in[0] = work->data;
    work->in[1] = work->data + count;
    work->out[0] = work->data + 2 * (size_t)count;
    work->task = (struct reduce_task){.reduction = {.in = work->in,
                                                    .out = work->out,
                                                    .inputs = 2,
                                                    .outputs = 1,
                                                    .dtype = DTYPE_F32,
                                                    .op = REDUCE_SUM,
                                                    .divisor = 1,
                                                    .count = count},
                                      .owner = work};
}

static void work_check(struct work *work)
{
    for (uint32_t i = 0; i < work->count; i++)
        EXPECT(work->data[2 * (size_t)work->count + i] ==
               (float)(work->number % 1000) + (float)(i % 100));
    EXPECT(work->taken == 1);
    free(work->data);
}

static struct reducer *start_with(const struct reduce_kernels *kernels, uint32_t threads,
                                  int *descriptor)
{
    struct reducer *reducer = NULL;
    struct error error = {0};
    *descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ck_assert_int_ge(*descriptor, 0);
    int result = reducer_start(&reducer, kernels, threads, *descriptor, NULL, &error);
    ck_assert_msg(result == 0, "%s", error.text);
    return reducer;
}

static struct reducer *start(uint32_t threads, int *descriptor)
{
    return start_with(reduce_select(REDUCE_ISA_SCALAR), threads, descriptor);
}

/* Take a task as the engine does: sleep on the descriptor when there is nothing. */
static struct work *take(struct reducer *reducer, int descriptor)
{
    for (;;) {
        struct reduce_task *task = reducer_take(reducer);
        if (task) {
            struct work *work = task->owner;
            work->taken++;
            return work;
        }
        if (!reducer_prepare_sleep(reducer)) {
            struct pollfd fd = {descriptor, POLLIN, 0};
            EXPECT(poll(&fd, 1, -1) == 1);
            uint64_t count;
            EXPECT(read(descriptor, &count, sizeof(count)) == sizeof(count));
        }
        reducer_cancel_sleep(reducer);
    }
}

static void stop(struct reducer *reducer, int descriptor)
{
    ck_assert_ptr_null(reducer_take(reducer));
    reducer_stop(reducer);
    close(descriptor);
}

/* Ending does all that was submitted, what the rings had no room for too. */
START_TEST(what_was_submitted_is_done_at_the_end)
{
    enum { WORKS = 1100 };
    int descriptor;
    struct reducer *reducer = start((uint32_t)_i, &descriptor);
    struct work *works = calloc(WORKS, sizeof(*works));
    for (uint32_t i = 0; i < WORKS; i++) {
        work_init(&works[i], i, i % 100 ? 2900 : SMALL); /* a little more than the submitter does */
        reducer_submit(reducer, &works[i].task);
    }
    reducer_finish(reducer);
    struct reduce_task *task;
    while ((task = reducer_take(reducer)) != NULL)
        ((struct work *)task->owner)->taken++;
    for (uint32_t i = 0; i < WORKS; i++)
        work_check(&works[i]);
    free(works);
    stop(reducer, descriptor);
}
END_TEST

/* A kernel that says that it has begun, and goes on when it may. */
static sem_t begun, may_end;

static void kernel_waits(void *out, const void *const *in, unsigned inputs, size_t at, size_t count,
                         uint32_t divisor, bool past_cache)
{
    (void)out, (void)in, (void)inputs, (void)count, (void)divisor, (void)past_cache;
    if (at > 0)
        return; /* a task is several blocks */
    sem_post(&begun);
    sem_wait(&may_end);
}

static struct reducer *start_waiting(uint32_t threads, int *descriptor)
{
    static const struct reduce_kernels waiting = {.run[DTYPE_F32][REDUCE_SUM] = kernel_waits};
    EXPECT(sem_init(&begun, 0, 0) == 0 && sem_init(&may_end, 0, 0) == 0);
    return start_with(&waiting, threads, descriptor);
}

static bool has_begun(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    return sem_timedwait(&begun, &until) == 0;
}

/* No task waits behind one that is being done while a thread has nothing to do. */
START_TEST(an_idle_thread_takes_the_next_task)
{
    enum { THREADS = 3 };
    int descriptor;
    struct reducer *reducer = start_waiting(THREADS, &descriptor);
    struct work works[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        work_init(&works[i], i, LARGE);
        reducer_submit(reducer, &works[i].task);
        ck_assert_msg(has_begun(), "task %u waits for another one", i);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        sem_post(&may_end);
    for (uint32_t i = 0; i < THREADS; i++)
        take(reducer, descriptor);
    for (uint32_t i = 0; i < THREADS; i++)
        free(works[i].data);
    stop(reducer, descriptor);
}
END_TEST

/* The threads get what comes with it, and a submitter that has not slept again keeps no other. */
START_TEST(a_rested_submitter_keeps_one_task)
{
    enum { WORKS = 3 };
    int descriptor;
    struct reducer *reducer = start_waiting(1, &descriptor);
    struct work works[WORKS];
    reducer_rested(reducer);
    for (uint32_t i = 0; i < WORKS; i++) {
        work_init(&works[i], i, LARGE);
        reducer_submit(reducer, &works[i].task);
    }
    ck_assert_msg(has_begun(), "the thread has nothing to do"); /* the second task */
    ck_assert(reducer_prepare_sleep(reducer)); /* the first is not done: do not sleep */
    for (uint32_t i = 0; i < WORKS; i++)
        sem_post(&may_end);
    ck_assert(reducer_work(reducer) && !reducer_work(reducer)); /* here, and once */
    ck_assert_ptr_eq(reducer_take(reducer), &works[0].task);
    struct work *second = take(reducer, descriptor), *third = take(reducer, descriptor);
    ck_assert(second == &works[1] && third == &works[2]);
    for (uint32_t i = 0; i < WORKS; i++)
        free(works[i].data);
    stop(reducer, descriptor);
}
END_TEST

/* In so long a task's time much else would come. */
START_TEST(a_rested_submitter_keeps_no_long_task)
{
    int descriptor;
    struct reducer *reducer = start(1, &descriptor);
    struct work works[2];
    work_init(&works[0], 1, 6 * LARGE); /* 1.1 MiB */
    work_init(&works[1], 2, LARGE);
    reducer_rested(reducer);
    for (int i = 0; i < 2; i++)
        reducer_submit(reducer, &works[i].task);
    ck_assert(reducer_work(reducer));
    ck_assert_ptr_eq(reducer_take(reducer), &works[1].task);
    works[1].taken++;
    EXPECT(take(reducer, descriptor) == &works[0]);
    for (int i = 0; i < 2; i++)
        work_check(&works[i]);
    stop(reducer, descriptor);
}
END_TEST

/* Check that a kept task, too, is done when the threads are ended. */
START_TEST(a_kept_task_is_done_at_the_end)
{
    int descriptor;
    struct reducer *reducer = start(2, &descriptor);
    struct work work;
    work_init(&work, 1, LARGE);
    reducer_rested(reducer);
    reducer_submit(reducer, &work.task);
    reducer_finish(reducer);
    ck_assert_ptr_eq(reducer_take(reducer), &work.task);
    work.taken++;
    work_check(&work);
    stop(reducer, descriptor);
}
END_TEST

START_TEST(without_threads_the_submitter_does_it)
{
    int descriptor;
    struct reducer *reducer = start(0, &descriptor);
    struct work works[2];
    work_init(&works[0], 1, LARGE);
    work_init(&works[1], 2, SMALL);
    ck_assert(!reducer_prepare_sleep(reducer));
    for (int i = 0; i < 2; i++)
        reducer_submit(reducer, &works[i].task);
    ck_assert(reducer_prepare_sleep(reducer)); /* there is something: do not sleep */
    for (int i = 0; i < 2; i++)
        take(reducer, descriptor);
    for (int i = 0; i < 2; i++)
        work_check(&works[i]);
    stop(reducer, descriptor);
}
END_TEST

START_TEST(small_tasks_are_done_at_once)
{
    int descriptor;
    struct reducer *reducer = start(2, &descriptor);
    struct work work;
    work_init(&work, 3, SMALL);
    reducer_submit(reducer, &work.task);
    struct reduce_task *task = reducer_take(reducer); /* no wait */
    ck_assert_ptr_eq(task, &work.task);
    work.taken++;
    work_check(&work);
    stop(reducer, descriptor);
}
END_TEST

#define TASKS 600u

/* Every task comes back once and done, whatever the number of threads and the mixture of sizes. */
START_TEST(every_task_comes_back_once)
{
    int descriptor;
    struct reducer *reducer = start((uint32_t)_i, &descriptor);
    struct work *works = calloc(TASKS, sizeof(*works));
    uint32_t submitted = 0, taken = 0;
    while (taken < TASKS) {
        for (uint32_t i = 0; i < 20 && submitted < TASKS; i++, submitted++) {
            work_init(&works[submitted], submitted, submitted % 3 ? LARGE : SMALL);
            reducer_submit(reducer, &works[submitted].task);
        }
        for (uint32_t i = 0; i < 15 && taken < submitted; i++, taken++)
            take(reducer, descriptor);
    }
    for (uint32_t i = 0; i < TASKS; i++)
        work_check(&works[i]);
    free(works);
    stop(reducer, descriptor);
}
END_TEST

/* One task at a time: the taker sleeps for each, and is woken for each. */
START_TEST(the_taker_is_woken)
{
    int descriptor;
    struct reducer *reducer = start(2, &descriptor);
    for (uint32_t i = 0; i < 300; i++) {
        struct work work;
        work_init(&work, i, LARGE);
        reducer_submit(reducer, &work.task);
        EXPECT(take(reducer, descriptor) == &work);
        work_check(&work);
    }
    stop(reducer, descriptor);
}
END_TEST

START_TEST(nothing_to_take_lets_the_taker_sleep)
{
    int descriptor;
    struct reducer *reducer = start(3, &descriptor);
    for (int i = 0; i < 3; i++) {
        ck_assert_ptr_null(reducer_take(reducer));
        ck_assert(!reducer_prepare_sleep(reducer));
        reducer_cancel_sleep(reducer);
    }
    struct pollfd fd = {descriptor, POLLIN, 0};
    ck_assert_int_eq(poll(&fd, 1, 0), 0);
    stop(reducer, descriptor);
}
END_TEST

/* Whether a thread has written the value; the thread sanitizer need not know. */
__attribute__((no_sanitize("thread"))) static bool written(const volatile uint8_t *byte,
                                                           uint8_t value)
{
    return *byte == value;
}

#define MANY 6000u
#define MANY_BYTES 20000u

/* A taker that is busy with something else for long: what the threads have done by then is more
 * than their rings hold, and all of it comes back. */
START_TEST(a_slow_taker_loses_nothing)
{
    int descriptor;
    struct reducer *reducer = start(1, &descriptor);
    uint8_t *in = malloc(MANY_BYTES), *out = malloc(MANY_BYTES);
    memset(in, 1, MANY_BYTES);
    struct work *works = calloc(MANY, sizeof(*works));
    for (uint32_t i = 0; i < MANY; i++) {
        works[i].in[0] = in;
        works[i].out[0] = out;
        works[i].task = (struct reduce_task){.reduction = {.in = works[i].in,
                                                           .out = works[i].out,
                                                           .inputs = 1,
                                                           .outputs = 1,
                                                           .dtype = DTYPE_U8,
                                                           .op = REDUCE_SUM,
                                                           .divisor = 1,
                                                           .count = MANY_BYTES},
                                             .owner = &works[i]};
    }
    /* Some outputs of their own tell how far the thread is: after each the ring has room again. */
    uint8_t *marks = calloc(MANY / 500, MANY_BYTES);
    for (uint32_t i = 0; i < MANY; i++) {
        uint8_t *mark = marks + (size_t)(i / 500) * MANY_BYTES;
        if (i % 500 == 499)
            works[i].out[0] = mark;
        reducer_submit(reducer, &works[i].task);
        /* For a while only: what is kept back until something is taken does not get done. */
        for (int wait = 0; i % 500 == 499 && wait < 50; wait++) {
            if (written(mark + MANY_BYTES - 1, 1))
                break;
            poll(NULL, 0, 1);
        }
    }
    for (uint32_t i = 0; i < MANY; i++)
        take(reducer, descriptor);
    for (uint32_t i = 0; i < MANY; i++)
        EXPECT(works[i].taken == 1);
    for (uint32_t i = 0; i < MANY / 500; i++)
        EXPECT(marks[(size_t)i * MANY_BYTES] == 1);
    free(works);
    free(marks);
    free(in);
    free(out);
    stop(reducer, descriptor);
}
END_TEST

START_TEST(stopping_nothing)
{
    reducer_stop(NULL);
    for (uint32_t threads = 0; threads < 5; threads++) {
        int descriptor;
        struct reducer *reducer = start(threads, &descriptor);
        stop(reducer, descriptor);
    }
}
END_TEST

START_TEST(threads_may_be_bound)
{
    struct topology *topology = NULL;
    struct error error = {0};
    if (topology_open(&topology, NULL, &error) != 0) {
        suite_skip("threads_may_be_bound", "%s", error.text);
        return;
    }
    int descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct reducer *reducer = NULL;
    ck_assert_int_eq(
        reducer_start(&reducer, reduce_select(REDUCE_ISA_SCALAR), 3, descriptor, topology, &error),
        0);
    struct work works[12];
    for (uint32_t i = 0; i < 12; i++) {
        work_init(&works[i], i, LARGE);
        reducer_submit(reducer, &works[i].task);
    }
    for (uint32_t i = 0; i < 12; i++)
        take(reducer, descriptor);
    for (uint32_t i = 0; i < 12; i++)
        work_check(&works[i]);
    stop(reducer, descriptor);
    topology_close(topology);
}
END_TEST

/* One user has submitted much before another submits a task. */
START_TEST(shares_take_turns)
{
    enum { WAITING = 40, COUNT = 1 << 19, AHEAD = 3 }; /* 6 MiB each */
    int descriptor, first = 0, second = 0;
    struct reducer *reducer = start(1, &descriptor);
    struct work *works = calloc(WAITING + 2, sizeof(*works));
    for (uint32_t i = 0; i < WAITING + 2; i++) {
        work_init(&works[i], i, COUNT);
        works[i].task.share = &works[i < WAITING ? 0 : i];
        reducer_submit(reducer, &works[i].task);
    }
    for (int i = 0; i < WAITING + 2; i++) {
        struct work *work = take(reducer, descriptor);
        first = work == &works[WAITING] ? i : first;
        second = work == &works[WAITING + 1] ? i : second;
    }
    /* Behind what the thread has been given, and one of those that wait before it. */
    ck_assert_int_gt(first, 0);
    ck_assert_int_le(first, AHEAD + 1);
    ck_assert_int_le(second, AHEAD + 2);
    for (uint32_t i = 0; i < WAITING + 2; i++)
        work_check(&works[i]);
    free(works);
    stop(reducer, descriptor);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reducer");
    TCase *tests = tcase_create("reducer");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, what_was_submitted_is_done_at_the_end, 0, 3);
    tcase_add_test(tests, an_idle_thread_takes_the_next_task);
    tcase_add_test(tests, a_rested_submitter_keeps_one_task);
    tcase_add_test(tests, a_rested_submitter_keeps_no_long_task);
    tcase_add_test(tests, a_kept_task_is_done_at_the_end);
    tcase_add_test(tests, without_threads_the_submitter_does_it);
    tcase_add_test(tests, small_tasks_are_done_at_once);
    tcase_add_loop_test(tests, every_task_comes_back_once, 0, 4);
    tcase_add_test(tests, the_taker_is_woken);
    tcase_add_test(tests, nothing_to_take_lets_the_taker_sleep);
    tcase_add_test(tests, a_slow_taker_loses_nothing);
    tcase_add_test(tests, stopping_nothing);
    tcase_add_test(tests, shares_take_turns);
    tcase_add_test(tests, threads_may_be_bound);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
