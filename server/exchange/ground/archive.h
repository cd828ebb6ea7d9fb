/* The results of the last all-reduces of a job's group of all ranks, kept beside those that the
 * ranks of this node got: for a rank that was started again, and has missed them
 * (doc/design/replay.md). They outlive the generations of a job, and are found by their number
 * since it began.
 *
 * A result is written where its ranks' are, by the same task, as one output more. It takes part in
 * the archive when it is whole, on this node.
 *
 * Layer: may call server/exchange/model/.
 */
#ifndef SERVER_EXCHANGE_GROUND_ARCHIVE_H
#define SERVER_EXCHANGE_GROUND_ARCHIVE_H

#include "server/commands/engine_event.h"
#include "server/exchange/model/model.h"

/* The answer to a replay that asks which results there are: ARCHIVE_ANSWERS i64, in this order. */
enum archive_answer {
    ARCHIVE_FIRST, /* the least number of a result that is kept */
    ARCHIVE_END,   /* one more than the greatest; equal to the least: none is */
    ARCHIVE_HAS,   /* 1: the one that was asked for is, with these three */
    ARCHIVE_COUNT,
    ARCHIVE_DTYPE,
    ARCHIVE_OP,
    ARCHIVE_STEPS, /* how many this daemon keeps at most; 0: it keeps none */
    ARCHIVE_ANSWERS = 8
};

/* A result. */
struct archived {
    struct archived *next; /* of a larger number; or another spare */
    struct archive *archive;
    uint64_t number;
    struct wire_ask ask;
    uint64_t bytes;
    uint8_t *data;    /* [bytes] */
    uint32_t readers; /* whoever has it from archive_find */
    bool dropped;     /* no more in the archive: it goes with the last of them */
};

/* The results of one job, over its generations. */
struct archive {
    struct archive *next;
    uint32_t user;    /* whose it is, of whom it takes its part of the memory */
    uint64_t lineage; /* the id of the first */
    uint32_t jobs;    /* generations that are open here */
    uint64_t idle_ns; /* since when there is none */
    uint32_t count;
    uint64_t bytes;                   /* with what is under way, spares and what is read */
    struct archived *oldest, *newest; /* the whole ones */
    struct archived *spares;          /* memory for the next ones */
    uint32_t spare_count;
};

/* The archive of the job, made if there is none; NULL: no memory, or nothing is kept. */
struct archive *archive_join(struct exchange *exchange, uint32_t user, uint64_t lineage);
/* A generation has ended. over: not by a failure, so there will be no other. */
void archive_leave(struct exchange *exchange, struct archive *archive, bool over);
/* Free the archives of jobs of which no generation has been open for long. */
void archives_tick(struct exchange *exchange);
void archives_clear(struct exchange *exchange);

/* Take a rank's word that the collective with this sequence has this number. Results that are kept
 * with that number or a later one are of a generation that failed before all ranks had them: drop
 * them. ERR_PROTOCOL: another rank has said something else, or the numbers are too large. */
int archive_number(struct exchange_job *job, uint64_t sequence, uint64_t number,
                   struct error *error);
/* The collective, which is new, is one whose result is kept: collective->archived, where there is
 * room. While it is under way nobody can take that away, so that a user has half of all at most
 * that is. */
void archive_begin(struct collective *collective);
/* Put the collective's result into the archive if it is `whole`, else free it: the collective is
 * over, and nothing writes to the result any more. */
void archive_end(struct collective *collective, bool whole);

/* Return what a replay with this ask and sequence asks for: a result, or the answer that tells
 * which results there are. The caller gives it back. NULL: the result is not kept, or has another
 * dtype or count; or there is no memory. */
struct archived *archive_find(const struct exchange_group *group, uint64_t sequence,
                              const struct wire_ask *ask);
/* NULL is ignored. */
void archive_give_back(struct exchange *exchange, struct archived *archived);

/* The three figures for the status. */
void archive_tell(const struct archive *archive, struct engine_job_status *status);

/* For tests. */
void archives_check_invariants(const struct exchange *exchange);

#endif
