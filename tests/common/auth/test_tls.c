/* Two sides of TLS by a secret, back to back, and whoever does not know it. */
#include "common/auth/tls.h"

#include <stdlib.h>
#include <string.h>

#include "common/auth/openssl.h"
#include "tests/lib/suite.h"
#include "tests/lib/tls_pair.h"

static struct credentials ours, theirs;
static struct tls_pair *pair;

static void set(struct credentials *credentials, uint8_t first, uint8_t second)
{
    struct error error = {0};
    struct secrets secrets = tls_pair_secrets(first, second);
    ck_assert_msg(credentials_set(credentials, &secrets, true, &error) == 0, "%s", error.text);
}

static void setup(void)
{
    struct error error;
    ck_assert_int_eq(auth_init(&error), 0);
    set(&ours, 1, 0);
    set(&theirs, 1, 0);
    pair = malloc(sizeof(*pair));
    tls_pair_create(pair, &ours, &theirs);
}

static void teardown(void)
{
    tls_pair_free(pair);
    free(pair);
    credentials_clear(&ours);
    credentials_clear(&theirs);
}

static void renew(void)
{
    tls_pair_free(pair);
    tls_pair_create(pair, &ours, &theirs);
}

static void expect_no_word(void)
{
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_eq(pair->count[i], 0);
        ck_assert(!tls_is_open(pair->sides[i]) || pair->errors[i].code);
    }
}

/* --- what is to work */

static const size_t pieces[] = {1, 2, 7, 100, 4096, 65536};

START_TEST(test_open)
{
    tls_pair_run(pair, pieces[_i]);
    tls_pair_expect_open(pair);
    tls_pair_expect_open(pair);
    ck_assert_int_eq(tls_secret(pair->sides[0]), 0);
    ck_assert_int_eq(tls_secret(pair->sides[1]), 0);
    ck_assert(tls_names(pair->sides[0], "anybody"));
}
END_TEST

START_TEST(test_large)
{
    struct error error = {0};
    char *bytes = malloc(200000);
    for (int i = 0; i < 200000; i++)
        bytes[i] = (char)(i * 7 + i / 256);
    tls_pair_run(pair, 65536);
    ck_assert_int_eq(tls_write(pair->sides[0], bytes, 200000, &error), 0);
    tls_pair_move(pair, AUTH_CONNECTS, 1000);
    ck_assert_uint_eq(pair->count[1], 200000);
    ck_assert_mem_eq(pair->received[1], bytes, 200000);
    free(bytes);
}
END_TEST

/* The keys of the data: alike on both sides, others for each direction and connection. */
START_TEST(test_export)
{
    uint8_t keys[2][2][2][TLS_KEY_BYTES]; /* [connection][side][sender] */
    struct error error = {0};
    ck_assert_int_eq(tls_export(pair->sides[0], AUTH_CONNECTS, keys[0][0][0], &error), ERR_SYSTEM);
    for (int round = 0; round < 2; round++) {
        renew();
        tls_pair_run(pair, 65536);
        for (int side = 0; side < 2; side++) {
            for (int sender = 0; sender < 2; sender++)
                ck_assert_int_eq(tls_export(pair->sides[side], (enum auth_role)sender,
                                            keys[round][side][sender], &error),
                                 0);
        }
        for (int sender = 0; sender < 2; sender++)
            ck_assert_mem_eq(keys[round][0][sender], keys[round][1][sender], TLS_KEY_BYTES);
        ck_assert_mem_ne(keys[round][0][0], keys[round][0][1], TLS_KEY_BYTES);
    }
    for (int sender = 0; sender < 2; sender++) {
        for (int other = 0; other < 2; other++)
            ck_assert_mem_ne(keys[0][0][sender], keys[1][0][other], TLS_KEY_BYTES);
    }
}
END_TEST

/* A secret is changed: add the new one on all nodes, make it the first on all, drop the old one. */
START_TEST(test_rotation)
{
    static const struct {
        uint8_t ours[2], theirs[2];
        int which; /* of theirs */
    } steps[] = {{{1, 0}, {1, 2}, 0}, {{1, 2}, {1, 0}, 0}, {{1, 2}, {1, 2}, 0}, {{2, 1}, {1, 2}, 1},
                 {{1, 2}, {2, 1}, 1}, {{2, 1}, {2, 1}, 0}, {{2, 0}, {2, 1}, 0}, {{2, 1}, {2, 0}, 0},
                 {{2, 0}, {1, 2}, 1}, {{2, 0}, {2, 0}, 0}};
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        set(&ours, steps[i].ours[0], steps[i].ours[1]);
        set(&theirs, steps[i].theirs[0], steps[i].theirs[1]);
        renew();
        tls_pair_run(pair, 65536);
        tls_pair_expect_open(pair);
        ck_assert_int_eq(tls_secret(pair->sides[0]), 0);
        ck_assert_int_eq(tls_secret(pair->sides[1]), steps[i].which);
    }
}
END_TEST

