/* Large collectives, which pass through the place in pieces. A collective that only moves data
 * streams (meeting_stream.c).
 *
 * To reduce, every rank makes the same turns. In turn t it puts its data of piece t into the half
 * t % 2 of its part, reduces its own of piece t - 1, and takes what others have reduced of piece
 * t - 2 from the half of that piece. The rank makes the next turn when all have made this one: the
 * data that it reads then is there, and all have read the data that it overwrites.
 *
 *   turn               0        1        2        3
 *   piece 0           put     reduce    take
 *   piece 1                    put     reduce    take
 *
 * In an all_reduce and a reduce all ranks reduce for all, and a piece is cut into a share for each
 * rank. In a reduce_scatter a piece is a range of every part, and nobody takes.
 */
#include <assert.h>
#include <string.h>

#include "common/memory/copy.h"
#include "worker/meeting/meeting_private.h"

/* Most bytes that a rank puts for another in one piece: several blocks fit into a core's cache, and
 * waiting for the others takes little of a turn. */
#define BLOCK_BYTES (UINT64_C(512) << 10)

/* Most bytes that more than two ranks together bring to an all_reduce at once. Larger ones take
 * less time in pieces, which stay in a core's cache from one end to the other. */
#define SUMMED_BYTES (UINT64_C(2) << 20)

/* How an ask is cut; counts in elements. */
struct pieces {
    uint64_t element_bytes;
    uint64_t block; /* of a piece: of each share, or of each part */
    uint64_t pieces;
    bool shares; /* all reduce for all */
};

/* Range of elements: the part of a piece that a rank reduces for all, or a range of every part. */
struct range {
    uint64_t first, count;
};

static struct pieces pieces_of(const struct meeting_ask *ask, uint32_t size)
{
    bool shares = ask->kind == COLLECTIVE_ALL_REDUCE || ask->kind == COLLECTIVE_REDUCE;
    uint32_t blocks = size + (shares ? 1 : 0); /* behind the shares the rank's result */
    uint64_t element_bytes = dtype_bytes(ask->dtype);
    uint64_t bytes = meeting_data_bytes(size) / blocks / COPY_LINE_BYTES * COPY_LINE_BYTES;
    uint64_t block = (bytes < BLOCK_BYTES ? bytes : BLOCK_BYTES) / element_bytes;
    uint64_t piece = shares ? block * size : block;
    return (struct pieces){.element_bytes = element_bytes,
                           .block = block,
                           .pieces = ask->count / piece + (ask->count % piece > 0),
                           .shares = shares};
}

bool meeting_in_pieces(const struct meeting_ask *ask, uint32_t size)
{
    assert(size > 0);
    uint64_t parts = meeting_sends_parts(ask->kind) ? size : 1;
    uint64_t most_bytes = meeting_data_bytes(size);
    if (most_bytes > MEETING_AT_ONCE_BYTES)
        most_bytes = MEETING_AT_ONCE_BYTES;
    if (ask->kind == COLLECTIVE_ALL_REDUCE && size > 2 && most_bytes > SUMMED_BYTES / size)
        most_bytes = SUMMED_BYTES / size;
    return meeting_part_bytes(ask) > most_bytes / parts;
}

void meeting_turns_begin(struct meeting *meeting, const struct meeting_ask *ask)
{
    meeting->turn = 0;
    meeting->stream.blocks = 0;
    if (!collective_has_op(ask->kind)) {
        meeting_stream_begin(meeting, ask);
        return;
    }
    struct pieces pieces = pieces_of(ask, meeting->size);
    meeting->turns = pieces.pieces + (pieces.shares ? 2 : 1);
    atomic_store_explicit(&meeting->place->turns_of[meeting->rank], 0, memory_order_relaxed);
}

void meeting_pass(const struct meeting *meeting, uint64_t round)
{
    struct meeting_place *place = meeting->place;
    atomic_store(&place->turned, 0);
    atomic_store(&place->passing, round);
}

bool meeting_passing(const struct meeting *meeting, uint64_t round)
{
    return atomic_load(&meeting->place->passing) == round && meeting->line > 0 &&
           meeting_in_pieces(meeting_own_ask(meeting, meeting->met), meeting->size);
}

static bool streams(const struct meeting *meeting)
{
    return meeting->stream.blocks > 0;
}

bool meeting_turn_due(const struct meeting *meeting)
{
    if (streams(meeting))
        return meeting_stream_can_go_on(meeting, meeting->rank);
    return meeting->turn < meeting->turns &&
           atomic_load(&meeting->place->turned) >= meeting->turn * meeting->size;
}

bool meeting_is_behind(const struct meeting *meeting, uint32_t rank)
{
    return streams(meeting) ? meeting_stream_can_go_on(meeting, rank)
                            : atomic_load(&meeting->place->turns_of[rank]) < meeting->turn;
}

