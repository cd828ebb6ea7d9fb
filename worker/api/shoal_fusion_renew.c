/* Fusion buffers of a job that becomes the next generation. */
#include <utlist.h>

#include "worker/api/fusion_handle.h"

int fusion_check_all(struct shoal_job *job, struct error *error)
{
    struct shoal_fusion *fusion;
    int code = 0;
    DL_FOREACH(job->fusions, fusion)
    {
        pthread_mutex_lock(&fusion->lock);
        if (fusion->waiting || fusion->gathering > 0)
            code = error_set(error, ERR_STATE, "another thread is in a step of fusion buffers");
        pthread_mutex_unlock(&fusion->lock);
    }
    return code;
}

static void forget(struct shoal_job *job, struct shoal_request **request)
{
    if (*request) /* complete, or the job would not have gone on */
        job_release_request(job, *request);
    *request = NULL;
}

static void fusion_renew(struct shoal_fusion *fusion)
{
    struct shoal_job *job = fusion->group->job;
    struct error error;
    pthread_mutex_lock(&job->lock);
    for (uint32_t i = 0; i < fusion->plan.buffer_count; i++) {
        forget(job, &fusion->requests[i]);
        forget(job, &fusion->passed[i]);
    }
    forget(job, &fusion->order_request);
    pthread_mutex_unlock(&job->lock);
    fusion->failure.code = 0;
    fusion->finished = 0;
    fusion_find_threshold(fusion); /* as a newcomer does */
    for (uint32_t i = 0; i < fusion->parameter_count; i++)
        fusion->order[i] = fusion->parameter_count - 1 - i;
    if (fusion_replan(fusion, &error) < 0)
        fusion->failure = error; /* the next call says so */
    fusion->learned = false;
    fusion_begin_step(fusion);
}

void fusion_renew_all(struct shoal_job *job)
{
    struct shoal_fusion *fusion;
    job->groups->fusions_made = 0; /* a newcomer counts no others */
    DL_FOREACH(job->fusions, fusion)
    {
        if (fusion->freed)
            continue;
        pthread_mutex_lock(&fusion->lock);
        fusion->number = job->groups->fusions_made++;
        fusion_renew(fusion);
        pthread_mutex_unlock(&fusion->lock);
    }
}
