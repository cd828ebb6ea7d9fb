/* Declarations that the files of server/engine share, and nobody else includes. Each layer may call
 * those below it, the exchange, the transport and common/, and none above. From the top:
 *
 * - engine.c: starts and stops; what the control thread calls.
 * - engine_loop.c: the engine's thread.
 * - engine_dispatch.c: carries commands out.
 * - engine_rings.c: reads workers' rings.
 * - engine_io.c: the exchange's table, on the transport and the arenas; what the transport says.
 * - engine_peer.c: the end of a peer's connection.
 * - engine_send.c: messages on their way to the fabric.
 * - engine_protect.c: messages that are sealed and opened.
 * - engine_share.c: the workers by their users.
 * - engine_release.c: giving large memory back.
 * - engine_status.c: the picture that the status shows.
 * - engine_queue.c: commands and events between the two threads.
 * - reducer.c: threads that add and copy. */
#ifndef SERVER_ENGINE_ENGINE_PRIVATE_H
#define SERVER_ENGINE_ENGINE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/auth/seal.h"
#include "common/base/bits.h"
#include "common/base/clock.h"
#include "common/config/config.h"
#include "common/log/log.h"
#include "common/log/log_throttle.h"
#include "common/memory/slab.h"
#include "common/reduce/reduce.h"
#include "common/transport/transport.h"
#include "server/engine/engine_status.h"
#include "server/engine/threads/engine_queue.h"
#include "server/engine/threads/reducer.h"
#include "server/engine/threads/run_delay.h"
#include "server/exchange/exchange.h"

/* The most time that one kind of work takes of a round before the others have their turn. */
#define ENGINE_SLICE_NS (300 * 1000ull)

/* One kind of work in one round: how much of it is done, and when its time is over. Reading the
 * clock takes time, so it is asked only once in several steps. */
struct engine_slice {
    uint64_t end_ns; /* 0: the clock has not been asked yet */
    uint32_t steps;
    bool over;
};

/* A user's workers. */
struct engine_share {
    struct engine_share *next, *prev;
    uint32_t user;
    struct engine_worker *workers; /* a circle; whose turn it is first */
};

struct engine_worker {
    struct exchange_worker exchange; /* first: a worker is known by either */
    struct engine_worker *next;
    struct engine_worker *next_shared, *previous_shared; /* in the share */
    struct engine_share *share;
    uint64_t job;
    uint32_t number;                 /* of the control thread */
    struct engine_worker *next_ring; /* to be told about completions */
    int submission_doorbell;
    int completion_doorbell;
    bool to_ring;
    bool stopped; /* its ring made no sense, or it has left: not read any more */
    /* Once its ring has been read up to here it is detached, or its part of a trace is complete. */
    bool leaving, trace_unread;
    uint32_t leave_index, trace_index;
};

/* Sealed messages that are under way on this side, in the order of their sequences. */
struct protect_queue {
    struct protect_message *first;
    struct protect_message *last;
};

/* Sends that the transport had no room for, and per-peer figures. */
struct engine_peer {
    struct exchange_send *backlog;
    struct exchange_send **backlog_end;
    bool up;
    bool connected;      /* from the command to connect until it is dropped */
    uint32_t connection; /* counts them: receives of an older one carry another number */
    uint64_t connect_ns; /* when it was told to connect */
    uint32_t number;     /* of the connection, as the control thread counts them */
    int unsendable;      /* a message has a number and could not be sent, for this: the connection
                          * ends with the round, and the next one has it; 0: none */
    char address[TRANSPORT_NAME_BYTES]; /* of its end of the fabric link, readable */
    uint64_t bytes_in, bytes_out;
    uint64_t messages_in, messages_out;
    struct engine_link *link;     /* the keys of the connection; NULL: messages are in the clear */
    uint64_t receive_token;       /* of the connection, as a number */
    struct protect_queue sealing; /* to the peer, not posted yet */
    struct protect_queue opening; /* from the peer, not delivered yet */
    uint64_t refused[SEAL_REFUSALS]; /* messages from it, by reason */
    uint64_t unsent;                 /* messages to it for which the connection had no keys */
};

