/* The commands of the control thread, carried out by the engine's thread. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "server/engine/engine_private.h"

/* A token's first eight bytes, little-endian, travel in every message. */
static uint64_t token_number(const uint8_t token[TRANSPORT_TOKEN_BYTES])
{
    uint64_t number = 0;
    for (int i = 0; i < 8; i++)
        number |= (uint64_t)token[i] << (8 * i);
    return number;
}

static void command_peer_connect(struct engine *engine, const struct engine_command *command)
{
    struct error error;
    uint32_t node = command->node;
    exchange_peer_down(engine->exchange, node);
    int result = command->active
                     ? transport_connect(engine->transport, node, command->address,
                                         command->address_bytes, command->send_token, &error)
                     : transport_expect(engine->transport, node, command->address,
                                        command->address_bytes, command->receive_token, &error);
    if (result != 0) {
        struct engine_event *event = engine_event_create(ENGINE_PEER_DOWN);
        event->node = node;
        snprintf(event->text, sizeof(event->text), "%s", error.text);
        engine_queue_put_event(&engine->events, event);
        return;
    }
    engine->peers[node].connected = true;
    exchange_peer_up(engine->exchange, node, token_number(command->receive_token),
                     token_number(command->send_token));
}

static void command_answer(struct engine *engine, enum engine_event_type type,
                           const struct engine_command *command, int code, const char *text)
{
    struct engine_event *event = engine_event_create(type);
    event->job = command->type == COMMAND_JOB_OPEN ? command->roster.job : command->job;
    event->group = command->group;
    event->segment = command->segment;
    event->code = code;
    if (code != 0)
        snprintf(event->text, sizeof(event->text), "%s", text);
    engine_queue_put_event(&engine->events, event);
}

static void command_job_open(struct engine *engine, struct engine_command *command)
{
    struct error error;
    int code = exchange_job_open(engine->exchange, &command->roster, &error);
    command_answer(engine, ENGINE_JOB_OPENED, command, code, error.text);
}

static void command_group_open(struct engine *engine, struct engine_command *command)
{
    struct error error;
    int code = exchange_group_open(engine->exchange, command->job, command->group, command->numbers,
                                   command->number_count, &error);
    command_answer(engine, ENGINE_GROUP_OPENED, command, code, error.text);
}

static void command_segment_open(struct engine *engine, struct engine_command *command)
{
    struct error error;
    struct exchange_segment *segment = memory_require(1, sizeof(*segment), "shared memory");
    segment->number = command->segment;
    segment->base = command->segment_base;
    segment->bytes = command->segment_bytes;
    int code =
        exchange_segment_open(engine->exchange, command->job, command->group, segment, &error);
    if (code != 0) {
        struct exchange_io io = engine_exchange_io(engine);
        io.release_segment(engine, segment);
    }
    command_answer(engine, ENGINE_SEGMENT_OPENED, command, code, error.text);
}

static void worker_fail(struct engine *engine, struct engine_worker *worker,
                        const struct error *error)
{
    worker->stopped = true;
    struct engine_event *event = engine_event_create(ENGINE_WORKER_FAILED);
    event->code = error->code;
    snprintf(event->text, sizeof(event->text), "%s", error->text);
    engine_report_worker(engine, worker, event);
}

static int worker_watch(struct engine *engine, struct engine_worker *worker, struct error *error)
{
    /* Edge-triggered: every ring of the doorbell wakes once, and the counter is never read. */
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.ptr = worker};
    if (epoll_ctl(engine->poll_descriptor, EPOLL_CTL_ADD, worker->submission_doorbell, &event) != 0)
        return error_set_errno(error, errno, "cannot watch a worker's doorbell");
    return 0;
}

static void command_worker_attach(struct engine *engine, struct engine_command *command)
{
    struct error error;
    struct engine_worker *worker = memory_require(1, sizeof(*worker), "an attached worker");
    worker->exchange.rank = command->rank;
    worker->exchange.arena = command->arena;
    worker->job = command->job;
    worker->submission_doorbell = command->submission_doorbell;
    worker->completion_doorbell = command->completion_doorbell;
    worker->next = engine->workers;
    engine->workers = worker;
    if (transport_register(engine->transport, command->arena.base, command->arena.total_bytes,
                           &worker->exchange.registration, &error) != 0) {
        /* Messages from arenas would fail; the sums of several ranks would not. */
        worker->exchange.registration = NULL;
        worker_fail(engine, worker, &error);
    }
    if (exchange_attach(engine->exchange, command->job, &worker->exchange, &error) != 0) {
        worker_fail(engine, worker, &error);
        struct exchange_io io = engine_exchange_io(engine);
        io.release_worker(engine, &worker->exchange);
        return;
    }
    if (worker_watch(engine, worker, &error) != 0)
        worker_fail(engine, worker, &error);
}

