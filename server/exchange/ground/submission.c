#include "server/exchange/ground/submission.h"

#include <inttypes.h>

#include "server/exchange/ground/segments.h"
#include "server/exchange/model/ask.h"

static int submission_check_offsets(const struct exchange_group *group,
                                    const struct exchange_worker *worker,
                                    const struct arena_submission *submission,
                                    const struct wire_ask *ask, struct error *error)
{
    uint64_t bytes = ask_bytes(ask);
    bool shared = submission->flags & ARENA_FLAG_SHARED;
    if (submission->flags & ~(ARENA_FLAG_STAGED | ARENA_FLAG_SHARED | ARENA_FLAG_IDENTITY))
        return error_set(error, ERR_PROTOCOL, "unknown flags 0x%" PRIx32, submission->flags);
    if (shared && segments_check(group, submission, bytes, error) != 0)
        return ERR_PROTOCOL;
    if ((submission->flags & ARENA_FLAG_STAGED) || bytes == 0)
        return 0;
    if (!arena_range_valid(&worker->arena, submission->in_offset, bytes) ||
        (!shared && !arena_range_valid(&worker->arena, submission->out_offset, bytes)))
        return error_set(error, ERR_PROTOCOL,
                         "data at offsets %" PRIu64 " and %" PRIu64 " of %" PRIu64
                         " bytes is not inside the arena",
                         submission->in_offset, submission->out_offset, bytes);
    return 0;
}

int submission_check(const struct exchange_group *group, const struct exchange_worker *worker,
                     const struct arena_submission *submission, const struct wire_ask *ask,
                     struct error *error)
{
    int result = submission_check_offsets(group, worker, submission, ask, error);
    if (result == 0 && worker->requests >= SUBMISSION_REQUESTS_MAX)
        result = error_set(error, ERR_PROTOCOL, "more than %u requests under way",
                           SUBMISSION_REQUESTS_MAX);
    return result;
}

int submission_check_order(const struct exchange_group *group, const struct local_rank *rank,
                           uint64_t sequence, const struct wire_ask *ask, struct error *error)
{
    uint64_t expected = rank->next_sequence - (rank->next_block > 0);
    if (ask->block != rank->next_block)
        return error_set(error, ERR_PROTOCOL,
                         "block %" PRIu32 " of collective %" PRIu64 " of group %" PRIu32
                         ", where block %" PRIu32 " of collective %" PRIu64 " was expected",
                         ask->block, sequence, group->id, rank->next_block, expected);
    if (sequence != expected)
        return error_set(error, ERR_PROTOCOL,
                         "collective %" PRIu64 " of group %" PRIu32 ", where %" PRIu64
                         " was expected",
                         sequence, group->id, expected);
    if (ask->block > 0 && (ask->kind != rank->last.kind || ask->root != rank->last.root))
        return error_set(error, ERR_PROTOCOL,
                         "block %" PRIu32 " of collective %" PRIu64 " of group %" PRIu32
                         " is of another collective",
                         ask->block, sequence, group->id);
    return 0;
}

int submission_check_transfers(const struct exchange_worker *worker, struct error *error)
{
    return worker->transfers < SUBMISSION_TRANSFERS_MAX
               ? 0
               : error_set(error, ERR_PROTOCOL, "more than %u sends and receives under way",
                           SUBMISSION_TRANSFERS_MAX);
}

/* Memory in the arena holds one chunk at a time, and each chunk comes back as an entry of the
 * completion ring: a rank cannot honestly have more under way than its arena has bytes and its ring
 * has entries. The second holds for chunks without data too. */
int submission_check_room(const struct exchange_worker *worker, const struct piece *piece,
                          struct error *error)
{
    const struct arena *arena = &worker->arena;
    if (piece_arena_bytes(piece) > arena->total_bytes - worker->handed_bytes)
        return error_set(error, ERR_PROTOCOL,
                         "more handed over and not given back than its arena of %" PRIu64
                         " bytes holds",
                         arena->total_bytes);
    if (worker->handed_chunks > arena->completion_mask)
        return error_set(error, ERR_PROTOCOL,
                         "more chunks handed over and not given back than its completion ring of "
                         "%" PRIu64 " entries holds",
                         (uint64_t)arena->completion_mask + 1);
    return 0;
}

static int submission_check_disagreement(const struct exchange_group *group,
                                         const struct wire_header *header, struct error *error)
{
    if (header->chunk != 0 || header->payload_bytes == 0 || header->sequence > INT64_MAX ||
        header->payload_bytes % WIRE_RANK_ASK_BYTES != 0 || header->ask.block != 0 ||
        header->sequence % group->owners.rule.servers != group->owners.self)
        return error_set(error, ERR_PROTOCOL,
                         "a disagreement about collective %" PRIu64 " of group %" PRIu32
                         " that makes no sense",
                         header->sequence, group->id);
    return 0;
}

int submission_check_contribution(const struct exchange_group *group, uint32_t node_index,
                                  const struct wire_header *header, struct error *error)
{
    if (header->type == WIRE_DISAGREE)
        return submission_check_disagreement(group, header, error);
    struct error why;
    if (wire_ask_check(&header->ask, group->members.size, &why) != 0)
        return error_set(error, ERR_PROTOCOL,
                         "a contribution to a collective that does not exist: %s", why.text);
    struct layout layout;
    if (ask_layout(group, &header->ask, header->sequence, &layout) != 0 ||
        header->chunk >= layout.chunks)
        return error_set(error, ERR_PROTOCOL,
                         "a contribution to chunk %" PRIu32 ", which does not exist",
                         header->chunk);
    struct layout_chunk extent = layout_chunk(&layout, header->chunk);
    uint64_t bytes = ask_contributes(group, &header->ask, node_index)
                         ? extent.count * ask_element_bytes(&header->ask)
                         : 0;
    uint32_t owner = header->ask.block ? ask_block_owner(group, &header->ask) : extent.server;
    if (owner != group->owners.self || header->payload_bytes != bytes ||
        !ask_takes_part(group, &header->ask, node_index))
        return error_set(error, ERR_PROTOCOL,
                         "a contribution of %" PRIu32 " bytes to chunk %" PRIu32 ", where %" PRIu64
                         " were expected or another node owns it",
                         header->payload_bytes, header->chunk, bytes);
    return 0;
}
