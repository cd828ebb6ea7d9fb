/* The arrivals at a round: who has come, or that the round is void.
 *
 * More than two ranks count in the round's word, and each says in its own slot that it has come, so
 * that others can see who is late. Two ranks need no word in common, which both would have to fetch
 * from the other's core one after the other: each says in its own slot, beside what it brings, that
 * it has come, and finds out for itself that the other has and asks for the same.
 *
 *   a rank's word: an older round -> round, 1: it has come
 *                          \______-> round, void: it will not come, said by itself or by the other
 *
 * When both have come neither can change that: the round has met, or they ask for different things,
 * and it is void. The round is void, too, when one word says so, or is of a later round, to which
 * its rank goes on from a void one. Then the other cannot come to it. */
#include <string.h>

#include "worker/meeting/meeting_private.h"

/* The state of `round` in a word: 0 before anybody has said something of it; void if that is later.
 */
static uint64_t state_in(uint64_t word, uint64_t round)
{
    uint64_t number = word >> MEETING_STATE_BITS;
    if (number > round)
        return MEETING_STATE_VOID;
    return number == round ? word & MEETING_STATE_MASK : 0;
}

/* Change the state of `round` in a word: one more has come, or it is void; unless it is void, or so
 * many have come that it cannot become void. Returns what it is then. */
static uint64_t advance(_Atomic uint64_t *at, uint64_t round, bool comes, uint64_t all)
{
    uint64_t word = atomic_load(at), next;
    do {
        uint64_t state = state_in(word, round);
        if (state == MEETING_STATE_VOID || (!comes && state >= all))
            return state;
        next = comes ? state + 1 : MEETING_STATE_VOID;
    } while (!atomic_compare_exchange_weak(at, &word, meeting_word(round, next)));
    return next;
}

/* Return the word in the rank's own slot, in which it says that it has come. */
static _Atomic uint64_t *said_by(const struct meeting *meeting, uint32_t rank, uint64_t index)
{
    return &meeting_slot_of(meeting, rank, index)->word;
}

static _Atomic uint64_t *own_word(const struct meeting *meeting, uint64_t index)
{
    return said_by(meeting, meeting->rank, index);
}

/* Whether a rank has come to a round that this one has come to, or is about to. */
static bool has_come(const struct meeting *meeting, uint64_t index, uint64_t round, uint32_t rank)
{
    return atomic_load(said_by(meeting, rank, index)) == meeting_word(round, 1);
}

bool meeting_asks_agree(const struct meeting *meeting, uint64_t index)
{
    const struct meeting_ask *own = meeting_own_ask(meeting, index);
    for (uint32_t i = 0; i < meeting->size; i++) {
        if (i != meeting->rank &&
            memcmp(&meeting_slot_of(meeting, i, index)->ask, own, sizeof(*own)) != 0)
            return false;
    }
    return true;
}

/* --- two ranks ----------------------------------------------------------------------------- */

static _Atomic uint64_t *other_word(const struct meeting *meeting, uint64_t index)
{
    return said_by(meeting, 1 - meeting->rank, index);
}

/* Whether the other may still compare the asks of a round that this rank has left since they
 * differ: until then this one's must stay. */
static bool other_compares(const struct meeting *meeting, uint64_t index)
{
    return meeting->differed > 0 && has_come(meeting, index, meeting->differed, 1 - meeting->rank);
}

/* 2: both have come to one that passes in pieces. */
static uint64_t pair_arrived(const struct meeting *meeting, uint64_t index, uint64_t round)
{
    uint64_t theirs = state_in(atomic_load(other_word(meeting, index)), round);
    uint64_t ours = state_in(atomic_load(own_word(meeting, index)), round);
    if (theirs == MEETING_STATE_VOID || ours == MEETING_STATE_VOID)
        return MEETING_STATE_VOID;
    if (theirs + ours < 2)
        return theirs + ours;
    if (!meeting_asks_agree(meeting, index))
        return MEETING_STATE_VOID;
    return meeting_in_pieces(meeting_own_ask(meeting, index), 2) ? 2 : MEETING_STATE_MET;
}

