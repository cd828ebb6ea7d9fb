/* The data path's thread: one transport, the arenas of this node's workers, the reduce threads, and
 * the exchange (server/exchange/exchange.h), which decides everything and does no I/O.
 *
 * The control thread gives commands and takes events; both are queues, so no call blocks, and what
 * a command leads to is an event. Commands are carried out in order.
 */
#ifndef SERVER_ENGINE_ENGINE_H
#define SERVER_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/config/config.h"
#include "common/format/arena.h"
#include "common/memory/topology.h"
#include "common/transport/transport.h"
#include "server/engine/engine_event.h"

struct engine;

/* Opens the transport by config (provider, fabric.address, message size, peers) and starts the
 * threads, bound to the topology's cores when the config says so (NULL: not bound). The config, the
 * topology and the log must outlive the engine. */
int engine_start(struct engine **engine, const struct config *config,
                 const struct topology *topology, struct log *log, struct error *error);
/* Stop the threads and free everything; jobs still open are dropped. */
void engine_stop(struct engine *engine);

/* For the control thread's event loop: readable while engine_next_event has something. */
int engine_event_descriptor(const struct engine *engine);
/* NULL when there is none (and then the descriptor is clear). */
struct engine_event *engine_next_event(struct engine *engine);

const struct transport_info *engine_transport_info(const struct engine *engine);
/* What the sums use: "avx2". */
const char *engine_instruction_set(const struct engine *engine);
/* This node's fabric address for the hello between daemons. Constant after engine_start. */
void engine_fabric_address(const struct engine *engine, uint8_t address[TRANSPORT_ADDRESS_BYTES],
                           uint32_t *bytes);

/* Peers. receive_token: what this daemon gave the peer over the control connection, carried in
 * every message (first 8 bytes, little-endian) and in the connection request from it; send_token:
 * what the peer gave to us. */
void engine_peer_connect(struct engine *engine, uint32_t node, bool active, const uint8_t *address,
                         uint32_t address_bytes, const uint8_t receive_token[TRANSPORT_TOKEN_BYTES],
                         const uint8_t send_token[TRANSPORT_TOKEN_BYTES]);
void engine_peer_disconnect(struct engine *engine, uint32_t node);

/* Copies the roster. ENGINE_JOB_OPENED follows. */
void engine_job_open(struct engine *engine, const struct engine_job *job);
/* Drop everything of the job: slots, sends, groups, attached workers (their arenas are unmapped
 * once nothing touches them any more; no ENGINE_WORKER_DETACHED). Unknown jobs are ignored. */
void engine_job_close(struct engine *engine, uint64_t job);
/* Stop the job's collectives for good, keep its workers attached (they are told by the control
 * thread, and detach or close). */
void engine_job_fail(struct engine *engine, uint64_t job);

/* ranks: job ranks in group order. ENGINE_GROUP_OPENED follows. */
void engine_group_open(struct engine *engine, uint64_t job, uint32_t group, const uint32_t *ranks,
                       uint32_t rank_count);
/* Another daemon says that the group has failed: stop its collectives here too. No event. */
void engine_group_fail(struct engine *engine, uint64_t job, uint32_t group);
void engine_group_close(struct engine *engine, uint64_t job, uint32_t group);
/* A rank has left properly, having submitted `sequences` collectives of the group: later ones fail
 * with ERR_LOST on the others (ENGINE_GROUP_FAILED). */
void engine_rank_left(struct engine *engine, uint64_t job, uint32_t group, uint32_t rank,
                      uint64_t sequences);

/* Memory for results that the ranks of a group on this node share; `segment` is its number, unique
 * in the job here. Takes the mapping, which is writable here and nowhere else (engine unmaps, also
 * when it cannot be opened). ENGINE_SEGMENT_OPENED follows. */
void engine_segment_open(struct engine *engine, uint64_t job, uint32_t group, uint32_t segment,
                         uint8_t *base, uint64_t bytes);
/* Unmap it as soon as nothing writes to it; so do the ends of group and job. */
void engine_segment_close(struct engine *engine, uint64_t job, uint32_t group, uint32_t segment);

/* A worker's arena. Takes the mapping (engine unmaps) and both descriptors. The job must be open.
 * submission_doorbell: an eventfd that the worker rings; completion_doorbell: a Unix stream socket
 * that the engine sends a byte to. */
void engine_worker_attach(struct engine *engine, uint64_t job, uint32_t rank,
                          const struct arena *arena, int submission_doorbell,
                          int completion_doorbell);
/* Read what is in its ring, then let go of it. ENGINE_WORKER_DETACHED follows. */
void engine_worker_detach(struct engine *engine, uint64_t job, uint32_t rank);

/* Which ranks of this node have not submitted the sequence yet? ENGINE_LATE with nodes empty
 * follows (also when there are none). */
void engine_late_query(struct engine *engine, uint64_t job, uint32_t group, uint64_t sequence);

/* Ask to be told (ENGINE_IDLE) at the first moment when no collective is in progress here. */
void engine_drain(struct engine *engine);

/* How often the engine's thread has gone round so far. Asking wakes it, so that a thread which is
 * not stuck has gone round once more soon after. */
uint64_t engine_turns(struct engine *engine);

/* Take a trace of trace->job; takes the trace. ENGINE_TRACED follows and gives it back: after
 * engine_trace_stop, when the job ends before, or at once when it cannot be taken. */
void engine_trace_start(struct engine *engine, struct trace *trace);
/* number: the trace's. Nothing, when it is over. */
void engine_trace_stop(struct engine *engine, uint32_t number);

/* What the status shows: a picture that the engine makes ten times a second. It holds the lock to
 * put the next one in place only, the caller to copy. */
struct engine_peer_status {
    uint32_t node;
    bool up;
    uint64_t bytes_in, bytes_out;
    uint64_t messages_in, messages_out;
};
struct engine_status {
    uint64_t now_ns;
    uint64_t bytes_in, bytes_out; /* over the fabric */
    uint64_t bytes_reduced;       /* input bytes of reductions */
    uint64_t collectives;         /* completed */
    uint64_t dropped_messages;    /* of unknown jobs or groups */
    uint64_t buffer_bytes_used, buffer_bytes_allocated, buffer_bytes_reserved, buffer_bytes_limit;
    uint64_t slots;
    uint32_t workers;
    struct engine_job_status *jobs;
    uint32_t job_count;
    struct engine_peer_status *peers; /* [roster size]; own entry zero */
    uint32_t peer_count;
};
int engine_status(struct engine *engine, struct engine_status *status);
void engine_status_clear(struct engine_status *status);

#endif
