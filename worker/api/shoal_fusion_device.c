/* The calls of fusion buffers that are for a device: streams instead of the host. */
#include "common/reduce/dtype.h"
#include "worker/api/fusion_handle.h"
#include "worker/drive/drive_device.h"
#include "worker/job/error_text.h"
#include "worker/job/job.h"
#include "worker/shoal.h"

size_t shoal_fusion_bytes(const struct shoal_parameter *parameters, size_t parameter_count)
{
    uint64_t bytes = 0;
    struct error error;
    if (!parameters && parameter_count > 0) {
        error_set(&error, ERR_INVALID, "shoal_fusion_bytes: parameters is NULL");
        error_text_keep(&error);
        return 0;
    }
    for (size_t i = 0; i < parameter_count; i++) {
        const struct plan_parameter parameter = {.count = parameters[i].count,
                                                 .dtype = (enum dtype)parameters[i].dtype};
        if (dtype_bytes((unsigned)parameters[i].dtype) == 0 ||
            plan_add_bytes(&bytes, &parameter) < 0)
            return 0;
    }
    return bytes;
}

int shoal_fusion_set_stream(shoal_fusion *fusion, void *stream)
{
    struct error error;
    int code = fusion_enter(fusion, &error);
    if (code < 0)
        return error_text_keep(&error);
    struct shoal_job *job = fusion->group->job;
    pthread_mutex_lock(&fusion->lock);
    if (!fusion->on_device)
        code = error_set(&error, ERR_INVALID, "shoal_fusion_set_stream: not on a device");
    else if (fusion->device.stream != stream && fusion->step.claimed_count > 0)
        code = error_set(&error, ERR_STATE, "shoal_fusion_set_stream: gradients are ready already");
    else if (fusion->device.stream != stream)
        code = device_fusion_follow(&fusion->device, stream, &error);
    if (code == 0)
        fusion->device.stream = stream;
    pthread_mutex_unlock(&fusion->lock);
    job_leave(job);
    return code < 0 ? error_text_keep(&error) : SHOAL_OK;
}

/* Let the stream wait for the buffers that have not been waited for yet, and write results back;
 * lock held. */
static int pass_to_stream(struct shoal_fusion *fusion, void *stream, struct error *error)
{
    struct shoal_job *job = fusion->group->job;
    /* A step that the host has waited for in part has no times. */
    int code = fusion->finished > 0 ? 0 : fusion_times_begin(fusion, stream, error);
    for (uint32_t i = fusion->finished; i < fusion->plan.buffer_count && code == 0; i++) {
        struct shoal_request *request = fusion->requests[i];
        pthread_mutex_lock(&job->lock);
        code = drive_device_wait(job, request, stream, error);
        pthread_mutex_unlock(&job->lock);
        if (code == 0)
            code = device_fusion_scatter(&fusion->device, &fusion->plan, &fusion->plan.buffers[i],
                                         stream, error);
        if (code < 0)
            break;
        fusion->requests[i] = NULL;
        fusion->passed[i] = request;
    }
    /* The next step's gradients must not come over these results. */
    if (code == 0)
        code = device_fusion_end(&fusion->device, stream, error);
    if (code == 0 && stream != fusion->device.stream)
        code = device_fusion_follow(&fusion->device, fusion->device.stream, error);
    return code;
}

/* Whether a step can end without the host. */
static bool ends_by_stream(struct shoal_fusion *fusion)
{
    pthread_mutex_lock(&fusion->lock);
    bool learned = fusion->learned;
    pthread_mutex_unlock(&fusion->lock);
    return learned && !device_no_waits(fusion->device.device);
}

static int wait_by_stream(struct shoal_fusion *fusion, void *stream, struct error *error)
{
    pthread_mutex_lock(&fusion->lock);
    int code = fusion_enter_wait(fusion, error);
    if (code == 0) {
        fusion->waiting = false;
        code = pass_to_stream(fusion, stream, error);
        if (code == 0)
            fusion_begin_step(fusion);
        else
            fusion->failure = *error;
    }
    pthread_mutex_unlock(&fusion->lock);
    return code;
}

int shoal_fusion_wait_stream(shoal_fusion *fusion, void *stream, int timeout_ms)
{
    struct error error;
    if (fusion_enter(fusion, &error) < 0)
        return error_text_keep(&error);
    struct shoal_job *job = fusion->group->job;
    int code = 0;
    if (timeout_ms < -1)
        code =
            error_set(&error, ERR_INVALID, "shoal_fusion_wait_stream: timeout_ms is less than -1");
    else if (!fusion->on_device)
        code = error_set(&error, ERR_INVALID, "shoal_fusion_wait_stream: not on a device");
    else if (ends_by_stream(fusion))
        code = wait_by_stream(fusion, stream, &error);
    else if ((code = fusion_wait(fusion, timeout_ms, &error)) == 0)
        code = device_fusion_follow(&fusion->device, stream, &error);
    job_leave(job);
    return code < 0 ? error_text_keep(&error) : SHOAL_OK;
}
