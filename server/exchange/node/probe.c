#include "server/exchange/node/probe.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/exchange/ground/delivery.h"
#include "server/exchange/ground/post.h"
#include "server/exchange/model/ask.h"
#include "server/exchange/model/order.h"
#include "server/exchange/model/roster.h"

#define POSITIONS 64u /* receives from any rank of a rank of the group; the library has fewer */

/* A rank of this node waits. */
struct any_receive {
    uint64_t request;
    uint64_t version;
    uint32_t tag;
    uint32_t remaining; /* how many may still send */
    uint32_t *numbers;  /* [size]: got from each so far; NULL: the position is free */
    bool *gone;         /* [size]: behind numbers */
};

struct probe {
    uint64_t version;
    uint32_t tag, number;
    bool waits;
};

/* What a rank, which may be elsewhere, asks of one of this node. */
struct probe_pair {
    uint32_t block; /* as for sends: who from, who to */
    struct probe at[POSITIONS];
    struct probe_pair *next; /* in its bucket */
};

bool probes_open(struct exchange_group *group)
{
    uint32_t locals = group->members.local_count;
    group->probes->waiting = calloc(locals ? locals : 1, sizeof(*group->probes->waiting));
    return group->probes->waiting != NULL;
}

void probes_close(struct exchange_group *group)
{
    free(group->probes->waiting);
}

static uint32_t probe_tag_of(uint64_t sequence)
{
    return (uint32_t)(sequence >> WIRE_SEND_TAG_SHIFT) & WIRE_SEND_TAG_MAX;
}

static uint64_t probe_sequence_of(uint32_t tag, uint32_t number)
{
    return WIRE_SEND_SEQUENCE | (uint64_t)tag << WIRE_SEND_TAG_SHIFT | number;
}

static bool probe_is_here(const struct exchange_group *group, uint32_t rank)
{
    return group_rank_node(group, rank) == group->job->exchange->options.self;
}

/* --- who waits -------------------------------------------------------------------------------- */

static void any_free(struct exchange_group *group, uint32_t local, struct any_receive *any)
{
    struct exchange_worker *worker = group_local_worker(group, local);
    worker->requests--;
    worker->transfers--;
    group->probes->waits--;
    free(any->numbers);
    any->numbers = NULL;
}

/* from: who has sent; NO_INDEX: nobody remains who could. */
static void any_complete(struct exchange_group *group, uint32_t local, struct any_receive *any,
                         uint32_t from)
{
    uint64_t request = any->request;
    any_free(group, local, any);
    worker_request_done(group_local_worker(group, local), request, from);
}

/* For the probe that this node made for the receive in the position, unless it is over. */
static void any_answered(struct exchange_group *group, const struct route *route, uint32_t position,
                         uint64_t version, uint64_t sequence, bool ready)
{
    uint32_t local = group_local_index(group, group->members.ranks[route->to]);
    struct any_receive *waiting = group->probes->waiting[local];
    struct any_receive *any = waiting ? &waiting[position] : NULL;
    if (!any || !any->numbers || any->version != version || any->gone[route->from] ||
        sequence != probe_sequence_of(any->tag, any->numbers[route->from]))
        return;
    if (ready) {
        any_complete(group, local, any, route->from);
        return;
    }
    any->gone[route->from] = true;
    if (--any->remaining == 0)
        any_complete(group, local, any, NO_INDEX);
}

/* --- who has sent ----------------------------------------------------------------------------- */

static bool probe_was_sent(const struct exchange_group *group, const struct collective *transfer,
                           uint32_t tag, uint32_t number)
{
    uint32_t local = group_local_index(group, group->members.ranks[transfer->route.from]);
    return probe_tag_of(transfer->sequence) == tag &&
           (int32_t)((uint32_t)transfer->sequence - number) >= 0 &&
           transfer->parts[local].submitted;
}

static void probe_answer(struct exchange_group *group, uint32_t block, uint32_t position,
                         uint64_t version, uint64_t sequence, bool ready)
{
    struct wire_ask ask = {.kind = COLLECTIVE_SEND, .block = block, .count = version};
    struct route route = ask_route(group, &ask);
    if (probe_is_here(group, route.to)) {
        any_answered(group, &route, position, version, sequence, ready);
        return;
    }
    send_submit(group->job->exchange,
                send_create(group, group_rank_node(group, route.to), ready ? WIRE_READY : WIRE_GONE,
                            sequence, position, &ask, NULL, 0));
}

