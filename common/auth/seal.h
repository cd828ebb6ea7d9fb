/* Sealed messages: a header in the clear, a payload that others cannot read, and a trailer, so that
 * neither can be changed, repeated or put in another place unnoticed.
 *
 *   header | payload, encrypted | sequence, 8 bytes little-endian | tag, 16 bytes
 *
 * AES-256-GCM (NIST SP 800-38D, by OpenSSL), with the header as additional data and the nonce of 4
 * zero bytes and the sequence. The sequence numbers the messages of one direction of one connection
 * from 0, so that no nonce is used twice with a key. A key seals SEAL_EPOCH_MESSAGES: with payloads
 * of 16 MiB, the largest chunks, about 2^32 blocks of 16 bytes, and one key may seal 2^34.5
 * (RFC 8446, 5.5: 2^24.5 records of 2^14 bytes). The key of epoch e, that is sequence /
 * SEAL_EPOCH_MESSAGES, is HKDF-Expand (RFC 5869, SHA-256) of the connection's key for "shoal data"
 * and e in 8 bytes, little-endian.
 *
 * Calls common/base. */
#ifndef COMMON_AUTH_SEAL_H
#define COMMON_AUTH_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

#define SEAL_KEY_BYTES 32
#define SEAL_SEQUENCE_BYTES 8
#define SEAL_TAG_BYTES 16
#define SEAL_TRAILER_BYTES (SEAL_SEQUENCE_BYTES + SEAL_TAG_BYTES)
#define SEAL_EPOCH_MESSAGES 4096u

/* The key of one direction, set up for one thread at a time. */
struct seal;

/* ERR_MEMORY, or ERR_SYSTEM where OpenSSL has no such cipher. The key is copied. */
int seal_create(struct seal **seal, const uint8_t key[SEAL_KEY_BYTES], struct error *error);
void seal_destroy(struct seal *seal);

/* Seals the message whose header lies at `message`: writes the payload, encrypted, and the trailer
 * behind it. `payload` is elsewhere, or where it goes to. Whoever calls gives a sequence once; or
 * once more if that failed, since then nobody has got what was sealed with it. Returns 0;
 * ERR_MEMORY when OpenSSL has no memory for the epoch's key and nothing was written; ERR_SYSTEM
 * when its cipher fails, and then the message is not to be sent. */
int seal_message(struct seal *seal, uint64_t sequence, uint8_t *message, uint32_t header_bytes,
                 const void *payload, uint32_t payload_bytes);
/* Opens a message of `bytes`, trailer included, where it lies: the payload is then behind the
 * header. It must be at least header_bytes + SEAL_TRAILER_BYTES long. Returns 0; ERR_PROTOCOL when
 * the tag does not fit, and ERR_SYSTEM when OpenSSL's cipher fails: what lies there is then
 * nonsense; ERR_MEMORY as above: the message is as it was, and may be opened later. */
int seal_open(struct seal *seal, uint8_t *message, uint32_t header_bytes, uint32_t bytes);
/* The sequence that a message of at least SEAL_TRAILER_BYTES says it has. */
uint64_t seal_sequence(const uint8_t *message, uint32_t bytes);

/* Why a message is refused. Names are those of the status. */
enum seal_refusal {
    SEAL_TAKEN,
    SEAL_SHORT,      /* it has no room for a trailer */
    SEAL_ALTERED,    /* the tag does not fit: changed, or sealed with another key */
    SEAL_REPEATED,   /* a message with this sequence has come before, or is too old to tell */
    SEAL_DISORDERED, /* others should have come before it */
    SEAL_UNKEYED,    /* the connection has no keys to open it with */
    SEAL_REFUSALS
};
const char *seal_refusal_name(enum seal_refusal refusal); /* "altered" */

/* The sequences that a receiver has taken. Where messages come in order, only the next sequence is
 * right; elsewhere every sequence that has not come and is less than SEAL_WINDOW_MESSAGES above the
 * oldest that has not come. */
#define SEAL_WINDOW_MESSAGES 8192u
struct seal_window {
    bool ordered;
    uint64_t next;   /* one more than the greatest that was taken */
    uint64_t oldest; /* that was not taken; of ordered ones always the next */
    uint64_t taken[SEAL_WINDOW_MESSAGES / 64];
};
/* Return what seal_window_take would say about the sequence. */
enum seal_refusal seal_window_check(const struct seal_window *window, uint64_t sequence);
/* Take the sequence, each once. Before the message is open anybody may have written its sequence: a
 * message that is taken then and does not open has to end the connection. */
enum seal_refusal seal_window_take(struct seal_window *window, uint64_t sequence);

#endif
