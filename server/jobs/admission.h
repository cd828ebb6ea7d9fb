/* Bookkeeping of the connections that have not authenticated: which of them may stay. Pure.
 *
 * Whoever holds a place must not keep a daemon of the roster out for longer than a few attempts.
 * Therefore each address of the roster has a number of places of its own, and all others share few.
 * A connection too many does not simply go away: one at random of those that compete for the places
 * does, so that somebody who holds them all, or takes each that becomes free, has no advantage over
 * somebody who needs one for as long as a handshake takes. Strangers are dropped in this way from a
 * lower number on already; the more of them there are, the likelier it is (random early drop, as
 * MaxStartups of sshd_config(5): start, rate, full).
 *
 * Numbers that decide are handed in as random ones. */
#ifndef SERVER_JOBS_ADMISSION_H
#define SERVER_JOBS_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#define ADMISSION_KNOWN_SOURCE_MAX 128u  /* of one address of the roster */
#define ADMISSION_KNOWN_MAX 512u         /* of all of them */
#define ADMISSION_STRANGER_SOURCE_MAX 8u /* of one other address */
#define ADMISSION_STRANGER_START 16u     /* of all of these: from here on one goes now and then, */
#define ADMISSION_STRANGER_RATE 30u      /* at first in so many of 100 cases, */
#define ADMISSION_STRANGER_MAX 64u       /* and here always */
#define ADMISSION_NODE_SOURCES 8u        /* addresses that are remembered of a node */

/* An IPv6 address, or an IPv4 address mapped into one. */
struct admission_source {
    uint8_t bytes[16];
};

/* A connection that is under way; a member of its owner's structure. */
struct admission_place {
    struct admission_source source;
    bool held, known;
    struct admission_place *next, *prev;
};

/* The addresses of a node, the newest last. */
struct admission_node {
    struct admission_source sources[ADMISSION_NODE_SOURCES];
    uint32_t count;
};

struct admission {
    struct admission_place *places;
    uint32_t known, strangers; /* how many of the places are whose */
    struct admission_node *nodes;
    uint32_t node_count;
};

/* ERR_MEMORY. */
int admission_init(struct admission *admission, uint32_t node_count);
void admission_clear(struct admission *admission);

/* The node connects, or may connect, from there. A node that has more addresses than are remembered
 * loses the one that was told longest ago. */
void admission_learn(struct admission *admission, uint32_t node,
                     const struct admission_source *source);

/* Let the connection come in. NULL: it has a place. Otherwise the place that has to go: if that is
 * its own, it has not got one; any other one is to leave. */
struct admission_place *admission_enter(struct admission *admission, struct admission_place *place,
                                        const struct admission_source *source, uint64_t random);
/* Whether a node of the roster connects from there. */
bool admission_knows(const struct admission *admission, const struct admission_source *source);
/* Return a connection whose descriptor a new one from there may have when there is none: a
 * stranger, or, without strangers and for an address of the roster, one from such an address. NULL:
 * nobody's. */
struct admission_place *admission_yield(const struct admission *admission,
                                        const struct admission_source *source, uint64_t random);
/* Give the place back: its connection has authenticated, or is over. Does nothing if it has no
 * place. */
void admission_leave(struct admission *admission, struct admission_place *place);

#endif
