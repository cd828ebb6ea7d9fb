#include "common/base/shown.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const struct {
    uint32_t first, last;
} escaped[] = {
    {0x00, 0x1f},     {0x7f, 0x9f},     {0x61c, 0x61c},
    {0x200e, 0x200f}, {0x2028, 0x202e}, {0x2066, 0x2069},
};

size_t shown_utf8_length(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80)
        return 1;
    size_t length = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    }
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return length;
}

/* Return the character of the UTF-8 sequence of `length` bytes at `text`. */
static uint32_t code_point(const char *text, size_t length)
{
    const unsigned char *s = (const unsigned char *)text;
    uint32_t code = length == 1 ? s[0] : s[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++)
        code = code << 6 | (s[i] & 0x3fu);
    return code;
}

static bool is_escaped(uint32_t code)
{
    for (size_t i = 0; i < sizeof(escaped) / sizeof(escaped[0]); i++) {
        if (code >= escaped[i].first && code <= escaped[i].last)
            return true;
    }
    return false;
}

size_t shown_first(const char *text, char shown[SHOWN_BYTES])
{
    size_t length = shown_utf8_length(text);
    if (length == 0) {
        snprintf(shown, SHOWN_BYTES, "\\x%02x", (unsigned char)text[0]);
        return 1;
    }
    uint32_t code = code_point(text, length);
    if (is_escaped(code)) {
        snprintf(shown, SHOWN_BYTES, "\\u%04x", (unsigned)(code & 0xffff));
    } else {
        memcpy(shown, text, length);
        shown[length] = '\0';
    }
    return length;
}

size_t shown_cut(const char *text, size_t room)
{
    while (room > 0 && ((unsigned char)text[room] & 0xc0) == 0x80)
        room--;
    return room;
}

size_t shown_copy(char *to, size_t room, const char *text)
{
    size_t used = 0;
    while (*text) {
        char shown[SHOWN_BYTES];
        text += shown_first(text, shown);
        size_t bytes = strlen(shown);
        if (bytes >= room - used)
            break;
        memcpy(to + used, shown, bytes);
        used += bytes;
    }
    to[used] = '\0';
    return used;
}
