#include "common/log/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/base/env.h"
#include "common/text/progress_line.h"

void progress_open(struct progress *progress)
{
    progress->shown = isatty(STDERR_FILENO) && progress_line_can_draw(env_text("TERM"));
}

void progress_draw(const struct progress *progress, const char *format, ...)
{
    char text[PROGRESS_LINE_BYTES], bytes[PROGRESS_LINE_BYTES];
    struct winsize size = {0};
    va_list arguments;
    if (!progress->shown)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0)
        size.ws_col = 0;
    size_t length = progress_line_draw(text, size.ws_col, bytes);
    fwrite(bytes, 1, length, stderr);
}

void progress_erase(const struct progress *progress)
{
    if (progress->shown)
        fputs(PROGRESS_LINE_ERASE, stderr);
}
