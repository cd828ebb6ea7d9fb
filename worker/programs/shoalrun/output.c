#include "worker/programs/shoalrun/output.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* One write a line, so that lines of ranks and daemons do not mix. */
static void line_write(struct child *child, uint32_t bytes)
{
    char tagged[CHILD_LINE_BYTES + 32];
    int length =
        snprintf(tagged, sizeof(tagged), "[%u] %.*s\n", child->rank, (int)bytes, child->line);
    for (int done = 0; done < length;) {
        ssize_t written = write(STDOUT_FILENO, tagged + done, (size_t)(length - done));
        if (written < 0 && errno != EINTR)
            return;
        if (written > 0)
            done += (int)written;
    }
}

static void lines_write(struct child *child)
{
    char *end;
    while ((end = memchr(child->line, '\n', child->line_bytes))) {
        uint32_t bytes = (uint32_t)(end - child->line);
        line_write(child, bytes);
        child->line_bytes -= bytes + 1;
        memmove(child->line, end + 1, child->line_bytes);
    }
    if (child->line_bytes == CHILD_LINE_BYTES) {
        line_write(child, child->line_bytes);
        child->line_bytes = 0;
    }
}

/* The bytes read; 0 at the end, or negative when there is nothing to read. */
static ssize_t output_take(struct child *child)
{
    ssize_t got;
    do
        got = read(child->output, child->line + child->line_bytes,
                   CHILD_LINE_BYTES - child->line_bytes);
    while (got < 0 && errno == EINTR);
    if (got == 0) {
        close(child->output);
        child->output = -1;
    }
    if (got > 0) {
        child->line_bytes += (uint32_t)got;
        lines_write(child);
    }
    return got;
}

void output_read(struct child *child)
{
    output_take(child);
}

void output_finish(struct child *child)
{
    /* Take what is in the pipe now; a process that the worker has left behind may go on writing for
     * ever. */
    int remaining = 0;
    if (child->output >= 0 && ioctl(child->output, FIONREAD, &remaining) < 0)
        remaining = 0;
    while (child->output >= 0 && remaining > 0) {
        ssize_t got = output_take(child);
        if (got <= 0)
            break;
        remaining -= (int)got;
    }
    if (child->line_bytes) {
        line_write(child, child->line_bytes);
        child->line_bytes = 0;
    }
    if (child->output >= 0)
        close(child->output);
    child->output = -1;
}
