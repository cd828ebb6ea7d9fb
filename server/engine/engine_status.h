/* The engine's figures, for the status. */
#ifndef SERVER_ENGINE_ENGINE_STATUS_H
#define SERVER_ENGINE_ENGINE_STATUS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/auth/seal.h"
#include "server/commands/engine_event.h"

struct engine;

/* The figures that the status shows: a picture that the engine makes ten times a second. The engine
 * holds the lock only to show the next picture, the caller only to copy it. */
struct engine_peer_status {
    uint32_t node;
    bool up;
    bool sealed;                     /* its connection has keys */
    uint64_t refused[SEAL_REFUSALS]; /* messages from it that were refused, by reason */
    uint64_t unsent;                 /* to it, for which its connection had no keys */
    uint64_t bytes_in, bytes_out;
    uint64_t messages_in, messages_out;
};
struct engine_status {
    uint64_t now_ns;
    uint64_t bytes_in, bytes_out; /* over the fabric */
    uint64_t bytes_reduced;       /* input bytes of reductions */
    uint64_t collectives;         /* completed */
    uint64_t met_collectives;     /* of these, what ranks of this node did without the daemon */
    uint64_t dropped_messages;    /* of unknown jobs or groups */
    uint64_t buffer_bytes_used, buffer_bytes_allocated, buffer_bytes_reserved, buffer_bytes_limit;
    uint64_t buffer_bytes_set_aside;         /* of the used, those that the fabric may still read */
    uint64_t archived_bytes, archived_count; /* results kept for replays */
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
