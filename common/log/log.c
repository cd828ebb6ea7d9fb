#include "common/log/log.h"

#include "common/base/error.h"
#include "common/base/shown.h"
#include "common/log/log_ring.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOG_LINE_BYTES 2048

static const char *const level_names[] = {"error", "warning", "info", "debug"};

/* syslog(3) priorities, which the journal reads from "<N>". */
static const int journal_priorities[] = {3, 4, 6, 7};

/* O_NONBLOCK belongs to the description, which others have inherited too, so a pipe or terminal is
 * opened once more. Where that is refused (no /proc, a terminal of somebody else) log_put asks
 * before it writes. */
static void log_choose_sink(struct log *log)
{
    struct stat status;
    if (log->fd < 0 || fstat(log->fd, &status) < 0 || S_ISREG(status.st_mode))
        return;
    if (S_ISSOCK(status.st_mode)) {
        log->sink = LOG_SINK_SOCKET;
        return;
    }
    log->sink = LOG_SINK_STREAM;
    char path[32];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", log->fd);
    int fd = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0) {
        log->fd = fd;
        log->fd_owned = true;
    }
}

void log_init(struct log *log, const char *program, enum log_level level, int fd, bool journal)
{
    *log = (struct log){.level = level, .fd = fd, .journal = journal};
    snprintf(log->program, sizeof(log->program), "%s", program);
    log_choose_sink(log);
}

void log_close(struct log *log)
{
    if (log->fd_owned)
        close(log->fd);
    log->fd_owned = false;
    log->fd = -1;
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

static void log_time_text(char text[LOG_TIME_BYTES])
{
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t used = strftime(text, LOG_TIME_BYTES, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text + used, LOG_TIME_BYTES - used, ".%03ldZ", now.tv_nsec / 1000000);
}

static size_t log_prefix(struct log *log, enum log_level level, char *line, size_t bytes)
{
    char time[LOG_TIME_BYTES];
    if (log->journal)
        return (size_t)snprintf(line, bytes, "<%d>", journal_priorities[level]);
    log_time_text(time);
    return (size_t)snprintf(line, bytes, "%s %s %s: ", time, log->program, level_names[level]);
}

/* Whether the line, of at most PIPE_BUF bytes, has gone as a whole. A pipe or socket takes all or
 * nothing; a terminal may cut a line, and the rest of it is lost. A line that cannot be written for
 * another reason than want of room has nowhere to be reported, and counts as gone. */
static bool log_put(const struct log *log, const char *line, size_t bytes)
{
    ssize_t written;
    if (log->sink == LOG_SINK_SOCKET) {
        written = send(log->fd, line, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    } else {
        struct pollfd room = {.fd = log->fd, .events = POLLOUT};
        if (log->sink == LOG_SINK_STREAM && !log->fd_owned && poll(&room, 1, 0) == 0)
            return false;
        written = write(log->fd, line, bytes);
    }
    return written < 0 ? errno != EAGAIN : (size_t)written == bytes;
}

/* Say first how many lines were dropped before this one, on a line of its own also behind one that
 * was cut. */
static void log_put_counted(struct log *log, const char *line, size_t bytes)
{
    uint64_t dropped = atomic_exchange(&log->dropped, 0);
    if (dropped > 0) {
        char notice[256];
        size_t used = 0;
        if (log->sink == LOG_SINK_STREAM && isatty(log->fd))
            notice[used++] = '\n';
        used += log_prefix(log, LOG_LEVEL_WARNING, notice + used, sizeof(notice) - used);
        used += (size_t)snprintf(
            notice + used, sizeof(notice) - used,
            "%" PRIu64 " lines of this log were dropped: its reader was slow\n", dropped);
        if (log_put(log, notice, used))
            dropped = 0;
    }
    if (dropped > 0 || !log_put(log, line, bytes))
        atomic_fetch_add(&log->dropped, dropped + 1);
}

static void log_keep(const struct log *log, uint64_t owner, enum log_level level, const char *text)
{
    char time[LOG_TIME_BYTES];
    log_time_text(time);
    log_ring_put(log->ring, owner, level, time, text);
}

static void log_write_as(struct log *log, uint64_t owner, enum log_level level, const char *format,
                         va_list arguments)
{
    if (!log || log->fd < 0 || level > log->level)
        return;
    char line[LOG_LINE_BYTES], text[LOG_LINE_BYTES];
    const size_t prefix = log_prefix(log, level, line, sizeof(line));
    if (vsnprintf(text, sizeof(text), format, arguments) < 0)
        return;
    /* One event stays one line, whatever a peer's text held. */
    size_t used = prefix + shown_copy(line + prefix, sizeof(line) - prefix - 1, text);
    if (log->ring && level <= LOG_LEVEL_WARNING)
        log_keep(log, owner, level, line + prefix);
    line[used++] = '\n';
    log_put_counted(log, line, used);
}

void log_write(struct log *log, enum log_level level, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    log_write_as(log, 0, level, format, arguments);
    va_end(arguments);
}

void log_write_of(struct log *log, uint64_t owner, enum log_level level, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    log_write_as(log, owner, level, format, arguments);
    va_end(arguments);
}
