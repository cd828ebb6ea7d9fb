/* The last descriptors, and who gets them. A new descriptor has the lowest number that is free, so
 * those of strangers are kept below a limit: the numbers above it are left for this node's workers.
 * One more descriptor is held in reserve, to tell those that cannot be taken why. */
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "server/control/ground/control_internal.h"

/* A worker takes its socket, its process, two doorbells and, until it has joined, its end of the
 * second one; its arena's is closed. */
#define WORKER_DESCRIPTORS 5u
#define PATIENCE_NS (5 * NS_PER_S) /* that connections wait for a descriptor */
#define REFUSED_AT_ONCE 16

/* The reserve for descriptors under way is one user's limit, and two whole messages: a message is
 * counted only when it has come. A daemon of one user keeps no reserve. */
uint64_t control_descriptors_needed(const struct config *config, bool one_user)
{
    uint64_t used =
        (uint64_t)WORKER_DESCRIPTORS * config->workers + config->connections - config->workers;
    if (one_user)
        return used;
    return used + CONTROL_USER_DESCRIPTORS(config->workers) +
           (uint64_t)2 * CONTROL_DESCRIPTORS_SENT;
}

void control_descriptors_init(struct control *control)
{
    uint64_t kept = control_descriptors_needed(control->config, control->options.of_run);
    struct rlimit limit;
    control->strangers_end = UINT64_MAX;
    /* shoald does not start with fewer. */
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur > kept)
        control->strangers_end = limit.rlim_cur - kept;
    control->spare_fd = fcntl(control->unix_fd, F_DUPFD_CLOEXEC, 0);
}

bool control_descriptor_is_kept(const struct control *control, int fd)
{
    return (uint64_t)fd >= control->strangers_end;
}

bool control_descriptors_wait(struct control *control, uint64_t now_ns)
{
    if (control->short_since_ns == 0)
        control->short_since_ns = now_ns;
    return now_ns - control->short_since_ns < PATIENCE_NS;
}

void control_descriptors_refuse(struct control *control, void (*refuse)(struct control *, int fd))
{
    if (control->spare_fd >= 0)
        close(control->spare_fd);
    for (int i = 0; i < REFUSED_AT_ONCE; i++) {
        int fd = accept4(control->unix_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            break;
        refuse(control, fd);
    }
    control->spare_fd = fcntl(control->unix_fd, F_DUPFD_CLOEXEC, 0);
}
