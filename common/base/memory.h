/* Memory for small records without which nothing can be reported or ordered: an event, a command.
 * Their size is bounded by what was already accepted, they are small, and an error about their lack
 * could not be told either. Memory that grows with what peers and workers ask for does not come
 * from here: it has limits and is refused with ERR_MEMORY. */
#ifndef COMMON_BASE_MEMORY_H
#define COMMON_BASE_MEMORY_H

#include <stddef.h>

/* `count` zeroed items (0 is allowed) of `item_bytes` bytes; the caller frees them. Never NULL:
 * when there is no memory, writes a line that names `what` on stderr and aborts. */
void *memory_require(size_t count, size_t item_bytes, const char *what);

#endif
