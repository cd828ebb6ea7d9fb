/* Receives from any rank: who has sent something with this tag?
 *
 * The receiver's rank says how many it has got from each other rank, and its node asks each one's
 * node with a PROBE, which that one remembers until a send with that number, or a later one, is
 * there. The first READY is the receiver's answer; it then asks for the data as for any receive
 * (transfer.c). Other answers come for nothing, and probes that are not answered stay where they
 * are until the next one with their place replaces them: so what a node remembers has a bound, and
 * nothing has to be called back. An answer may be out of date, since the receiver may have got that
 * send otherwise meanwhile: then the library asks again. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/exchange/exchange_private.h"

#define PLACES 64u /* receives from any rank of a rank of the group; the library has fewer */

/* A rank of this node waits. */
struct any_receive {
    uint64_t request;
    uint64_t version;
    uint32_t tag;
    uint32_t left;     /* how many may still send */
    uint32_t *numbers; /* [size]: got from each so far; NULL: the place is free */
    bool *gone;        /* [size]: behind numbers */
};

struct probe {
    uint64_t version;
    uint32_t tag, number;
    bool waits;
};

/* What a rank, which may be elsewhere, asks of one of this node. */
struct probe_pair {
    uint32_t block; /* as for sends: who from, who to */
    struct probe at[PLACES];
    struct probe_pair *next; /* in its bucket */
};

static uint32_t tag_of(uint64_t sequence)
{
    return (uint32_t)(sequence >> WIRE_SEND_TAG_SHIFT) & WIRE_SEND_TAG_MAX;
}

static uint64_t sequence_of(uint32_t tag, uint32_t number)
{
    return WIRE_SEND_SEQUENCE | (uint64_t)tag << WIRE_SEND_TAG_SHIFT | number;
}

static bool is_here(const struct exchange_group *group, uint32_t rank)
{
    return group_rank_node(group, rank) == group->job->exchange->options.self;
}

/* --- who waits -------------------------------------------------------------------------------- */

static void any_free(struct exchange_group *group, uint32_t local, struct any_receive *any)
{
    struct exchange_worker *worker = group_local_worker(group, local);
    worker->requests--;
    worker->transfers--;
    free(any->numbers);
    any->numbers = NULL;
}

/* from: who has sent; NO_INDEX: nobody is left who could. */
static void any_complete(struct exchange_group *group, uint32_t local, struct any_receive *any,
                         uint32_t from)
{
    struct exchange *exchange = group->job->exchange;
    struct exchange_worker *worker = group_local_worker(group, local);
    struct arena_completion completion = {
        .type = ARENA_REQUEST_DONE, .request = any->request, .chunk = from};
    any_free(group, local, any);
    if (!worker->detached)
        exchange->options.io.complete(exchange->options.io.context, worker, &completion);
}

/* For the probe that this node made for the receive at the place, unless it is over. */
static void any_answered(struct exchange_group *group, const struct route *route, uint32_t place,
                         uint64_t version, uint64_t sequence, bool ready)
{
    uint32_t local = group_local_index(group, group->ranks[route->to]);
    struct any_receive *any = group->locals[local].any ? &group->locals[local].any[place] : NULL;
    if (!any || !any->numbers || any->version != version || any->gone[route->from] ||
        sequence != sequence_of(any->tag, any->numbers[route->from]))
        return;
    if (ready) {
        any_complete(group, local, any, route->from);
        return;
    }
    any->gone[route->from] = true;
    if (--any->left == 0)
        any_complete(group, local, any, NO_INDEX);
}

/* --- who has sent ----------------------------------------------------------------------------- */

static bool was_sent(const struct exchange_group *group, const struct collective *transfer,
                     uint32_t tag, uint32_t number)
{
    uint32_t local = group_local_index(group, group->ranks[transfer->route.from]);
    return tag_of(transfer->sequence) == tag &&
           (int32_t)((uint32_t)transfer->sequence - number) >= 0 &&
           transfer->parts[local].submitted;
}

static void answer(struct exchange_group *group, uint32_t block, uint32_t place, uint64_t version,
                   uint64_t sequence, bool ready)
{
    struct wire_ask ask = {.kind = COLLECTIVE_SEND, .block = block, .count = version};
    struct route route = ask_route(group, &ask);
    if (is_here(group, route.to)) {
        any_answered(group, &route, place, version, sequence, ready);
        return;
    }
    send_submit(group->job->exchange,
                send_create(group, group_rank_node(group, route.to), ready ? WIRE_READY : WIRE_GONE,
                            sequence, place, &ask, NULL, 0));
}

