/* Copies of data that nobody reads soon, or that another core reads next. Calls nothing. */
#ifndef COMMON_MEMORY_COPY_H
#define COMMON_MEMORY_COPY_H

#include <stddef.h>

/* A cache line: what stores past the cache are made in. */
#define COPY_LINE_BYTES 64u
/* Results of so many bytes and more are stored past the cache, or by copy_result: whoever reads
 * them begins when all are there, and then little of it would be in a cache that others use too. */
#define COPY_PAST_CACHE_BYTES (4u << 20)

/* memcpy with stores that pass the cache by, where the processor has them: `to` is not read first,
 * and what the cache holds stays there. Dearer than memcpy when `to` is in the cache, or is read
 * before it would have been evicted. Such stores are in no order with later ones: copy_fence. */
void copy_past_cache(void *to, const void *from, size_t bytes);

/* memcpy of what nobody reads soon and whose stores are not to read `to` first: by the processor's
 * string moves where memcpy has fast ones (ERMS), which beat stores past the cache, else past the
 * cache. In order with later stores. */
void copy_result(void *to, const void *from, size_t bytes);

/* memcpy to where another core has read and will read again: its cache has those lines. To whole
 * lines, and of some size on, by string moves where these are fast, for they do not read the lines
 * first. */
void copy_to_reader(void *to, const void *from, size_t bytes);

/* After copy_past_cache: whoever sees what this thread does next sees what was copied, too. */
void copy_fence(void);

#endif
