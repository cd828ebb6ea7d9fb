/* One collective of a rank: its buffers, what lies in them before, and what must lie there after.
 *
 * Both sides of a collective are parts, one or as many as the group has ranks. They lie in regions
 * of memory: one for what is sent, one for what is received, or both in one (in place).
 */
#include <stdlib.h>
#include <string.h>

#include "common/format/wire.h"
#include "common/reduce/reduce.h"
#include "tests/lib/virtual/virtual_private.h"
#include "worker/request/parts.h"

#define UNTOUCHED 0x5a
#define SLACK_BYTES 64u /* a rank that is misled asks for an element more */

/* --- parts ------------------------------------------------------------------------------------ */

static uint32_t send_parts(const struct script *it, uint32_t place, uint32_t size)
{
    switch (it->ask.kind) {
    case COLLECTIVE_BROADCAST:
        return place == it->ask.root;
    case COLLECTIVE_SEND:
        return place == it->ask.root;
    case COLLECTIVE_SCATTER:
        return place == it->ask.root ? size : 0;
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_ALL_TO_ALL:
        return size;
    default:
        return 1;
    }
}

static uint32_t recv_parts(const struct script *it, uint32_t place, uint32_t size)
{
    switch (it->ask.kind) {
    case COLLECTIVE_REDUCE:
        return place == it->ask.root;
    case COLLECTIVE_SEND:
        return place == it->to;
    case COLLECTIVE_GATHER:
        return place == it->ask.root ? size : 0;
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_ALL_TO_ALL:
        return size;
    default:
        return 1;
    }
}

static uint64_t send_count(const struct flight *flight, uint32_t part)
{
    return script_count(flight->it, flight->place, part);
}

/* From whom the part comes. */
static uint32_t recv_from(const struct flight *flight, uint32_t part)
{
    return flight->recv.parts > 1 ? part : flight->it->ask.root;
}

static uint64_t recv_count(const struct flight *flight, uint32_t part)
{
    return script_count(flight->it, recv_from(flight, part), flight->place);
}

/* --- memory ----------------------------------------------------------------------------------- */

static void region_allocate(struct virtual_worker *worker, struct flight_region *region)
{
    region->arena_offset = 0;
    region->bytes += SLACK_BYTES;
    if (worker->run->job.arena && virtual_random(worker->cluster, 2) == 0 &&
        arena_heap_allocate(&worker->heap, region->bytes, &region->arena_offset) == 0)
        region->memory = worker->memory + region->arena_offset;
    else
        region->memory = malloc(region->bytes);
    EXPECT(region->memory);
}

static void region_free(struct virtual_worker *worker, struct flight_region *region)
{
    if (region->arena_offset)
        arena_heap_free(&worker->heap, region->arena_offset);
    else
        free(region->memory);
}

/* Parts side by side, or each where the arena can be used as it is, with something between. */
static void side_lay_out(struct flight_side *side, uint32_t region, uint32_t parts, bool apart,
                         size_t *end)
{
    side->region = region;
    side->parts = parts;
    side->at = calloc(parts + 1, sizeof(*side->at));
    side->counts = calloc(parts + 1, sizeof(*side->counts));
    side->buffers = calloc(parts + 1, sizeof(*side->buffers));
    EXPECT(side->at && side->counts && side->buffers);
    side->apart = apart;
    *end = 0;
}

static void side_add(struct flight_side *side, uint32_t part, uint64_t count, size_t element_bytes,
                     size_t *end)
{
    side->counts[part] = count;
    side->at[part] = *end;
    *end += count * element_bytes;
    if (side->apart)
        *end = (*end + SLACK_BYTES + 63) / 64 * 64;
}

static void side_free(struct flight_side *side)
{
    free(side->at);
    free(side->counts);
    free(side->buffers);
}

/* The one buffer of a side may be this rank's own part of the other. */
static bool flight_may_be_in_place(const struct flight *flight)
{
    if (flight->it->ask.kind == COLLECTIVE_BROADCAST)
        return true;
    return flight->it->ask.kind != COLLECTIVE_ALL_TO_ALL && flight->send.parts > 0 &&
           flight->recv.parts > 0 && (flight->send.parts == 1 || flight->recv.parts == 1);
}

