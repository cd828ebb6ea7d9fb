/* Where a file of shoal's is that lies beside this program. */
#ifndef WORKER_PROGRAMS_SHOALRUN_BESIDE_H
#define WORKER_PROGRAMS_SHOALRUN_BESIDE_H

#include <limits.h>

/* JAX loads this: beside a program in bin. */
#define BESIDE_JAX_LIBRARY "../lib/libshoal-mpitrampoline.so"

/* The path of a file from this program's folder, when it can be used (mode: of access); else its
 * name alone, for PATH or the system's folders of libraries. */
void beside_find(const char *file, int mode, char path[PATH_MAX]);

#endif
