/* The structures that several layers of the exchange work on: the exchange and its peers, jobs,
 * groups, and collectives. Data that one layer alone keeps for a group is a structure in that
 * layer's header, which the group points to.
 *
 * "Index" is a number that counts within one group: of a node among the group's nodes, of an owner
 * among its owners, of a local rank among its ranks on this node. "Rank" and "node" without more
 * are numbers of the job and of the roster; "group rank" counts within the group.
 *
 * Layer: the lowest, beside server/exchange/model/port.h. There is nothing to call.
 */
#ifndef SERVER_EXCHANGE_MODEL_MODEL_H
#define SERVER_EXCHANGE_MODEL_MODEL_H

#include "common/base/bits.h"
#include "common/base/quota.h"
#include "common/config/config.h"
#include "common/format/layout.h"
#include "common/format/route.h"
#include "common/memory/slab.h"
#include "server/exchange/model/port.h"
#include "server/waits/overlap.h"
#include "server/waits/waits.h"

/* No index, or a buffer that is no peer's receive. */
#define NO_INDEX UINT32_MAX

struct agreement;
struct archive;
struct archived;
struct any_receives;
struct chunk;
struct collective;
struct issuing;
struct order;
struct outlet;
struct probes;
struct session_message;
struct share;
struct slots;
struct stability;

/* --- the exchange ----------------------------------------------------------------------------- */

/* Signs of life between this node and a peer, see server/exchange/exchange_link.h. Whoever sends or
 * takes a message sets the first two; the rest is counted from tick to tick. */
struct exchange_link {
    bool sent;          /* something went to the peer since the last tick */
    uint8_t heard;      /* and what came: LINK_HEARD, LINK_HEARD_WORK */
    bool waits;         /* this node waits for the peer */
    bool under_way;     /* `send` is out */
    uint32_t groups;    /* open ones in which the two exchange messages: there are receives */
    uint64_t silent_ns; /* nothing has come, while this node waits */
    uint64_t quiet_ns;  /* nothing was sent */
    uint64_t wanted_ns; /* for so long the peer may still wait for this node */
    struct exchange_send send;
};

/* The messages that the peer may lack, see server/exchange/ground/session.h. */
struct exchange_session {
    bool on;
    bool suspended;    /* messages are kept, and not posted: the connection is gone or new */
    bool ready, heard; /* the new one: it can be sent on; the peer has said what has come */
    bool greeted;      /* and this node has said so */
    uint32_t barren;   /* connections in a row that broke with nothing kept having come through */
    uint64_t barren_number;  /* the oldest that was kept at the last of them */
    uint64_t stalled_ns;     /* messages wait for room, and nothing kept has come through */
    uint64_t stalled_number; /* the oldest kept meanwhile */
    uint32_t kept;           /* messages */
    uint32_t copies;         /* of payloads that are kept */
    uint32_t promised;       /* buffers, by the pool, for them: of the open groups */
    uint32_t untold;         /* messages that have come, and the peer was not told so */
    uint64_t sent;           /* the number of the last message to the peer */
    uint64_t received;       /* and of the last one of the peer */
    struct session_message *first, **last;        /* kept, in order */
    struct exchange_send *waiting, **waiting_end; /* there was no room to keep them */
};

struct exchange_peer {
    bool up;
    uint64_t receive_token;
    uint64_t send_token;
    /* Messages that the open groups let the peer have under way to this node; the pool has promised
     * as many buffers. A group that closes takes its part back, but a receive that is posted at the
     * transport cannot be recalled. It stays there, beyond what is allowed, until a message uses it
     * up or a new group with this peer takes it over and so needs less memory. These idle receives
     * are not counted as promised: peers of jobs long gone would use up the limit for jobs with
     * others. They are at most as many as the transport takes for a peer, and they go with the
     * connection. */
    uint32_t allowed;
    uint32_t posted; /* receives at the transport */
    uint32_t held;   /* received buffers still in use */
    bool lacking;    /* the machine refused memory for some: tried again with each tick */
    struct exchange_link link;
    struct exchange_session session;
};

struct exchange {
    struct exchange_options options;
    struct exchange_peer *peers; /* [node_count] */
    uint64_t *stirred;           /* a bit for each node: the tick has to look at it */
    struct exchange_job *jobs;
    uint32_t traces_ending; /* of the jobs' traces */
    struct share *shares;   /* server/exchange/model/share.h */
    struct share *dirty;    /* those with groups that exchange_run has to pump */
    struct slab sends;
    struct slab kept;               /* struct session_message */
    struct exchange_send *deferred; /* are over, which exchange_run tells whoever sent them */
    struct exchange_send unsent; /* handed out when there is no memory for a send; goes nowhere */
    uint64_t now_ns;             /* of the latest call that told it */
    struct archive *archives;    /* server/exchange/ground/archive.h */
    struct quota promised;       /* bytes of the pool, by user: share_promise */
    struct quota archived;       /* bytes in all of them, by user */
    struct quota archiving;      /* those of collectives under way, which cannot be taken away */
    uint64_t archived_count;
    uint64_t still_ns;      /* for so long the engine did not run though it had to */
    uint64_t link_ns;       /* of the latest tick that counted silence */
    uint64_t bytes_reduced; /* from here on: figures for the status */
    uint64_t collectives;   /* of these some met */
    uint64_t met_collectives;
    uint64_t dropped_messages;
    uint64_t slots;
    uint32_t workers;
};

