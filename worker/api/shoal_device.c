/* The job's device, and streams. */
#include <stddef.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/env.h"
#include "common/text/size_text.h"
#include "worker/api/group.h"
#include "worker/device/device_queue.h"
#include "worker/device/device_system.h"
#include "worker/drive/drive_device.h"
#include "worker/job/error_text.h"
#include "worker/job/job.h"
#include "worker/shoal.h"

/* All of a request of 64 MiB, and what its chunks leave free between them. */
#define POOL_BYTES (72u << 20)
#define POOL_LEAST_BYTES (8u << 20)          /* as much as the staging slots have */
#define POOL_SHARE(bytes) ((bytes) / 32 * 9) /* of the arena, at the most */

/* The options, and by which the memory to be pinned was limited. */
struct device_settings {
    struct shoal_device_options options;
    const char *pinned_by;
};

/* Read stream_waits from SHOAL_STREAM_WAITS, or take 0, where the caller has not set it; make it 0
 * or 1. */
static int read_stream_waits(struct shoal_device_options *options, struct error *error)
{
    long long waits = 1;
    int code = 0;
    if (options->stream_waits == 0)
        code = env_integer("SHOAL_STREAM_WAITS", 0, 1, 0, &waits, error);
    options->stream_waits = (int)waits;
    return code;
}

static int device_read_options(const struct shoal_device_options *given,
                               struct device_settings *settings, struct error *error)
{
    struct shoal_device_options *options = &settings->options;
    *settings = (struct device_settings){.pinned_by = "options.pinned_bytes"};
    int code = options_read(options, sizeof(*options), given,
                            offsetof(struct shoal_device_options, number) + sizeof(options->number),
                            "shoal_device_options", error);
    if (code < 0)
        return code;
    if (!options->library)
        options->library = env_text("SHOAL_CUDA_LIBRARY");
    if ((code = read_stream_waits(options, error)) < 0)
        return code;
    if (options->pinned_bytes > 0)
        return 0;
    long long bytes;
    code = env_integer("SHOAL_PINNED_BYTES", 1, SHOAL_PINNED_BYTES_MAX, SHOAL_PINNED_BYTES_MAX,
                       &bytes, error);
    if (code == 0) {
        options->pinned_bytes = (uint64_t)bytes;
        settings->pinned_by = "SHOAL_PINNED_BYTES";
    }
    return code;
}

/* Whole slots; and whole pages, for that is what drivers pin: what else lies on the last of them
 * would be pinned, or not, as the driver sees it. */
static uint64_t whole_end(const struct staging *staging, uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end = bytes < page ? page : bytes, whole;
    while ((whole = staging_whole_end(staging, end - end % page)) != end)
        end = whole;
    return end;
}

/* Limit the pinned memory to as much of the arena as options and daemon allow; lock held. */
static void limit_pinned(struct shoal_job *job, struct device_settings *settings)
{
    uint64_t bytes = settings->options.pinned_bytes;
    if (bytes > job->pinned_most) {
        bytes = job->pinned_most;
        settings->pinned_by = "the daemon's limits.pinned_bytes";
    }
    if (bytes >= job->arena.total_bytes) {
        bytes = job->arena.total_bytes;
        settings->pinned_by = NULL;
    }
    job->progress.pinned_bytes = whole_end(&job->progress.staging, bytes);
}

/* Only one call opens the job's device, and says how much of the arena is pinned. */
static int begin_opening(struct shoal_job *job, struct device_settings *settings,
                         struct error *error)
{
    int code = 0;
    pthread_mutex_lock(&job->lock);
    if (job->device)
        code = error_set(error, ERR_STATE, "the job has a device already: GPU %d",
                         device_number(job->device->device));
    else if (job->device_opening)
        code = error_set(error, ERR_STATE, "another thread is opening the job's device");
    if (code == 0) {
        job->device_opening = true;
        limit_pinned(job, settings);
    }
    pthread_mutex_unlock(&job->lock);
    return code;
}

/* Lock held. Memory of the arena through which the device's data goes: the half of it, and so on,
 * where there is no room, or not all would be pinned. Without any the staging slots serve. */
