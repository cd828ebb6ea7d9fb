/* Several coordinators in one process on virtual time, driven by a seed: messages between two nodes
 * keep their order, everything else happens in any order. The engines are stand-ins that answer
 * every command. Messages pass through their JSON form. */
#ifndef TESTS_LIB_SERVER_COORDINATOR_NETWORK_H
#define TESTS_LIB_SERVER_COORDINATOR_NETWORK_H

#include <stdbool.h>
#include <stdint.h>

#include "server/coordinator/coordinator.h"

#define NETWORK_NODES_MAX 5
#define NETWORK_WORKERS_MAX 256
#define NETWORK_MS 1000000ull
#define NETWORK_JOBS_MAX 256

enum network_worker_state {
    CLIENT_NEW,
    CLIENT_JOINING,
    CLIENT_JOINED,
    CLIENT_RELEASING,
    CLIENT_APART,
    CLIENT_LEAVING,
    CLIENT_ORPHAN, /* its daemon has ended */
    CLIENT_OVER
};

/* A worker as it sees itself. */
struct network_worker {
    uint32_t node, id;
    enum network_worker_state state;
    bool closed;                   /* its connection is no more */
    bool whole;                    /* how it asks for the next generation; the test's */
    uint32_t least_ranks, wait_ms; /* likewise */
    char job[MESSAGE_NAME_BYTES];
    int32_t wished_rank;
    uint64_t joined_at_ns, timeout_ns;
    struct message joined; /* lists are not kept */
    uint32_t weight_count;
    bool left, failed;
    uint32_t failed_count;
    struct message failure; /* the last error or failed */
    bool group_opened, group_refused;
    uint32_t waiting_count; /* how often it was told what it waits for */
    char waiting[1024];
    uint32_t shared_count; /* answers to shared_open */
    uint32_t segment;      /* of the last */
    int32_t group;
};

struct network;

/* weights: [nodes], of the roster. */
struct network *network_create(uint32_t nodes, const uint32_t *weights, uint64_t seed);
/* Create nodes of equal weights, all connected, and at rest. */
struct network *network_create_connected(uint32_t nodes);
void network_free(struct network *network);
uint64_t network_now(const struct network *network);
uint32_t network_random(struct network *network, uint32_t below);
/* Change before the first use: limits, timeouts. */
struct config *network_config(struct network *network, uint32_t node);
struct coordinator *network_coordinator(struct network *network, uint32_t node);

/* Keep what the coordinators log from now on. */
void network_keep_log(struct network *network);
/* How often that has the text. */
uint32_t network_log_count(const struct network *network, const char *text);

/* Links. */
void network_connect(struct network *network, uint32_t a, uint32_t b);
void network_connect_without_fabric(struct network *network, uint32_t a, uint32_t b);
/* Give a connection without a fabric its fabric. */
void network_connect_fabric(struct network *network, uint32_t a, uint32_t b);
void network_connect_all(struct network *network);
void network_cut(struct network *network, uint32_t a, uint32_t b, const char *reason);
/* Where recovery is on, as the node sees it: the peer is away, and then back or gone. */
void network_away(struct network *network, uint32_t node, uint32_t peer);
void network_back(struct network *network, uint32_t node, uint32_t peer);
void network_gone(struct network *network, uint32_t node, uint32_t peer);
/* The node's fabric has lost the peer, and its control connection is still there. */
void network_lose_fabric(struct network *network, uint32_t node, uint32_t peer);
/* The daemon and its workers die, and a new daemon is there at once, without links. */
void network_crash(struct network *network, uint32_t node);
/* Restart the daemon as network_crash does, but let its workers live: they are CLIENT_ORPHAN, from
 * where they may return. */
void network_restart(struct network *network, uint32_t node);
void network_return(struct network *network, struct network_worker *worker, uint32_t timeout_ms,
                    uint32_t stragglers_ms);

/* Workers. */
struct network_worker *network_join(struct network *network, uint32_t node, const char *job,
                                    uint32_t world_size, int32_t rank, int32_t local_rank,
                                    uint32_t timeout_ms);
void network_set_uid(struct network *network, uint32_t uid); /* of workers to come */
/* Let too much of this user's wait for peers from now on; 0: of nobody's. */
void network_set_unheard(struct network *network, uint32_t uid);
void network_set_mark(struct network *network, uint32_t mark);  /* of their run */
void network_set_age(struct network *network, uint32_t age_ms); /* of their processes */
int network_say(struct network *network, struct network_worker *worker,
                const struct message *message);
void network_leave(struct network *network, struct network_worker *worker);
void network_kill(struct network *network, struct network_worker *worker);
/* Release a worker whose job has failed: CLIENT_APART follows, then it may rejoin. */
void network_release(struct network *network, struct network_worker *worker);
void network_rejoin(struct network *network, struct network_worker *worker, uint32_t timeout_ms,
                    uint32_t stragglers_ms);
void network_group_open(struct network *network, struct network_worker *worker,
                        const uint32_t *ranks, uint32_t count, uint32_t nth, uint32_t timeout_ms);

/* A job's name whose home is the node; good until the next call. */
const char *network_name_at(struct network *network, uint32_t home);
/* A job of four, as a network of three can have it: two ranks on node 0, one on 1, one on 2. */
void network_join_four(struct network *network, struct network_worker *workers[4], const char *job);
/* The last words to a worker hold the piece. */
void network_assert_text(const struct network_worker *worker, const char *piece);

/* Let one thing happen; false when nothing can without time passing. */
bool network_step(struct network *network);
/* Until nothing can happen any more before `ms` have passed. */
void network_run(struct network *network, uint64_t ms);
void network_settle(struct network *network);

/* An event of the node's engine, besides those with which the stand-in answers. The arrays stay the
 * caller's. */
void network_engine_says(struct network *network, uint32_t node, struct engine_event event);
/* Set the ranks that the stand-in engine of a node names when it is asked who is late. The other
 * functions count what that engine has, or let it do something. */
void network_set_late(struct network *network, uint32_t node, const uint32_t *ranks,
                      uint32_t count);
uint32_t network_engine_jobs(const struct network *network, uint32_t node); /* open in it */
uint64_t network_first_job(const struct network *network); /* that any engine has seen */
uint32_t network_engine_attached(const struct network *network, uint32_t node);
uint32_t network_engine_groups(const struct network *network, uint32_t node);
/* How often it was told that a rank has left one of the groups, the world apart. */
uint32_t network_engine_group_ranks_left(const struct network *network, uint32_t node);
uint32_t network_engine_failed(const struct network *network, uint32_t node);
/* Pieces of shared memory that it has, and descriptors of such that are kept. */
uint32_t network_engine_segments(const struct network *network, uint32_t node);
uint32_t network_segment_descriptors(const struct network *network, uint32_t node);
/* Let the stand-in engine answer with `code` from now on when it is given shared memory: 0, or an
 * error. */
void network_refuse_segments(struct network *network, uint32_t node, int code);
/* How often it was told that a group has failed elsewhere. */
uint32_t network_engine_groups_failed(const struct network *network, uint32_t node);
/* Its events wait until it is let go. */
void network_hold_engine(struct network *network, uint32_t node, bool held);
void network_refuse_job_open(struct network *network, uint32_t node, const char *text);
/* Nothing of any job is left anywhere. */
void network_assert_empty(struct network *network);

#endif
