/* --tag-output: the lines of a worker with its rank before them. */
#ifndef WORKER_PROGRAMS_SHOALRUN_OUTPUT_H
#define WORKER_PROGRAMS_SHOALRUN_OUTPUT_H

#include "worker/programs/shoalrun/supervisor.h"

/* Reads what is there and writes out the whole lines. Closes at the end of the pipe. */
void output_read(struct child *child);
/* The worker has ended: reads all that is there now and writes it out, an unfinished line too, and
 * closes the pipe. Output that processes of the worker's write later is lost. */
void output_finish(struct child *child);

#endif
