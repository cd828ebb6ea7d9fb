#include "common/transport/transport_port.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "common/auth/auth.h"
#include "common/base/clock.h"
#include "common/base/quota.h"
#include "common/log/log_throttle.h"
#include "common/text/number_text.h"

#define SCAN_NS (100 * NS_PER_MS)
#define SCAN_IDLE_NS NS_PER_S
/* For each descriptor of the process, of which all are looked at, so that a daemon with many peers
 * does not scan all the time; up to half the silence that a scan is to find. */
#define SCAN_DESCRIPTOR_NS (2 * NS_PER_MS)
#define SCAN_MOST_NS (PORT_SILENCE_MS * NS_PER_MS / 2)
/* A connection that was begun before the door was shut may be completed for so long: the kernel
 * repeats its answer to a SYN five times by default. */
#define LINGER_NS (70 * NS_PER_S)
/* How often the number of descriptors is looked at. */
#define PROBE_NS NS_PER_MS
#define PROBE_IDLE_NS (10 * NS_PER_MS)
/* libfabric reads an end at once. 2.1 looks no more at a connection of which it has read the header
 * of a request and nothing behind it: nobody has the descriptor then, and nobody else closes it. */
#define FORGOTTEN_NS (2 * NS_PER_S)
#define PROBE_GROWTH 32        /* new descriptors after which a scan does not wait for its time */
#define TURNED_AWAY_AT_ONCE 16 /* connections, when there is no descriptor for them */
/* The least from one scan to the next while no descriptor is free. */
#define SCAN_STARVED_NS (20 * NS_PER_MS)
#define FIRST_ROOM 64u
#define TCP_FLAGS_OFFSET 13

/* An accepted connection that is no peer's. */
struct port_stranger {
    uint64_t cookie; /* the kernel's number of the socket */
    uint64_t owner;  /* of a quota: by its address */
    uint64_t since_ns;
    int fd;
    bool seen;  /* in this scan */
    bool ended; /* shut down; libfabric has not closed it yet */
    uint64_t ended_ns;
};

struct port {
    struct log *log;
    struct sockaddr_storage address;
    DIR *descriptors; /* of the process; kept open: it is needed when there are none left */
    int listener;     /* libfabric's; -1: it is no socket */
    int spare;        /* given up for a moment to turn connections away; or -1 */
    bool has_door, open, expected, busy;
    uint64_t open_until_ns, busy_until_ns;
    uint64_t scan_ns, probe_ns; /* the next ones */
    uint64_t starved_ns;        /* the next scan where no descriptor is free */
    int lowest;                 /* free descriptor, after the last scan */
    uint32_t looked_at;         /* descriptors, in this scan or search */
    struct port_stranger *strangers;
    uint32_t count, room;
    uint32_t limit;
    struct log_throttle throttle; /* for the lines that strangers cause */
};

/* --- addresses and descriptors */

/* The parts of an IPv4 or IPv6 address that tell connections apart. */
struct port_endpoint {
    sa_family_t family; /* AF_UNSPEC: it is neither */
    in_port_t number;
    struct in6_addr host; /* IPv4: in its first four bytes */
};

static struct port_endpoint port_endpoint_of(const struct sockaddr_storage *address)
{
    struct port_endpoint endpoint = {.family = address->ss_family};
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    if (address->ss_family == AF_INET) {
        memcpy(&v4, address, sizeof(v4));
        endpoint.number = v4.sin_port;
        memcpy(&endpoint.host, &v4.sin_addr, sizeof(v4.sin_addr));
    } else if (address->ss_family == AF_INET6) {
        memcpy(&v6, address, sizeof(v6));
        endpoint.number = v6.sin6_port;
        endpoint.host = v6.sin6_addr;
    } else {
        endpoint.family = AF_UNSPEC;
    }
    return endpoint;
}

static bool port_host_is(const struct port_endpoint *endpoint, const struct in6_addr *host)
{
    return memcmp(&endpoint->host, host, sizeof(*host)) == 0;
}

bool port_host_equal(const struct sockaddr_storage *one, const struct sockaddr_storage *other)
{
    struct port_endpoint a = port_endpoint_of(one), b = port_endpoint_of(other);
    return a.family != AF_UNSPEC && a.family == b.family && port_host_is(&a, &b.host);
}

