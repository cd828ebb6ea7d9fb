/* Collectives that the ranks of a node do alone (worker/meeting): coming to the place, waiting
 * there, and what becomes of the requests. A collective that does not meet within MEET_MS goes to
 * the daemon.
 *
 * The job's lock is held on entry to each of these. Calls worker/{job,progress,meeting}.
 */
#ifndef WORKER_DRIVE_DRIVE_MEET_H
#define WORKER_DRIVE_DRIVE_MEET_H

#include "worker/job/job.h"

/* How long a rank waits for others before the daemon, which can say who is late, is to know. */
#define MEET_MS 10u

/* Whether a place could carry the collective with its blocks: all parts are of one size, and if it
 * is so large that it passes in pieces, that takes less time than through the daemon. */
bool drive_meet_fits(const struct shoal_group *group, const struct request_ask *ask,
                     const struct request_ask *blocks, uint32_t block_count);
/* Whether the collective may meet, as far as this rank knows: it fits, the group has a place, and
 * nothing of the group is under way but requests that wait at the place, behind which this one
 * comes. A collective that passes in pieces needs a thread: the caller's, if the caller waits at
 * once (waiting), or the background thread. */
bool drive_meet_may(const struct shoal_group *group, const struct request_ask *ask,
                    const struct request_ask *blocks, uint32_t block_count, bool waiting);
/* Whether a rank has its own part, as the others' parts, out of the place, if the collective may
 * meet: it was put there for the others, and is still in a cache. If the collective does not meet,
 * the rank's part is copied when it goes to the daemon. False: the caller copies its own part. */
bool drive_meet_takes_own(const struct shoal_group *group, const struct request_ask *ask,
                          const struct request_ask *blocks, uint32_t block_count);
/* Begin the request, which may meet, at the group's place; then it may be complete, wait for the
 * others, or for those before it, or be with the daemon. waiting: its caller waits at once; else
 * the background thread looks after it. It takes the list of blocks. ERR_INVALID: it has not. */
int drive_meet_begin(struct shoal_group *group, const struct request_ask *ask,
                     struct request_ask *blocks, uint32_t block_count,
                     struct shoal_request *request, bool waiting, struct error *error);
/* The rank of the group whose turn the first one at the place, which passes in pieces, waits for.
 * False: there is none. */
bool drive_meet_waits_for(const struct shoal_group *group, uint32_t *rank);
/* Tell the others that the group's next collective goes to the daemon. */
void drive_meet_decline(struct shoal_group *group);
/* Look after the requests that wait at the group's place, if any. True: none does any more. */
bool drive_meet_settle(struct shoal_group *group);
/* Look after the requests as drive_meet_settle does, in a call that is to call nobody back; the
 * first that has a callback, and those behind it, are left alone. */
bool drive_meet_settle_quietly(struct shoal_group *group);
/* Look after all requests at the group's place, also those that have a callback, and call nobody
 * back; they go to the daemon unless all ranks have come. */
bool drive_meet_settle_now(struct shoal_group *group);
/* Around a thread's wait for one that waits at the group's place; meanwhile the background thread
 * need not. At the end the group may be closed. */
struct place_memory *drive_meet_begin_wait(struct shoal_group *group);
void drive_meet_end_wait(struct shoal_job *job, struct place_memory *memory);
/* This rank leaves the job: what would pass in pieces goes to the daemon. True: all ranks have come
 * to one already, and need this rank to its end. */
bool drive_meet_leave(struct shoal_job *job);
/* Look after the requests at the places of all groups but this one, of which the caller waits for
 * something else, and call nobody back. True: some still wait. */
bool drive_meet_settle_others(struct shoal_group *group);
/* Have the background thread wait for the requests at the group's place, for one of them has a
 * callback, or passes in pieces. False: it has others to wait for. */
bool drive_meet_watch(struct shoal_group *group);
/* Sleep until something may have become of it, MEET_MS at most; the lock is let go of meanwhile,
 * and for a moment if something has. */
void drive_meet_pause(struct shoal_group *group, uint64_t deadline_ns);
/* The background thread: look after all groups' requests that wait. Returns when to look again; 0:
 * when there is one again, of which drive_meet_begin tells. */
uint64_t drive_meet_keep(struct shoal_job *job);
/* The background thread: sleep until something may have become of those that it watches, or it is
 * called, or until then (0: no such time). False: there are none. */
bool drive_meet_stand_by(struct shoal_job *job, uint64_t until_ns);

#endif
