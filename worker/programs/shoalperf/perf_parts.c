#include "worker/programs/shoalperf/perf_parts.h"

#include <stdlib.h>

#define ALIGNMENT 64u
#define GAP_BYTES 64u

static bool sends_one(enum collective_kind kind)
{
    return kind == COLLECTIVE_ALL_GATHER || kind == COLLECTIVE_GATHER || kind == COLLECTIVE_SEND;
}

static bool receives_one(enum collective_kind kind)
{
    return kind == COLLECTIVE_REDUCE_SCATTER || kind == COLLECTIVE_SCATTER ||
           kind == COLLECTIVE_SEND;
}

static uint32_t perf_send_parts(const struct perf_case *what)
{
    if (what->collective == COLLECTIVE_SCATTER && what->rank != what->root)
        return 0;
    return sends_one(what->collective) ? 1 : what->ranks;
}

static uint32_t perf_recv_parts(const struct perf_case *what)
{
    if (what->collective == COLLECTIVE_GATHER && what->rank != what->root)
        return 0;
    return receives_one(what->collective) ? 1 : what->ranks;
}

/* A part and a gap, aligned, for each rank, and a gap behind the last. */
uint64_t perf_parts_bytes(uint64_t bytes, uint32_t ranks)
{
    return (bytes + ((uint64_t)ranks + 1) * (GAP_BYTES + ALIGNMENT) + ALIGNMENT - 1) / ALIGNMENT *
           ALIGNMENT;
}

/* Two parts side by side give and take; the last of an odd number is as it is. */
static uint64_t uneven_count(uint64_t count, uint32_t index, uint32_t ranks)
{
    uint64_t moved = (count + 1) / 2;
    if (index == ranks - 1 && ranks % 2 == 1)
        return count;
    return index % 2 ? count + moved : count - moved;
}

uint64_t perf_parts_count(const struct perf_parts_case *is, uint32_t from, uint32_t to)
{
    enum collective_kind kind = is->what.collective;
    uint32_t ranks = is->what.ranks;
    if (!is->uneven)
        return is->count;
    if (kind == COLLECTIVE_ALL_TO_ALL) /* in turn, so that all rows and columns have one sum */
        return uneven_count(is->count, (to + ranks - from) % ranks, ranks);
    return uneven_count(is->count, sends_one(kind) ? from : to, ranks);
}

/* The data that goes from one rank to another, for who gives it or gets it. */
static int values_make(const struct perf_parts *parts, uint32_t from, uint32_t to, bool received,
                       struct perf_values *values, struct error *error)
{
    struct perf_case what = parts->is.what;
    bool reduces = what.collective == COLLECTIVE_REDUCE_SCATTER;
    /* For all of them rounds do not meet: `to` is less than ranks. */
    what.round = what.round * what.ranks + (sends_one(what.collective) ? 0 : to);
    if (reduces) {
        what.input_only = !received;
    } else { /* a broadcast of its sender */
        what.collective = COLLECTIVE_BROADCAST;
        what.rank = what.root = from;
    }
    return perf_values_make(values, &what, error);
}

/* Side by side; uneven ones in falling order, aligned, with gaps before them. */
static void perf_side_lay_out(struct perf_side *side, bool uneven, uint32_t element_bytes)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < side->parts; i++) {
        uint32_t part = uneven ? side->parts - 1 - i : i;
        if (uneven)
            at = (at + GAP_BYTES + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        side->buffers[part] = side->memory + at;
        at += side->counts[part] * element_bytes;
    }
    side->bytes = at + GAP_BYTES;
}

/* The other rank of a side's part; this one, where there are many. */
static uint32_t part_peer(const struct perf_case *what, bool received, uint32_t part)
{
    if (received && what->collective == COLLECTIVE_SCATTER)
        return what->root;
    if (what->collective == COLLECTIVE_SEND)
        return (what->rank + (received ? what->ranks - 1 : 1)) % what->ranks;
    bool one = received ? receives_one(what->collective) : sends_one(what->collective);
    return one ? what->rank : part;
}

static int side_make(struct perf_parts *parts, struct perf_side *side, bool received,
                     struct error *error)
{
    const struct perf_case *what = &parts->is.what;
    uint32_t own = what->rank, wanted = side->parts;
    side->buffers = calloc(wanted + 1u, sizeof(*side->buffers));
    side->counts = calloc(wanted + 1u, sizeof(*side->counts));
    side->values = calloc(wanted + 1u, sizeof(*side->values));
    if (!side->buffers || !side->counts || !side->values)
        return error_set(error, ERR_MEMORY, "out of memory for %u parts", wanted);
    for (uint32_t i = 0; i < wanted; i++) {
        uint32_t peer = part_peer(what, received, i);
        uint32_t from = received ? peer : own, to = received ? own : peer;
        side->counts[i] = perf_parts_count(&parts->is, from, to);
        int code = values_make(parts, from, to, received, &side->values[i], error);
        if (code < 0)
            return code;
    }
    perf_side_lay_out(side, parts->is.uneven, (uint32_t)dtype_bytes(what->dtype));
    return 0;
}

