#include "worker/programs/shoalrun/run_secret.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/env.h"

#define KEY_NAME ".shoal-key"
#define KEY_CHARACTERS 64
#define GIVEN_LEAST 32
#define GIVEN_MOST 400
#define ELSE "; set SHOAL_SECRET to a text that all nodes have and nobody else knows"

int run_secret_make(char secret[RUN_SECRET_BYTES], struct error *error)
{
    unsigned char random[KEY_CHARACTERS / 2];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return error_set_errno(error, errno, "cannot get random bytes");
    for (size_t i = 0; i < sizeof(random); i++)
        snprintf(secret + 2 * i, 3, "%02x", random[i]);
    return 0;
}

static bool secret_is_printable(const char *text)
{
    for (; *text; text++)
        if (*text <= ' ' || *text > '~')
            return false;
    return true;
}

/* 0: there is none. */
static int key_read(const char *path, char key[RUN_SECRET_BYTES], struct error *error)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT ? 0
                               : error_set_errno(error, errno, "cannot open the key %s" ELSE, path);
    ssize_t got = -1;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode))
        got = read(fd, key, KEY_CHARACTERS + 1);
    close(fd);
    if (got >= 0 && (status.st_uid != geteuid() || (status.st_mode & 077)))
        return error_set(error, ERR_REFUSED,
                         "%s is a key that others than this user can read: remove it" ELSE, path);
    key[KEY_CHARACTERS] = 0;
    if (got != KEY_CHARACTERS || !secret_is_printable(key))
        return error_set(error, ERR_REFUSED, "%s is no key: remove it" ELSE, path);
    return 1;
}

/* All nodes may do so at once: one that finishes second takes the first one's. */
static int key_make(const char *path, struct error *error)
{
    char made[PATH_MAX], key[RUN_SECRET_BYTES];
    snprintf(made, sizeof(made), "%.4080s.XXXXXX", path);
    int code = run_secret_make(key, error);
    int fd = code == 0 ? mkostemp(made, O_CLOEXEC) : -1; /* mode 0600 */
    if (code == 0 && fd < 0)
        return error_set_errno(error, errno, "cannot make the key %s" ELSE, path);
    if (code == 0 && (write(fd, key, KEY_CHARACTERS) != KEY_CHARACTERS || fsync(fd) ||
                      (link(made, path) && errno != EEXIST)))
        code = error_set_errno(error, errno, "cannot make the key %s" ELSE, path);
    if (fd >= 0) {
        close(fd);
        unlink(made);
    }
    return code;
}

static int key_of_user(char key[RUN_SECRET_BYTES], struct error *error)
{
    char path[PATH_MAX];
    const char *home = env_text("HOME");
    if (!home || *home != '/')
        return error_set(error, ERR_INVALID,
                         "HOME names no folder for the key of this user's runs" ELSE);
    snprintf(path, sizeof(path), "%.4000s/" KEY_NAME, home);
    int code = key_read(path, key, error);
    if (code == 0)
        code = key_make(path, error);
    if (code == 0)
        code = key_read(path, key, error);
    if (code == 0)
        code = error_set(error, ERR_REFUSED, "%s was removed in between" ELSE, path);
    return code < 0 ? code : 0;
}

int run_secret_of_nodes(const char *mark, char secret[RUN_SECRET_BYTES], struct error *error)
{
    char key[RUN_SECRET_BYTES];
    const char *given = env_text("SHOAL_SECRET");
    if (given) {
        size_t length = strlen(given);
        if (length < GIVEN_LEAST || length > GIVEN_MOST || !secret_is_printable(given))
            return error_set(error, ERR_INVALID,
                             "SHOAL_SECRET must have %d to %d printable characters without blanks: "
                             "`shoalctl secret` makes one",
                             GIVEN_LEAST, GIVEN_MOST);
        snprintf(key, sizeof(key), "%.*s", GIVEN_MOST, given);
    } else {
        int code = key_of_user(key, error);
        if (code < 0)
            return code;
    }
    int length = snprintf(secret, RUN_SECRET_BYTES, "%.*s-run-of-shoal-", GIVEN_MOST, key);
    /* A mark may have any characters; a secret has none but printable ones. */
    for (; *mark && length + 3 < RUN_SECRET_BYTES; mark++)
        length += snprintf(secret + length, (size_t)(RUN_SECRET_BYTES - length),
                           *mark > ' ' && *mark <= '~' && *mark != '%' ? "%c" : "%%%02x",
                           (unsigned char)*mark);
    return 0;
}
