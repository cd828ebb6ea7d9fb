#include "common/auth/seal.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/auth/openssl.h"

#define NONCE_BYTES 12
#define EPOCH_NONE UINT64_MAX /* no sequence is of it */

struct seal {
    EVP_CIPHER_CTX *context; /* with the key of `epoch`, if that is one */
    uint64_t epoch;
    uint8_t key[SEAL_KEY_BYTES]; /* the connection's */
};

static void seal_put_number(uint8_t bytes[8], uint64_t number)
{
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(number >> (8 * i));
}

static int seal_set_epoch(struct seal *seal, uint64_t epoch)
{
    /* One block of HKDF-Expand: HMAC of the information and a byte 1. */
    uint8_t information[] = "shoal data\0\0\0\0\0\0\0\0\1", key[EVP_MAX_MD_SIZE];
    unsigned bytes = 0;
    seal_put_number(information + 10, epoch);
    seal->epoch = EPOCH_NONE;
    bool done = HMAC(EVP_sha256(), seal->key, sizeof(seal->key), information,
                     sizeof(information) - 1, key, &bytes) &&
                bytes == SEAL_KEY_BYTES &&
                EVP_CipherInit_ex(seal->context, NULL, NULL, key, NULL, -1) == 1;
    OPENSSL_cleanse(key, sizeof(key));
    if (!done)
        return ERR_MEMORY;
    seal->epoch = epoch;
    return 0;
}

int seal_create(struct seal **seal, const uint8_t key[SEAL_KEY_BYTES], struct error *error)
{
    struct seal *made = calloc(1, sizeof(*made));
    if (!made)
        return error_set(error, ERR_MEMORY, "no memory for a cipher");
    memcpy(made->key, key, sizeof(made->key));
    made->context = EVP_CIPHER_CTX_new();
    int result = made->context ? 0 : error_set(error, ERR_MEMORY, "no memory for a cipher");
    if (result == 0 &&
        EVP_CipherInit_ex(made->context, EVP_aes_256_gcm(), NULL, NULL, NULL, 1) != 1)
        result = error_set(error, ERR_SYSTEM, "OpenSSL has no AES-256-GCM here");
    if (result == 0 && seal_set_epoch(made, 0) != 0)
        result = error_set(error, ERR_MEMORY, "no memory for a cipher's key");
    if (result != 0) {
        seal_destroy(made);
        return result;
    }
    *seal = made;
    return 0;
}

void seal_destroy(struct seal *seal)
{
    if (!seal)
        return;
    EVP_CIPHER_CTX_free(seal->context);
    OPENSSL_cleanse(seal->key, sizeof(seal->key));
    free(seal);
}

/* Everything up to the payload: the epoch's key, the nonce, the header. That fails for want of
 * memory alone: nothing of it is the peer's choice but the header, of a fixed length. */
static int seal_begin(struct seal *seal, uint64_t sequence, const uint8_t *header,
                      uint32_t header_bytes, int encrypt)
{
    uint8_t nonce[NONCE_BYTES] = {0};
    int written = 0;
    uint64_t epoch = sequence / SEAL_EPOCH_MESSAGES;
    seal_put_number(nonce + NONCE_BYTES - 8, sequence);
    if (epoch != seal->epoch && seal_set_epoch(seal, epoch) != 0)
        return ERR_MEMORY;
    if (EVP_CipherInit_ex(seal->context, NULL, NULL, NULL, nonce, encrypt) != 1 ||
        EVP_CipherUpdate(seal->context, NULL, &written, header, (int)header_bytes) != 1)
        return ERR_MEMORY;
    return 0;
}

/* An empty payload has nothing to give to the cipher. */
static int seal_payload(struct seal *seal, uint8_t *out, const void *in, uint32_t bytes)
{
    int written = 0;
    if (bytes == 0)
        return 0;
    return EVP_CipherUpdate(seal->context, out, &written, in, (int)bytes) == 1 &&
                   written == (int)bytes
               ? 0
               : ERR_SYSTEM;
}

