#include "common/base/sd_notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

static int address_fill(const char *path, struct sockaddr_un *address, socklen_t *address_bytes,
                        struct error *error)
{
    size_t length = strlen(path);
    if ((path[0] != '/' && path[0] != '@') || length < 2)
        return error_set(error, ERR_INVALID, "notify socket \"%s\" is not an absolute path", path);
    if (length >= sizeof(address->sun_path))
        return error_set(error, ERR_INVALID, "notify socket \"%s\" is longer than %zu bytes", path,
                         sizeof(address->sun_path) - 1);

    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path, path, length);
    if (path[0] == '@')
        address->sun_path[0] = '\0';
    /* The length is exact: in an abstract name a final NUL would be part of the name. */
    *address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    return 0;
}

int sd_notify_send(const char *socket_path, const char *state, struct error *error)
{
    if (!socket_path || !socket_path[0])
        return 0;
    if (!state || !state[0])
        return error_set(error, ERR_INVALID, "no state to notify");

    struct sockaddr_un address;
    socklen_t address_bytes = 0;
    int code = address_fill(socket_path, &address, &address_bytes, error);
    if (code)
        return code;

    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return error_set_errno(error, errno, "notify socket");

    /* A manager that does not read must not stop the daemon. */
    struct timeval limit = {.tv_sec = 1};
    ssize_t sent = -1;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) == 0)
        sent = sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address,
                      address_bytes);
    int failure = errno;
    close(fd);
    if (sent >= 0)
        return 0;
    if (failure == EAGAIN)
        return error_set(error, ERR_TIMEOUT, "notify socket \"%s\" is not being read", socket_path);
    return error_set_errno(error, failure, "notify socket \"%s\"", socket_path);
}

/* Digits only: strtoull alone would take signs, blanks and words after the number. */
static int number_parse(const char *name, const char *text, unsigned long long *value,
                        struct error *error)
{
    errno = 0;
    char *end = NULL;
    unsigned long long parsed = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || parsed == 0)
        return error_set(error, ERR_INVALID, "%s is \"%s\", must be a positive number", name, text);
    *value = parsed;
    return 0;
}

int sd_notify_watchdog_parse(const char *watchdog_usec, const char *watchdog_pid, pid_t self,
                             uint32_t *interval_ms, struct error *error)
{
    unsigned long long usec = 0, pid = 0;
    if (!watchdog_usec || !watchdog_usec[0]) {
        *interval_ms = 0;
        return 0;
    }
    int code = number_parse("WATCHDOG_USEC", watchdog_usec, &usec, error);
    if (!code && watchdog_pid && watchdog_pid[0])
        code = number_parse("WATCHDOG_PID", watchdog_pid, &pid, error);
    if (code)
        return code;

    unsigned long long half_ms = usec / 2000;
    if (half_ms < 1)
        half_ms = 1;
    if (half_ms > UINT32_MAX)
        half_ms = UINT32_MAX;
    *interval_ms = pid && pid != (unsigned long long)self ? 0 : (uint32_t)half_ms;
    return 0;
}
