/* Connections to the other daemons, whoever made them: their life, what is sent, the end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/control/ground/control_internal.h"

const char *control_peer_name(const struct control_peer *peer)
{
    return peer->node == CONTROL_NOBODY ? "a stranger"
                                        : peer->control->config->servers[peer->node].name;
}

void control_peer_free(struct control_peer *peer)
{
    struct control *control = peer->control;
    DL_DELETE(control->peers, peer);
    admission_leave(&control->admission, &peer->place);
    control->contested -= peer->state == PEER_CONTESTED;
    if (peer->node != CONTROL_NOBODY && control->peer_of[peer->node] == peer)
        control->peer_of[peer->node] = NULL;
    if (peer->resolving)
        evdns_getaddrinfo_cancel(peer->resolving);
    if (peer->connect_event)
        event_free(peer->connect_event);
    if (peer->fd >= 0)
        close(peer->fd);
    if (peer->stream)
        control_stream_free(peer->stream);
    if (peer->timer)
        event_free(peer->timer);
    explicit_bzero(&peer->secrets, sizeof(peer->secrets));
    explicit_bzero(&peer->fabric, sizeof(peer->fabric));
    free(peer);
}

void control_peer_lose(struct control *control, uint32_t node, const char *reason)
{
    if (control->config->recovery)
        log_throttled(control->log, log_throttle_of(&control->node_lines, node), clock_now_ns(),
                      LOG_LEVEL_WARNING, "node %s is lost: %s", control->config->servers[node].name,
                      reason);
    membership_forget(&control->membership, node);
    conversation_clear(&control->conversations[node]);
    control_command(control,
                    &(struct engine_command){.kind = COMMAND_PEER_DISCONNECT, .peer = node});
    coordinator_peer_down(control->coordinator, clock_now_ns(), node, reason);
}

/* The node was open, or away and cannot be reached. */
static void peer_over(struct control *control, uint32_t node, bool away, bool open,
                      const char *reason)
{
    if (!away) {
        control_peer_lose(control, node, reason);
        return;
    }
    if (!open)
        return;
    log_throttled(control->log, log_throttle_of(&control->node_lines, node), clock_now_ns(),
                  LOG_LEVEL_WARNING, "node %s is away: its jobs wait %u ms for another connection",
                  control->config->servers[node].name, control->config->peer_ms);
    control_command(control, &(struct engine_command){
                                 .kind = COMMAND_PEER_DISCONNECT, .peer = node, .recovers = true});
    coordinator_peer_away(control->coordinator, clock_now_ns(), node, reason);
}

void control_peer_gone(struct control *control, uint32_t node, const char *reason)
{
    struct control_peer *peer = control->peer_of[node];
    if (peer && peer->state == PEER_OPEN)
        control_peer_finish_as(peer, reason, false);
    else
        control_peer_lose(control, node, reason);
}

/* A knock: whoever connects to this node may have come back meanwhile. */
static void peer_knocked(struct control_peer *peer, const char *reason, bool refused)
{
    struct control *control = peer->control;
    uint32_t node = peer->node;
    char text[MEMBERSHIP_REASON_BYTES];
    snprintf(text, sizeof(text), "%s", reason);
    control_peer_free(peer);
    bool waits = membership_is_away(&control->membership, node) &&
                 control->membership.peers[node].state == MEMBERSHIP_DOWN;
    if (waits && refused)
        control_peer_lose(control, node, text);
    else if (waits)
        membership_knocked(&control->membership, node, clock_now_ns());
}

void control_peer_finish(struct control_peer *peer, const char *reason)
{
    control_peer_finish_as(peer, reason, true);
}

void control_peer_finish_as(struct control_peer *peer, const char *reason, bool recovers)
{
    struct control *control = peer->control;
    uint32_t node = peer->node;
    if (peer->knocks) {
        peer_knocked(peer, reason, !recovers);
        return;
    }
    /* A name is only a claim until the other side has authenticated. */
    bool proven = peer->state >= PEER_FABRIC && !control->peer_of[node];
    bool ours = node != CONTROL_NOBODY && (proven || control->peer_of[node] == peer);
    bool open = ours && peer->state == PEER_OPEN;
    /* An attempt that fails for the same reason again is not news. */
    bool news = !ours || open || strcmp(control->membership.peers[node].reason, reason) != 0;
    log_throttled(control->log,
                  ours ? log_throttle_of(&control->node_lines, node)
                       : &control->stranger_lines[peer->place.known],
                  clock_now_ns(), news ? LOG_LEVEL_WARNING : LOG_LEVEL_DEBUG,
                  "connection with %s%s (%s) is over: %s", node == CONTROL_NOBODY ? "" : "node ",
                  control_peer_name(peer), peer->address, reason);
    char text[MEMBERSHIP_REASON_BYTES];
    snprintf(text, sizeof(text), "%s", reason);
    control_peer_free(peer);
    if (!ours)
        return;
    bool away = open && recovers ? membership_away(&control->membership, node, clock_now_ns())
                                 : membership_is_away(&control->membership, node);
    membership_lost(&control->membership, node, clock_now_ns(), text);
    if (open || away)
        peer_over(control, node, away && recovers, open, text);
}

