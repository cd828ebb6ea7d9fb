/* What the files of server/engine share, and nobody else includes. Each layer may call those below
 * it, the exchange, the transport and common/, and none above. From the top:
 *
 * - engine.c: starts and stops; what the control thread calls.
 * - engine_loop.c: the engine's thread.
 * - engine_dispatch.c: carries commands out, reads workers' rings.
 * - engine_io.c: the exchange's table, on the transport and the arenas; what the transport says.
 * - engine_status.c: the picture that the status shows.
 * - engine_queue.c: commands and events between the two threads.
 * - reducer.c: threads that add and copy. */
#ifndef SERVER_ENGINE_ENGINE_PRIVATE_H
#define SERVER_ENGINE_ENGINE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/base/log.h"
#include "common/config/config.h"
#include "common/reduce/reduce.h"
#include "common/transport/transport.h"
#include "server/engine/engine_queue.h"
#include "server/engine/engine_status.h"
#include "server/engine/reducer.h"
#include "server/exchange/exchange.h"

struct engine_worker {
    struct exchange_worker exchange; /* first: a worker is known by either */
    struct engine_worker *next;
    uint64_t job;
    struct engine_worker *next_ring; /* to be told about completions */
    int submission_doorbell;
    int completion_doorbell;
    bool to_ring;
    bool stopped; /* its ring made no sense, or it has left: not read any more */
};

/* Sends that the transport had no room for, and per-peer figures. */
struct engine_peer {
    struct exchange_send *backlog;
    struct exchange_send **backlog_end;
    bool up;
    bool connected;      /* from the command to connect until it is dropped */
    uint32_t connection; /* counts them: receives of an older one carry another number */
    uint64_t bytes_in, bytes_out;
    uint64_t messages_in, messages_out;
};

struct engine {
    const struct config *config;
    struct log *log;
    const char *instruction_set;
    struct transport *transport;
    struct buffer_pool *pool;
    struct exchange *exchange;
    struct reducer *reducer;
    struct engine_queue commands;
    struct engine_queue events;
    struct engine_peer *peers; /* [server_count] */
    const char **node_names;   /* [server_count], from the config */
    uint32_t node_count;
    int poll_descriptor; /* epoll: transport, commands, reducer, doorbells */
    bool waits_in_ms;    /* there is no epoll_pwait2 */
    int reduce_descriptor;
    uint8_t address[TRANSPORT_ADDRESS_BYTES];
    uint32_t address_bytes;

    struct engine_worker *workers;
    struct engine_worker *to_ring;
    struct exchange_send *lost; /* sends to peers that are not there, to be given back */
    bool draining;
    bool stopping;
    uint64_t next_tick_ns;
    _Atomic uint64_t turns; /* of its loop; engine_turns reads it */
    uint64_t stop_ns;       /* how long engine_stop lets operations come back; tests shorten it */
    uint64_t receives_posted;
    uint64_t sends_posted;

    pthread_t thread;
    bool thread_started;
    pthread_mutex_t status_lock;
    struct engine_status status; /* the last picture */
};

/* --- engine_status.c: may call the exchange */
void engine_update_status(struct engine *engine, uint64_t now_ns);

/* --- engine_io.c: may call the queues, the reducer, the exchange */
struct exchange_io engine_exchange_io(struct engine *engine);
struct buffer_pool_io engine_pool_io(struct engine *engine);
bool engine_poll_transport(struct engine *engine, uint64_t now_ns);
bool engine_return_lost(struct engine *engine);
void engine_ring_workers(struct engine *engine);
/* Send an ENGINE_WORKER_FAILED about the worker; takes the event. */
void engine_report_worker(struct engine *engine, struct engine_worker *worker,
                          struct engine_event *event);
void engine_drop_peer(struct engine *engine, uint32_t node);

/* --- engine_dispatch.c: may call engine_io.c and what is below it */
bool engine_take_commands(struct engine *engine);
/* Up to `most` entries of its ring; whether there was one. */
bool engine_read_worker(struct engine *engine, struct engine_worker *worker, uint32_t most,
                        uint64_t now_ns);

/* --- engine_loop.c: may call all of the above */
void *engine_main(void *argument);
bool engine_take_reduced(struct engine *engine);

#endif
