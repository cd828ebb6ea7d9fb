/* Signs of life between daemons on the fabric. A link that is cut, or drops what is sent, looks
 * healthy to most fabrics for minutes; the control connection may take another way and live on.
 *
 * A node waits for a peer while a group that both are in has something under way. Then each hears
 * from the other at least every quarter of options.silence_ns: data, or where none flows a
 * KEEPALIVE, which also asks for signs; a node that waits for nothing answers with ALIVE as long as
 * it has heard data or a KEEPALIVE within silence_ns. It does not answer each one: what a node
 * sends may be stuck for long behind its own data, which are signs themselves. A peer that is
 * silent for silence_ns while it is waited for is reported (io->peer_silent). At least one of the
 * two ends reports, whichever way is cut.
 *
 * Silence is counted from tick to tick, a bounded part at a time: after a pause of this process
 * what has come meanwhile is read before anybody is judged.
 *
 * A sign also says what has come of the peer's messages, where those are kept for it
 * (server/exchange/ground/session.h): with the tick after it, or at once after half a window. They
 * are not kept themselves.
 *
 * Layer: beside exchange_job; may call exchange_group.h and what is below that.
 */
#ifndef SERVER_EXCHANGE_EXCHANGE_LINK_H
#define SERVER_EXCHANGE_EXCHANGE_LINK_H

#include "server/exchange/model/model.h"

enum { LINK_HEARD = 1, LINK_HEARD_WORK = 3 };

/* A message has come from the peer. */
static inline void link_heard(struct exchange *exchange, uint32_t node, uint8_t type)
{
    exchange->peers[node].link.heard |= type == WIRE_ALIVE ? LINK_HEARD : LINK_HEARD_WORK;
    peer_stir(exchange, node);
}

static inline bool link_is_sign(uint8_t type)
{
    return type == WIRE_KEEPALIVE || type == WIRE_ALIVE;
}

/* A KEEPALIVE or ALIVE as it must be: 0, or ERR_PROTOCOL. */
int link_check(const struct wire_header *header, struct error *error);
/* Take the numbers of a message of the peer, and send what they make possible. 1: it has come
 * before, and is to be dropped; 0: it has not; ERR_PROTOCOL, ERR_MEMORY. */
int link_take(struct exchange *exchange, uint32_t node, const struct wire_header *header,
              struct error *error);
/* Messages to the peer now arrive: a session that was suspended says what has come, and goes on
 * when the peer has said so too. ERR_MEMORY. */
int link_ready(struct exchange *exchange, uint32_t node, struct error *error);
/* The peer is connected anew. */
void link_begin(struct exchange *exchange, uint32_t node);
/* Count silence, send what is due, report who is silent. */
void links_tick(struct exchange *exchange, uint64_t now_ns);
/* For tests: a peer that the tick does not look at has nothing that could fall due. */
void links_check_invariants(const struct exchange *exchange);
/* A sign of life is out, or never will be. */
void link_sent(struct exchange *exchange, struct exchange_send *send);

#endif
