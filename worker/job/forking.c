#include "worker/job/forking.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utlist.h>

#include "common/base/clock.h"
#include "worker/job/error_text.h"

/* An error that was kept longer ago is not why the process ends. */
#define ENDING_NS (10 * NS_PER_S)

static struct {
    pthread_once_t once;
    int code; /* of registering the handlers */
    pthread_mutex_t lock;
    struct shoal_job *jobs;
} open_jobs = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

static void forking_before(void)
{
    pthread_mutex_lock(&open_jobs.lock);
}

static void forking_in_parent(void)
{
    pthread_mutex_unlock(&open_jobs.lock);
}

static void forking_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* Nothing but this thread is left: other locks may be held for ever, and what they guard may be in
 * the middle of a change. */
static void forking_in_child(void)
{
    struct shoal_job *job, *next;
    DL_FOREACH_SAFE2(open_jobs.jobs, job, next, next_open)
    {
        for (uint32_t i = 0; i < job->client.descriptor_count; i++)
            forking_close(&job->client.descriptors[i]);
        job->client.descriptor_count = 0;
        job->forked = true;
        forking_close(&job->client.fd);
        if (job->allocations > 0)
            arena_make_private(&job->arena, job->arena_fd, false);
        forking_close(&job->arena_fd);
        forking_close(&job->submission_doorbell);
        forking_close(&job->completion_doorbell);
        forking_close(&job->wake_fd);
        forking_close(&job->listen_fd);
        forking_close(&job->completions_fd);
    }
    open_jobs.jobs = NULL; /* they are the parent's; the child may open its own */
    pthread_mutex_unlock(&open_jobs.lock);
}

/* Wait for nothing: other threads may be in the middle of anything. */
static void forking_at_exit(void)
{
    const char *why = error_text_recent(ENDING_NS);
    if (!why || pthread_mutex_trylock(&open_jobs.lock) != 0)
        return;
    struct shoal_job *job;
    DL_FOREACH2(open_jobs.jobs, job, next_open)
    {
        if (job->thread_started) /* it has joined */
            job_say_ending(job, why);
    }
    pthread_mutex_unlock(&open_jobs.lock);
}

static void forking_register(void)
{
    open_jobs.code = pthread_atfork(forking_before, forking_in_parent, forking_in_child);
    if (open_jobs.code == 0 && atexit(forking_at_exit) != 0)
        open_jobs.code = ENOMEM;
}

int forking_add(struct shoal_job *job, struct error *error)
{
    pthread_once(&open_jobs.once, forking_register);
    if (open_jobs.code != 0)
        return error_set(error, ERR_MEMORY,
                         "out of memory for what is to be done in a fork and at the end");
    pthread_mutex_lock(&open_jobs.lock);
    DL_APPEND2(open_jobs.jobs, job, prev_open, next_open);
    pthread_mutex_unlock(&open_jobs.lock);
    job->open = true;
    return 0;
}

void forking_remove(struct shoal_job *job)
{
    if (!job->open)
        return;
    pthread_mutex_lock(&open_jobs.lock);
    DL_DELETE2(open_jobs.jobs, job, prev_open, next_open);
    pthread_mutex_unlock(&open_jobs.lock);
    job->open = false;
}

void forking_keep_memory(const void *base, uint64_t bytes)
{
    madvise((void *)(uintptr_t)base, bytes, MADV_DONTFORK);
}
