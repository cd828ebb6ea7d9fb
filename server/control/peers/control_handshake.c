/* The handshake between daemons, and what comes behind it: whose line it is decides this state
 * machine, what a line means to jobs the coordinator. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>

#include "common/format/wire.h"
#include "server/control/ground/control_internal.h"

static void handshake_socket_set(int fd, const struct config *config)
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

void control_handshake_greet(struct control_peer *peer)
{
    struct control *control = peer->control;
    struct message hello = {.type = MESSAGE_HELLO, .protocol = MESSAGE_PROTOCOL};
    snprintf(hello.software, sizeof(hello.software), "%s", CONTROL_SOFTWARE);
    snprintf(hello.node, sizeof(hello.node), "%s", control->config->node);
    memcpy(hello.roster, control->roster_hash, sizeof(hello.roster));
    memcpy(hello.nonce, peer->own_nonce, sizeof(hello.nonce));
    hello.wire = WIRE_VERSION;
    hello.incarnation = control->incarnation;
    control_stream_send_message(peer->stream, &hello);
}

/* secret: its number; without any there is a proof of nothing. */
static void handshake_mac(const struct control_peer *peer, enum auth_role role, uint32_t secret,
                          uint8_t mac[AUTH_MAC_BYTES])
{
    const struct config *config = peer->control->config;
    const struct secrets *secrets = &peer->secrets;
    const char *other = config->servers[peer->node].name;
    auth_mac(mac, secrets->count > 0 ? &secrets->list[secret] : NULL, role,
             peer->connects ? config->node : other, peer->connects ? other : config->node,
             peer->connects ? peer->own_nonce : peer->peer_nonce,
             peer->connects ? peer->peer_nonce : peer->own_nonce);
}

static void handshake_send_auth(struct control_peer *peer)
{
    struct message auth = {.type = MESSAGE_AUTH};
    handshake_mac(peer, peer->connects ? AUTH_CONNECTS : AUTH_ACCEPTS, peer->secret, auth.mac);
    control_stream_send_message(peer->stream, &auth);
}

/* Whoever connects uses the first secret, and is answered with the one that it used. */
static bool handshake_proves(struct control_peer *peer, const uint8_t mac[AUTH_MAC_BYTES])
{
    uint32_t secrets = peer->connects || peer->secrets.count == 0 ? 1 : peer->secrets.count;
    for (uint32_t i = 0; i < secrets; i++) {
        uint8_t right[AUTH_MAC_BYTES];
        handshake_mac(peer, peer->connects ? AUTH_ACCEPTS : AUTH_CONNECTS, i, right);
        if (!auth_equal(right, mac, AUTH_MAC_BYTES))
            continue;
        peer->secret = i;
        return true;
    }
    return false;
}

static void handshake_send_fabric(struct control_peer *peer)
{
    const struct control_engine *engine = &peer->control->options.engine;
    const struct transport_info *info = engine->transport_info(engine->engine);
    struct message fabric = {.type = MESSAGE_FABRIC};
    snprintf(fabric.provider, sizeof(fabric.provider), "%s", info->provider);
    snprintf(fabric.version, sizeof(fabric.version), "%s", info->version);
    fabric.message_bytes = peer->control->config->chunk_bytes + WIRE_HEADER_BYTES;
    engine->fabric_address(engine->engine, fabric.address, &fabric.address_bytes);
    memcpy(fabric.token, peer->own_token, sizeof(fabric.token));
    fabric.session = peer->offered;
    fabric.heard = peer->control->conversations[peer->node].heard;
    control_stream_send_message(peer->stream, &fabric);
}

/* Say why this daemon cannot start, and end soon when every other one has been told. */
static void handshake_say_failure(struct control_peer *peer)
{
    struct control *control = peer->control;
    struct message message = {.type = MESSAGE_NODE_UNABLE};
    snprintf(message.text, sizeof(message.text), "%s", control->options.failure);
    control_stream_send_message(peer->stream, &message);
    if (control->told[peer->node])
        return;
    control->told[peer->node] = true;
    if (++control->told_count + 1 == control->config->server_count) {
        struct timeval soon = {0, CONTROL_TOLD_MS * 1000L};
        evtimer_add(control->stop_event, &soon);
    }
}