/* A connection that began with the old secrets goes on with them. */
START_TEST(test_credentials_change)
{
    tls_pair_move(pair, AUTH_CONNECTS, 65536);
    set(&ours, 3, 0);
    set(&theirs, 4, 0);
    tls_pair_run(pair, 65536);
    credentials_clear(&ours);
    credentials_clear(&theirs);
    tls_pair_expect_open(pair);
}
END_TEST

/* --- who does not know the secret */

START_TEST(test_other_secret)
{
    static const uint8_t others[][2] = {{2, 0}, {2, 3}};
    set(&theirs, others[_i][0], others[_i][1]);
    renew();
    tls_pair_run(pair, 65536);
    expect_no_word();
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pair->errors[i].code, ERR_REFUSED);
        ck_assert_str_eq(pair->errors[i].text, "it does not know the secret");
    }
}
END_TEST

/* Somebody who has seen the name of the secret pass by, and not the secret. */
START_TEST(test_name_of_the_secret)
{
    struct secrets liar = tls_pair_secrets(2, 0), real = tls_pair_secrets(1, 0);
    struct error error = {0};
    memcpy(liar.list[0].identity, real.list[0].identity, SECRET_IDENTITY_BYTES);
    ck_assert_int_eq(credentials_set(_i ? &ours : &theirs, &liar, true, &error), 0);
    renew();
    tls_pair_run(pair, 65536);
    expect_no_word();
    ck_assert_int_eq(pair->errors[1].code, ERR_REFUSED);
    ck_assert_str_eq(pair->errors[1].text, "it does not know the secret");
    ck_assert_int_ne(pair->errors[0].code, 0);
}
END_TEST

/* --- bytes that somebody has changed */

/* All that one side says until the connection is open, and then `words` more. */
static size_t record(enum auth_role from, uint8_t *bytes, size_t room)
{
    size_t count = 0;
    for (int round = 0; round < 4; round++) {
        const void *said;
        size_t more = tls_output(pair->sides[from], &said);
        ck_assert_uint_le(count + more, room);
        memcpy(bytes + count, said, more);
        count += more;
        tls_pair_move(pair, from, 65536);
        tls_pair_move(pair, from == AUTH_CONNECTS ? AUTH_ACCEPTS : AUTH_CONNECTS, 65536);
    }
    return count;
}

/* Words that were said to one peer are worth nothing to another. */
START_TEST(test_replay)
{
    uint8_t bytes[2][8192];
    size_t counts[2];
    for (int i = 0; i < 2; i++) {
        renew();
        counts[i] = record((enum auth_role)i, bytes[i], sizeof(bytes[i]));
        ck_assert(tls_is_open(pair->sides[0]) && tls_is_open(pair->sides[1]));
    }
    renew();
    tls_pair_give(pair, AUTH_ACCEPTS, bytes[AUTH_CONNECTS], counts[AUTH_CONNECTS]);
    tls_pair_give(pair, AUTH_CONNECTS, bytes[AUTH_ACCEPTS], counts[AUTH_ACCEPTS]);
    expect_no_word();
    ck_assert(!tls_is_open(pair->sides[0]) && !tls_is_open(pair->sides[1]));
    ck_assert(pair->errors[0].code && pair->errors[1].code);
}
END_TEST

/* Its own words come back to it. */
START_TEST(test_reflection)
{
    const void *said;
    size_t count = tls_output(pair->sides[0], &said);
    uint8_t bytes[4096];
    memcpy(bytes, said, count);
    tls_pair_give(pair, AUTH_CONNECTS, bytes, count);
    ck_assert_int_ne(pair->errors[0].code, 0);
}
END_TEST

/* Each byte of the handshake, one after the other. A header's version is not looked at (RFC 8446,
 * 5.1); nothing else may pass, and nothing in any case but what was said. */
