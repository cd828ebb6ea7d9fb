#include "worker/launch/step_daemon.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/env.h"
#include "common/text/number_text.h"
#include "worker/launch/launched.h"

#define FOLDER_BYTES 80
#define SAID_BYTES 400
#define CONFIGURED_ANSWER_MS 5000

/* Where the tasks of a node meet. */
struct step_place {
    char folder[FOLDER_BYTES];
    char socket_path[STEP_DAEMON_PATH_BYTES], alive_path[STEP_DAEMON_PATH_BYTES];
    bool first; /* this task has the daemon started */
};

/* 1 when something listens there, else 0. */
static int step_answers(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = CONFIGURED_ANSWER_MS / 1000};
    size_t length = strlen(path);
    if (length >= sizeof(address.sun_path))
        return 0;
    memcpy(address.sun_path, path, length + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    int answers = setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) == 0 &&
                  (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 ||
                   errno == EAGAIN); /* there, and busy */
    close(fd);
    return answers;
}

/* --- the folder ------------------------------------------------------------------------------ */

static int step_number(const char *name, uint64_t *number)
{
    const char *text = env_text(name);
    return text ? number_text_parse(text, 0, UINT32_MAX, number, NULL) : ERR_INVALID;
}

/* 0 when this is no task of srun's, or srun is too old to say where it is. */
static int step_place_read(struct step_place *place)
{
    uint64_t job, step, node, local, restart = 0;
    struct launched launched;
    launched_read(&launched);
    if (!launched.rank || strcmp(launched.rank, "SLURM_PROCID") != 0 ||
        !env_text("SLURM_STEP_NUM_NODES") || step_number("SLURM_JOB_ID", &job) ||
        step_number("SLURM_STEP_ID", &step) || step_number("SLURM_NODEID", &node) ||
        step_number("SLURM_LOCALID", &local))
        return 0;
    if (step_number("SLURM_RESTART_COUNT", &restart))
        restart = 0;
    /* Not TMPDIR, whose path may be too long for a socket's name. */
    snprintf(place->folder, sizeof(place->folder),
             "/tmp/shoal-step-%ju-%" PRIu64 ".%" PRIu64 ".%" PRIu64 "-%" PRIu64,
             (uintmax_t)geteuid(), job, step, restart, node);
    snprintf(place->socket_path, sizeof(place->socket_path), "%s/shoald.sock", place->folder);
    snprintf(place->alive_path, sizeof(place->alive_path), "%s/alive", place->folder);
    place->first = local == 0;
    return 1;
}

/* Its name is known before: anybody may have put something there, a link too. */
static int step_make_folder(const struct step_place *place, struct error *error)
{
    struct stat status;
    if (mkdir(place->folder, 0700) != 0 && errno != EEXIST)
        return error_set_errno(error, errno, "cannot make the folder %s", place->folder);
    if (lstat(place->folder, &status) != 0)
        return error_set_errno(error, errno, "cannot look at %s", place->folder);
    if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 077) != 0)
        return error_set(error, ERR_REFUSED,
                         "%s is not a folder of this user's alone: whose is it?", place->folder);
    return 0;
}

/* --- the program ----------------------------------------------------------------------------- */

static bool step_is_program(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISREG(status.st_mode) && access(path, X_OK) == 0;
}

/* In ../bin of the folder that the library, or the program that has it inside, is in. */
static bool step_program_beside(char path[PATH_MAX])
{
    Dl_info info;
    char real[PATH_MAX];
    if (!dladdr((const void *)(uintptr_t)&step_daemon_find, &info) || !info.dli_fname ||
        !realpath(info.dli_fname, real))
        return false;
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(real, '/');
        if (!slash)
            return false;
        *slash = 0;
    }
    return snprintf(path, PATH_MAX, "%s/bin/shoalrun", real) < PATH_MAX && step_is_program(path);
}

static bool step_program_in_path(char path[PATH_MAX])
{
    const char *folders = env_text("PATH");
    while (folders && *folders) {
        size_t length = strcspn(folders, ":");
        if (length > 0 && length < PATH_MAX &&
            snprintf(path, PATH_MAX, "%.*s/shoalrun", (int)length, folders) < PATH_MAX &&
            step_is_program(path))
            return true;
        folders += length + (folders[length] == ':');
    }
    return false;
}

