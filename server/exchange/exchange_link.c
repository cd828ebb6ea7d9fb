#include "server/exchange/exchange_link.h"

#include <assert.h>
#include <inttypes.h>

#include "server/exchange/exchange_group.h"
#include "server/exchange/ground/post.h"
#include "server/exchange/ground/session.h"

#define SIGNS 4 /* while silence_ns passes */
/* One tick counts silence_ns / STEPS at most: a peer is silent only after so many rounds of
 * reading. */
#define STEPS 8

int link_check(const struct wire_header *header, struct error *error)
{
    if (header->payload_bytes > 0 || header->job != 0 || header->sequence != 0 ||
        header->group != 0 || header->chunk != 0)
        return error_set(error, ERR_PROTOCOL, "a sign of life (type %u) that says something",
                         header->type);
    return 0;
}

void link_begin(struct exchange *exchange, uint32_t node)
{
    struct exchange_link *link = &exchange->peers[node].link;
    link->sent = false;
    link->heard = 0;
    link->silent_ns = link->quiet_ns = link->wanted_ns = 0;
    peer_stir(exchange, node);
}

/* --- who is waited for ------------------------------------------------------------------------ */

static void link_wait(struct exchange *exchange, const uint32_t *nodes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        exchange->peers[nodes[i]].link.waits = true;
        peer_stir(exchange, nodes[i]);
    }
}

/* An owner hears from all nodes with ranks, and those hear from all owners. */
static void link_wait_for_group(const struct exchange_group *group)
{
    struct exchange *exchange = group->job->exchange;
    const struct members *members = &group->members;
    const struct owners *owners = &group->owners;
    if (members->single || !exchange_group_waits(group))
        return;
    if (owners->self != NO_INDEX)
        link_wait(exchange, members->nodes, members->node_count);
    if (members->self_node != NO_INDEX)
        link_wait(exchange, owners->nodes, owners->count);
}

static void links_find_waits(struct exchange *exchange)
{
    for (uint32_t node = 0;
         (node = peer_stirred_from(exchange, node)) < exchange->options.node_count; node++)
        exchange->peers[node].link.waits = false;
    for (const struct exchange_job *job = exchange->jobs; job; job = job->next) {
        for (const struct exchange_group *group = job->groups; group; group = group->next) {
            if (!group->failed && !group->closing)
                link_wait_for_group(group);
        }
    }
}

/* --- signs ------------------------------------------------------------------------------------ */

static void link_send(struct exchange *exchange, uint32_t node)
{
    struct exchange_peer *peer = &exchange->peers[node];
    struct exchange_send *send = &peer->link.send;
    struct wire_header header = {.type = peer->link.waits ? WIRE_KEEPALIVE : WIRE_ALIVE,
                                 .token = peer->send_token};
    if (peer->session.on) {
        header.received = session_tell(exchange, node);
        peer->session.greeted = true;
    }
    *send = (struct exchange_send){.node = node};
    wire_encode_header(send->header, &header);
    peer->link.under_way = true;
    peer->link.quiet_ns = 0;
    exchange->options.io.send(exchange->options.io.context, send);
}

void link_sent(struct exchange *exchange, struct exchange_send *send)
{
    exchange->peers[send->node].link.under_way = false;
}

/* Whether the peer waits to be told what has come: since some has, or on a new connection. */
static bool link_owes(const struct exchange_session *session)
{
    return session->on && (session->untold > 0 || (session->suspended && !session->greeted));
}

static bool link_can_send(const struct exchange_peer *peer)
{
    bool there = !peer->session.suspended || peer->session.ready;
    return there && peer->link.groups > 0 && !peer->link.under_way;
}

int link_ready(struct exchange *exchange, uint32_t node, struct error *error)
{
    struct exchange_peer *peer = &exchange->peers[node];
    if (!peer->session.suspended)
        return 0;
    peer->session.ready = true;
    if (link_can_send(peer))
        link_send(exchange, node);
    return sends_go_on(exchange, node, error);
}

int link_take(struct exchange *exchange, uint32_t node, const struct wire_header *header,
              struct error *error)
{
    struct exchange_peer *peer = &exchange->peers[node];
    uint32_t window = exchange->options.window_chunks;
    int taken = session_take(exchange, node, header, error);
    if (taken < 0 || !peer->session.on)
        return taken;
    int result = sends_go_on(exchange, node, error);
    if (result < 0)
        return result;
    /* An answer says it, too, where there is one: half a window gives that time. */
    if (peer->session.untold >= (window > 4 ? window / 2 : 2) && link_can_send(peer))
        link_send(exchange, node);
    return taken;
}

static void link_tick(struct exchange *exchange, uint32_t node, uint64_t passed_ns)
{
    struct exchange_link *link = &exchange->peers[node].link;
    uint64_t silence_ns = exchange->options.silence_ns;
    if (link->heard == LINK_HEARD_WORK)
        link->wanted_ns = silence_ns;
    else
        link->wanted_ns -= passed_ns < link->wanted_ns ? passed_ns : link->wanted_ns;
    link->silent_ns = link->heard || !link->waits ? 0 : link->silent_ns + passed_ns;
    link->quiet_ns = link->sent ? 0 : link->quiet_ns + passed_ns;
    link->heard = 0;
    link->sent = false;
    if (link->silent_ns >= silence_ns) {
        exchange->options.io.peer_silent(exchange->options.io.context, node, "no sign of life");
        return;
    }
    if (session_stalls(exchange, node, passed_ns)) {
        exchange->options.io.peer_silent(exchange->options.io.context, node, "no acknowledgement");
        return;
    }
    const struct exchange_peer *peer = &exchange->peers[node];
    bool due = (link->waits || link->wanted_ns > 0) && link->quiet_ns >= silence_ns / SIGNS;
    if ((due || link_owes(&peer->session)) && link_can_send(peer))
        link_send(exchange, node);
    if (peer->session.on)
        sends_flush(exchange, node); /* memory may have been lacking */
}

/* Nothing would be different after another tick, until something stirs the peer. */
static bool link_is_idle(const struct exchange *exchange, uint32_t node)
{
    const struct exchange_peer *peer = &exchange->peers[node];
    const struct exchange_link *link = &peer->link;
    if (link->waits || receive_is_short(exchange, node))
        return false;
    if (!peer->up || node == exchange->options.self) /* link_begin stirs it */
        return true;
    return !link->heard && !link->sent && link->wanted_ns == 0 && link->silent_ns == 0 &&
           link->quiet_ns >= exchange->options.silence_ns / SIGNS && !peer->session.on;
}

void links_check_invariants(const struct exchange *exchange)
{
    for (uint32_t node = 0; node < exchange->options.node_count; node++)
        assert(peer_stirred_from(exchange, node) == node || link_is_idle(exchange, node));
}

void links_tick(struct exchange *exchange, uint64_t now_ns)
{
    uint64_t passed_ns = now_ns - exchange->link_ns;
    uint64_t most_ns = exchange->options.silence_ns / STEPS;
    exchange->link_ns = now_ns;
    if (most_ns == 0)
        return;
    links_find_waits(exchange);
    for (uint32_t node = 0;
         (node = peer_stirred_from(exchange, node)) < exchange->options.node_count; node++) {
        if (exchange->peers[node].up && node != exchange->options.self)
            link_tick(exchange, node, passed_ns < most_ns ? passed_ns : most_ns);
        if (link_is_idle(exchange, node))
            bits_clear(exchange->stirred, node);
    }
}
