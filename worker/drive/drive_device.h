/* The work of the job's driver for a device (worker/device/device_queue.h), and the end of the
 * device with the job. The job's lock is held around all calls, and let go of by those that say so.
 * A device that fails takes its rank out of the job: the other ranks hear that it is gone.
 *
 * Calls worker/{device,progress,job} and drive_tell.h.
 */
#ifndef WORKER_DRIVE_DRIVE_DEVICE_H
#define WORKER_DRIVE_DRIVE_DEVICE_H

#include "worker/job/job.h"

/* A request that is about to be submitted waits at a gate. The lock is let go of meanwhile.
 * *ready: its stream has come to it already, and progress_ready is due when it is submitted. */
int drive_device_enter(struct shoal_job *job, const struct request_ask *ask,
                       struct shoal_request *request, bool *ready, struct error *error);
/* The request has not been submitted after all. */
void drive_device_leave(struct shoal_job *job, struct shoal_request *request);

/* progress_submit for buffers of the job's device. The lock is let go of meanwhile. */
int drive_device_submit(struct shoal_job *job, struct progress_group *group,
                        const struct request_ask *ask, const struct request_ask *blocks,
                        uint32_t block_count, uint32_t rank, struct shoal_request *request,
                        struct error *error);

/* Make the stream wait for the request; the result of one that is complete. ERR_UNSUPPORTED, or
 * what the driver says. The lock is let go of meanwhile. */
int drive_device_wait(struct shoal_job *job, const struct shoal_request *request, void *stream,
                      struct error *error);

/* The note will say when the stream has come so far. The lock is let go of meanwhile. */
int drive_device_note(struct shoal_job *job, void *stream, struct device_note *note,
                      struct error *error);

/* The driver: true when something has come to its end on the device. */
bool drive_device_poll(struct shoal_job *job);

/* The driver: begin the copy, along with others that are due. Returns what is to be done next:
 * PROGRESS_COPY with *copy, if it is none of the device's, or PROGRESS_MOVED. */
enum progress_result drive_device_copy(struct shoal_job *job, struct progress_copy *copy);

/* The driver: wait for a short time at most, while a copy is under way; drive_device_poll then
 * tells what has come to its end. False: none is under way. The lock is let go of meanwhile. */
bool drive_device_land(struct shoal_job *job);

/* For a job that has failed, as its last driver: let copies end, and so its requests, for a bounded
 * time. The lock is let go of meanwhile. */
void drive_device_settle(struct shoal_job *job);
/* After drive_device_settle, when no call is under way any more: let streams come past their waits,
 * for a bounded time. Memory that the device may still write to then, or that a stream may look at,
 * stays as long as the process (job->device_stuck). The lock is let go of meanwhile. */
void drive_device_stop(struct shoal_job *job);

#endif
