/* From one rank to another. */
#include <stdlib.h>
#include <string.h>

#include "common/format/wire.h"
#include "worker/job/error_text.h"
#include "worker/job/job.h"
#include "worker/progress/progress_device.h"
#include "worker/progress/progress_thread.h"
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
    if ((*counter)->hh.tbl)
        return 0;
    free(*counter);
    return error_set(error, ERR_MEMORY, "out of memory for a tag");
}

/* Lock held: what lies in the arena goes from there, the rest through memory of it. A device's
 * goes through memory that is pinned, as long as there is some: first fit sees to that. */
static int transfer_place(struct transfer *transfer, struct shoal_request *request,
                          struct error *error)
{
    struct shoal_job *job = transfer->group->job;
    void *place = transfer->data;
    bool on_device = transfer->ask.on_device;
    transfer->bounces =
        transfer->bytes > 0 &&
        (on_device || !request_in_arena(&job->progress.memory, transfer->data, transfer->bytes));
    transfer->copies = transfer->bounces && (on_device || transfer->receive);
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

static struct transfer_counter *find_counter(const struct shoal_group *group, uint32_t peer,
                                             uint32_t tag)
{
    struct transfer_counter *counter;
    struct transfer_key key;
    memset(&key, 0, sizeof(key));
    key.peer = peer;
    key.tag = tag;
    key.receive = 1;
    HASH_FIND(hh, group->transfer_counters, &key, sizeof(key), counter);
    return counter;
}

static uint64_t sequence_of(uint32_t tag, uint32_t number)
{
    return WIRE_SEND_SEQUENCE | (uint64_t)tag << WIRE_SEND_TAG_SHIFT | number;
}

/* Lock held: what this rank has got so far with the tag, from each, at the offset of the arena. */
static void write_numbers(const struct shoal_group *group, uint32_t tag, uint64_t offset)
{
    uint32_t *numbers = (uint32_t *)(void *)(group->job->arena.base + offset);
    for (uint32_t rank = 0; rank < group->size; rank++) {
        const struct transfer_counter *counter = find_counter(group, rank, tag);
        numbers[rank] = counter ? counter->next : 0;
    }
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
    write_numbers(group, transfer->tag, offset);
    code = progress_any(&job->progress, &group->core, &transfer->ask, sequence_of(transfer->tag, 0),
                        group->rank, transfer->copies ? transfer->data : NULL, offset,
                        &request->core, error);
    if (code < 0)
        arena_heap_free(&job->heap, offset);
    else
        collective_started(job, request, mode);
    return code;
}

/* What a request has found is there, unless this rank has got it otherwise meanwhile. */
static int match(struct shoal_job *job, struct request *core, struct error *error)
{
    struct shoal_request *request = (struct shoal_request *)core;
    struct shoal_group *group = (struct shoal_group *)core->group;
    uint32_t source = core->any_source;
    uint32_t tag = (uint32_t)(core->sequence >> WIRE_SEND_TAG_SHIFT) & WIRE_SEND_TAG_MAX;
    if (source >= group->size || source == group->rank)
        return error_set(error, ERR_PROTOCOL, "the daemon found a sender that is none: %u", source);
    struct transfer transfer = {.group = group, .peer = source, .tag = tag, .receive = true};
    struct transfer_counter *counter;
    int code = next_number(&transfer, &counter, error);
    if (code < 0)
        return code;
    const uint32_t *numbers =
        (const uint32_t *)(const void *)(job->arena.base + core->numbers_offset);
    if (counter->next != numbers[source]) {
        write_numbers(group, tag, core->numbers_offset);
        progress_any_again(&job->progress, core);
        return 0;
    }
    uint32_t block = 1 + source * group->size + group->rank;
    struct route route = route_find(COLLECTIVE_SEND, 0, block, group->size);
    if (request->source)
        *request->source = (int)source;
    progress_any_found(&job->progress, core, block, &route, sequence_of(tag, counter->next));
    counter->next++;
    return 0;
}

void transfers_match(struct shoal_job *job)
{
    struct request *core;
    struct error error;
    while (!job->progress.failed && (core = progress_next_matched(&job->progress))) {
        if (match(job, core, &error) < 0) {
            progress_any_again(&job->progress, core); /* so that it fails with the others */
            progress_thread_fail(job, &error);
        }
    }
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
    int code = next_number(transfer, &counter, error);
    if (code < 0)
        return code;
    uint64_t sequence = sequence_of(transfer->tag, counter->next);
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
    int code = progress_device_enter(job, &transfer->ask, request, &ready, error);
    if (code < 0)
        return code;
    code = transfer_begin(transfer, request, mode, error);
    if (code < 0) {
        progress_device_leave(job, request);
    } else if (ready) {
        progress_ready(&job->progress, &request->core, &none);
        progress_thread_notify(job);
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
        code = transfer_place(transfer, request, error);
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
    struct group_settings settings = collective_settings(group);
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