static void make_pool(struct shoal_job *job)
{
    uint64_t most = POOL_SHARE(job->arena.total_bytes), offset;
    for (uint64_t bytes = most < POOL_BYTES ? most : POOL_BYTES; bytes >= POOL_LEAST_BYTES;
         bytes /= 2) {
        if (arena_heap_allocate(&job->heap, bytes, &offset) < 0)
            continue;
        if (offset + bytes <= job->progress.pinned_bytes &&
            progress_add_pool(&job->progress, offset, bytes) == 0)
            return;
        arena_heap_free(&job->heap, offset);
    }
}

/* queue: NULL when it could not be opened. */
static void end_opening(struct shoal_job *job, struct device_queue *queue)
{
    pthread_mutex_lock(&job->lock);
    job->device_opening = false;
    job->device = queue;
    if (queue)
        make_pool(job);
    else
        job->progress.pinned_bytes = 0;
    pthread_mutex_unlock(&job->lock);
}

/* Write into `text` which limit the driver may have met; "" when no limit is known that `bytes`
 * exceeds. */
static void explain_limit(uint64_t bytes, char *text, size_t room)
{
    char size[SIZE_TEXT_BYTES];
    struct rlimit limit;
    uint64_t pages = (uint64_t)sysconf(_SC_PHYS_PAGES), page = (uint64_t)sysconf(_SC_PAGESIZE);
    text[0] = '\0';
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < bytes) {
        size_text_print(limit.rlim_cur, size, sizeof(size));
        snprintf(text, room, "; the limit on locked memory (RLIMIT_MEMLOCK, ulimit -l) is %s",
                 size);
    } else if (pages * page < bytes) {
        size_text_print(pages * page, size, sizeof(size));
        snprintf(text, room, "; the machine has %s of memory", size);
    }
}

static int pin(const struct shoal_job *job, struct device *device,
               const struct device_settings *settings, struct error *error)
{
    const char *by = settings->pinned_by;
    uint64_t bytes = job->progress.pinned_bytes;
    device_system_prefer(job->arena.base, bytes, device_system_node(NULL, device_address(device)));
    int code = device_pin(device, job->arena.base, bytes, error);
    if (code < 0) {
        char size[SIZE_TEXT_BYTES], limit[128];
        struct error why = *error;
        size_text_print(bytes, size, sizeof(size));
        explain_limit(bytes, limit, sizeof(limit));
        error_set(error, code, "cannot pin %s of the arena: %.700s%s (%s%s)", size, why.text, limit,
                  by ? "as much as is set by " : "all of it", by ? by : "");
    }
    return code;
}

/* Without the lock: the driver takes seconds to load, and to pin memory. */
static int open_device(struct shoal_job *job, const struct device_settings *settings,
                       struct device_queue **queue, struct error *error)
{
    struct device *device;
    int code = device_open(&device, settings->options.number, settings->options.library,
                           job->wake_fd, error);
    if (code < 0)
        return code;
    if (!settings->options.stream_waits)
        device_forbid_waits(device, "streams wait for no memory unless SHOAL_STREAM_WAITS is 1");
    code = pin(job, device, settings, error);
    if (code == 0)
        code = device_queue_create(queue, device,
                                   device_system_link_rate(NULL, device_address(device)),
                                   &job->progress, error);
    if (code < 0)
        device_close(device);
    return code;
}

int shoal_device_open(shoal_job *job, const struct shoal_device_options *options)
{
    struct error error;
    struct device_settings settings;
    if (job_enter(job, &error) < 0)
        return error_text_keep(&error);
    int code = device_read_options(options, &settings, &error);
    if (code == 0)
        code = begin_opening(job, &settings, &error);
    if (code == 0) {
        struct device_queue *queue = NULL;
        code = open_device(job, &settings, &queue, &error);
        end_opening(job, queue);
    }
    job_leave(job);
    return code < 0 ? error_text_keep(&error) : SHOAL_OK;
}

static int need_device(const struct shoal_job *job, const char *call, struct error *error)
{
    if (job->device)
        return 0;
    return error_set(error, ERR_STATE, "%s: the job has no device (shoal_device_open)", call);
}

