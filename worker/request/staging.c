#include "worker/request/staging.h"

#include "common/base/error.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

int staging_init(struct staging *staging, uint64_t first_offset, uint32_t slot_bytes,
                 uint32_t slot_count)
{
    struct staging made = {
        .slot_count = slot_count, .slot_bytes = slot_bytes, .first_offset = first_offset};
    made.slots = calloc(slot_count ? slot_count : 1, sizeof(*made.slots));
    if (!made.slots)
        return ERR_MEMORY;
    for (uint32_t i = 0; i < slot_count; i++) {
        struct staging_slot *slot = &made.slots[i];
        slot->offset = first_offset + (uint64_t)i * slot_bytes;
        slot->bytes = slot_bytes;
        slot->shared = true;
        DL_APPEND(made.free_slots, slot);
    }
    *staging = made;
    return 0;
}

void staging_clear(struct staging *staging)
{
    free(staging->slots);
    free(staging->pool_slots);
    arena_heap_clear(&staging->pool);
    free(staging->own_slots);
    free(staging->orphans);
    *staging = (struct staging){0};
}

/* Room for orphans as well, so that removing a slot cannot fail. */
static int make_room(struct staging *staging)
{
    if (staging->own_count + staging->orphan_count < staging->capacity)
        return 0;
    uint32_t capacity = staging->capacity ? 2 * staging->capacity : 8;
    struct staging_orphan *orphans = realloc(staging->orphans, capacity * sizeof(*orphans));
    if (!orphans)
        return ERR_MEMORY;
    staging->orphans = orphans;
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers */
    struct staging_slot **slots = realloc(staging->own_slots, capacity * sizeof(*slots));
    if (!slots)
        return ERR_MEMORY;
    staging->own_slots = slots;
    staging->capacity = capacity;
    return 0;
}

int staging_add_own(struct staging *staging, struct staging_slot *own, uint64_t offset,
                    uint32_t bytes)
{
    int code = make_room(staging);
    if (code < 0)
        return code;
    *own = (struct staging_slot){.offset = offset, .bytes = bytes};
    staging->own_slots[staging->own_count++] = own;
    return 0;
}

void staging_remove_own(struct staging *staging, struct staging_slot *own)
{
    for (uint32_t i = 0; i < staging->own_count; i++) {
        if (staging->own_slots[i] == own) {
            staging->own_slots[i] = staging->own_slots[--staging->own_count];
            break;
        }
    }
    if (own->state == STAGING_GIVEN)
        staging->orphans[staging->orphan_count++] = (struct staging_orphan){
            .offset = own->offset, .number = own->number, .chunk = own->chunk};
}

bool staging_orphan_back(struct staging *staging, uint64_t offset, uint64_t number, uint32_t chunk)
{
    for (uint32_t i = 0; i < staging->orphan_count; i++) {
        struct staging_orphan *orphan = &staging->orphans[i];
        if (orphan->offset == offset && orphan->number == number && orphan->chunk == chunk &&
            !orphan->back) {
            orphan->back = true;
            return true;
        }
    }
    return false;
}

bool staging_next_free(struct staging *staging, uint64_t *offset)
{
    for (uint32_t i = 0; i < staging->orphan_count; i++) {
        if (staging->orphans[i].back) {
            *offset = staging->orphans[i].offset;
            staging->orphans[i] = staging->orphans[--staging->orphan_count];
            return true;
        }
    }
    return false;
}

static bool may_hold(const struct staging *staging, uint32_t bytes, uint64_t most_bytes)
{
    uint64_t held = staging->held_bytes;
    return bytes <= staging->slot_bytes &&
           (held == 0 || (held <= most_bytes && bytes <= most_bytes - held));
}

/* Return whether one more chunk may be out. */
static bool has_room(const struct staging *staging)
{
    return staging->chunks_max == 0 || staging->held_chunks < staging->chunks_max;
}

/* Half of an odd number is the larger one: of a single slot all. */
static bool may_go_ahead(const struct staging *staging)
{
    return staging->ahead_count < staging->slot_count - staging->slot_count / 2;
}

static void hold(struct staging_slot *slot, uint32_t chunks)
{
    slot->state = STAGING_TAKEN;
    slot->chunks = chunks;
    slot->chunks_back = 0;
    memset(slot->back, 0, sizeof(slot->back));
}

