/* What progress.c and progress_transfer.c share. */
#ifndef WORKER_PROGRESS_PROGRESS_PRIVATE_H
#define WORKER_PROGRESS_PROGRESS_PRIVATE_H

#include "worker/progress/progress.h"

static inline bool progress_is_transfer(const struct request *request)
{
    return request->ask.kind == COLLECTIVE_SEND;
}

/* progress.c */
void progress_leave_queue(struct request **queue, struct request *request);
int progress_init_request(const struct progress *progress, const struct progress_group *group,
                          const struct request_ask *ask, uint64_t sequence, uint32_t rank,
                          struct request *request, struct error *error);
/* Complete it, unless something is still to come back or to be copied, or, of a send or receive,
 * its stream has not come to it. */
void progress_finish_if_done(struct progress *progress, struct request *request, uint64_t now_ns);
/* As many as may be out; true when there was one. */
bool progress_submit_waiting(struct progress *progress);

/* progress_transfer.c: a piece of the first in the queue of those that are to be copied. */
void progress_copy_piece(struct progress *progress, struct progress_copy *copy);
/* Whether the caller's memory is still to be copied to or from; if so, and if that may begin, the
 * request is in the queue for it. */
bool progress_transfer_copies(struct progress *progress, struct request *request);
/* The data of a send from a device is in the arena. */
void progress_transfer_loaded(struct progress *progress, struct request *request);

/* In progress.c: chunks of the request are to be handed over, in its turn. */
void progress_queue_for_staging(struct progress *progress, struct request *request);

#endif
