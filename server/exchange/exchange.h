/* The data path of one daemon, without I/O. Calls bring in everything that arrives: submissions of
 * local workers, messages of other daemons, finished reductions and sends. Everything that is to be
 * done goes out through a table (struct exchange_io): sends, reductions, completions, events. There
 * is no clock, thread or fabric here: the engine runs it on real ones, the cluster of the tests on
 * virtual ones.
 *
 * Two roles meet here. A daemon that is a node with ranks follows each chunk of a collective from
 * its ranks' data over the sum on the node to the owner and back (server/exchange/node/chunk.h). A
 * daemon that is an owner gathers one contribution of each node for a chunk, sums them in node
 * order and returns the result (server/exchange/owner/slot.h).
 *
 * Invariants, which tests check after every step (exchange_check):
 *   - a node has at most `window` chunks of a group between issue and delivery for one owner. The
 *     last of them is only ever of the oldest collective that is not complete, issued when no local
 *     rank could submit an older one any more;
 *   - a chunk is issued once, and only when every local rank has handed its part over;
 *   - for every peer, receives posted plus buffers held is at least what it may send, unless the
 *     machine has refused memory for them.
 *
 * Layer: the highest. It may call all of server/exchange/; jobs, groups and workers, and traces,
 * are opened and closed through the two headers that are included here.
 */
#ifndef SERVER_EXCHANGE_EXCHANGE_H
#define SERVER_EXCHANGE_EXCHANGE_H

#include "server/exchange/exchange_job.h"
#include "server/exchange/exchange_trace.h"
#include "server/exchange/model/port.h"

int exchange_create(struct exchange **exchange, const struct exchange_options *options,
                    struct error *error);
/* Every send, task and receive must have been given back, or abandoned. */
void exchange_destroy(struct exchange *exchange);

/* Peers. Tokens: see common/format/wire.h. up posts receives; after down and away nothing may be
 * sent to it, and its receives come back through exchange_receive_returned.
 *
 * Before up, with options.recovery, comes exchange_peer_session: the session of the connection
 * before this one is to go on (false: there is none any more), or a new one begins.
 * exchange_peer_ready says that messages arrive now, as TRANSPORT_PEER_UP does; ERR_MEMORY: the
 * peer is to be disconnected. After away the session waits for the next connection (false: there is
 * none, or it is barren: connections have broken time and again before anything came through that
 * the peer may lack), after down it is over. */
bool exchange_peer_session(struct exchange *exchange, uint32_t node, bool resume);
int exchange_peer_ready(struct exchange *exchange, uint32_t node, struct error *error);
bool exchange_peer_away(struct exchange *exchange, uint32_t node);
bool exchange_peer_is_barren(const struct exchange *exchange, uint32_t node);
void exchange_peer_up(struct exchange *exchange, uint32_t node, uint64_t receive_token,
                      uint64_t send_token);
void exchange_peer_down(struct exchange *exchange, uint32_t node);

/* Take the segment (number, base, bytes and meeting are set by the caller) into the group, and
 * count it towards the pool's limit. It is given back with io->release_segment after
 * exchange_segment_close, or when the group closes, as soon as nothing writes to it. ERR_STATE: no
 * such group, or it has failed; ERR_MEMORY: over the limit; the caller keeps it. */
int exchange_segment_open(struct exchange *exchange, uint64_t job, uint32_t group,
                          struct exchange_segment *segment, struct error *error);
/* No further collective may name it. Unknown ones are ignored. */
void exchange_segment_close(struct exchange *exchange, uint64_t job, uint32_t group,
                            uint32_t segment);

/* One entry of a worker's ring. Nonsense is ERR_PROTOCOL or ERR_INVALID with the reason; the caller
 * then stops reading that ring. */
int exchange_submit(struct exchange *exchange, struct exchange_worker *worker,
                    const struct arena_submission *submission, uint64_t now_ns,
                    struct error *error);
/* A message of `bytes` in buffer->data. Takes the buffer. node may be TRANSPORT_NO_PEER: the token
 * tells. *from is who sent it, or TRANSPORT_NO_PEER. ERR_PROTOCOL: the peer is to be disconnected,
 * text says why; without one the message is dropped. */
int exchange_receive(struct exchange *exchange, uint32_t node, struct buffer *buffer,
                     uint32_t bytes, uint64_t now_ns, uint32_t *from, struct error *error);
void exchange_receive_returned(struct exchange *exchange, uint32_t node, struct buffer *buffer);
/* Receives still posted will not come back: the fabric is about to be closed. */
void exchange_abandon_receives(struct exchange *exchange);
void exchange_sent(struct exchange *exchange, struct exchange_send *send);
/* Fail the send's group: the message cannot be sent, although its peer is there; code says why.
 * exchange_sent follows. */
void exchange_send_failed(struct exchange *exchange, struct exchange_send *send, int code);
void exchange_reduced(struct exchange *exchange, struct reduce_task *task);

/* A round of the engine begins: calls that are told no time are made now. For still_ns before it
 * the engine did not run, though it had to. */
void exchange_time(struct exchange *exchange, uint64_t now_ns, uint64_t still_ns);
/* Issue what the calls above have made possible. To be called after each batch of them. */
void exchange_run(struct exchange *exchange);
/* Give `groups` groups at the most a turn of exchange_run: users take turns, and a group issues a
 * bounded number of chunks in one. Return whether there is more to do. */
bool exchange_run_some(struct exchange *exchange, uint32_t groups);
/* Look for late ranks and silent peers, and try again what memory was lacking for; call every
 * late_ns / 4 and every silence_ns / 8 or so, and exchange_run after it. */
void exchange_tick(struct exchange *exchange, uint64_t now_ns);
/* Emits ENGINE_LATE with the ranks of this node that have not submitted the sequence, or have
 * stopped to hand it over. */
void exchange_late_query(struct exchange *exchange, uint64_t job, uint32_t group,
                         uint64_t sequence);

/* Whether no collective is in progress. */
bool exchange_idle(const struct exchange *exchange);

/* Figures for the status. */
struct exchange_totals {
    uint64_t bytes_reduced;
    uint64_t collectives; /* completed, met ones too */
    uint64_t met_collectives;
    uint64_t dropped_messages;
    uint64_t slots;                          /* chunks in progress, both roles */
    uint64_t archived_bytes, archived_count; /* results that are kept for replays */
    uint32_t workers;
    uint32_t jobs;
};
void exchange_totals(const struct exchange *exchange, struct exchange_totals *totals);

/* Assert the invariants above; for tests. */
void exchange_check(const struct exchange *exchange);

#endif
