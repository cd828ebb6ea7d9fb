/* Feeding the job's account of whom it waits for (server/waits/waits.h) with what an owner hears.
 *
 * Layer: may call server/exchange/ground/ and server/exchange/model/.
 */
#ifndef SERVER_EXCHANGE_OWNER_SLOTS_WAIT_H
#define SERVER_EXCHANGE_OWNER_SLOTS_WAIT_H

#include "server/exchange/owner/slots.h"

/* The node with this index has contributed, and is counted. */
void slot_wait_heard(struct slot *slot, uint32_t node_index);
/* All have, or the slot is about to be freed. */
void slot_wait_over(struct slot *slot);

#endif