int shoal_group_set_stream(shoal_group *group, enum shoal_memory memory, void *stream)
{
    struct error error;
    int code = group_check(group, &error);
    if (code == 0 && memory != SHOAL_MEMORY_HOST && memory != SHOAL_MEMORY_DEVICE)
        code = error_set(&error, ERR_INVALID, "shoal_group_set_stream: %d is no kind of memory",
                         (int)memory);
    if (code < 0 || job_enter(group->job, &error) < 0)
        return error_text_keep(&error);
    struct shoal_job *job = group->job;
    pthread_mutex_lock(&job->lock);
    if (memory == SHOAL_MEMORY_DEVICE)
        code = need_device(job, "shoal_group_set_stream", &error);
    struct group_settings *settings = code == 0 ? group_settings_write(group) : NULL;
    if (settings) {
        settings->on_device = memory == SHOAL_MEMORY_DEVICE;
        settings->stream = settings->on_device ? stream : NULL;
    } else if (code == 0) {
        code = error_set(&error, ERR_MEMORY, "out of memory for a stream");
    }
    pthread_mutex_unlock(&job->lock);
    job_leave(job);
    return code < 0 ? error_text_keep(&error) : SHOAL_OK;
}

/* Lock held. */
static int wait_stream(struct shoal_request *request, void *stream, struct error *error)
{
    if (!request->core.ask.on_device)
        return error_set(error, ERR_INVALID,
                         "shoal_request_wait_stream: the request's buffers are not on a device");
    return drive_device_wait(request->job, request, stream, error);
}

int shoal_request_wait_stream(shoal_request *request, void *stream)
{
    struct error error;
    if (!request) {
        error_set(&error, ERR_INVALID, "shoal_request_wait_stream: request is NULL");
        return error_text_keep(&error);
    }
    struct shoal_job *job = request->job;
    if (job_enter(job, &error) < 0)
        return error_text_keep(&error);
    pthread_mutex_lock(&job->lock);
    int code = wait_stream(request, stream, &error);
    pthread_mutex_unlock(&job->lock);
    job_leave(job);
    return code < 0 ? error_text_keep(&error) : SHOAL_OK;
}

/* --- for programs without a framework ------------------------------------------------------ */

/* Then job_leave, unless it is NULL. The driver is called without the lock: freeing and copying may
 * wait for what needs the lock. */
static struct device *enter_device(struct shoal_job *job, const char *call, struct error *error)
{
    struct device *device = NULL;
    if (job_enter(job, error) < 0)
        return NULL;
    pthread_mutex_lock(&job->lock);
    if (need_device(job, call, error) == 0)
        device = job->device->device;
    pthread_mutex_unlock(&job->lock);
    if (!device)
        job_leave(job);
    return device;
}

void *shoal_device_alloc(shoal_job *job, size_t bytes)
{
    struct error error;
    void *memory = NULL;
    struct device *device = enter_device(job, "shoal_device_alloc", &error);
    if (!device || device_allocate(device, bytes, &memory, &error) < 0)
        error_text_keep(&error);
    if (device)
        job_leave(job);
    return memory;
}

void shoal_device_free(shoal_job *job, void *memory)
{
    struct error error;
    struct device *device = memory ? enter_device(job, "shoal_device_free", &error) : NULL;
    if (!device)
        return;
    if (device_free(device, memory, &error) < 0)
        error_text_keep(&error);
    job_leave(job);
}

void *shoal_device_stream(shoal_job *job)
{
    struct error error;
    struct device *device = enter_device(job, "shoal_device_stream", &error);
    if (!device)
        return NULL;
    void *stream = device_stream(device);
    job_leave(job);
    return stream;
}

/* Return how many of the bytes, from the first on, are pinned or not as the first one is. The
 * memory may lie in the arena or elsewhere. */
static uint64_t pinned_alike(const struct shoal_job *job, const void *memory, uint64_t bytes)
{
    uint64_t offset = (uintptr_t)memory - (uintptr_t)job->arena.base; /* beyond all, if elsewhere */
    return progress_pinned_alike(&job->progress, offset, bytes);
}

int shoal_device_copy(shoal_job *job, void *to, const void *from, size_t bytes)
{
    struct error error;
    struct device *device = enter_device(job, "shoal_device_copy", &error);
    if (!device)
        return error_text_keep(&error);
    uint8_t *target = to;
    const uint8_t *source = from;
    uint64_t remaining = bytes;
    int code;
    do {
        uint64_t piece = pinned_alike(job, target, pinned_alike(job, source, remaining));
        code = device_transfer(device, target, source, piece, &error);
        target += piece;
        source += piece;
        remaining -= piece;
    } while (code == 0 && remaining > 0);
    job_leave(job);
    return code < 0 ? error_text_keep(&error) : SHOAL_OK;
}
