/* The stand-in for the engine's thread: the exchange's table on the memory fabric, what the fabric
 * says, and the commands of the control thread. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/reduce/reduce.h"
#include "tests/lib/virtual/virtual_private.h"

#define TICK_NS (50 * NS_PER_MS)
#define CONNECT_NS (5 * NS_PER_S) /* as engine_check_connecting in server/engine/engine_peer.c */
#define ASK_AGAIN_NS 1000
#define ASK_PAUSED_NS NS_PER_MS

/* --- the exchange's table --------------------------------------------------------------------- */

static void give_back_send(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    exchange_sent(cluster->nodes[number].exchange, what);
}

static void io_send(void *context, struct exchange_send *send)
{
    struct virtual_node *node = context;
    struct iovec parts[2] = {
        {.iov_base = send->header, .iov_len = WIRE_HEADER_BYTES},
        {.iov_base = (void *)(uintptr_t)send->payload, .iov_len = send->payload_bytes},
    };
    void *registrations[2] = {NULL, NULL};
    node->traffic.sent += send->payload_bytes;
    int result = !node->alive ? ERR_LOST
                              : transport_send(node->transport, send->node, parts, registrations,
                                               send->payload_bytes ? 2 : 1, send);
    EXPECT(result != ERR_AGAIN);
    if (result != 0)
        virtual_schedule(node->cluster, node, 0, give_back_send, send, node->number);
}

static void finish_task(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    struct reduce_task *task = what;
    struct virtual_node *node = &cluster->nodes[number];
    if (node->alive)
        reduce_run(reduce_select(REDUCE_ISA_SCALAR), &task->reduction);
    exchange_time(node->exchange, node->cluster->now_ns, 0);
    exchange_reduced(node->exchange, task);
}

static void io_reduce(void *context, struct reduce_task *task)
{
    struct virtual_node *node = context;
    struct virtual_cluster *cluster = node->cluster;
    virtual_schedule(cluster, node, virtual_random(cluster, cluster->options.most_delay_ns),
                     finish_task, task, node->number);
}

static void io_complete(void *context, struct exchange_worker *worker,
                        const struct arena_completion *completion)
{
    struct virtual_node *node = context;
    if (!node->alive)
        return;
    EXPECT(arena_push_completion(&worker->arena, completion));
    if (completion->type == ARENA_STABLE)
        virtual_worker_told_stable(worker, completion);
    virtual_worker_rung(node->cluster, worker);
}

static int io_post_receive(void *context, uint32_t number, struct buffer *buffer)
{
    struct virtual_node *node = context;
    buffer->connection = node->peers[number].connection;
    return transport_post_receive(node->transport, number, buffer->data, buffer->capacity, NULL,
                                  buffer);
}

static void io_event(void *context, struct engine_event *event)
{
    if (event->type == ENGINE_TRACED)
        virtual_trace_over(context, event);
    else
        virtual_event(context, event);
}

static uint64_t io_now_ns(void *context)
{
    const struct virtual_node *node = context;
    return node->cluster->now_ns;
}

static void io_release_worker(void *context, struct exchange_worker *worker)
{
    (void)context;
    virtual_worker_released(worker);
}

/* --- peers ------------------------------------------------------------------------------------ */

/* Drop the peer as engine_drop_peer in server/engine/engine_peer.c does. */
static bool engine_drop_peer(struct virtual_node *node, uint32_t number, bool recovers)
{
    struct virtual_peer *peer = &node->peers[number];
    transport_disconnect(node->transport, number);
    peer->up = peer->connected = peer->requested = false;
    peer->token = 0;
    peer->connection++;
    if (recovers)
        return exchange_peer_away(node->exchange, number);
    exchange_peer_down(node->exchange, number);
    return false;
}

static void engine_peer_event(struct virtual_node *node, enum engine_event_type type, uint32_t peer,
                              int code, const char *text)
{
    struct engine_event *event = engine_event_create(type);
    event->node = peer;
    event->code = code;
    event->connection = node->peers[peer].request.connection;
    snprintf(event->text, sizeof(event->text), "%s", text);
    virtual_event(node, event);
}

/* Lose the peer as engine_peer_lost in that file does. */
static void engine_peer_lost(struct virtual_node *node, uint32_t peer, const char *how,
                             bool recovers)
{
    char text[ERROR_TEXT_BYTES];
    recovers = engine_drop_peer(node, peer, recovers);
    snprintf(text, sizeof(text), "%s on the fabric link between %s and %s", how,
             node->names[node->number], node->names[peer]);
    engine_peer_event(node, ENGINE_PEER_DOWN, peer, recovers ? ERR_DISCONNECTED : 0, text);
}

uint64_t virtual_engine_silence_ns(const struct virtual_node *node)
{
    uint64_t silence_ns = node->config.peer_ms * NS_PER_MS;
    return silence_ns < NS_PER_S ? NS_PER_S : silence_ns;
}

