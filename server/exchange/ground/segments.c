#include "server/exchange/ground/segments.h"

#include <assert.h>
#include <inttypes.h>

#include "common/format/place.h"
#include "server/exchange/model/share.h"

/* The ranks write what they want: this is more than they can do between two looks. */
#define MET_COLLECTIVES_MOST (UINT64_C(1) << 30)
#define MET_BYTES_MOST (UINT64_C(1) << 40)

static struct exchange_segment *segment_find(const struct exchange_group *group, uint32_t number)
{
    struct exchange_segment *it = group->segments;
    while (it && (it->number != number || it->closed))
        it = it->next;
    return it;
}

int segments_open(struct exchange_group *group, struct exchange_segment *segment,
                  struct error *error)
{
    if (segment_find(group, segment->number))
        return error_set(error, ERR_STATE, "shared memory %" PRIu32 " is open already",
                         segment->number);
    struct exchange *exchange = group->job->exchange;
    const struct share *share = group->job->share;
    int result = share_promise(exchange, share, segment->bytes, false, error);
    if (result != 0)
        return result;
    result = buffer_pool_charge(exchange->options.pool, segment->bytes, error);
    if (result != 0) {
        share_return(exchange, share, segment->bytes);
        return result;
    }
    segment->users = 0;
    segment->closed = false;
    segment->next = group->segments;
    group->segments = segment;
    return 0;
}

static uint64_t grown(uint64_t now, uint64_t *before, uint64_t most)
{
    uint64_t more = now > *before ? now - *before : 0;
    *before = now;
    return more < most ? more : most;
}

/* NULL: it has none. */
static const struct place_counts *segment_counts(const struct exchange_segment *segment)
{
    if (!segment->meeting || segment->bytes < PLACE_COUNTS_OFFSET + sizeof(struct place_counts))
        return NULL;
    return (const void *)(segment->base + PLACE_COUNTS_OFFSET);
}

static void segment_count(struct exchange_job *job, struct exchange_segment *segment)
{
    const struct place_counts *counts = segment_counts(segment);
    if (!counts)
        return;
    uint64_t collectives = grown(atomic_load_explicit(&counts->collectives, memory_order_relaxed),
                                 &segment->met_collectives, MET_COLLECTIVES_MOST);
    uint64_t bytes = grown(atomic_load_explicit(&counts->bytes, memory_order_relaxed),
                           &segment->met_bytes, MET_BYTES_MOST);
    job->collectives += collectives;
    job->met_collectives += collectives;
    job->bytes_submitted += bytes;
    job->met_bytes += bytes;
    job->exchange->collectives += collectives;
    job->exchange->met_collectives += collectives;
}

void segments_count(struct exchange_group *group)
{
    for (struct exchange_segment *it = group->segments; it; it = it->next)
        segment_count(group->job, it);
}

uint64_t segments_met(const struct exchange_group *group)
{
    uint64_t met = 0;
    for (const struct exchange_segment *it = group->segments; it; it = it->next) {
        const struct place_counts *counts = segment_counts(it);
        if (counts)
            met += atomic_load_explicit(&counts->collectives, memory_order_relaxed);
    }
    return met;
}

static void segment_release(struct exchange_group *group, struct exchange_segment *segment)
{
    struct exchange *exchange = group->job->exchange;
    struct exchange_segment **link = &group->segments;
    assert(segment->users == 0);
    segment_count(group->job, segment);
    while (*link != segment)
        link = &(*link)->next;
    *link = segment->next;
    buffer_pool_uncharge(exchange->options.pool, segment->bytes);
    share_return(group->job->exchange, group->job->share, segment->bytes);
    exchange->options.io.release_segment(exchange->options.io.context, segment);
}

void segments_close(struct exchange_group *group, uint32_t number)
{
    struct exchange_segment *segment = segment_find(group, number);
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

int segments_check(const struct exchange_group *group, const struct arena_submission *submission,
                   uint64_t bytes, struct error *error)
{
    if (submission->kind != COLLECTIVE_ALL_REDUCE)
        return error_set(error, ERR_PROTOCOL, "%s with a shared result, which it cannot have",
                         collective_name(submission->kind));
    const struct exchange_segment *segment = segment_find(group, submission->segment);
    if (!segment || segment->meeting)
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
