/* Messages that go out of this node, receives of the other nodes' messages, and tasks of the reduce
 * threads.
 *
 * Layer: may call server/exchange/ground/recorder.h, session.h there, and
 * server/exchange/model/roster.h.
 */
#ifndef SERVER_EXCHANGE_GROUND_POST_H
#define SERVER_EXCHANGE_GROUND_POST_H

#include "server/exchange/model/model.h"

/* A message about a chunk of a collective. The caller may set buffer, worker, done and owner, and
 * has to submit it. Without memory for it the group fails; what is returned then has to be
 * submitted all the same: it gives its buffer back and goes nowhere. */
struct exchange_send *send_create(struct exchange_group *group, uint32_t node, uint8_t type,
                                  uint64_t sequence, uint32_t chunk, const struct wire_ask *ask,
                                  const void *payload, uint32_t payload_bytes);
void send_submit(struct exchange *exchange, struct exchange_send *send);
/* Let the messages to the node that wait for room go, as far as they can be kept now. */
void sends_flush(struct exchange *exchange, uint32_t node);
/* If the peer has said on its new connection what has come: what it lacks goes again, then what
 * waits. ERR_MEMORY: the session cannot go on. */
int sends_go_on(struct exchange *exchange, uint32_t node, struct error *error);
/* The session is over. To be called when the peer is down: what waits is lost. */
void sends_end_session(struct exchange *exchange, uint32_t node);
/* End the sends of a group that has failed which wait for room, with the next exchange_run: a peer
 * that has closed the group may acknowledge nothing any more, and so make no room. */
void sends_drop_waiting(const struct exchange_group *group);
/* Give back what a send holds that has not been submitted, and the send. */
void send_free(struct exchange *exchange, struct exchange_send *send);
/* A send that was submitted, or went again, has come back: its `done` is called. */
void send_over(struct exchange *exchange, struct exchange_send *send);

/* The peer whose figures count the receives for the node. */
struct exchange_peer *receive_account(struct exchange *exchange, uint32_t node);
/* Post what the node's account allows and lacks, as far as there are buffers. */
void receive_replenish(struct exchange *exchange, uint32_t node);
/* Whether the node's own account lacks receives that could be posted. */
bool receive_is_short(const struct exchange *exchange, uint32_t node);
/* Let go of a buffer that may be a receive, or NULL. A receive that nobody else holds is posted
 * again where that is allowed. */
void receive_release(struct exchange *exchange, struct buffer *buffer);

/* Give the task, whose reduction, finish and owner are set, to the reduce threads. */
void task_submit(struct exchange_group *group, struct reduce_task *task);
/* A task has come back: its `finish` is called unless its group has failed. */
void task_over(struct reduce_task *task);

#endif