/* --- ranges ---------------------------------------------------------------------------------- */

/* Return the range of a piece: the rank's share, or the same range of every part. Shares are equal,
 * except in the last piece, and in whole lines. */
static struct range range_of(const struct pieces *pieces, const struct meeting_ask *ask,
                             uint64_t piece, uint32_t rank, uint32_t size)
{
    uint64_t base = piece * pieces->block * (pieces->shares ? size : 1), left = ask->count - base;
    uint64_t range = pieces->block, start = 0;
    if (pieces->shares) {
        uint64_t line = COPY_LINE_BYTES / pieces->element_bytes, share = (left + size - 1) / size;
        share = (share + line - 1) / line * line;
        range = share < pieces->block ? share : pieces->block;
        start = rank * range < left ? rank * range : left;
    }
    return (struct range){.first = base + start,
                          .count = left - start < range ? left - start : range};
}

/* Block i of what the rank has put of a piece; with shares block `size` is its result. */
static uint8_t *block_of(const struct meeting *meeting, const struct pieces *pieces, uint32_t rank,
                         uint64_t piece, uint32_t i)
{
    return meeting_half(meeting, rank, piece % 2) + i * pieces->block * pieces->element_bytes;
}

static const void *sent_from(const void *send, const struct pieces *pieces, struct range range)
{
    return (const uint8_t *)send + range.first * pieces->element_bytes;
}

static void *received_at(void *recv, const struct pieces *pieces, struct range range)
{
    return (uint8_t *)recv + range.first * pieces->element_bytes;
}

/* --- a turn ---------------------------------------------------------------------------------- */

/* The rank's own share or part stays where it is. */
static void put(const struct meeting *meeting, const struct pieces *pieces,
                const struct meeting_ask *ask, uint64_t piece, const void *const send[])
{
    for (uint32_t i = 0; i < meeting->size; i++) {
        const void *from = send[pieces->shares ? 0 : i];
        struct range range = range_of(pieces, ask, piece, i, meeting->size);
        if (from && i != meeting->rank)
            memcpy(block_of(meeting, pieces, meeting->rank, piece, i),
                   sent_from(from, pieces, range), range.count * pieces->element_bytes);
    }
}

static void reduce(const struct meeting *meeting, const struct pieces *pieces,
                   const struct meeting_ask *ask, uint64_t piece, const void *const send[],
                   void *const recv[])
{
    const void *in[MEETING_RANKS_MAX];
    void *out[2];
    unsigned outputs = 0;
    uint32_t rank = meeting->rank;
    struct range range = range_of(pieces, ask, piece, rank, meeting->size);
    for (uint32_t i = 0; i < meeting->size; i++)
        in[i] = block_of(meeting, pieces, i, piece, rank);
    in[rank] = sent_from(send[pieces->shares ? 0 : rank], pieces, range);
    if (recv[0])
        out[outputs++] = received_at(recv[0], pieces, range);
    if (pieces->shares)
        out[outputs++] = block_of(meeting, pieces, rank, piece, meeting->size);
    if (range.count > 0)
        meeting_sum(meeting, ask, in, range.count, out, outputs);
}

/* Take the shares that others have reduced. */
static void take_shares(const struct meeting *meeting, const struct pieces *pieces,
                        const struct meeting_ask *ask, uint64_t piece, void *const recv[])
{
    for (uint32_t i = 0; i < meeting->size && recv[0]; i++) {
        struct range range = range_of(pieces, ask, piece, i, meeting->size);
        if (i != meeting->rank)
            meeting_copy(received_at(recv[0], pieces, range),
                         block_of(meeting, pieces, i, piece, meeting->size),
                         range.count * pieces->element_bytes, meeting_part_bytes(ask));
    }
}

enum meeting_verdict meeting_turn(struct meeting *meeting, uint64_t round,
                                  const struct meeting_ask *ask, const void *const send[],
                                  void *const recv[])
{
    struct meeting_place *place = meeting->place;
    uint64_t turn = meeting->turn++;
    if (streams(meeting))
        return meeting_stream_move(meeting, round, ask, send, recv);
    struct pieces pieces = pieces_of(ask, meeting->size);
    if (turn < pieces.pieces)
        put(meeting, &pieces, ask, turn, send);
    if (turn >= 1 && turn - 1 < pieces.pieces)
        reduce(meeting, &pieces, ask, turn - 1, send, recv);
    if (turn >= 2 && pieces.shares)
        take_shares(meeting, &pieces, ask, turn - 2, recv);
    atomic_store(&place->turns_of[meeting->rank], turn + 1);
    if (atomic_fetch_add(&place->turned, 1) + 1 < (turn + 1) * meeting->size)
        return MEETING_OPEN;
    if (turn + 1 == meeting->turns) {
        meeting_meet(meeting, meeting->met, round, ask);
        return MEETING_MET;
    }
    return MEETING_TURN;
}
