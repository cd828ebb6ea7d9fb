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

enum command_type {
    COMMAND_JOB_OPEN,
    COMMAND_JOB_CLOSE,
    COMMAND_JOB_FAIL,
    COMMAND_GROUP_OPEN,
    COMMAND_GROUP_CLOSE,
    COMMAND_GROUP_FAIL,
    COMMAND_RANK_LEFT,
    COMMAND_ATTACH,
    COMMAND_DETACH,
    COMMAND_LATE_QUERY,
};

struct command {
    struct virtual_node *node;
    enum command_type type;
    uint64_t job, sequence;
    uint32_t group, rank, handle;
    struct engine_job roster;
    uint32_t *numbers;
    uint32_t count;
};

static void world_command_answer(struct virtual_node *node, enum engine_event_type type,
                                 const struct command *command, int code, const char *text)
{
    struct engine_event *event = engine_event_create(type);
    event->job = command->job;
    event->group = command->group;
    event->code = code;
    snprintf(event->text, sizeof(event->text), "%s", code ? text : "");
    virtual_event(node, event);
}

static void world_carry_out(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)cluster, (void)number;
    struct command *command = what;
    struct virtual_node *node = command->node;
    struct exchange *exchange = node->exchange;
    struct error error = {0};
    switch (command->type) {
    case COMMAND_JOB_OPEN:
        world_command_answer(node, ENGINE_JOB_OPENED, command,
                             exchange_job_open(exchange, &command->roster, &error), error.text);
        break;
    case COMMAND_JOB_CLOSE:
        exchange_job_close(exchange, command->job);
        break;
    case COMMAND_JOB_FAIL:
        exchange_job_fail(exchange, command->job);
        break;
    case COMMAND_GROUP_OPEN: {
        int code = exchange_group_open(exchange, command->job, command->group, command->numbers,
                                       command->count, &error);
        world_command_answer(node, ENGINE_GROUP_OPENED, command, code, error.text);
        break;
    }
    case COMMAND_GROUP_CLOSE:
        exchange_group_close(exchange, command->job, command->group);
        break;
    case COMMAND_GROUP_FAIL:
        exchange_group_stop(exchange, command->job, command->group);
        break;
    case COMMAND_RANK_LEFT:
        exchange_rank_left(exchange, command->job, command->group, command->rank,
                           command->sequence);
        break;
    case COMMAND_ATTACH:
        virtual_worker_attach(node, command->job, command->rank, command->handle);
        break;
    case COMMAND_DETACH: {
        struct exchange_worker *worker =
            exchange_find_worker(exchange, command->job, command->rank);
        if (worker)
            exchange_detach(exchange, worker);
        break;
    }
    case COMMAND_LATE_QUERY:
        exchange_late_query(exchange, command->job, command->group, command->sequence);
        break;
    }
    free(command->numbers);
    free(command);
}

static struct command *command_create(struct virtual_node *node, enum command_type type,
                                      uint64_t job)
{
    struct command *command = calloc(1, sizeof(*command));
    EXPECT(command);
    command->node = node;
    command->type = type;
    command->job = job;
    return command;
}

static void command_give(struct command *command)
{
    struct virtual_node *node = command->node;
    virtual_schedule_in(node->cluster, &node->commands, world_carry_out, command, 0);
}

static void world_job_open(void *context, const struct job *job)
{
    struct command *command = command_create(context, COMMAND_JOB_OPEN, job->id);
    uint32_t ranks = job->world_size, servers = job->server_count;
    command->numbers = calloc(ranks + 2 * (size_t)servers, sizeof(uint32_t));
    memcpy(command->numbers, job->rank_nodes, ranks * sizeof(uint32_t));
    memcpy(command->numbers + ranks, job->servers, servers * sizeof(uint32_t));
    memcpy(command->numbers + ranks + servers, job->weights, servers * sizeof(uint32_t));
    command->roster = (struct engine_job){.job = job->id,
                                          .world_size = ranks,
                                          .rank_nodes = command->numbers,
                                          .server_count = servers,
                                          .server_nodes = command->numbers + ranks,
                                          .server_weights = command->numbers + ranks + servers};
    snprintf(command->roster.name, sizeof(command->roster.name), "%s", job->name);
    command_give(command);
}

static void world_job_close(void *context, uint64_t job)
{
    command_give(command_create(context, COMMAND_JOB_CLOSE, job));
}

static void world_job_fail(void *context, uint64_t job)
{
    command_give(command_create(context, COMMAND_JOB_FAIL, job));
}

static void world_group_open(void *context, uint64_t job, const struct group *group)
{
    struct command *command = command_create(context, COMMAND_GROUP_OPEN, job);
    command->group = group->id;
    command->count = group->count;
    command->numbers = calloc(group->count, sizeof(uint32_t));
    memcpy(command->numbers, group->ranks, group->count * sizeof(uint32_t));
    command_give(command);
}

static void world_group_close(void *context, uint64_t job, uint32_t group)
{
    struct command *command = command_create(context, COMMAND_GROUP_CLOSE, job);
    command->group = group;
    command_give(command);
}

static void world_group_fail(void *context, uint64_t job, uint32_t group)
{
    struct command *command = command_create(context, COMMAND_GROUP_FAIL, job);
    command->group = group;
    command_give(command);
}

static void world_rank_left(void *context, uint64_t job, uint32_t group, uint32_t rank,
                            uint64_t sequences)
{
    struct command *command = command_create(context, COMMAND_RANK_LEFT, job);
    command->group = group;
    command->rank = rank;
    command->sequence = sequences;
    command_give(command);
}

static void world_worker_attach(void *context, uint64_t job, uint32_t rank, uint32_t handle)
{
    struct command *command = command_create(context, COMMAND_ATTACH, job);
    command->rank = rank;
    command->handle = handle;
    command_give(command);
}

static void world_worker_detach(void *context, uint64_t job, uint32_t rank)
{
    struct command *command = command_create(context, COMMAND_DETACH, job);
    command->rank = rank;
    command_give(command);
}

static void world_late_query(void *context, uint64_t job, uint32_t group, uint64_t sequence)
{
    struct command *command = command_create(context, COMMAND_LATE_QUERY, job);
    command->group = group;
    command->sequence = sequence;
    command_give(command);
}

static void world_drain(void *context)
{
    (void)context; /* no test of the cluster drains; the real processes' tests do */
}

struct coordinator_io virtual_world(struct virtual_node *node)
{
    return (struct coordinator_io){
        .context = node,
        .random = world_random,
        .send_peer = world_send_peer,
        .send_worker = world_send_worker,
        .end_worker = world_end_worker,
        .job_open = world_job_open,
        .job_close = world_job_close,
        .job_fail = world_job_fail,
        .group_open = world_group_open,
        .group_close = world_group_close,
        .group_fail = world_group_fail,
        .rank_left = world_rank_left,
        .worker_attach = world_worker_attach,
        .worker_detach = world_worker_detach,
        .late_query = world_late_query,
        .drain = world_drain,
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
    if (!coordinator_engine_event(carried->node->coordinator, cluster->now_ns, event))
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
