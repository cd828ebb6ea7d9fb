/* Secrets and certificates from files, and TLS by certificates. */
#include "common/auth/credentials.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/auth/tls.h"
#include "tests/lib/certificates.h"
#include "tests/lib/suite.h"
#include "tests/lib/tls_pair.h"

static char *directory;
static struct config configs[2];
static struct credentials credentials[2];
static struct authority *authority, *foreign;
static struct tls_pair *pair;

static void setup(void)
{
    struct error error;
    ck_assert_int_eq(auth_init(&error), 0);
    directory = suite_make_directory();
    authority = authority_make("the authority");
    foreign = authority_make("another authority");
    for (int i = 0; i < 2; i++) {
        struct config *config = &configs[i];
        config_defaults(config);
        snprintf(config->node, sizeof(config->node), "%s", i ? "gpu-2.Cluster" : "gpu_1");
        snprintf(config->protect, sizeof(config->protect), "encrypt");
        snprintf(config->certificate_file, CONFIG_PATH_BYTES, "%.200s/%d.crt", directory, i);
        snprintf(config->key_file, CONFIG_PATH_BYTES, "%.200s/%d.key", directory, i);
        snprintf(config->authority_file, CONFIG_PATH_BYTES, "%.200s/%d.authority", directory, i);
        authority_write(authority, config->authority_file);
        certificate_write(authority, config->node, 10, config->certificate_file, config->key_file);
    }
    pair = malloc(sizeof(*pair));
}

static void teardown(void)
{
    free(pair);
    for (int i = 0; i < 2; i++) {
        credentials_clear(&credentials[i]);
        config_clear(&configs[i]);
    }
    authority_free(authority);
    authority_free(foreign);
    suite_remove_directory(directory);
}

static void load(int i)
{
    struct error error = {0};
    ck_assert_msg(credentials_load(&credentials[i], &configs[i], &error) == 0, "%s", error.text);
}

static void run(void)
{
    tls_pair_create(pair, &credentials[0], &credentials[1]);
    tls_pair_run(pair, 1000);
}

/* Check that neither is told anything, and that each refuses with these words. */
static void expect_refused(const char *connects, const char *accepts)
{
    const char *const pieces[] = {connects, accepts};
    run();
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_eq(pair->count[i], 0);
        ck_assert_msg(pair->errors[i].code && strstr(pair->errors[i].text, pieces[i]), "%d: %s", i,
                      pair->errors[i].text);
    }
    tls_pair_free(pair);
}

/* The file is wrong, the error names it, and what was loaded stays. */
static void expect_wrong(const char *path, const char *piece)
{
    struct error error = {0};
    struct credentials before = credentials[0];
    ck_assert_int_eq(credentials_load(&credentials[0], &configs[0], &error), ERR_CONFIG);
    ck_assert_msg(strstr(error.text, path) && strstr(error.text, piece), "%s", error.text);
    ck_assert_mem_eq(&before, &credentials[0], sizeof(before));
}

static void write_text(const char *path, const char *text, mode_t mode)
{
    unlink(path);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    ck_assert_int_eq(chmod(path, mode), 0);
}

