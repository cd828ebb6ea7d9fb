/* Conversation on a connection of the Unix socket, from its first word on: a worker's lines go to
 * the coordinator, those of shoalctl to administration. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/control/ground/control_internal.h"

static void dialogue_reject(struct control_worker *worker, const char *reason)
{
    struct control *control = worker->control;
    uint32_t id = worker->id;
    log_throttled(control->log, log_throttle_of(&control->user_lines, worker->credentials.uid),
                  clock_now_ns(), LOG_LEVEL_WARNING,
                  "connection of process %u of user %u is closed: %s", worker->credentials.pid,
                  worker->credentials.uid, reason);
    control_worker_free(worker);
    char how[ERROR_TEXT_BYTES];
    snprintf(how, sizeof(how), "sent nonsense: %.1000s", reason);
    coordinator_worker_gone(control->coordinator, clock_now_ns(), id, how);
}

/* Refuse a worker for which the daemon lacks something: the other side is told, and has made no
 * mistake. */
static void dialogue_refuse(struct control_worker *worker, int code, const char *reason)
{
    struct control *control = worker->control;
    uint32_t id = worker->id;
    log_throttled(control->log, log_throttle_of(&control->user_lines, worker->credentials.uid),
                  clock_now_ns(), LOG_LEVEL_WARNING, "process %u of user %u is refused: %s",
                  worker->credentials.pid, worker->credentials.uid, reason);
    control_worker_refuse(worker, code, reason);
    control_worker_finish(worker);
    coordinator_worker_gone(control->coordinator, clock_now_ns(), id, reason);
}

static void dialogue_on_timeout(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct control_worker *worker = argument;
    struct control *control = worker->control;
    dialogue_reject(worker, "it has not said hello in time");
    control_update_later(control);
}

static void dialogue_on_end(void *context, int code, const char *reason)
{
    struct control_worker *worker = context;
    struct control *control = worker->control;
    uint32_t id = worker->id;
    log_debug(control->log, "connection of process %u is over: %s", worker->credentials.pid,
              reason);
    if (code == ERR_MEMORY) {
        dialogue_refuse(worker, code, reason);
        return;
    }
    if (code != ERR_DISCONNECTED) {
        dialogue_reject(worker, reason);
        return;
    }
    control_worker_free(worker);
    coordinator_worker_gone(control->coordinator, clock_now_ns(), id, "ended");
}

static void dialogue_hello(struct control_worker *worker, const struct message *message)
{
    struct control *control = worker->control;
    struct message answer = {.type = MESSAGE_DAEMON_HELLO, .protocol = MESSAGE_PROTOCOL};
    if (message->protocol != MESSAGE_PROTOCOL) {
        answer.type = MESSAGE_ERROR;
        answer.code = ERR_PROTOCOL;
        snprintf(answer.text, sizeof(answer.text), "%s speaks protocol %u, %s speaks %u",
                 CONTROL_SOFTWARE, MESSAGE_PROTOCOL, message->software, message->protocol);
        log_throttled(control->log, log_throttle_of(&control->user_lines, worker->credentials.uid),
                      clock_now_ns(), LOG_LEVEL_WARNING,
                      "connection of process %u of user %u is closed: %s", worker->credentials.pid,
                      worker->credentials.uid, answer.text);
        control_stream_send_message(worker->stream, &answer);
        control_worker_finish(worker);
        return;
    }
    snprintf(answer.software, sizeof(answer.software), "%s", CONTROL_SOFTWARE);
    snprintf(answer.node, sizeof(answer.node), "%s", control->config->node);
    answer.member = worker->id;
    worker->hello = true;
    event_del(worker->timer);
    control_stream_send_message(worker->stream, &answer);
}

static bool dialogue_is_eventfd(int fd)
{
    char path[64], target[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, target, sizeof(target) - 1);
    if (length < 0)
        return false;
    target[length] = '\0';
    return strcmp(target, "anon_inode:[eventfd]") == 0;
}

/* Make the pair of sockets by which the engine rings the worker. The daemon makes it, so no service
 * of another user takes a ring for a word of the daemon's user; and it is no pipe, whose lock a
 * reader can hold while the engine writes. */
static int dialogue_make_bell(struct control_worker *worker, struct error *error)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
        return error_set(error, ERR_MEMORY, "node %s cannot make a doorbell (a socket pair): %s",
                         worker->control->config->node, strerror(errno));
    shutdown(ends[1], SHUT_RD); /* the worker says nothing here */
    worker->bell = ends[0];
    worker->doorbells[1] = ends[1];
    return 0;
}

/* Take the descriptors of a join, which there is one of: what it brings, and the end of the
 * process, are the connection's until that ends. */
