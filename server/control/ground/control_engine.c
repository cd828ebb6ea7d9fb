/* The table of the real engine, in a file of its own so that tests can do without the engine. */
#include <stdlib.h>

#include "server/control/ground/control_internal.h"

struct control_engine control_engine_of(struct engine *engine)
{
    return (struct control_engine){
        .engine = engine,
        .event_descriptor = engine_event_descriptor,
        .next_event = engine_next_event,
        .transport_info = engine_transport_info,
        .fabric_address = engine_fabric_address,
        .command = engine_command,
        .turns = engine_turns,
        .status = engine_status,
        .status_clear = engine_status_clear,
        .event_free = engine_event_free,
    };
}

/* --- none: a daemon that cannot start opens no job, so that nothing is asked of it -------------
 */

static int none_event_descriptor(const struct engine *engine)
{
    (void)engine;
    return -1;
}

static struct engine_event *none_next_event(struct engine *engine)
{
    (void)engine;
    return NULL;
}

static const struct transport_info *none_transport_info(const struct engine *engine)
{
    static const struct transport_info none = {.provider = "none", .endpoint = "none"};
    (void)engine;
    return &none;
}

static void none_fabric_address(const struct engine *engine,
                                uint8_t address[TRANSPORT_ADDRESS_BYTES], uint32_t *bytes)
{
    (void)engine, (void)address;
    *bytes = 0;
}

static void none_command(struct engine *engine, const struct engine_command *command)
{
    (void)engine, (void)command;
}

static uint64_t none_turns(struct engine *engine)
{
    (void)engine;
    return 0;
}

static int none_status(struct engine *engine, struct engine_status *status)
{
    (void)engine;
    *status = (struct engine_status){0};
    return 0;
}

static void none_status_clear(struct engine_status *status)
{
    (void)status;
}

struct control_engine control_engine_none(void)
{
    return (struct control_engine){
        .event_descriptor = none_event_descriptor,
        .next_event = none_next_event,
        .transport_info = none_transport_info,
        .fabric_address = none_fabric_address,
        .command = none_command,
        .turns = none_turns,
        .status = none_status,
        .status_clear = none_status_clear,
        .event_free = engine_event_free,
    };
}
