#include "server/jobs/membership.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/error.h"

#define MS 1000000ull

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
    for (uint32_t node = 0; node < count; node++)
        peers[node].connect_ns = membership_connects(membership, node) ? now_ns : UINT64_MAX;
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

void membership_up(struct membership *membership, uint32_t node)
{
    struct membership_peer *peer = &membership->peers[node];
    if (peer->state != MEMBERSHIP_CONNECTED)
        return;
    peer->state = MEMBERSHIP_UP;
    peer->attempts = 0;
    peer->reason[0] = '\0';
}

void membership_lost(struct membership *membership, uint32_t node, uint64_t now_ns,
                     const char *reason)
{
    struct membership_peer *peer = &membership->peers[node];
    peer->state = MEMBERSHIP_DOWN;
    snprintf(peer->reason, sizeof(peer->reason), "%s", reason);
    if (!membership_connects(membership, node))
        return;
    uint64_t wait_ns = MEMBERSHIP_RETRY_LEAST_NS;
    for (uint32_t i = 0; i < peer->attempts && wait_ns < MEMBERSHIP_RETRY_MOST_NS; i++)
        wait_ns *= 2;
    peer->attempts++;
    peer->connect_ns =
        now_ns + (wait_ns < MEMBERSHIP_RETRY_MOST_NS ? wait_ns : MEMBERSHIP_RETRY_MOST_NS);
}

bool membership_next_action(struct membership *membership, uint64_t now_ns,
                            enum membership_action *action, uint32_t *node)
{
    for (uint32_t i = 0; i < membership->count; i++) {
        struct membership_peer *peer = &membership->peers[i];
        if (i == membership->self)
            continue;
        *node = i;
        if (peer->state == MEMBERSHIP_DOWN) {
            if (peer->connect_ns > now_ns)
                continue;
            peer->connect_ns = UINT64_MAX;
            *action = MEMBERSHIP_CONNECT;
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
        uint64_t due_ns = peer->connect_ns;
        if (peer->state != MEMBERSHIP_DOWN) {
            uint64_t silent_ns = peer->heard_ns + membership->silence_ns;
            due_ns = peer->ping_ns < silent_ns ? peer->ping_ns : silent_ns;
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