void control_peer_end_node(struct control *control, uint32_t node, const char *reason,
                           bool recovers)
{
    if (control->peer_of[node])
        control_peer_finish_as(control->peer_of[node], reason, recovers);
}

void control_peer_finish_node(struct control *control, uint32_t node, const char *reason,
                              bool recovers)
{
    struct control_peer *peer = control->peer_of[node];
    if (!peer)
        return;
    struct control_stream *stream = peer->stream;
    peer->stream = NULL;
    if (stream)
        control_stream_finish(stream);
    control_peer_finish_as(peer, reason, recovers);
}

static void peer_on_timeout(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct control_peer *peer = argument;
    struct control *control = peer->control;
    static const char *const waits[] = {
        [PEER_RESOLVING] = "its address could not be looked up in time",
        [PEER_CONNECTING] = "no answer to the connection request",
        [PEER_HELLO] = "it has not said hello in time",
        [PEER_AUTH] = "it has not authenticated in time",
        [PEER_FABRIC] = "it has not given its fabric address in time",
        [PEER_CONTESTED] = "another daemon of its name has neither answered nor gone in time",
        [PEER_OPEN] = "",
    };
    if (peer->state != PEER_OPEN)
        control_peer_finish(peer, waits[peer->state]);
    control_update_later(control);
}

struct control_peer *control_peer_create(struct control *control, uint32_t node, bool connects)
{
    struct control_peer *peer = calloc(1, sizeof(*peer));
    if (!peer)
        return NULL;
    peer->control = control;
    peer->node = node;
    peer->connects = connects;
    peer->fd = -1;
    DL_APPEND(control->peers, peer);
    peer->timer = evtimer_new(control->base, peer_on_timeout, peer);
    uint64_t limit_us = CONTROL_HANDSHAKE_S * 1000000ull;
    if (connects)
        limit_us = membership_attempt_ns(&control->membership, node, limit_us * 1000) / 1000;
    struct timeval limit = {(time_t)(limit_us / 1000000), (suseconds_t)(limit_us % 1000000)};
    if (!peer->timer || evtimer_add(peer->timer, &limit) < 0) {
        control_peer_free(peer);
        return NULL;
    }
    auth_random(peer->own_nonce, sizeof(peer->own_nonce));
    auth_random(peer->own_token, sizeof(peer->own_token));
    return peer;
}

/* Keep the message until the node has heard it. If it cannot be kept, it cannot be said again: then
 * the node is lost with its connection, as without recovery. */
static void peer_keep(struct control *control, uint32_t node, const struct message *message)
{
    size_t length = 0;
    char *line = message_encode(message, &length);
    bool kept = line && conversation_say(&control->conversations[node], message->uid, line, length);
    free(line);
    if (kept)
        return;
    log_throttled(control->log, log_throttle_of(&control->node_lines, node), clock_now_ns(),
                  LOG_LEVEL_WARNING, "what node %s may not have heard cannot be kept",
                  control->config->servers[node].name);
    /* Not here: whoever sends does not expect the node to go. */
    membership_cannot_recover(&control->membership, node, clock_now_ns());
    conversation_keep_nothing(&control->conversations[node]);
}

void control_peer_send(struct control *control, uint32_t node, const struct message *message)
{
    struct control_peer *peer = control->peer_of[node];
    bool open = peer && peer->state == PEER_OPEN && peer->stream;
    struct message ping = {.type = MESSAGE_PING, .heard = control->conversations[node].heard};
    if (message->type == MESSAGE_PING)
        message = &ping;
    else if (control->membership.peers[node].session != 0)
        peer_keep(control, node, message);
    if (open)
        control_stream_send_message(peer->stream, message);
}

void control_peer_say_again(struct control_peer *peer)
{
    const struct conversation_line *line = peer->control->conversations[peer->node].first;
    for (; line; line = line->next)
        control_stream_send(peer->stream, line->text, line->length);
}

uint64_t control_peer_heard_ns(const struct control *control, uint32_t node, uint64_t now_ns)
{
    const struct control_peer *peer = control->peer_of[node];
    return peer && peer->state == PEER_OPEN && peer->stream
               ? control_stream_heard_ns(peer->stream, now_ns)
               : 0;
}
