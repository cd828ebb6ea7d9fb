/* What virtual_cluster.c (time, daemons, links) and virtual_worker.c (workers) share. */
#ifndef TESTS_LIB_VIRTUAL_VIRTUAL_PRIVATE_H
#define TESTS_LIB_VIRTUAL_VIRTUAL_PRIVATE_H

#include <check.h>

#include "common/config/config.h"
#include "common/format/message.h"
#include "common/memory/buffer.h"
#include "common/transport/transport.h"
#include "common/transport/transport_memory.h"
#include "server/coordinator/coordinator.h"
#include "server/exchange/exchange.h"
#include "server/jobs/membership.h"
#include "tests/lib/virtual/virtual_cluster.h"
#include "worker/progress/progress.h"
#include "worker/request/arena_heap.h"

/* Check's own assertions write to a file each time that they hold; these are asked millions of
 * times. */
#define EXPECT_MSG(condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg(__VA_ARGS__);                                                             \
    } while (0)
#define EXPECT(condition) EXPECT_MSG(condition, "%s", #condition)

#define VIRTUAL_NODES_MAX 16
#define VIRTUAL_JOBS_MAX 16
#define VIRTUAL_GROUPS_MAX 8

/* Something that happens at a time. */
struct virtual_happening {
    uint64_t time_ns;
    uint64_t order;
    void (*happen)(struct virtual_cluster *cluster, void *what, uint64_t number);
    void *what;
    uint64_t number;
};

/* Keeps what goes one way in order. */
struct virtual_channel {
    uint64_t last_ns;
    uint64_t epoch;            /* of the connection: what was sent in an older one is lost */
    struct virtual_node *from; /* of those between daemons */
    uint32_t to;
};

struct virtual_node {
    struct virtual_cluster *cluster;
    uint32_t number;
    struct config config;
    const char *names[VIRTUAL_NODES_MAX]; /* in the config */
    struct membership membership;
    struct coordinator *coordinator;
    struct transport *transport;
    struct buffer_pool *pool;
    struct exchange *exchange;
    struct virtual_channel commands, events; /* to and from the engine */
    struct virtual_channel to[VIRTUAL_NODES_MAX];
    bool connected[VIRTUAL_NODES_MAX];
    uint32_t connection[VIRTUAL_NODES_MAX]; /* counts them, on both sides alike */
    bool tick_due;
    bool refuses_memory;
    uint32_t late_reports;
    uint32_t traces; /* begun; virtual_trace.c */
    struct virtual_traffic traffic;
};

struct virtual_worker;

struct virtual_job_run {
    struct virtual_job job;
    uint32_t *rank_nodes;
    struct virtual_worker **workers; /* [ranks] */
    struct script *script;           /* [collectives] */
    uint32_t **group_ranks;          /* [groups + 1] */
    uint32_t *group_sizes;
};

struct virtual_cluster {
    struct virtual_options options;
    uint64_t now_ns;
    uint64_t random;
    uint64_t order;
    uint64_t moments;
    struct virtual_happening *heap;
    uint32_t heap_count, heap_capacity;
    struct memory_fabric *fabric;
    struct virtual_node nodes[VIRTUAL_NODES_MAX];
    struct virtual_job_run jobs[VIRTUAL_JOBS_MAX];
    uint32_t job_count;
    uint32_t next_handle;
    uint32_t silences;
};

/* virtual_cluster.c */
uint64_t virtual_random(struct virtual_cluster *cluster, uint64_t below);
void virtual_schedule(struct virtual_cluster *cluster, uint64_t delay_ns,
                      void (*happen)(struct virtual_cluster *, void *, uint64_t), void *what,
                      uint64_t number);
/* After a random delay, and after all that went into the channel before. */
void virtual_schedule_in(struct virtual_cluster *cluster, struct virtual_channel *channel,
                         void (*happen)(struct virtual_cluster *, void *, uint64_t), void *what,
                         uint64_t number);

/* virtual_world.c */
struct coordinator_io virtual_world(struct virtual_node *node);
/* The coordinator was called: what is due may have changed. */
void virtual_called(struct virtual_node *node);
/* Takes the event to the coordinator, later. */
void virtual_event(struct virtual_node *node, struct engine_event *event);

/* virtual_link.c: what the engine does when the fabric has lost a peer, or it is silent (struct
 * exchange_io), and the control thread when it hears of it. */
void virtual_link_lost(struct virtual_node *node, uint32_t peer, const char *how);
void virtual_link_silent(void *context, uint32_t peer);
void virtual_link_end(struct virtual_node *node, const struct engine_event *event);

