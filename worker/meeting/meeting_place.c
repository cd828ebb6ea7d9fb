/* The memory of a place: whose part is where; what has met is said, and counted. */
#include <string.h>

#include "common/format/route.h"
#include "common/memory/copy.h"
#include "worker/meeting/meeting_private.h"

/* All ranks' data of one of the two halves is no more, unless there are few. */
#define HALF_BYTES (UINT64_C(8) << 20)

_Static_assert(offsetof(struct meeting_place, counts) == PLACE_COUNTS_OFFSET,
               "the daemon finds the counts");

uint64_t meeting_data_bytes(uint32_t size)
{
    uint64_t most = HALF_BYTES / size / 64 * 64;
    return most < MEETING_DATA_BYTES ? most : MEETING_DATA_BYTES;
}

static uint64_t part_stride(uint32_t size)
{
    return MEETING_SLOTS * sizeof(struct meeting_slot) + 2 * meeting_data_bytes(size);
}

uint64_t meeting_bytes(uint32_t size)
{
    return sizeof(struct meeting_place) + size * part_stride(size);
}

bool meeting_init(struct meeting *meeting, void *memory, uint64_t bytes, uint32_t rank,
                  uint32_t size)
{
    struct meeting_place *place = memory;
    uint32_t none = 0;
    if (size > MEETING_RANKS_MAX || bytes < meeting_bytes(size))
        return false;
    if (!atomic_compare_exchange_strong(&place->version, &none, MEETING_VERSION) &&
        none != MEETING_VERSION)
        return false;
    atomic_fetch_add(&place->present, 1);
    *meeting = (struct meeting){
        .place = place, .rank = rank, .size = size, .kernels = reduce_select(reduce_isa_best())};
    return true;
}

bool meeting_complete(const struct meeting *meeting)
{
    return atomic_load_explicit(&meeting->place->present, memory_order_relaxed) == meeting->size;
}

void meeting_say_core(const struct meeting *meeting, uint32_t core)
{
    _Atomic uint32_t *said = &meeting->place->cores[meeting->rank];
    if (atomic_load_explicit(said, memory_order_relaxed) != core + 1)
        atomic_store_explicit(said, core + 1, memory_order_relaxed);
}

int meeting_core_of(const struct meeting *meeting, uint32_t rank)
{
    return (int)atomic_load_explicit(&meeting->place->cores[rank], memory_order_relaxed) - 1;
}

bool meeting_sends_parts(uint32_t kind)
{
    return kind == COLLECTIVE_REDUCE_SCATTER || kind == COLLECTIVE_SCATTER ||
           kind == COLLECTIVE_ALL_TO_ALL;
}

bool meeting_receives_parts(uint32_t kind)
{
    return kind == COLLECTIVE_ALL_GATHER || kind == COLLECTIVE_GATHER ||
           kind == COLLECTIVE_ALL_TO_ALL;
}

uint64_t meeting_part_bytes(const struct meeting_ask *ask)
{
    return ask->kind == COLLECTIVE_BARRIER ? 0 : ask->count * dtype_bytes(ask->dtype);
}

bool meeting_is_small(const struct meeting_ask *ask, uint32_t size)
{
    return meeting_part_bytes(ask) <=
           MEETING_SLOT_BYTES / (meeting_sends_parts(ask->kind) ? size : 1);
}

static struct meeting_slot *slots_of(const struct meeting *meeting, uint32_t rank)
{
    return (void *)(meeting->place->parts + rank * part_stride(meeting->size));
}

struct meeting_slot *meeting_slot_of(const struct meeting *meeting, uint32_t rank, uint64_t index)
{
    return &slots_of(meeting, rank)[index % MEETING_SLOTS];
}

uint8_t *meeting_half(const struct meeting *meeting, uint32_t rank, uint64_t half)
{
    return (uint8_t *)(slots_of(meeting, rank) + MEETING_SLOTS) +
           half * meeting_data_bytes(meeting->size);
}

_Atomic uint64_t *meeting_word_of(const struct meeting *meeting, uint64_t index)
{
    return &meeting->place->words[index % MEETING_SLOTS].word;
}

void meeting_copy(void *to, const void *from, uint64_t bytes, uint64_t result_bytes)
{
    if (result_bytes >= COPY_PAST_CACHE_BYTES)
        copy_result(to, from, bytes);
    else
        memcpy(to, from, bytes);
}

/* Count the bytes that the ranks would have submitted: each the whole, or its blocks. */
static uint64_t submitted_bytes(const struct meeting *meeting, const struct meeting_ask *ask)
{
    enum collective_kind kind = (enum collective_kind)ask->kind;
    uint64_t parts = route_in_blocks(kind) ? 0 : meeting->size;
    for (uint32_t i = 0; i < meeting->size; i++)
        parts += route_block_count(kind, ask->root, i, meeting->size);
    return parts * meeting_part_bytes(ask);
}

/* Count the round. Only the rank that ends it writes the counts, before it comes to another; with
 * two ranks rank 0 does: so the words order one write after another. Others may have gone on by
 * then. */
void meeting_count(const struct meeting *meeting, const struct meeting_ask *ask)
{
    struct place_counts *counts = &meeting->place->counts;
    uint64_t collectives = atomic_load_explicit(&counts->collectives, memory_order_relaxed);
    uint64_t bytes = atomic_load_explicit(&counts->bytes, memory_order_relaxed);
    atomic_store_explicit(&counts->collectives, collectives + 1, memory_order_relaxed);
    atomic_store_explicit(&counts->bytes, bytes + submitted_bytes(meeting, ask),
                          memory_order_relaxed);
}

void meeting_meet(const struct meeting *meeting, uint64_t index, uint64_t round,
                  const struct meeting_ask *ask)
{
    atomic_store(meeting_word_of(meeting, index), meeting_word(round, MEETING_STATE_MET));
    meeting_count(meeting, ask);
}

/* --- sleeping ------------------------------------------------------------------------------ */

_Atomic uint32_t *meeting_gate(const struct meeting *meeting)
{
    return &meeting->place->gate;
}

void meeting_sleep(const struct meeting *meeting, bool begins)
{
    if (begins)
        atomic_fetch_add(&meeting->place->sleepers, 1);
    else
        atomic_fetch_sub(&meeting->place->sleepers, 1);
}

bool meeting_ring(const struct meeting *meeting)
{
    /* A rank that says so after this load looks for the verdict afterwards, and finds it. */
    if (atomic_load(&meeting->place->sleepers) == 0)
        return false;
    atomic_fetch_add(&meeting->place->gate, 1);
    return true;
}
