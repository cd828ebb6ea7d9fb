/* Authorities and certificates of nodes, made for a test. */
#ifndef TESTS_LIB_CERTIFICATES_H
#define TESTS_LIB_CERTIFICATES_H

#include <stdbool.h>

struct authority;

struct authority *authority_make(const char *name);
void authority_free(struct authority *authority);
/* Its certificate, added to the PEM file. */
void authority_write(const struct authority *authority, const char *path);

/* A certificate and its key (mode 0600) into two PEM files, in place of what is there. days: how
 * long it holds from now on; negative: it has ended so long ago. */
void certificate_write(const struct authority *authority, const char *node, int days,
                       const char *certificate_path, const char *key_path);

#endif
