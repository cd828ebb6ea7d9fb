/* The live page of a daemon: a port for it, and its address for the user. */
#ifndef WORKER_PROGRAMS_SHOALRUN_PAGE_H
#define WORKER_PROGRAMS_SHOALRUN_PAGE_H

#include <stdint.h>

#include "common/base/error.h"

/* Find a port of 127.0.0.1 that nobody has, and keep it for a daemon of this run: as long as *fd is
 * open no other program is given it. */
int page_reserve(int *fd, uint16_t *port, struct error *error);
/* Ask the daemon at the socket where its page is, and print that on stderr. When this returns 0 the
 * page can be opened. ERR_INVALID: it serves none. */
int page_announce(const char *socket_path, struct error *error);

#endif
