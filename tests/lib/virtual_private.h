/* What virtual_cluster.c (time, daemons, links) and virtual_worker.c (workers) share. */
#ifndef TESTS_LIB_VIRTUAL_PRIVATE_H
#define TESTS_LIB_VIRTUAL_PRIVATE_H

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

/* virtual_worker.c: what a node has for a worker, by its handle */
void virtual_worker_message(struct virtual_cluster *cluster, uint32_t handle,
                            const struct message *message);
void virtual_worker_end(struct virtual_cluster *cluster, uint32_t handle);
void virtual_worker_attach(struct virtual_node *node, uint64_t job, uint32_t rank, uint32_t handle);
/* The daemon pushed completions, or lets go of the arena. */
void virtual_worker_rung(struct virtual_cluster *cluster, struct exchange_worker *worker);
void virtual_worker_released(struct exchange_worker *worker);
void virtual_jobs_free(struct virtual_cluster *cluster);
bool virtual_jobs_ended(const struct virtual_cluster *cluster);

#endif
