/* Records laid out on tracks: what is inside what, that slices of a lane never cross, and what the
 * summary says. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "common/reduce/dtype.h"
#include "server/shoalctl/trace_timeline.h"
#include "tests/lib/server/trace_lanes.h"
#include "tests/lib/suite.h"

static struct trace_record record(enum trace_stage stage, uint32_t chunk, uint64_t begin_ns,
                                  uint64_t end_ns, uint32_t peer)
{
    return (struct trace_record){.stage = (uint8_t)stage,
                                 .kind = COLLECTIVE_ALL_REDUCE,
                                 .chunk = chunk,
                                 .bytes = 64,
                                 .begin_ns = begin_ns,
                                 .end_ns = end_ns,
                                 .peer = peer};
}

static const struct trace_slice *find(const struct trace_timeline *timeline, enum trace_stage stage,
                                      uint32_t chunk, bool whole)
{
    for (uint32_t i = 0; i < timeline->slice_count; i++) {
        const struct trace_slice *it = &timeline->slices[i];
        if (it->record.stage == stage && it->record.chunk == chunk && it->whole == whole)
            return it;
    }
    ck_abort_msg("no %s of chunk %u", trace_stage_name(stage), chunk);
    return NULL;
}

START_TEST(nothing_is_nothing)
{
    struct trace_timeline timeline;
    ck_assert_int_eq(trace_timeline_create(&timeline, NULL, 0), 0);
    ck_assert_uint_eq(timeline.slice_count, 0);
    ck_assert_uint_eq(timeline.track_count, 0);
    trace_timeline_clear(&timeline);
}
END_TEST

START_TEST(a_chunks_stages_lie_in_the_chunk)
{
    struct trace_record records[] = {
        record(TRACE_COPY_OUT, 0, 90, 95, 0),  record(TRACE_AT_OWNER, 0, 40, 70, 1),
        record(TRACE_COPY_IN, 0, 1, 9, 0),     record(TRACE_LOCAL_SUM, 0, 22, 38, TRACE_NO_PEER),
        record(TRACE_WAIT, 0, 10, 20, 1),      record(TRACE_SEND, 0, 40, 55, 1),
        record(TRACE_DELIVER, 0, 75, 80, 255), record(TRACE_COLLECTIVE, 0, 0, 81, TRACE_NO_PEER),
        record(TRACE_ARRIVE, 0, 0, 4, 1),
    };
    uint32_t count = sizeof(records) / sizeof(records[0]);
    struct trace_timeline timeline;
    ck_assert_int_eq(trace_timeline_create(&timeline, records, count), 0);
    trace_lanes_check(&timeline);
    ck_assert_uint_eq(timeline.slice_count, count + 1);
    ck_assert_uint_eq(timeline.unmatched, 0);
    const struct trace_slice *whole = find(&timeline, TRACE_WAIT, 0, true);
    ck_assert_uint_eq(whole->record.begin_ns, 10);
    ck_assert_uint_eq(whole->record.end_ns, 80);
    ck_assert_uint_eq(whole->record.flags, 0);
    ck_assert_uint_eq(whole->record.peer, TRACE_NO_PEER);
    enum trace_stage inside[] = {TRACE_WAIT, TRACE_LOCAL_SUM, TRACE_AT_OWNER, TRACE_DELIVER};
    for (size_t i = 0; i < 4; i++) {
        ck_assert_uint_eq(find(&timeline, inside[i], 0, false)->track, whole->track);
        ck_assert_uint_eq(find(&timeline, inside[i], 0, false)->lane, whole->lane);
    }
    ck_assert_uint_eq(find(&timeline, TRACE_ARRIVE, 0, false)->track,
                      find(&timeline, TRACE_COLLECTIVE, 0, false)->track);
    ck_assert_uint_eq(timeline.track_count, 4); /* collectives, rank 0, chunks, send to 1 */
    ck_assert_uint_eq(timeline.tracks[1].kind, TRACK_RANK);
    ck_assert_uint_eq(timeline.tracks[3].kind, TRACK_SEND);
    ck_assert_uint_eq(timeline.tracks[3].number, 1);
    trace_timeline_clear(&timeline);
}
END_TEST

