#include "server/jobs/membership.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/error.h"

#define MS 1000000ull
/* While a peer is away there is time for so many attempts that hang, and so many waits. */
#define ATTEMPTS_WHILE_AWAY 6u
#define WAITS_WHILE_AWAY 30u
#define KNOCK_LEAST_NS (2 * MEMBERSHIP_RETRY_LEAST_NS)

/* The side with the smaller number. */
static bool membership_connects(const struct membership *membership, uint32_t node)
{
    return membership->self < node;
}

int membership_init(struct membership *membership, uint32_t count, uint32_t self,
                    uint32_t heartbeat_ms, uint32_t silence_ms, uint64_t now_ns)
{
    struct membership_peer *peers = calloc(count, sizeof(*peers));
    if (!peers)
        return ERR_MEMORY;
    *membership = (struct membership){
        .count = count,
        .self = self,
        .heartbeat_ns = heartbeat_ms * MS,
        .silence_ns = silence_ms * MS,
        .peers = peers,
    };
    for (uint32_t node = 0; node < count; node++) {
        peers[node].connect_ns = membership_connects(membership, node) ? now_ns : UINT64_MAX;
        peers[node].away_ns = UINT64_MAX;
    }
    return 0;
}

void membership_clear(struct membership *membership)
{
    free(membership->peers);
    *membership = (struct membership){0};
}

enum membership_claim membership_claim(const struct membership *membership, uint32_t node,
                                       uint64_t incarnation)
{
    const struct membership_peer *peer = &membership->peers[node];
    bool other = peer->state != MEMBERSHIP_DOWN && peer->incarnation != incarnation;
    return other ? MEMBERSHIP_WAIT : MEMBERSHIP_TAKE;
}

enum membership_claim membership_settle(const struct membership *membership, uint32_t node,
                                        uint64_t waits_ns)
{
    const struct membership_peer *peer = &membership->peers[node];
    if (peer->state == MEMBERSHIP_DOWN)
        return MEMBERSHIP_TAKE;
    return peer->heard_ns > waits_ns ? MEMBERSHIP_REFUSE : MEMBERSHIP_WAIT;
}

void membership_connected(struct membership *membership, uint32_t node, uint64_t incarnation,
                          uint64_t now_ns)
{
    struct membership_peer *peer = &membership->peers[node];
    peer->state = MEMBERSHIP_CONNECTED;
    peer->connection++;
    peer->incarnation = incarnation;
    peer->ended = false;
    peer->heard_ns = now_ns;
    peer->ping_ns = now_ns + membership->heartbeat_ns;
    peer->connect_ns = UINT64_MAX;
}

bool membership_has(const struct membership *membership, uint32_t node, uint32_t connection)
{
    const struct membership_peer *peer = &membership->peers[node];
    return peer->state != MEMBERSHIP_DOWN && peer->connection == connection;
}

void membership_heard(struct membership *membership, uint32_t node, uint64_t now_ns)
{
    membership->peers[node].heard_ns = now_ns;
}

void membership_up(struct membership *membership, uint32_t node, uint64_t now_ns)
{
    struct membership_peer *peer = &membership->peers[node];
    if (peer->state != MEMBERSHIP_CONNECTED)
        return;
    peer->state = MEMBERSHIP_UP;
    if (peer->away_ns != UINT64_MAX) {
        peer->recovered++;
        peer->recovered_ns = now_ns - peer->since_ns;
    }
    peer->away_ns = UINT64_MAX;
    peer->attempts = 0;
    peer->reason[0] = '\0';
}

void membership_begin_session(struct membership *membership, uint32_t node, uint64_t session)
{
    membership->peers[node].session = session;
    membership->peers[node].away_ns = UINT64_MAX;
    if (!membership_connects(membership, node))
        membership->peers[node].connect_ns = UINT64_MAX;
}

bool membership_away(struct membership *membership, uint32_t node, uint64_t now_ns)
{
    struct membership_peer *peer = &membership->peers[node];
    if (peer->session == 0)
        return false;
    if (peer->state == MEMBERSHIP_UP) {
        peer->since_ns = now_ns;
        peer->away_ns = now_ns + membership->silence_ns;
    }
    /* A peer that was never there on both planes is not waited for. The end of its connection shows
     * that its machine lives. */
    if (peer->away_ns == UINT64_MAX)
        peer->ended = true;
    return peer->away_ns != UINT64_MAX;
}

bool membership_is_away(const struct membership *membership, uint32_t node)
{
    return membership->peers[node].away_ns != UINT64_MAX;
}

uint64_t membership_attempt_ns(const struct membership *membership, uint32_t node,
                               uint64_t limit_ns)
{
    uint64_t part_ns = membership->silence_ns / ATTEMPTS_WHILE_AWAY;
    return membership_is_away(membership, node) && part_ns < limit_ns ? part_ns : limit_ns;
}

void membership_cannot_recover(struct membership *membership, uint32_t node, uint64_t now_ns)
{
    struct membership_peer *peer = &membership->peers[node];
    peer->session = 0;
    if (peer->away_ns != UINT64_MAX)
        peer->away_ns = now_ns;
}

