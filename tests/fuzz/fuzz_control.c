/* Words that may be said to a control thread, by whoever may speak to it, in whatever state the
 * speaker is: the first byte says who it is, the others are sent. The thread is a real one, with
 * sockets and a stand-in engine. It ends every connection whose other end has finished, and
 * afterwards it answers somebody else. */
#include <check.h>
#include <dirent.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/format/arena.h"
#include "tests/fuzz/fuzz.h"
#include "tests/lib/server/control_daemon.h"
#include "tests/lib/server/raw_peer.h"

#define WAIT_MS 60000 /* a backstop: fuzzers run behind whatever else runs */
/* Descriptors of this process that an input may leave for a moment: it leaves none, but the daemons
 * take some by themselves. */
#define DESCRIPTORS_SPARE 12u
#define JOIN_GIVEN 3u /* descriptors of a join */
#define GIVEN 4u      /* of a line, at most */
#define CROWD 24u     /* connections, more than a user may have lines with lists */
#define DEEDS 200u    /* of a crowd */
#define FLOOD 120u    /* lines */

enum role {
    ROLE_USER,     /* on the Unix socket, without a word before */
    ROLE_WORKER,   /* it has said hello */
    ROLE_RANK,     /* it has joined a job of its own */
    ROLE_MEMBER,   /* it waits for another rank */
    ROLE_STRANGER, /* on the TCP port */
    ROLE_PEER,     /* a daemon of the roster, authenticated, whose fabric is there */
    ROLE_AGAIN,    /* a rank; descriptors come with each line, as many as the next byte says */
    ROLE_CROWD,    /* many ranks of one user, a line or half of one at a time */
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
    uint32_t descriptors;
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

static uint32_t count_descriptors(void)
{
    uint32_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    FUZZ_REQUIRE(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
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
    ground->descriptors = count_descriptors();
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

/* --- descriptors where they have no business */

/* Make the descriptors that a join brings, and one more. */
static void given_make(int given[GIVEN])
{
    struct arena arena;
    struct error error;
    int ends[2];
    FUZZ_REQUIRE(arena_create(&arena, ARENA_LEAST_BYTES, 64, &given[0], &error) == 0);
    arena_unmap(&arena);
    given[1] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    FUZZ_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    close(ends[0]);
    given[2] = ends[1];
    given[3] = dup(given[1]);
    FUZZ_REQUIRE(given[1] >= 0 && given[3] >= 0);
}

/* False: it is not taken any more. */
static bool say_with(int fd, const uint8_t *data, size_t size, size_t count)
{
    int given[GIVEN];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(given))];
    } ancillary = {0};
    struct iovec part = {(void *)(uintptr_t)data, size};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    given_make(given);
    if (count > 0) {
        header.msg_control = ancillary.bytes;
        header.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(rights), given, count * sizeof(int));
    }
    ssize_t sent = sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    for (size_t i = 0; i < GIVEN; i++)
        close(given[i]);
    return sent == (ssize_t)size;
}

static size_t line_bytes(const uint8_t *data, size_t size)
{
    const uint8_t *end = memchr(data, '\n', size);
    return end ? (size_t)(end - data) + 1 : size;
}

static void as_rank_again(const uint8_t *data, size_t size)
{
    struct control_client client;
    struct message joined;
    size_t count = size > 0 ? data[0] % (GIVEN + 1) : 0;
    control_client_open(&client, ground->alone);
    control_client_hello(&client);
    control_client_join(&client, "fuzz", 1, 0);
    control_client_expect(&client, MESSAGE_JOINED, &joined);
    for (size_t at = 1, bytes; at < size; at += bytes) {
        bytes = line_bytes(data + at, size - at);
        if (!say_with(client.fd, data + at, bytes, count))
            break;
    }
    shutdown(client.fd, SHUT_WR);
    hear_the_end(client.fd);
    control_client_close(&client);
}

/* --- many connections of one user */

enum deed {
    DEED_LINE, /* the bytes of the input up to a newline, and that */
    DEED_HALF, /* of a line with a list, as long as such ones alone may be */
    DEED_REST,
    DEED_PING,
    DEED_FLOOD, /* of pings, which takes the user's share of a turn */
    DEED_STATUS,
    DEED_GIVE,  /* as DEED_LINE, with the descriptors of a join */
    DEED_LEAVE, /* the connection is closed */
};

struct crowd {
    struct control_client clients[CROWD];
    bool open[CROWD];
    uint32_t jobs; /* that there have been */
};

static void crowd_close(struct crowd *crowd, uint32_t who)
{
    if (crowd->open[who])
        control_client_close(&crowd->clients[who]);
    crowd->open[who] = false;
}

