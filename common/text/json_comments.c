#include "common/text/json_comments.h"

#include <stdlib.h>
#include <string.h>

char *json_without_comments(const char *text, size_t length)
{
    char *copy = malloc(length + 1);
    if (!copy)
        return NULL;
    memcpy(copy, text, length);
    copy[length] = '\0';
    /* No string of JSON goes over the end of a line, so none begins with what looks like this. */
    for (char *line = copy, *end = copy + length; line < end; line++) {
        while (line < end && (*line == ' ' || *line == '\t'))
            line++;
        char *newline = memchr(line, '\n', (size_t)(end - line));
        char *line_end = newline ? newline : end;
        if (line_end - line >= 2 && line[0] == '/' && line[1] == '/')
            memset(line, ' ', (size_t)(line_end - line));
        line = line_end;
    }
    return copy;
}
