/* The text of the last failed call of each thread: the library's only mutable data that belongs to
 * no handle, as errno does not either. */
#ifndef WORKER_ERROR_TEXT_H
#define WORKER_ERROR_TEXT_H

#include "common/error.h"

/* This thread's last error; fill it by the error_ functions. */
struct error *error_text_last(void);

/* Keep *error as this thread's last and return its code as one of worker/shoal.h. */
int error_text_keep(const struct error *error);

#endif
