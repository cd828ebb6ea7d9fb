/* Credentials: things by which a daemon proves to others who it is, and checks who they are. They
 * are secrets, or a certificate, its key and the authority that signs the certificates of the
 * roster. Calls common/base, common/config. */
#ifndef COMMON_AUTH_CREDENTIALS_H
#define COMMON_AUTH_CREDENTIALS_H

#include <stdbool.h>

#include "common/auth/auth.h"
#include "common/auth/secret.h"
#include "common/base/error.h"
#include "common/config/config.h"

struct ssl_ctx_st; /* SSL_CTX and X509 of OpenSSL */
struct x509_st;

#define TLS_CONTEXT "shoal" /* OpenSSL's id of a context, which its sessions have too */

struct credentials {
    struct secrets secrets;
    bool encrypt;                   /* connections are TLS; false: in the clear */
    bool certificates;              /* TLS by certificates; false: by the secrets */
    struct ssl_ctx_st *contexts[2]; /* [enum auth_role], when `encrypt` */
};

/* Load the files that the configuration names. ERR_CONFIG names the file and what is wrong;
 * ERR_MEMORY, ERR_SYSTEM. After an error *credentials is as it was. Otherwise the earlier content
 * is cleared, and connections that use it go on with it. Begin with a zeroed struct. */
int credentials_load(struct credentials *credentials, const struct config *config,
                     struct error *error);
/* Set the credentials from secrets that are there already, without files; errors as in
 * credentials_load. */
int credentials_set(struct credentials *credentials, const struct secrets *secrets, bool encrypt,
                    struct error *error);
void credentials_clear(struct credentials *credentials);
/* Whether others than local processes can be told apart: beyond loopback nobody is served without.
 */
bool credentials_present(const struct credentials *credentials);
/* Whether a subject alternative name of the certificate is the node's name, exactly. */
bool credentials_names(const struct x509_st *certificate, const char *node);

#endif