void membership_forget(struct membership *membership, uint32_t node)
{
    membership_begin_session(membership, node, 0);
}

/* A peer that is away is lost for good when its time is over: a wait takes little of that. */
static uint64_t membership_most_wait_ns(const struct membership *membership, uint32_t node)
{
    uint64_t part_ns = membership->silence_ns / WAITS_WHILE_AWAY;
    return membership_is_away(membership, node) && part_ns < MEMBERSHIP_RETRY_MOST_NS
               ? part_ns
               : MEMBERSHIP_RETRY_MOST_NS;
}

/* When to try, or to knock: that comes after the attempt that the peer makes if it lives. */
static void membership_plan(struct membership *membership, uint32_t node, uint64_t now_ns)
{
    struct membership_peer *peer = &membership->peers[node];
    bool connects = membership_connects(membership, node);
    if (!connects && !membership_is_away(membership, node))
        return;
    uint64_t wait_ns = connects ? MEMBERSHIP_RETRY_LEAST_NS : KNOCK_LEAST_NS,
             most_ns = membership_most_wait_ns(membership, node);
    for (uint32_t i = 0; i < peer->attempts && wait_ns < most_ns; i++)
        wait_ns *= 2;
    peer->attempts++;
    peer->connect_ns = now_ns + (wait_ns < most_ns ? wait_ns : most_ns);
}

void membership_lost(struct membership *membership, uint32_t node, uint64_t now_ns,
                     const char *reason)
{
    struct membership_peer *peer = &membership->peers[node];
    peer->state = MEMBERSHIP_DOWN;
    snprintf(peer->reason, sizeof(peer->reason), "%s", reason);
    membership_plan(membership, node, now_ns);
}

void membership_ended(struct membership *membership, uint32_t node)
{
    membership->peers[node].ended = true;
}

void membership_knocked(struct membership *membership, uint32_t node, uint64_t now_ns)
{
    if (membership->peers[node].state == MEMBERSHIP_DOWN)
        membership_plan(membership, node, now_ns);
}

/* When a peer is lost whose next connection is there, and not on the fabric: that has the time that
 * an attempt has. */
static uint64_t membership_gone_ns(const struct membership *membership, uint32_t node)
{
    uint64_t away_ns = membership->peers[node].away_ns;
    return away_ns == UINT64_MAX ? away_ns : away_ns + membership->silence_ns / ATTEMPTS_WHILE_AWAY;
}

bool membership_next_action(struct membership *membership, uint64_t now_ns,
                            enum membership_action *action, uint32_t *node)
{
    for (uint32_t i = 0; i < membership->count; i++) {
        struct membership_peer *peer = &membership->peers[i];
        if (i == membership->self)
            continue;
        *node = i;
        if (peer->state == MEMBERSHIP_DOWN && peer->away_ns <= now_ns) {
            peer->away_ns = UINT64_MAX; /* once */
            *action = MEMBERSHIP_GONE;
            return true;
        }
        if (peer->state == MEMBERSHIP_DOWN) {
            if (peer->connect_ns > now_ns)
                continue;
            peer->connect_ns = UINT64_MAX;
            *action = membership_connects(membership, i) ? MEMBERSHIP_CONNECT : MEMBERSHIP_KNOCK;
            return true;
        }
        if (membership_gone_ns(membership, i) <= now_ns) {
            peer->away_ns = UINT64_MAX;
            *action = MEMBERSHIP_GONE;
            return true;
        }
        if (now_ns >= peer->heard_ns + membership->silence_ns) {
            /* Once; the owner reports the loss. */
            peer->heard_ns = now_ns;
            *action = MEMBERSHIP_SILENT;
            return true;
        }
        if (now_ns >= peer->ping_ns) {
            peer->ping_ns = now_ns + membership->heartbeat_ns;
            *action = MEMBERSHIP_PING;
            return true;
        }
    }
    return false;
}

uint64_t membership_deadline(const struct membership *membership)
{
    uint64_t deadline_ns = UINT64_MAX;
    for (uint32_t i = 0; i < membership->count; i++) {
        const struct membership_peer *peer = &membership->peers[i];
        if (i == membership->self)
            continue;
        uint64_t due_ns = peer->connect_ns < peer->away_ns ? peer->connect_ns : peer->away_ns;
        if (peer->state != MEMBERSHIP_DOWN) {
            uint64_t silent_ns = peer->heard_ns + membership->silence_ns;
            uint64_t gone_ns = membership_gone_ns(membership, i);
            due_ns = peer->ping_ns < silent_ns ? peer->ping_ns : silent_ns;
            due_ns = gone_ns < due_ns ? gone_ns : due_ns;
        }
        if (due_ns < deadline_ns)
            deadline_ns = due_ns;
    }
    return deadline_ns;
}

const char *membership_state_name(enum membership_state state)
{
    static const char *const names[] = {"down", "connected", "up"};
    return names[state];
}
