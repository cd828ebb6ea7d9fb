/* A meeting place: memory in which the ranks of a group that lies on one node meet for collectives
 * without their daemon. Each puts its data and its ask into the place and arrives. The last to come
 * compares the asks, reduces if every rank wants the same result of many, in rank order, as the
 * daemon would and to the same bits, and says that the collective has *met*; then everyone takes
 * its part of the result, or reduces it. With two ranks each compares. A rank that has waited for
 * long enough, or wants the collective elsewhere, says that it is *void*: then every rank gives it
 * to its daemon, as if nobody had come here. The daemon thus judges every case that needs its
 * judgement: a disagreement, a rank that does not come, one that has died.
 *
 *   round: 0 arrived -> 1 -> ... -> all arrived -> (sums, turns) -> met, or void (the asks differ)
 *               \______\____________ void
 *
 * A round is numbered by how many collectives the group's ranks have started before it, which is
 * the same on all ranks. A rank may come to some small rounds one after the other before the first
 * has ended: its line. The rounds of a line end in that order. If one is void so are those behind
 * it: somebody has not come to it, or was the last and found that the asks differ, and comes to
 * none of them.
 *
 * The round that meets after k others has word k % MEETING_SLOTS, and its small data slot k %
 * MEETING_SLOTS of each rank's part. A rank that comes to it has taken the result of round k -
 * MEETING_LINE; all had come to that one, and had taken that of round k - MEETING_SLOTS: so all
 * have read the data that is overwritten. A round that is not small is alone in a rank's line. Its
 * data lies in half k % 2, and a rank that writes there has taken the result of the last round that
 * met. A rank that comes to a later round at the same word has given the earlier one to its daemon,
 * so that it is void.
 *
 * Data that is too large for that passes in pieces. To reduce, each rank makes the same turns: in
 * each it puts a piece of what it sends into the place, reduces its share of the piece before, and
 * takes the results of the one before that. It makes its next turn when all have made this one.
 * Data that is only moved streams: in a turn a rank puts and takes some pieces, as far as there is
 * room, and as the others have put theirs.
 *
 * A larger reduction that does not pass in pieces is cut into slices. Ranks that are awake take one
 * slice after the other, so that the reduction uses as many cores as they have; a rank that sleeps,
 * or does not wait, is not needed for it.
 *
 * Ranks of a job trust each other with their results, but not with their memory: whatever another
 * writes here, a rank touches nothing but the place and the buffers that it was given. A rank's own
 * ask is in `struct meeting`; the asks of others are compared with it, and not used.
 *
 * Rounds that have met are counted in the place, for the daemon's status (common/format/place.h).
 *
 * Pure: no call waits or wakes. Calls common/{base,format,memory,reduce}.
 */
#ifndef WORKER_MEETING_MEETING_H
#define WORKER_MEETING_MEETING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/reduce/dtype.h"
#include "common/reduce/reduce.h"

#define MEETING_VERSION 9u
#define MEETING_RANKS_MAX 64u
/* Room for what a rank brings to a round; less where there are many (meeting_data_bytes). */
#define MEETING_DATA_BYTES 1048576u
/* Most bytes that a rank brings at once, apart from the room above. Larger data passes in pieces.
 */
#define MEETING_AT_ONCE_BYTES 524288u
/* To how many rounds a rank may come before the first has ended, with so much for each at most. */
#define MEETING_LINE 8u
#define MEETING_SLOTS 16u
#define MEETING_SLOT_BYTES 4096u

/* Ask: the collective that a rank wants; all bytes are compared. */
struct meeting_ask {
    uint32_t kind, dtype, op, root;
    uint64_t count;    /* elements of a part; of all that a rank sends where there are no parts */
    uint64_t identity; /* of the tensor, or 0; decides nothing but whether the asks differ */
};

enum meeting_verdict {
    MEETING_OPEN, /* not all have come, or others still reduce */
    MEETING_SUMS, /* all have come, and there is something to reduce: meeting_help */
    MEETING_TURN, /* all have come to one that passes in pieces, and this rank can go on:
                   * meeting_turn */
    MEETING_MET,
    MEETING_VOID,
};

struct meeting_place; /* in the memory */

/* A rank's view of a place. */
struct meeting {
    struct meeting_place *place;
    uint32_t rank, size; /* in the group */
    uint64_t met;        /* rounds that have met and whose result this rank has taken */
    uint32_t line;       /* those behind them that it has come to */
    bool alone;          /* there is one, which is not small */
    bool leaving; /* the next is void, or the last of them: it comes to none until it has left */
    uint64_t differed; /* of two ranks: the last round that it has left as the asks differ, or 0 */
    /* Turns of the round that this rank is alone in, if it passes in pieces: the next turn of this
     * rank, or how many moves of its stream it has made; and how many turns there are. */
    uint64_t turn, turns;
    /* Stream of that round: how many blocks a ring has, how many pieces there are, and how many
     * this rank has put and taken. No blocks: the round does not stream, but reduces in turns. */
    struct {
        uint32_t blocks;
        uint64_t pieces, put, taken;
    } stream;
    /* Its own part of a reduce_scatter, for each round in its line. NULL: the part is in the place,
     * or the round is no reduce_scatter. */
    const void *own[MEETING_LINE];
    struct meeting_ask asks[MEETING_LINE]; /* of each round in its line */
    const struct reduce_kernels *kernels;
};

