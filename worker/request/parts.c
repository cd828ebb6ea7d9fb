#include "worker/request/parts.h"

#include <inttypes.h>

static bool send_is_one(enum collective_kind kind)
{
    return kind == COLLECTIVE_ALL_GATHER || kind == COLLECTIVE_GATHER;
}

static bool recv_is_one(enum collective_kind kind)
{
    return kind == COLLECTIVE_REDUCE_SCATTER || kind == COLLECTIVE_SCATTER;
}

/* --- sides -------------------------------------------------------------------------------- */

static uint64_t side_count(const struct parts_side *side, uint32_t rank)
{
    return side->counts ? side->counts[rank] : side->count;
}

static const void *side_buffer(const struct parts_side *side, uint32_t rank, size_t element_bytes)
{
    if (side->buffers)
        return side->buffers[rank];
    if (!side->base)
        return NULL;
    return (const uint8_t *)side->base + rank * side->count * element_bytes;
}

/* Return how many elements this rank sends to `to`. */
static uint64_t parts_send_count(const struct parts_ask *ask, uint32_t to)
{
    return send_is_one(ask->kind) ? ask->send.count : side_count(&ask->send, to);
}

static const void *send_buffer(const struct parts_ask *ask, uint32_t to)
{
    return send_is_one(ask->kind) ? ask->send.base
                                  : side_buffer(&ask->send, to, dtype_bytes(ask->dtype));
}

static uint64_t parts_recv_count(const struct parts_ask *ask, uint32_t from)
{
    return recv_is_one(ask->kind) ? ask->recv.count : side_count(&ask->recv, from);
}

static void *recv_buffer(const struct parts_ask *ask, uint32_t from)
{
    return (void *)(uintptr_t)(recv_is_one(ask->kind)
                                   ? ask->recv.base
                                   : side_buffer(&ask->recv, from, dtype_bytes(ask->dtype)));
}

static bool has_send(const struct parts_ask *ask)
{
    return ask->kind != COLLECTIVE_SCATTER || ask->rank == ask->root;
}

static bool has_recv(const struct parts_ask *ask)
{
    return ask->kind != COLLECTIVE_GATHER || ask->rank == ask->root;
}

/* --- checks ------------------------------------------------------------------------------- */

static int check_kind(const struct parts_ask *ask, struct error *error)
{
    const char *name = collective_name(ask->kind);
    if (dtype_bytes(ask->dtype) == 0)
        return error_set(error, ERR_INVALID, "%s: %d is no element type (0 to %d)", name,
                         (int)ask->dtype, DTYPE_COUNT - 1);
    if (collective_has_op(ask->kind) && (unsigned)ask->op >= REDUCE_OP_COUNT)
        return error_set(error, ERR_INVALID, "%s: %d is no operation (0 to %d)", name, (int)ask->op,
                         REDUCE_OP_COUNT - 1);
    if (collective_has_op(ask->kind) && !reduce_op_allows(ask->op, ask->dtype))
        return error_set(error, ERR_INVALID, "%s: %s is not for %s, only for integers", name,
                         reduce_op_name(ask->op), dtype_name(ask->dtype));
    if (collective_has_root(ask->kind) && ask->root >= ask->size)
        return error_set(error, ERR_INVALID, "%s: root %d is not a rank of the group (0 to %u)",
                         name, (int)ask->root, ask->size - 1);
    if (ask->size > ROUTE_MAX_RANKS)
        return error_set(error, ERR_INVALID, "%s: a group of %u ranks is too large (at most %u)",
                         name, ask->size, ROUTE_MAX_RANKS);
    return 0;
}

/* `one`: the side's only buffer; else `peer` says which of them. */
static int check_part(const struct parts_ask *ask, bool sent, bool one, uint32_t peer,
                      uint64_t *sum, struct error *error)
{
    const char *name = collective_name(ask->kind);
    uint64_t count = sent ? parts_send_count(ask, peer) : parts_recv_count(ask, peer);
    if (count > (1ull << 62) / dtype_bytes(ask->dtype) - *sum)
        return error_set(error, ERR_INVALID, "%s: %" PRIu64 " elements are too many", name, count);
    *sum += count;
    if (count == 0 || (sent ? send_buffer(ask, peer) : recv_buffer(ask, peer)))
        return 0;
    if (one)
        return error_set(error, ERR_INVALID, "%s: the buffer to %s is NULL", name,
                         sent ? "send" : "receive into");
    return error_set(error, ERR_INVALID, "%s: the buffer to %s rank %" PRIu32 " is NULL", name,
                     sent ? "send to" : "receive into from", peer);
}

static int check_buffers(const struct parts_ask *ask, struct error *error)
{
    uint64_t sent = 0, received = 0;
    bool one_sent = send_is_one(ask->kind), one_received = recv_is_one(ask->kind);
    uint32_t sends = !has_send(ask) ? 0 : one_sent ? 1 : ask->size;
    uint32_t recvs = !has_recv(ask) ? 0 : one_received ? 1 : ask->size;
    const char *name = collective_name(ask->kind);
    if ((sends > 1 && ask->send.counts && !ask->send.buffers) ||
        (recvs > 1 && ask->recv.counts && !ask->recv.buffers))
        return error_set(error, ERR_INVALID, "%s: the list of buffers is NULL", name);
    for (uint32_t i = 0; i < sends; i++) {
        if (check_part(ask, true, one_sent, i, &sent, error))
            return ERR_INVALID;
    }
    for (uint32_t i = 0; i < recvs; i++) {
        if (check_part(ask, false, one_received, i, &received, error))
            return ERR_INVALID;
    }
    return 0;
}

