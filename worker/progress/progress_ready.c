/* Requests on a device: when their stream has come to them, and while they are copied. */
#include "worker/progress/progress.h"
#include "worker/progress/progress_private.h"

static void ready(struct progress *progress, struct request *request)
{
    if (!request->waiting)
        return;
    request->waiting = false;
    if (request->state == REQUEST_LOADING) {
        if (!progress_transfer_copies(progress, request))
            progress_transfer_loaded(progress, request); /* of no elements */
    } else if (request->state == REQUEST_SUBMITTED) {
        if (progress_is_transfer(request))
            progress_finish_if_done(progress, request, request->ready_ns);
        else if (request_has_chunk(request))
            progress_queue_for_staging(progress, request);
    }
}

bool progress_ready(struct progress *progress, struct request *request, struct progress_copy *copy)
{
    const struct request_ask *ask = &request->ask;
    ready(progress, request);
    for (uint32_t i = 0; i < request->block_count; i++)
        ready(progress, &request->blocks[i]);
    if (request->own != OWN_PENDING)
        return false;
    *copy = (struct progress_copy){.to = ask->own_to,
                                   .from = ask->own_from,
                                   .bytes = ask->own_bytes,
                                   .on_device = true,
                                   .request = request};
    return true;
}

void progress_copying(struct progress *progress, const struct progress_copy *copy)
{
    struct request *request = copy->slot ? copy->slot->request : copy->request;
    (request->whole ? request->whole : request)->incomplete++;
    request->group->request_count++; /* so that the group is not closed meanwhile */
    if (copy->slot) {
        copy->slot->copying = true;
    } else if (progress_is_transfer(request)) {
        request->copies++;
        request->copied_bytes += copy->bytes;
        progress_transfer_copies(progress, request); /* the next piece */
    } else {
        request->own = OWN_COPYING;
    }
}