static void flight_put_in_place(struct flight *flight)
{
    struct flight_side *one = flight->recv.parts > 1 ? &flight->send : &flight->recv;
    const struct flight_side *other = one == &flight->send ? &flight->recv : &flight->send;
    one->region = other->region;
    one->at[0] = other->parts > 1 ? other->at[flight->place] : other->at[0];
}

static void flight_lay_out(struct virtual_worker *worker, struct flight *flight, bool apart)
{
    const struct script *it = flight->it;
    size_t element_bytes = dtype_bytes(it->ask.dtype);
    uint32_t size = worker->run->group_sizes[it->group];
    size_t *end = &flight->regions[0].bytes;
    side_lay_out(&flight->send, 0, send_parts(it, flight->place, size), apart, end);
    for (uint32_t i = 0; i < flight->send.parts; i++)
        side_add(&flight->send, i, send_count(flight, i), element_bytes, end);
    end = &flight->regions[1].bytes;
    side_lay_out(&flight->recv, 1, recv_parts(it, flight->place, size), apart, end);
    for (uint32_t i = 0; i < flight->recv.parts; i++)
        side_add(&flight->recv, i, recv_count(flight, i), element_bytes, end);
    /* A side without data is there all the same in those that travel whole, and stays as it is. */
    for (uint32_t i = 0; i < 2; i++) {
        if (!route_in_blocks(it->ask.kind) && flight->regions[i].bytes == 0)
            flight->regions[i].bytes = script_count(it, 0, 0) * element_bytes;
    }
    if (flight_may_be_in_place(flight) &&
        (it->ask.kind == COLLECTIVE_BROADCAST || virtual_random(worker->cluster, 2) == 0))
        flight_put_in_place(flight);
    region_allocate(worker, &flight->regions[0]);
    region_allocate(worker, &flight->regions[1]);
    for (uint32_t i = 0; i < flight->send.parts; i++)
        flight->send.buffers[i] = flight->regions[flight->send.region].memory + flight->send.at[i];
    for (uint32_t i = 0; i < flight->recv.parts; i++)
        flight->recv.buffers[i] = flight->regions[flight->recv.region].memory + flight->recv.at[i];
}

void flight_free(struct virtual_worker *worker, struct flight *flight)
{
    struct flight **link = &worker->flights;
    while (*link != flight)
        link = &(*link)->next;
    *link = flight->next;
    region_free(worker, &flight->regions[0]);
    region_free(worker, &flight->regions[1]);
    if (flight->bounce)
        arena_heap_free(&worker->heap, flight->bounce);
    side_free(&flight->send);
    side_free(&flight->recv);
    request_clear(&flight->request);
    free(flight);
}

/* --- before and after ------------------------------------------------------------------------- */

static void flight_fill(const struct flight *flight, uint8_t *const memory[2])
{
    for (uint32_t i = 0; i < 2; i++)
        memset(memory[i], UNTOUCHED, flight->regions[i].bytes);
    for (uint32_t i = 0; i < flight->send.parts; i++)
        script_input(flight->it, flight->place, i,
                     memory[flight->send.region] + flight->send.at[i]);
}

static void flight_result(const struct virtual_job_run *run, const struct flight *flight,
                          uint32_t part, void *result)
{
    const struct script *it = flight->it;
    if (it->ask.kind == COLLECTIVE_ALL_REDUCE || it->ask.kind == COLLECTIVE_REDUCE ||
        it->ask.kind == COLLECTIVE_REDUCE_SCATTER)
        script_reference(run, it, flight->place, result);
    else
        script_input(it, recv_from(flight, part), flight->place, result);
}

