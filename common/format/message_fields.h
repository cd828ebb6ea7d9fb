/* One key of a message: how it is read from a parsed object into struct message, and written.
 * For message.c alone. Calls common/text and common/base. */
#ifndef COMMON_FORMAT_MESSAGE_FIELDS_H
#define COMMON_FORMAT_MESSAGE_FIELDS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/format/message.h"
#include "common/text/json_text.h"

enum message_field_kind {
    MESSAGE_FIELD_TEXT, /* char[bytes]: a string that fits with its NUL */
    MESSAGE_FIELD_U32,
    MESSAGE_FIELD_OPTIONAL_U32,
    /* left out where it is 0 */ /* integer, least..most */
    MESSAGE_FIELD_I32,           /* likewise */
    MESSAGE_FIELD_U64,           /* likewise */
    MESSAGE_FIELD_HEX,           /* uint64_t as a string of 1 to 16 hexadecimal digits */
    MESSAGE_FIELD_BYTES,         /* uint8_t[bytes] as hexadecimal; of any length up to bytes when
                                    length_offset names a uint32_t for it */
    MESSAGE_FIELD_LIST,          /* struct message_list of integers 0..most */
    MESSAGE_FIELD_POSITIONS,
};

struct message_field {
    const char *key;
    enum message_field_kind kind;
    size_t offset; /* into struct message */
    size_t length_offset;
    int64_t least, most;
    size_t bytes;
};

struct message_object; /* a parsed JSON object */

/* ERR_PROTOCOL with where the syntax breaks; ERR_MEMORY. On success the caller frees it. */
int message_object_parse(struct message_object **object, const char *line, size_t length,
                         struct error *error);
void message_object_free(struct message_object *object);
/* The value of "type". ERR_PROTOCOL. */
int message_object_type(const struct message_object *object, char *name, size_t bytes,
                        struct error *error);

/* ERR_PROTOCOL names the key, what it is, and what was wanted. */
int message_field_get(struct message *message, const struct message_field *field,
                      const struct message_object *object, struct error *error);
void message_field_put(const struct message *message, const struct message_field *field,
                       struct json_text *text);

#endif
