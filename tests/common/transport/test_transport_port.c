/* The port on which libfabric listens, with a listener of the test's own in its place: the kernel's
 * filter on real sockets, and strangers on virtual time. */
#include "common/transport/transport_port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/lib/suite.h"

#define LIMIT 4
#define CROWD 10
#define SOON_MS 300       /* nothing comes within it that is not let in */
#define PATIENCE_MS 30000 /* the kernel tries again after 1, 3 and 7 s */
#define START_NS (1000 * NS_PER_S)
#define SCAN_NS (200 * NS_PER_MS) /* after so long there is a scan */

static struct log silent;
static struct sockaddr_storage address;
static struct port *port;
static int listener;
static struct sockaddr_storage ours; /* the remote address of the connection that is a peer's */

static bool owned(void *context, const struct sockaddr_storage *remote)
{
    (void)context;
    return port_address_equal(remote, &ours);
}

/* An address of this machine, or of all its interfaces. */
static void address_set(struct sockaddr_storage *it, int family, bool any, uint16_t number)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(number)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(number)};
    v4.sin_addr.s_addr = htonl(any ? INADDR_ANY : INADDR_LOOPBACK);
    v6.sin6_addr = any ? in6addr_any : in6addr_loopback;
    memset(it, 0, sizeof(*it));
    if (family == AF_INET)
        memcpy(it, &v4, sizeof(v4));
    else
        memcpy(it, &v6, sizeof(v6));
}

/* The port has the same offset in both families. */
static uint16_t address_number(const struct sockaddr_storage *it)
{
    struct sockaddr_in v4;
    memcpy(&v4, it, sizeof(v4));
    return ntohs(v4.sin_port);
}

static void listen_on(int family, bool any)
{
    socklen_t bytes = sizeof(address);
    address_set(&address, family, any, 0);
    listener = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_ge(listener, 0);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(listener, 64), 0);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&address, &bytes), 0);
}

static void setup(void)
{
    log_init(&silent, "test", LOG_LEVEL_ERROR, -1, false);
    ours.ss_family = AF_UNSPEC;
    listen_on(AF_INET, false);
    port = port_open(&address, LIMIT, true, &silent);
    ck_assert_ptr_nonnull(port);
    ck_assert(port_is_found(port));
}

static void teardown(void)
{
    port_close(port);
    close(listener);
}

static int begin_connection(void)
{
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_ge(fd, 0);
    int result = connect(fd, (struct sockaddr *)&address, sizeof(address));
    ck_assert(result == 0 || errno == EINPROGRESS);
    return fd;
}

static bool ready(int fd, short events, int timeout_ms)
{
    struct pollfd polled = {.fd = fd, .events = events};
    return poll(&polled, 1, timeout_ms) == 1;
}

/* The kernel hands over those only that have said something. */
static int take_connection(int client)
{
    ck_assert(ready(client, POLLOUT, PATIENCE_MS));
    ck_assert_int_eq(send(client, "x", 1, MSG_NOSIGNAL), 1);
    ck_assert(ready(listener, POLLIN, PATIENCE_MS));
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    char byte;
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(recv(fd, &byte, 1, 0), 1);
    return fd;
}

static bool is_ended(int fd)
{
    char byte;
    return ready(fd, POLLIN, 0) && recv(fd, &byte, 1, MSG_DONTWAIT) <= 0;
}

static void pass_byte(int from, int to)
{
    char byte = 0;
    ck_assert_int_eq(send(from, "b", 1, MSG_NOSIGNAL), 1);
    ck_assert(ready(to, POLLIN, PATIENCE_MS));
    ck_assert_int_eq(recv(to, &byte, 1, 0), 1);
    ck_assert_int_eq(byte, 'b');
}

static bool door_missing(const char *test)
{
    if (port_has_door(port))
        return false;
    suite_skip(test, "this kernel takes no filter on a listening socket");
    return true;
}

/* --- the door */

