/* The headers of OpenSSL. One of them has a type ERR_STATE, which it uses for itself; here that is
 * an error's code (common/base/error.h). */
#ifndef COMMON_AUTH_OPENSSL_H
#define COMMON_AUTH_OPENSSL_H

#define ERR_STATE OPENSSL_ERR_STATE
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#undef ERR_STATE

#endif