static int dialogue_take_arena(struct control_worker *worker, struct error *error)
{
    struct control_stream *stream = worker->stream;
    if (worker->joined)
        return error_set(error, ERR_PROTOCOL, "a second join");
    worker->joined = true;
    if (stream->descriptor_count != CONTROL_DESCRIPTORS)
        return error_set(error, ERR_PROTOCOL, "join came with %d descriptors, must be %d",
                         stream->descriptor_count, CONTROL_DESCRIPTORS);
    if (!dialogue_is_eventfd(stream->descriptors[1]))
        return error_set(error, ERR_PROTOCOL, "the doorbell of join is not an eventfd");
    int result = arena_attach(&worker->arena, stream->descriptors[0],
                              worker->control->config->arena_bytes, error);
    if (result < 0)
        return result;
    result = control_arena_charge(worker, worker->arena.total_bytes, error);
    if (result < 0) {
        arena_unmap(&worker->arena);
        return result;
    }
    result = dialogue_make_bell(worker, error);
    if (result < 0) {
        arena_unmap(&worker->arena);
        control_arena_release(worker->control, worker->id);
        return result;
    }
    close(stream->descriptors[0]); /* mapped, so that this is not the end of it */
    worker->doorbells[0] = stream->descriptors[1];
    worker->has_arena = true;
    stream->descriptor_count = 0;
    return 0;
}

static void dialogue_join(struct control_worker *worker, const struct message *message,
                          struct error *error)
{
    struct control *control = worker->control;
    uint32_t id = worker->id;
    if (message->type == MESSAGE_REJOIN && worker->has_arena) { /* it was turned down before */
        control_arena_drop(worker);
        worker->joined = false;
    }
    int result = dialogue_take_arena(worker, error);
    if (result == 0 && message->type != MESSAGE_REJOIN)
        result = control_worker_watch(worker, error);
    if (result == 0) {
        struct coordinator_credentials credentials = worker->credentials;
        coordinator_worker_message(control->coordinator, clock_now_ns(), id, &credentials, message,
                                   error);
        return;
    }
    if (result == ERR_PROTOCOL)
        return;
    log_throttled(control->log, log_throttle_of(&control->user_lines, worker->credentials.uid),
                  clock_now_ns(), LOG_LEVEL_WARNING, "process %u has not joined job '%s': %s",
                  worker->credentials.pid, message->job, error->text);
    struct coordinator_credentials credentials = worker->credentials;
    struct message unable = {.type = MESSAGE_UNABLE,
                             .code = result,
                             .world_size = message->world_size,
                             .rank = message->rank};
    snprintf(unable.job, sizeof(unable.job), "%s", message->job);
    snprintf(unable.text, sizeof(unable.text), "%s", error->text);
    error->code = 0;
    control_worker_refuse(worker, result, error->text);
    control_worker_finish(worker);
    coordinator_worker_gone(control->coordinator, clock_now_ns(), id, "was refused");
    struct error unsaid; /* of a join that makes no sense either */
    if (message->type == MESSAGE_JOIN)
        coordinator_worker_message(control->coordinator, clock_now_ns(), id, &credentials, &unable,
                                   &unsaid);
}

static void dialogue_drain(struct control_worker *worker)
{
    struct control *control = worker->control;
    struct message answer = {.type = MESSAGE_DRAINING};
    uint32_t uid = worker->credentials.uid;
    if (uid != 0 && uid != geteuid()) {
        answer.type = MESSAGE_ERROR;
        answer.code = ERR_REFUSED;
        snprintf(answer.text, sizeof(answer.text),
                 "user %u may not drain this daemon, only root and user %u may", uid, geteuid());
        control_stream_send_message(worker->stream, &answer);
        return;
    }
    log_info(control->log, "process %u of user %u asks for a drain", worker->credentials.pid, uid);
    control_stream_send_message(worker->stream, &answer);
    control_drain(control, control->config->drain_ms);
}

static void dialogue_dispatch(struct control_worker *worker, const struct message *message,
                              struct error *error)
{
    struct control *control = worker->control;
    if (!worker->hello && message->type != MESSAGE_WORKER_HELLO) {
        error_set(error, ERR_PROTOCOL, "%s before hello", message_type_name(message->type));
        return;
    }
    switch (message->type) {
    case MESSAGE_WORKER_HELLO:
        if (worker->hello)
            error_set(error, ERR_PROTOCOL, "a second hello");
        else
            dialogue_hello(worker, message);
        break;
    case MESSAGE_JOIN:
    case MESSAGE_REJOIN:
    case MESSAGE_RETURN:
        dialogue_join(worker, message, error);
        break;
    case MESSAGE_STATUS:
        admin_want_status(worker);
        break;
    case MESSAGE_DRAIN:
        dialogue_drain(worker);
        break;
    case MESSAGE_TRACE:
        admin_trace_start(worker, message);
        break;
    case MESSAGE_TRACE_READ:
        admin_trace_read(worker);
        break;
    case MESSAGE_WHY:
        control_why_ask(worker, message);
        break;
    case MESSAGE_WORKER_PING:
        control_stream_send_message(worker->stream, &(struct message){.type = MESSAGE_PONG});
        break;
    default:
        coordinator_worker_message(control->coordinator, clock_now_ns(), worker->id,
                                   &worker->credentials, message, error);
        break;
    }
}

