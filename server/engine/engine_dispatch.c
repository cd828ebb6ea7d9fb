/* Commands of the control thread to the engine's: one switch from a command's kind to what the
 * exchange and the transport do. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "server/engine/engine_private.h"

/* A token's first eight bytes, little-endian, travel in every message. */
static uint64_t dispatch_token_number(const uint8_t token[TRANSPORT_TOKEN_BYTES])
{
    uint64_t number = 0;
    for (int i = 0; i < 8; i++)
        number |= (uint64_t)token[i] << (8 * i);
    return number;
}

/* The connection itself, after its keys: a message may follow it at once. */
static int dispatch_connect(struct engine *engine, const struct engine_peer_connect *peer,
                            struct error *error)
{
    bool ordered = transport_info(engine->transport)->ordered;
    engine_protect_end(engine, peer->node);
    int result = engine_protect_begin(engine, peer, ordered, error);
    if (result != 0)
        return result;
    result = peer->active ? transport_connect(engine->transport, peer->node, peer->address,
                                              peer->address_bytes, peer->send_token, error)
                          : transport_expect(engine->transport, peer->node, peer->address,
                                             peer->address_bytes, peer->receive_token, error);
    if (result != 0)
        engine_protect_end(engine, peer->node);
    return result;
}

static void dispatch_peer_connect(struct engine *engine, const struct engine_peer_connect *peer)
{
    struct error error;
    uint32_t node = peer->node;
    if (peer->resumes)
        exchange_peer_away(engine->exchange, node);
    else
        exchange_peer_down(engine->exchange, node);
    engine->peers[node].number = peer->connection;
    if (dispatch_connect(engine, peer, &error) != 0) {
        engine_peer_event(engine, ENGINE_PEER_DOWN, node, 0, error.text);
        return;
    }
    if (!exchange_peer_session(engine->exchange, node, peer->resumes)) {
        engine_end_peer(engine, node,
                        exchange_peer_is_barren(engine->exchange, node)
                            ? "connections break time and again before anything sent comes through"
                            : "what it may lack is not there any more",
                        false);
        return;
    }
    engine->peers[node].connected = true;
    engine->peers[node].connect_ns = clock_now_ns();
    transport_address_text(engine->transport, peer->address, peer->address_bytes,
                           engine->peers[node].address, sizeof(engine->peers[node].address));
    engine->peers[node].receive_token = dispatch_token_number(peer->receive_token);
    exchange_peer_up(engine->exchange, node, dispatch_token_number(peer->receive_token),
                     dispatch_token_number(peer->send_token));
}

static struct engine_event *dispatch_answer(enum engine_event_type type,
                                            const struct engine_command *command, int code,
                                            const struct error *error)
{
    struct engine_event *event = engine_event_create(type);
    event->job = command->job;
    event->group = command->group;
    event->code = code;
    if (code != 0)
        snprintf(event->text, sizeof(event->text), "%s", error->text);
    return event;
}

static void dispatch_job_open(struct engine *engine, const struct engine_command *command)
{
    struct error error;
    int code = exchange_job_open(engine->exchange, command->roster, &error);
    engine_queue_put_event(&engine->events,
                           dispatch_answer(ENGINE_JOB_OPENED, command, code, &error));
}

static void dispatch_group_open(struct engine *engine, const struct engine_command *command)
{
    struct error error;
    int code = exchange_group_open(engine->exchange, command->job, command->group,
                                   command->members.ranks, command->members.count, &error);
    engine_queue_put_event(&engine->events,
                           dispatch_answer(ENGINE_GROUP_OPENED, command, code, &error));
}

static int dispatch_segment(struct engine *engine, const struct engine_command *command,
                            struct error *error)
{
    struct exchange_segment *segment = calloc(1, sizeof(*segment));
    if (!segment) {
        munmap(command->segment.base, command->segment.bytes);
        return error_set(error, ERR_MEMORY, "no memory for shared memory");
    }
    segment->number = command->segment.number;
    segment->base = command->segment.base;
    segment->bytes = command->segment.bytes;
    segment->meeting = command->segment.meeting;
    int code =
        exchange_segment_open(engine->exchange, command->job, command->group, segment, error);
    if (code != 0) {
        struct exchange_io io = engine_exchange_io(engine);
        io.release_segment(engine, segment);
    }
    return code;
}

static void dispatch_segment_open(struct engine *engine, const struct engine_command *command)
{
    struct error error;
    int code = dispatch_segment(engine, command, &error);
    struct engine_event *event = dispatch_answer(ENGINE_SEGMENT_OPENED, command, code, &error);
    event->segment = command->segment.number;
    engine_queue_put_event(&engine->events, event);
}

static int dispatch_worker_watch(struct engine *engine, struct engine_worker *worker,
                                 struct error *error)
{
    /* Edge-triggered: every ring of the doorbell wakes once, and the counter is never read. */
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.ptr = worker};
    if (epoll_ctl(engine->poll_descriptor, EPOLL_CTL_ADD, worker->submission_doorbell, &event) != 0)
        return error_set_errno(error, errno, "cannot watch a worker's doorbell");
    return 0;
}

/* No memory for the worker. Its arena is let go of as if it had been one. */
static void dispatch_attach_refuse(struct engine *engine, const struct engine_command *command)
{
    const struct arena *arena = &command->attach.arena;
    close(command->attach.submission_doorbell);
    close(command->attach.completion_doorbell);
    struct engine_event *event = engine_event_create(ENGINE_WORKER_FAILED);
    event->job = command->job;
    event->rank = command->attach.rank;
    event->code = ERR_MEMORY;
    snprintf(event->text, sizeof(event->text), "no memory for a worker");
    engine_queue_put_event(&engine->events, event);
    event = engine_event_create(ENGINE_WORKER_RELEASED);
    event->worker = command->attach.worker;
    event->job = command->job;
    event->rank = command->attach.rank;
    engine_release(engine, arena->base, arena->total_bytes, event);
}

