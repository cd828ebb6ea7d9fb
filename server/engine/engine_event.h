/* What the data path tells the control thread, and a job's roster as the data path needs it. */
#ifndef SERVER_ENGINE_ENGINE_EVENT_H
#define SERVER_ENGINE_ENGINE_EVENT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/config/config.h"
#include "server/exchange/ground/trace.h"

enum engine_event_type {
    ENGINE_PEER_UP = 1,   /* node: the fabric reaches it */
    ENGINE_PEER_DOWN,     /* node, text: the fabric lost it */
    ENGINE_JOB_OPENED,    /* job, code, text: answer to engine_job_open */
    ENGINE_GROUP_OPENED,  /* job, group, code, text: answer to engine_group_open */
    ENGINE_GROUP_FAILED,  /* job, group, code, text: a collective failed (ranks disagree, a rank had
                           * left); every worker of the group on this node is to be told; the group
                           * takes no further collectives */
    ENGINE_WORKER_FAILED, /* job, rank, code (0: nonsense in its arena), text; disconnect it */
    ENGINE_WORKER_DETACHED, /* job, rank: its ring has been read to the end. positions: how far it
                             * got in every group that it is in */
    ENGINE_LATE,            /* job, group, sequence: ranks[] of this node have not reached it while
                             * others have; nodes[]: other nodes that have sent nothing yet */
    ENGINE_SEGMENT_OPENED,  /* job, group, segment, code, text: answer to engine_segment_open */
    ENGINE_IDLE,            /* answer to engine_drain: no collective is in progress */
    ENGINE_TRACED, /* job, trace: it is over; or code, text, trace: it could not be taken */
};

struct engine_position {
    uint32_t group;
    uint64_t sequences; /* how many collectives of it the rank has submitted and handed over */
};

/* Freed with engine_event_free, arrays and all. */
struct engine_event {
    void *next; /* first: in a queue */
    enum engine_event_type type;
    uint32_t node;
    uint64_t job;
    uint32_t group;
    uint32_t segment;
    uint64_t sequence;
    uint32_t rank; /* of the job */
    int code;
    char text[ERROR_TEXT_BYTES];
    struct engine_position *positions;
    uint32_t position_count;
    uint32_t *ranks; /* job ranks */
    uint32_t rank_count;
    uint32_t *nodes;
    uint32_t node_count;
    struct trace *trace; /* the event's, and whoever's takes it out */
};

/* A zeroed event. Aborts the process when there is no memory for it: a daemon that cannot say what
 * happened cannot go on. */
struct engine_event *engine_event_create(enum engine_event_type type);
void engine_event_free(struct engine_event *event);

/* A job's roster. Every daemon that has ranks of it or owns shards of it opens it, group 0 (all
 * ranks) with it. */
struct engine_job {
    uint64_t job;
    char name[CONFIG_NAME_BYTES];
    uint32_t world_size;
    const uint32_t *rank_nodes; /* [world_size]: node number of each rank */
    uint32_t server_count;
    const uint32_t *server_nodes;   /* [server_count]: node numbers, ascending */
    const uint32_t *server_weights; /* [server_count], each at least 1 */
};

/* A job's figures, as the status shows them. */
struct engine_job_status {
    uint64_t job;
    uint64_t bytes_submitted; /* by local workers */
    uint64_t collectives;     /* completed on this node */
    uint64_t slots;           /* chunks in progress */
    uint32_t groups;
    uint32_t slowest_rank;  /* local rank that was last to arrive most often; UINT32_MAX: none */
    uint64_t slowest_times; /* how often it was last */
    bool failed;
};

#endif
