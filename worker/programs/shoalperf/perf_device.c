#include "worker/programs/shoalperf/perf_device.h"

static int open_any(shoal_job *job)
{
    struct shoal_device_options options = {.struct_size = sizeof(options),
                                           .number = shoal_local_rank(job)};
    int result = shoal_device_open(job, &options);
    if (result != SHOAL_EINVALID || options.number == 0)
        return result;
    options.number = 0;
    return shoal_device_open(job, &options);
}

int perf_device_open(struct perf_device *device, shoal_job *job, uint64_t bytes, bool in_place)
{
    *device = (struct perf_device){.job = job, .bytes = bytes};
    int result = open_any(job);
    if (result != SHOAL_OK)
        return result;
    device->stream = shoal_device_stream(job);
    device->send = shoal_device_alloc(job, bytes);
    device->recv = in_place ? device->send : shoal_device_alloc(job, bytes);
    return device->send && device->recv ? SHOAL_OK : SHOAL_EMEMORY;
}

void perf_device_close(struct perf_device *device)
{
    if (device->recv != device->send)
        shoal_device_free(device->job, device->recv);
    shoal_device_free(device->job, device->send);
    *device = (struct perf_device){0};
}

int perf_device_load(const struct perf_device *device, const void *send, const void *recv)
{
    int result = shoal_device_copy(device->job, device->send, send, device->bytes);
    if (result == SHOAL_OK && device->recv != device->send)
        result = shoal_device_copy(device->job, device->recv, recv, device->bytes);
    return result;
}

int perf_device_store(const struct perf_device *device, void *send, void *recv)
{
    int result = shoal_device_copy(device->job, send, device->send, device->bytes);
    if (result == SHOAL_OK && device->recv != device->send)
        result = shoal_device_copy(device->job, recv, device->recv, device->bytes);
    return result;
}
