/* Staging slots: pieces of the arena through which data travels that does not lie in the arena
 * itself. A slot holds a chunk. Requests on a device have a part of the arena of their own, the
 * pool: a slot of it is as large as its request asks, and holds several chunks of it side by side,
 * so that one copy moves them all.
 *
 * Every open group owns one slot that only its oldest incomplete request may use; the others are
 * shared. Whatever the other requests hold, the oldest request of every group thus always gets its
 * next chunk across, on all ranks: ranks that start collectives of several groups in different
 * order, or with different priorities, cannot block each other for want of slots. Requests that go
 * before older ones have no more than half of the shared slots. Otherwise a rank that is the first
 * to begin one would fill all of them with chunks that another rank has not begun to give, and
 * requests that both have begun would get on by the group's own slot alone. The bytes of the pool
 * have the same limit. A slot of the pool comes back when the last of its chunks does. They were
 * all handed over with it, so none of them waits for a chunk that this rank has not begun.
 *
 * Pure; calls arena_heap.h.
 */
#ifndef WORKER_REQUEST_STAGING_H
#define WORKER_REQUEST_STAGING_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/request/arena_heap.h"

#define STAGING_POOL_SLOTS 64u
#define STAGING_CHUNKS_MAX 128u /* in one slot */

struct request;

enum staging_state {
    STAGING_FREE,
    STAGING_TAKEN, /* being copied into */
    STAGING_GIVEN, /* the daemon has it */
    STAGING_BACK,  /* the result is in it */
};

/* Turn of a request that asks for a slot. */
enum staging_turn {
    STAGING_IN_TURN,
    STAGING_OLDEST, /* of its group: it may have the group's own */
    STAGING_AHEAD,  /* an older one waits for slots, and this goes first by its priority */
};

struct staging_slot {
    uint64_t offset; /* in the arena */
    uint32_t bytes;
    bool shared;
    bool pooled; /* of the pool: offset and bytes are those of its last taking */
    enum staging_state state;
    bool ahead;   /* taken by one that went before an older one */
    bool copying; /* by a device: nobody else may have it before that has ended */
    struct request
        *request;    /* NULL: free, or abandoned: the request failed with the daemon at it */
    uint64_t number; /* of the request, as in the rings */
    uint32_t chunk;  /* the first that it holds */
    uint32_t chunks; /* how many, one after the other */
    uint32_t chunks_back;
    uint64_t back[STAGING_CHUNKS_MAX / 64]; /* which, as bits from `chunk` on */
    uint32_t held_bytes;                    /* what it counts for in the limit of staging_take */
    uint64_t begin_ns, end_ns;              /* of the last copy, in a trace; else 0 */
    struct staging_slot *prev, *next; /* the free shared ones; groups' own ones; results waiting */
};

/* The own slot of a group that is gone, while the daemon may still write to it. */
struct staging_orphan {
    uint64_t offset;
    uint64_t number; /* of the request whose chunk the daemon has */
    uint32_t chunk;  /* that chunk; the daemon reports both when it is done */
    bool back;       /* the daemon has reported it: the memory can be used again */
};

struct staging {
    struct staging_slot *slots; /* shared, side by side in the arena */
    uint32_t slot_count, slot_bytes;
    uint32_t ahead_count; /* of them, taken ahead */
    uint64_t held_bytes;  /* what shared slots were taken for under a limit */
    uint64_t first_offset;
    struct staging_slot *free_slots; /* shared */
    struct staging_slot **own_slots; /* of groups */
    struct staging_orphan *orphans;
    uint32_t own_count, orphan_count, capacity; /* there is room for both together in either */
    struct staging_slot *pool_slots;
    uint32_t pool_count; /* of these; 0: there is no pool */
    struct arena_heap pool;
    uint64_t pool_bytes, pool_ahead_bytes;
    uint32_t chunks_max;  /* in shared slots, with the pool; 0: there is no pool */
    uint32_t held_chunks; /* in shared slots */
    uint32_t pool_chunks; /* of them in the pool */
};

/* slot_count may be 0: groups then have their own slots only. Returns 0 or ERR_MEMORY. */
int staging_init(struct staging *staging, uint64_t first_offset, uint32_t slot_bytes,
                 uint32_t slot_count);
void staging_clear(struct staging *staging);

/* A group's own slot; it belongs to the caller and must stay until removed. One that is removed
 * while the daemon has it is remembered. */
int staging_add_own(struct staging *staging, struct staging_slot *own, uint64_t offset,
                    uint32_t bytes);
void staging_remove_own(struct staging *staging, struct staging_slot *own);

/* Take a slot for a chunk of at most `bytes`; its state is TAKEN then. NULL when there is none now.
 *
 * A shared slot is given while those taken under a limit hold no more than most_bytes with it, or
 * it would be the only one. UINT64_MAX: no limit, and the slot does not count in another's. If no
 * shared slot is given, the group's oldest incomplete request gets `own`. */
struct staging_slot *staging_take(struct staging *staging, struct staging_slot *own, uint32_t bytes,
                                  uint64_t most_bytes, enum staging_turn turn);
/* Take a group's own slot. NULL: it is not free. */
struct staging_slot *staging_take_own(struct staging_slot *own);

/* Make the pool of this part of the arena. chunks_max: as many may be in shared slots altogether;
 * the pool leaves room for as many as the others hold, or half. ERR_MEMORY. */
int staging_add_pool(struct staging *staging, uint64_t offset, uint64_t bytes, uint32_t chunks_max);
/* How many chunks a slot of the pool may be taken for now. */
uint32_t staging_pool_room(const struct staging *staging);
/* Take a slot of the pool for so many chunks. NULL: there is none now. */
struct staging_slot *staging_take_pool(struct staging *staging, uint64_t bytes, uint32_t chunks,
                                       enum staging_turn turn);
/* Whether the request has a slot of the pool. */
bool staging_pool_holds(const struct staging *staging, const struct request *request);

/* Whether other slots of its request than this one are being copied into. */
bool staging_fills_others(const struct staging *staging, const struct staging_slot *slot);

/* The chunk of a slot that is GIVEN is back. False: it cannot be. */
bool staging_chunk_back(struct staging_slot *slot, uint32_t chunk);

/* The slot is free: its chunks are done. */
void staging_give_back(struct staging *staging, struct staging_slot *slot);

/* The daemon reports a chunk of a removed slot: true if there is such a one. */
bool staging_orphan_back(struct staging *staging, uint64_t offset, uint64_t number, uint32_t chunk);
/* True: the memory at *offset, of a slot that was removed, can be used again; it is forgotten. */
bool staging_next_free(struct staging *staging, uint64_t *offset);

/* The daemon has let go of the arena: what it had is free. No request is incomplete. */
void staging_restart(struct staging *staging);

/* The greatest end of a part of the arena, up to this one, in which no slot lies half. */
uint64_t staging_whole_end(const struct staging *staging, uint64_t end);

/* The slot at this offset of the arena, or of the pool the one around it; or NULL. */
struct staging_slot *staging_find(struct staging *staging, uint64_t offset);

/* The request has failed: its slots that the daemon still has are abandoned (they become free if it
 * reports them after all), those that a device copies stay, the others become free. Results waiting
 * must have been unlinked. */
void staging_abandon(struct staging *staging, const struct request *request);

#endif
