/* Between the coordinator and the rest: what its I/O table asks for, what the engine has to say to
 * it, and the drain that a signal, the end of the parent process or shoalctl asks for. */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "server/control/ground/control_internal.h"

#define ENGINE_EVENTS_MAX 64u /* before others have their turn */

static uint64_t adapter_random(void *context)
{
    (void)context;
    uint64_t number;
    auth_random(&number, sizeof(number));
    return number;
}

static void adapter_send_peer(void *context, uint32_t node, const struct message *message)
{
    control_peer_send(context, node, message);
}

static bool adapter_may_say(void *context, uint32_t node, uint32_t uid)
{
    const struct control *control = context;
    return uid == geteuid() || conversation_may_begin(&control->conversations[node], uid);
}

static void adapter_send_worker(void *context, uint32_t id, const struct message *message)
{
    struct control_worker *worker = control_worker_find(context, id);
    if (!worker)
        return;
    /* A worker that has joined may open groups, of any ranks of its job. */
    if (message->type == MESSAGE_JOINED)
        control_stream_allow_lists(worker->stream,
                                   MESSAGE_FIRST_LINE_BYTES +
                                       (size_t)MESSAGE_LIST_RANK_BYTES * message->world_size);
    if (message->type != MESSAGE_JOINED || worker->bell < 0) {
        control_stream_send_message(worker->stream, message);
        return;
    }
    control_stream_send_descriptor(worker->stream, message, worker->bell);
    close(worker->bell);
    worker->bell = -1;
}

static void adapter_end_worker(void *context, uint32_t id)
{
    struct control_worker *worker = control_worker_find(context, id);
    if (worker)
        control_worker_finish(worker);
}

/* A worker's arena and doorbells, which the control thread has had until now. */
static bool adapter_take_arena(struct control *control, struct engine_attach *attach)
{
    struct control_worker *worker = control_worker_find(control, attach->worker);
    if (!worker || !worker->has_arena)
        return false;
    worker->has_arena = false;
    attach->arena = worker->arena;
    attach->submission_doorbell = worker->doorbells[0];
    attach->completion_doorbell = worker->doorbells[1];
    return true;
}

static void adapter_command(void *context, const struct engine_command *command)
{
    struct control *control = context;
    struct engine_command attach;
    if (command->kind == COMMAND_WORKER_ATTACH) {
        attach = *command;
        if (!adapter_take_arena(control, &attach.attach))
            return;
        command = &attach;
    }
    control_command(control, command);
}

/* Its memory, and the descriptor that it has until all have it who may. The other half of what the
 * user may have is for the copies that go out to them. */
static int adapter_segment_charge(struct control *control, uint32_t uid, uint64_t bytes,
                                  struct error *error)
{
    int result = account_charge(&control->accounts, uid, ACCOUNT_MEMORY, bytes, error);
    if (result < 0)
        return result;
    uint64_t used = account_used(&control->accounts, uid, ACCOUNT_DESCRIPTORS);
    if (account_is_beyond(&control->accounts, uid, ACCOUNT_DESCRIPTORS, 2 * (used + 1)))
        result = error_set(error, ERR_MEMORY,
                           "user %" PRIu32 " has %" PRIu64
                           " descriptors under way, being closed, or of shared memory on node %s",
                           uid, used, control->config->node);
    else
        result = account_charge(&control->accounts, uid, ACCOUNT_DESCRIPTORS, 1, error);
    if (result < 0)
        account_release(&control->accounts, uid, ACCOUNT_MEMORY, bytes);
    return result;
}

static int adapter_segment_make(void *context, uint32_t uid, uint64_t bytes, bool writable,
                                uint8_t **base, int *descriptor, struct error *error)
{
    struct control *control = context;
    control_closer_sweep(control); /* of his descriptors some may be closed since */
    int result = adapter_segment_charge(control, uid, bytes, error);
    if (result < 0)
        return result;
    result = control_segment_make(bytes, writable, base, descriptor, error);
    if (result < 0) {
        account_release(&control->accounts, uid, ACCOUNT_MEMORY, bytes);
        account_release(&control->accounts, uid, ACCOUNT_DESCRIPTORS, 1);
    }
    return result;
}

