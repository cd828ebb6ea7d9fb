/* Proof that two daemons share a secret, and the other things that need a cryptographic library:
 * random numbers and hashes. The formulas are those of doc/protocol/control.md; all hashes are
 * BLAKE2b with 32 bytes (crypto_generichash). Calls common/base. */
#ifndef COMMON_AUTH_AUTH_H
#define COMMON_AUTH_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/auth/secret.h"
#include "common/base/error.h"
#include "common/config/config.h"

#define AUTH_NONCE_BYTES 32
#define AUTH_MAC_BYTES 32
#define AUTH_HASH_BYTES 32

/* Make the library ready; to be called before the rest. May be called again. ERR_SYSTEM. */
int auth_init(struct error *error);
void auth_random(void *bytes, size_t count);

/* The side that speaks: the connecting daemon or the accepting one. */
enum auth_role { AUTH_CONNECTS, AUTH_ACCEPTS };

/* Names are at most 255 bytes. secret NULL: there is none, the key is zero. */
void auth_mac(uint8_t mac[AUTH_MAC_BYTES], const struct secret *secret, enum auth_role role,
              const char *connecting_node, const char *accepting_node,
              const uint8_t connecting_nonce[AUTH_NONCE_BYTES],
              const uint8_t accepting_nonce[AUTH_NONCE_BYTES]);
/* Compare `bytes` bytes in constant time. */
bool auth_equal(const void *a, const void *b, size_t bytes);

/* Hash of what all daemons must have alike: names, addresses, ports, weights, order, and the sizes
 * of the data path. */
void auth_roster_hash(uint8_t hash[AUTH_HASH_BYTES], const struct config *config);
/* Node number of the daemon that gathers the job's ranks. servers > 0. */
uint32_t auth_home_of_job(const char *job, uint32_t servers);

#endif
