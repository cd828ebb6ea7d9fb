#include "worker/programs/step/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"

#define AGAIN_MS 20    /* between looks at a folder that is another's */
#define EXPECT_MS 5000 /* a rank opens `alive` at once; one that is late starts another daemon */

static void folder_clean(const struct step_folder *folder)
{
    static const char *const names[] = {"shoald.sock", "alive",       "left",
                                        "new.sock",    "shoald.json", "secret",
                                        "shoald.log",  "failed",      "failed.new"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unlinkat(folder->fd, names[i], 0);
}

/* Its name is known before: anybody may have put something there. */
static int folder_open(struct step_folder *folder, struct stat *status, struct error *error)
{
    if (mkdir(folder->path, 0700) != 0 && errno != EEXIST)
        return error_set_errno(error, errno, "cannot make the folder %s", folder->path);
    folder->fd = open(folder->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder->fd < 0 && errno == ENOENT)
        return 0; /* just removed */
    if (folder->fd < 0 || fstat(folder->fd, status) != 0)
        return error_set_errno(error, errno, "cannot open %s", folder->path);
    if (status->st_uid != geteuid() || (status->st_mode & 077) != 0)
        return error_set(error, ERR_REFUSED, "%s is not a folder of this user's alone",
                         folder->path);
    return 1;
}

static bool folder_is_served(const struct step_folder *folder)
{
    return faccessat(folder->fd, "alive", F_OK, 0) == 0 &&
           faccessat(folder->fd, "shoald.sock", F_OK, 0) == 0;
}

int step_folder_take(struct step_folder *folder, const char *path, uint64_t deadline_ns,
                     struct error *error)
{
    *folder = (struct step_folder){.path = path, .fd = -1, .alive = -1};
    for (;;) {
        struct stat own = {0}, named;
        int code = folder_open(folder, &own, error);
        bool locked = code > 0 && flock(folder->fd, LOCK_EX | LOCK_NB) == 0;
        if (code > 0 && !locked && errno != EWOULDBLOCK && errno != EINTR)
            code = error_set_errno(error, errno, "cannot lock %s", path);
        if (code < 0)
            return code;
        /* What has been removed in between is nobody's place any more. */
        if (locked && lstat(path, &named) == 0 && own.st_ino == named.st_ino &&
            own.st_dev == named.st_dev) {
            folder_clean(folder);
            return 0;
        }
        if (code > 0 && !locked && folder_is_served(folder))
            return 1;
        if (clock_now_ns() >= deadline_ns)
            return error_set(error, ERR_TIMEOUT,
                             "the daemon of an earlier program of this step has not ended in time: "
                             "it still holds %s",
                             path);
        if (folder->fd >= 0)
            close(folder->fd);
        folder->fd = -1;
        poll(NULL, 0, AGAIN_MS);
    }
}

int step_folder_open_alive(struct step_folder *folder, struct error *error)
{
    if (mkfifoat(folder->fd, "alive", 0600))
        return error_set_errno(error, errno, "cannot make %s/alive", folder->path);
    folder->alive = openat(folder->fd, "alive", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    folder->expect_ns = clock_now_ns() + EXPECT_MS * NS_PER_MS;
    return folder->alive >= 0 ? 0
                              : error_set_errno(error, errno, "cannot open %s/alive", folder->path);
}

int step_folder_expect(struct step_folder *folder)
{
    uint64_t now_ns = clock_now_ns();
    if (folder->expect_ns > now_ns)
        return (int)((folder->expect_ns - now_ns) / NS_PER_MS + 1);
    if (folder->expect_ns) {
        /* A pipe that nobody has ever opened does not hang up. */
        int fd = openat(folder->fd, "alive", O_WRONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0)
            close(fd);
        folder->expect_ns = 0;
    }
    return -1;
}

bool step_folder_is_left(const struct step_folder *folder)
{
    struct pollfd watched = {.fd = folder->alive};
    /* A rank that opens it believes in it only if it still has its name afterwards. */
    bool moved = renameat(folder->fd, "alive", folder->fd, "left") == 0;
    if (poll(&watched, 1, 0) <= 0 && moved &&
        renameat(folder->fd, "left", folder->fd, "alive") == 0)
        return false;
    unlinkat(folder->fd, "shoald.sock", 0);
    return true;
}

void step_folder_remove(const struct step_folder *folder)
{
    folder_clean(folder);
    rmdir(folder->path);
}

void step_folder_close(struct step_folder *folder)
{
    if (folder->alive >= 0)
        close(folder->alive);
    if (folder->fd >= 0)
        close(folder->fd);
    folder->alive = folder->fd = -1;
}
