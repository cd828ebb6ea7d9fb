#include "common/auth/auth.h"

#include <stdio.h>

#include "tests/lib/suite.h"

static void setup(void)
{
    struct error error;
    ck_assert_int_eq(auth_init(&error), 0);
}

/* Every input counts. */
START_TEST(test_mac)
{
    struct secret secret, other;
    static const uint8_t keys[2][SECRET_KEY_BYTES] = {{0}, {1}};
    secret_from_key(&secret, keys[0]);
    secret_from_key(&other, keys[1]);
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
    /* Without a secret the key is zero. */
    auth_mac(mac[7], NULL, AUTH_CONNECTS, "a", "b", nonce_a, nonce_b);
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
    /* The interface is the reader's own, the address behind it is not. */
    static const char *const addresses[] = {"fe80::1%eth0", "fe80::1%eth1", "fe80::2%eth0"};
    for (int i = 0; i < 3; i++) {
        strcpy(servers[0].address, addresses[i]);
        auth_roster_hash(i ? hash : first, &config);
        ck_assert_int_eq(i == 0 || memcmp(first, hash, sizeof(hash)) == 0, i < 2);
    }
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
    tcase_add_checked_fixture(cases, setup, NULL);
    tcase_add_test(cases, test_mac);
    tcase_add_test(cases, test_random);
    tcase_add_test(cases, test_roster_hash);
    tcase_add_test(cases, test_home);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
