#include "tests/lib/openssl_memory.h"

#include <stdlib.h>

#include "common/auth/openssl.h"

static bool refused;

static void *memory_allocate(size_t bytes, const char *file, int line)
{
    (void)file;
    (void)line;
    return refused ? NULL : malloc(bytes);
}

static void *memory_resize(void *memory, size_t bytes, const char *file, int line)
{
    (void)file;
    (void)line;
    return refused ? NULL : realloc(memory, bytes);
}

static void memory_free(void *memory, const char *file, int line)
{
    (void)file;
    (void)line;
    free(memory);
}

bool openssl_memory_begin(void)
{
    return CRYPTO_set_mem_functions(memory_allocate, memory_resize, memory_free) == 1;
}

void openssl_memory_refuse(bool refuse)
{
    refused = refuse;
}
