/* Daemons and workers in one process, on the in-memory fabric and virtual time, driven by a seed.
 *
 * tests/lib/virtual/README.md says what is real and what is played. Everything that happens has a
 * virtual time; events of the same time happen in the order in which they were scheduled, so a seed
 * gives one history. */
#ifndef TESTS_LIB_VIRTUAL_VIRTUAL_CLUSTER_H
#define TESTS_LIB_VIRTUAL_VIRTUAL_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/reduce/dtype.h"
#include "server/waits/verdict.h"

struct virtual_cluster;

struct virtual_options {
    uint64_t seed;
    uint32_t nodes;
    const uint32_t *weights; /* [nodes]; NULL: all 1 */
    uint32_t chunk_bytes;    /* 0: 4096 */
    uint32_t window_chunks;  /* 0: 4 */
    uint64_t most_delay_ns;  /* of a message; 0: 20 us */
    bool reorder;            /* fabric messages may overtake each other */
    bool shared_receives;    /* a datagram fabric */
    bool sends;              /* its jobs send from rank to rank: messages may wait for receives */
    bool recovery;           /* connections that break go on where they were */
    uint32_t keep_steps;     /* results kept for replays; of at most 1 MiB */
    uint64_t memory_bytes;   /* of chunk buffers, each node; 0: 256 MiB */
};

/* A job: every rank runs `collectives` random ones over `groups` groups (0: all ranks). */
struct virtual_job {
    const char *name;
    uint32_t ranks;
    const uint32_t *rank_nodes; /* [ranks] */
    uint32_t groups;            /* beside the world, random subsets of at least two ranks */
    uint32_t collectives;       /* in all groups together */
    uint64_t most_count;        /* elements of one */
    uint32_t in_flight;         /* started at once by a rank, at most */
    bool arena;                 /* some buffers lie in the arena */
    bool priorities;            /* random, different on every rank */
    uint32_t kinds;             /* bits 1 << enum collective_kind; 0: all */
    uint32_t recovery;          /* enum message_recovery */
    bool even;                  /* parts are of one size */
    bool goes_on;         /* ranks that are left form the next generation: with another script */
    uint32_t least_ranks; /* which waits until it has so many */
    uint64_t seed;        /* of data and choice; the same gives the same results */
};

struct virtual_cluster *virtual_cluster_create(const struct virtual_options *options);
/* Fails the test when anything of the jobs is left: buffers in use, open jobs, attached workers. */
void virtual_cluster_destroy(struct virtual_cluster *cluster);

/* Start the job's workers; returns its number. */
uint32_t virtual_cluster_start(struct virtual_cluster *cluster, const struct virtual_job *job);

/* A process waits on the node to be taken into the next generation of the job; returns a job's
 * number, of which it is rank 0. */
uint32_t virtual_cluster_newcomer(struct virtual_cluster *cluster, uint32_t job, uint32_t node);

/* Run for `steps` moments, or until nothing is left to happen. Checks the invariants after each,
 * and every finished collective against the reference. Returns the moments run. */
uint64_t virtual_cluster_run(struct virtual_cluster *cluster, uint64_t steps);
void virtual_cluster_run_for(struct virtual_cluster *cluster, uint64_t ns);
/* Whether every worker of every job has ended. */
bool virtual_cluster_ended(const struct virtual_cluster *cluster);
/* Run until that; fails the test after limit_ns of virtual time. */
void virtual_cluster_finish(struct virtual_cluster *cluster, uint64_t limit_ns);

/* Faults. */
void virtual_cluster_kill_worker(struct virtual_cluster *cluster, uint32_t job, uint32_t rank);
/* Both sides lose both planes, and do not get through until they may again. */
void virtual_cluster_cut(struct virtual_cluster *cluster, uint32_t a, uint32_t b);
void virtual_cluster_join_again(struct virtual_cluster *cluster, uint32_t a, uint32_t b);
/* A connection is reset, and the way is open: the fabric's, or (control) node a's end of the
 * control connection. */
void virtual_cluster_reset(struct virtual_cluster *cluster, uint32_t a, uint32_t b, bool control);
/* Nothing that the fabric carries from one to the other arrives any more; or again. The control
 * connection stays. */
void virtual_cluster_cut_data(struct virtual_cluster *cluster, uint32_t from, uint32_t to,
                              bool cut);
