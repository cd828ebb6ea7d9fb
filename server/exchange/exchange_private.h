/* What the files of the exchange share; nobody else includes it.
 * exchange.c: peers and messages; exchange_job.c: jobs and groups; collective.c, collective_issue.c
 * and chunk.c: collectives and their chunks on a node; slot.c: chunks at their owner;
 * exchange_segment.c: memory for results that a node's ranks share. */
#ifndef SERVER_EXCHANGE_EXCHANGE_PRIVATE_H
#define SERVER_EXCHANGE_EXCHANGE_PRIVATE_H

#include "common/format/layout.h"
#include "common/format/route.h"
#include "common/memory/slab.h"
#include "server/exchange/exchange.h"

#define NO_INDEX UINT32_MAX
/* Powers of two. */
#define SLOT_BUCKETS 256
#define COLLECTIVE_BUCKETS 1024
#define PROBE_BUCKETS 64

struct exchange_peer {
    bool up;
    uint64_t receive_token;
    uint64_t send_token;
    /* Messages that the open groups let it have under way to us; the pool has promised as many
     * buffers. A group that closes takes its part back, but what is posted at the transport cannot
     * be recalled: it stays there, beyond what is allowed, until a message uses it up or the next
     * group with this peer, which then needs no memory more, is opened. These idle receives are not
     * counted as promised, or peers of jobs long gone would use up the limit for jobs with others;
     * they are at most as many as the transport takes for a peer, and go with the connection. */
    uint32_t allowed;
    uint32_t posted; /* receives at the transport */
    uint32_t held;   /* received buffers still in use */
};

struct exchange {
    struct exchange_options options;
    struct exchange_peer *peers; /* [node_count] */
    struct exchange_job *jobs;
    struct exchange_group *dirty; /* groups to pump in exchange_run */
    struct slab sends;
    struct exchange_send unsent; /* handed out when there is no memory for one; goes nowhere */
    uint64_t now_ns;
    uint64_t bytes_reduced;
    uint64_t collectives;
    uint64_t dropped_messages;
    uint64_t slots;
    uint32_t workers;
    struct exchange_job *traced; /* the one that has a trace, or NULL */
};

struct exchange_job {
    struct exchange_job *next;
    struct exchange *exchange;
    uint64_t id;
    char name[CONFIG_NAME_BYTES];
    uint32_t world_size;
    uint32_t *rank_nodes; /* [world_size] */
    uint32_t server_count;
    uint32_t *server_nodes;
    uint32_t *server_weights;
    struct exchange_worker *workers;
    struct exchange_worker **by_rank; /* [world_size]; NULL: not here */
    struct exchange_group *groups;
    uint64_t *last_to_arrive; /* [world_size]: how often a local rank was the last one */
    uint64_t pending;         /* tasks and sends under way that touch its memory */
    uint64_t bytes_submitted;
    uint64_t collectives;
    uint64_t slots;
    bool failed;         /* nothing moves any more */
    bool closing;        /* free it when nothing is pending */
    struct trace *trace; /* being taken, or NULL */
};

/* One rank of a group on this node. */
struct local_rank {
    uint32_t group_rank;
    uint32_t job_rank;
    uint64_t next_sequence; /* of its next submission */
    uint32_t next_block;    /* of its last collective, to be submitted before; 0: none is left */
    struct wire_ask last;   /* that collective */
    struct collective *submitted; /* the newest that it has submitted, or the one before that in the
                                   * group's list when that is gone */
    struct any_receive *any;      /* its receives from any rank (probe.c); NULL: none so far */
};

struct exchange_group {
    struct exchange_group *next;
    struct exchange_group *next_dirty;
    struct exchange_job *job;
    uint32_t id;
    uint32_t size;
    uint32_t *ranks; /* [size]: job ranks in group order */

    uint32_t node_count;
    uint32_t *nodes;    /* [node_count]: those with ranks of the group, ascending */
    uint32_t self_node; /* this node's place in nodes, or NO_INDEX */
    uint32_t local_count;
    struct local_rank *locals; /* [local_count], in group order */

