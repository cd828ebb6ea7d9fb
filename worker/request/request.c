#include "worker/request/request.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/format/wire.h"

#define DATA_ALIGNMENT 64u

static struct route ask_route(const struct request_ask *ask)
{
    return ask->block ? ask->route : route_find(ask->kind, ask->root, 0, 0);
}

static bool ranges_overlap_partly(const void *a, const void *b, uint64_t bytes)
{
    uintptr_t first = (uintptr_t)a, second = (uintptr_t)b;
    if (first == second)
        return false;
    return first < second ? second - first < bytes : first - second < bytes;
}

int request_check(const struct request_ask *ask, uint32_t rank, uint32_t size, struct error *error)
{
    const char *name = collective_name(ask->kind);
    if ((unsigned)ask->kind >= COLLECTIVE_KIND_COUNT)
        return error_set(error, ERR_INVALID, "unknown collective %u", (unsigned)ask->kind);
    if (ask->kind == COLLECTIVE_BARRIER)
        return 0;
    size_t element_bytes = dtype_bytes(ask->dtype);
    if (element_bytes == 0)
        return error_set(error, ERR_INVALID, "%s: %d is no element type (0 to %d)", name,
                         (int)ask->dtype, DTYPE_COUNT - 1);
    struct route route = ask_route(ask);
    if (collective_has_op(ask->kind)) {
        if ((unsigned)ask->op >= REDUCE_OP_COUNT)
            return error_set(error, ERR_INVALID, "%s: %d is no operation (0 to %d)", name,
                             (int)ask->op, REDUCE_OP_COUNT - 1);
        if (!reduce_op_allows(ask->op, ask->dtype))
            return error_set(error, ERR_INVALID, "%s: %s is not for %s, only for integers", name,
                             reduce_op_name(ask->op), dtype_name(ask->dtype));
    }
    if (collective_has_root(ask->kind) && ask->root >= size)
        return error_set(error, ERR_INVALID, "%s: root %d is not a rank of the group (0 to %u)",
                         name, (int)ask->root, size - 1);
    if (ask->count > (1ull << 62) / element_bytes)
        return error_set(error, ERR_INVALID, "%s: %" PRIu64 " elements are too many", name,
                         ask->count);
    if (ask->count == 0)
        return 0;
    bool sends = route_sends(&route, rank), receives = route_receives(&route, rank);
    if (sends && !ask->send)
        return error_set(error, ERR_INVALID, "%s: the buffer to send is NULL", name);
    if (receives && !ask->recv)
        return error_set(error, ERR_INVALID, "%s: the buffer to receive into is NULL", name);
    if (sends && receives &&
        ranges_overlap_partly(ask->send, ask->recv, ask->count * element_bytes))
        return error_set(error, ERR_INVALID, "%s: the buffers overlap without being the same",
                         name);
    return 0;
}

/* Whether the caller's buffer can be used where it is; *offset is then where. */
static bool lies_in_arena(const struct request_memory *memory, const void *buffer, uint64_t bytes,
                          uint64_t *offset)
{
    uintptr_t first = (uintptr_t)memory->base + memory->data_offset;
    uintptr_t end = (uintptr_t)memory->base + memory->total_bytes;
    uintptr_t start = (uintptr_t)buffer;
    if (start < first || start > end || bytes > end - start)
        return false;
    *offset = start - (uintptr_t)memory->base;
    return *offset % DATA_ALIGNMENT == 0;
}

bool request_in_arena(const struct request_memory *memory, const void *buffer, uint64_t bytes)
{
    uint64_t offset;
    return lies_in_arena(memory, buffer, bytes, &offset);
}

void request_init_uncut(struct request *request, const struct request_ask *ask, uint32_t rank)
{
    struct route route = ask_route(ask);
    *request = (struct request){.ask = *ask,
                                .copy_in = route_sends(&route, rank),
                                .copy_out = route_receives(&route, rank) && !ask->shared};
    if (ask->kind == COLLECTIVE_BARRIER) {
        request->ask.count = 0;
        request->ask.dtype = DTYPE_U8;
    }
    if (!collective_has_op(ask->kind))
        request->ask.op = REDUCE_SUM;
    if (!collective_has_root(ask->kind))
        request->ask.root = 0;
}

int request_init(struct request *request, const struct request_ask *ask, uint32_t rank,
                 const struct layout_rule *rule, uint64_t sequence,
                 const struct request_memory *memory)
{
    struct request made;
    request_init_uncut(&made, ask, rank);
    made.state = REQUEST_QUEUED;
    made.sequence = sequence;
    uint64_t elements = route_in_blocks(ask->kind) && ask->block == 0 ? 0 : made.ask.count;
    made.block_rule = layout_rule_single(rule, ask->kind != COLLECTIVE_SEND);
    int code = layout_init(&made.layout, ask->block ? &made.block_rule : rule, sequence,
                           ask->identity, elements, (uint32_t)dtype_bytes(made.ask.dtype));
    if (code < 0)
        return code;
    made.waiting = ask->on_device;
    made.own = ask->on_device && ask->own_bytes > 0 ? OWN_PENDING : OWN_NONE;
    uint64_t bytes = request_bytes(&made);
    if (bytes == 0) {
        made.in_offset = made.out_offset = memory->data_offset;
    } else {
        /* A rank that does not receive (send) still names memory: its own other buffer. */
        const void *in = made.copy_in ? ask->send : ask->recv;
        const void *out = made.copy_out ? ask->recv : ask->send;
        /* Sends and receives are of the arena's memory, wherever the data comes from. */
        bool of_device = ask->on_device && ask->kind != COLLECTIVE_SEND;
        made.staged = of_device || !lies_in_arena(memory, in, bytes, &made.in_offset);
        if (ask->shared)
            made.out_offset = ask->shared_offset;
        else if (!lies_in_arena(memory, out, bytes, &made.out_offset))
            made.staged = true;
    }
    *request = made;
    if (ask->block)
        request->layout.rule = &request->block_rule;
    return 0;
}

