#include "common/transport/transport_request.h"

#include <assert.h>
#include <string.h>

#define REFUSALS_LOGGED 16

void request_keep(struct requests *requests, struct fi_info *info, const uint8_t *data,
                  size_t bytes)
{
    assert(requests->count < REQUESTS_MAX);
    struct request *request = &requests->list[requests->count++];
    *request = (struct request){.info = info, .token_is_whole = bytes >= sizeof(request->token)};
    memcpy(request->token, data, request->token_is_whole ? sizeof(request->token) : bytes);
    log_debug(requests->log, "fabric: connection request");
}

void request_reject(const struct requests *requests, struct fi_info *info)
{
    int code = fi_reject(requests->listener, info->handle, NULL, 0);
    if (code)
        log_warning(requests->log, "fabric: rejecting a connection: %s", fi_strerror(-code));
}

/* Whoever can reach the port can make these lines: after the first few, only powers of two. */
void request_refuse(struct requests *requests, struct fi_info *info)
{
    char from[TRANSPORT_NAME_BYTES];
    uint64_t count = ++requests->refused;
    fabric_format_address(info, info->dest_addr, info->dest_addrlen, from, sizeof(from));
    if (count <= REFUSALS_LOGGED || (count & (count - 1)) == 0)
        log_warning(
            requests->log,
            "fabric: connection from %s rejected: it carries no expected token (%llu so far)", from,
            (unsigned long long)count);
    request_reject(requests, info);
}

void requests_clear(struct requests *requests)
{
    for (uint32_t i = 0; i < requests->count; i++)
        fi_freeinfo(requests->list[i].info);
    requests->count = 0;
}

void requests_drop(struct requests *requests)
{
    for (uint32_t i = 0; i < requests->count; i++)
        request_reject(requests, requests->list[i].info);
    requests_clear(requests);
}