START_TEST(shut_until_somebody_is_expected)
{
    if (door_missing("shut_until_somebody_is_expected"))
        return;
    ck_assert(!port_is_open(port) && !port_is_busy(port));
    int stranger = begin_connection();
    ck_assert(!ready(stranger, POLLOUT, SOON_MS));
    ck_assert(!ready(listener, POLLIN, 0));
    port_expect(port, true, START_NS);
    ck_assert(port_is_open(port) && port_is_busy(port));
    /* A connection that comes now is answered at once, one that waits when its kernel tries
     * again. */
    int peer = begin_connection();
    ck_assert(ready(peer, POLLOUT, PATIENCE_MS));
    ck_assert(ready(stranger, POLLOUT, PATIENCE_MS));
    close(take_connection(peer));
    close(take_connection(stranger));
    close(peer);
    close(stranger);
}
END_TEST

/* Connections that were let in stay, whatever the door does to the listener, whose filter they
 * inherit. */
START_TEST(shutting_leaves_connections_alone)
{
    if (door_missing("shutting_leaves_connections_alone"))
        return;
    int clients[3], servers[3];
    for (int i = 0; i < 3; i++) {
        port_expect(port, true, START_NS);
        clients[i] = begin_connection();
        servers[i] = take_connection(clients[i]);
        port_expect(port, false, START_NS);
        ck_assert(!port_is_open(port));
    }
    int begun;
    port_expect(port, true, START_NS);
    begun = begin_connection(); /* in the listener's queue when the door is shut */
    ck_assert(ready(begun, POLLOUT, PATIENCE_MS));
    port_expect(port, false, START_NS);
    int taken = take_connection(begun);
    pass_byte(begun, taken);
    pass_byte(taken, begun);
    for (int i = 0; i < 3; i++) {
        pass_byte(clients[i], servers[i]);
        pass_byte(servers[i], clients[i]);
        close(clients[i]);
        ck_assert(ready(servers[i], POLLIN, PATIENCE_MS));
        ck_assert(is_ended(servers[i]));
        close(servers[i]);
    }
    close(begun);
    close(taken);
}
END_TEST

START_TEST(admitted_for_a_while)
{
    if (door_missing("admitted_for_a_while"))
        return;
    port_admit(port, START_NS + NS_PER_S);
    port_admit(port, START_NS); /* does not shorten it */
    ck_assert(port_is_open(port));
    port_expect(port, true, START_NS);
    port_expect(port, false, START_NS);
    ck_assert(port_is_open(port));
    port_look(port, START_NS + NS_PER_S - 1, owned, NULL);
    ck_assert(port_is_open(port));
    port_look(port, START_NS + 2 * NS_PER_S, owned, NULL);
    ck_assert(!port_is_open(port));
    ck_assert(port_is_busy(port)); /* what was begun may still be completed */
    port_look(port, START_NS + 200 * NS_PER_S, owned, NULL);
    ck_assert(!port_is_busy(port));
}
END_TEST

START_TEST(found_on_any_address)
{
    static const int families[] = {AF_INET, AF_INET6};
    for (size_t i = 0; i < 2; i++) {
        for (int any = 0; any < 2; any++) {
            int first = listener;
            struct port *other;
            listen_on(families[i], any == 1);
            other = port_open(&address, LIMIT, true, &silent);
            ck_assert(port_is_found(other));
            port_expect(other, true, START_NS);
            address_set(&address, families[i], false, address_number(&address));
            int client = begin_connection(), server = take_connection(client);
            port_look(other, START_NS, owned, NULL);
            port_look(other, START_NS + PORT_SILENCE_MS * NS_PER_MS, owned, NULL);
            ck_assert(ready(client, POLLIN, PATIENCE_MS) && is_ended(client));
            close(client);
            close(server);
            port_close(other);
            close(listener);
            listener = first;
        }
    }
}
END_TEST

/* A port under datagram endpoints has no door: it is always open. */
START_TEST(no_door)
{
    struct port *open = port_open(&address, LIMIT, false, &silent);
    ck_assert(port_is_found(open) && !port_has_door(open) && port_is_open(open));
    port_expect(open, false, START_NS);
    port_look(open, START_NS, owned, NULL);
    ck_assert(port_is_open(open) && port_is_busy(open));
    port_close(open);
}
END_TEST