bool port_address_equal(const struct sockaddr_storage *one, const struct sockaddr_storage *other)
{
    struct port_endpoint a = port_endpoint_of(one), b = port_endpoint_of(other);
    return a.number == b.number && port_host_equal(one, other);
}

/* Whether a socket with this local address is the listener, or was accepted by it. */
static bool port_is_local(const struct port *port, const struct sockaddr_storage *local)
{
    struct port_endpoint own = port_endpoint_of(&port->address), it = port_endpoint_of(local);
    return own.family != AF_UNSPEC && own.family == it.family && own.number == it.number &&
           (port_host_is(&own, &in6addr_any) || port_host_is(&own, &it.host));
}

/* The next descriptor of the process that has the port's local address, or -1. */
static int port_next_descriptor(struct port *port)
{
    const struct dirent *entry;
    while ((entry = readdir(port->descriptors)) != NULL) {
        uint64_t number;
        struct sockaddr_storage local = {0};
        socklen_t bytes = sizeof(local);
        port->looked_at++;
        if (number_text_parse(entry->d_name, 0, INT32_MAX, &number, NULL) == 0 &&
            getsockname((int)number, (struct sockaddr *)&local, &bytes) == 0 &&
            port_is_local(port, &local))
            return (int)number;
    }
    return -1;
}

static int port_find_listener(struct port *port)
{
    int fd;
    rewinddir(port->descriptors);
    while ((fd = port_next_descriptor(port)) >= 0) {
        int listens = 0;
        socklen_t bytes = sizeof(listens);
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens)
            return fd;
    }
    return -1;
}

/* --- the door */

static bool port_filter(int fd, bool shut)
{
    struct sock_filter drop_syn[] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, TCP_FLAGS_OFFSET),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, TH_SYN, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 0),
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
    };
    struct sock_fprog program = {sizeof(drop_syn) / sizeof(drop_syn[0]), drop_syn};
    int nothing = 0;
    if (shut)
        return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) == 0;
    return setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &nothing, sizeof(nothing)) == 0;
}

static void port_set_door(struct port *port, bool open)
{
    if (!port->has_door || open == port->open)
        return;
    if (!port_filter(port->listener, !open)) {
        log_throttled(port->log, &port->throttle, clock_now_ns(), LOG_LEVEL_WARNING,
                      "fabric: the port stays %s: %s", port->open ? "open" : "shut",
                      strerror(errno));
        return;
    }
    port->open = open;
    port->busy = true;
}

void port_admit(struct port *port, uint64_t until_ns)
{
    if (until_ns > port->open_until_ns)
        port->open_until_ns = until_ns;
    port_set_door(port, true);
}

void port_expect(struct port *port, bool expected, uint64_t now_ns)
{
    port->expected = expected;
    port_set_door(port, expected || now_ns < port->open_until_ns);
}

/* --- strangers */

/* Once more in this scan, or for the first time. */
static void port_stranger_seen(struct port *port, int fd, uint64_t cookie,
                               const struct sockaddr_storage *remote, uint64_t now_ns)
{
    for (uint32_t i = 0; i < port->count; i++) {
        struct port_stranger *stranger = &port->strangers[i];
        if (stranger->cookie == cookie) {
            stranger->seen = true;
            return;
        }
    }
    if (port->count == port->room) {
        uint32_t room = port->room > 0 ? 2 * port->room : FIRST_ROOM;
        struct port_stranger *larger = realloc(port->strangers, room * sizeof(*larger));
        if (!larger) {
            shutdown(fd, SHUT_RDWR); /* nobody could remember it */
            return;
        }
        port->strangers = larger;
        port->room = room;
    }
    port->strangers[port->count++] =
        (struct port_stranger){.cookie = cookie,
                               .owner = quota_owner_of((const struct sockaddr *)remote),
                               .since_ns = now_ns,
                               .fd = fd,
                               .seen = true};
}

static void port_stranger_end(struct port *port, struct port_stranger *stranger, uint64_t now_ns,
                              const char *why)
{
    char from[INET6_ADDRSTRLEN] = "?";
    struct sockaddr_storage remote = {0};
    socklen_t bytes = sizeof(remote);
    if (getpeername(stranger->fd, (struct sockaddr *)&remote, &bytes) == 0) {
        struct port_endpoint endpoint = port_endpoint_of(&remote);
        inet_ntop(endpoint.family, &endpoint.host, from, sizeof(from));
    }
    log_throttled(port->log, &port->throttle, now_ns, LOG_LEVEL_WARNING,
                  "fabric: connection from %s ended: %s", from, why);
    shutdown(stranger->fd, SHUT_RDWR);
    stranger->ended = true;
    stranger->ended_ns = now_ns;
}

