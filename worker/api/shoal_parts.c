/* Collectives that travel in blocks. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "worker/api/collective.h"
#include "worker/job/error_text.h"
#include "worker/job/job.h"
#include "worker/request/parts.h"
#include "worker/shoal.h"

static int call_parts(shoal_group *group, struct parts_ask *ask, shoal_request **request)
{
    struct error error;
    ask->rank = group->rank;
    ask->size = group->size;
    if (parts_check(ask, &error) < 0)
        return error_text_keep(&error);
    uint32_t count = parts_block_count(ask);
    struct request_ask *blocks = malloc((count ? count : 1) * sizeof(*blocks));
    if (!blocks) {
        error_set(&error, ERR_MEMORY, "%s: out of memory for %u parts", collective_name(ask->kind),
                  count);
        return error_text_keep(&error);
    }
    parts_blocks(ask, blocks);
    struct parts_copy copy = parts_own_copy(ask);
    struct request_ask whole = parts_whole(ask);
    whole.own_to = copy.to;
    whole.own_from = copy.from;
    whole.own_bytes = copy.bytes;
    int code = collective_call(group, &whole, blocks, count, request);
    /* After the start, so that the others need not wait for it; nobody else touches this part. */
    if (code == SHOAL_OK && whole.own_bytes == 0 && copy.bytes > 0)
        memmove(copy.to, copy.from, copy.bytes);
    return code;
}

/* A rank's own part may lie in the arena, which must stay until it is copied. */
static int start_parts(shoal_group *group, struct parts_ask *ask, shoal_request **request)
{
    struct error error;
    if (!group) {
        group_check(group, &error);
        return error_text_keep(&error);
    }
    struct shoal_job *job = group->job;
    if (job_enter(job, &error) < 0)
        return error_text_keep(&error);
    int code = call_parts(group, ask, request);
    job_leave(job);
    return code;
}

/* Lists that must be there; the buffers in them are checked one by one. */
static int check_lists(const struct shoal_group *group, enum collective_kind kind,
                       const void *buffers, const size_t *counts)
{
    struct error error;
    if (group_check(group, &error) < 0)
        return error_text_keep(&error);
    if (buffers && counts)
        return SHOAL_OK;
    error_set(&error, ERR_INVALID, "%s: the list of %s is NULL", collective_name(kind),
              buffers ? "counts" : "buffers");
    return error_text_keep(&error);
}

int shoal_all_gather(shoal_group *group, const void *send, void *recv, size_t count,
                     enum shoal_dtype dtype, shoal_request **request)
{
    struct parts_ask ask = {.kind = COLLECTIVE_ALL_GATHER,
                            .dtype = (enum dtype)dtype,
                            .send = {.base = send, .count = count},
                            .recv = {.base = recv, .count = count}};
    return start_parts(group, &ask, request);
}

int shoal_all_gather_v(shoal_group *group, const void *send, void *const recv[],
                       const size_t counts[], enum shoal_dtype dtype, shoal_request **request)
{
    if (check_lists(group, COLLECTIVE_ALL_GATHER, recv, counts) < 0)
        return SHOAL_EINVALID;
    struct parts_ask ask = {.kind = COLLECTIVE_ALL_GATHER,
                            .dtype = (enum dtype)dtype,
                            .send = {.base = send, .count = counts[group->rank]},
                            .recv = {.buffers = (const void *const *)recv, .counts = counts}};
    return start_parts(group, &ask, request);
}

int shoal_reduce_scatter(shoal_group *group, const void *send, void *recv, size_t count,
                         enum shoal_dtype dtype, enum shoal_op op, shoal_request **request)
{
    struct parts_ask ask = {.kind = COLLECTIVE_REDUCE_SCATTER,
                            .dtype = (enum dtype)dtype,
                            .op = (enum reduce_op)op,
                            .send = {.base = send, .count = count},
                            .recv = {.base = recv, .count = count}};
    return start_parts(group, &ask, request);
}

