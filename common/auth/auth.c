#include "common/auth/auth.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

static int secret_check(int fd, const char *path, struct error *error)
{
    struct stat status;
    if (fstat(fd, &status) < 0)
        return error_set_errno(error, errno, "secret file %s", path);
    if (!S_ISREG(status.st_mode))
        return error_set(error, ERR_CONFIG, "secret file %s is not a regular file", path);
    if (status.st_uid != geteuid() && status.st_uid != 0)
        return error_set(error, ERR_CONFIG,
                         "secret file %s belongs to user %u, must belong to user %u or root", path,
                         status.st_uid, geteuid());
    if (status.st_mode & (S_IRWXG | S_IRWXO))
        return error_set(error, ERR_CONFIG,
                         "secret file %s has mode %03o: group and others must not read it", path,
                         status.st_mode & 0777);
    return 0;
}

static int secret_read(struct auth_secret *secret, int fd, const char *path, struct error *error)
{
    uint8_t bytes[AUTH_SECRET_MOST_BYTES + 1];
    size_t count = 0;
    for (;;) {
        ssize_t got = read(fd, bytes + count, sizeof(bytes) - count);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            sodium_memzero(bytes, sizeof(bytes));
            return error_set_errno(error, errno, "secret file %s", path);
        }
        count += (size_t)got;
        if (got == 0 || count == sizeof(bytes))
            break;
    }
    bool long_file = count == sizeof(bytes);
    while (count > 0 && isspace(bytes[count - 1]))
        count--;
    if (!long_file && count >= AUTH_SECRET_LEAST_BYTES) {
        crypto_generichash(secret->key, sizeof(secret->key), bytes, count, NULL, 0);
        secret->present = true;
    }
    sodium_memzero(bytes, sizeof(bytes));
    if (long_file || count < AUTH_SECRET_LEAST_BYTES)
        return error_set(error, ERR_CONFIG, "secret file %s must hold %d to %d bytes%s", path,
                         AUTH_SECRET_LEAST_BYTES, AUTH_SECRET_MOST_BYTES,
                         long_file ? ", has more" : ", has fewer");
    return 0;
}

int auth_secret_load(struct auth_secret *secret, const char *path, struct error *error)
{
    *secret = (struct auth_secret){.present = false};
    if (path[0] == '\0')
        return 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return error_set(error, ERR_CONFIG, "secret file %s cannot be opened: %s", path,
                         strerror(errno));
    int result = secret_check(fd, path, error);
    if (result == 0)
        result = secret_read(secret, fd, path, error);
    close(fd);
    return result;
}

void auth_secret_clear(struct auth_secret *secret)
{
    sodium_memzero(secret, sizeof(*secret));
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

static void hash_number(crypto_generichash_state *state, uint32_t number)
{
    unsigned char bytes[4] = {(unsigned char)number, (unsigned char)(number >> 8),
                              (unsigned char)(number >> 16), (unsigned char)(number >> 24)};
    hash_piece(state, bytes, sizeof(bytes));
}

void auth_mac(uint8_t mac[AUTH_MAC_BYTES], const struct auth_secret *secret, enum auth_role role,
              const char *connecting_node, const char *accepting_node,
              const uint8_t connecting_nonce[AUTH_NONCE_BYTES],
              const uint8_t accepting_nonce[AUTH_NONCE_BYTES])
{
    crypto_generichash_state state;
    crypto_generichash_init(&state, secret->key, sizeof(secret->key), AUTH_MAC_BYTES);
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
        hash_text(&state, config->servers[i].address);
        hash_number(&state, config->servers[i].port);
        hash_number(&state, config->servers[i].weight);
    }
    hash_number(&state, config->chunk_bytes);
    hash_number(&state, config->least_shard_bytes);
    hash_number(&state, config->window_chunks);
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