/* Return the state of a round of two ranks. One of them begins a round that passes in pieces, in
 * the round's word, which then says when it has met. */
static uint64_t pair_state(const struct meeting *meeting, uint64_t index, uint64_t round)
{
    uint64_t arrived = pair_arrived(meeting, index, round);
    if (arrived != 2)
        return arrived;
    uint64_t begun = state_in(atomic_load(meeting_word_of(meeting, index)), round);
    return begun > 0 ? begun : 1;
}

static uint64_t pair_come(const struct meeting *meeting, uint64_t index, uint64_t round)
{
    if (advance(own_word(meeting, index), round, true, 1) == MEETING_STATE_VOID)
        return MEETING_STATE_VOID;
    uint64_t arrived = pair_arrived(meeting, index, round);
    if (arrived != 2)
        return arrived;
    _Atomic uint64_t *at = meeting_word_of(meeting, index);
    uint64_t word = atomic_load(at);
    bool begins = state_in(word, round) == 0 &&
                  atomic_compare_exchange_strong(at, &word, meeting_word(round, 2));
    return begins ? 2 : 1;
}

/* Refuse a round of two ranks: a rank that has come says that the other will not, and one that has
 * not come says so of itself. */
static uint64_t pair_refuse(const struct meeting *meeting, uint64_t index, uint64_t round)
{
    bool came = has_come(meeting, index, round, meeting->rank);
    advance(came ? other_word(meeting, index) : own_word(meeting, index), round, false, 1);
    return pair_state(meeting, index, round);
}

static void pair_depart(struct meeting *meeting, uint64_t index, uint64_t last)
{
    _Atomic uint64_t *own = own_word(meeting, index);
    uint64_t word = atomic_load(own);
    if ((word & MEETING_STATE_MASK) == 1 && atomic_load(other_word(meeting, index)) == word)
        meeting->differed = word >> MEETING_STATE_BITS;
    advance(own, last, false, 2); /* also of the round that it has come to, which is void */
}

/* --- what the rounds know of them ---------------------------------------------------------- */

uint64_t meeting_come(const struct meeting *meeting, uint64_t index, uint64_t round)
{
    if (meeting_is_pair(meeting))
        return pair_come(meeting, index, round);
    atomic_store(own_word(meeting, index), meeting_word(round, 1));
    return advance(meeting_word_of(meeting, index), round, true, meeting->size);
}

uint64_t meeting_state(const struct meeting *meeting, uint64_t index, uint64_t round)
{
    return meeting_is_pair(meeting) ? pair_state(meeting, index, round)
                                    : state_in(atomic_load(meeting_word_of(meeting, index)), round);
}

bool meeting_is_refused(const struct meeting *meeting, uint64_t index, uint64_t round)
{
    bool pair = meeting_is_pair(meeting);
    _Atomic uint64_t *at = pair ? own_word(meeting, index) : meeting_word_of(meeting, index);
    if (pair && other_compares(meeting, index))
        advance(at, round, false, 1);
    return state_in(atomic_load_explicit(at, memory_order_relaxed), round) == MEETING_STATE_VOID;
}

uint64_t meeting_refuse(const struct meeting *meeting, uint64_t index, uint64_t round)
{
    return meeting_is_pair(meeting)
               ? pair_refuse(meeting, index, round)
               : advance(meeting_word_of(meeting, index), round, false, meeting->size);
}

void meeting_depart(struct meeting *meeting, uint64_t last)
{
    uint64_t index = meeting->met;
    if (meeting_is_pair(meeting))
        pair_depart(meeting, index, last);
    else
        advance(meeting_word_of(meeting, index), last, false, meeting->size);
}

bool meeting_needs_core(const struct meeting *meeting, uint64_t round, int core)
{
    bool passing = meeting_passing(meeting, round);
    for (uint32_t i = 0; i < meeting->size; i++) {
        if (i == meeting->rank || meeting_core_of(meeting, i) != core)
            continue;
        if (!has_come(meeting, meeting->met, round, i) ||
            (passing && meeting_is_behind(meeting, i)))
            return true;
    }
    return false;
}
