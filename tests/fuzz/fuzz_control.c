/* What may be said to a control thread, by whoever may speak to it and in whatever state that one
 * is: the first byte says who it is, the others are sent. The thread is a real one, with sockets
 * and a stand-in engine. It ends every connection whose other end has finished, and afterwards it
 * answers somebody else. */
#include <check.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"
#include "tests/lib/server/control_daemon.h"
#include "tests/lib/server/raw_peer.h"

#define WAIT_MS 60000 /* a backstop: fuzzers run behind whatever else runs */

enum role {
    ROLE_USER,     /* on the Unix socket, without a word before */
    ROLE_WORKER,   /* it has said hello */
    ROLE_RANK,     /* it has joined a job of its own */
    ROLE_MEMBER,   /* it waits for another rank */
    ROLE_STRANGER, /* on the TCP port */
    ROLE_PEER,     /* a daemon of the roster, authenticated, whose fabric is there */
    ROLES,
};

/* The fixtures assert with Check, which wants a running suite. Here there is none: these two are in
 * the place of its own. */
void _mark_point(const char *file, int line)
{
    (void)file, (void)line;
}

void _ck_assert_failed(const char *file, int line, const char *condition, const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "%s:%d: does not hold: %s: ", file, line, condition);
    va_start(arguments, format);
    if (format)
        vfprintf(stderr, format, arguments);
    va_end(arguments);
    abort();
}

/* One daemon alone, for users; and the second of two, for peers. */
struct ground {
    char directory[32];
    struct control_daemon *alone, *second;
    int port_fd; /* of the first of the two, which is the fuzzer */
    uint64_t incarnation;
};

static struct ground *ground;

static void ground_close(void)
{
    control_daemon_free(ground->alone);
    control_daemon_free(ground->second);
    close(ground->port_fd);
    FUZZ_REQUIRE(rmdir(ground->directory) == 0);
    free(ground);
}

static struct control_daemon *ground_daemon(uint32_t nodes, uint32_t self, const uint16_t *ports)
{
    struct error error = {0};
    struct control_daemon *daemon = control_daemon_create(ground->directory, nodes, self, ports);
    if (control_daemon_start(daemon, &error) < 0) {
        fprintf(stderr, "%s\n", error.text);
        abort();
    }
    return daemon;
}

static void ground_open(void)
{
    uint16_t ports[2] = {0, 0};
    ground = calloc(1, sizeof(*ground));
    FUZZ_REQUIRE(ground);
    snprintf(ground->directory, sizeof(ground->directory), "/tmp/shoal-fuzz-XXXXXX");
    FUZZ_REQUIRE(mkdtemp(ground->directory));
    ground->alone = ground_daemon(1, 0, ports);
    ground->port_fd = control_daemon_bind(&ports[0]);
    ground->second = ground_daemon(2, 1, ports);
    atexit(ground_close);
}

/* All of it, as far as the daemon takes it; then nothing more is said. */
static void say(int fd, const uint8_t *data, size_t size)
{
    while (size > 0) {
        ssize_t count = send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count < 0) {
            struct pollfd wait = {fd, POLLOUT, 0};
            if (poll(&wait, 1, WAIT_MS) != 1 || wait.revents & (POLLERR | POLLHUP))
                break;
            continue;
        }
        data += count;
        size -= (size_t)count;
    }
    shutdown(fd, SHUT_WR);
}

static void hear_the_end(int fd)
{
    char bytes[65536];
    for (;;) {
        struct pollfd wait = {fd, POLLIN, 0};
        FUZZ_REQUIRE(poll(&wait, 1, WAIT_MS) == 1);
        if (recv(fd, bytes, sizeof(bytes), 0) <= 0)
            return;
    }
}

static void as_user(enum role role, const uint8_t *data, size_t size)
{
    struct control_client client;
    control_client_open(&client, ground->alone);
    if (role != ROLE_USER)
        control_client_hello(&client);
    if (role == ROLE_RANK || role == ROLE_MEMBER)
        control_client_join(&client, "fuzz", role == ROLE_RANK ? 1 : 2, 0);
    if (role == ROLE_RANK) {
        struct message joined;
        control_client_expect(&client, MESSAGE_JOINED, &joined);
    }
    say(client.fd, data, size);
    hear_the_end(client.fd);
    control_client_close(&client);
}

static void as_peer(enum role role, const uint8_t *data, size_t size)
{
    struct raw_peer peer;
    raw_peer_open(&peer, ground->second, ++ground->incarnation);
    if (role == ROLE_PEER)
        raw_peer_shake_hands(&peer, ground->second);
    say(peer.fd, data, size);
    hear_the_end(peer.fd);
    raw_peer_close(&peer);
}

/* Somebody else is served. */
static void check_answer(struct control_daemon *daemon)
{
    struct control_client client;
    struct message pong;
    control_client_open(&client, daemon);
    control_client_hello(&client);
    control_client_write(&client, "{\"type\":\"ping\"}\n");
    control_client_expect(&client, MESSAGE_PONG, &pong);
    control_client_close(&client);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!ground)
        ground_open();
    if (size == 0)
        return 0;
    enum role role = data[0] % ROLES;
    if (role < ROLE_STRANGER)
        as_user(role, data + 1, size - 1);
    else
        as_peer(role, data + 1, size - 1);
    check_answer(role < ROLE_STRANGER ? ground->alone : ground->second);
    return 0;
}