/* The thread that gives large memory back. */
struct engine_releaser {
    pthread_t thread;
    bool started; /* else memory is given back at once */
    pthread_mutex_t lock;
    pthread_cond_t given;
    struct engine_release *first; /* from here on under the lock */
    bool stopping;
};

struct engine {
    const struct config *config;
    struct log *log;
    struct log_throttle stray_lines; /* about messages of strangers */
    struct log_throttle
        refused_lines; /* about messages that have a peer's token, and do not open */
    const char *instruction_set;
    struct transport *transport;
    struct buffer_pool *pool;
    struct exchange *exchange;
    struct reducer *reducer;
    struct engine_queue commands;
    struct engine_queue events;
    struct engine_releaser releaser;
    struct engine_peer *peers; /* [server_count] */
    const char **node_names;   /* [server_count], from the config */
    uint32_t node_count;
    int poll_descriptor; /* epoll: transport, commands, reducer, doorbells */
    bool waits_in_ms;    /* there is no epoll_pwait2 */
    int reduce_descriptor;
    uint8_t address[TRANSPORT_ADDRESS_BYTES];
    uint32_t address_bytes;

    struct engine_worker *workers;
    struct engine_share *shares;
    uint32_t leaving;      /* workers that are */
    uint32_t trace_unread; /* workers whose part of a trace that is to end is not complete */
    struct engine_worker *to_ring;
    uint64_t *moving;           /* a bit for each peer: some may be, or its sealing or opening */
    uint32_t unsendable;        /* peers with `unsendable` set */
    struct exchange_send *lost; /* sends to peers that are not there, to be given back */
    bool draining;
    bool stopping;
    uint64_t next_tick_ns;
    uint64_t due_ns;        /* when the next round has to begin at the latest; 0: none has been */
    struct run_delay delay; /* of the thread */
    uint64_t still_ns;      /* since the last tick, by which rounds began too late */
    _Atomic uint64_t turns; /* of its loop; engine_turns reads it */
    uint64_t stop_ns;       /* how long engine_stop lets operations come back; tests shorten it */
    uint64_t receives_posted;
    uint64_t sends_posted;
    uint32_t seal_bytes;          /* that a sealed message is longer; 0: none is sealed */
    uint32_t links;               /* peers with one */
    struct slab protect_messages; /* engine_protect.c's */
    uint32_t protect_bytes;       /* that the engine's thread may seal and open in this round */
    bool protect_done;            /* a thread has sealed or opened one since it was looked */
    struct buffer *aside;         /* free, for sealed messages alone; see engine_protect_free */
    uint64_t aside_bytes;         /* with those in use */

    pthread_t thread;
    bool thread_started;
    pthread_mutex_t status_lock;
    struct engine_status status; /* the last picture */
};

/* Another step of the slice is done; the clock is asked every so many. */
static inline void engine_slice_step(struct engine_slice *slice, uint32_t steps_a_look)
{
    if (++slice->steps % steps_a_look != 0)
        return;
    uint64_t now_ns = clock_now_ns();
    if (slice->end_ns == 0)
        slice->end_ns = now_ns + ENGINE_SLICE_NS;
    slice->over = now_ns >= slice->end_ns;
}

/* --- engine_status.c: may call the exchange */
void engine_update_status(struct engine *engine, uint64_t now_ns);

/* --- engine_release.c: may call the queues */
int engine_release_start(struct engine *engine, struct error *error);
/* All has been given back. */
void engine_release_stop(struct engine *engine);
/* Unmap the memory, then send the event, which may be NULL: later, where that takes long. */
void engine_release(struct engine *engine, void *base, uint64_t bytes, struct engine_event *event);

