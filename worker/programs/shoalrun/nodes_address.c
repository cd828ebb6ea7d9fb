/* At which address the other nodes reach this one. */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/env.h"
#include "common/format/message.h"
#include "worker/programs/shoalrun/nodes.h"

#define TIMEOUT_MS 300000
#define AGAIN_MS 500
#define SAY_MS 10000
#define ANY_PORT "9" /* no packet is sent */

static bool address_is_usable(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        struct in_addr host = ((const struct sockaddr_in *)(const void *)address)->sin_addr;
        return ntohl(host.s_addr) >> 24 != IN_LOOPBACKNET && host.s_addr != INADDR_ANY;
    }
    if (address->sa_family != AF_INET6)
        return false;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)address;
    return !IN6_IS_ADDR_LOOPBACK(&six->sin6_addr) && !IN6_IS_ADDR_UNSPECIFIED(&six->sin6_addr) &&
           (!IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr) || six->sin6_scope_id);
}

static bool address_write(const struct sockaddr *address, char text[LAUNCH_HOST_BYTES])
{
    socklen_t bytes =
        address->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    return getnameinfo(address, bytes, text, LAUNCH_HOST_BYTES, NULL, 0, NI_NUMERICHOST) == 0;
}

/* Rank an address: 0, it is none for other nodes; 1, a link-local one with its interface; 2,
 * another of IPv6; 3, one of IPv4. */
static int address_rank(const struct sockaddr *address)
{
    if (!address || (address->sa_family == AF_INET6 && !address_is_usable(address)))
        return 0;
    if (address->sa_family != AF_INET6)
        return address->sa_family == AF_INET ? 3 : 0;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)address;
    return IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr) ? 1 : 2;
}

/* Write the interface's address of the highest rank; link_local: a link-local one where it has one.
 */
static int address_of_interface(const char *name, bool link_local, char text[LAUNCH_HOST_BYTES],
                                struct error *error)
{
    struct ifaddrs *all = NULL;
    int found = 0;
    if (getifaddrs(&all))
        return error_set_errno(error, errno, "cannot look for network interfaces");
    for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
        int rank = strcmp(one->ifa_name, name) == 0 ? address_rank(one->ifa_addr) : 0;
        if (link_local && rank == 1)
            rank = INT_MAX;
        if (rank > found && address_write(one->ifa_addr, text))
            found = rank;
    }
    freeifaddrs(all);
    return found ? 0
                 : error_set(error, ERR_INVALID,
                             "SHOAL_INTERFACE: the network interface %s has no IPv4 and no IPv6 "
                             "address, or does not exist",
                             name);
}

/* Write the address at which packets for a host leave this one: of several, that of the highest
 * rank. Returns 1; 0: its name is known, and no address of it leads away from this machine; -1: its
 * name is not known. */
static int address_towards(const char *host, char text[LAUNCH_HOST_BYTES])
{
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICSERV}, *found = NULL;
    if (getaddrinfo(host, ANY_PORT, &hints, &found))
        return -1;
    int result = 0, best = 0;
    for (const struct addrinfo *one = found; one; one = one->ai_next) {
        struct sockaddr_storage own = {0};
        socklen_t bytes = sizeof(own);
        int fd = socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && address_rank(one->ai_addr) > best && address_is_usable(one->ai_addr) &&
            connect(fd, one->ai_addr, one->ai_addrlen) == 0 &&
            getsockname(fd, (struct sockaddr *)&own, &bytes) == 0 &&
            address_is_usable((struct sockaddr *)&own) &&
            address_write((struct sockaddr *)&own, text)) {
            best = address_rank(one->ai_addr);
            result = 1;
        }
        if (fd >= 0)
            close(fd);
    }
    freeaddrinfo(found);
    return result;
}