/* verbs has no socket to listen on. */
START_TEST(nothing_found)
{
    struct sockaddr_storage elsewhere;
    address_set(&elsewhere, AF_INET, false, address_number(&address) ^ 0xffff);
    struct port *none = port_open(&elsewhere, LIMIT, true, &silent);
    ck_assert_ptr_nonnull(none);
    ck_assert(!port_is_found(none) && !port_has_door(none) && !port_is_busy(none));
    port_admit(none, START_NS);
    port_expect(none, true, START_NS);
    port_look(none, START_NS, owned, NULL);
    ck_assert(!port_is_busy(none));
    port_close(none);
}
END_TEST

/* --- strangers */

START_TEST(silent_ones_stay_with_the_kernel)
{
    port_expect(port, true, START_NS);
    int silent_one = begin_connection(), other = begin_connection();
    ck_assert(ready(silent_one, POLLOUT, PATIENCE_MS));
    ck_assert(!ready(listener, POLLIN, SOON_MS));
    close(take_connection(other));
    ck_assert(!ready(listener, POLLIN, 0));
    close(take_connection(silent_one)); /* and may speak later */
    close(silent_one);
    close(other);
}
END_TEST

START_TEST(silent_ones_have_a_deadline)
{
    port_expect(port, true, START_NS);
    int stranger = begin_connection(), of_stranger = take_connection(stranger);
    int peer = begin_connection(), of_peer = take_connection(peer);
    socklen_t bytes = sizeof(ours);
    ck_assert_int_eq(getsockname(peer, (struct sockaddr *)&ours, &bytes), 0);
    uint64_t limit_ns = PORT_SILENCE_MS * NS_PER_MS;
    for (uint64_t after_ns = 0; after_ns < limit_ns; after_ns += SCAN_NS)
        port_look(port, START_NS + after_ns, owned, NULL);
    ck_assert(!is_ended(stranger));
    /* Shut or not: they are still looked for. */
    port_expect(port, false, START_NS);
    ck_assert(port_is_busy(port));
    port_look(port, START_NS + limit_ns, owned, NULL);
    ck_assert(ready(stranger, POLLIN, PATIENCE_MS) && is_ended(stranger));
    ck_assert(ready(of_stranger, POLLIN, 0)); /* libfabric reads its end, and closes it */
    for (int i = 0; i < 5; i++)
        port_look(port, START_NS + limit_ns + (uint64_t)i * SCAN_NS, owned, NULL);
    pass_byte(peer, of_peer);
    close(of_stranger);
    port_look(port, START_NS + 200 * NS_PER_S, owned, NULL);
    ck_assert(!port_has_door(port) || !port_is_busy(port));
    close(stranger);
    close(peer);
    close(of_peer);
}
END_TEST

/* A connection that libfabric has lost sight of is closed here, and a descriptor is not closed
 * twice. */
START_TEST(forgotten_ones_are_closed)
{
    uint64_t ended_ns = START_NS + PORT_SILENCE_MS * NS_PER_MS;
    port_expect(port, true, START_NS);
    int stranger = begin_connection(), of_stranger = take_connection(stranger);
    port_look(port, START_NS, owned, NULL);
    port_look(port, ended_ns, owned, NULL);
    ck_assert(ready(stranger, POLLIN, PATIENCE_MS) && is_ended(stranger));
    port_look(port, ended_ns + NS_PER_S, owned, NULL);
    ck_assert_int_ge(fcntl(of_stranger, F_GETFD), 0);
    port_look(port, ended_ns + 3 * NS_PER_S, owned, NULL);
    ck_assert_int_lt(fcntl(of_stranger, F_GETFD), 0);
    int other = begin_connection(), of_other = take_connection(other);
    ck_assert_int_eq(other, of_stranger); /* its number is another's now */
    port_look(port, ended_ns + 4 * NS_PER_S, owned, NULL);
    ck_assert_int_ge(fcntl(other, F_GETFD), 0);
    pass_byte(other, of_other);
    close(stranger);
    close(other);
    close(of_other);
}
END_TEST