static struct probe_pair **pair_bucket(struct exchange_group *group, uint32_t block)
{
    return &group->probes->table[(block * 0x9e3779b1u >> 16) % PROBE_BUCKETS];
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
static bool probe_take(struct exchange_group *group, uint32_t block, uint32_t position,
                       uint64_t version, uint64_t sequence)
{
    struct wire_ask ask = {.kind = COLLECTIVE_SEND, .block = block};
    struct route route = ask_route(group, &ask);
    struct probe_pair *pair = pair_find(group, block);
    if (pair && pair->at[position].version >= version)
        return true; /* one that was overtaken */
    if (!pair)
        pair = pair_create(group, block);
    if (!pair)
        return false;
    struct probe *probe = &pair->at[position];
    *probe = (struct probe){.version = version,
                            .tag = probe_tag_of(sequence),
                            .number = (uint32_t)sequence,
                            .waits = true};
    for (const struct collective *it = group->order->transfers; it && probe->waits; it = it->next)
        probe->waits =
            it->ask.block != block || !probe_was_sent(group, it, probe->tag, probe->number);
    if (!probe->waits) {
        probe_answer(group, block, position, version, sequence, true);
    } else if (group->members.departed[route.from]) {
        probe->waits = false;
        probe_answer(group, block, position, version, sequence, false);
    }
    return true;
}

/* What was remembered of the pair in the position, which waits no more. */
static void pair_answer(struct exchange_group *group, struct probe_pair *pair, uint32_t position,
                        bool ready)
{
    struct probe *probe = &pair->at[position];
    probe->waits = false;
    probe_answer(group, pair->block, position, probe->version,
                 probe_sequence_of(probe->tag, probe->number), ready);
}

void probes_sent(struct exchange_group *group, const struct collective *transfer)
{
    struct probe_pair *pair = pair_find(group, transfer->ask.block);
    for (uint32_t position = 0; pair && position < POSITIONS && !group->failed; position++) {
        const struct probe *probe = &pair->at[position];
        if (probe->waits && probe_was_sent(group, transfer, probe->tag, probe->number))
            pair_answer(group, pair, position, true);
    }
}

void probes_rank_departed(struct exchange_group *group, uint32_t group_rank)
{
    for (uint32_t i = 0; i < PROBE_BUCKETS; i++) {
        for (struct probe_pair *it = group->probes->table[i]; it; it = it->next) {
            struct wire_ask ask = {.kind = COLLECTIVE_SEND, .block = it->block};
            if (ask_route(group, &ask).from != group_rank)
                continue;
            for (uint32_t position = 0; position < POSITIONS; position++) {
                if (it->at[position].waits)
                    pair_answer(group, it, position, false);
            }
        }
    }
}

bool probes_waiting(const struct exchange_group *group)
{
    return group->probes->waits > 0;
}

void probes_drop(struct exchange_group *group)
{
    struct probes *probes = group->probes;
    for (uint32_t i = 0; i < PROBE_BUCKETS; i++) {
        while (probes->table[i]) {
            struct probe_pair *pair = probes->table[i];
            probes->table[i] = pair->next;
            free(pair);
        }
    }
    for (uint32_t local = 0; local < group->members.local_count; local++) {
        struct any_receive *waiting = probes->waiting[local];
        for (uint32_t position = 0; waiting && position < POSITIONS; position++) {
            if (waiting[position].numbers)
                any_free(group, local, &waiting[position]);
        }
        free(waiting);
        probes->waiting[local] = NULL;
    }
}

/* --- asking ----------------------------------------------------------------------------------- */

static int probe_check_submission(const struct exchange_group *group,
                                  const struct exchange_worker *worker,
                                  const struct arena_submission *submission, struct error *error)
{
    uint64_t bytes = group->members.size * sizeof(uint32_t);
    if (!(submission->sequence & WIRE_SEND_SEQUENCE) || submission->flags != ARENA_FLAG_ANY ||
        submission->block != 0 || group->members.size < 2 || group->members.size > ROUTE_MAX_RANKS)
        return error_set(error, ERR_PROTOCOL, "a receive from any rank that makes no sense");
    if (!arena_range_valid(&worker->arena, submission->in_offset, bytes))
        return error_set(error, ERR_PROTOCOL,
                         "numbers at offset %" PRIu64 " of %" PRIu64
                         " bytes are not inside the arena",
                         submission->in_offset, bytes);
    return 0;
}

/* A free position of the rank, or NULL. */
static struct any_receive *any_create(const struct exchange_group *group,
                                      struct any_receive **waiting, const void *numbers)
{
    if (!*waiting)
        *waiting = calloc(POSITIONS, sizeof(**waiting));
    uint32_t position = 0;
    while (*waiting && position < POSITIONS && (*waiting)[position].numbers)
        position++;
    if (!*waiting || position == POSITIONS)
        return NULL;
    struct any_receive *any = &(*waiting)[position];
    uint32_t size = group->members.size;
    any->numbers = calloc(size, sizeof(uint32_t) + sizeof(bool));
    if (!any->numbers)
        return NULL;
    any->gone = (bool *)(any->numbers + size);
    memcpy(any->numbers, numbers, size * sizeof(uint32_t));
    any->remaining = size - 1;
    return any;
}

/* Until it is answered: at once, where a rank of this node has sent. */
static int any_ask(struct exchange_group *group, const struct any_receive *any, uint32_t position,
                   uint32_t from, uint32_t to, struct error *error)
{
    struct wire_ask ask = {.kind = COLLECTIVE_SEND,
                           .block = 1 + from * group->members.size + to,
                           .count = any->version};
    uint64_t sequence = probe_sequence_of(any->tag, any->numbers[from]);
    if (!probe_is_here(group, from)) {
        send_submit(group->job->exchange,
                    send_create(group, group_rank_node(group, from), WIRE_PROBE, sequence, position,
                                &ask, NULL, 0));
        return 0;
    }
    return probe_take(group, ask.block, position, any->version, sequence)
               ? 0
               : error_set(error, ERR_MEMORY, "no memory for a receive from any rank");
}

int probe_submit(struct exchange_group *group, uint32_t local, struct exchange_worker *worker,
                 const struct arena_submission *submission, struct error *error)
{
    struct any_receive **waiting = &group->probes->waiting[local];
    uint32_t to = group->members.locals[local].group_rank;
    int result = probe_check_submission(group, worker, submission, error);
    if (result != 0)
        return result;
    struct any_receive *any =
        any_create(group, waiting, worker->arena.base + submission->in_offset);
    if (!any)
        return error_set(error, ERR_MEMORY, "more than %u receives from any rank, or no memory",
                         POSITIONS);
    uint32_t position = (uint32_t)(any - *waiting);
    uint64_t version = ++group->probes->version;
    any->request = submission->request;
    any->version = version;
    any->tag = probe_tag_of(submission->sequence);
    worker->requests++;
    worker->transfers++;
    group->probes->waits++;
    /* Here first: then there may be no need to ask elsewhere. */
    for (int elsewhere = 0; elsewhere < 2; elsewhere++) {
        for (uint32_t from = 0; from < group->members.size && result == 0; from++) {
            if (from == to || probe_is_here(group, from) == (elsewhere == 1))
                continue;
            if (group->failed || !any->numbers || any->version != version)
                return 0;
            result = any_ask(group, any, position, from, to, error);
        }
    }
    return result;
}

int probe_message(struct exchange_group *group, uint32_t node, const struct wire_header *header,
                  struct error *error)
{
    if (!(header->sequence & WIRE_SEND_SEQUENCE) || !ask_is_transfer(&header->ask) ||
        wire_ask_check(&header->ask, group->members.size, error) != 0 ||
        header->payload_bytes > 0 || header->chunk >= POSITIONS)
        return error_set(error, ERR_PROTOCOL, "a probe, or an answer to one, that makes no sense");
    struct route route = ask_route(group, &header->ask);
    bool asks = header->type == WIRE_PROBE;
    uint32_t here = asks ? route.from : route.to, there = asks ? route.to : route.from;
    if (!probe_is_here(group, here) || group_rank_node(group, there) != node)
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
