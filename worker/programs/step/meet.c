#include "worker/programs/step/meet.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/env.h"
#include "worker/programs/step/door.h"
#include "worker/programs/step/fresh_secret.h"
#include "worker/programs/step/munge.h"

#define COMING_BYTES 256
#define LINE_BYTES_MAX (1u << 20)
#define AGAIN_MS 100       /* between tries to reach the first node */
#define AGAIN_MOST_MS 2000 /* where that sends this one away, twice as long each time */
#define GUESTS 64          /* connections beyond one for each node, that may be strangers' */

struct meeting {
    const struct step *step;
    int alive;
    uint64_t deadline_ns;
};

/* Until the descriptor (-1: none) is ready or until_ns has passed: 1 or 0. ERR_STATE. */
static int meet_wait(const struct meeting *meeting, int fd, short events, uint64_t until_ns,
                     struct error *error)
{
    for (;;) {
        uint64_t now_ns = clock_now_ns();
        if (now_ns >= until_ns)
            return 0;
        struct pollfd watched[] = {{.fd = meeting->alive}, {.fd = fd, .events = events}};
        int ready = poll(watched, 2, (int)((until_ns - now_ns) / NS_PER_MS + 1));
        if (ready < 0 && errno != EINTR)
            return error_set_errno(error, errno, "cannot wait for the other nodes");
        if (ready > 0 && watched[0].revents)
            return error_set(error, ERR_STATE, "nobody waits for this node's daemon any more");
        if (ready > 0 && watched[1].revents)
            return 1;
    }
}

/* --- lines ----------------------------------------------------------------------------------- */

/* Without its end; the caller's to free. */
static int meet_read_line(const struct meeting *meeting, int fd, uint64_t until_ns, char **line,
                          struct error *error)
{
    size_t used = 0, bytes = 4096;
    char *text = malloc(bytes);
    int code = 0;
    if (!text)
        return error_set(error, ERR_MEMORY, "out of memory");
    while (code == 0 && (used == 0 || text[used - 1] != '\n')) {
        if (used == bytes) {
            char *larger = bytes < LINE_BYTES_MAX ? realloc(text, 2 * bytes) : NULL;
            if (!larger) {
                code = error_set(error, ERR_PROTOCOL, "its line is too long");
                break;
            }
            text = larger;
            bytes *= 2;
        }
        code = meet_wait(meeting, fd, POLLIN, until_ns, error);
        if (code == 0)
            code = error_set(error, ERR_TIMEOUT, "it says nothing");
        if (code < 0)
            break;
        ssize_t got = recv(fd, text + used, bytes - used, MSG_DONTWAIT);
        code = 0;
        if (got > 0)
            used += (size_t)got;
        else if (got == 0 || (errno != EAGAIN && errno != EINTR))
            code = error_set(error, ERR_DISCONNECTED, "it closed the connection");
    }
    if (code < 0) {
        free(text);
        return code;
    }
    text[used - 1] = 0;
    *line = text;
    return 0;
}

static int meet_write_line(const struct meeting *meeting, int fd, const char *line,
                           struct error *error)
{
    size_t sent = 0, bytes = strlen(line);
    while (sent <= bytes) {
        int code = meet_wait(meeting, fd, POLLOUT, meeting->deadline_ns, error);
        if (code <= 0)
            return code < 0 ? code : error_set(error, ERR_TIMEOUT, "it takes nothing");
        ssize_t part = sent < bytes
                           ? send(fd, line + sent, bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL)
                           : send(fd, "\n", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (part > 0)
            sent += (size_t)part;
        else if (errno != EAGAIN && errno != EINTR)
            return error_set_errno(error, errno, "cannot write to it");
    }
    return 0;
}

/* --- addresses ------------------------------------------------------------------------------- */

/* Of the interface that SHOAL_INTERFACE names; 0 without it. */
static int meet_interface_address(struct sockaddr_in *address, struct error *error)
{
    const char *name = env_text("SHOAL_INTERFACE");
    struct ifaddrs *all = NULL;
    if (!name)
        return 0;
    if (getifaddrs(&all))
        return error_set_errno(error, errno, "cannot look for network interfaces");
    int found = 0;
    for (const struct ifaddrs *one = all; one && !found; one = one->ifa_next)
        if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET &&
            strcmp(one->ifa_name, name) == 0) {
            memcpy(address, one->ifa_addr, sizeof(*address));
            found = 1;
        }
    freeifaddrs(all);
    return found ? 1
                 : error_set(error, ERR_INVALID,
                             "SHOAL_INTERFACE: the network interface %s has no IPv4 address", name);
}