    bool single; /* all ranks are on this node: one hop, no owner */
    struct layout_rule rule;
    struct layout_rule block_rule; /* of blocks, which go to one owner each */
    struct layout_rule send_rule;  /* of sends, which are a block alone */
    uint32_t *weights;
    uint32_t *owner_nodes; /* [owner_count]: the servers, then the other nodes of the group */
    uint32_t owner_count;
    uint32_t self_owner; /* this node's place among the owners, or NO_INDEX */
    uint32_t window;
    uint32_t *in_flight;    /* [owner_count]: chunks issued and not delivered */
    struct outlet **queues; /* [owner_count]: what can be issued to it, in the order in which it
                             * goes */
    uint32_t *slots_of;     /* [node_count]: open slots here that the node waits for an answer of */
    bool *disagreed;        /* [node_count]: its DISAGREE has come; beside the window, and once */
    uint64_t reserved;      /* buffers promised for sums on this node and for receives */
    bool promised;          /* until it has failed, or closes, and nothing is pending */

    struct collective *oldest; /* in the order of sequence, then block */
    struct collective *newest;
    struct collective *collective_table[COLLECTIVE_BUCKETS];
    struct collective *transfers;  /* sends, not in the list: they have an order of their own */
    struct outlet *transfer_queue; /* those with a chunk to issue */
    uint32_t queued;               /* outlets in all of these queues */
    bool *left;                    /* [size]: ranks of the group that have left the job */
    uint64_t transfer_slots;       /* open here */
    struct probe_pair *probes[PROBE_BUCKETS]; /* what receivers from any rank ask of this node */
    uint64_t probe_version;                   /* of the last that a rank of this node has asked */
    uint64_t collectives;                     /* in the list */
    uint32_t chunks;                          /* of those and of transfers, made or not */
    struct slot *slot_table[SLOT_BUCKETS];
    struct exchange_segment *segments;
    uint64_t pending; /* tasks and sends under way that touch its memory */
    struct slab chunk_slab;
    struct slab slot_slab;

    uint64_t least_left; /* the first sequence that a rank which has left does not take part in */
    uint32_t left_rank;
    uint64_t late_reported; /* sequence + 1 of the last report */
    bool is_dirty;
    bool disagrees; /* the local ranks do, on a collective that all of them have submitted */
    uint64_t least_disagreed; /* the first sequence on which any of them do, block 0 */
    bool starved;             /* memory was lacking: it is pumped again at the next tick */
    bool failed;
    bool dropped; /* failed, and what nothing touches has been freed */
    bool closing;
};

/* A rank's part of a collective. */
struct part {
    struct wire_ask ask;
    uint64_t request;
    uint64_t in_offset;
    uint64_t out_offset;
    struct exchange_segment *segment; /* that out_offset is in; NULL: in its arena */
    uint32_t handed;                  /* chunks handed over so far; all, when not staged */
    bool submitted;
    bool staged;
};

/* What of a collective goes to one owner: one of its shards, or a block. */
struct outlet {
    struct outlet *next, *prev; /* in the owner's queue */
    struct collective *collective;
    uint32_t next_piece; /* to issue */
    uint32_t in_flight;  /* pieces issued and not delivered */
    bool queued;
};

/* A collective on this node. */
struct collective {
    struct collective *next;
    struct collective *previous;
    struct collective *next_in_bucket;
    struct exchange_group *group;
    uint64_t sequence;
    uint64_t first_ns; /* when the first local rank submitted it */
    struct wire_ask ask;
    struct route route;
    uint32_t owner;  /* of a block: place among the owners */
    uint32_t needed; /* local ranks that take part */
    bool single;     /* all that take part are on this node: one hop, no owner */
    struct layout layout;
    uint32_t shard_window;   /* so many of its chunks for one owner are in flight at the most */
    uint32_t network_window; /* nor any more while so many of any collective are */
    uint32_t lead_window;    /* nor is any so far beyond what the slowest shard has had delivered */
    uint32_t slowest_pieces; /* delivered of every shard at least */
    uint32_t slowest_shards; /* of which no more are */
    uint32_t element_bytes;
    uint8_t *shared; /* where its result goes for all ranks here; NULL: each has a place */
    uint32_t priority;
    uint32_t submitted;     /* local ranks */
    uint32_t ready;         /* chunks [0, ready) have been handed over by all local ranks */
    uint32_t issued;        /* chunks */
    uint32_t delivered;     /* chunks */
    struct outlet *outlets; /* [layout.shards] */
    struct chunk **chunks;  /* [layout.chunks]: made when first handed over or issued */
    bool disagree;          /* the local ranks do not agree */
    bool told;              /* DISAGREE was sent */
    struct part parts[];    /* [group->local_count] */
};

