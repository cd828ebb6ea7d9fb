/* The drain of the daemon as the control thread begins it: asked for by a signal, by the end of the
 * parent process, or by shoalctl. */
#include "server/control/control_internal.h"

void control_drain(struct control *control, uint32_t limit_ms)
{
    if (!control->draining) {
        log_info(control->log, "shutting down: running collectives may finish for %u ms", limit_ms);
        control_notice(control, CONTROL_DRAINING);
        control->draining = true;
        admin_trace_drain(control);
    }
    coordinator_drain(control->coordinator, clock_now_ns(), limit_ms);
}