/* With the other rank of its job, which each two are. */
static void crowd_open(struct crowd *crowd, uint32_t who)
{
    struct message joined;
    char job[16];
    uint32_t first = who / 2 * 2;
    if (crowd->open[who])
        return;
    snprintf(job, sizeof(job), "%u-%u", first, crowd->jobs++);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct control_client *client = &crowd->clients[first + rank];
        crowd_close(crowd, first + rank);
        control_client_open(client, ground->alone);
        control_client_hello(client);
        control_client_join(client, job, 2, (int)rank);
        crowd->open[first + rank] = true;
    }
    for (uint32_t rank = 0; rank < 2; rank++)
        control_client_expect(&crowd->clients[first + rank], MESSAGE_JOINED, &joined);
}

/* Say as much as is taken at once: a client that has to wait for others is not waited for. */
static void crowd_say(const struct crowd *crowd, uint32_t who, const void *bytes, size_t size)
{
    ssize_t sent = send(crowd->clients[who].fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)sent;
}

static void crowd_say_often(const struct crowd *crowd, uint32_t who, const char *line,
                            uint32_t often)
{
    char text[FLOOD * 32];
    size_t length = strlen(line);
    FUZZ_REQUIRE(length * often <= sizeof(text));
    for (uint32_t i = 0; i < often; i++)
        memcpy(text + i * length, line, length);
    crowd_say(crowd, who, text, length * often);
}

static void crowd_say_half(const struct crowd *crowd, uint32_t who)
{
    static const char begin[] = "{\"type\":\"group_open\",\"request\":1,\"ranks\":[";
    char half[MESSAGE_FIRST_LINE_BYTES + 2];
    memset(half, ' ', sizeof(half));
    memcpy(half, begin, sizeof(begin) - 1);
    crowd_say(crowd, who, half, sizeof(half));
}

/* How much of the input it takes. */
static size_t crowd_do(struct crowd *crowd, enum deed deed, uint32_t who, const uint8_t *data,
                       size_t size)
{
    size_t bytes = 0;
    crowd_open(crowd, who);
    switch (deed) {
    case DEED_LINE:
        bytes = line_bytes(data, size);
        crowd_say(crowd, who, data, bytes);
        break;
    case DEED_HALF:
        crowd_say_half(crowd, who);
        break;
    case DEED_REST:
        crowd_say_often(crowd, who, "]}\n", 1);
        break;
    case DEED_PING:
        crowd_say_often(crowd, who, "{\"type\":\"ping\"}\n", 1);
        break;
    case DEED_FLOOD:
        crowd_say_often(crowd, who, "{\"type\":\"ping\"}\n", FLOOD);
        break;
    case DEED_STATUS:
        crowd_say_often(crowd, who, "{\"type\":\"status\"}\n", 1);
        break;
    case DEED_GIVE:
        bytes = line_bytes(data, size);
        if (bytes > 0)
            say_with(crowd->clients[who].fd, data, bytes, JOIN_GIVEN);
        break;
    case DEED_LEAVE:
        crowd_close(crowd, who);
        break;
    }
    return bytes;
}

/* Each byte is who does what. */
static void as_crowd(const uint8_t *data, size_t size)
{
    struct crowd crowd = {0};
    uint32_t deeds = 0;
    for (size_t at = 0; at < size && deeds < DEEDS; deeds++) {
        enum deed deed = data[at] >> 5;
        uint32_t who = data[at++] % 32 % CROWD;
        at += crowd_do(&crowd, deed, who, data + at, size - at);
    }
    check_answer(ground->alone);
    /* All of them first: one may have to wait for another. */
    for (uint32_t who = 0; who < CROWD; who++) {
        if (crowd.open[who])
            shutdown(crowd.clients[who].fd, SHUT_WR);
    }
    for (uint32_t who = 0; who < CROWD; who++) {
        if (!crowd.open[who])
            continue;
        hear_the_end(crowd.clients[who].fd);
        crowd_close(&crowd, who);
    }
}

static void as_peer(enum role role, const uint8_t *data, size_t size)
{
    struct raw_peer peer;
    raw_peer_open(&peer, ground->second, ++ground->incarnation);
    if (role == ROLE_PEER)
        raw_peer_shake_hands(&peer);
    say(peer.fd, data, size);
    hear_the_end(peer.fd);
    raw_peer_close(&peer);
}

/* Threads may still be closing some. */
static void check_descriptors(void)
{
    for (int waited_ms = 0; count_descriptors() > ground->descriptors + DESCRIPTORS_SPARE;
         waited_ms++) {
        FUZZ_REQUIRE(waited_ms < WAIT_MS);
        poll(NULL, 0, 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!ground)
        ground_open();
    if (size == 0)
        return 0;
    enum role role = data[0] % ROLES;
    bool of_peer = role == ROLE_STRANGER || role == ROLE_PEER;
    if (role == ROLE_AGAIN)
        as_rank_again(data + 1, size - 1);
    else if (role == ROLE_CROWD)
        as_crowd(data + 1, size - 1);
    else if (of_peer)
        as_peer(role, data + 1, size - 1);
    else
        as_user(role, data + 1, size - 1);
    check_answer(of_peer ? ground->second : ground->alone);
    check_descriptors();
    return 0;
}
