/* Connections to the other daemons: making them, the handshake, the end. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/format/wire.h"
#include "server/control/control_internal.h"

#define NOBODY UINT32_MAX

static const char *peer_name(const struct control_peer *peer)
{
    return peer->node == NOBODY ? "a stranger" : peer->control->config->servers[peer->node].name;
}

void control_peer_free(struct control_peer *peer)
{
    struct control *control = peer->control;
    DL_DELETE(control->peers, peer);
    if (peer->node != NOBODY && control->peer_of[peer->node] == peer)
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
    free(peer);
}

/* The connection is over. What was up goes down; an attempt of ours is made again later. */
static void peer_finish(struct control_peer *peer, const char *reason)
{
    struct control *control = peer->control;
    uint32_t node = peer->node;
    bool ours = node != NOBODY && control->peer_of[node] == peer;
    bool open = ours && peer->state == PEER_OPEN;
    /* An attempt that fails for the same reason again is not news. */
    bool news = !ours || open || strcmp(control->membership.peers[node].reason, reason) != 0;
    log_write(control->log, news ? LOG_LEVEL_WARNING : LOG_LEVEL_DEBUG,
              "connection with %s%s (%s) is over: %s", peer->node == NOBODY ? "" : "node ",
              peer_name(peer), peer->address, reason);
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
        peer_finish(control->peer_of[node], reason);
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
        [PEER_OPEN] = "",
    };
    if (peer->state != PEER_OPEN)
        peer_finish(peer, waits[peer->state]);
    control_update_later(control);
}

static struct control_peer *peer_create(struct control *control, uint32_t node, bool connects)
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

static void peer_socket_set(int fd, const struct config *config)
{
    int one = 1, idle_s = 5, interval_s = 2, count = 3;
    unsigned limit_ms = config->peer_ms;
    /* Heartbeats decide; these only free a connection that heartbeats cannot get through. */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof(limit_ms));
}

/* --- the handshake */

static void peer_send_hello(struct control_peer *peer)
{
    struct control *control = peer->control;
    struct message hello = {.type = MESSAGE_HELLO, .protocol = MESSAGE_PROTOCOL};
    snprintf(hello.software, sizeof(hello.software), "%s", CONTROL_SOFTWARE);
    snprintf(hello.node, sizeof(hello.node), "%s", control->config->node);
    memcpy(hello.roster, control->roster_hash, sizeof(hello.roster));
    memcpy(hello.nonce, peer->own_nonce, sizeof(hello.nonce));
    control_stream_send_message(peer->stream, &hello);
}

static void peer_mac(const struct control_peer *peer, enum auth_role role,
                     uint8_t mac[AUTH_MAC_BYTES])
{
    const struct config *config = peer->control->config;
    const char *other = config->servers[peer->node].name;
    auth_mac(mac, peer->control->options.secret, role, peer->connects ? config->node : other,
             peer->connects ? other : config->node,
             peer->connects ? peer->own_nonce : peer->peer_nonce,
             peer->connects ? peer->peer_nonce : peer->own_nonce);
}

static void peer_send_auth(struct control_peer *peer)
{
    struct message auth = {.type = MESSAGE_AUTH};
    peer_mac(peer, peer->connects ? AUTH_CONNECTS : AUTH_ACCEPTS, auth.mac);
    control_stream_send_message(peer->stream, &auth);
}

static void peer_send_fabric(struct control_peer *peer)
{
    const struct control_engine *engine = &peer->control->options.engine;
    const struct transport_info *info = engine->transport_info(engine->engine);
    struct message fabric = {.type = MESSAGE_FABRIC};
    snprintf(fabric.provider, sizeof(fabric.provider), "%s", info->provider);
    snprintf(fabric.version, sizeof(fabric.version), "%s", info->version);
    fabric.message_bytes = peer->control->config->chunk_bytes + WIRE_HEADER_BYTES;
    engine->fabric_address(engine->engine, fabric.address, &fabric.address_bytes);
    memcpy(fabric.token, peer->own_token, sizeof(fabric.token));
    control_stream_send_message(peer->stream, &fabric);
}

