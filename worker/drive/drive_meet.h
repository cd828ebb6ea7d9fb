/* Collectives that the ranks of a node do alone (worker/meeting): coming to the place, waiting
 * there, and what becomes of a request that has. What does not meet within MEET_MS goes to the
 * daemon.
 *
 * The job's lock is held on entry to each of these. Calls worker/{job,progress,meeting}.
 */
#ifndef WORKER_DRIVE_DRIVE_MEET_H
#define WORKER_DRIVE_DRIVE_MEET_H

#include "worker/job/job.h"

/* How long a rank waits for others before the daemon, which can say who is late, is to know. */
#define MEET_MS 10u

/* Whether a place could carry the collective with its blocks: it is small, and all parts are of one
 * size. */
bool drive_meet_fits(const struct shoal_group *group, const struct request_ask *ask,
                     const struct request_ask *blocks, uint32_t block_count);
/* Whether it may meet, as far as this rank knows: besides, the group has a place, and nothing of
 * the group is under way but what waits there: it comes behind that. */
bool drive_meet_may(const struct shoal_group *group, const struct request_ask *ask,
                    const struct request_ask *blocks, uint32_t block_count);
/* Begin the request, which may meet, at the group's place; then it may be complete, wait for the
 * others, or for those before it, or be with the daemon. waiting: its caller waits at once; else
 * the background thread looks after it. ERR_INVALID, ERR_MEMORY. */
int drive_meet_begin(struct shoal_group *group, const struct request_ask *ask,
                     const struct request_ask *blocks, uint32_t block_count,
                     struct shoal_request *request, bool waiting, struct error *error);
/* Tell the others that the group's next collective goes to the daemon. */
void drive_meet_decline(struct shoal_group *group);
/* Look after the requests that wait at the group's place, if any. True: none does any more. */
bool drive_meet_settle(struct shoal_group *group);
/* The same in a call that is to call nobody back; those that have a callback are let alone. */
bool drive_meet_settle_quietly(struct shoal_group *group);
/* Those with a callback too, and they go to the daemon unless all ranks have come; it calls nobody
 * back either. */
bool drive_meet_settle_now(struct shoal_group *group);
/* Have the background thread wait for the requests at the group's place, for one of them has a
 * callback. False: it has others to wait for. */
bool drive_meet_watch(struct shoal_group *group);
/* Sleep until something may have become of it, MEET_MS at most; the lock is let go of meanwhile. */
void drive_meet_pause(struct shoal_group *group, uint64_t deadline_ns);
/* The background thread: look after all groups' requests that wait. Returns when to look again; 0:
 * when there is one again, of which drive_meet_begin tells. */
uint64_t drive_meet_keep(struct shoal_job *job);
/* The background thread: sleep until something may have become of those that it watches, or it is
 * called. False: there are none. */
bool drive_meet_stand_by(struct shoal_job *job);

#endif
