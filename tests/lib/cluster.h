/* Daemons of a small cluster on loopback, and workers that use them, as real processes. */
#ifndef TESTS_LIB_CLUSTER_H
#define TESTS_LIB_CLUSTER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/lib/process.h"

#define CLUSTER_NODES_MAX 8
#define CLUSTER_BIN TEST_BUILD_DIR "/bin/"
#define CLUSTER_HELPER TEST_BUILD_DIR "/tests/helper_worker"
/* For waits that end by an event; longer than any of them takes on a busy machine. */
#define CLUSTER_PATIENCE_MS 60000
#define CLUSTER_PEER_MS 20000

struct cluster_node {
    char name[64]; /* "node0", ... */
    char socket_path[108];
    uint16_t port; /* control, on 127.0.0.1 */
    struct process *daemon;
};

struct cluster {
    char *directory;
    uint32_t count;
    struct cluster_node nodes[CLUSTER_NODES_MAX];
};

/* extra: JSON with further keys for every daemon, or NULL; without timeouts.peer_ms a silent peer
 * is gone after CLUSTER_PEER_MS. The sockets listen when this returns. */
struct cluster *cluster_start(uint32_t nodes, const char *extra);
/* The last nodes are "cpu0", ...: with as many of them as others all shards are theirs. */
struct cluster *cluster_start_with_servers(uint32_t worker_nodes, uint32_t cpu_nodes,
                                           const char *extra);
/* SIGKILL to the node's daemon, which has ended when this returns, with its socket; and another one
 * in its place, with a log of its own, which listens when this returns. */
void cluster_kill(struct cluster *cluster, uint32_t node);
void cluster_restart(struct cluster *cluster, uint32_t node);
/* SIGTERM to the daemons that run; how many did not end with exit code 0 (their logs are shown). */
int cluster_stop(struct cluster *cluster);
/* Kills what still runs, removes the files. */
void cluster_free(struct cluster *cluster);

/* Return what the daemon has logged so far; valid until the next call for the node. */
const char *cluster_log(struct cluster *cluster, uint32_t node);
bool cluster_wait_log(struct cluster *cluster, uint32_t node, const char *text, int timeout_ms);

/* The document of `shoalctl status --json`, the caller's; NULL when there is none. */
json_t *cluster_status(struct cluster *cluster, uint32_t node);
/* Until `accept` likes the status. */
bool cluster_wait_status(struct cluster *cluster, uint32_t node,
                         bool (*accept)(const json_t *status), int timeout_ms);

/* Return a TCP port of the loopback that is free now. Another process may get it, which the
 * kernel's choice by chance makes rare. */
uint16_t cluster_free_port(void);
/* Send a request to an HTTP port of the loopback. Returns the whole answer, which the caller frees.
 */
char *cluster_http(uint16_t port, const char *request);

/* One rank of a job on a node. argv[0] is the program. */
struct process *cluster_worker(struct cluster *cluster, uint32_t node, const char *job,
                               uint32_t rank, uint32_t world_size, const char *const *argv);
/* All ranks of a job, node by node; workers[world_size] is filled. */
void cluster_job(struct cluster *cluster, const char *job, uint32_t ranks_per_node,
                 const char *const *argv, struct process **workers);
/* Waits for each and frees it; how many did not end with exit code 0 (what they said is shown). */
int cluster_job_end(struct process **workers, uint32_t count);
/* Waits until a rank has written the text. */
void cluster_worker_says(struct process *worker, const char *text);
/* Ends a rank or a daemon by SIGKILL, and waits for that. */
void cluster_process_kill(struct process *process);

/* shoalctl with these arguments against a node. */
struct process *cluster_shoalctl(struct cluster *cluster, uint32_t node, const char *const *words);

#endif