/* Where this node's daemon will listen: the interface that is named, else the one through which
 * this node reached the first, or was reached (connection -1: loopback). */
static int meet_listen(int connection, int *listener, char text[STEP_ADDRESS_BYTES],
                       struct error *error)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int code = connection < 0 ? 1 : meet_interface_address(&address, error);
    if (code == 0 && getsockname(connection, (struct sockaddr *)&address, &bytes))
        code = error_set_errno(error, errno, "cannot ask for an address");
    if (code < 0)
        return code;
    address.sin_port = 0;
    bytes = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    char host[INET_ADDRSTRLEN];
    inet_ntop(AF_INET, &address.sin_addr, host, sizeof(host));
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, SOMAXCONN) ||
        getsockname(fd, (struct sockaddr *)&address, &bytes)) {
        code = error_set_errno(error, errno, "cannot listen on %s", host);
        if (fd >= 0)
            close(fd);
        return code;
    }
    snprintf(text, STEP_ADDRESS_BYTES, "%s:%u", host, ntohs(address.sin_port));
    *listener = fd;
    return 0;
}

/* --- the first node -------------------------------------------------------------------------- */

/* Whom it names as missing. */
static int meet_missing(const struct meeting *meeting, const int *connections, struct error *error)
{
    uint32_t missing = 0, first = 0;
    for (uint32_t i = meeting->step->nodes - 1; i > 0; i--)
        if (connections[i] < 0) {
            missing++;
            first = i;
        }
    return error_set(error, ERR_TIMEOUT,
                     "%" PRIu32 " of %" PRIu32 " nodes have not come for the daemons of step %s, "
                     "the first of them node %" PRIu32 ": did its ranks open a job, and is there "
                     "no daemon at " SHOAL_DEFAULT_SOCKET " on it?",
                     missing, meeting->step->nodes, meeting->step->name, first);
}

/* Whoever has said a line: a node of this step, or a stranger, who is sent away. 1: one more node.
 * One that comes again has lost its connection: what it says now is true. */
static int meet_receive(const struct meeting *meeting, int fd, const char *sealed, int *connections,
                        struct step_roster *roster)
{
    struct error error = {0};
    char *text = NULL, address[STEP_ADDRESS_BYTES];
    uint32_t node = 0;
    int code = munge_open(sealed, meeting->deadline_ns, &text, &error);
    if (code == 0)
        code = step_coming_read(meeting->step, text, &node, address, &error);
    free(text);
    if (code < 0) {
        fprintf(stderr, "shoalrun: somebody at port %u is no node of step %s: %s\n",
                meeting->step->port, meeting->step->name, error.text);
        close(fd);
        return 0;
    }
    int before = connections[node];
    if (before >= 0)
        close(before);
    connections[node] = fd;
    memcpy(roster->addresses[node], address, sizeof(address));
    return before < 0;
}

static int meet_gather(const struct meeting *meeting, struct door *door, int *connections,
                       struct step_roster *roster, struct error *error)
{
    for (uint32_t come = 1; come < meeting->step->nodes;) {
        int fd;
        char *line;
        int code = door_next(door, meeting->alive, meeting->deadline_ns, &fd, &line, error);
        if (code == 0)
            code = meet_missing(meeting, connections, error);
        if (code < 0)
            return code;
        come += (uint32_t)meet_receive(meeting, fd, line, connections, roster);
        free(line);
    }
    return 0;
}