/* Something of the peer may be due with the next tick: it was heard, sent to or waited for, its
 * session is on, or receives for it are lacking. */
static inline void peer_stir(struct exchange *exchange, uint32_t node)
{
    bits_set(exchange->stirred, node);
}

/* The first peer from this one on that is stirred, or node_count. */
static inline uint32_t peer_stirred_from(const struct exchange *exchange, uint32_t node)
{
    return bits_from(exchange->stirred, exchange->options.node_count, node);
}

struct exchange_job {
    struct exchange_job *next;
    struct exchange *exchange;
    struct share *share; /* of the user whose job it is */
    uint64_t id;
    uint32_t generation;      /* of its membership: what is of another one is dropped */
    bool recovery;            /* its messages are kept until they have come */
    struct archive *archive;  /* where results of group 0 are kept; or NULL */
    bool numbered;            /* and of it, these are known: */
    uint64_t number_sequence; /* the sequence of the collective of group 0 that */
    uint64_t number;          /* has this number since the job's first generation */
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
    uint64_t bytes_submitted;
    uint64_t collectives, met_collectives; /* the latter are among the former */
    uint64_t met_bytes;                    /* of those submitted */
    uint64_t slots;
    uint64_t kept_bytes;    /* memory that its requests take */
    bool failed;            /* nothing moves any more */
    bool closing;           /* free it when nothing is pending */
    bool over;              /* closing: it had not failed */
    struct trace *trace;    /* being taken, or NULL */
    struct waits waits;     /* whom it waits for */
    struct overlap overlap; /* how its time splits */
};

/* --- a group ---------------------------------------------------------------------------------- */

/* One rank of a group on this node, and how far it has submitted. */
struct local_rank {
    uint32_t group_rank;
    uint32_t job_rank;
    uint64_t next_sequence; /* of the next collective that the rank begins */
    /* The block that the rank has to submit before that, of the collective in `last`. 0: none. */
    uint32_t next_block;
    struct wire_ask last; /* block 0 of the collective that the rank has begun last */
    /* The newest collective, or block, that the rank has submitted. When that is gone, the one
     * before it in the group's order. */
    struct collective *submitted;
};

/* The ranks of a group, and the nodes that they are on. */
struct members {
    uint32_t size;
    uint32_t *ranks; /* [size]: job ranks in group order */
    uint32_t node_count;
    uint32_t *nodes;    /* [node_count]: those with ranks of the group, ascending */
    uint32_t self_node; /* this node's index, or NO_INDEX */
    uint32_t local_count;
    struct local_rank *locals; /* [local_count], in group order */
    bool single;               /* all ranks are on this node: one hop, no owner */
    bool *departed;            /* [size]: ranks of the group that have left the job */
    uint64_t least_departed;   /* the first sequence in which a departed rank takes no part */
    uint32_t departed_rank;    /* that rank, of the job */
};

/* The owners of a group's chunks, and how its data is cut for them. */
struct owners {
    uint32_t *nodes; /* [count]: the job's servers, then the other nodes of the group */
    uint32_t count;
    uint32_t self;                 /* this node's index among the owners, or NO_INDEX */
    uint32_t *weights;             /* [rule.servers] */
    struct layout_rule rule;       /* of what is cut over the servers */
    struct layout_rule block_rule; /* of blocks, which go to one owner each */
    struct layout_rule send_rule;  /* of sends, which are a block alone */
    /* [count]: the most chunks that a node may have on their way to the owner. `window`: to one
     * with ranks of the group, to which it is the largest; `least_window`: to one without, or
     * `window` where there is none. */
    uint32_t *windows, window, least_window;
    uint32_t
        *index_of; /* [node_count of the roster]: a node's index among the owners, or NO_INDEX */
};

struct exchange_group {
    struct exchange_group *next;                        /* in its job */
    struct exchange_group *next_dirty, *previous_dirty; /* in the share, while is_dirty */
    struct exchange_job *job;
    uint32_t id;
    struct members members;
    struct owners owners;
    struct exchange_segment *segments;

