#include "server/exchange/node/any_receive.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "server/exchange/ground/delivery.h"
#include "server/exchange/ground/post.h"
#include "server/exchange/model/ask.h"
#include "server/exchange/model/order.h"
#include "server/exchange/model/roster.h"
#include "server/exchange/model/share.h"

/* A turn of a group: ranks asked and sends looked at; a PROBE is worth some of them. The sends that
 * one rank of this node has under way to one other, which are bounded, are looked at together. */
#define ASK_TURN_STEPS 512u
#define ASK_PROBE_STEPS 8u
#define PROBES_UNSENT_MAX 128u /* of a group */

static_assert(ANY_POSITIONS == 64, "a bit of any_rank.positions each");

/* A rank of this node waits. */
struct any_receive {
    struct any_receive *next, *prev; /* of its rank */
    struct any_receive *next_asking, *prev_asking;
    uint64_t request;
    uint64_t version;
    uint32_t local, position;
    uint32_t tag;
    uint32_t remaining;  /* how many may still send */
    uint32_t next_local; /* to be looked through: ranks of this node first, all of them */
    uint32_t next_rank;  /* to be asked: then those elsewhere; the group's size: all are */
    bool *gone;          /* [size]: behind numbers */
    uint32_t numbers[];  /* [size]: got from each so far */
};

bool any_receives_open(struct exchange_group *group)
{
    uint32_t locals = group->members.local_count;
    group->any->ranks = calloc(locals ? locals : 1, sizeof(*group->any->ranks));
    return group->any->ranks != NULL;
}

void any_receives_close(struct exchange_group *group)
{
    free(group->any->ranks);
}

static uint64_t any_bytes(const struct exchange_group *group)
{
    return sizeof(struct any_receive) +
           group->members.size * (uint64_t)(sizeof(uint32_t) + sizeof(bool));
}

static bool any_is_elsewhere(const struct exchange_group *group, uint32_t rank)
{
    return group_rank_node(group, rank) != group->job->exchange->options.self;
}

/* --- the end ---------------------------------------------------------------------------------- */

static void any_stop_asking(struct exchange_group *group, struct any_receive *any)
{
    if (any->prev_asking)
        DL_DELETE2(group->any->asking, any, prev_asking, next_asking);
    any->prev_asking = NULL;
}

static void any_free(struct exchange_group *group, struct any_receive *any)
{
    struct exchange_worker *worker = group_local_worker(group, any->local);
    struct any_rank *rank = &group->any->ranks[any->local];
    worker->requests--;
    worker->transfers--;
    group->any->count--;
    any_stop_asking(group, any);
    DL_DELETE(rank->receives, any);
    rank->positions &= ~(1ull << any->position);
    share_let_go(group, any_bytes(group));
    free(any);
}

/* from: who has sent; NO_INDEX: nobody remains who could. */
static void any_complete(struct exchange_group *group, struct any_receive *any, uint32_t from)
{
    struct exchange_worker *worker = group_local_worker(group, any->local);
    uint64_t request = any->request;
    any_free(group, any);
    worker_request_done(worker, request, from);
}

/* The rank has not sent, and has departed. */
static void any_lose(struct exchange_group *group, struct any_receive *any, uint32_t from)
{
    if (any->gone[from])
        return;
    any->gone[from] = true;
    if (--any->remaining == 0)
        any_complete(group, any, NO_INDEX);
}

bool any_receives_drop(struct exchange_group *group, uint32_t *most)
{
    struct any_receives *all = group->any;
    for (uint32_t local = 0; all->count > 0 && local < group->members.local_count; local++) {
        for (; *most > 0 && all->ranks[local].receives; --*most)
            any_free(group, all->ranks[local].receives); /* NOLINT(clang-analyzer-unix.Malloc) */
    }
    return all->count == 0;
}

/* --- answers ---------------------------------------------------------------------------------- */

void any_receive_answered(struct exchange_group *group, const struct route *route,
                          uint32_t position, uint64_t version, uint64_t sequence, bool ready)
{
    uint32_t local = group_local_index(group, group->members.ranks[route->to]);
    struct any_receive *any = group->any->ranks[local].receives;
    while (any && any->position != position)
        any = any->next;
    if (!any || any->version != version || any->gone[route->from] ||
        sequence != send_sequence(any->tag, any->numbers[route->from]))
        return; /* it is over, or another is there now */
    if (ready)
        any_complete(group, any, route->from);
    else
        any_lose(group, any, route->from);
}

void any_receives_sent(struct exchange_group *group, const struct collective *transfer)
{
    if (group->any->count == 0)
        return;
    uint32_t from = transfer->route.from;
    uint32_t local = group_local_index(group, group->members.ranks[transfer->route.to]);
    struct any_receive *any, *next;
    DL_FOREACH_SAFE(group->any->ranks[local].receives, any, next)
    {
        if (send_serves(transfer->sequence, any->tag, any->numbers[from]))
            any_complete(group, any, from);
    }
}

/* Tell the receives that have looked through the rank's sends that it has departed; the others will
 * see that themselves. */
