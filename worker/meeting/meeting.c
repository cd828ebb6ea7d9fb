#include "worker/meeting/meeting.h"

#include <assert.h>
#include <string.h>

#include "common/memory/copy.h"
#include "worker/meeting/meeting_private.h"

/* More than this the ranks reduce together, in slices of so much. */
#define SLICE_BYTES 32768u

_Static_assert(MEETING_RANKS_MAX < MEETING_STATE_MET, "all can arrive");
_Static_assert(MEETING_SLOTS == 2 * MEETING_LINE, "what is overwritten has been read by all");

bool meeting_fits(const struct meeting_ask *ask, uint32_t size)
{
    return ask->kind < COLLECTIVE_KIND_COUNT && ask->kind != COLLECTIVE_SEND && size > 1 &&
           size <= MEETING_RANKS_MAX;
}

/* --- the last to come ---------------------------------------------------------------------- */

/* Return where the rank's data for the round lies in the place. */
static uint8_t *data_of(const struct meeting *meeting, const struct meeting_ask *ask, uint32_t rank,
                        uint64_t index)
{
    if (!meeting_is_small(ask, meeting->size))
        return meeting_half(meeting, rank, index % 2);
    struct meeting_slot *slot = meeting_slot_of(meeting, rank, index);
    uint64_t parts = meeting_sends_parts(ask->kind) ? meeting->size : 1;
    return parts * meeting_part_bytes(ask) <= sizeof(slot->few) ? slot->few : slot->data;
}

/* Find the data of all ranks, from element `first` on. */
static void data_of_all(const struct meeting *meeting, const struct meeting_ask *ask,
                        uint64_t index, uint64_t first, const void *in[MEETING_RANKS_MAX])
{
    for (uint32_t i = 0; i < meeting->size; i++)
        in[i] = data_of(meeting, ask, i, index) + first * dtype_bytes(ask->dtype);
}

/* Return where the result lies, if the last to come reduces. */
static uint8_t *result_of(const struct meeting *meeting, const struct meeting_ask *ask,
                          uint64_t index)
{
    return meeting_is_small(ask, meeting->size) ? meeting->place->results[index % MEETING_SLOTS]
                                                : meeting->place->result;
}

/* Whether the last to come reduces for all. Each of two ranks sums for itself, and has the result
 * where it wants it; more than two would sum too often. */
static bool last_reduces(const struct meeting *meeting, const struct meeting_ask *ask)
{
    return ask->kind == COLLECTIVE_ALL_REDUCE && meeting->size > 2;
}

/* Sum `count` elements from `first` on, into the place. */
static void sum_range(const struct meeting *meeting, const struct meeting_ask *ask, uint64_t index,
                      uint64_t first, uint64_t count)
{
    const void *in[MEETING_RANKS_MAX];
    void *out[1] = {result_of(meeting, ask, index) + first * dtype_bytes(ask->dtype)};
    data_of_all(meeting, ask, index, first, in);
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
        if (word >> MEETING_STATE_BITS != round || (word & MEETING_STATE_MASK) >= slices)
            return slices;
    } while (!atomic_compare_exchange_weak(&place->begun, &word, word + 1));
    return word & MEETING_STATE_MASK;
}

/* The others may wait for this rank until it says that it has ended (0). */
static void say_sums_in(const struct meeting *meeting, uint64_t round)
{
    atomic_store_explicit(&meeting->place->sums_in[meeting->rank].word, round,
                          memory_order_relaxed);
}

static enum meeting_verdict help(struct meeting *meeting, uint64_t round,
                                 const struct meeting_ask *ask)
{
    struct meeting_place *place = meeting->place;
    uint64_t slices = slices_of(ask), at_once = slice_count(ask), slice;
    for (uint64_t n = 0; n < slices; n++) { /* no more, whatever others write */
        slice = slice_begin(place, round, slices);
        if (slice >= slices)
            break;
        uint64_t first = slice * at_once, left = ask->count - first;
        sum_range(meeting, ask, meeting->met, first, left < at_once ? left : at_once);
        if (atomic_fetch_add(&place->ended, 1) + 1 == slices) {
            meeting_meet(meeting, meeting->met, round, ask);
            return MEETING_MET;
        }
    }
    return MEETING_OPEN;
}

