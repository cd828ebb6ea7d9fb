/* The two sides of a TLS connection, back to back. */
#ifndef TESTS_LIB_TLS_PAIR_H
#define TESTS_LIB_TLS_PAIR_H

#include "common/auth/tls.h"

struct tls_pair {
    struct tls *sides[2];     /* [enum auth_role] */
    struct error errors[2];   /* why a side has ended; code 0: it has not */
    char received[2][262144]; /* what the side was told */
    size_t count[2];
};

/* Secrets of these keys' first bytes; 0: none. */
struct secrets tls_pair_secrets(uint8_t first, uint8_t second);
void tls_pair_create(struct tls_pair *pair, const struct credentials *connects,
                     const struct credentials *accepts);
void tls_pair_free(struct tls_pair *pair);
/* Give the side bytes as they are, and read what they say. */
void tls_pair_give(struct tls_pair *pair, enum auth_role to, const void *bytes, size_t count);
/* Move what is to go out of one side to the other, `piece` bytes at a time; how many. */
size_t tls_pair_move(struct tls_pair *pair, enum auth_role from, size_t piece);
/* Both ways, until nothing moves. */
void tls_pair_run(struct tls_pair *pair, size_t piece);
/* Check that both are open, and that each is told what the other says. */
void tls_pair_expect_open(struct tls_pair *pair);

#endif
