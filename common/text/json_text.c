#include "common/text/json_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void json_text_init(struct json_text *text)
{
    *text = (struct json_text){0};
}

void json_text_clear(struct json_text *text)
{
    free(text->data);
    json_text_init(text);
}

char *json_text_take(struct json_text *text, size_t *length)
{
    json_text_raw(text, "", 1);
    if (text->failed) {
        json_text_clear(text);
        return NULL;
    }
    char *data = text->data;
    if (length)
        *length = text->length - 1;
    json_text_init(text);
    return data;
}

void json_text_raw(struct json_text *text, const char *bytes, size_t length)
{
    if (text->failed)
        return;
    if (text->capacity - text->length < length) {
        size_t capacity = text->capacity * 2 + length + 256;
        char *data = realloc(text->data, capacity);
        if (!data) {
            text->failed = true;
            return;
        }
        text->data = data;
        text->capacity = capacity;
    }
    memcpy(text->data + text->length, bytes, length);
    text->length += length;
}

static void json_text_put(struct json_text *text, const char *string)
{
    json_text_raw(text, string, strlen(string));
}

/* Length of the UTF-8 sequence at s, or 0 when it is none (RFC 3629, table 3-7 of Unicode). */
static size_t utf8_length(const unsigned char *s)
{
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

bool json_text_is_utf8(const char *value)
{
    const unsigned char *s = (const unsigned char *)value;
    size_t length = 1;
    while (*s && length > 0) {
        length = utf8_length(s);
        s += length;
    }
    return length > 0;
}

static void json_text_quote(struct json_text *text, const char *value)
{
    json_text_put(text, "\"");
    for (const unsigned char *s = (const unsigned char *)value; *s;) {
        size_t length = utf8_length(s);
        char escape[8];
        if (length == 0) {
            json_text_put(text, "?");
        } else if (*s == '"' || *s == '\\') {
            snprintf(escape, sizeof(escape), "\\%c", *s);
            json_text_put(text, escape);
        } else if (*s < 0x20 || *s == 0x7f) {
            snprintf(escape, sizeof(escape), "\\u%04x", *s);
            json_text_put(text, escape);
        } else {
            json_text_raw(text, (const char *)s, length);
        }
        s += length ? length : 1;
    }
    json_text_put(text, "\"");
}

static void json_text_begin(struct json_text *text, const char *key)
{
    if (text->comma)
        json_text_put(text, ",");
    if (key) {
        json_text_quote(text, key);
        json_text_put(text, ":");
    }
    text->comma = true;
}

void json_text_open_object(struct json_text *text, const char *key)
{
    json_text_begin(text, key);
    json_text_put(text, "{");
    text->comma = false;
}

void json_text_close_object(struct json_text *text)
{
    json_text_put(text, "}");
    text->comma = true;
}

void json_text_open_array(struct json_text *text, const char *key)
{
    json_text_begin(text, key);
    json_text_put(text, "[");
    text->comma = false;
}

void json_text_close_array(struct json_text *text)
{
    json_text_put(text, "]");
    text->comma = true;
}

void json_text_string(struct json_text *text, const char *key, const char *value)
{
    json_text_begin(text, key);
    json_text_quote(text, value);
}

/* Lists have tens of thousands of them, for which printf takes its time. */
static void json_text_number(struct json_text *text, const char *key, uint64_t value, bool negative)
{
    char digits[24];
    size_t at = sizeof(digits);
    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    if (negative)
        digits[--at] = '-';
    json_text_begin(text, key);
    json_text_raw(text, digits + at, sizeof(digits) - at);
}

void json_text_uint(struct json_text *text, const char *key, uint64_t value)
{
    json_text_number(text, key, value, false);
}

void json_text_int(struct json_text *text, const char *key, int64_t value)
{
    json_text_number(text, key, value < 0 ? -(uint64_t)value : (uint64_t)value, value < 0);
}

void json_text_real(struct json_text *text, const char *key, double value)
{
    char digits[32];
    snprintf(digits, sizeof(digits), "%.6g", isfinite(value) ? value : 0.0);
    json_text_begin(text, key);
    json_text_put(text, digits);
}

void json_text_bool(struct json_text *text, const char *key, bool value)
{
    json_text_begin(text, key);
    json_text_put(text, value ? "true" : "false");
}

void json_text_null(struct json_text *text, const char *key)
{
    json_text_begin(text, key);
    json_text_put(text, "null");
}

void json_text_hex(struct json_text *text, const char *key, uint64_t value)
{
    char digits[24];
    snprintf(digits, sizeof(digits), "\"%016" PRIx64 "\"", value);
    json_text_begin(text, key);
    json_text_put(text, digits);
}

void json_text_hex_bytes(struct json_text *text, const char *key, const uint8_t *bytes,
                         size_t count)
{
    json_text_begin(text, key);
    json_text_put(text, "\"");
    for (size_t i = 0; i < count; i++) {
        char digits[4];
        snprintf(digits, sizeof(digits), "%02x", bytes[i]);
        json_text_put(text, digits);
    }
    json_text_put(text, "\"");
}
