#include "common/base/kernel.h"

#include <stddef.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

/* All machines have the same numbers from 424 on; headers of Linux before 5.11 lack the second. */
enum {
    CALL_PIDFD_OPEN = 434,
    CALL_EPOLL_PWAIT2 = 441,
};
#if defined(SYS_epoll_pwait2)
_Static_assert(CALL_PIDFD_OPEN == SYS_pidfd_open && CALL_EPOLL_PWAIT2 == SYS_epoll_pwait2,
               "the numbers of system calls");
#endif

int kernel_pidfd_open(pid_t pid)
{
    return (int)syscall(CALL_PIDFD_OPEN, pid, 0U);
}

int kernel_epoll_pwait2(int epoll, struct epoll_event *events, int most,
                        const struct timespec *timeout)
{
    return (int)syscall(CALL_EPOLL_PWAIT2, epoll, events, most, timeout, NULL, (size_t)0);
}
