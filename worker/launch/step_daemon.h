/* The daemon that the tasks of a step of srun share on their node where none is configured. The
 * first task of the node has it started, by `shoalrun --step-daemon`; the others wait for its
 * socket. Calls common/base and common/text. */
#ifndef WORKER_LAUNCH_STEP_DAEMON_H
#define WORKER_LAUNCH_STEP_DAEMON_H

#include <stdint.h>

#include "common/base/error.h"

#define STEP_DAEMON_PATH_BYTES 108 /* what a Unix address holds */

struct step_daemon {
    char socket_path[STEP_DAEMON_PATH_BYTES];
    int member; /* the daemon ends when all such descriptors of its node are closed */
};

/* configured: the socket at which a daemon of the node's would answer. 1 with *daemon: its socket
 * listens, and who connects is told there what goes wrong with it; 0: a daemon is configured, or
 * this is no task of srun's. The deadline is the daemons' too. ERR_DISCONNECTED: there is no
 * shoalrun, or it failed, here or in the node's first task; ERR_TIMEOUT: the node's first task has
 * not had it started; ERR_REFUSED: somebody else has the folder;
 * ERR_SYSTEM. */
int step_daemon_find(const char *configured, uint64_t deadline_ns, struct step_daemon *daemon,
                     struct error *error);

#endif
