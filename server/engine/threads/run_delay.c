#include "server/engine/threads/run_delay.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define TEXT_BYTES 128

bool run_delay_parse(const char *text, uint64_t *ns)
{
    while (*text >= '0' && *text <= '9')
        text++;
    if (text[0] != ' ' || text[1] < '0' || text[1] > '9')
        return false;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text + 1, &end, 10);
    if (errno != 0 || *end != ' ')
        return false;
    *ns = value;
    return true;
}

static bool run_delay_read(const struct run_delay *delay, uint64_t *ns)
{
    char text[TEXT_BYTES];
    ssize_t bytes =
        delay->descriptor < 0 ? -1 : pread(delay->descriptor, text, sizeof(text) - 1, 0);
    if (bytes <= 0)
        return false;
    text[bytes] = '\0';
    return run_delay_parse(text, ns);
}

bool run_delay_open(struct run_delay *delay)
{
    delay->descriptor = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (run_delay_read(delay, &delay->ns))
        return true;
    run_delay_close(delay);
    return false;
}

uint64_t run_delay_take(struct run_delay *delay)
{
    uint64_t ns, passed_ns;
    if (!run_delay_read(delay, &ns) || ns < delay->ns)
        return 0;
    passed_ns = ns - delay->ns;
    delay->ns = ns;
    return passed_ns;
}

void run_delay_close(struct run_delay *delay)
{
    if (delay->descriptor >= 0)
        close(delay->descriptor);
    delay->descriptor = -1;
}
