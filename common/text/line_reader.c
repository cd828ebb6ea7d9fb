#include "common/text/line_reader.h"

#include <stdlib.h>
#include <string.h>

void line_reader_init(struct line_reader *reader, size_t line_bytes)
{
    *reader = (struct line_reader){.line_bytes = line_bytes};
}

void line_reader_clear(struct line_reader *reader)
{
    free(reader->data);
    line_reader_init(reader, reader->line_bytes);
}

int line_reader_feed(struct line_reader *reader, const void *bytes, size_t count,
                     struct error *error)
{
    if (reader->start > 0) {
        reader->length -= reader->start;
        reader->searched -= reader->start;
        if (reader->length > 0)
            memmove(reader->data, reader->data + reader->start, reader->length);
        reader->start = 0;
    }
    if (count == 0)
        return 0;
    if (reader->capacity - reader->length < count) {
        size_t capacity = reader->length + count + 4096;
        char *data = realloc(reader->data, capacity);
        if (!data)
            return error_set(error, ERR_MEMORY, "no memory for a line of %zu bytes", capacity);
        reader->data = data;
        reader->capacity = capacity;
    }
    memcpy(reader->data + reader->length, bytes, count);
    reader->length += count;
    return 0;
}

int line_reader_next(struct line_reader *reader, char **line, size_t *length, struct error *error)
{
    size_t limit =
        reader->once_bytes > reader->line_bytes ? reader->once_bytes : reader->line_bytes;
    char *newline = NULL;
    if (reader->length > reader->searched)
        newline = memchr(reader->data + reader->searched, '\n', reader->length - reader->searched);
    size_t end = newline ? (size_t)(newline - reader->data) + 1 : reader->length;
    /* Up to the newline, which is looked for again when the line has been allowed more. */
    reader->searched = newline ? end - 1 : end;
    if (end - reader->start > limit)
        return error_set(error, ERR_PROTOCOL, "a line of more than %zu bytes", limit);
    if (!newline)
        return 0;
    *line = reader->data + reader->start;
    *length = end - reader->start - 1;
    reader->start = reader->searched = end;
    reader->once_bytes = 0;
    if (*length > 0 && (*line)[*length - 1] == '\r')
        (*length)--;
    (*line)[*length] = '\0';
    return 1;
}

size_t line_reader_head(const struct line_reader *reader, const char **head)
{
    *head = reader->data + reader->start;
    return reader->length - reader->start;
}

void line_reader_allow(struct line_reader *reader, size_t bytes)
{
    reader->once_bytes = bytes;
}

void line_reader_trim(struct line_reader *reader)
{
    size_t once_bytes = reader->once_bytes;
    if (reader->start < reader->length || !reader->data)
        return;
    line_reader_clear(reader);
    reader->once_bytes = once_bytes;
}
