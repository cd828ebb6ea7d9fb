/* Transfers: what one rank sends to another. They take part in no order with the group's
 * collectives nor with each other, since a receive may be asked for long before the send or after
 * it; so each has a window of its own, and none keeps another from going on.
 *
 * The receiver's node asks for each chunk with an empty contribution; the sender's node, which owns
 * the block, answers with the data. So nothing travels that has no place to go to. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <utlist.h>

#include "server/exchange/exchange_private.h"

/* Of a rank, in all its groups, both ways; the library has fewer under way. */
#define TRANSFERS_MAX 1024u

static int transfer_check_worker(const struct exchange_worker *worker, struct error *error)
{
    return worker->transfers < TRANSFERS_MAX
               ? 0
               : error_set(error, ERR_PROTOCOL, "more than %u sends and receives under way",
                           TRANSFERS_MAX);
}

uint64_t transfer_slots_most(const struct exchange_group *group)
{
    return (uint64_t)group->size * TRANSFERS_MAX * group->window;
}

static int transfer_check(const struct exchange_group *group, uint32_t local,
                          const struct arena_submission *submission, const struct wire_ask *ask,
                          struct error *error)
{
    struct route route = ask_route(group, ask);
    if (!(submission->sequence & WIRE_SEND_SEQUENCE))
        return error_set(error, ERR_PROTOCOL, "a send numbered %" PRIu64 " like a collective",
                         submission->sequence);
    if (!route_takes_part(&route, group->locals[local].group_rank))
        return error_set(error, ERR_PROTOCOL,
                         "a send between ranks %" PRIu32 " and %" PRIu32 " of group %" PRIu32
                         " by another one",
                         route.from, route.to, group->id);
    if (submission->flags & ARENA_FLAG_STAGED)
        return error_set(error, ERR_PROTOCOL, "a send that is staged");
    return 0;
}

static void transfer_fail(struct exchange_group *group, uint32_t left, uint32_t other)
{
    char text[ERROR_TEXT_BYTES];
    snprintf(text, sizeof(text),
             "rank %" PRIu32 " has left job '%s' with a transfer between it and rank %" PRIu32
             " of group %" PRIu32 " not done",
             group->ranks[left], group->job->name, group->ranks[other], group->id);
    exchange_group_fail(group, ERR_LOST, text);
}

/* Whether chunks are left that the receiver's node has not asked for. */
static bool transfer_lacks_asks(struct collective *transfer)
{
    for (uint32_t i = 0; i < transfer->layout.chunks; i++) {
        const struct chunk *chunk = transfer->chunks[i];
        if (chunk && chunk->state == CHUNK_CONTRIBUTED && slot_has_chunk(transfer->group, chunk))
            return true;
    }
    return transfer->issued < transfer->layout.chunks;
}

/* Whether the rank, which is of this node, has not submitted its side. */
static bool transfer_lacks(const struct collective *transfer, uint32_t rank)
{
    const struct exchange_group *group = transfer->group;
    return !transfer->parts[group_local_index(group, group->ranks[rank])].submitted;
}

/* A receiver that has left asks for nothing more. Whether a sender that has left has sent is known
 * on its own node, which tells when it is asked (transfer_check_source). */
static void transfer_check_left(struct collective *transfer)
{
    struct exchange_group *group = transfer->group;
    uint32_t from = transfer->route.from, to = transfer->route.to;
    bool sends_far = !transfer->single && transfer->owner == group->self_owner;
    if (group->left[to] && (transfer->single ? transfer_lacks(transfer, to)
                                             : sends_far && transfer_lacks_asks(transfer)))
        transfer_fail(group, to, from);
    else if (group->left[from] && transfer->single && transfer_lacks(transfer, from))
        transfer_fail(group, from, to);
}

void transfer_check_source(struct exchange_group *group, uint64_t sequence,
                           const struct wire_ask *ask)
{
    struct route route = ask_route(group, ask);
    if (group->left[route.from] && !collective_find(group, sequence, ask->block))
        transfer_fail(group, route.from, route.to);
}

int transfer_submit(struct exchange_group *group, uint32_t local, struct exchange_worker *worker,
                    const struct arena_submission *submission, struct error *error)
{
    struct wire_ask ask = submission_ask(submission);
    if (submission->flags & ARENA_FLAG_ANY)
        return transfer_check_worker(worker, error) == 0
                   ? probe_submit(group, local, worker, submission, error)
                   : ERR_PROTOCOL;
    int result = wire_ask_check(&ask, group->size, error);
    if (result == 0)
        result = transfer_check(group, local, submission, &ask, error);
    if (result == 0)
        result = submission_check_worker(group, worker, submission, &ask, error);
    if (result == 0)
        result = transfer_check_worker(worker, error);
    if (result != 0)
        return result;
    struct collective *transfer = collective_find(group, submission->sequence, ask.block);
    if (transfer && transfer->parts[local].submitted)
        return error_set(error, ERR_PROTOCOL, "a send twice");
    if (!transfer) {
        transfer =
            collective_create(group, submission->sequence, &ask, submission->priority, error);
        if (!transfer)
            return error ? error->code : ERR_MEMORY;
        transfer->next = group->transfers;
        if (transfer->next)
            transfer->next->previous = transfer;
        group->transfers = transfer;
    }
    bool all_here = collective_add_part(transfer, local, &ask, submission);
    if (group->locals[local].group_rank == transfer->route.from)
        probes_sent(group, transfer);
    if (all_here && transfer->disagree)
        slot_disagree_local(transfer);
    else if (all_here)
        collective_advance_ready(transfer, transfer->layout.chunks);
    transfer_check_left(transfer);
    return 0;
}

static void transfer_issue(struct outlet *outlet)
{
    struct collective *transfer = outlet->collective;
    uint32_t window = transfer->group->window;
    /* With its last chunk the transfer may be gone. */
    uint32_t left = transfer->layout.chunks - transfer->issued;
    while (left-- > 0 && outlet->in_flight < window && outlet_issue(outlet))
        ;
}

void transfers_issue(struct exchange_group *group)
{
    struct outlet *outlet, *next;
    DL_FOREACH_SAFE(group->transfer_queue, outlet, next)
    {
        if (!group->failed)
            transfer_issue(outlet);
    }
}

void transfers_rank_left(struct exchange_group *group, uint32_t job_rank)
{
    uint32_t rank = group_place(group, job_rank);
    if (rank != NO_INDEX) {
        group->left[rank] = true;
        probes_rank_left(group, rank); /* there are some on its node only */
    }
    for (struct collective *it = group->transfers; it && !group->failed; it = it->next)
        transfer_check_left(it);
    slots_check_sources(group);
}
