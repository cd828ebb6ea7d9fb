#include "common/auth/credentials.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/auth/openssl.h"

#define CERTIFICATES_MOST 64     /* in a file */
#define CHAIN_BYTES (32 * 1024L) /* that another may show */

/* OpenSSL's newest reason, or why not. */
static const char *credentials_reason(void)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    return reason ? reason : "it is not PEM";
}

/* A stream over the file, which the caller frees; NULL: the error says why. */
static BIO *credentials_open(const char *path, const char *what, bool is_private,
                             struct error *error)
{
    int fd = secret_open_file(path, what, is_private, error);
    if (fd < 0)
        return NULL;
    FILE *file = fdopen(fd, "r");
    BIO *bio = file ? BIO_new_fp(file, BIO_CLOSE) : NULL;
    if (bio)
        return bio;
    if (file)
        fclose(file);
    else
        close(fd);
    error_set(error, ERR_MEMORY, "no memory for %s %s", what, path);
    return NULL;
}

/* Nobody is asked for a passphrase. */
static int credentials_no_passphrase(char *text, int size, int is_writing, void *context)
{
    (void)text, (void)size, (void)is_writing, (void)context;
    return -1;
}

static bool credentials_take_authority(SSL_CTX *context, X509 *certificate)
{
    return X509_STORE_add_cert(SSL_CTX_get_cert_store(context), certificate) == 1;
}

/* The first is ours, others lead from it to the authority. */
static bool credentials_take_own(SSL_CTX *context, X509 *certificate)
{
    if (!SSL_CTX_get0_certificate(context))
        return SSL_CTX_use_certificate(context, certificate) == 1;
    return SSL_CTX_add1_chain_cert(context, certificate) == 1;
}

/* All certificates of a PEM file. */
static int credentials_read(SSL_CTX *context, const char *path, const char *what,
                            bool (*take)(SSL_CTX *context, X509 *certificate), struct error *error)
{
    BIO *bio = credentials_open(path, what, false, error);
    if (!bio)
        return error->code;
    int count = 0, result = 0;
    ERR_clear_error();
    while (result == 0) {
        X509 *certificate = PEM_read_bio_X509(bio, NULL, credentials_no_passphrase, NULL);
        if (!certificate)
            break;
        if (++count > CERTIFICATES_MOST)
            result = error_set(error, ERR_CONFIG, "%s %s has more than %d certificates", what, path,
                               CERTIFICATES_MOST);
        else if (!take(context, certificate))
            result = error_set(error, ERR_CONFIG, "%s %s cannot be used: %s", what, path,
                               credentials_reason());
        X509_free(certificate);
    }
    unsigned long last = ERR_peek_last_error();
    bool over = count > 0 && ERR_GET_REASON(last) == PEM_R_NO_START_LINE;
    if (result == 0 && !over)
        result = error_set(error, ERR_CONFIG, "%s %s has no certificate that can be read: %s", what,
                           path, credentials_reason());
    ERR_clear_error();
    BIO_free(bio);
    return result;
}

static int credentials_read_key(SSL_CTX *context, const char *path, struct error *error)
{
    BIO *bio = credentials_open(path, "key file", true, error);
    if (!bio)
        return error->code;
    ERR_clear_error();
    EVP_PKEY *key = PEM_read_bio_PrivateKey(bio, NULL, credentials_no_passphrase, NULL);
    int result = 0;
    if (!key)
        result = error_set(error, ERR_CONFIG,
                           "key file %s has no key that can be read without a passphrase: %s", path,
                           credentials_reason());
    else if (SSL_CTX_use_PrivateKey(context, key) != 1)
        result = error_set(error, ERR_CONFIG, "key file %s does not fit the certificate: %s", path,
                           credentials_reason());
    EVP_PKEY_free(key);
    ERR_clear_error();
    BIO_free(bio);
    return result;
}

bool credentials_names(const X509 *certificate, const char *node)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    bool found = false;
    for (int i = 0; i < sk_GENERAL_NAME_num(names) && !found; i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        if (name->type != GEN_DNS)
            continue;
        size_t bytes = (size_t)ASN1_STRING_length(name->d.dNSName);
        /* Exactly: node names that differ in case are different nodes. */
        found = bytes == strlen(node) &&
                memcmp(ASN1_STRING_get0_data(name->d.dNSName), node, bytes) == 0;
    }
    GENERAL_NAMES_free(names);
    return found;
}

