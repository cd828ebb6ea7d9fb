#include "server/shoalctl/trace_timeline.h"

#include <stdlib.h>
#include <string.h>

#include "common/reduce/dtype.h"

/* --- order ------------------------------------------------------------------------------------ */

static int timeline_compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static bool timeline_is_copy(const struct trace_record *record)
{
    return record->stage == TRACE_COPY_IN || record->stage == TRACE_COPY_OUT;
}

static int timeline_compare_chunks(const struct trace_record *a, const struct trace_record *b)
{
    int order = timeline_compare(a->group, b->group);
    order = order ? order : timeline_compare(a->sequence, b->sequence);
    order = order ? order : timeline_compare(a->block, b->block);
    return order ? order : timeline_compare(a->chunk, b->chunk);
}

/* The records of a chunk side by side, those of its own node and of its owner. */
static int timeline_compare_records(const void *left, const void *right)
{
    const struct trace_record *a = left, *b = right;
    int order = timeline_compare_chunks(a, b);
    order = order ? order : timeline_compare(a->begin_ns, b->begin_ns);
    order = order ? order : timeline_compare(a->end_ns, b->end_ns);
    return order ? order : timeline_compare(a->stage, b->stage);
}

static int timeline_compare_slices(const void *left, const void *right)
{
    const struct trace_slice *a = left, *b = right;
    int order = timeline_compare(a->track, b->track);
    order = order ? order : timeline_compare(a->record.begin_ns, b->record.begin_ns);
    /* The longer one, and the whole, is what the other lies in. */
    order = order ? order : timeline_compare(b->record.end_ns, a->record.end_ns);
    order = order ? order : timeline_compare(b->whole, a->whole);
    return order ? order : timeline_compare_records(&a->record, &b->record);
}

/* --- tracks ----------------------------------------------------------------------------------- */

static struct trace_track timeline_record_track(const struct trace_record *record)
{
    switch (record->stage) {
    case TRACE_COLLECTIVE:
    case TRACE_ARRIVE:
        return (struct trace_track){.kind = TRACK_COLLECTIVES};
    case TRACE_COPY_IN:
    case TRACE_COPY_OUT:
        return (struct trace_track){.kind = TRACK_RANK, .number = record->peer};
    case TRACE_SEND:
        return (struct trace_track){.kind = TRACK_SEND, .number = record->peer};
    case TRACE_RETURN:
        return (struct trace_track){.kind = TRACK_RETURN, .number = record->peer};
    case TRACE_GATHER:
    case TRACE_OWNER_SUM:
        return (struct trace_track){.kind = TRACK_OWNER};
    default:
        return (struct trace_track){.kind = TRACK_CHUNKS};
    }
}

static int timeline_compare_tracks(const void *left, const void *right)
{
    const struct trace_track *a = left, *b = right;
    int order = timeline_compare(a->kind, b->kind);
    return order ? order : timeline_compare(a->number, b->number);
}

/* A track for each kind and number that the records have: there are few. */
static int timeline_collect_tracks(struct trace_timeline *timeline,
                                   const struct trace_record *records, uint32_t count)
{
    uint32_t room = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct trace_track track = timeline_record_track(&records[i]);
        uint32_t at = 0;
        while (at < timeline->track_count &&
               timeline_compare_tracks(&timeline->tracks[at], &track) != 0)
            at++;
        if (at < timeline->track_count)
            continue;
        if (timeline->track_count == room) {
            room = room ? 2 * room : 16;
            struct trace_track *grown = realloc(timeline->tracks, room * sizeof(*grown));
            if (!grown)
                return ERR_MEMORY;
            timeline->tracks = grown;
        }
        timeline->tracks[timeline->track_count++] = track;
    }
    if (timeline->track_count > 0)
        qsort(timeline->tracks, timeline->track_count, sizeof(*timeline->tracks),
              timeline_compare_tracks);
    return 0;
}

static uint32_t timeline_find_track(const struct trace_timeline *timeline,
                                    const struct trace_record *record)
{
    struct trace_track track = timeline_record_track(record);
    const struct trace_track *found = bsearch(&track, timeline->tracks, timeline->track_count,
                                              sizeof(track), timeline_compare_tracks);
    return (uint32_t)(found - timeline->tracks);
}