/* Delay by `ns` whatever the daemon says to the other over the control connection from now on. */
void virtual_cluster_delay_control(struct virtual_cluster *cluster, uint32_t from, uint32_t to,
                                   uint64_t ns);
/* The node neither sends nor receives on the fabric; or again. Needs options.sends. */
void virtual_cluster_stand_still(struct virtual_cluster *cluster, uint32_t node, bool still);
/* The daemon is killed: its sockets end, and its ranks go on without it. */
void virtual_cluster_kill_daemon(struct virtual_cluster *cluster, uint32_t node);
/* The node's machine is off, at once: so are its ranks, and nobody is told. */
void virtual_cluster_switch_off(struct virtual_cluster *cluster, uint32_t node);
/* A daemon begins on a node that has none, with nothing but its configuration. */
void virtual_cluster_return(struct virtual_cluster *cluster, uint32_t node);
bool virtual_cluster_alive(const struct virtual_cluster *cluster, uint32_t node);
/* The daemon stands still, all of it (SIGSTOP), and its ranks do not; or goes on. */
void virtual_cluster_pause(struct virtual_cluster *cluster, uint32_t node, bool paused);
/* The node's pool gets no further memory; or again. */
void virtual_cluster_refuse_memory(struct virtual_cluster *cluster, uint32_t node, bool refused);
/* Whether each of the two has the other on both planes. */
bool virtual_cluster_linked(const struct virtual_cluster *cluster, uint32_t a, uint32_t b);
/* From now on the rank asks for something else than the others, once. */
void virtual_cluster_mislead(struct virtual_cluster *cluster, uint32_t job, uint32_t rank);
/* The rank's next send or receive is of an element more. */
void virtual_cluster_mislead_send(struct virtual_cluster *cluster, uint32_t job, uint32_t rank);
/* The rank leaves properly after its first `collectives`. */
void virtual_cluster_leave_early(struct virtual_cluster *cluster, uint32_t job, uint32_t rank,
                                 uint32_t collectives);
/* The rank starts nothing further until it is let go. */
void virtual_cluster_hold(struct virtual_cluster *cluster, uint32_t job, uint32_t rank, bool held);

/* How a job's rank ended. */
struct virtual_outcome {
    bool joined; /* its job was open */
    bool ended;
    int code;          /* 0: all collectives finished */
    char text[1024];   /* of the failure */
    uint32_t finished; /* collectives that completed with the right bits */
    uint32_t refused;  /* sends and receives that did not fit the other */
    uint64_t digest;   /* of all results */
    /* The last generation of its job: the generation's number, how many ranks it has, which of them
     * this one is, and a number that all ranks of the same generation have in common. The fields
     * code, finished and digest are about that generation too. */
    uint32_t generation, ranks, rank, number;
};
struct virtual_outcome virtual_cluster_outcome(const struct virtual_cluster *cluster, uint32_t job,
                                               uint32_t rank);
/* Bytes of payload that a node has sent and received over the fabric. */
struct virtual_traffic {
    uint64_t sent;
    uint64_t received;
};
struct virtual_traffic virtual_cluster_traffic(const struct virtual_cluster *cluster,
                                               uint32_t node);
/* Bytes of one part in each of the job's collectives, together. */
uint64_t virtual_cluster_part_bytes(const struct virtual_cluster *cluster, uint32_t job);
uint64_t virtual_cluster_now_ns(const struct virtual_cluster *cluster);
uint64_t virtual_cluster_moments(const struct virtual_cluster *cluster); /* run so far */
/* Late reports that the node's exchange has made. */
uint32_t virtual_cluster_late_reports(const struct virtual_cluster *cluster, uint32_t node);
/* Open connections with other daemons that the node's daemons have lost. */
uint32_t virtual_cluster_losses(const struct virtual_cluster *cluster, uint32_t node);
/* Connections with other daemons that the node's daemons have gone on with on another one. */
uint32_t virtual_cluster_resumed(const struct virtual_cluster *cluster, uint32_t node);
/* How often a node has found another to be silent on the fabric. */
uint32_t virtual_cluster_silences(const struct virtual_cluster *cluster);
/* Find the verdict that the nodes' accounts give of the only job there is. */
void virtual_cluster_why(const struct virtual_cluster *cluster, struct verdict *verdict);
/* Buffer bytes in use on a node. */
uint64_t virtual_cluster_used_bytes(const struct virtual_cluster *cluster, uint32_t node);

#endif
