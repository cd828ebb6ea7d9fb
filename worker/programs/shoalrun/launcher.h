/* The plan of what shoalrun starts, made without starting anything: options, the plan of nodes and
 * ranks, each worker's environment, each embedded daemon's configuration. */
#ifndef WORKER_PROGRAMS_SHOALRUN_LAUNCHER_H
#define WORKER_PROGRAMS_SHOALRUN_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"

#define LAUNCH_RANKS_MAX 4096
#define LAUNCH_NODES_MAX 128 /* daemons of one machine */
#define LAUNCH_MACHINES_MAX 1024
#define LAUNCH_JOB_BYTES 64
#define LAUNCH_URL_BYTES 320
#define LAUNCH_HOST_BYTES 254 /* of the longest name of a host, with its end */

/* The command line. Its strings and the command belong to argv. */
struct launch_options {
    uint32_t nodes;          /* 0: not given */
    uint32_t ranks_per_node; /* 0: not given */
    uint32_t cpu_nodes;      /* daemons without workers */
    const char *job;         /* NULL: made up */
    const char *in_place_of; /* "gloo", whose groups PyTorch then makes of shoal; "jax", whose
                              * collectives shoal then does; NULL: none */
    const char *provider;
    const char *config_path;
    const char *socket_path;
    const char *hosts; /* the nodes of the run, of which each has a shoalrun; NULL: see nodes.h */
    uint32_t node_rank_plus_1;  /* which of them this is; 0: not given */
    uint32_t machines, machine; /* how many they are, and this one; 0: this machine alone */
    const char *serve;          /* only serve a daemon, at this address (serve.h); NULL: no */
    uint32_t timeout_s;         /* 0: none */
    uint32_t grace_s;           /* between a failure and SIGTERM, and between SIGTERM and SIGKILL */
    bool page;
    bool verbose;
    bool tag_output;
    bool print; /* only say where the library is that JAX loads */
    bool help;
    bool version;
    char **command; /* ends with NULL */
};

/* ERR_INVALID with the option and what is allowed. */
int launch_options_parse(int argc, char **argv, struct launch_options *options,
                         struct error *error);
const char *launch_usage(void);

/* Modes of a run: they say which daemon the workers use. */
enum launch_mode {
    LAUNCH_EMBEDDED,   /* start daemons */
    LAUNCH_GIVEN,      /* the one at *socket_path; an error when it does not answer */
    LAUNCH_IF_ANSWERS, /* the one at *socket_path if it answers, else start one */
};
/* socket_variable: the value of SHOAL_SOCKET, or NULL. */
enum launch_mode launch_mode(const struct launch_options *options, const char *socket_variable,
                             const char **socket_path);

/* One worker has this place. Ranks are numbered machine by machine, and there node by node. */
struct launch_worker {
    uint32_t rank, world_size;
    uint32_t local_rank, local_world_size;
    uint32_t node;
};
uint32_t launch_world_size(const struct launch_options *options);
/* How many this machine has. */
uint32_t launch_local_count(const struct launch_options *options);
/* Number `index` of this machine's. */
struct launch_worker launch_worker(const struct launch_options *options, uint32_t index);

/* A worker is told this beside its place. */
struct launch_told {
    const char *job, *socket_path, *folder;
    const char *mark;        /* which no other run has */
    const char *in_place_of; /* NULL: nothing */
    const char *jax_library; /* that JAX is to load, in place of in_place_of; NULL: none */
    const char *master;      /* host of PyTorch's store; NULL: all ranks are on this machine */
    uint16_t master_port;
};
/* The value of `name` in an environment list, or NULL. */
const char *launch_variable(char *const *environment, const char *name);
/* The inherited environment with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, SHOAL_JOB,
 * SHOAL_SOCKET, SHOAL_RUN (the folder) and SHOAL_MARK set, SHOAL_AS with in_place_of, or
 * JAX_CPU_COLLECTIVES_IMPLEMENTATION and MPITRAMPOLINE_LIB with jax_library, and MASTER_ADDR and
 * MASTER_PORT with a master, unless they are there. One allocation for free(); NULL: out of memory.
 */
