#include "worker/drive/drive_device.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "worker/drive/drive_tell.h"

/* A driver that went to sleep when nothing was under way would not look after what is now, were
 * there no ring. */
static void drive_device_wake(struct shoal_job *job, bool was_busy)
{
    if ((!was_busy && device_queue_busy(job->device)) || device_queue_unasked(job->device))
        drive_wake(job);
}

/* An arrival whose event is recorded on the stream, or NULL; the lock is let go of meanwhile. */
static struct device_arrival *drive_device_record(struct shoal_job *job, void *stream,
                                                  bool *occurred, struct error *error)
{
    struct device_arrival *arrival = device_queue_take(job->device, error);
    if (!arrival)
        return NULL;
    pthread_mutex_unlock(&job->lock);
    int code = device_event_record_done(job->device->device, arrival->event, stream, error);
    pthread_mutex_lock(&job->lock);
    *occurred = code > 0;
    if (code >= 0)
        return arrival;
    device_queue_give_back(job->device, arrival);
    return NULL;
}

int drive_device_enter(struct shoal_job *job, const struct request_ask *ask,
                       struct shoal_request *request, bool *ready, struct error *error)
{
    bool occurred;
    struct device_arrival *arrival = drive_device_record(job, ask->stream, &occurred, error);
    if (!arrival)
        return error->code;
    if (job->closing) {
        device_queue_give_back(job->device, arrival);
        return error_set(error, ERR_STATE, "the job is being closed");
    }
    bool busy = device_queue_busy(job->device);
    /* A request with a copy to begin at once comes through the gate in any case: the driver begins
     * the copy. */
    *ready = occurred && ask->own_bytes == 0;
    int code = device_queue_enter(job->device, arrival, ask, &request->core, &request->ticket,
                                  *ready, clock_now_ns(), error);
    drive_device_wake(job, busy);
    return code;
}

void drive_device_leave(struct shoal_job *job, struct shoal_request *request)
{
    request->core.waiting = true; /* at a gate, perhaps */
    device_queue_leave(job->device, &request->core, &request->ticket);
}

int drive_device_submit(struct shoal_job *job, struct progress_group *group,
                        const struct request_ask *ask, const struct request_ask *blocks,
                        uint32_t block_count, uint32_t rank, struct shoal_request *request,
                        struct error *error)
{
    bool ready = false;
    struct progress_copy none;
    int code = drive_device_enter(job, ask, request, &ready, error);
    if (code < 0)
        return code;
    code = progress_submit(&job->progress, group, ask, blocks, block_count, rank, &request->core,
                           error);
    if (code < 0) {
        drive_device_leave(job, request);
        return code;
    }
    if (ready) {
        request->core.ready_ns = clock_now_ns();
        progress_ready(&job->progress, &request->core, &none);
    }
    return 0;
}

int drive_device_note(struct shoal_job *job, void *stream, struct device_note *note,
                      struct error *error)
{
    bool occurred;
    struct device_arrival *arrival = drive_device_record(job, stream, &occurred, error);
    if (!arrival)
        return error->code;
    bool busy = device_queue_busy(job->device);
    int code =
        device_queue_note(job->device, arrival, stream, note, occurred, clock_now_ns(), error);
    drive_device_wake(job, busy);
    return code;
}

int drive_device_wait(struct shoal_job *job, const struct shoal_request *request, void *stream,
                      struct error *error)
{
    struct device *device = job->device->device;
    struct device_ticket ticket = request->ticket;
    if (request->core.state == REQUEST_COMPLETE)
        return job_request_result(request, error);
    const char *no_waits = device_no_waits(device);
    if (no_waits)
        return error_set(error, ERR_UNSUPPORTED, "GPU %d, %s: %s: use shoal_wait",
                         device_number(device), device_name(device), no_waits);
    struct device_arrival *arrival = device_queue_take(job->device, error);
    if (!arrival)
        return error->code;
    job->device->streams_waited = true;
    pthread_mutex_unlock(&job->lock);
    int code =
        device_wait_for_word(device, stream, ticket.word, ticket.value, arrival->event, error);
    pthread_mutex_lock(&job->lock);
    device_queue_give_back(job->device, arrival);
    return code;
}

