#include "common/transport/transport_link.h"

#include <ifaddrs.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

uint32_t transport_link_mbits(const char *interfaces, const char *name)
{
    char path[PATH_MAX];
    /* Only an interface of a device has it: the others' speed is made up. */
    snprintf(path, sizeof(path), "%s/%s/device", interfaces, name);
    if (access(path, F_OK))
        return 0;
    snprintf(path, sizeof(path), "%s/%s/speed", interfaces, name);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    long long mbits = 0;
    /* -1, or the same without its sign, where the device does not know; an error with the cable
     * out. */
    if (fscanf(file, "%lld", &mbits) != 1 || mbits < 0 || mbits >= UINT32_MAX)
        mbits = 0;
    fclose(file);
    return (uint32_t)mbits;
}

static bool link_has(const struct sockaddr *one, const struct sockaddr *other)
{
    if (!one || one->sa_family != other->sa_family)
        return false;
    if (one->sa_family == AF_INET)
        return memcmp(&((const struct sockaddr_in *)one)->sin_addr,
                      &((const struct sockaddr_in *)other)->sin_addr, sizeof(struct in_addr)) == 0;
    return one->sa_family == AF_INET6 &&
           memcmp(&((const struct sockaddr_in6 *)one)->sin6_addr,
                  &((const struct sockaddr_in6 *)other)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

uint32_t transport_link_mbits_at(const struct sockaddr *address)
{
    struct ifaddrs *all;
    uint32_t mbits = 0;
    if (getifaddrs(&all))
        return 0;
    for (const struct ifaddrs *it = all; it && !mbits; it = it->ifa_next)
        if (link_has(it->ifa_addr, address))
            mbits = transport_link_mbits(TRANSPORT_LINK_INTERFACES, it->ifa_name);
    freeifaddrs(all);
    return mbits;
}
