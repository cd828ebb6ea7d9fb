/* Figures that a daemon tells the others of itself beside a job's, so that one page shows all: its
 * memory, what it has sent and received, and its links, where they are few. Pure. */
#ifndef SERVER_STATUS_STATUS_DAEMON_H
#define SERVER_STATUS_STATUS_DAEMON_H

#include <stdbool.h>
#include <stdint.h>

#include "server/status/status.h"

/* In a larger roster no links are told: each daemon would have those of all. */
#define STATUS_LINKS 12u
#define STATUS_DAEMON_WORDS 15u /* of figures, packed, without links */
#define STATUS_LINK_WORDS 5u    /* of each link */
#define STATUS_DAEMON_WORDS_MAX (STATUS_DAEMON_WORDS + STATUS_LINKS * STATUS_LINK_WORDS)

struct status_daemon {
    uint64_t time_ms; /* since the daemon's start, when the bytes were counted */
    uint64_t memory_used_bytes, memory_reserved_bytes, memory_limit_bytes;
    uint64_t bytes_in, bytes_out; /* over the fabric, as those of links */
    uint32_t link_mbits;          /* what its link can carry each way; 0: not known */
    uint32_t away;                /* nodes that are away, and may come back */
    uint32_t recovered;           /* how often one did */
    uint32_t link_count;
    struct status_link {
        uint32_t node; /* of the roster */
        uint64_t bytes_in, bytes_out;
    } links[STATUS_LINKS];
};

/* Bandwidth of this node's link, in Mbit/s: as configured, or as its interface says. 0: not
 * known. */
uint32_t status_link_mbits(const struct status_source *source);
/* Take the figures from a source; `engine`, `membership`, `config`, `transport` and `started_ns`
 * are read. */
void status_daemon_take(struct status_daemon *daemon, const struct status_source *source);
/* Figures as numbers of a message, returns how many; and back. False: they make no sense. */
uint32_t status_daemon_pack(const struct status_daemon *daemon,
                            uint32_t words[STATUS_DAEMON_WORDS_MAX]);
bool status_daemon_unpack(struct status_daemon *daemon, const uint32_t *words, uint32_t count,
                          uint32_t roster);
/* The keys, into an open object. */
void status_put_daemon(struct json_text *text, const struct status_daemon *daemon,
                       const struct config *config);

#endif
