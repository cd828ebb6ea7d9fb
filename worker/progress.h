/* Progress: moves the chunks of all requests of a job through the arena.
 *
 *   copy in --ARENA_CHUNK--> daemon --ARENA_CHUNK_DONE--> copy out
 *
 * No thread, lock, descriptor or clock of its own: the caller holds the job's lock around every
 * call, makes the large copies itself with the lock released, and rings the daemon's doorbell when
 * told. Any thread may submit; one at a time, the driver (worker/progress_thread.h), calls
 * progress_work, progress_copied, and what fails requests. Hence nothing fails while it is copied
 * by the caller. Copies of a device go on meanwhile: a request that fails is complete when those
 * that are under way have ended, and its slots are not used again before.
 *
 * A request on a device takes no slot before its stream has come to it (progress_ready): a slot
 * that waited for a stream could be what the stream waits for.
 *
 * The submission ring cannot overflow: PROGRESS_SUBMITTED_MAX collectives and, beyond it, the
 * oldest of each group, and one chunk for every staging slot is all that can be out, and together
 * that is no more than the ring has entries. The completion ring has twice as many.
 */
#ifndef WORKER_PROGRESS_H
#define WORKER_PROGRESS_H

#include "common/arena.h"
#include "common/error.h"
#include "worker/request.h"
#include "worker/staging.h"

#define PROGRESS_RING_ENTRIES 1024u
#define PROGRESS_SUBMITTED_MAX 512u
#define PROGRESS_SHARED_SLOTS_MAX 64u
#define PROGRESS_GROUPS_MAX 200u
_Static_assert(PROGRESS_SUBMITTED_MAX + PROGRESS_SHARED_SLOTS_MAX + 2 * PROGRESS_GROUPS_MAX <=
                   PROGRESS_RING_ENTRIES,
               "the submission ring has room for all that can be out");

/* A request at most this large is copied by the calling thread when nothing is ahead of it. */
#define PROGRESS_SMALL_BYTES 65536u

/* What progress needs of a group. Owned by the caller; zeroed, then number and rule set, then
 * progress_group_add. */
struct progress_group {
    uint32_t number; /* the daemon's */
    struct layout_rule rule;
    uint64_t next_sequence;
    struct request *requests; /* incomplete, oldest first */
    uint32_t request_count;
    struct staging_slot own;
    bool failed; /* then every further request fails with this: */
    struct error failure;
    struct progress_group *prev, *next;
};

struct progress {
    struct arena *arena;
    struct request_memory memory;
    struct staging staging;
    struct progress_group *groups;
    uint32_t group_count;
    struct request *table[PROGRESS_RING_ENTRIES]; /* submitted, by number % entries */
    uint64_t next_number, next_age;
    uint32_t submitted;              /* requests in the table */
    uint32_t place;                  /* where the search for a free place in the table begins */
    struct request *to_submit;       /* in the order of the calls */
    struct request *to_stage;        /* submitted, with chunks to hand over: priority, then age */
    struct staging_slot *to_deliver; /* results to be copied out */
    struct request *completed;       /* for the caller to take: progress_next_completed */
    bool doorbell;                   /* something was pushed since progress_doorbell_due */
    bool failed;                     /* the job: nothing goes on */
    struct error failure;
};

/* A copy for the caller to make. */
struct progress_copy {
    void *to;
    const void *from;
    uint64_t bytes;
    struct staging_slot *slot;
    bool on_device;
    struct request *request; /* slot NULL: whose own part it is, on a device */
};

enum progress_result {
    PROGRESS_IDLE,  /* nothing to do until something comes */
    PROGRESS_MOVED, /* something was done; call again */
    PROGRESS_COPY,  /* make the copy, then progress_copied, then call again */
};

/* first_offset .. + slots * slot_bytes is arena memory for the shared slots. ERR_MEMORY. */
int progress_init(struct progress *progress, struct arena *arena, uint64_t first_offset,
                  uint32_t slot_bytes, uint32_t slots);
void progress_clear(struct progress *progress);

/* own_offset: arena memory of rule.chunk_bytes for the group's own slot. ERR_MEMORY: too many
 * groups. */
int progress_group_add(struct progress *progress, struct progress_group *group, uint64_t own_offset,
                       struct error *error);
/* The group must have no incomplete request. Returns false when the daemon may still write to the
 * group's own slot, so that its memory cannot be used again. */
bool progress_group_remove(struct progress *progress, struct progress_group *group);

/* Give a checked ask, and the blocks of it that this rank takes part in, in the order of their
 * numbers, the group's next sequence number, and send them on their way as far as that goes without
 * waiting. Returns 0, or the failure of the group or job, or ERR_INVALID (too large), ERR_MEMORY.
 */
int progress_submit(struct progress *progress, struct progress_group *group,
                    const struct request_ask *ask, const struct request_ask *blocks,
                    uint32_t block_count, uint32_t rank, struct request *request,
                    struct error *error);

/* Whether the driver has something to do that did not come from the daemon. */
bool progress_has_work(const struct progress *progress);

enum progress_result progress_work(struct progress *progress, uint64_t now_ns,
                                   struct progress_copy *copy);
void progress_copied(struct progress *progress, const struct progress_copy *copy, uint64_t now_ns);
/* The copy is on its way on a device; progress_copied comes later, those of a request in order. */
void progress_copying(struct progress *progress, const struct progress_copy *copy);
/* The stream of a request that is on a device has come to it. True: *copy is its own part, which is
 * to be copied (progress_copying) now. */
bool progress_ready(struct progress *progress, struct request *request, struct progress_copy *copy);

/* To be asked after each of the calls above; true: ring the submission doorbell now. */
bool progress_doorbell_due(struct progress *progress);

/* Complete everything with this error, and refuse what comes later. The first failure stays. */
void progress_fail(struct progress *progress, const struct error *error, uint64_t now_ns);
void progress_fail_group(struct progress *progress, struct progress_group *group,
                         const struct error *error, uint64_t now_ns);

/* Take the next completed request, in order of completion; NULL when there is none. */
struct request *progress_next_completed(struct progress *progress);

#endif