enum chunk_state { CHUNK_GATHERING, CHUNK_SUMMING, CHUNK_CONTRIBUTED, CHUNK_DELIVERING };

/* A chunk in progress on its node. */
struct chunk {
    struct reduce_task task;
    struct collective *collective;
    struct layout_chunk place;
    uint32_t index;
    uint32_t owner;     /* place among the group's owners */
    uint32_t last_rank; /* in a trace: who handed it over last */
    uint64_t stage_ns;  /* in a trace: when its present stage began */
    enum chunk_state state;
    uint32_t unsent; /* sends straight from an arena; until they are done it is not written to, nor
                      * given back to its worker */
    bool answered;   /* CONTRIBUTED: the owner's result has come */
    struct buffer *sum;     /* this node's sum, or NULL */
    struct buffer *result;  /* the received result, or NULL */
    uint64_t *offsets;      /* [local_count]: where staged ranks put it */
    const void *pointers[]; /* task.reduction: in [local_count], out [local_count] */
};

enum slot_state { SLOT_GATHERING, SLOT_SUMMING };

/* What one node gave to a slot. */
struct contribution {
    const void *data;      /* NULL: nothing to add */
    struct buffer *buffer; /* that data lies in, held; NULL: data is local */
    struct wire_ask ask;
    bool heard;
    bool answered; /* before others were heard */
    uint32_t disagree_bytes;
    bool disagrees; /* data is a list of asks */
};

/* A chunk in progress at its owner. */
struct slot {
    struct slot *next;
    struct slot *previous;
    struct exchange_group *group;
    struct reduce_task task;
    uint64_t sequence;
    uint64_t first_ns;
    uint64_t stage_ns; /* in a trace: when its present stage began */
    uint32_t block;
    uint32_t chunk;
    uint32_t heard;
    uint32_t needed; /* nodes that take part, as the first that was heard has it */
    bool transfer;
    enum slot_state state;
    struct wire_ask ask;
    struct layout_chunk place;
    struct buffer *result;
    struct chunk *local;                /* this node's own chunk, once contributed */
    struct contribution *contributions; /* [node_count], behind pointers */
    const void *pointers[];             /* task.reduction: in [node_count], out [local_count + 1] */
};

/* Which of so many buckets, a power of two: every bit of the three counts, since those of sends
 * differ in their tag, high up in the sequence number, as well as in their counter. */
static inline uint32_t group_bucket(uint64_t sequence, uint32_t block, uint32_t chunk,
                                    uint32_t buckets)
{
    const uint64_t odd = 0x9e3779b97f4a7c15ull; /* 2^64 divided by the golden ratio */
    uint64_t hash = sequence * odd;
    hash = ((hash >> 32) ^ hash ^ block) * odd;
    hash = ((hash >> 32) ^ hash ^ chunk) * odd;
    return (uint32_t)(hash >> 32) & (buckets - 1);
}

/* exchange.c. Without memory for a message its group fails, and what is returned is to be submitted
 * all the same: it gives its buffer back. */
struct exchange_send *send_create(struct exchange_group *group, uint32_t node, uint8_t type,
                                  uint64_t sequence, uint32_t chunk, const struct wire_ask *ask,
                                  const void *payload, uint32_t payload_bytes);
void send_submit(struct exchange *exchange, struct exchange_send *send);
/* Give back what it holds, and itself. */
void send_free(struct exchange *exchange, struct exchange_send *send);
/* Which peer's figures count the receives for the node. */
struct exchange_peer *receive_account(struct exchange *exchange, uint32_t node);
void receive_release(struct exchange *exchange, struct buffer *buffer);
void receive_replenish(struct exchange *exchange, uint32_t node);
void task_submit(struct exchange_group *group, struct reduce_task *task);
/* What is done to `count` elements of what was asked for; from where to where is the caller's. */
static inline void reduction_set(struct reduction *reduction, const struct wire_ask *ask,
                                 enum reduce_op op, uint32_t divisor, size_t count)
{
    reduction->dtype = ask->dtype;
    reduction->op = op;
    reduction->divisor = divisor;
    reduction->count = count;
}
struct route ask_route(const struct exchange_group *group, const struct wire_ask *ask);
/* Which nodes take part, whose contributions carry data, and to whom results do
 * (common/PROTOCOL.md). */
