/* The core that a rank runs on while it waits at a meeting place, and which other ranks of the node
 * run there. A thread that is woken again and again by one beside it stays there, on Linux also
 * where another core is idle, for a tenth of a second and more: so a rank goes by itself. Calls
 * worker/meeting. */
#ifndef WORKER_DRIVE_DRIVE_CORE_H
#define WORKER_DRIVE_DRIVE_CORE_H

#include <sched.h>

#include "worker/job/job.h"

/* Say at the place where this rank runs. */
void drive_core_say(const struct meeting *meeting);
/* Where it runs: a number, or -1 if the system does not tell. */
int drive_core_now(void);
/* Whether this rank is to look for a better core than this one now: for some time others were last
 * seen on it, none of them with a higher number. Lock held. */
bool drive_core_is_left(struct shoal_job *job, const struct meeting *meeting, int core);
/* Set *better to the cores of `may` on which fewer other ranks were last seen than on this one;
 * false: there is none. */
bool drive_core_better(const struct meeting *meeting, int core, const cpu_set_t *may,
                       cpu_set_t *better);
/* Move this thread to one of these, and let it run wherever it might before. Lock not held. */
void drive_core_leave(const struct meeting *meeting, int core);

#endif
