/* Events that the data path (the exchange and the engine's thread) tells the control thread, a
 * job's roster as the data path takes it, and a job's figures as the status shows them. These are
 * plain structs: the exchange and the coordinator, which do no I/O, use them too. */
#ifndef SERVER_COMMANDS_ENGINE_EVENT_H
#define SERVER_COMMANDS_ENGINE_EVENT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/config/config.h"
#include "server/commands/trace.h"
#include "server/waits/overlap.h"
#include "server/waits/waits.h"

/* After each: the fields that count. Commands are those of server/commands/engine_command.h. */
enum engine_event_type {
    /* node, connection. The fabric reaches it. */
    ENGINE_PEER_UP = 1,
    /* node, connection, code, text. The fabric has lost it. code ERR_DISCONNECTED: the connection
     * alone, and the next one can go on where it has ended; 0: it cannot. */
    ENGINE_PEER_DOWN,
    /* job, code, text. The answer to COMMAND_JOB_OPEN. */
    ENGINE_JOB_OPENED,
    /* job, group, code, text. The answer to COMMAND_GROUP_OPEN. */
    ENGINE_GROUP_OPENED,
    /* job, group, code, text. A collective has failed: ranks disagree, or a rank has departed. The
     * group takes no further collectives, and every worker of it on this node is to be told. */
    ENGINE_GROUP_FAILED,
    /* job, rank, code (0: nonsense in its arena), text. The worker is to be disconnected. */
    ENGINE_WORKER_FAILED,
    /* job, rank, positions: how far it has got in every group that it is in. The answer to
     * COMMAND_WORKER_DETACH: its ring has been read to the end. */
    ENGINE_WORKER_DETACHED,
    /* job, rank, worker. Nothing that the worker was attached with is mapped or open any more. */
    ENGINE_WORKER_RELEASED,
    /* job, group, sequence, met, ranks: those of this node that have not reached the collective
     * which others have. nodes: other nodes that have sent nothing of it yet. */
    ENGINE_LATE,
    /* job, group, segment, code, text. The answer to COMMAND_SEGMENT_OPEN. */
    ENGINE_SEGMENT_OPENED,
    /* No collective is in progress. The answer to COMMAND_DRAIN. */
    ENGINE_IDLE,
    /* job, trace. The trace is over; or, with code and text, it could not be taken. */
    ENGINE_TRACED,
};

struct engine_position {
    uint32_t group;
    uint64_t
        sequences; /* how many collectives of the group the rank has submitted, all handed over */
};

/* One event; its type says which fields count, the others are zero. Its arrays are its own, and
 * engine_event_free frees them with it. */
struct engine_event {
    void *next; /* first: in a queue */
    enum engine_event_type type;
    uint32_t node;
    uint32_t connection; /* as in struct engine_peer_connect */
    uint64_t job;
    uint32_t group;
    uint32_t segment;
    uint64_t sequence;
    uint64_t met;    /* collectives of the group that its ranks did at their place */
    uint32_t rank;   /* of the job */
    uint32_t worker; /* as in struct engine_attach */
    int code;
    char text[ERROR_TEXT_BYTES];
    struct engine_position *positions;
    uint32_t position_count;
    uint32_t *ranks; /* job ranks */
    uint32_t rank_count;
    uint32_t *nodes;
    uint32_t node_count;
    struct trace *trace; /* the event's too, unless whoever takes it sets this to NULL */
};

/* A zeroed event. Aborts the process when there is no memory for it: a daemon that cannot say what
 * happened cannot go on. */
struct engine_event *engine_event_create(enum engine_event_type type);
void engine_event_free(struct engine_event *event);

/* A job's roster. Every daemon that has ranks of the job or owns shards of it opens the job, and
 * group 0, which is all ranks, with it. The arrays belong to whoever made the struct. */
struct engine_job {
    bool no_recovery; /* it fails where a connection breaks: nothing of it is kept */
    uint64_t job;
    uint64_t lineage; /* the id of its first generation; 0: this is the first */
    char name[CONFIG_NAME_BYTES];
    uint32_t user;       /* whose job it is: users share the engine's time */
    uint32_t generation; /* of its membership, in each message; from 1 (0 is taken as 1) */
    uint32_t world_size;
    const uint32_t *rank_nodes; /* [world_size]: node number of each rank */
    uint32_t server_count;
    const uint32_t *server_nodes;   /* [server_count]: node numbers, ascending */
    const uint32_t *server_weights; /* [server_count], each at least 1 */
};

/* A job's figures, as the status shows them. */
struct engine_job_status {
    uint64_t job;
    uint64_t bytes_submitted; /* by workers of this node */
    uint64_t collectives;     /* completed on this node */
    uint64_t met_collectives; /* of these, what the ranks of this node did without the daemon */
    uint64_t met_bytes;       /* of those submitted, that of the collectives that met */
    uint64_t slots;           /* chunks in progress */
    uint64_t kept_bytes;      /* memory of this daemon that its requests take */
    uint64_t archived_bytes;  /* that its results take which are kept for replays, */
    uint64_t archived_first;  /* of which this is the least number since the job began, and */
    uint64_t archived_end;    /* this one more than the greatest; the same: there are none */
    uint32_t groups;
    uint32_t slowest_rank;  /* the rank of this node that came last most often; UINT32_MAX: none */
    uint64_t slowest_times; /* how often it came last */
    bool failed;
    struct waits_figures waits;
    struct overlap_figures overlap;
};

#endif