static int meet_answer(const struct meeting *meeting, const int *connections,
                       const struct step_roster *roster, struct error *error)
{
    char *text = step_roster_write(meeting->step, roster);
    int code = text ? 0 : error_set(error, ERR_MEMORY, "out of memory");
    /* Each a credential of its own: none is opened twice on one machine. */
    for (uint32_t i = 1; code == 0 && i < roster->nodes; i++) {
        char *sealed = NULL;
        code = munge_seal(text, meeting->deadline_ns, &sealed, error);
        if (code < 0)
            break;
        code = meet_write_line(meeting, connections[i], sealed, error);
        free(sealed);
        if (code < 0 && code != ERR_STATE)
            error_prefix(error, "node %" PRIu32 " of step %s", i, meeting->step->name);
    }
    free(text);
    return code;
}

static int meet_as_first(const struct meeting *meeting, struct step_roster *roster, int *listener,
                         struct error *error)
{
    uint32_t nodes = meeting->step->nodes;
    int *connections = calloc(nodes, sizeof(*connections));
    if (!connections)
        return error_set(error, ERR_MEMORY, "out of memory");
    for (uint32_t i = 0; i < nodes; i++)
        connections[i] = -1;
    struct door *door = door_open(meeting->step->port, nodes + GUESTS, error);
    int code = door ? 0 : error->code;
    if (!door)
        error_prefix(error, "the nodes of step %s cannot meet (SHOAL_STEP_PORT names another port)",
                     meeting->step->name);
    if (code == 0)
        code = meet_gather(meeting, door, connections, roster, error);
    if (code == 0)
        code = meet_listen(connections[1], listener, roster->addresses[0], error);
    if (code == 0)
        code = fresh_secret(roster->secret, error);
    if (code == 0)
        code = meet_answer(meeting, connections, roster, error);
    for (uint32_t i = 0; i < nodes; i++)
        if (connections[i] >= 0)
            close(connections[i]);
    door_close(door);
    free(connections);
    return code;
}

/* --- the others ------------------------------------------------------------------------------ */

static int meet_resolve(const struct step *step, struct sockaddr_in *address, struct error *error)
{
    struct addrinfo wanted = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found = NULL;
    int problem = getaddrinfo(step->first_host, NULL, &wanted, &found);
    if (problem)
        return error_set(error, ERR_SYSTEM,
                         "the first node of step %s, %s, has no IPv4 address: %s", step->name,
                         step->first_host, gai_strerror(problem));
    memcpy(address, found->ai_addr, sizeof(*address));
    address->sin_port = htons(step->port);
    freeaddrinfo(found);
    return 0;
}

/* One try: 1 when it is connected, 0 when nobody answers, and why in *problem. */
static int meet_try(const struct meeting *meeting, const struct sockaddr_in *address, int *made,
                    int *problem, struct error *error)
{
    socklen_t bytes = sizeof(*problem);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_set_errno(error, errno, "cannot make a socket");
    *problem = connect(fd, (const struct sockaddr *)address, sizeof(*address)) ? errno : 0;
    int code = 1;
    if (*problem == EINPROGRESS) {
        code = meet_wait(meeting, fd, POLLOUT, meeting->deadline_ns, error);
        *problem = ETIMEDOUT;
        if (code > 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, problem, &bytes))
            *problem = errno;
    }
    if (code > 0 && *problem == 0) {
        *made = fd;
        return 1;
    }
    close(fd);
    return code < 0 ? code : 0;
}

/* It may come later than this one. */
static int meet_connect(const struct meeting *meeting, int *connection, struct error *error)
{
    struct sockaddr_in address;
    int problem = 0, code = meet_resolve(meeting->step, &address, error);
    if (code < 0)
        return code;
    for (;;) {
        code = meet_try(meeting, &address, connection, &problem, error);
        if (code != 0)
            return code < 0 ? code : 0;
        uint64_t now_ns = clock_now_ns(), again_ns = now_ns + AGAIN_MS * NS_PER_MS;
        if (again_ns >= meeting->deadline_ns)
            return error_set(error, ERR_TIMEOUT,
                             "nobody answers at port %u of %s, where the nodes of step %s meet "
                             "(%s): did its ranks open a job, and is there no daemon "
                             "at " SHOAL_DEFAULT_SOCKET " on it?",
                             meeting->step->port, meeting->step->first_host, meeting->step->name,
                             strerror(problem));
        code = meet_wait(meeting, -1, 0, again_ns, error);
        if (code < 0)
            return code;
    }
}

