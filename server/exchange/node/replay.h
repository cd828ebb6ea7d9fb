/* Replays: a rank gets a result that was kept before it came (server/exchange/ground/archive.h).
 *
 * To the rank that gets it, and its node, a replay is a receive: it asks chunk by chunk, with
 * contributions that are empty. The node of the rank that it names answers each at once, from its
 * archive, without that rank; or with a result that is empty: it is not kept.
 *
 * Layer: may call server/exchange/ground/, server/exchange/model/.
 */
#ifndef SERVER_EXCHANGE_NODE_REPLAY_H
#define SERVER_EXCHANGE_NODE_REPLAY_H

#include "server/exchange/model/model.h"

/* Whether what is asked for is a replay, or asks which there are. */
bool replay_is(const struct exchange_group *group, const struct wire_ask *ask);

/* A replay that begins on the node of the rank that it names: what is handed out is held, or it is
 * refused. */
void replay_begin_here(struct collective *replay);

/* Another node asks for a chunk. The answer goes in the buffer in which that came: no memory more.
 * ERR_PROTOCOL. */
int replay_answer(struct exchange_group *group, uint32_t node_index,
                  const struct wire_header *header, struct buffer *buffer, struct error *error);

#endif