bool ask_takes_part(const struct exchange_group *group, const struct wire_ask *ask,
                    uint32_t node_index);
bool ask_contributes(const struct exchange_group *group, const struct wire_ask *ask,
                     uint32_t node_index);
bool ask_returns(const struct exchange_group *group, const struct wire_ask *ask,
                 uint32_t node_index);
/* How its data is cut: 0 or ERR_INVALID. Which of the owners has a block (not 0). */
int ask_layout(const struct exchange_group *group, const struct wire_ask *ask, uint64_t sequence,
               struct layout *layout);
uint32_t ask_block_owner(const struct exchange_group *group, const struct wire_ask *ask);
/* Bytes of one element; 1 for a barrier. */
uint32_t ask_element_bytes(const struct wire_ask *ask);

/* exchange_job.c */
struct exchange_job *exchange_job_find(const struct exchange *exchange, uint64_t id);
struct exchange_group *exchange_group_find(const struct exchange_job *job, uint32_t id);
/* Fail the group: emit the event, drop what is in progress as soon as nothing is pending. */
void exchange_group_fail(struct exchange_group *group, int code, const char *text);
/* When nothing is pending any more: free what failed or is closing. Job may be gone afterwards. */
void exchange_job_settle(struct exchange_job *job);
void group_mark_dirty(struct exchange_group *group);
uint32_t group_local_index(const struct exchange_group *group, uint32_t job_rank);
uint32_t group_node_index(const struct exchange_group *group, uint32_t node);
uint32_t group_owner_index(const struct exchange_group *group, uint32_t node);
/* The job rank's rank in the group, or NO_INDEX. */
uint32_t group_place(const struct exchange_group *group, uint32_t job_rank);
uint32_t group_rank_node(const struct exchange_group *group, uint32_t group_rank);

/* collective.c */
struct collective *collective_find(struct exchange_group *group, uint64_t sequence, uint32_t block);
/* Collectives are in the order of their sequence numbers, and blocks in theirs: the same order on
 * all nodes. */
bool collective_comes_before(const struct collective *collective, uint64_t sequence,
                             uint32_t block);
int collective_hand_over(struct exchange_group *group, uint32_t local,
                         struct exchange_worker *worker, const struct arena_submission *submission,
                         struct error *error);
/* All its chunks are delivered: tell the ranks, free it. */
void collective_complete(struct collective *collective);

struct wire_ask submission_ask(const struct arena_submission *submission);
bool is_transfer(const struct wire_ask *ask);
/* Not yet in a list. */
struct collective *collective_create(struct exchange_group *group, uint64_t sequence,
                                     const struct wire_ask *ask, uint32_t priority,
                                     struct error *error);
/* A local rank's part of it; true when all that are here have submitted theirs. */
bool collective_add_part(struct collective *collective, uint32_t local, const struct wire_ask *ask,
                         const struct arena_submission *submission);
int submission_check_worker(const struct exchange_group *group,
                            const struct exchange_worker *worker,
                            const struct arena_submission *submission, const struct wire_ask *ask,
                            struct error *error);

/* transfer.c: sends, from one rank to another. */
int transfer_submit(struct exchange_group *group, uint32_t local, struct exchange_worker *worker,
                    const struct arena_submission *submission, struct error *error);
/* Of all transfers, in turns. */
void transfers_issue(struct exchange_group *group);
/* The rank has left the job: fail the group when a transfer waits for it. */
void transfers_rank_left(struct exchange_group *group, uint32_t job_rank);
/* How many slots other nodes' asks can honestly make. */
uint64_t transfer_slots_most(const struct exchange_group *group);
/* Another node asks for the transfer: the same, when the sender is gone and has not sent. */
void transfer_check_source(struct exchange_group *group, uint64_t sequence,
                           const struct wire_ask *ask);

