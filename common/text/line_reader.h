/* Cuts a stream of bytes into lines. A line longer than MESSAGE_LINE_BYTES with its newline ends
 * the stream: its sender cannot be followed any more. Calls common/base. */
#ifndef COMMON_TEXT_LINE_READER_H
#define COMMON_TEXT_LINE_READER_H

#include <stddef.h>

#include "common/base/error.h"

struct line_reader {
    char *data;
    size_t start;    /* first byte not yet given out */
    size_t length;   /* bytes in data, from 0 */
    size_t searched; /* bytes known to hold no newline */
    size_t capacity;
    size_t line_bytes; /* limit of a line with its newline */
};

void line_reader_init(struct line_reader *reader, size_t line_bytes);
void line_reader_clear(struct line_reader *reader);

/* Take in bytes. ERR_MEMORY. Lines given out before are no longer valid. */
int line_reader_feed(struct line_reader *reader, const void *bytes, size_t count,
                     struct error *error);
/* 1 with the next line, NUL-terminated without its newline (and without a '\r' before it), valid
 * until the next feed; 0 when there is none yet; ERR_PROTOCOL when it is too long. */
int line_reader_next(struct line_reader *reader, char **line, size_t *length, struct error *error);

#endif
