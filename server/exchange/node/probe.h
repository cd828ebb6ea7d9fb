/* Receives from any rank: who has sent something with this tag?
 *
 * The receiver's rank says how many sends it has got from each other rank, and its node asks each
 * one's node with a PROBE. That node remembers the probe until a send with that number, or a later
 * one, is there. The first READY is the receiver's answer; it then asks for the data as for any
 * receive (server/exchange/node/transfer.h). Later answers are ignored. A probe that is not
 * answered stays until the next one in its position replaces it: so what a node remembers has a
 * bound, and nothing has to be called back. An answer may be out of date, since the receiver may
 * have got that send otherwise meanwhile: then the library asks again.
 *
 * Layer: may call server/exchange/ground/ and server/exchange/model/; nothing in this folder.
 */
#ifndef SERVER_EXCHANGE_NODE_PROBE_H
#define SERVER_EXCHANGE_NODE_PROBE_H

#include "server/exchange/model/model.h"

#define PROBE_BUCKETS 64 /* a power of two */

/* A group's probes. */
struct probes {
    struct probe_pair *table[PROBE_BUCKETS]; /* what receivers from any rank ask of this node */
    uint64_t version;                        /* of the last probe that a rank of this node made */
    uint32_t waits;                          /* receives of this node's ranks that look for one */
    struct any_receive **waiting; /* [local_count]: a rank's receives from any; NULL: none so far */
};

/* Of the group, whose members are known. False: no memory. */
bool probes_open(struct exchange_group *group);
void probes_close(struct exchange_group *group);

/* A receive from any rank. 0, ERR_PROTOCOL or ERR_MEMORY. */
int probe_submit(struct exchange_group *group, uint32_t local, struct exchange_worker *worker,
                 const struct arena_submission *submission, struct error *error);
/* PROBE, READY or GONE, from a node. */
int probe_message(struct exchange_group *group, uint32_t node, const struct wire_header *header,
                  struct error *error);
/* The transfer's sender has submitted it. */
void probes_sent(struct exchange_group *group, const struct collective *transfer);
/* A rank of the group has departed; if it is of this node, those that wait for it are told. */
void probes_rank_departed(struct exchange_group *group, uint32_t group_rank);
/* Whether a rank of this node looks for a sender. */
bool probes_waiting(const struct exchange_group *group);
/* The group has failed: forget all. */
void probes_drop(struct exchange_group *group);

#endif