/* virtual_trace.c: every other while each exchange takes a trace of some job. */
void virtual_trace_tick(struct virtual_cluster *cluster, void *what, uint64_t number);
/* Takes an ENGINE_TRACED, and looks at what was recorded. */
void virtual_trace_over(struct virtual_node *node, struct engine_event *event);

/* virtual_script.c: a job's collectives, from its seed. */
/* One collective of a job, the same for all ranks, or a send. */
struct script {
    uint32_t group;         /* index of the job's groups; 0: the world */
    struct request_ask ask; /* count: of each part, at most, in a collective of parts */
    /* A send goes from the place that is the root to this one; the tag, and how many go there with
     * it before. */
    uint32_t to, tag, number;
    bool uneven; /* the parts have different sizes, some are empty */
    uint64_t seed;
};

void script_write(struct virtual_job_run *run);
/* A rank's place in a group of the job, or -1. */
int64_t script_place(const struct virtual_job_run *run, uint32_t group, uint32_t rank);
/* Whether the rank has a part in it. */
bool script_takes_part(const struct virtual_job_run *run, const struct script *it, uint32_t rank);
/* Elements that go from one place to another; of the whole, in what does not travel in parts. */
uint64_t script_count(const struct script *it, uint32_t from, uint32_t to);
/* What the rank at this place gives for the other. */
void script_input(const struct script *it, uint32_t from, uint32_t to, void *data);
/* The reduction that the rank at this place gets: in rank order on each node, in node order over
 * the nodes. */
void script_reference(const struct virtual_job_run *run, const struct script *it, uint32_t to,
                      void *result);

/* virtual_flight.c: one collective under way at a rank */
struct flight_region {
    uint8_t *memory;
    uint64_t arena_offset; /* 0: from malloc */
    size_t bytes;
};

struct flight_side {
    uint32_t region;
    uint32_t parts;
    bool apart;     /* each part has a place of its own */
    size_t *at;     /* [parts]: in the region */
    size_t *counts; /* [parts]: elements */
    void **buffers; /* [parts] */
};

struct flight {
    struct request request; /* first */
    struct flight *next;
    const struct script *it;
    struct script other; /* what a rank that is misled asks for in its place */
    uint32_t script;     /* its number */
    uint32_t place;      /* of the rank in the group */
    struct flight_side send, recv;
    struct flight_region regions[2];
    uint64_t bounce; /* of a send or receive whose region is not in the arena: a place that is */
};

enum worker_state { JOINING, OPENING, RUNNING, LEAVING, ENDED };

struct virtual_worker {
    struct virtual_cluster *cluster;
    struct virtual_job_run *run;
    struct virtual_node *node;
    struct exchange_worker *attached; /* the daemon's side */
    uint32_t rank, handle;
    enum worker_state state;
    struct virtual_channel to, from;
    uint8_t *memory;
    struct arena arena;
    struct arena_heap heap;
    struct progress progress;
    bool progressing;
    struct progress_group groups[VIRTUAL_GROUPS_MAX];
    uint32_t *weights[VIRTUAL_GROUPS_MAX];
    uint32_t opened; /* groups so far */
    uint32_t next_script[VIRTUAL_GROUPS_MAX];
    uint32_t in_flight[VIRTUAL_GROUPS_MAX];
    struct flight *flights;
    uint32_t started, finished, mine; /* collectives; mine: that this rank takes part in */
    uint32_t leave_after;
    bool held, mislead, pump_due, late_due;
    int code;
    char text[ERROR_TEXT_BYTES];
    uint64_t digest;
};

/* Start the collective of this number; misled if the worker is. Returns progress_submit's. */
int flight_start(struct virtual_worker *worker, uint32_t script, struct error *error);
/* All memory of a completed one is as it must be. */
void flight_check(struct virtual_worker *worker, const struct flight *flight);
void flight_free(struct virtual_worker *worker, struct flight *flight);

/* virtual_worker.c: what a node has for a worker, by its handle */
void virtual_worker_message(struct virtual_cluster *cluster, uint32_t handle,
                            const struct message *message);
void virtual_worker_end(struct virtual_cluster *cluster, uint32_t handle);
void virtual_worker_attach(struct virtual_node *node, uint64_t job, uint32_t rank, uint32_t handle);
/* The daemon pushed completions, or lets go of the arena. */
void virtual_worker_rung(struct virtual_cluster *cluster, struct exchange_worker *worker);
void virtual_worker_released(struct exchange_worker *worker);
void virtual_jobs_free(struct virtual_cluster *cluster);
/* Print where every worker is: for a test that is about to fail. */
void virtual_jobs_describe(const struct virtual_cluster *cluster);
bool virtual_jobs_ended(const struct virtual_cluster *cluster);

#endif
