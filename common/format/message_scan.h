/* A look at a line before it is parsed: a parser builds whatever nest it is given, and takes time
 * and memory for it, so what no message has is refused first. Calls common/base. */
#ifndef COMMON_FORMAT_MESSAGE_SCAN_H
#define COMMON_FORMAT_MESSAGE_SCAN_H

#include <stddef.h>

#include "common/base/error.h"

#define MESSAGE_DEPTH_MAX 3u    /* {"positions":[[0,1]]} */
#define MESSAGE_OBJECTS_MAX 16u /* a message is one; unknown keys may have some */

/* ERR_PROTOCOL: nested deeper, or more objects. Whether it is JSON is the parser's to say. */
int message_scan(const char *line, size_t length, struct error *error);

#endif