char **launch_worker_environment(char *const *inherited, const struct launch_worker *worker,
                                 const struct launch_told *told);
/* The inherited environment with what keeps libfabric's psm providers from taking over signals. */
char **launch_daemon_environment(char *const *inherited);

/* "shoalrun-PID-RANDOM", which no other run has. */
void launch_job_name(char name[LAUNCH_JOB_BYTES], uint32_t pid, uint64_t random);

/* The weights with which the busiest link carries the fewest bytes. With n nodes with workers and k
 * CPU nodes they are, divided by their greatest common divisor,
 *
 *   worker_weight : cpu_weight = 1 : 1                 if k = 0 or n = 1
 *   worker_weight : cpu_weight = (n - k) : 2 (n - 1)   if 0 < k < n
 *   worker_weight : cpu_weight = 0 : 1                 otherwise
 */
void launch_weights(uint32_t worker_nodes, uint32_t cpu_nodes, uint32_t *worker_weight,
                    uint32_t *cpu_weight);

/* A node on a machine of its own. */
struct launch_host {
    char name[LAUNCH_JOB_BYTES];
    char address[LAUNCH_HOST_BYTES]; /* a name or a number */
};

/* Values that the configurations of a run's daemons are made of. */
struct launch_config {
    uint32_t worker_nodes, cpu_nodes;
    const struct launch_host *hosts; /* [worker_nodes + cpu_nodes]; NULL: all on this machine */
    const char *name;                /* if there is one daemon, its name; NULL: "node0" */
    const uint16_t *ports;           /* [worker_nodes + cpu_nodes]: control ports */
    const char *listen;              /* address; NULL: 127.0.0.1 */
    const char *fabric;              /* address for data; NULL: the daemon's default */
    uint16_t fabric_port;            /* for data; 0: one that is free */
    const char *mark;                /* of the run, for messages */
    const char *provider;            /* NULL: the daemon's default */
    uint64_t pinned_bytes;           /* that workers may pin; 0: the daemon's default */
    uint16_t page_port;              /* of the first node's page; 0: none, but as `extra` says */
    const char *secret_path;         /* of the secret of this run; NULL: none */
    const char *extra;               /* JSON text of an object whose keys come on top; NULL: none */
    const char *extra_name;          /* what `extra` is called in messages */
};
/* Write the name of a node. */
void launch_config_name(const struct launch_config *config, uint32_t node,
                        char name[LAUNCH_JOB_BYTES]);
/* The configuration of daemon number `self`. The daemons know each other by the secret of the run,
 * unless `extra` has them do so otherwise; on loopback nobody hears what goes between them, so that
 * it is not encrypted unless `extra` says so. If all nodes are on one machine, number 0 alone
 * serves metrics; number 0 alone has a page in every case. *text is the caller's to free.
 * ERR_CONFIG when `extra` is no JSON object. */
int launch_config_text(const struct launch_config *config, uint32_t self, const char *socket_path,
                       char **text, struct error *error);
/* The address of a daemon's page, as its status says. ERR_INVALID: it serves none.
 * ERR_DISCONNECTED: it is no status. */
int launch_status_page(const char *status, char url[LAUNCH_URL_BYTES]);
/* Whether the daemons have `recovery`: jobs outlive one that is killed. */
bool launch_config_recovers(const char *text);
/* Write a host's name in the characters that a node's name may have. */
void launch_host_name(const char *host, char name[LAUNCH_JOB_BYTES]);
/* Nodes with workers are "node0", "node1", ...; CPU nodes, which come after them, "cpu0", ... */
void launch_node_name(char name[LAUNCH_JOB_BYTES], uint32_t worker_nodes, uint32_t node);

#endif
