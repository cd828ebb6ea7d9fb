/* Progress: moves the chunks of all requests of a job through the arena.
 *
 *   copy in --ARENA_CHUNK--> daemon --ARENA_CHUNK_DONE--> copy out
 *
 * No thread, lock, descriptor or clock of its own: the caller holds the job's lock around every
 * call, makes the large copies itself with the lock released, and rings the daemon's doorbell when
 * told. Any thread may submit; one at a time, the driver (worker/drive/drive.h), calls
 * progress_work, progress_copied, and what fails requests. Hence nothing fails while it is copied
 * by the caller. Copies of a device go on meanwhile: a request that fails is complete when those
 * that are under way have ended, and its slots are not used again before.
 *
 * A request on a device takes no slot before its stream has come to it (progress_ready): a slot
 * that waited for a stream could be what the stream waits for. A send is submitted when its data
 * has been copied into the arena; a receive at once, and its stream has come to it before its data
 * is copied out.
 *
 * The submission ring cannot overflow: it has more entries where the arena has room for the slots
 * of more groups. PROGRESS_SUBMITTED_MAX collectives and, beyond it, the oldest of each group,
 * PROGRESS_TRANSFERS_MAX sends and as many receives, PROGRESS_ANY_MAX receives that look for a
 * sender, and one chunk for every staging slot is all that can be out, and together that is no more
 * than the ring has entries. The completion ring has twice as many. Collectives, sends and receives
 * are counted apart, since any of them may wait at another rank for one of the others.
 *
 * The daemon keeps LAYOUT_MAX_CHUNKS chunks of a group at most, of all ranks of the node together:
 * a collective that would exceed a rank's share waits until others are complete, or it is the
 * group's oldest.
 *
 * In a job that goes on by itself (keeps) a collective's result is told when it is stable: all
 * ranks of the group have theirs. Until then what the rank has sent is kept, and the request too.
 * When the job has failed all of them are taken back (progress_take_back), with the arena the
 * worker's again; they are begun anew in a group that is open again (progress_go_on), in their old
 * order, but for those of which all ranks have the result.
 *
 * Calls worker/request and common/.
 */
#ifndef WORKER_PROGRESS_PROGRESS_H
#define WORKER_PROGRESS_PROGRESS_H

#include "common/base/error.h"
#include "common/format/arena.h"
#include "worker/request/request.h"
#include "worker/request/staging.h"

/* The submission ring has so many entries: the arena decides for how many groups there is room. */
#define PROGRESS_RING_ENTRIES_LEAST 2048u
#define PROGRESS_RING_ENTRIES_MOST 32768u
#define PROGRESS_SUBMITTED_MAX 512u
#define PROGRESS_TRANSFERS_MAX 256u /* sends, and as many receives; further ones wait */
#define PROGRESS_ANY_MAX 64u /* receives from any rank that look for one; further ones wait */
#define PROGRESS_SHARED_SLOTS_MAX 512u
/* A trace has at least so many entries of room, and leaves out what does not fit. */
#define PROGRESS_TRACED_LEAST 47u
/* The most that can be out, but for groups: of each its oldest request, and the chunk in its slot.
 */
#define PROGRESS_OUT_MAX                                                                           \
    (1 + PROGRESS_SUBMITTED_MAX + 2 * PROGRESS_TRANSFERS_MAX + PROGRESS_ANY_MAX +                  \
     PROGRESS_SHARED_SLOTS_MAX)
/* For how many groups a ring has room. */
#define PROGRESS_GROUPS_OF(entries) (((entries)-PROGRESS_OUT_MAX - PROGRESS_TRACED_LEAST) / 2)
#define PROGRESS_GROUPS_MOST PROGRESS_GROUPS_OF(PROGRESS_RING_ENTRIES_MOST)
_Static_assert(PROGRESS_OUT_MAX + PROGRESS_TRACED_LEAST < PROGRESS_RING_ENTRIES_LEAST,
               "the submission ring has room for all that can be out");
/* A group's slot has a chunk: as many as would fill the arena with chunks of this size are to have
 * room in the ring. */
#define PROGRESS_GROUP_BYTES (256u << 10)

/* A request at most this large is copied by the calling thread when nothing is ahead of it. */
#define PROGRESS_SMALL_BYTES 65536u
/* All ranks of a node have no more staged where the job is on one node, and nothing waits for a
 * network: it stays in the cache that the cores share, from the copy in to the copy out. */
