#include "common/transport/transport.h"

#include <assert.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/base/env.h"
#include "common/config/provider.h"

/* Libraries that catch signals in their constructors, before main() can say anything. */
static bool handler_is_foreign(const struct sigaction *action)
{
    if (action->sa_handler == SIG_DFL || action->sa_handler == SIG_IGN)
        return false;
    void *address = NULL;
    memcpy(&address, &action->sa_handler, sizeof(address));
    Dl_info origin;
    if (!dladdr(address, &origin) || !origin.dli_fname)
        return false;
    return strstr(origin.dli_fname, "infinipath") || strstr(origin.dli_fname, "psm") ||
           strstr(origin.dli_fname, "libfabric");
}

void transport_prepare_environment(void)
{
    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;
        if (sigaction(number, NULL, &action) == 0 && handler_is_foreign(&action))
            signal(number, SIG_DFL);
    }
    static const char *const defaults[][2] = {
        /* For the programs that this one starts: nothing is caught at load then. */
        {"IPATH_NO_BACKTRACE", "1"},
        {"HFI_NO_BACKTRACE", "1"},
        /* Above every message (16 MiB and its header): the rendezvous of larger ones is slower (an
         * all-reduce of 1 MiB over two nodes took 2.4 times as long). A pair whose two sides differ
         * here cannot connect. */
        {"FI_OFI_RXM_EAGER_LIMIT", "17825792"},
        /* libfabric 2 has no such limit, and would send 16 to 128 KiB in segments. A process that
         * has a part of such a message when its peer ends dies of a wrong pointer (rxm_close_conn
         * of 2.1). This limit is below the least that goes at once, so that no message is sent in
         * segments. */
        {"FI_OFI_RXM_SAR_LIMIT", "1"},
    };
    for (size_t i = 0; i < sizeof(defaults) / sizeof(defaults[0]); i++)
        env_set_default(defaults[i][0], defaults[i][1]);
}

/* The names on the list, or those of them that are there, separated by commas. */
static void provider_list(char *text, size_t bytes, const char *interface_address, bool all)
{
    size_t used = 0;
    snprintf(text, bytes, "none");
    for (size_t i = 0; i < provider_count; i++) {
        const struct provider *p = &providers[i];
        if (!all && !transport_fabric_available(p->provider, p->connected, interface_address))
            continue;
        int wrote = snprintf(text + used, bytes - used, "%s\"%s\"", used > 0 ? ", " : "", p->name);
        if (wrote < 0 || (size_t)wrote >= bytes - used)
            return;
        used += (size_t)wrote;
    }
}

static int provider_missing(const struct transport_options *options,
                            const struct provider *provider, struct error *error)
{
    const char *address = options->interface_address;
    char known[256], here[256];
    provider_list(known, sizeof(known), address, true);
    provider_list(here, sizeof(here), address, false);
    if (!provider && strcmp(options->provider, "auto") != 0)
        return error_set(
            error, ERR_UNSUPPORTED,
            "fabric provider \"%s\" is not known: known are \"auto\", %s; of these this "
            "machine has %s",
            options->provider, known, here);
    return error_set(error, ERR_UNSUPPORTED,
                     "fabric provider \"%s\" is not available on %s: this machine has %s",
                     options->provider, address ? address : "any interface", here);
}

int transport_open(struct transport **transport, const struct transport_options *options,
                   struct error *error)
{
    const struct provider *found = NULL;
    if (strcmp(options->provider, "auto") == 0) {
        for (size_t i = 0; i < provider_count && !found; i++) {
            if (providers[i].automatic &&
                transport_fabric_available(providers[i].provider, providers[i].connected,
                                           options->interface_address))
                found = &providers[i];
        }
        if (!found)
            return provider_missing(options, NULL, error);
    } else {
        found = provider_find(options->provider);
        if (!found || !transport_fabric_available(found->provider, found->connected,
                                                  options->interface_address))
            return provider_missing(options, found, error);
    }
    struct transport_options chosen = *options;
    chosen.provider = found->provider;
    int code = found->connected ? transport_connected_open(transport, &chosen, error)
                                : transport_datagram_open(transport, &chosen, error);
    if (code == 0)
        snprintf((*transport)->info.provider, sizeof((*transport)->info.provider), "%s",
                 found->name);
    return code;
}

void transport_stop(struct transport *transport)
{
    if (transport && transport->ops->stop)
        transport->ops->stop(transport);
}

void transport_close(struct transport *transport)
{
    if (transport)
        transport->ops->close(transport);
}

const struct transport_info *transport_info(const struct transport *transport)
{
    return &transport->info;
}

int transport_address(const struct transport *transport, uint8_t address[TRANSPORT_ADDRESS_BYTES],
                      uint32_t *bytes, struct error *error)
{
    return transport->ops->address(transport, address, bytes, error);
}

void transport_address_text(const struct transport *transport, const uint8_t *address,
                            uint32_t address_bytes, char *text, size_t room)
{
    if (transport->ops->address_text)
        transport->ops->address_text(transport, address, address_bytes, text, room);
    else
        snprintf(text, room, "(%" PRIu32 " bytes)", address_bytes);
}

int transport_connect(struct transport *transport, uint32_t peer, const uint8_t *address,
                      uint32_t address_bytes, const uint8_t token[TRANSPORT_TOKEN_BYTES],
                      struct error *error)
{
    return transport->ops->connect(transport, peer, address, address_bytes, token, error);
}

int transport_expect(struct transport *transport, uint32_t peer, const uint8_t *address,
                     uint32_t address_bytes, const uint8_t token[TRANSPORT_TOKEN_BYTES],
                     struct error *error)
{
    return transport->ops->expect(transport, peer, address, address_bytes, token, error);
}

void transport_admit(struct transport *transport, uint32_t ms)
{
    if (transport->ops->admit)
        transport->ops->admit(transport, ms);
}

void transport_disconnect(struct transport *transport, uint32_t peer)
{
    transport->ops->disconnect(transport, peer);
}

int transport_send(struct transport *transport, uint32_t peer, const struct iovec *parts,
                   void *const *registrations, unsigned part_count, void *context)
{
    assert(part_count >= 1 && part_count <= 2);
    return transport->ops->send(transport, peer, parts, registrations, part_count, context);
}

int transport_post_receive(struct transport *transport, uint32_t peer, void *data, uint32_t bytes,
                           void *registration, void *context)
{
    return transport->ops->post_receive(transport, peer, data, bytes, registration, context);
}

int transport_register(struct transport *transport, void *address, size_t bytes,
                       void **registration, struct error *error)
{
    return transport->ops->register_memory(transport, address, bytes, registration, error);
}

void transport_unregister(struct transport *transport, void *registration)
{
    if (registration)
        transport->ops->unregister_memory(transport, registration);
}

int transport_poll(struct transport *transport, struct transport_event *events, int room)
{
    return transport->ops->poll(transport, events, room);
}

int transport_descriptor(const struct transport *transport)
{
    return transport->ops->descriptor(transport);
}

bool transport_can_sleep(struct transport *transport)
{
    return transport->ops->can_sleep(transport);
}
