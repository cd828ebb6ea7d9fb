/* The open slots of a group: their table, making and freeing them, which of them wait for whom. The
 * work of a slot is in server/exchange/owner/slot.h.
 *
 * Layer: may call server/exchange/ground/ and server/exchange/model/.
 */
#ifndef SERVER_EXCHANGE_OWNER_SLOTS_H
#define SERVER_EXCHANGE_OWNER_SLOTS_H

#include "server/commands/trace.h"
#include "server/exchange/ground/delivery.h"
#include "server/exchange/model/model.h"

#define SLOT_BUCKETS 256 /* a power of two */

/* A group's slots. */
struct slots {
    struct slab slab;
    uint32_t *of_node;  /* [node_count]: open slots that the node waits for an answer of */
    bool *disagreed;    /* [node_count]: its DISAGREE has come; beside the window, and once */
    uint64_t transfers; /* open slots of sends */
    struct slot *table[SLOT_BUCKETS];
};

/* Whoever has contributed this node's own part of a slot. */
struct lender {
    void *owner; /* free for the lender */
    const struct piece *piece;
    /* The send, not yet submitted, takes its data from the arena of this local rank. The memory is
     * lent until the send is over; the lender sets the send's `done`. */
    void (*lend)(struct lender *lender, struct exchange_send *send, uint32_t local);
    /* The receiver of a send asks for this; called for chunk 0. The send's collective then knows
     * whether the two fit, and the piece is what is to be sent. */
    void (*met)(struct lender *lender, const struct wire_ask *wanted);
    /* The slot is gone, its result with this node's ranks. Memory that was lent may be lent
     * still. */
    void (*returned)(struct lender *lender);
};

enum slot_state { SLOT_GATHERING, SLOT_SUMMING };

/* The contribution of one node to a slot. */
struct contribution {
    const void *data;      /* NULL: nothing to add */
    struct buffer *buffer; /* that data lies in, held; NULL: data is local */
    struct wire_ask ask;
    bool heard;
    bool answered;  /* before others were heard */
    bool disagrees; /* data is a list of asks */
    uint32_t disagree_bytes;
};

struct slot {
    struct slot *next; /* in its bucket */
    struct slot *previous;
    struct exchange_group *group;
    struct reduce_task task;
    uint64_t sequence;
    uint64_t first_ns; /* when the first node was heard */
    uint64_t stage_ns; /* in a trace: when its present stage began */
    uint32_t block;
    uint32_t chunk;
    uint32_t heard;  /* nodes */
    uint32_t needed; /* nodes that take part, as the first that was heard has it */
    uint32_t lacks;  /* index + 1 of the only one that has not been heard; or 0 */
    bool transfer;
    bool gathers; /* this node's own part is here, others' lack, and the account knows */
    enum slot_state state;
    struct wire_ask ask;        /* from when all nodes have been heard, or one is answered before */
    struct layout_chunk extent; /* likewise */
    struct buffer *result;      /* a contribution's buffer with the sum in it; or NULL */
    struct lender *lender;      /* of this node's own part; NULL: not contributed yet */
    struct contribution *contributions; /* [node_count], behind pointers */
    const void *pointers[];             /* task.reduction: in [node_count], out [local_count + 2] */
};

/* Make the table and counts of the group, whose members are known. False: no memory. */
bool slots_open(struct exchange_group *group);
void slots_close(struct exchange_group *group);

/* The slot for the chunk of what is asked for, made when it is not there yet. A send's counts as
 * memory of the job's user: no window ends how many are asked for. NULL: there was no memory, or
 * the user has as much as he may, and the group has failed. */
struct slot *slots_get(struct exchange_group *group, uint64_t sequence, const struct wire_ask *ask,
                       uint32_t chunk);
void slot_free(struct slot *slot);
/* Return the ask of the first node, by index, that has been heard; at least one has. */
const struct wire_ask *slot_first_ask(const struct slot *slot);
/* Whether the slot of the lender's chunk is still there. */
bool slot_has_lender(struct exchange_group *group, uint32_t chunk, const struct lender *lender);

/* Calls `visit` for every send that another node has asked for and that has not been answered,
 * until the group fails. */
void slots_visit_transfers(struct exchange_group *group,
                           void (*visit)(struct exchange_group *group, uint64_t sequence,
                                         const struct wire_ask *ask));

/* The group has failed. Free the slots that gather, which no task touches; or all. */
void slots_drop_idle(struct exchange_group *group);
void slots_drop(struct exchange_group *group);

/* Find the oldest slot that waits for nodes, leaving sends out, which may be asked for early: its
 * *sequence, and *first_ns, since when it waits. False: there is none. */
bool slots_oldest_waiting(const struct exchange_group *group, uint64_t *sequence,
                          uint64_t *first_ns);
/* The nodes that have sent nothing of the sequence yet, into nodes[node_count]; how many. */
uint32_t slots_missing_nodes(const struct exchange_group *group, uint64_t sequence,
                             uint32_t *nodes);
/* In a trace: all nodes have been heard, the one with this index last; the slot's task is done. */
void slot_trace_gathered(struct slot *slot, uint32_t node_index);
void slot_trace_task(struct slot *slot);
/* The trace ends: a record of the stage that each slot is in. */
void slots_record_open(const struct exchange_group *group, struct trace *trace);
void slots_check_invariants(const struct exchange_group *group);

#endif