static struct probe_pair **pair_bucket(struct exchange_group *group, uint32_t block)
{
    return &group->probes[(block * 0x9e3779b1u >> 16) % PROBE_BUCKETS];
}

static struct probe_pair *pair_find(struct exchange_group *group, uint32_t block)
{
    struct probe_pair *pair = *pair_bucket(group, block);
    while (pair && pair->block != block)
        pair = pair->next;
    return pair;
}

static struct probe_pair *pair_create(struct exchange_group *group, uint32_t block)
{
    struct probe_pair *pair = calloc(1, sizeof(*pair));
    if (!pair)
        return NULL;
    struct probe_pair **bucket = pair_bucket(group, block);
    pair->block = block;
    pair->next = *bucket;
    *bucket = pair;
    return pair;
}

/* False when there is no memory to remember it. */
static bool probe_take(struct exchange_group *group, uint32_t block, uint32_t place,
                       uint64_t version, uint64_t sequence)
{
    struct wire_ask ask = {.kind = COLLECTIVE_SEND, .block = block};
    struct route route = ask_route(group, &ask);
    struct probe_pair *pair = pair_find(group, block);
    if (pair && pair->at[place].version >= version)
        return true; /* one that was overtaken */
    if (!pair)
        pair = pair_create(group, block);
    if (!pair)
        return false;
    struct probe *probe = &pair->at[place];
    *probe = (struct probe){
        .version = version, .tag = tag_of(sequence), .number = (uint32_t)sequence, .waits = true};
    for (const struct collective *it = group->transfers; it && probe->waits; it = it->next)
        probe->waits = it->ask.block != block || !was_sent(group, it, probe->tag, probe->number);
    if (!probe->waits) {
        answer(group, block, place, version, sequence, true);
    } else if (group->left[route.from]) {
        probe->waits = false;
        answer(group, block, place, version, sequence, false);
    }
    return true;
}

void probes_sent(struct exchange_group *group, const struct collective *transfer)
{
    struct probe_pair *pair = pair_find(group, transfer->ask.block);
    for (uint32_t place = 0; pair && place < PLACES && !group->failed; place++) {
        struct probe *probe = &pair->at[place];
        if (!probe->waits || !was_sent(group, transfer, probe->tag, probe->number))
            continue;
        probe->waits = false;
        answer(group, pair->block, place, probe->version, sequence_of(probe->tag, probe->number),
               true);
    }
}

static void pair_rank_left(struct exchange_group *group, struct probe_pair *pair)
{
    for (uint32_t place = 0; place < PLACES; place++) {
        struct probe *probe = &pair->at[place];
        if (!probe->waits)
            continue;
        probe->waits = false;
        answer(group, pair->block, place, probe->version, sequence_of(probe->tag, probe->number),
               false);
    }
}

void probes_rank_left(struct exchange_group *group, uint32_t rank)
{
    for (uint32_t i = 0; i < PROBE_BUCKETS; i++) {
        for (struct probe_pair *it = group->probes[i]; it; it = it->next) {
            struct wire_ask ask = {.kind = COLLECTIVE_SEND, .block = it->block};
            if (ask_route(group, &ask).from == rank)
                pair_rank_left(group, it);
        }
    }
}

void probes_drop(struct exchange_group *group)
{
    for (uint32_t i = 0; i < PROBE_BUCKETS; i++) {
        while (group->probes[i]) {
            struct probe_pair *pair = group->probes[i];
            group->probes[i] = pair->next;
            free(pair);
        }
    }
    for (uint32_t local = 0; local < group->local_count; local++) {
        struct local_rank *rank = &group->locals[local];
        for (uint32_t place = 0; rank->any && place < PLACES; place++) {
            if (rank->any[place].numbers)
                any_free(group, local, &rank->any[place]);
        }
        free(rank->any);
        rank->any = NULL;
    }
}

/* --- asking ----------------------------------------------------------------------------------- */

static int submission_check(const struct exchange_group *group,
                            const struct exchange_worker *worker,
                            const struct arena_submission *submission, struct error *error)
{
    uint64_t bytes = group->size * sizeof(uint32_t);
    if (!(submission->sequence & WIRE_SEND_SEQUENCE) || submission->flags != ARENA_FLAG_ANY ||
        submission->block != 0 || group->size < 2 || group->size > ROUTE_MAX_RANKS)
        return error_set(error, ERR_PROTOCOL, "a receive from any rank that makes no sense");
    if (!arena_range_valid(&worker->arena, submission->in_offset, bytes))
        return error_set(error, ERR_PROTOCOL,
                         "numbers at offset %" PRIu64 " of %" PRIu64
                         " bytes are not inside the arena",
                         submission->in_offset, bytes);
    return 0;
}

