/* A logger: one line an event, on one descriptor, written with a single write so that lines of
 * several threads and processes do not mix. No global: whoever logs is handed a struct log.
 *
 * A reader that stops does not stop who writes: a line for which it has left no room is dropped and
 * counted, and the next line that goes is preceded by one that says how many were. Any thread may
 * write. Two writers may still wait for each other's last bit of room where a pipe belongs to
 * another user, so that it could not be opened once more.
 *
 * Format: "2026-11-21T09:30:00.123Z shoald info: text"; under systemd (JOURNAL_STREAM set, which
 * the caller finds out) "<6>text" instead, since the journal has the time and the name.
 */
#ifndef COMMON_BASE_LOG_H
#define COMMON_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* How a line is written without waiting. */
enum log_sink {
    LOG_SINK_FILE,   /* a file: waits for a disk at the most */
    LOG_SINK_SOCKET, /* the journal's: each send says that it does not wait */
    LOG_SINK_STREAM  /* a pipe or terminal: by a description of our own, which does not wait */
};

#define LOG_TIME_BYTES 40u /* "2026-11-21T09:30:00.123Z" */

struct log_ring;

struct log {
    enum log_level level; /* lines above it are not written */
    int fd;               /* where lines go; -1: nowhere */
    enum log_sink sink;
    bool fd_owned;            /* closed by log_close */
    bool journal;             /* write "<N>" priorities instead of time and name */
    char program[32];         /* "shoald", or "shoald[a]" once the node's name is known */
    _Atomic uint64_t dropped; /* lines since the last that was written */
    struct log_ring *ring;    /* of warnings and errors, which the caller keeps; NULL: none */
};

/* Write to fd, which stays the caller's and whose own flags stay as they are: others write to it.
 */
void log_init(struct log *log, const char *program, enum log_level level, int fd, bool journal);
/* Give back what log_init opened. Nothing is written any more. */
void log_close(struct log *log);

/* Parse "error", "warning", "info", "debug". Returns 0 or ERR_INVALID. */
int log_level_parse(const char *text, enum log_level *level);
const char *log_level_name(enum log_level level);

void log_write(struct log *log, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Write a line for an owner who shares the ring with others; 0 is the program itself. */
void log_write_of(struct log *log, uint64_t owner, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#define log_error(log, ...) log_write((log), LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(log, ...) log_write((log), LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(log, ...) log_write((log), LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(log, ...) log_write((log), LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
