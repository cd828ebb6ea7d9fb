/* From one rank to another. */
#include <stdlib.h>
#include <string.h>

#include "common/wire.h"
#include "worker/error_text.h"
#include "worker/job.h"
#include "worker/progress_thread.h"
#include "worker/shoal.h"

struct transfer {
    struct shoal_group *group;
    void *data; /* the caller's */
    uint64_t bytes;
    uint32_t peer, tag;
    bool receive;
    bool bounces; /* data does not lie in the arena */
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

/* Lock held. Sends and receives between two ranks with one tag are matched by their numbers. */
static int next_number(struct transfer *transfer, struct transfer_counter **counter,
                       struct error *error)
{
    struct shoal_group *group = transfer->group;
    struct transfer_key key;
    memset(&key, 0, sizeof(key));
    key.peer = transfer->peer;
    key.tag = transfer->tag;
    key.receive = transfer->receive;
    HASH_FIND(hh, group->transfer_counters, &key, sizeof(key), *counter);
    if (*counter)
        return 0;
    *counter = calloc(1, sizeof(**counter));
    if (!*counter)
        return error_set(error, ERR_MEMORY, "out of memory for a tag");
    (*counter)->key = key;
    HASH_ADD(hh, group->transfer_counters, key, sizeof(key), *counter);
    return 0;
}

/* Lock held: what lies in the arena goes from there, the rest through memory of it. */
static int transfer_place(struct transfer *transfer, struct shoal_request *request,
                          struct error *error)
{
    struct shoal_job *job = transfer->group->job;
    void *place = transfer->data;
    transfer->bounces = transfer->bytes > 0 &&
                        !request_in_arena(&job->progress.memory, transfer->data, transfer->bytes);
    if (transfer->bounces) {
        int code = job_allocate(job, transfer->bytes, &request->bounce_offset, error);
        if (code < 0)
            return code;
        place = job->arena.base + request->bounce_offset;
    }
    if (transfer->receive)
        transfer->ask.recv = place;
    else
        transfer->ask.send = place;
    return 0;
}

/* Lock held. */
static int transfer_begin(struct transfer *transfer, struct shoal_request *request,
                          enum start_mode mode, struct error *error)
{
    struct shoal_group *group = transfer->group;
    struct shoal_job *job = group->job;
    struct transfer_counter *counter;
    int code = next_number(transfer, &counter, error);
    if (code < 0)
        return code;
    uint64_t sequence =
        WIRE_SEND_SEQUENCE | (uint64_t)transfer->tag << WIRE_SEND_TAG_SHIFT | counter->next;
    void *copy_to = transfer->bounces && transfer->receive ? transfer->data : NULL;
    code = progress_transfer(&job->progress, &group->core, &transfer->ask, sequence, group->rank,
                             copy_to, &request->core, error);
    if (code < 0)
        return code;
    counter->next++;
    collective_started(job, request, mode);
    return 0;
}

static int transfer_start(struct transfer *transfer, struct shoal_request *request,
                          enum start_mode mode, struct error *error)
{
    struct shoal_job *job = transfer->group->job;
    pthread_mutex_lock(&job->lock);
    int code = job->closing ? error_set(error, ERR_STATE, "the job is being closed")
                            : transfer_place(transfer, request, error);
    if (code == 0 && transfer->bounces && !transfer->receive) {
        pthread_mutex_unlock(&job->lock);
        memcpy(job->arena.base + request->bounce_offset, transfer->data, transfer->bytes);
        pthread_mutex_lock(&job->lock);
        if (job->closing)
            code = error_set(error, ERR_STATE, "the job is being closed");
    }
    if (code == 0)
        code = transfer_begin(transfer, request, mode, error);
    if (code < 0 && request->bounce_offset)
        arena_heap_free(&job->heap, request->bounce_offset);
    pthread_mutex_unlock(&job->lock);
    return code;
}

static int transfer_call(struct transfer *transfer, int peer, int tag, shoal_request **request)
{
    struct error error;
    struct shoal_group *group = transfer->group;
    int code = job_check(group->job, &error);
    if (code == 0)
        code = transfer_check(transfer, peer, tag, &error);
    struct shoal_request *made = code == 0 ? calloc(1, sizeof(*made)) : NULL;
    if (code == 0 && !made)
        code = error_set(&error, ERR_MEMORY, "out of memory for a request");
    if (code < 0)
        return error_text_keep(&error);
    transfer->peer = (uint32_t)peer;
    transfer->tag = (uint32_t)tag;
    transfer->bytes = transfer->ask.count * dtype_bytes(transfer->ask.dtype);
    uint32_t from = transfer->receive ? transfer->peer : group->rank;
    uint32_t to = transfer->receive ? group->rank : transfer->peer;
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

int shoal_send(shoal_group *group, const void *data, size_t count, enum shoal_dtype dtype, int peer,
               int tag, shoal_request **request)
{
    struct transfer transfer = {.group = group,
                                .data = (void *)(uintptr_t)data,
                                .ask = {.dtype = (enum dtype)dtype, .count = count}};
    return transfer_call(&transfer, peer, tag, request);
}

int shoal_recv(shoal_group *group, void *data, size_t count, enum shoal_dtype dtype, int peer,
               int tag, shoal_request **request)
{
    struct transfer transfer = {.group = group,
                                .data = data,
                                .receive = true,
                                .ask = {.dtype = (enum dtype)dtype, .count = count}};
    return transfer_call(&transfer, peer, tag, request);
}