enum meeting_verdict meeting_help(struct meeting *meeting, uint64_t round,
                                  const struct meeting_ask *ask)
{
    say_sums_in(meeting, round);
    enum meeting_verdict verdict = help(meeting, round, ask);
    say_sums_in(meeting, 0);
    return verdict;
}

static enum meeting_verdict conclude(struct meeting *meeting, uint64_t index, uint64_t round,
                                     const struct meeting_ask *ask)
{
    struct meeting_place *place = meeting->place;
    bool agree = meeting_asks_agree(meeting, index);
    if (agree && meeting_in_pieces(ask, meeting->size)) {
        meeting_pass(meeting, round);
        return MEETING_TURN;
    }
    if (agree && last_reduces(meeting, ask)) {
        if (slices_of(ask) > 1) {
            atomic_store(&place->ended, 0);
            atomic_store(&place->begun, round << MEETING_STATE_BITS);
            return MEETING_SUMS; /* whoever is awake, or is woken now, helps */
        }
        sum_range(meeting, ask, index, 0, ask->count);
    }
    if (agree) {
        meeting_meet(meeting, index, round, ask);
        return MEETING_MET;
    }
    atomic_store(meeting_word_of(meeting, index), meeting_word(round, MEETING_STATE_VOID));
    return MEETING_VOID;
}

/* --- coming and going ---------------------------------------------------------------------- */

/* Translate the state of a round that not all have come to, or that all have come to and that has
 * not ended. */
static enum meeting_verdict verdict_of(uint64_t state)
{
    switch (state) {
    case MEETING_STATE_VOID:
        return MEETING_VOID;
    case MEETING_STATE_MET:
        return MEETING_MET;
    default:
        return MEETING_OPEN;
    }
}

bool meeting_may_come(const struct meeting *meeting, const struct meeting_ask *ask)
{
    if (meeting->leaving)
        return false;
    return meeting->line == 0 || (!meeting->alone && meeting->line < MEETING_LINE &&
                                  meeting_is_small(ask, meeting->size));
}

/* Put what this rank sends where the others find it. Its own part of a reduce_scatter it sums from
 * where that lies, unless it is not aligned. */
static void bring(struct meeting *meeting, const struct meeting_ask *ask, uint64_t index,
                  const void *const send[])
{
    uint32_t parts = meeting_sends_parts(ask->kind) ? meeting->size : 1;
    uint64_t bytes = meeting_part_bytes(ask);
    const void *own = NULL;
    if (ask->kind == COLLECTIVE_REDUCE_SCATTER &&
        (uintptr_t)send[meeting->rank] % dtype_bytes(ask->dtype) == 0)
        own = send[meeting->rank];
    meeting->own[index % MEETING_LINE] = own;
    for (uint32_t i = 0; i < parts && bytes > 0; i++) {
        /* Not by its address: all parts may be the same memory. */
        if (send[i] && !(own && i == meeting->rank))
            copy_to_reader(data_of(meeting, ask, meeting->rank, index) + i * bytes, send[i], bytes);
    }
}

enum meeting_verdict meeting_arrive(struct meeting *meeting, uint64_t round,
                                    const struct meeting_ask *ask, const void *const send[])
{
    assert(meeting_may_come(meeting, ask));
    bool in_pieces = meeting_in_pieces(ask, meeting->size);
    uint64_t index = meeting->met + meeting->line;
    if (meeting_is_refused(meeting, index, round)) {
        meeting->leaving = true;
        return MEETING_VOID;
    }
    meeting->asks[index % MEETING_LINE] = *ask;
    meeting_slot_of(meeting, meeting->rank, index)->ask = *ask;
    if (in_pieces)
        meeting_turns_begin(meeting, ask);
    else
        bring(meeting, ask, index, send);
    if (!meeting_is_pair(meeting))
        say_sums_in(meeting, round); /* it may be the last to come */
    uint64_t state = meeting_come(meeting, index, round);
    enum meeting_verdict verdict = verdict_of(state);
    if (verdict != MEETING_VOID) {
        meeting->line++;
        meeting->alone = !meeting_is_small(ask, meeting->size);
    }
    if (state == meeting->size)
        verdict = conclude(meeting, index, round, ask);
    if (!meeting_is_pair(meeting))
        say_sums_in(meeting, 0);
    meeting->leaving = verdict == MEETING_VOID;
    return verdict;
}

