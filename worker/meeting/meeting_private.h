/* The declarations that the files of worker/meeting share. Each file calls those above it in this
 * list, and none below:
 *
 *   meeting_sums.c      sums of what lies in the place, in rank order
 *   meeting_place.c     the memory: whose part is where; what has met is said, and counted
 *   meeting_stream.c    large collectives that only move data: a stream from each that sends
 *   meeting_pieces.c    large collectives, which pass through the place in pieces: turns
 *   meeting_arrivals.c  who has come to a round, or that it is void
 *   meeting.c           rounds: arriving, giving up, taking the result
 */
#ifndef WORKER_MEETING_MEETING_PRIVATE_H
#define WORKER_MEETING_MEETING_PRIVATE_H

#include "common/format/place.h"
#include "worker/meeting/meeting.h"

/* Slot: the data that a rank brings to a round. Data that is not small lies in one of the halves.
 */
struct meeting_slot {
    _Alignas(64) _Atomic uint64_t word; /* whether it has come (meeting_arrivals.c) */
    struct meeting_ask ask;
    uint8_t few[64 - sizeof(uint64_t) - sizeof(struct meeting_ask)]; /* data, in the same line */
    uint8_t data[MEETING_SLOT_BYTES]; /* more of it, in whole lines */
};

_Static_assert(offsetof(struct meeting_slot, data) == 64, "a line, and whole lines");

/* A word in a line of its own: what has become of a round, or what a rank does. */
struct meeting_word {
    _Alignas(64) _Atomic uint64_t word;
};

/* Progress of a rank's stream: how many pieces it has put, and how many it has taken of every
 * rank's. */
struct meeting_stream {
    _Alignas(64) _Atomic uint64_t put;
    _Atomic uint64_t taken;
};

struct meeting_place {
    _Atomic uint32_t version;
    _Atomic uint32_t present; /* ranks that use the place */
    _Alignas(64) struct place_counts counts;
    struct meeting_word words[MEETING_SLOTS];
    _Alignas(64) _Atomic uint32_t gate;     /* changes when somebody may have to be woken */
    _Alignas(64) _Atomic uint32_t sleepers; /* who is about to sleep, or sleeps */
    /* The round of the sums, and how many slices ranks have begun; and ended, of the same round. */
    _Alignas(64) _Atomic uint64_t begun;
    _Alignas(64) _Atomic uint32_t ended;
    struct meeting_word sums_in[MEETING_RANKS_MAX]; /* the round that each rank sums in now, or 0 */
    /* The round that passes in pieces, or the last that did; and the turns of it that all ranks
     * together have made, or of streams how many ranks have put and taken all. */
    _Alignas(64) _Atomic uint64_t passing;
    _Alignas(64) _Atomic uint64_t turned;
    /* How many each rank has made, of the last such round that it has come to. */
    _Alignas(64) _Atomic uint64_t turns_of[MEETING_RANKS_MAX];
    struct meeting_stream streams[MEETING_RANKS_MAX];
    /* For each rank the core that it last ran on, plus 1; 0: not known. Written when it changes. */
    _Alignas(64) _Atomic uint32_t cores[MEETING_RANKS_MAX];
    /* Results of the last to come: of small rounds in `results`, of others in `result`. */
    _Alignas(64) uint8_t results[MEETING_SLOTS][MEETING_SLOT_BYTES];
    _Alignas(64) uint8_t result[MEETING_AT_ONCE_BYTES];
    uint8_t parts[]; /* of each rank: its slots, and two halves */
};

/* A round's word: its number, and how many have arrived, or that it has ended. */
#define MEETING_STATE_BITS 16u
#define MEETING_STATE_MASK ((UINT64_C(1) << MEETING_STATE_BITS) - 1)
#define MEETING_STATE_VOID MEETING_STATE_MASK
#define MEETING_STATE_MET (MEETING_STATE_MASK - 1)

static inline uint64_t meeting_word(uint64_t round, uint64_t state)
{
    return round << MEETING_STATE_BITS | state;
}

/* Return what this rank asks for in a round of its line, which no other rank can write to. */
static inline const struct meeting_ask *meeting_own_ask(const struct meeting *meeting,
                                                        uint64_t index)
{
    return &meeting->asks[index % MEETING_LINE];
}

/* Two ranks find out for themselves that both have come, and whether they ask for the same. */
static inline bool meeting_is_pair(const struct meeting *meeting)
{
    return meeting->size == 2;
}