/* The oldest of the address that has most. Where none has more than one, chance decides. */
static struct port_stranger *port_pick(struct port *port, const struct quota *places)
{
    uint64_t giver = quota_giver(places, UINT64_MAX, 0), nth = 0;
    bool any = quota_used(places, giver) <= 1;
    if (any)
        auth_random(&nth, sizeof(nth));
    nth %= places->used;
    for (uint32_t i = 0; i < port->count; i++) {
        struct port_stranger *stranger = &port->strangers[i];
        if (stranger->ended || (!any && stranger->owner != giver))
            continue;
        if (!any || nth-- == 0)
            return stranger;
    }
    return NULL;
}

/* End strangers until no more than the limit are left, and return how many are left.
 * port->strangers is in the order in which they came. */
static uint32_t port_thin_out(struct port *port, uint64_t now_ns)
{
    struct quota places = {.limit = port->limit};
    struct port_stranger *stranger;
    for (uint32_t i = 0; i < port->count; i++) {
        if (!port->strangers[i].ended && quota_take(&places, port->strangers[i].owner, 1) != 0)
            port_stranger_end(port, &port->strangers[i], now_ns, "there is no memory for it");
    }
    while (places.used > places.limit && (stranger = port_pick(port, &places))) {
        port_stranger_end(port, stranger, now_ns, "too many say nothing");
        quota_give_back(&places, stranger->owner, 1);
    }
    uint32_t left = (uint32_t)places.used;
    quota_clear(&places);
    return left;
}

/* Forget those that are closed, end those that are too old, and some of too many. */
static uint32_t port_judge(struct port *port, uint64_t now_ns)
{
    uint32_t kept = 0, silent = 0;
    for (uint32_t i = 0; i < port->count; i++) {
        struct port_stranger stranger = port->strangers[i];
        if (!stranger.seen)
            continue;
        stranger.seen = false;
        if (stranger.ended && now_ns - stranger.ended_ns >= FORGOTTEN_NS) {
            close(stranger.fd);
            continue;
        }
        if (!stranger.ended && now_ns - stranger.since_ns >= PORT_SILENCE_MS * NS_PER_MS)
            port_stranger_end(port, &stranger, now_ns, "it has not said in time whose it is");
        silent += !stranger.ended;
        port->strangers[kept++] = stranger;
    }
    port->count = kept;
    return silent > port->limit ? port_thin_out(port, now_ns) : silent;
}

/* How many strangers there are. */
static uint32_t port_scan(struct port *port, uint64_t now_ns, port_owned *owned, void *context)
{
    int fd;
    port->looked_at = 0;
    rewinddir(port->descriptors);
    while ((fd = port_next_descriptor(port)) >= 0) {
        uint64_t cookie = 0;
        struct sockaddr_storage remote = {0};
        socklen_t remote_bytes = sizeof(remote), cookie_bytes = sizeof(cookie);
        /* One without a remote end listens, or is about to be closed. */
        if (fd != port->listener && fd != port->spare &&
            getpeername(fd, (struct sockaddr *)&remote, &remote_bytes) == 0 &&
            getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &cookie_bytes) == 0 &&
            !owned(context, &remote))
            port_stranger_seen(port, fd, cookie, &remote, now_ns);
    }
    return port_judge(port, now_ns);
}

/* --- looking */