struct staging_slot *staging_take_own(struct staging_slot *own)
{
    if (own->state != STAGING_FREE)
        return NULL;
    hold(own, 1);
    return own;
}

struct staging_slot *staging_take(struct staging *staging, struct staging_slot *own, uint32_t bytes,
                                  uint64_t most_bytes, enum staging_turn turn)
{
    struct staging_slot *slot = NULL;
    bool ahead = turn == STAGING_AHEAD;
    if (staging->free_slots && may_hold(staging, bytes, most_bytes) && has_room(staging) &&
        (!ahead || may_go_ahead(staging))) {
        /* The one given back last: it is still in the cache. */
        slot = staging->free_slots;
        DL_DELETE(staging->free_slots, slot);
        slot->held_bytes = most_bytes < UINT64_MAX ? bytes : 0;
        staging->held_bytes += slot->held_bytes;
        slot->ahead = ahead;
        staging->ahead_count += ahead;
        staging->held_chunks++;
        hold(slot, 1);
    } else if (turn == STAGING_OLDEST) {
        slot = staging_take_own(own);
    }
    assert(!slot || bytes <= slot->bytes);
    return slot;
}

/* --- the pool ------------------------------------------------------------------------------ */

int staging_add_pool(struct staging *staging, uint64_t offset, uint64_t bytes, uint32_t chunks_max)
{
    struct staging_slot *slots = calloc(STAGING_POOL_SLOTS, sizeof(*slots));
    if (!slots || arena_heap_init(&staging->pool, offset, bytes) < 0) {
        free(slots);
        return ERR_MEMORY;
    }
    for (uint32_t i = 0; i < STAGING_POOL_SLOTS; i++)
        slots[i].shared = slots[i].pooled = true;
    staging->pool_slots = slots;
    staging->pool_count = STAGING_POOL_SLOTS;
    staging->pool_bytes = bytes;
    staging->chunks_max = chunks_max;
    return 0;
}

uint32_t staging_pool_room(const struct staging *staging)
{
    uint32_t all = staging->chunks_max, others = staging->slot_count;
    uint32_t most = others < all / 2 ? all - others : all / 2;
    uint32_t mine = most > staging->pool_chunks ? most - staging->pool_chunks : 0;
    uint32_t left = all > staging->held_chunks ? all - staging->held_chunks : 0;
    return mine < left ? mine : left;
}

struct staging_slot *staging_take_pool(struct staging *staging, uint64_t bytes, uint32_t chunks,
                                       enum staging_turn turn)
{
    struct staging_slot *slot = NULL;
    uint64_t offset, half = staging->pool_bytes / 2, ahead = staging->pool_ahead_bytes;
    assert(chunks > 0 && chunks <= STAGING_CHUNKS_MAX);
    if (chunks > staging_pool_room(staging))
        return NULL;
    if (turn == STAGING_AHEAD && ahead > 0 && (ahead > half || bytes > half - ahead))
        return NULL;
    for (uint32_t i = 0; i < staging->pool_count && !slot; i++) {
        if (staging->pool_slots[i].state == STAGING_FREE)
            slot = &staging->pool_slots[i];
    }
    if (!slot || arena_heap_allocate(&staging->pool, bytes, &offset) < 0)
        return NULL;
    slot->offset = offset;
    slot->bytes = (uint32_t)bytes;
    slot->ahead = turn == STAGING_AHEAD;
    staging->pool_ahead_bytes += slot->ahead ? bytes : 0;
    staging->pool_chunks += chunks;
    staging->held_chunks += chunks;
    hold(slot, chunks);
    return slot;
}

bool staging_pool_holds(const struct staging *staging, const struct request *request)
{
    for (uint32_t i = 0; i < staging->pool_count; i++) {
        const struct staging_slot *slot = &staging->pool_slots[i];
        if (slot->state != STAGING_FREE && slot->request == request)
            return true;
    }
    return false;
}

/* Return a slot of any kind by its number: the shared ones, the pool's, the groups' own. NULL:
 * there are not so many. */
static struct staging_slot *nth_slot(const struct staging *staging, uint32_t nth)
{
    if (nth < staging->slot_count)
        return &staging->slots[nth];
    nth -= staging->slot_count;
    if (nth < staging->pool_count)
        return &staging->pool_slots[nth];
    nth -= staging->pool_count;
    return nth < staging->own_count ? staging->own_slots[nth] : NULL;
}

