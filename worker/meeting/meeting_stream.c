/* Large collectives that only move data: a stream from each rank that sends.
 *
 * A rank's part of the place is a ring of some blocks. It puts piece k of what it sends into block
 * k % blocks when all have taken piece k - blocks, and takes piece k of the others when all have
 * put it. So nobody waits for the others at each piece, and a piece is read soon after it was
 * written, while it is in a core's cache.
 *
 * A piece is the same range of every part. Who does not send has put all pieces when it comes, and
 * who does not receive has taken all.
 */
#include <string.h>

#include "common/memory/copy.h"
#include "worker/meeting/meeting_private.h"

/* A ring, at most. */
#define BLOCKS_MOST 8u
/* What a rank puts of a piece for another, or for all, at most. Where all send it is twice as much,
 * since each looks at all others for every piece. */
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
    struct meeting_stream *stream = stream_of(meeting, meeting->rank);
    struct cut cut = cut_of(ask, meeting->size);
    meeting->pieces = cut.pieces;
    meeting->blocks = cut.blocks;
    meeting->put = sends ? 0 : meeting->pieces;
    meeting->taken = receives ? 0 : meeting->pieces;
    atomic_store_explicit(&stream->put, meeting->put, memory_order_relaxed);
    atomic_store_explicit(&stream->taken, meeting->taken, memory_order_relaxed);
}

static bool is_done(const struct meeting *meeting)
{
    return meeting->put == meeting->pieces && meeting->taken == meeting->pieces;
}

/* Whether this rank's next piece waits until that one has taken an earlier one; and its next take,
 * until that one has put the piece. */
static bool put_waits_for(const struct meeting *meeting, uint32_t rank)
{
    return meeting->put < meeting->pieces &&
           atomic_load(&stream_of(meeting, rank)->taken) + meeting->blocks <= meeting->put;
}

static bool take_waits_for(const struct meeting *meeting, uint32_t rank)
{
    return meeting->taken < meeting->pieces &&
           atomic_load(&stream_of(meeting, rank)->put) <= meeting->taken;
}

static bool waits_for_any(const struct meeting *meeting,
                          bool (*waits_for)(const struct meeting *meeting, uint32_t rank))
{
    for (uint32_t i = 0; i < meeting->size; i++) {
        if (waits_for(meeting, i))
            return true;
    }
    return false;
}

static bool may_put(const struct meeting *meeting)
{
    return meeting->put < meeting->pieces && !waits_for_any(meeting, put_waits_for);
}

static bool may_take(const struct meeting *meeting)
{
    return meeting->taken < meeting->pieces && !waits_for_any(meeting, take_waits_for);
}

bool meeting_stream_due(const struct meeting *meeting)
{
    return may_put(meeting) || may_take(meeting);
}

bool meeting_stream_waits_for(const struct meeting *meeting, uint32_t rank)
{
    if (rank == meeting->rank)
        return false; /* it may wait for its own next piece, and with that for others */
    if (!is_done(meeting))
        return put_waits_for(meeting, rank) || take_waits_for(meeting, rank);
    const struct meeting_stream *stream = stream_of(meeting, rank);
    return atomic_load(&stream->put) < meeting->pieces ||
           atomic_load(&stream->taken) < meeting->pieces;
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
    uint64_t piece = meeting->put++, at = piece * cut->block * cut->element_bytes;
    for (uint32_t i = 0; i < cut->parts; i++) {
        if (send[i])
            memcpy(block_of(meeting, cut, meeting->rank, piece, i), (const uint8_t *)send[i] + at,
                   piece_bytes(cut, ask, piece));
    }
    atomic_store(&stream_of(meeting, meeting->rank)->put, meeting->put);
}

static void take(struct meeting *meeting, const struct cut *cut, const struct meeting_ask *ask,
                 void *const recv[])
{
    uint64_t piece = meeting->taken++, at = piece * cut->block * cut->element_bytes;
    uint32_t parts = meeting_receives_parts(ask->kind) ? meeting->size : 1;
    uint32_t mine = cut->parts > 1 ? meeting->rank : 0;
    for (uint32_t n = 0; n < parts; n++) {
        uint32_t i = parts > 1 ? (meeting->rank + 1 + n) % parts : 0; /* not all of one at once */
        uint32_t from = parts > 1 ? i : ask->root;
        if (recv[i])
            meeting_copy((uint8_t *)recv[i] + at, block_of(meeting, cut, from, piece, mine),
                         piece_bytes(cut, ask, piece), parts * meeting_part_bytes(ask));
    }
    atomic_store(&stream_of(meeting, meeting->rank)->taken, meeting->taken);
}

enum meeting_verdict meeting_stream_move(struct meeting *meeting, uint64_t round,
                                         const struct meeting_ask *ask, const void *const send[],
                                         void *const recv[])
{
    struct cut cut = cut_of(ask, meeting->size);
    bool any = true;
    for (unsigned i = 0; i < cut.blocks && any; i++) {
        bool puts = may_put(meeting);
        if (puts)
            put(meeting, &cut, ask, send);
        bool takes = may_take(meeting);
        if (takes)
            take(meeting, &cut, ask, recv);
        any = puts || takes;
    }
    if (!is_done(meeting) || atomic_fetch_add(&meeting->place->turned, 1) + 1 < meeting->size)
        return MEETING_TURN;
    meeting_meet(meeting, meeting->met, round, ask);
    return MEETING_MET;
}
