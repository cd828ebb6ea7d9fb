/* Declarations that the files tests/lib/server/coordinator_network*.c share. */
#ifndef TESTS_LIB_SERVER_COORDINATOR_NETWORK_INTERNAL_H
#define TESTS_LIB_SERVER_COORDINATOR_NETWORK_INTERNAL_H

#include "tests/lib/server/coordinator_network.h"

#define ITEMS_MAX 4096
#define EVENTS_MAX 4096
#define SEGMENTS_MAX 1024 /* of a job on a node, in the order in which they are made */

enum item_kind { ITEM_MESSAGE, ITEM_CONNECTED, ITEM_UP, ITEM_DOWN };

struct item {
    enum item_kind kind;
    char *line; /* or the reason of ITEM_DOWN */
    size_t length;
};

/* Items that node `to` will hear from node `from`, in order. */
struct channel {
    struct item items[ITEMS_MAX];
    uint32_t head, count;
    bool open; /* messages are taken */
};

enum event_kind {
    EVENT_JOB,
    EVENT_GROUP,
    EVENT_DETACHED,
    EVENT_LATE,
    EVENT_IDLE,
    EVENT_SEGMENT,
    EVENT_RELEASED, /* `rank` is the worker */
};

struct event {
    enum event_kind kind;
    uint64_t job, sequence;
    uint32_t group, rank, segment;
};

struct engine_job_copy {
    uint64_t id;
    bool failed;
    uint32_t world_size, attached, groups, group_ranks_left, segments;
    uint32_t rank_nodes[64];
    int descriptors[SEGMENTS_MAX]; /* by number */
};

struct node {
    struct network *network;
    uint32_t number;
    struct config config;
    struct membership membership;
    struct coordinator *coordinator;
    uint64_t deadline_ns;
    struct event events[EVENTS_MAX];
    uint32_t head, count;
    struct engine_job_copy jobs[NETWORK_JOBS_MAX];
    uint32_t job_count;
    uint32_t late_ranks[8], late_count;
    uint32_t failed, groups_failed;
    bool held; /* the stand-in engine says nothing */
    char refusal[64];
    uint32_t descriptors;   /* made and not dropped */
    uint64_t segment_bytes; /* made and not freed */
    uint32_t descriptors_made;
    int segment_refusal; /* its answer, or 0 */
};

struct network {
    uint32_t count;
    uint64_t now_ns, random;
    uint32_t uid, next_worker, age_ms, mark;
    uint32_t unheard; /* the user of whom too much waits for peers; 0: nobody */
    struct log log;
    int log_fd; /* -1: nowhere */
    struct node *nodes;
    struct channel *channels; /* [from * count + to] */
    struct network_worker workers[NETWORK_WORKERS_MAX];
    uint32_t worker_count;
    /* The roster that the first engine saw, for each job. */
    struct engine_job_copy rosters[NETWORK_JOBS_MAX];
    uint32_t roster_count;
    char name[64]; /* network_name_at */
};

struct channel *network_channel(struct network *network, uint32_t from, uint32_t to);
void network_channel_put(struct channel *channel, enum item_kind kind, char *line, size_t length);
/* Return the table through which the node's coordinator acts: it asserts, and the stand-in engine
 * answers. */
struct coordinator_io network_io(struct node *node);

#endif
