/* Ground of every file of the control thread: the one deferred update, notices to the process,
 * commands to the engine. */
#include "server/control/ground/control_internal.h"

void control_update_later(struct control *control)
{
    /* Once however often it is asked for: behind the callbacks of this turn of the loop that are
     * still to run. */
    event_active(control->update_event, EV_TIMEOUT, 1);
}

void control_notice(struct control *control, enum control_notice notice)
{
    if (control->options.notice)
        control->options.notice(control->options.notice_context, notice);
}

void control_command(struct control *control, const struct engine_command *command)
{
    control->options.engine.command(control->options.engine.engine, command);
}
