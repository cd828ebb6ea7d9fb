#include "common/text/json_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/shown.h"

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

bool json_text_is_utf8(const char *value)
{
    size_t length = 1;
    while (*value && length > 0) {
        length = shown_utf8_length(value);
        value += length;
    }
    return length > 0;
}

static void json_text_escape(struct json_text *text, const char *value)
{
    while (*value) {
        size_t length = shown_utf8_length(value);
        char escape[8];
        if (length == 0) {
            json_text_put(text, "?");
        } else if (*value == '"' || *value == '\\') {
            snprintf(escape, sizeof(escape), "\\%c", *value);
            json_text_put(text, escape);
        } else if ((unsigned char)*value < 0x20 || *value == 0x7f) {
            snprintf(escape, sizeof(escape), "\\u%04x", (unsigned char)*value);
            json_text_put(text, escape);
        } else {
            json_text_raw(text, value, length);
        }
        value += length ? length : 1;
    }
}

static void json_text_quote(struct json_text *text, const char *value)
{
    json_text_put(text, "\"");
    while (text->shown && *value) {
        char shown[SHOWN_BYTES];
        value += shown_first(value, shown);
        json_text_escape(text, shown);
    }
    json_text_escape(text, value);
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