static void engine_peer_lacks(struct virtual_node *node, uint32_t peer, const char *what,
                              uint64_t ns)
{
    char how[64];
    snprintf(how, sizeof(how), "%s for %" PRIu64 " ms", what, (uint64_t)(ns / NS_PER_MS));
    engine_peer_lost(node, peer, how, false);
}

static void io_peer_silent(void *context, uint32_t peer, const char *what)
{
    struct virtual_node *node = context;
    node->cluster->silences++;
    engine_peer_lacks(node, peer, what, virtual_engine_silence_ns(node));
}

static void engine_check_connecting(struct virtual_node *node)
{
    for (uint32_t i = 0; i < node->cluster->options.nodes; i++) {
        const struct virtual_peer *peer = &node->peers[i];
        if (peer->connected && !peer->up && node->cluster->now_ns >= peer->connect_ns + CONNECT_NS)
            engine_peer_lacks(node, i, "no connection", CONNECT_NS);
    }
}

static uint64_t engine_token(const uint8_t token[TRANSPORT_TOKEN_BYTES])
{
    uint64_t number;
    memcpy(&number, token, sizeof(number));
    return number;
}

/* The other side has agreed to the connection, and its engine has not come to it yet: then the
 * request waits at its port (transport_admit). */
static bool engine_is_early(const struct virtual_node *node, uint32_t number)
{
    const struct virtual_node *other = &node->cluster->nodes[number];
    const struct virtual_link *link = &node->links[number], *back = &other->links[node->number];
    return other->alive && back->state == LINK_OPEN && back->connection == link->connection &&
           other->peers[node->number].token != node->peers[number].token;
}

static void engine_connect(struct virtual_node *node, uint32_t number)
{
    struct virtual_peer *peer = &node->peers[number];
    const struct engine_peer_connect *request = &peer->request;
    struct error error;
    peer->requested = false;
    int result = request->active
                     ? transport_connect(node->transport, number, request->address,
                                         request->address_bytes, request->send_token, &error)
                     : transport_expect(node->transport, number, request->address,
                                        request->address_bytes, request->receive_token, &error);
    if (result != 0) {
        engine_peer_event(node, ENGINE_PEER_DOWN, number, 0, error.text);
        return;
    }
    if (!exchange_peer_session(node->exchange, number, request->resumes)) {
        engine_drop_peer(node, number, false);
        engine_peer_event(node, ENGINE_PEER_DOWN, number, 0, "its session is over");
        return;
    }
    peer->connected = true;
    peer->connect_ns = node->cluster->now_ns;
    exchange_peer_up(node->exchange, number, engine_token(request->receive_token),
                     engine_token(request->send_token));
}

static void engine_ask_again(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    struct virtual_node *node = what;
    uint32_t peer = (uint32_t)(number >> 32);
    if (!node->alive || !node->peers[peer].requested ||
        (uint32_t)number != node->peers[peer].connection)
        return;
    if (engine_is_early(node, peer))
        virtual_schedule(cluster, node, cluster->nodes[peer].paused ? ASK_PAUSED_NS : ASK_AGAIN_NS,
                         engine_ask_again, node, number);
    else
        engine_connect(node, peer);
}

/* Take the request as dispatch_peer_connect in server/engine/engine_dispatch.c does. */
static void engine_peer_connect(struct virtual_node *node,
                                const struct engine_peer_connect *request)
{
    struct virtual_peer *peer = &node->peers[request->node];
    if (request->resumes)
        exchange_peer_away(node->exchange, request->node);
    else
        exchange_peer_down(node->exchange, request->node);
    peer->request = *request;
    peer->requested = true;
    peer->token = engine_token(request->active ? request->send_token : request->receive_token);
    if (request->active)
        engine_ask_again(node->cluster, node,
                         (uint64_t)request->node << 32 | node->peers[request->node].connection);
    else
        engine_connect(node, request->node);
}

/* --- the fabric ------------------------------------------------------------------------------- */

/* Decide as engine_receive_is_stale in server/engine/engine_io.c does. */
static bool receive_is_stale(const struct virtual_node *node, const struct buffer *buffer)
{
    return !node->cluster->options.shared_receives &&
           buffer->connection != node->peers[buffer->peer].connection;
}

static void fabric_received(struct virtual_node *node, const struct transport_event *event)
{
    struct buffer *buffer = event->context;
    struct error error;
    uint32_t from;
    if (!node->alive || receive_is_stale(node, buffer)) {
        exchange_receive_returned(node->exchange, buffer->peer, buffer);
        return;
    }
    node->traffic.received += event->bytes - WIRE_HEADER_BYTES;
    int result = exchange_receive(node->exchange, event->peer, buffer, event->bytes,
                                  node->cluster->now_ns, &from, &error);
    /* A datagram of a connection that is over is dropped. */
    EXPECT_MSG(result == 0 || from == TRANSPORT_NO_PEER, "%s from node %u: %s", node->config.node,
               from, error.text);
}

