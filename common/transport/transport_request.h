/* Connection requests at the listener of connected endpoints, from when they are read to when they
 * are answered. */
#ifndef COMMON_TRANSPORT_TRANSPORT_REQUEST_H
#define COMMON_TRANSPORT_TRANSPORT_REQUEST_H

#include "common/transport/transport_fabric.h"

#define REQUESTS_MAX 64 /* read in one poll, so that strangers cannot hold it up */

/* Somebody wants to connect. */
struct request {
    struct fi_info *info; /* owned */
    uint8_t token[TRANSPORT_TOKEN_BYTES];
    bool token_is_whole;
};

struct requests {
    struct fid_pep *listener;
    struct log *log;
    uint64_t refused; /* in all */
    uint32_t count;
    struct request list[REQUESTS_MAX];
};

/* Keep the request, and take its info. There is room: no more are read than fit. */
void request_keep(struct requests *requests, struct fi_info *info, const uint8_t *data,
                  size_t bytes);
void request_reject(const struct requests *requests, struct fi_info *info);
/* Reject a request that carries no expected token, and log it; where there are many, log some. */
void request_refuse(struct requests *requests, struct fi_info *info);
/* Forget all requests; they have been answered. */
void requests_clear(struct requests *requests);
/* Reject all requests, and forget them. */
void requests_drop(struct requests *requests);

#endif
