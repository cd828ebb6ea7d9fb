/* A program on a terminal of its own, a pseudo-terminal, as a person would have it before them. A
 * failure in here aborts the test. */
#ifndef TESTS_LIB_TERMINAL_H
#define TESTS_LIB_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct terminal {
    pid_t pid;
    int fd;
    bool ended;
    int status; /* of wait(2) */
    char *text; /* all that it has shown */
    size_t length;
};

/* environment: "NAME=VALUE" on top of this process's own, ends with NULL; may be NULL. TERM is
 * xterm and NO_COLOR is not set unless it says so. */
struct terminal *terminal_start(const char *const *argv, const char *const *environment,
                                unsigned columns, unsigned rows);
/* Kills it if it still runs. */
void terminal_free(struct terminal *terminal);

void terminal_resize(struct terminal *terminal, unsigned columns, unsigned rows);
/* Until the text has been shown behind the first `from` bytes; false when it has not come. */
bool terminal_wait_text(struct terminal *terminal, size_t from, const char *text, int timeout_ms);
/* The exit code, 128 + the signal that killed it, or -1 when it still runs after the time. All that
 * it has shown is in `text` then. */
int terminal_wait(struct terminal *terminal, int timeout_ms);

#endif
