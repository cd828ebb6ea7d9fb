#include "worker/job/shared.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <utlist.h>

#define SHARED_ALIGNMENT 64u

/* The piece that any of the memory lies in, or NULL. */
static const struct shared_memory *shared_find(const struct shoal_job *job, const void *memory,
                                               uint64_t bytes)
{
    uintptr_t start = (uintptr_t)memory;
    const struct shared_memory *it;
    DL_FOREACH(job->shared, it)
    {
        uintptr_t base = (uintptr_t)it->base;
        if (start < base + it->bytes && (start >= base || bytes > base - start))
            break;
    }
    return bytes > 0 ? it : NULL;
}

int shared_refuse(const struct shoal_job *job, const char *name, const void *memory, uint64_t bytes,
                  struct error *error)
{
    if (!shared_find(job, memory, bytes))
        return 0;
    return error_set(error, ERR_INVALID,
                     "%s: the result would go to shared memory (shoal_shared_alloc), which only an "
                     "all_reduce writes to",
                     name);
}

int shared_locate(const struct shoal_group *group, struct request_ask *ask, struct error *error)
{
    struct route route = ask->block ? ask->route : route_find(ask->kind, ask->root, 0, 0);
    uint64_t bytes = ask->count * dtype_bytes(ask->dtype);
    bool in_parts = route_in_blocks(ask->kind) && ask->block == 0; /* they have the data */
    if (ask->kind == COLLECTIVE_BARRIER || in_parts || !route_receives(&route, group->rank))
        return 0;
    const struct shared_memory *shared = shared_find(group->job, ask->recv, bytes);
    if (!shared)
        return 0;
    if (ask->kind != COLLECTIVE_ALL_REDUCE)
        return shared_refuse(group->job, collective_name(ask->kind), ask->recv, bytes, error);
    if (shared->group != group)
        return error_set(error, ERR_INVALID,
                         "all_reduce: the result would go to shared memory of group %" PRIu32
                         ", not of group %" PRIu32,
                         shared->group->core.number, group->core.number);
    uintptr_t start = (uintptr_t)ask->recv, base = (uintptr_t)shared->base;
    if (start < base || bytes > shared->bytes - (start - base) ||
        (start - base) % SHARED_ALIGNMENT != 0)
        return error_set(error, ERR_INVALID,
                         "all_reduce: %" PRIu64 " bytes at %" PRIdPTR
                         " of shared memory of %" PRIu64 " bytes: must be inside, at a multiple "
                         "of %u",
                         bytes, (intptr_t)(start - base), shared->bytes, SHARED_ALIGNMENT);
    ask->shared = true;
    ask->segment = shared->number;
    ask->shared_offset = start - base;
    return 0;
}

void shared_unmap(struct shoal_job *job, struct shared_memory *shared)
{
    DL_DELETE(job->shared, shared);
    munmap((void *)(uintptr_t)shared->base, shared->bytes);
    free(shared);
}

void shared_free_all(struct shoal_job *job, const struct shoal_group *group)
{
    struct shared_memory *it, *next;
    DL_FOREACH_SAFE(job->shared, it, next)
    {
        if (!group || it->group == group)
            shared_unmap(job, it);
    }
}

static bool shared_is_written(const struct shared_memory *shared, const struct request *request)
{
    return request->ask.shared && request->ask.segment == shared->number;
}

bool shared_in_use(const struct shared_memory *shared)
{
    const struct progress_group *core = &shared->group->core;
    const struct request *request;
    DL_FOREACH(core->requests, request)
    {
        if (shared_is_written(shared, request))
            return true;
    }
    DL_FOREACH2(core->kept, request, kept_next) /* has a result, and is not told yet */
    {
        if (shared_is_written(shared, request))
            return true;
    }
    return false;
}