int perf_parts_make(struct perf_parts *parts, const struct perf_parts_case *is, void *send,
                    void *recv, struct error *error)
{
    uint32_t rank = is->what.rank;
    *parts = (struct perf_parts){
        .is = *is,
        .send = {.memory = send, .parts = perf_send_parts(&is->what)},
        .recv = {.memory = recv, .parts = perf_recv_parts(&is->what)},
    };
    int code = side_make(parts, &parts->send, false, error);
    if (code == 0)
        code = side_make(parts, &parts->recv, true, error);
    if (code < 0)
        return code;
    bool both = parts->send.parts > 0 && parts->recv.parts > 0;
    parts->is.in_place = is->in_place && both;
    if (parts->is.in_place && sends_one(is->what.collective))
        parts->send.buffers[0] = parts->recv.buffers[rank];
    else if (parts->is.in_place)
        parts->recv.buffers[0] = parts->send.buffers[rank];
    return 0;
}

static void side_clear(struct perf_side *side)
{
    for (uint32_t i = 0; side->values && i < side->parts; i++)
        perf_values_clear(&side->values[i]);
    free(side->values);
    free(side->counts);
    free(side->buffers);
    *side = (struct perf_side){0};
}

void perf_parts_clear(struct perf_parts *parts)
{
    side_clear(&parts->send);
    side_clear(&parts->recv);
}

static const struct perf_values bytes_alone = {.dtype = DTYPE_U8, .element_bytes = 1};

void perf_parts_prepare(const struct perf_parts *parts)
{
    const struct perf_side *send = &parts->send, *recv = &parts->recv;
    perf_values_poison(&bytes_alone, send->memory, send->bytes);
    perf_values_poison(&bytes_alone, recv->memory, recv->bytes);
    for (uint32_t i = 0; i < send->parts; i++)
        perf_values_fill(&send->values[i], send->buffers[i], send->counts[i]);
}

/* --- the calls ----------------------------------------------------------------------------- */

/* The first part of a side that lies side by side, or its only one; NULL: there is no such side. */
static void *first(const struct perf_side *side)
{
    return side->parts ? side->buffers[0] : NULL;
}

/* To the next rank, from the one before. Sends wait for their receives, which all ranks start
 * first.
 */
static int start_send(const struct perf_parts *parts, shoal_group *group, shoal_request **request)
{
    const struct perf_case *what = &parts->is.what;
    enum shoal_dtype dtype = (enum shoal_dtype)what->dtype;
    int next = (int)part_peer(what, false, 0), before = (int)part_peer(what, true, 0);
    int result = shoal_recv(group, first(&parts->recv), parts->is.count, dtype, before, 0, request);
    if (result != SHOAL_OK)
        return result;
    result = shoal_send(group, first(&parts->send), parts->is.count, dtype, next, 0, NULL);
    if (result != SHOAL_OK)
        shoal_request_free(*request);
    return result;
}

static int start_even(const struct perf_parts *parts, shoal_group *group, shoal_request **request)
{
    const struct perf_case *what = &parts->is.what;
    const void *send = first(&parts->send);
    void *recv = first(&parts->recv);
    size_t count = parts->is.count;
    enum shoal_dtype dtype = (enum shoal_dtype)what->dtype;
    int root = (int)what->root;
    switch (what->collective) {
    case COLLECTIVE_ALL_GATHER:
        return shoal_all_gather(group, send, recv, count, dtype, request);
    case COLLECTIVE_REDUCE_SCATTER:
        return shoal_reduce_scatter(group, send, recv, count, dtype, (enum shoal_op)what->op,
                                    request);
    case COLLECTIVE_GATHER:
        return shoal_gather(group, send, recv, count, dtype, root, request);
    case COLLECTIVE_SCATTER:
        return shoal_scatter(group, send, recv, count, dtype, root, request);
    case COLLECTIVE_SEND:
        return start_send(parts, group, request);
    default:
        return shoal_all_to_all(group, send, recv, count, dtype, request);
    }
}

