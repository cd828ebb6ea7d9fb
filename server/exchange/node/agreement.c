#include "server/exchange/node/agreement.h"

#include <inttypes.h>

#include "common/text/text.h"
#include "server/exchange/ground/post.h"
#include "server/exchange/ground/segments.h"
#include "server/exchange/model/ask.h"
#include "server/exchange/model/disagreement.h"
#include "server/exchange/model/order.h"
#include "server/exchange/model/roster.h"
#include "server/exchange/model/share.h"
#include "server/exchange/owner/slot.h"

#define AGREEMENT_MEMORIES_NAMED 4u
#define AGREEMENT_RANKS_NAMED 8u

/* --- where results go ------------------------------------------------------------------------- */

static bool part_same_memory(const struct part *a, const struct part *b)
{
    return a->segment == b->segment && (!a->segment || a->out_offset == b->out_offset);
}

/* "ranks 0, 1 gave shared memory 3 at offset 0": all that gave what the local rank did. */
static void agreement_add_memory(struct text *text, const struct collective *collective,
                                 uint32_t local)
{
    const struct members *members = &collective->group->members;
    const struct part *part = &collective->parts[local];
    uint32_t ranks[AGREEMENT_RANKS_NAMED], count = 0;
    for (uint32_t i = local; i < members->local_count; i++) {
        if (!part_same_memory(&collective->parts[i], part))
            continue;
        if (count < AGREEMENT_RANKS_NAMED)
            ranks[count] = members->locals[i].job_rank;
        count++;
    }
    text_add_ranks(text, ranks, count, AGREEMENT_RANKS_NAMED);
    if (part->segment)
        text_add(text, " gave shared memory %" PRIu32 " at offset %" PRIu64, part->segment->number,
                 part->out_offset);
    else
        text_add(text, " gave memory of %s own", count == 1 ? "its" : "their");
}

static bool part_is_first(const struct collective *collective, uint32_t local)
{
    for (uint32_t i = 0; i < local; i++) {
        if (part_same_memory(&collective->parts[i], &collective->parts[local]))
            return false;
    }
    return true;
}

/* Return the number that the ranks count: the sequence and what they did at their place. */
static uint64_t agreement_number(const struct collective *collective)
{
    return (collective->sequence + segments_met(collective->group)) & ~WIRE_SEND_SEQUENCE;
}

static void agreement_report_memory(const struct collective *collective)
{
    struct exchange_group *group = collective->group;
    const struct exchange_options *options = &group->job->exchange->options;
    char words[ERROR_TEXT_BYTES];
    struct text text = {.at = words, .room = sizeof(words)};
    uint32_t named = 0;
    text_add(&text,
             "the result of collective %" PRIu64 " of group %" PRIu32
             " goes to different places on the ranks of node %s",
             agreement_number(collective), group->id, options->node_names[options->self]);
    for (uint32_t i = 0; i < group->members.local_count && named < AGREEMENT_MEMORIES_NAMED; i++) {
        if (!part_is_first(collective, i))
            continue;
        text_add(&text, named == 0 ? ": " : "; ");
        agreement_add_memory(&text, collective, i);
        named++;
    }
    exchange_group_fail(group, ERR_MISMATCH, words);
}

bool agreement_on_memory(struct collective *collective)
{
    const struct exchange_group *group = collective->group;
    if (collective->ask.kind != COLLECTIVE_ALL_REDUCE || group->members.local_count == 0)
        return true;
    const struct part *first = &collective->parts[0]; /* all take part */
    for (uint32_t i = 1; i < group->members.local_count; i++) {
        if (part_same_memory(&collective->parts[i], first))
            continue;
        agreement_report_memory(collective);
        return false;
    }
    if (first->segment)
        collective->shared = first->segment->base + first->out_offset;
    return true;
}

/* --- what is asked for ------------------------------------------------------------------------ */

void agreement_lost(struct collective *collective)
{
    struct agreement *agreement = collective->group->agreement;
    collective->disagree = true;
    if (collective->ask.block == 0 && collective->sequence < agreement->least_disagreed)
        agreement->least_disagreed = collective->sequence;
}

bool agreement_is_beyond(const struct exchange_group *group, uint32_t block, uint64_t sequence)
{
    return block > 0 && sequence >= group->agreement->least_disagreed;
}

void agreement_failed(struct collective *collective)
{
    struct agreement *agreement = collective->group->agreement;
    const struct collective *oldest = agreement->oldest;
    if (!oldest || collective_comes_before(collective, oldest->sequence, oldest->ask.block))
        agreement->oldest = collective;
    group_mark_dirty(collective->group);
}

/* All that take part and are here have asked; where others do too, it is clear already. */
static void agreement_fail_here(const struct collective *collective)
{
    struct exchange_group *group = collective->group;
    struct disagreement all;
    disagreement_init(&all, group->id, group->members.size, agreement_number(collective));
    for (uint32_t i = 0; i < group->members.local_count; i++) {
        if (collective->parts[i].submitted)
            disagreement_add(&all, group->members.locals[i].job_rank, &collective->parts[i].ask);
    }
    char text[ERROR_TEXT_BYTES];
    disagreement_text(&all, text, sizeof(text));
    exchange_group_fail(group, ERR_MISMATCH, text);
}

/* Return a buffer with the local ranks' asks behind its header, as many as fit, and their *bytes;
 * NULL: there is no buffer. */
static struct buffer *agreement_encode(const struct collective *collective, uint32_t *bytes)
{
    const struct members *members = &collective->group->members;
    struct buffer *buffer = buffer_get(collective->group->job->exchange->options.pool);
    if (!buffer)
        return NULL;
    buffer->peer = NO_INDEX;
    uint8_t *payload = buffer->data + WIRE_HEADER_BYTES;
    uint32_t room = buffer->capacity - WIRE_HEADER_BYTES, used = 0;
    for (uint32_t i = 0; i < members->local_count && used + WIRE_RANK_ASK_BYTES <= room; i++) {
        wire_encode_rank_ask(payload + used, members->locals[i].group_rank,
                             &collective->parts[i].ask);
        used += WIRE_RANK_ASK_BYTES;
    }
    *bytes = used;
    return buffer;
}

/* The group fails here, or at the owner of chunk 0, who then tells all nodes. */
static void agreement_tell(struct collective *collective)
{
    struct exchange_group *group = collective->group;
    const struct owners *owners = &group->owners;
    uint32_t server = collective->layout.first_server;
    collective->told = true;
    if (collective->single || collective->ask.block > 0) {
        agreement_fail_here(collective);
        return;
    }
    uint32_t bytes;
    struct buffer *buffer = agreement_encode(collective, &bytes);
    if (!buffer && server == owners->self) {
        exchange_group_fail(group, ERR_MEMORY, "no memory to tell who asked for what");
    } else if (!buffer) {
        collective->told = false;
        group->starved = true;
    } else if (server == owners->self) {
        slot_disagree_local(group, collective->sequence, &collective->ask, buffer, bytes);
    } else {
        struct exchange_send *send =
            send_create(group, owners->nodes[server], WIRE_DISAGREE, collective->sequence, 0,
                        &collective->ask, buffer->data + WIRE_HEADER_BYTES, bytes);
        send->buffer = buffer;
        send_submit(group->job->exchange, send);
    }
}

void agreement_report(struct exchange_group *group)
{
    struct collective *oldest = group->agreement->oldest;
    if (oldest && !oldest->told)
        agreement_tell(oldest);
}
