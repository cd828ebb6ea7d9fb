/* `shoalctl status --watch` on a terminal: the status drawn again and again, as large as it is. */
#ifndef SERVER_SHOALCTL_SHOALCTL_WATCH_H
#define SERVER_SHOALCTL_SHOALCTL_WATCH_H

#include <stdbool.h>

#include "common/base/error.h"
#include "server/shoalctl/shoalctl_talk.h"

/* Whether the standard output is a terminal on which something can be drawn (TERM is not "dumb").
 */
bool watch_can_draw(void);

/* Until the daemon goes, with the reason as an error, or a signal ends it: then the process ends by
 * that signal. The terminal is as it was either way, and while the process is stopped (SIGTSTP).
 * Colours are left out where NO_COLOR is set. */
int watch_run(struct conversation *talk, double seconds, struct error *error);

#endif
