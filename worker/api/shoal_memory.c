/* Memory of the arena, which the daemon reads and writes without a copy. */
#include "worker/job/error_text.h"
#include "worker/job/job.h"
#include "worker/shoal.h"

void *shoal_alloc(shoal_job *job, size_t bytes)
{
    struct error error;
    if (job_enter(job, &error) < 0) {
        error_text_keep(&error);
        return NULL;
    }
    uint64_t offset;
    pthread_mutex_lock(&job->lock);
    int code = job_allocate(job, bytes, &offset, &error);
    if (code == 0)
        job->allocations++;
    pthread_mutex_unlock(&job->lock);
    void *memory = code < 0 ? NULL : job->arena.base + offset;
    job_leave(job);
    if (code < 0)
        error_text_keep(&error);
    return memory;
}

void shoal_free(shoal_job *job, void *memory)
{
    struct error error;
    if (memory && job_check(job, &error) == 0)
        job_free(job, memory);
}