/* Find out who it is, when it has connected to us. */
static int handshake_identify(struct control_peer *peer, const struct message *message,
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

static int handshake_on_hello(struct control_peer *peer, const struct message *message,
                              struct error *error)
{
    /* The greeting goes out before a refusal too, so that the other side knows the reason. */
    if (!peer->connects)
        control_handshake_greet(peer);
    if (message->protocol != MESSAGE_PROTOCOL)
        return error_set(error, ERR_PROTOCOL, "%s speaks protocol %u, %s speaks %u",
                         message->software, message->protocol, CONTROL_SOFTWARE, MESSAGE_PROTOCOL);
    if (message->wire != WIRE_VERSION)
        return error_set(error, ERR_PROTOCOL,
                         "%s speaks version %u of the data plane, %s speaks %u", message->software,
                         message->wire, CONTROL_SOFTWARE, WIRE_VERSION);
    int result = handshake_identify(peer, message, error);
    if (result < 0)
        return result;
    const struct tls *tls = control_wire_tls(peer->wire);
    if (tls && !tls_names(tls, message->node))
        return error_set(error, ERR_REFUSED,
                         "its certificate does not name node %s, which it says it is",
                         message->node);
    if (memcmp(message->roster, peer->control->roster_hash, AUTH_HASH_BYTES) != 0)
        return error_set(error, ERR_PROTOCOL,
                         "node %s has another roster or other data sizes in its configuration, "
                         "or another recovery",
                         message->node);
    memcpy(peer->peer_nonce, message->nonce, sizeof(peer->peer_nonce));
    peer->incarnation = message->incarnation;
    peer->state = PEER_AUTH;
    if (peer->connects)
        handshake_send_auth(peer);
    return 0;
}

static int handshake_on_auth(struct control_peer *peer, const struct message *message,
                             struct error *error)
{
    if (!handshake_proves(peer, message->mac))
        return error_set(error, ERR_REFUSED, "it does not know the secret");
    control_stream_trust(peer->stream);
    struct control *control = peer->control;
    if (credentials_present(control->options.credentials)) {
        /* An authenticated connection competes for no place any more, and its address is the
         * node's. */
        admission_leave(&control->admission, &peer->place);
        if (!peer->connects)
            admission_learn(&control->admission, peer->node, &peer->place.source);
    }
    if (!peer->connects) {
        /* The engine has time to open the fabric's port until the peer's answer comes. */
        control_command(control, &(struct engine_command){.kind = COMMAND_PEER_ADMIT,
                                                          .admit_ms = CONTROL_HANDSHAKE_S * 1000});
        handshake_send_auth(peer);
    }
    peer->state = PEER_FABRIC;
    if (control->options.failure) {
        handshake_say_failure(peer);
    } else if (peer->connects) {
        peer->offered = peer->control->membership.peers[peer->node].session;
        handshake_send_fabric(peer);
    }
    return 0;
}

/* How the engine will reach it. */
static int handshake_note_fabric(struct control_peer *peer, const struct message *message,
                                 struct error *error)
{
    struct engine_peer_connect *fabric = &peer->fabric;
    fabric->node = peer->node;
    fabric->active = peer->connects;
    fabric->address_bytes = message->address_bytes < TRANSPORT_ADDRESS_BYTES
                                ? message->address_bytes
                                : TRANSPORT_ADDRESS_BYTES;
    memcpy(fabric->address, message->address, fabric->address_bytes);
    memcpy(fabric->receive_token, peer->own_token, TRANSPORT_TOKEN_BYTES);
    memcpy(fabric->send_token, message->token, TRANSPORT_TOKEN_BYTES);
    peer->session = message->session;
    peer->heard = message->heard;
    struct tls *tls = control_wire_tls(peer->wire);
    enum auth_role self = peer->connects ? AUTH_CONNECTS : AUTH_ACCEPTS;
    enum auth_role other = peer->connects ? AUTH_ACCEPTS : AUTH_CONNECTS;
    fabric->sealed = tls != NULL;
    if (tls && (tls_export(tls, self, fabric->seal_key, error) < 0 ||
                tls_export(tls, other, fabric->open_key, error) < 0))
        return error->code;
    return 0;
}

/* How the connection is protected, for the log. */
static void handshake_protection_text(const struct control_peer *peer, char text[64])
{
    const struct tls *tls = control_wire_tls(peer->wire);
    char identity[2 * SECRET_IDENTITY_BYTES + 1] = "";
    text[0] = '\0';
    if (tls && tls_secret(tls) < 0) {
        snprintf(text, 64, ", encrypted by certificates");
    } else if (tls) {
        const struct secret *secret = &peer->secrets.list[tls_secret(tls)];
        for (size_t i = 0; i < SECRET_IDENTITY_BYTES; i++)
            snprintf(identity + 2 * i, 3, "%02x", secret->identity[i]);
        snprintf(text, 64, ", encrypted by secret %s", identity);
    }
}

/* A number that only the two know to have made together, from both tokens. */
static uint64_t handshake_session(const struct control_peer *peer)
{
    uint64_t own, other;
    memcpy(&own, peer->fabric.receive_token, sizeof(own));
    memcpy(&other, peer->fabric.send_token, sizeof(other));
    return own ^ other;
}

/* Whether the connection goes on where the last one has ended: both sides say the same session. If
 * not, that is over, and one begins with this connection. */
static bool handshake_resumes(struct control_peer *peer)
{
    struct control *control = peer->control;
    struct membership *membership = &control->membership;
    struct conversation *conversation = &control->conversations[peer->node];
    uint64_t session = membership->peers[peer->node].session;
    struct error error;
    bool resumes = session != 0 && session == peer->session &&
                   conversation_acknowledge(conversation, peer->heard, &error) == 0;
    if (resumes)
        return true;
    if (peer->incarnation != membership->peers[peer->node].incarnation)
        membership_ended(membership, peer->node);
    if (membership_is_away(membership, peer->node))
        control_peer_lose(control, peer->node, "it does not know any more where they were");
    conversation_clear(conversation);
    membership_begin_session(membership, peer->node,
                             control->config->recovery ? handshake_session(peer) : 0);
    return false;
}

/* From now on it is the connection with its node. */
static void handshake_open(struct control_peer *peer)
{
    struct control *control = peer->control;
    char protection[64];
    handshake_protection_text(peer, protection);
    bool resumes = handshake_resumes(peer);
    peer->fabric.resumes = resumes;
    peer->offered = resumes ? control->membership.peers[peer->node].session : 0;
    control->peer_of[peer->node] = peer;
    peer->state = PEER_OPEN;
    event_del(peer->timer);
    admission_leave(&control->admission, &peer->place);
    log_throttled(control->log, log_throttle_of(&control->node_lines, peer->node), clock_now_ns(),
                  LOG_LEVEL_INFO, "node %s (%s) is connected%s", control_peer_name(peer),
                  peer->address, protection);
    membership_connected(&control->membership, peer->node, peer->incarnation, clock_now_ns());
    peer->fabric.connection = control->membership.peers[peer->node].connection;
    struct engine_command command = {.kind = COMMAND_PEER_CONNECT, .peer_connect = peer->fabric};
    control_command(control, &command);
    explicit_bzero(&command, sizeof(command));
    explicit_bzero(&peer->fabric, sizeof(peer->fabric));
    /* Only now may the other side connect to our fabric: it is expected. */
    if (!peer->connects)
        handshake_send_fabric(peer);
    if (resumes)
        control_peer_say_again(peer);
    else
        coordinator_peer_connected(control->coordinator, clock_now_ns(), peer->node);
}

/* Let the connection be the node's. The connection may have to wait for what the older daemon of
 * its name says, with its next heartbeat or its end. A ping makes a machine that has started anew
 * tell that it knows nothing of the old connection. */
static void handshake_claim(struct control_peer *peer)
{
    struct control *control = peer->control;
    if (!peer->connects &&
        membership_claim(&control->membership, peer->node, peer->incarnation) == MEMBERSHIP_WAIT) {
        peer->state = PEER_CONTESTED;
        peer->contested_ns = clock_now_ns();
        control->contested++;
        control_peer_send(control, peer->node, &(struct message){.type = MESSAGE_PING});
        return;
    }
    if (!peer->connects)
        control_peer_end_node(control, peer->node, "it has connected again", true);
    handshake_open(peer);
}

static void handshake_refuse(struct control_peer *peer, const struct control_peer *old)
{
    struct control *control = peer->control;
    const char *name = control_peer_name(peer);
    struct message refused = {.type = MESSAGE_REFUSED, .code = ERR_REFUSED};
    struct message contested = {.type = MESSAGE_CONTESTED};
    snprintf(refused.text, sizeof(refused.text),
             "another daemon of that name is connected with node %s, from %s",
             control->config->node, old->address);
    snprintf(contested.text, sizeof(contested.text),
             "another daemon of that name, at %s, was refused by node %s", peer->address,
             control->config->node);
    log_throttled(control->log, log_throttle_of(&control->node_lines, peer->node), clock_now_ns(),
                  LOG_LEVEL_WARNING,
                  "two daemons are called %s: the one at %s stays, the one at %s is refused", name,
                  old->address, peer->address);
    control_stream_send_message(peer->stream, &refused);
    control_peer_send(control, peer->node, &contested);
    control_stream_finish(peer->stream);
    peer->stream = NULL;
    control_peer_free(peer);
}

void control_handshake_settle(struct control *control)
{
    struct control_peer *peer, *next;
    if (control->contested == 0)
        return;
    DL_FOREACH_SAFE(control->peers, peer, next)
    {
        if (peer->state != PEER_CONTESTED)
            continue;
        switch (membership_settle(&control->membership, peer->node, peer->contested_ns)) {
        case MEMBERSHIP_TAKE:
            control->contested--;
            handshake_open(peer);
            break;
        case MEMBERSHIP_WAIT:
            break;
        case MEMBERSHIP_REFUSE:
            handshake_refuse(peer, control->peer_of[peer->node]);
            break;
        }
    }
}

static int handshake_on_fabric(struct control_peer *peer, const struct message *message,
                               struct error *error)
{
    struct control *control = peer->control;
    const struct control_engine *engine = &control->options.engine;
    const struct transport_info *info = engine->transport_info(engine->engine);
    if (strcmp(message->provider, info->provider) != 0)
        return error_set(error, ERR_UNSUPPORTED, "node %s uses provider %s, node %s uses %s",
                         control_peer_name(peer), message->provider, control->config->node,
                         info->provider);
    if (message->message_bytes != control->config->chunk_bytes + WIRE_HEADER_BYTES)
        return error_set(error, ERR_PROTOCOL, "node %s has messages of %u bytes, node %s of %u",
                         control_peer_name(peer), message->message_bytes, control->config->node,
                         control->config->chunk_bytes + WIRE_HEADER_BYTES);
    if (strcmp(message->version, info->version) != 0)
        log_throttled(control->log, log_throttle_of(&control->node_lines, peer->node),
                      clock_now_ns(), LOG_LEVEL_WARNING, "node %s runs %s, node %s runs %s",
                      control_peer_name(peer), message->version, control->config->node,
                      info->version);
    int result = handshake_note_fabric(peer, message, error);
    /* The other side goes on, and is alone with that: this side has offered the session, and has
     * given it up since. */
    if (result == 0 && peer->connects && message->session != 0 &&
        message->session != control->membership.peers[peer->node].session)
        return error_set(error, ERR_PROTOCOL, "node %s goes on with a session that is over",
                         control_peer_name(peer));
    if (result == 0)
        handshake_claim(peer);
    return result;
}

/* Take a message of an open connection. */
static int handshake_on_word(struct control_peer *peer, const struct message *message,
                             struct error *error)
{
    struct control *control = peer->control;
    uint64_t now_ns = clock_now_ns();
    membership_heard(&control->membership, peer->node, now_ns);
    struct conversation *conversation = &control->conversations[peer->node];
    bool counted = control->membership.peers[peer->node].session != 0;
    conversation->heard += control->config->recovery && message->type != MESSAGE_PING;
    switch (message->type) {
    case MESSAGE_PING:
        return counted ? conversation_acknowledge(conversation, message->heard, error) : 0;
    case MESSAGE_CONTESTED:
        log_throttled(control->log, log_throttle_of(&control->node_lines, peer->node), now_ns,
                      LOG_LEVEL_WARNING, "two daemons are called %s: %s", control->config->node,
                      message->text);
        return 0;
    case MESSAGE_WHY_QUERY:
    case MESSAGE_WHY_REPLY:
        return control->on_told(control, peer->node, message, error);
    default:
        return coordinator_peer_message(control->coordinator, now_ns, peer->node, message, error);
    }
}

static int handshake_on_message(struct control_peer *peer, const struct message *message,
                                struct error *error)
{
    static const enum message_type expected[] = {
        [PEER_HELLO] = MESSAGE_HELLO, [PEER_AUTH] = MESSAGE_AUTH, [PEER_FABRIC] = MESSAGE_FABRIC};
    if (peer->state == PEER_OPEN)
        return handshake_on_word(peer, message, error);
    /* The node has proved who it is, and may say why it does not go on. */
    if (peer->state == PEER_FABRIC && peer->connects && message->type == MESSAGE_REFUSED)
        return error_set(error, ERR_REFUSED, "it refuses: %s", message->text);
    if (peer->state == PEER_FABRIC && message->type == MESSAGE_NODE_UNABLE) {
        coordinator_node_unable(peer->control->coordinator, clock_now_ns(), peer->node,
                                message->text);
        return error_set(error, ERR_REFUSED, "it cannot start: %.800s", message->text);
    }
    if (peer->state == PEER_FABRIC && peer->control->options.failure)
        return 0; /* it has been told, and hangs up */
    if (peer->state == PEER_CONTESTED)
        return error_set(error, ERR_PROTOCOL, "%s before it was told to go on",
                         message_type_name(message->type));
    if (message->type != expected[peer->state])
        return error_set(error, ERR_PROTOCOL, "%s in place of %s", message_type_name(message->type),
                         message_type_name(expected[peer->state]));
    switch (peer->state) {
    case PEER_HELLO:
        return handshake_on_hello(peer, message, error);
    case PEER_AUTH:
        return handshake_on_auth(peer, message, error);
    default:
        return handshake_on_fabric(peer, message, error);
    }
}

static void handshake_on_line(void *context, char *line, size_t length)
{
    struct control_peer *peer = context;
    struct error error = {0};
    struct message message;
    int result = message_decode(&message, MESSAGE_BETWEEN_DAEMONS, line, length, &error);
    if (result == 0) {
        result = handshake_on_message(peer, &message, &error);
        message_clear(&message);
    }
    if (result >= 0)
        return;
    if (peer->state == PEER_AUTH || peer->state == PEER_HELLO) {
        /* Lines that we have said about ourselves shall still arrive. */
        struct control_stream *stream = peer->stream;
        peer->stream = NULL;
        control_stream_finish(stream);
    }
    control_peer_finish_as(peer, error.text, peer->state != PEER_OPEN);
}

static void handshake_on_stream_end(void *context, int code, const char *reason)
{
    struct control_peer *peer = context;
    if (code != ERR_DISCONNECTED && code != ERR_SYSTEM && peer->state <= PEER_AUTH) {
        /* The other side shall still learn why. */
        struct control_stream *stream = peer->stream;
        peer->stream = NULL;
        control_stream_finish(stream);
    }
    control_peer_finish_as(
        peer, reason, peer->state != PEER_OPEN || code == ERR_DISCONNECTED || code == ERR_SYSTEM);
}

bool control_handshake_start(struct control_peer *peer, int fd)
{
    static const struct control_stream_handlers handlers = {handshake_on_line,
                                                            handshake_on_stream_end};
    handshake_socket_set(fd, peer->control->config);
    peer->state = PEER_HELLO;
    peer->stream =
        control_stream_create(peer->control, fd, false, CONTROL_ANY_USER, &handlers, peer);
    if (!peer->stream)
        return false;
    const struct credentials *credentials = peer->control->options.credentials;
    struct control_wire *wire =
        control_wire_create(credentials, peer->connects ? AUTH_CONNECTS : AUTH_ACCEPTS);
    if (!wire)
        return false;
    peer->wire = wire;
    peer->secrets = credentials->secrets;
    control_stream_protect(peer->stream, wire);
    return true;
}
