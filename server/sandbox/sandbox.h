/* Rights that the daemon gives up once it has started: system calls that it never makes, so that a
 * mistake in a parser is of less use to whoever finds it. Linux's seccomp(2) through libseccomp. */
#ifndef SERVER_SANDBOX_SANDBOX_H
#define SERVER_SANDBOX_SANDBOX_H

#include "common/base/error.h"

/* From now on, allow all threads of the process, and those to come, only the system calls that the
 * daemon makes; another call fails as if the kernel did not have it (ENOSYS). Therefore no program
 * is started and no process made, no other process is looked into or signalled, no right or name of
 * a file is changed, and nothing is asked of the kernel that only an administrator needs. Nothing
 * can undo it. Under a sanitizer processes may be made and looked into: that is how leaks are
 * found.
 *
 * ERR_UNSUPPORTED: the kernel, or the container's own filter, does not allow the filter; nothing
 * has changed. ERR_MEMORY. */
int sandbox_enter(struct error *error);

#endif