void flight_check(struct virtual_worker *worker, const struct flight *flight)
{
    const struct virtual_job_run *run = worker->run;
    const struct script *it = flight->it;
    uint8_t *expected[2] = {malloc(flight->regions[0].bytes), malloc(flight->regions[1].bytes)};
    uint64_t digest = 0xcbf29ce484222325ull + flight->script;
    flight_fill(flight, expected);
    for (uint32_t i = 0; i < flight->recv.parts; i++) {
        uint8_t *result = expected[flight->recv.region] + flight->recv.at[i];
        flight_result(run, flight, i, result);
        for (size_t k = 0; k < flight->recv.counts[i] * dtype_bytes(it->ask.dtype); k++)
            digest = (digest ^ result[k]) * 0x100000001b3ull;
    }
    if (flight->recv.parts > 0)
        worker->digest ^= digest;
    for (uint32_t i = 0; i < 2; i++) {
        size_t at = 0;
        while (at < flight->regions[i].bytes && expected[i][at] == flight->regions[i].memory[at])
            at++;
        EXPECT_MSG(at == flight->regions[i].bytes,
                   "job %s rank %u: %s of %llu %s %s differs at byte %zu of what is %s, seed %llu",
                   run->job.name, worker->rank, collective_name(it->ask.kind),
                   (unsigned long long)it->ask.count, dtype_name(it->ask.dtype),
                   reduce_op_name(it->ask.op), at, i == 0 ? "sent" : "received",
                   (unsigned long long)worker->cluster->options.seed);
        free(expected[i]);
    }
}

/* --- asking ----------------------------------------------------------------------------------- */

static struct parts_side side_ask(const struct flight_side *side, bool one)
{
    if (side->parts == 0)
        return (struct parts_side){0};
    if (one || !side->apart)
        return (struct parts_side){.base = side->buffers[0], .count = side->counts[0]};
    return (struct parts_side){.buffers = (const void *const *)side->buffers,
                               .counts = side->counts};
}

/* Make one of the parts larger, and now and then another one smaller, so that their sum is what the
 * others have. */
static void flight_mislead(struct virtual_worker *worker, struct flight *flight)
{
    uint32_t size = worker->run->group_sizes[flight->it->group];
    struct flight_side *side = flight->send.parts > 1 ? &flight->send : &flight->recv;
    if (side->parts <= 1) {
        side = flight->send.parts == 1 ? &flight->send : &flight->recv;
        side->counts[0]++;
        return;
    }
    uint32_t part =
        (flight->place + 1 + (uint32_t)virtual_random(worker->cluster, size - 1)) % size;
    side->counts[part]++;
    uint32_t other = (part + 1) % size;
    if (other != flight->place && other != part && side->counts[other] > 0 &&
        virtual_random(worker->cluster, 2) == 0)
        side->counts[other]--;
}

/* Another collective, of parts. */
static const struct script *flight_other_kind(struct virtual_worker *worker, struct flight *flight,
                                              const struct script *it)
{
    flight->other = *it;
    flight->other.ask.identity = 0;
    do
        flight->other.ask.kind =
            COLLECTIVE_ALL_GATHER +
            virtual_random(worker->cluster, COLLECTIVE_SEND - COLLECTIVE_ALL_GATHER);
    while (flight->other.ask.kind == it->ask.kind);
    return &flight->other;
}

static int flight_submit_parts(struct virtual_worker *worker, struct flight *flight,
                               struct request_ask *ask, struct error *error)
{
    enum collective_kind kind = ask->kind;
    bool sends_one = kind == COLLECTIVE_ALL_GATHER || kind == COLLECTIVE_GATHER;
    bool recvs_one = kind == COLLECTIVE_REDUCE_SCATTER || kind == COLLECTIVE_SCATTER;
    struct parts_ask parts = {.kind = kind,
                              .dtype = ask->dtype,
                              .op = ask->op,
                              .root = ask->root,
                              .rank = flight->place,
                              .size = worker->run->group_sizes[flight->it->group],
                              .priority = ask->priority,
                              .send = side_ask(&flight->send, sends_one),
                              .recv = side_ask(&flight->recv, recvs_one)};
    EXPECT_MSG(parts_check(&parts, error) == 0, "%s", error->text);
    uint32_t count = parts_block_count(&parts);
    struct request_ask *blocks = calloc(count + 1, sizeof(*blocks));
    EXPECT(blocks);
    parts_blocks(&parts, blocks);
    struct request_ask whole = parts_whole(&parts);
    int result = progress_submit(&worker->progress, &worker->groups[flight->it->group], &whole,
                                 blocks, count, flight->place, &flight->request, error);
    struct parts_copy copy = parts_own_copy(&parts);
    if (copy.bytes > 0)
        memmove(copy.to, copy.from, copy.bytes);
    free(blocks);
    return result;
}