START_TEST(oldest_of_too_many_go)
{
    int clients[CROWD], servers[CROWD];
    port_expect(port, true, START_NS);
    for (int i = 0; i < CROWD; i++) {
        clients[i] = begin_connection();
        servers[i] = take_connection(clients[i]);
        port_look(port, START_NS + (uint64_t)i * SCAN_NS, owned, NULL);
    }
    for (int i = 0; i < CROWD; i++) {
        if (i < CROWD - LIMIT)
            ck_assert_msg(ready(clients[i], POLLIN, PATIENCE_MS) && is_ended(clients[i]),
                          "number %d was not ended", i);
        else
            ck_assert_msg(!is_ended(clients[i]), "number %d was ended", i);
    }
    for (int i = 0; i < CROWD; i++) {
        close(clients[i]);
        close(servers[i]);
    }
}
END_TEST

static struct sockaddr_in host(uint32_t number)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(0x0a000000u + number)}; /* 10.0.0.x */
}

/* Make a network whose hosts are all this machine. False: only root may. */
static bool hosts_make(uint32_t count)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    if (unshare(CLONE_NEWNET) < 0)
        return false;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool made = fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
    for (uint32_t i = 1; made && i <= count; i++) {
        struct sockaddr_in own = host(i);
        snprintf(request.ifr_name, sizeof(request.ifr_name), "lo:%u", i);
        memcpy(&request.ifr_addr, &own, sizeof(own));
        made = ioctl(fd, SIOCSIFADDR, &request) == 0;
    }
    close(fd);
    return made;
}

static int begin_connection_from(uint32_t number)
{
    struct sockaddr_in own = host(number);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&own, sizeof(own)), 0);
    int result = connect(fd, (struct sockaddr *)&address, sizeof(address));
    ck_assert(result == 0 || errno == EINPROGRESS);
    return fd;
}

/* One host makes connections without end, and another host's older connection stays. Where many
 * hosts have one each, the one that comes last may stay or not. */
START_TEST(a_host_takes_no_places_of_others)
{
    enum { HOSTS = 60, GREEDY = HOSTS, SLOW = 1 };
    int clients[HOSTS + CROWD], count = 0, kept = 0;
    if (!hosts_make(HOSTS)) {
        suite_skip("a_host_takes_no_places_of_others", "needs root for a network of its own");
        return;
    }
    teardown();
    listen_on(AF_INET, false);
    port = port_open(&address, LIMIT, true, &silent);
    port_expect(port, true, START_NS);
    clients[count++] = begin_connection_from(SLOW);
    take_connection(clients[0]);
    for (int i = 0; i < CROWD; i++) {
        clients[count] = begin_connection_from(GREEDY);
        take_connection(clients[count++]);
        port_look(port, START_NS + (uint64_t)i * SCAN_NS, owned, NULL);
    }
    ck_assert(!is_ended(clients[0]));
    for (int i = 1; i < count; i++)
        kept += !is_ended(clients[i]);
    ck_assert_int_eq(kept, LIMIT - 1);
    int late = count, stayed = 0;
    for (int i = 0; i < HOSTS - 2; i++) {
        clients[count] = begin_connection_from(2 + (uint32_t)i);
        take_connection(clients[count++]);
        port_look(port, START_NS + (uint64_t)(CROWD + i) * SCAN_NS, owned, NULL);
        stayed += !is_ended(clients[count - 1]);
    }
    ck_assert_int_gt(stayed, 0);
    ck_assert_int_lt(stayed, count - late);
}
END_TEST

