/* Telling the service manager how the daemon is doing: the datagram protocol of sd_notify(3),
 * without libsystemd. The caller reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID. */
#ifndef COMMON_BASE_SD_NOTIFY_H
#define COMMON_BASE_SD_NOTIFY_H

#include <stdint.h>
#include <sys/types.h>

#include "common/base/error.h"

/* Send `state` ("READY=1", "STOPPING=1", "WATCHDOG=1", "STATUS=text"; several joined by newlines)
 * to the socket at socket_path, which is absolute, or abstract when it begins with '@'. A path that
 * is NULL or empty means that no manager listens: nothing is sent, and that is success. Waits for
 * one second at most. Returns 0, ERR_INVALID, ERR_TIMEOUT or ERR_SYSTEM. */
int sd_notify_send(const char *socket_path, const char *state, struct error *error);

/* How often to send "WATCHDOG=1": half of what the manager allows, as sd_watchdog_enabled(3) asks.
 * *interval_ms is 0 when there is no watchdog: watchdog_usec is NULL or empty, or watchdog_pid is
 * given and names another process than `self`. Returns 0 or ERR_INVALID. */
int sd_notify_watchdog_parse(const char *watchdog_usec, const char *watchdog_pid, pid_t self,
                             uint32_t *interval_ms, struct error *error);

#endif
