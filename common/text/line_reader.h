/* Cuts a stream of bytes into lines. A line longer than its limit ends the stream: its sender
 * cannot be followed any more. The owner may allow one line more, when it has seen how that begins.
 * Calls common/base. */
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
    size_t once_bytes; /* of the line at `start` alone, where it is more; 0: it is not */
};

void line_reader_init(struct line_reader *reader, size_t line_bytes);
void line_reader_clear(struct line_reader *reader);

/* Take in bytes. ERR_MEMORY. Lines given out before are no longer valid. */
int line_reader_feed(struct line_reader *reader, const void *bytes, size_t count,
                     struct error *error);
/* 1 with the next line, NUL-terminated without its newline (and without a '\r' before it), valid
 * until the next feed; 0 when there is none yet; ERR_PROTOCOL when it is too long, and again. */
int line_reader_next(struct line_reader *reader, char **line, size_t *length, struct error *error);
/* The bytes that are there of the line that line_reader_next has not given out. */
size_t line_reader_head(const struct line_reader *reader, const char **head);
/* That line may have so many bytes. */
void line_reader_allow(struct line_reader *reader, size_t bytes);
/* Gives its memory back when all lines were given out and none has begun. */
void line_reader_trim(struct line_reader *reader);

#endif
