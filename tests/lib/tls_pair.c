#include "tests/lib/tls_pair.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

struct secrets tls_pair_secrets(uint8_t first, uint8_t second)
{
    struct secrets secrets = {.count = 0};
    uint8_t keys[2][SECRET_KEY_BYTES] = {{first}, {second}};
    for (int i = 0; i < 2; i++) {
        if (keys[i][0])
            secret_from_key(&secrets.list[secrets.count++], keys[i]);
    }
    return secrets;
}

void tls_pair_create(struct tls_pair *pair, const struct credentials *connects,
                     const struct credentials *accepts)
{
    memset(pair->errors, 0, sizeof(pair->errors));
    memset(pair->count, 0, sizeof(pair->count));
    pair->sides[AUTH_CONNECTS] = tls_create(connects, AUTH_CONNECTS);
    pair->sides[AUTH_ACCEPTS] = tls_create(accepts, AUTH_ACCEPTS);
    ck_assert(pair->sides[0] && pair->sides[1]);
}

void tls_pair_free(struct tls_pair *pair)
{
    for (int i = 0; i < 2; i++)
        tls_free(pair->sides[i]);
}

void tls_pair_give(struct tls_pair *pair, enum auth_role to, const void *bytes, size_t count)
{
    struct error *error = &pair->errors[to];
    if (error->code)
        return;
    int result = tls_receive(pair->sides[to], bytes, count, error);
    while (result >= 0) {
        result = tls_read(pair->sides[to], pair->received[to] + pair->count[to],
                          sizeof(pair->received[to]) - pair->count[to], error);
        if (result <= 0)
            break;
        pair->count[to] += (size_t)result;
    }
    ck_assert_int_eq(result, error->code);
    if (result < 0)
        ck_assert_uint_gt(strlen(error->text), 0);
}

size_t tls_pair_move(struct tls_pair *pair, enum auth_role from, size_t piece)
{
    enum auth_role to = from == AUTH_CONNECTS ? AUTH_ACCEPTS : AUTH_CONNECTS;
    const void *bytes;
    size_t count = tls_output(pair->sides[from], &bytes);
    char *copy = malloc(count + 1);
    memcpy(copy, bytes, count);
    tls_output_taken(pair->sides[from]);
    for (size_t at = 0; at < count; at += piece)
        tls_pair_give(pair, to, copy + at, piece < count - at ? piece : count - at);
    free(copy);
    return count;
}

void tls_pair_run(struct tls_pair *pair, size_t piece)
{
    while (tls_pair_move(pair, AUTH_CONNECTS, piece) + tls_pair_move(pair, AUTH_ACCEPTS, piece) > 0)
        continue;
}

void tls_pair_expect_open(struct tls_pair *pair)
{
    static const char words[2][24] = {"said by who connects", "said by who accepts"};
    for (int i = 0; i < 2; i++) {
        struct error error = {0};
        ck_assert_msg(pair->errors[i].code == 0, "%s", pair->errors[i].text);
        ck_assert(tls_is_open(pair->sides[i]));
        pair->count[1 - i] = 0;
        ck_assert_msg(tls_write(pair->sides[i], words[i], sizeof(words[i]), &error) == 0, "%s",
                      error.text);
        tls_pair_move(pair, (enum auth_role)i, SIZE_MAX / 2);
        ck_assert_uint_eq(pair->count[1 - i], sizeof(words[i]));
        ck_assert_mem_eq(pair->received[1 - i], words[i], sizeof(words[i]));
    }
}
