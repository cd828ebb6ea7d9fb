/* The next generation of a job that has lost ranks. */
#include <stddef.h>
#include <string.h>

#include "common/base/clock.h"
#include "worker/api/fusion_handle.h"
#include "worker/api/group.h"
#include "worker/api/reconfigure.h"
#include "worker/drive/drive.h"
#include "worker/job/error_text.h"
#include "worker/job/job.h"
#include "worker/job/rejoin.h"
#include "worker/shoal.h"

#define DEFAULT_STRAGGLERS_MS 10000

int shoal_generation(const shoal_job *job)
{
    struct error error;
    if (job)
        return (int)job->generation;
    error_set(&error, ERR_INVALID, "the job is NULL");
    return error_text_keep(&error);
}

/* A wish for a number of ranks; the timeout is set by now. */
static int reconfigure_wish(struct shoal_reconfigure_options *options, struct error *error)
{
    if (options->least_ranks < 0 || options->least_ranks > (int)MESSAGE_RANKS_MAX)
        return error_set(error, ERR_INVALID,
                         "shoal_job_reconfigure: least_ranks is %d, it must be 0 to %u",
                         options->least_ranks, MESSAGE_RANKS_MAX);
    if (options->wait_ms < 0 || options->wait_ms > options->timeout_ms)
        return error_set(error, ERR_INVALID,
                         "shoal_job_reconfigure: wait_ms is %d, it must be 0 to timeout_ms, %d",
                         options->wait_ms, options->timeout_ms);
    if (options->wait_ms > 0 && options->least_ranks == 0)
        return error_set(error, ERR_INVALID,
                         "shoal_job_reconfigure: wait_ms is %d without least_ranks",
                         options->wait_ms);
    if (options->least_ranks > 0 && options->wait_ms == 0)
        options->wait_ms = options->timeout_ms;
    return 0;
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
    return code < 0 ? code : reconfigure_wish(options, error);
}

static int reconfigure_wait(shoal_request *request, int timeout_ms)
{
    int code = shoal_wait(request, timeout_ms);
    if (code == SHOAL_ETIMEOUT) /* otherwise it is freed */
        shoal_request_free(request);
    return code;
}

static int reconfigure_least(struct shoal_job *job, int64_t values[2], int timeout_ms)
{
    shoal_request *request;
    int64_t *least = job->agreement;
    memcpy(least, values, sizeof(job->agreement));
    int code = shoal_all_reduce(job->groups, least, least, 2, SHOAL_I64, SHOAL_MIN, &request);
    if (code == SHOAL_OK)
        code = reconfigure_wait(request, timeout_ms);
    if (code == SHOAL_OK)
        memcpy(values, least, sizeof(job->agreement));
    return code;
}

/* The daemons learn which numbers the results of this generation have. When all ranks have said so
 * no result of the last one that not all have can be asked for. */
static int reconfigure_number(struct shoal_job *job, int timeout_ms)
{
    shoal_request *request;
    pthread_mutex_lock(&job->lock);
    progress_number(&job->progress, JOB_AGREEING, job->first_number);
    pthread_mutex_unlock(&job->lock);
    int code = shoal_barrier(job->groups, &request);
    return code == SHOAL_OK ? reconfigure_wait(request, timeout_ms) : code;
}

/* How many collectives of the old generation every survivor has, and how many there were before it.
 * If the last agreement failed on some ranks alone, these ask about an older generation than the
 * others, who know what was agreed: nobody has a result of the generation in which it failed. */
