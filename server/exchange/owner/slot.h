/* A chunk at its owner: one contribution a node, their sum in node order, and the answers with the
 * result.
 *
 *   GATHERING -> SUMMING -> gone (the sends of the answers hold the result)
 *
 * This node's own part is lent to the slot by whoever contributes it (struct lender in
 * server/exchange/owner/slots.h).
 *
 * Layer: may call server/exchange/owner/slots.h, server/exchange/ground/ and
 * server/exchange/model/.
 */
#ifndef SERVER_EXCHANGE_OWNER_SLOT_H
#define SERVER_EXCHANGE_OWNER_SLOT_H

#include "server/exchange/model/model.h"

struct lender;

/* A CONTRIBUTION or DISAGREE of the node with this index. First whether it can be: 0 or
 * ERR_PROTOCOL. Then take it: 0 or ERR_PROTOCOL; the buffer is held as long as it is needed. */
int slot_check(const struct exchange_group *group, uint32_t node_index,
               const struct wire_header *header, struct error *error);
int slot_contribute_remote(struct exchange_group *group, uint32_t node_index,
                           const struct wire_header *header, struct buffer *buffer,
                           struct error *error);
/* This node's own part of the chunk; data may be NULL. The slot may be gone when this returns. */
void slot_contribute_local(uint32_t chunk, struct lender *lender, const void *data);
/* The local ranks disagree on the collective, whose chunk 0 this node owns: what each asked for is
 * in the buffer, `bytes` behind the header. Takes the buffer. */
void slot_disagree_local(struct exchange_group *group, uint64_t sequence,
                         const struct wire_ask *ask, struct buffer *buffer, uint32_t bytes);

#endif
