/* Without memory for its table nothing is added (hh.tbl is NULL); the default ends the process. */
#define HASH_NONFATAL_OOM 1
#include "server/exchange/node/probe.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <uthash.h>
#include <utlist.h>

#include "server/exchange/ground/post.h"
#include "server/exchange/model/ask.h"
#include "server/exchange/model/order.h"
#include "server/exchange/model/roster.h"
#include "server/exchange/model/share.h"
#include "server/exchange/node/any_receive.h"

/* A PROBE that waits for its answer. */
struct probe {
    struct probe *next, *prev; /* of its pair */
    uint64_t version;
    uint32_t position;
    uint32_t tag, number;
};

/* The PROBEs that one rank elsewhere has made for sends of one rank of this node. */
struct probe_pair {
    uint32_t block;      /* as for sends: who from, who to */
    struct probe *waits; /* at least one */
    UT_hash_handle hh;
};

static bool probe_is_here(const struct exchange_group *group, uint32_t rank)
{
    return group_rank_node(group, rank) == group->job->exchange->options.self;
}

static uint32_t probe_block(const struct exchange_group *group, uint32_t from, uint32_t to)
{
    return 1 + from * group->members.size + to;
}

/* --- pairs ------------------------------------------------------------------------------------ */

static struct probe_pair *pair_find(const struct exchange_group *group, uint32_t block)
{
    struct probe_pair *pair;
    HASH_FIND(hh, group->probes->pairs, &block, sizeof(block), pair);
    return pair;
}

static struct probe_pair *pair_create(struct exchange_group *group, uint32_t block)
{
    struct probe_pair *pair = calloc(1, sizeof(*pair));
    if (!pair)
        return NULL;
    pair->block = block;
    HASH_ADD(hh, group->probes->pairs, block, sizeof(pair->block), pair);
    if (!pair->hh.tbl) {
        free(pair);
        return NULL;
    }
    share_keep(group, sizeof(*pair));
    return pair;
}

/* Forget the probe, and the pair with its last one: whether that is gone. */
static bool pair_remove(struct exchange_group *group, struct probe_pair *pair, struct probe *probe)
{
    DL_DELETE(pair->waits, probe);
    free(probe);
    share_let_go(group, sizeof(*probe));
    if (pair->waits)
        return false;
    HASH_DEL(group->probes->pairs, pair);
    free(pair);
    share_let_go(group, sizeof(*pair));
    return true;
}

static int pair_add(struct exchange_group *group, const struct wire_header *header,
                    struct error *error)
{
    struct probe_pair *pair = pair_find(group, header->ask.block);
    int result = share_check(group, sizeof(struct probe) + sizeof(*pair), error);
    if (result != 0)
        return result;
    struct probe *probe = calloc(1, sizeof(*probe));
    if (probe && !pair)
        pair = pair_create(group, header->ask.block);
    if (!probe || !pair) {
        free(probe);
        return error_set(error, ERR_MEMORY, "no memory for a probe");
    }
    *probe = (struct probe){.version = header->ask.count,
                            .position = header->chunk,
                            .tag = send_tag(header->sequence),
                            .number = (uint32_t)header->sequence};
    DL_APPEND(pair->waits, probe);
    share_keep(group, sizeof(*probe));
    return 0;
}

/* --- who has sent ----------------------------------------------------------------------------- */

static void probe_answer(struct exchange_group *group, uint32_t block, uint32_t position,
                         uint64_t version, uint64_t sequence, bool ready)
{
    struct wire_ask ask = {.kind = COLLECTIVE_SEND, .block = block, .count = version};
    struct route route = ask_route(group, &ask);
    send_submit(group->job->exchange,
                send_create(group, group_rank_node(group, route.to), ready ? WIRE_READY : WIRE_GONE,
                            sequence, position, &ask, NULL, 0));
}

/* A position has one probe, the last that was made. Whether this is it. */
static bool probe_replace(struct exchange_group *group, const struct wire_header *header)
{
    struct probe_pair *pair = pair_find(group, header->ask.block);
    struct probe *probe = pair ? pair->waits : NULL;
    while (probe && probe->position != header->chunk)
        probe = probe->next;
    if (probe && probe->version >= header->ask.count)
        return false;
    if (probe)
        pair_remove(group, pair, probe);
    return true;
}

