/* shoalperf's buffers on a GPU: the data is made and checked in the process's memory, and the
 * collectives run on a copy of it on the device. Failures are SHOAL_ codes, their texts the
 * thread's.
 */
#ifndef WORKER_PROGRAMS_SHOALPERF_PERF_DEVICE_H
#define WORKER_PROGRAMS_SHOALPERF_PERF_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/shoal.h"

struct perf_device {
    shoal_job *job;
    void *stream;
    void *send, *recv; /* on the device; the same in place */
    uint64_t bytes;    /* of each */
};

/* The device with the number of the local rank; the first where there are fewer devices than ranks.
 */
int perf_device_open(struct perf_device *device, shoal_job *job, uint64_t bytes, bool in_place);
/* To be called after a failure of perf_device_open, too. */
void perf_device_close(struct perf_device *device);

/* Copy all of both buffers to the device. */
int perf_device_load(const struct perf_device *device, const void *send, const void *recv);
/* Copy all of both buffers from the device. */
int perf_device_store(const struct perf_device *device, void *send, void *recv);

#endif
