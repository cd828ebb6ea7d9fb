/* The table of all keys of the configuration, and what one key allows. For the files of
 * common/config only.
 *
 * Parsing, defaults, limits, printing, the JSON Schema and the reference are all made from it:
 * a new option is a field in struct config and a line in common/config/config_table.c. */
#ifndef COMMON_CONFIG_CONFIG_TABLE_H
#define COMMON_CONFIG_CONFIG_TABLE_H

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

#include "common/config/config.h"

enum config_type {
    CONFIG_TEXT,     /* char[]: a string that matches `pattern` */
    CONFIG_ADDRESS,  /* char[]: the same; a numeric IPv6 address is stored in canonical form */
    CONFIG_ENDPOINT, /* "HOST:PORT" into config_server.address and .port */
    CONFIG_CHOICE,   /* char[]: one of `choices` */
    CONFIG_LEVEL,    /* enum log_level: one of `choices` */
    CONFIG_MODE,     /* uint32_t: an octal string that matches `pattern` */
    CONFIG_INTEGER,  /* uint16_t, uint32_t or uint64_t by `width` */
    CONFIG_BOOLEAN,  /* bool */
};

struct config_key {
    const char *name;
    enum config_type type;
    size_t offset; /* of the field in struct config, or struct config_server */
    size_t width;  /* bytes of the field */
    uint64_t least;
    uint64_t most;              /* of the integer, or of the string's length in bytes */
    uint64_t multiple;          /* of this; 0: of anything */
    uint64_t default_number;    /* integers and booleans */
    const char *default_text;   /* strings */
    const char *default_note;   /* where the default depends on other keys: on what */
    const char *pattern;        /* anchored, in the common part of POSIX ERE and ECMA 262 */
    const char *shape;          /* the pattern in words: "a string of ..." */
    const char *const *choices; /* NULL-terminated */
    const char *unit;           /* "bytes", "ms", ...; NULL where there is none */
    const char *text;           /* one or two sentences for the reference */
    bool required;
};

/* An object of the file: name "" is the top level, "servers" one entry of the roster. */
struct config_section {
    const char *name;
    const char *text;
    const struct config_key *keys;
    size_t key_count;
};

/* In the order in which they are printed; the first is the top level. */
extern const struct config_section config_sections[];
extern const size_t config_section_count;
extern const struct config_section config_server_section;

#define CONFIG_ALLOWED_BYTES 512

/* "an integer from 4096 to 16777216 bytes, a multiple of 64". */
void config_key_allowed(const struct config_key *key, char text[CONFIG_ALLOWED_BYTES]);
/* Check and store a value. `base` is a struct config, or a struct config_server for the keys of
 * one. ERR_INVALID, and nothing stored, when it is not allowed; ERR_MEMORY. */
int config_key_store(const struct config_key *key, const json_t *value, void *base);
void config_key_store_default(const struct config_key *key, void *base);
/* The field as JSON, a new reference; NULL: out of memory. */
json_t *config_key_value(const struct config_key *key, const void *base);
/* The default as JSON, a new reference; NULL: out of memory. */
json_t *config_key_default(const struct config_key *key);

/* config_reference.c: the text in lines of 120 columns at most, the first behind `lead`, the others
 * behind `indent`. No line ends within a `code`. */
void config_print_lines(FILE *out, const char *lead, const char *indent, const char *text);

/* Indented text of a tree, with a newline at the end; the caller frees it. NULL: out of memory. */
char *config_json_text(const json_t *root);

#endif