static void drive_device_fail(struct shoal_job *job, const struct error *error)
{
    if (!job->daemon_gone) {
        job->daemon_gone = true;
        shutdown(job->client.fd, SHUT_RDWR);
    }
    drive_fail(job, error);
    device_queue_abandon(job->device, clock_now_ns());
    drive_tell(job);
}

bool drive_device_poll(struct shoal_job *job)
{
    struct error error;
    device_keep(job->device->device);
    int code = device_queue_poll(job->device, clock_now_ns(), &error);
    if (code < 0)
        drive_device_fail(job, &error);
    return code != 0;
}

enum progress_result drive_device_copy(struct shoal_job *job, struct progress_copy *copy)
{
    struct error error;
    enum progress_result result = PROGRESS_COPY;
    int code = 0;
    /* No more than there are slots, and a few of each send and receive. */
    while (code == 0 && result == PROGRESS_COPY && copy->on_device) {
        code = device_queue_add(job->device, copy, clock_now_ns(), &error);
        if (code == 0)
            result = progress_work(&job->progress, clock_now_ns(), copy);
    }
    if (code == 0)
        code = device_queue_begin(job->device, clock_now_ns(), &error);
    if (code < 0) {
        drive_device_fail(job, &error);
        return PROGRESS_MOVED; /* a copy in memory that was due has failed too */
    }
    return result == PROGRESS_COPY ? PROGRESS_COPY : PROGRESS_MOVED;
}

/* Until something has rung, or a part of the remaining time has passed. */
static void drive_device_wait_for_ring(struct shoal_job *job)
{
    struct pollfd poller = {.fd = job->wake_fd, .events = POLLIN};
    uint64_t value;
    pthread_mutex_unlock(&job->lock);
    if (poll(&poller, 1, (int)(DEVICE_LOOK_NS / NS_PER_MS)) > 0) {
        ssize_t got = read(job->wake_fd, &value, sizeof(value));
        (void)got;
    }
    pthread_mutex_lock(&job->lock);
}

bool drive_device_land(struct shoal_job *job)
{
    if (!job->device || !device_queue_copying(job->device))
        return false;
    drive_device_wait_for_ring(job);
    return true;
}

static void drive_device_end_copies(struct shoal_job *job, uint64_t deadline_ns)
{
    while (device_queue_copying(job->device) && clock_now_ns() < deadline_ns) {
        if (!drive_device_poll(job))
            drive_device_wait_for_ring(job);
        drive_tell(job);
    }
}

void drive_device_settle(struct shoal_job *job)
{
    if (job->device)
        drive_device_end_copies(job, clock_now_ns() + JOB_LEAVE_MS * NS_PER_MS);
}

/* False: the time was over, or the device has failed, and does not say any more. */
static bool drive_device_end_waits(struct shoal_job *job, uint64_t deadline_ns)
{
    struct error error;
    int done = -1;
    /* A call that has failed may do well when it is made again; of a device that has none does. */
    for (unsigned tries = 0; done < 0 && tries < 2; tries++) {
        done = device_queue_ring_waits(job->device, &error);
        while (done == 0 && (done = device_queue_waits_done(job->device, &error)) == 0 &&
               clock_now_ns() < deadline_ns)
            drive_device_wait_for_ring(job);
    }
    return done > 0;
}

void drive_device_stop(struct shoal_job *job)
{
    if (!job->device)
        return;
    struct device *device = job->device->device;
    uint64_t deadline_ns = clock_now_ns() + JOB_LEAVE_MS * NS_PER_MS;
    drive_device_end_copies(job, deadline_ns);
    job->device_stuck = device_queue_copying(job->device) || device_copies_lost(device) ||
                        device_waits_lost(device) || !drive_device_end_waits(job, deadline_ns);
    device_let_go(device);
}
