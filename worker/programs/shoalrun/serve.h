/* A daemon alone, for ranks that others have started: torchrun, or a framework. */
#ifndef WORKER_PROGRAMS_SHOALRUN_SERVE_H
#define WORKER_PROGRAMS_SHOALRUN_SERVE_H

#include "worker/programs/shoalrun/launcher.h"

/* Leave a process behind that serves a daemon at an address (options.serve), as one of
 * options.nodes nodes, and return. It speaks with whoever has started it in lines:
 *
 *   says    PORT, of the daemon
 *   says    FOLDER, with the socket nodeN.sock, the log nodeN.log, and the pipe `alive`
 *   hears   SECRET, of all daemons
 *   hears   HOST PORT NAME, a line for each node; what a configuration takes for a name
 *   says    started
 *
 * or, at any time, "error CODE TEXT". When nobody has `alive` open any more the daemon retires: it
 * ends when the same is true of the other nodes. The folder goes after both. Where its input ends
 * before, nothing is started. */
int serve(const struct launch_options *options, char *const *environment);

#endif
