#include "server/engine_event.h"

#include <stdlib.h>

struct engine_event *engine_event_create(enum engine_event_type type)
{
    struct engine_event *event = calloc(1, sizeof(*event));
    if (!event)
        abort();
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
    free(event);
}