bool engine_read_worker(struct engine *engine, struct engine_worker *worker, uint32_t most,
                        uint64_t now_ns)
{
    struct arena_submission submission;
    for (uint32_t i = 0; i < most; i++) {
        if (worker->stopped)
            return i > 0;
        int got = arena_pop_submission(&worker->exchange.arena, &submission);
        if (got == 0)
            return i > 0;
        struct error error = {.text = "its submission ring makes no sense"};
        if (got > 0 &&
            exchange_submit(engine->exchange, &worker->exchange, &submission, now_ns, &error) == 0)
            continue;
        worker_fail(engine, worker, &error);
        return true;
    }
    return true;
}

static void command_worker_detach(struct engine *engine, const struct engine_command *command)
{
    struct exchange_worker *found =
        exchange_find_worker(engine->exchange, command->job, command->rank);
    if (!found)
        return;
    struct engine_worker *worker = (struct engine_worker *)found;
    /* What it submitted before it said goodbye counts. */
    engine_read_worker(engine, worker, ARENA_RING_ENTRIES_MAX, clock_now_ns());
    worker->stopped = true;
    exchange_detach(engine->exchange, found);
}

static void command_trace_start(struct engine *engine, struct engine_command *command)
{
    struct error error = {0};
    struct trace *trace = command->trace;
    command->trace = NULL;
    if (exchange_trace_start(engine->exchange, trace, &error) == 0)
        return;
    struct engine_event *event = engine_event_create(ENGINE_TRACED);
    event->job = trace->job;
    event->trace = trace;
    event->code = error.code;
    snprintf(event->text, sizeof(event->text), "%s", error.text);
    engine_queue_put_event(&engine->events, event);
}

static void command_trace_stop(struct engine *engine, const struct engine_command *command)
{
    /* What has been copied out by now is in it. */
    for (struct engine_worker *it = engine->workers; it; it = it->next)
        engine_read_worker(engine, it, it->exchange.arena.submission_mask + 1, clock_now_ns());
    exchange_trace_stop(engine->exchange, command->trace_number, TRACE_END_ASKED);
}

static void engine_carry_out(struct engine *engine, struct engine_command *command)
{
    switch (command->type) {
    case COMMAND_STOP:
        engine->stopping = true;
        break;
    case COMMAND_PEER_CONNECT:
        command_peer_connect(engine, command);
        break;
    case COMMAND_PEER_DISCONNECT:
        transport_disconnect(engine->transport, command->node);
        engine_drop_peer(engine, command->node);
        break;
    case COMMAND_JOB_OPEN:
        command_job_open(engine, command);
        break;
    case COMMAND_JOB_CLOSE:
        exchange_job_close(engine->exchange, command->job);
        break;
    case COMMAND_JOB_FAIL:
        exchange_job_fail(engine->exchange, command->job);
        break;
    case COMMAND_GROUP_OPEN:
        command_group_open(engine, command);
        break;
    case COMMAND_GROUP_CLOSE:
        exchange_group_close(engine->exchange, command->job, command->group);
        break;
    case COMMAND_GROUP_FAIL:
        exchange_group_stop(engine->exchange, command->job, command->group);
        break;
    case COMMAND_RANK_LEFT:
        exchange_rank_left(engine->exchange, command->job, command->group, command->rank,
                           command->sequence);
        break;
    case COMMAND_SEGMENT_OPEN:
        command_segment_open(engine, command);
        break;
    case COMMAND_SEGMENT_CLOSE:
        exchange_segment_close(engine->exchange, command->job, command->group, command->segment);
        break;
    case COMMAND_WORKER_ATTACH:
        command_worker_attach(engine, command);
        break;
    case COMMAND_WORKER_DETACH:
        command_worker_detach(engine, command);
        break;
    case COMMAND_LATE_QUERY:
        exchange_late_query(engine->exchange, command->job, command->group, command->sequence);
        break;
    case COMMAND_TRACE_START:
        command_trace_start(engine, command);
        break;
    case COMMAND_TRACE_STOP:
        command_trace_stop(engine, command);
        break;
    case COMMAND_DRAIN:
        engine->draining = true;
        break;
    }
}

bool engine_take_commands(struct engine *engine)
{
    bool any = false;
    for (;;) {
        struct engine_command *command = engine_queue_take_command(&engine->commands);
        if (!command)
            return any;
        any = true;
        engine_carry_out(engine, command);
        engine_command_free(command);
    }
}