static void adapter_segment_freed(void *context, uint32_t uid, uint64_t bytes)
{
    struct control *control = context;
    account_release(&control->accounts, uid, ACCOUNT_MEMORY, bytes);
}

static void adapter_segment_send(void *context, uint32_t id, const struct message *message,
                                 int descriptor)
{
    struct control_worker *worker = control_worker_find(context, id);
    if (worker)
        control_stream_send_descriptor(worker->stream, message, descriptor);
}

static void adapter_segment_drop(void *context, uint32_t uid, int descriptor)
{
    struct control *control = context;
    account_release(&control->accounts, uid, ACCOUNT_DESCRIPTORS, 1);
    close(descriptor);
}

struct coordinator_io control_coordinator_io(struct control *control)
{
    return (struct coordinator_io){
        .context = control,
        .own_user = geteuid(),
        .random = adapter_random,
        .send_peer = adapter_send_peer,
        .may_say = adapter_may_say,
        .send_worker = adapter_send_worker,
        .end_worker = adapter_end_worker,
        .command = adapter_command,
        .segment_make = adapter_segment_make,
        .segment_send = adapter_segment_send,
        .segment_drop = adapter_segment_drop,
        .segment_freed = adapter_segment_freed,
    };
}

/* The engine may speak of a connection that has been over for long: after a pause of the daemon the
 * control thread may have made another one before it hears of that. */
static void adapter_peer_event(struct control *control, uint64_t now_ns,
                               const struct engine_event *event)
{
    uint32_t node = event->node;
    if (node >= control->config->server_count ||
        !membership_has(&control->membership, node, event->connection))
        return;
    if (event->type == ENGINE_PEER_DOWN) {
        char text[MEMBERSHIP_REASON_BYTES];
        snprintf(text, sizeof(text), "the fabric lost it: %.480s", event->text);
        /* The control connection may live: then the peer's ranks hear the reason, too. */
        bool recovers = event->code == ERR_DISCONNECTED;
        if (!recovers)
            coordinator_peer_down(control->coordinator, now_ns, node, text);
        control_peer_finish_node(control, node, text, recovers);
        return;
    }
    log_info(control->log, "node %s is reached over the fabric%s",
             control->config->servers[node].name,
             membership_is_away(&control->membership, node) ? ", and its jobs go on" : "");
    membership_up(&control->membership, node, now_ns);
    coordinator_peer_up(control->coordinator, now_ns, node);
}

/* A worker that goes on may send its arena a second time from here on. */
static void adapter_released(struct control *control, uint64_t now_ns, uint32_t id)
{
    struct control_worker *worker = control_worker_find(control, id);
    control_arena_release(control, id);
    if (worker && !worker->has_arena)
        worker->joined = false;
    coordinator_worker_released(control->coordinator, now_ns, id);
}

void control_engine_events(struct control *control)
{
    const struct control_engine *engine = &control->options.engine;
    struct engine_event *event;
    /* The descriptor stays readable until none is left. */
    for (uint32_t i = 0;
         i < ENGINE_EVENTS_MAX && (event = engine->next_event(engine->engine)) != NULL; i++) {
        uint64_t now_ns = clock_now_ns();
        if (event->type == ENGINE_TRACED)
            admin_trace_over(control, event);
        else if (event->type == ENGINE_WORKER_RELEASED)
            adapter_released(control, now_ns, event->worker);
        else if (!coordinator_engine_event(control->coordinator, now_ns, event))
            adapter_peer_event(control, now_ns, event);
        engine->event_free(event);
    }
}

void control_drain(struct control *control, uint32_t limit_ms)
{
    if (!control->draining) {
        log_info(control->log, "shutting down: running collectives may finish for %u ms", limit_ms);
        control_notice(control, CONTROL_DRAINING);
        control->draining = true;
        admin_trace_drain(control);
    }
    coordinator_drain(control->coordinator, clock_now_ns(), limit_ms);
}