/* Find out who it is, when it has connected to us. */
static int peer_identify(struct control_peer *peer, const struct message *message,
                         struct error *error)
{
    const struct config *config = peer->control->config;
    for (uint32_t node = 0; node < config->server_count; node++) {
        if (strcmp(config->servers[node].name, message->node) != 0)
            continue;
        if (peer->connects && node != peer->node)
            return error_set(error, ERR_PROTOCOL, "node %s answers at the address of node %s",
                             message->node, config->servers[peer->node].name);
        if (!peer->connects && node >= config->self)
            return error_set(error, ERR_PROTOCOL, "node %s is not to connect to node %s",
                             message->node, config->node);
        if (node != peer->node)
            peer->node = node;
        return 0;
    }
    return error_set(error, ERR_PROTOCOL, "node '%s' is not in the roster", message->node);
}

static int peer_on_hello(struct control_peer *peer, const struct message *message,
                         struct error *error)
{
    if (!peer->connects)
        peer_send_hello(peer); /* also before a refusal, so that the other side knows the reason */
    if (message->protocol != MESSAGE_PROTOCOL)
        return error_set(error, ERR_PROTOCOL, "%s speaks protocol %u, %s speaks %u",
                         message->software, message->protocol, CONTROL_SOFTWARE, MESSAGE_PROTOCOL);
    int result = peer_identify(peer, message, error);
    if (result < 0)
        return result;
    if (memcmp(message->roster, peer->control->roster_hash, AUTH_HASH_BYTES) != 0)
        return error_set(error, ERR_PROTOCOL,
                         "node %s has another roster or other data sizes in its configuration",
                         message->node);
    memcpy(peer->peer_nonce, message->nonce, sizeof(peer->peer_nonce));
    peer->state = PEER_AUTH;
    if (peer->connects)
        peer_send_auth(peer);
    return 0;
}

static int peer_on_auth(struct control_peer *peer, const struct message *message,
                        struct error *error)
{
    uint8_t mac[AUTH_MAC_BYTES];
    peer_mac(peer, peer->connects ? AUTH_ACCEPTS : AUTH_CONNECTS, mac);
    if (!auth_equal(mac, message->mac, sizeof(mac)))
        return error_set(error, ERR_REFUSED, "it does not know the secret");
    if (!peer->connects) {
        struct control *control = peer->control;
        /* The node has connected again; its old connection is a dead one. */
        control_peer_end_node(control, peer->node, "it has connected again");
        control->peer_of[peer->node] = peer;
        peer_send_auth(peer);
    }
    peer->state = PEER_FABRIC;
    if (peer->connects)
        peer_send_fabric(peer);
    return 0;
}

static void peer_connect_fabric(const struct control_peer *peer, const struct message *message)
{
    struct engine_command command = {.kind = COMMAND_PEER_CONNECT};
    struct engine_peer_connect *connect = &command.peer_connect;
    connect->node = peer->node;
    connect->active = peer->connects;
    connect->address_bytes = message->address_bytes < TRANSPORT_ADDRESS_BYTES
                                 ? message->address_bytes
                                 : TRANSPORT_ADDRESS_BYTES;
    memcpy(connect->address, message->address, connect->address_bytes);
    memcpy(connect->receive_token, peer->own_token, TRANSPORT_TOKEN_BYTES);
    memcpy(connect->send_token, message->token, TRANSPORT_TOKEN_BYTES);
    control_command(peer->control, &command);
}

