/* The connections on the Unix socket, one by one: how many a user may have, finding and ending
 * them. What they say is in control_dialogue.c. */
#include <stdlib.h>
#include <unistd.h>

#include "server/control/control_internal.h"

struct control_worker *control_worker_find(const struct control *control, uint32_t id)
{
    struct control_worker *worker;
    HASH_FIND(hh, control->workers, &id, sizeof(id), worker);
    return worker;
}

static void worker_destroy(struct control_worker *worker)
{
    HASH_DEL(worker->control->workers, worker);
    if (worker->wants_status)
        DL_DELETE(worker->control->status_waiters, worker);
    if (worker->gone)
        worker->gone(worker->control, worker->id);
    if (worker->timer)
        event_free(worker->timer);
    if (worker->has_arena) {
        arena_unmap(&worker->arena);
        close(worker->doorbells[0]);
        close(worker->doorbells[1]);
    }
    free(worker);
}

void control_worker_free(struct control_worker *worker)
{
    if (worker->stream)
        control_stream_free(worker->stream);
    worker_destroy(worker);
}

void control_worker_finish(struct control_worker *worker)
{
    control_stream_finish(worker->stream);
    worker_destroy(worker);
}

uint32_t control_worker_share(const struct config *config, uint32_t uid, uint32_t own_uid)
{
    uint32_t half = config->connections / 2;
    if (uid == 0 || uid == own_uid)
        return config->connections;
    return half > config->workers ? half : config->workers;
}

bool control_worker_is_one_too_many(const struct control *control, const struct ucred *credentials)
{
    uint32_t share = control_worker_share(control->config, credentials->uid, geteuid());
    uint32_t count =
        HASH_COUNT(control->workers) + control_closing_count(control, CONTROL_ANY_USER);
    uint32_t of_user = control_closing_count(control, credentials->uid);
    for (const struct control_worker *worker = control->workers; worker; worker = worker->hh.next)
        of_user += worker->credentials.uid == credentials->uid;
    if (count < control->config->connections && of_user < share)
        return false;
    log_warning(control->log,
                "connection of process %d of user %u is refused: there are %u, %u of them this "
                "user's, who may have %u (limits.connections is %u)",
                credentials->pid, credentials->uid, count, of_user, share,
                control->config->connections);
    return true;
}
