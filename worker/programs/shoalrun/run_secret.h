/* Secrets by which the daemons of one run know each other. */
#ifndef WORKER_PROGRAMS_SHOALRUN_RUN_SECRET_H
#define WORKER_PROGRAMS_SHOALRUN_RUN_SECRET_H

#include "common/base/error.h"
#include "worker/programs/shoalrun/launcher.h"

#define RUN_SECRET_BYTES 512 /* with its end */

/* Write a new one, as long as 32 random bytes in hexadecimal. */
int run_secret_make(char secret[RUN_SECRET_BYTES], struct error *error);
/* Write the one that a run of this mark has on all its nodes, and no other run: from SHOAL_SECRET,
 * a text that all of them have, or else from a key in the user's home folder, which clusters share;
 * the first run makes that, readable to this user alone. ERR_REFUSED: others can read the key. */
int run_secret_of_nodes(const char *mark, char secret[RUN_SECRET_BYTES], struct error *error);

#endif
