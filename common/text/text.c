#include "common/text/text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

void text_add(struct text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int wanted = vsnprintf(text->at + text->length, text->room - text->length, format, arguments);
    va_end(arguments);
    if (wanted < 0)
        return;
    size_t room = text->room - text->length - 1;
    text->length += (size_t)wanted < room ? (size_t)wanted : room;
}

void text_add_ranks(struct text *text, const uint32_t *ranks, uint32_t count, uint32_t named)
{
    text_add(text, count == 1 ? "rank" : "ranks");
    for (uint32_t i = 0; i < count && i < named; i++)
        text_add(text, i == 0 ? " %" PRIu32 : ", %" PRIu32, ranks[i]);
    if (count > named)
        text_add(text, " and %" PRIu32 " more", count - named);
}
