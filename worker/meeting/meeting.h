/* A meeting place: memory in which the ranks of a group that lies on one node meet for small
 * collectives, without their daemon. Each puts its data and what it asks for into the place and
 * arrives. The last to come compares the asks, reduces in rank order, as the daemon would and to
 * the same bits, and says that the collective has *met*; everyone takes the result. Whoever has
 * waited for long enough, or wants the collective elsewhere, says that it is *void*: then every
 * rank gives it to its daemon, as if nobody had come here. So what needs the daemon's judgement (a
 * disagreement, a rank that does not come, one that has died) is judged by the daemon.
 *
 *   round: 0 arrived -> 1 -> ... -> all arrived -> met, or void (the asks differ)
 *               \______\____________ void
 *
 * A round is numbered by how many collectives the group's ranks have started before it, which is
 * the same on all ranks. Whoever comes to a later round has given the earlier ones to its daemon,
 * so that these are void unless they have met; a rank is in one round at a time, so that nobody
 * overwrites a round in which all have arrived.
 *
 * A rank's data of the round that meets after k others lies in half k % 2 of its part. A rank comes
 * to a round only when it has taken the result of the last one that met: so whoever writes a half
 * knows that all have taken what was in it.
 *
 * Ranks of a job trust each other. What they write here is never used as an index.
 *
 * Pure: no call waits or wakes. Calls common/{base,reduce}.
 */
#ifndef WORKER_MEETING_MEETING_H
#define WORKER_MEETING_MEETING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/reduce/dtype.h"
#include "common/reduce/reduce.h"

#define MEETING_VERSION 1u
#define MEETING_RANKS_MAX 64u
/* The most that a rank brings to a round. */
#define MEETING_DATA_BYTES 65536u

/* What a rank asks for; all bytes are compared. */
struct meeting_ask {
    uint32_t kind, dtype, op, root;
    uint64_t count; /* elements of what a rank sends */
};

enum meeting_verdict {
    MEETING_OPEN, /* not all have come, or the last to come still reduces */
    MEETING_MET,
    MEETING_VOID,
};

struct meeting_place; /* in the memory */

/* A rank's view of a place. */
struct meeting {
    struct meeting_place *place;
    uint32_t rank, size; /* in the group */
    uint64_t met;        /* rounds that have met and whose result this rank has taken */
    const struct reduce_kernels *kernels;
};

/* How much memory a group of `size` ranks needs. */
uint64_t meeting_bytes(uint32_t size);
/* To be called once by each rank. The memory, zero before the first rank has come, is `bytes` long.
 * False: another version of the library uses it. */
bool meeting_init(struct meeting *meeting, void *memory, uint64_t bytes, uint32_t rank,
                  uint32_t size);

/* Whether all ranks have come to use the memory. */
bool meeting_complete(const struct meeting *meeting);

/* Whether a round can carry it. The ask is checked (request_check). */
bool meeting_fits(const struct meeting_ask *ask, uint32_t size);

/* Come to a round, which is later than any before, with `data` (NULL: this rank sends nothing),
 * which is free when this returns. Not MEETING_OPEN: others may sleep (meeting_sleepers). */
enum meeting_verdict meeting_arrive(struct meeting *meeting, uint64_t round,
                                    const struct meeting_ask *ask, const void *data);
/* What has become of the round that this rank has arrived at. */
enum meeting_verdict meeting_look(const struct meeting *meeting, uint64_t round);
/* Have the round go to the daemon, whether this rank has arrived at it or not. MEETING_OPEN: too
 * late, the last to come reduces; look again. */
enum meeting_verdict meeting_void(struct meeting *meeting, uint64_t round);
/* Take the result of a round that has met. recv: where it goes on this rank; NULL: nowhere. */
void meeting_take(struct meeting *meeting, const struct meeting_ask *ask, void *recv);

/* The word that changes with every verdict, to sleep on while it is as it was before the last look;
 * and to be said around that, so that others know that somebody is to be woken. */
_Atomic uint32_t *meeting_gate(const struct meeting *meeting);
void meeting_sleep(const struct meeting *meeting, bool begins);
bool meeting_sleepers(const struct meeting *meeting);

#endif
