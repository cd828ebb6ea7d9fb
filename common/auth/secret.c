#include "common/auth/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BYTES 4096

static int secret_check_file(int fd, const char *path, const char *what, bool is_private,
                             struct error *error)
{
    struct stat status;
    if (fstat(fd, &status) < 0)
        return error_set_errno(error, errno, "%s %s", what, path);
    if (!S_ISREG(status.st_mode))
        return error_set(error, ERR_CONFIG, "%s %s is not a regular file", what, path);
    if (!is_private)
        return 0;
    if (status.st_uid != geteuid() && status.st_uid != 0)
        return error_set(error, ERR_CONFIG,
                         "%s %s belongs to user %u, must belong to user %u or root", what, path,
                         status.st_uid, geteuid());
    if (status.st_mode & (S_IRWXG | S_IRWXO))
        return error_set(error, ERR_CONFIG,
                         "%s %s has mode %03o: group and others must not read it", what, path,
                         status.st_mode & 0777);
    return 0;
}

int secret_open_file(const char *path, const char *what, bool is_private, struct error *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return error_set(error, ERR_CONFIG, "%s %s cannot be opened: %s", what, path,
                         strerror(errno));
    int result = secret_check_file(fd, path, what, is_private, error);
    if (result == 0)
        return fd;
    close(fd);
    return result;
}

void secret_from_key(struct secret *secret, const uint8_t key[SECRET_KEY_BYTES])
{
    static const unsigned char identity[] = "\x10shoal 1 identity", psk[] = "\x0bshoal 1 tls";
    uint8_t hash[32];
    memcpy(secret->key, key, SECRET_KEY_BYTES);
    crypto_generichash(hash, sizeof(hash), identity, sizeof(identity) - 1, key, SECRET_KEY_BYTES);
    memcpy(secret->identity, hash, SECRET_IDENTITY_BYTES);
    crypto_generichash(secret->psk, sizeof(secret->psk), psk, sizeof(psk) - 1, key,
                       SECRET_KEY_BYTES);
}

/* One line without what is blank at its end. */
static int secret_add_line(struct secrets *secrets, const char *line, size_t count,
                           const char *path, struct error *error)
{
    uint8_t key[SECRET_KEY_BYTES];
    if (secrets->count == SECRETS_MOST)
        return error_set(error, ERR_CONFIG, "secret file %s has more than %d secrets, one a line",
                         path, SECRETS_MOST);
    for (size_t i = 0; i < count; i++) {
        if (line[i] <= ' ' || line[i] > '~')
            return error_set(error, ERR_CONFIG,
                             "secret file %s has a blank, or what is not ASCII, in a secret: "
                             "`shoalctl secret` makes one",
                             path);
    }
    if (count < SECRET_LINE_LEAST || count > SECRET_LINE_MOST)
        return error_set(error, ERR_CONFIG,
                         "secret file %s has a secret of %zu characters, %d to %d are allowed: "
                         "`shoalctl secret` makes one",
                         path, count, SECRET_LINE_LEAST, SECRET_LINE_MOST);
    crypto_generichash(key, sizeof(key), (const unsigned char *)line, count, NULL, 0);
    secret_from_key(&secrets->list[secrets->count], key);
    sodium_memzero(key, sizeof(key));
    if (secrets->count == 1 &&
        sodium_memcmp(secrets->list[0].key, secrets->list[1].key, SECRET_KEY_BYTES) == 0)
        return error_set(error, ERR_CONFIG, "secret file %s has the same secret twice", path);
    secrets->count++;
    return 0;
}

static bool secret_is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

int secrets_parse(struct secrets *secrets, const char *bytes, size_t count, const char *path,
                  struct error *error)
{
    int result = 0;
    *secrets = (struct secrets){.count = 0};
    for (size_t start = 0; start < count && result == 0;) {
        const char *newline = memchr(bytes + start, '\n', count - start);
        size_t end = newline ? (size_t)(newline - bytes) : count;
        size_t last = end;
        while (last > start && secret_is_blank(bytes[last - 1]))
            last--;
        if (last > start)
            result = secret_add_line(secrets, bytes + start, last - start, path, error);
        start = end + 1;
    }
    if (result == 0 && secrets->count == 0)
        result = error_set(error, ERR_CONFIG, "secret file %s has no secret in it", path);
    if (result < 0)
        secrets_clear(secrets);
    return result;
}

static int secrets_read(struct secrets *secrets, int fd, const char *path, struct error *error)
{
    char bytes[FILE_BYTES + 1];
    size_t count = 0;
    int result = 0;
    for (;;) {
        ssize_t got = read(fd, bytes + count, sizeof(bytes) - count);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            result = error_set_errno(error, errno, "secret file %s", path);
        if (got > 0)
            count += (size_t)got;
        if (got <= 0 || count == sizeof(bytes))
            break;
    }
    if (result == 0 && count > FILE_BYTES)
        result =
            error_set(error, ERR_CONFIG, "secret file %s has more than %d bytes", path, FILE_BYTES);
    if (result == 0)
        result = secrets_parse(secrets, bytes, count, path, error);
    sodium_memzero(bytes, sizeof(bytes));
    return result;
}

int secrets_load(struct secrets *secrets, const char *path, struct error *error)
{
    *secrets = (struct secrets){.count = 0};
    if (path[0] == '\0')
        return 0;
    int fd = secret_open_file(path, "secret file", true, error);
    if (fd < 0)
        return fd;
    int result = secrets_read(secrets, fd, path, error);
    close(fd);
    return result;
}

void secrets_clear(struct secrets *secrets)
{
    sodium_memzero(secrets, sizeof(*secrets));
}

static int secret_write(int fd, const char *text, size_t count, struct error *error)
{
    for (size_t done = 0; done < count;) {
        ssize_t written = write(fd, text + done, count - done);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return error_set_errno(error, errno, "writing the secret");
        done += (size_t)written;
    }
    return 0;
}

int secret_make(const char *path, struct error *error)
{
    uint8_t bytes[SECRET_KEY_BYTES];
    char text[2 * SECRET_KEY_BYTES + 1];
    int fd = STDOUT_FILENO;
    if (path) {
        fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0 && errno == EEXIST)
            return error_set(error, ERR_REFUSED, "%s is there, and is not overwritten", path);
        if (fd < 0)
            return error_set_errno(error, errno, "%s", path);
    }
    randombytes_buf(bytes, sizeof(bytes));
    sodium_bin2hex(text, sizeof(text), bytes, sizeof(bytes));
    text[sizeof(text) - 1] = '\n';
    int result = secret_write(fd, text, sizeof(text), error);
    if (path) {
        if (result == 0 && fsync(fd) < 0)
            result = error_set_errno(error, errno, "%s", path);
        close(fd);
        if (result < 0)
            unlink(path);
    }
    sodium_memzero(bytes, sizeof(bytes));
    sodium_memzero(text, sizeof(text));
    return result;
}
