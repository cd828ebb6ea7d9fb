/* The next generation of a job that has lost ranks. */
#include <stddef.h>

#include "common/base/clock.h"
#include "worker/api/fusion_handle.h"
#include "worker/api/reconfigure.h"
#include "worker/drive/drive.h"
#include "worker/job/error_text.h"
#include "worker/job/job.h"
#include "worker/job/rejoin.h"
#include "worker/shoal.h"

#define DEFAULT_STRAGGLERS_MS 10000
/* Collectives of reconfigure_agree, with which a later generation begins. */
#define AGREEING 2u

int shoal_generation(const shoal_job *job)
{
    struct error error;
    if (job)
        return (int)job->generation;
    error_set(&error, ERR_INVALID, "the job is NULL");
    return error_text_keep(&error);
}

static int reconfigure_options(const struct shoal_job *job,
                               const struct shoal_reconfigure_options *given,
                               struct shoal_reconfigure_options *options, struct error *error)
{
    int code = options_read(options, sizeof(*options), given,
                            offsetof(struct shoal_reconfigure_options, stragglers_ms) +
                                sizeof(options->stragglers_ms),
                            "shoal_reconfigure_options", error);
    if (code == 0 && (options->timeout_ms < 0 || options->stragglers_ms < 0))
        code = error_set(error, ERR_INVALID,
                         "shoal_job_reconfigure: timeout_ms is %d and stragglers_ms %d, neither "
                         "may be less than 0",
                         options->timeout_ms, options->stragglers_ms);
    if (options->timeout_ms == 0)
        options->timeout_ms = job->timeout_ms;
    if (options->stragglers_ms == 0)
        options->stragglers_ms = DEFAULT_STRAGGLERS_MS;
    return code;
}

static int reconfigure_least(struct shoal_job *job, uint64_t *value, int timeout_ms)
{
    shoal_request *request;
    int64_t *least = &job->agreement;
    *least = (int64_t)*value;
    int code = shoal_all_reduce(job->groups, least, least, 1, SHOAL_I64, SHOAL_MIN, &request);
    if (code < 0)
        return code;
    code = shoal_wait(request, timeout_ms);
    if (code == SHOAL_ETIMEOUT) /* otherwise it is freed */
        shoal_request_free(request);
    if (code == SHOAL_OK)
        *value = (uint64_t)*least;
    return code;
}

/* How many collectives of the old generation every survivor has. If the last agreement failed on
 * some ranks alone, these ask about an older generation than the others, who know what was agreed:
 * nobody has a result of the generation in which it failed. */
int reconfigure_agree(struct shoal_job *job, int timeout_ms, struct error *error)
{
    bool newcomer = job->unsettled == 0;
    uint64_t oldest = newcomer ? INT64_MAX : job->unsettled;
    int code = reconfigure_least(job, &oldest, timeout_ms);
    bool asks = oldest == job->unsettled;
    uint64_t least = newcomer ? INT64_MAX : asks ? job->kept_collectives : job->settled_collectives;
    if (code == SHOAL_OK)
        code = reconfigure_least(job, &least, timeout_ms);
    if (code < 0) {
        *error = *error_text_last();
        return code;
    }
    job->settled_collectives = asks ? least : 0;
    job->unsettled = 0;
    return 0;
}

/* Without a loss: the first to ask makes the job fail for the others, who may not have all results
 * that it has. After this they have those of all calls before. Whether there was a loss
 * meanwhile does not matter; a rank that has left the job fails no more than this barrier. */
static int reconfigure_meet(struct shoal_job *job, int timeout_ms, bool *met, struct error *error)
{
    shoal_request *request;
    pthread_mutex_lock(&job->lock);
    bool failed = job->progress.failed;
    pthread_mutex_unlock(&job->lock);
    *met = false;
    if (failed)
        return 0;
    int code = shoal_barrier(job->groups, &request);
    if (code == SHOAL_OK) {
        code = shoal_wait(request, timeout_ms);
        if (code == SHOAL_ETIMEOUT) /* otherwise it is freed */
            shoal_request_free(request);
    }
    *met = code == SHOAL_OK;
    pthread_mutex_lock(&job->lock);
    failed = job->progress.failed;
    pthread_mutex_unlock(&job->lock);
    if (code == SHOAL_OK || code == SHOAL_ELOST ||
        (failed && code != SHOAL_ETIMEOUT && code != SHOAL_ESTATE))
        return 0; /* what the job has failed with, job_check_rejoin looks at */
    *error = *error_text_last();
    return code;
}

/* Only one call at a time has the driver's role. */
static int reconfigure_rejoin(struct shoal_job *job,
                              const struct shoal_reconfigure_options *options, bool met,
                              struct error *error)
{
    pthread_mutex_lock(&job->lock);
    while (job->driver != JOB_DRIVER_NONE && !job->closing)
        pthread_cond_wait(&job->changed, &job->lock);
    int code = job->closing ? error_set(error, ERR_STATE, "the job is being closed")
                            : job_check_rejoin(job, error);
    if (code < 0) {
        pthread_mutex_unlock(&job->lock);
        return code;
    }
    if (job->unsettled == 0) {
        uint64_t kept = progress_kept(&job->groups->core), own = met;
        own += job->generation > 1 ? AGREEING : 0;
        job->kept_collectives = kept > own ? kept - own : 0;
        job->unsettled = job->generation;
    }
    job->driver = JOB_DRIVER_WAITER;
    pthread_mutex_unlock(&job->lock);
    code = job_rejoin(job, options->timeout_ms, options->stragglers_ms, error);
    pthread_mutex_lock(&job->lock);
    drive_release(job);
    pthread_mutex_unlock(&job->lock);
    return code;
}

int shoal_job_reconfigure(shoal_job *job, const struct shoal_reconfigure_options *given)
{
    struct error error;
    struct shoal_reconfigure_options options = {0};
    int code = job_enter(job, &error);
    if (code < 0)
        return error_text_keep(&error);
    code = reconfigure_options(job, given, &options, &error);
    bool met = false;
    if (code == 0)
        code = fusion_check_all(job, &error);
    if (code == 0)
        code = reconfigure_meet(job, options.timeout_ms, &met, &error);
    if (code == 0)
        code = reconfigure_rejoin(job, &options, met, &error);
    if (code == 0)
        fusion_renew_all(job);
    if (code == 0)
        code = reconfigure_agree(job, options.timeout_ms, &error);
    if (code == 0 && options.collectives)
        *options.collectives = job->settled_collectives;
    job_leave(job);
    return code < 0 ? error_text_keep(&error) : SHOAL_OK;
}