#define PROGRESS_NODE_STAGED_BYTES (16u << 20)
/* Bytes of the pieces in which data of a receive is copied out of the arena, and data of a send out
 * of a device, between other work. */
#define PROGRESS_COPY_BYTES (1u << 20)
#define PROGRESS_COPIES_MAX 4u /* of one send or receive under way at once on a device */
/* Progress moves a request on a device in so many parts, where each is worth a copy and the pool
 * has room for it. One part is copied out of the device while others are with the daemon or copied
 * back. A collective of n equal parts takes at least 1 + 1/n of the time of its copies one way,
 * and 5 n calls of the device's driver and a few: 5 parts cost at most 40. */
#define PROGRESS_PARTS 5u

/* A group as far as progress needs it. Owned by the caller; zeroed, then number and rule set, then
 * progress_group_add. */
struct progress_group {
    uint32_t number; /* the daemon's */
    struct layout_rule rule;
    uint64_t next_sequence;
    uint64_t met;              /* collectives that the ranks of the node did without the daemon */
    struct request *meeting;   /* those that they may do so, oldest first: the first one now */
    struct request *requests;  /* incomplete collectives, oldest first */
    struct request *transfers; /* incomplete sends and receives, oldest first */
    uint32_t request_count;
    uint64_t chunks; /* of the submitted collectives */
    struct staging_slot own;
    uint64_t first_failed; /* failed: the first collective that has, of all, met or not */
    bool failed;
    struct error failure; /* failed: what every further request fails with */
    /* Only in a job that goes on by itself: */
    struct request *kept; /* the program's collectives that have not been told, oldest first */
    uint64_t next_index;  /* of the program's collectives, over all generations */
    uint64_t stable;      /* those with a smaller sequence are */
    struct progress_group *prev, *next;
};

struct progress {
    struct arena *arena;
    struct request_memory memory;
    struct staging staging;
    uint64_t pinned_bytes; /* of the arena, from its beginning, for the job's device; 0: none. The
                            * caller's; no copy of a device lies across its end */
    uint64_t part_least_bytes; /* of a request on a device, worth a copy. The caller's */
    bool device_full; /* no more copies out of the device are to be begun now. The caller's */
    struct progress_group *groups;
    struct request **table; /* [ring_entries]: submitted, by progress_place */
    uint32_t ring_entries;  /* a power of two */
    uint64_t next_number, next_age;
    uint64_t chunks_max;       /* of a group's submitted requests; all, for one alone */
    uint64_t staged_max_bytes; /* in shared slots, of requests on the host */
    uint32_t submitted;        /* collectives and blocks in the table */
    uint32_t table_next;       /* index at which the search for a free entry of `table` begins */
    struct request *to_submit; /* in the order of the calls */
    struct request *to_stage;  /* submitted, with chunks to hand over: priority, then age */
    struct staging_slot *to_deliver; /* results to be copied out */
    struct request *to_transfer[2];  /* [0] sends, [1] receives: to be submitted, as called */
    uint32_t transfers[2];           /* [0] sends, [1] receives: submitted */
    struct request *to_any;          /* receives from any rank, to be submitted */
    struct request *matched;         /* receives from any rank for which there is a sender */
    uint32_t any;                    /* receives from any rank, submitted */
    struct request *to_copy; /* receives that are done, to be copied out of the arena; sends from a
                              * device, to be copied into it */
    struct request *completed;  /* for the caller to take: progress_next_completed */
    uint64_t (*clock_ns)(void); /* asked while the daemon takes a trace; NULL: none is told */
    uint32_t omitted;           /* copies that the trace is not told of, not yet said */
    bool doorbell;              /* something was pushed since progress_doorbell_due */
    bool keeps;                 /* the job goes on by itself; set by the caller at first */
    bool stopped;               /* its daemon has failed it: nothing goes into the ring */
    bool held;                  /* between two generations: nothing of the program's is begun */
    bool failed;                /* the job: nothing goes on */
    struct error failure;       /* failed: why */
};

/* Return how many of `bytes` from `offset` of the arena are pinned, or not, as the first one is:
 * GPUs' drivers refuse a copy of memory that is pinned in part. */
uint64_t progress_pinned_alike(const struct progress *progress, uint64_t offset, uint64_t bytes);

/* A copy for the caller to make. */
struct progress_copy {
    void *to;
    const void *from;
    uint64_t bytes;
    struct staging_slot *slot; /* NULL: of a send or receive, or a rank's own part on a device */
    struct request *request;   /* without a slot: whose copy it is */
    bool on_device;
    bool large_result; /* copy_result */
};