/* What it wrote before it failed. */
static void step_read_said(const char *path, char said[SAID_BYTES])
{
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, said, SAID_BYTES - 1) : 0;
    said[got > 0 ? got : 0] = 0;
    said[strcspn(said, "\n")] = 0;
    if (fd >= 0)
        close(fd);
}

/* With the default for what this process may ignore, and nothing blocked. */
static int step_spawn(const char *program, char *const *argv, const char *said_path, pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, said_path,
                                     O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
    int problem = posix_spawn(pid, program, &actions, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return problem;
}

/* It returns as soon as the socket listens. */
static int step_start(const struct step_place *place, const char *program, struct error *error)
{
    char name[] = "shoalrun", option[] = "--step-daemon", folder[FOLDER_BYTES],
         said_path[STEP_DAEMON_PATH_BYTES], said[SAID_BYTES];
    memcpy(folder, place->folder, sizeof(folder));
    snprintf(said_path, sizeof(said_path), "%s/said", place->folder);
    char *argv[] = {name, option, folder, NULL};
    pid_t pid;
    int status = 0, problem = step_spawn(program, argv, said_path, &pid);
    if (problem)
        return error_set_errno(error, problem, "cannot start %s", program);
    /* A process that ignores its children has none to wait for, and learns it when they have ended.
     */
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (status == 0)
        return 0;
    step_read_said(said_path, said);
    unlink(said_path);
    rmdir(place->folder);
    return error_set(error, ERR_DISCONNECTED, "%s cannot start a daemon for this step: %s", program,
                     said[0] ? said : "it ended badly");
}

/* Until the first task of the node has had it started. */
static int step_await(const struct step_place *place, uint64_t deadline_ns, struct error *error)
{
    _Alignas(struct inotify_event) char events[1024];
    int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK), code = 0;
    if (watch < 0 || inotify_add_watch(watch, place->folder, IN_MOVED_TO) < 0)
        code = error_set_errno(error, errno, "cannot watch the folder %s", place->folder);
    while (code == 0 && !step_answers(place->socket_path)) {
        uint64_t now_ns = clock_now_ns();
        struct pollfd watched = {.fd = watch, .events = POLLIN};
        if (now_ns >= deadline_ns)
            code =
                error_set(error, ERR_TIMEOUT,
                          "no daemon is configured (SHOAL_SOCKET), and the first task of this "
                          "node has not opened a job, so that one would be started for the step");
        else if (poll(&watched, 1, (int)((deadline_ns - now_ns) / NS_PER_MS + 1)) > 0)
            while (read(watch, events, sizeof(events)) > 0)
                ;
    }
    if (watch >= 0)
        close(watch);
    return code;
}

int step_daemon_find(const char *configured, uint64_t deadline_ns, struct step_daemon *daemon,
                     struct error *error)
{
    struct step_place place;
    char program[PATH_MAX];
    if (!step_place_read(&place) || step_answers(configured))
        return 0;
    /* All tasks look for it, lest the others wait for what the first one cannot start. */
    if (!step_program_beside(program) && !step_program_in_path(program))
        return error_set(error, ERR_DISCONNECTED,
                         "no daemon answers at socket %s, and there is no shoalrun to start one "
                         "for this step of srun, neither beside the library nor in PATH",
                         configured);
    int code = step_make_folder(&place, error);
    if (code == 0 && !place.first)
        code = step_await(&place, deadline_ns, error);
    else if (code == 0 && !step_answers(place.socket_path))
        code = step_start(&place, program, error);
    if (code < 0)
        return code;
    int fd = open(place.alive_path, O_WRONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return error_set(error, ERR_DISCONNECTED, "the daemon of this step has ended: %s: %s",
                         place.alive_path, strerror(errno));
    memcpy(daemon->socket_path, place.socket_path, sizeof(daemon->socket_path));
    daemon->member = fd;
    return 1;
}
