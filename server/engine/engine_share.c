/* The workers by their users, who share the engine's time. */
#include <stdlib.h>
#include <utlist.h>

#include "server/engine/engine_private.h"

static struct engine_share *share_of(struct engine *engine, uint32_t user)
{
    struct engine_share *share;
    DL_FOREACH(engine->shares, share)
    {
        if (share->user == user)
            return share;
    }
    share = calloc(1, sizeof(*share));
    if (!share)
        return NULL;
    share->user = user;
    DL_APPEND(engine->shares, share);
    return share;
}

int engine_share_add(struct engine *engine, struct engine_worker *worker, struct error *error)
{
    worker->share = share_of(engine, exchange_worker_user(&worker->exchange));
    if (!worker->share)
        return error_set(error, ERR_MEMORY, "no memory for a user's workers");
    CDL_APPEND2(worker->share->workers, worker, previous_shared, next_shared);
    return 0;
}

void engine_share_remove(struct engine *engine, struct engine_worker *worker)
{
    struct engine_share *share = worker->share;
    engine->leaving -= worker->leaving;
    engine->trace_unread -= worker->trace_unread;
    if (!share)
        return;
    CDL_DELETE2(share->workers, worker, previous_shared, next_shared);
    if (share->workers)
        return;
    DL_DELETE(engine->shares, share);
    free(share);
}