static int probe_take(struct exchange_group *group, const struct wire_header *header,
                      const struct route *route, struct error *error)
{
    uint32_t local = group_local_index(group, group->members.ranks[route->from]), steps = 0;
    if (!probe_replace(group, header) || group->members.departed[route->to])
        return 0;
    bool ready = order_find_sent(group, local, route->to, send_tag(header->sequence),
                                 (uint32_t)header->sequence, &steps);
    if (!ready && !group->members.departed[route->from])
        return pair_add(group, header, error);
    probe_answer(group, header->ask.block, header->chunk, header->ask.count, header->sequence,
                 ready);
    return 0;
}

/* The probe waits no more. Whether its pair is gone with it. */
static bool pair_answer(struct exchange_group *group, struct probe_pair *pair, struct probe *probe,
                        bool ready)
{
    uint32_t block = pair->block;
    struct probe answered = *probe;
    bool last = pair_remove(group, pair, probe);
    probe_answer(group, block, answered.position, answered.version,
                 send_sequence(answered.tag, answered.number), ready);
    return last;
}

void probes_sent(struct exchange_group *group, const struct collective *transfer)
{
    if (probe_is_here(group, transfer->route.to)) {
        any_receives_sent(group, transfer);
        return;
    }
    if (!group->probes->pairs)
        return;
    struct probe_pair *pair = pair_find(group, transfer->ask.block);
    struct probe *next, *probe = pair ? pair->waits : NULL;
    for (; probe && !group->failed; probe = next) {
        next = probe->next;
        if (send_serves(transfer->sequence, probe->tag, probe->number))
            pair_answer(group, pair, probe, true);
    }
}

/* End the PROBEs of a pair of which one rank has departed. tell: it is the rank here that they wait
 * for, and they are answered; otherwise it is the rank elsewhere, which wants no answer. */
static void pair_depart(struct exchange_group *group, uint32_t block, bool tell)
{
    struct probe_pair *pair = pair_find(group, block);
    for (bool gone = !pair; !gone;) {
        gone = tell ? pair_answer(group, pair, pair->waits, false)
                    : pair_remove(group, pair, pair->waits);
    }
}

void probes_rank_departed(struct exchange_group *group, uint32_t group_rank)
{
    const struct members *members = &group->members;
    bool here = probe_is_here(group, group_rank);
    if (here)
        any_receives_rank_departed(group, group_local_index(group, members->ranks[group_rank]));
    for (uint32_t to = 0; here && group->probes->pairs && to < members->size; to++)
        pair_depart(group, probe_block(group, group_rank, to), true);
    for (uint32_t i = 0; !here && group->probes->pairs && i < members->local_count; i++)
        pair_depart(group, probe_block(group, members->locals[i].group_rank, group_rank), false);
}

bool probes_drop(struct exchange_group *group, uint32_t *most)
{
    const struct probes *probes = group->probes;
    /* The analyzer takes each of a table of several for its only one. */
    for (; *most > 0 && probes->pairs; --*most)
        pair_remove(group, probes->pairs, probes->pairs->waits); /* NOLINT */
    return !probes->pairs;
}

/* --- messages --------------------------------------------------------------------------------- */

int probe_message(struct exchange_group *group, uint32_t node, const struct wire_header *header,
                  struct error *error)
{
    if (!(header->sequence & WIRE_SEND_SEQUENCE) || !ask_is_transfer(&header->ask) ||
        wire_ask_check(&header->ask, group->members.size, error) != 0 ||
        header->payload_bytes > 0 || header->chunk >= ANY_POSITIONS)
        return error_set(error, ERR_PROTOCOL, "a probe, or an answer to one, that makes no sense");
    struct route route = ask_route(group, &header->ask);
    bool asks = header->type == WIRE_PROBE;
    uint32_t here = asks ? route.from : route.to, there = asks ? route.to : route.from;
    if (!probe_is_here(group, here) || group_rank_node(group, there) != node)
        return error_set(error, ERR_PROTOCOL,
                         "a probe, or an answer to one, between ranks %" PRIu32 " and %" PRIu32
                         " of group %" PRIu32 ", of which one is elsewhere",
                         route.from, route.to, group->id);
    struct error why = {0};
    if (!asks)
        any_receive_answered(group, &route, header->chunk, header->ask.count, header->sequence,
                             header->type == WIRE_READY);
    else if (probe_take(group, header, &route, &why) != 0)
        exchange_group_fail(group, why.code, why.text);
    return 0;
}

void probes_check_invariants(const struct exchange_group *group)
{
    for (const struct probe_pair *it = group->probes->pairs; it; it = it->hh.next)
        assert(it->waits);
}
