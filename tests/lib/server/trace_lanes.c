#include "tests/lib/server/trace_lanes.h"

#include <check.h>
#include <stdlib.h>

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg("%s", #condition);                                                        \
    } while (0)

void trace_lanes_check(const struct trace_timeline *timeline)
{
    uint32_t lanes = 0;
    for (uint32_t t = 0; t < timeline->track_count; t++) {
        EXPECT(timeline->tracks[t].first_lane == lanes);
        EXPECT(timeline->tracks[t].lanes > 0);
        lanes += timeline->tracks[t].lanes;
    }
    struct lane {
        uint64_t ends[8];
        uint32_t depth;
    } *all = calloc(lanes + 1, sizeof(*all));
    for (uint32_t i = 0; i < timeline->slice_count; i++) {
        const struct trace_slice *it = &timeline->slices[i];
        EXPECT(it->track < timeline->track_count);
        EXPECT(it->lane < timeline->tracks[it->track].lanes);
        EXPECT(i == 0 || it->track > it[-1].track ||
               (it->track == it[-1].track && it->record.begin_ns >= it[-1].record.begin_ns));
        struct lane *lane = &all[timeline->tracks[it->track].first_lane + it->lane];
        while (lane->depth > 0 && lane->ends[lane->depth - 1] <= it->record.begin_ns)
            lane->depth--;
        EXPECT(lane->depth == 0 || it->record.end_ns <= lane->ends[lane->depth - 1]);
        EXPECT(lane->depth < 8);
        lane->ends[lane->depth++] = it->record.end_ns;
    }
    free(all);
}
