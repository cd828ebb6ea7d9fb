#include "worker/programs/step/serve.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/env.h"
#include "common/config/config.h"
#include "common/format/message.h"
#include "worker/programs/step/meet.h"

#define PATH_BYTES 160
#define TAIL_BYTES 600
#define LINGER_MS 3000 /* how much later than the first a rank may come, and be told */

struct served {
    struct step step;
    const char *folder, *program;
    int socket, alive, folder_fd;
};

static int serve_path(const struct served *served, const char *name, char path[PATH_BYTES],
                      struct error *error)
{
    int length = snprintf(path, PATH_BYTES, "%s/%s", served->folder, name);
    return length < PATH_BYTES ? 0
                               : error_set(error, ERR_INVALID, "%s is too long", served->folder);
}

/* --- before anybody comes -------------------------------------------------------------------- */

/* What an earlier one has left is in the way of nobody. */
static int serve_open_alive(struct served *served, struct error *error)
{
    unlinkat(served->folder_fd, "alive", 0);
    if (mkfifoat(served->folder_fd, "alive", 0600))
        return error_set_errno(error, errno, "cannot make %s/alive", served->folder);
    served->alive = openat(served->folder_fd, "alive", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    return served->alive >= 0
               ? 0
               : error_set_errno(error, errno, "cannot open %s/alive", served->folder);
}

/* It has its name only when it listens: ranks wait for the name. */
static int serve_listen(struct served *served, struct error *error)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length =
        snprintf(address.sun_path, sizeof(address.sun_path), "%s/new.sock", served->folder);
    if (length >= (int)sizeof(address.sun_path))
        return error_set(error, ERR_INVALID, "%s is too long for a socket", served->folder);
    unlinkat(served->folder_fd, "new.sock", 0);
    served->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (served->socket < 0 || bind(served->socket, (struct sockaddr *)&address, sizeof(address)) ||
        fchmodat(served->folder_fd, "new.sock", 0600, 0) || listen(served->socket, SOMAXCONN) ||
        renameat(served->folder_fd, "new.sock", served->folder_fd, "shoald.sock"))
        return error_set_errno(error, errno, "cannot listen at %s/shoald.sock", served->folder);
    return 0;
}

/* What the rank had open is not to live as long as the daemon. */
static void serve_close_inherited(void)
{
    DIR *entries = opendir("/proc/self/fd");
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        int fd = atoi(entry->d_name);
        if (fd > STDERR_FILENO && fd != dirfd(entries))
            close(fd);
    }
    if (entries)
        closedir(entries);
}

/* Out of reach of the terminal's signals and of the rank's output, whose reader may wait for the
 * end of whoever has it. */
static void serve_leave(const struct served *served)
{
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE};
    setsid();
    for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
        signal(ignored[i], SIG_IGN);
    int log =
        openat(served->folder_fd, "shoald.log", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (log < 0)
        log = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (log >= 0) {
        dup2(log, STDOUT_FILENO);
        dup2(log, STDERR_FILENO);
        close(log);
    }
}

/* --- the daemon ------------------------------------------------------------------------------ */

static int serve_write(const struct served *served, const char *name, const char *text,
                       struct error *error)
{
    unlinkat(served->folder_fd, name, 0);
    int fd = openat(served->folder_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ssize_t bytes = (ssize_t)strlen(text);
    bool wrong = fd < 0 || write(fd, text, (size_t)bytes) != bytes;
    int problem = errno;
    if (fd >= 0)
        close(fd);
    return wrong ? error_set_errno(error, problem, "cannot write %s/%s", served->folder, name) : 0;
}

static int serve_configure(const struct served *served, const struct step_roster *roster,
                           struct error *error)
{
    long long pinned_bytes = 0;
    int code =
        env_integer("SHOAL_PINNED_BYTES", 1, SHOAL_PINNED_BYTES_MAX, 0, &pinned_bytes, error);
    if (code < 0)
        return code;
    if (pinned_bytes > 0 && pinned_bytes < CONFIG_LEAST_PINNED_BYTES)
        pinned_bytes = CONFIG_LEAST_PINNED_BYTES;
    char *text = step_config_text(&served->step, roster, served->folder, (uint64_t)pinned_bytes);
    if (!text)
        return error_set(error, ERR_MEMORY, "out of memory");
    code = serve_write(served, "shoald.json", text, error);
    free(text);
    if (code == 0 && roster->nodes > 1)
        code = serve_write(served, "secret", roster->secret, error);
    return code;
}

static void serve_keep(int fd, char text[16])
{
    fcntl(fd, F_SETFD, 0);
    snprintf(text, 16, "%d", fd);
}

/* In the child. */
static void serve_become_daemon(const struct served *served, int listener)
{
    char path[PATH_BYTES], fds[3][16];
    static const int defaults[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE};
    for (size_t i = 0; i < sizeof(defaults) / sizeof(defaults[0]); i++)
        signal(defaults[i], SIG_DFL);
    /* Debian's libfabric loads a library that takes over signals unless it is told not to. */
    if (env_set_default("IPATH_NO_BACKTRACE", "1") || env_set_default("HFI_NO_BACKTRACE", "1") ||
        serve_path(served, "shoald.json", path, NULL))
        _exit(EXIT_FAILURE);
    serve_keep(listener, fds[0]);
    serve_keep(served->socket, fds[1]);
    serve_keep(served->alive, fds[2]);
    execlp(served->program, "shoald", "--config", path, "--listen-fd", fds[0], "--socket-fd",
           fds[1], "--exit-with-parent-fd", fds[2], (char *)NULL);
    fprintf(stderr, "cannot start %s: %s\n", served->program, strerror(errno));
    _exit(EXIT_FAILURE);
}

/* The end of the daemon's log, in one line. */
static void serve_log_tail(const struct served *served, char tail[TAIL_BYTES])
{
    int fd = openat(served->folder_fd, "shoald.log", O_RDONLY | O_CLOEXEC);
    off_t bytes = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    off_t from = bytes > TAIL_BYTES - 1 ? bytes - (TAIL_BYTES - 1) : 0;
    ssize_t got = fd >= 0 ? pread(fd, tail, TAIL_BYTES - 1, from) : 0;
    tail[got > 0 ? got : 0] = 0;
    for (char *at = tail; (at = strchr(at, '\n'));)
        *at = at[1] ? ';' : 0;
    if (fd >= 0)
        close(fd);
}

static int serve_run(const struct served *served, int listener, struct error *error)
{
    pid_t pid = fork();
    if (pid == 0)
        serve_become_daemon(served, listener);
    close(listener);
    if (pid < 0)
        return error_set_errno(error, errno, "cannot start %s", served->program);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return error_set_errno(error, errno, "cannot wait for %s", served->program);
    if (status == 0)
        return 0;
    char tail[TAIL_BYTES];
    serve_log_tail(served, tail);
    return error_set(error, ERR_DISCONNECTED,
                     "the daemon that was started for step %s ended badly (%s %d): %s",
                     served->step.name, WIFSIGNALED(status) ? "signal" : "exit status",
                     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), tail);
}

