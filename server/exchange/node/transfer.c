#include "server/exchange/node/transfer.h"

#include <inttypes.h>
#include <stdio.h>

#include "server/exchange/ground/submission.h"
#include "server/exchange/model/ask.h"
#include "server/exchange/model/order.h"
#include "server/exchange/model/roster.h"
#include "server/exchange/node/any_receive.h"
#include "server/exchange/node/chunk.h"
#include "server/exchange/node/collective.h"
#include "server/exchange/node/issue.h"
#include "server/exchange/node/probe.h"
#include "server/exchange/node/replay.h"
#include "server/exchange/node/stability.h"
#include "server/exchange/owner/slots.h"

static int transfer_check_submission(const struct exchange_group *group, uint32_t local,
                                     const struct arena_submission *submission,
                                     const struct wire_ask *ask, struct error *error)
{
    struct route route = ask_route(group, ask);
    if (!(submission->sequence & WIRE_SEND_SEQUENCE))
        return error_set(error, ERR_PROTOCOL, "a send numbered %" PRIu64 " like a collective",
                         submission->sequence);
    if (!route_takes_part(&route, group->members.locals[local].group_rank))
        return error_set(error, ERR_PROTOCOL,
                         "a send between ranks %" PRIu32 " and %" PRIu32 " of group %" PRIu32
                         " by another one",
                         route.from, route.to, group->id);
    if (submission->flags & ARENA_FLAG_STAGED)
        return error_set(error, ERR_PROTOCOL, "a send that is staged");
    if (replay_is(group, ask) && group->members.locals[local].group_rank != route.to)
        return error_set(error, ERR_PROTOCOL, "a replay by the rank that it asks");
    return 0;
}

static void transfer_fail(struct exchange_group *group, uint32_t departed, uint32_t other)
{
    char text[ERROR_TEXT_BYTES];
    snprintf(text, sizeof(text),
             "rank %" PRIu32 " has left job '%s' with a transfer between it and rank %" PRIu32
             " of group %" PRIu32 " not done",
             group->members.ranks[departed], group->job->name, group->members.ranks[other],
             group->id);
    exchange_group_fail(group, ERR_LOST, text);
}

/* Whether the receiver's node has not asked for all chunks. */
static bool transfer_lacks_asks(const struct collective *transfer)
{
    for (uint32_t i = 0, live = transfer->live; live > 0; i++) {
        const struct chunk *chunk = transfer->chunks[i];
        live -= chunk != NULL;
        if (chunk && chunk_waits_here(chunk))
            return true;
    }
    return transfer->issued < transfer->layout.chunks;
}

/* Whether the rank, which is of this node, has not submitted its side. */
static bool transfer_lacks(const struct collective *transfer, uint32_t rank)
{
    const struct exchange_group *group = transfer->group;
    return !transfer->parts[group_local_index(group, group->members.ranks[rank])].submitted;
}

/* A receiver that has departed asks for nothing more. Whether a sender that has departed has sent
 * is known on its own node, which tells when it is asked (transfer_check_source). */
static void transfer_check_departed(const struct collective *transfer)
{
    struct exchange_group *group = transfer->group;
    const bool *departed = group->members.departed;
    uint32_t from = transfer->route.from, to = transfer->route.to;
    if (replay_is(group, &transfer->ask))
        return; /* nobody but the node of `from` is asked, and there for its archive it is */
    bool sends_far = !transfer->single && transfer->owner == group->owners.self;
    if (departed[to] && (transfer->single ? transfer_lacks(transfer, to)
                                          : sends_far && transfer_lacks_asks(transfer)))
        transfer_fail(group, to, from);
    else if (departed[from] && transfer->single && transfer_lacks(transfer, from))
        transfer_fail(group, from, to);
}

void transfer_check_source(struct exchange_group *group, uint64_t sequence,
                           const struct wire_ask *ask)
{
    struct route route = ask_route(group, ask);
    if (group->members.departed[route.from] && !collective_find(group, sequence, ask->block))
        transfer_fail(group, route.from, route.to);
}