static int start_uneven(const struct perf_parts *parts, shoal_group *group, shoal_request **request)
{
    const struct perf_case *what = &parts->is.what;
    const struct perf_side *send = &parts->send, *recv = &parts->recv;
    const void *const *from = (const void *const *)send->buffers;
    enum shoal_dtype dtype = (enum shoal_dtype)what->dtype;
    int root = (int)what->root;
    switch (what->collective) {
    case COLLECTIVE_ALL_GATHER:
        return shoal_all_gather_v(group, first(send), recv->buffers, recv->counts, dtype, request);
    case COLLECTIVE_REDUCE_SCATTER:
        return shoal_reduce_scatter_v(group, from, first(recv), send->counts, dtype,
                                      (enum shoal_op)what->op, request);
    case COLLECTIVE_GATHER:
        return shoal_gather_v(group, first(send), send->counts[0], recv->buffers, recv->counts,
                              dtype, root, request);
    case COLLECTIVE_SCATTER:
        return shoal_scatter_v(group, from, send->counts, first(recv), recv->counts[0], dtype, root,
                               request);
    default:
        return shoal_all_to_all_v(group, from, send->counts, recv->buffers, recv->counts, dtype,
                                  request);
    }
}

static int start_made(const struct perf_parts *parts, shoal_group *group, shoal_request **request)
{
    return parts->is.uneven ? start_uneven(parts, group, request)
                            : start_even(parts, group, request);
}

/* Return the side's buffers moved to other memory, at the same offsets: a list for the caller to
 * free, or NULL. A buffer in place lies in the other side's memory. */
static void **move_buffers(const struct perf_parts *parts, const struct perf_side *side,
                           uint8_t *send, uint8_t *recv)
{
    const struct perf_side *from = &parts->send;
    void **moved = calloc(side->parts + 1, sizeof(*moved)); /* NOLINT: of pointers */
    for (uint32_t i = 0; moved && i < side->parts; i++) {
        uint8_t *at = side->buffers[i];
        bool in_send = at >= from->memory && at <= from->memory + from->bytes;
        moved[i] = in_send ? send + (at - from->memory) : recv + (at - parts->recv.memory);
    }
    return moved;
}

int perf_parts_start(const struct perf_parts *parts, void *send, void *recv, shoal_group *group,
                     shoal_request **request)
{
    struct perf_parts moved = *parts;
    int result = SHOAL_EMEMORY;
    if (send == parts->send.memory && recv == parts->recv.memory)
        return start_made(parts, group, request); /* no list to make in what is measured */
    moved.send.buffers = move_buffers(parts, &parts->send, send, recv);
    moved.recv.buffers = move_buffers(parts, &parts->recv, send, recv);
    if (moved.send.buffers && moved.recv.buffers)
        result = start_made(&moved, group, request);
    free(moved.send.buffers);
    free(moved.recv.buffers);
    return result;
}

/* --- what must be there ---------------------------------------------------------------------- */

static uint64_t gap_check(const uint8_t *from, const uint8_t *to)
{
    return perf_values_check_poison(&bytes_alone, from, (uint64_t)(to - from));
}

/* The parts in a side's own memory, but `skipped`, and what is between and behind them. */
static uint64_t side_check(const struct perf_side *side, bool received, bool uneven,
                           uint32_t skipped)
{
    uint64_t wrong = 0;
    const uint8_t *at = side->memory;
    for (uint32_t i = 0; i < side->parts; i++) {
        uint32_t part = uneven ? side->parts - 1 - i : i;
        const struct perf_values *values = &side->values[part];
        const uint8_t *data = side->buffers[part];
        uint64_t count = side->counts[part];
        wrong += gap_check(at, data);
        if (part != skipped)
            wrong += received ? perf_values_check(values, data, count, NULL)
                              : perf_values_check_input(values, data, count);
        at = data + count * values->element_bytes;
    }
    return wrong + gap_check(at, side->memory + side->bytes);
}

uint64_t perf_parts_check(const struct perf_parts *parts)
{
    const struct perf_side *send = &parts->send, *recv = &parts->recv;
    bool uneven = parts->is.uneven;
    uint32_t nothing = UINT32_MAX;
    if (!parts->is.in_place)
        return side_check(send, false, uneven, nothing) + side_check(recv, true, uneven, nothing);
    if (sends_one(parts->is.what.collective))
        return side_check(recv, true, uneven, nothing) +
               gap_check(send->memory, send->memory + send->bytes);
    return side_check(send, false, uneven, parts->is.what.rank) +
           perf_values_check(&recv->values[0], recv->buffers[0], recv->counts[0], NULL) +
           gap_check(recv->memory, recv->memory + recv->bytes);
}

bool perf_parts_repeats(const struct perf_parts_case *is)
{
    return !is->in_place || is->what.collective != COLLECTIVE_REDUCE_SCATTER;
}
