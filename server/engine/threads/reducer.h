/* The reduce threads, which add, copy, seal and open. The engine gives tasks and takes them back
 * done; small ones are done at once, since a thread's wake-up costs more. An engine that has just
 * slept has the time for a larger one: it keeps one, and does it when all else is given away. One
 * that never sleeps keeps none. One ring to and one from each thread; no locks. A thread is given
 * some milliseconds of work ahead; what is beyond that waits by share, and shares take turns. */
#ifndef SERVER_ENGINE_REDUCER_H
#define SERVER_ENGINE_REDUCER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/memory/topology.h"
#include "common/reduce/reduce.h"
#include "server/exchange/exchange.h"

struct reducer;

/* threads may be 0: the caller of reducer_submit does all the work. done_descriptor: an eventfd
 * that is rung when a task is done while the taker sleeps (reducer_prepare_sleep). topology: to
 * bind the threads, or NULL. */
int reducer_start(struct reducer **reducer, const struct reduce_kernels *kernels, uint32_t threads,
                  int done_descriptor, const struct topology *topology, struct error *error);
/* Do all that was submitted and end the threads; nothing is submitted any more, reducer_take still
 * gives what is done. Takes as long as the reductions. */
void reducer_finish(struct reducer *reducer);
/* All tasks must have been taken back. */
void reducer_stop(struct reducer *reducer);

void reducer_submit(struct reducer *reducer, struct reduce_task *task);
/* The submitter has slept: one of the next tasks is kept for it. */
void reducer_rested(struct reducer *reducer);
/* Do the task that was kept; false: there is none. It is taken as the others are. */
bool reducer_work(struct reducer *reducer);
/* A finished task, or NULL. */
struct reduce_task *reducer_take(struct reducer *reducer);

/* Announce sleep, or withdraw that, as in common/memory/ring.h, over all threads. */
bool reducer_prepare_sleep(struct reducer *reducer);
void reducer_cancel_sleep(struct reducer *reducer);

#endif