/* --- slices ----------------------------------------------------------------------------------- */

static void timeline_add_slice(struct trace_timeline *timeline, const struct trace_record *record,
                               bool whole)
{
    timeline->slices[timeline->slice_count++] = (struct trace_slice){
        .record = *record, .whole = whole, .track = timeline_find_track(timeline, record)};
}

/* One slice round the chunk's stages that lie in tracks of this kind. */
static void timeline_add_whole(struct trace_timeline *timeline, const struct trace_record *records,
                               uint32_t count, enum trace_track_kind kind)
{
    struct trace_record whole = {0};
    bool any = false;
    for (uint32_t i = 0; i < count; i++) {
        const struct trace_record *it = &records[i];
        if (timeline_record_track(it).kind != kind)
            continue;
        if (!any)
            whole = *it;
        any = true;
        if (it->end_ns > whole.end_ns)
            whole.end_ns = it->end_ns;
        if (it->bytes > whole.bytes)
            whole.bytes = it->bytes;
        whole.flags |= it->flags;
    }
    whole.peer = TRACE_NO_PEER;
    if (any)
        timeline_add_slice(timeline, &whole, true);
}

/* Some records do not know how much or what it is: others of the chunk do. false: none is about it,
 * but for what a worker says. */
static bool timeline_complete_records(struct trace_record *records, uint32_t count)
{
    uint64_t bytes = 0;
    uint8_t kind = COLLECTIVE_KIND_COUNT;
    for (uint32_t i = 0; i < count; i++) {
        if (records[i].kind >= COLLECTIVE_KIND_COUNT || records[i].stage <= TRACE_ARRIVE)
            continue;
        kind = records[i].kind;
        bytes = records[i].bytes > bytes ? records[i].bytes : bytes;
    }
    for (uint32_t i = 0; i < count && kind < COLLECTIVE_KIND_COUNT; i++) {
        if (timeline_is_copy(&records[i]) || records[i].stage == TRACE_GATHER) {
            records[i].kind = kind;
            records[i].bytes = bytes;
        }
    }
    return kind < COLLECTIVE_KIND_COUNT;
}

static void timeline_add_chunk(struct trace_timeline *timeline, struct trace_record *records,
                               uint32_t count)
{
    bool known = timeline_complete_records(records, count);
    timeline_add_whole(timeline, records, count, TRACK_CHUNKS);
    timeline_add_whole(timeline, records, count, TRACK_OWNER);
    for (uint32_t i = 0; i < count; i++) {
        if (known || records[i].kind < COLLECTIVE_KIND_COUNT)
            timeline_add_slice(timeline, &records[i], false);
        else
            timeline->unmatched++;
    }
}

/* --- lanes ------------------------------------------------------------------------------------ */

/* Where the slice may begin: the first lane that is empty by then. */
static uint32_t timeline_take_lane(struct trace_track *track, uint64_t *ends,
                                   const struct trace_slice *it)
{
    uint32_t lane = 0;
    while (lane < track->lanes && ends[lane] > it->record.begin_ns)
        lane++;
    if (lane == track->lanes && lane < TRACE_LANES_MAX)
        track->lanes++;
    else if (lane == track->lanes)
        lane--;
    ends[lane] = it->record.end_ns > ends[lane] ? it->record.end_ns : ends[lane];
    return lane;
}

/* Return whether the inner slice lies in the outer one: that is a whole, or, for the arrival of
 * ranks, a collective; both are of the same chunk, and the times fit. */
static bool timeline_lies_in(const struct trace_slice *inner, const struct trace_slice *outer)
{
    bool holds = outer->whole ||
                 (outer->record.stage == TRACE_COLLECTIVE && inner->record.stage == TRACE_ARRIVE);
    return holds && timeline_compare_chunks(&inner->record, &outer->record) == 0 &&
           inner->record.begin_ns >= outer->record.begin_ns &&
           inner->record.end_ns <= outer->record.end_ns;
}

/* The slice among those before that it lies in, if there is one. Wholes that it can lie in have not
 * ended when it begins, and there are few lanes: the last one of each is looked at. */