START_TEST(test_flipped_handshake)
{
    uint8_t bytes[8192];
    int passed = 0, tried = 0;
    for (size_t at = 0;; at++, tried++) {
        renew();
        size_t skipped = 0;
        bool flipped = false;
        for (int round = 0; round < 6; round++) {
            enum auth_role from = round % 2 ? AUTH_ACCEPTS : AUTH_CONNECTS;
            enum auth_role to = round % 2 ? AUTH_CONNECTS : AUTH_ACCEPTS;
            const void *said;
            size_t count = tls_output(pair->sides[from], &said);
            memcpy(bytes, said, count);
            tls_output_taken(pair->sides[from]);
            if (at >= skipped && at < skipped + count) {
                bytes[at - skipped] ^= (uint8_t)(1 << at % 8);
                flipped = true;
            }
            skipped += count;
            tls_pair_give(pair, to, bytes, count);
        }
        if (!flipped)
            break;
        if (pair->errors[0].code || pair->errors[1].code) {
            expect_no_word();
        } else if (tls_is_open(pair->sides[0]) && tls_is_open(pair->sides[1])) {
            tls_pair_expect_open(pair);
            passed++;
        }
    }
    ck_assert_int_gt(tried, 400);
    ck_assert_int_le(passed, 16);
}
END_TEST

/* The connection ends at each byte of the handshake: never are both open, and nobody is told
 * anything. */
START_TEST(test_cut_handshake)
{
    uint8_t bytes[8192];
    size_t cut = 0;
    for (;; cut++) {
        renew();
        size_t passed = 0;
        for (int round = 0; round < 6; round++) {
            enum auth_role from = round % 2 ? AUTH_ACCEPTS : AUTH_CONNECTS;
            const void *said;
            size_t count = tls_output(pair->sides[from], &said);
            memcpy(bytes, said, count);
            tls_output_taken(pair->sides[from]);
            size_t piece = count < cut - passed ? count : cut - passed;
            passed += piece;
            tls_pair_give(pair, from == AUTH_CONNECTS ? AUTH_ACCEPTS : AUTH_CONNECTS, bytes, piece);
        }
        ck_assert_int_eq(pair->errors[0].code, 0);
        ck_assert_int_eq(pair->errors[1].code, 0);
        ck_assert_uint_eq(pair->count[0] + pair->count[1], 0);
        if (tls_is_open(pair->sides[1]))
            break;
        ck_assert_uint_eq(passed, cut);
    }
    ck_assert_uint_gt(cut, 400);
}
END_TEST

static const char words[] = "{\"type\":\"ping\"}\n";

/* One record with words; how many bytes. */
static size_t sealed(uint8_t *bytes)
{
    struct error error = {0};
    const void *said;
    ck_assert_int_eq(tls_write(pair->sides[0], words, sizeof(words), &error), 0);
    size_t count = tls_output(pair->sides[0], &said);
    memcpy(bytes, said, count);
    tls_output_taken(pair->sides[0]);
    return count;
}

/* Each byte of a record flipped; it is cut and followed by another; it comes twice; they come in
 * another order. */
START_TEST(test_changed_record)
{
    uint8_t first[256], second[256];
    size_t count = 1;
    for (size_t at = 0; at < count + 3; at++) {
        renew();
        tls_pair_run(pair, 65536);
        count = sealed(first);
        ck_assert_uint_eq(sealed(second), count);
        ck_assert_ptr_null(memmem(first, count, "ping", 4));
        size_t told = 0;
        if (at < count) {
            first[at] ^= (uint8_t)(1 << at % 8);
            tls_pair_give(pair, AUTH_ACCEPTS, first, count);
        } else if (at == count) {
            tls_pair_give(pair, AUTH_ACCEPTS, first, count - 1);
        } else if (at == count + 1) {
            tls_pair_give(pair, AUTH_ACCEPTS, first, count);
            tls_pair_give(pair, AUTH_ACCEPTS, first, count);
            told = sizeof(words);
        }
        tls_pair_give(pair, AUTH_ACCEPTS, second, count);
        ck_assert_uint_eq(pair->count[1], told);
        /* A length that is greater waits for more. */
        if (at != 3 && at != 4)
            ck_assert_int_eq(pair->errors[1].code, ERR_PROTOCOL);
    }
}
END_TEST

START_TEST(test_other_connection)
{
    uint8_t bytes[256];
    tls_pair_run(pair, 65536);
    size_t count = sealed(bytes);
    renew();
    tls_pair_run(pair, 65536);
    tls_pair_give(pair, AUTH_ACCEPTS, bytes, count);
    ck_assert_uint_eq(pair->count[1], 0);
    ck_assert_int_eq(pair->errors[1].code, ERR_PROTOCOL);
}
END_TEST

/* --- what is none of it */