void any_receives_rank_departed(struct exchange_group *group, uint32_t local)
{
    uint32_t from = group->members.locals[local].group_rank;
    for (uint32_t i = 0; group->any->count > 0 && i < group->members.local_count; i++) {
        struct any_receive *any, *next;
        DL_FOREACH_SAFE(group->any->ranks[i].receives, any, next)
        {
            if (i != local && any->next_local > local)
                any_lose(group, any, from);
        }
    }
}

bool any_receives_waiting(const struct exchange_group *group)
{
    return group->any->count > 0;
}

/* --- asking ----------------------------------------------------------------------------------- */

/* The next rank of this node. The receive may be over then. */
static void any_ask_here(struct exchange_group *group, struct any_receive *any, uint32_t *steps)
{
    uint32_t local = any->next_local++;
    uint32_t from = group->members.locals[local].group_rank;
    uint32_t to = group->members.locals[any->local].group_rank;
    if (local == any->local)
        return;
    if (order_find_sent(group, local, to, any->tag, any->numbers[from], steps))
        any_complete(group, any, from);
    else if (group->members.departed[from])
        any_lose(group, any, from);
}

static void any_probe_sent(struct exchange_send *send)
{
    struct exchange_group *group = send->group;
    group->any->unsent--;
    if (group->any->asking && !group->failed)
        group_mark_dirty(group);
}

/* The next rank, if it is elsewhere. */
static void any_ask_elsewhere(struct exchange_group *group, struct any_receive *any,
                              uint32_t *steps)
{
    uint32_t from = any->next_rank++, to = group->members.locals[any->local].group_rank;
    if (!any_is_elsewhere(group, from))
        return;
    struct wire_ask ask = {.kind = COLLECTIVE_SEND,
                           .block = 1 + from * group->members.size + to,
                           .count = any->version};
    struct exchange_send *send =
        send_create(group, group_rank_node(group, from), WIRE_PROBE,
                    send_sequence(any->tag, any->numbers[from]), any->position, &ask, NULL, 0);
    send->done = any_probe_sent;
    group->any->unsent++;
    *steps += ASK_PROBE_STEPS;
    send_submit(group->job->exchange, send);
}

void any_receives_ask(struct exchange_group *group)
{
    struct any_receives *all = group->any;
    uint32_t steps = 0;
    while (all->asking && !group->failed) {
        struct any_receive *any = all->asking;
        /* The analyzer does not see that what is freed has left the list.
         * NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
        bool elsewhere = any->next_local == group->members.local_count;
        if (elsewhere && all->unsent >= PROBES_UNSENT_MAX)
            return; /* the next that has been sent brings it on */
        if (++steps > ASK_TURN_STEPS) {
            group_mark_dirty(group);
            return;
        }
        if (!elsewhere)
            any_ask_here(group, any, &steps);
        else if (any->next_rank < group->members.size)
            any_ask_elsewhere(group, any, &steps);
        else
            any_stop_asking(group, any);
    }
}

static int any_check_submission(const struct exchange_group *group,
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
    return share_check(group, any_bytes(group), error);
}

/* In a free position of the rank, or NULL. */
static struct any_receive *any_create(struct exchange_group *group, uint32_t local,
                                      const void *numbers)
{
    struct any_rank *rank = &group->any->ranks[local];
    uint32_t size = group->members.size;
    if (rank->positions == UINT64_MAX)
        return NULL;
    struct any_receive *any = calloc(1, any_bytes(group));
    if (!any)
        return NULL;
    share_keep(group, any_bytes(group));
    memcpy(any->numbers, numbers, size * sizeof(uint32_t));
    any->gone = (bool *)(any->numbers + size);
    any->remaining = size - 1;
    any->local = local;
    any->next_rank = group->members.single ? size : 0;
    while (rank->positions >> any->position & 1)
        any->position++;
    rank->positions |= 1ull << any->position;
    DL_APPEND(rank->receives, any);
    DL_APPEND2(group->any->asking, any, prev_asking, next_asking);
    any->version = ++group->any->version;
    group->any->count++;
    return any;
}

int any_receive_submit(struct exchange_group *group, uint32_t local, struct exchange_worker *worker,
                       const struct arena_submission *submission, struct error *error)
{
    int result = any_check_submission(group, worker, submission, error);
    if (result != 0)
        return result;
    struct any_receive *any = any_create(group, local, worker->arena.base + submission->in_offset);
    if (!any)
        return error_set(error, ERR_MEMORY, "more than %u receives from any rank, or no memory",
                         ANY_POSITIONS);
    any->request = submission->request;
    any->tag = send_tag(submission->sequence);
    worker->requests++;
    worker->transfers++;
    group_mark_dirty(group);
    return 0;
}

/* --- for tests -------------------------------------------------------------------------------- */

void any_receives_check_invariants(const struct exchange_group *group)
{
    uint32_t count = 0;
    for (uint32_t local = 0; local < group->members.local_count; local++) {
        const struct any_rank *rank = &group->any->ranks[local];
        const struct any_receive *any;
        uint64_t positions = 0;
        DL_FOREACH(rank->receives, any)
        {
            count++;
            positions |= 1ull << any->position;
            assert(any->local == local && any->remaining > 0);
        }
        assert(positions == rank->positions);
    }
    assert(count == group->any->count);
}
