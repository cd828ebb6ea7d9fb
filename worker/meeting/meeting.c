#include "worker/meeting/meeting.h"

#include <assert.h>
#include <string.h>

#include "worker/meeting/meeting_private.h"

/* A round in one word: its number, and how many have arrived. */
#define ARRIVED_BITS 16u
#define ARRIVED_MASK ((UINT64_C(1) << ARRIVED_BITS) - 1)
#define ARRIVED_VOID ARRIVED_MASK

/* More than this the ranks reduce together, in slices of so much. */
#define SLICE_BYTES 32768u
/* What more than two ranks bring to an all_reduce at once is no more: pieces, which stay in a
 * core's cache from one end to the other, take less time. */
#define SUMMED_BYTES (UINT64_C(2) << 20)

_Static_assert(MEETING_RANKS_MAX < ARRIVED_VOID, "all can arrive");

bool meeting_fits(const struct meeting_ask *ask, uint32_t size)
{
    return ask->kind < COLLECTIVE_KIND_COUNT && ask->kind != COLLECTIVE_SEND && size > 1 &&
           size <= MEETING_RANKS_MAX;
}

bool meeting_in_pieces(const struct meeting_ask *ask, uint32_t size)
{
    assert(size > 0);
    uint64_t parts = meeting_sends_parts(ask->kind) ? size : 1;
    uint64_t most_bytes = meeting_data_bytes(size);
    if (ask->kind == COLLECTIVE_ALL_REDUCE && size > 2 && most_bytes > SUMMED_BYTES / size)
        most_bytes = SUMMED_BYTES / size;
    return meeting_part_bytes(ask) > most_bytes / parts;
}

/* --- the last to come ---------------------------------------------------------------------- */

static bool asks_agree(const struct meeting *meeting)
{
    const struct meeting_ask *first = meeting_asked_by(meeting, 0);
    for (uint32_t i = 1; i < meeting->size; i++) {
        if (memcmp(meeting_asked_by(meeting, i), first, sizeof(*first)) != 0)
            return false;
    }
    return true;
}

/* What the rank has sent to the round. */
static uint8_t *data_of(const struct meeting *meeting, uint32_t rank)
{
    return meeting_half(meeting, rank, meeting->met % 2);
}

/* The same of all ranks, from element `first` on. */
static void data_of_all(const struct meeting *meeting, const struct meeting_ask *ask,
                        uint64_t first, const void *in[MEETING_RANKS_MAX])
{
    for (uint32_t i = 0; i < meeting->size; i++)
        in[i] = data_of(meeting, i) + first * dtype_bytes(ask->dtype);
}

/* Of two ranks each sums, and has the result where it wants it. More would sum too often. */
static bool last_reduces(const struct meeting *meeting, const struct meeting_ask *ask)
{
    return ask->kind == COLLECTIVE_ALL_REDUCE && meeting->size > 2;
}

/* `count` elements from `first` on, into the place. */
static void sum_range(const struct meeting *meeting, const struct meeting_ask *ask, uint64_t first,
                      uint64_t count)
{
    const void *in[MEETING_RANKS_MAX];
    void *out[1] = {meeting->place->result + first * dtype_bytes(ask->dtype)};
    data_of_all(meeting, ask, first, in);
    meeting_sum(meeting, ask, in, count, out, 1);
}

/* --- slices -------------------------------------------------------------------------------- */

static uint64_t slice_count(const struct meeting_ask *ask)
{
    return SLICE_BYTES / dtype_bytes(ask->dtype);
}

static uint64_t slices_of(const struct meeting_ask *ask)
{
    return (ask->count + slice_count(ask) - 1) / slice_count(ask);
}

/* A slice that nobody has begun, or `slices`. */
static uint64_t slice_begin(struct meeting_place *place, uint64_t round, uint64_t slices)
{
    uint64_t word = atomic_load(&place->begun);
    do {
        if (word >> ARRIVED_BITS != round || (word & ARRIVED_MASK) >= slices)
            return slices;
    } while (!atomic_compare_exchange_weak(&place->begun, &word, word + 1));
    return word & ARRIVED_MASK;
}

enum meeting_verdict meeting_help(struct meeting *meeting, uint64_t round,
                                  const struct meeting_ask *ask)
{
    struct meeting_place *place = meeting->place;
    uint64_t slices = slices_of(ask), at_once = slice_count(ask), slice;
    while ((slice = slice_begin(place, round, slices)) < slices) {
        uint64_t first = slice * at_once, left = ask->count - first;
        sum_range(meeting, ask, first, left < at_once ? left : at_once);
        if (atomic_fetch_add(&place->ended, 1) + 1 == slices) {
            meeting_meet(meeting, round, ask);
            return MEETING_MET;
        }
    }
    return MEETING_OPEN;
}

static enum meeting_verdict conclude(struct meeting *meeting, uint64_t round,
                                     const struct meeting_ask *ask)
{
    struct meeting_place *place = meeting->place;
    bool agree = asks_agree(meeting);
    if (agree && meeting_in_pieces(ask, meeting->size)) {
        meeting_pass(meeting, round);
        return MEETING_TURN;
    }
    if (agree && last_reduces(meeting, ask)) {
        if (slices_of(ask) > 1) {
            atomic_store(&place->ended, 0);
            atomic_store(&place->begun, round << ARRIVED_BITS);
            atomic_fetch_add(&place->gate, 1); /* whoever is awake, or is woken now, helps */
            return MEETING_SUMS;
        }
        sum_range(meeting, ask, 0, ask->count);
    }
    if (agree) {
        meeting_meet(meeting, round, ask);
        return MEETING_MET;
    }
    atomic_store(&place->round, round << ARRIVED_BITS | ARRIVED_VOID);
    atomic_fetch_add(&place->gate, 1);
    return MEETING_VOID;
}

