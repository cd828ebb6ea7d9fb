/* A job's ranks as they gather at its home daemon, and the numbers that they get. Pure. */
#ifndef SERVER_JOBS_GATHERING_H
#define SERVER_JOBS_GATHERING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/base/hash.h"
#include "common/config/config.h"
#include "common/format/message.h"

struct gathering_member {
    uint32_t node;
    uint32_t member;    /* what its daemon calls it; unique on the node */
    int32_t rank;       /* -1: to be assigned */
    int32_t local_rank; /* -1: unknown */
    uint32_t pid;
    uint32_t recovery; /* enum message_recovery */
    uint32_t mark;     /* of its run; 0: not known */
    bool newcomer;     /* it has had no rank of the job yet: its lot is not that of the others */
    bool returned;     /* it has come back to the daemon that was started in its daemon's place */
    uint64_t deadline_ns;
    bool whole; /* it goes on only if no rank of the last generation is lost */
    /* For a rank that goes on: how many ranks it wishes for, 0: any number; and for how long. */
    uint32_t least_ranks, wait_ms;
    uint64_t told_ns; /* when it is told what it waits for; UINT64_MAX: it has been */
};

struct gathering {
    char name[MESSAGE_NAME_BYTES];
    uint32_t uid;
    uint32_t world_size;
    uint32_t recovery; /* enum message_recovery: of its first member, or of the job that goes on */
    uint32_t mark;     /* of the run whose job it is; 0: not known yet */
    uint32_t generation; /* that it becomes; 1, or later of a job that goes on */
    uint64_t lineage;    /* 0, or the id of that job's first generation */
    uint32_t *elders;    /* of a job that goes on: of whom its next home is chosen */
    uint32_t elder_count;
    bool *unable; /* [roster] likewise: who could not open it, and does without */
    struct gathering_member *members; /* [world_size] room, in order of arrival */
    uint32_t count;
    /* Complete, and not open yet: when it is time to say what it waits for. UINT64_MAX: it is not
     * complete, or it has been said, and nobody has come or gone since. */
    uint64_t say_ns;
    int64_t said_node; /* the node that was last said to be missing; -1: none */
    /* Complete, of a job with recovery: when it opens without servers that are not there; and
     * whether it does by now. UINT64_MAX: it is not complete. */
    uint64_t without_ns;
    bool without;
    /* The text that the first member that waited in vain was told, for those after it: they wait
     * for the same, not for it. Empty: none has since the last one came. */
    char timeout_text[ERROR_TEXT_BYTES];
    UT_hash_handle hh; /* by name */
};

/* NULL: out of memory. world_size as in the first member's message, checked. */
struct gathering *gathering_create(const char *name, uint32_t uid, uint32_t world_size);
void gathering_free(struct gathering *gathering);

/* Whether the ranks that gather are of another run than the mark. */
bool gathering_is_of_another(const struct gathering *gathering, uint32_t mark);
/* ERR_REFUSED, the text naming both sides, when user, run, world size, recovery or rank do not fit
 * with those who are here. The gathering must not be complete. */
int gathering_add(struct gathering *gathering, const struct gathering_member *member, uint32_t uid,
                  uint32_t world_size, const struct config *config, struct error *error);
/* Whether it was there. */
bool gathering_remove(struct gathering *gathering, uint32_t node, uint32_t member);
void gathering_remove_at(struct gathering *gathering, uint32_t index);
bool gathering_complete(const struct gathering *gathering);

/* Assign the ranks of a complete gathering: node and member of each, [world_size] each. Ranks that
 * were asked for are kept, the others are handed out by node number, local rank (unknown ones
 * last), member. */
void gathering_assign(const struct gathering *gathering, uint32_t *rank_nodes, uint32_t *members);
/* "ranks 2, 3 of job 'train' have not joined", or how many when ranks are not known yet. */
void gathering_missing_text(const struct gathering *gathering, char *text, size_t bytes);

#endif
