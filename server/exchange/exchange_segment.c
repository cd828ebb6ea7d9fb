/* Memory for results that all ranks of a group on this node share: each chunk of a result is
 * written once, and every rank reads it there. */
#include <assert.h>
#include <inttypes.h>

#include "common/text/text.h"
#include "server/exchange/exchange_private.h"

#define PLACES_NAMED 4u
#define RANKS_NAMED 8u

/* --- opening and closing ---------------------------------------------------------------------- */

static struct exchange_segment *segment_find(const struct exchange_group *group, uint32_t number)
{
    struct exchange_segment *it = group->segments;
    while (it && (it->number != number || it->closed))
        it = it->next;
    return it;
}

int exchange_segment_open(struct exchange *exchange, uint64_t job_id, uint32_t id,
                          struct exchange_segment *segment, struct error *error)
{
    struct exchange_job *job = exchange_job_find(exchange, job_id);
    struct exchange_group *group = job ? exchange_group_find(job, id) : NULL;
    if (!group || group->failed)
        return error_set(error, ERR_STATE, "group %" PRIu32 " is not open, or has failed", id);
    if (segment_find(group, segment->number))
        return error_set(error, ERR_STATE, "shared memory %" PRIu32 " is open already",
                         segment->number);
    int result = buffer_pool_charge(exchange->options.pool, segment->bytes, error);
    if (result != 0)
        return result;
    segment->users = 0;
    segment->closed = false;
    segment->next = group->segments;
    group->segments = segment;
    return 0;
}

static void segment_release(struct exchange_group *group, struct exchange_segment *segment)
{
    struct exchange *exchange = group->job->exchange;
    struct exchange_segment **link = &group->segments;
    assert(segment->users == 0);
    while (*link != segment)
        link = &(*link)->next;
    *link = segment->next;
    buffer_pool_uncharge(exchange->options.pool, segment->bytes);
    exchange->options.io.release_segment(exchange->options.io.context, segment);
}

void exchange_segment_close(struct exchange *exchange, uint64_t job_id, uint32_t id,
                            uint32_t number)
{
    struct exchange_job *job = exchange_job_find(exchange, job_id);
    struct exchange_group *group = job ? exchange_group_find(job, id) : NULL;
    struct exchange_segment *segment = group ? segment_find(group, number) : NULL;
    if (!segment)
        return;
    segment->closed = true;
    if (segment->users == 0)
        segment_release(group, segment);
}

void segments_release(struct exchange_group *group)
{
    while (group->segments)
        segment_release(group, group->segments);
}

struct exchange_segment *segment_hold(struct exchange_group *group, uint32_t number)
{
    struct exchange_segment *segment = segment_find(group, number);
    assert(segment);
    segment->users++;
    return segment;
}

void segment_let_go(struct exchange_group *group, struct exchange_segment *segment)
{
    if (!segment)
        return;
    assert(segment->users > 0);
    segment->users--;
    if (segment->users == 0 && segment->closed)
        segment_release(group, segment);
}

/* --- submissions ------------------------------------------------------------------------------ */

int segment_check_submission(const struct exchange_group *group,
                             const struct arena_submission *submission, uint64_t bytes,
                             struct error *error)
{
    if (submission->kind != COLLECTIVE_ALL_REDUCE)
        return error_set(error, ERR_PROTOCOL, "%s with a shared result, which it cannot have",
                         collective_name(submission->kind));
    const struct exchange_segment *segment = segment_find(group, submission->segment);
    if (!segment)
        return error_set(error, ERR_PROTOCOL,
                         "a result in shared memory %" PRIu32 ", which group %" PRIu32
                         " does not have",
                         submission->segment, group->id);
    uint64_t offset = submission->out_offset;
    if (offset % ARENA_ALIGNMENT != 0 || offset > segment->bytes || bytes > segment->bytes - offset)
        return error_set(error, ERR_PROTOCOL,
                         "a result of %" PRIu64 " bytes at offset %" PRIu64
                         " of shared memory %" PRIu32 ", which has %" PRIu64
                         " bytes: not inside, or not aligned to %u",
                         bytes, offset, submission->segment, segment->bytes, ARENA_ALIGNMENT);
    return 0;
}

/* --- the ranks' places ------------------------------------------------------------------------ */

static bool part_same_place(const struct part *a, const struct part *b)
{
    return a->segment == b->segment && (!a->segment || a->out_offset == b->out_offset);
}

/* "ranks 0, 1 gave shared memory 3 at offset 0": all that gave what the local rank did. */
static void text_add_place(struct text *text, const struct collective *collective, uint32_t local)
{
    const struct exchange_group *group = collective->group;
    const struct part *place = &collective->parts[local];
    uint32_t ranks[RANKS_NAMED], count = 0;
    for (uint32_t i = local; i < group->local_count; i++) {
        if (!part_same_place(&collective->parts[i], place))
            continue;
        if (count < RANKS_NAMED)
            ranks[count] = group->locals[i].job_rank;
        count++;
    }
    text_add_ranks(text, ranks, count, RANKS_NAMED);
    if (place->segment)
        text_add(text, " gave shared memory %" PRIu32 " at offset %" PRIu64, place->segment->number,
                 place->out_offset);
    else
        text_add(text, " gave memory of %s own", count == 1 ? "its" : "their");
}

static bool is_first_of_place(const struct collective *collective, uint32_t local)
{
    for (uint32_t i = 0; i < local; i++) {
        if (part_same_place(&collective->parts[i], &collective->parts[local]))
            return false;
    }
    return true;
}

static void collective_report_places(const struct collective *collective)
{
    struct exchange_group *group = collective->group;
    const struct exchange_options *options = &group->job->exchange->options;
    char words[ERROR_TEXT_BYTES];
    struct text text = {.at = words, .room = sizeof(words)};
    uint32_t places = 0;
    text_add(&text,
             "the ranks of node %s disagree on where the result of collective %" PRIu64
             " of group %" PRIu32 " goes",
             options->node_names[options->self], collective->sequence, group->id);
    for (uint32_t i = 0; i < group->local_count && places < PLACES_NAMED; i++) {
        if (!is_first_of_place(collective, i))
            continue;
        text_add(&text, places == 0 ? ": " : "; ");
        text_add_place(&text, collective, i);
        places++;
    }
    exchange_group_fail(group, ERR_MISMATCH, words);
}

bool collective_find_place(struct collective *collective)
{
    const struct exchange_group *group = collective->group;
    if (collective->ask.kind != COLLECTIVE_ALL_REDUCE || group->local_count == 0)
        return true;
    const struct part *first = &collective->parts[0]; /* all take part */
    for (uint32_t i = 1; i < group->local_count; i++) {
        if (part_same_place(&collective->parts[i], first))
            continue;
        collective_report_places(collective);
        return false;
    }
    if (first->segment)
        collective->shared = first->segment->base + first->out_offset;
    return true;
}