static void fabric_event(struct virtual_node *node, const struct transport_event *event)
{
    struct buffer *buffer = event->context;
    switch (event->type) {
    case TRANSPORT_PEER_UP:
        node->peers[event->peer].up = true;
        EXPECT(exchange_peer_ready(node->exchange, event->peer, NULL) == 0);
        engine_peer_event(node, ENGINE_PEER_UP, event->peer, 0, "");
        break;
    case TRANSPORT_PEER_DOWN:
        engine_peer_lost(node, event->peer, event->text, true);
        break;
    case TRANSPORT_RECEIVED:
        fabric_received(node, event);
        break;
    case TRANSPORT_SENT:
        exchange_sent(node->exchange, event->context);
        break;
    case TRANSPORT_RETURNED:
        exchange_receive_returned(node->exchange, buffer->peer, buffer);
        break;
    }
}

bool virtual_engine_poll(struct virtual_node *node)
{
    struct transport_event events[32];
    bool any = false;
    int count;
    while ((count = transport_poll(node->transport, events, 32)) > 0) {
        any = true;
        for (int i = 0; i < count; i++)
            fabric_event(node, &events[i]);
    }
    return any;
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Memory for the pool's buffers, a slab at a time. */
static int register_slab(void *context, void *address, size_t bytes, void **registration,
                         struct error *error)
{
    const struct virtual_node *node = context;
    (void)address, (void)bytes;
    *registration = NULL;
    return node->refuses_memory ? error_set(error, ERR_MEMORY, "memory is refused") : 0;
}

static void unregister_slab(void *context, void *registration)
{
    (void)context, (void)registration;
}

struct buffer_pool_io virtual_engine_pool_io(struct virtual_node *node)
{
    return (struct buffer_pool_io){node, register_slab, unregister_slab};
}

struct exchange_io virtual_engine_io(struct virtual_node *node)
{
    return (struct exchange_io){
        .context = node,
        .send = io_send,
        .reduce = io_reduce,
        .complete = io_complete,
        .post_receive = io_post_receive,
        .event = io_event,
        .release_worker = io_release_worker,
        .peer_silent = io_peer_silent,
        .now_ns = io_now_ns,
    };
}

/* --- commands --------------------------------------------------------------------------------- */

static void command_answer(struct virtual_node *node, enum engine_event_type type,
                           const struct engine_command *command, int code, const char *text)
{
    struct engine_event *event = engine_event_create(type);
    event->job = command->job;
    event->group = command->group;
    event->code = code;
    snprintf(event->text, sizeof(event->text), "%s", code ? text : "");
    virtual_event(node, event);
}

static void command_detach(struct exchange *exchange, uint64_t job, uint32_t rank)
{
    struct exchange_worker *worker = exchange_find_worker(exchange, job, rank);
    if (worker)
        exchange_detach(exchange, worker);
}

void virtual_engine_command(struct virtual_node *node, const struct engine_command *command)
{
    struct exchange *exchange = node->exchange;
    struct error error = {0};
    int code;
    switch (command->kind) {
    case COMMAND_PEER_CONNECT:
        engine_peer_connect(node, &command->peer_connect);
        break;
    case COMMAND_PEER_DISCONNECT:
        engine_drop_peer(node, command->peer, command->recovers);
        break;
    case COMMAND_JOB_OPEN:
        virtual_generation_opens(node->cluster, command->roster);
        code = exchange_job_open(exchange, command->roster, &error);
        command_answer(node, ENGINE_JOB_OPENED, command, code, error.text);
        break;
    case COMMAND_JOB_CLOSE:
        exchange_job_close(exchange, command->job);
        break;
    case COMMAND_JOB_FAIL:
        exchange_job_fail(exchange, command->job);
        break;
    case COMMAND_GROUP_OPEN:
        code = exchange_group_open(exchange, command->job, command->group, command->members.ranks,
                                   command->members.count, &error);
        command_answer(node, ENGINE_GROUP_OPENED, command, code, error.text);
        break;
    case COMMAND_GROUP_CLOSE:
        exchange_group_close(exchange, command->job, command->group);
        break;
    case COMMAND_GROUP_FAIL:
        exchange_group_stop(exchange, command->job, command->group);
        break;
    case COMMAND_RANK_DEPARTED:
        exchange_rank_left(exchange, command->job, command->group, command->departed.rank,
                           command->departed.sequences);
        break;
    case COMMAND_WORKER_ATTACH:
        virtual_worker_attach(node, command->job, command->attach.rank, command->attach.worker);
        break;
    case COMMAND_WORKER_DETACH:
        command_detach(exchange, command->job, command->rank);
        break;
    case COMMAND_LATE_QUERY:
        exchange_late_query(exchange, command->job, command->group, command->sequence);
        break;
    case COMMAND_DRAIN: /* no test of the cluster drains; the real processes' tests do */
        break;
    default:
        ck_abort_msg("command %d from a coordinator", command->kind);
    }
}

void virtual_engine_tick(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)number;
    struct virtual_node *node = what;
    if (!node->alive)
        return;
    exchange_tick(node->exchange, cluster->now_ns);
    engine_check_connecting(node);
    virtual_schedule(cluster, node, TICK_NS, virtual_engine_tick, node, 0);
}
