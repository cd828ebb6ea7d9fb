/* What virtual_cluster.c (time, daemons, links) and virtual_worker.c (workers) share. */
#ifndef TESTS_LIB_VIRTUAL_PRIVATE_H
#define TESTS_LIB_VIRTUAL_PRIVATE_H

#include <check.h>

#include "common/buffer.h"
#include "common/config.h"
#include "common/message.h"
#include "common/transport.h"
#include "common/transport_memory.h"
#include "server/coordinator.h"
#include "server/exchange.h"
#include "server/membership.h"
#include "tests/lib/virtual_cluster.h"
#include "worker/arena_heap.h"
#include "worker/progress.h"

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
    uint64_t epoch; /* of the connection: what was sent in an older one is lost */
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
    bool tick_due;
    uint32_t late_reports;
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

/* virtual_script.c: a job's collectives, from its seed. */
/* One collective of a job, the same for all ranks. */
struct script {
    uint32_t group; /* index of the job's groups; 0: the world */
    struct request_ask ask;
    uint64_t seed;
};

void script_write(struct virtual_job_run *run);
/* A rank's place in a group of the job, or -1. */
int64_t script_place(const struct virtual_job_run *run, uint32_t group, uint32_t rank);
size_t script_bytes(const struct request_ask *ask);
/* What the rank at this place gives. */
void script_input(const struct script *it, uint32_t place, void *data);
/* In rank order on each node, in node order over the nodes. */
void script_reference(const struct virtual_job_run *run, const struct script *it, void *result);

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
