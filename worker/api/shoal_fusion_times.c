/* The times of steps that streams have ended (shoal_fusion_wait_stream): the host may be steps
 * ahead, so what a step was is kept until its results are there. */
#include <stdlib.h>
#include <utlist.h>

#include "worker/api/fusion_handle.h"
#include "worker/drive/drive_device.h"

/* The host is so many steps ahead at the most for which there will be times. */
#define TIMES_MAX 8u

struct fusion_times {
    struct device_note waited; /* when the stream came to its wait */
    uint64_t bytes;
    struct fusion_times *prev, *next;
    uint32_t count;
    struct shoal_request *requests[]; /* [count]; one reference to each is ours */
};

/* Both locks held. */
static void times_drop(struct shoal_fusion *fusion, struct fusion_times *times)
{
    struct shoal_job *job = fusion->group->job;
    for (uint32_t i = 0; i < times->count; i++)
        job_release_request(job, times->requests[i]);
    device_queue_forget(job->device, &times->waited);
    DL_DELETE(fusion->times, times);
    free(times);
}

static int compare_starts(const void *a, const void *b)
{
    const struct fusion_interval *one = a, *other = b;
    return one->start_ns < other->start_ns ? -1 : one->start_ns > other->start_ns;
}

/* Measure a step whose results are all there; a step that has failed has no statistics. */
static void measure(struct shoal_fusion *fusion, const struct fusion_times *times)
{
    struct fusion_interval *intervals = calloc(times->count + 1u, sizeof(*intervals));
    struct shoal_fusion_statistics statistics = {
        .struct_size = sizeof(statistics), .buffers = times->count, .bytes = times->bytes};
    uint64_t last_ns = 0;
    bool good = intervals;
    for (uint32_t i = 0; good && i < times->count; i++) {
        const struct request *request = &times->requests[i]->core;
        intervals[i] = (struct fusion_interval){request->ready_ns, request->completed_ns};
        if (request->completed_ns > last_ns)
            last_ns = request->completed_ns;
        good = request->result == 0;
    }
    if (good) {
        /* A stream that is not known to have come to its wait found everything done. */
        uint64_t waited_ns = times->waited.occurred_ns ? times->waited.occurred_ns : last_ns;
        struct fusion_interval window = {waited_ns, last_ns};
        qsort(intervals, times->count, sizeof(*intervals), compare_starts);
        fusion_measure(intervals, times->count, window, &statistics.communication_ns,
                       &statistics.exposed_ns);
        fusion->statistics = statistics;
    }
    free(intervals);
}

static bool times_complete(const struct fusion_times *times)
{
    for (uint32_t i = 0; i < times->count; i++)
        if (times->requests[i]->core.state != REQUEST_COMPLETE)
            return false;
    return true;
}

void fusion_times_collect(struct shoal_fusion *fusion)
{
    struct shoal_job *job = fusion->group->job;
    pthread_mutex_lock(&job->lock);
    while (fusion->times && times_complete(fusion->times)) {
        measure(fusion, fusion->times);
        times_drop(fusion, fusion->times);
    }
    pthread_mutex_unlock(&job->lock);
}

void fusion_times_drop(struct shoal_fusion *fusion)
{
    struct shoal_job *job = fusion->group->job;
    pthread_mutex_lock(&job->lock);
    while (fusion->times)
        times_drop(fusion, fusion->times);
    pthread_mutex_unlock(&job->lock);
}

void fusion_times_free(struct shoal_fusion *fusion)
{
    struct fusion_times *times, *next;
    DL_FOREACH_SAFE(fusion->times, times, next)
    {
        free(times);
    }
}

int fusion_times_begin(struct shoal_fusion *fusion, void *stream, struct error *error)
{
    struct shoal_job *job = fusion->group->job;
    uint32_t count = fusion->plan.buffer_count, kept = 0;
    struct fusion_times *times, *made;
    fusion_times_collect(fusion);
    made = calloc(1, sizeof(*made) + count * sizeof(made->requests[0]));
    if (!made)
        return error_set(error, ERR_MEMORY, "out of memory for the times of a step");
    made->count = count;
    made->bytes = fusion->plan.total_bytes;
    pthread_mutex_lock(&job->lock);
    DL_COUNT(fusion->times, times, kept);
    if (kept == TIMES_MAX)
        times_drop(fusion, fusion->times);
    for (uint32_t i = 0; i < count; i++) {
        made->requests[i] = fusion->requests[i];
        fusion->requests[i]->references++;
    }
    DL_APPEND(fusion->times, made);
    int code = drive_device_note(job, stream, &made->waited, error);
    if (code < 0)
        times_drop(fusion, made);
    pthread_mutex_unlock(&job->lock);
    return code;
}
