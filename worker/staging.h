/* Staging slots: places in the arena, of a chunk each, through which data travels that does not
 * lie in the arena itself.
 *
 * Every open group owns one slot that only its oldest incomplete request may use; the others are
 * shared. So whatever the other requests hold, the oldest request of every group always gets its
 * next chunk across, on all ranks: ranks that start collectives of several groups in different
 * order, or with different priorities, cannot block each other for want of slots.
 */
#ifndef WORKER_STAGING_H
#define WORKER_STAGING_H

#include <stdbool.h>
#include <stdint.h>

struct request;

enum staging_state {
    STAGING_FREE,
    STAGING_TAKEN, /* being copied into */
    STAGING_GIVEN, /* the daemon has it */
    STAGING_BACK,  /* the result is in it */
};

struct staging_slot {
    uint64_t offset; /* in the arena */
    uint32_t bytes;
    bool shared;
    enum staging_state state;
    bool copying; /* by a device: nobody else may have it before that has ended */
    struct request
        *request;    /* NULL: free, or abandoned: the request failed with the daemon at it */
    uint64_t number; /* of the request, as in the rings */
    uint32_t chunk;
    struct staging_slot *prev, *next; /* the free shared ones; groups' own ones; results waiting */
};

struct staging {
    struct staging_slot *slots; /* shared, side by side in the arena */
    uint32_t slot_count, slot_bytes;
    uint64_t first_offset;
    struct staging_slot *free_slots; /* shared */
    struct staging_slot **own_slots; /* of groups */
    uint32_t own_count, own_capacity;
};

/* slot_count may be 0: groups then have their own slots only. Returns 0 or ERR_MEMORY. */
int staging_init(struct staging *staging, uint64_t first_offset, uint32_t slot_bytes,
                 uint32_t slot_count);
void staging_clear(struct staging *staging);

/* A group's own slot; it belongs to the caller and must stay until removed. */
int staging_add_own(struct staging *staging, struct staging_slot *own, uint64_t offset,
                    uint32_t bytes);
void staging_remove_own(struct staging *staging, struct staging_slot *own);

/* A slot for a chunk of at most `bytes`: a shared one, else `own` when `oldest` (the request is its
 * group's oldest incomplete one). NULL when there is none now. The slot is TAKEN. */
struct staging_slot *staging_take(struct staging *staging, struct staging_slot *own, uint32_t bytes,
                                  bool oldest);
void staging_give_back(struct staging *staging, struct staging_slot *slot);

/* The slot at this offset of the arena, or NULL. */
struct staging_slot *staging_find(struct staging *staging, uint64_t offset);

/* The request has failed: its slots that the daemon still has are abandoned (they become free if it
 * reports them after all), those that a device copies stay, the others become free. Results waiting
 * must have been unlinked. */
void staging_abandon(struct staging *staging, const struct request *request);

#endif
