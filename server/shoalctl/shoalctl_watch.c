#include "server/shoalctl/shoalctl_watch.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/env.h"
#include "server/shoalctl/shoalctl_screen.h"

/* xterm's: the other screen, no cursor, lines that are cut at the right; and back. */
#define SCREEN_ENTER "\033[?1049h\033[?25l\033[?7l"
#define SCREEN_LEAVE "\033[?7h\033[?25h\033[?1049l"

struct watch {
    struct screen screen;
    sigset_t signals, before; /* those that are read, and the mask before */
    int signal_fd;
    int ended_by; /* a signal, 0: none */
};

bool watch_can_draw(void)
{
    const char *term = env_text("TERM");
    return isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
}

static int watch_open(struct watch *watch, struct error *error)
{
    static const int numbers[] = {SIGWINCH, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP};
    sigemptyset(&watch->signals);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        sigaddset(&watch->signals, numbers[i]);
    watch->signal_fd = signalfd(-1, &watch->signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (watch->signal_fd < 0)
        return error_set_errno(error, errno, "cannot wait for signals");
    sigprocmask(SIG_BLOCK, &watch->signals, &watch->before);
    fputs(SCREEN_ENTER, stdout);
    return 0;
}

/* Leave the screen. Keys that were typed in it go to the shell, and errors are read on the screen
 * that was there. */
static void watch_close(struct watch *watch)
{
    fputs(SCREEN_LEAVE, stdout);
    fflush(stdout);
    close(watch->signal_fd);
    screen_clear(&watch->screen);
    if (watch->ended_by)
        raise(watch->ended_by);
    sigprocmask(SIG_SETMASK, &watch->before, NULL);
}

static int watch_draw(const struct watch *watch, struct error *error)
{
    struct winsize is = {0};
    struct screen_size size = {80, 24, env_text("NO_COLOR") == NULL};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &is) == 0 && is.ws_col && is.ws_row)
        size = (struct screen_size){is.ws_col, is.ws_row, size.color};
    if (watch->screen.status)
        screen_draw(&watch->screen, &size, stdout);
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    return error_set_errno(error, errno, "cannot write what the daemon says");
}

/* Stop as if SIGTSTP had not been blocked, with the terminal as it was. The signal stops no process
 * that no shell would continue. */
static void watch_stop(void)
{
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    fputs(SCREEN_LEAVE, stdout);
    fflush(stdout);
    raise(SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &stop, NULL);
    sigprocmask(SIG_BLOCK, &stop, NULL);
    fputs(SCREEN_ENTER, stdout);
}

static int signals_read(struct watch *watch, struct error *error)
{
    struct signalfd_siginfo is;
    while (read(watch->signal_fd, &is, sizeof(is)) == (ssize_t)sizeof(is)) {
        if (is.ssi_signo == SIGTSTP)
            watch_stop();
        else if (is.ssi_signo != SIGWINCH)
            watch->ended_by = (int)is.ssi_signo;
    }
    return watch->ended_by ? 0 : watch_draw(watch, error);
}

static int status_take(struct watch *watch, struct conversation *talk, uint64_t *taken_ns,
                       struct error *error)
{
    json_t *status;
    int result = line_send(talk, "{\"type\":\"status\"}\n", error);
    while (result == 0) {
        result = object_receive(talk, "status", TALK_ANSWER_MS, &status, error);
        if (result != ERR_AGAIN)
            break;
        result = signals_read(watch, error);
        if (watch->ended_by)
            return 0;
    }
    if (result)
        return result;
    uint64_t now_ns = clock_now_ns();
    screen_take(&watch->screen, status, *taken_ns ? (double)(now_ns - *taken_ns) / 1e9 : 0);
    *taken_ns = now_ns;
    return watch_draw(watch, error);
}

/* Until the time has passed, or a signal ends it; at once when the daemon goes. */
static int watch_pause(struct watch *watch, struct conversation *talk, double seconds,
                       struct error *error)
{
    uint64_t until = clock_now_ns() + (uint64_t)(seconds * 1e9);
    int result = 0;
    while (result == 0 && !watch->ended_by && clock_now_ns() < until) {
        result = bytes_receive(talk, until, error);
        if (result == ERR_AGAIN)
            result = signals_read(watch, error);
    }
    return result == ERR_TIMEOUT ? 0 : result;
}

int watch_run(struct conversation *talk, double seconds, struct error *error)
{
    struct watch watch = {.signal_fd = -1};
    uint64_t taken_ns = 0;
    int result = watch_open(&watch, error);
    if (result)
        return result;
    talk->interrupt_fd = watch.signal_fd;
    while (result == 0 && !watch.ended_by) {
        result = status_take(&watch, talk, &taken_ns, error);
        if (result == 0 && !watch.ended_by)
            result = watch_pause(&watch, talk, seconds, error);
    }
    talk->interrupt_fd = -1;
    watch_close(&watch);
    return result;
}
