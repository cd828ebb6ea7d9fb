#include "server/jobs/segment.h"

#include <stdlib.h>

struct segment *segment_create(uint32_t number, uint32_t nth, uint64_t bytes, uint32_t count)
{
    struct segment *segment = calloc(1, sizeof(*segment));
    struct segment_member *members = calloc(count, sizeof(*members));
    if (!segment || !members) {
        free(segment);
        free(members);
        return NULL;
    }
    for (uint32_t i = 0; i < count; i++)
        members[i].state = SEGMENT_DONE;
    *segment = (struct segment){.number = number,
                                .nth = nth,
                                .bytes = bytes,
                                .descriptor = -1,
                                .count = count,
                                .members = members};
    return segment;
}

void segment_free(struct segment *segment)
{
    free(segment->members);
    free(segment);
}

struct segment *segment_find_nth(struct segment *segments, uint32_t nth)
{
    while (segments && segments->nth != nth)
        segments = segments->next;
    return segments;
}

struct segment *segment_find_number(struct segment *segments, uint32_t number)
{
    while (segments && segments->number != number)
        segments = segments->next;
    return segments;
}

bool segment_is_wanted(const struct segment *segment)
{
    for (uint32_t i = 0; i < segment->count; i++) {
        enum segment_state state = segment->members[i].state;
        if (state == SEGMENT_UNASKED || state == SEGMENT_WAITING)
            return true;
    }
    return false;
}

bool segment_is_done(const struct segment *segment)
{
    for (uint32_t i = 0; i < segment->count; i++) {
        if (segment->members[i].state != SEGMENT_DONE)
            return false;
    }
    return true;
}