static int flight_submit_whole(struct virtual_worker *worker, struct flight *flight,
                               struct request_ask *ask, struct error *error)
{
    bool in_place = flight->send.parts > 0 && flight->recv.parts > 0 &&
                    flight->send.region == flight->recv.region;
    if (ask->kind == COLLECTIVE_BROADCAST)
        in_place = true;
    ask->send = flight->regions[flight->send.region].memory;
    ask->recv = in_place ? (void *)(uintptr_t)ask->send : flight->regions[1].memory;
    if (ask->kind == COLLECTIVE_BROADCAST)
        ask->send = ask->recv = flight->regions[flight->recv.region].memory;
    return progress_submit(&worker->progress, &worker->groups[flight->it->group], ask, NULL, 0,
                           flight->place, &flight->request, error);
}

/* A send, or the receive of it, as the library makes them. */
static int flight_submit_send(struct virtual_worker *worker, struct flight *flight,
                              struct request_ask *ask, struct error *error)
{
    const struct script *it = flight->it;
    uint32_t size = worker->run->group_sizes[it->group];
    bool receives = flight->recv.parts > 0;
    const struct flight_region *region = &flight->regions[receives];
    uint8_t *memory = region->memory;
    void *copy_to = NULL;
    if (!region->arena_offset) {
        EXPECT(arena_heap_allocate(&worker->heap, region->bytes, &flight->bounce) == 0);
        memory = worker->memory + flight->bounce;
        memcpy(memory, region->memory, region->bytes);
        copy_to = receives ? region->memory : NULL;
    }
    if (receives)
        ask->recv = memory;
    else
        ask->send = memory;
    ask->root = 0;
    ask->block = 1 + it->ask.root * size + it->to;
    ask->route = route_find(COLLECTIVE_SEND, 0, ask->block, size);
    uint64_t sequence = WIRE_SEND_SEQUENCE | (uint64_t)it->tag << WIRE_SEND_TAG_SHIFT | it->number;
    return progress_transfer(&worker->progress, &worker->groups[it->group], ask, sequence,
                             flight->place, copy_to, &flight->request, error);
}

int flight_start(struct virtual_worker *worker, uint32_t script, struct error *error)
{
    const struct virtual_job_run *run = worker->run;
    const struct script *it = &run->script[script];
    struct flight *flight = calloc(1, sizeof(*flight));
    EXPECT(flight);
    bool transfer = it->ask.kind == COLLECTIVE_SEND;
    bool mislead = worker->mislead && it->ask.kind != COLLECTIVE_BARRIER &&
                   (!route_in_blocks(it->ask.kind) || run->group_sizes[it->group] > 1);
    if (transfer)
        mislead = worker->mislead_send;
    bool other = mislead && !transfer && virtual_random(worker->cluster, 2) == 0;
    if (other)
        it = flight_other_kind(worker, flight, it);
    flight->it = it;
    flight->script = script;
    flight->place = (uint32_t)script_place(run, it->group, worker->rank);
    bool parts = route_in_blocks(it->ask.kind);
    flight_lay_out(worker, flight, it->uneven || mislead);
    uint8_t *memory[2] = {flight->regions[0].memory, flight->regions[1].memory};
    flight_fill(flight, memory);
    flight->next = worker->flights;
    worker->flights = flight;
    struct request_ask ask = it->ask;
    ask.priority = run->job.priorities ? (uint32_t)virtual_random(worker->cluster, 4) : 0;
    if (mislead) {
        worker->mislead &= transfer;
        worker->mislead_send &= !transfer;
        if (parts && !other && !transfer)
            flight_mislead(worker, flight);
        else if (!other && ask.identity > 0 && virtual_random(worker->cluster, 2) == 0)
            ask.identity++;
        else if (!other)
            ask.count++;
    }
    int result = transfer ? flight_submit_send(worker, flight, &ask, error)
                 : parts  ? flight_submit_parts(worker, flight, &ask, error)
                          : flight_submit_whole(worker, flight, &ask, error);
    if (result != 0)
        flight_free(worker, flight);
    return result;
}
