/* The declarations that the files of worker/progress share. Each file calls those above it in this
 * list, and none below:
 *
 *   progress_keep.c      results that are told when they are stable; the end of a collective
 *   progress_parts.c     what a slot of several chunks holds: requests on a device, in parts
 *   progress_submit.c    all that goes into the submission ring: requests from their queue, slots
 *                        with chunks, times for a trace; the end of a request
 *   progress_transfer.c  sends and receives
 *   progress.c           what a caller gives and takes; what comes back; failure
 *   progress_ready.c     streams of a device that have come to a request
 *   progress_again.c     requests that are begun anew in the next generation
 */
#ifndef WORKER_PROGRESS_PROGRESS_PRIVATE_H
#define WORKER_PROGRESS_PROGRESS_PRIVATE_H

#include "worker/progress/progress.h"

static inline bool progress_is_transfer(const struct request *request)
{
    return request->ask.kind == COLLECTIVE_SEND;
}

/* --- progress_keep.c */

/* The collective is complete: its whole and all blocks are over, and no device copies for it. */
void progress_complete_whole(struct progress *progress, struct request *whole, uint64_t now_ns);
/* End a collective as progress_complete_whole does, but in a job that goes on by itself only when
 * its result is stable. */
void progress_end_whole(struct progress *progress, struct request *whole, uint64_t now_ns);
/* The program's new collective is one that has not been told. */
void progress_keep(struct progress_group *group, struct request *whole);
/* Complete a kept collective, which is over, well or not. */
void progress_tell_kept(struct progress *progress, struct request *whole, uint64_t now_ns);
/* Complete the kept collectives whose results are stable now. */
void progress_tell_stable(struct progress *progress, struct progress_group *group, uint64_t now_ns);
/* All that are left fail: they have a result that may not be stable, or are held. */
void progress_fail_kept(struct progress *progress, struct progress_group *group,
                        const struct error *error, uint64_t now_ns);

/* --- progress_parts.c */

/* Take a slot of the pool for the request's next part. NULL: none is free. */
struct staging_slot *progress_take_part(struct progress *progress, const struct request *request,
                                        enum staging_turn turn);
/* Return where a chunk that the slot holds lies in the arena. */
uint64_t progress_chunk_place(const struct staging_slot *slot, uint32_t chunk);
/* How many bytes all chunks of the slot have. */
uint64_t progress_slot_bytes(const struct staging_slot *slot);

/* --- progress_submit.c */

/* Into the submission ring; a ring without room, which only a daemon's fault can bring about, fails
 * the job. */
void progress_push(struct progress *progress, const struct arena_submission *submission);
/* Take the request out of a queue (to_submit, to_stage, to_copy, ...). */
void progress_leave_queue(struct request **queue, struct request *request);
/* The state of a new request, from a checked ask. ERR_INVALID: too many chunks. */
int progress_init_request(const struct progress *progress, const struct progress_group *group,
                          const struct request_ask *ask, uint64_t sequence, uint32_t rank,
                          struct request *request, struct error *error);
/* Submit the requests of the queues, as many as may be out; true when there was one. */
bool progress_submit_waiting(struct progress *progress);
/* Chunks of the request are to be handed over, in the request's turn: by priority, then by age. */
void progress_queue_for_staging(struct progress *progress, struct request *request);
/* This request, a block or a whole, is over: well (error NULL), or with an error. With the last one
 * the collective is complete. */
void progress_complete(struct progress *progress, struct request *request,
                       const struct error *error, uint64_t now_ns);

/* The time while the daemon takes a trace of the job, else 0. */
uint64_t progress_trace_ns(const struct progress *progress);
/* The slot's chunk has been copied out, and the trace was on when that began: tell the daemon,
 * where the ring has room that nothing else may need, and without waking it. */
void progress_trace_copied(struct progress *progress, const struct staging_slot *slot);

uint8_t *progress_slot_memory(const struct progress *progress, const struct staging_slot *slot);
/* The next slot to fill: for the first request by priority or, if that may have none now, for the
 * oldest of any group, which has a slot of its own. NULL: there is none. */
struct staging_slot *progress_next_slot(struct progress *progress);
/* Describe the copy that fills the slot; false when there is nothing to copy. */
bool progress_copy_in(const struct progress *progress, struct staging_slot *slot,
                      struct progress_copy *copy);
/* The slot is filled: it is the daemon's. */
void progress_give_slot(struct progress *progress, struct staging_slot *slot);
/* Hand a small request over whole, by the thread that calls, as far as there are slots. */
void progress_stage_if_small(struct progress *progress, struct request *request);

/* --- progress_transfer.c */

/* Take a piece to copy, of the first request in the queue. False: no piece may be copied now. */
bool progress_copy_piece(struct progress *progress, struct progress_copy *copy);
/* Whether the caller's memory is still to be copied to or from; if so, and if that may begin, the
 * request is in the queue for it. */
bool progress_transfer_copies(struct progress *progress, struct request *request);
/* The daemon says that it is over, and what the other rank gave or asked for. False: it cannot be.
 */
bool progress_transfer_done(struct progress *progress, struct request *request,
                            const struct arena_completion *completion, uint64_t now_ns);
/* The data of a send from a device is in the arena. */
void progress_transfer_loaded(struct progress *progress, struct request *request);

/* --- progress.c */

/* In the group's turn, to be submitted. */
void progress_enqueue(struct progress *progress, struct progress_group *group,
                      struct request *request, uint64_t age);

/* Complete the request, unless something is still to come back or to be copied, or, of a send or
 * receive, its stream has not come to it. */
void progress_finish_if_done(struct progress *progress, struct request *request, uint64_t now_ns);

#endif
