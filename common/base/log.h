/* A logger: one line an event, on one descriptor, written with a single write so that lines of
 * several threads and processes do not mix. No global: whoever logs is handed a struct log.
 *
 * Format: "2026-11-21T09:30:00.123Z shoald info: text"; under systemd (JOURNAL_STREAM set, which
 * the caller finds out) "<6>text" instead, since the journal has the time and the name.
 */
#ifndef COMMON_BASE_LOG_H
#define COMMON_BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

struct log {
    enum log_level level; /* lines above it are dropped */
    int fd;               /* where lines go; -1 drops all */
    bool journal;         /* write "<N>" priorities in place of time and name */
    char program[32];     /* "shoald", or "shoald[a]" once the node's name is known */
};

void log_init(struct log *log, const char *program, enum log_level level, int fd, bool journal);

/* Parse "error", "warning", "info", "debug". Returns 0 or ERR_INVALID. */
int log_level_parse(const char *text, enum log_level *level);
const char *log_level_name(enum log_level level);

void log_write(const struct log *log, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define log_error(log, ...) log_write((log), LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(log, ...) log_write((log), LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(log, ...) log_write((log), LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(log, ...) log_write((log), LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
