/* The data path of one daemon, without I/O: what arrives (submissions of local workers, messages of
 * other daemons, finished reductions and sends) goes in as calls, what is to be done (sends,
 * reductions, completions, events) comes out through a table. No clock, thread or fabric: the
 * engine runs it on real ones, the cluster of the tests on virtual ones.
 *
 * Two roles meet here. As a node with ranks (server/exchange/collective.c) a daemon follows each
 * chunk of a collective from its ranks' data over the sum on the node to the owner and back. As an
 * owner (server/exchange/slot.c) it gathers one contribution a node for a chunk, sums them in node
 * order and returns the result.
 *
 *   chunk on its node:  GATHERING -> SUMMING -> CONTRIBUTED -> DELIVERING -> gone
 *   slot at its owner:  GATHERING -> SUMMING -> gone (result's sends hold the buffer)
 *
 * Invariants, which tests check after every step (exchange_check):
 *   - a node has at most `window` chunks of a group between issue and delivery for one owner, the
 *     last place only ever taken by the oldest collective that is not complete, and only when no
 *     local rank may yet submit an older one;
 *   - a chunk is issued once, and only when every local rank has handed its part over;
 *   - for every peer, receives posted plus buffers held is at least what it may send.
 */
#ifndef SERVER_EXCHANGE_EXCHANGE_H
#define SERVER_EXCHANGE_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/format/arena.h"
#include "common/format/wire.h"
#include "common/memory/buffer.h"
#include "common/reduce/dtype.h"
#include "common/reduce/reduce.h"
#include "server/engine/engine_event.h"
#include "server/exchange/trace.h"

struct exchange;
struct chunk;
struct exchange_group;
struct exchange_job;
struct exchange_segment;
struct exchange_worker;

/* A reduction or copy, done by whoever takes it from io->reduce; then exchange_reduced. The arrays
 * and what they point to stay valid until then. */
struct reduce_task {
    struct reduce_task *next; /* free for whoever holds the task */
    struct reduction reduction;
    struct exchange_group *group; /* the exchange's, like the two below */
    void (*finish)(struct reduce_task *task);
    void *owner;
    bool timed; /* whoever does it is asked for the two below */
    uint64_t begin_ns, end_ns;
};

/* A message on its way out; exchange_sent gives it back. */
struct exchange_send {
    struct exchange_send *next; /* free for whoever holds the send, like connection */
    uint32_t connection;
    uint32_t node;
    uint32_t payload_bytes;
    const void *payload;
    struct buffer *buffer;          /* that payload lies in, held; or NULL */
    struct exchange_worker *worker; /* in whose arena payload lies; or NULL */
    struct exchange_group *group;   /* the exchange's, like chunk */
    struct chunk *chunk;            /* whose memory the worker may not have back before; or NULL */
    struct exchange_send *then;     /* goes when this one and the others that say so are done */
    uint32_t waits;                 /* for so many */
    uint64_t posted_ns;             /* when io->send was given it, in a trace */
    uint8_t header[WIRE_HEADER_BYTES];
};

/* One local rank. The engine owns the memory behind it; see exchange_attach. */
struct exchange_worker {
    struct exchange_worker *next; /* in its job */
    struct exchange_job *job;
    uint32_t rank; /* of the job */
    struct arena arena;
    void *registration; /* of the arena with the fabric, or NULL */
    void *user;         /* the engine's */
    bool detached;      /* takes no completions any more */
    /* What it has handed over and not got back; the exchange's (collective.c bounds them). */
    uint64_t handed_bytes;
    uint32_t handed_chunks;
    uint32_t requests;
    uint32_t transfers;  /* of those */
    uint64_t given_back; /* chunks that it has not told of copying out; it need not */
};

/* Memory of this node for results of a group, which its ranks here can only read. The engine owns
 * the memory behind it; see exchange_segment_open. */
struct exchange_segment {
    struct exchange_segment *next; /* in its group */
    uint32_t number;               /* unique in the job on this node */
    uint8_t *base;
    uint64_t bytes;
    uint64_t users; /* parts of collectives that name it; the exchange's, like closed */
    bool closed;
};

struct exchange_io {
    void *context;
    /* Takes the send; it always succeeds (the engine queues), exchange_sent follows later. */
    void (*send)(void *context, struct exchange_send *send);
    /* Takes the task; exchange_reduced follows, never inside this call. */
    void (*reduce)(void *context, struct reduce_task *task);
    /* Tell a worker. Its ring full is the engine's matter. */
    void (*complete)(void *context, struct exchange_worker *worker,
                     const struct arena_completion *completion);
    /* Post one receive of the whole buffer for the peer. The engine gives it back through
     * exchange_receive or exchange_receive_returned. 0 or negative: then it was not taken. */
    int (*post_receive)(void *context, uint32_t node, struct buffer *buffer);
    /* Takes the event. */
    void (*event)(void *context, struct engine_event *event);
    /* A worker that was attached is no longer needed: its job is gone. */
    void (*release_worker)(void *context, struct exchange_worker *worker);
    /* Nothing writes to the segment any more. */
    void (*release_segment)(void *context, struct exchange_segment *segment);
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
    bool shared_receives; /* receives are not per peer (datagram endpoints) */
    struct buffer_pool *pool;
    struct exchange_io io;
};

int exchange_create(struct exchange **exchange, const struct exchange_options *options,
                    struct error *error);
/* Every send, task and receive must have been given back, or abandoned. */
void exchange_destroy(struct exchange *exchange);

/* Peers. Tokens: see common/format/wire.h. up posts receives; after down nothing may be sent to it,
 * and its receives come back through exchange_receive_returned. */