enum progress_result {
    PROGRESS_IDLE,  /* nothing to do until something comes */
    PROGRESS_MOVED, /* something was done; call again */
    PROGRESS_COPY,  /* make the copy, then progress_copied, then call again */
};

/* Return the place in the table of a request with this number. */
static inline uint32_t progress_place(const struct progress *progress, uint64_t number)
{
    return (uint32_t)number & (progress->ring_entries - 1);
}

/* The entries of the submission ring of an arena of so many bytes. */
uint32_t progress_ring_entries(uint64_t arena_bytes);
/* first_offset .. + slots * slot_bytes is arena memory for the shared slots. ERR_MEMORY. */
int progress_init(struct progress *progress, struct arena *arena, uint64_t first_offset,
                  uint32_t slot_bytes, uint32_t slots);
void progress_clear(struct progress *progress);

/* bytes of the arena, from offset on, are for the chunks of requests on a device: several lie side
 * by side there, and are moved by one copy. ERR_MEMORY. */
int progress_add_pool(struct progress *progress, uint64_t offset, uint64_t bytes);

/* How many ranks of this node may submit to the same groups, and on how many nodes their job is; 1,
 * and many, at first. */
void progress_share(struct progress *progress, uint32_t local_ranks, uint32_t nodes);

/* own_offset: arena memory of rule.chunk_bytes for the group's own slot. ERR_MEMORY: too many
 * groups, counting those that are gone while the daemon has their slot. */
int progress_group_add(struct progress *progress, struct progress_group *group, uint64_t own_offset,
                       struct error *error);
/* The group must have no incomplete request. Returns false when the daemon may still write to the
 * group's own slot: its memory can be used again when staging_next_free gives it. */
bool progress_group_remove(struct progress *progress, struct progress_group *group);

/* Give a checked ask, and the blocks of it that this rank takes part in, in the order of their
 * numbers, the group's next sequence number, and send them on their way as far as that goes without
 * waiting. Returns 0, or the failure of the group or job, or ERR_INVALID (too large), ERR_MEMORY.
 */
int progress_submit(struct progress *progress, struct progress_group *group,
                    const struct request_ask *ask, const struct request_ask *blocks,
                    uint32_t block_count, uint32_t rank, struct request *request,
                    struct error *error);

/* Begin a send or receive, of a checked ask whose buffer lies in the arena. data: where what was
 * received is copied to from there; of a send from a device, where its data is copied from into the
 * arena first; NULL: neither. On a device it waits for its stream in any case. Returns 0, the
 * failure of the group or job, ERR_INVALID (too large), ERR_MEMORY. */
int progress_transfer(struct progress *progress, struct progress_group *group,
                      const struct request_ask *ask, uint64_t sequence, uint32_t rank, void *data,
                      struct request *request, struct error *error);

/* Begin a receive from any rank, with the tag in `sequence`; the ask is as if it came from one of
 * them, and `data` is as in progress_transfer. numbers_offset: arena memory with one u32 for each
 * rank of the group, the number of sends received from it so far; the memory stays as it is while a
 * sender is looked for. Returns what progress_transfer does. */
int progress_any(struct progress *progress, struct progress_group *group,
                 const struct request_ask *ask, uint64_t sequence, uint32_t rank, void *data,
                 uint64_t numbers_offset, struct request *request, struct error *error);
/* Return a receive from any rank for which a sender was found: any_source has sent more than the
 * numbers say. NULL: there is none. The receive is the oldest of the group's with one tag,
 * whichever of them it was that looked. The caller calls progress_any_found or progress_any_again
 * for it at once. */
struct request *progress_next_matched(struct progress *progress);
/* The request goes on as a receive from the rank that was found, with this number. */
void progress_any_found(struct progress *progress, struct request *request, uint32_t block,
                        const struct route *route, uint64_t sequence);
/* The request looks for a sender again, with numbers that have changed. */
void progress_any_again(struct progress *progress, struct request *request);

/* --- collectives that the ranks of the node may do alone (worker/meeting) */

/* The new request, which takes the list of blocks, waits for them, behind those that do; nothing
 * else of the group is under way. progress_met, with what they say, or progress_submit_unmet ends
 * that for the first; a failure of the group does for all. ERR_INVALID: the list is still the
 * caller's. */
int progress_meet(struct progress *progress, struct progress_group *group,
                  const struct request_ask *ask, struct request_ask *blocks, uint32_t block_count,
                  uint32_t rank, struct request *request, struct error *error);
