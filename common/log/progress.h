/* Where long work is, in a line on the terminal of this process's errors; nothing at all where they
 * go elsewhere, or where the terminal cannot erase the line. */
#ifndef COMMON_LOG_PROGRESS_H
#define COMMON_LOG_PROGRESS_H

#include <stdbool.h>

struct progress {
    bool shown;
};

void progress_open(struct progress *progress);
/* Draw a line of progress; the arguments are those of printf. Call progress_erase before this
 * process writes anything else to the terminal. */
void progress_draw(const struct progress *progress, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void progress_erase(const struct progress *progress);

#endif