static void dialogue_on_line(void *context, char *line, size_t length)
{
    struct control_worker *worker = context;
    struct control *control = worker->control;
    uint32_t id = worker->id;
    struct error error = {0};
    struct message message;
    if (message_decode(&message, MESSAGE_TO_DAEMON, line, length, &error) == 0) {
        dialogue_dispatch(worker, &message, &error);
        message_clear(&message);
    }
    /* The worker may have been ended by what it said. */
    worker = control_worker_find(control, id);
    if (error.code == ERR_MEMORY && worker)
        dialogue_refuse(worker, error.code, error.text);
    else if (error.code != 0 && worker)
        dialogue_reject(worker, error.text);
}

/* Tell a connection, of which there is only the descriptor, why it is refused; log that; close it.
 */
static void dialogue_send_away(struct control *control, int fd, const struct ucred *credentials,
                               int code, const char *why)
{
    struct message refusal = {.type = MESSAGE_ERROR, .code = code};
    size_t bytes;
    snprintf(refusal.text, sizeof(refusal.text), "%s", why);
    char *line = message_encode(&refusal, &bytes);
    ssize_t sent = line ? send(fd, line, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
    (void)sent; /* it is closed either way */
    free(line);
    log_throttled(control->log, log_throttle_of(&control->user_lines, credentials->uid),
                  clock_now_ns(), LOG_LEVEL_WARNING,
                  "connection of process %d of user %u is refused: %s", credentials->pid,
                  credentials->uid, why);
    control_close_connection(control, credentials->uid, fd);
}

/* Refuse the number that stands for all users who have none in this user namespace. */
static bool dialogue_knows(struct control *control, const struct ucred *credentials, int fd)
{
    const struct unmapped *unmapped = &control->options.unmapped;
    if (!unmapped->any || credentials->uid != unmapped->uid)
        return true;
    char why[ERROR_TEXT_BYTES];
    snprintf(why, sizeof(why),
             "the daemon of node %s cannot tell who this is: in its user namespace user %" PRIu32
             " stands for all that have no number there (run it as another user, or map all users "
             "into the namespace)",
             control->config->node, unmapped->uid);
    dialogue_send_away(control, fd, credentials, ERR_REFUSED, why);
    return false;
}

void control_dialogue_accept(struct control *control, int fd)
{
    static const struct control_stream_handlers handlers = {dialogue_on_line, dialogue_on_end};
    struct ucred credentials;
    socklen_t length = sizeof(credentials);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) < 0) {
        control_close_connection(control, CONTROL_ANY_USER, fd);
        return;
    }
    if (!dialogue_knows(control, &credentials, fd))
        return;
    struct error error;
    if (control_worker_check(control, credentials.uid, &error) != 0) {
        dialogue_send_away(control, fd, &credentials, error.code, error.text);
        return;
    }
    struct control_worker *worker = calloc(1, sizeof(*worker));
    if (!worker) {
        control_close_connection(control, credentials.uid, fd);
        return;
    }
    worker->control = control;
    worker->process = worker->bell = -1;
    worker->id = control->next_worker++;
    worker->credentials =
        (struct coordinator_credentials){credentials.uid, (uint32_t)credentials.pid};
    HASH_ADD(hh, control->workers, id, sizeof(worker->id), worker);
    if (!HASH_IS_ADDED(worker)) {
        free(worker);
        control_close_connection(control, credentials.uid, fd);
        return;
    }
    worker->stream = control_stream_create(control, fd, true, credentials.uid, &handlers, worker);
    worker->timer = evtimer_new(control->base, dialogue_on_timeout, worker);
    struct timeval limit = {CONTROL_HANDSHAKE_S, 0};
    if (!worker->stream || !worker->timer || evtimer_add(worker->timer, &limit) < 0)
        control_worker_free(worker);
}

void control_dialogue_turn_away(struct control *control, int fd)
{
    struct ucred credentials = {.uid = CONTROL_ANY_USER};
    socklen_t length = sizeof(credentials);
    char why[ERROR_TEXT_BYTES];
    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length);
    snprintf(why, sizeof(why),
             "the daemon of node %s has no descriptors left for another connection",
             control->config->node);
    dialogue_send_away(control, fd, &credentials, ERR_MEMORY, why);
}