/* A certificate that others would refuse is refused here first. */
static int credentials_check(SSL_CTX *context, const struct config *config, struct error *error)
{
    X509 *certificate = SSL_CTX_get0_certificate(context);
    STACK_OF(X509) *chain = NULL;
    SSL_CTX_get0_chain_certs(context, &chain);
    if (!credentials_names(certificate, config->node))
        return error_set(error, ERR_CONFIG,
                         "certificate file %s: no subject alternative name (DNS) of the "
                         "certificate is \"%s\", this node's name",
                         config->certificate_file, config->node);
    /* The certificate has to serve on both sides. */
    static const int purposes[] = {X509_PURPOSE_SSL_CLIENT, X509_PURPOSE_SSL_SERVER};
    int result = 0;
    for (int i = 0; i < 2 && result == 0; i++) {
        X509_STORE_CTX *verify = X509_STORE_CTX_new();
        if (!verify ||
            X509_STORE_CTX_init(verify, SSL_CTX_get_cert_store(context), certificate, chain) != 1)
            result = error_set(error, ERR_MEMORY, "no memory for a certificate");
        else if (X509_STORE_CTX_set_purpose(verify, purposes[i]) != 1 ||
                 X509_verify_cert(verify) != 1)
            result = error_set(error, ERR_CONFIG,
                               "certificate file %s is not valid by authority file %s: %s",
                               config->certificate_file, config->authority_file,
                               X509_verify_cert_error_string(X509_STORE_CTX_get_error(verify)));
        X509_STORE_CTX_free(verify);
    }
    ERR_clear_error();
    return result;
}

/* TLS 1.3 with ephemeral keys and one cipher, without resumption. */
static SSL_CTX *credentials_context(enum auth_role role)
{
    SSL_CTX *context =
        SSL_CTX_new(role == AUTH_CONNECTS ? TLS_client_method() : TLS_server_method());
    if (!context)
        return NULL;
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION |
                                     SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_clear_options(context, SSL_OP_ALLOW_NO_DHE_KEX);
    SSL_CTX_set_max_cert_list(context, CHAIN_BYTES);
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    /* Without a certificate of one's own, or an authority, nothing but a secret passes. */
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    if (SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
        SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
        SSL_CTX_set_ciphersuites(context, "TLS_AES_256_GCM_SHA384") == 1 &&
        SSL_CTX_set1_groups_list(context, "X25519:P-256") == 1 &&
        SSL_CTX_set_num_tickets(context, 0) == 1 &&
        SSL_CTX_set_session_id_context(context, (const unsigned char *)TLS_CONTEXT,
                                       strlen(TLS_CONTEXT)) == 1)
        return context;
    SSL_CTX_free(context);
    return NULL;
}

static int credentials_make_contexts(struct credentials *credentials, struct error *error)
{
    for (int role = AUTH_CONNECTS; role <= AUTH_ACCEPTS; role++) {
        ERR_clear_error();
        credentials->contexts[role] = credentials_context(role);
        if (!credentials->contexts[role])
            return error_set(error, ERR_SYSTEM, "OpenSSL cannot be initialised: %s",
                             credentials_reason());
    }
    return 0;
}

static int credentials_load_certificates(struct credentials *credentials,
                                         const struct config *config, struct error *error)
{
    int result = 0;
    for (int role = AUTH_CONNECTS; role <= AUTH_ACCEPTS && result == 0; role++) {
        SSL_CTX *context = credentials->contexts[role];
        result = credentials_read(context, config->authority_file, "authority file",
                                  credentials_take_authority, error);
        if (result == 0)
            result = credentials_read(context, config->certificate_file, "certificate file",
                                      credentials_take_own, error);
        if (result == 0)
            result = credentials_read_key(context, config->key_file, error);
        if (result == 0)
            result = credentials_check(context, config, error);
    }
    credentials->certificates = true;
    return result;
}

/* Replace `credentials` by `made`, whose content moves, if `result` is 0; else drop `made`. Return
 * `result`. */
static int credentials_take(struct credentials *credentials, struct credentials *made, int result)
{
    if (result == 0) {
        credentials_clear(credentials);
        *credentials = *made;
        secrets_clear(&made->secrets);
    } else {
        credentials_clear(made);
    }
    return result;
}

int credentials_load(struct credentials *credentials, const struct config *config,
                     struct error *error)
{
    struct credentials made = {.encrypt = config_encrypts(config)};
    int result = secrets_load(&made.secrets, config->secret_file, error);
    if (result == 0 && made.encrypt && made.secrets.count == 0 && !config->certificate_file[0])
        result = error_set(error, ERR_CONFIG, "protect \"encrypt\" needs a secret_file");
    if (result == 0 && made.encrypt)
        result = credentials_make_contexts(&made, error);
    if (result == 0 && made.encrypt && config->certificate_file[0])
        result = credentials_load_certificates(&made, config, error);
    return credentials_take(credentials, &made, result);
}

int credentials_set(struct credentials *credentials, const struct secrets *secrets, bool encrypt,
                    struct error *error)
{
    struct credentials made = {.encrypt = encrypt, .secrets = *secrets};
    int result = encrypt ? credentials_make_contexts(&made, error) : 0;
    return credentials_take(credentials, &made, result);
}

void credentials_clear(struct credentials *credentials)
{
    for (int role = AUTH_CONNECTS; role <= AUTH_ACCEPTS; role++)
        SSL_CTX_free(credentials->contexts[role]);
    secrets_clear(&credentials->secrets);
    *credentials = (struct credentials){.encrypt = false};
}

bool credentials_present(const struct credentials *credentials)
{
    return credentials->secrets.count > 0 || credentials->certificates;
}