/* 1, or 0: not now, for the name of *unknown is not known. */
static int address_towards_others(const struct nodes *nodes, char text[LAUNCH_HOST_BYTES],
                                  const char **unknown, struct error *error)
{
    *unknown = NULL;
    for (uint32_t i = 0; i < nodes->count; i++) {
        int known = i == nodes->self ? 0 : address_towards(nodes->hosts[i].address, text);
        if (known > 0)
            return 1;
        if (known < 0)
            *unknown = nodes->hosts[i].address;
    }
    if (*unknown)
        return 0;
    return error_set(error, ERR_INVALID,
                     "no host of the list is reached through a network: their names stand for this "
                     "machine's loopback; set SHOAL_INTERFACE, or name their addresses");
}

static int address_wait(const struct nodes *nodes, char text[LAUNCH_HOST_BYTES],
                        struct error *error)
{
    long long timeout_ms;
    int code =
        env_integer("SHOAL_TIMEOUT_MS", 1, MESSAGE_TIMEOUT_MAX_MS, TIMEOUT_MS, &timeout_ms, error);
    uint64_t begun_ns = clock_now_ns();
    for (bool said = false; code == 0;) {
        const char *unknown;
        code = address_towards_others(nodes, text, &unknown, error);
        uint64_t waited_ms = (clock_now_ns() - begun_ns) / NS_PER_MS;
        if (code != 0)
            break;
        if (waited_ms >= (uint64_t)timeout_ms)
            return error_set(error, ERR_TIMEOUT, "the name of the host %s is not known", unknown);
        if (waited_ms >= SAY_MS && !said) {
            fprintf(stderr, "shoalrun: waits for the name of the host %s to be known\n", unknown);
            said = true;
        }
        poll(NULL, 0, AGAIN_MS); /* nobody says when a name is known */
    }
    return code < 0 ? code : 0;
}

socklen_t nodes_parse_address(const char *text, uint16_t port, struct sockaddr_storage *address)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *found;
    char number[8];
    snprintf(number, sizeof(number), "%u", port);
    if (getaddrinfo(text, number, &hints, &found))
        return 0;
    socklen_t bytes = found->ai_addrlen;
    *address = (struct sockaddr_storage){0};
    memcpy(address, found->ai_addr, bytes);
    freeaddrinfo(found);
    return bytes;
}

static bool address_is_number(const char *text)
{
    return nodes_parse_address(text, 0, &(struct sockaddr_storage){0}) > 0;
}

void nodes_set_interface(struct launch_host *hosts, uint32_t count, const char *interface)
{
    assert(hosts);
    for (uint32_t i = 0; i < count; i++) {
        char *its = strchr(hosts[i].address, '%');
        if (its)
            snprintf(its, (size_t)(hosts[i].address + LAUNCH_HOST_BYTES - its), "%%%s", interface);
    }
}

static int address_choose(struct nodes *nodes, const char *own, struct error *error)
{
    const char *interface = env_text("SHOAL_INTERFACE");
    /* The host's own name may stand for the loopback here, as Debian has it. */
    int both = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(nodes->listen, sizeof(nodes->listen), "%s",
             address_is_number(own) ? own
             : both >= 0            ? "::"
                                    : "0.0.0.0");
    if (both >= 0)
        close(both);
    if (interface)
        return address_of_interface(interface, strchr(own, '%'), nodes->address, error);
    if (strchr(own, '%') && !address_is_number(own))
        return error_set(error, ERR_INVALID,
                         "--hosts: this node has no interface %s, by which %s is to be reached; "
                         "SHOAL_INTERFACE names another",
                         strchr(own, '%') + 1, own);
    if (!address_is_number(own))
        return address_wait(nodes, nodes->address, error);
    snprintf(nodes->address, sizeof(nodes->address), "%s", own);
    return 0;
}

int nodes_find_address(struct nodes *nodes, struct error *error)
{
    int code = address_choose(nodes, nodes->hosts[nodes->self].address, error);
    const char *own = strchr(nodes->address, '%'), *named = env_text("SHOAL_INTERFACE");
    if (code == 0 && (named || own))
        nodes_set_interface(nodes->hosts, nodes->count, named ? named : own + 1);
    return code;
}