static void meet_blame(const struct meeting *meeting, int code, struct error *error)
{
    if (code < 0 && code != ERR_STATE)
        error_prefix(error, "the first node of step %s, %s", meeting->step->name,
                     meeting->step->first_host);
}

/* What it says to those who have come. 1: nothing, for it has sent this one away. */
static int meet_hear(const struct meeting *meeting, int connection, const char *own,
                     struct step_roster *roster, struct error *error)
{
    char *sealed = NULL, *text = NULL;
    int code = meet_read_line(meeting, connection, meeting->deadline_ns, &sealed, error);
    if (code < 0) {
        meet_blame(meeting, code, error);
        return code == ERR_DISCONNECTED ? 1 : code;
    }
    code = munge_open(sealed, meeting->deadline_ns, &text, error);
    bool said_wrong = code == ERR_REFUSED; /* else the trouble is this node's */
    if (code == 0) {
        code = step_roster_read(meeting->step, text, roster, error);
        if (code == 0 && strcmp(roster->addresses[meeting->step->node], own) != 0)
            code = error_set(error, ERR_PROTOCOL, "it has another address for this node: %s",
                             roster->addresses[meeting->step->node]);
        said_wrong = code == ERR_PROTOCOL;
    }
    if (said_wrong)
        meet_blame(meeting, code, error);
    free(sealed);
    free(text);
    return code;
}

/* 0: this node has the roster; 1: it was sent away, and why in *error. */
static int meet_come(const struct meeting *meeting, struct step_roster *roster, int *listener,
                     struct error *error)
{
    char coming[COMING_BYTES], own[STEP_ADDRESS_BYTES], *sealed = NULL;
    int connection = -1, code = meet_connect(meeting, &connection, error);
    if (code < 0)
        return code;
    code = meet_listen(connection, listener, own, error);
    if (code == 0) {
        step_coming_write(meeting->step, own, coming, sizeof(coming));
        code = munge_seal(coming, meeting->deadline_ns, &sealed, error);
    }
    if (code == 0) {
        code = meet_write_line(meeting, connection, sealed, error);
        meet_blame(meeting, code, error);
        if (code == 0)
            code = meet_hear(meeting, connection, own, roster, error);
        else if (code == ERR_SYSTEM)
            code = 1;
    }
    free(sealed);
    close(connection);
    return code;
}

/* Who was sent away may have had to make place for others, or have met another step. */
static int meet_as_other(const struct meeting *meeting, struct step_roster *roster, int *listener,
                         struct error *error)
{
    uint64_t pause_ms = AGAIN_MS;
    for (;;) {
        int code = meet_come(meeting, roster, listener, error);
        if (code <= 0)
            return code;
        close(*listener);
        *listener = -1;
        uint64_t again_ns = clock_now_ns() + pause_ms * NS_PER_MS;
        if (again_ns >= meeting->deadline_ns)
            return error->code;
        code = meet_wait(meeting, -1, 0, again_ns, error);
        if (code < 0)
            return code;
        if (pause_ms < AGAIN_MOST_MS)
            pause_ms *= 2;
    }
}

int meet(const struct step *step, int alive, struct step_roster *roster, int *listener,
         struct error *error)
{
    /* Ranks that wait as long as that are still there to be told who is missing. */
    struct meeting meeting = {.step = step,
                              .alive = alive,
                              .deadline_ns = clock_now_ns() + step->timeout_ms * NS_PER_MS / 4 * 3};
    int fd = -1, code;
    if (step->nodes == 1)
        code = meet_listen(-1, &fd, roster->addresses[0], error);
    else if (step->node == 0)
        code = meet_as_first(&meeting, roster, &fd, error);
    else
        code = meet_as_other(&meeting, roster, &fd, error);
    if (code < 0 && fd >= 0)
        close(fd);
    if (code == 0)
        *listener = fd;
    return code;
}
