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

/* The connection is over. What was up goes down; an attempt of ours is made again later. */
void control_peer_finish(struct control_peer *peer, const char *reason)
{
    struct control *control = peer->control;
    uint32_t node = peer->node;
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
    membership_lost(&control->membership, node, clock_now_ns(), text);
    if (!open)
        return;
    control_command(control,
                    &(struct engine_command){.kind = COMMAND_PEER_DISCONNECT, .peer = node});
    coordinator_peer_down(control->coordinator, clock_now_ns(), node, text);
}

void control_peer_end_node(struct control *control, uint32_t node, const char *reason)
{
    if (control->peer_of[node])
        control_peer_finish(control->peer_of[node], reason);
}

void control_peer_finish_node(struct control *control, uint32_t node, const char *reason)
{
    struct control_peer *peer = control->peer_of[node];
    if (!peer)
        return;
    struct control_stream *stream = peer->stream;
    peer->stream = NULL;
    if (stream)
        control_stream_finish(stream);
    control_peer_finish(peer, reason);
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
    struct timeval limit = {CONTROL_HANDSHAKE_S, 0};
    if (!peer->timer || evtimer_add(peer->timer, &limit) < 0) {
        control_peer_free(peer);
        return NULL;
    }
    auth_random(peer->own_nonce, sizeof(peer->own_nonce));
    auth_random(peer->own_token, sizeof(peer->own_token));
    return peer;
}

void control_peer_send(struct control *control, uint32_t node, const struct message *message)
{
    struct control_peer *peer = control->peer_of[node];
    if (peer && peer->state == PEER_OPEN && peer->stream)
        control_stream_send_message(peer->stream, message);
}

uint64_t control_peer_heard_ns(const struct control *control, uint32_t node, uint64_t now_ns)
{
    const struct control_peer *peer = control->peer_of[node];
    return peer && peer->state == PEER_OPEN && peer->stream
               ? control_stream_heard_ns(peer->stream, now_ns)
               : 0;
}