/* --- without a daemon ------------------------------------------------------------------------ */

/* 1: somebody has connected; 0: nobody is left; or nothing has happened. */
static int serve_watch(const struct served *served, uint64_t until_ns)
{
    uint64_t now_ns = clock_now_ns();
    bool lingers = now_ns < until_ns;
    struct pollfd watched[] = {{.fd = served->socket, .events = POLLIN},
                               {.fd = lingers ? -1 : served->alive}};
    int ready = poll(watched, 2, lingers ? (int)((until_ns - now_ns) / NS_PER_MS + 1) : -1);
    if (ready < 0 && errno != EINTR)
        return 0;
    return ready > 0 && watched[0].revents ? 1 : ready > 0 ? 0 : -1;
}

/* Whoever comes is told what went wrong: the ranks that are there, and those that come a little
 * later. Connections stay open: one with something unread in it would break off. */
static void serve_refuse(const struct served *served, const struct error *problem)
{
    struct message message = {.type = MESSAGE_ERROR, .code = problem->code};
    snprintf(message.text, sizeof(message.text), "%s", problem->text);
    size_t bytes;
    char *line = message_encode(&message, &bytes);
    uint64_t until_ns = clock_now_ns() + LINGER_MS * NS_PER_MS;
    fprintf(stderr, "shoalrun: %s\n", problem->text);
    for (int happened = line ? 1 : 0; happened;) {
        happened = serve_watch(served, until_ns);
        int fd = happened > 0 ? accept4(served->socket, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (fd >= 0 && send(fd, line, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            close(fd);
        else if (fd < 0 && happened > 0 && errno != EAGAIN && errno != EINTR)
            break;
    }
    free(line);
}

static void serve_remove_folder(const struct served *served)
{
    static const char *const names[] = {"shoald.sock", "new.sock", "alive",     "shoald.json",
                                        "secret",      "said",     "shoald.log"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unlinkat(served->folder_fd, names[i], 0);
    rmdir(served->folder);
}

static void serve_left_behind(const struct served *served)
{
    struct step_roster roster;
    struct error error = {0};
    int listener = -1;
    serve_leave(served);
    int code = step_roster_init(&roster, served->step.nodes, &error);
    if (code == 0)
        code = meet(&served->step, served->alive, &roster, &listener, &error);
    if (code == 0)
        code = serve_configure(served, &roster, &error);
    if (code == 0)
        code = serve_run(served, listener, &error);
    if (code < 0 && code != ERR_STATE)
        serve_refuse(served, &error);
    serve_remove_folder(served);
    step_roster_clear(&roster);
}

int step_serve(const char *folder, const char *program, struct error *error)
{
    struct served served = {.folder = folder, .program = program, .socket = -1, .alive = -1};
    serve_close_inherited();
    int code = step_read(&served.step, error);
    if (code < 0)
        return code;
    served.folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (served.folder_fd < 0)
        return error_set_errno(error, errno, "cannot open %s", folder);
    code = serve_open_alive(&served, error);
    if (code == 0)
        code = serve_listen(&served, error);
    pid_t pid = code == 0 ? fork() : -1;
    if (pid == 0) {
        serve_left_behind(&served);
        _exit(EXIT_SUCCESS);
    }
    if (code == 0 && pid < 0)
        code = error_set_errno(error, errno, "cannot leave a process behind");
    if (served.socket >= 0)
        close(served.socket);
    if (served.alive >= 0)
        close(served.alive);
    close(served.folder_fd);
    return code;
}
