/* Large collectives that only move data: a stream from each rank that sends.
 *
 * A rank's part of the place is a ring of some blocks. It puts piece k of what it sends into block
 * k % blocks when all have taken piece k - blocks, and takes piece k of the others when all have
 * put it. A rank may thus be a ring ahead in putting, and a piece is read soon after it was
 * written, while it is in a core's cache. Somebody can always go on: the rank that has put least
 * can put, unless it has put all or is a ring ahead of the rank that has taken least; then the
 * latter can take.
 *
 * A piece is the same range of every part. A rank that does not send has put all pieces when it
 * comes, and one that does not receive has taken all.
 */
#include <string.h>

#include "common/memory/copy.h"
#include "worker/meeting/meeting_private.h"

/* Most blocks of a ring. */
#define BLOCKS_MOST 8u
/* Most bytes that a rank puts of a piece for another, or for all; twice as many where there is no
 * root, and all send to all. */
#define BLOCK_BYTES (UINT64_C(64) << 10)

/* How an ask is cut; counts in elements. */
struct cut {
    uint64_t element_bytes, block, pieces;
    uint32_t parts, blocks; /* that a rank sends, in each block of its ring; blocks of a ring */
};

static uint64_t least_of(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

static struct cut cut_of(const struct meeting_ask *ask, uint32_t size)
{
    uint32_t parts = meeting_sends_parts(ask->kind) ? size : 1;
    uint64_t element_bytes = dtype_bytes(ask->dtype);
    uint64_t most = BLOCK_BYTES * (collective_has_root(ask->kind) ? 1 : 2);
    uint64_t room = 2 * meeting_data_bytes(size) / parts; /* two blocks at least */
    uint64_t bytes = least_of(most, room / 2) / COPY_LINE_BYTES * COPY_LINE_BYTES;
    uint64_t block = bytes / element_bytes;
    return (struct cut){.element_bytes = element_bytes,
                        .block = block,
                        .pieces = ask->count / block + (ask->count % block > 0),
                        .parts = parts,
                        .blocks = (uint32_t)least_of(BLOCKS_MOST, room / bytes)};
}

static struct meeting_stream *stream_of(const struct meeting *meeting, uint32_t rank)
{
    return &meeting->place->streams[rank];
}

void meeting_stream_begin(struct meeting *meeting, const struct meeting_ask *ask)
{
    bool root = meeting->rank == ask->root;
    bool sends = root || (ask->kind != COLLECTIVE_BROADCAST && ask->kind != COLLECTIVE_SCATTER);
    bool receives = root || ask->kind != COLLECTIVE_GATHER;
    struct meeting_stream *said = stream_of(meeting, meeting->rank);
    struct cut cut = cut_of(ask, meeting->size);
    meeting->stream.pieces = cut.pieces;
    meeting->stream.blocks = cut.blocks;
    meeting->stream.put = sends ? 0 : meeting->stream.pieces;
    meeting->stream.taken = receives ? 0 : meeting->stream.pieces;
    atomic_store_explicit(&said->put, meeting->stream.put, memory_order_relaxed);
    atomic_store_explicit(&said->taken, meeting->stream.taken, memory_order_relaxed);
}

/* --- who can go on --------------------------------------------------------------------------- */

/* A rank's own counts are read from its own memory: what others could write is no index. */
static uint64_t put_by(const struct meeting *meeting, uint32_t rank)
{
    return rank == meeting->rank ? meeting->stream.put
                                 : atomic_load(&stream_of(meeting, rank)->put);
}

static uint64_t taken_by(const struct meeting *meeting, uint32_t rank)
{
    return rank == meeting->rank ? meeting->stream.taken
                                 : atomic_load(&stream_of(meeting, rank)->taken);
}

/* Least that any rank has put, and least that any rank has taken. */
struct least {
    uint64_t put, taken;
};

static struct least least_of_all(const struct meeting *meeting)
{
    struct least least = {.put = UINT64_MAX, .taken = UINT64_MAX};
    for (uint32_t i = 0; i < meeting->size; i++) {
        least.put = least_of(least.put, put_by(meeting, i));
        least.taken = least_of(least.taken, taken_by(meeting, i));
    }
    return least;
}

static bool can_put(const struct meeting *meeting, uint32_t rank, struct least least)
{
    uint64_t put = put_by(meeting, rank);
    return put < meeting->stream.pieces && put < least.taken + meeting->stream.blocks;
}

static bool can_take(const struct meeting *meeting, uint32_t rank, struct least least)
{
    return taken_by(meeting, rank) < least.put;
}

static bool can_go_on(const struct meeting *meeting, uint32_t rank, struct least least)
{
    return can_put(meeting, rank, least) || can_take(meeting, rank, least);
}

bool meeting_stream_can_go_on(const struct meeting *meeting, uint32_t rank)
{
    return can_go_on(meeting, rank, least_of_all(meeting));
}

static bool others_can_go_on(const struct meeting *meeting)
{
    struct least least = least_of_all(meeting);
    for (uint32_t i = 0; i < meeting->size; i++) {
        if (i != meeting->rank && can_go_on(meeting, i, least))
            return true;
    }
    return false;
}

/* --- moving ---------------------------------------------------------------------------------- */

/* Part i of what the rank has put of a piece. */
static uint8_t *block_of(const struct meeting *meeting, const struct cut *cut, uint32_t rank,
                         uint64_t piece, uint32_t i)
{
    return meeting_half(meeting, rank, 0) +
           (piece % cut->blocks * cut->parts + i) * cut->block * cut->element_bytes;
}

static uint64_t piece_bytes(const struct cut *cut, const struct meeting_ask *ask, uint64_t piece)
{
    return least_of(cut->block, ask->count - piece * cut->block) * cut->element_bytes;
}

static void put(struct meeting *meeting, const struct cut *cut, const struct meeting_ask *ask,
                const void *const send[])
{
    uint64_t piece = meeting->stream.put++, at = piece * cut->block * cut->element_bytes;
    for (uint32_t i = 0; i < cut->parts; i++) {
        if (send[i])
            memcpy(block_of(meeting, cut, meeting->rank, piece, i), (const uint8_t *)send[i] + at,
                   piece_bytes(cut, ask, piece));
    }
    atomic_store(&stream_of(meeting, meeting->rank)->put, meeting->stream.put);
}

static void take(struct meeting *meeting, const struct cut *cut, const struct meeting_ask *ask,
                 void *const recv[])
{
    uint64_t piece = meeting->stream.taken++, at = piece * cut->block * cut->element_bytes;
    uint32_t parts = meeting_receives_parts(ask->kind) ? meeting->size : 1;
    uint32_t mine = cut->parts > 1 ? meeting->rank : 0;
    for (uint32_t n = 0; n < parts; n++) {
        uint32_t i = parts > 1 ? (meeting->rank + 1 + n) % parts : 0; /* not all of one at once */
        uint32_t from = parts > 1 ? i : ask->root;
        if (recv[i])
            meeting_copy((uint8_t *)recv[i] + at, block_of(meeting, cut, from, piece, mine),
                         piece_bytes(cut, ask, piece), parts * meeting_part_bytes(ask));
    }
    atomic_store(&stream_of(meeting, meeting->rank)->taken, meeting->stream.taken);
}

enum meeting_verdict meeting_stream_move(struct meeting *meeting, uint64_t round,
                                         const struct meeting_ask *ask, const void *const send[],
                                         void *const recv[])
{
    struct cut cut = cut_of(ask, meeting->size);
    bool any = true;
    for (unsigned i = 0; i < cut.blocks && any; i++) {
        bool puts = can_put(meeting, meeting->rank, least_of_all(meeting));
        if (puts)
            put(meeting, &cut, ask, send);
        bool takes = can_take(meeting, meeting->rank, least_of_all(meeting));
        if (takes)
            take(meeting, &cut, ask, recv);
        any = puts || takes;
    }
    bool done = meeting->stream.put == meeting->stream.pieces &&
                meeting->stream.taken == meeting->stream.pieces;
    if (!done || atomic_fetch_add(&meeting->place->turned, 1) + 1 < meeting->size)
        return others_can_go_on(meeting) ? MEETING_TURN : MEETING_OPEN;
    meeting_meet(meeting, meeting->met, round, ask);
    return MEETING_MET;
}