/* The first is done: complete. */
void progress_met(struct progress *progress, struct progress_group *group, uint64_t now_ns);
/* The first is the daemon's, as all that follow: as progress_submit, and what that refuses is how
 * the request ends. */
void progress_submit_unmet(struct progress *progress, struct progress_group *group, uint32_t rank,
                           uint64_t now_ns);

/* Tell the daemon that the collective of group 0 with this sequence has this number since the job
 * began; before any with it, or a later one, is submitted. */
void progress_number(struct progress *progress, uint64_t sequence, uint64_t number);

/* Whether the driver has something to do that did not come from the daemon. */
bool progress_has_work(const struct progress *progress);

/* The driver: take what has come back, submit what may be, and say what is to be done next. *copy
 * is set with PROGRESS_COPY. */
enum progress_result progress_work(struct progress *progress, uint64_t now_ns,
                                   struct progress_copy *copy);
/* The copy that progress_work or progress_ready asked for has been made. */
void progress_copied(struct progress *progress, const struct progress_copy *copy, uint64_t now_ns);
/* The copy is on its way on a device. progress_copied comes later; for the copies of one request,
 * in the order of these calls. */
void progress_copying(struct progress *progress, const struct progress_copy *copy);
/* How many bytes one part has of so many that move to or from a device. */
uint64_t progress_part_bytes(const struct progress *progress, uint64_t bytes);
/* Return how many pieces the copy has, each of which lies together on both sides; and the nth
 * piece, which may have no bytes. */
uint32_t progress_copy_pieces(const struct progress_copy *copy);
struct progress_copy progress_nth_piece(const struct progress *progress,
                                        const struct progress_copy *copy, uint32_t index);
/* Whether something waits for the end of this copy on a device: its request goes on, or ends, when
 * it has ended. Others only hold memory of the pool. */
bool progress_copy_awaited(const struct progress_copy *copy);
/* Return how many bytes wait for slots to be copied out of the device. */
uint64_t progress_waiting_bytes(const struct progress *progress);
/* Return whether these are more than the pool has room for now. */
bool progress_short_of_memory(const struct progress *progress);
/* The stream of a request that is on a device has come to it. True: *copy is its own part, which is
 * to be copied (progress_copying) now. */
bool progress_ready(struct progress *progress, struct request *request, struct progress_copy *copy);

/* True: ring the submission doorbell now. To be asked after every call that may push something. */
bool progress_doorbell_due(struct progress *progress);

/* The driver: complete everything with this error, and refuse what comes later. The first failure
 * stays. */
void progress_fail(struct progress *progress, const struct error *error, uint64_t now_ns);
/* The driver: complete everything of one group with this error, as progress_fail does for all. */
void progress_fail_group(struct progress *progress, struct progress_group *group,
                         const struct error *error, uint64_t now_ns);

/* --- a job that goes on by itself */

/* The driver: the job has failed, but its requests have not. Nothing more is handed over; what
 * comes back is taken. False: some of them cannot go on, and nothing was done. */
bool progress_stop(struct progress *progress);
/* The driver: the daemon has let go of the arena, and all that had come back is taken. The requests
 * wait, with those that come, for progress_go_on; those of the library fail. */
void progress_take_back(struct progress *progress);
/* The rings are empty, and the next daemon's. */
void progress_open_again(struct progress *progress);
/* How many of the program's collectives of the group have a result here without one before them
 * that has none, and how many have been told. */
void progress_position(const struct progress_group *group, uint64_t *done, uint64_t *told);
/* The first `count` of the program's collectives are stable, and have results here. */
void progress_tell_results(struct progress *progress, struct progress_group *group, uint64_t count,
                           uint64_t now_ns);
/* All ranks of the group have the results of the first `base` of the program's collectives: these
 * are told. The others are begun anew; what they send is in its place again. */
void progress_go_on(struct progress *progress, struct progress_group *group, uint64_t base,
                    uint32_t rank, uint64_t now_ns);
/* All groups have gone on. */
void progress_release(struct progress *progress);

/* How many collectives of the group have been complete, without a failed one before them. */
uint64_t progress_kept(const struct progress *progress, const struct progress_group *group);
/* When the daemon has let go of the arena and its rings are empty: begin anew,
 * with the groups that there are. No request is incomplete. */
void progress_restart(struct progress *progress);

/* Take the next completed request, in order of completion; NULL when there is none. */
struct request *progress_next_completed(struct progress *progress);

#endif
