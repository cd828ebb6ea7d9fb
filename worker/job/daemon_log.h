/* The log of a daemon that a launcher has started: it stands beside the daemon's socket. */
#ifndef WORKER_JOB_DAEMON_LOG_H
#define WORKER_JOB_DAEMON_LOG_H

#include <stddef.h>

#define DAEMON_LOG_BYTES 512
#define DAEMON_LOG_TAIL_BYTES 4096

/* Read the last lines of a log of this user, whole ones; return the length, 0: there are none. */
size_t daemon_log_tail(const char *path, char tail[DAEMON_LOG_TAIL_BYTES + 1]);

/* Return "; its log ends with: " and the last error in the log of the daemon at this socket, or the
 * last line of a log without errors; "" where the log stands elsewhere, as a service's does. */
const char *daemon_log_end(const char *socket_path, char text[DAEMON_LOG_BYTES]);

#endif
