#include "common/text/json_comments.h"

#include <stdbool.h>
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
    for (size_t at = 0; at < length; at++) {
        while (at < length && (copy[at] == ' ' || copy[at] == '\t'))
            at++;
        bool comment = at + 1 < length && copy[at] == '/' && copy[at + 1] == '/';
        for (; at < length && copy[at] != '\n'; at++) {
            if (comment)
                copy[at] = ' ';
        }
    }
    return copy;
}
