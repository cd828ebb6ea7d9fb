#include "tests/lib/terminal.h"

#include <errno.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/process.h"
#include "tests/lib/suite.h"

struct terminal *terminal_start(const char *const *argv, const char *const *environment,
                                unsigned columns, unsigned rows)
{
    struct terminal *terminal = calloc(1, sizeof(*terminal));
    struct winsize size = {.ws_col = (unsigned short)columns, .ws_row = (unsigned short)rows};
    ck_assert_ptr_nonnull(terminal);
    terminal->text = calloc(1, 1);
    terminal->pid = forkpty(&terminal->fd, NULL, NULL, &size);
    ck_assert_int_ge(terminal->pid, 0);
    if (terminal->pid == 0) {
        unsetenv("NO_COLOR");
        setenv("TERM", "xterm", 1);
        for (; environment && *environment; environment++)
            putenv((char *)(uintptr_t)*environment);
        execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    return terminal;
}

void terminal_free(struct terminal *terminal)
{
    if (!terminal->ended) {
        kill(terminal->pid, SIGKILL);
        waitpid(terminal->pid, NULL, 0);
    }
    close(terminal->fd);
    free(terminal->text);
    free(terminal);
}

void terminal_resize(struct terminal *terminal, unsigned columns, unsigned rows)
{
    struct winsize size = {.ws_col = (unsigned short)columns, .ws_row = (unsigned short)rows};
    ck_assert_int_eq(ioctl(terminal->fd, TIOCSWINSZ, &size), 0);
}

/* false at the end: all that had the terminal open are gone. */
static bool terminal_read(struct terminal *terminal, int timeout_ms)
{
    char bytes[4096];
    struct pollfd polled = {.fd = terminal->fd, .events = POLLIN};
    if (poll(&polled, 1, timeout_ms) <= 0)
        return true;
    ssize_t got = read(terminal->fd, bytes, sizeof(bytes));
    if (got <= 0)
        return got < 0 && errno == EINTR;
    terminal->text = realloc(terminal->text, terminal->length + (size_t)got + 1);
    ck_assert_ptr_nonnull(terminal->text);
    memcpy(terminal->text + terminal->length, bytes, (size_t)got);
    terminal->length += (size_t)got;
    terminal->text[terminal->length] = 0;
    return true;
}

bool terminal_wait_text(struct terminal *terminal, size_t from, const char *text, int timeout_ms)
{
    int64_t until = process_now_ms() + timeout_ms;
    for (;;) {
        if (from <= terminal->length && strstr(terminal->text + from, text))
            return true;
        int64_t left_ms = until - process_now_ms();
        if (left_ms <= 0 || !terminal_read(terminal, (int)left_ms))
            return false;
    }
}

int terminal_wait(struct terminal *terminal, int timeout_ms)
{
    int64_t until = process_now_ms() + timeout_ms;
    while (!terminal->ended) {
        int64_t left_ms = until - process_now_ms();
        if (left_ms <= 0)
            return -1;
        if (terminal_read(terminal, (int)left_ms))
            continue;
        ck_assert_int_eq(waitpid(terminal->pid, &terminal->status, 0), terminal->pid);
        terminal->ended = true;
    }
    return WIFSIGNALED(terminal->status) ? 128 + WTERMSIG(terminal->status)
                                         : WEXITSTATUS(terminal->status);
}
