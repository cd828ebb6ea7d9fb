/* Receives from any rank: a rank of this node looks for one that has sent something with a tag.
 *
 * The rank says how many sends it has got from each other rank. The sends of ranks of its own node
 * are looked through here; the nodes of the other ranks are asked with a PROBE for each rank
 * (server/exchange/node/probe.h). The first that has sent is the answer, which is told to the rank;
 * it then asks for the data as for any receive (server/exchange/node/transfer.h). Later answers are
 * ignored. An answer may be out of date, since the receiver may have got that send otherwise
 * meanwhile: then the library asks again.
 *
 * A receive asks as many ranks as the group has, so it does it in turns: no other user waits for
 * that. And only so many PROBEs are on their way at a time.
 *
 * Layer: may call server/exchange/ground/ and server/exchange/model/; nothing in this folder.
 */
#ifndef SERVER_EXCHANGE_NODE_ANY_RECEIVE_H
#define SERVER_EXCHANGE_NODE_ANY_RECEIVE_H

#include "server/exchange/model/model.h"

/* Receives from any rank of a rank of the group; the library has fewer. */
#define ANY_POSITIONS 64u

struct any_receive;

/* The receives from any rank that one local rank has submitted. */
struct any_rank {
    struct any_receive *receives;
    uint64_t positions; /* that are taken: a bit each */
};

/* A group's. */
struct any_receives {
    struct any_rank *ranks;     /* [local_count] */
    struct any_receive *asking; /* those that have not asked everyone, oldest first */
    uint64_t version;           /* of the last one */
    uint32_t count;
    uint32_t unsent; /* PROBEs on their way */
};

/* Make the lists of the group, whose members are known. False: no memory. */
bool any_receives_open(struct exchange_group *group);
void any_receives_close(struct exchange_group *group);

/* A rank's submission. 0, ERR_PROTOCOL or ERR_MEMORY. */
int any_receive_submit(struct exchange_group *group, uint32_t local, struct exchange_worker *worker,
                       const struct arena_submission *submission, struct error *error);
/* A turn of asking. Where there is more to ask the group is dirty again. */
void any_receives_ask(struct exchange_group *group);
/* READY or GONE, for the PROBE of this version that was made for the receive in the position. */
void any_receive_answered(struct exchange_group *group, const struct route *route,
                          uint32_t position, uint64_t version, uint64_t sequence, bool ready);
/* A rank of this node has submitted the transfer to another one of this node. */
void any_receives_sent(struct exchange_group *group, const struct collective *transfer);
/* The rank with this local index has departed. */
void any_receives_rank_departed(struct exchange_group *group, uint32_t local);
/* Whether a rank of this node looks for a sender. */
bool any_receives_waiting(const struct exchange_group *group);
/* The group has failed: forget all, but no more than *most, which is counted down. Whether none is
 * left. */
bool any_receives_drop(struct exchange_group *group, uint32_t *most);
void any_receives_check_invariants(const struct exchange_group *group);

#endif
