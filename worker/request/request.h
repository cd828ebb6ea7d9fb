/* A collective in progress, as the worker sees it. One that travels in blocks
 * (common/format/route.h) is a request without data of its own, the *whole*, and a request for each
 * block that this rank takes part in; the whole is complete when all of them are.
 *
 *   QUEUED --submitted to the daemon--> SUBMITTED --all chunks back--> COMPLETE
 *      \________________________failure___________/                       ^
 * A send from a device is LOADING first.
 *
 * Pure: what a request is made of and how far it is. worker/progress/progress.h moves it.
 *
 * Calls common/{base,format,reduce}.
 */
#ifndef WORKER_REQUEST_REQUEST_H
#define WORKER_REQUEST_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/format/layout.h"
#include "common/format/route.h"
#include "common/reduce/dtype.h"
#include "worker/request/kept_memory.h"

struct progress_group;

/* Ask: the collective, send or receive that the caller asked for. */
struct request_ask {
    enum collective_kind kind;
    enum dtype dtype;
    enum reduce_op op;
    uint32_t root;      /* rank in the group */
    uint32_t block;     /* common/format/route.h; 0: the collective itself */
    uint32_t identity;  /* of the tensor, where it travels in shards; 0: none */
    struct route route; /* of the block; not looked at for the collective itself */
    uint64_t count;     /* elements; a collective in blocks has none of its own to move */
    const void *send;
    void *recv;
    uint32_t priority;
    bool on_device;         /* the buffers are a device's */
    void *stream;           /* on a device: in whose order they are read and written */
    void *own_to;           /* where the part that this rank sends to itself goes, */
    const void *own_from;   /* where it lies, */
    uint64_t own_bytes;     /* and its size; 0: there is none, or the caller copies it */
    bool shared;            /* recv is shared memory, which the daemon writes the result to */
    uint32_t segment;       /* shared: the daemon's number for the memory */
    uint64_t shared_offset; /* shared: where in it recv lies */
    void *kept;       /* a copy of what is sent, where results overwrite it; request_keep_sent */
    bool replay;      /* of a receive: a daemon answers it, or says that it cannot */
    bool up_to;       /* of a receive: the count is the most that it takes */
    size_t *received; /* up_to: where the count goes that has come, or NULL */
    bool internal;    /* the library's own, which nobody is told of */
};

enum request_state {
    REQUEST_MEETING, /* the ranks of the node may do it alone (worker/meeting); not QUEUED yet */
    REQUEST_QUEUED,
    REQUEST_LOADING, /* a send from a device, before QUEUED: its stream has not come to it, or its
                      * data is not in the arena yet */
    REQUEST_SUBMITTED,
    REQUEST_MATCHED, /* a receive from any rank, for which there is a sender */
    REQUEST_OVER,    /* a block; or the whole, while blocks of it are not */
    REQUEST_COMPLETE,
};

/* The part that a rank sends to itself, when a device has to copy it. */
enum request_own { OWN_NONE, OWN_PENDING, OWN_COPYING };

struct request {
    struct request_ask ask;
    struct progress_group *group;
    enum request_state state;
    uint64_t sequence; /* in the group */
    uint64_t met;      /* collectives of the group that had met before it (worker/meeting) */
    uint64_t age;      /* order of the calls in the job */
    uint64_t number;   /* in the rings; valid while SUBMITTED */
    struct layout layout;
    struct layout_rule block_rule; /* of a block: what its layout refers to */
    bool staged;                   /* chunks travel through staging slots */
    bool copy_in;                  /* staged: this rank has data to give */
    bool copy_out;                 /* staged: this rank wants the result */
    bool waiting;                  /* for its stream: nothing of the caller's is touched yet */
    uint64_t in_offset;            /* not staged: where its data lies in the arena */
    uint64_t out_offset;           /* not staged: where its result goes in the arena */
    uint32_t chunks_given;         /* handed over, or being copied for that */
    uint32_t chunks_back;          /* reported by the daemon */
    uint32_t chunks_done;          /* reported and copied out */
    enum request_own own;
    bool done_seen;   /* the daemon said that the whole is done */
    int result;       /* COMPLETE: 0 or an error code */
    char *error_text; /* of a failure; may be NULL; freed by request_clear */
    uint64_t completed_ns;
    uint64_t ready_ns;      /* on a device: when its stream was seen to have come to it */
    struct request *whole;  /* a block: whose it is; else NULL */
    struct request *blocks; /* the whole: [block_count], freed by request_clear; or NULL */
    uint32_t block_count;
    struct request_ask *asked; /* MEETING: what its blocks would be, [asked_count], freed by
                                * request_clear; or NULL */
    uint32_t asked_count;
    uint32_t incomplete;   /* the whole: itself, its blocks, and copies on a device */
    void *copy_to;         /* a receive: where its data goes from the arena; NULL: it stays there */
    const void *copy_from; /* a send from a device: where its data is */
    uint64_t copied_bytes; /* of copy_to or copy_from; on a device, of copies that were begun */
    uint32_t copies;       /* of copy_to or copy_from, under way on a device */
    bool copying;          /* in the queue for such a copy */
    bool receives;         /* a send or receive: this rank is the one that gets the data */
    uint64_t say_ns; /* a send or receive: when the user hears that it waits; 0: not known yet */
    bool any;        /* a receive from any rank, which looks for a sender */
    uint32_t any_source;     /* any: who has been found */
    uint64_t numbers_offset; /* any: arena memory with the numbers that progress_any is given */
    /* Only in a job that goes on by itself (progress.h), for a collective of the program: */
    uint64_t index;                        /* its number among the group's, over all generations */
    bool has_result;                       /* which may be told when it is stable */
    struct request *kept_prev, *kept_next; /* the group's that have not been told */
    struct request *prev, *next;           /* group's incomplete requests */
    struct request *queue_prev, *queue_next; /* waiting to be submitted, staged, or told complete */
};

