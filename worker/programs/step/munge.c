#include "worker/programs/step/munge.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/kernel.h"
#include "common/text/number_text.h"

#define OUTPUT_BYTES_MAX (4u << 20)
#define MOST_MS 10000

/* All of a file from its beginning, with a NUL behind it. */
static char *munge_file_text(int fd, struct error *error)
{
    off_t bytes = lseek(fd, 0, SEEK_END);
    char *text = bytes >= 0 && bytes <= OUTPUT_BYTES_MAX ? calloc(1, (size_t)bytes + 1) : NULL;
    size_t used = 0;
    while (text && used < (size_t)bytes) {
        ssize_t got = pread(fd, text + used, (size_t)bytes - used, (off_t)used);
        if (got <= 0)
            break;
        used += (size_t)got;
    }
    if (!text || used < (size_t)bytes) {
        free(text);
        error_set(error, ERR_MEMORY, "out of memory for what munge says");
        return NULL;
    }
    return text;
}

/* Until the program has ended, or is killed. Its daemon may be stuck. */
static int munge_await(pid_t pid, const char *name, uint64_t deadline_ns, int *status,
                       struct error *error)
{
    struct pollfd watched = {.fd = kernel_pidfd_open(pid), .events = POLLIN};
    uint64_t now_ns = clock_now_ns(), most_ns = now_ns + MOST_MS * NS_PER_MS;
    int ready = 0, code = 0;
    if (watched.fd < 0)
        code = error_set_errno(error, errno, "cannot watch %s", name);
    if (deadline_ns < most_ns)
        most_ns = deadline_ns;
    while (code == 0 && ready <= 0) {
        now_ns = clock_now_ns();
        if (now_ns >= most_ns)
            code = error_set(error, ERR_TIMEOUT, "%s has not ended in time: does munged answer?",
                             name);
        else
            ready = poll(&watched, 1, (int)((most_ns - now_ns) / NS_PER_MS + 1));
    }
    if (code < 0)
        kill(pid, SIGKILL);
    if (watched.fd >= 0)
        close(watched.fd);
    while (waitpid(pid, status, 0) < 0)
        if (errno != EINTR)
            return code < 0 ? code : error_set_errno(error, errno, "cannot wait for %s", name);
    return code;
}

/* Start the program with these as its three streams, and wait for it. 0, or its exit status. */
static int munge_wait(char *const *argv, const int streams[3], uint64_t deadline_ns, int *status,
                      struct error *error)
{
    posix_spawn_file_actions_t actions;
    pid_t pid;
    posix_spawn_file_actions_init(&actions);
    for (int i = 0; i < 3; i++)
        posix_spawn_file_actions_adddup2(&actions, streams[i], i);
    int problem = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (problem == ENOENT)
        return error_set(error, ERR_UNSUPPORTED,
                         "there is no %s, by which the nodes of a step would share a secret: start "
                         "a daemon on each node, or install munge",
                         argv[0]);
    if (problem)
        return error_set_errno(error, problem, "cannot start %s", argv[0]);
    return munge_await(pid, argv[0], deadline_ns, status, error);
}

/* What the program writes when it reads `input`. refusal: the code when it ends badly. */
static int munge_run(char *const *argv, const char *input, uint64_t deadline_ns, int refusal,
                     char **output, struct error *error)
{
    size_t bytes = strlen(input);
    int streams[3], status = 0, code = 0;
    for (int i = 0; i < 3; i++)
        streams[i] = memfd_create("munge", MFD_CLOEXEC);
    if (streams[0] < 0 || streams[1] < 0 || streams[2] < 0 ||
        write(streams[0], input, bytes) != (ssize_t)bytes || lseek(streams[0], 0, SEEK_SET) != 0)
        code = error_set_errno(error, errno, "cannot make a file in memory");
    if (code == 0)
        code = munge_wait(argv, streams, deadline_ns, &status, error);
    char *said = code == 0 ? munge_file_text(status ? streams[2] : streams[1], error) : NULL;
    if (code == 0 && !said)
        code = ERR_MEMORY;
    if (code == 0 && status) {
        said[strcspn(said, "\n")] = 0;
        code = error_set(error, refusal, "%s: %.300s", argv[0], said[0] ? said : "it failed");
    }
    for (int i = 0; i < 3; i++)
        if (streams[i] >= 0)
            close(streams[i]);
    if (code != 0)
        free(said);
    else
        *output = said;
    return code;
}

int munge_seal(const char *text, uint64_t deadline_ns, char **sealed, struct error *error)
{
    char user[48];
    snprintf(user, sizeof(user), "--restrict-uid=%ju", (uintmax_t)geteuid());
    char program[] = "munge";
    char *argv[] = {program, user, NULL};
    int code = munge_run(argv, text, deadline_ns, ERR_SYSTEM, sealed, error);
    if (code == 0)
        (*sealed)[strcspn(*sealed, "\n")] = 0;
    return code;
}

/* Who made it is in the lines before the first empty one. */
int munge_open(const char *sealed, uint64_t deadline_ns, char **text, struct error *error)
{
    char program[] = "unmunge", keys[] = "--keys=UID", numeric[] = "--numeric";
    char *argv[] = {program, keys, numeric, NULL};
    char *said = NULL;
    int code = munge_run(argv, sealed, deadline_ns, ERR_REFUSED, &said, error);
    if (code != 0)
        return code;
    assert(said);
    char *body = strstr(said, "\n\n"), *user = strstr(said, "UID:");
    uint64_t number = UINT64_MAX;
    if (body && user && user < body) {
        *body = 0;
        body += 2;
        user += strlen("UID:");
        user += strspn(user, " ");
        if (number_text_parse(user, 0, UINT32_MAX, &number, NULL) < 0)
            number = UINT64_MAX;
    }
    if (!body || number != geteuid()) {
        free(said);
        return error_set(error, ERR_REFUSED, "it is not of this user, who has number %ju",
                         (uintmax_t)geteuid());
    }
    memmove(said, body, strlen(body) + 1);
    *text = said;
    return 0;
}
