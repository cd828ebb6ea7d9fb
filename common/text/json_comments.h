/* Comments in JSON: lines that begin with "//". */
#ifndef COMMON_TEXT_JSON_COMMENTS_H
#define COMMON_TEXT_JSON_COMMENTS_H

#include <stddef.h>

/* A copy with blanks in their place, so that everything else stays where it is, and a NUL behind
 * it; the caller frees it. NULL: out of memory. */
char *json_without_comments(const char *text, size_t length);

#endif
