/* Transfers: sends from one rank to another. They take part in no order, neither with the group's
 * collectives nor with each other, since a receive may be asked for long before the send or after
 * it. For this reason each has a window of its own, and none keeps another from going on.
 *
 * The receiver's node asks for each chunk with an empty contribution; the sender's node, which owns
 * the block, answers with the data. In this way nothing travels before there is memory for it. In a
 * job with recovery the receiver's node also says when all of it is delivered, and the send is done
 * then.
 *
 * Layer: may call collective.h, probe.h and what these may, in server/exchange/node/;
 * server/exchange/owner/slots.h, server/exchange/ground/, server/exchange/model/.
 */
#ifndef SERVER_EXCHANGE_NODE_TRANSFER_H
#define SERVER_EXCHANGE_NODE_TRANSFER_H

#include "server/exchange/model/model.h"

/* A rank submits a send or a receive. 0, ERR_PROTOCOL, ERR_INVALID or ERR_MEMORY. */
int transfer_submit(struct exchange_group *group, uint32_t local, struct exchange_worker *worker,
                    const struct arena_submission *submission, struct error *error);
/* DELIVERED from a node: in a job with recovery a send is done only when its receiver has it.
 * ERR_PROTOCOL. */
int transfer_delivered(struct exchange_group *group, uint32_t from,
                       const struct wire_header *header, struct error *error);
/* The rank has left the job: fail the group when a transfer waits for it. */
void transfers_rank_departed(struct exchange_group *group, uint32_t job_rank);
/* Another node asks for the transfer: fail the group when its sender has left and has not sent. */
void transfer_check_source(struct exchange_group *group, uint64_t sequence,
                           const struct wire_ask *ask);

#endif
