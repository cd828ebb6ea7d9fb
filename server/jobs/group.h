/* Groups of a job: those that are open, and those whose ranks are gathering at the job's home.
 * Pure. */
#ifndef SERVER_JOBS_GROUP_H
#define SERVER_JOBS_GROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/base/hash.h"
#include "server/jobs/segment.h"

struct group {
    uint32_t id; /* 0: all ranks of the job */
    uint32_t nth;
    uint32_t *ranks; /* [count], job ranks in group order */
    uint32_t count;
    bool ready;   /* every daemon of the job has it */
    bool failed;  /* its workers have been told, or are to be when they join */
    bool *closed; /* [count]: home only: has closed it, or left */
    uint32_t closed_count;
    bool *opened;         /* [roster]: home only */
    uint64_t deadline_ns; /* home only: all daemons must have opened it; UINT64_MAX: they have */
    struct segment *segments; /* of this node */
    UT_hash_handle hh;        /* by id */
};

/* The array is copied. roster: number of daemons. NULL: out of memory. */
struct group *group_create(uint32_t id, uint32_t nth, const uint32_t *ranks, uint32_t count,
                           uint32_t roster);
void group_free(struct group *group);
/* Position of a rank, or -1. */
int64_t group_position(const struct group *group, uint32_t rank);
/* The rank is done with the group. True when all are, then. */
bool group_close_rank(struct group *group, uint32_t rank);

/* *wrong: the position of the first that is not below world_size or stands before, too; count:
 * there is none. Returns 0 or ERR_MEMORY. */
int group_find_wrong_rank(const uint32_t *ranks, uint32_t count, uint32_t world_size,
                          uint32_t *wrong);
/* Whether a list is one of distinct ranks below world_size, at least one. */
bool group_ranks_valid(const uint32_t *ranks, uint32_t count, uint32_t world_size);
bool group_ranks_equal(const uint32_t *a, uint32_t a_count, const uint32_t *b, uint32_t b_count);

/* A group-to-be: who has asked for it, or has heard that one of its ranks cannot open it. */
struct group_gathering {
    uint32_t nth;
    uint32_t *ranks;
    uint32_t count;
    struct error refusal;  /* code 0: all can */
    uint64_t end_ns;       /* of a refused one: it is forgotten */
    uint64_t told_ns;      /* when those that wait are told for whom; UINT64_MAX: they have been */
    bool *joined;          /* [count] */
    uint32_t *requests;    /* [count]: what the rank calls its own */
    uint64_t *deadline_ns; /* [count] */
    uint32_t joined_count;
    struct group_gathering *next, *prev;
};

struct group_gathering *group_gathering_create(uint32_t nth, const uint32_t *ranks, uint32_t count);
void group_gathering_free(struct group_gathering *gathering);
/* ERR_STATE: it has asked already; ERR_INVALID: not in the list. */
int group_gathering_add(struct group_gathering *gathering, uint32_t rank, uint32_t request,
                        uint64_t deadline_ns);
/* Job ranks that have not asked, into missing[count]; returns how many. */
uint32_t group_gathering_missing(const struct group_gathering *gathering, uint32_t *missing);

#endif
