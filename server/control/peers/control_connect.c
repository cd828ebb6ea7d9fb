/* Connections between daemons that come to be: accepted, or made by us. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server/control/ground/control_internal.h"

/* --- accepting */

static struct control_peer *connect_peer_of(struct admission_place *place)
{
    return (void *)((char *)place - offsetof(struct control_peer, place));
}

bool control_connect_squeeze(struct control *control, int *fd, const struct sockaddr *address)
{
    struct admission_source source;
    uint64_t random;
    control_source_of(address, &source);
    auth_random(&random, sizeof(random));
    struct admission_place *gone = admission_yield(&control->admission, &source, random);
    if (!gone)
        return admission_knows(&control->admission, &source);
    control_peer_finish(connect_peer_of(gone), "descriptors are short, and it had to go");
    int lower = fcntl(*fd, F_DUPFD_CLOEXEC, 0);
    if (lower >= 0) {
        close(lower < *fd ? *fd : lower);
        *fd = lower < *fd ? lower : *fd;
    }
    return true;
}

/* Get a place for the connection; another one may lose its own to it. False: there is none, and the
 * peer is freed. */
static bool connect_admit(struct control_peer *peer, const struct sockaddr *address)
{
    struct control *control = peer->control;
    struct admission_source source;
    uint64_t random;
    control_source_of(address, &source);
    auth_random(&random, sizeof(random));
    struct admission_place *gone =
        admission_enter(&control->admission, &peer->place, &source, random);
    if (!gone)
        return true;
    struct control_peer *victim = connect_peer_of(gone);
    bool admitted = victim != peer;
    control_peer_finish(victim, "too many have not authenticated, and one of them had to go");
    return admitted;
}

void control_connect_accept(struct control *control, int fd, const struct sockaddr *address)
{
    char text[CONFIG_ADDRESS_BYTES];
    control_address_text(address, text, sizeof(text));
    if (!credentials_present(control->options.credentials) &&
        !control_address_is_loopback(address)) {
        log_throttled(control->log, &control->stranger_lines[false], clock_now_ns(),
                      LOG_LEVEL_WARNING,
                      "connection from %s is closed: without a secret_file only loopback "
                      "addresses are served",
                      text);
        close(fd);
        return;
    }
    struct control_peer *peer = control_peer_create(control, CONTROL_NOBODY, false);
    if (!peer) {
        close(fd);
        return;
    }
    snprintf(peer->address, sizeof(peer->address), "%s", text);
    if (!connect_admit(peer, address))
        close(fd);
    else if (!control_handshake_start(peer, fd))
        control_peer_free(peer);
}

/* --- connecting */

/* Without an answer; a machine that refuses the connection lives, and its daemon has ended. */
static void connect_failed(struct control_peer *peer, int cause)
{
    if (cause == ECONNREFUSED)
        membership_ended(&peer->control->membership, peer->node);
    control_peer_finish_as(peer, strerror(cause), cause != ECONNREFUSED);
}

static void connect_on_connected(evutil_socket_t fd, short what, void *argument)
{
    (void)what;
    struct control_peer *peer = argument;
    struct control *control = peer->control;
    int cause = 0;
    socklen_t length = sizeof(cause);
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &cause, &length);
    if (cause != 0 || peer->knocks) {
        connect_failed(peer, cause);
    } else {
        event_free(peer->connect_event);
        peer->connect_event = NULL;
        peer->fd = -1;
        if (control_handshake_start(peer, fd))
            control_handshake_greet(peer);
        else
            control_peer_finish(peer, "out of memory");
    }
    control_update_later(control);
}

static void connect_open_socket(struct control_peer *peer, const struct sockaddr *address,
                                socklen_t length)
{
    struct control *control = peer->control;
    control_address_text(address, peer->address, sizeof(peer->address));
    if (!credentials_present(control->options.credentials) &&
        !control_address_is_loopback(address)) {
        control_peer_finish(peer,
                            "its address is not a loopback address: that needs a secret_file");
        return;
    }
    peer->state = PEER_CONNECTING;
    peer->fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (peer->fd < 0 || (connect(peer->fd, address, length) < 0 && errno != EINPROGRESS)) {
        connect_failed(peer, errno);
        return;
    }
    peer->connect_event = event_new(control->base, peer->fd, EV_WRITE, connect_on_connected, peer);
    if (!peer->connect_event || event_add(peer->connect_event, NULL) < 0)
        control_peer_finish(peer, "out of memory");
}

static void connect_on_resolved(int result, struct evutil_addrinfo *found, void *argument)
{
    if (result == EVUTIL_EAI_CANCEL)
        return; /* the peer is gone */
    struct control_peer *peer = argument;
    struct control *control = peer->control;
    peer->resolving = NULL;
    if (result != 0) {
        control_peer_finish(peer, evutil_gai_strerror(result));
    } else {
        connect_open_socket(peer, found->ai_addr, (socklen_t)found->ai_addrlen);
        evutil_freeaddrinfo(found);
    }
    control_update_later(control);
}

/* A link-local address has the interface of this node behind it. */
static void connect_has_no_interface(struct control_peer *peer, const char *address)
{
    char text[256];
    snprintf(text, sizeof(text),
             "%.60s: this node has no interface %.16s; behind the %% in /servers/%" PRIu32
             "/address write the one by which it reaches that node",
             address, strchr(address, '%') + 1, peer->node);
    control_peer_finish(peer, text);
}

/* Begin the attempt: look the address up, and connect. The peer may be freed. */
static void connect_begin(struct control_peer *peer)
{
    struct control *control = peer->control;
    const struct config_server *server = &control->config->servers[peer->node];
    snprintf(peer->address, sizeof(peer->address), "%s:%u", server->address, server->port);
    struct sockaddr_storage address;
    char port[8];
    snprintf(port, sizeof(port), "%u", server->port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *found;
    if (getaddrinfo(server->address, port, &hints, &found) == 0) {
        socklen_t length = found->ai_addrlen;
        memcpy(&address, found->ai_addr, length);
        freeaddrinfo(found);
        connect_open_socket(peer, (struct sockaddr *)&address, length);
        return;
    }
    if (strchr(server->address, '%')) {
        connect_has_no_interface(peer, server->address);
        return;
    }
    /* A name: looked up without blocking, or heartbeats would wait for it. */
    if (!control_source_resolver(control)) {
        control_peer_finish(peer, "names cannot be looked up here");
        return;
    }
    struct evutil_addrinfo name_hints = {.ai_socktype = SOCK_STREAM,
                                         .ai_flags = EVUTIL_AI_NUMERICSERV};
    struct evdns_getaddrinfo_request *request = evdns_getaddrinfo(
        control->dns, server->address, port, &name_hints, connect_on_resolved, peer);
    /* NULL: it was answered at once, and the peer may be gone. */
    if (request)
        peer->resolving = request;
}

void control_connect_node(struct control *control, uint32_t node)
{
    struct control_peer *peer = control_peer_create(control, node, true);
    if (!peer) {
        membership_lost(&control->membership, node, clock_now_ns(), "out of memory");
        return;
    }
    control->peer_of[node] = peer;
    connect_begin(peer);
}

void control_connect_knock(struct control *control, uint32_t node)
{
    struct control_peer *peer = control_peer_create(control, node, true);
    if (!peer) {
        membership_knocked(&control->membership, node, clock_now_ns());
        return;
    }
    peer->knocks = true;
    connect_begin(peer);
}