/* Without a descriptor for it, libfabric cannot take a connection, and is told of it for ever. */
static void port_turn_away(struct port *port)
{
    if (port->spare < 0)
        return;
    close(port->spare);
    for (int i = 0; i < TURNED_AWAY_AT_ONCE; i++) {
        int fd = accept4(port->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            break;
        close(fd);
    }
    port->spare = fcntl(port->listener, F_DUPFD_CLOEXEC, 0);
}

/* The lowest number that a new descriptor would have: connections that were accepted raise it. */
static int port_probe(struct port *port)
{
    int fd = fcntl(port->listener, F_DUPFD_CLOEXEC, 0);
    if (fd >= 0)
        close(fd);
    else if (errno == EMFILE)
        port_turn_away(port);
    if (fd >= 0 && port->spare < 0)
        port->spare = fcntl(port->listener, F_DUPFD_CLOEXEC, 0);
    return fd;
}

bool port_is_busy(const struct port *port)
{
    return port->busy;
}

void port_look(struct port *port, uint64_t now_ns, port_owned *owned, void *context)
{
    if (port->listener < 0 || now_ns < port->probe_ns)
        return;
    if (port->open && !port->expected && now_ns >= port->open_until_ns)
        port_set_door(port, false);
    if (port->open)
        port->busy_until_ns = now_ns + LINGER_NS;
    /* Where there is no door, this goes on for ever: it is to cost nothing then. */
    bool alert = port->expected || now_ns < port->open_until_ns || port->count > 0;
    port->probe_ns = now_ns + (alert ? PROBE_NS : PROBE_IDLE_NS);
    int lowest = port_probe(port);
    bool grown = lowest < 0 ? now_ns >= port->starved_ns : lowest >= port->lowest + PROBE_GROWTH;
    if (now_ns < port->scan_ns && !grown)
        return;
    port->starved_ns = now_ns + SCAN_STARVED_NS;
    uint32_t strangers = port_scan(port, now_ns, owned, context);
    port->lowest = lowest < 0 ? 0 : lowest;
    uint64_t rest_ns = SCAN_NS + port->looked_at * SCAN_DESCRIPTOR_NS;
    if (!alert && strangers == 0 && rest_ns < SCAN_IDLE_NS)
        rest_ns = SCAN_IDLE_NS;
    port->scan_ns = now_ns + (rest_ns < SCAN_MOST_NS ? rest_ns : SCAN_MOST_NS);
    port->busy = port->open || strangers > 0 || now_ns < port->busy_until_ns;
}

/* --- opening and closing */

/* libfabric (1.17, 2.1) reads a request by a recv that blocks: of half a request it would wait for
 * the other half in the thread that calls it, for ever. An accepted socket inherits the time limit
 * of its listener; Linux takes one before zero for "not at all". Where that is refused the limit is
 * a clock tick. */
static void port_read_without_waiting(const struct port *port)
{
    static const struct timeval never = {-1, 0}, least = {0, 1};
    if (setsockopt(port->listener, SOL_SOCKET, SO_RCVTIMEO, &never, sizeof(never)) &&
        setsockopt(port->listener, SOL_SOCKET, SO_RCVTIMEO, &least, sizeof(least)))
        log_warning(port->log, "fabric: half a request on its port can stop it: %s",
                    strerror(errno));
}

struct port *port_open(const struct sockaddr_storage *address, uint32_t strangers, bool door,
                       struct log *log)
{
    static const int silence_s = 60;
    struct port *port = calloc(1, sizeof(*port));
    if (!port)
        return NULL;
    *port = (struct port){
        .log = log, .address = *address, .limit = strangers, .listener = -1, .spare = -1};
    port->descriptors = opendir("/proc/self/fd");
    if (!port->descriptors) {
        log_warning(log, "fabric: strangers on its port cannot be limited: /proc/self/fd: %s",
                    strerror(errno));
        return port;
    }
    port->listener = port_find_listener(port);
    if (port->listener < 0)
        return port;
    port->spare = fcntl(port->listener, F_DUPFD_CLOEXEC, 0);
    port->open = true;
    port->has_door = door && port_filter(port->listener, true);
    port->open = !port->has_door;
    port->busy = port->open;
    port_read_without_waiting(port);
    if (door && !port->has_door)
        log_info(log, "fabric: its port stays open while nobody is expected: no filter (%s)",
                 strerror(errno));
    if (setsockopt(port->listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, &silence_s, sizeof(silence_s)))
        log_info(log, "fabric: its port takes silent connections: %s", strerror(errno));
    return port;
}

void port_close(struct port *port)
{
    if (!port)
        return;
    if (port->spare >= 0)
        close(port->spare);
    if (port->descriptors)
        closedir(port->descriptors);
    free(port->strangers);
    free(port);
}

bool port_is_found(const struct port *port)
{
    return port->listener >= 0;
}

bool port_has_door(const struct port *port)
{
    return port->has_door;
}

bool port_is_open(const struct port *port)
{
    return port->open;
}
