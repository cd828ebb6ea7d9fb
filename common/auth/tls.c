#include "common/auth/tls.h"

#include <stdlib.h>
#include <string.h>

#include "common/auth/openssl.h"

struct tls {
    SSL *ssl;
    BIO *in, *out; /* the ssl's */
    enum auth_role role;
    bool certificates;
    bool open;
    size_t received;        /* bytes */
    struct secrets secrets; /* until it is open */
    bool asked;             /* the other side has named a secret */
    int secret;             /* which one: its number; -1: none */
};

/* --- the secret as a pre-shared key */

static SSL_SESSION *tls_session(SSL *ssl, const struct secret *secret)
{
    static const unsigned char cipher_id[] = {0x13, 0x02}; /* TLS_AES_256_GCM_SHA384 */
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, cipher_id);
    SSL_SESSION *session = SSL_SESSION_new();
    if (cipher && session && SSL_SESSION_set1_master_key(session, secret->psk, 32) == 1 &&
        SSL_SESSION_set_cipher(session, cipher) == 1 &&
        SSL_SESSION_set1_id_context(session, (const unsigned char *)TLS_CONTEXT,
                                    strlen(TLS_CONTEXT)) == 1 &&
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1)
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

/* OpenSSL asks: as which, and with what, do we connect? */
static int tls_on_use(SSL *ssl, const EVP_MD *hash, const unsigned char **identity, size_t *bytes,
                      SSL_SESSION **session)
{
    struct tls *tls = SSL_get_app_data(ssl);
    const struct secret *secret = &tls->secrets.list[0];
    *session = tls_session(ssl, secret);
    if (!*session)
        return 0;
    if (hash && hash != SSL_CIPHER_get_handshake_digest(SSL_SESSION_get0_cipher(*session))) {
        /* The other side has chosen a cipher that is none of ours. */
        SSL_SESSION_free(*session);
        *session = NULL;
        return 0;
    }
    *identity = secret->identity;
    *bytes = SECRET_IDENTITY_BYTES;
    tls->secret = 0;
    return 1;
}

/* OpenSSL asks: what secret is that? */
static int tls_on_find(SSL *ssl, const unsigned char *identity, size_t bytes, SSL_SESSION **session)
{
    struct tls *tls = SSL_get_app_data(ssl);
    tls->asked = true;
    *session = NULL;
    for (uint32_t i = 0; i < tls->secrets.count && bytes == SECRET_IDENTITY_BYTES; i++) {
        if (memcmp(tls->secrets.list[i].identity, identity, bytes) != 0)
            continue;
        tls->secret = (int)i;
        *session = tls_session(ssl, &tls->secrets.list[i]);
        return *session != NULL;
    }
    return 1;
}

/* --- errors */

/* Why it failed, so that it can be mended on the right side. */
static int tls_failed(struct tls *tls, struct error *error)
{
    unsigned long last = ERR_peek_last_error();
    int reason = ERR_GET_REASON(last);
    long verified = SSL_get_verify_result(tls->ssl);
    const char *text = ERR_reason_error_string(last);
    ERR_clear_error();
    if (reason == ERR_R_MALLOC_FAILURE)
        return error_set(error, ERR_MEMORY, "no memory for TLS");
    /* The side that connects has been open for a moment when it hears of it. */
    if (reason == SSL_R_TLSV1_ALERT_UNKNOWN_CA || reason == SSL_R_SSLV3_ALERT_BAD_CERTIFICATE ||
        reason == SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED ||
        reason == SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE ||
        reason == SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED)
        return error_set(error, ERR_REFUSED, "it refuses our certificate: %s", text);
    if (tls->open)
        return error_set(error, ERR_PROTOCOL, "TLS: %s", text ? text : "unknown");
    if (!tls->certificates &&
        ((tls->asked && tls->secret < 0) || reason == SSL_R_BINDER_DOES_NOT_VERIFY ||
         (tls->role == AUTH_CONNECTS && reason == SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE)))
        return error_set(error, ERR_REFUSED, "it does not know the secret");
    if (!tls->certificates && reason == SSL_R_CERTIFICATE_VERIFY_FAILED)
        return error_set(error, ERR_REFUSED,
                         "it has a certificate, and this daemon a secret_file only");
    if (tls->role == AUTH_ACCEPTS && !tls->certificates && !tls->asked &&
        reason == SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM)
        return error_set(error, ERR_REFUSED,
                         "it shows no secret, and this daemon has a secret_file only");
    if (tls->certificates && reason == SSL_R_CERTIFICATE_VERIFY_FAILED)
        return error_set(error, ERR_REFUSED, "its certificate is not valid: %s",
                         X509_verify_cert_error_string(verified));
    if (tls->certificates && reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE)
        return error_set(error, ERR_REFUSED, "it has no certificate");
    return error_set(error, ERR_PROTOCOL, "TLS handshake: %s", text ? text : "unknown");
}

/* --- the connection */

