#include "tests/lib/server/raw_peer.h"

#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/format/wire.h"

#define WAIT_MS 60000 /* a backstop */

int raw_connect(uint16_t port, uint8_t host)
{
    struct sockaddr_in from = {.sin_family = AF_INET},
                       to = {.sin_family = AF_INET, .sin_port = htons(port)};
    from.sin_addr.s_addr = htonl(0x7f000000u | host);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (bind(fd, (struct sockaddr *)&from, sizeof(from)) == 0 &&
        connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0)
        return fd;
    int cause = errno;
    close(fd);
    return -cause;
}

/* Begin the handshake with a daemon that has the stand-in engine, with the words of a daemon of the
 * roster. */
static void peer_begin(struct raw_peer *peer, int fd, const struct control_daemon *daemon,
                       uint32_t node, uint64_t incarnation)
{
    *peer = (struct raw_peer){.fd = fd};
    ck_assert_int_ge(peer->fd, 0);
    line_reader_init(&peer->lines, MESSAGE_LINE_BYTES);
    struct message *hello = &peer->hello, *fabric = &peer->fabric;
    hello->type = MESSAGE_HELLO;
    hello->protocol = MESSAGE_PROTOCOL;
    hello->wire = WIRE_VERSION;
    hello->incarnation = incarnation;
    snprintf(hello->software, sizeof(hello->software), "raw");
    snprintf(hello->node, sizeof(hello->node), "%s", daemon->config.servers[node].name);
    auth_roster_hash(hello->roster, &daemon->config);
    auth_random(hello->nonce, sizeof(hello->nonce));
    fabric->type = MESSAGE_FABRIC;
    snprintf(fabric->provider, sizeof(fabric->provider), "fake");
    snprintf(fabric->version, sizeof(fabric->version), "fake 1");
    fabric->message_bytes = daemon->config.chunk_bytes + WIRE_HEADER_BYTES;
    memcpy(fabric->address, "addr", 4);
    fabric->address_bytes = 4;
    auth_random(fabric->token, sizeof(fabric->token));
}

void raw_peer_open(struct raw_peer *peer, const struct control_daemon *daemon, uint64_t incarnation)
{
    peer_begin(peer, raw_connect(control_port(daemon->control), 1), daemon, 0, incarnation);
}

void raw_peer_accept(struct raw_peer *peer, int listen_fd, const struct control_daemon *daemon,
                     struct message *theirs)
{
    struct message hello, auth;
    struct pollfd wait = {listen_fd, POLLIN, 0};
    ck_assert_msg(poll(&wait, 1, WAIT_MS) == 1, "the daemon does not connect");
    peer_begin(peer, accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC), daemon, 1, 2);
    raw_peer_expect(peer, MESSAGE_HELLO, &hello);
    raw_peer_send(peer, &peer->hello);
    raw_peer_expect(peer, MESSAGE_AUTH, &auth);
    auth_mac(auth.mac, NULL, AUTH_ACCEPTS, hello.node, peer->hello.node, hello.nonce,
             peer->hello.nonce);
    raw_peer_send(peer, &auth);
    raw_peer_expect(peer, MESSAGE_FABRIC, theirs);
}

void raw_peer_close(struct raw_peer *peer)
{
    close(peer->fd);
    line_reader_clear(&peer->lines);
}

void raw_peer_send(struct raw_peer *peer, const struct message *message)
{
    size_t length;
    char *line = message_encode(message, &length);
    ck_assert_ptr_nonnull(line);
    ck_assert_int_eq(send(peer->fd, line, length, MSG_NOSIGNAL), (ssize_t)length);
    free(line);
}

bool raw_peer_next(struct raw_peer *peer, struct message *message)
{
    struct error error = {0};
    char *line, bytes[4096];
    size_t length;
    for (;;) {
        int result = line_reader_next(&peer->lines, &line, &length, &error);
        ck_assert_int_ge(result, 0);
        if (result > 0) {
            ck_assert_msg(message_decode(message, MESSAGE_BETWEEN_DAEMONS, line, length, &error) ==
                              0,
                          "%s: %s", line, error.text);
            message_clear(message);
            if (message->type != MESSAGE_PING)
                return true;
            continue;
        }
        struct pollfd wait = {peer->fd, POLLIN, 0};
        ck_assert_msg(poll(&wait, 1, WAIT_MS) == 1, "the daemon says nothing");
        ssize_t count = recv(peer->fd, bytes, sizeof(bytes), 0);
        if (count <= 0)
            return false;
        ck_assert_int_eq(line_reader_feed(&peer->lines, bytes, (size_t)count, &error), 0);
    }
}

void raw_peer_expect(struct raw_peer *peer, enum message_type type, struct message *message)
{
    ck_assert_msg(raw_peer_next(peer, message), "the connection has ended");
    ck_assert_msg(message->type == type, "%s: %s", message_type_name(message->type), message->text);
}

void raw_peer_shake_hands(struct raw_peer *peer)
{
    struct message answer, auth = {.type = MESSAGE_AUTH};
    raw_peer_send(peer, &peer->hello);
    raw_peer_expect(peer, MESSAGE_HELLO, &answer);
    memcpy(peer->their_nonce, answer.nonce, sizeof(peer->their_nonce));
    peer->their_incarnation = answer.incarnation;
    auth_mac(auth.mac, NULL, AUTH_CONNECTS, peer->hello.node, answer.node, peer->hello.nonce,
             answer.nonce);
    raw_peer_send(peer, &auth);
    raw_peer_expect(peer, MESSAGE_AUTH, &answer);
    raw_peer_send(peer, &peer->fabric);
}

bool raw_peer_is_closed(struct raw_peer *peer)
{
    struct message message;
    return !raw_peer_next(peer, &message);
}