int reconfigure_agree(struct shoal_job *job, int timeout_ms, struct error *error)
{
    bool newcomer = job->unsettled == 0;
    int64_t oldest[2] = {newcomer ? INT64_MAX : job->unsettled, 0};
    int code = reconfigure_least(job, oldest, timeout_ms);
    bool asks = oldest[0] == job->unsettled;
    int64_t least[2] = {INT64_MAX, INT64_MAX};
    if (!newcomer) {
        least[0] = (int64_t)(asks ? job->kept_collectives : job->settled_collectives);
        least[1] = -(int64_t)(asks ? job->first_number : job->settled_number);
    }
    if (code == SHOAL_OK)
        code = reconfigure_least(job, least, timeout_ms);
    if (code == SHOAL_OK) {
        job->settled_collectives = (uint64_t)least[0];
        job->settled_number = (uint64_t)-least[1];
        job->first_number = job->settled_number + job->settled_collectives;
        job->got_collectives += asks ? (uint64_t)least[0] : 0;
        job->unsettled = 0;
        code = reconfigure_number(job, timeout_ms);
    }
    if (code < 0)
        *error = *error_text_last();
    return code;
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

/* Only one call at a time has the driver's role, and whoever waits for a request that the next
 * generation ends does not keep it. */
static int reconfigure_rejoin(struct shoal_job *job,
                              const struct shoal_reconfigure_options *options, bool met,
                              struct error *error)
{
    pthread_mutex_lock(&job->lock);
    bool claimed = drive_claim(job);
    int code = claimed ? job_check_rejoin(job, error)
                       : error_set(error, ERR_STATE, "the job is being closed");
    if (code < 0) {
        if (claimed)
            drive_release(job);
        pthread_mutex_unlock(&job->lock);
        return code;
    }
    if (job->unsettled == 0) {
        uint64_t kept = progress_kept(&job->progress, &job->groups->core), own = met;
        own += job->agreed ? JOB_AGREEING : 0;
        job->kept_collectives = kept > own ? kept - own : 0;
        job->unsettled = job->numbered;
    }
    pthread_mutex_unlock(&job->lock);
    if (!job->apart && !job->daemon_gone) /* else the library has tried */
        code = job_release(job, options->timeout_ms, error);
    if (code == 0)
        code = job_rejoin(job,
                          &(struct rejoin_ask){.timeout_ms = options->timeout_ms,
                                               .stragglers_ms = options->stragglers_ms,
                                               .least_ranks = options->least_ranks,
                                               .wait_ms = options->wait_ms},
                          error);
    if (code == 0)
        job->agreed = true;
    pthread_mutex_lock(&job->lock);
    drive_release(job);
    pthread_mutex_unlock(&job->lock);
    return code;
}

/* Set *left to the options with what is left of their times, for a call that began at began_ns.
 * False: nothing is left. */
static bool reconfigure_time_left(const struct shoal_reconfigure_options *options,
                                  uint64_t began_ns, struct shoal_reconfigure_options *left)
{
    uint64_t passed_ms = (clock_now_ns() - began_ns) / NS_PER_MS;
    if (passed_ms >= (uint64_t)options->timeout_ms)
        return false;
    left->timeout_ms = options->timeout_ms - (int)passed_ms;
    left->wait_ms = (uint64_t)options->wait_ms > passed_ms ? options->wait_ms - (int)passed_ms : 0;
    left->least_ranks = left->wait_ms > 0 ? options->least_ranks : 0;
    return true;
}

/* Once more where this node's daemon has ended while they agreed, and may be started again: for
 * the others that is a loss, after which they call it again. */
static int reconfigure_form(struct shoal_job *job, const struct shoal_reconfigure_options *options,
                            bool met, struct error *error)
{
    struct shoal_reconfigure_options left = *options;
    uint64_t began_ns = clock_now_ns();
    int code;
    do {
        code = reconfigure_rejoin(job, &left, met, error);
        met = false;
        if (code == 0) {
            fusion_renew_all(job);
            code = reconfigure_agree(job, left.timeout_ms, error);
        }
    } while (code == ERR_DISCONNECTED && job->restart_ms > 0 &&
             reconfigure_time_left(options, began_ns, &left));
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
    pthread_mutex_lock(&job->lock);
    if (code == 0)
        code = group_await(job, options.timeout_ms, &error);
    job->reconfiguring = true; /* the library does not go on for it */
    pthread_mutex_unlock(&job->lock);
    if (code == 0)
        code = fusion_check_all(job, &error);
    if (code == 0)
        code = reconfigure_meet(job, options.timeout_ms, &met, &error);
    if (code == 0)
        code = reconfigure_form(job, &options, met, &error);
    if (code == 0 && options.collectives)
        *options.collectives = job->got_collectives;
    if (code == 0)
        job->got_collectives = 0;
    pthread_mutex_lock(&job->lock);
    job->reconfiguring = false;
    pthread_mutex_unlock(&job->lock);
    job_leave(job);
    return code < 0 ? error_text_keep(&error) : SHOAL_OK;
}
