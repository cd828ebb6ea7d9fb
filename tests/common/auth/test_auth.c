#include "common/auth/auth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/suite.h"

static char *directory;
static char path[512];

static void setup(void)
{
    struct error error;
    ck_assert_int_eq(auth_init(&error), 0);
    directory = suite_make_directory();
    snprintf(path, sizeof(path), "%s/secret", directory);
}

static void teardown(void)
{
    suite_remove_directory(directory);
}

static void write_secret(const char *text, mode_t mode)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    ck_assert_int_eq(chmod(path, mode), 0);
}

static void expect_refused(const char *piece)
{
    struct auth_secret secret;
    struct error error = {0};
    ck_assert_int_eq(auth_secret_load(&secret, path, &error), ERR_CONFIG);
    ck_assert_int_eq(error.code, ERR_CONFIG);
    ck_assert(!secret.present);
    ck_assert_msg(strstr(error.text, piece) && strstr(error.text, path), "%s", error.text);
}

START_TEST(test_secret)
{
    struct auth_secret secret, same, other, none;
    struct error error;
    write_secret("sixteen bytes or more", 0600);
    ck_assert_int_eq(auth_secret_load(&secret, path, &error), 0);
    ck_assert(secret.present);
    write_secret("sixteen bytes or more \n\n", 0400);
    ck_assert_int_eq(auth_secret_load(&same, path, &error), 0);
    ck_assert_mem_eq(secret.key, same.key, sizeof(secret.key));
    ck_assert_int_eq(unlink(path), 0);
    write_secret("sixteen bytes or mort", 0600);
    ck_assert_int_eq(auth_secret_load(&other, path, &error), 0);
    ck_assert_mem_ne(secret.key, other.key, sizeof(secret.key));
    ck_assert_int_eq(auth_secret_load(&none, "", &error), 0);
    ck_assert(!none.present);
    auth_secret_clear(&secret);
    ck_assert(!secret.present);
}
END_TEST

START_TEST(test_secret_refused)
{
    char big[AUTH_SECRET_MOST_BYTES + 2];
    expect_refused("cannot be opened: No such file");
    ck_assert_int_eq(symlink(path, path), 0);
    expect_refused("cannot be opened: Too many levels");
    ck_assert_int_eq(unlink(path), 0);
    write_secret("sixteen bytes or more", 0640);
    expect_refused("mode 640: group and others must not read it");
    ck_assert_int_eq(unlink(path), 0);
    write_secret("too short\n\n\n\n\n\n\n\n\n\n\n", 0600);
    expect_refused("has fewer");
    memset(big, 'x', sizeof(big));
    big[sizeof(big) - 1] = '\0';
    write_secret(big, 0600);
    expect_refused("has more");
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    expect_refused("not a regular file");
    ck_assert_int_eq(rmdir(path), 0);
    ck_assert_int_eq(mkfifo(path, 0600), 0); /* does not block */
    expect_refused("not a regular file");
}
END_TEST

/* Every input counts. */
START_TEST(test_mac)
{
    struct auth_secret secret = {.present = true, .key = {1}},
                       other = {.present = true, .key = {2}};
    uint8_t nonce_a[AUTH_NONCE_BYTES] = {1}, nonce_b[AUTH_NONCE_BYTES] = {2};
    uint8_t mac[8][AUTH_MAC_BYTES];
    auth_mac(mac[0], &secret, AUTH_CONNECTS, "a", "b", nonce_a, nonce_b);
    auth_mac(mac[1], &secret, AUTH_ACCEPTS, "a", "b", nonce_a, nonce_b);
    auth_mac(mac[2], &other, AUTH_CONNECTS, "a", "b", nonce_a, nonce_b);
    auth_mac(mac[3], &secret, AUTH_CONNECTS, "b", "a", nonce_a, nonce_b);
    auth_mac(mac[4], &secret, AUTH_CONNECTS, "a", "b", nonce_b, nonce_a);
    auth_mac(mac[5], &secret, AUTH_CONNECTS, "ab", "", nonce_a, nonce_b);
    auth_mac(mac[6], &secret, AUTH_CONNECTS, "a", "b", nonce_a, nonce_a);
    auth_mac(mac[7], &secret, AUTH_CONNECTS, "a", "b", nonce_a, nonce_b);
    for (int i = 0; i < 7; i++) {
        for (int j = 0; j < i; j++)
            ck_assert(!auth_equal(mac[i], mac[j], AUTH_MAC_BYTES));
    }
    ck_assert(auth_equal(mac[0], mac[7], AUTH_MAC_BYTES));
}
END_TEST

START_TEST(test_random)
{
    uint8_t a[32] = {0}, b[32] = {0};
    auth_random(a, sizeof(a));
    auth_random(b, sizeof(b));
    ck_assert_mem_ne(a, b, sizeof(a));
}
END_TEST

START_TEST(test_roster_hash)
{
    struct config_server servers[2] = {
        {.name = "a", .address = "10.0.0.1", .port = 7701, .weight = 1},
        {.name = "b", .address = "10.0.0.2", .port = 7701, .weight = 1},
    };
    struct config config = {.servers = servers,
                            .server_count = 2,
                            .chunk_bytes = 65536,
                            .least_shard_bytes = 4096,
                            .window_chunks = 8};
    uint8_t first[AUTH_HASH_BYTES], hash[AUTH_HASH_BYTES];
    auth_roster_hash(first, &config);
    config.self = 1; /* whose it is does not matter */
    auth_roster_hash(hash, &config);
    ck_assert_mem_eq(first, hash, sizeof(hash));
    struct config_server swapped[2] = {servers[1], servers[0]};
    config.servers = swapped;
    auth_roster_hash(hash, &config);
    ck_assert_mem_ne(first, hash, sizeof(hash));
    config.servers = servers;
    uint32_t *numbers[] = {&config.chunk_bytes, &config.least_shard_bytes, &config.window_chunks,
                           &servers[1].weight};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        (*numbers[i])++;
        auth_roster_hash(hash, &config);
        ck_assert_mem_ne(first, hash, sizeof(hash));
        (*numbers[i])--;
    }
    servers[0].port++;
    auth_roster_hash(hash, &config);
    ck_assert_mem_ne(first, hash, sizeof(hash));
}
END_TEST

START_TEST(test_home)
{
    uint32_t count[5] = {0};
    for (int i = 0; i < 1000; i++) {
        char job[32];
        snprintf(job, sizeof(job), "job-%d", i);
        uint32_t home = auth_home_of_job(job, 5);
        ck_assert_uint_lt(home, 5);
        ck_assert_uint_eq(home, auth_home_of_job(job, 5));
        count[home]++;
    }
    for (int i = 0; i < 5; i++)
        ck_assert_uint_gt(count[i], 100);
    ck_assert_uint_eq(auth_home_of_job("train", 1), 0);
    /* BLAKE2b-256("train") begins with bytes that every version must take alike. */
    ck_assert_uint_eq(auth_home_of_job("train", 1000000), 371580);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("auth");
    TCase *cases = tcase_create("auth");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_secret);
    tcase_add_test(cases, test_secret_refused);
    tcase_add_test(cases, test_mac);
    tcase_add_test(cases, test_random);
    tcase_add_test(cases, test_roster_hash);
    tcase_add_test(cases, test_home);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
