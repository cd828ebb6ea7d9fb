/* Members of the roster that are there: pure bookkeeping of connections, heartbeats and attempts to
 * connect. Whoever owns the sockets reports what happens and asks what is due. */
#ifndef SERVER_JOBS_MEMBERSHIP_H
#define SERVER_JOBS_MEMBERSHIP_H

#include <stdbool.h>
#include <stdint.h>

#define MEMBERSHIP_REASON_BYTES 512
#define MEMBERSHIP_RETRY_LEAST_NS 50000000ull
#define MEMBERSHIP_RETRY_MOST_NS 2000000000ull

enum membership_state {
    MEMBERSHIP_DOWN,      /* no authenticated connection */
    MEMBERSHIP_CONNECTED, /* messages can be exchanged; the fabric is being connected */
    MEMBERSHIP_UP,        /* the fabric is there as well */
};

struct membership_peer {
    enum membership_state state;
    uint64_t heard_ns; /* last line of the peer, while not down */
    uint64_t ping_ns;  /* next ping, while not down */
    uint64_t
        connect_ns;    /* next attempt, or knock; UINT64_MAX: none (up, under way, or the peer's) */
    uint32_t attempts; /* failed in a row */
    uint64_t incarnation; /* of the daemon that is connected: another one after each start */
    bool ended; /* the daemon that was connected last has, or may have, and its machine lives: that
                 * refuses, another one has begun, or the connection ended before both planes were
                 * there */
    uint32_t connection; /* how many there have been, with the one that is there */
    uint64_t session;    /* what the next connection may go on with; 0: nothing */
    uint64_t away_ns;    /* until then it may; UINT64_MAX: both planes are there, or session is 0 */
    uint64_t since_ns;   /* that is away: since then; good while away_ns is */
    uint32_t recovered;  /* how often it was away and came back */
    uint64_t recovered_ns;                /* and how long it was away, the last time */
    char reason[MEMBERSHIP_REASON_BYTES]; /* why it is down; "" at first */
};

struct membership {
    uint32_t count; /* roster size */
    uint32_t self;
    uint64_t heartbeat_ns;
    uint64_t silence_ns; /* a peer that is silent for so long is gone */
    struct membership_peer *peers;
};

enum membership_action {
    MEMBERSHIP_CONNECT, /* start an attempt; membership_lost or membership_connected ends it */
    MEMBERSHIP_PING,
    MEMBERSHIP_SILENT, /* nothing heard for silence_ns: end the connection, membership_lost */
    MEMBERSHIP_GONE, /* it has been away for too long: end what there is, membership_forget, and say
                      * so */
    MEMBERSHIP_KNOCK, /* the peer connects, and is away: whether its machine refuses connections,
                       * since the daemon has ended; membership_knocked ends it */
};

/* ERR_MEMORY. */
int membership_init(struct membership *membership, uint32_t count, uint32_t self,
                    uint32_t heartbeat_ms, uint32_t silence_ms, uint64_t now_ns);
void membership_clear(struct membership *membership);

/* Answers to a new connection that a peer has made. */
enum membership_claim {
    MEMBERSHIP_TAKE,   /* it is the node's; an older one is over */
    MEMBERSHIP_WAIT,   /* for word on the older one, or its end */
    MEMBERSHIP_REFUSE, /* the older one lives: there are two daemons of that name */
};

/* A daemon that has connected before and has a new connection may have lost the old one without our
 * knowing: MEMBERSHIP_TAKE. If it is another daemon, it may have been started anew, or there are
 * two of that name: MEMBERSHIP_WAIT. Then the older one is to be asked for word. */
enum membership_claim membership_claim(const struct membership *membership, uint32_t node,
                                       uint64_t incarnation);
/* Decide again, later, about a connection that waits since waits_ns. */
enum membership_claim membership_settle(const struct membership *membership, uint32_t node,
                                        uint64_t waits_ns);

void membership_connected(struct membership *membership, uint32_t node, uint64_t incarnation,
                          uint64_t now_ns);
/* Whether what is said of this connection still counts: the last one, and it is there. */
bool membership_has(const struct membership *membership, uint32_t node, uint32_t connection);
void membership_heard(struct membership *membership, uint32_t node, uint64_t now_ns);
void membership_up(struct membership *membership, uint32_t node, uint64_t now_ns);
/* Recovery, that is a connection that breaks while both daemons live, and the next one that goes on
 * with its session. A session begins with a new connection, or (0) does not. */
void membership_begin_session(struct membership *membership, uint32_t node, uint64_t session);
/* Note that the connection has broken; membership_lost follows. Return whether the peer is away
 * from now on, that is for silence_ns at most since both planes were there. While it is away,
 * others are told that it is there. */
bool membership_away(struct membership *membership, uint32_t node, uint64_t now_ns);
bool membership_is_away(const struct membership *membership, uint32_t node);
/* How long an attempt to connect may take, of limit_ns otherwise: there is time for several while
 * the peer is away. */
uint64_t membership_attempt_ns(const struct membership *membership, uint32_t node,
                               uint64_t limit_ns);
/* The session cannot go on: a peer that is away is MEMBERSHIP_GONE at once. */
void membership_cannot_recover(struct membership *membership, uint32_t node, uint64_t now_ns);
/* The session is over. */
void membership_forget(struct membership *membership, uint32_t node);
/* A knock is over that was not refused. */
void membership_knocked(struct membership *membership, uint32_t node, uint64_t now_ns);
/* The daemon of the last connection has ended, which is more than that it cannot be reached. */
void membership_ended(struct membership *membership, uint32_t node);
/* The connection is over, or an attempt failed. */
void membership_lost(struct membership *membership, uint32_t node, uint64_t now_ns,
                     const char *reason);

/* Take the next thing that is due, until false. */
bool membership_next_action(struct membership *membership, uint64_t now_ns,
                            enum membership_action *action, uint32_t *node);
/* When membership_next_action has to be asked again; UINT64_MAX: never. */
uint64_t membership_deadline(const struct membership *membership);

const char *membership_state_name(enum membership_state state);

#endif