/* A free place of the rank, or NULL. */
static struct any_receive *any_create(const struct exchange_group *group, struct local_rank *rank,
                                      const void *numbers)
{
    if (!rank->any)
        rank->any = calloc(PLACES, sizeof(*rank->any));
    uint32_t place = 0;
    while (rank->any && place < PLACES && rank->any[place].numbers)
        place++;
    if (!rank->any || place == PLACES)
        return NULL;
    struct any_receive *any = &rank->any[place];
    any->numbers = calloc(group->size, sizeof(uint32_t) + sizeof(bool));
    if (!any->numbers)
        return NULL;
    any->gone = (bool *)(any->numbers + group->size);
    memcpy(any->numbers, numbers, group->size * sizeof(uint32_t));
    any->left = group->size - 1;
    return any;
}

/* Until it is answered: at once, where a rank of this node has sent. */
static int any_ask(struct exchange_group *group, const struct local_rank *rank, uint32_t place,
                   uint32_t from, struct error *error)
{
    const struct any_receive *any = &rank->any[place];
    struct wire_ask ask = {.kind = COLLECTIVE_SEND,
                           .block = 1 + from * group->size + rank->group_rank,
                           .count = any->version};
    uint64_t sequence = sequence_of(any->tag, any->numbers[from]);
    if (!is_here(group, from)) {
        send_submit(group->job->exchange, send_create(group, group_rank_node(group, from),
                                                      WIRE_PROBE, sequence, place, &ask, NULL, 0));
        return 0;
    }
    return probe_take(group, ask.block, place, any->version, sequence)
               ? 0
               : error_set(error, ERR_MEMORY, "no memory for a receive from any rank");
}

int probe_submit(struct exchange_group *group, uint32_t local, struct exchange_worker *worker,
                 const struct arena_submission *submission, struct error *error)
{
    struct local_rank *rank = &group->locals[local];
    int result = submission_check(group, worker, submission, error);
    if (result != 0)
        return result;
    struct any_receive *any = any_create(group, rank, worker->arena.base + submission->in_offset);
    if (!any)
        return error_set(error, ERR_MEMORY, "more than %u receives from any rank, or no memory",
                         PLACES);
    uint32_t place = (uint32_t)(any - rank->any);
    uint64_t version = ++group->probe_version;
    any->request = submission->request;
    any->version = version;
    any->tag = tag_of(submission->sequence);
    worker->requests++;
    worker->transfers++;
    /* Here first: then there may be no need to ask elsewhere. */
    for (int elsewhere = 0; elsewhere < 2; elsewhere++) {
        for (uint32_t from = 0; from < group->size && result == 0; from++) {
            if (from == rank->group_rank || is_here(group, from) == (elsewhere == 1))
                continue;
            if (group->failed || !any->numbers || any->version != version)
                return 0;
            result = any_ask(group, rank, place, from, error);
        }
    }
    return result;
}

int probe_message(struct exchange_group *group, uint32_t node, const struct wire_header *header,
                  struct error *error)
{
    if (!(header->sequence & WIRE_SEND_SEQUENCE) || !is_transfer(&header->ask) ||
        wire_ask_check(&header->ask, group->size, error) != 0 || header->payload_bytes > 0 ||
        header->chunk >= PLACES)
        return error_set(error, ERR_PROTOCOL, "a probe, or an answer to one, that makes no sense");
    struct route route = ask_route(group, &header->ask);
    bool asks = header->type == WIRE_PROBE;
    uint32_t here = asks ? route.from : route.to, there = asks ? route.to : route.from;
    if (!is_here(group, here) || group_rank_node(group, there) != node)
        return error_set(error, ERR_PROTOCOL,
                         "a probe, or an answer to one, between ranks %" PRIu32 " and %" PRIu32
                         " of group %" PRIu32 ", of which one is elsewhere",
                         route.from, route.to, group->id);
    if (!asks)
        any_answered(group, &route, header->chunk, header->ask.count, header->sequence,
                     header->type == WIRE_READY);
    else if (!probe_take(group, header->ask.block, header->chunk, header->ask.count,
                         header->sequence))
        exchange_group_fail(group, ERR_MEMORY, "no memory for a probe");
    return 0;
}
