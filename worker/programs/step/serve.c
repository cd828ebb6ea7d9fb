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
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/env.h"
#include "common/base/kernel.h"
#include "common/config/config.h"
#include "common/format/message.h"
#include "worker/programs/step/folder.h"
#include "worker/programs/step/meet.h"

#define PATH_BYTES 160
#define TAIL_BYTES 600
#define LINGER_MS 3000 /* how much later than the first a rank may come, and be told */

struct served {
    struct step step;
    struct step_folder folder;
    const char *program;
    int socket;
};

static int serve_path(const struct served *served, const char *name, char path[PATH_BYTES],
                      struct error *error)
{
    int length = snprintf(path, PATH_BYTES, "%s/%s", served->folder.path, name);
    return length < PATH_BYTES
               ? 0
               : error_set(error, ERR_INVALID, "%s is too long", served->folder.path);
}

/* --- before anybody comes -------------------------------------------------------------------- */

/* It has its name only when it listens: ranks wait for the name. */
static int serve_listen(struct served *served, struct error *error)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length =
        snprintf(address.sun_path, sizeof(address.sun_path), "%s/new.sock", served->folder.path);
    if (length >= (int)sizeof(address.sun_path))
        return error_set(error, ERR_INVALID, "%s is too long for a socket", served->folder.path);
    served->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (served->socket < 0 || bind(served->socket, (struct sockaddr *)&address, sizeof(address)) ||
        fchmodat(served->folder.fd, "new.sock", 0600, 0) || listen(served->socket, SOMAXCONN) ||
        renameat(served->folder.fd, "new.sock", served->folder.fd, "shoald.sock"))
        return error_set_errno(error, errno, "cannot listen at %s/shoald.sock",
                               served->folder.path);
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
    signal(SIGCHLD, SIG_DFL); /* children are waited for */
    for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
        signal(ignored[i], SIG_IGN);
    int log =
        openat(served->folder.fd, "shoald.log", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
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
    int fd = openat(served->folder.fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ssize_t bytes = (ssize_t)strlen(text);
    bool wrong = fd < 0 || write(fd, text, (size_t)bytes) != bytes;
    int problem = errno;
    if (fd >= 0)
        close(fd);
    return wrong ? error_set_errno(error, problem, "cannot write %s/%s", served->folder.path, name)
                 : 0;
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
    char *text =
        step_config_text(&served->step, roster, served->folder.path, (uint64_t)pinned_bytes);
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
static void serve_become_daemon(const struct served *served, int listener, int parent)
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
    serve_keep(parent, fds[2]);
    execlp(served->program, "shoald", "--config", path, "--listen-fd", fds[0], "--socket-fd",
           fds[1], "--exit-with-parent-fd", fds[2], (char *)NULL);
    fprintf(stderr, "cannot start %s: %s\n", served->program, strerror(errno));
    _exit(EXIT_FAILURE);
}

/* The end of the daemon's log, in one line. */
static void serve_log_tail(const struct served *served, char tail[TAIL_BYTES])
{
    int fd = openat(served->folder.fd, "shoald.log", O_RDONLY | O_CLOEXEC);
    off_t bytes = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    off_t from = bytes > TAIL_BYTES - 1 ? bytes - (TAIL_BYTES - 1) : 0;
    ssize_t got = fd >= 0 ? pread(fd, tail, TAIL_BYTES - 1, from) : 0;
    tail[got > 0 ? got : 0] = 0;
    for (char *at = tail; (at = strchr(at, '\n'));)
        *at = at[1] ? ';' : 0;
    if (fd >= 0)
        close(fd);
}

/* Until the daemon has ended. Its ranks' end is told to it (parent is closed) only when no further
 * rank can find it: who comes later starts another one. */
static int serve_attend(struct served *served, pid_t pid, int parent, struct error *error)
{
    int pidfd = kernel_pidfd_open(pid), code = 0;
    if (pidfd < 0)
        code = error_set_errno(error, errno, "cannot watch %s", served->program);
    for (bool ended = pidfd < 0; !ended;) {
        struct pollfd watched[] = {{.fd = pidfd, .events = POLLIN},
                                   {.fd = parent >= 0 ? served->folder.alive : -1}};
        int ready = poll(watched, 2, step_folder_expect(&served->folder));
        ended = ready > 0 && watched[0].revents;
        if (ready > 0 && watched[1].revents && step_folder_is_left(&served->folder)) {
            close(parent);
            parent = -1;
        }
    }
    if (pidfd >= 0)
        close(pidfd);
    if (parent >= 0)
        close(parent);
    return code;
}

static int serve_run(struct served *served, int listener, struct error *error)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC)) {
        close(listener);
        return error_set_errno(error, errno, "cannot make a pipe");
    }
    pid_t pid = fork();
    if (pid == 0)
        serve_become_daemon(served, listener, ends[0]);
    close(listener);
    close(ends[0]);
    if (pid < 0) {
        close(ends[1]);
        return error_set_errno(error, errno, "cannot start %s", served->program);
    }
    int code = serve_attend(served, pid, ends[1], error);
    if (code < 0)
        kill(pid, SIGKILL);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return error_set_errno(error, errno, "cannot wait for %s", served->program);
    if (code < 0 || status == 0)
        return code;
    char tail[TAIL_BYTES];
    serve_log_tail(served, tail);
    return error_set(error, ERR_DISCONNECTED,
                     "the daemon that was started for step %s ended badly (%s %d): %s",
                     served->step.name, WIFSIGNALED(status) ? "signal" : "exit status",
                     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), tail);
}

