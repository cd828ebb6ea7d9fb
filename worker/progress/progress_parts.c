/* Requests on a device, in parts: a slot of the pool holds several chunks. The chunks of one shard
 * lie together in the caller's buffer, and also in the slot: a row for each shard, of as many
 * places as it has chunks there at the most.
 *
 *   chunks 8..15 of 2 shards:   | 8 10 12 14 | 9 11 13 15 |
 */
#include <utlist.h>

#include "worker/progress/progress_private.h"

#define CHUNK_ALIGNMENT 64u

static uint32_t rows(const struct layout *layout, uint32_t chunks)
{
    return chunks < layout->shards ? chunks : layout->shards;
}

static uint64_t row_bytes(const struct layout *layout, uint32_t chunks)
{
    uint64_t place = (layout->largest_bytes + CHUNK_ALIGNMENT - 1) & ~(CHUNK_ALIGNMENT - 1ull);
    uint64_t places = (chunks + layout->shards - 1) / layout->shards;
    return places * (place > 0 ? place : CHUNK_ALIGNMENT);
}

static uint64_t most_bytes(const struct progress *progress)
{
    uint64_t most = progress->staging.pool_bytes / PROGRESS_PARTS;
    return most > PROGRESS_COPY_BYTES ? most : PROGRESS_COPY_BYTES;
}

uint64_t progress_part_bytes(const struct progress *progress, uint64_t bytes)
{
    uint64_t least = progress->part_least_bytes, most = most_bytes(progress);
    uint64_t part = (bytes + PROGRESS_PARTS - 1) / PROGRESS_PARTS;
    part = part < least ? least : part;
    return part > most ? most : part;
}

/* Return how many chunks of the rest the next part takes: whole rows, if there is more than one
 * chunk in each. */
static uint32_t part_chunks(const struct progress *progress, const struct request *request)
{
    const struct layout *layout = &request->layout;
    uint64_t bytes = progress_part_bytes(progress, request_bytes(request));
    uint64_t place = row_bytes(layout, 1);
    uint64_t chunks = (bytes + place - 1) / place;
    uint32_t rest = layout->chunks - request->chunks_given;
    uint32_t room = staging_pool_room(&progress->staging);
    if (chunks > layout->shards)
        chunks = (chunks + layout->shards - 1) / layout->shards * layout->shards;
    chunks = chunks > rest ? rest : chunks;
    chunks = chunks > STAGING_CHUNKS_MAX ? STAGING_CHUNKS_MAX : chunks;
    /* A part does not take what little is left of the ring. */
    return chunks > room && room < chunks / 2 ? 0 : (uint32_t)(chunks > room ? room : chunks);
}

struct staging_slot *progress_take_part(struct progress *progress, const struct request *request,
                                        enum staging_turn turn)
{
    uint32_t chunks = part_chunks(progress, request);
    struct staging_slot *slot = NULL;
    if (chunks > 0)
        slot = staging_take_pool(
            &progress->staging,
            rows(&request->layout, chunks) * row_bytes(&request->layout, chunks), chunks, turn);
    return slot;
}

uint64_t progress_chunk_place(const struct staging_slot *slot, uint32_t chunk)
{
    if (slot->chunks == 1)
        return slot->offset;
    const struct layout *layout = &slot->request->layout;
    uint32_t row = (chunk - slot->chunk) % layout->shards;
    uint64_t first = layout_chunk(layout, slot->chunk + row).first;
    return slot->offset + row * row_bytes(layout, slot->chunks) +
           (layout_chunk(layout, chunk).first - first) * layout->element_bytes;
}

/* Find where a row of the slot begins in the caller's buffer, its place and its bytes. */
static void find_row(const struct staging_slot *slot, uint32_t row, uint64_t *first,
                     uint64_t *place, uint64_t *bytes)
{
    const struct layout *layout = &slot->request->layout;
    uint32_t chunk = slot->chunk + row;
    uint32_t steps = (slot->chunks - 1 - row) / layout->shards;
    struct layout_chunk begin = layout_chunk(layout, chunk);
    struct layout_chunk end = layout_chunk(layout, chunk + steps * layout->shards);
    *first = begin.first * layout->element_bytes;
    *place = slot->offset + row * row_bytes(layout, slot->chunks);
    *bytes = (end.first + end.count - begin.first) * layout->element_bytes;
}

uint64_t progress_slot_bytes(const struct staging_slot *slot)
{
    uint64_t all = 0, first, place, bytes;
    const struct layout *layout = &slot->request->layout;
    if (slot->chunks == 1)
        return layout_chunk(layout, slot->chunk).count * layout->element_bytes;
    for (uint32_t row = 0; row < rows(layout, slot->chunks); row++) {
        find_row(slot, row, &first, &place, &bytes);
        all += bytes;
    }
    return all;
}

uint32_t progress_copy_pieces(const struct progress_copy *copy)
{
    const struct staging_slot *slot = copy->slot;
    return slot ? rows(&slot->request->layout, slot->chunks) : 1;
}

struct progress_copy progress_nth_piece(const struct progress *progress,
                                        const struct progress_copy *copy, uint32_t index)
{
    const struct staging_slot *slot = copy->slot;
    struct progress_copy part = *copy;
    uint64_t first, place;
    if (!slot)
        return part;
    const struct request_ask *ask = &slot->request->ask;
    find_row(slot, index, &first, &place, &part.bytes);
    uint8_t *memory = progress->arena->base + place;
    if (slot->state == STAGING_TAKEN) {
        part.to = memory;
        part.from = (const uint8_t *)ask->send + first;
    } else {
        part.to = (uint8_t *)ask->recv + first;
        part.from = memory;
    }
    return part;
}

bool progress_copy_awaited(const struct progress_copy *copy)
{
    const struct staging_slot *slot = copy->slot;
    if (!slot || slot->state == STAGING_TAKEN || !slot->pooled)
        return true;
    const struct request *request = slot->request;
    return request->state != REQUEST_SUBMITTED || request->chunks_back == request->layout.chunks;
}

/* Count what waits for slots to be copied out of the device. */
static uint64_t count_waiting(const struct progress *progress, uint64_t *chunks)
{
    const struct request *request;
    uint64_t bytes = 0;
    *chunks = 0;
    DL_FOREACH2(progress->to_stage, request, queue_next)
    {
        if (!request->ask.on_device)
            continue;
        uint64_t left = request->layout.chunks - request->chunks_given;
        *chunks += left;
        bytes += left * request->layout.largest_bytes;
    }
    return bytes;
}

uint64_t progress_waiting_bytes(const struct progress *progress)
{
    uint64_t chunks;
    return count_waiting(progress, &chunks);
}

bool progress_short_of_memory(const struct progress *progress)
{
    uint64_t chunks, bytes = count_waiting(progress, &chunks);
    return chunks > staging_pool_room(&progress->staging) ||
           bytes > arena_heap_largest_bytes(&progress->staging.pool);
}
