/* The libfabric providers that a configuration may name: what the check of it allows is what the
 * transport opens. libfabric offers more (udp, sockets, net, psm): nobody gets those unasked, and
 * they were not tried. Calls nothing. */
#ifndef COMMON_CONFIG_PROVIDER_H
#define COMMON_CONFIG_PROVIDER_H

#include <stdbool.h>
#include <stddef.h>

struct provider {
    const char *name;     /* what the configuration says */
    const char *provider; /* what libfabric calls it */
    bool connected;       /* else datagram endpoints */
    bool automatic;       /* "auto" takes the first of these that is there */
};

/* In the order in which "auto" tries them. */
extern const struct provider providers[];
extern const size_t provider_count;

/* "auto", then the names of them all, then NULL. */
extern const char *const provider_choices[];

/* NULL: not one of them ("auto" is not). */
const struct provider *provider_find(const char *name);

#endif