START_TEST(an_owners_stages_lie_apart)
{
    struct trace_record records[] = {
        record(TRACE_AT_OWNER, 0, 10, 60, 0),
        record(TRACE_GATHER, 0, 5, 30, 1),
        record(TRACE_OWNER_SUM, 0, 32, 50, TRACE_NO_PEER),
        record(TRACE_RETURN, 0, 51, 90, 1),
        record(TRACE_RETURN, 0, 51, 80, 2),
    };
    records[1].bytes = 0; /* it does not know yet */
    struct trace_timeline timeline;
    ck_assert_int_eq(trace_timeline_create(&timeline, records, 5), 0);
    trace_lanes_check(&timeline);
    const struct trace_slice *owner = find(&timeline, TRACE_GATHER, 0, true);
    ck_assert_uint_eq(owner->record.begin_ns, 5);
    ck_assert_uint_eq(owner->record.end_ns, 50);
    ck_assert_uint_eq(owner->record.bytes, 64);
    ck_assert_uint_eq(find(&timeline, TRACE_GATHER, 0, false)->record.bytes, 64);
    ck_assert_uint_ne(owner->track, find(&timeline, TRACE_AT_OWNER, 0, true)->track);
    ck_assert_uint_eq(timeline.track_count, 4);
    ck_assert_uint_eq(timeline.slice_count, 7);
    trace_timeline_clear(&timeline);
}
END_TEST

START_TEST(chunks_at_once_have_lanes_of_their_own)
{
    struct trace_record records[] = {
        record(TRACE_WAIT, 0, 0, 10, 0),  record(TRACE_AT_OWNER, 0, 10, 20, 0),
        record(TRACE_WAIT, 1, 5, 15, 0),  record(TRACE_AT_OWNER, 1, 15, 25, 0),
        record(TRACE_WAIT, 2, 20, 30, 0), record(TRACE_WAIT, 3, 22, 24, 0),
    };
    struct trace_timeline timeline;
    ck_assert_int_eq(trace_timeline_create(&timeline, records, 6), 0);
    trace_lanes_check(&timeline);
    ck_assert_uint_eq(find(&timeline, TRACE_WAIT, 0, true)->lane, 0);
    ck_assert_uint_eq(find(&timeline, TRACE_WAIT, 1, true)->lane, 1);
    ck_assert_uint_eq(find(&timeline, TRACE_WAIT, 2, true)->lane, 0); /* free again */
    ck_assert_uint_eq(find(&timeline, TRACE_WAIT, 3, true)->lane, 2);
    ck_assert_uint_eq(timeline.tracks[0].lanes, 3);
    trace_timeline_clear(&timeline);
}
END_TEST

START_TEST(flags_of_a_stage_are_the_chunks)
{
    struct trace_record records[] = {record(TRACE_WAIT, 0, 0, 10, 0),
                                     record(TRACE_LOCAL_SUM, 0, 10, 20, 0)};
    records[0].flags = TRACE_FLAG_CUT;
    records[1].flags = TRACE_FLAG_OPEN;
    struct trace_timeline timeline;
    ck_assert_int_eq(trace_timeline_create(&timeline, records, 2), 0);
    ck_assert_uint_eq(find(&timeline, TRACE_WAIT, 0, true)->record.flags,
                      TRACE_FLAG_CUT | TRACE_FLAG_OPEN);
    trace_timeline_clear(&timeline);
}
END_TEST

/* A worker's word on a chunk is completed by what the daemon knows. A copy of a chunk that the
 * daemon does not know is not shown, not even when the collective is known, or another worker says
 * so too. */
START_TEST(copies_of_unknown_chunks_are_not_shown)
{
    struct trace_record records[] = {
        record(TRACE_WAIT, 0, 0, 10, 0),
        record(TRACE_COPY_OUT, 0, 12, 15, 0),
        record(TRACE_COPY_OUT, 1, 12, 15, 0),
        record(TRACE_COPY_OUT, 1, 13, 16, 1),
        record(TRACE_COLLECTIVE, 0, 0, 20, TRACE_NO_PEER),
    };
    for (int i = 1; i < 4; i++) {
        records[i].kind = COLLECTIVE_KIND_COUNT;
        records[i].bytes = 0;
    }
    struct trace_timeline timeline;
    ck_assert_int_eq(trace_timeline_create(&timeline, records, 5), 0);
    ck_assert_uint_eq(timeline.unmatched, 2);
    ck_assert_uint_eq(timeline.slice_count, 4);
    ck_assert_uint_eq(find(&timeline, TRACE_COPY_OUT, 0, false)->record.bytes, 64);
    for (uint32_t i = 0; i < timeline.slice_count; i++)
        ck_assert_uint_lt(timeline.slices[i].record.kind, COLLECTIVE_KIND_COUNT);
    trace_timeline_clear(&timeline);
}
END_TEST

