/* Commands to the engine. One struct serves all verbs: whoever has the verb (the coordinator, a
 * connection to a peer, a trace) fills it in, everybody between passes it on as it is, and one
 * switch (server/engine/engine_dispatch.c) carries it out. Commands are carried out in the order in
 * which they were given, and the outcome of one is an event (server/commands/engine_event.h).
 *
 * Memory in a command is one of two things. Memory that is lent stays the giver's, and is copied
 * before the call that takes the command returns. Memory that is handed over is the engine's from
 * that call on, whatever becomes of the command. Each member says which. Numbers are neither. */
#ifndef SERVER_COMMANDS_ENGINE_COMMAND_H
#define SERVER_COMMANDS_ENGINE_COMMAND_H

#include <stdbool.h>
#include <stdint.h>

#include "common/format/arena.h"
#include "common/transport/transport.h"
#include "server/commands/engine_event.h"

/* Jobs, groups, ranks and segments that the engine does not know are ignored, unless an event
 * answers. */
enum engine_command_kind {
    /* End the engine's thread; engine_stop gives it. */
    COMMAND_STOP = 1,
    /* admit_ms. A peer will be told soon that it may connect: for so long, the fabric's port
     * answers those whom nobody expects yet. No event. */
    COMMAND_PEER_ADMIT,
    /* peer_connect. Connect the fabric with the peer, or expect it. ENGINE_PEER_UP or
     * ENGINE_PEER_DOWN follows. */
    COMMAND_PEER_CONNECT,
    /* peer, recovers. */
    COMMAND_PEER_DISCONNECT,
    /* job, roster. Group 0 opens with it. ENGINE_JOB_OPENED follows. */
    COMMAND_JOB_OPEN,
    /* job. Drop all of it: slots, sends, groups, segments and attached workers, whose arenas are
     * unmapped once nothing touches them; there is no ENGINE_WORKER_DETACHED. */
    COMMAND_JOB_CLOSE,
    /* job. Stop its collectives for good, and keep its workers attached: the control thread tells
     * them, and they detach or close. */
    COMMAND_JOB_FAIL,
    /* job, group, members. ENGINE_GROUP_OPENED follows. */
    COMMAND_GROUP_OPEN,
    /* job, group. */
    COMMAND_GROUP_CLOSE,
    /* job, group. Another daemon says that the group has failed: stop its collectives here too. No
     * event. */
    COMMAND_GROUP_FAIL,
    /* job, group, departed. A rank has left properly: collectives of the group beyond those that it
     * has submitted fail with ERR_LOST on the other ranks (ENGINE_GROUP_FAILED). */
    COMMAND_RANK_DEPARTED,
    /* job, group, segment. ENGINE_SEGMENT_OPENED follows. */
    COMMAND_SEGMENT_OPEN,
    /* job, group, segment.number. Unmap it as soon as nothing writes to it; the ends of the group
     * and of the job do so too. */
    COMMAND_SEGMENT_CLOSE,
    /* job, attach. The job must be open. ENGINE_WORKER_FAILED when it cannot be. */
    COMMAND_WORKER_ATTACH,
    /* job, rank. Read what is in the worker's ring, then let go of it. ENGINE_WORKER_DETACHED
     * follows. */
    COMMAND_WORKER_DETACH,
    /* job, group, sequence. Tell which ranks of this node have not submitted that collective yet.
     * ENGINE_LATE follows, with nodes empty, also when there are none. */
    COMMAND_LATE_QUERY,
    /* Tell (ENGINE_IDLE) the first moment at which no collective is in progress here. */
    COMMAND_DRAIN,
    /* trace. Take a trace of trace->job. ENGINE_TRACED follows and gives it back: after
     * COMMAND_TRACE_STOP, when the job ends before, or at once when it cannot be taken. */
    COMMAND_TRACE_START,
    /* trace_number. Nothing when that trace is over. */
    COMMAND_TRACE_STOP,
};

#define ENGINE_SEAL_KEY_BYTES 32

/* receive_token: the token that this daemon gave the peer over the control connection. The token is
 * in every message from the peer (first 8 bytes, little-endian) and in its connection request.
 * send_token: the token that the peer gave to this daemon. seal_key and open_key, only where
 * `sealed`: the keys that seal the messages to the peer and open those from it; they belong to this
 * connection, and nothing else uses them. */
struct engine_peer_connect {
    uint32_t node;
    uint32_t connection; /* the control thread's number of it; its events carry the same */
    bool active;         /* this side connects, the other expects it */
    bool resumes;        /* where the last connection has ended, see exchange_peer_session */
    uint8_t address[TRANSPORT_ADDRESS_BYTES];
    uint32_t address_bytes; /* TRANSPORT_ADDRESS_BYTES at most */
    uint8_t receive_token[TRANSPORT_TOKEN_BYTES];
    uint8_t send_token[TRANSPORT_TOKEN_BYTES];
    bool sealed;
    uint8_t seal_key[ENGINE_SEAL_KEY_BYTES];
    uint8_t open_key[ENGINE_SEAL_KEY_BYTES];
};

/* Memory for results that the ranks of a group on this node share. */
struct engine_segment {
    uint32_t number; /* unique in the job on this node */
    uint8_t *base;   /* handed over: a mapping, writable here and nowhere else */
    uint64_t bytes;
    bool meeting; /* a place (common/format/place.h), in which the engine only reads */
};

/* A worker's arena and doorbells. Whoever asks for the attaching knows the worker by its number
 * alone; the control thread, which holds the three, puts them in on the way. */
struct engine_attach {
    uint32_t rank;
    uint32_t worker;         /* the control thread's number for its connection */
    struct arena arena;      /* handed over: the mapping */
    int submission_doorbell; /* handed over: an eventfd that the worker rings */
    int completion_doorbell; /* handed over: the end of a socket pair that the engine rings */
};

struct engine_command {
    enum engine_command_kind kind;
    uint32_t group;
    uint64_t job;
    union {
        struct engine_peer_connect peer_connect;
        uint32_t admit_ms;
        struct {
            uint32_t peer;
            bool recovers; /* the next connection goes on where this one has ended */
        };
        const struct engine_job *roster; /* lent, with its arrays */
        struct {
            const uint32_t *ranks; /* lent: [count], ranks of the job in group order */
            uint32_t count;
        } members;
        struct {
            uint32_t rank;
            uint64_t sequences; /* how many collectives of the group it has submitted */
        } departed;
        struct engine_segment segment;
        struct engine_attach attach;
        uint32_t rank;
        uint64_t sequence;
        struct trace *trace; /* handed over */
        uint32_t trace_number;
    };
};

/* A command on its way: what is lent has been copied. It is freed with free(); what was handed over
 * is not freed with it, so it must have been carried out. */
struct engine_command_item {
    void *next; /* first: in a queue */
    struct engine_command command;
    struct engine_job roster; /* COMMAND_JOB_OPEN */
    uint32_t numbers[];       /* the arrays of the roster, or the ranks of a group */
};

/* Return a copy of the command as an item, or NULL if there is no memory for the list of
 * COMMAND_JOB_OPEN or COMMAND_GROUP_OPEN. Without memory for another command the process aborts:
 * those are small, and one that got lost would leave the two threads with different jobs. */
struct engine_command_item *engine_command_copy(const struct engine_command *command);

#endif
