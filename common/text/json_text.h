/* JSON text, written front to back into one growing buffer. Commas and escapes are its business;
 * that objects and arrays are closed is the caller's. A key of NULL is for elements of arrays and
 * for the outermost value. Bytes that are not UTF-8 become '?', so that the text is always valid.
 * Running out of memory is remembered and told once, by json_text_take. Calls common/base. */
#ifndef COMMON_TEXT_JSON_TEXT_H
#define COMMON_TEXT_JSON_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_text {
    char *data;
    size_t length;
    size_t capacity;
    bool comma; /* a value stands before the next one */
    bool failed;
    bool shown; /* for people: set after json_text_init, strings are as common/base/shown.h has
                 * them; else whoever reads the JSON gets each character */
};

/* Whether nothing of it would become '?'. */
bool json_text_is_utf8(const char *value);

void json_text_init(struct json_text *text);
void json_text_clear(struct json_text *text);
/* The text, NUL-terminated, the caller's to free; NULL when memory ran out. *length may be NULL. */
char *json_text_take(struct json_text *text, size_t *length);
/* Bytes as they are, outside the grammar (a newline at the end). */
void json_text_raw(struct json_text *text, const char *bytes, size_t length);

void json_text_open_object(struct json_text *text, const char *key);
void json_text_close_object(struct json_text *text);
void json_text_open_array(struct json_text *text, const char *key);
void json_text_close_array(struct json_text *text);

void json_text_string(struct json_text *text, const char *key, const char *value);
void json_text_uint(struct json_text *text, const char *key, uint64_t value);
void json_text_int(struct json_text *text, const char *key, int64_t value);
/* Six significant digits; not a number and infinities become 0. */
void json_text_real(struct json_text *text, const char *key, double value);
void json_text_bool(struct json_text *text, const char *key, bool value);
void json_text_null(struct json_text *text, const char *key);
/* Hexadecimal strings: of a number (16 digits), of bytes in memory order. */
void json_text_hex(struct json_text *text, const char *key, uint64_t value);
void json_text_hex_bytes(struct json_text *text, const char *key, const uint8_t *bytes,
                         size_t count);

#endif
