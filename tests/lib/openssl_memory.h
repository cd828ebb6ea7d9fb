/* OpenSSL's memory, which can be refused. */
#ifndef TESTS_LIB_OPENSSL_MEMORY_H
#define TESTS_LIB_OPENSSL_MEMORY_H

#include <stdbool.h>

/* First in main(). False: OpenSSL has memory already. */
bool openssl_memory_begin(void);
void openssl_memory_refuse(bool refuse);

#endif
