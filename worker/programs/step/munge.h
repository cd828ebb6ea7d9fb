/* Munge, by which the nodes of a cluster know users: what one node seals, only a process of the
 * same user on a node with the same key opens, once and for a few minutes (munge(7)). By its
 * programs `munge` and `unmunge`, which are where Slurm is. Calls common/base. */
#ifndef WORKER_PROGRAMS_STEP_MUNGE_H
#define WORKER_PROGRAMS_STEP_MUNGE_H

#include <stdint.h>

#include "common/base/error.h"

/* A credential of the text, which is the caller's to free: one line of printable characters without
 * its end. ERR_UNSUPPORTED without the program; ERR_SYSTEM with its words; ERR_TIMEOUT: it
 * has not ended by the deadline nor in 10 s, and is killed; ERR_MEMORY. */
int munge_seal(const char *text, uint64_t deadline_ns, char **sealed, struct error *error);
/* The text of a credential that a process of this user's made, the caller's to free. ERR_REFUSED:
 * another user's, an old one, one that was opened before, or none at all. And the above. */
int munge_open(const char *sealed, uint64_t deadline_ns, char **text, struct error *error);

#endif
