/* This header finds files of shoal's that lie beside this program. */
#ifndef WORKER_PROGRAMS_SHOALRUN_BESIDE_H
#define WORKER_PROGRAMS_SHOALRUN_BESIDE_H

#include <limits.h>

#include "common/base/error.h"

/* Write the path of a file from this program's folder, when it can be used (mode: of access); else
 * its name alone, for PATH or the system's folders of libraries. */
void beside_find(const char *file, int mode, char path[PATH_MAX]);
/* Write what JAX is to load (MPITRAMPOLINE_LIB): a path, or a name that the loader finds.
 * ERR_SYSTEM: there is no such library. */
int beside_find_jax_library(char path[PATH_MAX], struct error *error);

#endif