static int peer_on_fabric(struct control_peer *peer, const struct message *message,
                          struct error *error)
{
    struct control *control = peer->control;
    const struct control_engine *engine = &control->options.engine;
    const struct transport_info *info = engine->transport_info(engine->engine);
    if (strcmp(message->provider, info->provider) != 0)
        return error_set(error, ERR_UNSUPPORTED, "node %s uses provider %s, node %s uses %s",
                         peer_name(peer), message->provider, control->config->node, info->provider);
    if (message->message_bytes != control->config->chunk_bytes + WIRE_HEADER_BYTES)
        return error_set(error, ERR_PROTOCOL, "node %s has messages of %u bytes, node %s of %u",
                         peer_name(peer), message->message_bytes, control->config->node,
                         control->config->chunk_bytes + WIRE_HEADER_BYTES);
    if (strcmp(message->version, info->version) != 0)
        log_warning(control->log, "node %s runs %s, node %s runs %s", peer_name(peer),
                    message->version, control->config->node, info->version);
    peer->state = PEER_OPEN;
    event_del(peer->timer);
    log_info(control->log, "node %s (%s) is connected", peer_name(peer), peer->address);
    membership_connected(&control->membership, peer->node, clock_now_ns());
    peer_connect_fabric(peer, message);
    /* Only now may the other side connect to our fabric: it is expected. */
    if (!peer->connects)
        peer_send_fabric(peer);
    coordinator_peer_connected(control->coordinator, clock_now_ns(), peer->node);
    return 0;
}

static int peer_on_message(struct control_peer *peer, const struct message *message,
                           struct error *error)
{
    static const enum message_type expected[] = {
        [PEER_HELLO] = MESSAGE_HELLO, [PEER_AUTH] = MESSAGE_AUTH, [PEER_FABRIC] = MESSAGE_FABRIC};
    struct control *control = peer->control;
    if (peer->state != PEER_OPEN && message->type != expected[peer->state])
        return error_set(error, ERR_PROTOCOL, "%s in place of %s", message_type_name(message->type),
                         message_type_name(expected[peer->state]));
    switch (peer->state) {
    case PEER_HELLO:
        return peer_on_hello(peer, message, error);
    case PEER_AUTH:
        return peer_on_auth(peer, message, error);
    case PEER_FABRIC:
        return peer_on_fabric(peer, message, error);
    default:
        membership_heard(&control->membership, peer->node, clock_now_ns());
        if (message->type == MESSAGE_PING)
            return 0;
        return coordinator_peer_message(control->coordinator, clock_now_ns(), peer->node, message,
                                        error);
    }
}

static void peer_on_line(void *context, char *line, size_t length)
{
    struct control_peer *peer = context;
    struct error error = {0};
    struct message message;
    int result = message_decode(&message, MESSAGE_BETWEEN_DAEMONS, line, length, &error);
    if (result == 0) {
        result = peer_on_message(peer, &message, &error);
        message_clear(&message);
    }
    if (result >= 0)
        return;
    if (peer->state == PEER_AUTH || peer->state == PEER_HELLO) {
        /* What we said about ourselves shall still arrive. */
        struct control_stream *stream = peer->stream;
        peer->stream = NULL;
        control_stream_finish(stream);
    }
    peer_finish(peer, error.text);
}

static void peer_on_stream_end(void *context, int code, const char *reason)
{
    (void)code;
    peer_finish(context, reason);
}

static bool peer_start(struct control_peer *peer, int fd)
{
    static const struct control_stream_handlers handlers = {peer_on_line, peer_on_stream_end};
    peer_socket_set(fd, peer->control->config);
    peer->state = PEER_HELLO;
    peer->stream =
        control_stream_create(peer->control, fd, false, CONTROL_ANY_USER, &handlers, peer);
    return peer->stream != NULL;
}

/* --- accepting */

void control_peer_accept(struct control *control, int fd, const struct sockaddr *address)
{
    char text[128];
    control_address_text(address, text, sizeof(text));
    uint32_t strangers = 0;
    const struct control_peer *other;
    DL_FOREACH(control->peers, other)
    {
        /* A name is only a claim until the other side has authenticated. */
        strangers += !other->connects && other->state <= PEER_AUTH;
    }
    if (!control->options.secret->present && !control_address_is_loopback(address)) {
        log_warning(control->log,
                    "connection from %s is closed: without a secret_file only "
                    "loopback addresses are served",
                    text);
        close(fd);
        return;
    }
    if (strangers > control->config->server_count + 16) {
        log_warning(control->log,
                    "connection from %s is closed: too many that have not authenticated", text);
        close(fd);
        return;
    }
    struct control_peer *peer = peer_create(control, NOBODY, false);
    if (!peer) {
        close(fd);
        return;
    }
    snprintf(peer->address, sizeof(peer->address), "%s", text);
    if (!peer_start(peer, fd))
        control_peer_free(peer);
}

