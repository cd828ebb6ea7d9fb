#include "server/engine/threads/reducer.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/memory/ring.h"

#define REDUCER_RING_ENTRIES 1024
/* Bytes of inputs and outputs up to which a task is done by the submitter: about the cost of waking
 * a thread. */
#define REDUCER_INLINE_BYTES 32768
/* And of the one that a rested submitter keeps: longer, messages would wait for it too long. */
#define REDUCER_KEPT_BYTES (1u << 20)

/* Bytes that a thread is given ahead, if that is more than one task: some milliseconds of work. The
 * rest waits, by share, where it can be overtaken. */
#define REDUCER_AHEAD_BYTES (16u << 20)

struct reduce_thread {
    struct reducer *reducer;
    struct ring todo;
    struct ring done;
    uint32_t given;       /* tasks handed out and not taken back; the submitter's */
    uint64_t given_bytes; /* of these */
    uint32_t index;
    pthread_t thread;
    bool started;
};

struct reducer {
    const struct reduce_kernels *kernels;
    const struct topology *topology;
    int done_descriptor;
    uint32_t thread_count;
    struct reduce_thread *threads;
    struct reduce_task *finished; /* done at once by the submitter */
    struct reduce_task *kept;     /* for reducer_work */
    bool rested;                  /* and has kept none since */
    struct reduce_task *backlog;  /* of each share the oldest; whose turn is next, first */
    struct reduce_task **backlog_end;
    struct reduce_task stop;
};

static uint64_t reducer_task_bytes(const struct reduce_task *task)
{
    const struct reduction *reduction = &task->reduction;
    return reduction->count * dtype_bytes(reduction->dtype) *
           (reduction->inputs + reduction->outputs);
}

/* Thread 0 is the submitter. */
static void reducer_run_task(const struct reducer *reducer, struct reduce_task *task,
                             uint32_t thread)
{
    if (task->run) {
        task->run(task, thread);
        return;
    }
    if (task->timed)
        task->begin_ns = clock_now_ns();
    reduce_run(reducer->kernels, &task->reduction);
    if (task->timed)
        task->end_ns = clock_now_ns();
}

static void *reducer_thread_main(void *argument)
{
    struct reduce_thread *self = argument;
    struct reducer *reducer = self->reducer;
    if (reducer->topology)
        topology_bind_thread(reducer->topology, self->index, NULL);
    for (;;) {
        struct reduce_task *task = ring_pop_wait(&self->todo);
        if (task == &reducer->stop)
            return NULL;
        reducer_run_task(reducer, task, self->index + 1);
        /* Never full: no more are given than it has room for (reducer_hand_out). */
        if (!ring_push(&self->done, task))
            abort();
        if (ring_consumer_sleeps(&self->done)) {
            uint64_t one = 1;
            ssize_t written = write(reducer->done_descriptor, &one, sizeof(one));
            (void)written; /* a full counter means that it is ringing already */
        }
    }
}

