/* The addresses from which the roster's daemons connect, so that strangers do not take their
 * places: those of the configuration, what its names stand for, and those that have been used. */
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "server/control/ground/control_internal.h"

#define LOOK_UP_NS (30 * NS_PER_S)

struct control_lookup {
    struct control *control;
    uint32_t node;
    bool due; /* a name, and its node is the one that connects */
    struct evdns_getaddrinfo_request *request;
};

void control_source_of(const struct sockaddr *address, struct admission_source *source)
{
    *source = (struct admission_source){{0}};
    if (address->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const void *)address;
        memcpy(source->bytes, &in6->sin6_addr, sizeof(source->bytes));
    } else if (address->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)address;
        source->bytes[10] = source->bytes[11] = 0xff;
        memcpy(source->bytes + 12, &in->sin_addr, 4);
    }
}

struct evdns_base *control_source_resolver(struct control *control)
{
    if (!control->dns)
        control->dns = evdns_base_new(control->base, EVDNS_BASE_INITIALIZE_NAMESERVERS |
                                                         EVDNS_BASE_DISABLE_WHEN_INACTIVE);
    return control->dns;
}

static void source_learn(struct control *control, uint32_t node, const struct sockaddr *address)
{
    struct admission_source source;
    control_source_of(address, &source);
    admission_learn(&control->admission, node, &source);
}

int control_source_begin(struct control *control)
{
    const struct config *config = control->config;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    control->lookups = calloc(config->server_count, sizeof(*control->lookups));
    if (!control->lookups || admission_init(&control->admission, config->server_count) < 0)
        return ERR_MEMORY;
    /* Nodes with smaller numbers connect to us, the others wait for us. */
    for (uint32_t node = 0; node < config->server_count; node++) {
        struct addrinfo *found;
        struct control_lookup *lookup = &control->lookups[node];
        lookup->control = control;
        lookup->node = node;
        if (node >= config->self)
            continue;
        lookup->due = getaddrinfo(config->servers[node].address, NULL, &hints, &found) != 0;
        if (lookup->due)
            continue;
        source_learn(control, node, found->ai_addr);
        freeaddrinfo(found);
    }
    return 0;
}

void control_source_clear(struct control *control)
{
    for (uint32_t node = 0; control->lookups && node < control->config->server_count; node++) {
        if (control->lookups[node].request)
            evdns_getaddrinfo_cancel(control->lookups[node].request);
    }
    free(control->lookups);
    control->lookups = NULL;
    admission_clear(&control->admission);
}

static void source_on_resolved(int result, struct evutil_addrinfo *found, void *argument)
{
    if (result == EVUTIL_EAI_CANCEL)
        return; /* the lookups are gone */
    struct control_lookup *lookup = argument;
    lookup->request = NULL;
    if (result != 0)
        return;
    for (const struct evutil_addrinfo *one = found; one; one = one->ai_next)
        source_learn(lookup->control, lookup->node, one->ai_addr);
    evutil_freeaddrinfo(found);
}

void control_source_look_up(struct control *control)
{
    uint64_t now_ns = clock_now_ns();
    const struct evutil_addrinfo hints = {.ai_socktype = SOCK_STREAM};
    if (now_ns < control->look_up_ns)
        return;
    control->look_up_ns = now_ns + LOOK_UP_NS;
    for (uint32_t node = 0; node < control->config->self; node++) {
        struct control_lookup *lookup = &control->lookups[node];
        if (!lookup->due || lookup->request || control->peer_of[node])
            continue;
        if (!control_source_resolver(control))
            return;
        lookup->request = evdns_getaddrinfo(control->dns, control->config->servers[node].address,
                                            NULL, &hints, source_on_resolved, lookup);
    }
}