/* --- connecting */

static void peer_on_connected(evutil_socket_t fd, short what, void *argument)
{
    (void)what;
    struct control_peer *peer = argument;
    struct control *control = peer->control;
    int cause = 0;
    socklen_t length = sizeof(cause);
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &cause, &length);
    if (cause != 0) {
        peer_finish(peer, strerror(cause));
    } else {
        event_free(peer->connect_event);
        peer->connect_event = NULL;
        peer->fd = -1;
        if (peer_start(peer, fd))
            peer_send_hello(peer);
        else
            peer_finish(peer, "out of memory");
    }
    control_update_later(control);
}

static void peer_open_socket(struct control_peer *peer, const struct sockaddr *address,
                             socklen_t length)
{
    struct control *control = peer->control;
    control_address_text(address, peer->address, sizeof(peer->address));
    if (!control->options.secret->present && !control_address_is_loopback(address)) {
        peer_finish(peer, "its address is not a loopback address: that needs a secret_file");
        return;
    }
    peer->state = PEER_CONNECTING;
    peer->fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (peer->fd < 0 || (connect(peer->fd, address, length) < 0 && errno != EINPROGRESS)) {
        peer_finish(peer, strerror(errno));
        return;
    }
    peer->connect_event = event_new(control->base, peer->fd, EV_WRITE, peer_on_connected, peer);
    if (!peer->connect_event || event_add(peer->connect_event, NULL) < 0)
        peer_finish(peer, "out of memory");
}

static void peer_on_resolved(int result, struct evutil_addrinfo *found, void *argument)
{
    if (result == EVUTIL_EAI_CANCEL)
        return; /* the peer is gone */
    struct control_peer *peer = argument;
    struct control *control = peer->control;
    peer->resolving = NULL;
    if (result != 0) {
        peer_finish(peer, evutil_gai_strerror(result));
    } else {
        peer_open_socket(peer, found->ai_addr, (socklen_t)found->ai_addrlen);
        evutil_freeaddrinfo(found);
    }
    control_update_later(control);
}

void control_peer_connect(struct control *control, uint32_t node)
{
    const struct config_server *server = &control->config->servers[node];
    struct control_peer *peer = peer_create(control, node, true);
    if (!peer) {
        membership_lost(&control->membership, node, clock_now_ns(), "out of memory");
        return;
    }
    control->peer_of[node] = peer;
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
        peer_open_socket(peer, (struct sockaddr *)&address, length);
        return;
    }
    /* A name: looked up without blocking, or heartbeats would wait for it. */
    if (!control->dns)
        control->dns = evdns_base_new(control->base, EVDNS_BASE_INITIALIZE_NAMESERVERS |
                                                         EVDNS_BASE_DISABLE_WHEN_INACTIVE);
    if (!control->dns) {
        peer_finish(peer, "names cannot be looked up here");
        return;
    }
    struct evutil_addrinfo name_hints = {.ai_socktype = SOCK_STREAM,
                                         .ai_flags = EVUTIL_AI_NUMERICSERV};
    struct evdns_getaddrinfo_request *request =
        evdns_getaddrinfo(control->dns, server->address, port, &name_hints, peer_on_resolved, peer);
    /* NULL: it was answered at once, and the peer may be gone. */
    if (request)
        peer->resolving = request;
}

void control_peer_send(struct control *control, uint32_t node, const struct message *message)
{
    struct control_peer *peer = control->peer_of[node];
    if (peer && peer->state == PEER_OPEN && peer->stream)
        control_stream_send_message(peer->stream, message);
}