int seal_message(struct seal *seal, uint64_t sequence, uint8_t *message, uint32_t header_bytes,
                 const void *payload, uint32_t payload_bytes)
{
    uint8_t *sealed = message + header_bytes, *trailer = sealed + payload_bytes;
    int written = 0;
    assert(payload_bytes <= INT_MAX);
    if (seal_begin(seal, sequence, message, header_bytes, 1) != 0)
        return ERR_MEMORY;
    if (seal_payload(seal, sealed, payload, payload_bytes) != 0 ||
        EVP_CipherFinal_ex(seal->context, trailer, &written) != 1 ||
        EVP_CIPHER_CTX_ctrl(seal->context, EVP_CTRL_AEAD_GET_TAG, SEAL_TAG_BYTES,
                            trailer + SEAL_SEQUENCE_BYTES) != 1)
        return ERR_SYSTEM;
    seal_put_number(trailer, sequence);
    return 0;
}

uint64_t seal_sequence(const uint8_t *message, uint32_t bytes)
{
    const uint8_t *trailer = message + bytes - SEAL_TRAILER_BYTES;
    uint64_t sequence = 0;
    for (int i = 0; i < 8; i++)
        sequence |= (uint64_t)trailer[i] << (8 * i);
    return sequence;
}

int seal_open(struct seal *seal, uint8_t *message, uint32_t header_bytes, uint32_t bytes)
{
    assert(bytes >= header_bytes + SEAL_TRAILER_BYTES && bytes <= INT_MAX);
    uint32_t payload_bytes = bytes - header_bytes - SEAL_TRAILER_BYTES;
    uint8_t *payload = message + header_bytes, *trailer = payload + payload_bytes;
    uint8_t rest[SEAL_TAG_BYTES];
    int written = 0;
    if (seal_begin(seal, seal_sequence(message, bytes), message, header_bytes, 0) != 0)
        return ERR_MEMORY;
    if (seal_payload(seal, payload, payload, payload_bytes) != 0 ||
        EVP_CIPHER_CTX_ctrl(seal->context, EVP_CTRL_AEAD_SET_TAG, SEAL_TAG_BYTES,
                            trailer + SEAL_SEQUENCE_BYTES) != 1)
        return ERR_SYSTEM;
    return EVP_CipherFinal_ex(seal->context, rest, &written) == 1 ? 0 : ERR_PROTOCOL;
}

/* --- what a receiver takes -------------------------------------------------------------------- */

const char *seal_refusal_name(enum seal_refusal refusal)
{
    static const char *const names[SEAL_REFUSALS] = {"taken",    "short",      "altered",
                                                     "repeated", "disordered", "unkeyed"};
    return refusal < SEAL_REFUSALS ? names[refusal] : "unknown";
}

static uint64_t window_bit(uint64_t sequence)
{
    return UINT64_C(1) << sequence % 64;
}

static bool window_has(const struct seal_window *window, uint64_t sequence)
{
    return window->taken[sequence % SEAL_WINDOW_MESSAGES / 64] & window_bit(sequence);
}

enum seal_refusal seal_window_check(const struct seal_window *window, uint64_t sequence)
{
    if (sequence < window->oldest)
        return SEAL_REPEATED;
    if (sequence - window->oldest >= (window->ordered ? 1 : SEAL_WINDOW_MESSAGES))
        return SEAL_DISORDERED;
    return window_has(window, sequence) ? SEAL_REPEATED : SEAL_TAKEN;
}

/* Mark the sequence as taken. The bits of those below the new `oldest` are cleared: the sequences
 * one window above them use the same bits. */
enum seal_refusal seal_window_take(struct seal_window *window, uint64_t sequence)
{
    enum seal_refusal refusal = seal_window_check(window, sequence);
    if (refusal != SEAL_TAKEN)
        return refusal;
    window->taken[sequence % SEAL_WINDOW_MESSAGES / 64] |= window_bit(sequence);
    for (; window_has(window, window->oldest); window->oldest++)
        window->taken[window->oldest % SEAL_WINDOW_MESSAGES / 64] &= ~window_bit(window->oldest);
    if (sequence >= window->next)
        window->next = sequence + 1;
    return SEAL_TAKEN;
}
