/* From one rank to another. */
#include <stdlib.h>
#include <string.h>

#include "worker/api/collective.h"
#include "worker/api/group.h"
#include "worker/drive/drive_device.h"
#include "worker/drive/drive_tell.h"
#include "worker/job/error_text.h"
#include "worker/job/job.h"
#include "worker/job/pairing.h"
#include "worker/job/shared.h"
#include "worker/shoal.h"

struct transfer {
    struct shoal_group *group;
    void *data; /* the caller's */
    uint64_t bytes;
    uint32_t peer, tag;
    bool receive;
    bool any;     /* from any rank; peer is then one of them */
    bool bounces; /* data does not lie in the arena */
    bool copies;  /* the driver does, between data and the arena */
    struct request_ask ask;
};

static int transfer_check(const struct transfer *transfer, int peer, int tag, struct error *error)
{
    const struct shoal_group *group = transfer->group;
    const char *name = transfer->receive ? "recv" : "send";
    size_t element_bytes = dtype_bytes(transfer->ask.dtype);
    if (element_bytes == 0)
        return error_set(error, ERR_INVALID, "%s: %d is no element type (0 to %d)", name,
                         (int)transfer->ask.dtype, DTYPE_COUNT - 1);
    if (transfer->any && group->size < 2)
        return error_set(error, ERR_INVALID, "%s: there is no other rank in the group", name);
    if (peer < 0 || (uint32_t)peer >= group->size || (uint32_t)peer == group->rank)
        return error_set(error, ERR_INVALID,
                         "%s: rank %d is not another rank of the group (0 to %u)", name, peer,
                         group->size - 1);
    if (tag < 0)
        return error_set(error, ERR_INVALID, "%s: tag %d is less than 0", name, tag);
    if (group->size > ROUTE_MAX_RANKS)
        return error_set(error, ERR_INVALID, "%s: a group of %u ranks is too large (at most %u)",
                         name, group->size, ROUTE_MAX_RANKS);
    if (transfer->ask.count > (1ull << 62) / element_bytes)
        return error_set(error, ERR_INVALID, "%s: %zu elements are too many", name,
                         (size_t)transfer->ask.count);
    if (transfer->ask.count > 0 && !transfer->data)
        return error_set(error, ERR_INVALID, "%s: the buffer is NULL", name);
    return 0;
}

/* Lock held: what lies in the arena goes from there, the rest through memory of it. A device's
 * goes through memory that is pinned, as long as there is some: first fit sees to that. */
static int transfer_address(struct transfer *transfer, struct shoal_request *request,
                            struct error *error)
{
    struct shoal_job *job = transfer->group->job;
    void *memory = transfer->data;
    bool on_device = transfer->ask.on_device;
    transfer->bounces =
        transfer->bytes > 0 &&
        (on_device || !request_in_arena(&job->progress.memory, transfer->data, transfer->bytes));
    transfer->copies = transfer->bounces && (on_device || transfer->receive);
    if (transfer->bounces) {
        int code = job_allocate(job, transfer->bytes, &request->bounce_offset, error);
        if (code < 0)
            return code;
        memory = job->arena.base + request->bounce_offset;
    }
    if (transfer->receive)
        transfer->ask.recv = memory;
    else
        transfer->ask.send = memory;
    return 0;
}

/* Lock held. */
static int any_begin(struct transfer *transfer, struct shoal_request *request, enum start_mode mode,
                     struct error *error)
{
    struct shoal_group *group = transfer->group;
    struct shoal_job *job = group->job;
    uint64_t offset;
    int code = job_allocate(job, group->size * sizeof(uint32_t), &offset, error);
    if (code < 0)
        return code;
    pairing_write_numbers(group, transfer->tag, offset);
    code = progress_any(&job->progress, &group->core, &transfer->ask,
                        pairing_sequence(transfer->tag, 0), group->rank,
                        transfer->copies ? transfer->data : NULL, offset, &request->core, error);
    if (code < 0)
        arena_heap_free(&job->heap, offset);
    else
        collective_started(job, request, mode);
    return code;
}

/* Lock held. */
static int transfer_begin(struct transfer *transfer, struct shoal_request *request,
                          enum start_mode mode, struct error *error)
{
    struct shoal_group *group = transfer->group;
    struct shoal_job *job = group->job;
    struct transfer_counter *counter;
    if (transfer->any)
        return any_begin(transfer, request, mode, error);
    int code =
        pairing_counter(group, transfer->peer, transfer->tag, transfer->receive, &counter, error);
    if (code < 0)
        return code;
    uint64_t sequence = pairing_sequence(transfer->tag, counter->next);
    code = progress_transfer(&job->progress, &group->core, &transfer->ask, sequence, group->rank,
                             transfer->copies ? transfer->data : NULL, &request->core, error);
    if (code < 0)
        return code;
    counter->next++;
    collective_started(job, request, mode);
    return 0;
}

/* Lock held, and released meanwhile: as transfer_begin, in the order of the stream. */
static int begin_on_device(struct transfer *transfer, struct shoal_request *request,
                           enum start_mode mode, struct error *error)
{
    struct shoal_job *job = transfer->group->job;
    struct progress_copy none;
    bool ready = false;
    int code = drive_device_enter(job, &transfer->ask, request, &ready, error);
    if (code < 0)
        return code;
    code = transfer_begin(transfer, request, mode, error);
    if (code < 0) {
        drive_device_leave(job, request);
    } else if (ready) {
        progress_ready(&job->progress, &request->core, &none);
        drive_notify(job);
    }
    return code;
}

