/* The connections on the Unix socket, one by one: how many a user may have, finding and ending
 * them, and seeing their processes end. The conversation on them is in control_dialogue.c. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/kernel.h"
#include "server/control/ground/control_internal.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

struct control_worker *control_worker_find(const struct control *control, uint32_t id)
{
    struct control_worker *worker;
    HASH_FIND(hh, control->workers, &id, sizeof(id), worker);
    return worker;
}

static void worker_close_bell(struct control_worker *worker)
{
    if (worker->bell >= 0)
        close(worker->bell);
    worker->bell = -1;
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
    if (worker->process_event)
        event_free(worker->process_event);
    if (worker->process >= 0)
        close(worker->process);
    control_arena_drop(worker);
    worker_close_bell(worker);
    control_arena_leave(worker->control, worker->id);
    free(worker);
}

void control_worker_free(struct control_worker *worker)
{
    if (worker->stream)
        control_stream_free(worker->stream);
    worker_destroy(worker);
}

void control_worker_refuse(struct control_worker *worker, int code, const char *reason)
{
    struct message refusal = {.type = MESSAGE_ERROR, .code = code};
    snprintf(refusal.text, sizeof(refusal.text), "%s", reason);
    control_stream_send_message(worker->stream, &refusal);
}

void control_worker_finish(struct control_worker *worker)
{
    control_stream_finish(worker->stream);
    worker_destroy(worker);
}

int control_worker_check(struct control *control, uint32_t uid, struct error *error)
{
    struct quota places = {.what = "connections to the Unix socket",
                           .key = "limits.connections",
                           .node = control->config->node,
                           .limit = control->config->connections,
                           .own_user = control->accounts.own_uid};
    uint32_t all = HASH_COUNT(control->workers) + control_closing_count(control, CONTROL_ANY_USER);
    uint32_t of_user = control_closing_count(control, uid) + control_share_streams(control, uid);
    int result = quota_take(&places, uid, of_user);
    if (result == 0 && all > of_user)
        result = quota_take(&places, CONTROL_ANY_USER, all - of_user);
    result = result == 0 ? quota_check(&places, uid, 1, error)
                         : error_set(error, ERR_MEMORY, "no memory for a connection");
    quota_clear(&places);
    return result;
}

int control_arena_charge(struct control_worker *worker, uint64_t bytes, struct error *error)
{
    struct control *control = worker->control;
    uint32_t uid = worker->credentials.uid;
    struct control_arena *arena = calloc(1, sizeof(*arena));
    if (!arena)
        return error_set(error, ERR_MEMORY, "no memory for a worker");
    uint64_t left = account_used(&control->accounts, uid, ACCOUNT_LEFT);
    int result = account_charge(&control->accounts, uid, ACCOUNT_MEMORY, bytes, error);
    if (result == 0 && account_is_beyond(&control->accounts, uid, ACCOUNT_MEMORY, left)) {
        account_release(&control->accounts, uid, ACCOUNT_MEMORY, bytes);
        result = error_set(error, ERR_MEMORY,
                           "user %" PRIu32 " has %" PRIu64
                           " bytes of arenas on node %s that its earlier jobs have not let go of",
                           uid, left, control->config->node);
    }
    if (result == 0) {
        *arena = (struct control_arena){.worker = worker->id, .uid = uid, .bytes = bytes};
        HASH_ADD(hh, control->arenas, worker, sizeof(arena->worker), arena);
        if (HASH_IS_ADDED(arena))
            return 0;
        account_release(&control->accounts, uid, ACCOUNT_MEMORY, bytes);
        result = error_set(error, ERR_MEMORY, "no memory for a worker");
    }
    free(arena);
    return result;
}

static struct control_arena *worker_arena(const struct control *control, uint32_t worker)
{
    struct control_arena *arena;
    HASH_FIND(hh, control->arenas, &worker, sizeof(worker), arena);
    return arena;
}

void control_arena_leave(struct control *control, uint32_t worker)
{
    struct control_arena *arena = worker_arena(control, worker);
    struct error error = {0};
    if (!arena || account_charge(&control->accounts, arena->uid, ACCOUNT_LEFT, arena->bytes,
                                 &error) < 0) /* no memory: it stays what it was */
        return;
    account_release(&control->accounts, arena->uid, ACCOUNT_MEMORY, arena->bytes);
    arena->left = true;
}

void control_arena_drop(struct control_worker *worker)
{
    if (!worker->has_arena)
        return;
    arena_unmap(&worker->arena);
    close(worker->doorbells[0]);
    close(worker->doorbells[1]);
    worker_close_bell(worker);
    worker->has_arena = false;
    control_arena_release(worker->control, worker->id);
}

void control_arena_release(struct control *control, uint32_t worker)
{
    struct control_arena *arena = worker_arena(control, worker);
    if (!arena)
        return;
    account_release(&control->accounts, arena->uid, arena->left ? ACCOUNT_LEFT : ACCOUNT_MEMORY,
                    arena->bytes);
    HASH_DEL(control->arenas, arena);
    free(arena);
}

/* A pidfd, or -1 and errno. By number it may be that of a process which has come after: then the
 * one that connected is dead, and the socket in the hands of a child, whose end is seen later. */
static int worker_process(const struct control_worker *worker)
{
    int process;
    socklen_t length = sizeof(process);
    if (getsockopt(worker->stream->fd, SOL_SOCKET, SO_PEERPIDFD, &process, &length) == 0)
        return process;
    if (errno != ENOPROTOOPT)
        return -1;
    return kernel_pidfd_open((pid_t)worker->credentials.pid);
}

/* End the connection as the kernel does when nobody else has the socket: what was sent is still
 * read, then comes the end. */
static void worker_on_process_end(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct control_worker *worker = argument;
    shutdown(worker->stream->fd, SHUT_RDWR);
}

int control_worker_watch(struct control_worker *worker, struct error *error)
{
    struct control *control = worker->control;
    worker->process = worker_process(worker);
    if (worker->process < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
        return error_set(error, ERR_MEMORY, "node %s has no descriptor left to watch a process: %s",
                         control->config->node, strerror(errno));
    if (worker->process < 0 && errno == ESRCH) {
        worker_on_process_end(-1, 0, worker); /* dead and collected */
        return 0;
    }
    if (worker->process < 0) {
        log_debug(control->log, "process %u of user %u cannot be watched, only its socket: %s",
                  worker->credentials.pid, worker->credentials.uid, strerror(errno));
        return 0;
    }
    worker->process_event =
        event_new(control->base, worker->process, EV_READ, worker_on_process_end, worker);
    if (!worker->process_event || event_add(worker->process_event, NULL) < 0)
        return error_set(error, ERR_MEMORY, "no memory to watch a process");
    return 0;
}