    /* Each of these belongs to one layer, whose header says what it is. They are there as long as
     * the group is. */
    struct order *order;         /* server/exchange/model/order.h */
    struct slots *slots;         /* server/exchange/owner/slots.h */
    struct any_receives *any;    /* server/exchange/node/any_receive.h */
    struct probes *probes;       /* server/exchange/node/probe.h */
    struct issuing *issuing;     /* server/exchange/node/issue.h */
    struct agreement *agreement; /* server/exchange/node/agreement.h */
    struct stability *stability; /* server/exchange/node/stability.h; NULL without recovery */
    struct slab chunk_slab;      /* server/exchange/node/chunk.h */

    uint64_t pending;        /* tasks and sends under way that touch its memory */
    uint64_t reserved;       /* buffers promised for sums on this node and for receives */
    uint64_t reserved_bytes; /* what these are */
    uint64_t late_reported;  /* sequence + 1 of the last report */
    bool promised; /* the pool's promise stands: not closing or failed, or still pending */
    bool is_dirty; /* in the list of its job's share */
    bool starved;  /* memory was lacking: it is pumped again at the next tick */
    bool failed;   /* takes nothing any more, and drops what comes */
    bool dropped;  /* has failed, and what nothing touches has been freed */
    bool closing;  /* freed when nothing is pending */
};

/* --- a collective ----------------------------------------------------------------------------- */

/* The part of one local rank in a collective: what it gave, and where it wants the result. */
struct part {
    struct wire_ask ask;
    uint64_t request;
    uint64_t in_offset;
    uint64_t out_offset;
    struct exchange_segment *segment; /* that out_offset is in; NULL: in its arena */
    uint32_t handed;                  /* chunks handed over so far; all, when not staged */
    uint64_t handed_ns;               /* when the latest was, or it was submitted */
    bool submitted;
    bool staged;
};

/* A collective on a node with ranks of its group; a block of one, or a send, is one of its own. */
struct collective {
    struct collective *next; /* in the group's order, or among its transfers */
    struct collective *previous;
    struct collective *next_in_bucket;
    struct collective *next_sent; /* of a send that its sender, which is here, has submitted */
    struct collective *previous_sent;
    uint32_t sender; /* its local index */
    struct exchange_group *group;
    uint64_t sequence;
    uint64_t first_ns; /* when the first local rank submitted it */
    struct wire_ask ask;
    uint32_t priority;

    struct route route;
    uint32_t owner;  /* of a block: index among the owners */
    uint32_t needed; /* local ranks that take part */
    bool single;     /* all that take part are on this node: one hop, no owner */
    uint32_t element_bytes;
    struct layout layout;

    /* How many of its chunks are issued at once; kept by server/exchange/node/issue.h. */
    uint32_t shard_window;   /* the most chunks of it that are in flight to one owner */
    uint32_t network_window; /* none is issued while so many of any collective are */
    uint32_t lead_window;    /* the most pieces of a shard beyond slowest_pieces */
    uint32_t slowest_pieces; /* delivered of every shard at least */
    uint32_t slowest_shards; /* shards of which no more than slowest_pieces are delivered */
    struct outlet *outlets;  /* [layout.shards] */

    uint32_t submitted;    /* local ranks */
    uint32_t given;        /* of these, those that have handed over all of their part */
    uint32_t lacks_start;  /* local index + 1 of the only rank that has not submitted; or 0 */
    uint32_t lacks_give;   /* likewise, that has not given all */
    bool overlaps;         /* it is in the job's account of time */
    uint32_t ready;        /* chunks [0, ready) have been handed over by all local ranks */
    uint32_t issued;       /* chunks */
    uint32_t delivered;    /* chunks */
    struct chunk **chunks; /* [layout.chunks]: made when first handed over or issued */
    uint32_t live;         /* of these, those that are there; the first ones, more or less */
    /* Takes a chunk whose result is with its ranks, and whose memory nothing reads any more. */
    void (*chunk_delivered)(struct chunk *chunk);
    /* A transfer between nodes: what its two ranks ask for is known, and nothing has moved. */
    void (*met)(struct collective *transfer, const struct wire_ask *sent,
                const struct wire_ask *wanted);
    uint8_t *shared; /* where its result goes for all ranks here; NULL: to each rank's own */
    bool disagree;   /* the local ranks do not agree */
    bool told;       /* this node has reported that */
    struct archived *archived; /* where its result is kept besides; or NULL */
    struct archived *replayed; /* of a replay that this node answers itself: what is handed out */
    bool refused; /* of a replay: it is not kept; of a transfer: its two ranks do not fit */
    uint64_t wanted_count; /* of a transfer that has met: its receiver's; `ask` is its sender's */
    uint8_t wanted_dtype;  /* likewise */
    bool confirmed;        /* of a transfer, at its sender's node: its receiver has it */
    struct part parts[];   /* [members.local_count] */
};

#endif