/* --- coming and going ---------------------------------------------------------------------- */

/* Change the round's word from what it was, unless the round is over: void, or left for a later
 * one. `arrives`: one more is there; else the round becomes void. Returns how many are there, or
 * ARRIVED_VOID. `all`: so many cannot become void. */
static uint64_t advance(struct meeting_place *place, uint64_t round, bool arrives, uint64_t all)
{
    uint64_t word = atomic_load(&place->round), wanted;
    do {
        uint64_t number = word >> ARRIVED_BITS, arrived = word & ARRIVED_MASK;
        if (number > round || (number == round && arrived == ARRIVED_VOID))
            return ARRIVED_VOID;
        if (number < round)
            arrived = 0;
        if (!arrives && arrived >= all)
            return arrived;
        wanted = round << ARRIVED_BITS | (arrives ? arrived + 1 : ARRIVED_VOID);
    } while (!atomic_compare_exchange_weak(&place->round, &word, wanted));
    if (!arrives)
        atomic_fetch_add(&place->gate, 1);
    return wanted & ARRIVED_MASK;
}

enum meeting_verdict meeting_arrive(struct meeting *meeting, uint64_t round,
                                    const struct meeting_ask *ask, const void *const send[])
{
    bool in_pieces = meeting_in_pieces(ask, meeting->size);
    uint32_t parts = meeting_sends_parts(ask->kind) ? meeting->size : 1;
    uint64_t bytes = in_pieces ? 0 : meeting_part_bytes(ask);
    struct meeting_place *place = meeting->place;
    uint64_t word = atomic_load_explicit(&place->round, memory_order_relaxed);
    if (word == (round << ARRIVED_BITS | ARRIVED_VOID) || word >> ARRIVED_BITS > round)
        return MEETING_VOID;
    *meeting_asked_by(meeting, meeting->rank) = *ask;
    for (uint32_t i = 0; i < parts && bytes > 0; i++) {
        if (send[i])
            memcpy(data_of(meeting, meeting->rank) + i * bytes, send[i], bytes);
    }
    meeting->turn = 0;
    atomic_store_explicit(&place->turns_of[meeting->rank], 0, memory_order_relaxed);
    meeting->turns = in_pieces ? meeting_turns(ask, meeting->size) : 0;
    uint64_t arrived = advance(place, round, true, meeting->size);
    if (arrived == ARRIVED_VOID)
        return MEETING_VOID;
    return arrived < meeting->size ? MEETING_OPEN : conclude(meeting, round, ask);
}

/* Of the ask of the round that this rank has arrived at. */
static uint64_t place_slices(const struct meeting *meeting)
{
    return slices_of(meeting_asked_by(meeting, meeting->rank));
}

enum meeting_verdict meeting_look(const struct meeting *meeting, uint64_t round)
{
    struct meeting_place *place = meeting->place;
    /* In this order: the word changes to a later round only when `met` has been written. */
    uint64_t word = atomic_load(&place->round);
    if (atomic_load(&place->met) == round)
        return MEETING_MET;
    if (meeting_passing(meeting, round))
        return meeting_turn_due(meeting) ? MEETING_TURN : MEETING_OPEN;
    uint64_t begun = atomic_load(&place->begun);
    if (begun >> ARRIVED_BITS == round && (begun & ARRIVED_MASK) < place_slices(meeting))
        return MEETING_SUMS;
    return word >> ARRIVED_BITS == round && (word & ARRIVED_MASK) != ARRIVED_VOID ? MEETING_OPEN
                                                                                  : MEETING_VOID;
}

enum meeting_verdict meeting_void(struct meeting *meeting, uint64_t round)
{
    uint64_t arrived = advance(meeting->place, round, false, meeting->size);
    return arrived == ARRIVED_VOID ? meeting_look(meeting, round) : MEETING_OPEN;
}

/* recv[i], of a collective that does not reduce: from whom, and where it lies. */
static const uint8_t *sent_part(const struct meeting *meeting, const struct meeting_ask *ask,
                                uint32_t i)
{
    const uint8_t *data = data_of(meeting, meeting_receives_parts(ask->kind) ? i : ask->root);
    return meeting_sends_parts(ask->kind) ? data + meeting->rank * meeting_part_bytes(ask) : data;
}

void meeting_take(struct meeting *meeting, const struct meeting_ask *ask, void *const recv[])
{
    bool in_pieces = meeting_in_pieces(ask, meeting->size); /* it has them */
    uint32_t parts = in_pieces ? 0 : meeting_receives_parts(ask->kind) ? meeting->size : 1;
    uint64_t first = ask->kind == COLLECTIVE_REDUCE_SCATTER ? meeting->rank * ask->count : 0;
    uint64_t bytes = meeting_part_bytes(ask);
    const void *in[MEETING_RANKS_MAX];
    for (uint32_t i = 0; i < parts && bytes > 0; i++) {
        if (!recv[i])
            continue;
        if (last_reduces(meeting, ask)) {
            memcpy(recv[i], meeting->place->result, bytes);
        } else if (collective_has_op(ask->kind)) {
            data_of_all(meeting, ask, first, in);
            meeting_sum_to(meeting, ask, in, ask->count, recv[i]);
        } else {
            meeting_copy(recv[i], sent_part(meeting, ask, i), bytes, parts * bytes);
        }
    }
    meeting->met++;
}