/* Hundreds in one round of a scan: it does not wait for its time. */
START_TEST(crowds_are_seen_early)
{
    enum { MANY = 60 };
    int clients[MANY], servers[MANY];
    port_expect(port, true, START_NS);
    port_look(port, START_NS, owned, NULL);
    for (int i = 0; i < MANY; i++) {
        clients[i] = begin_connection();
        servers[i] = take_connection(clients[i]);
    }
    port_look(port, START_NS + 2 * NS_PER_MS, owned, NULL);
    int ended = 0;
    for (int i = 0; i < MANY; i++)
        ended += is_ended(clients[i]);
    ck_assert_int_eq(ended, MANY - LIMIT);
    for (int i = 0; i < MANY; i++) {
        close(clients[i]);
        close(servers[i]);
    }
}
END_TEST

/* Without a descriptor for it a connection cannot be taken, and the listener stays readable. */
START_TEST(turned_away_without_descriptors)
{
    port_expect(port, true, START_NS);
    port_look(port, START_NS, owned, NULL);
    int client = begin_connection();
    ck_assert(ready(client, POLLOUT, PATIENCE_MS));
    ck_assert_int_eq(send(client, "x", 1, MSG_NOSIGNAL), 1);
    ck_assert(ready(listener, POLLIN, PATIENCE_MS));
    int lowest = dup(listener);
    struct rlimit before, none;
    ck_assert_int_ge(lowest, 0);
    close(lowest);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = (rlim_t)lowest;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    int taken = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    int cause = errno;
    port_look(port, START_NS + SCAN_NS, owned, NULL);
    bool readable = ready(listener, POLLIN, 0);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    ck_assert_int_eq(taken, -1);
    ck_assert_int_eq(cause, EMFILE);
    ck_assert(!readable);
    ck_assert(ready(client, POLLIN, PATIENCE_MS) && is_ended(client));
    close(client);
    /* The port has its spare descriptor back. */
    client = begin_connection();
    int server = take_connection(client);
    pass_byte(client, server);
    close(client);
    close(server);
}
END_TEST

START_TEST(addresses_compared)
{
    struct sockaddr_storage a, b, none = {0};
    address_set(&a, AF_INET, false, 7);
    address_set(&b, AF_INET, false, 7);
    ck_assert(port_address_equal(&a, &b));
    address_set(&b, AF_INET, false, 8);
    ck_assert(!port_address_equal(&a, &b));
    ck_assert(port_host_equal(&a, &b));
    address_set(&b, AF_INET, true, 7);
    ck_assert(!port_address_equal(&a, &b));
    address_set(&b, AF_INET6, false, 7);
    ck_assert(!port_address_equal(&a, &b));
    ck_assert(!port_host_equal(&a, &b));
    ck_assert(!port_address_equal(&none, &none)); /* of no connection */
    ck_assert(!port_host_equal(&none, &none));
    address_set(&a, AF_INET6, false, 7);
    ck_assert(port_address_equal(&a, &b));
    address_set(&b, AF_INET6, true, 7);
    ck_assert(!port_address_equal(&a, &b));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transport_port");
    TCase *door = tcase_create("door");
    tcase_set_timeout(door, 120);
    tcase_add_checked_fixture(door, setup, teardown);
    tcase_add_test(door, shut_until_somebody_is_expected);
    tcase_add_test(door, shutting_leaves_connections_alone);
    tcase_add_test(door, admitted_for_a_while);
    tcase_add_test(door, found_on_any_address);
    tcase_add_test(door, no_door);
    tcase_add_test(door, nothing_found);
    suite_add_tcase(suite, door);
    TCase *strangers = tcase_create("strangers");
    tcase_set_timeout(strangers, 120);
    tcase_add_checked_fixture(strangers, setup, teardown);
    tcase_add_test(strangers, silent_ones_stay_with_the_kernel);
    tcase_add_test(strangers, silent_ones_have_a_deadline);
    tcase_add_test(strangers, forgotten_ones_are_closed);
    tcase_add_test(strangers, oldest_of_too_many_go);
    tcase_add_test(strangers, a_host_takes_no_places_of_others);
    tcase_add_test(strangers, crowds_are_seen_early);
    tcase_add_test(strangers, turned_away_without_descriptors);
    tcase_add_test(strangers, addresses_compared);
    suite_add_tcase(suite, strangers);
    return suite_main(suite);
}
