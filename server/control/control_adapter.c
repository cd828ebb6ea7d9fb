/* Between the coordinator and the engine: commands one way, events the other. And what else the
 * coordinator's I/O table asks for. */
#include <stdio.h>
#include <unistd.h>

#include "server/control/control_internal.h"

static uint64_t io_random(void *context)
{
    (void)context;
    uint64_t number;
    auth_random(&number, sizeof(number));
    return number;
}

static void io_send_peer(void *context, uint32_t node, const struct message *message)
{
    control_peer_send(context, node, message);
}

static void io_send_worker(void *context, uint32_t id, const struct message *message)
{
    struct control_worker *worker = control_worker_find(context, id);
    if (worker)
        control_stream_send_message(worker->stream, message);
}

static void io_end_worker(void *context, uint32_t id)
{
    struct control_worker *worker = control_worker_find(context, id);
    if (worker)
        control_worker_finish(worker);
}

static const struct control_engine *io_engine(void *context)
{
    return &((struct control *)context)->options.engine;
}

static void io_job_open(void *context, const struct job *job)
{
    struct engine_job open = {
        .job = job->id,
        .world_size = job->world_size,
        .rank_nodes = job->rank_nodes,
        .server_count = job->server_count,
        .server_nodes = job->servers,
        .server_weights = job->weights,
    };
    snprintf(open.name, sizeof(open.name), "%s", job->name);
    io_engine(context)->job_open(io_engine(context)->engine, &open);
}

static void io_job_close(void *context, uint64_t job)
{
    io_engine(context)->job_close(io_engine(context)->engine, job);
}

static void io_job_fail(void *context, uint64_t job)
{
    io_engine(context)->job_fail(io_engine(context)->engine, job);
}

static void io_group_open(void *context, uint64_t job, const struct group *group)
{
    io_engine(context)->group_open(io_engine(context)->engine, job, group->id, group->ranks,
                                   group->count);
}

static void io_group_fail(void *context, uint64_t job, uint32_t group)
{
    io_engine(context)->group_fail(io_engine(context)->engine, job, group);
}

static void io_group_close(void *context, uint64_t job, uint32_t group)
{
    io_engine(context)->group_close(io_engine(context)->engine, job, group);
}

static void io_rank_left(void *context, uint64_t job, uint32_t group, uint32_t rank,
                         uint64_t sequences)
{
    io_engine(context)->rank_left(io_engine(context)->engine, job, group, rank, sequences);
}

static void io_worker_attach(void *context, uint64_t job, uint32_t rank, uint32_t id)
{
    struct control_worker *worker = control_worker_find(context, id);
    if (!worker || !worker->has_arena)
        return;
    worker->has_arena = false;
    io_engine(context)->worker_attach(io_engine(context)->engine, job, rank, &worker->arena,
                                      worker->doorbells[0], worker->doorbells[1]);
}

static void io_worker_detach(void *context, uint64_t job, uint32_t rank)
{
    io_engine(context)->worker_detach(io_engine(context)->engine, job, rank);
}

static int io_segment_create(void *context, uint64_t job, uint32_t group, uint32_t segment,
                             uint64_t bytes, int *descriptor, struct error *error)
{
    uint8_t *base;
    int result = control_segment_make(bytes, &base, descriptor, error);
    if (result == 0)
        io_engine(context)->segment_open(io_engine(context)->engine, job, group, segment, base,
                                         bytes);
    return result;
}

static void io_segment_send(void *context, uint32_t id, const struct message *message,
                            int descriptor)
{
    struct control_worker *worker = control_worker_find(context, id);
    if (worker)
        control_stream_send_descriptor(worker->stream, message, descriptor);
}

static void io_segment_drop(void *context, int descriptor)
{
    (void)context;
    close(descriptor);
}

static void io_segment_close(void *context, uint64_t job, uint32_t group, uint32_t segment)
{
    io_engine(context)->segment_close(io_engine(context)->engine, job, group, segment);
}

static void io_late_query(void *context, uint64_t job, uint32_t group, uint64_t sequence)
{
    io_engine(context)->late_query(io_engine(context)->engine, job, group, sequence);
}

static void io_drain(void *context)
{
    io_engine(context)->drain(io_engine(context)->engine);
}

struct coordinator_io control_coordinator_io(struct control *control)
{
    return (struct coordinator_io){
        .context = control,
        .random = io_random,
        .send_peer = io_send_peer,
        .send_worker = io_send_worker,
        .end_worker = io_end_worker,
        .job_open = io_job_open,
        .job_close = io_job_close,
        .job_fail = io_job_fail,
        .group_open = io_group_open,
        .group_close = io_group_close,
        .group_fail = io_group_fail,
        .rank_left = io_rank_left,
        .worker_attach = io_worker_attach,
        .worker_detach = io_worker_detach,
        .segment_create = io_segment_create,
        .segment_send = io_segment_send,
        .segment_drop = io_segment_drop,
        .segment_close = io_segment_close,
        .late_query = io_late_query,
        .drain = io_drain,
    };
}

static void adapter_peer_event(struct control *control, uint64_t now_ns,
                               const struct engine_event *event)
{
    uint32_t node = event->node;
    if (node >= control->config->server_count || !control->peer_of[node] ||
        control->peer_of[node]->state != PEER_OPEN)
        return;
    if (event->type == ENGINE_PEER_DOWN) {
        char text[MEMBERSHIP_REASON_BYTES];
        snprintf(text, sizeof(text), "the fabric lost it: %.200s", event->text);
        control_peer_end_node(control, node, text);
        return;
    }
    log_info(control->log, "node %s is reached over the fabric",
             control->config->servers[node].name);
    membership_up(&control->membership, node);
    coordinator_peer_up(control->coordinator, now_ns, node);
}

void control_engine_events(struct control *control)
{
    const struct control_engine *engine = &control->options.engine;
    struct engine_event *event;
    while ((event = engine->next_event(engine->engine)) != NULL) {
        uint64_t now_ns = clock_now_ns();
        if (event->type == ENGINE_TRACED)
            admin_trace_over(control, event);
        else if (!coordinator_engine_event(control->coordinator, now_ns, event))
            adapter_peer_event(control, now_ns, event);
        engine->event_free(event);
    }
}