/* --- engine_share.c: may call the exchange */
/* The worker has been attached to its job. ERR_MEMORY. */
int engine_share_add(struct engine *engine, struct engine_worker *worker, struct error *error);
/* Take the worker out of its user's share; nothing waits for its ring any more. */
void engine_share_remove(struct engine *engine, struct engine_worker *worker);

/* --- engine_protect.c: may call the reducer, the exchange */
/* Before and after all others; at the end no message is under way. */
void engine_protect_init(struct engine *engine);
void engine_protect_clear(struct engine *engine);
/* A round of the engine's thread begins: it may seal and open some messages itself. */
void engine_protect_round(struct engine *engine);
/* Give the peer the command's keys, if it has any. ordered: its messages come in the order in which
 * they were sent. ERR_STATE: one side seals, and the other does not; ERR_MEMORY, ERR_SYSTEM. */
int engine_protect_begin(struct engine *engine, const struct engine_peer_connect *peer,
                         bool ordered, struct error *error);
/* The connection is over: what is under way comes back to the exchange, unsent or unread; what a
 * thread works on does so when it is done. */
void engine_protect_end(struct engine *engine, uint32_t node);
/* A task with `run` is done. */
void engine_protect_over(struct engine *engine, struct reduce_task *task);
/* The transport has stopped: buffers that were set aside are the pool's again. */
void engine_protect_release(struct engine *engine);
/* Begin to seal the message, as the next to its peer. ERR_AGAIN: as many as may be are under way,
 * or as there is memory for; ERR_MEMORY: there is none for a single one. */
int engine_protect_seal(struct engine *engine, struct exchange_send *send);
/* The oldest to the peer that is not posted, if it is sealed. One that cannot be sealed now stays
 * the oldest, since its sequence is taken, and is tried again with every look. */
struct exchange_send *engine_protect_sealed(struct engine *engine, uint32_t node);
/* Take the send, which has been posted, from the queue. */
void engine_protect_posted(struct engine *engine, struct exchange_send *send);
/* Note that the oldest to the node could not be posted now, and why (code); it stays the oldest. */
void engine_protect_unposted(struct engine *engine, uint32_t node, int code);
/* Return the sealed message to post in place of the send's header and payload, and its size. NULL:
 * post those. */
const struct buffer *engine_protect_bytes(const struct exchange_send *send, uint32_t *bytes);
/* The send is over. read: the fabric may still read what was sealed, and deliver it. Another
 * message would be opened in that buffer, so it is set aside, for sealed ones alone, until the
 * transport stops. */
void engine_protect_free(struct engine *engine, struct exchange_send *send, bool read);
/* Begin to open a message of the peer, which has keys; takes the buffer. ERR_PROTOCOL with the
 * refusal, and ERR_MEMORY: the caller keeps it. */
int engine_protect_open(struct engine *engine, uint32_t node, struct buffer *buffer, uint32_t bytes,
                        enum seal_refusal *refusal);
/* The oldest from the peer that is not delivered, if the work on it is done: the caller's, with its
 * bytes on the wire. *code: 0, ERR_PROTOCOL with the refusal, or ERR_SYSTEM. One for which there is
 * no memory stays the oldest, and is tried again with every look. */
struct buffer *engine_protect_opened(struct engine *engine, uint32_t node, uint32_t *bytes,
                                     int *code, enum seal_refusal *refusal);
/* Whether a message that is refused so may be a stranger's, who has but heard the token. */
bool engine_protect_is_stranger(const struct engine *engine, uint32_t node,
                                enum seal_refusal refusal);
/* Once a tick, before and after a look at what was to be sealed, posted and opened. check: why the
 * connection cannot go on, or false: for want of memory for half of silence_ns, or because of a
 * message that has not come for ten times that. */
void engine_protect_retry(struct engine *engine, uint32_t node);
bool engine_protect_check(struct engine *engine, uint32_t node, uint64_t now_ns,
                          uint64_t silence_ns, char *text, size_t room);
