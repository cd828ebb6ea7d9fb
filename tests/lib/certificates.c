#include "tests/lib/certificates.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/auth/openssl.h"

#define DAY_S 86400

struct authority {
    EVP_PKEY *key;
    X509 *certificate;
};

static void certificate_extend(X509 *certificate, X509 *issuer, int kind, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, kind, value);
    ck_assert_ptr_nonnull(extension);
    ck_assert_int_eq(X509_add_ext(certificate, extension, -1), 1);
    X509_EXTENSION_free(extension);
}

static X509 *certificate_begin(const char *name, EVP_PKEY *key, int days)
{
    X509 *certificate = X509_new();
    uint8_t serial;
    ck_assert_ptr_nonnull(certificate);
    X509_set_version(certificate, X509_VERSION_3);
    FILE *random = fopen("/dev/urandom", "r");
    ck_assert_ptr_nonnull(random);
    ck_assert_int_eq(fread(&serial, 1, 1, random), 1);
    fclose(random);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial + 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -1000L * DAY_S);
    X509_gmtime_adj(X509_getm_notAfter(certificate), (long)days * DAY_S);
    X509_set_pubkey(certificate, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                               (const unsigned char *)name, -1, -1, 0);
    return certificate;
}

struct authority *authority_make(const char *name)
{
    struct authority *authority = calloc(1, sizeof(*authority));
    ck_assert_ptr_nonnull(authority);
    authority->key = EVP_EC_gen("P-256");
    ck_assert_ptr_nonnull(authority->key);
    X509 *certificate = certificate_begin(name, authority->key, 1000);
    X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
    certificate_extend(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE");
    certificate_extend(certificate, certificate, NID_key_usage, "critical,keyCertSign");
    certificate_extend(certificate, certificate, NID_subject_key_identifier, "hash");
    ck_assert_int_gt(X509_sign(certificate, authority->key, EVP_sha256()), 0);
    authority->certificate = certificate;
    return authority;
}

void authority_free(struct authority *authority)
{
    EVP_PKEY_free(authority->key);
    X509_free(authority->certificate);
    free(authority);
}

void authority_write(const struct authority *authority, const char *path)
{
    FILE *file = fopen(path, "a");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(PEM_write_X509(file, authority->certificate), 1);
    fclose(file);
}

void certificate_write(const struct authority *authority, const char *node, int days,
                       const char *certificate_path, const char *key_path)
{
    char names[300];
    EVP_PKEY *key = EVP_EC_gen("P-256");
    ck_assert_ptr_nonnull(key);
    X509 *certificate = certificate_begin("a node", key, days);
    X509_set_issuer_name(certificate, X509_get_subject_name(authority->certificate));
    snprintf(names, sizeof(names), "DNS:another,DNS:%s", node);
    certificate_extend(certificate, authority->certificate, NID_subject_alt_name, names);
    certificate_extend(certificate, authority->certificate, NID_ext_key_usage,
                       "clientAuth,serverAuth");
    ck_assert_int_gt(X509_sign(certificate, authority->key, EVP_sha256()), 0);
    FILE *file = fopen(certificate_path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(PEM_write_X509(file, certificate), 1);
    fclose(file);
    unlink(key_path);
    file = fopen(key_path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fchmod(fileno(file), 0600), 0);
    ck_assert_int_eq(PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL), 1);
    fclose(file);
    X509_free(certificate);
    EVP_PKEY_free(key);
}