/* probe.c: receives from any rank */
int probe_submit(struct exchange_group *group, uint32_t local, struct exchange_worker *worker,
                 const struct arena_submission *submission, struct error *error);
/* PROBE, READY or GONE, from a node. */
int probe_message(struct exchange_group *group, uint32_t node, const struct wire_header *header,
                  struct error *error);
/* The transfer's sender has submitted it. */
void probes_sent(struct exchange_group *group, const struct collective *transfer);
/* A rank of this node, by its place in the group, has left the job. */
void probes_rank_left(struct exchange_group *group, uint32_t rank);
void probes_drop(struct exchange_group *group);

/* collective_issue.c */
/* Issue the outlet's next chunk; false when memory is lacking. */
bool outlet_issue(struct outlet *outlet);
/* So many of its chunks more, or fewer, are in flight. */
void outlet_count(struct outlet *outlet, int by);
/* A piece of it has been delivered. */
void outlet_delivered(struct outlet *outlet);
/* All local ranks have handed chunks [0, ready) over. */
void collective_advance_ready(struct collective *collective, uint32_t ready);
void outlet_leave(struct outlet *outlet);
void group_pump(struct exchange_group *group);
void group_check_queues(const struct exchange_group *group);

/* chunk.c */
/* The collective's chunk, made when it is not there yet; NULL: out of memory. */
struct chunk *chunk_get(struct collective *collective, uint32_t index);
void chunk_free(struct chunk *chunk);
/* Of a failed group: free it, unless a task or a send touches it. */
void chunk_drop_idle(struct chunk *chunk);
void chunk_give_back(struct exchange *exchange, struct exchange_worker *worker, uint64_t request,
                     uint32_t chunk, uint64_t offset);
/* What a handed-over chunk takes of its rank's arena at least. */
uint64_t chunk_arena_bytes(const struct chunk *chunk);
struct exchange_worker *group_local_worker(const struct exchange_group *group, uint32_t local);
/* All ranks are here: sum straight into the arenas. */
void chunk_issue_single(struct chunk *chunk);
/* Sum what is here and give it to the owner. false: there is no buffer for the sum; try again. */
bool chunk_issue_shared(struct chunk *chunk);
/* The owner's answer for a chunk of this node. result: held buffer with the payload behind the
 * header, or NULL. */
int chunk_result(struct exchange_group *group, uint32_t from, const struct wire_header *header,
                 struct buffer *result, struct error *error);
/* The chunk's result is in its ranks' arenas, and nothing reads them any more. */
void chunk_delivered(struct chunk *chunk);
/* A send from an arena is to begin, and has ended. */
void chunk_send_from_arena(struct chunk *chunk, struct exchange_send *send, uint32_t local);
void chunk_sent(struct chunk *chunk);
/* The owner on this node is done with the chunk: deliver it once its sends are done. */
void chunk_returned(struct chunk *chunk);
/* The one rank whose data it is, when it is here; else NO_INDEX. */
uint32_t collective_source(const struct collective *collective);
/* Where the chunk's result goes: pointers into the arenas of the local ranks that want it, or one
 * into what they share; past the cache if it is part of a large result, not of a send, and none of
 * them is warm. */
void chunk_outputs(const struct chunk *chunk, struct reduction *reduction);
/* What copies `source` there. False: nobody wants it. */
bool chunk_describe_copy(const struct chunk *chunk, const void *source,
                         struct reduction *reduction);
void collectives_drop(struct exchange_group *group);
/* Of a failed group: what no task and no send touches (slots_drop_idle first). */
void collectives_drop_idle(struct exchange_group *group);
/* Late ranks: fills the event's ranks with those that have not submitted the sequence. */
void collective_missing_ranks(const struct exchange_group *group, uint64_t sequence,
                              struct engine_event *event);

/* exchange_segment.c */
/* Of a submission with ARENA_FLAG_SHARED, whose data is `bytes` long: 0, ERR_PROTOCOL. */
int segment_check_submission(const struct exchange_group *group,
                             const struct arena_submission *submission, uint64_t bytes,
                             struct error *error);
