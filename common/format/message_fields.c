#include "common/format/message_fields.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/shown.h"
#include "common/format/message_scan.h"

#define LIST_MAX 65536u

int message_object_parse(struct message_object **object, const char *line, size_t length,
                         struct error *error)
{
    json_error_t json_error;
    int result = message_scan(line, length, error);
    if (result < 0)
        return result;
    json_t *json = json_loadb(line, length, JSON_REJECT_DUPLICATES, &json_error);
    if (!json)
        return error_set(error, ERR_PROTOCOL, "not JSON: %s at byte %d", json_error.text,
                         json_error.position);
    if (!json_is_object(json)) {
        json_decref(json);
        return error_set(error, ERR_PROTOCOL, "not a JSON object");
    }
    *object = (struct message_object *)json;
    return 0;
}

void message_object_free(struct message_object *object)
{
    json_decref((json_t *)object);
}

static const char *json_kind_name(const json_t *value)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a real",    [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null",
    };
    return value ? names[json_typeof(value)] : "missing";
}

static int wrong_kind(const char *key, const json_t *value, const char *wanted, struct error *error)
{
    return error_set(error, ERR_PROTOCOL, "key '%s' is %s, must be %s", key, json_kind_name(value),
                     wanted);
}

static int get_text(char *text, size_t bytes, const char *key, const json_t *value,
                    struct error *error)
{
    if (!json_is_string(value))
        return wrong_kind(key, value, "a string", error);
    size_t length = json_string_length(value);
    if (length >= bytes)
        return error_set(error, ERR_PROTOCOL, "key '%s' has %zu bytes, allowed are %zu", key,
                         length, bytes - 1);
    memcpy(text, json_string_value(value), length + 1);
    return 0;
}

int message_object_type(const struct message_object *object, char *name, size_t bytes,
                        struct error *error)
{
    return get_text(name, bytes, "type", json_object_get((const json_t *)object, "type"), error);
}