/* 0 also while more bytes are needed. */
static int tls_shake(struct tls *tls, struct error *error)
{
    if (tls->open)
        return 0;
    ERR_clear_error();
    int result = SSL_do_handshake(tls->ssl);
    if (result != 1 && SSL_get_error(tls->ssl, result) == SSL_ERROR_WANT_READ)
        return 0;
    if (result != 1)
        return tls_failed(tls, error);
    /* OpenSSL has seen to it; a mistake in how it is used shall not let anybody in. */
    bool known = tls->certificates ? SSL_get0_peer_certificate(tls->ssl) &&
                                         SSL_get_verify_result(tls->ssl) == X509_V_OK
                                   : SSL_session_reused(tls->ssl) && tls->secret >= 0;
    if (!known || SSL_version(tls->ssl) != TLS1_3_VERSION)
        return error_set(error, ERR_REFUSED, "it has not proved who it is");
    tls->open = true;
    secrets_clear(&tls->secrets);
    return 0;
}

struct tls *tls_create(const struct credentials *credentials, enum auth_role role)
{
    struct tls *tls = calloc(1, sizeof(*tls));
    if (!tls)
        return NULL;
    struct error error = {0};
    tls->role = role;
    tls->certificates = credentials->certificates;
    tls->secret = -1;
    tls->ssl = SSL_new(credentials->contexts[role]);
    tls->in = BIO_new(BIO_s_mem());
    tls->out = BIO_new(BIO_s_mem());
    if (!tls->ssl || !tls->in || !tls->out) {
        BIO_free(tls->in);
        BIO_free(tls->out);
        SSL_free(tls->ssl);
        free(tls);
        return NULL;
    }
    BIO_set_mem_eof_return(tls->in, -1); /* more may come */
    SSL_set_bio(tls->ssl, tls->in, tls->out);
    SSL_set_app_data(tls->ssl, tls);
    if (!tls->certificates) {
        tls->secrets = credentials->secrets;
        SSL_set_psk_use_session_callback(tls->ssl, tls_on_use);
        SSL_set_psk_find_session_callback(tls->ssl, tls_on_find);
    }
    if (role == AUTH_ACCEPTS) {
        SSL_set_accept_state(tls->ssl);
    } else {
        SSL_set_connect_state(tls->ssl);
        if (tls_shake(tls, &error) < 0) {
            tls_free(tls);
            return NULL;
        }
    }
    return tls;
}

void tls_free(struct tls *tls)
{
    if (!tls)
        return;
    SSL_free(tls->ssl);
    secrets_clear(&tls->secrets);
    free(tls);
}

int tls_receive(struct tls *tls, const void *bytes, size_t count, struct error *error)
{
    if (!tls->open && tls->received > TLS_HANDSHAKE_BYTES)
        return error_set(error, ERR_PROTOCOL, "a TLS handshake of more than %u bytes",
                         TLS_HANDSHAKE_BYTES);
    tls->received += count;
    if (BIO_write(tls->in, bytes, (int)count) != (int)count)
        return error_set(error, ERR_MEMORY, "no memory for TLS");
    return tls_shake(tls, error);
}

int tls_read(struct tls *tls, void *bytes, size_t room, struct error *error)
{
    if (!tls->open)
        return 0;
    ERR_clear_error();
    int count = SSL_read(tls->ssl, bytes, (int)room);
    if (count > 0)
        return count;
    switch (SSL_get_error(tls->ssl, count)) {
    case SSL_ERROR_WANT_READ:
        return 0;
    case SSL_ERROR_ZERO_RETURN:
        return error_set(error, ERR_DISCONNECTED, "connection closed");
    default:
        return tls_failed(tls, error);
    }
}

bool tls_is_open(const struct tls *tls)
{
    return tls->open;
}

int tls_write(struct tls *tls, const void *bytes, size_t count, struct error *error)
{
    ERR_clear_error();
    /* To memory: all at once. */
    if (count == 0 || SSL_write(tls->ssl, bytes, (int)count) == (int)count)
        return 0;
    return tls_failed(tls, error);
}

size_t tls_output(struct tls *tls, const void **bytes)
{
    char *start = NULL;
    long count = BIO_get_mem_data(tls->out, &start);
    *bytes = start ? start : "";
    return count > 0 ? (size_t)count : 0;
}

void tls_output_taken(struct tls *tls)
{
    (void)BIO_reset(tls->out);
}

bool tls_names(const struct tls *tls, const char *node)
{
    return !tls->certificates || credentials_names(SSL_get0_peer_certificate(tls->ssl), node);
}

int tls_secret(const struct tls *tls)
{
    return tls->secret;
}

int tls_export(struct tls *tls, enum auth_role sender, uint8_t key[TLS_KEY_BYTES],
               struct error *error)
{
    static const char label[] = "EXPORTER-shoal-data";
    const char *context = sender == AUTH_CONNECTS ? "connects" : "accepts";
    ERR_clear_error();
    if (!tls->open ||
        SSL_export_keying_material(tls->ssl, key, TLS_KEY_BYTES, label, sizeof(label) - 1,
                                   (const unsigned char *)context, strlen(context), 1) != 1)
        return error_set(error, ERR_SYSTEM, "TLS gives no keys for the data");
    return 0;
}
