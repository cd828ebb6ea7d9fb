#include "server/commands/engine_event.h"

#include <stdlib.h>

#include "common/base/memory.h"

struct engine_event *engine_event_create(enum engine_event_type type)
{
    struct engine_event *event = memory_require(1, sizeof(*event), "an engine event");
    event->type = type;
    return event;
}

void engine_event_free(struct engine_event *event)
{
    if (!event)
        return;
    free(event->positions);
    free(event->ranks);
    free(event->nodes);
    trace_free(event->trace);
    free(event);
}
