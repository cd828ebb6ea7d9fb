/* Sends and receives in progress. */
#include <assert.h>
#include <inttypes.h>
#include <utlist.h>

#include "common/format/wire.h"
#include "worker/progress/progress_private.h"

static int transfer_add(struct progress *progress, struct progress_group *group,
                        const struct request_ask *ask, uint64_t sequence, uint32_t rank, void *data,
                        struct request *request, struct error *error)
{
    const struct error *failure = progress->failed ? &progress->failure : &group->failure;
    if (progress->failed || group->failed)
        return error_set(error, failure->code, "%s", failure->text);
    int code = progress_init_request(progress, group, ask, sequence, rank, request, error);
    if (code < 0)
        return code;
    assert(!request->staged);
    request->group = group;
    request->age = progress->next_age++;
    request->incomplete = 1;
    request->receives = route_receives(&ask->route, rank);
    if (request->receives)
        request->copy_to = data;
    else
        request->copy_from = data;
    DL_APPEND(group->transfers, request);
    group->request_count++;
    return 0;
}

static void transfer_queue(struct progress *progress, struct request *request)
{
    DL_APPEND2(progress->to_transfer[request->receives], request, queue_prev, queue_next);
    progress_submit_waiting(progress);
}

int progress_transfer(struct progress *progress, struct progress_group *group,
                      const struct request_ask *ask, uint64_t sequence, uint32_t rank, void *data,
                      struct request *request, struct error *error)
{
    int code = transfer_add(progress, group, ask, sequence, rank, data, request, error);
    if (code == 0 && ask->on_device && !request->receives)
        request->state = REQUEST_LOADING;
    else if (code == 0)
        transfer_queue(progress, request);
    return code;
}

void progress_transfer_loaded(struct progress *progress, struct request *request)
{
    request->state = REQUEST_QUEUED;
    transfer_queue(progress, request);
}

int progress_any(struct progress *progress, struct progress_group *group,
                 const struct request_ask *ask, uint64_t sequence, uint32_t rank, void *data,
                 uint64_t numbers_offset, struct request *request, struct error *error)
{
    int code = transfer_add(progress, group, ask, sequence, rank, data, request, error);
    if (code < 0)
        return code;
    request->any = true;
    request->numbers_offset = numbers_offset;
    progress_any_again(progress, request);
    return 0;
}

void progress_any_again(struct progress *progress, struct request *request)
{
    request->state = REQUEST_QUEUED;
    DL_APPEND2(progress->to_any, request, queue_prev, queue_next);
    progress_submit_waiting(progress);
}

void progress_any_found(struct progress *progress, struct request *request, uint32_t block,
                        const struct route *route, uint64_t sequence)
{
    request->any = false;
    request->state = REQUEST_QUEUED;
    request->ask.block = block;
    request->ask.route = *route;
    request->sequence = sequence;
    transfer_queue(progress, request);
}

struct request *progress_next_matched(struct progress *progress)
{
    struct request *found = progress->matched, *oldest;
    if (!found)
        return NULL;
    progress_leave_queue(&progress->matched, found);
    DL_FOREACH(found->group->transfers, oldest)
    {
        if (oldest->any && oldest->sequence == found->sequence)
            break;
    }
    if (oldest == found)
        return found;
    /* The oldest takes what this one has found, and this one looks on instead of it. */
    uint32_t source = found->any_source;
    uint64_t numbers_offset = found->numbers_offset;
    found->state = oldest->state;
    found->any_source = oldest->any_source;
    found->number = oldest->number;
    found->numbers_offset = oldest->numbers_offset;
    oldest->any_source = source;
    oldest->numbers_offset = numbers_offset;
    if (found->state == REQUEST_SUBMITTED) {
        progress->table[progress_place(progress, found->number)] = found;
    } else {
        struct request **queue =
            found->state == REQUEST_MATCHED ? &progress->matched : &progress->to_any;
        progress_leave_queue(queue, oldest);
        DL_APPEND2(*queue, found, queue_prev, queue_next);
    }
    oldest->state = REQUEST_MATCHED;
    return oldest;
}