/* --- without a daemon ------------------------------------------------------------------------ */

/* 1: somebody has connected; 0: nobody is left; -1: nothing has happened. */
static int serve_watch(struct served *served, uint64_t until_ns)
{
    uint64_t now_ns = clock_now_ns();
    bool lingers = now_ns < until_ns;
    int wait_ms = step_folder_expect(&served->folder);
    if (lingers)
        wait_ms = (int)((until_ns - now_ns) / NS_PER_MS + 1);
    struct pollfd watched[] = {{.fd = served->socket, .events = POLLIN},
                               {.fd = lingers ? -1 : served->folder.alive}};
    int ready = poll(watched, 2, wait_ms);
    if (ready < 0 && errno != EINTR)
        return 0;
    if (ready > 0 && watched[0].revents)
        return 1;
    return ready > 0 && step_folder_is_left(&served->folder) ? 0 : -1;
}

/* Whoever comes is told what went wrong: the ranks that are there, and those that come a little
 * later. Connections stay open: one with something unread in it would break off. */
static void serve_refuse(struct served *served, const struct error *problem)
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

static int serve_step(struct served *served, struct error *error)
{
    struct step_roster roster;
    int listener = -1, code = step_roster_init(&roster, served->step.nodes, error);
    while (code == 0 && listener < 0) {
        code = meet(&served->step, served->folder.alive, &roster, &listener, error);
        /* A rank that has come while the others went wants a daemon too. */
        if (code == ERR_STATE && !step_folder_is_left(&served->folder))
            code = 0;
    }
    if (code == 0)
        code = serve_configure(served, &roster, error);
    if (code == 0)
        code = serve_run(served, listener, error);
    else if (listener >= 0)
        close(listener);
    step_roster_clear(&roster);
    return code;
}

/* problem: what is wrong with the step itself. The node's other tasks are told too. */
static void serve_left_behind(struct served *served, const struct error *problem)
{
    struct error error = {0};
    serve_leave(served);
    if (problem)
        error = *problem;
    int code = problem ? problem->code : serve_step(served, &error);
    if (code < 0 && code != ERR_STATE)
        serve_refuse(served, &error);
    step_folder_remove(&served->folder);
}

/* One connection and more for each node; what a shell gives softly is less. The daemon needs it
 * too. */
static void serve_raise_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int step_serve(const char *folder, const char *program, struct error *error)
{
    struct served served = {.program = program, .socket = -1};
    struct error problem = {0};
    uint64_t started_ns = clock_now_ns();
    serve_close_inherited();
    serve_raise_descriptors();
    int wrong = step_read(&served.step, &problem);
    uint64_t limit_ms = served.step.timeout_ms ? served.step.timeout_ms : LINGER_MS;
    int code = step_folder_take(&served.folder, folder, started_ns + limit_ms * NS_PER_MS, error);
    bool another = code > 0;
    if (code == 0)
        code = step_folder_open_alive(&served.folder, error);
    if (code == 0)
        code = serve_listen(&served, error);
    uint64_t waited_ms = (clock_now_ns() - started_ns) / NS_PER_MS;
    served.step.timeout_ms = limit_ms > waited_ms ? limit_ms - waited_ms : 1;
    pid_t pid = code == 0 ? fork() : -1;
    if (pid == 0) {
        serve_left_behind(&served, wrong < 0 ? &problem : NULL);
        _exit(EXIT_SUCCESS);
    }
    if (code == 0 && pid < 0)
        code = error_set_errno(error, errno, "cannot leave a process behind");
    if (code < 0 && served.folder.alive >= 0)
        step_folder_remove(&served.folder);
    if (served.socket >= 0)
        close(served.socket);
    step_folder_close(&served.folder);
    return another ? 0 : code;
}
