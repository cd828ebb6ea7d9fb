/* Records of a trace (server/commands/trace.h) laid out as a viewer of traces shows them:
 * slices on tracks, each track as many lanes wide as it has slices at once, so that within a lane a
 * slice lies either wholly inside another or beside it. Pure.
 *
 * The stages of a chunk that this node itself takes follow each other, and so do those of a chunk
 * at its owner: they lie inside one slice for the chunk. Copies and messages go on beside them, and
 * have tracks of their own, one for each rank or node.
 */
#ifndef SERVER_SHOALCTL_TRACE_TIMELINE_H
#define SERVER_SHOALCTL_TRACE_TIMELINE_H

#include <stdint.h>

#include "server/commands/trace.h"

enum trace_track_kind {
    TRACK_COLLECTIVES,
    TRACK_RANK, /* copies of the rank `number` */
    TRACK_CHUNKS,
    TRACK_SEND, /* contributions to the node `number` */
    TRACK_OWNER,
    TRACK_RETURN, /* results to the node `number` */
};

struct trace_track {
    enum trace_track_kind kind;
    uint32_t number;
    uint32_t lanes;
    uint32_t first_lane; /* lanes are numbered from 0 through all tracks */
};

struct trace_slice {
    struct trace_record record; /* of a whole: begin, end, flags of all its stages */
    bool whole;                 /* a chunk's stages, or those at its owner, not one of them */
    uint32_t track;
    uint32_t lane; /* of its track */
};

struct trace_timeline {
    struct trace_track *tracks; /* in the order in which they are shown */
    uint32_t track_count;
    struct trace_slice *slices; /* by track, then time; a whole before what lies in it */
    uint32_t slice_count;
    uint32_t unmatched; /* copies out of chunks that no record is about: not shown */
};

/* Slices that lie beside each other in one track at once; more share the last lane. */
#define TRACE_LANES_MAX 1024u

/* Sorts the records. ERR_MEMORY. */
int trace_timeline_create(struct trace_timeline *timeline, struct trace_record *records,
                          uint32_t count);
void trace_timeline_clear(struct trace_timeline *timeline);

/* How long a stage took, over its records that are neither cut nor open. */
struct trace_summary {
    uint32_t count;
    uint64_t median_ns, p99_ns, most_ns, total_ns;
};
/* [TRACE_STAGES]. ERR_MEMORY. */
int trace_summarize(const struct trace_record *records, uint32_t count,
                    struct trace_summary summaries[TRACE_STAGES]);

#endif
