/* The secrets that the daemons of a roster share, from a file. Formulas: doc/protocol/control.md.
 * Calls common/base. */
#ifndef COMMON_AUTH_SECRET_H
#define COMMON_AUTH_SECRET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

#define SECRET_KEY_BYTES 32
#define SECRET_IDENTITY_BYTES 8
#define SECRET_LINE_LEAST 43 /* characters: as many as 32 random bytes have in base64 */
#define SECRET_LINE_MOST 1024
#define SECRETS_MOST 2

struct secret {
    uint8_t key[SECRET_KEY_BYTES];           /* of the proof in the handshake */
    uint8_t psk[SECRET_KEY_BYTES];           /* of TLS */
    uint8_t identity[SECRET_IDENTITY_BYTES]; /* says which one it is, to whoever has it too */
};

/* The first is used to connect; all are accepted. Without any, only loopback is served. */
struct secrets {
    uint32_t count;
    struct secret list[SECRETS_MOST];
};

/* Fill the secret with the key of a line and what is derived from it. */
void secret_from_key(struct secret *secret, const uint8_t key[SECRET_KEY_BYTES]);

/* The file has a secret a line, 1 or 2 of them, in printable ASCII without blanks; what is blank at
 * a line's end does not count, nor do blank lines. It must be a regular file, owned by this user or
 * root, closed to group and others. path "" gives no secret. ERR_CONFIG (also when it cannot be
 * opened) names the path and what is wrong; ERR_SYSTEM. */
int secrets_load(struct secrets *secrets, const char *path, struct error *error);
/* Read the secrets from the file's bytes; `path` stands for the file in messages. Errors are those
 * of secrets_load. */
int secrets_parse(struct secrets *secrets, const char *bytes, size_t count, const char *path,
                  struct error *error);
void secrets_clear(struct secrets *secrets);

/* A new secret, 32 random bytes in hexadecimal and a newline: into a new file of mode 0600, or to
 * standard output where path is NULL. ERR_REFUSED: the file is there; ERR_SYSTEM. */
int secret_make(const char *path, struct error *error);

/* The file, opened for reading: regular, and, if it is private, owned by this user or root and
 * closed to group and others. what: its name in errors, such as "secret file". A negative error
 * code, as in secrets_load, or the descriptor. */
int secret_open_file(const char *path, const char *what, bool is_private, struct error *error);

#endif
