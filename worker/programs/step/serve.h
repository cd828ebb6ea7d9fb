/* This node's daemon for a step of srun: from the folder that the library has made to its end.
 * Calls meet.h, step.h and common/. */
#ifndef WORKER_PROGRAMS_STEP_SERVE_H
#define WORKER_PROGRAMS_STEP_SERVE_H

#include "common/base/error.h"

/* The folder's socket, shoald.sock, listens when this returns 0, and `alive` is there: a pipe that
 * each rank opens for writing. They may be another one's, whose ranks have not ended. A process
 * that is left behind meets the other nodes, runs the daemon, and removes the folder when no rank
 * has the pipe any more. If that cannot be, for what Slurm says or anything else, it says why to
 * whoever connects. program: shoald. ERR_SYSTEM; ERR_TIMEOUT: an earlier one has not ended. */
int step_serve(const char *folder, const char *program, struct error *error);

#endif