/* Whatever the records are, nothing crosses. */
START_TEST(records_at_random)
{
    enum { COUNT = 4000 };
    static struct trace_record records[COUNT];
    uint64_t random = (uint64_t)_i + 1;
    for (uint32_t i = 0; i < COUNT; i++) {
        uint64_t numbers[6];
        for (size_t n = 0; n < 6; n++) {
            random = random * 6364136223846793005ull + 1442695040888963407ull;
            numbers[n] = random >> 33;
        }
        uint64_t begin_ns = numbers[0] % 100000;
        records[i] = record((enum trace_stage)(numbers[1] % TRACE_STAGES), (uint32_t)i, begin_ns,
                            begin_ns + numbers[2] % 300, (uint32_t)(numbers[3] % 3));
        records[i].sequence = numbers[4] % 5;
        records[i].block = (uint32_t)(numbers[5] % 2);
    }
    struct trace_timeline timeline;
    ck_assert_int_eq(trace_timeline_create(&timeline, records, COUNT), 0);
    trace_lanes_check(&timeline);
    ck_assert_uint_ge(timeline.slice_count, COUNT);
    trace_timeline_clear(&timeline);
}
END_TEST

/* More at once than there may be lanes share the last one. */
START_TEST(lanes_have_an_end)
{
    enum { COUNT = TRACE_LANES_MAX + 50 };
    static struct trace_record records[COUNT];
    for (uint32_t i = 0; i < COUNT; i++)
        records[i] = record(TRACE_SEND, i, i, 10000 + i, 1);
    struct trace_timeline timeline;
    ck_assert_int_eq(trace_timeline_create(&timeline, records, COUNT), 0);
    ck_assert_uint_eq(timeline.tracks[0].lanes, TRACE_LANES_MAX);
    ck_assert_uint_eq(timeline.slice_count, COUNT);
    trace_timeline_clear(&timeline);
}
END_TEST

START_TEST(the_summary_counts_what_is_whole)
{
    struct trace_record records[103];
    struct trace_summary summaries[TRACE_STAGES];
    for (uint32_t i = 0; i < 101; i++)
        records[i] = record(TRACE_SEND, i, 1000, 1000 + (i * 37) % 101 * 10, 1);
    records[101] = record(TRACE_SEND, 101, 0, 1000000, 1);
    records[101].flags = TRACE_FLAG_OPEN;
    records[102] = record(TRACE_WAIT, 102, 5, 12, 1);
    ck_assert_int_eq(trace_summarize(records, 103, summaries), 0);
    ck_assert_uint_eq(summaries[TRACE_SEND].count, 101);
    ck_assert_uint_eq(summaries[TRACE_SEND].median_ns, 500);
    ck_assert_uint_eq(summaries[TRACE_SEND].p99_ns, 990);
    ck_assert_uint_eq(summaries[TRACE_SEND].most_ns, 1000);
    ck_assert_uint_eq(summaries[TRACE_SEND].total_ns, 50500);
    ck_assert_uint_eq(summaries[TRACE_WAIT].count, 1);
    ck_assert_uint_eq(summaries[TRACE_WAIT].median_ns, 7);
    ck_assert_uint_eq(summaries[TRACE_COPY_IN].count, 0);
    ck_assert_int_eq(trace_summarize(records, 0, summaries), 0);
    ck_assert_uint_eq(summaries[TRACE_SEND].count, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("trace_timeline");
    TCase *tests = tcase_create("trace_timeline");
    tcase_add_test(tests, nothing_is_nothing);
    tcase_add_test(tests, a_chunks_stages_lie_in_the_chunk);
    tcase_add_test(tests, an_owners_stages_lie_apart);
    tcase_add_test(tests, chunks_at_once_have_lanes_of_their_own);
    tcase_add_test(tests, flags_of_a_stage_are_the_chunks);
    tcase_add_test(tests, copies_of_unknown_chunks_are_not_shown);
    tcase_add_loop_test(tests, records_at_random, 0, 20);
    tcase_add_test(tests, lanes_have_an_end);
    tcase_add_test(tests, the_summary_counts_what_is_whole);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
