/* A side of a TLS 1.3 connection between two daemons (RFC 8446), over bytes that somebody else
 * moves: by a secret as an external pre-shared key with ephemeral keys (psk_dhe_ke), or by
 * certificates on both sides. Calls common/base and credentials.h.
 *
 * After every call that can, there may be bytes to go out: tls_output. An error ends the
 * connection, and what is to go out then, an alert, tells the other side. */
#ifndef COMMON_AUTH_TLS_H
#define COMMON_AUTH_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/auth/credentials.h"

#define TLS_KEY_BYTES 32
#define TLS_HANDSHAKE_BYTES                                                                        \
    65536u                    /* that the other side may send before it is known, and a read       \
                               */
#define TLS_RECORD_FIRST 0x14 /* what a record's first byte can be */
#define TLS_RECORD_LAST 0x18

struct tls;

/* The credentials must be those of encryption. They are not needed any more after it. The one that
 * connects has bytes to go out at once. NULL: out of memory. */
struct tls *tls_create(const struct credentials *credentials, enum auth_role role);
void tls_free(struct tls *tls);

/* Bytes of the other side. ERR_PROTOCOL, ERR_REFUSED: says what is wrong with it; ERR_MEMORY. */
int tls_receive(struct tls *tls, const void *bytes, size_t count, struct error *error);
/* Give what the other side said in the bytes; to be called until there is no more. Return how many
 * bytes, 0: none, or an error as in tls_receive; ERR_DISCONNECTED: the other side has ended the
 * connection. */
int tls_read(struct tls *tls, void *bytes, size_t room, struct error *error);
/* The handshake is over: both know each other, and can write. */
bool tls_is_open(const struct tls *tls);
int tls_write(struct tls *tls, const void *bytes, size_t count, struct error *error);
/* All bytes that are to go out: how many. They are valid until the next call. */
size_t tls_output(struct tls *tls, const void **bytes);
void tls_output_taken(struct tls *tls);

/* Whether the certificate of the other side of an open connection is the node's; true where secrets
 * are used. */
bool tls_names(const struct tls *tls, const char *node);
/* Return the number of the secret that both sides of an open connection have used, or -1:
 * certificates. */
int tls_secret(const struct tls *tls);
/* A key for the data that `sender` sends: of this connection, the same on both sides (RFC
 * 8446, 7.5: exporter, label "EXPORTER-shoal-data", context "connects" or "accepts"). ERR_SYSTEM.
 */
int tls_export(struct tls *tls, enum auth_role sender, uint8_t key[TLS_KEY_BYTES],
               struct error *error);

#endif