static uint32_t timeline_outer_lane(const struct trace_slice *slices, const uint32_t *last,
                                    uint32_t lanes, const struct trace_slice *it)
{
    for (uint32_t lane = 0; lane < lanes; lane++) {
        if (timeline_lies_in(it, &slices[last[lane]]))
            return lane;
    }
    return UINT32_MAX;
}

static int timeline_assign_lanes(struct trace_timeline *timeline)
{
    uint64_t *ends = calloc(TRACE_LANES_MAX, sizeof(*ends));
    uint32_t *last = calloc(TRACE_LANES_MAX, sizeof(*last)); /* outermost slice of each lane */
    if (!ends || !last) {
        free(ends);
        free(last);
        return ERR_MEMORY;
    }
    for (uint32_t i = 0; i < timeline->slice_count; i++) {
        struct trace_slice *it = &timeline->slices[i];
        struct trace_track *track = &timeline->tracks[it->track];
        if (track->lanes == 0)
            memset(ends, 0, TRACE_LANES_MAX * sizeof(*ends));
        it->lane = timeline_outer_lane(timeline->slices, last, track->lanes, it);
        if (it->lane != UINT32_MAX)
            continue;
        it->lane = timeline_take_lane(track, ends, it);
        last[it->lane] = i;
    }
    free(ends);
    free(last);
    uint32_t lanes = 0;
    for (uint32_t i = 0; i < timeline->track_count; i++) {
        timeline->tracks[i].first_lane = lanes;
        lanes += timeline->tracks[i].lanes;
    }
    return 0;
}

/* --- all together ----------------------------------------------------------------------------- */

int trace_timeline_create(struct trace_timeline *timeline, struct trace_record *records,
                          uint32_t count)
{
    struct trace_timeline made = {0};
    if (count > 0)
        qsort(records, count, sizeof(*records), timeline_compare_records);
    /* No more wholes than records. */
    made.slices = calloc(2 * (size_t)count + 1, sizeof(*made.slices));
    int result = made.slices ? timeline_collect_tracks(&made, records, count) : ERR_MEMORY;
    if (result == 0) {
        uint32_t first = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (i + 1 < count && timeline_compare_chunks(&records[i], &records[i + 1]) == 0)
                continue;
            timeline_add_chunk(&made, &records[first], i + 1 - first);
            first = i + 1;
        }
        qsort(made.slices, made.slice_count, sizeof(*made.slices), timeline_compare_slices);
        result = timeline_assign_lanes(&made);
    }
    if (result != 0) {
        trace_timeline_clear(&made);
        return result;
    }
    *timeline = made;
    return 0;
}

void trace_timeline_clear(struct trace_timeline *timeline)
{
    free(timeline->tracks);
    free(timeline->slices);
    *timeline = (struct trace_timeline){0};
}

/* --- the summary ------------------------------------------------------------------------------ */

static int timeline_compare_numbers(const void *left, const void *right)
{
    return timeline_compare(*(const uint64_t *)left, *(const uint64_t *)right);
}

static void timeline_summarize_stage(const struct trace_record *records, uint32_t count,
                                     unsigned stage, uint64_t *lengths,
                                     struct trace_summary *summary)
{
    *summary = (struct trace_summary){0};
    for (uint32_t i = 0; i < count; i++) {
        const struct trace_record *it = &records[i];
        if (it->stage != stage || it->flags != 0)
            continue;
        lengths[summary->count++] = it->end_ns - it->begin_ns;
        summary->total_ns += it->end_ns - it->begin_ns;
    }
    if (summary->count == 0)
        return;
    qsort(lengths, summary->count, sizeof(*lengths), timeline_compare_numbers);
    summary->median_ns = lengths[summary->count / 2];
    summary->p99_ns = lengths[(uint64_t)summary->count * 99 / 100];
    summary->most_ns = lengths[summary->count - 1];
}

int trace_summarize(const struct trace_record *records, uint32_t count,
                    struct trace_summary summaries[TRACE_STAGES])
{
    uint64_t *lengths = calloc(count ? count : 1, sizeof(*lengths));
    if (!lengths)
        return ERR_MEMORY;
    for (unsigned stage = 0; stage < TRACE_STAGES; stage++)
        timeline_summarize_stage(records, count, stage, lengths, &summaries[stage]);
    free(lengths);
    return 0;
}
