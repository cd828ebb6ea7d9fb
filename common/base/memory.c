#include "common/base/memory.h"

#include <stdio.h>
#include <stdlib.h>

void *memory_require(size_t count, size_t item_bytes, const char *what)
{
    void *memory = calloc(count ? count : 1, item_bytes);
    if (memory)
        return memory;
    fprintf(stderr, "out of memory: no room for %s (%zu x %zu bytes)\n", what, count, item_bytes);
    abort();
}