START_TEST(test_open)
{
    load(0);
    load(1);
    ck_assert(credentials_present(&credentials[0]));
    run();
    tls_pair_expect_open(pair);
    ck_assert(tls_names(pair->sides[0], "gpu-2.Cluster"));
    ck_assert(tls_names(pair->sides[1], "gpu_1"));
    ck_assert(tls_names(pair->sides[1], "another"));
    static const char *const others[] = {
        "gpu-2.cluster", "gpu-2.Cluste", "gpu-2.Clusters",  "", "GPU-2.CLUSTER",
        "a node",        "gpu_1",        "x.gpu-2.Cluster", "*"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        ck_assert_msg(!tls_names(pair->sides[0], others[i]), "%s", others[i]);
    ck_assert_int_eq(tls_secret(pair->sides[0]), -1);
    uint8_t keys[2][TLS_KEY_BYTES];
    struct error error;
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(tls_export(pair->sides[i], AUTH_ACCEPTS, keys[i], &error), 0);
    ck_assert_mem_eq(keys[0], keys[1], TLS_KEY_BYTES);
    tls_pair_free(pair);
}
END_TEST

/* An authority is changed: both are trusted, certificates are replaced, the old one is dropped. */
START_TEST(test_rotation)
{
    load(0);
    load(1);
    authority_write(foreign, configs[0].authority_file);
    load(0);
    authority_write(foreign, configs[1].authority_file);
    load(1);
    for (int i = 0; i < 2; i++) {
        certificate_write(foreign, configs[i].node, 10, configs[i].certificate_file,
                          configs[i].key_file);
        load(i);
        run();
        tls_pair_expect_open(pair);
        tls_pair_free(pair);
    }
    for (int i = 0; i < 2; i++) {
        unlink(configs[i].authority_file);
        authority_write(foreign, configs[i].authority_file);
        load(i);
    }
    run();
    tls_pair_expect_open(pair);
    tls_pair_free(pair);
}
END_TEST

START_TEST(test_other_authority)
{
    load(0);
    unlink(configs[1].authority_file);
    authority_write(foreign, configs[1].authority_file);
    certificate_write(foreign, configs[1].node, 10, configs[1].certificate_file,
                      configs[1].key_file);
    load(1);
    expect_refused("its certificate is not valid: ", "it refuses our certificate");
}
END_TEST

/* The side that connects trusts both authorities, and is not trusted. */
START_TEST(test_other_authority_connects)
{
    certificate_write(foreign, configs[0].node, 10, configs[0].certificate_file,
                      configs[0].key_file);
    authority_write(foreign, configs[0].authority_file);
    load(0);
    load(1);
    expect_refused("it refuses our certificate", "its certificate is not valid: ");
}
END_TEST

START_TEST(test_certificate_and_secret)
{
    struct error error = {0};
    struct secrets secrets = tls_pair_secrets(1, 0);
    load(0);
    ck_assert_int_eq(credentials_set(&credentials[1], &secrets, true, &error), 0);
    expect_refused("TLS", "it shows no secret, and this daemon has a secret_file only");
    load(1);
    ck_assert_int_eq(credentials_set(&credentials[0], &secrets, true, &error), 0);
    expect_refused("it has a certificate, and this daemon a secret_file only",
                   "it refuses our certificate");
}
END_TEST

START_TEST(test_wrong_certificate)
{
    load(0);
    certificate_write(authority, "gpu_2", 10, configs[0].certificate_file, configs[0].key_file);
    expect_wrong(configs[0].certificate_file, "is \"gpu_1\", this node's name");
    certificate_write(authority, "gpu_1", -1, configs[0].certificate_file, configs[0].key_file);
    expect_wrong(configs[0].certificate_file, "certificate has expired");
    certificate_write(foreign, "gpu_1", 10, configs[0].certificate_file, configs[0].key_file);
    expect_wrong(configs[0].certificate_file, "is not valid by authority file");
    certificate_write(authority, "gpu_1", 10, configs[0].certificate_file, configs[1].key_file);
    expect_wrong(configs[0].key_file, "does not fit the certificate");
    write_text(configs[0].certificate_file, "not PEM\n", 0644);
    expect_wrong(configs[0].certificate_file, "has no certificate that can be read");
    write_text(configs[0].certificate_file,
               "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", 0644);
    expect_wrong(configs[0].certificate_file, "has no certificate that can be read");
    unlink(configs[0].certificate_file);
    expect_wrong(configs[0].certificate_file, "cannot be opened: No such file");
    ck_assert_int_eq(mkfifo(configs[0].certificate_file, 0600), 0); /* does not block */
    expect_wrong(configs[0].certificate_file, "is not a regular file");
}
END_TEST

START_TEST(test_wrong_key)
{
    load(0);
    ck_assert_int_eq(chmod(configs[0].key_file, 0640), 0);
    expect_wrong(configs[0].key_file, "group and others must not read it");
    write_text(configs[0].key_file, "not PEM\n", 0600);
    expect_wrong(configs[0].key_file, "no key that can be read without a passphrase");
    write_text(configs[0].key_file,
               "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGb\n-----END ENCRYPTED PRIVATE KEY-----\n",
               0600);
    expect_wrong(configs[0].key_file, "no key that can be read without a passphrase");
    unlink(configs[0].authority_file);
    expect_wrong(configs[0].authority_file, "cannot be opened");
    write_text(configs[0].authority_file, "", 0644);
    expect_wrong(configs[0].authority_file, "has no certificate");
}
END_TEST

static void only_secret(const char *text)
{
    configs[0].certificate_file[0] = configs[0].key_file[0] = configs[0].authority_file[0] = '\0';
    snprintf(configs[0].secret_file, CONFIG_PATH_BYTES, "%.200s/secret", directory);
    write_text(configs[0].secret_file, text, 0600);
}

/* Secrets are read anew; a wrong file keeps the old ones. */
START_TEST(test_secret)
{
    struct secrets before;
    only_secret("0123456789abcdef0123456789abcdef0123456789abcdef\n");
    load(0);
    before = credentials[0].secrets;
    ck_assert(credentials[0].encrypt && !credentials[0].certificates);
    ck_assert_uint_eq(before.count, 1);
    only_secret("short\n");
    expect_wrong(configs[0].secret_file, "5 characters");
    only_secret("0123456789abcdef0123456789abcdef0123456789abcdef\n"
                "fedcba9876543210fedcba9876543210fedcba9876543210\n");
    load(0);
    ck_assert_uint_eq(credentials[0].secrets.count, 2);
    ck_assert_mem_eq(&credentials[0].secrets.list[0], &before.list[0], sizeof(struct secret));
}
END_TEST

START_TEST(test_clear_text)
{
    struct error error = {0};
    only_secret("0123456789abcdef0123456789abcdef0123456789abcdef\n");
    snprintf(configs[0].protect, sizeof(configs[0].protect), "none");
    load(0);
    ck_assert(credentials_present(&credentials[0]) && !credentials[0].encrypt);
    configs[0].secret_file[0] = '\0';
    load(0);
    ck_assert(!credentials_present(&credentials[0]));
    snprintf(configs[0].protect, sizeof(configs[0].protect), "encrypt");
    ck_assert_int_eq(credentials_load(&credentials[0], &configs[0], &error), ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(error.text, "needs a secret_file"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("credentials");
    TCase *cases = tcase_create("credentials");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_open);
    tcase_add_test(cases, test_rotation);
    tcase_add_test(cases, test_other_authority);
    tcase_add_test(cases, test_other_authority_connects);
    tcase_add_test(cases, test_certificate_and_secret);
    tcase_add_test(cases, test_wrong_certificate);
    tcase_add_test(cases, test_wrong_key);
    tcase_add_test(cases, test_secret);
    tcase_add_test(cases, test_clear_text);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
