/* Data kept for each thread: the text of its last failed call, and a mark that tells it from other
 * threads. This is the library's only mutable data that belongs to no handle, as errno belongs to
 * none. Calls common/base. */
#ifndef WORKER_JOB_ERROR_TEXT_H
#define WORKER_JOB_ERROR_TEXT_H

#include <stdint.h>

#include "common/base/error.h"

/* This thread's last error; fill it by the error_ functions. */
struct error *error_text_last(void);

/* Keep *error as this thread's last and return its code as one of worker/shoal.h. */
int error_text_keep(const struct error *error);

/* The text of this thread's last error, when that was kept less than so long ago; else NULL. */
const char *error_text_recent(uint64_t age_ns);

/* A mark of this thread, not 0. A thread that has got the pthread_t of one that has ended has
 * another mark. */
uint64_t error_text_thread(void);

#endif
