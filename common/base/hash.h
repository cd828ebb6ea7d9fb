/* Hash tables (uthash). An element for which there is no memory in its table is not added, which
 * whoever adds one has to look at; by itself uthash would end the process. */
#ifndef COMMON_BASE_HASH_H
#define COMMON_BASE_HASH_H

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

/* Whether the last HASH_ADD of it, by its handle `hh`, has added it. */
#define HASH_IS_ADDED(element) ((element)->hh.tbl != NULL)

#endif
