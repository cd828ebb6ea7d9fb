/* Memory that the ranks of a group on one node share for results: who has asked for it, who has it,
 * who is done with it. Pure. */
#ifndef SERVER_JOBS_SEGMENT_H
#define SERVER_JOBS_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>

#define SEGMENTS_PER_JOB_MAX 256u /* on a node */
/* Places (common/format/place.h) take no more of a job's pieces than this part, nor of the daemon's
 * memory for a job: they make it faster, but what its program asks for must find room. */
#define SEGMENT_PLACES_PART 8u
/* In place of `nth`: where the ranks of the group meet, all of which are on this node. */
#define SEGMENT_MEETING UINT32_MAX

enum segment_state {
    SEGMENT_UNASKED, /* it may yet ask */
    SEGMENT_WAITING, /* for the engine */
    SEGMENT_TAKEN,
    SEGMENT_DONE, /* given back, or left; or a rank of another node */
};

struct segment_member {
    enum segment_state state;
    uint32_t request; /* WAITING: to be answered */
};

struct segment {
    uint32_t number; /* unique in the job on this node */
    uint32_t nth;    /* of those that each rank of the group asks for */
    uint64_t bytes;
    uint32_t first_rank; /* of the job: who asked first */
    bool opened;         /* the engine has it */
    int descriptor;      /* -1: all have it who may */
    uint32_t count;
    struct segment_member *members; /* [count], in group order */
    struct segment *next, *prev;    /* in the group */
};

/* All are DONE at first. NULL: out of memory. */
struct segment *segment_create(uint32_t number, uint32_t nth, uint64_t bytes, uint32_t count);
void segment_free(struct segment *segment); /* not its descriptor */
struct segment *segment_find_nth(struct segment *segments, uint32_t nth);
struct segment *segment_find_number(struct segment *segments, uint32_t number);
/* Whether somebody may still want its descriptor; whether everybody is done with it. */
bool segment_is_wanted(const struct segment *segment);
bool segment_is_done(const struct segment *segment);

#endif
