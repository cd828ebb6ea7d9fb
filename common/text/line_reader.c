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
    char *newline = NULL;
    if (reader->length > reader->searched)
        newline = memchr(reader->data + reader->searched, '\n', reader->length - reader->searched);
    size_t end = newline ? (size_t)(newline - reader->data) + 1 : reader->length;
    reader->searched = end;
    if (end - reader->start > reader->line_bytes)
        return error_set(error, ERR_PROTOCOL, "a line of more than %zu bytes", reader->line_bytes);
    if (!newline)
        return 0;
    *line = reader->data + reader->start;
    *length = end - reader->start - 1;
    reader->start = end;
    if (*length > 0 && (*line)[*length - 1] == '\r')
        (*length)--;
    (*line)[*length] = '\0';
    return 1;
}
