#include "worker/drive/drive_step.h"

#include <string.h>

#include "common/base/clock.h"
#include "common/memory/copy.h"
#include "worker/drive/drive_device.h"
#include "worker/drive/drive_tell.h"
#include "worker/job/pairing.h"

#define LAST_STEPS_MAX 10000u /* a chunk each */
#define LANDING_MS 1000u      /* for which a device's copies are waited for */

bool drive_step(struct shoal_job *job)
{
    struct progress_copy copy;
    struct error error;
    bool ended = job->device && drive_device_poll(job);
    enum progress_result result = progress_work(&job->progress, clock_now_ns(), &copy);
    if (result == PROGRESS_COPY && copy.on_device)
        result = drive_device_copy(job, &copy);
    drive_ring_daemon(job);
    if (result == PROGRESS_COPY) {
        pthread_mutex_unlock(&job->lock);
        if (copy.large_result)
            copy_result(copy.to, copy.from, copy.bytes);
        else
            memcpy(copy.to, copy.from, copy.bytes);
        pthread_mutex_lock(&job->lock);
        progress_copied(&job->progress, &copy, clock_now_ns());
    }
    if (pairing_match(job, &error) < 0)
        drive_fail(job, &error);
    drive_ring_daemon(job);
    drive_tell(job);
    return ended || result != PROGRESS_IDLE;
}

void drive_finish(struct shoal_job *job)
{
    uint64_t deadline_ns = clock_now_ns() + LANDING_MS * NS_PER_MS;
    for (unsigned steps = 0; steps < LAST_STEPS_MAX; steps++) {
        if (!drive_step(job) && (clock_now_ns() >= deadline_ns || !drive_device_land(job)))
            return;
    }
}