static int reducer_thread_start(struct reducer *reducer, uint32_t index)
{
    struct reduce_thread *thread = &reducer->threads[index];
    thread->reducer = reducer;
    thread->index = index;
    if (ring_init(&thread->todo, REDUCER_RING_ENTRIES) != 0 ||
        ring_init(&thread->done, REDUCER_RING_ENTRIES) != 0)
        return ERR_MEMORY;
    /* Signals are for the main thread. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread->thread, NULL, reducer_thread_main, thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return ERR_SYSTEM;
    thread->started = true;
    return 0;
}

int reducer_start(struct reducer **reducer, const struct reduce_kernels *kernels, uint32_t threads,
                  int done_descriptor, const struct topology *topology, struct error *error)
{
    struct reducer *made = calloc(1, sizeof(*made));
    struct reduce_thread *array =
        aligned_alloc(64, (threads ? threads : 1) * sizeof(struct reduce_thread));
    if (!made || !array) {
        free(made);
        free(array);
        return error_set(error, ERR_MEMORY, "no memory for %u reduce threads", threads);
    }
    memset(array, 0, (threads ? threads : 1) * sizeof(struct reduce_thread));
    made->kernels = kernels;
    made->topology = topology;
    made->done_descriptor = done_descriptor;
    made->threads = array;
    made->backlog_end = &made->backlog;
    for (uint32_t i = 0; i < threads; i++) {
        made->thread_count = i + 1;
        if (reducer_thread_start(made, i) != 0) {
            reducer_stop(made);
            return error_set(error, ERR_SYSTEM, "cannot start reduce thread %u of %u", i, threads);
        }
    }
    *reducer = made;
    return 0;
}

static void reducer_do_now(struct reducer *reducer, struct reduce_task *task)
{
    reducer_run_task(reducer, task, 0);
    task->next = reducer->finished;
    reducer->finished = task;
}

/* --- tasks that wait for a thread: users take turns ------------------------------------------- */

static void reducer_wait_last(struct reducer *reducer, struct reduce_task *first)
{
    first->next_share = NULL;
    *reducer->backlog_end = first;
    reducer->backlog_end = &first->next_share;
}

static void reducer_wait(struct reducer *reducer, struct reduce_task *task)
{
    struct reduce_task *first = reducer->backlog;
    while (first && first->share != task->share)
        first = first->next_share;
    if (first) {
        first->last->next = task;
        first->last = task;
        return;
    }
    task->last = task;
    reducer_wait_last(reducer, task);
}

static struct reduce_task *reducer_next_waiting(struct reducer *reducer)
{
    struct reduce_task *task = reducer->backlog, *rest = task->next;
    reducer->backlog = task->next_share;
    if (!reducer->backlog)
        reducer->backlog_end = &reducer->backlog;
    if (rest) {
        rest->last = task->last;
        reducer_wait_last(reducer, rest);
    }
    return task;
}

bool reducer_work(struct reducer *reducer)
{
    struct reduce_task *task = reducer->kept;
    if (!task)
        return false;
    reducer->kept = NULL;
    reducer_do_now(reducer, task);
    return true;
}

void reducer_finish(struct reducer *reducer)
{
    for (uint32_t i = 0; i < reducer->thread_count; i++) {
        struct reduce_thread *thread = &reducer->threads[i];
        if (!thread->started)
            continue;
        ring_push(&thread->todo, &reducer->stop);
        if (ring_consumer_sleeps(&thread->todo))
            ring_wake(&thread->todo);
        pthread_join(thread->thread, NULL);
        thread->started = false;
    }
    reducer_work(reducer);
    while (reducer->backlog)
        reducer_do_now(reducer, reducer_next_waiting(reducer));
}

void reducer_stop(struct reducer *reducer)
{
    if (!reducer)
        return;
    reducer_finish(reducer);
    for (uint32_t i = 0; i < reducer->thread_count; i++) {
        struct reduce_thread *thread = &reducer->threads[i];
        ring_clear(&thread->todo);
        ring_clear(&thread->done);
    }
    free(reducer->threads);
    free(reducer);
}

/* The task that a thread works on is in no ring of its own any more, so the bytes that it was given
 * are counted. */
static struct reduce_thread *reducer_least_busy(struct reducer *reducer)
{
    struct reduce_thread *best = &reducer->threads[0];
    for (uint32_t i = 1; i < reducer->thread_count; i++) {
        if (reducer->threads[i].given_bytes < best->given_bytes)
            best = &reducer->threads[i];
    }
    return best;
}

/* Return a thread that has room for so many bytes; NULL: all have enough. */
static struct reduce_thread *reducer_with_room(struct reducer *reducer, uint64_t bytes)
{
    struct reduce_thread *thread = reducer_least_busy(reducer);
    if (thread->given > 1 && thread->given_bytes + bytes > REDUCER_AHEAD_BYTES)
        return NULL;
    /* Done ones that nobody has taken count too: they are in the other ring. One entry is kept for
     * the task that ends the thread. */
    return thread->given < REDUCER_RING_ENTRIES - 1 ? thread : NULL;
}

static void reducer_give(struct reduce_thread *thread, struct reduce_task *task)
{
    thread->given++;
    thread->given_bytes += reducer_task_bytes(task);
    if (!ring_push(&thread->todo, task))
        abort(); /* as many as it has entries were not given */
    if (ring_consumer_sleeps(&thread->todo))
        ring_wake(&thread->todo);
}

void reducer_submit(struct reducer *reducer, struct reduce_task *task)
{
    uint64_t bytes = reducer_task_bytes(task);
    task->next = NULL;
    if (reducer->thread_count == 0 || bytes <= REDUCER_INLINE_BYTES) {
        reducer_do_now(reducer, task);
        return;
    }
    if (reducer->rested && bytes <= REDUCER_KEPT_BYTES) {
        reducer->rested = false;
        reducer->kept = task;
        return;
    }
    struct reduce_thread *thread = reducer->backlog ? NULL : reducer_with_room(reducer, bytes);
    if (thread)
        reducer_give(thread, task);
    else
        reducer_wait(reducer, task);
}

void reducer_rested(struct reducer *reducer)
{
    assert(!reducer->kept);
    reducer->rested = true;
}

static void reducer_flush_backlog(struct reducer *reducer)
{
    while (reducer->backlog) {
        uint64_t bytes = reducer_task_bytes(reducer->backlog);
        struct reduce_thread *thread = reducer_with_room(reducer, bytes);
        if (!thread)
            return;
        reducer_give(thread, reducer_next_waiting(reducer));
    }
}

struct reduce_task *reducer_take(struct reducer *reducer)
{
    struct reduce_task *task = reducer->finished;
    if (task) {
        reducer->finished = task->next;
        return task;
    }
    for (uint32_t i = 0; i < reducer->thread_count; i++) {
        task = ring_pop(&reducer->threads[i].done);
        if (task) {
            reducer->threads[i].given--;
            reducer->threads[i].given_bytes -= reducer_task_bytes(task);
            reducer_flush_backlog(reducer);
            return task;
        }
    }
    return NULL;
}

bool reducer_prepare_sleep(struct reducer *reducer)
{
    if (reducer->finished || reducer->kept)
        return true;
    for (uint32_t i = 0; i < reducer->thread_count; i++) {
        if (ring_prepare_sleep(&reducer->threads[i].done)) {
            reducer_cancel_sleep(reducer);
            return true;
        }
    }
    return false;
}

void reducer_cancel_sleep(struct reducer *reducer)
{
    for (uint32_t i = 0; i < reducer->thread_count; i++)
        ring_cancel_sleep(&reducer->threads[i].done);
}
