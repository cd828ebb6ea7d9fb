/* Copies of data that nobody reads soon. */
#ifndef COMMON_COPY_H
#define COMMON_COPY_H

#include <stddef.h>

/* memcpy with stores that pass the cache by, where the processor has them: `to` is not read first,
 * and what the cache holds stays there. Dearer than memcpy when `to` is in the cache, or is read
 * before it would have been evicted. The bytes are there for whoever sees what the caller does
 * next. */
void copy_past_cache(void *to, const void *from, size_t bytes);

#endif