/* Room for what each rank of a group of `size` brings to a round. */
uint64_t meeting_data_bytes(uint32_t size);
/* How much memory a group of `size` ranks needs. */
uint64_t meeting_bytes(uint32_t size);
/* To be called once by each rank. The memory, zero before the first rank has come, is `bytes` long.
 * False: another version of the library uses it. */
bool meeting_init(struct meeting *meeting, void *memory, uint64_t bytes, uint32_t rank,
                  uint32_t size);

/* Whether all ranks have come to use the memory. */
bool meeting_complete(const struct meeting *meeting);

/* This rank runs on that core; and where a rank said last that it did, or -1. */
void meeting_say_core(const struct meeting *meeting, uint32_t core);
int meeting_core_of(const struct meeting *meeting, uint32_t rank);

/* Whether a round can carry it. The ask is checked (request_check). */
bool meeting_fits(const struct meeting_ask *ask, uint32_t size);
/* Whether it passes in pieces, since it is large: every rank has to make its turns, with buffers
 * that are aligned to the elements and stay as they are until it has met. */
bool meeting_in_pieces(const struct meeting_ask *ask, uint32_t size);

/* Whether what a rank sends, or receives, is a part for each rank of the group. */
bool meeting_sends_parts(uint32_t kind);
bool meeting_receives_parts(uint32_t kind);

/* Reduce the slices that nobody has begun of a round that is MEETING_SUMS, whose ask is this
 * rank's. Return the verdict after it. */
enum meeting_verdict meeting_help(struct meeting *meeting, uint64_t round,
                                  const struct meeting_ask *ask);

/* Make this rank's turn of a round that is MEETING_TURN, with the buffers of meeting_arrive and
 * meeting_take. Return the verdict after it; not MEETING_OPEN: others may sleep. MEETING_TURN:
 * others can go on, and perhaps this rank. */
enum meeting_verdict meeting_turn(struct meeting *meeting, uint64_t round,
                                  const struct meeting_ask *ask, const void *const send[],
                                  void *const recv[]);

/* Find a rank that all wait for though all have come: its turn is due, or it compares the asks or
 * sums. False: there is none. */
bool meeting_waits_for(const struct meeting *meeting, uint64_t round, uint32_t *rank);

/* Whether this rank may come to one more round now, with that ask. */
bool meeting_may_come(const struct meeting *meeting, const struct meeting_ask *ask);
/* Come to the round behind this rank's line, with what it sends: one buffer, or a part for each
 * rank. NULL: it sends none, or keeps its own. All buffers are free when this returns, unless the
 * round passes in pieces; but a rank's own part of a reduce_scatter stays as it is until
 * meeting_take. Not MEETING_OPEN: others may sleep (meeting_ring). MEETING_VOID: this rank comes to
 * no more until all before it have ended, and it has left. */
enum meeting_verdict meeting_arrive(struct meeting *meeting, uint64_t round,
                                    const struct meeting_ask *ask, const void *const send[]);
/* Return the verdict on the first round in this rank's line. */
enum meeting_verdict meeting_look(const struct meeting *meeting, uint64_t round);
/* Whether a rank that was last seen on that core, other than this one, has still to come to the
 * round, or to make a turn that this one waits for: then this one had better give the core away. */
bool meeting_needs_core(const struct meeting *meeting, uint64_t round, int core);
/* Have a round go to the daemon: the first in this rank's line, or the next where there is none.
 * MEETING_OPEN: too late, the last to come reduces; look again. */
enum meeting_verdict meeting_void(struct meeting *meeting, uint64_t round);
/* The first in this rank's line is void: so are all up to `last`, whether it has come to them or
 * not, and the line is empty. */
void meeting_leave(struct meeting *meeting, uint64_t last);
/* Take the result of the first in its line, which has met. recv: where it goes on this rank, one
 * buffer, or a part for each rank. NULL: nowhere. */
void meeting_take(struct meeting *meeting, const struct meeting_ask *ask, void *const recv[]);

/* The word to sleep on while it is as it was: read it, say that this rank is about to sleep, look
 * whether there is a verdict, sleep, and say that it is over. */
_Atomic uint32_t *meeting_gate(const struct meeting *meeting);
void meeting_sleep(const struct meeting *meeting, bool begins);
/* After a verdict, if somebody may sleep: change the gate. Whether they are to be woken. */
bool meeting_ring(const struct meeting *meeting);

#endif