/* The two calls fail, and nothing else. */
static void transfer_refuse(struct progress *progress, struct request *request,
                            const struct arena_completion *completion, uint64_t now_ns)
{
    const struct request_ask *ask = &request->ask;
    bool receives = request->receives;
    const char *own = dtype_name(ask->dtype), *other = dtype_name(completion->dtype);
    struct error error;
    error_set(&error, ERR_MISMATCH,
              "send %" PRIu32 " with tag %" PRIu32 " in group %" PRIu32
              " does not fit: rank %" PRIu32 " of the group sends %" PRIu64 " %s, rank %" PRIu32
              " receives %s%" PRIu64 " %s",
              (uint32_t)request->sequence,
              (uint32_t)(request->sequence >> WIRE_SEND_TAG_SHIFT) & WIRE_SEND_TAG_MAX,
              request->group->number, ask->route.from, receives ? completion->count : ask->count,
              receives ? other : own, ask->route.to, ask->up_to ? "up to " : "",
              receives ? ask->count : completion->count, receives ? own : other);
    progress_complete(progress, request, &error, now_ns);
}

bool progress_transfer_done(struct progress *progress, struct request *request,
                            const struct arena_completion *completion, uint64_t now_ns)
{
    const struct request_ask *ask = &request->ask;
    uint64_t count = completion->count;
    bool refused = completion->chunk == ARENA_REFUSED;
    if (refused ? completion->dtype >= DTYPE_COUNT : completion->chunk != 0)
        return false;
    if (request->receives && !refused && (ask->up_to ? count > ask->count : count != ask->count))
        return false;
    request->done_seen = true;
    if (refused) {
        transfer_refuse(progress, request, completion, now_ns);
        return true;
    }
    if (request->receives)
        request->layout.count = count; /* so much is copied out */
    if (ask->received)
        *ask->received = count;
    progress_finish_if_done(progress, request, now_ns);
    return true;
}

bool progress_transfer_copies(struct progress *progress, struct request *request)
{
    bool more = request->copied_bytes < request_bytes(request);
    if (!request->copy_to && !request->copy_from)
        return false;
    if (more && !request->waiting && !request->copying && request->copies < PROGRESS_COPIES_MAX) {
        request->copying = true;
        DL_APPEND2(progress->to_copy, request, queue_prev, queue_next);
    }
    return more || request->copies > 0;
}

uint64_t progress_pinned_alike(const struct progress *progress, uint64_t offset, uint64_t bytes)
{
    uint64_t pinned = progress->pinned_bytes;
    return offset < pinned && pinned - offset < bytes ? pinned - offset : bytes;
}

bool progress_copy_piece(struct progress *progress, struct progress_copy *copy)
{
    struct request *request = progress->to_copy;
    while (request && progress->device_full && request->ask.on_device && !request->receives)
        request = request->queue_next;
    if (!request)
        return false;
    uint64_t done = request->copied_bytes, remaining = request_bytes(request) - done;
    uint64_t offset = (request->receives ? request->out_offset : request->in_offset) + done;
    uint64_t piece = request->ask.on_device ? progress_part_bytes(progress, request_bytes(request))
                                            : PROGRESS_COPY_BYTES;
    uint64_t bytes = remaining < piece ? remaining : piece;
    uint8_t *memory = progress->arena->base + offset;
    progress_leave_queue(&progress->to_copy, request);
    request->copying = false;
    *copy = (struct progress_copy){.bytes = progress_pinned_alike(progress, offset, bytes),
                                   .request = request,
                                   .on_device = request->ask.on_device};
    if (request->receives) {
        copy->to = (uint8_t *)request->copy_to + done;
        copy->from = memory;
    } else {
        copy->to = memory;
        copy->from = (const uint8_t *)request->copy_from + done;
    }
    return true;
}