/* --- meeting_sums.c */

/* Reduce the elements that `in` has for each rank, in rank order, into the outputs. */
void meeting_sum(const struct meeting *meeting, const struct meeting_ask *ask, const void *in[],
                 uint64_t count, void *out[], unsigned outputs);
/* Reduce as meeting_sum does into one output, which need not be aligned to the elements. */
void meeting_sum_to(const struct meeting *meeting, const struct meeting_ask *ask, const void *in[],
                    uint64_t count, uint8_t *to);

/* --- meeting_place.c */

/* Bytes of a part; of all that a rank sends where there are no parts. */
uint64_t meeting_part_bytes(const struct meeting_ask *ask);
/* Whether what a rank sends fits into a slot. */
bool meeting_is_small(const struct meeting_ask *ask, uint32_t size);
/* Return the rank's slot for the round that meets after `index` others. */
struct meeting_slot *meeting_slot_of(const struct meeting *meeting, uint32_t rank, uint64_t index);
/* One half of the rank's data, 0 or 1. */
uint8_t *meeting_half(const struct meeting *meeting, uint32_t rank, uint64_t half);
/* A piece of a result of so many bytes, out of the place. */
void meeting_copy(void *to, const void *from, uint64_t bytes, uint64_t result_bytes);
/* The round's word: its number, and what has become of it. */
_Atomic uint64_t *meeting_word_of(const struct meeting *meeting, uint64_t index);
/* Count a round that has met. */
void meeting_count(const struct meeting *meeting, const struct meeting_ask *ask);
/* All that is to be done of the round, after `index` others, is: say that it has met, and count it.
 */
void meeting_meet(const struct meeting *meeting, uint64_t index, uint64_t round,
                  const struct meeting_ask *ask);

/* --- meeting_stream.c: of what does not reduce */

/* This rank comes to the round. */
void meeting_stream_begin(struct meeting *meeting, const struct meeting_ask *ask);
/* Whether the rank can put a piece, or take one. */
bool meeting_stream_can_go_on(const struct meeting *meeting, uint32_t rank);
/* Put and take what this rank can, up to a ring. MEETING_TURN: others can go on. */
enum meeting_verdict meeting_stream_move(struct meeting *meeting, uint64_t round,
                                         const struct meeting_ask *ask, const void *const send[],
                                         void *const recv[]);

/* --- meeting_pieces.c */

/* Begin a round that passes in pieces, to which all ranks have come. One rank calls this, once. */
void meeting_pass(const struct meeting *meeting, uint64_t round);
/* This rank comes to a round that passes in pieces, and is to make all its turns. */
void meeting_turns_begin(struct meeting *meeting, const struct meeting_ask *ask);
/* Whether all ranks have come to the round, the first in this rank's line, and it passes in pieces;
 * and whether this rank's next turn of it is due. */
bool meeting_passing(const struct meeting *meeting, uint64_t round);
bool meeting_turn_due(const struct meeting *meeting);
/* Whether this one waits for the rank's next turn; of a stream, whether that rank can go on. */
bool meeting_is_behind(const struct meeting *meeting, uint32_t rank);

/* --- meeting_arrivals.c
 *
 * A state is how many ranks have come, MEETING_STATE_VOID or MEETING_STATE_MET. If the state is the
 * number of ranks, all have come, and the round has not ended: somebody compares the asks, or
 * reduces, or the round passes in pieces. With two ranks the state 2 only means that it passes in
 * pieces; the state is 1 until one of them has begun it. */

/* Whether all ranks, which have come to the round, ask for the same. */
bool meeting_asks_agree(const struct meeting *meeting, uint64_t index);
/* Whether the round is void before this rank comes to it; one of two ranks may have to say so. */
bool meeting_is_refused(const struct meeting *meeting, uint64_t index, uint64_t round);
/* Come to the round; this rank has put what it brings into its slot. Return the state after it; the
 * number of ranks: this one was the last. */
uint64_t meeting_come(const struct meeting *meeting, uint64_t index, uint64_t round);
/* The state of a round that this rank has come to. */
uint64_t meeting_state(const struct meeting *meeting, uint64_t index, uint64_t round);
/* Make the round void, unless all have come; return the state after it. */
uint64_t meeting_refuse(const struct meeting *meeting, uint64_t index, uint64_t round);
/* Make the next round of this rank void, whether it has come to it or not, and all up to `last`. */
void meeting_depart(struct meeting *meeting, uint64_t last);

#endif