/* Nothing of it has moved. */
static void transfer_met(struct collective *transfer, const struct wire_ask *sent,
                         const struct wire_ask *wanted)
{
    transfer->refused = !wire_send_fits(sent, wanted);
    transfer->wanted_count = wanted->count;
    transfer->wanted_dtype = wanted->dtype;
    transfer->ask = *sent;
    collective_cut_short(transfer, transfer->refused ? 0 : sent->count);
    if (!transfer->single)
        issue_others(transfer);
}

/* Both ranks are here. */
static void transfer_meet_here(struct collective *transfer)
{
    const struct exchange_group *group = transfer->group;
    const uint32_t *ranks = group->members.ranks;
    const struct wire_ask sent =
        transfer->parts[group_local_index(group, ranks[transfer->route.from])].ask;
    transfer_met(transfer, &sent,
                 &transfer->parts[group_local_index(group, ranks[transfer->route.to])].ask);
}

static struct collective *transfer_create(struct exchange_group *group, const struct wire_ask *ask,
                                          const struct arena_submission *submission,
                                          struct error *error)
{
    struct collective *made =
        collective_create(group, submission->sequence, ask, submission->priority, error);
    if (!made)
        return NULL;
    made->met = transfer_met;
    order_add_transfer(made);
    bool replay = replay_is(group, ask);
    if (replay && made->single)
        replay_begin_here(made);
    else if (!replay && !made->single)
        issue_first_alone(made);
    return made;
}

int transfer_submit(struct exchange_group *group, uint32_t local, struct exchange_worker *worker,
                    const struct arena_submission *submission, struct error *error)
{
    struct wire_ask ask = ask_of_submission(submission);
    if (submission->flags & ARENA_FLAG_ANY)
        return submission_check_transfers(worker, error) == 0
                   ? any_receive_submit(group, local, worker, submission, error)
                   : ERR_PROTOCOL;
    int result = wire_ask_check(&ask, group->members.size, error);
    if (result == 0)
        result = transfer_check_submission(group, local, submission, &ask, error);
    if (result == 0)
        result = submission_check(group, worker, submission, &ask, error);
    if (result == 0)
        result = submission_check_transfers(worker, error);
    if (result != 0)
        return result;
    struct collective *transfer = collective_find(group, submission->sequence, ask.block);
    if (transfer && transfer->parts[local].submitted)
        return error_set(error, ERR_PROTOCOL, "a send twice");
    if (!transfer && !(transfer = transfer_create(group, &ask, submission, error)))
        return error ? error->code : ERR_MEMORY;
    bool all_here = collective_add_part(transfer, local, &ask, submission);
    if (group->members.locals[local].group_rank == transfer->route.from) {
        result = order_add_sent(transfer, local, error);
        if (result != 0)
            return result;
        probes_sent(group, transfer);
    }
    if (all_here && transfer->single && !replay_is(group, &ask))
        transfer_meet_here(transfer);
    if (all_here)
        issue_advance_ready(transfer, transfer->layout.chunks);
    transfer_check_departed(transfer);
    return 0;
}

int transfer_delivered(struct exchange_group *group, uint32_t from,
                       const struct wire_header *header, struct error *error)
{
    struct collective *transfer = collective_find(group, header->sequence, header->ask.block);
    bool awaited = transfer && stability_sender_waits(transfer) && header->payload_bytes == 0 &&
                   header->chunk == 0 && wire_ask_equal(&header->ask, &transfer->ask) &&
                   group_rank_node(group, transfer->route.to) == from &&
                   !transfer_lacks_asks(transfer);
    if (!awaited)
        return error_set(error, ERR_PROTOCOL,
                         "a send of group %" PRIu32
                         " has come, it says, that was not sent to it, or has come before",
                         group->id);
    transfer->confirmed = true;
    collective_settle(transfer);
    return 0;
}

void transfers_rank_departed(struct exchange_group *group, uint32_t job_rank)
{
    uint32_t rank = group_rank_index(group, job_rank);
    if (rank != NO_INDEX) {
        group->members.departed[rank] = true;
        probes_rank_departed(group, rank); /* there are some on its node only */
    }
    for (const struct collective *it = group->order->transfers; it && !group->failed; it = it->next)
        transfer_check_departed(it);
    slots_visit_transfers(group, transfer_check_source);
}