/* Refuse an ask that a group of `size` ranks cannot have of rank `rank`. Returns 0 or ERR_INVALID
 * with a text that begins with the collective's name. kind, dtype and op may be any number. */
int request_check(const struct request_ask *ask, uint32_t rank, uint32_t size, struct error *error);

/* The arena's data area in this process's memory. */
struct request_memory {
    const uint8_t *base; /* of the arena */
    uint64_t data_offset, total_bytes;
};

/* Whether the buffer lies in the data area, so that it can be used where it is. */
bool request_in_arena(const struct request_memory *memory, const void *buffer, uint64_t bytes);

/* Set up a checked ask: cut it up and decide between staging and direct use of arena memory.
 * ERR_INVALID when the buffer has too many chunks. The state is QUEUED. */
int request_init(struct request *request, const struct request_ask *ask, uint32_t rank,
                 const struct layout_rule *rule, uint64_t sequence,
                 const struct request_memory *memory);
/* Set up a checked ask as request_init does, without where its data lies and how that is cut up. A
 * collective that meets needs neither, and for a small one that would take as long as the copies.
 */
void request_init_uncut(struct request *request, const struct request_ask *ask, uint32_t rank);
/* Take memory for copies of what a rank sends in a checked ask and its blocks, where results
 * overwrite it, as `kept` of each. request_copy_sent makes them. ERR_MEMORY: nothing is taken. */
int request_keep_sent(struct kept_memory *memory, struct request_ask *ask,
                      struct request_ask *blocks, uint32_t block_count, uint32_t rank,
                      struct error *error);
/* Touches nothing else: it may be called without the lock. */
void request_copy_sent(const struct request_ask *ask, const struct request_ask *blocks,
                       uint32_t block_count);
void request_forget_kept(struct request_ask *ask, struct request_ask *blocks, uint32_t block_count);
/* Give the copies of a request and its blocks back: its result is stable. */
void request_drop_kept(struct request *request);
/* Put the copies where they were made of. */
void request_restore(const struct request *request);
/* Set the request up once more, in a group that has another rule and gives it another number. The
 * daemon must have let go of it. */
int request_again(struct request *request, uint32_t rank, const struct layout_rule *rule,
                  uint64_t sequence, const struct request_memory *memory);
/* Free what the request owns: its blocks and the text of its failure; give back what it keeps. */
void request_clear(struct request *request);

/* Whether some chunk is to be handed over, and may be: its stream has come to it. */
bool request_has_chunk(const struct request *request);
/* Whether everything has come back and been copied out. */
bool request_finished(const struct request *request);
/* Bytes of the caller's buffer. */
uint64_t request_bytes(const struct request *request);
/* Where a chunk begins in the caller's buffer, in bytes. */
uint64_t request_chunk_offset(const struct request *request, const struct layout_chunk *chunk);
/* How many bytes a chunk has. */
uint64_t request_chunk_bytes(const struct request *request, const struct layout_chunk *chunk);

/* "all_reduce of 1000 float (sum) on group 3, number 17: 6 of 8 chunks handed over, 5 back". */
void request_describe(const struct request *request, uint32_t group, char *text, size_t bytes);

#endif
