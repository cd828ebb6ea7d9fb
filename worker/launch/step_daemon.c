#include "worker/launch/step_daemon.h"

#include <dirent.h>
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
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/env.h"
#include "common/base/kernel.h"
#include "common/format/message.h"
#include "common/text/number_text.h"
#include "worker/launch/launched.h"

#define FOLDERS "/tmp"
#define OTHER_NAME "-XXXXXX" /* behind a name that somebody else has taken */
#define FOLDER_BYTES 80
#define SAID_BYTES 400
#define CONFIGURED_ANSWER_MS 5000
#define LOOK_MS 1000    /* at most between looks at a folder that may have been replaced */
#define AGAIN_MS 20     /* where a daemon is just ending */
#define GRACE_MS 2000   /* later than the deadline, by which shoalrun ends by itself */
#define FAILED_KEPT_S 3 /* how much later than the first a task may come, and hear why */

/* Where the tasks of a node meet. */
struct step_place {
    char name[FOLDER_BYTES];   /* of the folder, unless somebody else has that */
    char folder[FOLDER_BYTES]; /* "": there is none yet */
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

static bool step_same(const char *name, const char *slurms)
{
    uint64_t number, slurms_number;
    return name && step_number(name, &number) == 0 && step_number(slurms, &slurms_number) == 0 &&
           number == slurms_number;
}

/* A task that srun gives PMI (--mpi=pmi2) has the same numbers twice; under another launcher inside
 * of a step they differ, and the step is not the job. */
static bool step_is_task(void)
{
    struct launched launched;
    launched_read(&launched);
    if (launched.rank && strcmp(launched.rank, "PMI_RANK") == 0)
        return step_same(launched.rank, "SLURM_PROCID") &&
               step_same(launched.world_size, "SLURM_STEP_NUM_TASKS");
    return launched.rank && strcmp(launched.rank, "SLURM_PROCID") == 0;
}

/* 0 when this is no task of srun's, or srun is too old to say where it is. */
static int step_place_read(struct step_place *place)
{
    uint64_t job, step, node, local, restart = 0;
    if (!step_is_task() || !env_text("SLURM_STEP_NUM_NODES") || step_number("SLURM_JOB_ID", &job) ||
        step_number("SLURM_STEP_ID", &step) || step_number("SLURM_NODEID", &node) ||
        step_number("SLURM_LOCALID", &local))
        return 0;
    if (step_number("SLURM_RESTART_COUNT", &restart))
        restart = 0;
    /* Not TMPDIR, whose path may be too long for a socket's name. */
    place->folder[0] = '\0';
    snprintf(place->name, sizeof(place->name),
             FOLDERS "/shoal-step-%ju-%" PRIu64 ".%" PRIu64 ".%" PRIu64 "-%" PRIu64,
             (uintmax_t)geteuid(), job, step, restart, node);
    place->first = local == 0;
    return 1;
}

static bool step_is_own(int parent, const char *path)
{
    struct stat status;
    return fstatat(parent, path, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(status.st_mode) &&
           status.st_uid == geteuid() && (status.st_mode & 077) == 0;
}

static void step_take_folder(struct step_place *place, const char *path)
{
    snprintf(place->folder, sizeof(place->folder), "%s", path);
    snprintf(place->socket_path, sizeof(place->socket_path), "%s/shoald.sock", path);
    snprintf(place->alive_path, sizeof(place->alive_path), "%s/alive", path);
}

/* Find a folder of this user with six more characters behind the name; of several, the first. */
static bool step_find_other(const struct step_place *place, char path[FOLDER_BYTES])
{
    const char *name = place->name + sizeof(FOLDERS);
    size_t length = strlen(name);
    DIR *entries = opendir(FOLDERS);
    path[0] = '\0';
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        if (strncmp(entry->d_name, name, length) == 0 &&
            strlen(entry->d_name + length) == sizeof(OTHER_NAME) - 1 &&
            entry->d_name[length] == OTHER_NAME[0] && step_is_own(dirfd(entries), entry->d_name) &&
            (!path[0] || strcmp(entry->d_name, path + sizeof(FOLDERS)) < 0))
            snprintf(path, FOLDER_BYTES, FOLDERS "/%.64s", entry->d_name);
    if (entries)
        closedir(entries);
    return path[0] != '\0';
}

/* Make the folder. Only the first task calls this, so that the others need not choose. */
static int step_make_folder(struct step_place *place, struct error *error)
{
    char path[FOLDER_BYTES];
    if (mkdir(place->name, 0700) == 0 || step_is_own(AT_FDCWD, place->name)) {
        step_take_folder(place, place->name);
        return 0;
    }
    /* Others know the name before: anybody may have put something there, a link too. */
    snprintf(path, sizeof(path), "%.72s" OTHER_NAME, place->name);
    if (!mkdtemp(path)) /* mode 0700 */
        return error_set_errno(error, errno, "cannot make the folder %s, nor %s", place->name,
                               path);
    step_take_folder(place, path);
    return 0;
}

/* Find the step's folder, which is this user's alone. Where there is none the first task makes it.
 */
static int step_find_folder(struct step_place *place, struct error *error)
{
    char path[FOLDER_BYTES];
    place->folder[0] = '\0';
    if (step_is_own(AT_FDCWD, place->name))
        step_take_folder(place, place->name);
    else if (step_find_other(place, path))
        step_take_folder(place, path);
    return place->folder[0] || !place->first ? 0 : step_make_folder(place, error);
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

/* This process's environment with the job's timeout, which the program may have set; NULL: out of
 * memory. The text behind it is in `variable`. */
static char **step_environment(uint64_t deadline_ns, char variable[48])
{
    static const char name[] = "SHOAL_TIMEOUT_MS=";
    uint64_t now_ns = clock_now_ns(), most = MESSAGE_TIMEOUT_MAX_MS;
    uint64_t left_ms = deadline_ns > now_ns ? (deadline_ns - now_ns) / NS_PER_MS : 0;
    size_t count = 0, kept = 0;
    while (environ[count])
        count++;
    char **copy = calloc(count + 2, sizeof(*copy));
    if (!copy)
        return NULL;
    for (size_t i = 0; i < count; i++)
        if (strncmp(environ[i], name, sizeof(name) - 1) != 0)
            copy[kept++] = environ[i];
    left_ms = left_ms > most ? most : left_ms;
    snprintf(variable, 48, "%s%" PRIu64, name, left_ms ? left_ms : 1);
    copy[kept] = variable;
    return copy;
}

/* With the default for what this process may ignore, and nothing blocked. */
static int step_spawn(const char *program, char *const *argv, char *const *environment, int said,
                      pid_t *pid)
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
    posix_spawn_file_actions_adddup2(&actions, said, STDERR_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    int problem = posix_spawn(pid, program, &actions, &attributes, argv, environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return problem;
}

/* Its exit status; -1 when it is not to be had: a process that ignores its children, or waits for
 * any of them in another thread, has no status. */
static int step_wait_program(pid_t pid, uint64_t deadline_ns)
{
    struct pollfd watched = {.fd = kernel_pidfd_open(pid), .events = POLLIN};
    int status = -1, ready = watched.fd < 0;
    while (ready <= 0) {
        uint64_t now_ns = clock_now_ns();
        if (now_ns >= deadline_ns)
            ready = kill(pid, SIGKILL) || 1;
        else
            ready = poll(&watched, 1, (int)((deadline_ns - now_ns) / NS_PER_MS + 1));
    }
    if (watched.fd >= 0)
        close(watched.fd);
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return status;
}

/* For the other tasks of the node, which wait for a name. In vain when there is no room for it:
 * then they wait for their time. */
static void step_tell(struct step_place *place, const char *said)
{
    char path[STEP_DAEMON_PATH_BYTES], fresh[STEP_DAEMON_PATH_BYTES];
    if (step_find_folder(place, NULL) < 0) /* shoalrun may have removed it */
        return;
    snprintf(path, sizeof(path), "%s/failed", place->folder);
    snprintf(fresh, sizeof(fresh), "%s/failed.new", place->folder);
    int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    bool whole = write(fd, said, strlen(said)) == (ssize_t)strlen(said);
    close(fd);
    if (!whole || rename(fresh, path))
        unlink(fresh);
}

/* What the first task of the node said when it failed: 1, or 0: nothing that is of now. */
static int step_hear(const struct step_place *place, char said[SAID_BYTES])
{
    char path[STEP_DAEMON_PATH_BYTES];
    struct stat status;
    struct timespec now;
    snprintf(path, sizeof(path), "%s/failed", place->folder);
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return 0;
    clock_gettime(CLOCK_REALTIME, &now);
    ssize_t got = fstat(fd, &status) == 0 && status.st_mtim.tv_sec + FAILED_KEPT_S >= now.tv_sec
                      ? read(fd, said, SAID_BYTES - 1)
                      : 0;
    close(fd);
    said[got > 0 ? got : 0] = 0;
    return got > 0;
}

/* What a program says on fd, or that it cannot be started. */
static int step_run(const struct step_place *place, const char *program, int said_fd,
                    uint64_t deadline_ns, struct error *error)
{
    char name[] = "shoalrun", option[] = "--step-daemon", folder[FOLDER_BYTES], variable[48],
         said[SAID_BYTES];
    memcpy(folder, place->folder, sizeof(folder));
    char *argv[] = {name, option, folder, NULL};
    char **environment = step_environment(deadline_ns, variable);
    if (!environment)
        return error_set(error, ERR_MEMORY, "out of memory");
    pid_t pid;
    int problem = step_spawn(program, argv, environment, said_fd, &pid);
    free(environment);
    if (problem)
        return error_set_errno(error, problem, "cannot start %s", program);
    int status = step_wait_program(pid, deadline_ns + GRACE_MS * NS_PER_MS);
    if (status == 0 || (status < 0 && step_answers(place->socket_path)))
        return 0;
    ssize_t got = pread(said_fd, said, sizeof(said) - 1, 0);
    said[got > 0 ? got : 0] = 0;
    said[strcspn(said, "\n")] = 0;
    return error_set(error, ERR_DISCONNECTED, "%s cannot start a daemon for this step: %s", program,
                     said[0] ? said : "it ended badly");
}

/* Done as soon as the socket listens. */
static int step_start(struct step_place *place, const char *program, uint64_t deadline_ns,
                      struct error *error)
{
    struct error problem = {0};
    int said = memfd_create("said", MFD_CLOEXEC);
    int code = said < 0 ? error_set_errno(&problem, errno, "cannot make a file in memory")
                        : step_run(place, program, said, deadline_ns, &problem);
    if (said >= 0)
        close(said);
    if (code < 0) {
        step_tell(place, problem.text);
        code = error_set(error, code, "%s", problem.text);
    }
    return code;
}

/* Return 1 when the task can only wait, 0 when something has changed. */
static int step_waits(struct step_place *place, struct error *error)
{
    char said[SAID_BYTES];
    if (!place->folder[0])
        return step_find_folder(place, error) == 0 && !place->folder[0];
    if (step_hear(place, said))
        return error_set(error, ERR_DISCONNECTED, "the first task of this node has failed: %s",
                         said);
    return !step_answers(place->socket_path);
}

/* Wait once, until the first task of the node may have made the folder or had the daemon started,
 * or the folder is another one. */
static int step_await(struct step_place *place, uint64_t deadline_ns, struct error *error)
{
    bool there = place->folder[0] != '\0';
    const char *folder = there ? place->folder : FOLDERS;
    int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK), code = 0;
    if (watch < 0)
        return error_set_errno(error, errno, "cannot watch the folder %s", folder);
    if (inotify_add_watch(watch, folder, there ? IN_MOVED_TO | IN_DELETE_SELF : IN_CREATE) >= 0)
        code = step_waits(place, error);
    else if (errno != ENOENT)
        code = error_set_errno(error, errno, "cannot watch the folder %s", folder);
    if (code > 0) {
        uint64_t now_ns = clock_now_ns();
        uint64_t wait_ms = deadline_ns > now_ns ? (deadline_ns - now_ns) / NS_PER_MS + 1 : 0;
        struct pollfd watched = {.fd = watch, .events = POLLIN};
        poll(&watched, 1, wait_ms < LOOK_MS ? (int)wait_ms : LOOK_MS);
    }
    close(watch);
    return code < 0 ? code : 0;
}

/* Hold the daemon's pipe: 1. 0: there is none, or it has just ended, which its pipe's name shows:
 * it goes before the daemon is told (step/folder.h). */
static int step_join(const struct step_place *place, int *member, struct error *error)
{
    struct stat opened, named;
    if (!place->folder[0])
        return 0;
    int fd = open(place->alive_path, O_WRONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno != ENOENT && errno != ENXIO)
        return error_set_errno(error, errno, "cannot open %s", place->alive_path);
    if (fd >= 0 && fstat(fd, &opened) == 0 && lstat(place->alive_path, &named) == 0 &&
        opened.st_ino == named.st_ino && opened.st_dev == named.st_dev &&
        step_answers(place->socket_path)) {
        *member = fd;
        return 1;
    }
    if (fd >= 0)
        close(fd);
    return 0;
}

/* One try: 1, or 0 when nothing answers yet. */
static int step_try(struct step_place *place, const char *program, uint64_t deadline_ns,
                    int *member, struct error *error)
{
    int code = step_find_folder(place, error);
    if (code == 0)
        code = step_join(place, member, error);
    if (code == 0 && !place->first)
        code = step_await(place, deadline_ns, error);
    else if (code == 0 && !step_answers(place->socket_path))
        code = step_start(place, program, deadline_ns, error);
    return code == 0 ? step_join(place, member, error) : code;
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
    for (;;) {
        int code = step_try(&place, program, deadline_ns, &daemon->member, error);
        if (code < 0)
            return code;
        if (code > 0)
            break;
        if (clock_now_ns() >= deadline_ns)
            return error_set(
                error, ERR_TIMEOUT, "no daemon is configured (SHOAL_SOCKET), and %s",
                place.first ? "that of this step ends again and again"
                            : "the first task of this node has not opened a job, so that one would "
                              "be started for the step");
        poll(NULL, 0, AGAIN_MS);
    }
    memcpy(daemon->socket_path, place.socket_path, sizeof(daemon->socket_path));
    return 1;
}
