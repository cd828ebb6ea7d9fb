/* System calls by their numbers, for which glibc has functions only in later releases than the
 * oldest that shoal's programs run on (2.31). The functions here return what glibc's do: -1 and
 * errno on an error, ENOSYS where the kernel is older than the call. */
#ifndef COMMON_BASE_KERNEL_H
#define COMMON_BASE_KERNEL_H

#include <sys/types.h>

struct epoll_event;
struct timespec;

/* pidfd_open(2): a descriptor that is readable when the process has ended; close(2) it. Linux 5.3.
 */
int kernel_pidfd_open(pid_t pid);
/* epoll_pwait2(2), which waits in ns, with all signals as they are. Linux 5.11. */
int kernel_epoll_pwait2(int epoll, struct epoll_event *events, int most,
                        const struct timespec *timeout);

#endif
