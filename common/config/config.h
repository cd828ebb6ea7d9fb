/* The daemon's configuration: JSON, every key with unit, default and limits in one table
 * (common/config/config_table.c), from which the checks, --print-config and the reference are made.
 * Calls common/format (window.h), common/text and common/base. */
#ifndef COMMON_CONFIG_CONFIG_H
#define COMMON_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/format/layout.h"
#include "common/log/log.h"

#define CONFIG_NAME_BYTES 64
#define CONFIG_ADDRESS_BYTES 254 /* of the longest name of a host, with its end */
#define CONFIG_PATH_BYTES 256
#define CONFIG_SERVERS_MAX LAYOUT_MAX_SERVERS
#define CONFIG_LEAST_PINNED_BYTES (1u << 20)

/* One daemon of the roster. Its number (node number) is its position in the list. */
struct config_server {
    char name[CONFIG_NAME_BYTES];       /* letters, digits, '-', '_', '.'; unique */
    char address[CONFIG_ADDRESS_BYTES]; /* numeric IPv4/IPv6 or host name of the control port */
    uint16_t port;   /* control port, 1..65535; in the file "address": "HOST:PORT" */
    uint32_t weight; /* its share of every buffer; 0: owns no shards. Default 1 */
};

struct config {
    char node[CONFIG_NAME_BYTES]; /* "node": this daemon's name; must be in the roster. Default: the
                                     only server's name, or "localhost" without a roster */
    struct config_server *servers; /* "servers": the roster; one entry (this node) when absent */
    uint32_t server_count;
    uint32_t self; /* index of this node in servers */

    char socket_path[CONFIG_PATH_BYTES];       /* "socket.path": default /run/shoal/shoald.sock */
    uint32_t socket_mode;                      /* "socket.mode": octal string, default "0660" */
    char listen_address[CONFIG_ADDRESS_BYTES]; /* "listen.address": control, default "127.0.0.1" */
    uint16_t listen_port;                      /* "listen.port": default this server's port */
    char secret_file[CONFIG_PATH_BYTES];       /* "secret_file": default "" (loopback only) */
    char protect[8];                           /* "protect": "none" or "encrypt" */
    char certificate_file[CONFIG_PATH_BYTES];  /* "certificate_file": default "", as the next two */
    char key_file[CONFIG_PATH_BYTES];          /* "key_file" */
    char authority_file[CONFIG_PATH_BYTES];    /* "authority_file" */
    bool recovery; /* "recovery": a connection between daemons that breaks goes on */

    char provider[CONFIG_NAME_BYTES];          /* "fabric.provider": default "auto" */
    uint16_t fabric_port;                      /* "fabric.port": 0 = one that is free */
    char fabric_address[CONFIG_ADDRESS_BYTES]; /* "fabric.address": default = listen.address, or
                                               this server's host where that is "0.0.0.0" or "::" */
    uint32_t link_mbits; /* "fabric.link_mbits": what this node's link can carry; 0: as its
                            interface says */

    uint32_t chunk_bytes;       /* "data.chunk_bytes": 4 KiB..16 MiB, multiple of 64 */
    uint32_t least_shard_bytes; /* "data.least_shard_bytes" */
    uint32_t
        window_chunks;     /* "data.window_chunks": chunks in flight per group and server, 2..256 */
    uint32_t window_bytes; /* "data.window_bytes": of them, the bytes of one collective */
    char isa[16];          /* "data.instruction_set": "auto", "scalar", "avx2", "avx512" */
    uint32_t reduce_threads; /* "data.reduce_threads": 0..256; 0: the engine reduces itself */
    bool bind_threads;       /* "data.bind_threads" */

    uint64_t memory_bytes;   /* "limits.memory_bytes": chunk buffers of all jobs */
    uint64_t arena_bytes;    /* "limits.arena_bytes": one worker's arena at most */
    uint64_t user_bytes;     /* "limits.user_bytes": one user's arenas and shared memory; 0: as much
                                as the machine has memory */
    uint64_t pinned_bytes;   /* "limits.pinned_bytes": what one worker may pin of it for a GPU */
    uint32_t jobs;           /* "limits.jobs" */
    uint32_t workers;        /* "limits.workers": on this node, all jobs */
    uint32_t groups_per_job; /* "limits.groups_per_job" */
    uint32_t connections;    /* "limits.connections": Unix socket, workers and admin */

    uint32_t keep_steps; /* "replay.keep_steps": results kept of each job; 0: none */
    uint64_t keep_bytes; /* "replay.keep_bytes": and their memory, see config_keep_bytes */

    uint32_t heartbeat_ms; /* "timeouts.heartbeat_ms": default 500 */
    uint32_t peer_ms;      /* "timeouts.peer_ms": silent peer is gone, default 3000 */
    uint32_t join_ms;      /* "timeouts.join_ms": all ranks of a job must have come, a day */
    uint32_t group_ms;     /* "timeouts.group_ms": the same for a group's ranks, a day */
    uint32_t late_ms;      /* "timeouts.late_ms": a rank is reported as late, 5000 */
    uint32_t
        collective_ms; /* "timeouts.collective_ms": a rank that is so late ends its job; 0: none */
    uint32_t
        restart_ms;    /* "timeouts.restart_ms": ranks whose daemon has ended may come back, 4000 */
    uint32_t drain_ms; /* "timeouts.drain_ms": running collectives may finish, 30000 */

    enum log_level log_level; /* "log.level" */

    char metrics_address[CONFIG_ADDRESS_BYTES]; /* "metrics.address": default "" (off) */
    uint16_t metrics_port;                      /* "metrics.port": 0 = off */
};

/* All problems of one file; every one is a line of text. */
struct config_problems {
    char **lines;
    uint32_t count;
};

/* Fill *config from the file. On ERR_CONFIG *problems has a line each: syntax as
 * "FILE:LINE:COLUMN: ...", values as "FILE: /json/pointer: got VALUE, must be ...", unknown keys
 * with the nearest known one, doubled keys as "FILE:LINE:COLUMN: /json/pointer: ...". ERR_MEMORY:
 * out of memory, *problems may be incomplete. config and problems are the caller's to clear in
 * every case; after an error *config is empty. */
int config_load(struct config *config, const char *path, struct config_problems *problems);
/* Fill *config from text as config_load does from a file; `name` stands for the file in messages.
 */
int config_parse(struct config *config, const char *text, const char *name,
                 struct config_problems *problems);
/* Fill *config as an empty file does: one server, "localhost" at 127.0.0.1:7070. Without memory for
 * it server_count is 0. */
void config_defaults(struct config *config);
void config_clear(struct config *config);
/* Whether the address is "localhost", in 127.0.0.0/8, or ::1. Any other host name may mean
 * anything.
 */
bool config_is_loopback(const char *address);
/* Whether what goes between daemons is encrypted. */
bool config_encrypts(const struct config *config);
/* The most memory that results which are kept take; 0: none are. */
uint64_t config_keep_bytes(const struct config *config);
/* After how long a late rank is looked for: timeouts.late_ms, or collective_ms when that is less.
 */
uint32_t config_late_ms(const struct config *config);
void config_problems_clear(struct config_problems *problems);

/* The effective configuration as JSON, all keys present; the caller frees it. NULL: out of memory.
 */
char *config_print(const struct config *config);
/* The JSON Schema (draft 2020-12) of the file, the Markdown reference of its keys, and the part of
 * doc/man/shoald.json.5 that describes them, and a file with every key in comments, all made from
 * the table; the caller frees them. NULL: out of memory. */
char *config_schema(void);
char *config_reference(void);
char *config_manual(void);
char *config_commented(void);

#endif
