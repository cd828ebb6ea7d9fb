/* Requests that may be begun again: what they send is kept where results overwrite it. */
#include <inttypes.h>
#include <string.h>

#include "worker/request/request.h"

/* The memory between the first and the last byte of several buffers. */
struct span {
    uintptr_t first, end;
};

static void span_add(struct span *span, const void *buffer, uint64_t bytes)
{
    uintptr_t first = (uintptr_t)buffer;
    if (bytes == 0)
        return;
    if (span->end == 0 || first < span->first)
        span->first = first;
    if (first + bytes > span->end)
        span->end = first + bytes;
}

/* Return how many bytes travel: a collective itself has no data when it is in blocks. */
static uint64_t ask_bytes(const struct request_ask *ask)
{
    if (ask->kind == COLLECTIVE_BARRIER || (route_in_blocks(ask->kind) && ask->block == 0))
        return 0;
    return ask->count * dtype_bytes(ask->dtype);
}

static bool ask_sends(const struct request_ask *ask, uint32_t rank)
{
    struct route route = ask->block ? ask->route : route_find(ask->kind, ask->root, 0, 0);
    return ask_bytes(ask) > 0 && route_sends(&route, rank);
}

/* Whether the result overwrites what was sent; in a broadcast the root gets its own bits back. */
static bool ask_overwrites(const struct request_ask *ask, uint32_t rank)
{
    struct route route = ask->block ? ask->route : route_find(ask->kind, ask->root, 0, 0);
    return ask_bytes(ask) > 0 && route_receives(&route, rank) &&
           !(ask->kind == COLLECTIVE_BROADCAST && ask->root == rank);
}

static int keep_one(struct kept_memory *memory, struct request_ask *ask, uint32_t rank,
                    struct error *error)
{
    uint64_t bytes = ask_bytes(ask);
    if (bytes == 0 || !ask_sends(ask, rank))
        return 0;
    ask->kept = kept_memory_take(memory, bytes);
    if (!ask->kept)
        return error_set(error, ERR_MEMORY,
                         "%s: out of memory for a copy of %" PRIu64 " bytes that its result "
                         "overwrites, and that a job with recovery keeps",
                         collective_name(ask->kind), bytes);
    return 0;
}

int request_keep_sent(struct kept_memory *memory, struct request_ask *ask,
                      struct request_ask *blocks, uint32_t block_count, uint32_t rank,
                      struct error *error)
{
    struct span sent = {0}, written = {0};
    for (uint32_t i = 0; i <= block_count; i++) {
        const struct request_ask *one = i < block_count ? &blocks[i] : ask;
        if (ask_sends(one, rank))
            span_add(&sent, one->send, ask_bytes(one));
        if (ask_overwrites(one, rank))
            span_add(&written, one->recv, ask_bytes(one));
    }
    if (sent.first >= written.end || written.first >= sent.end)
        return 0;
    int code = keep_one(memory, ask, rank, error);
    for (uint32_t i = 0; i < block_count && code == 0; i++)
        code = keep_one(memory, &blocks[i], rank, error);
    if (code < 0)
        request_forget_kept(ask, blocks, block_count);
    return code;
}

void request_copy_sent(const struct request_ask *ask, const struct request_ask *blocks,
                       uint32_t block_count)
{
    if (ask->kept)
        memcpy(ask->kept, ask->send, ask_bytes(ask));
    for (uint32_t i = 0; i < block_count; i++)
        request_copy_sent(&blocks[i], NULL, 0);
}

void request_forget_kept(struct request_ask *ask, struct request_ask *blocks, uint32_t block_count)
{
    kept_memory_give_back(ask->kept);
    ask->kept = NULL;
    for (uint32_t i = 0; i < block_count; i++)
        request_forget_kept(&blocks[i], NULL, 0);
}

void request_drop_kept(struct request *request)
{
    request_forget_kept(&request->ask, NULL, 0);
    for (uint32_t i = 0; i < request->block_count; i++)
        request_drop_kept(&request->blocks[i]);
}

void request_restore(const struct request *request)
{
    if (request->ask.kept) {
        void *sent = (void *)(uintptr_t)request->ask.send; /* it is also written to */
        memcpy(sent, request->ask.kept, ask_bytes(&request->ask));
    }
    for (uint32_t i = 0; i < request->block_count; i++)
        request_restore(&request->blocks[i]);
}

int request_again(struct request *request, uint32_t rank, const struct layout_rule *rule,
                  uint64_t sequence, const struct request_memory *memory)
{
    struct request old = *request;
    int code = request_init(request, &old.ask, rank, rule, sequence, memory);
    if (code < 0)
        return code;
    request->group = old.group;
    request->age = old.age;
    request->whole = old.whole;
    request->blocks = old.blocks;
    request->block_count = old.block_count;
    request->index = old.index;
    request->kept_prev = old.kept_prev;
    request->kept_next = old.kept_next;
    return 0;
}