static bool overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes)
{
    uintptr_t first = (uintptr_t)a, second = (uintptr_t)b;
    if (a_bytes == 0 || b_bytes == 0)
        return false;
    return first < second ? second - first < a_bytes : first - second < b_bytes;
}

/* With parts on both sides only those that lie side by side are looked at: lists would take a look
 * at every pair. */
static int check_overlap_of_many(const struct parts_ask *ask, struct error *error)
{
    uint64_t element_bytes = dtype_bytes(ask->dtype);
    if (ask->send.buffers || ask->recv.buffers ||
        !overlap(ask->send.base, ask->size * ask->send.count * element_bytes, ask->recv.base,
                 ask->size * ask->recv.count * element_bytes))
        return 0;
    return error_set(error, ERR_INVALID, "%s: the buffers overlap", collective_name(ask->kind));
}

/* The one buffer of a side may be this rank's own part of the other, and no other memory of it. */
static int check_overlap(const struct parts_ask *ask, struct error *error)
{
    uint64_t element_bytes = dtype_bytes(ask->dtype);
    if (!has_send(ask) || !has_recv(ask))
        return 0;
    if (!send_is_one(ask->kind) && !recv_is_one(ask->kind))
        return check_overlap_of_many(ask, error);
    for (uint32_t i = 0; i < ask->size; i++) {
        const void *from = send_buffer(ask, i), *to = recv_buffer(ask, i);
        if (i == ask->rank && from == to)
            continue;
        if (overlap(from, parts_send_count(ask, i) * element_bytes, to,
                    parts_recv_count(ask, i) * element_bytes))
            return error_set(error, ERR_INVALID,
                             "%s: the buffers overlap, other than as this rank's own part",
                             collective_name(ask->kind));
    }
    return 0;
}

/* Both sides of this rank's own part must be of one size. */
static int check_own_part(const struct parts_ask *ask, struct error *error)
{
    if (!has_send(ask) || !has_recv(ask))
        return 0; /* a side that is not used must not even be looked at */
    uint64_t sent = parts_send_count(ask, ask->rank), received = parts_recv_count(ask, ask->rank);
    if (sent == received)
        return 0;
    return error_set(error, ERR_INVALID,
                     "%s: rank %" PRIu32 " sends %" PRIu64
                     " elements to itself and receives %" PRIu64,
                     collective_name(ask->kind), ask->rank, sent, received);
}

int parts_check(const struct parts_ask *ask, struct error *error)
{
    int code = check_kind(ask, error);
    if (code == 0)
        code = check_buffers(ask, error);
    if (code == 0)
        code = check_own_part(ask, error);
    if (code == 0)
        code = check_overlap(ask, error);
    return code;
}

/* --- blocks ------------------------------------------------------------------------------- */

/* Return the count that all ranks must agree on: the elements of all parts where every rank knows
 * them, else 0. */
static uint64_t whole_count(const struct parts_ask *ask)
{
    const struct parts_side *all = ask->kind == COLLECTIVE_ALL_GATHER       ? &ask->recv
                                   : ask->kind == COLLECTIVE_REDUCE_SCATTER ? &ask->send
                                                                            : NULL;
    uint64_t sum = 0;
    for (uint32_t i = 0; all && i < ask->size; i++)
        sum += side_count(all, i);
    return sum;
}

struct request_ask parts_whole(const struct parts_ask *ask)
{
    return (struct request_ask){.kind = ask->kind,
                                .dtype = ask->dtype,
                                .op = ask->op,
                                .root = ask->root,
                                .count = whole_count(ask),
                                .priority = ask->priority};
}

uint32_t parts_block_count(const struct parts_ask *ask)
{
    return route_block_count(ask->kind, ask->root, ask->rank, ask->size);
}

static struct request_ask block_ask(const struct parts_ask *ask, const struct request_ask *whole,
                                    uint32_t block)
{
    struct request_ask made = *whole;
    struct route route = route_find(ask->kind, ask->root, block, ask->size);
    made.block = block;
    made.route = route;
    if (route_sends(&route, ask->rank)) {
        uint32_t to = route.to == ROUTE_ALL ? 0 : route.to;
        made.send = send_buffer(ask, to);
        made.count = parts_send_count(ask, to);
    }
    if (route_receives(&route, ask->rank)) {
        uint32_t from = route.from == ROUTE_ALL ? 0 : route.from;
        made.recv = recv_buffer(ask, from);
        made.count = parts_recv_count(ask, from);
    }
    return made;
}

void parts_blocks(const struct parts_ask *ask, struct request_ask *blocks)
{
    const struct request_ask whole = parts_whole(ask);
    uint32_t count = 0;
    uint32_t block = route_next_block(ask->kind, ask->root, ask->rank, ask->size, 0);
    for (; block > 0;
         block = route_next_block(ask->kind, ask->root, ask->rank, ask->size, block + 1))
        blocks[count++] = block_ask(ask, &whole, block);
}

struct parts_copy parts_own_copy(const struct parts_ask *ask)
{
    if (!has_send(ask) || !has_recv(ask) || ask->kind == COLLECTIVE_REDUCE_SCATTER)
        return (struct parts_copy){0};
    struct parts_copy copy = {.to = recv_buffer(ask, ask->rank),
                              .from = send_buffer(ask, ask->rank),
                              .bytes = parts_send_count(ask, ask->rank) * dtype_bytes(ask->dtype)};
    if (copy.to == copy.from)
        copy.bytes = 0;
    return copy;
}
