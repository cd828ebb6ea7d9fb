/* Remains of a job that has failed, from which its ranks can form the next generation: who has
 * asked for it, who is gone, and which daemon decides. Every daemon of the job has one. Pure. */
#ifndef SERVER_JOBS_SUCCESSION_H
#define SERVER_JOBS_SUCCESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/base/hash.h"
#include "server/jobs/gathering.h"
#include "server/jobs/job.h"

/* State of a rank, in its generation. */
enum succession_state {
    SUCCESSION_AWAITED, /* as far as is known it lives, and has not asked */
    SUCCESSION_ASKED,
    SUCCESSION_AWAY, /* its daemon has ended; it may come back with the next one of its node */
    SUCCESSION_GONE, /* for good: it has left, its process has ended, or its node is lost */
};

struct succession {
    uint64_t lineage; /* the id of the job's first generation */
    char name[MESSAGE_NAME_BYTES];
    uint32_t recovery; /* of the job, which goes on with it */
    uint32_t mark;     /* likewise */
    uint32_t generation, uid, world_size, roster;
    uint32_t self, first_home;
    uint32_t *rank_nodes; /* [world_size] */
    uint32_t *workers;    /* [world_size]: what each rank's daemon calls its worker */
    uint8_t *states;      /* [world_size], enum succession_state; of other nodes at the home only */
    bool *members;        /* [roster]: whose daemons had a part in the job */
    bool *lost;           /* [roster]: whose connection has ended since */
    /* [roster]: since when ranks of the node are away, and until when they are waited for. */
    uint64_t *away_since_ns, *away_until_ns;
    /* [roster]: who have heard of it, as all daemons know of whom the next home is chosen. */
    bool *elders;
    bool *unable; /* [roster], home only: have no room for the next generation, nor ranks of it */
    /* Workers of this node that are gone, and had ranks of earlier generations, back to the last
     * one that was ready here: a home that comes next may not have heard of a later one. */
    uint32_t *past;
    uint32_t past_count;
    int code; /* why the job has failed */
    char text[ERROR_TEXT_BYTES];
    struct gathering_member *asks; /* [world_size] room: home only; by `rank`, the old one */
    uint32_t ask_count;
    uint64_t unseen_until_ns; /* a daemon that never was connected counts as there; UINT64_MAX */
    uint64_t settle_ns; /* home only: no longer than this for those that live and do not ask */
    bool settled;       /* it has passed */
    uint64_t server_ns; /* home only: until then a server is waited for, as there is none */
    bool server_late;   /* it has passed */
    /* Home only: since when it could be formed, and waits for a number of ranks that is wished for;
     * also of attempts before. UINT64_MAX: not yet. */
    uint64_t short_ns;
    bool waited; /* for long enough */
    uint64_t forget_ns;
    uint64_t since_ns; /* when the last generation that was ready failed */
    struct recoveries recoveries;
    bool formed; /* home only: the next generation is opened */
    UT_hash_handle hh;
};

/* Create the succession of a job that has failed. before: the one of the generation before it, or
 * NULL. Requests that came before this node heard of the failure are taken over. NULL: out of
 * memory. */
struct succession *succession_create(const struct job *job, const struct succession *before,
                                     uint64_t forget_ns);
void succession_free(struct succession *succession);

/* Return the daemon that decides: the first home, or the next elder that is not lost. A daemon that
 * has heard only of an older generation must come to the same answer, so the elders of the next
 * generation are those of this one that are left. When none is, the other members follow. */
uint32_t succession_home(const struct succession *succession);
/* The rank of a worker of the node; world_size: it has none. */
uint32_t succession_rank(const struct succession *succession, uint32_t node, uint32_t worker);
/* Again: what it says now counts. ERR_STATE: the rank is gone. */
int succession_ask(struct succession *succession, const struct gathering_member *member,
                   struct error *error);
void succession_set_gone(struct succession *succession, uint32_t rank);
/* The node's daemon is lost, and its ranks with it. */
void succession_lose_node(struct succession *succession, uint32_t node);
/* The node's daemon is lost, and its ranks are away until a time; which it stays, for those that
 * are away already. How many have gone away now. */
uint32_t succession_part_node(struct succession *succession, uint32_t node, uint64_t now_ns,
                              uint64_t until_ns);
/* Let a rank ask that is away, or that has come back and asks again; it is a worker of the number
 * member->member now. `member->rank` is the rank that it says it had in `generation`, `former` the
 * number that the daemon before called it. *rank is the rank that it has here. ERR_STATE: nobody
 * waits for it. */
int succession_return(struct succession *succession, const struct gathering_member *member,
                      uint32_t generation, uint32_t former, uint32_t *rank, struct error *error);
/* The job opens here: those of it who had come back do not ask any more, and those that are away
 * have, too, if it has ranks on their node that were not known. Their news may have gone to the
 * home alone. */
void succession_open(struct succession *succession, const struct job *job);
bool succession_has_away(const struct succession *succession);
/* "rank 2", "ranks 2, 3": of the node, away. "": none. */
void succession_away_text(const struct succession *succession, uint32_t node,
                          char text[JOB_RANKS_TEXT_BYTES]);
/* When the first of those that are away is waited for no more. UINT64_MAX: none is away. */
uint64_t succession_away_deadline(const struct succession *succession);
/* Takes the request at the index back. */
void succession_unask(struct succession *succession, uint32_t index);
/* Whether nobody who lives is awaited, and there is somebody. */
bool succession_complete(const struct succession *succession);
/* Whether no rank is gone, and all that have asked go on only then. */
bool succession_may_be_whole(const struct succession *succession);
/* How many ranks the next generation is to have: what the one that wishes for most has asked for.
 * 0: nobody wishes for a number. */
uint32_t succession_least_ranks(const struct succession *succession);
/* Until when so many are waited for, with nobody else awaited: for as long as the one that waits
 * longest has asked for, and until reserve_ns before the first of them runs out of time. Newcomers
 * have no say. UINT64_MAX: no such wait has begun, or it is over. */
uint64_t succession_wait_end(const struct succession *succession, uint64_t reserve_ns);
/* Whether somebody has asked who had a rank of a generation that was ready. */
bool succession_has_survivor(const struct succession *succession);
/* "rank 2 has not asked for the next generation of job 'train'" */
void succession_awaited_text(const struct succession *succession, char *text, size_t bytes);
/* Return from which loss the next generation, which is ready, has gone on. If it has all ranks of
 * this one, in their places, a daemon was lost: theirs, which was started again, or a server's. */
enum recovery_kind succession_kind(const struct succession *succession, const struct job *next);
/* A gathering of those that have asked, numbered in their old order, with room for newcomers. NULL:
 * out of memory. */
struct gathering *succession_gather(const struct succession *succession, uint32_t newcomers);

#endif
