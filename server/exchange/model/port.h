/* The structures that the exchange and the outside hand each other: sends, tasks, workers,
 * segments, and the table of calls through which the exchange acts. The engine fills the table with
 * a fabric, reduce threads and arenas; the tests fill it with queues.
 *
 * Layer: the lowest, beside server/exchange/model/model.h. There is nothing to call.
 */
#ifndef SERVER_EXCHANGE_MODEL_PORT_H
#define SERVER_EXCHANGE_MODEL_PORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/format/arena.h"
#include "common/format/wire.h"
#include "common/memory/buffer.h"
#include "common/reduce/reduce.h"
#include "server/waits/waits.h"

struct engine_event;
struct exchange_group;
struct exchange_job;

/* A reduction or copy. Whoever takes it from io->reduce does it and gives it to exchange_reduced;
 * the task, its arrays and what they point to stay valid until then. */
struct reduce_task {
    struct reduce_task *next;              /* free for whoever holds the task */
    struct reduce_task *next_share, *last; /* these too */
    const void *share; /* whose work it is: of equals, those with much do not hold up the others */
    struct reduction reduction;
    struct exchange_group *group;             /* the exchange's */
    void (*finish)(struct reduce_task *task); /* the exchange's: called when the task is done and
                                               * its group has not failed */
    void *owner;                              /* the exchange's: what `finish` is about */
    /* The holder's: done in place of the reduction, which then says only how much it is, by a
     * thread of this number, 0 for the one that gives and takes tasks. NULL: the reduction. */
    void (*run)(struct reduce_task *task, uint32_t thread);
    bool timed; /* whoever does the task sets begin_ns and end_ns */
    uint64_t begin_ns, end_ns;
};

/* A message on its way out. Whoever takes it from io->send gives it back with exchange_sent. */
struct exchange_send {
    struct exchange_send *next; /* free for whoever holds the send */
    void *user;                 /* free for whoever holds the send; NULL when it comes back */
    uint32_t connection;        /* free for whoever holds the send */
    uint32_t node;              /* that it goes to */
    uint32_t payload_bytes;
    const void *payload;
    struct buffer *buffer;          /* that payload lies in, held; or NULL */
    struct exchange_worker *worker; /* in whose arena payload lies; or NULL */
    struct exchange_group *group;   /* the exchange's; NULL: a sign of life */
    /* The exchange's: called once, when the send no longer holds its buffer, even if its group has
     * failed meanwhile. NULL: nobody waits for it. */
    void (*done)(struct exchange_send *send);
    void *owner;        /* the exchange's: what `done` is about */
    uint32_t holds;     /* the exchange's: reasons for which a slot keeps its last answer back */
    bool number_alone;  /* the exchange's: sent again for its number; its group has ended */
    uint64_t posted_ns; /* in a trace: when io->send was given the send */
    uint8_t header[WIRE_HEADER_BYTES];
};

/* One local rank. The engine owns the memory behind it; see exchange_attach. */
struct exchange_worker {
    struct exchange_worker *next; /* in its job */
    struct exchange_job *job;
    uint32_t rank; /* of the job */
    struct arena arena;
    void *registration; /* of the arena with the fabric, or NULL */
    void *user;         /* free for whoever has attached it */
    bool detached;      /* takes no completions any more */
    /* Figures of what the rank has handed over and not got back. The exchange keeps them, and
     * server/exchange/ground/submission.h has their bounds. */
    uint64_t handed_bytes;
    uint32_t handed_chunks;
    uint32_t requests;
    uint32_t transfers; /* of the requests, those that are sends or receives */
    struct waits_rank waits;
    uint64_t given_back; /* chunks whose copying out the worker has not reported; it need not */
};

/* Memory of this node for results of a group, which the group's ranks here can only read. The
 * engine owns the memory behind it; see exchange_segment_open. */
struct exchange_segment {
    struct exchange_segment *next; /* in its group */
    uint32_t number;               /* unique in the job on this node */
    uint8_t *base;
    uint64_t bytes;
    bool meeting;   /* a place (common/format/place.h): no result lies in it */
    uint64_t users; /* the exchange's: parts of collectives that name it */
    bool closed;    /* the exchange's, and these two: what it has counted of a place so far */
    uint64_t met_collectives, met_bytes;
};

struct exchange_io {
    void *context;
    /* Takes the send; it always succeeds (the engine queues). exchange_sent follows, never inside
     * this call. */
    void (*send)(void *context, struct exchange_send *send);
    /* Takes the task; exchange_reduced follows, never inside this call. */
    void (*reduce)(void *context, struct reduce_task *task);
    /* Tell a worker. Its ring full is the engine's matter. */
    void (*complete)(void *context, struct exchange_worker *worker,
                     const struct arena_completion *completion);
    /* Post one receive of the whole buffer for the peer. The engine gives it back through
     * exchange_receive or exchange_receive_returned. 0, or negative when it was not taken. */
    int (*post_receive)(void *context, uint32_t node, struct buffer *buffer);
    /* Takes the event. */
    void (*event)(void *context, struct engine_event *event);
    /* A worker that was attached is no longer needed: its job is gone. */
    void (*release_worker)(void *context, struct exchange_worker *worker);
    /* Nothing writes to the segment any more. */
    void (*release_segment)(void *context, struct exchange_segment *segment);
    /* The peer has lacked `what` on the fabric for options.silence_ns: "no sign of life" while it
     * was waited for, or "no acknowledgement" while messages waited for one. Its connection is to
     * be ended, with exchange_peer_down. Its sends come back later. */
    void (*peer_silent)(void *context, uint32_t node, const char *what);
    /* Asked while a trace is taken; may be NULL where none ever is. */
    uint64_t (*now_ns)(void *context);
};

struct exchange_options {
    uint32_t self;                 /* this node's number */
    uint32_t node_count;           /* of the roster */
    const char *const *node_names; /* [node_count]; owned by the caller */
    uint32_t chunk_bytes;
    uint32_t least_shard_bytes;
    uint32_t window_chunks;
    uint32_t window_bytes;
    uint64_t late_ns;
    uint64_t silence_ns; /* a peer that is waited for and silent for so long is lost; 0: for ever */
    uint64_t kept_bytes; /* the most that the requests of one user take here; 0: no limit */
    uint32_t own_user;   /* the daemon's: it and root have no share of memory, but all */
    uint32_t keep_steps; /* results of group 0 that are kept of a job with recovery; 0: none */
    uint64_t keep_bytes; /* and how much memory they may take, of all jobs */
    bool shared_receives; /* receives are not per peer (datagram endpoints) */
    bool recovery;        /* keep what a peer may lack, and send it again; not with the above */
    struct buffer_pool *pool;
    struct exchange_io io;
};

#endif
