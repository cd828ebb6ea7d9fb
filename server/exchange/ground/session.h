/* The messages to a peer that it may lack. Where recovery is on, each message to a peer has a
 * number and is kept, with a copy of its payload, until a message of the peer says that it has come
 * (wire.h: number, received). A connection that breaks while both daemons live suspends the
 * session; on the next one what the peer lacks goes again, in order, and what has come already is
 * dropped.
 *
 * A copy, because the memory that a result is sent from is a receive of some node: held until that
 * result has been acknowledged, it would keep back the messages in which the acknowledgement is.
 *
 * Layer: the lowest of server/exchange/ground; may call server/exchange/model.
 */
#ifndef SERVER_EXCHANGE_GROUND_SESSION_H
#define SERVER_EXCHANGE_GROUND_SESSION_H

#include "server/exchange/model/model.h"

/* A message that is kept. */
struct session_message {
    struct session_message *next;
    struct exchange_group *group; /* NULL: only the number is kept, since it has ended, or its job
                                   * has refused recovery */
    uint64_t number;
    struct buffer *buffer; /* the copy, behind WIRE_HEADER_BYTES; NULL: there is no payload */
    uint32_t payload_bytes;
    uint8_t header[WIRE_HEADER_BYTES];
};

/* A session begins, with nothing kept and nothing counted. The one before it must have ended. */
void session_begin(struct exchange *exchange, uint32_t node);
/* Drop what is kept. Sends that wait stay, and are the caller's. */
void session_end(struct exchange *exchange, uint32_t node);
/* The connection is over, and the session waits for the next one. */
void session_suspend(struct exchange *exchange, uint32_t node);
/* Whether the next connection may go on with it: there is one, and connections have not broken time
 * and again before any of what is kept came through. Such a one breaks for what is sent on it. */
bool session_may_go_on(const struct exchange *exchange, uint32_t node);
/* The peer has said, on the new connection, what has come, and there it can be sent to: whether
 * that is now so, and was not before. */
bool session_goes_on(struct exchange *exchange, uint32_t node);

/* Give the message its number and keep it. False: there is no room now; an acknowledgement or the
 * next tick may make some. */
bool session_keep(struct exchange *exchange, struct exchange_send *send);
/* Take the numbers of a message that has come. 1: it has come before; 0: it has not; ERR_PROTOCOL:
 * they cannot be. */
int session_take(struct exchange *exchange, uint32_t node, const struct wire_header *header,
                 struct error *error);
/* The number of which the peer may drop all up to there: it goes with each message. */
uint64_t session_tell(struct exchange *exchange, uint32_t node);
/* Count passed_ns, in which the peer was there. Return whether messages have waited for silence_ns
 * for the peer to acknowledge any. */
bool session_stalls(struct exchange *exchange, uint32_t node, uint64_t passed_ns);
/* The group ends: nothing of it is kept any more but its numbers. */
void session_forget_group(const struct exchange_group *group);
/* Assert what always holds; for tests. */
void session_check_invariants(const struct exchange *exchange, uint32_t node);

#endif