START_TEST(test_garbage)
{
    static const uint8_t begins[][5] = {{0x16, 3, 1, 0x40, 0},    {0x16, 3, 3, 0x3f, 0xff},
                                        {0x17, 3, 3, 0x40, 0},    {0x15, 3, 3, 0, 2},
                                        {0x14, 3, 3, 0, 1},       {0, 0, 0, 0, 0},
                                        {'G', 'E', 'T', ' ', '/'}};
    uint32_t state = 12345;
    for (int round = 0; round < 2000; round++) {
        uint8_t bytes[700];
        renew();
        for (size_t i = 0; i < sizeof(bytes); i++) {
            state = state * 1664525 + 1013904223;
            bytes[i] = (uint8_t)(state >> 24);
        }
        if (round % 2)
            memcpy(bytes, begins[(size_t)round / 2 % (sizeof(begins) / sizeof(begins[0]))], 5);
        tls_pair_give(pair, round / 16 % 2 ? AUTH_CONNECTS : AUTH_ACCEPTS, bytes, sizeof(bytes));
        expect_no_word();
        ck_assert(!tls_is_open(pair->sides[0]) && !tls_is_open(pair->sides[1]));
    }
}
END_TEST

/* A handshake that never ends costs a bounded amount of memory. */
START_TEST(test_endless_handshake)
{
    uint8_t record_bytes[5 + 16384] = {0x16, 3, 1, 0x40, 0, 1, 0x01, 0xf0, 0};
    size_t given = 0;
    while (!pair->errors[1].code && given < 1 << 20) {
        tls_pair_give(pair, AUTH_ACCEPTS, record_bytes, sizeof(record_bytes));
        given += sizeof(record_bytes);
    }
    ck_assert_int_ne(pair->errors[1].code, 0);
    ck_assert_uint_le(given, TLS_HANDSHAKE_BYTES + 2 * sizeof(record_bytes));
}
END_TEST

/* A client of OpenSSL with what the peer would not do. */
static SSL *stranger(SSL_CTX **context, int version, const char *ciphers)
{
    *context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_max_proto_version(*context, version);
    SSL_CTX_set_cipher_list(*context, "ALL:@SECLEVEL=0");
    SSL_CTX_set_ciphersuites(*context, ciphers);
    SSL *ssl = SSL_new(*context);
    SSL_set_bio(ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_connect_state(ssl);
    return ssl;
}

START_TEST(test_other_tls)
{
    static const struct {
        int version;
        const char *ciphers, *piece;
    } others[] = {{TLS1_2_VERSION, "TLS_AES_256_GCM_SHA384", "unsupported protocol"},
                  {TLS1_3_VERSION, "TLS_AES_128_GCM_SHA256", "no shared cipher"},
                  {TLS1_3_VERSION, "TLS_CHACHA20_POLY1305_SHA256", "no shared cipher"},
                  {TLS1_3_VERSION, "TLS_AES_256_GCM_SHA384", "it shows no secret"}};
    SSL_CTX *context;
    uint8_t bytes[4096];
    SSL *ssl = stranger(&context, others[_i].version, others[_i].ciphers);
    ck_assert_int_le(SSL_do_handshake(ssl), 0);
    int count = BIO_read(SSL_get_wbio(ssl), bytes, sizeof(bytes));
    ck_assert_int_gt(count, 0);
    tls_pair_give(pair, AUTH_ACCEPTS, bytes, (size_t)count);
    ck_assert_int_ne(pair->errors[1].code, 0);
    ck_assert_msg(strstr(pair->errors[1].text, others[_i].piece), "%s", pair->errors[1].text);
    const void *said;
    ck_assert_uint_gt(tls_output(pair->sides[1], &said), 0); /* an alert */
    SSL_free(ssl);
    SSL_CTX_free(context);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tls");
    TCase *cases = tcase_create("tls");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_set_timeout(cases, 60);
    tcase_add_loop_test(cases, test_open, 0, sizeof(pieces) / sizeof(pieces[0]));
    tcase_add_test(cases, test_large);
    tcase_add_test(cases, test_export);
    tcase_add_test(cases, test_rotation);
    tcase_add_test(cases, test_credentials_change);
    tcase_add_loop_test(cases, test_other_secret, 0, 2);
    tcase_add_loop_test(cases, test_name_of_the_secret, 0, 2);
    tcase_add_test(cases, test_replay);
    tcase_add_test(cases, test_reflection);
    tcase_add_test(cases, test_flipped_handshake);
    tcase_add_test(cases, test_cut_handshake);
    tcase_add_test(cases, test_changed_record);
    tcase_add_test(cases, test_other_connection);
    tcase_add_test(cases, test_garbage);
    tcase_add_test(cases, test_endless_handshake);
    tcase_add_loop_test(cases, test_other_tls, 0, 4);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