/* Find the peer with keys that has given out the token in the message, where the fabric does not
 * tell from whom the message is. TRANSPORT_NO_PEER: none. */
uint32_t engine_protect_sender(const struct engine *engine, const struct buffer *buffer,
                               uint32_t bytes);

/* --- engine_send.c: may call engine_protect.c, the exchange */
void engine_send(struct engine *engine, struct exchange_send *send);
/* Send what waits for room with the transport, or to be sealed. */
void engine_flush_backlog(struct engine *engine, uint32_t node);
/* The connection is over: so are its messages. */
void engine_drop_backlog(struct engine *engine, uint32_t node);
/* Give sends to peers that are not there back to the exchange; whether there were any. */
bool engine_return_lost(struct engine *engine);

/* --- engine_peer.c: may call engine_send.c and what is below it */
void engine_peer_event(struct engine *engine, enum engine_event_type type, uint32_t node, int code,
                       const char *text);
/* The peer is not there any more; nobody is told. recovers: the connection alone has ended, and
 * what the peer may lack is kept for the next one where recovery is on, which is returned. */
bool engine_drop_peer(struct engine *engine, uint32_t node, bool recovers);
/* End its connection, and tell the control thread why. */
void engine_end_peer(struct engine *engine, uint32_t node, const char *text, bool recovers);
/* End it, with a text that begins with `how` and then names the link. */
void engine_peer_lost(struct engine *engine, uint32_t node, const char *how, bool recovers);
/* This ("no sign of life") has been lacking of it for engine_silence_ns. */
void engine_peer_silent(struct engine *engine, uint32_t node, const char *what);
/* How long a peer may be silent on the fabric while it is waited for. */
uint64_t engine_silence_ns(const struct engine *engine);
/* End the connections on which a message could not be sent that has to come before later ones; once
 * a round. */
void engine_end_unsendable(struct engine *engine);
/* End the connections that the fabric has not made in time. */
void engine_check_connecting(struct engine *engine, uint64_t now_ns);

/* --- engine_io.c: may call engine_peer.c, engine_share.c, the queues, the reducer, the exchange */
struct exchange_io engine_exchange_io(struct engine *engine);
struct buffer_pool_io engine_pool_io(struct engine *engine);
bool engine_poll_transport(struct engine *engine, uint64_t now_ns);
/* Post and deliver what the threads have sealed and opened; once a round. */
void engine_move_protected(struct engine *engine);
/* Once a tick: what memory was lacking for is tried again, or its connection ends. */
void engine_check_protected(struct engine *engine, uint64_t now_ns);
void engine_ring_workers(struct engine *engine);
/* Send an ENGINE_WORKER_FAILED about the worker; takes the event. */
void engine_report_worker(struct engine *engine, struct engine_worker *worker,
                          struct engine_event *event);

/* --- engine_rings.c: may call engine_io.c and what is below it */
/* Its ring is not read any more: the event says why. */
void engine_fail_worker(struct engine *engine, struct engine_worker *worker,
                        const struct error *error);
/* A slice's worth of each user's entries; whether there was one. */
bool engine_read_workers(struct engine *engine, uint64_t now_ns);
/* Detach the worker when what lies in its ring now has been read. */
void engine_leave(struct engine *engine, struct engine_worker *worker);
/* End the trace when what lies in the rings of its job now has been read; or that of the job at
 * once, if that was asked for. */
void engine_stop_trace(struct engine *engine, uint32_t number);
void engine_stop_trace_now(struct engine *engine, uint64_t job);
void engine_check_trace(struct engine *engine);

/* --- engine_dispatch.c: may call engine_rings.c and what is below it */
/* A slice's worth of commands; whether there was one. */
bool engine_take_commands(struct engine *engine);

/* --- engine_loop.c: may call all of the above */
void *engine_main(void *argument);
bool engine_take_reduced(struct engine *engine);

#endif