static void dispatch_worker_attach(struct engine *engine, const struct engine_command *command)
{
    struct error error;
    const struct engine_attach *attach = &command->attach;
    struct engine_worker *worker = calloc(1, sizeof(*worker));
    if (!worker) {
        dispatch_attach_refuse(engine, command);
        return;
    }
    worker->exchange.rank = attach->rank;
    worker->exchange.arena = attach->arena;
    worker->job = command->job;
    worker->number = attach->worker;
    worker->submission_doorbell = attach->submission_doorbell;
    worker->completion_doorbell = attach->completion_doorbell;
    worker->next = engine->workers;
    engine->workers = worker;
    if (transport_register(engine->transport, attach->arena.base, attach->arena.total_bytes,
                           &worker->exchange.registration, &error) != 0) {
        /* Messages from arenas would fail; the sums of several ranks would not. */
        worker->exchange.registration = NULL;
        engine_fail_worker(engine, worker, &error);
    }
    if (exchange_attach(engine->exchange, command->job, &worker->exchange, &error) != 0) {
        engine_fail_worker(engine, worker, &error);
        struct exchange_io io = engine_exchange_io(engine);
        io.release_worker(engine, &worker->exchange);
        return;
    }
    if (engine_share_add(engine, worker, &error) != 0 ||
        dispatch_worker_watch(engine, worker, &error) != 0)
        engine_fail_worker(engine, worker, &error);
}

static void dispatch_worker_detach(struct engine *engine, uint64_t job, uint32_t rank)
{
    struct exchange_worker *found = exchange_find_worker(engine->exchange, job, rank);
    if (!found)
        return;
    /* Entries that it submitted before it said goodbye count. */
    engine_leave(engine, (struct engine_worker *)found);
}

static void dispatch_trace_start(struct engine *engine, struct trace *trace)
{
    struct error error = {0};
    engine_stop_trace_now(engine,
                          trace->job); /* nobody waits for the rest of one that was to end */
    if (exchange_trace_start(engine->exchange, trace, &error) == 0)
        return;
    struct engine_event *event = engine_event_create(ENGINE_TRACED);
    event->job = trace->job;
    event->trace = trace;
    event->code = error.code;
    snprintf(event->text, sizeof(event->text), "%s", error.text);
    engine_queue_put_event(&engine->events, event);
}

static void dispatch_command(struct engine *engine, const struct engine_command *command)
{
    struct exchange *exchange = engine->exchange;
    uint64_t job = command->job;
    uint32_t group = command->group;
    switch (command->kind) {
    case COMMAND_STOP:
        engine->stopping = true;
        break;
    case COMMAND_PEER_ADMIT:
        transport_admit(engine->transport, command->admit_ms);
        break;
    case COMMAND_PEER_CONNECT:
        dispatch_peer_connect(engine, &command->peer_connect);
        break;
    case COMMAND_PEER_DISCONNECT:
        transport_disconnect(engine->transport, command->peer);
        engine_drop_peer(engine, command->peer, command->recovers);
        break;
    case COMMAND_JOB_OPEN:
        dispatch_job_open(engine, command);
        break;
    case COMMAND_JOB_CLOSE:
        exchange_job_close(exchange, job);
        break;
    case COMMAND_JOB_FAIL:
        exchange_job_fail(exchange, job);
        break;
    case COMMAND_GROUP_OPEN:
        dispatch_group_open(engine, command);
        break;
    case COMMAND_GROUP_CLOSE:
        exchange_group_close(exchange, job, group);
        break;
    case COMMAND_GROUP_FAIL:
        exchange_group_stop(exchange, job, group);
        break;
    case COMMAND_RANK_DEPARTED:
        exchange_rank_left(exchange, job, group, command->departed.rank,
                           command->departed.sequences);
        break;
    case COMMAND_SEGMENT_OPEN:
        dispatch_segment_open(engine, command);
        break;
    case COMMAND_SEGMENT_CLOSE:
        exchange_segment_close(exchange, job, group, command->segment.number);
        break;
    case COMMAND_WORKER_ATTACH:
        dispatch_worker_attach(engine, command);
        break;
    case COMMAND_WORKER_DETACH:
        dispatch_worker_detach(engine, job, command->rank);
        break;
    case COMMAND_LATE_QUERY:
        exchange_late_query(exchange, job, group, command->sequence);
        break;
    case COMMAND_TRACE_START:
        dispatch_trace_start(engine, command->trace);
        break;
    case COMMAND_TRACE_STOP:
        engine_stop_trace(engine, command->trace_number);
        break;
    case COMMAND_DRAIN:
        engine->draining = true;
        break;
    }
}

bool engine_take_commands(struct engine *engine)
{
    struct engine_slice slice = {0};
    struct engine_command_item *item;
    while (!slice.over && (item = engine_queue_take_command(&engine->commands)) != NULL) {
        dispatch_command(engine, &item->command);
        if (item->command.kind == COMMAND_PEER_CONNECT) /* it has keys */
            explicit_bzero(&item->command, sizeof(item->command));
        free(item);
        engine_slice_step(&slice, 1);
    }
    return slice.steps > 0;
}
