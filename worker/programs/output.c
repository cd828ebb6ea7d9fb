#include "worker/programs/output.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
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

/* False when there is nothing (more) to read. */
static bool output_take(struct child *child)
{
    ssize_t got =
        read(child->output, child->line + child->line_bytes, CHILD_LINE_BYTES - child->line_bytes);
    if (got < 0)
        return errno == EINTR;
    if (got == 0) {
        close(child->output);
        child->output = -1;
        return false;
    }
    child->line_bytes += (uint32_t)got;
    lines_write(child);
    return true;
}

void output_read(struct child *child)
{
    output_take(child);
}

void output_finish(struct child *child)
{
    while (child->output >= 0 && output_take(child))
        ;
    if (child->line_bytes) {
        line_write(child, child->line_bytes);
        child->line_bytes = 0;
    }
    if (child->output >= 0)
        close(child->output);
    child->output = -1;
}