int shoal_reduce_scatter_v(shoal_group *group, const void *const send[], void *recv,
                           const size_t counts[], enum shoal_dtype dtype, enum shoal_op op,
                           shoal_request **request)
{
    if (check_lists(group, COLLECTIVE_REDUCE_SCATTER, send, counts) < 0)
        return SHOAL_EINVALID;
    struct parts_ask ask = {.kind = COLLECTIVE_REDUCE_SCATTER,
                            .dtype = (enum dtype)dtype,
                            .op = (enum reduce_op)op,
                            .send = {.buffers = send, .counts = counts},
                            .recv = {.base = recv, .count = counts[group->rank]}};
    return start_parts(group, &ask, request);
}

int shoal_gather(shoal_group *group, const void *send, void *recv, size_t count,
                 enum shoal_dtype dtype, int root, shoal_request **request)
{
    struct parts_ask ask = {.kind = COLLECTIVE_GATHER,
                            .dtype = (enum dtype)dtype,
                            .root = (uint32_t)root,
                            .send = {.base = send, .count = count},
                            .recv = {.base = recv, .count = count}};
    return start_parts(group, &ask, request);
}

int shoal_gather_v(shoal_group *group, const void *send, size_t count, void *const recv[],
                   const size_t counts[], enum shoal_dtype dtype, int root, shoal_request **request)
{
    if ((!group || root == (int)group->rank) &&
        check_lists(group, COLLECTIVE_GATHER, recv, counts) < 0)
        return SHOAL_EINVALID;
    struct parts_ask ask = {.kind = COLLECTIVE_GATHER,
                            .dtype = (enum dtype)dtype,
                            .root = (uint32_t)root,
                            .send = {.base = send, .count = count},
                            .recv = {.buffers = (const void *const *)recv, .counts = counts}};
    return start_parts(group, &ask, request);
}

int shoal_scatter(shoal_group *group, const void *send, void *recv, size_t count,
                  enum shoal_dtype dtype, int root, shoal_request **request)
{
    struct parts_ask ask = {.kind = COLLECTIVE_SCATTER,
                            .dtype = (enum dtype)dtype,
                            .root = (uint32_t)root,
                            .send = {.base = send, .count = count},
                            .recv = {.base = recv, .count = count}};
    return start_parts(group, &ask, request);
}

int shoal_scatter_v(shoal_group *group, const void *const send[], const size_t counts[], void *recv,
                    size_t count, enum shoal_dtype dtype, int root, shoal_request **request)
{
    if ((!group || root == (int)group->rank) &&
        check_lists(group, COLLECTIVE_SCATTER, send, counts) < 0)
        return SHOAL_EINVALID;
    struct parts_ask ask = {.kind = COLLECTIVE_SCATTER,
                            .dtype = (enum dtype)dtype,
                            .root = (uint32_t)root,
                            .send = {.buffers = send, .counts = counts},
                            .recv = {.base = recv, .count = count}};
    return start_parts(group, &ask, request);
}

int shoal_all_to_all(shoal_group *group, const void *send, void *recv, size_t count,
                     enum shoal_dtype dtype, shoal_request **request)
{
    struct parts_ask ask = {.kind = COLLECTIVE_ALL_TO_ALL,
                            .dtype = (enum dtype)dtype,
                            .send = {.base = send, .count = count},
                            .recv = {.base = recv, .count = count}};
    return start_parts(group, &ask, request);
}

int shoal_all_to_all_v(shoal_group *group, const void *const send[], const size_t send_counts[],
                       void *const recv[], const size_t recv_counts[], enum shoal_dtype dtype,
                       shoal_request **request)
{
    if (check_lists(group, COLLECTIVE_ALL_TO_ALL, send, send_counts) < 0 ||
        check_lists(group, COLLECTIVE_ALL_TO_ALL, recv, recv_counts) < 0)
        return SHOAL_EINVALID;
    struct parts_ask ask = {.kind = COLLECTIVE_ALL_TO_ALL,
                            .dtype = (enum dtype)dtype,
                            .send = {.buffers = send, .counts = send_counts},
                            .recv = {.buffers = (const void *const *)recv, .counts = recv_counts}};
    return start_parts(group, &ask, request);
}
