/* What the coordinator of a virtual node can do, and what it hears from the exchange: both through
 * channels that keep order and take time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/virtual/virtual_private.h"

/* --- the coordinator's world ------------------------------------------------------------------ */

struct carried_line {
    struct virtual_node *from, *to;
    uint64_t epoch;
    size_t length;
    char *line;
};

static void coordinator_due(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)number;
    struct virtual_node *node = what;
    node->tick_due = false;
    uint64_t next = coordinator_tick(node->coordinator, cluster->now_ns);
    if (next == UINT64_MAX)
        return;
    node->tick_due = true;
    virtual_schedule(cluster, next > cluster->now_ns ? next - cluster->now_ns : 0, coordinator_due,
                     node, 0);
}

/* Every call may have changed what is due. */
void virtual_called(struct virtual_node *node)
{
    virtual_schedule(node->cluster, 0, coordinator_due, node, 0);
}

static void deliver_line(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)number;
    struct carried_line *carried = what;
    struct virtual_node *from = carried->from, *to = carried->to;
    if (from->to[to->number].epoch == carried->epoch) {
        struct message message;
        struct error error;
        int result = message_decode(&message, MESSAGE_BETWEEN_DAEMONS, carried->line,
                                    carried->length, &error);
        EXPECT_MSG(result == 0, "between daemons: %s: %s", carried->line, error.text);
        result = coordinator_peer_message(to->coordinator, cluster->now_ns, from->number, &message,
                                          &error);
        EXPECT_MSG(result == 0, "%s -> %s: %s", from->config.node, to->config.node, error.text);
        message_clear(&message);
        virtual_called(to);
    }
    free(carried->line);
    free(carried);
}

static uint64_t world_random(void *context)
{
    struct virtual_node *node = context;
    return virtual_random(node->cluster, UINT64_MAX);
}

static void world_send_peer(void *context, uint32_t number, const struct message *message)
{
    struct virtual_node *node = context;
    struct virtual_cluster *cluster = node->cluster;
    if (!node->connected[number])
        return;
    struct carried_line *carried = calloc(1, sizeof(*carried));
    carried->from = node;
    carried->to = &cluster->nodes[number];
    carried->epoch = node->to[number].epoch;
    carried->line = message_encode(message, &carried->length);
    EXPECT(carried->line);
    carried->line[--carried->length] = '\0'; /* without the newline */
    virtual_schedule_in(cluster, &node->to[number], deliver_line, carried, 0);
}

static void world_send_worker(void *context, uint32_t handle, const struct message *message)
{
    struct virtual_node *node = context;
    virtual_worker_message(node->cluster, handle, message);
}

static void world_end_worker(void *context, uint32_t handle)
{
    struct virtual_node *node = context;
    virtual_worker_end(node->cluster, handle);
}

/* --- commands to the exchange, in order, later ------------------------------------------------ */

struct carried_command {
    struct virtual_node *node;
    struct engine_command_item *item;
};

static void world_command_answer(struct virtual_node *node, enum engine_event_type type,
                                 const struct engine_command *command, int code, const char *text)
{
    struct engine_event *event = engine_event_create(type);
    event->job = command->job;
    event->group = command->group;
    event->code = code;
    snprintf(event->text, sizeof(event->text), "%s", code ? text : "");
    virtual_event(node, event);
}

static void world_command_detach(struct exchange *exchange, uint64_t job, uint32_t rank)
{
    struct exchange_worker *worker = exchange_find_worker(exchange, job, rank);
    if (worker)
        exchange_detach(exchange, worker);
}

static void world_carry_out(struct virtual_node *node, const struct engine_command *command)
{
    struct exchange *exchange = node->exchange;
    struct error error = {0};
    int code;
    switch (command->kind) {
    case COMMAND_JOB_OPEN:
        code = exchange_job_open(exchange, command->roster, &error);
        world_command_answer(node, ENGINE_JOB_OPENED, command, code, error.text);
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
        world_command_answer(node, ENGINE_GROUP_OPENED, command, code, error.text);
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
        world_command_detach(exchange, command->job, command->rank);
        break;
    case COMMAND_LATE_QUERY:
        exchange_late_query(exchange, command->job, command->group, command->sequence);
        break;
    default:
        ck_abort_msg("command %d from a coordinator", command->kind);
    }
}

static void world_deliver_command(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)cluster, (void)number;
    struct carried_command *carried = what;
    world_carry_out(carried->node, &carried->item->command);
    free(carried->item);
    free(carried);
}

static void world_command(void *context, const struct engine_command *command)
{
    struct virtual_node *node = context;
    if (command->kind == COMMAND_DRAIN)
        return; /* no test of the cluster drains; the real processes' tests do */
    struct carried_command *carried = calloc(1, sizeof(*carried));
    EXPECT(carried);
    carried->node = node;
    carried->item = engine_command_copy(command);
    virtual_schedule_in(node->cluster, &node->commands, world_deliver_command, carried, 0);
}

struct coordinator_io virtual_world(struct virtual_node *node)
{
    return (struct coordinator_io){
        .context = node,
        .random = world_random,
        .send_peer = world_send_peer,
        .send_worker = world_send_worker,
        .end_worker = world_end_worker,
        .command = world_command,
    };
}

/* --- events of the exchange, in order, later -------------------------------------------------- */

struct carried_event {
    struct virtual_node *node;
    struct engine_event *event;
};

static void tell_coordinator(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)number;
    struct carried_event *carried = what;
    struct engine_event *event = carried->event;
    if (event->type == ENGINE_LATE)
        carried->node->late_reports++;
    if (event->type == ENGINE_PEER_DOWN)
        virtual_link_end(carried->node, event);
    else if (!coordinator_engine_event(carried->node->coordinator, cluster->now_ns, event))
        ck_abort_msg("event %d from an exchange", event->type);
    virtual_called(carried->node);
    engine_event_free(event);
    free(carried);
}

void virtual_event(struct virtual_node *node, struct engine_event *event)
{
    struct carried_event *carried = calloc(1, sizeof(*carried));
    EXPECT(carried);
    carried->node = node;
    carried->event = event;
    virtual_schedule_in(node->cluster, &node->events, tell_coordinator, carried, 0);
}