void request_clear(struct request *request)
{
    request_drop_kept(request);
    free(request->error_text);
    request->error_text = NULL;
    free(request->blocks);
    request->blocks = NULL;
    free(request->asked);
    request->asked = NULL;
}

bool request_has_chunk(const struct request *request)
{
    return request->staged && !request->waiting && request->chunks_given < request->layout.chunks;
}

bool request_finished(const struct request *request)
{
    return request->done_seen && request->own == OWN_NONE &&
           (!request->staged || request->chunks_done == request->layout.chunks);
}

uint64_t request_bytes(const struct request *request)
{
    return request->layout.count * request->layout.element_bytes;
}

uint64_t request_chunk_offset(const struct request *request, const struct layout_chunk *chunk)
{
    return chunk->first * request->layout.element_bytes;
}

uint64_t request_chunk_bytes(const struct request *request, const struct layout_chunk *chunk)
{
    return chunk->count * request->layout.element_bytes;
}

/* Whether all ranks know how many elements there are all together, or how many a block has. */
static bool has_count(const struct request_ask *ask)
{
    return !route_in_blocks(ask->kind) || ask->block || ask->kind == COLLECTIVE_ALL_GATHER ||
           ask->kind == COLLECTIVE_REDUCE_SCATTER;
}

void request_describe(const struct request *request, uint32_t group, char *text, size_t bytes)
{
    const struct request_ask *ask = &request->ask;
    char what[128];
    if (request->any) {
        snprintf(text, bytes,
                 "recv of %" PRIu64 " %s from any rank of group %" PRIu32 " with tag %" PRIu32
                 ": nobody has sent it yet",
                 ask->count, dtype_name(ask->dtype), group,
                 (uint32_t)(request->sequence >> WIRE_SEND_TAG_SHIFT) & WIRE_SEND_TAG_MAX);
        return;
    }
    if (ask->kind == COLLECTIVE_SEND) {
        snprintf(text, bytes,
                 "%s of %" PRIu64 " %s %s rank %" PRIu32 " of group %" PRIu32 " with tag %" PRIu32
                 ", number %" PRIu32 ": %s",
                 request->receives ? "recv" : "send", ask->count, dtype_name(ask->dtype),
                 request->receives ? "from" : "to",
                 request->receives ? ask->route.from : ask->route.to, group,
                 (uint32_t)(request->sequence >> WIRE_SEND_TAG_SHIFT) & WIRE_SEND_TAG_MAX,
                 (uint32_t)request->sequence,
                 request->waiting && (request->state == REQUEST_LOADING || request->done_seen)
                     ? "its stream has not come to it"
                 : request->state == REQUEST_SUBMITTED ? "submitted"
                                                       : "not submitted yet");
        return;
    }
    if (ask->kind == COLLECTIVE_BARRIER)
        snprintf(what, sizeof(what), "barrier");
    else if (ask->kind == COLLECTIVE_BROADCAST)
        snprintf(what, sizeof(what), "broadcast of %" PRIu64 " %s from rank %" PRIu32, ask->count,
                 dtype_name(ask->dtype), ask->root);
    else if (!has_count(ask))
        snprintf(what, sizeof(what), "%s of %s", collective_name(ask->kind),
                 dtype_name(ask->dtype));
    else if (!collective_has_op(ask->kind))
        snprintf(what, sizeof(what), "%s of %" PRIu64 " %s", collective_name(ask->kind), ask->count,
                 dtype_name(ask->dtype));
    else
        snprintf(what, sizeof(what), "%s of %" PRIu64 " %s (%s)", collective_name(ask->kind),
                 ask->count, dtype_name(ask->dtype), reduce_op_name(ask->op));
    uint64_t number = request->sequence + request->met; /* as the daemon counts */
    if (request->blocks)
        snprintf(text, bytes,
                 "%s, collective %" PRIu64 " of group %" PRIu32 ": %" PRIu32 " of %" PRIu32
                 " parts complete",
                 what, number, group, request->block_count + 1 - request->incomplete,
                 request->block_count + 1);
    else if (request->state == REQUEST_MEETING)
        snprintf(text, bytes,
                 "%s in group %" PRIu32 ": the ranks of this node are not done with it", what,
                 group);
    else if (request->staged && request->waiting)
        snprintf(text, bytes,
                 "%s, collective %" PRIu64 " of group %" PRIu32 ": its stream has not come to it",
                 what, number, group);
    else if (request->staged)
        snprintf(text, bytes,
                 "%s, collective %" PRIu64 " of group %" PRIu32 ": %" PRIu32 " of %" PRIu32
                 " chunks handed over, %" PRIu32 " back",
                 what, number, group, request->chunks_given, request->layout.chunks,
                 request->chunks_back);
    else
        snprintf(text, bytes, "%s, collective %" PRIu64 " of group %" PRIu32 ": %s", what, number,
                 group, request->state == REQUEST_QUEUED ? "not submitted yet" : "submitted");
}