static int transfer_start(struct transfer *transfer, struct shoal_request *request,
                          enum start_mode mode, struct error *error)
{
    struct shoal_job *job = transfer->group->job;
    pthread_mutex_lock(&job->lock);
    int code = job->closing ? error_set(error, ERR_STATE, "the job is being closed") : 0;
    if (code == 0 && transfer->receive)
        code = shared_refuse(job, "recv", transfer->data, transfer->bytes, error);
    if (code == 0)
        code = transfer_address(transfer, request, error);
    if (code == 0 && transfer->bounces && !transfer->copies) {
        pthread_mutex_unlock(&job->lock);
        memcpy(job->arena.base + request->bounce_offset, transfer->data, transfer->bytes);
        pthread_mutex_lock(&job->lock);
        if (job->closing)
            code = error_set(error, ERR_STATE, "the job is being closed");
    }
    if (code == 0 && transfer->ask.on_device)
        code = begin_on_device(transfer, request, mode, error);
    else if (code == 0)
        code = transfer_begin(transfer, request, mode, error);
    if (code < 0 && request->bounce_offset)
        arena_heap_free(&job->heap, request->bounce_offset);
    pthread_mutex_unlock(&job->lock);
    return code;
}

static int call_entered(struct transfer *transfer, int peer, int tag, int *source,
                        shoal_request **request)
{
    struct error error;
    struct shoal_group *group = transfer->group;
    int code = transfer_check(transfer, peer, tag, &error);
    struct shoal_request *made = code == 0 ? calloc(1, sizeof(*made)) : NULL;
    if (code == 0 && !made)
        error_set(&error, ERR_MEMORY, "out of memory for a request");
    if (!made)
        return error_text_keep(&error);
    made->source = source;
    transfer->peer = (uint32_t)peer;
    transfer->tag = (uint32_t)tag;
    transfer->bytes = transfer->ask.count * dtype_bytes(transfer->ask.dtype);
    uint32_t from = transfer->receive ? transfer->peer : group->rank;
    uint32_t to = transfer->receive ? group->rank : transfer->peer;
    pthread_mutex_lock(&group->job->lock);
    struct group_settings settings = group_settings_read(group);
    pthread_mutex_unlock(&group->job->lock);
    transfer->ask.on_device = settings.on_device;
    transfer->ask.stream = settings.stream;
    transfer->ask.kind = COLLECTIVE_SEND;
    transfer->ask.block = 1 + from * group->size + to;
    transfer->ask.route = route_find(COLLECTIVE_SEND, 0, transfer->ask.block, group->size);
    code = transfer_start(transfer, made, request ? START_ASYNC : START_WAITING, &error);
    if (code < 0) {
        free(made);
        return error_text_keep(&error);
    }
    if (request) {
        *request = made;
        return SHOAL_OK;
    }
    code = collective_wait(made, &error);
    return code < 0 ? error_text_keep(&error) : SHOAL_OK;
}

/* The data may lie in the arena, and is copied to or from it while no lock is held. */
static int transfer_call(struct transfer *transfer, int peer, int tag, int *source,
                         shoal_request **request)
{
    struct error error;
    if (group_check(transfer->group, &error) < 0)
        return error_text_keep(&error);
    struct shoal_job *job = transfer->group->job;
    if (job_enter(job, &error) < 0)
        return error_text_keep(&error);
    if (transfer->any) /* any other rank will do here */
        peer = transfer->group->rank == 0;
    else if (source)
        *source = peer;
    int code = call_entered(transfer, peer, tag, source, request);
    job_leave(job);
    return code;
}

int shoal_send(shoal_group *group, const void *data, size_t count, enum shoal_dtype dtype, int peer,
               int tag, shoal_request **request)
{
    struct transfer transfer = {.group = group,
                                .data = (void *)(uintptr_t)data,
                                .ask = {.dtype = (enum dtype)dtype, .count = count}};
    return transfer_call(&transfer, peer, tag, NULL, request);
}

int shoal_recv(shoal_group *group, void *data, size_t count, enum shoal_dtype dtype, int peer,
               int tag, shoal_request **request)
{
    struct transfer transfer = {.group = group,
                                .data = data,
                                .receive = true,
                                .ask = {.dtype = (enum dtype)dtype, .count = count}};
    return transfer_call(&transfer, peer, tag, NULL, request);
}

int shoal_recv_up_to(shoal_group *group, void *data, size_t most, enum shoal_dtype dtype, int peer,
                     int tag, int *source, size_t *count, shoal_request **request)
{
    struct transfer transfer = {
        .group = group,
        .data = data,
        .receive = true,
        .any = peer == SHOAL_ANY_RANK,
        .ask = {.dtype = (enum dtype)dtype, .count = most, .up_to = true, .received = count}};
    return transfer_call(&transfer, peer, tag, source, request);
}

int shoal_recv_any(shoal_group *group, void *data, size_t count, enum shoal_dtype dtype, int tag,
                   int *source, shoal_request **request)
{
    struct transfer transfer = {.group = group,
                                .data = data,
                                .receive = true,
                                .any = true,
                                .ask = {.dtype = (enum dtype)dtype, .count = count}};
    return transfer_call(&transfer, 0, tag, source, request);
}
