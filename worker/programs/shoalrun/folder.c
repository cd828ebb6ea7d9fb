#include "worker/programs/shoalrun/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#define FOLDER_NAME "shoalrun-XXXXXX"
#define LOCK_BYTES 80
#define SOCKET_BYTES 16        /* the longest name in it that is a socket's */
#define TRIED_BYTES (16 << 10) /* a configuration, a secret, and some of a log */

/* The file in a folder that shoalrun and its daemons hold a lock on for as long as one of them
 * lives. Locks of another machine may not be seen, so each has a name of its own. */
static void lock_name(char name[LOCK_BYTES])
{
    struct utsname machine = {.nodename = ""};
    uname(&machine);
    snprintf(name, LOCK_BYTES, "lock.%.64s", machine.nodename);
}

/* The file has its name only once it is locked. -1: no lock, and nobody removes the folder later.
 */
static int lock_make(const char *directory)
{
    char name[LOCK_BYTES], path[192], unlocked[192];
    lock_name(name);
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    snprintf(unlocked, sizeof(unlocked), "%s/lock", directory);
    int fd = open(unlocked, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0 && (flock(fd, LOCK_EX | LOCK_NB) || rename(unlocked, path))) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Remove the files in a folder of this user's that nobody holds the lock of any more, and then the
 * folder. If several processes do so at once, the one that has removed the lock's file removes the
 * folder. */
static void folder_remove_stale(int parent, const char *name, const char *lock)
{
    struct stat status;
    int folder = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0)
        return;
    bool own = fstat(folder, &status) == 0 && status.st_uid == geteuid();
    int fd = own ? openat(folder, lock, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) : -1;
    DIR *entries = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 ? fdopendir(folder) : NULL;
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        if (strcmp(entry->d_name, lock) != 0)
            unlinkat(folder, entry->d_name, 0); /* not "." and ".." */
    if (entries && unlinkat(folder, lock, 0) == 0)
        unlinkat(parent, name, AT_REMOVEDIR);
    if (fd >= 0)
        close(fd);
    if (entries)
        closedir(entries);
    else
        close(folder);
}

/* Remove the folders of runs that were killed: nobody holds their locks. */
static void folders_remove_stale(const char *parent)
{
    char lock[LOCK_BYTES];
    lock_name(lock);
    DIR *entries = opendir(parent);
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        if (strlen(entry->d_name) == strlen(FOLDER_NAME) &&
            strncmp(entry->d_name, FOLDER_NAME, strcspn(FOLDER_NAME, "X")) == 0)
            folder_remove_stale(dirfd(entries), entry->d_name, lock);
    if (entries)
        closedir(entries);
}

int folder_write(const struct folder *folder, const char *name, const char *text,
                 struct error *error)
{
    char path[FOLDER_BYTES + 80];
    snprintf(path, sizeof(path), "%s/%.64s", folder->path, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_set_errno(error, errno, "cannot create %s", path);
    ssize_t bytes = (ssize_t)strlen(text), written = write(fd, text, (size_t)bytes);
    int problem = written < 0 ? errno : ENOSPC;
    close(fd);
    return written == bytes ? 0 : error_set_errno(error, problem, "cannot write %s", path);
}

/* A file system that is full still has room for a name. */
static int folder_try(struct folder *folder, struct error *error)
{
    char text[TRIED_BYTES], path[FOLDER_BYTES + 8];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    int code = folder_write(folder, "try", text, error);
    snprintf(path, sizeof(path), "%s/try", folder->path);
    unlink(path);
    return code;
}

static int folder_make_in(struct folder *folder, const char *parent, struct error *error)
{
    char path[FOLDER_BYTES];
    if (*parent != '/')
        return error_set(error, ERR_INVALID, "\"%.200s\" does not begin with /", parent);
    folders_remove_stale(parent);
    if (snprintf(path, sizeof(path), "%s/" FOLDER_NAME, parent) >= (int)sizeof(path) - SOCKET_BYTES)
        return error_set(error, ERR_INVALID, "%.200s is too long for the sockets of daemons",
                         parent);
    if (!mkdtemp(path)) /* mode 0700 */
        return error_set_errno(error, errno, "cannot make a folder in %s", parent);
    memcpy(folder->path, path, sizeof(path));
    folder->lock = lock_make(path);
    int code = folder_try(folder, error);
    if (code < 0)
        folder_remove(folder);
    return code;
}

int folder_make(struct folder *folder, const char *parent, struct error *error)
{
    const char *const parents[] = {parent && *parent ? parent : "/tmp", "/tmp", "/dev/shm"};
    char tried[400] = "";
    *folder = (struct folder){.lock = -1};
    for (size_t i = 0; i < sizeof(parents) / sizeof(parents[0]); i++) {
        struct error problem = {0};
        if (i > 0 && strcmp(parents[i], parents[i - 1]) == 0)
            continue;
        if (folder_make_in(folder, parents[i], &problem) == 0) {
            if (tried[0])
                fprintf(stderr, "shoalrun: %s; using %s\n", tried, parents[i]);
            return 0;
        }
        size_t used = strlen(tried);
        snprintf(tried + used, sizeof(tried) - used, "%s%.180s", used ? "; " : "", problem.text);
    }
    return error_set(error, ERR_SYSTEM, "no place for a folder (TMPDIR): %s", tried);
}

static int entry_remove(const char *path, const struct stat *status, int type, struct FTW *level)
{
    (void)status, (void)type, (void)level;
    return remove(path);
}

void folder_remove(struct folder *folder)
{
    if (folder->path[0])
        nftw(folder->path, entry_remove, 8, FTW_DEPTH | FTW_PHYS);
    if (folder->lock >= 0)
        close(folder->lock);
    *folder = (struct folder){.lock = -1};
}