/* The open one that the submission names, held; it is there. */
struct exchange_segment *segment_hold(struct exchange_group *group, uint32_t number);
void segment_let_go(struct exchange_group *group, struct exchange_segment *segment);
/* All local ranks have submitted: where do their results go? False: they do not agree, and the
 * group has failed. */
bool collective_find_place(struct collective *collective);
/* The group closes; no collective is left. */
void segments_release(struct exchange_group *group);

/* slot.c */
int slot_contribute_remote(struct exchange_group *group, uint32_t node_index,
                           const struct wire_header *header, struct buffer *buffer,
                           struct error *error);
/* This node's own part; data may be NULL. */
void slot_contribute_local(struct exchange_group *group, struct chunk *chunk, const void *data);
/* The local ranks disagree and this node owns chunk 0. */
void slot_disagree_local(struct collective *collective);
/* One of the sends is done that the last result of a slot waits for: send it, or, when the group
 * has failed, free it. */
void slot_last_result(struct exchange_send *last);
void slots_drop(struct exchange_group *group);
/* transfer_check_source of all that have been asked for. */
void slots_check_sources(struct exchange_group *group);
void slots_drop_idle(struct exchange_group *group);
bool slot_has_chunk(struct exchange_group *group, const struct chunk *chunk);
/* Slots of the group that wait: the oldest one's sequence, since when, and which nodes it lacks.
 * Returns false when there is none. */
bool slot_oldest_waiting(const struct exchange_group *group, uint64_t *sequence,
                         uint64_t *first_ns);
void slot_missing_nodes(const struct exchange_group *group, uint64_t sequence,
                        struct engine_event *event);

/* exchange_trace.c. The functions in a line of their own are for jobs that are traced; the others
 * look first, and are what the files above call. */
void chunk_trace_stage(struct chunk *chunk, enum trace_stage stage);
void chunk_trace_task_done(struct chunk *chunk);
void chunk_trace_handed_over(struct chunk *chunk, const struct exchange_worker *worker,
                             const struct arena_submission *submission);
void slot_trace_made(struct slot *slot);
void slot_trace_gathered(struct slot *slot, uint32_t node_index);
void slot_trace_task_done(struct slot *slot);
void collective_trace_end(const struct collective *collective, enum trace_stage stage,
                          uint32_t rank);
void send_trace_posted(struct exchange_send *send);
void send_trace_sent(const struct exchange_send *send);
/* An ARENA_COPIED; nothing more than checked when the job is not traced. ERR_PROTOCOL: more of them
 * than chunks that were given back. */
int worker_trace_copied(struct exchange_worker *worker, const struct arena_submission *submission,
                        struct error *error);
/* The job fails or closes: its trace is over. */
void job_trace_over(struct exchange_job *job, enum trace_end end);

/* A stage of the chunk ends now. */
static inline void chunk_trace(struct chunk *chunk, enum trace_stage stage)
{
    if (chunk->collective->group->job->trace)
        chunk_trace_stage(chunk, stage);
}

/* Its task is done. */
static inline void chunk_trace_task(struct chunk *chunk)
{
    if (chunk->collective->group->job->trace)
        chunk_trace_task_done(chunk);
}

static inline void chunk_trace_handed(struct chunk *chunk, const struct exchange_worker *worker,
                                      const struct arena_submission *submission)
{
    if (worker->job->trace)
        chunk_trace_handed_over(chunk, worker, submission);
}

static inline void slot_trace_begin(struct slot *slot)
{
    if (slot->group->job->trace)
        slot_trace_made(slot);
}

/* All nodes have been heard, this one last. */
static inline void slot_trace_gather(struct slot *slot, uint32_t node_index)
{
    if (slot->group->job->trace)
        slot_trace_gathered(slot, node_index);
}

static inline void slot_trace_task(struct slot *slot)
{
    if (slot->group->job->trace)
        slot_trace_task_done(slot);
}

/* Its ranks have arrived, this job rank last, or it is complete. */
static inline void collective_trace(const struct collective *collective, enum trace_stage stage,
                                    uint32_t rank)
{
    if (collective->group->job->trace)
        collective_trace_end(collective, stage, rank);
}

/* collective.c: encode what the local ranks asked for; the bytes written, at most room. */
uint32_t collective_encode_asks(const struct collective *collective, uint8_t *bytes, uint32_t room);

#endif
