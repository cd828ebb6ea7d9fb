/* A side of TLS, and somebody who does not know the secret: bytes of his own at the begin, or when
 * the connection is open, or the other side's with changes of his. Nothing is told but what the
 * other side has said, and what is told was said in that order. */
#include <stdlib.h>
#include <string.h>

#include "common/auth/tls.h"
#include "tests/fuzz/fuzz.h"

#define MODES 3

static const char words[] = "nobody else can say this\n";

struct side {
    struct tls *tls;
    bool ended;
    size_t told; /* bytes of `words`, again and again */
};

static void side_hear(struct side *side, const uint8_t *bytes, size_t count)
{
    char plain[300];
    struct error error = {0};
    if (side->ended)
        return;
    int result = tls_receive(side->tls, bytes, count, &error);
    while (result >= 0 && (result = tls_read(side->tls, plain, sizeof(plain), &error)) > 0) {
        for (int i = 0; i < result; i++)
            FUZZ_REQUIRE(plain[i] == words[side->told++ % (sizeof(words) - 1)]);
    }
    side->ended = result < 0;
    FUZZ_REQUIRE(!side->ended || (error.code == result && error.text[0]));
}

/* Pass what one side says to the other, with some of its bytes changed as `changes` say: where, and
 * how. */
static void side_pass(struct side *from, struct side *to, const uint8_t **changes, size_t *left)
{
    const void *said;
    size_t count = tls_output(from->tls, &said);
    uint8_t *bytes = malloc(count + 1);
    FUZZ_REQUIRE(bytes);
    memcpy(bytes, said, count);
    tls_output_taken(from->tls);
    while (*left >= 3 && (*changes)[0] % 2 && count > 0) {
        bytes[((size_t)(*changes)[0] / 2 + (*changes)[1] * 128u) % count] ^= (*changes)[2];
        *changes += 3;
        *left -= 3;
    }
    if (*left > 0) {
        *changes += 1;
        *left -= 1;
    }
    if (count > 0)
        side_hear(to, bytes, count);
    free(bytes);
}

static void sides_shake(struct side sides[2], const uint8_t *changes, size_t left)
{
    struct error error;
    for (int round = 0; round < 6; round++) {
        struct side *from = &sides[round % 2], *to = &sides[1 - round % 2];
        if (tls_is_open(from->tls) && !from->ended)
            FUZZ_REQUIRE(tls_write(from->tls, words, sizeof(words) - 1, &error) == 0);
        side_pass(from, to, &changes, &left);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error error;
    struct credentials credentials = {.encrypt = false};
    struct secrets secrets = {.count = 1};
    static const uint8_t key[SECRET_KEY_BYTES] = {1};
    if (size < 2 || auth_init(&error) < 0)
        return 0;
    secret_from_key(&secrets.list[0], key);
    FUZZ_REQUIRE(credentials_set(&credentials, &secrets, true, &error) == 0);
    struct side sides[2] = {{.tls = tls_create(&credentials, AUTH_CONNECTS)},
                            {.tls = tls_create(&credentials, AUTH_ACCEPTS)}};
    FUZZ_REQUIRE(sides[0].tls && sides[1].tls);
    struct side *victim = &sides[data[0] / MODES % 2];
    switch (data[0] % MODES) {
    case 0:
        side_hear(victim, data + 1, size - 1);
        FUZZ_REQUIRE(!tls_is_open(victim->tls));
        break;
    case 1:
        sides_shake(sides, NULL, 0);
        FUZZ_REQUIRE(tls_is_open(sides[0].tls) && tls_is_open(sides[1].tls));
        FUZZ_REQUIRE(!sides[0].ended && !sides[1].ended && victim->told > 0);
        side_hear(victim, data + 1, size - 1);
        break;
    default:
        sides_shake(sides, data + 1, size - 1);
        break;
    }
    for (int i = 0; i < 2; i++)
        tls_free(sides[i].tls);
    credentials_clear(&credentials);
    return 0;
}
