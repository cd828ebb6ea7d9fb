#include "common/format/message_scan.h"

#include <stdint.h>

/* Behind the string that begins at line[at], or at the line's end. */
static size_t scan_string(const char *line, size_t length, size_t at)
{
    for (at++; at < length && line[at] != '"'; at++)
        at += line[at] == '\\';
    return at;
}

int message_scan(const char *line, size_t length, struct error *error)
{
    uint32_t depth = 0, objects = 0;
    for (size_t at = 0; at < length; at++) {
        switch (line[at]) {
        case '"':
            at = scan_string(line, length, at);
            break;
        case '{':
            objects++;
            depth++;
            break;
        case '[':
            depth++;
            break;
        case '}':
        case ']':
            depth -= depth > 0;
            break;
        default:
            break;
        }
        if (depth > MESSAGE_DEPTH_MAX)
            return error_set(error, ERR_PROTOCOL, "a line nested more than %u deep",
                             MESSAGE_DEPTH_MAX);
        if (objects > MESSAGE_OBJECTS_MAX)
            return error_set(error, ERR_PROTOCOL, "a line of more than %u objects",
                             MESSAGE_OBJECTS_MAX);
    }
    return 0;
}
