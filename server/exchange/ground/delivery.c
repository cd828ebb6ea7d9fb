#include "server/exchange/ground/delivery.h"

#include <assert.h>

#include "common/memory/copy.h"
#include "server/exchange/ground/archive.h"
#include "server/exchange/model/ask.h"
#include "server/exchange/model/roster.h"

/* --- where data lies -------------------------------------------------------------------------- */

uint64_t piece_arena_bytes(const struct piece *piece)
{
    uint64_t bytes = piece->extent.count * piece->collective->element_bytes;
    return (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

static uint8_t *piece_address(const struct piece *piece, uint32_t local, bool output)
{
    const struct collective *collective = piece->collective;
    const struct part *part = &collective->parts[local];
    struct exchange_worker *worker = group_local_worker(collective->group, local);
    if (part->staged)
        return worker->arena.base + piece->offsets[local];
    uint64_t offset = output ? part->out_offset : part->in_offset;
    return worker->arena.base + offset + piece->extent.first * collective->element_bytes;
}

uint32_t collective_source(const struct collective *collective)
{
    const struct exchange_group *group = collective->group;
    uint32_t from = collective->route.from;
    return from < group->members.size ? group_local_index(group, group->members.ranks[from])
                                      : NO_INDEX;
}

const void *piece_source(const struct piece *piece)
{
    uint32_t source = collective_source(piece->collective);
    return source == NO_INDEX ? NULL : piece_address(piece, source, false);
}

unsigned piece_inputs(const struct piece *piece, const void **in)
{
    const struct collective *collective = piece->collective;
    const struct exchange_group *group = collective->group;
    unsigned inputs = 0;
    for (uint32_t i = 0; i < group->members.local_count; i++) {
        if (route_sends(&collective->route, group->members.locals[i].group_rank))
            in[inputs++] = piece_address(piece, i, false);
    }
    return inputs;
}

/* --- where results go ------------------------------------------------------------------------- */

/* Whether the rank's output lies where its input did, or is read as soon as it is there. */
static bool delivery_is_warm(const struct collective *collective, uint32_t local)
{
    const struct part *part = &collective->parts[local];
    uint32_t rank = collective->group->members.locals[local].group_rank;
    return part->staged ||
           (route_sends(&collective->route, rank) && part->in_offset == part->out_offset);
}

void piece_outputs(const struct piece *piece, struct reduction *reduction)
{
    const struct collective *collective = piece->collective;
    const struct exchange_group *group = collective->group;
    bool cold = !ask_is_transfer(&collective->ask) &&
                collective->ask.count * collective->element_bytes >= COPY_PAST_CACHE_BYTES;
    unsigned outputs = 0, archived = 0;
    if (collective->archived && collective->archived->data) { /* nobody reads it soon */
        reduction->out[outputs++] =
            collective->archived->data + piece->extent.first * collective->element_bytes;
        archived = collective->archived->bytes >= COPY_PAST_CACHE_BYTES;
    }
    if (collective->shared)
        reduction->out[outputs++] =
            collective->shared + piece->extent.first * collective->element_bytes;
    for (uint32_t i = 0; !collective->shared && i < group->members.local_count; i++) {
        if (!route_receives(&collective->route, group->members.locals[i].group_rank))
            continue;
        reduction->out[outputs++] = piece_address(piece, i, true);
        cold = cold && !delivery_is_warm(collective, i);
    }
    reduction->outputs = outputs;
    reduction->past_cache = cold ? outputs : archived;
}

bool piece_copy(const struct piece *piece, const void *source, struct reduction *reduction)
{
    piece_outputs(piece, reduction);
    reduction->in[0] = source;
    reduction->inputs = 1;
    ask_set_reduction(reduction, &piece->collective->ask, REDUCE_SUM, 1, piece->extent.count);
    return reduction->outputs > 0;
}

/* --- what ranks are told ---------------------------------------------------------------------- */

static void delivery_tell(struct exchange_worker *worker, const struct arena_completion *completion)
{
    const struct exchange_io *io = &worker->job->exchange->options.io;
    if (!worker->detached)
        io->complete(io->context, worker, completion);
}

void worker_give_back(struct exchange_worker *worker, uint64_t request, uint32_t chunk,
                      uint64_t offset)
{
    worker->given_back++;
    delivery_tell(worker, &(struct arena_completion){.type = ARENA_CHUNK_DONE,
                                                     .chunk = chunk,
                                                     .request = request,
                                                     .offset = offset});
}

void worker_request_done(struct exchange_worker *worker, uint64_t request, uint32_t chunk)
{
    delivery_tell(worker, &(struct arena_completion){
                              .type = ARENA_REQUEST_DONE, .request = request, .chunk = chunk});
}

void worker_transfer_done(struct exchange_worker *worker, uint64_t request, bool refused,
                          uint64_t count, uint8_t dtype)
{
    delivery_tell(worker, &(struct arena_completion){.type = ARENA_REQUEST_DONE,
                                                     .request = request,
                                                     .chunk = refused ? ARENA_REFUSED : 0,
                                                     .count = count,
                                                     .dtype = refused ? dtype : 0});
}

bool worker_tell_stable(struct exchange_worker *worker, uint32_t group, uint64_t sequence)
{
    if (!worker->detached && !arena_has_room_for_news(&worker->arena))
        return false;
    delivery_tell(worker, &(struct arena_completion){
                              .type = ARENA_STABLE, .group = group, .sequence = sequence});
    return true;
}

void piece_give_back(const struct piece *piece, uint32_t chunk)
{
    const struct collective *collective = piece->collective;
    const struct exchange_group *group = collective->group;
    for (uint32_t i = 0; i < group->members.local_count; i++) {
        const struct part *part = &collective->parts[i];
        if (!part->staged || chunk >= part->handed)
            continue;
        struct exchange_worker *worker = group_local_worker(group, i);
        assert(worker->handed_chunks > 0);
        worker->handed_bytes -= piece_arena_bytes(piece);
        worker->handed_chunks--;
        worker_give_back(worker, part->request, chunk, piece->offsets[i]);
    }
}
