#include "common/base/log.h"

#include "common/base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOG_LINE_BYTES 2048

static const char *const level_names[] = {"error", "warning", "info", "debug"};

/* syslog(3) priorities, which the journal reads from "<N>". */
static const int journal_priorities[] = {3, 4, 6, 7};

void log_init(struct log *log, const char *program, enum log_level level, int fd, bool journal)
{
    *log = (struct log){.level = level, .fd = fd, .journal = journal};
    snprintf(log->program, sizeof(log->program), "%s", program);
}

int log_level_parse(const char *text, enum log_level *level)
{
    for (int i = 0; i <= LOG_LEVEL_DEBUG; i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *level = (enum log_level)i;
            return 0;
        }
    }
    return ERR_INVALID;
}

const char *log_level_name(enum log_level level)
{
    return level_names[level];
}

static size_t log_prefix(const struct log *log, enum log_level level, char *line, size_t bytes)
{
    if (log->journal)
        return (size_t)snprintf(line, bytes, "<%d>", journal_priorities[level]);
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t used = strftime(line, bytes, "%Y-%m-%dT%H:%M:%S", &utc);
    used += (size_t)snprintf(line + used, bytes - used, ".%03ldZ %s %s: ", now.tv_nsec / 1000000,
                             log->program, level_names[level]);
    return used;
}

void log_write(const struct log *log, enum log_level level, const char *format, ...)
{
    if (!log || log->fd < 0 || level > log->level)
        return;
    char line[LOG_LINE_BYTES];
    size_t used = log_prefix(log, level, line, sizeof(line));
    va_list arguments;
    va_start(arguments, format);
    int wanted = vsnprintf(line + used, sizeof(line) - used - 1, format, arguments);
    va_end(arguments);
    if (wanted > 0) {
        size_t room = sizeof(line) - used - 2;
        used += (size_t)wanted < room ? (size_t)wanted : room;
    }
    /* One event stays one line, whatever a peer's text held. */
    for (size_t i = 0; i < used; i++) {
        if ((unsigned char)line[i] < ' ')
            line[i] = ' ';
    }
    line[used++] = '\n';
    ssize_t written = write(log->fd, line, used);
    (void)written; /* nowhere to report that the log cannot be written */
}