/* All have come to the first round in this rank's line, and it has not ended. */
static enum meeting_verdict look_at_work(const struct meeting *meeting, uint64_t round)
{
    if (meeting_passing(meeting, round))
        return meeting_turn_due(meeting) ? MEETING_TURN : MEETING_OPEN;
    const struct meeting_ask *ask = meeting_own_ask(meeting, meeting->met);
    uint64_t begun = atomic_load(&meeting->place->begun);
    bool sums = last_reduces(meeting, ask) && begun >> MEETING_STATE_BITS == round &&
                (begun & MEETING_STATE_MASK) < slices_of(ask);
    return sums ? MEETING_SUMS : MEETING_OPEN;
}

enum meeting_verdict meeting_look(const struct meeting *meeting, uint64_t round)
{
    uint64_t state = meeting_state(meeting, meeting->met, round);
    if (meeting->line == 0) /* without this rank it cannot have met, whatever others write */
        return meeting->leaving || state == MEETING_STATE_VOID ? MEETING_VOID : MEETING_OPEN;
    return state == meeting->size ? look_at_work(meeting, round) : verdict_of(state);
}

bool meeting_waits_for(const struct meeting *meeting, uint64_t round, uint32_t *rank)
{
    if (meeting->line == 0 || meeting_look(meeting, round) != MEETING_OPEN)
        return false;
    bool passing = meeting_passing(meeting, round);
    for (uint32_t i = 0; i < meeting->size; i++) {
        *rank = i;
        if (passing ? meeting_is_behind(meeting, i)
                    : atomic_load(&meeting->place->sums_in[i].word) == round)
            return true;
    }
    return false;
}

enum meeting_verdict meeting_void(struct meeting *meeting, uint64_t round)
{
    enum meeting_verdict verdict = verdict_of(meeting_refuse(meeting, meeting->met, round));
    return meeting->line == 0 ? MEETING_VOID : verdict;
}

void meeting_leave(struct meeting *meeting, uint64_t last)
{
    meeting_depart(meeting, last);
    meeting->line = 0;
    meeting->leaving = false;
}

/* recv[i], of a collective that does not reduce: from whom, and where it lies. */
static const uint8_t *sent_part(const struct meeting *meeting, const struct meeting_ask *ask,
                                uint32_t i)
{
    uint32_t from = meeting_receives_parts(ask->kind) ? i : ask->root;
    const uint8_t *data = data_of(meeting, ask, from, meeting->met);
    return meeting_sends_parts(ask->kind) ? data + meeting->rank * meeting_part_bytes(ask) : data;
}

void meeting_take(struct meeting *meeting, const struct meeting_ask *ask, void *const recv[])
{
    bool in_pieces = meeting_in_pieces(ask, meeting->size); /* it has them */
    uint32_t parts = in_pieces ? 0 : meeting_receives_parts(ask->kind) ? meeting->size : 1;
    uint64_t first = ask->kind == COLLECTIVE_REDUCE_SCATTER ? meeting->rank * ask->count : 0;
    uint64_t bytes = meeting_part_bytes(ask);
    const void *in[MEETING_RANKS_MAX], *own = meeting->own[meeting->met % MEETING_LINE];
    for (uint32_t i = 0; i < parts && bytes > 0; i++) {
        if (!recv[i])
            continue;
        if (last_reduces(meeting, ask)) {
            memcpy(recv[i], result_of(meeting, ask, meeting->met), bytes);
        } else if (collective_has_op(ask->kind)) {
            data_of_all(meeting, ask, meeting->met, first, in);
            if (own)
                in[meeting->rank] = own;
            meeting_sum_to(meeting, ask, in, ask->count, recv[i]);
        } else {
            meeting_copy(recv[i], sent_part(meeting, ask, i), bytes, parts * bytes);
        }
    }
    /* Nobody has ended it. Rank 1 has counted what it has ended before it came to this one. */
    if (meeting_is_pair(meeting) && meeting->rank == 0 && !in_pieces)
        meeting_count(meeting, ask);
    meeting->met++;
    meeting->line--;
}
