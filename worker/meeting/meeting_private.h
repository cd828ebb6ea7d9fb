/* What the files of worker/meeting share. Each calls those above it in this list, and none below:
 *
 *   meeting_sums.c    sums of what lies in the place, in rank order
 *   meeting_place.c   the memory: whose part is where; what has met is said, and counted
 *   meeting_pieces.c  large collectives, which pass through the place in pieces
 *   meeting.c         rounds: arriving, giving up, taking the result
 */
#ifndef WORKER_MEETING_MEETING_PRIVATE_H
#define WORKER_MEETING_MEETING_PRIVATE_H

#include "common/format/place.h"
#include "worker/meeting/meeting.h"

/* Before a rank's data. */
struct meeting_part {
    _Alignas(64) struct meeting_ask ask;
};

struct meeting_place {
    _Atomic uint32_t version;
    _Atomic uint32_t present; /* ranks that use the place */
    _Alignas(64) struct place_counts counts;
    _Alignas(64) _Atomic uint64_t round;    /* the latest that a rank has come to */
    _Alignas(64) _Atomic uint64_t met;      /* the latest that has met */
    _Alignas(64) _Atomic uint32_t gate;     /* verdicts so far, and calls of ranks to themselves */
    _Alignas(64) _Atomic uint32_t sleepers; /* who is about to sleep, or sleeps */
    /* The round of the sums, and how many slices ranks have begun; and ended, of the same round. */
    _Alignas(64) _Atomic uint64_t begun;
    _Alignas(64) _Atomic uint32_t ended;
    /* The round that passes in pieces, or the last that did; and the turns of it that all ranks
     * together have made. */
    _Alignas(64) _Atomic uint64_t passing;
    _Alignas(64) _Atomic uint64_t turned;
    /* How many each rank has made, of the round that it has come to last. */
    _Alignas(64) _Atomic uint64_t turns_of[MEETING_RANKS_MAX];
    /* Of each rank the core that it last ran on, and 1; 0: not known. Written when it changes. */
    _Alignas(64) _Atomic uint32_t cores[MEETING_RANKS_MAX];
    _Alignas(64) uint8_t result[MEETING_DATA_BYTES];
    uint8_t parts[]; /* of each rank: struct meeting_part, and twice its data */
};

/* --- meeting_sums.c */

/* The elements that `in` has for each rank, in rank order, into the outputs. */
void meeting_sum(const struct meeting *meeting, const struct meeting_ask *ask, const void *in[],
                 uint64_t count, void *out[], unsigned outputs);
/* The same into one output, which need not be aligned to the elements. */
void meeting_sum_to(const struct meeting *meeting, const struct meeting_ask *ask, const void *in[],
                    uint64_t count, uint8_t *to);

/* --- meeting_place.c */

/* Bytes of a part; of all that a rank sends where there are no parts. */
uint64_t meeting_part_bytes(const struct meeting_ask *ask);
/* What that rank asks for. */
struct meeting_ask *meeting_asked_by(const struct meeting *meeting, uint32_t rank);
/* One half of the rank's data, 0 or 1. */
uint8_t *meeting_half(const struct meeting *meeting, uint32_t rank, uint64_t half);
/* A piece of a result of so many bytes, out of the place. */
void meeting_copy(void *to, const void *from, uint64_t bytes, uint64_t result_bytes);
/* All that is to be done of the round is: it has met. */
void meeting_meet(const struct meeting *meeting, uint64_t round, const struct meeting_ask *ask);

/* --- meeting_pieces.c */

/* All ranks have come to the round, and may begin. Of one rank, once. */
void meeting_pass(const struct meeting *meeting, uint64_t round);
/* How many turns each rank makes. */
uint64_t meeting_turns(const struct meeting_ask *ask, uint32_t size);
/* Whether all ranks have come to the round, the latest, which passes in pieces; and whether this
 * rank's next turn of it is due. */
bool meeting_passing(const struct meeting *meeting, uint64_t round);
bool meeting_turn_due(const struct meeting *meeting);

#endif