static bool is_filled_beside(const struct staging_slot *other, const struct staging_slot *slot)
{
    return other != slot && other->state == STAGING_TAKEN && other->request == slot->request;
}

bool staging_fills_others(const struct staging *staging, const struct staging_slot *slot)
{
    const struct staging_slot *other;
    for (uint32_t i = 0; (other = nth_slot(staging, i)); i++) {
        if (is_filled_beside(other, slot))
            return true;
    }
    return false;
}

static void give_back_to_pool(struct staging *staging, struct staging_slot *slot)
{
    arena_heap_free(&staging->pool, slot->offset);
    staging->pool_ahead_bytes -= slot->ahead ? slot->bytes : 0;
    staging->pool_chunks -= slot->chunks;
}

/* --- back ---------------------------------------------------------------------------------- */

bool staging_chunk_back(struct staging_slot *slot, uint32_t chunk)
{
    uint32_t index = chunk - slot->chunk;
    if (chunk < slot->chunk || index >= slot->chunks)
        return false;
    uint64_t bit = 1ull << index % 64;
    if (slot->back[index / 64] & bit)
        return false;
    slot->back[index / 64] |= bit;
    slot->chunks_back++;
    return true;
}

void staging_give_back(struct staging *staging, struct staging_slot *slot)
{
    assert(slot->state != STAGING_FREE);
    slot->state = STAGING_FREE;
    slot->request = NULL;
    if (!slot->shared)
        return;
    staging->held_chunks -= slot->chunks;
    if (slot->pooled) {
        give_back_to_pool(staging, slot);
        return;
    }
    staging->held_bytes -= slot->held_bytes;
    staging->ahead_count -= slot->ahead;
    DL_PREPEND(staging->free_slots, slot);
}

static bool lies_across(const struct staging_slot *slot, uint64_t end)
{
    return slot->offset < end && end - slot->offset < slot->bytes;
}

uint64_t staging_whole_end(const struct staging *staging, uint64_t end)
{
    for (uint32_t i = 0; i < staging->slot_count; i++)
        if (lies_across(&staging->slots[i], end))
            return staging->slots[i].offset;
    for (uint32_t i = 0; i < staging->own_count; i++)
        if (lies_across(staging->own_slots[i], end))
            return staging->own_slots[i]->offset;
    return end;
}

static struct staging_slot *find_in_pool(struct staging *staging, uint64_t offset)
{
    for (uint32_t i = 0; i < staging->pool_count; i++) {
        struct staging_slot *slot = &staging->pool_slots[i];
        if (slot->state != STAGING_FREE && offset >= slot->offset &&
            offset - slot->offset < slot->bytes)
            return slot;
    }
    return NULL;
}

struct staging_slot *staging_find(struct staging *staging, uint64_t offset)
{
    if (staging->slot_count > 0 && offset >= staging->first_offset) {
        uint64_t i = (offset - staging->first_offset) / staging->slot_bytes;
        if (i < staging->slot_count)
            return staging->slots[i].offset == offset ? &staging->slots[i] : NULL;
    }
    for (uint32_t i = 0; i < staging->own_count; i++)
        if (staging->own_slots[i]->offset == offset)
            return staging->own_slots[i];
    return find_in_pool(staging, offset);
}

static void abandon_slot(struct staging *staging, struct staging_slot *slot,
                         const struct request *request)
{
    if (slot->state == STAGING_FREE || slot->request != request || slot->copying)
        return;
    if (slot->state == STAGING_GIVEN)
        slot->request = NULL;
    else
        staging_give_back(staging, slot);
}

void staging_abandon(struct staging *staging, const struct request *request)
{
    struct staging_slot *slot;
    for (uint32_t i = 0; (slot = nth_slot(staging, i)); i++)
        abandon_slot(staging, slot, request);
}

void staging_restart(struct staging *staging)
{
    struct staging_slot *slot;
    for (uint32_t i = 0; (slot = nth_slot(staging, i)); i++) {
        if (slot->state != STAGING_FREE)
            staging_give_back(staging, slot);
    }
    for (uint32_t i = 0; i < staging->orphan_count; i++)
        staging->orphans[i].back = true;
}