void exchange_peer_up(struct exchange *exchange, uint32_t node, uint64_t receive_token,
                      uint64_t send_token);
void exchange_peer_down(struct exchange *exchange, uint32_t node);

/* Jobs and groups; texts as for the engine's calls of the same names. */
int exchange_job_open(struct exchange *exchange, const struct engine_job *job, struct error *error);
void exchange_job_fail(struct exchange *exchange, uint64_t job);
void exchange_job_close(struct exchange *exchange, uint64_t job);
/* All that are open. Those with sends or tasks under way go when these have come back. */
void exchange_close_jobs(struct exchange *exchange);
int exchange_group_open(struct exchange *exchange, uint64_t job, uint32_t group,
                        const uint32_t *ranks, uint32_t rank_count, struct error *error);
/* The group has failed elsewhere: stop its collectives here, without an event. A group that has
 * failed or closed gives its ranks their places in the arenas back, as chunks that are done (their
 * content means nothing): at once where nothing is in flight, else when it ends. */
void exchange_group_stop(struct exchange *exchange, uint64_t job, uint32_t group);
void exchange_group_close(struct exchange *exchange, uint64_t job, uint32_t group);
void exchange_rank_left(struct exchange *exchange, uint64_t job, uint32_t group, uint32_t rank,
                        uint64_t sequences);
/* Take the worker into its job (worker->rank, arena, user are set by the caller). It is given back
 * with io->release_worker when the job is gone and nothing touches its arena. ERR_STATE: no such
 * job, or rank not of this node, or attached already; the caller keeps it. */
int exchange_attach(struct exchange *exchange, uint64_t job, struct exchange_worker *worker,
                    struct error *error);
/* No further submissions or completions; emits ENGINE_WORKER_DETACHED. */
void exchange_detach(struct exchange *exchange, struct exchange_worker *worker);
struct exchange_worker *exchange_find_worker(struct exchange *exchange, uint64_t job,
                                             uint32_t rank);

/* Take the segment (number, base and bytes are set by the caller) into the group, and count it
 * towards the pool's limit. It is given back with io->release_segment after exchange_segment_close,
 * or when the group closes, as soon as nothing writes to it. ERR_STATE: no such group, or it has
 * failed; ERR_MEMORY: over the limit; the caller keeps it. */
int exchange_segment_open(struct exchange *exchange, uint64_t job, uint32_t group,
                          struct exchange_segment *segment, struct error *error);
/* No further collective may name it. Unknown ones are ignored. */
void exchange_segment_close(struct exchange *exchange, uint64_t job, uint32_t group,
                            uint32_t segment);

/* One entry of a worker's ring. Nonsense is ERR_PROTOCOL or ERR_INVALID with the reason; the caller
 * then stops reading that ring. */
int exchange_submit(struct exchange *exchange, struct exchange_worker *worker,
                    const struct arena_submission *submission, uint64_t now_ns,
                    struct error *error);
/* A message of `bytes` in buffer->data. Takes the buffer. node may be TRANSPORT_NO_PEER: the token
 * tells. *from is who sent it, or TRANSPORT_NO_PEER. ERR_PROTOCOL: the peer is to be disconnected,
 * text says why; without one the message is dropped. */
int exchange_receive(struct exchange *exchange, uint32_t node, struct buffer *buffer,
                     uint32_t bytes, uint64_t now_ns, uint32_t *from, struct error *error);
void exchange_receive_returned(struct exchange *exchange, uint32_t node, struct buffer *buffer);
/* Receives still posted will not come back: the fabric is about to be closed. */
void exchange_abandon_receives(struct exchange *exchange);
void exchange_sent(struct exchange *exchange, struct exchange_send *send);
/* It will not be sent, although its peer is there: the group fails. exchange_sent follows. */
void exchange_send_failed(struct exchange *exchange, struct exchange_send *send, int code);
void exchange_reduced(struct exchange *exchange, struct reduce_task *task);

/* Issue what the calls above have made possible. To be called after each batch of them. */
void exchange_run(struct exchange *exchange);
/* Look for late ranks, and try again what memory was lacking for; call every late_ns / 4 or so, and
 * exchange_run after it. */
void exchange_tick(struct exchange *exchange, uint64_t now_ns);
/* Emits ENGINE_LATE with the ranks of this node that have not submitted the sequence. */
void exchange_late_query(struct exchange *exchange, uint64_t job, uint32_t group,
                         uint64_t sequence);

/* Record in trace->records what the chunks of trace->job go through. ERR_STATE: no such job is
 * open, or one is traced; the caller keeps the trace. Otherwise it comes back with ENGINE_TRACED,
 * at exchange_trace_stop or the job's end. */
int exchange_trace_start(struct exchange *exchange, struct trace *trace, struct error *error);
/* Nothing, when that trace is over. */
void exchange_trace_stop(struct exchange *exchange, uint32_t number, enum trace_end end);

/* Whether no collective is in progress. */
bool exchange_idle(const struct exchange *exchange);

/* Figures for the status. */
struct exchange_totals {
    uint64_t bytes_reduced;
    uint64_t collectives;
    uint64_t dropped_messages;
    uint64_t slots; /* chunks in progress, both roles */
    uint32_t workers;
    uint32_t jobs;
};
void exchange_totals(const struct exchange *exchange, struct exchange_totals *totals);
/* Up to `room`; returns how many jobs there are. */
uint32_t exchange_job_totals(const struct exchange *exchange, struct engine_job_status *jobs,
                             uint32_t room);

/* Assert the invariants above; for tests. */
void exchange_check(const struct exchange *exchange);

#endif
