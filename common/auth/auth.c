#include "common/auth/auth.h"

#include <sodium.h>
#include <string.h>

int auth_init(struct error *error)
{
    if (sodium_init() < 0)
        return error_set(error, ERR_SYSTEM, "libsodium cannot be initialised");
    return 0;
}

void auth_random(void *bytes, size_t count)
{
    randombytes_buf(bytes, count);
}

static void hash_piece(crypto_generichash_state *state, const void *bytes, size_t count)
{
    unsigned char length = (unsigned char)count;
    crypto_generichash_update(state, &length, 1);
    crypto_generichash_update(state, bytes, count);
}

static void hash_text(crypto_generichash_state *state, const char *text)
{
    hash_piece(state, text, strnlen(text, 255));
}

/* The interface behind a link-local address is the reader's own: it differs by node. */
static void hash_address(crypto_generichash_state *state, const char *address)
{
    hash_piece(state, address, strcspn(address, "%"));
}

static void hash_number(crypto_generichash_state *state, uint32_t number)
{
    unsigned char bytes[4] = {(unsigned char)number, (unsigned char)(number >> 8),
                              (unsigned char)(number >> 16), (unsigned char)(number >> 24)};
    hash_piece(state, bytes, sizeof(bytes));
}

void auth_mac(uint8_t mac[AUTH_MAC_BYTES], const struct secret *secret, enum auth_role role,
              const char *connecting_node, const char *accepting_node,
              const uint8_t connecting_nonce[AUTH_NONCE_BYTES],
              const uint8_t accepting_nonce[AUTH_NONCE_BYTES])
{
    static const uint8_t no_key[SECRET_KEY_BYTES];
    crypto_generichash_state state;
    crypto_generichash_init(&state, secret ? secret->key : no_key, SECRET_KEY_BYTES,
                            AUTH_MAC_BYTES);
    hash_text(&state, "shoal 1");
    hash_text(&state, role == AUTH_CONNECTS ? "connects" : "accepts");
    hash_text(&state, connecting_node);
    hash_text(&state, accepting_node);
    hash_piece(&state, connecting_nonce, AUTH_NONCE_BYTES);
    hash_piece(&state, accepting_nonce, AUTH_NONCE_BYTES);
    crypto_generichash_final(&state, mac, AUTH_MAC_BYTES);
    sodium_memzero(&state, sizeof(state));
}

bool auth_equal(const void *a, const void *b, size_t bytes)
{
    return sodium_memcmp(a, b, bytes) == 0;
}

void auth_roster_hash(uint8_t hash[AUTH_HASH_BYTES], const struct config *config)
{
    crypto_generichash_state state;
    crypto_generichash_init(&state, NULL, 0, AUTH_HASH_BYTES);
    hash_number(&state, config->server_count);
    for (uint32_t i = 0; i < config->server_count; i++) {
        hash_text(&state, config->servers[i].name);
        hash_address(&state, config->servers[i].address);
        hash_number(&state, config->servers[i].port);
        hash_number(&state, config->servers[i].weight);
    }
    hash_number(&state, config->chunk_bytes);
    hash_number(&state, config->least_shard_bytes);
    hash_number(&state, config->window_chunks);
    if (config->recovery)
        hash_text(&state, "recovery");
    crypto_generichash_final(&state, hash, AUTH_HASH_BYTES);
}

uint32_t auth_home_of_job(const char *job, uint32_t servers)
{
    uint8_t hash[AUTH_HASH_BYTES];
    crypto_generichash(hash, sizeof(hash), (const unsigned char *)job, strlen(job), NULL, 0);
    uint64_t number = 0;
    for (int i = 7; i >= 0; i--)
        number = number << 8 | hash[i];
    return (uint32_t)(number % servers);
}