static int get_integer(int64_t *number, const char *key, const json_t *value, int64_t least,
                       int64_t most, struct error *error)
{
    if (!json_is_integer(value))
        return wrong_kind(key, value, "an integer", error);
    json_int_t integer = json_integer_value(value);
    if (integer < least || integer > most)
        return error_set(error, ERR_PROTOCOL,
                         "key '%s' is %" JSON_INTEGER_FORMAT ", must be %" PRId64 " to %" PRId64,
                         key, integer, least, most);
    *number = integer;
    return 0;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static int get_hex(uint64_t *number, const char *key, const json_t *value, struct error *error)
{
    if (!json_is_string(value))
        return wrong_kind(key, value, "a hexadecimal string", error);
    const char *digits = json_string_value(value);
    size_t length = json_string_length(value);
    uint64_t sum = 0;
    for (size_t i = 0; i < length; i++) {
        int digit = hex_digit(digits[i]);
        if (digit < 0 || length > 16)
            length = 0;
        else
            sum = sum << 4 | (unsigned)digit;
    }
    if (length == 0)
        return error_set(error, ERR_PROTOCOL, "key '%s' is not 1 to 16 hexadecimal digits", key);
    *number = sum;
    return 0;
}

static int get_bytes(uint8_t *bytes, uint32_t *count, size_t most, const char *key,
                     const json_t *value, struct error *error)
{
    if (!json_is_string(value))
        return wrong_kind(key, value, "a hexadecimal string", error);
    const char *digits = json_string_value(value);
    size_t length = json_string_length(value);
    if (length % 2 != 0 || length / 2 > most || (!count && length / 2 != most))
        return error_set(error, ERR_PROTOCOL, "key '%s' has %zu digits, must have %s%zu", key,
                         length, count ? "an even number up to " : "", most * 2);
    for (size_t i = 0; i < length / 2; i++) {
        int high = hex_digit(digits[2 * i]), low = hex_digit(digits[2 * i + 1]);
        if (high < 0 || low < 0)
            return error_set(error, ERR_PROTOCOL, "key '%s' is not hexadecimal", key);
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    if (count)
        *count = (uint32_t)(length / 2);
    return 0;
}

static int get_list(struct message_list *list, const char *key, const json_t *value, int64_t most,
                    struct error *error)
{
    if (!json_is_array(value))
        return wrong_kind(key, value, "an array of integers", error);
    size_t count = json_array_size(value);
    if (count > LIST_MAX)
        return error_set(error, ERR_PROTOCOL, "key '%s' has %zu elements, allowed are %u", key,
                         count, LIST_MAX);
    uint32_t *values = calloc(count ? count : 1, sizeof(*values));
    if (!values)
        return error_set(error, ERR_MEMORY, "no memory for key '%s'", key);
    for (size_t i = 0; i < count; i++) {
        int64_t number = 0;
        int result = get_integer(&number, key, json_array_get(value, i), 0, most, error);
        if (result < 0) {
            free(values);
            return result;
        }
        values[i] = (uint32_t)number;
    }
    *list = (struct message_list){values, (uint32_t)count};
    return 0;
}

static int get_positions(struct message *message, const char *key, const json_t *value,
                         struct error *error)
{
    if (!json_is_array(value))
        return wrong_kind(key, value, "an array of [group, count]", error);
    size_t count = json_array_size(value);
    if (count > LIST_MAX)
        return error_set(error, ERR_PROTOCOL, "key '%s' has %zu elements, allowed are %u", key,
                         count, LIST_MAX);
    struct message_position *positions = calloc(count ? count : 1, sizeof(*positions));
    if (!positions)
        return error_set(error, ERR_MEMORY, "no memory for key '%s'", key);
    for (size_t i = 0; i < count; i++) {
        json_t *pair = json_array_get(value, i);
        int64_t group = 0, sequences = 0;
        int result = json_array_size(pair) == 2
                         ? get_integer(&group, key, json_array_get(pair, 0), 0, INT32_MAX, error)
                         : wrong_kind(key, pair, "an array of [group, count]", error);
        if (result == 0)
            result = get_integer(&sequences, key, json_array_get(pair, 1), 0, INT64_MAX, error);
        if (result < 0) {
            free(positions);
            return result;
        }
        positions[i] = (struct message_position){(uint32_t)group, (uint64_t)sequences};
    }
    message->positions = positions;
    message->position_count = (uint32_t)count;
    return 0;
}

int message_field_get(struct message *message, const struct message_field *field,
                      const struct message_object *object, struct error *error)
{
    const json_t *value = json_object_get((const json_t *)object, field->key);
    char *at = (char *)message + field->offset;
    int64_t number = 0;
    int result;
    switch (field->kind) {
    case MESSAGE_FIELD_TEXT:
        return get_text(at, field->bytes, field->key, value, error);
    case MESSAGE_FIELD_HEX:
        return get_hex((uint64_t *)(void *)at, field->key, value, error);
    case MESSAGE_FIELD_BYTES: {
        char *length = (char *)message + field->length_offset;
        return get_bytes((uint8_t *)at, field->length_offset ? (uint32_t *)(void *)length : NULL,
                         field->bytes, field->key, value, error);
    }
    case MESSAGE_FIELD_LIST:
        return get_list((struct message_list *)(void *)at, field->key, value, field->most, error);
    case MESSAGE_FIELD_POSITIONS:
        return get_positions(message, field->key, value, error);
    default:
        break;
    }
    if (field->kind == MESSAGE_FIELD_OPTIONAL_U32 && !value)
        return 0;
    result = get_integer(&number, field->key, value, field->least, field->most, error);
    if (result < 0)
        return result;
    if (field->kind == MESSAGE_FIELD_U64)
        *(uint64_t *)(void *)at = (uint64_t)number;
    else if (field->kind == MESSAGE_FIELD_U32 || field->kind == MESSAGE_FIELD_OPTIONAL_U32)
        *(uint32_t *)(void *)at = (uint32_t)number;
    else
        *(int32_t *)(void *)at = (int32_t)number;
    return 0;
}

/* Put the text, cut at the length that the field has room for. */
static void put_text(struct json_text *text, const char *key, const char *value, size_t bytes)
{
    char cut[sizeof(((struct message *)0)->text)];
    size_t length = strnlen(value, bytes - 1);
    if (value[length] == '\0') {
        json_text_string(text, key, value);
        return;
    }
    length = shown_cut(value, length);
    memcpy(cut, value, length);
    cut[length] = '\0';
    json_text_string(text, key, cut);
}

void message_field_put(const struct message *message, const struct message_field *field,
                       struct json_text *text)
{
    const char *at = (const char *)message + field->offset;
    const struct message_list *list = (const void *)at;
    switch (field->kind) {
    case MESSAGE_FIELD_TEXT:
        put_text(text, field->key, at, field->bytes);
        break;
    case MESSAGE_FIELD_OPTIONAL_U32:
        if (*(const uint32_t *)(const void *)at != 0)
            json_text_uint(text, field->key, *(const uint32_t *)(const void *)at);
        break;
    case MESSAGE_FIELD_U32:
        json_text_uint(text, field->key, *(const uint32_t *)(const void *)at);
        break;
    case MESSAGE_FIELD_I32:
        json_text_int(text, field->key, *(const int32_t *)(const void *)at);
        break;
    case MESSAGE_FIELD_U64:
        json_text_uint(text, field->key, *(const uint64_t *)(const void *)at);
        break;
    case MESSAGE_FIELD_HEX:
        json_text_hex(text, field->key, *(const uint64_t *)(const void *)at);
        break;
    case MESSAGE_FIELD_BYTES: {
        const char *length = (const char *)message + field->length_offset;
        json_text_hex_bytes(text, field->key, (const uint8_t *)at,
                            field->length_offset ? *(const uint32_t *)(const void *)length
                                                 : field->bytes);
        break;
    }
    case MESSAGE_FIELD_LIST:
        json_text_open_array(text, field->key);
        for (uint32_t i = 0; i < list->count; i++)
            json_text_uint(text, NULL, list->values[i]);
        json_text_close_array(text);
        break;
    case MESSAGE_FIELD_POSITIONS:
        json_text_open_array(text, field->key);
        for (uint32_t i = 0; i < message->position_count; i++) {
            json_text_open_array(text, NULL);
            json_text_uint(text, NULL, message->positions[i].group);
            json_text_uint(text, NULL, message->positions[i].sequences);
            json_text_close_array(text);
        }
        json_text_close_array(text);
        break;
    }
}
