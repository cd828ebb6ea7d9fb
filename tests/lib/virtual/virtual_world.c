/* The stand-in for the control thread around the coordinator: its table, the update of a turn, and
 * the queues to and from the engine, which keep order and take time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/virtual/virtual_private.h"

/* --- what is due ------------------------------------------------------------------------------ */

static void update_at(struct virtual_node *node, uint64_t time_ns);

/* Do what is due, as control_on_update in server/control/control.c does. */
static void control_update(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    struct virtual_node *node = what;
    if (!node->alive || number != node->update_number)
        return;
    node->update_ns = UINT64_MAX;
    virtual_link_due(node);
    update_at(node, coordinator_tick(node->coordinator, cluster->now_ns));
    update_at(node, membership_deadline(&node->membership));
}

static void update_at(struct virtual_node *node, uint64_t time_ns)
{
    uint64_t now_ns = node->cluster->now_ns;
    if (time_ns >= node->update_ns)
        return;
    node->update_ns = time_ns > now_ns ? time_ns : now_ns;
    virtual_schedule(node->cluster, node, node->update_ns - now_ns, control_update, node,
                     ++node->update_number);
}

void virtual_called(struct virtual_node *node)
{
    update_at(node, node->cluster->now_ns);
}

/* --- the coordinator's world ------------------------------------------------------------------ */

static uint64_t world_random(void *context)
{
    struct virtual_node *node = context;
    return virtual_random(node->cluster, UINT64_MAX);
}

static void world_send_peer(void *context, uint32_t number, const struct message *message)
{
    virtual_link_send(context, number, message);
}

static void world_send_worker(void *context, uint32_t handle, const struct message *message)
{
    struct virtual_node *node = context;
    virtual_session_message(node->cluster, handle, message);
}

static void world_end_worker(void *context, uint32_t handle)
{
    struct virtual_node *node = context;
    virtual_session_end_worker(node->cluster, handle);
}

static void world_command(void *context, const struct engine_command *command)
{
    virtual_command(context, command);
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

/* --- commands to the engine ------------------------------------------------------------------- */

struct carried_command {
    struct virtual_node *node;
    struct engine_command_item *item;
};

static void deliver_command(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)cluster, (void)number;
    struct carried_command *carried = what;
    if (carried->node->alive)
        virtual_engine_command(carried->node, &carried->item->command);
    free(carried->item);
    free(carried);
}

void virtual_command(struct virtual_node *node, const struct engine_command *command)
{
    if (node->cluster->starting) {
        virtual_engine_command(node, command);
        return;
    }
    struct carried_command *carried = calloc(1, sizeof(*carried));
    EXPECT(carried);
    carried->node = node;
    carried->item = engine_command_copy(command);
    EXPECT(carried->item);
    virtual_schedule_in(node->cluster, &node->commands, deliver_command, carried, 0);
}

/* --- events of the engine --------------------------------------------------------------------- */

struct carried_event {
    struct virtual_node *node;
    struct engine_event *event;
};

/* Pass the event on as control_engine_events in server/control/control_adapter.c does. */
static void tell_control(struct virtual_node *node, const struct engine_event *event)
{
    if (event->type == ENGINE_LATE)
        node->late_reports++;
    if (event->type == ENGINE_PEER_UP || event->type == ENGINE_PEER_DOWN)
        virtual_link_engine_event(node, event);
    else if (!coordinator_engine_event(node->coordinator, node->cluster->now_ns, event))
        ck_abort_msg("event %d from an exchange", event->type);
    virtual_called(node);
}

static void deliver_event(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)cluster, (void)number;
    struct carried_event *carried = what;
    if (carried->node->alive)
        tell_control(carried->node, carried->event);
    engine_event_free(carried->event);
    free(carried);
}

void virtual_event(struct virtual_node *node, struct engine_event *event)
{
    struct carried_event *carried = calloc(1, sizeof(*carried));
    EXPECT(carried);
    carried->node = node;
    carried->event = event;
    virtual_schedule_in(node->cluster, &node->events, deliver_event, carried, 0);
}
